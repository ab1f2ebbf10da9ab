"""The rows of each person together, in order of time, with bounded memory.

Rows are spread over 256 files by the first byte of the person's hash. One file at a time is then
read and sorted, so that memory holds about 1/256 of the log, or the rows of one person if these
are more. The order of people is that of the hashes, which does not depend on what people did.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from sotto.data.imports.declaration import Declaration
from sotto.data.imports.rows import Tally

_FILES = 256


def spread(records: np.ndarray, folder: Path) -> None:
    """Appends records to the files of their people."""
    file = (records["person"][:, 0] >> np.uint64(56)).astype(np.int64)
    order = np.argsort(file, kind="stable")
    ends = np.searchsorted(file[order], np.arange(_FILES), side="right")
    for number, part in enumerate(np.split(order, ends[:-1])):
        if len(part):
            with (folder / f"{number}").open("ab") as opened:
                records[part].tofile(opened)


def people(folder: Path, kind: np.dtype, tally: Tally, *, in_order: bool) -> Iterator[np.ndarray]:
    """Yields the records of each person, ordered by time.

    Rows of the same time keep the order of the log, if it has one. A database gives rows in an
    order that depends on the rows of other people; there, their content orders rows of the same
    time, so that the order is a function of the person's own rows.

    Args:
        folder: the files of `spread`.
        kind: type of a record.
        tally: counts, to which rows of the same time are added.
        in_order: whether the log has an order.
    """
    for number in range(_FILES):
        if not (path := folder / f"{number}").exists():
            continue
        found = np.fromfile(path, kind)
        if not in_order:
            found = found[np.argsort(found.view(f"V{found.itemsize}"), kind="stable")]
        high, low = found["person"].T
        found = found[np.lexsort((found["time"], low, high))]  # which is stable
        owner, time = found["person"], found["time"]
        new = np.any(owner[1:] != owner[:-1], axis=1)
        tally.same_time += int(np.sum(~new & (time[1:] == time[:-1])))
        yield from np.split(found, np.flatnonzero(new) + 1)


class Steps(NamedTuple):
    """One episode of n steps."""

    observations: Float[np.ndarray, "steps1 obs"]
    """Observations; at the end of the log, where none follows, the last one again."""
    actions: Any
    """Numbers of categories as int64 [n], or real actions as float32 [n, a]."""
    rewards: Float[np.ndarray, " steps"]
    propensities: Float[np.ndarray, " steps"] | None
    """Probability or density of each action; None if the log has none."""
    terminated: bool
    """Whether the episode ended by itself; False if the horizon cut it, or the log says so."""


def episodes(records: np.ndarray, declaration: Declaration, tally: Tally) -> list[Steps]:
    """Returns the episodes of one person, whose records they are a function of.

    Episodes are in the order of their first rows. A row with which an episode ended by itself ends
    it, and further rows begin another one. At most `horizon` steps are kept in all; of an episode
    that is cut there, the observation after the last step is kept.
    """
    usable = records["usable"]
    if not usable.any() or (declaration.drop == "person" and not usable.all()):
        tally.people_dropped += 1
        return []
    records = records[usable]
    _, first, owner = np.unique(records["episode"], axis=0, return_index=True, return_inverse=True)
    begun = first[owner.reshape(-1)]  # the first row of each row's episode
    order = np.argsort(begun, kind="stable")
    records, begun = records[order], begun[order]
    ended = (begun[1:] != begun[:-1]) | records["terminated"][:-1]
    found, start = [], 0
    for one in np.split(records, np.flatnonzero(ended) + 1):
        taken = min(len(one), declaration.horizon - start)
        if taken > 0:
            found.append(_steps(one, taken, declaration))
        start += len(one)
    tally.beyond_horizon += max(0, len(records) - declaration.horizon)
    tally.kept += min(len(records), declaration.horizon)
    tally.people += 1
    return found


def _steps(records: np.ndarray, taken: int, declaration: Declaration) -> Steps:
    """Returns an episode cut after some steps."""
    cut = taken < len(records)
    following = records["observation"][[taken if cut else taken - 1]]
    kept = records[:taken]
    actions = kept["action"]
    return Steps(
        observations=np.concatenate([kept["observation"], following]),
        actions=actions.astype(np.int64) if declaration.discrete else np.array(actions),
        rewards=np.array(kept["reward"]),
        propensities=np.array(kept["propensity"]) if declaration.chance is not None else None,
        terminated=not cut and (declaration.terminated is None or bool(kept["terminated"][-1])),
    )
