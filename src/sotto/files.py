"""Files that are there whole or not at all, and say nothing of when they were made."""

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel


def forget_times(directory: Path) -> None:
    """Sets when everything in a directory was changed and read to 1970; it stays readable.

    When the file system says that a file's own record was changed (ctime) cannot be set: a copy
    that is made later has that of the copy.
    """
    for folder, _, files in os.walk(directory, topdown=False):
        for name in (*files, "."):
            os.utime(Path(folder) / name, (0, 0))


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing that this process, or one that it starts, prints meanwhile goes anywhere."""
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in kept:
            os.dup2(nowhere, number)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        os.close(nowhere)
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)


def write_whole(path: Path, text: str) -> None:
    """Writes a text file, all of it or nothing.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_model(path: Path, settings: BaseModel) -> None:
    """Writes settings as JSON, all of them or nothing."""
    write_whole(path, settings.model_dump_json(indent=2) + "\n")
