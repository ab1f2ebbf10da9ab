"""The operator's token of a service. A file holds its hash, and the token itself is not stored."""

import hmac
from dataclasses import dataclass
from pathlib import Path

from sotto.files import replacing
from sotto.tokens import new_token, token_hash


@dataclass(frozen=True)
class OperatorToken:
    """The operator's token.

    Attributes:
        file: file of the hash.
    """

    file: Path

    def renew(self) -> str:
        """Returns a new token, which replaces any earlier one and is not stored."""
        token = new_token()
        with replacing(self.file, 0o600) as file:
            file.write(token_hash(token).encode())
        return token

    def matches(self, token: str) -> bool:
        """Returns whether this is the operator's token."""
        try:
            known = self.file.read_text(encoding="ascii")
        except FileNotFoundError:
            return False
        return hmac.compare_digest(known, token_hash(token))
