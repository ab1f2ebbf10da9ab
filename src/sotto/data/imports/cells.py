"""Cells of Arrow columns as numbers, categories, times and ids; each cell is read alone.

Nothing here is inferred from other cells. A cell that cannot be read is missing and raises no
error, since an error would depend on one person's data. No value is decoded into an object and no
extension type is loaded.
"""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float, Int, UInt64
from pyarrow import types

from sotto.data.imports.declaration import Categories
from sotto.errors import RunError

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?$"
_REAL_ID = r"^[+-]?\d+\.0+$"
_HASH = 16  # bytes of an id's hash, so that no two ids share one

Hash = Callable[[bytes], bytes]
"""Type of a keyed hash function of ids."""


def keyed_hash(key: bytes) -> Hash:
    """Returns BLAKE2b with a secret key (RFC 7693), 16 bytes long."""
    return lambda content: hashlib.blake2b(content, key=key, digest_size=_HASH).digest()


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_real(kind: pa.DataType) -> bool:
    return bool(types.is_floating(kind) or types.is_decimal(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def require_understood(name: str, kind: pa.DataType) -> None:
    """Refuses a column whose type is not text, number, truth value, date or time stamp.

    Raises:
        RunError: the type is another one; the message names it.
    """
    if types.is_dictionary(kind):
        kind = kind.value_type
    known = _is_text(kind) or _is_real(kind) or _is_time(kind)
    if not (known or types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind)):
        raise RunError(
            f"column {name!r} has the type {kind}; sotto reads texts, numbers, truth values, dates "
            "and time stamps, so convert it first"
        )


def require_id(name: str, kind: pa.DataType) -> None:
    """Refuses an id column whose type is not text or whole numbers.

    Raises:
        RunError: the type is another one.
    """
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not (_is_text(kind) or types.is_integer(kind) or types.is_null(kind)):
        raise RunError(
            f"column {name!r} holds ids of the type {kind}; ids must be texts or whole numbers, "
            "since equal people could get unequal ids otherwise, so convert it first (pandas makes "
            "real numbers of whole ones where a cell is missing: use astype('Int64'))"
        )


def real_ids(column: pa.Array) -> Bool[np.ndarray, " rows"]:
    """Returns which ids are texts of whole numbers with `.0` behind them, such as 7.0."""
    column = _decoded(column)
    if not _is_text(column.type):
        return np.zeros(len(column), bool)
    found = pc.fill_null(pc.match_substring_regex(column, _REAL_ID), False)
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def _decoded(column: pa.Array) -> pa.Array:
    """Returns the column without a dictionary; a column of nulls has the type text."""
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.string()) if types.is_null(column.type) else column


def numbers(column: pa.Array) -> Float[np.ndarray, " rows"]:
    """Returns the cells as float64; a missing cell, or one that is no number, is NaN.

    The truth values are 1 and 0, also as the words true and false.
    """
    column = _decoded(column)
    if _is_text(column.type):
        words = pc.ascii_trim_whitespace(column)
        lower = pc.ascii_lower(words)
        words = pc.if_else(pc.equal(lower, "true"), "1", words)
        words = pc.if_else(pc.equal(lower, "false"), "0", words)
        readable = pc.match_substring_regex(words, _NUMBER)
        column = pc.if_else(readable, words, pa.scalar(None, words.type))
    elif _is_time(column.type):
        column = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
        column = column.cast(pa.int64())
    elif types.is_boolean(column.type):
        column = column.cast(pa.int8())
    found = column.cast(pa.float64(), safe=False)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.float64)


def times(column: pa.Array) -> tuple[Float[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Returns the cells as float64 that order rows, and which cells are dates or time stamps.

    A missing cell, or one that is no time, is NaN. Dates and time stamps are microseconds since
    1970 in UTC. A text is a number, or a date or time stamp in ISO 8601.
    """
    column = _decoded(column)
    found = numbers(column)
    if not _is_text(column.type):
        return found, np.full(len(found), _is_time(column.type)) & np.isfinite(found)
    found = found.copy()
    unread = np.flatnonzero(np.isnan(found))
    for row, content in zip(unread, _contents(column.take(pa.array(unread))), strict=True):
        if content is not None:
            found[row] = _iso(content.decode(errors="replace"))
    dated = np.zeros(len(found), bool)
    dated[unread] = np.isfinite(found[unread])
    return found, dated


def _iso(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return moment.timestamp() * 1e6
    except (ValueError, OverflowError):
        return np.nan


def codes(column: pa.Array, declared: Categories) -> Int[np.ndarray, " rows"]:
    """Returns the number of each cell's category; -1 for a missing cell or an unknown one.

    Raises:
        RunError: the column holds real numbers and the categories are texts.
    """
    column = _decoded(column)
    if declared.numeric:
        # A category such as 0.1 is stored with fewer digits in a column of fewer bits.
        kind = column.type.to_pandas_dtype() if types.is_floating(column.type) else np.float64
        values = np.array(declared.categories, kind).astype(np.float64)
        order = np.argsort(values)
        cells = numbers(column)
        place = np.searchsorted(values[order], cells).clip(max=len(values) - 1)
        return np.where(values[order][place] == cells, order[place], -1)
    if _is_real(column.type) or _is_time(column.type):
        raise RunError(
            f"column {declared.column!r} holds {column.type}; declare its categories as numbers, "
            "or convert it to texts"
        )
    known = pa.array(list(declared.categories), pa.string())
    found = pc.index_in(column.cast(pa.string()), value_set=known)
    return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), np.int64)


def hashes(
    column: pa.Array, hashed: Hash
) -> tuple[UInt64[np.ndarray, "rows 2"], Bool[np.ndarray, " rows"]]:
    """Returns the hash of each cell's id in two halves, and whether there is an id.

    An id is a text in UTF-8, or a whole number, which is the same id as its decimal digits. Ids
    are compared byte by byte, so that two spellings of a text are two ids. An empty text is none.
    """
    column = _decoded(column)
    encoded = pc.dictionary_encode(column.cast(pa.string()))
    contents = _contents(encoded.dictionary)
    table = np.zeros((len(contents) + 1, 2), np.uint64)
    for number, content in enumerate(contents):
        if content:
            table[number] = np.frombuffer(hashed(content), ">u8")
    present = np.array([bool(content) for content in contents] + [False])
    indices = pc.fill_null(encoded.indices, len(contents)).to_numpy(zero_copy_only=False)
    return table[indices], present[indices]


def _contents(column: pa.Array) -> list[bytes | None]:
    """Returns the bytes of texts, which need not be valid UTF-8."""
    kind = pa.large_binary() if types.is_large_string(column.type) else pa.binary()
    found: list[bytes | None] = column.cast(kind).to_pylist()
    return found
