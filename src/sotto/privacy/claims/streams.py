"""Sentences about streams of releases of people's data: the door, the ledger and the sampler.

Each names in its comment the module that makes it true.
"""

from sotto.privacy.answers.distances import TrainingShards
from sotto.privacy.claims.claim import (
    Claim,
    Facts,
    about_people,
    about_rewards,
    always,
    both,
    some,
)
from sotto.privacy.statements import StreamStatement


def through_functions(stream: StreamStatement) -> bool:
    """Through the door for functions, `functions.py`, or as a paper prints it."""
    return bool(stream.parts) and stream.releases_values


def through_the_door(stream: StreamStatement) -> bool:
    """Through `releases.py`: contributions are traced, clipped and summed."""
    return bool(stream.parts) and not stream.releases_values


def has_prefixes(facts: Facts) -> bool:
    """A stream of stable prefixes was charged."""
    return any(one.prefixes is not None for one in facts.streams)


def has_selection(facts: Facts) -> bool:
    """A stream is the best of several tries."""
    return any(one.selection is not None for one in facts.streams)


def nothing_charged(facts: Facts) -> bool:
    """A ledger of streams that was not charged yet."""
    return facts.answers is None and not facts.streams


def has_noise(facts: Facts) -> bool:
    """All noise is the operating system's; a fixed seed guarantees nothing."""
    streams = [one.entropy for one in facts.streams]
    answers = [] if facts.answers is None else [facts.answers.entropy]
    return all(one == "operating-system" for one in [*streams, *answers])


def has_shards(facts: Facts) -> bool:
    """A teacher whose answers protect the people it was trained on."""
    return facts.answers is not None and isinstance(facts.answers.distance, TrainingShards)


def drawn_on_grid(stream: StreamStatement) -> bool:
    """Noise has its law on the grid, and not as scaled float64 numbers of earlier versions."""
    law = getattr(stream, "noise_law", "scaled-float64")
    return stream.prefixes is not None or law == "on-grid"


def _scaled(stream: StreamStatement) -> bool:
    """Noise of earlier versions, where anything is claimed of it."""
    paper = stream.releases_values and bool(stream.gaps)
    return not drawn_on_grid(stream) and not paper


def _simulated(facts: Facts) -> bool:
    if facts.answers is not None:
        return has_shards(facts) and facts.answers.population == "simulated"
    return any(one.population == "simulated" for one in facts.streams)


def _door(facts: Facts) -> bool:
    return any(map(through_the_door, facts.streams)) or nothing_charged(facts)


def _of_whom(facts: Facts) -> dict[str, str]:
    """Who or what is simulated."""
    if about_rewards(facts):
        return {"what": "rewards"}
    experts = any(one.unit.kind == "expert" for one in facts.streams)
    return {"what": "experts" if experts else "people"}


# --- what is not protected -----------------------------------------------------------------------

IN_GENERAL = Claim(
    "general.what-is-true-of-all",
    "does-not-protect",
    "What is true of people in general: whatever is learnt from everybody else is learnt about "
    "each person too.",
    holds=lambda facts: about_people(facts) or has_shards(facts),
)
OTHER_RUNS = Claim(
    "general.other-runs",
    "does-not-protect",
    "What other runs on the same people release: this certificate is about one run.",
    holds=about_people,
)
SIDE_CHANNELS = Claim(
    "general.side-channels",
    "does-not-protect",
    "What is learnt from timing, memory use, or by entering the machine.",
    holds=always,
)

# --- what is assumed -----------------------------------------------------------------------------

# purity.py
CONTRIBUTED = Claim(
    "door.contributed",
    "code",
    "What a person contributes depends on their own data, their own random numbers and earlier "
    "releases only; so does what the server makes of a release (except in steps named as not "
    "private).",
    "both functions are traced and read; a Python number computed from data before is something "
    "that tracing cannot see",
    holds=_door,
)
# purity.py, primitives.py, keys.py, settings.py
COMPILED = Claim(
    "door.compiled",
    "code",
    "What is computed for one person uses operations of JAX that were reviewed and treat every "
    "person alone. Random keys are threefry2x32. No setting of JAX or XLA that is not understood "
    "was in force when a stream was opened or charged.",
    "programs and settings are compared with lists of what was reviewed, and all else is refused; "
    "the programs are compiled for IEEE arithmetic, whatever XLA was told",
    holds=lambda facts: facts.settings_checked and any(map(through_the_door, facts.streams)),
)
UNCHANGED = Claim(
    "door.unchanged",
    "user",
    "Nobody rewrites JAX or sotto inside the process. XLA computes each person's row from that row "
    "alone, bit for bit, on the device at hand.",
    "use JAX and sotto as they were installed; the code notices only some changes, and rows were "
    "tried on CPUs",
    holds=some(lambda one: through_the_door(one) or one.prefixes is not None),
)
# mechanisms/gaussian.py
ROUNDED = Claim(
    "gaussian.rounded",
    "code",
    "Rounding gives nothing away (except in steps named as not private).",
    "clipped contributions and noise are integers on a public grid, and sums are exact",
    holds=lambda facts: (
        any(through_the_door(one) and not one.sum_rounding for one in facts.streams)
        or nothing_charged(facts)
    ),
)
# factored.py
ROUNDED_SUMS = Claim(
    "factored.rounded",
    "code",
    "Rounding gives nothing away (except in steps named as not private).",
    "sums over a batch of people are float32 matrix products, rounded to integers on a public "
    "grid; the noise is larger by a bound on how far that moves neighbours apart, and everything "
    "after is exact",
    holds=some(lambda one: one.sum_rounding > 0),
)
# noise.py
LAW = Claim(
    "noise.law",
    "code",
    "Noise is drawn by a sampler whose law on the released grid is the stated one; what its finite "
    "precision costs is charged.",
    "the samplers are proved in docs/privacy.md, section 7",
    holds=both(
        lambda facts: bool(facts.streams) and all(map(drawn_on_grid, facts.streams)), has_noise
    ),
)
# noise.py, as it was before noise was drawn on the grid
SCALED = Claim(
    "noise.scaled",
    "user",
    "Noise was drawn as float64 numbers, scaled and rounded to the released grid. That these "
    "numbers stand for real ones there is assumed.",
    "open a new stream with a version that draws noise on the grid, which is proved",
    holds=both(some(_scaled), has_noise),
)
SCALED_VALUES = Claim(
    "noise.scaled-values",
    "does-not-protect",
    "Rewards and functions of them against whoever computes the sampler's exact law: an earlier "
    "version released these values on a grid finer than its noise resolves, and more can be told "
    "from them than epsilon says.",
    holds=both(some(lambda one: through_functions(one) and _scaled(one)), has_noise),
)
# noise.py
RANDOM = Claim(
    "noise.random",
    "user",
    "The noise is as good as random.",
    "it is made of AES-128 in counter mode. The operating system's entropy keys every generator, "
    "through numpy's SeedSequence; each serves one stream, release or batch of answers and is "
    "forgotten. It holds as long as nobody breaks the cipher, that mixing, or the machine's "
    "entropy",
    version=2,
    holds=has_noise,
)
# mechanisms/correlated.py, draws.py
CORRELATED = Claim(
    "noise.correlated",
    "code",
    "Noise is correlated over releases as the streams state, and new for every stream.",
    "what was drawn is mixed as stated and then forgotten, and a stream with such noise is never "
    "resumed",
    holds=both(some(lambda one: one.correlation.kind != "independent"), has_noise),
)
# mechanisms/correlated.py
ROUNDED_NOISE = Claim(
    "noise.rounded",
    "code",
    "Noise that is correlated over releases is combined in integers. It is larger by a bound on "
    "how much further that rounding can move neighbours apart.",
    "the bound is proved in docs/privacy.md, section 4",
    holds=some(lambda one: one.noise_rounding > 0),
)
TIMING = Claim(
    "general.timing",
    "user",
    "Timing and other side channels are outside the claim.",
    "do not let an adversary time or share the machine",
    holds=always,
)
FAILURE = Claim(
    "runs.failure",
    "user",
    "Whether, and when, a training fails does not depend on the data that is protected.",
    "whoever waits for the result sees that it failed, also where they are not told why; nothing "
    "here pays for that",
    holds=some(lambda one: one.population == "real"),
)
SIMULATED = Claim(
    "population.simulated",
    "user",
    "The {what} are simulated: the claim is about simulated {what}, and learning curves, which "
    "have no noise, are for the experimenter.",
    "keep learning curves and other figures without noise apart from what is certified",
    version=2,
    holds=_simulated,
    numbers=_of_whom,
)
# draws.py
SAMPLED = Claim(
    "draws.secret",
    "code",
    "Who is drawn by Poisson sampling stays secret.",
    "draws use fresh keys and are not returned, logged or stored",
    holds=some(lambda one: one.participation.kind == "poisson"),
)

# --- what a stream's statement brings ------------------------------------------------------------

POOL = Claim(
    "releases.pool",
    "user",
    "The data that a pool hands out for one person are made of that person's data and random "
    "numbers only, and it keeps to itself whom it was asked for.",
    "whoever writes the pool reads one person's rows for one person",
)
# algorithms/dppg.py
POLICIES = Claim(
    "dppg.policies",
    "protects",
    "What each user contributes, against whoever sees every policy released during and after "
    "training, their averages, and anything computed from them.",
    version=2,
)
# algorithms/dppg_parts.py
PARTS = Claim(
    "dppg.parts",
    "protects",
    "What each user contributes, against whoever also sees noisy sums that tell {what}.",
    version=2,
)
PATTERNS = Claim(
    "dppg.patterns",
    "does-not-protect",
    "what the released policy recommends about people in general: a pattern that many users share "
    "is what is learned",
)
OWN_TRAJECTORY = Claim(
    "dppg.own-trajectory",
    "does-not-protect",
    "a user against whoever sees their own trajectory while it is collected",
)
# algorithms/dppg_gymnasium.py
NO_MEMORY = Claim(
    "dppg.no-memory",
    "user",
    "A copy of the environment remembers nothing of the users who played in it before: what it "
    "gives after a reset is made of that reset's seed, and of its own user.",
    "environments in Gymnasium are not traced; of wrappers, those that are known to keep running "
    "statistics are refused",
)
# rl/envs/unseen.py, rl/envs/lanes.py
UNSEEN = Claim(
    "dppg.unseen",
    "code",
    "Nothing that the environment says or raises leaves its processes.",
    "their output goes nowhere, and every failure is one fixed sentence",
)
OWN_OUTPUT = Claim(
    "dppg.own-output",
    "user",
    "The environment writes about people nowhere but to its own output, and its spaces and time "
    "limit are public.",
    "whoever writes the environment keeps no files, logs or connections that others can see",
)
# algorithms/ucb_vi.py
COUNTERS = Claim(
    "ucb.counters",
    "protects",
    "What each user contributes, against whoever sees the counters, every plan made of them, and "
    "what is recommended to anybody else.",
    version=2,
)
LOCAL_COUNTERS = Claim(
    "ucb.local-counters",
    "protects",
    "each user's counters against whoever collects them: noise of their own is on them, and may be "
    "added before they leave the user",
)
OWN_ACTIONS = Claim(
    "ucb.own-actions",
    "does-not-protect",
    "the actions recommended to the user themselves, against whoever sees their episode",
)
IN_COMMON = Claim(
    "ucb.in-common",
    "does-not-protect",
    "what episodes have in common: it is what is learned",
)

BROUGHT = (
    POLICIES,
    PARTS,
    PATTERNS,
    OWN_TRAJECTORY,
    NO_MEMORY,
    UNSEEN,
    OWN_OUTPUT,
    COUNTERS,
    LOCAL_COUNTERS,
    OWN_ACTIONS,
    IN_COMMON,
    POOL,
)
