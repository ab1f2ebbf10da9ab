"""Atomic writing of files, strict JSON, keys in files, checks of folders, and silence."""

import contextlib
import ctypes
import io
import json
import math
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self, TextIO, TypeVar

from pydantic import BaseModel, ValidationError

from sotto.errors import RunError
from sotto.problems import first_problem

Model = TypeVar("Model", bound=BaseModel)

_KEY_BYTES = 32


def forget_times(directory: Path) -> None:
    """Sets the times of change and access of everything in a directory to 1970.

    The time at which the file system changed a file's record (ctime) cannot be set. Copy the
    directory later to replace it.
    """
    for folder, _, files in os.walk(directory, topdown=False):
        for name in (*files, "."):
            os.utime(Path(folder) / name, (0, 0))


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discards everything that this process and its children print within the context."""
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    _flush(streams)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in kept:
            os.dup2(nowhere, number)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        _flush(streams)  # what they held back is discarded, too
        os.close(nowhere)
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)


def _flush(streams: Iterable[TextIO | None]) -> None:
    """Writes what Python's streams and those of C libraries hold back."""
    for stream in streams:
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Yields a new file that takes the place of `path` when the context ends without an error.

    The new file is on disk then.

    Args:
        path: the file.
        mode: permissions of the new file, of which the process's umask takes some away.

    Raises:
        OSError: it cannot be written; an earlier file is unchanged. Or its directory cannot be
            synced; the new file is in its place then.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with _failures_of(path):
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with _failures_of(path):
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


@contextlib.contextmanager
def _failures_of(path: Path) -> Iterator[None]:
    """Lets errors name the file, and not the temporary one."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


@contextlib.contextmanager
def private_directory(path: Path) -> Iterator[None]:
    """Makes a directory for its owner alone. One that is new is removed after an error within."""
    existed = path.exists()
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    try:
        yield
    except BaseException:
        if not existed:
            shutil.rmtree(path, ignore_errors=True)
        raise


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes a text file atomically; the arguments are those of `replacing`.

    Raises:
        OSError: it cannot be written; an earlier file is unchanged.
    """
    with replacing(path, mode) as file:
        file.write(text.encode())


def overwrite(path: Path, text: str) -> None:
    """Writes a short text in place, unsynced; every text of a file has the same length.

    Only the owner can read a new file.

    Raises:
        OSError: it cannot be written.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def write_model(path: Path, settings: BaseModel) -> None:
    """Writes settings as JSON, atomically."""
    write_whole(path, settings.model_dump_json(indent=2) + "\n")


def read_model(path: Path, kind: type[Model]) -> Model:
    """Reads settings that `write_model` wrote.

    Raises:
        RunError: they are not settings of this kind.
        OSError: the file cannot be read.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise RunError(f"{path} cannot be read: {first_problem(error, kind)}") from error


def read_at_most(path: Path, most: int) -> bytes:
    """Reads a file of somebody else, of which no more than `most` bytes come into memory.

    Raises:
        ValueError: it is larger.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    return content


def read_given(path: Path, most: int) -> bytes:
    """Reads a file that the user named, as `read_at_most`.

    Raises:
        RunError: it is larger, or cannot be read.
    """
    try:
        return read_at_most(path, most)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def require_regular(directory: Path) -> None:
    """Checks that a folder of unknown origin holds only folders, regular files, and links to those.

    Every reader of a run directory or a dataset calls it first. A FIFO in the folder could make the
    reader wait for ever, and a device is not a file.

    Raises:
        ValueError: it holds something else.
        OSError: it cannot be read.
    """
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = Path(folder) / name
            try:
                kind = path.stat().st_mode
            except FileNotFoundError:  # a broken link or a removed file
                continue
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise ValueError(f"{path} is not a regular file; remove it")


def strict_json(values: Any, indent: int | None = None) -> str:
    """Returns JSON, which has no infinity and no NaN: they become the string "inf" and null."""
    return json.dumps(_strict(values), indent=indent, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {name: _strict(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(one) for one in value]
    return value


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the JSON object of these pairs, as `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: a name is there twice.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it says {name!r} twice")
        found[name] = value
    return found


class SecretKey:
    """A secret key of 32 random bytes in a file. Use `create` or `open`.

    Attributes:
        kind: name of the key in errors.
        lost: error of `create` and `open`.
        advice: end of its message.
    """

    kind: ClassVar[str] = "key"
    lost: ClassVar[type[ValueError]]
    advice: ClassVar[str] = ""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def create(cls, path: Path) -> Self:
        """Returns the key in a file, after durably writing a new random key if there is no file.

        Several processes that call it at once all get the same key.

        Raises:
            ValueError: as `open`.
        """
        _make_secret(path)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Returns the key in a file.

        Raises:
            ValueError: the file is missing or does not contain a key; the error is `lost`.
        """
        try:
            secret = path.read_bytes()
        except FileNotFoundError as error:
            raise cls.lost(f"the {cls.kind} {path} is missing{cls.advice}") from error
        if len(secret) != _KEY_BYTES:
            raise cls.lost(f"{path} does not contain a {cls.kind}{cls.advice}")
        return cls(secret)


def _make_secret(path: Path) -> None:
    """Writes a new file of random bytes durably, for its owner alone, unless there is a file.

    Several processes that call it at once make one file, which appears whole or not at all.
    """
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Waits until the names of a directory's files are on disk."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def absolute(path: str | None) -> str | None:
    """Returns an existing path as an absolute one; any other name stays as it is."""
    return str(Path(path).absolute()) if path is not None and Path(path).exists() else path
