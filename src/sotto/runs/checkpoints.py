"""Checkpoints: the public state of a run, atomically replaced, the last two kept.

A checkpoint holds what has been released (parameters, averages, counters) and never noise or its
keys: a resumed run takes fresh noise and a fresh charge. Orbax writes into a temporary folder and
renames it; a digest over all arrays finds what was damaged afterwards.
"""

import hashlib
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sotto.runs.directory import RunError

# Orbax warns of the half checkpoint that a killed run left behind, which it then removes.
logging.getLogger("absl").setLevel(logging.ERROR)

_KEEP = 2
_DIGEST = "sha256"
_T = TypeVar("_T", bound=PyTree)


def save(directory: Path, updates: int, state: PyTree) -> None:
    """Writes the state after `updates` updates, then removes all but the last two checkpoints.

    Args:
        directory: the run's folder of checkpoints, created if need be.
        updates: updates made; the checkpoint's name.
        state: arrays only, and no random keys.

    Raises:
        ValueError: the state holds a random key.
        OSError: it cannot be written.
    """
    import orbax.checkpoint as ocp

    arrays = _named(state)
    directory.mkdir(parents=True, exist_ok=True)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(
            _path(directory, updates).absolute(), arrays | {_DIGEST: _digest(arrays)}, force=True
        )
    for old in steps(directory)[:-_KEEP]:
        shutil.rmtree(_path(directory, old))


def steps(directory: Path) -> list[int]:
    """Numbers of updates of the checkpoints there are, in increasing order."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def load(directory: Path, updates: int, like: _T) -> _T:
    """The state after `updates` updates, in the structure of `like`.

    Args:
        like: a state of the same run, or its shapes (`jax.eval_shape`).

    Raises:
        RunError: the checkpoint is damaged, or another run's.
    """
    import orbax.checkpoint as ocp

    path = _path(directory, updates)
    remedy = f"remove that folder to go on from the checkpoint before it, in {directory}"
    named = {name: (leaf.shape, leaf.dtype) for name, leaf in _flat(like).items()}
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            restored = checkpointer.restore(
                path.absolute(),
                {
                    name: np.zeros(shape, dtype)
                    for name, (shape, dtype) in (named | {_DIGEST: ((32,), np.uint8)}).items()
                },
            )
    except Exception as error:  # orbax and tensorstore raise many kinds for a damaged file
        raise RunError(f"the checkpoint {path} is damaged or another run's; {remedy}") from error
    digest = restored.pop(_DIGEST)
    arrays = {name: np.asarray(restored[name]) for name in named}
    if any((arrays[name].shape, arrays[name].dtype) != named[name] for name in named):
        raise RunError(f"the checkpoint {path} does not fit this run's settings; {remedy}")
    if not np.array_equal(digest, _digest(arrays)):
        raise RunError(f"the checkpoint {path} is not what was written; {remedy}")
    state: _T = jax.tree.unflatten(jax.tree.structure(like), list(arrays.values()))
    return state


def _path(directory: Path, updates: int) -> Path:
    return directory / f"{updates:08d}"


def _flat(state: PyTree) -> dict[str, Any]:
    """The leaves by name, in the order of the tree."""
    leaves, _ = jax.tree.flatten_with_path(state)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def _named(state: PyTree) -> dict[str, np.ndarray]:
    flat = _flat(state)
    for name, leaf in flat.items():
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(f"a checkpoint must not hold random keys; {name} is one")
    return {name: np.asarray(leaf) for name, leaf in flat.items()}


def _digest(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """SHA-256 over names, types, shapes and contents, as 32 bytes."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return np.frombuffer(digest.digest(), np.uint8)
