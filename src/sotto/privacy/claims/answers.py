"""Sentences about a teacher's answers (docs/privacy.md, section 12).

What an answer protects follows from its distance (`distances.py`), whose numbers are in the words.
"""

from sotto.privacy.answers.distances import (
    OFF,
    AnyTwoTeachers,
    ObservationDistance,
    PolicyDistance,
    TrainingShards,
)
from sotto.privacy.answers.observations import LARGEST
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.claims.claim import Claim, Condition, Facts, both, of_answers
from sotto.privacy.claims.streams import has_noise
from sotto.privacy.mechanisms.policies import GaussianPolicy


def _about(*kinds: type) -> Condition:
    """The condition that the distance is one of these."""
    return lambda facts: facts.answers is not None and isinstance(facts.answers.distance, kinds)


def _statement(facts: Facts) -> AnswerStatement:
    assert facts.answers is not None
    return facts.answers


def _has_rounding(*, stated: bool) -> Condition:
    """The condition that observations are protected, and their rounding is (not) stated."""

    def holds(facts: Facts) -> bool:
        distance = None if facts.answers is None else facts.answers.distance
        return (
            isinstance(distance, ObservationDistance) and (distance.rounding is not None) is stated
        )

    return holds


def _gaussian(facts: Facts) -> bool:
    """Gaussian answers; earlier versions, whose statements have accounting 1, drew in float64."""
    return facts.answers is not None and isinstance(facts.answers.mechanism, GaussianPolicy)


def _radius(facts: Facts) -> dict[str, str]:
    return {"radius": f"{_statement(facts).distance.radius:g}"}  # type: ignore[union-attr]


def _l2(facts: Facts) -> dict[str, str]:
    return {"distance": f"{_statement(facts).distance.l2:g}"}  # type: ignore[union-attr]


def _lipschitz(facts: Facts) -> dict[str, str]:
    return {"lipschitz": f"{_statement(facts).distance.lipschitz:g}"}  # type: ignore[union-attr]


def _teachers(facts: Facts) -> dict[str, str]:
    return {"teachers": f"{_statement(facts).distance.teachers}"}  # type: ignore[union-attr]


# --- what is protected, and what is not ----------------------------------------------------------

OBSERVATIONS = Claim(
    "distance.observations",
    "protects",
    "each observation, against any other within L2 distance {radius} of it; answers to "
    "observations that move together add up",
    holds=_about(ObservationDistance),
    numbers=_radius,
)
POLICY = Claim(
    "distance.policy",
    "protects",
    "which of two policies answers, if their rows are within L2 distance {distance} of each other "
    "at every query",
    holds=_about(PolicyDistance),
    numbers=_l2,
)
TEACHER = Claim(
    "distance.teacher",
    "protects",
    "the whole teacher: any policy instead of it, and with it all it was trained on",
    holds=_about(AnyTwoTeachers),
)
SHARDS = Claim(
    "distance.shards",
    "protects",
    "the training data of every person: everything they contributed, in whichever of the "
    "{teachers} shards they are",
    holds=_about(TrainingShards),
    numbers=_teachers,
)
TRAINING_DATA = Claim(
    "distance.training-data",
    "does-not-protect",
    "the data the teacher was trained on",
    holds=_about(ObservationDistance, PolicyDistance),
)
CHOSEN = Claim(
    "distance.chosen-observations",
    "does-not-protect",
    "anything from a student who chose the observation and so knows it already",
    holds=_about(ObservationDistance),
)
LARGER = Claim(
    "distance.larger-differences",
    "does-not-protect",
    "differences between policies larger than the stated distance",
    holds=_about(PolicyDistance),
)
ASKED = Claim(
    "distance.asked-observations",
    "does-not-protect",
    "the observations that the student asks about",
    holds=_about(TrainingShards),
)
REFUSED = Claim(
    "distance.refused",
    "does-not-protect",
    f"that an observation has an entry beyond {LARGEST:g}, which is refused",
    holds=_has_rounding(stated=True),
)
NO_SHARE = Claim(
    "distance.no-share",
    "does-not-protect",
    "No training-set claim of its own: training data are covered as a part of the whole teacher, "
    "and one person's share in them is not told apart.",
    holds=_about(AnyTwoTeachers),
)
NO_TRAINING = Claim(
    "distance.no-training-claim",
    "does-not-protect",
    "No training-set claim: nothing is said here about whose data the teacher learnt from.",
    holds=_about(ObservationDistance, PolicyDistance),
)
OTHER_LEDGERS = Claim(
    "answers.other-ledgers",
    "does-not-protect",
    "What other ledgers release of the same teacher, or of the same people's data: this "
    "certificate is about one ledger.",
    holds=of_answers,
)

# --- what is assumed -----------------------------------------------------------------------------

# lipschitz.py
LIPSCHITZ = Claim(
    "distance.lipschitz",
    "code",
    "the policy network has L2 Lipschitz constant at most {lipschitz}, input scaling included",
    "product of spectral norms by full SVD, times the softmax constant 1/2",
    holds=_about(ObservationDistance),
    numbers=_lipschitz,
)
WITHIN = Claim(
    "distance.within",
    "user",
    "the policies to be confused are within L2 distance {distance}",
    "you choose the distance, without looking at the teacher's data",
    holds=_about(PolicyDistance),
    numbers=_l2,
)
DISJOINT = Claim(
    "distance.disjoint",
    "user",
    "the {teachers} teachers were trained on disjoint sets of people, each without anything "
    "computed from another's data",
    "you made the shards; hyper-parameters must not come from the people's data",
    holds=_about(TrainingShards),
    numbers=_teachers,
)
MEAN = Claim(
    "distance.mean",
    "code",
    "The mean is taken over valid rows, so that one of n teachers moves it by at most 1/n of the "
    "distance between two rows.",
    "each teacher's row is made a policy before the mean is taken",
    version=2,
    holds=_about(TrainingShards),
)
# distances.py
FLOAT64 = Claim(
    "distance.float64",
    "code",
    "rounding moves a row by less than {bound}",
    "the teacher's rows are computed in float64",
    holds=_has_rounding(stated=False),
    numbers=lambda _: {"bound": f"{OFF:g}"},
)
ANALYSED = Claim(
    "distance.analysed",
    "code",
    "rounding moves a row by at most {bound}",
    "a forward error analysis of this network in float64, for observations with entries up to "
    f"{LARGEST:g} in magnitude; others are refused",
    holds=_has_rounding(stated=True),
    numbers=lambda facts: {"bound": f"{_statement(facts).distance.off:g}"},
)
ROWS = Claim(
    "distance.rows",
    "code",
    "rounding in making rows policies, in their mean and in mixing moves a row by less than "
    "{bound}",
    "the teacher's rows are computed in float64",
    holds=_about(PolicyDistance, TrainingShards),
    numbers=lambda _: {"bound": f"{OFF:g}"},
)
SETTINGS = Claim(
    "answers.settings",
    "user",
    "The mechanism, its parameters, the distance, the schedule and the numbers of queries do not "
    "depend on private data.",
    "they are public and fixed when the ledger is created; choose them without looking at the "
    "teacher's data",
    holds=of_answers,
)
NOTHING_ELSE = Claim(
    "answers.nothing-else",
    "user",
    "Nothing else of the teacher leaves: no weights, no exact rows, no answers beside this ledger.",
    "keep the teacher's files to yourself; what another ledger releases adds up with this",
    holds=of_answers,
)
# answer_ledger.py, answer_chain.py
CHARGED = Claim(
    "answers.charged",
    "code",
    "No answer leaves before it is charged, and none beyond the stated numbers of queries, of each "
    "student and of all together.",
    "an answer and its charge are one synced transaction, which has the database to itself; an "
    "answer that is repeated is the stored one",
    holds=of_answers,
)
# answers.py
LEVELS = Claim(
    "answers.levels",
    "code",
    "How noisy an answer is does not depend on earlier answers.",
    "its level follows from its number among the student's answers",
    holds=of_answers,
)
# answer_account.py
STOPPING = Claim(
    "answers.stopping",
    "user",
    "How many of each student's queries were answered so far does not depend on the answers; where "
    "students decide that as they go, the planned epsilon is what holds.",
    "plan the number of queries, or read the planned epsilon",
    holds=of_answers,
)
# mechanisms/simplex.py
ROUNDED = Claim(
    "answers.rounded",
    "code",
    "Rounding gives nothing away.",
    "answers are rounded to a public grid of 2^-32",
    version=2,
    holds=of_answers,
)
# mechanisms/dirichlet_sampling.py
LAW = Claim(
    "answers.law",
    "user",
    "The draws behind an answer are float64 numbers that have their stated law up to rounding. "
    "That this rounding gives nothing away is assumed.",
    "answers are rounded to a coarser grid; keep the teacher's processes to yourself",
    holds=both(of_answers, has_noise, lambda facts: not _gaussian(facts)),
)
# mechanisms/gaussian_policy.py
GRID_LAW = Claim(
    "answers.grid-law",
    "code",
    "Noise on a row is drawn by a sampler whose law on a public grid is the stated one. What "
    "rounding the row to that grid costs is charged; the sampler's finite precision and range cost "
    "less than 1e-25 of delta for a million answers, which is left out.",
    "it is proved in docs/privacy.md, sections 7 and 12",
    holds=both(has_noise, lambda facts: _gaussian(facts) and _statement(facts).accounting == 2),
)
EARLIER_LAW = Claim(
    "answers.earlier-law",
    "user",
    "Answers that an earlier version gave had noise of float64 numbers that have their stated law "
    "up to rounding. That this rounding gave nothing away is assumed.",
    "those of this version have noise that is drawn on a grid, with a proved law; create a new "
    "ledger for these alone",
    holds=both(has_noise, lambda facts: _gaussian(facts) and _statement(facts).accounting == 1),
)
DELTA = Claim(
    "answers.delta",
    "user",
    "Delta is below 1 / (number of people behind the teacher).",
    "the ledger does not know the number; a larger delta would be met by publishing one of them at "
    "random",
    holds=_about(TrainingShards),
)
