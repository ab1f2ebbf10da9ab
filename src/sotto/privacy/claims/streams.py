"""Sentences about streams of releases of people's data: the door, the ledger and the sampler.

A comment above a sentence names the module that makes it true.
"""

from sotto.privacy.claims.claim import Claim, LedgerFacts
from sotto.privacy.claims.conditions import (
    about_people,
    about_rewards,
    always,
    both,
    drawn_on_grid,
    has_noise,
    has_shards,
    in_shares,
    nothing_charged,
    some,
    through_functions,
    through_the_door,
)
from sotto.privacy.statements import StreamStatement


def _scaled(stream: StreamStatement) -> bool:
    """Whether noise is that of earlier versions, and something is claimed about it."""
    paper = stream.releases_values and bool(stream.gaps)
    return not drawn_on_grid(stream) and not paper


def _simulated(facts: LedgerFacts) -> bool:
    if facts.answers is not None:
        return has_shards(facts) and facts.answers.population == "simulated"
    return any(one.population == "simulated" for one in facts.streams)


def _door(facts: LedgerFacts) -> bool:
    return any(map(through_the_door, facts.streams)) or nothing_charged(facts)


def _of_whom(facts: LedgerFacts) -> dict[str, str]:
    """Returns the word for whom or what the stream simulates."""
    if about_rewards(facts):
        return {"what": "rewards"}
    experts = any(one.unit.kind == "expert" for one in facts.streams)
    return {"what": "experts" if experts else "people"}


# --- what is not protected -----------------------------------------------------------------------

IN_GENERAL = Claim(
    "general.what-is-true-of-all",
    "does-not-protect",
    "Facts that hold for people in general. Such facts can be learnt from other people's data, "
    "and they also hold for each person here.",
    version=2,
    holds=lambda facts: about_people(facts) or has_shards(facts),
)
OTHER_RUNS = Claim(
    "general.other-runs",
    "does-not-protect",
    "Releases of other runs on the same people. This certificate is about one run.",
    version=2,
    holds=about_people,
)
SIDE_CHANNELS = Claim(
    "general.side-channels",
    "does-not-protect",
    "Information that leaks through timing, through memory use, or to somebody with access to the "
    "machine.",
    version=2,
    holds=always,
)

# --- what is assumed -----------------------------------------------------------------------------

# release/purity.py
CONTRIBUTED = Claim(
    "door.contributed",
    "code",
    "A person's contribution depends only on the data handed over for that person, that person's "
    "random numbers and earlier releases. The server computes only from releases and public "
    "values. Steps named as not private are excepted.",
    "the code traces both functions and checks every operation in them; tracing cannot see a "
    "Python number that was computed from data beforehand",
    version=3,
    holds=_door,
)
# release/purity.py, release/primitives.py, keys.py, settings.py
COMPILED = Claim(
    "door.compiled",
    "code",
    "Each person's contribution is computed with reviewed JAX operations only, which treat every "
    "person separately. All random keys are of the kind threefry2x32. When a stream was opened or "
    "charged, no setting of JAX or XLA was in force that has not been reviewed.",
    "the code compares programs and settings with lists of what was reviewed, and refuses "
    "everything else; it compiles the programs for IEEE arithmetic, whatever XLA's flags say",
    version=2,
    holds=lambda facts: facts.settings_checked and any(map(through_the_door, facts.streams)),
)
UNCHANGED = Claim(
    "door.unchanged",
    "user",
    "Nobody modifies JAX or sotto inside the process. On the device in use, XLA computes each "
    "person's row of a batch from that row alone, bit for bit.",
    "use JAX and sotto as they were installed; the code notices only some changes, and the rows "
    "were tested on CPUs",
    version=2,
    holds=some(lambda one: through_the_door(one) or one.prefixes is not None),
)
# mechanisms/gaussian.py
ROUNDED = Claim(
    "gaussian.rounded",
    "code",
    "Rounding reveals nothing about the data, except in steps named as not private.",
    "clipped contributions and noise are integers on a public grid, and sums are exact",
    version=2,
    holds=lambda facts: (
        any(through_the_door(one) and not one.sum_rounding for one in facts.streams)
        or nothing_charged(facts)
    ),
)
# release/factored.py
ROUNDED_SUMS = Claim(
    "factored.rounded",
    "code",
    "Rounding reveals nothing about the data, except in steps named as not private.",
    "the sum over a batch of people is a float32 matrix product, rounded to integers on a public "
    "grid; the noise is larger by a bound on how far apart this moves neighbouring inputs, and "
    "every later step is exact",
    version=2,
    holds=some(lambda one: one.sum_rounding > 0),
)
# mechanisms/noise.py
LAW = Claim(
    "noise.law",
    "code",
    "The noise sampler has the stated distribution on the grid of the released values. The cost "
    "of its finite precision is charged.",
    "docs/privacy.md proves it in section 7, and for stable prefixes in section 14",
    version=2,
    holds=both(
        lambda facts: all(map(drawn_on_grid, facts.streams)),
        some(lambda one: not in_shares(one)),
        has_noise,
    ),
)
# mechanisms/noise.py, as it was before noise was drawn on the grid
SCALED = Claim(
    "noise.scaled",
    "user",
    "An earlier version drew this noise as float64 numbers, scaled them and rounded them to the "
    "grid of the released values. It is assumed that these numbers behave like real numbers.",
    "open a new stream with a version that draws noise on the grid, for which this is proved",
    version=2,
    holds=both(some(_scaled), has_noise),
)
SCALED_VALUES = Claim(
    "noise.scaled-values",
    "does-not-protect",
    "Rewards, and functions of rewards, against an observer who computes the sampler's exact "
    "distribution. An earlier version released these values on a grid that is finer than its "
    "noise resolves, so they reveal more than epsilon says.",
    version=2,
    holds=both(some(lambda one: through_functions(one) and _scaled(one)), has_noise),
)
# mechanisms/noise.py
RANDOM = Claim(
    "noise.random",
    "user",
    "The noise cannot be told from true random numbers.",
    "AES-128 in counter mode generates it. numpy's SeedSequence makes each key from the operating "
    "system's entropy. Each key serves one stream, release or batch of answers, and is then "
    "forgotten. The assumption holds as long as nobody breaks the cipher, this derivation of "
    "keys, or the machine's entropy",
    version=3,
    holds=has_noise,
    granted=True,
)
# mechanisms/correlated.py, release/draws.py
CORRELATED = Claim(
    "noise.correlated",
    "code",
    "The noise is correlated over releases in the way that the streams state, and every stream "
    "has new noise.",
    "the code combines the drawn numbers as stated, then forgets them, and no process continues a "
    "stream with such noise that another one has charged",
    version=3,
    holds=both(some(lambda one: one.correlation.kind != "independent"), has_noise),
)
# mechanisms/correlated.py
ROUNDED_NOISE = Claim(
    "noise.rounded",
    "code",
    "Noise that is correlated over releases is combined in integers. The noise is larger by a "
    "bound on how much further this rounding can move neighbouring inputs apart.",
    "docs/privacy.md, section 4, proves the bound",
    version=2,
    holds=some(lambda one: one.noise_rounding > 0),
)
TIMING = Claim(
    "general.timing",
    "user",
    "Timing and other side channels are outside the claim.",
    "do not let an adversary time or share the machine, or see the dates of its files",
    version=2,
    holds=always,
)
FAILURE = Claim(
    "runs.failure",
    "user",
    "Whether, and when, a training fails does not depend on the data that is protected.",
    "anybody who waits for the result sees that a training failed, even without being told the "
    "reason; epsilon does not cover this",
    version=2,
    holds=some(lambda one: one.population == "real"),
    granted=True,
)
SIMULATED = Claim(
    "population.simulated",
    "user",
    "The {what} are simulated, so this certificate is about simulated {what}. Learning curves "
    "have no noise and are for the experimenter only.",
    "keep learning curves and other figures without noise apart from the certified results",
    version=3,
    holds=_simulated,
    numbers=_of_whom,
)
# release/draws.py
SAMPLED = Claim(
    "draws.secret",
    "code",
    "Who is drawn by Poisson sampling stays secret.",
    "draws use fresh keys and are not returned, logged or stored",
    holds=some(lambda one: one.participation.kind == "poisson"),
)

# --- what a stream's statement brings ------------------------------------------------------------

# algorithms/dppg/release.py
POLICIES = Claim(
    "dppg.policies",
    "protects",
    "Each user's contribution, against an observer who sees every policy released during and "
    "after training, the averages of these policies, and everything computed from them.",
    version=3,
)
# algorithms/dppg/parts.py, algorithms/dppg/critics.py
PARTS = Claim(
    "dppg.parts",
    "protects",
    "Each user's contribution, against an observer who also sees noisy sums that show {what}.",
    version=3,
)
PATTERNS = Claim(
    "dppg.patterns",
    "does-not-protect",
    "Patterns that many users share. The training learns such patterns, and the released policy "
    "shows them.",
    version=2,
)
OWN_TRAJECTORY = Claim(
    "dppg.own-trajectory",
    "does-not-protect",
    "A user, against an observer who sees that user's own trajectory while it is collected.",
    version=2,
)
# algorithms/dppg/public_start.py and algorithms/expert_offline/voting.py
FIRST_POLICY = Claim(
    "dppg.first-policy",
    "user",
    "The policy from which training starts was made without data of the protected people.",
    "whoever chooses the file knows where it comes from",
    version=2,
)
# release/release.py
SAMPLED_PLACES = Claim(
    "sampling.places",
    "user",
    "The place in a batch at which a person's contribution is computed depends on who else was "
    "drawn. It changes the contribution by rounding in float32 only, and it is assumed that "
    "nothing can be told from that.",
    "keep the numbers that contributions are computed from of order one, so that no large numbers "
    "cancel",
)
# algorithms/dppg/gymnasium_users.py
NO_MEMORY = Claim(
    "dppg.no-memory",
    "user",
    "A copy of the environment keeps no memory of earlier users. After a reset, its outputs "
    "depend only on the seed of that reset and on the user who plays in it.",
    "the code cannot trace Gymnasium environments; it refuses the wrappers that are known to keep "
    "running statistics",
    version=2,
)
# rl/envs/gymnasium/unseen.py
UNSEEN = Claim(
    "dppg.unseen",
    "code",
    "The messages and errors of the environment do not leave its processes.",
    "the output of these processes is discarded, and every failure is reported with the same "
    "fixed sentence",
    version=2,
)
OWN_OUTPUT = Claim(
    "dppg.own-output",
    "user",
    "The environment writes about people only to its own output. Its spaces and its time limit "
    "are public.",
    "the author of the environment keeps no files, logs or connections that others can see",
    version=2,
)
NEW_PEOPLE = Claim(
    "dppg.new-people",
    "user",
    "Each reset of the environment with a seed meets a person whom no earlier one has met, and a "
    "reset without a seed goes on with the same person.",
    "the environment is not told whom it meets; the code counts a new person for each seed",
)
MEETS_PERSON = Claim(
    "dppg.meets-person",
    "user",
    "A reset of the environment with a person's enrolment number meets that person and nobody "
    "else.",
    "the environment says so by metadata['meets_person'], and the code gives it the numbers that "
    "are charged",
)
# algorithms/ucb/calibrated.py
COUNTERS = Claim(
    "ucb.counters",
    "protects",
    "Each user's contribution, against an observer who sees the counters, every plan made from "
    "them, and the recommendations to all other users.",
    version=3,
)
LOCAL_COUNTERS = Claim(
    "ucb.local-counters",
    "protects",
    "Each user's counters, against the party that collects them. The counters of each user have "
    "noise of their own, which can be added before they leave the user.",
    version=2,
)
OWN_ACTIONS = Claim(
    "ucb.own-actions",
    "does-not-protect",
    "The actions recommended to a user, against an observer who sees that user's episode.",
    version=2,
)
IN_COMMON = Claim(
    "ucb.in-common",
    "does-not-protect",
    "Patterns that many episodes share. The training learns such patterns.",
    version=2,
)

POOL = Claim(
    "releases.pool",
    "user",
    "The data that a pool returns for one person depend only on that person's data and random "
    "numbers. The pool does not reveal whom it was asked for.",
    "the author of the pool makes sure that it reads one person's rows for one person",
    version=2,
)
