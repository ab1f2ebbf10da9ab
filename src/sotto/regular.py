"""A check that a folder of unknown origin holds only regular files.

Every reader of a run directory or a dataset calls `require_regular` first. A FIFO in the folder
could make the reader wait for ever, and a device is not a file.
"""

import os
import stat
from pathlib import Path


def require_regular(directory: Path) -> None:
    """Checks that a folder holds only folders, regular files, and links to those.

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
