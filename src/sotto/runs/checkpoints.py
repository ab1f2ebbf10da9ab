"""Checkpoints: the public states of runs, replaced atomically; the last two are kept.

A checkpoint holds released data (parameters, averages, counters), and never noise or its keys: a
resumed run draws fresh noise and is charged again. It also holds the ledger's mark, so that a
ledger from an old backup is noticed. Orbax writes into a temporary folder, which is then renamed. A
digest over all arrays detects later damage. A checkpoint contains no time, since the time of
writing could reveal what must stay secret (`sotto tune`).
"""

import hashlib
import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from sotto.algorithms.base import Algorithm
from sotto.errors import RunError
from sotto.files import write_whole
from sotto.runs.directory import Experiment, Run, resume_command
from sotto.runs.marks import FILE, Mark
from sotto.trees import stacked

# Orbax warns of an incomplete checkpoint of a killed run, and then removes it.
logging.getLogger("absl").setLevel(logging.CRITICAL)
logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # one warning for each unwritten file

_KEEP = 2
_PARTIAL = ".partial-"
_DIGEST = "sha256"
_T = TypeVar("_T", bound=PyTree)


def save(directory: Path, updates: int, state: PyTree, made: Mark | None = None) -> None:
    """Writes the state after `updates` updates, then removes all but the last two checkpoints.

    Args:
        directory: the run's folder of checkpoints, created if it is missing.
        updates: number of updates, the checkpoint's name.
        state: the state, of arrays only and without random keys.
        made: mark of the run's ledger; None for a run without a ledger.

    Raises:
        ValueError: the state contains a random key.
        OSError, RunError: the checkpoint cannot be written.
    """
    import orbax.checkpoint as ocp

    arrays = _named(state)
    path = _path(directory, updates)
    partial = directory / f"{_PARTIAL}{path.name}"
    for leftover in (*directory.glob(f"{_PARTIAL}*"), *directory.glob(f"{path.name}.*")):
        shutil.rmtree(leftover)  # of a killed run or an earlier version
    directory.mkdir(parents=True, exist_ok=True)
    # Orbax's default format, OCDBT, contains the time of writing.
    hooks = sys.excepthook, sys.unraisablehook
    _say_nothing_of_closed_loops()
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
            checkpointer.save(partial.absolute(), arrays | {_DIGEST: _digest(arrays)})
    except Exception as error:  # orbax and tensorstore raise many exceptions for a full disk
        reason = " ".join(str(error).split())[-80:]
        raise RunError(
            f"the checkpoint {path} cannot be written, probably because the disk is full "
            f"({reason}); make room and continue with --resume"
        ) from error
    sys.excepthook, sys.unraisablehook = hooks  # after a failure, the quiet hooks stay
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt"):  # they contain time and place
        (partial / name).unlink(missing_ok=True)
    if made is not None:
        write_whole(partial / FILE, made.model_dump_json() + "\n")
    if path.exists():
        shutil.rmtree(path)
    partial.replace(path)
    for old in steps(directory)[:-_KEEP]:
        shutil.rmtree(_path(directory, old))


def _say_nothing_of_closed_loops() -> None:
    """Silences threads of tensorstore, which continue after a failure and print errors."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if str(error) != "Event loop is closed":
            before(kind, error, trace)

    sys.excepthook = hook
    sys.unraisablehook = lambda _: None  # coroutines that were never awaited


def steps(directory: Path) -> list[int]:
    """Returns the numbers of updates of all checkpoints, in increasing order."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def load(directory: Path, updates: int, like: _T) -> _T:
    """Reads the state after `updates` updates, in the structure of `like`.

    Args:
        directory: the run's folder of checkpoints.
        updates: number of updates, the checkpoint's name.
        like: a state of the same run, or its shapes (`jax.eval_shape`).

    Raises:
        RunError: the checkpoint is damaged, or belongs to another run.
    """
    import orbax.checkpoint as ocp

    path = _path(directory, updates)
    remedy = f"remove that folder to continue from the previous checkpoint in {directory}"
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
    except Exception as error:  # orbax and tensorstore raise many exceptions for a damaged file
        stored = {one.name for one in path.glob("*") if one.is_dir()}  # one folder for each array
        unknown, missing = sorted(stored - set(named) - {_DIGEST}), sorted(set(named) - stored)
        if unknown or (missing and stored):
            what = (
                f"holds {unknown[0][:60]!r}, which this version does not know"
                if unknown
                else f"does not hold {missing[0][:60]!r}, which this version needs"
            )
            raise RunError(
                f"the checkpoint {path} belongs to another version of sotto or to another run: it "
                f"{what}; continue with the version that wrote it, or start a new run"
                + ("" if unknown else f"; or, if it was damaged, {remedy}")
            ) from error
        raise RunError(
            f"the checkpoint {path} is damaged or belongs to another run; {remedy}"
        ) from error
    digest = restored.pop(_DIGEST)
    arrays = {name: np.asarray(restored[name]) for name in named}
    if any((arrays[name].shape, arrays[name].dtype) != named[name] for name in named):
        raise RunError(f"the checkpoint {path} does not fit this run's settings; {remedy}")
    if not np.array_equal(digest, _digest(arrays)):
        raise RunError(f"the checkpoint {path} was changed after it was written; {remedy}")
    state: _T = jax.tree.unflatten(jax.tree.structure(like), list(arrays.values()))
    return state


def load_all(
    algorithm: Algorithm[Any], config: Any, experiment: Experiment, updates: int
) -> PyTree:
    """Reads the states of all runs after `updates` updates, leaves of shape [runs, ...].

    Args:
        algorithm: the experiment's algorithm.
        config: its settings.
        experiment: the runs.
        updates: number of updates, the name of the checkpoints.

    Raises:
        RunError: a checkpoint is damaged or missing.
    """
    like = algorithm.one_state(config, experiment.settings.seeds[0])
    states = [load(run.checkpoints, updates, like) for run in experiment.runs]
    return stacked(states)


def last_checkpoint(experiment: Experiment) -> int:
    """Returns the number of updates of the newest checkpoint that all runs have.

    Raises:
        RunError: there is no such checkpoint.
    """
    done = last_common_checkpoint(experiment.runs)
    if done == 0:
        raise RunError(
            f"{experiment.path} has no checkpoint yet; continue the training with: "
            f"{resume_command(experiment)}"
        )
    return done


def last_common_checkpoint(runs: Sequence[Run]) -> int:
    """Returns the number of updates of the newest checkpoint that all runs have, or 0.

    Runs that are trained together have the same checkpoints. If the process is killed between two
    runs' saves, they resume from the last checkpoint in common. There is one, because each run
    keeps two.

    Raises:
        RunError: all runs have checkpoints but none in common, since some were resumed alone.
    """
    common = set.intersection(*(set(steps(run.checkpoints)) for run in runs))
    if not common and all(steps(run.checkpoints) for run in runs):
        raise RunError(
            "the seeds of this experiment have no checkpoint in common; resume each in its own "
            "directory (--out .../seed-K --resume)"
        )
    return max(common, default=0)


def _path(directory: Path, updates: int) -> Path:
    return directory / f"{updates:08d}"


def _flat(state: PyTree) -> dict[str, Any]:
    """Returns the leaves by name, in the order of the tree."""
    leaves, _ = jax.tree.flatten_with_path(state)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def _named(state: PyTree) -> dict[str, np.ndarray]:
    flat = _flat(state)
    for name, leaf in flat.items():
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(f"a checkpoint must not contain random keys, but {name} is one")
    return {name: np.asarray(leaf) for name, leaf in flat.items()}


def _digest(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns SHA-256 over names, types, shapes and contents, as 32 bytes."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return np.frombuffer(digest.digest(), np.uint8)
