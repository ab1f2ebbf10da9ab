"""Logs as batches of Arrow rows: CSV, Parquet, Hugging Face datasets on disk, and databases.

Only the declared columns are read, in batches. A library's message about a damaged file may quote a
row, so it is never passed on. Nothing in a file is imported, executed or connected to.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.csv as pc
import pyarrow.parquet as pq

from sotto.data.imports import databases
from sotto.data.imports.declaration import Declaration
from sotto.errors import RunError
from sotto.files import require_regular

Kind = Literal["csv", "parquet", "huggingface", "database"]

BATCH = 2**16
"""Number of rows that are read at once."""
_BLOCK = 2**23 + 2**16
"""Bytes of a CSV file that are read at once. A row must fit in, in which Arrow makes two bytes of
each one above 127; so one with a cell of 4 MB does."""
_LARGEST_STATE = 2**24
_STATE = "state.json"


def kind(where: str) -> Kind:
    """Returns the kind of a log from its name or its folder.

    Raises:
        RunError: there is no such log, or it is of no known kind.
    """
    if "://" in where:
        return "database"
    path = Path(where)
    if path.is_dir():
        if (path / _STATE).is_file():
            return "huggingface"
        if (path / "dataset_dict.json").is_file():
            raise RunError(f"{where} holds several splits; name the folder of one of them")
        raise RunError(f"{where} is a folder without {_STATE}; name a dataset's folder or a file")
    if not path.is_file():
        raise RunError(f"there is no log at {where}; name a file, a folder or a database's URL")
    if path.suffix.lower() == ".csv":
        return "csv"
    if path.suffix.lower() in (".parquet", ".pq"):
        return "parquet"
    raise RunError(f"{where} must be named .csv or .parquet, for the format that it has")


def kind_of_all(parts: Sequence[str]) -> Kind:
    """Returns the kind of a log from its parts, which have the same kind.

    Raises:
        RunError: a part is missing, is of another kind, or is there twice; or one is a database.
    """
    kinds = [kind(part) for part in parts]
    if len(parts) > 1 and "database" in kinds:
        raise RunError("a database is one log; join its tables in a --query, or in a view")
    for part, found in zip(parts, kinds, strict=True):
        if found != kinds[0]:
            raise RunError(f"{part} is another kind of file than {parts[0]}; convert one of them")
    places = [one if "://" in one else str(Path(one).resolve()) for one in parts]
    for place, part in zip(places, parts, strict=True):
        if places.count(place) > 1:
            raise RunError(f"{part} is named twice, so its rows would count twice; name it once")
    return kinds[0]


def batches(
    where: str,
    declaration: Declaration,
    *,
    table: str | None,
    query: str | None,
    unparsed: Callable[[], None],
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a log with the declared columns, in the order of the log.

    Args:
        where: file, folder, or URL of a database.
        declaration: the declaration; each of its columns must be in the log once.
        table: name of a database's table, or SCHEMA.TABLE.
        query: SELECT statement for a database.
        unparsed: called for every line of a CSV file with a wrong number of cells, which is left
            out.

    Raises:
        RunError: the log is missing, damaged, or lacks a column.
    """
    found = kind(where)
    if found == "database":
        return databases.batches(where, declaration, table=table, query=query, size=BATCH)
    if table is not None or query is not None:
        raise RunError("--table and --query belong to a database; leave them out for a file")
    if found == "huggingface":
        require_regular(Path(where))
    reader = {"csv": _csv, "parquet": _parquet, "huggingface": _huggingface}[found]
    return reader(Path(where), declaration.columns, unparsed)


def _require_columns(where: str, columns: tuple[str, ...], there: list[str], instead: str) -> None:
    """Refuses a log without a declared column.

    Args:
        where: the log.
        columns: the declared names.
        there: the names in the log.
        instead: a sentence about the columns that it has.
    """
    absent = [name for name in columns if name not in there]
    if absent:
        wanted = absent[0].strip().casefold()
        alike = next((name for name in there if name.strip().casefold() == wanted), None)
        meant = "" if alike is None else f" (did you mean {alike!r}?)"
        raise RunError(f"{where} has no column {absent[0]!r}{meant}; {instead}")
    twice = [name for name in columns if there.count(name) > 1]
    if twice:
        raise RunError(f"{where} has several columns {twice[0]!r}; rename all but one of them")


def _names(there: list[str]) -> str:
    return f"its columns are {', '.join(there)}"


def _cells(count: int, other: bool) -> str:
    """Says what the first line of a CSV file has. It quotes nothing, for it may be a person's.

    Args:
        count: number of its cells.
        other: whether it is not UTF-8.
    """
    cells = f"{count} cell{'' if count == 1 else 's'}"
    hint = ", and is not UTF-8 (texts must be UTF-8)" if other else ""
    return f"its first line must name the columns, separated by commas; it has {cells}{hint}"


@contextmanager
def _understood(path: Path, format_name: str) -> Iterator[None]:
    """Turns what Arrow raises into one sentence without its message, which may quote a row."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.strerror:  # such as a missing permission
            raise
        raise RunError(
            f"{path} cannot be read as {format_name}; it is empty, damaged, or of another format "
            "or encoding (texts must be UTF-8)"
        ) from None


def _csv(
    path: Path, columns: tuple[str, ...], unparsed: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    """Reads a CSV file with a line of names; every cell is a text, and an empty one is missing."""

    def skip(_row: pc.InvalidRow) -> str:
        unparsed()
        return "skip"

    # Latin-1 reads every byte as one character, so that no row fails to be read as a text.
    reading = pc.ReadOptions(block_size=_BLOCK, use_threads=False, encoding="latin-1")
    lines = pc.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _row: "skip")
    with _understood(path, "CSV"):
        with pc.open_csv(path, read_options=reading, parse_options=lines) as first:
            raw = first.schema.names
        names = [_utf8(name) or "" for name in raw]
        names[0] = names[0].removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")  # of a file's first bytes
        other = any(_utf8(name) is None or "\0" in name for name in raw)
        _require_columns(str(path), columns, names, _cells(len(names), other))
        wanted = {raw[names.index(name)]: name for name in columns}
        lines = pc.ParseOptions(newlines_in_values=True, invalid_row_handler=skip)
        texts = pc.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.string()),
            include_columns=list(wanted),
            null_values=[""],
            strings_can_be_null=True,
        )
        with pc.open_csv(
            path, read_options=reading, parse_options=lines, convert_options=texts
        ) as rows:
            for batch in rows:
                yield pa.record_batch(
                    {name: _text(batch.column(given)) for given, name in wanted.items()}
                )


def _text(column: pa.Array) -> pa.Array:
    """Returns texts that were read as Latin-1; a cell that is not UTF-8 is null."""
    if compute.all(compute.string_is_ascii(column)).as_py() is not False:
        return column
    texts = [None if cell is None else _utf8(cell) for cell in column.to_pylist()]
    return pa.array(texts, pa.string())


def _utf8(latin: str) -> str | None:
    return databases.decoded(latin.encode("latin-1"))


def _parquet(
    path: Path, columns: tuple[str, ...], _unparsed: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    with _understood(path, "Parquet"), pq.ParquetFile(path, pre_buffer=False) as file:
        there = file.schema_arrow.names
        _require_columns(str(path), columns, there, _names(there))
        yield from file.iter_batches(BATCH, columns=list(dict.fromkeys(columns)))


def _huggingface(
    path: Path, columns: tuple[str, ...], _unparsed: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    """Reads the Arrow files of a folder that `datasets.Dataset.save_to_disk` wrote."""
    wanted = list(dict.fromkeys(columns))
    for file in _files(path):
        with _understood(file, "Arrow"), pa.memory_map(str(file)) as mapped:
            stream = pa.ipc.open_stream(mapped)
            there = stream.schema.names
            _require_columns(str(path), columns, there, _names(there))
            for batch in stream:
                for start in range(0, batch.num_rows, BATCH):
                    yield batch.select(wanted).slice(start, BATCH)


def _files(path: Path) -> list[Path]:
    """Returns the data files of a dataset's folder, in order; nothing outside the folder."""
    try:
        with (path / _STATE).open("rb") as file:
            state = json.loads(file.read(_LARGEST_STATE))
        if state.get("_indices_files") or state.get("_indices_data_files"):
            raise RunError(
                f"{path} holds a selection of rows; call flatten_indices() and save again"
            )
        names = [one["filename"] for one in state["_data_files"]]
        if not names or any(not isinstance(one, str) or Path(one).name != one for one in names):
            raise KeyError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(
            f"{path / _STATE} names no data files in its folder; save it again"
        ) from None
    if absent := [name for name in names if not (path / name).is_file()]:
        raise RunError(f"{path} lacks its file {absent[0]!r}; copy the whole folder")
    return [path / name for name in names]
