"""Certificates in files, as the tests change them."""

import json
from pathlib import Path
from typing import Any

from pydantic_core import to_json


def changed(path: Path, change: Any) -> Path:
    """The same file with another content, in canonical form."""
    contents = json.loads(path.read_text())
    change(contents)
    path.write_bytes(to_json(contents, indent=2) + b"\n")
    return path
