"""Rows in batches of one size, which bound the memory and need one compiled program."""

import logging
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

BATCH = 256
"""Number of rows that a language model completes at once."""
_SECONDS_BETWEEN_NOTES = 20.0
_log = logging.getLogger(__name__)


def in_batches(
    function: Callable[..., Any], size: int, *rows: Any, what: str = "texts read"
) -> Any:
    """Returns `function` of rows, computed on batches of `size`, so that one program serves all.

    The first rows fill up the last batch. Leaves of the result are numpy arrays, one row each. Now
    and then the log says how far it is, with `what` as the word for the rows.
    """
    count = len(rows[0])
    size = min(size, count)
    found = []
    started = said = time.monotonic()
    for start in range(0, count, size):
        if start and (now := time.monotonic()) - said > _SECONDS_BETWEEN_NOTES:
            said, left = now, (now - started) / start * (count - start)
            _log.info("%d of %d %s, about %.0f s left", start, count, what, left)
        chosen = np.arange(start, start + size) % count
        found.append(jax.tree.map(np.asarray, function(*(one[chosen] for one in rows))))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *found)
