"""Logs as batches of Arrow rows: CSV, Parquet, Hugging Face datasets on disk, and databases.

Only the declared columns are read, in batches. A library's message about a damaged file may quote a
row, so it is never passed on. Nothing in a file is imported, executed or connected to.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from sotto.data.imports import databases
from sotto.data.imports.declaration import Declaration
from sotto.errors import RunError
from sotto.files import require_regular

Kind = Literal["csv", "parquet", "huggingface", "database"]

BATCH = 2**16
"""Number of rows that are read at once."""
_BLOCK = 2**22  # bytes of a CSV file that are read at once; a row must fit
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


def _require_columns(where: str, columns: tuple[str, ...], there: list[str]) -> None:
    absent = [name for name in columns if name not in there]
    if absent:
        raise RunError(
            f"{where} has no column {absent[0]!r} among its {len(there)} columns; a CSV file names "
            "them in its first line" + (", and separates them by commas" if len(there) == 1 else "")
        )
    twice = [name for name in columns if there.count(name) > 1]
    if twice:
        raise RunError(f"{where} has several columns {twice[0]!r}; rename all but one of them")


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


@contextmanager
def _no_row_shown() -> Iterator[None]:
    """Hides what Python prints of a row that Arrow cannot hand to its handler as a text."""
    shown = sys.unraisablehook

    def hook(found: Any) -> None:
        if not isinstance(found.exc_value, UnicodeDecodeError):
            shown(found)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = shown


def _csv(
    path: Path, columns: tuple[str, ...], unparsed: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    """Reads a CSV file with a line of names; every cell is a text, and an empty one is missing."""

    def skip(_row: pc.InvalidRow) -> str:
        unparsed()
        return "skip"

    reading = pc.ReadOptions(block_size=_BLOCK, use_threads=False)
    lines = pc.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _row: "skip")
    with _understood(path, "CSV"), _no_row_shown():
        with pc.open_csv(path, read_options=reading, parse_options=lines) as first:
            names = first.schema.names
        _require_columns(str(path), columns, names)
        lines = pc.ParseOptions(newlines_in_values=True, invalid_row_handler=skip)
        texts = pc.ConvertOptions(
            column_types={name: pa.binary() for name in columns},
            include_columns=list(dict.fromkeys(columns)),
            null_values=[""],
            strings_can_be_null=True,
        )
        with pc.open_csv(
            path, read_options=reading, parse_options=lines, convert_options=texts
        ) as rows:
            for batch in rows:
                yield pa.record_batch(
                    {name: _text(batch.column(name)) for name in batch.schema.names}
                )


def _text(column: pa.Array) -> pa.Array:
    """Returns bytes as texts; a cell that is not UTF-8 is null."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        cells = column.to_pylist()
        texts = [None if cell is None else databases.decoded(cell) for cell in cells]
        return pa.array(texts, pa.string())


def _parquet(
    path: Path, columns: tuple[str, ...], _unparsed: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    with _understood(path, "Parquet"), pq.ParquetFile(path, pre_buffer=False) as file:
        _require_columns(str(path), columns, file.schema_arrow.names)
        yield from file.iter_batches(BATCH, columns=list(dict.fromkeys(columns)))


def _huggingface(
    path: Path, columns: tuple[str, ...], _unparsed: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    """Reads the Arrow files of a folder that `datasets.Dataset.save_to_disk` wrote."""
    wanted = list(dict.fromkeys(columns))
    for file in _files(path):
        with _understood(file, "Arrow"), pa.memory_map(str(file)) as mapped:
            stream = pa.ipc.open_stream(mapped)
            _require_columns(str(path), columns, stream.schema.names)
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
