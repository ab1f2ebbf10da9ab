"""Conditions under which a sentence holds: each reads the statements of a ledger."""

from collections.abc import Callable

from sotto.privacy.answers.distances import TrainingShards
from sotto.privacy.claims.claim import Condition, LedgerFacts
from sotto.privacy.statements import StreamStatement

# --- of one stream -------------------------------------------------------------------------------


def through_functions(stream: StreamStatement) -> bool:
    """Whether values or functions are released (`release/functions.py`), or as a paper prints."""
    return bool(stream.parts) and stream.releases_values


def through_the_door(stream: StreamStatement) -> bool:
    """Whether contributions are traced, clipped and summed (`release/release.py`)."""
    return bool(stream.parts) and not stream.releases_values


def drawn_on_grid(stream: StreamStatement) -> bool:
    """Whether noise is drawn on the released grid; earlier versions scaled float64 numbers."""
    law = getattr(stream, "noise_law", "scaled-float64")
    return stream.prefixes is not None or law == "on-grid"


def in_shares(stream: StreamStatement) -> bool:
    """Whether people's devices make the noise, each a share (`release/noise_shares.py`)."""
    return stream.shares is not None


# --- of everything in a ledger -------------------------------------------------------------------


def always(_: LedgerFacts) -> bool:
    """Returns True: every certificate says the sentence."""
    return True


def some(test: Callable[[StreamStatement], bool]) -> Condition:
    """Returns the condition that some charged stream passes the test."""
    return lambda facts: any(map(test, facts.streams))


def both(*conditions: Condition) -> Condition:
    """Returns the condition that all of the given ones hold."""
    return lambda facts: all(condition(facts) for condition in conditions)


def about_rewards(facts: LedgerFacts) -> bool:
    """Whether the streams are about rewards. A ledger has one unit, so all are, or none."""
    return any(one.unit.about_rewards for one in facts.streams)


def about_people(facts: LedgerFacts) -> bool:
    """Whether the streams are about people or experts, or nothing was charged yet."""
    return facts.answers is None and not about_rewards(facts)


def of_answers(facts: LedgerFacts) -> bool:
    """Whether the ledger charges the answers of a teacher."""
    return facts.answers is not None


def nothing_charged(facts: LedgerFacts) -> bool:
    """Whether the ledger is one of streams, and none was charged yet."""
    return facts.answers is None and not facts.streams


def has_prefixes(facts: LedgerFacts) -> bool:
    """Whether a stream of stable prefixes was charged."""
    return any(one.prefixes is not None for one in facts.streams)


def has_selection(facts: LedgerFacts) -> bool:
    """Whether a stream is the best of several tries."""
    return any(one.selection is not None for one in facts.streams)


def has_shards(facts: LedgerFacts) -> bool:
    """Whether a teacher's answers protect the people whom it was trained on."""
    return facts.answers is not None and isinstance(facts.answers.distance, TrainingShards)


def has_noise(facts: LedgerFacts) -> bool:
    """Whether all noise comes from the operating system. A fixed seed guarantees nothing."""
    streams = [one.entropy for one in facts.streams]
    answers = [] if facts.answers is None else [facts.answers.entropy]
    return all(one == "operating-system" for one in [*streams, *answers])
