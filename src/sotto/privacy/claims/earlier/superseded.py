"""Sentences of certificates of schema 1, in their order.

Verification compares the words of such a certificate with these, so that a true one stays verified.
Where a sentence turned out to be untrue, `untrue` says why, and verification repeats it.
"""

from dataclasses import replace

from sotto.privacy.answers.distances import AnyTwoTeachers
from sotto.privacy.claims import answers, experts, ledgers, rewards, selection, streams
from sotto.privacy.claims.claim import Claim, LedgerFacts
from sotto.privacy.claims.conditions import (
    about_people,
    about_rewards,
    both,
    has_prefixes,
    has_selection,
    has_shards,
    of_answers,
)
from sotto.privacy.claims.earlier import sentences
from sotto.privacy.claims.earlier.answers import DISJOINT_1

_SOURCE = "noise was AES-128 in counter mode already, keyed through numpy's SeedSequence"


def _prefixes_only(facts: LedgerFacts) -> bool:
    return bool(facts.streams) and all(one.prefixes is not None for one in facts.streams)


def _has_sums(facts: LedgerFacts) -> bool:
    return any(one.sum_rounding > 0 for one in facts.streams)


def _summed(facts: LedgerFacts) -> bool:
    """Whether the streams are about people or experts, and not prefixes alone."""
    return about_people(facts) and not _prefixes_only(facts)


def _simulated(facts: LedgerFacts) -> bool:
    return any(one.population == "simulated" for one in facts.streams)


def _simulated_shards(facts: LedgerFacts) -> bool:
    return (
        facts.answers is not None and has_shards(facts) and facts.answers.population == "simulated"
    )


def _by_rows(facts: LedgerFacts) -> bool:
    """Whether the distance of rows counts what rounding does to them."""
    return facts.answers is not None and not isinstance(facts.answers.distance, AnyTwoTeachers)


_SETTINGS = (
    " and schedule do not depend on people's data, nor does anything done to the state between "
    "releases other than through releases; which streams the same people take part in is decided "
    "before the first release; trying "
)
_OTHER_PEOPLE = "choose them on public data, in a simulator, or on other people"
_NOT_ACCOUNTED = "several settings on the same people is not accounted for."
_BREAK = (
    "numpy's generator is not a cryptographic one, so do not rely on this against an adversary who "
    "can break it"
)
_SAY_SO = "for real people say so in the configuration; nothing un-noised about them is then shown"

_WORDS = {one.identifier: one for one in sentences.PRESENT if one.version == 1}


def _first(claim: Claim) -> Claim:
    """Returns the sentence in the words of version 1, which certificates of schema 1 said."""
    if claim.version == 1:
        return claim
    return replace(_WORDS[claim.identifier], holds=claim.holds)


_IN_ORDER: tuple[Claim, ...] = (
    # What is protected: of a teacher, by its distance; of streams, what their statements say.
    answers.OBSERVATIONS,
    answers.POLICY,
    answers.TEACHER,
    answers.SHARDS,
    # What is not.
    experts.IN_THE_CLEAR,
    experts.BEYOND_ACTIONS,
    answers.TRAINING_DATA,
    answers.CHOSEN,
    answers.LARGER,
    answers.ASKED,
    answers.NO_SHARE,
    answers.NO_TRAINING,
    streams.IN_GENERAL,
    streams.OTHER_RUNS,
    rewards.OTHER_RUNS,
    answers.OTHER_LEDGERS,
    streams.SIDE_CHANNELS,
    # People and experts.
    Claim(
        "people.settings",
        "user",
        f"The initial state, hyper-parameters{_SETTINGS}{_NOT_ACCOUNTED}",
        _OTHER_PEOPLE,
        holds=both(about_people, lambda facts: not has_selection(facts)),
    ),
    Claim(
        "people.candidates",
        "user",
        f"The initial state, candidates{_SETTINGS}other settings on the same people than the "
        "selection's candidates is not accounted for.",
        _OTHER_PEOPLE,
        holds=both(about_people, has_selection),
    ),
    ledgers.ENROLMENT,
    ledgers.COUNTED,
    replace(streams.CONTRIBUTED, holds=_summed),
    replace(streams.ROUNDED, holds=both(_summed, lambda facts: not _has_sums(facts))),
    replace(streams.ROUNDED_SUMS, holds=both(_summed, _has_sums)),
    Claim(
        "noise.random",
        "user",
        "The noise is as good as random.",
        "every draw has a fresh generator keyed by the operating system, used once and forgotten, "
        f"and float64 arithmetic gives it the Gaussian law up to rounding; {_BREAK}",
        holds=_summed,
        untrue=_SOURCE,
    ),
    replace(streams.TIMING, holds=about_people),
    Claim(
        "noise.random",
        "user",
        "The noise is as good as random.",
        "generators are seeded by the operating system, used once and forgotten, and noise has its "
        f"law exactly, made of random integers; {_BREAK}",
        holds=_prefixes_only,
        untrue=_SOURCE,
    ),
    # Rewards.
    Claim(
        "rewards.settings",
        "user",
        "Nodes, hyper-parameters and schedule, and whatever else counts as public, do not depend "
        "on rewards other than through releases; trying several settings on the same rewards is "
        "not accounted for.",
        "choose them on public rewards",
        holds=about_rewards,
    ),
    rewards.KEPT,
    Claim(
        "ledger.charged",
        "code",
        "No release goes beyond its horizon, and each is charged before it is made.",
        "the ledger counts, and is synced to disk before noise is drawn",
        holds=about_rewards,
        untrue="noise may be drawn before a charge, but nothing made with it leaves before",
    ),
    Claim(
        "noise.fresh",
        "code",
        "Every release has fresh noise, and a value that was released stays the same.",
        "noise is drawn from the operating system's entropy after the charge; a released function "
        "keeps its answers, on disk before they leave where it has a file",
        holds=about_rewards,
        untrue="noise that is correlated over releases, as a stream may state, is not fresh for "
        "each, and noise may be drawn before a charge",
    ),
    Claim(
        "functions.rounded",
        "code",
        "Rounding gives nothing away (except in steps named as not private).",
        "what is released lies on a public grid, whose spacing follows from public numbers",
        holds=about_rewards,
    ),
    Claim(
        "noise.random",
        "user",
        "The noise is as good as random.",
        "generators are seeded by the operating system, used once and forgotten, and float64 "
        "arithmetic gives the Gaussian law up to rounding; they are not cryptographic ones, so do "
        "not rely on this against an adversary who can break them",
        holds=about_rewards,
        untrue=_SOURCE,
    ),
    replace(streams.TIMING, holds=about_rewards),
    # Stable prefixes.
    experts.ONE_WORLD,
    experts.FRESH,
    Claim(
        "prefixes.one-action",
        "user",
        "One expert's action depends on that expert and the observation only, and there are at "
        "least as many experts as stated, or one fewer.",
        "each expert, or clone, was trained on their own data alone; who takes part is public",
        holds=has_prefixes,
    ),
    experts.SILENT,
    # What came with some of them.
    Claim(
        "population.simulated",
        "user",
        "Rewards are simulated: the claim is about simulated rewards, and learning curves are for "
        "the experimenter.",
        "for real rewards say so in the configuration; nothing un-noised about them is then shown",
        holds=both(about_rewards, _simulated),
    ),
    Claim(
        "population.simulated",
        "user",
        "People are simulated: the claim is about simulated people, and training curves are for "
        "the experimenter.",
        _SAY_SO,
        holds=both(about_people, _simulated),
    ),
    streams.SAMPLED,
    selection.BEST_ONLY,
    Claim(
        "selection.how-long",
        "user",
        "Nobody learns from how long a selection took how many tries were made.",
        "keep it to yourself, and make what is selected public at a time fixed before",
        holds=has_selection,
    ),
    # Answers of a teacher.
    answers.LIPSCHITZ,
    answers.WITHIN,
    DISJOINT_1,
    Claim(
        "distance.mean",
        "code",
        "the mean is taken over valid rows, so one teacher moves it by 1/n",
        "each teacher's row is made a policy before the mean is taken",
        holds=answers.MEAN.holds,
    ),
    replace(answers.FLOAT64, holds=_by_rows),
    answers.SETTINGS,
    answers.NOTHING_ELSE,
    answers.CHARGED,
    answers.LEVELS,
    Claim(
        "answers.stopping",
        "user",
        "How many of each student's queries were answered so far does not depend on the answers; "
        "where students decide that as they go, the planned epsilon is what holds.",
        "plan the number of queries, or read the planned epsilon",
        holds=of_answers,
    ),
    Claim(
        "answers.rounded",
        "code",
        "Low-order bits give nothing away.",
        "answers are rounded to a public grid of 2^-32; that the float64 draws behind them have "
        "their stated law is assumed",
        holds=of_answers,
    ),
    Claim(
        "noise.random",
        "user",
        "The noise is as good as random.",
        "every batch has a fresh generator keyed by the operating system, used once and forgotten; "
        "numpy's generator is not a cryptographic one, so do not rely on this against an adversary "
        "who can break it",
        holds=of_answers,
        untrue=_SOURCE,
    ),
    replace(streams.TIMING, holds=of_answers),
    answers.DELTA,
    Claim(
        "population.simulated",
        "user",
        "People are simulated: the claim is about simulated people, and training curves are for "
        "the experimenter.",
        _SAY_SO,
        holds=_simulated_shards,
        untrue="a teacher has no such setting",
    ),
)
SCHEMA_1: tuple[Claim, ...] = tuple(map(_first, _IN_ORDER))
"""The sentences of every certificate of schema 1, beside those that streams brought, in order."""
