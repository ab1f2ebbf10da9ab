"""Sentences about a teacher's answers (docs/privacy.md, section 12).

The distance (`answers/distances.py`) decides what an answer protects, and its numbers are in the
sentences.
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
from sotto.privacy.claims.claim import Claim, Condition, LedgerFacts
from sotto.privacy.claims.conditions import (
    both,
    has_noise,
    of_answers,
)
from sotto.privacy.mechanisms.policies import GaussianPolicy


def _about(*kinds: type) -> Condition:
    """Returns the condition that the distance is of one of these kinds."""
    return lambda facts: facts.answers is not None and isinstance(facts.answers.distance, kinds)


def _statement(facts: LedgerFacts) -> AnswerStatement:
    assert facts.answers is not None
    return facts.answers


def _has_rounding(*, stated: bool) -> Condition:
    """Returns the condition that observations are protected, and their rounding is (not) stated."""

    def holds(facts: LedgerFacts) -> bool:
        distance = None if facts.answers is None else facts.answers.distance
        return (
            isinstance(distance, ObservationDistance) and (distance.rounding is not None) is stated
        )

    return holds


def _gaussian(facts: LedgerFacts) -> bool:
    """Whether answers are Gaussian. Statements with accounting 1 had float64 noise."""
    return facts.answers is not None and isinstance(facts.answers.mechanism, GaussianPolicy)


def _radius(facts: LedgerFacts) -> dict[str, str]:
    return {"radius": f"{_statement(facts).distance.radius:g}"}  # type: ignore[union-attr]


def _l2(facts: LedgerFacts) -> dict[str, str]:
    return {"distance": f"{_statement(facts).distance.l2:g}"}  # type: ignore[union-attr]


def _lipschitz(facts: LedgerFacts) -> dict[str, str]:
    return {"lipschitz": f"{_statement(facts).distance.lipschitz:g}"}  # type: ignore[union-attr]


def _teachers(facts: LedgerFacts) -> dict[str, str]:
    return {"teachers": f"{_statement(facts).distance.teachers}"}  # type: ignore[union-attr]


# --- what is protected, and what is not ----------------------------------------------------------

OBSERVATIONS = Claim(
    "distance.observations",
    "protects",
    "Each observation, against every other observation within L2 distance {radius} of it. For "
    "several observations that change together, the costs of their answers add up; epsilon already "
    "counts all allowed answers.",
    version=3,
    holds=_about(ObservationDistance),
    numbers=_radius,
)
POLICY = Claim(
    "distance.policy",
    "protects",
    "Which of two policies gives the answers, if their action probabilities are within L2 "
    "distance {distance} of each other at every query.",
    version=2,
    holds=_about(PolicyDistance),
    numbers=_l2,
)
TEACHER = Claim(
    "distance.teacher",
    "protects",
    "The whole teacher, against any other policy in its place. This includes everything that the "
    "teacher was trained on.",
    version=2,
    holds=_about(AnyTwoTeachers),
)
SHARDS = Claim(
    "distance.shards",
    "protects",
    "Each person's training data: everything that this person contributed, in the one of the "
    "{teachers} shards that holds it.",
    version=3,
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
    "An observation, against the student who chose it, and against everybody who sees what the "
    "student made of it without the teacher, such as the student's checkpoints and policy. Only "
    "the teacher's answers protect the observation.",
    version=3,
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
    f"The fact that an observation has an entry beyond {LARGEST:g}. Such an observation is "
    "refused.",
    version=2,
    holds=_has_rounding(stated=True),
)
NO_SHARE = Claim(
    "distance.no-share",
    "does-not-protect",
    "A separate claim about training data. These data are covered as a part of the whole teacher, "
    "and one person's share in them has no smaller epsilon.",
    version=2,
    holds=_about(AnyTwoTeachers),
)
NO_TRAINING = Claim(
    "distance.no-training-claim",
    "does-not-protect",
    "No claim about training data is made. This certificate says nothing about the people from "
    "whose data the teacher learnt.",
    version=2,
    holds=_about(ObservationDistance, PolicyDistance),
)
OTHER_LEDGERS = Claim(
    "answers.other-ledgers",
    "does-not-protect",
    "Releases that other ledgers charge for the same teacher or the same people's data. This "
    "certificate is about one ledger.",
    version=2,
    holds=of_answers,
)

# --- what is assumed -----------------------------------------------------------------------------

# mechanisms/functions/lipschitz.py
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
    "The two policies that the answers must not tell apart are within L2 distance {distance} of "
    "each other.",
    "you choose the distance, without looking at the teacher's data",
    version=2,
    holds=_about(PolicyDistance),
    numbers=_l2,
)
DISJOINT = Claim(
    "distance.disjoint",
    "user",
    "The {teachers} teachers were trained on disjoint sets of people, each without anything "
    "computed from another's data, and each teacher's rows are computed from what it learnt alone.",
    "you made the shards; hyper-parameters must not come from the people's data, and what changes "
    "while teachers answer, such as a cache or a random generator, must not be shared",
    version=2,
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
# answers/distances.py
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
    "Rounding moves a row of action probabilities by less than {bound}, in making it a policy, in "
    "averaging and in mixing together.",
    "the teacher's rows are computed in float64",
    version=2,
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
    "The teacher releases nothing else: no weights, no exact action probabilities, and no answers "
    "outside this ledger. Nobody gives answers from an older copy of this ledger.",
    "keep the teacher's files secret, and never restore the ledger from a backup; the costs of "
    "other ledgers add to the cost of this one. The code refuses a ledger that is older than its "
    "certificate, and cannot notice an older copy of both",
    version=3,
    holds=of_answers,
)
# answers/ledger.py, ledger/chain.py
CHARGED = Claim(
    "answers.charged",
    "code",
    "Every answer is charged before it leaves. The number of answers stays within the stated "
    "limits, for each student and for all students together.",
    "an answer and its charge are one transaction, which locks the database and is on disk before "
    "the answer leaves; a repeated request gets the stored answer",
    version=2,
    holds=of_answers,
)
# answers/statement.py
LEVELS = Claim(
    "answers.levels",
    "code",
    "The noise level of an answer depends only on how many answers its student has had before. "
    "Students who choose by earlier answers which of them asks next also choose the level.",
    "the level follows from the number of answers, and epsilon covers all allowed answers at the "
    "most expensive levels that they can have",
    version=3,
    holds=of_answers,
)
# mechanisms/dirichlet/simplex.py
ROUNDED = Claim(
    "answers.rounded",
    "code",
    "Rounding reveals nothing about the data.",
    "answers are rounded to a public grid of 2^-32",
    version=3,
    holds=of_answers,
)
# mechanisms/dirichlet/sampling.py
LAW = Claim(
    "answers.law",
    "user",
    "The float64 numbers from which an answer is made have the stated distribution up to "
    "rounding. It is assumed that this rounding reveals nothing.",
    "answers are rounded to a coarser grid; let nobody look into the teacher's processes",
    version=2,
    holds=both(of_answers, has_noise, lambda facts: not _gaussian(facts)),
)
# mechanisms/gaussian_policy.py
GRID_LAW = Claim(
    "answers.grid-law",
    "code",
    "The noise on a row of action probabilities has the stated distribution on a public grid. The "
    "cost of rounding the row to that grid is charged. The sampler's finite precision and range "
    "cost less than 1e-25 of delta for a million answers, which is left out.",
    "docs/privacy.md, sections 7 and 12, prove it",
    version=2,
    holds=both(has_noise, lambda facts: _gaussian(facts) and _statement(facts).accounting == 2),
)
EARLIER_LAW = Claim(
    "answers.earlier-law",
    "user",
    "Answers that an earlier version gave have noise made of float64 numbers, which have the "
    "stated distribution up to rounding. It is assumed that this rounding revealed nothing.",
    "answers of this version have noise with a proved distribution on a grid; create a new ledger "
    "that holds only such answers",
    version=2,
    holds=both(has_noise, lambda facts: _gaussian(facts) and _statement(facts).accounting == 1),
)
DELTA = Claim(
    "answers.delta",
    "user",
    "Delta is below 1 / (number of people behind the teacher).",
    "the ledger does not know this number; to publish one person's data at random would satisfy a "
    "larger delta",
    version=2,
    holds=_about(TrainingShards),
)
