"""Imports a log of people as a Minari dataset, in which each person is one unit.

Guarantee: let P be the declared number of people. The dataset has P places, and each person with a
usable row is in one of them. The content of a place is a function of the rows of that person alone.
The injection of people into places is uniformly random. Hence an import of the log without a person
has the law of an import of the log after which the person's place is emptied. This is zero-out
adjacency (docs/privacy.md, section 21). It is assumed that each person has one id, which nobody
else has.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int
from randomgen.aes import AESCounter

from sotto.data import datasets
from sotto.data.imports import grouping, rows, sources
from sotto.data.imports.cells import keyed_hash
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.rows import Tally
from sotto.errors import RunError
from sotto.files import sync_directory

Say = Callable[[str], None]
"""Type of a function that shows progress."""

IN_ORDER = ("csv", "parquet", "huggingface")
"""Kinds of logs whose rows have an order. The rows of a database have none."""
_ROWS_SHOWN = 10**6
_PEOPLE_SHOWN = 10**4


def import_log(
    where: str,
    declaration: Declaration,
    out: Path,
    *,
    parts: Sequence[str] = (),
    table: str | None = None,
    query: str | None = None,
    say: Say,
) -> Tally:
    """Writes a log as a Minari dataset that only its owner may read; it is on disk then.

    The ids of the people, their times, and the counts that are returned are not in the dataset.
    Temporary files lie beside `out`, for its owner alone, and are removed. Those of an import that
    was killed are removed by the next one of the same `out`.

    Args:
        where: CSV or Parquet file, folder of a Hugging Face dataset, or SQLAlchemy URL.
        declaration: meaning and public bounds of the columns.
        out: folder of the dataset, which must not exist.
        parts: further files or folders of the same log, which are read after it. All rows with one
            id are one person, wherever they are.
        table: table of a database.
        query: SELECT statement for a database.
        say: called with lines about progress.

    Returns:
        Counts for the owner of the log, which are not private.

    Raises:
        ValueError: `out` exists, the log cannot be read or does not fit the declaration, nothing in
            it is usable, or it has more people than declared.
        ModuleNotFoundError: Minari is not installed.
    """
    out = out.resolve()
    datasets.require_new(out)
    kind = sources.kind_of_all((where, *parts))
    key, tally = secrets.token_bytes(32), Tally()
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(out)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as made, _held(made):
        spread, dataset = Path(made) / "rows", Path(made) / "dataset"
        spread.mkdir()
        dataset.mkdir(mode=0o700)
        for part in (where, *parts):
            _read(part, declaration, spread, key, tally, table=table, query=query, say=say)
        datasets.write(
            dataset,
            _episodes(
                declaration,
                spread,
                places(declaration.people),
                tally,
                say,
                in_order=kind in IN_ORDER,
            ),
            observation_space=declaration.observation_space,
            action_space=declaration.action_space,
            metadata={
                "dataset_id": out.name,
                "description": "imported by sotto import; each episode's metadata has the "
                f"{datasets.ID_COLUMN} of the person whose it is",
                datasets.IMPORT: {
                    "version": 1,
                    "identity": secrets.token_hex(16),  # people's places are those of this import
                    "kind": kind,
                    datasets.OWN_ORDER: True,
                    "declaration": declaration.model_dump(mode="json"),
                },
            },
        )
        if not tally.people:
            raise RunError(
                f"no row of the log is usable: {_why_none(tally)}; compare it with the declaration"
                + (" (texts must be UTF-8)" if kind == "csv" else "")
            )
        _sync(dataset)
        try:
            dataset.rename(out)
        except OSError:
            datasets.require_new(out)  # another import was faster
            raise
    sync_directory(out.parent)
    # These two are no errors, which one person's row would decide about.
    if tally.real_ids and tally.other_ids:
        say(
            f"warning: some ids in column {declaration.person!r} end in .0, as 7.0, and others do "
            "not; 7.0 and 7 are two people here, so if they are one, write every id in one way and "
            "import the log again"
        )
    if tally.dates and tally.numbers:
        say(
            f"warning: column {declaration.time!r} holds dates and numbers, which have no common "
            "order; write all times in one of the two ways and import the log again"
        )
    return tally


def places(people: int) -> Int[np.ndarray, " people"]:
    """Returns the places 0 to people - 1 in uniformly random order.

    The random numbers are those of AES-128, as for noise, with a seed of the operating system.
    """
    seed = np.random.SeedSequence(secrets.randbits(256), pool_size=8)
    return np.random.Generator(AESCounter(seed)).permutation(people)


def _why_none(tally: Tally) -> str:
    """Returns which rules left rows out; cells that are clipped or filled leave none out."""
    rules = tally.columns.items()
    left = {cell: count for cell, count in rules if cell[1] not in ("clipped", "filled")}
    return summary(replace(tally, columns=Counter(left)))


def summary(tally: Tally) -> str:
    """Returns which rules applied to rows, without numbers."""
    found = [f"{column} is {rule}" for (column, rule), count in tally.columns.items() if count]
    found += (
        ["rows have no person, whose id must be a text or a whole number"] if tally.nobody else []
    )
    if tally.unparsed:
        found.append("lines have more or fewer cells than names, as after an open quotation mark")
    return ", ".join(found) or "there are no rows"


def _read(
    where: str,
    declaration: Declaration,
    folder: Path,
    key: bytes,
    tally: Tally,
    *,
    table: str | None,
    query: str | None,
    say: Say,
) -> None:
    """Spreads the rows of a log over the files of their people."""
    hashed = keyed_hash(key)

    def unparsed() -> None:
        tally.unparsed += 1

    for batch in sources.batches(where, declaration, table=table, query=query, unparsed=unparsed):
        before = tally.rows // _ROWS_SHOWN
        grouping.spread(rows.encoded(batch, declaration, hashed, tally), folder)
        if tally.rows // _ROWS_SHOWN > before:
            say(f"{tally.rows // _ROWS_SHOWN * _ROWS_SHOWN:,} rows read")


def _episodes(
    declaration: Declaration,
    folder: Path,
    free: Int[np.ndarray, " people"],
    tally: Tally,
    say: Say,
    *,
    in_order: bool,
) -> Iterator[datasets.Episode]:
    """Yields the episodes of each person, who takes the next free place."""
    for records in grouping.people(folder, rows.record(declaration), tally, in_order=in_order):
        found = grouping.episodes(records, declaration, tally)
        if not found:
            continue
        if tally.people > len(free):
            raise RunError(
                f"the log has more people than the {len(free):,} that are declared; declare a "
                "number that you would publish, and that is large enough"
            )
        for one in found:
            chances = {} if one.propensities is None else {"propensity": one.propensities}
            yield datasets.Episode(
                owner=int(free[tally.people - 1]),
                observations=one.observations,
                actions=one.actions,
                rewards=one.rewards,
                terminated=one.terminated,
                infos=chances or None,
            )
        if tally.people % _PEOPLE_SHOWN == 0:
            say(f"{tally.people:,} people written")


@contextlib.contextmanager
def _held(folder: Path | str) -> Iterator[bool]:
    """Locks a folder, which the operating system unlocks if this process dies.

    Yields whether it is locked; it is not where another process has it.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield _locks(number)
    finally:
        os.close(number)


def _locks(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process has it, or this file system has no locks
        return False
    return True


def _remove_left(out: Path) -> None:
    """Removes the rows of people that killed imports of the same output have left beside it."""
    name = re.compile(re.escape(f".{out.name}.") + "[a-z0-9_]{8}")
    for left in sorted(out.parent.iterdir()):
        if not name.fullmatch(left.name) or left.is_symlink() or not left.is_dir():
            continue
        with contextlib.suppress(FileNotFoundError):  # another import has just removed it
            own = left.stat().st_uid == os.getuid()
            found = {one.name for one in left.iterdir()}
            # An empty one may be a new import's, which has not locked it yet.
            if own and found and found <= {"rows", "dataset"}:
                with _held(left) as locked:
                    if locked:  # nobody is writing it
                        shutil.rmtree(left)


def _sync(folder: Path) -> None:
    """Waits until the files of a folder and their names are on disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            with (Path(place) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(place))
