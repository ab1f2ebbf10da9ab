"""Folders that may come from somebody else: only regular files are read there.

Whatever opens a run directory or a dataset asks `require_regular` first, so that nothing in it can
make a reader wait for ever (a FIFO) or read what is no file (a device).
"""

import os
import stat
from pathlib import Path


def require_regular(directory: Path) -> None:
    """Refuses a folder that holds anything but folders and regular files, or links to those.

    Raises:
        ValueError: what it holds instead.
        OSError: it cannot be read.
    """
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = Path(folder) / name
            try:
                kind = path.stat().st_mode
            except FileNotFoundError:  # a link to nothing, or removed since: nothing to read
                continue
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise ValueError(
                    f"{path} is not a regular file, and nothing else is read; remove it"
                )
