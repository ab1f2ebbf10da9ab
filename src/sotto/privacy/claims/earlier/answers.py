"""Earlier words of the sentences about a teacher's answers."""

from sotto.privacy.claims import answers
from sotto.privacy.claims.claim import Claim

DISJOINT_1 = answers.DISJOINT.before(
    1,
    "the {teachers} teachers were trained on disjoint sets of people, each without anything "
    "computed from another's data",
    "you made the shards; hyper-parameters must not come from the people's data",
)

OF_ANSWERS: tuple[Claim, ...] = (
    DISJOINT_1,
    answers.OBSERVATIONS.before(
        1,
        "each observation, against any other within L2 distance {radius} of it; answers to "
        "observations that move together add up",
    ),
    answers.OBSERVATIONS.before(
        2,
        "Each observation, against every other observation within L2 distance {radius} of it. For "
        "several observations that change together, the costs of their answers add up.",
    ),
    answers.POLICY.before(
        1,
        "which of two policies answers, if their rows are within L2 distance {distance} of each "
        "other at every query",
    ),
    answers.TEACHER.before(
        1,
        "the whole teacher: any policy instead of it, and with it all it was trained on",
    ),
    answers.SHARDS.before(
        1,
        "the training data of every person: everything they contributed, in whichever of the "
        "{teachers} shards they are",
    ),
    answers.SHARDS.before(
        2,
        "Each person's training data: everything that this person contributed, in any of the "
        "{teachers} shards.",
    ),
    answers.CHOSEN.before(
        1,
        "anything from a student who chose the observation and so knows it already",
    ),
    answers.CHOSEN.before(
        2,
        "An observation, against the student who chose it and therefore knows it already.",
    ),
    answers.REFUSED.before(
        1,
        "that an observation has an entry beyond 1e+06, which is refused",
    ),
    answers.NO_SHARE.before(
        1,
        "No training-set claim of its own: training data are covered as a part of the whole "
        "teacher, and one person's share in them is not told apart.",
    ),
    answers.NO_TRAINING.before(
        1,
        "No training-set claim: nothing is said here about whose data the teacher learnt from.",
    ),
    answers.OTHER_LEDGERS.before(
        1,
        "What other ledgers release of the same teacher, or of the same people's data: this "
        "certificate is about one ledger.",
    ),
    answers.WITHIN.before(
        1,
        "the policies to be confused are within L2 distance {distance}",
    ),
    answers.ROWS.before(
        1,
        "rounding in making rows policies, in their mean and in mixing moves a row by less than "
        "{bound}",
    ),
    answers.NOTHING_ELSE.before(
        1,
        "Nothing else of the teacher leaves: no weights, no exact rows, no answers beside this "
        "ledger.",
        "keep the teacher's files to yourself; what another ledger releases adds up with this",
    ),
    answers.NOTHING_ELSE.before(
        2,
        "The teacher releases nothing else: no weights, no exact action probabilities, and no "
        "answers outside this ledger.",
        "keep the teacher's files secret; the costs of other ledgers add to the cost of this one",
    ),
    answers.CHARGED.before(
        1,
        "No answer leaves before it is charged, and none beyond the stated numbers of queries, of "
        "each student and of all together.",
        "an answer and its charge are one synced transaction, which has the database to itself; "
        "an answer that is repeated is the stored one",
    ),
    answers.LEVELS.before(
        1,
        "How noisy an answer is does not depend on earlier answers.",
        "its level follows from its number among the student's answers",
    ),
    answers.LEVELS.before(
        2,
        "The noise level of an answer does not depend on earlier answers.",
        "the level follows from how many answers the student has had before",
    ),
    answers.ROUNDED.before(
        2,
        "Rounding gives nothing away.",
    ),
    answers.LAW.before(
        1,
        "The draws behind an answer are float64 numbers that have their stated law up to "
        "rounding. That this rounding gives nothing away is assumed.",
        "answers are rounded to a coarser grid; keep the teacher's processes to yourself",
    ),
    answers.GRID_LAW.before(
        1,
        "Noise on a row is drawn by a sampler whose law on a public grid is the stated one. What "
        "rounding the row to that grid costs is charged; the sampler's finite precision and range "
        "cost less than 1e-25 of delta for a million answers, which is left out.",
        "it is proved in docs/privacy.md, sections 7 and 12",
    ),
    answers.EARLIER_LAW.before(
        1,
        "Answers that an earlier version gave had noise of float64 numbers that have their stated "
        "law up to rounding. That this rounding gave nothing away is assumed.",
        "those of this version have noise that is drawn on a grid, with a proved law; create a "
        "new ledger for these alone",
    ),
    answers.DELTA.before(
        1,
        how="the ledger does not know the number; a larger delta would be met by publishing one of "
        "them at random",
    ),
)
"""They hold by their own condition, as `sentences.PRESENT` does."""
