"""Sentences about the best of a secret number of tries (docs/privacy.md, section 17)."""

from sotto.privacy.claims.claim import Claim, some
from sotto.privacy.claims.streams import has_selection

# selection.py
BEST_ONLY = Claim(
    "selection.best-only",
    "code",
    "Of a selection only the best try leaves: neither how many tries were made, nor anything of "
    "the others.",
    "their number is drawn in secret; the others are neither returned, logged nor stored",
    holds=has_selection,
)
HOW_LONG = Claim(
    "selection.how-long",
    "user",
    "How long the selection ran, and what it used, stays secret. What is selected is made public "
    "at a time fixed before, as a copy made then.",
    "whoever learns how many tries there were learns more than epsilon allows; keep the process, "
    "its compilation cache and the machine's logs to yourself",
    version=2,
    holds=has_selection,
)
# cli/tune.py, algorithms/dppg_selection.py
NO_TIMES = Claim(
    "selection.no-times",
    "code",
    "No time is kept in the directory that `sotto tune` writes.",
    "every date in its files, and every file's own date, is the first of January 1970",
    holds=some(lambda one: one.selection is not None and one.selection.accounting == 2),
)
