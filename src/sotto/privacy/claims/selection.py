"""Sentences about the best of a secret number of tries (docs/privacy.md, section 17)."""

from sotto.privacy.claims.claim import Claim
from sotto.privacy.claims.conditions import (
    has_selection,
    some,
)

# algorithms/dppg/tuning.py
BEST_ONLY = Claim(
    "selection.best-only",
    "code",
    "A selection releases only its best try. It releases neither the number of tries nor any "
    "result of the other tries.",
    "the number of tries is drawn in secret; the other tries are not returned, logged or stored",
    version=2,
    holds=has_selection,
)
HOW_LONG = Claim(
    "selection.how-long",
    "user",
    "The running time and the resource use of the selection stay secret. The result is published "
    "at a time that was fixed in advance, as a copy made at that time.",
    "an observer who learns the number of tries learns more than epsilon allows; keep the "
    "process, its compilation cache and the machine's logs secret",
    version=3,
    holds=has_selection,
)
# algorithms/dppg/tuning.py
NO_TIMES = Claim(
    "selection.no-times",
    "code",
    "No time is kept in the directory that `sotto tune` writes.",
    "every date in its files, and every file's own date, is the first of January 1970",
    holds=some(lambda one: one.selection is not None and one.selection.accounting == 2),
)
