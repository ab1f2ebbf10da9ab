"""Packages that only some commands need, and the extra that installs them."""

from importlib.util import find_spec

EXTRAS = {
    "fastapi": "serving",
    "uvicorn": "serving",
    "httpx": "serving",
    "ale_py": "atari",
    "minari": "experts",
    "h5py": "experts",
    "Box2D": "experts",
    "ray": "ray",
    "mujoco": "mujoco",
    "psycopg": "postgresql",
}
"""The extra of each package, by the name it is imported by."""


def require(*packages: str) -> None:
    """Refuses to begin what would fail for want of a package when half of it is done.

    Raises:
        ValueError: which one is missing, and what installs it.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ValueError(missing(package))


def missing(package: str) -> str:
    """What to say where a package is not installed."""
    return f"this needs {package}: pip install 'sotto[{EXTRAS[package]}]'"
