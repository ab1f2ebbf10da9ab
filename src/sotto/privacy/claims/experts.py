"""Sentences about experts: votes, stable prefixes, DP-SGD (docs/privacy.md, sections 14, 15)."""

from sotto.privacy.claims.claim import Claim
from sotto.privacy.claims.streams import has_prefixes

# --- stable prefixes: prefixes.py, mechanisms/stable_prefixes.py ---------------------------------

IN_THE_CLEAR = Claim(
    "prefixes.in-the-clear",
    "does-not-protect",
    "States, rewards and dynamics in released prefixes: they are in the clear.",
    holds=has_prefixes,
)
BEYOND_ACTIONS = Claim(
    "prefixes.beyond-actions",
    "does-not-protect",
    "Anything about an expert that shows in states or dynamics, and not in their actions only.",
    holds=has_prefixes,
)
ONE_WORLD = Claim(
    "prefixes.one-world",
    "user",
    "All experts act in one MDP, the world that prefixes are rolled out in: its states, rewards "
    "and dynamics do not depend on which expert acts, or on whether one is there.",
    "roll out in one simulator; experts who choose their cases, or resemble them, are not "
    "protected",
    holds=has_prefixes,
)
FRESH = Claim(
    "prefixes.fresh",
    "code",
    "Rollouts are fresh: no log of anybody's is released, and the rollouts are used for nothing "
    "else.",
    "the door takes a world that it acts in, refuses logs, and returns only the prefixes",
    holds=has_prefixes,
)
ONE_ACTION = Claim(
    "prefixes.one-action",
    "code",
    "One expert's action depends on that expert and the observation only, and there are at least "
    "as many experts as stated, or one fewer.",
    "the actions are traced and mapped over experts, and whoever is there is counted",
    version=2,
    holds=has_prefixes,
)
OWN_DATA = Claim(
    "prefixes.own-data",
    "user",
    "Each expert, or clone, was trained on their own data alone, and who takes part is public.",
    "keep experts' data apart when they are trained",
    holds=has_prefixes,
)
SILENT = Claim(
    "prefixes.silent",
    "code",
    "Nothing says why a prefix ended, or whom it followed.",
    "coins, queries, noise and drawn experts are not returned, logged or stored",
    holds=has_prefixes,
)

# --- what a stream's statement brings ------------------------------------------------------------

# algorithms/voting.py
EXPERTS_POLICY = Claim(
    "votes.experts-policy",
    "protects",
    "Each expert's policy, and whatever of theirs the weight of their vote was made of, such as "
    "the returns they logged.",
    version=2,
)
CLONES_LOG = Claim(
    "votes.clones-log",
    "protects",
    "Each expert's whole log: their clone, and the weight of its vote, are made of it.",
    version=2,
)
RELEASED_VOTES = Claim(
    "votes.released",
    "does-not-protect",
    "The noisy votes of {kind}, the states asked, and every label, student and trajectory made of "
    "them: they are public.",
    version=2,
)
HOW_MANY = Claim("votes.how-many", "does-not-protect", "how many experts there are")
MOST_EXPERTS = Claim(
    "votes.most-experts",
    "does-not-protect",
    "what most experts would do, which is what is learned",
)
OWN_EXPERTS = Claim(
    "votes.own-experts",
    "user",
    "Each expert's policy, and the weight of its vote, were made without the other experts, and "
    "without anything computed from them.",
    "train each expert on its own; what experts start from or share must be public",
)
OWN_CLONES = Claim(
    "votes.own-clones",
    "code",
    "Each clone, and the weight of its vote, is made of the log of its own expert, of public "
    "random numbers and of settings.",
    "clones are fitted one log at a time; settings are public, as is said of all settings",
    version=2,
)
# algorithms/dp_sgd_experts.py
LOGGED = Claim(
    "dp-sgd.logged",
    "protects",
    "Everything that one expert logged: states, actions and rewards.",
)
SLOTS = Claim(
    "dp-sgd.slots",
    "does-not-protect",
    "How many slots there are for experts, and what is public of the environment: its dynamics "
    "and its rewards.",
    version=2,
)
OWN_LOGS = Claim(
    "dp-sgd.own-logs",
    "user",
    "An expert's log is their own: no other expert's log depends on it, and nothing in it was used "
    "for another release.",
    "whoever collects the logs keeps experts apart, and keeps what was rolled out for prefixes out "
    "of them",
)

BROUGHT = (
    EXPERTS_POLICY,
    CLONES_LOG,
    RELEASED_VOTES,
    HOW_MANY,
    MOST_EXPERTS,
    OWN_EXPERTS,
    OWN_CLONES,
    LOGGED,
    SLOTS,
    OWN_LOGS,
)
