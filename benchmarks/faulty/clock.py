"""A clock that another process can step: real time and an offset in a file."""

import mmap
import struct
import time
from pathlib import Path

_FORMAT = "d"
_real = time.time


class Clock:
    """A clock whose offset is in a file; all processes that open the file see it at once.

    Args:
        path: the file, which is made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(struct.pack(_FORMAT, 0.0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), struct.calcsize(_FORMAT))

    @property
    def offset(self) -> float:
        """Difference to the real time in seconds."""
        found: float = struct.unpack(_FORMAT, self._map[:])[0]
        return found

    @offset.setter
    def offset(self, seconds: float) -> None:
        self._map[:] = struct.pack(_FORMAT, seconds)

    def now(self) -> float:
        """Returns the time in seconds."""
        return _real() + self.offset
