"""The operator's token of a service. A file holds its hash, and the token itself is not stored."""

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

_TOKEN_BYTES = 32


@dataclass(frozen=True)
class OperatorToken:
    """The operator's token.

    Attributes:
        file: file of the hash.
    """

    file: Path

    def renew(self) -> str:
        """Returns a new token, which replaces any earlier one and is not stored."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        temporary = self.file.with_name(f".{self.file.name}")
        with temporary.open("w", encoding="ascii") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(_hash(token))
        os.replace(temporary, self.file)
        return token

    def matches(self, token: str) -> bool:
        """Returns whether this is the operator's token."""
        try:
            known = self.file.read_text(encoding="ascii")
        except FileNotFoundError:
            return False
        return hmac.compare_digest(known, _hash(token))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
