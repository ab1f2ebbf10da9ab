"""Trains populations of experts in chunks, and keeps them on disk.

A folder holds `settings.json`, the folder `chunks/` during the training, and in the end
`experts.npz`. That file holds every leaf of the stacked policies, the plan and the returns of the
experts, and a JSON header. Where all experts start from one base policy, `base.npz` holds it with
its critic, and `base_policy.npz` holds the policy in the format of `sotto.rl.policy_files`. All of
it is a function of the settings, so a stopped training can continue on any machine.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict

from sotto.algorithms.baselines.ppo import Networks
from sotto.algorithms.experts import gymnasium
from sotto.algorithms.experts import training as native
from sotto.algorithms.experts.recipes import BASE_SECONDS, HIDDEN, SECONDS, recipe
from sotto.algorithms.experts.training import ExpertPlan, Play, Recipe
from sotto.data import minari_files
from sotto.data.trajectories import ExpertLog
from sotto.errors import RunError
from sotto.files import require_regular, write_model
from sotto.processes import at_once, finished
from sotto.rl import policy_files
from sotto.rl.envs.registry import is_native, make
from sotto.rl.networks import Policy
from sotto.trees import at

_FORMAT = 4
"""Number of the file format. Raise it when a recipe or the training changes."""

_EPISODES = 20
"""Number of episodes by which an expert is judged."""

_STARTING = 30.0
"""Seconds that a process takes to import and compile."""

_NATIVE_CHUNK, _GYMNASIUM_CHUNK = 50, 5
"""Experts of a chunk. Experts of environments written in JAX are trained in parallel."""

Arrays = dict[str, np.ndarray]
Say = Callable[[str], None]


class ExpertSettings(BaseModel):
    """The settings that determine a population."""

    model_config = ConfigDict(frozen=True)

    env_id: str
    experts: int
    hidden: tuple[int, ...] = HIDDEN
    seed: int = 0
    format: int = _FORMAT

    @property
    def recipe(self) -> Recipe:
        """Settings by which the experts are trained."""
        return recipe(self.env_id, self.hidden)

    @property
    def plan(self) -> ExpertPlan:
        """The plan of all experts."""
        return native.plan(self.env_id, self.recipe, self.experts, self.seed)

    @property
    def chunks(self) -> list[ExpertPlan]:
        """Groups of experts that are trained together; where possible, they stop together."""
        chosen = self.plan
        order = np.argsort(chosen.stops, kind="stable")
        size = _NATIVE_CHUNK if is_native(self.env_id) else _GYMNASIUM_CHUNK
        return [chosen.select(order[i : i + size]) for i in range(0, self.experts, size)]


class Population(NamedTuple):
    """A population of trained experts."""

    settings: ExpertSettings
    policies: Policy
    """Policies; every leaf has a leading axis of experts."""
    returns: Float[np.ndarray, "experts episodes"]
    """Undiscounted greedy returns in the default environment, up to the recipe's cap."""


class _Chunk(NamedTuple):
    """The inputs from which a process trains a chunk."""

    settings: ExpertSettings
    number: int
    base: Networks | None


def train(folder: Path, settings: ExpertSettings, workers: int, say: Say) -> Population:
    """Trains the chunks that are missing, and writes the file of the population.

    Args:
        folder: folder of the population, which is created where it does not exist.
        settings: settings of the population. They must equal those that the folder holds.
        workers: number of processes.
        say: function of a line of progress. The first line estimates the time.

    Raises:
        RunError: the folder holds other experts, or a process was killed.
        ValueError: no experts can be made of the settings.
    """
    chunks = settings.chunks
    _claim(folder, settings)
    if (folder / _POPULATION).exists():
        say(f"{folder} has its {settings.experts:,} experts already")
        if not (folder / _BASE_POLICY).exists():
            _base(folder, settings, say)  # of a version that did not write the policy
        return load(folder)
    missing = [i for i in range(len(chunks)) if not _chunk_path(folder, i).exists()]
    say(_announcement(folder, settings, missing, workers))
    base = _base(folder, settings, say)
    tasks = [_Chunk(settings, index, base) for index in missing]
    results = finished(train_chunk, tasks, workers)
    began, done, total = time.monotonic(), 0, sum(len(chunks[i].numbers) for i in missing)
    for task, arrays in results:
        _write(_chunk_path(folder, task.number), arrays)
        done += len(chunks[task.number].numbers)
        left = (time.monotonic() - began) / done * (total - done)
        mean = arrays["returns"].mean()
        say(
            f"{settings.experts - total + done:>6,}/{settings.experts:,} experts   "
            f"return of the last {len(arrays['returns'])}: {mean:.4g}   "
            + (f"{_duration(left)} left" if done < total else "done")
        )
    _together(folder, settings)
    return load(folder)


def train_chunk(chunk: _Chunk) -> Arrays:
    """Trains the experts of one chunk; returns arrays that depend on the chunk alone."""
    settings = chunk.settings
    chosen, how = settings.chunks[chunk.number], settings.recipe
    if is_native(settings.env_id):
        policies = native.train(settings.env_id, how, chosen, settings.seed, chunk.base)
        judge = native.judge
    else:
        assert chunk.base is not None
        policies = gymnasium.train(settings.env_id, how, chosen, settings.seed, chunk.base)
        judge = gymnasium.judge
    returns = judge(settings.env_id, policies, chosen.numbers, settings.seed, how.cap, _EPISODES)
    return {"numbers": chosen.numbers, "returns": returns, **_named(policies)}


def load(folder: Path) -> Population:
    """Reads a population that has been trained.

    Raises:
        RunError: the folder holds no population, an unfinished one, or one of another version.
    """
    path = folder / _POPULATION
    if not path.exists():
        raise RunError(
            f"{folder} has no experts yet; run the `sotto experts train` that began it again"
            if (folder / _SETTINGS).exists()
            else f"{folder} has no experts; make some with `sotto experts train --out {folder}`"
        )
    require_regular(folder)
    try:
        return _read(path)
    except RunError:
        raise
    except Exception as error:  # numpy, zipfile, json and pydantic raise many kinds
        raise RunError(f"{path} is damaged; remove {folder} and train the experts again") from error


def _read(path: Path) -> Population:
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header")))
    settings = ExpertSettings(**header["settings"])
    if settings.format != _FORMAT:
        raise RunError(f"{path} was written by another version of sotto; train the experts again")
    like = jax.eval_shape(lambda: _blank(settings).policy)
    leaves, tree = jax.tree.flatten_with_path(like)
    found = [arrays[jax.tree_util.keystr(where)] for where, _ in leaves]
    shapes = [(settings.experts, *leaf.shape) for _, leaf in leaves]
    if [one.shape for one in found] != shapes or arrays["returns"].shape[:1] != shapes[0][:1]:
        raise ValueError("arrays of other experts")
    stacked = [jnp.asarray(one) for one in found]
    return Population(settings, jax.tree.unflatten(tree, stacked), arrays["returns"])


def collect(population: Population, floor: float, episodes: int, seed: int, say: Say) -> ExpertLog:
    """Plays and returns episodes of all experts, floored, in the default environment.

    Raises:
        ValueError: the floor is not below one over the number of actions.
    """
    settings, cap = population.settings, population.settings.recipe.cap
    play: Play = native.play if is_native(settings.env_id) else gymnasium.play
    size = 4 * _NATIVE_CHUNK
    parts, began = [], time.monotonic()
    for first in range(0, settings.experts, size):
        rows = np.arange(first, min(first + size, settings.experts))
        policies = at(population.policies, rows)
        log = native.logs(settings.env_id, policies, rows, seed, floor, cap, episodes, play)
        parts.append(log)
        done = int(rows[-1]) + 1
        left = (time.monotonic() - began) / done * (settings.experts - done)
        say(f"{done:>6,}/{settings.experts:,} experts have played   {_duration(left)} left")
    joined: ExpertLog = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
    return joined


def write_log(
    folder: Path, out: Path, *, floor: float, episodes: int, seed: int, say: Say
) -> ExpertLog:
    """Writes episodes of the experts in a folder as a Minari dataset at `out`, and returns them.

    Raises:
        RunError: the folder holds no experts.
        ValueError: `out` exists, or the floor is not below one over the number of actions.
        ModuleNotFoundError: Minari is not installed.
    """
    population = load(folder)
    env_id = population.settings.env_id
    env = make(env_id) if is_native(env_id) else gymnasium.described(env_id)
    log = collect(population, floor, episodes, seed, say)
    say("Writing the dataset.")
    minari_files.save(
        log,
        out,
        env_id=env_id,
        actions=native.actions_of(env),
        floor=floor,
        policies=f"{log.experts} experts of {folder.name}, floored",
    )
    return log


_SETTINGS, _POPULATION, _BASE = "settings.json", "experts.npz", "base.npz"
_BASE_POLICY = "base_policy.npz"


def _chunk_path(folder: Path, index: int) -> Path:
    return folder / "chunks" / f"{index:05d}.npz"


def _claim(folder: Path, settings: ExpertSettings) -> None:
    """Writes the settings into the folder, or checks that it holds the same settings.

    Raises:
        RunError: the folder holds other settings.
    """
    path = folder / _SETTINGS
    if path.exists():
        stored = ExpertSettings.model_validate_json(path.read_text())
        if stored != settings:
            differing = [
                f"{name} {value}"
                for name, value in stored.model_dump().items()
                if value != getattr(settings, name)
            ]
            raise RunError(
                f"{folder} holds other experts ({', '.join(differing)}); choose another --out"
            )
        return
    (folder / "chunks").mkdir(parents=True, exist_ok=True)
    write_model(path, settings)


def _announcement(
    folder: Path, settings: ExpertSettings, missing: Sequence[int], workers: int
) -> str:
    chunks = settings.chunks
    left = sum(len(chunks[i].numbers) for i in missing)
    kept = f" ({settings.experts - left:,} kept from before)" if left < settings.experts else ""
    many = at_once(workers, len(missing))
    seconds = SECONDS[settings.env_id] * left / many + _STARTING
    if not (folder / _BASE).exists():
        seconds += BASE_SECONDS.get(settings.env_id, 0.0)
    done_by = "1 process" if many == 1 else f"{many} processes"
    return (
        f"{left:,} experts to train{kept}, about {_duration(seconds)} in {done_by} with 64x64 "
        "networks; you may stop it, and the same command continues it"
    )


def _base(folder: Path, settings: ExpertSettings, say: Say) -> Networks | None:
    """Returns the networks from which all experts start; None where the recipe has no base.

    They are trained once, and then read from the folder.
    """
    if settings.recipe.base is None:
        return None
    path = folder / _BASE
    if not path.exists():
        said = [0.0]

        def report(share: float, mean: float) -> None:
            if share >= said[0] + 0.1:
                said[0] = share
                say(f"base policy, in the default environment: {share:.0%}   return {mean:.4g}")

        train_base = native.train_base if is_native(settings.env_id) else gymnasium.train_base
        networks = train_base(settings.env_id, settings.recipe, settings.seed, report)
        _write(path, _named(networks))
    with np.load(path) as arrays:
        leaves, tree = jax.tree.flatten_with_path(_blank(settings))
        found = [jnp.asarray(arrays[jax.tree_util.keystr(where)]) for where, _ in leaves]
    base: Networks = jax.tree.unflatten(tree, found)
    about = {"env_id": settings.env_id, "made_by": "sotto experts train, without any expert"}
    policy_files.write(policy_files.flat_policy(base.policy), folder / _BASE_POLICY, about)
    return base


def _blank(settings: ExpertSettings) -> Networks:
    """Returns networks of the population's shapes."""
    env_id, how = settings.env_id, settings.recipe
    if is_native(env_id):
        return native.blank(native.learning_environment(env_id, how), how.ppo)
    return native.blank(gymnasium.described(env_id), how.ppo)


def _together(folder: Path, settings: ExpertSettings) -> None:
    """Writes all chunks into one file, ordered by the experts' numbers, and removes the chunks."""
    paths = [_chunk_path(folder, index) for index in range(len(settings.chunks))]
    loaded = [dict(np.load(path)) for path in paths]
    joined = {name: np.concatenate([part[name] for part in loaded]) for name in loaded[0]}
    order = np.argsort(joined.pop("numbers"))
    plan = settings.plan
    header = {
        "settings": settings.model_dump(),
        "recipe": repr(settings.recipe),
        "variants": list(plan.variants.names),
        "start": "a public base policy, trained in the default environment"
        if settings.recipe.base
        else "fresh networks",
    }
    arrays = {name: array[order] for name, array in joined.items()} | {
        "variants": plan.variants.values,
        "learning_rates": plan.learning_rates,
        "stops": plan.stops,
        "header": np.array(json.dumps(header)),
    }
    _write(folder / _POPULATION, arrays)
    for path in paths:
        path.unlink()
    paths[0].parent.rmdir()


def _named(tree: Any) -> Arrays:
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(where): np.asarray(leaf) for where, leaf in leaves}


def _write(path: Path, arrays: Arrays) -> None:
    """Replaces the file atomically, so that a killed process leaves no partial file."""
    partial_path = path.with_suffix(".partial")
    with partial_path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # a name could be allow_pickle
    partial_path.replace(path)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
