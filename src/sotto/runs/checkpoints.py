"""Checkpoints: the public state of a run, atomically replaced, the last two kept.

A checkpoint holds what has been released (parameters, averages, counters) and never noise or its
keys: a resumed run takes fresh noise and a fresh charge. It also holds the ledger's mark, without
which a ledger that was put back from an old backup would not be noticed. Orbax writes into a
temporary folder, which is then renamed; a digest over all arrays finds what was damaged afterwards.
No time is in it: when a checkpoint was written may tell what must stay secret (`sotto tune`).
"""

import hashlib
import logging
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sotto.errors import RunError
from sotto.files import write_whole
from sotto.runs.marks import FILE, Mark

# Orbax warns of the half checkpoint that a killed run left behind, which it then removes.
logging.getLogger("absl").setLevel(logging.CRITICAL)
logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # and of each file it could not write

_KEEP = 2
_PARTIAL = ".partial-"
_DIGEST = "sha256"
_T = TypeVar("_T", bound=PyTree)


def save(directory: Path, updates: int, state: PyTree, made: Mark | None = None) -> None:
    """Writes the state after `updates` updates, then removes all but the last two checkpoints.

    Args:
        directory: the run's folder of checkpoints, created if need be.
        updates: updates made; the checkpoint's name.
        state: arrays only, and no random keys.
        made: where the run's ledger is; None for a run without one.

    Raises:
        ValueError: the state holds a random key.
        OSError, RunError: it cannot be written.
    """
    import orbax.checkpoint as ocp

    arrays = _named(state)
    path = _path(directory, updates)
    partial = directory / f"{_PARTIAL}{path.name}"
    for leftover in (*directory.glob(f"{_PARTIAL}*"), *directory.glob(f"{path.name}.*")):
        shutil.rmtree(leftover)  # a killed run's, or an earlier version's
    directory.mkdir(parents=True, exist_ok=True)
    # Orbax' own format, OCDBT, has the time of writing in it.
    hooks = sys.excepthook, sys.unraisablehook
    _say_nothing_of_closed_loops()
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
            checkpointer.save(partial.absolute(), arrays | {_DIGEST: _digest(arrays)})
    except Exception as error:  # orbax and tensorstore raise many kinds for a full disk
        reason = " ".join(str(error).split())[-80:]
        raise RunError(
            f"the checkpoint {path} cannot be written, which a full disk does ({reason}); make "
            "room and go on with --resume"
        ) from error
    sys.excepthook, sys.unraisablehook = hooks  # after a failure they stay
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt"):  # when and where it was written
        (partial / name).unlink(missing_ok=True)
    if made is not None:
        write_whole(partial / FILE, made.model_dump_json() + "\n")
    if path.exists():
        shutil.rmtree(path)
    partial.replace(path)
    for old in steps(directory)[:-_KEEP]:
        shutil.rmtree(_path(directory, old))


def _say_nothing_of_closed_loops() -> None:
    """Threads of tensorstore go on for a while after a failure, and print what they run into."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if str(error) != "Event loop is closed":
            before(kind, error, trace)

    sys.excepthook = hook
    sys.unraisablehook = lambda _: None  # coroutines that were never awaited


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
