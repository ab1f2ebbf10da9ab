"""Sentences of certificates about people who are served one after the other by a service."""

from sotto.privacy.claims.claim import Claim

JOINT = Claim(
    "people.joint",
    "protects",
    "Each person's trajectory, against all other people together, whatever they are served, and "
    "against everybody who sees the released policies (joint privacy, and privacy of everything "
    "that is released).",
)
SEES_TRAJECTORIES = Claim(
    "people.sees-trajectories",
    "does-not-protect",
    "A person, against the operator of the service, who could read trajectories until their "
    "release is made, and later from a copy or a backup that was kept.",
)
SEES_UPDATES = Claim(
    "people.sees-updates",
    "does-not-protect",
    "A person, against the operator of the service, who could read the update that the person's "
    "device computed until its release is made, and later from a copy or a backup that was kept.",
)
SEES_OBSERVATIONS = Claim(
    "people.sees-observations",
    "does-not-protect",
    "A person whose device asks the service for actions, against the operator of the service, who "
    "could read each observation as it comes, also if the person then gives nothing, and later "
    "from a copy that was kept.",
)
PARTICIPATION = Claim(
    "people.participation",
    "does-not-protect",
    "The times at which people take places, give contributions and withdraw. They decide when a "
    "policy is released and whether a place is free, and the certificate counts who gave. The "
    "operator sees them.",
)
OWN_WORLD = Claim(
    "people.own-world",
    "user",
    "What a person's device observes depends on that person and on the policies that were "
    "released, and on nobody else who is protected.",
    "the service gives each device the released policy only; the product around it must not carry "
    "one person's data to another",
)
ONE_TOKEN = Claim(
    "people.one-token",
    "user",
    "Each token was given to one person, no person has two, and nobody gave to a copy of this "
    "campaign.",
    "the operator hands out the tokens, and neither serves copies of the database nor puts an "
    "earlier state of it back, which forgets who gave and who withdrew",
)
