"""Errors of rounds of masked sums."""

from sotto.errors import RunError


class ProtocolError(ValueError):
    """A message does not follow the protocol. The receiver does nothing with it.

    The text names no secret, and nothing that depends on anybody's data.
    """


class RoundGivenUp(Exception):
    """Too few devices are left before anything was charged or opened; others can be asked.

    Attributes:
        answered: number of devices that did what they were asked.
    """

    def __init__(self, reason: str, answered: int) -> None:
        super().__init__(reason)
        self.answered = answered


class RoundLost(RunError):
    """A sum that was charged cannot be opened. The release stays charged, and nothing is known."""
