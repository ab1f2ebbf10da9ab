"""Secret tokens, which their holders send, and of which services keep hashes.

A token has 256 random bits, so its plain hash tells nothing of it.
"""

import hashlib
import secrets


def new_token() -> str:
    """Returns a new random token."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """Returns the SHA-256 of a token, which may be any text that somebody sent."""
    return hashlib.sha256(token.encode(errors="backslashreplace")).hexdigest()
