"""What every certificate assumes and leaves out, whatever was released, and what enforces it."""

from collections.abc import Sequence

from sotto.privacy.answers import AnswerStatement
from sotto.privacy.distances import TrainingShards
from sotto.privacy.statements import Assumption, StreamStatement

# --- streams of releases -------------------------------------------------------------------------

NOT_PROTECTED = (
    "What is true of people in general: whatever is learnt from everybody else is learnt about "
    "each person too.",
    "What other runs on the same people release: this certificate is about one run.",
    "What is learnt from timing, memory use, or by entering the machine.",
)

_CONTRIBUTED = Assumption(
    statement="What a person contributes depends on their own data, their own random numbers "
    "and earlier releases only; so does what the server makes of a release (except in steps "
    "named as not private).",
    enforced_by="code",
    how="both functions are traced and read; a Python number computed from data before is "
    "something that tracing cannot see",
)

_ROUNDED = Assumption(
    statement="Rounding gives nothing away (except in steps named as not private).",
    enforced_by="code",
    how="clipped contributions and noise are integers on a public grid, and sums are exact",
)

_ROUNDED_SUMS = _ROUNDED.model_copy(
    update={
        "how": "sums over a batch of people are float32 matrix products, rounded to integers on a "
        "public grid; the noise is larger by a bound on how far that moves neighbours apart, and "
        "everything after is exact"
    }
)

_RANDOM = Assumption(
    statement="The noise is as good as random.",
    enforced_by="user",
    how="every draw has a fresh generator keyed by the operating system, used once "
    "and forgotten, and float64 arithmetic gives it the Gaussian law up to rounding; numpy's "
    "generator is not a cryptographic one, so do not rely on this against an adversary who "
    "can break it",
)

_SETTINGS = Assumption(
    statement="The initial state, hyper-parameters and schedule do not depend on people's "
    "data, nor does anything done to the state between releases other than through releases; "
    "which streams the same people take part in is decided before the first release; trying "
    "several settings on the same people is not accounted for.",
    enforced_by="user",
    how="choose them on public data, in a simulator, or on other people",
)

_CANDIDATES = _SETTINGS.model_copy(
    update={
        "statement": "The initial state, candidates and schedule do not depend on people's data, "
        "nor does anything done to the state between releases other than through releases; which "
        "streams the same people take part in is decided before the first release; trying other "
        "settings on the same people than the selection's candidates is not accounted for.",
    }
)

_STANDARD = (
    _SETTINGS,
    Assumption(
        statement="An enrolment number is one person, always the same one, and who takes part "
        "does not depend on people's data other than through releases.",
        enforced_by="user",
        how="whoever holds the data assigns the numbers",
    ),
    Assumption(
        statement="Nobody takes part more often than the streams say, and no release goes beyond "
        "its horizon.",
        enforced_by="code",
        how="the ledger counts by person over all resumptions, and is charged before a release",
    ),
    _CONTRIBUTED,
    _ROUNDED,
    _RANDOM,
    Assumption(
        statement="Timing and other side channels are outside the claim.",
        enforced_by="user",
        how="do not let an adversary time or share the machine",
    ),
)

_REWARDS_NOT_PROTECTED = (
    "What other runs on the same rewards release: this certificate is about one run.",
    "What is learnt from timing, memory use, or by entering the machine.",
)

_REWARDS = (
    Assumption(
        statement="Nodes, hyper-parameters and schedule, and whatever else counts as public, do "
        "not depend on rewards other than through releases; trying several settings on the same "
        "rewards is not accounted for.",
        enforced_by="user",
        how="choose them on public rewards",
    ),
    Assumption(
        statement="Nothing made of rewards leaves otherwise than through releases: no exact "
        "values, no parameters fitted to them, no noise.",
        enforced_by="user",
        how="whoever holds the rewards keeps them, and hands out what was released",
    ),
    Assumption(
        statement="No release goes beyond its horizon, and each is charged before it is made.",
        enforced_by="code",
        how="the ledger counts, and is synced to disk before noise is drawn",
    ),
    Assumption(
        statement="Every release has fresh noise, and a value that was released stays the same.",
        enforced_by="code",
        how="noise is drawn from the operating system's entropy after the charge; a released "
        "function keeps its answers, on disk before they leave where it has a file",
    ),
    Assumption(
        statement="Rounding gives nothing away (except in steps named as not private).",
        enforced_by="code",
        how="what is released lies on a public grid, whose spacing follows from public numbers",
    ),
    Assumption(
        statement="The noise is as good as random.",
        enforced_by="user",
        how="generators are seeded by the operating system, used once and forgotten, and float64 "
        "arithmetic gives the Gaussian law up to rounding; they are not cryptographic ones, so do "
        "not rely on this against an adversary who can break them",
    ),
    Assumption(
        statement="Timing and other side channels are outside the claim.",
        enforced_by="user",
        how="do not let an adversary time or share the machine",
    ),
)

_PREFIXES = (
    Assumption(
        statement="All experts act in one MDP, the world that prefixes are rolled out in: its "
        "states, rewards and dynamics do not depend on which expert acts, or on whether one is "
        "there.",
        enforced_by="user",
        how="roll out in one simulator; experts who choose their cases, or resemble them, are not "
        "protected",
    ),
    Assumption(
        statement="Rollouts are fresh: no log of anybody's is released, and the rollouts are used "
        "for nothing else.",
        enforced_by="code",
        how="the door takes a world that it acts in, refuses logs, and returns only the prefixes",
    ),
    Assumption(
        statement="One expert's action depends on that expert and the observation only, and there "
        "are at least as many experts as stated, or one fewer.",
        enforced_by="user",
        how="each expert, or clone, was trained on their own data alone; who takes part is public",
    ),
    Assumption(
        statement="Nothing says why a prefix ended, or whom it followed.",
        enforced_by="code",
        how="coins, queries, noise and drawn experts are not returned, logged or stored",
    ),
)

_RANDOM_INTEGERS = Assumption(
    statement="The noise is as good as random.",
    enforced_by="user",
    how="generators are seeded by the operating system, used once and forgotten, and noise has its "
    "law exactly, made of random integers; numpy's generator is not a cryptographic one, so do "
    "not rely on this against an adversary who can break it",
)

_PREFIXES_NOT_PROTECTED = (
    "States, rewards and dynamics in released prefixes: they are in the clear.",
    "Anything about an expert that shows in states or dynamics, and not in their actions only.",
)

_SIMULATED_REWARDS = Assumption(
    statement="Rewards are simulated: the claim is about simulated rewards, and learning curves "
    "are for the experimenter.",
    enforced_by="user",
    how="for real rewards say so in the configuration; nothing un-noised about them is then shown",
)

_SIMULATED = Assumption(
    statement="People are simulated: the claim is about simulated people, and training curves are "
    "for the experimenter.",
    enforced_by="user",
    how="for real people say so in the configuration; nothing un-noised about them is then shown",
)

_SAMPLED = Assumption(
    statement="Who is drawn by Poisson sampling stays secret.",
    enforced_by="code",
    how="draws use fresh keys and are not returned, logged or stored",
)


_SELECTED = (
    Assumption(
        statement="Of a selection only the best try leaves: neither how many tries were made, nor "
        "anything of the others.",
        enforced_by="code",
        how="their number is drawn in secret; the others are neither returned, logged nor stored",
    ),
    Assumption(
        statement="Nobody learns from how long a selection took how many tries were made.",
        enforced_by="user",
        how="keep it to yourself, and make what is selected public at a time fixed before",
    ),
)


def for_streams(charged: Sequence[StreamStatement]) -> tuple[Assumption, ...]:
    """What certificates of these streams assume beside what their statements say."""
    about_rewards = _about_rewards(charged)
    prefixes = [one for one in charged if one.prefixes is not None]
    if about_rewards:
        found = list(_REWARDS)
    elif prefixes and len(prefixes) == len(charged):
        # Nothing is contributed, clipped or summed: the rest of the standard list.
        found = [one for one in _STANDARD if one not in (_CONTRIBUTED, _ROUNDED, _RANDOM)]
        found.append(_RANDOM_INTEGERS)
    else:
        found = list(_STANDARD)
    if any(one.sum_rounding for one in charged):
        found = [_ROUNDED_SUMS if one == _ROUNDED else one for one in found]
    if prefixes:
        found += _PREFIXES
    if any(one.population == "simulated" for one in charged):
        found.append(_SIMULATED_REWARDS if about_rewards else _SIMULATED)
    if any(one.participation.kind == "poisson" for one in charged):
        found.append(_SAMPLED)
    if any(one.selection is not None for one in charged):
        found = [_CANDIDATES if one == _SETTINGS else one for one in found]
        found += _SELECTED
    return tuple(found)


def not_protected_by_streams(charged: Sequence[StreamStatement]) -> tuple[str, ...]:
    """What these streams give away beside what their statements say."""
    if any(one.prefixes is not None for one in charged):
        return (*_PREFIXES_NOT_PROTECTED, *NOT_PROTECTED)
    return _REWARDS_NOT_PROTECTED if _about_rewards(charged) else NOT_PROTECTED


def _about_rewards(charged: Sequence[StreamStatement]) -> bool:
    """A ledger has one unit, so all of its streams are about rewards, or none."""
    return any(one.unit.kind in ("reward-function", "transition") for one in charged)


# --- answers of a teacher ------------------------------------------------------------------------

_ANSWERS_NOT_PROTECTED = (
    "What other ledgers release of the same teacher, or of the same people's data: this "
    "certificate is about one ledger.",
    "What is learnt from timing, memory use, or by entering the machine.",
)

_ANSWERS = (
    Assumption(
        statement="The mechanism, its parameters, the distance, the schedule and the numbers of "
        "queries do not depend on private data.",
        enforced_by="user",
        how="they are public and fixed when the ledger is created; choose them without looking at "
        "the teacher's data",
    ),
    Assumption(
        statement="Nothing else of the teacher leaves: no weights, no exact rows, no answers "
        "beside this ledger.",
        enforced_by="user",
        how="keep the teacher's files to yourself; what another ledger releases adds up with this",
    ),
    Assumption(
        statement="No answer leaves before it is charged, and none beyond the stated numbers of "
        "queries, of each student and of all together.",
        enforced_by="code",
        how="an answer and its charge are one synced transaction, which has the database to "
        "itself; an answer that is repeated is the stored one",
    ),
    Assumption(
        statement="How noisy an answer is does not depend on earlier answers.",
        enforced_by="code",
        how="its level follows from its number among the student's answers",
    ),
    Assumption(
        statement="How many of each student's queries were answered so far does not depend on the "
        "answers; where students decide that as they go, the planned epsilon is what holds.",
        enforced_by="user",
        how="plan the number of queries, or read the planned epsilon",
    ),
    Assumption(
        statement="Low-order bits give nothing away.",
        enforced_by="code",
        how="answers are rounded to a public grid of 2^-32; that the float64 draws behind them "
        "have their stated law is assumed",
    ),
    Assumption(
        statement="The noise is as good as random.",
        enforced_by="user",
        how="every batch has a fresh generator keyed by the operating system, used once "
        "and forgotten; numpy's generator is not a cryptographic one, so do not rely on this "
        "against an adversary who can break it",
    ),
    Assumption(
        statement="Timing and other side channels are outside the claim.",
        enforced_by="user",
        how="do not let an adversary time or share the machine",
    ),
)

_DELTA = Assumption(
    statement="Delta is below 1 / (number of people behind the teacher).",
    enforced_by="user",
    how="the ledger does not know the number; a larger delta would be met by publishing one of "
    "them at random",
)


def for_answers(statement: AnswerStatement) -> tuple[Assumption, ...]:
    """What a certificate of a teacher's answers assumes, its distance included."""
    found = [*statement.distance.assumptions, *_ANSWERS]
    if isinstance(statement.distance, TrainingShards):
        found.append(_DELTA)
        if statement.population == "simulated":
            found.append(_SIMULATED)
    return tuple(found)


def not_protected_by(statement: AnswerStatement) -> tuple[str, ...]:
    """What a teacher's answers give away."""
    general = NOT_PROTECTED[:1] if isinstance(statement.distance, TrainingShards) else ()
    return (*statement.does_not_protect, *general, *_ANSWERS_NOT_PROTECTED)
