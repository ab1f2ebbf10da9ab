"""A file of all withdrawals on this machine, beside the database.

A restored copy of the database may lack withdrawals that were answered since. So each one is noted
here before the database has it, and is applied again where it is missing. The file holds enrolment
numbers, and no names or tokens. It is never rewritten.

Guarantee:
    When `note` returns, the number is on disk. A process may be killed at any moment: what it left
    of a line that it did not finish is not read as another person.
"""

import os
import re
import threading
from pathlib import Path

from sotto.files import sync_directory
from sotto.people.errors import StoreUnavailable

_DIGITS = 10
_NUMBER = re.compile(rb"[0-9]{10}")
_UNFINISHED = re.compile(rb"[0-9\0]{0,9}|\0+")  # file systems may fill it with zeros


class Withdrawals:
    """The file of withdrawals. Several processes may use it at once.

    Args:
        path: the file; it is made when the first person withdraws.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._noted: set[int] = set()  # by this object, so that repetitions write nothing

    def note(self, person: int) -> None:
        """Writes a person's number down, durably.

        Raises:
            StoreUnavailable: the file cannot be written; the withdrawal must not be acknowledged.
        """
        with self._lock:
            if person in self._noted:
                return
            try:
                self._append(b"\n%0*d\n" % (_DIGITS, person))  # ends what a killed process left
            except OSError as error:
                raise self._unusable("written", error) from error
            self._noted.add(person)

    def persons(self) -> set[int]:
        """Returns the numbers of all who were noted; nobody without a file.

        Raises:
            StoreUnavailable: the file cannot be read, or is damaged.
        """
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise self._unusable("read", error) from error
        numbers = {line for line in lines if _NUMBER.fullmatch(line)}
        if not all(_UNFINISHED.fullmatch(line) for line in lines if line not in numbers):
            raise StoreUnavailable(
                f"{self._path} is damaged, and some people who withdrew may be missing in it; "
                "restore it from a backup"
            )
        return set(map(int, numbers))

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o600)
        try:
            if os.write(file, data) != len(data):
                raise OSError("the disk is full")
            os.fsync(file)
        finally:
            os.close(file)
        sync_directory(self._path.parent)  # the file may be new

    def _unusable(self, done: str, error: OSError) -> StoreUnavailable:
        reason = error.strerror or error
        return StoreUnavailable(f"{self._path} cannot be {done} ({reason}); try again")
