"""Logs of experts as Minari datasets, with the expert's id in the metadata of each episode.

Any Minari dataset with Box observations, Discrete actions and such an id can be read; its
environment need not be installed.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from jaxtyping import Int

from sotto.data.datasets import (
    ID_COLUMN,
    IMPORT,
    DatasetError,
    Episode,
    require_new,
    require_room,
    storage_of,
    understood,
    write,
)
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.records import declaration_of
from sotto.data.trajectories import ExpertLog, Transitions, checked


def save(
    log: ExpertLog, path: Path, *, env_id: str, actions: int, floor: float, policies: str
) -> None:
    """Writes a log as a Minari dataset; after an error, no dataset is left at `path`.

    `minari.load_dataset(path.name)` finds the dataset if `path` is NAME-v0 in
    MINARI_DATASETS_PATH. `minari.MinariDataset(path / "data")` finds it anywhere.

    Args:
        log: the episodes; an expert's number is the id.
        path: folder of the dataset, which must not exist.
        env_id: the environment of the episodes.
        actions: number of actions.
        floor: smallest probability of any action.
        policies: the policies that acted, in words.

    Raises:
        ValueError: `path` exists, or the log's arrays do not fit together.
        ModuleNotFoundError: Minari is not installed.
    """
    checked(log)
    path = path.resolve()  # Minari takes a relative path as relative to its own folder
    require_new(path)
    owners = np.repeat(np.arange(log.experts), log.steps)
    found, ends = log.transitions, np.flatnonzero(log.lasts) + 1

    def episodes() -> Iterator[Episode]:
        for first, end in zip([0, *ends[:-1]], ends, strict=True):
            final = found.next_observations[end - 1 : end]
            yield Episode(
                owner=int(owners[first]),
                observations=np.concatenate([found.observations[first:end], final]),
                actions=np.asarray(found.actions[first:end], np.int64),
                rewards=np.asarray(found.rewards[first:end]),
                terminated=bool(found.terminated[end - 1]),
                infos=None,
            )

    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(
        partial,
        episodes(),
        observation_space=gym.spaces.Box(-np.inf, np.inf, (log.observation_size,), np.float32),
        action_space=gym.spaces.Discrete(actions),
        metadata={
            "dataset_id": path.name,
            "algorithm_name": policies,
            "description": f"{env_id}, every action with probability at least {floor:g}; "
            f"each episode's metadata has the {ID_COLUMN} of who played it",
            "sotto": {"env_id": env_id, "floor": floor, "experts": log.experts},
        },
    )
    partial.rename(path)


def load(dataset: Path | str, id_column: str = ID_COLUMN, experts: int | None = None) -> ExpertLog:
    """Reads a Minari dataset as a log.

    Args:
        dataset: folder of a dataset, or the name of one that Minari has stored.
        id_column: key in an episode's metadata whose value is the expert's id.
        experts: number of experts, a public number. Ids are then below it, and an expert's id is
            their number. None takes the number that the dataset states, as datasets of `save` do.
            If it states none, there is an expert for each id that occurs, in the order of ids,
            which may then be words; the number of experts is then a function of the data.

    Returns:
        The log. If the number of experts is known, removing one expert's episodes leaves that
        expert without transitions and changes no other expert's. An episode with an unknown
        action, or with too few observations for its steps, is left out without an error.

    Raises:
        ValueError: there is no such dataset or column, the spaces are not Box and Discrete, an id
            is not below the number of experts, or there are no steps.
        ModuleNotFoundError: Minari is not installed.
    """
    with understood(dataset):
        return _load(dataset, id_column, experts)


def _load(dataset: Path | str, id_column: str, experts: int | None) -> ExpertLog:
    storage = storage_of(dataset)
    size, first_action, actions = _sizes(dataset, storage)
    stated = _stated(storage, id_column)
    experts = stated if experts is None else experts
    numbers = range(storage.total_episodes)
    metadata = list(storage.get_episode_metadata(numbers))
    lengths = np.array([_length(dataset, episode) for episode in metadata], np.int64)
    ids = _ids(dataset, metadata, id_column)
    count, owners = _owners(dataset, ids, id_column, experts)
    total = sum(lengths.tolist())
    step = 8 * size + 10  # two observations, an action, a reward and two bits
    require_room(
        dataset,
        total * step + 8 * count,
        f"{count:,} experts with {total:,} steps in all",
        "make it smaller, or state fewer experts",
    )
    found = Transitions(
        observations=np.zeros((total, size), np.float32),
        actions=np.zeros(total, np.int32),
        rewards=np.zeros(total, np.float32),
        next_observations=np.zeros((total, size), np.float32),
        terminated=np.zeros(total, bool),
    )
    usable, lasts = np.zeros((2, total), bool)
    steps = np.zeros(count, np.int64)
    for owner, first, length, episode in zip(
        owners, _firsts(owners, lengths), lengths, storage.get_episodes(numbers), strict=True
    ):
        chosen = np.asarray(episode["actions"])
        observations = np.asarray(episode["observations"]).reshape(-1, size)
        known = (chosen >= first_action) & (chosen < first_action + actions)
        if not len(chosen) == len(episode["rewards"]) == length > 0 or not np.all(known):
            continue
        if len(observations) <= length:
            continue
        place, last = slice(first, first + length), first + length - 1
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, in this row only
            found.observations[place] = observations[:length]
            found.next_observations[place] = observations[1 : length + 1]
            found.rewards[place] = episode["rewards"]
        found.actions[place] = chosen - first_action
        found.terminated[last] = bool(episode["terminations"][-1])
        lasts[last] = usable[place] = True
        steps[owner] += length
    if not usable.any():
        raise DatasetError(f"{dataset} has no steps in it.")
    arrays = [*found, lasts]
    del found
    if not usable.all():
        for number, array in enumerate(arrays):  # one at a time, so that they fit into memory
            arrays[number] = array[usable]
    return checked(ExpertLog(Transitions(*arrays[:-1]), arrays[-1], steps))


class Described(NamedTuple):
    """Statements of a dataset about itself."""

    env_id: str | None
    """Environment in which it was collected."""
    actions: int
    """Number of actions."""
    experts: int | None
    """Number of experts, with those who have no episodes; None if it is not stated."""
    simulated: bool
    """Whether `save` wrote the dataset, so that its experts come from `sotto experts train`."""
    identity: str | None
    """Identity of the import; None if the dataset was not imported."""
    declaration: Declaration | None
    """Declaration of the import."""


def described(dataset: Path | str, id_column: str = ID_COLUMN) -> Described:
    """Returns what a Minari dataset states about itself, without reading its episodes.

    Args:
        dataset: folder of a dataset, or the name of one that Minari has stored.
        id_column: key in an episode's metadata whose value is the expert's id.

    Raises:
        ValueError: there is no such dataset, or its spaces are not Box and Discrete.
    """
    with understood(dataset):
        storage = storage_of(dataset)
        _, _, actions = _sizes(dataset, storage)
        own, spec = _own(storage), storage.metadata.get("env_spec")
        if isinstance(spec, str):
            spec = json.loads(spec)
        named = spec.get("id") if isinstance(spec, dict) else getattr(spec, "id", None)
        env_id = own.get("env_id", named)
        if not isinstance(env_id, str | None):
            raise DatasetError(
                f"{dataset} says that its environment is {env_id!r}, which is not a name; "
                "correct its metadata."
            )
        brought = storage.metadata.get(IMPORT)
        identity, declaration = None, None
        if isinstance(brought, dict):
            identity, declaration = brought.get("identity"), declaration_of(dataset, storage)
        experts = _stated(storage, id_column)
        return Described(env_id, actions, experts, bool(own), identity, declaration)


_MOST_EXPERTS = 10**8
_MINARIS = frozenset({"id", "total_steps", "seed"})
"""Keys of an episode's metadata that Minari writes."""


def _own(storage: Any) -> dict[str, Any]:
    """Returns the metadata that `save` wrote; empty for a dataset that `save` did not write."""
    own = storage.metadata.get("sotto", {})
    if not isinstance(own, dict):
        raise DatasetError("the entry 'sotto' of the dataset's metadata is not an object.")
    return own


def _stated(storage: Any, id_column: str) -> int | None:
    """Returns the number of experts that `save` or an import wrote; None for other datasets.

    Raises:
        DatasetError: the column cannot name experts: another one does, or it is Minari's own.
    """
    brought = storage.metadata.get(IMPORT)
    if id_column in _MINARIS:
        raise DatasetError(
            f"{id_column!r} is what Minari notes of an episode, and names no expert: one of many "
            "episodes would count as one of many experts; name the column with the expert's id."
        )
    if id_column != ID_COLUMN and (isinstance(brought, dict) or "experts" in _own(storage)):
        raise DatasetError(
            f"{ID_COLUMN!r} names the experts of this dataset, and {id_column!r} would protect "
            "less than an expert with all episodes; leave out --id-column."
        )
    stated = brought.get("declaration") if isinstance(brought, dict) else None
    count = stated.get("people") if isinstance(stated, dict) else _own(storage).get("experts")
    if count is None:
        return None
    if type(count) is not int or not 1 <= count <= _MOST_EXPERTS:
        raise DatasetError(
            f"the dataset's metadata say that there are {str(count)[:40]} experts; the number must "
            f"be a whole number from 1 to {_MOST_EXPERTS:,}."
        )
    return count


def _length(dataset: Path | str, episode: dict[str, Any]) -> int:
    """Returns the number of steps in an episode's metadata."""
    steps = episode["total_steps"]
    if not isinstance(steps, int | np.integer) or steps < 0:
        raise DatasetError(f"an episode of {dataset} says that it has {str(steps)[:40]} steps.")
    return int(steps)


def _sizes(dataset: Path | str, storage: Any) -> tuple[int, int, int]:
    """Returns the length of an observation, the first action and the number of actions."""
    observed, acted = storage.observation_space, storage.action_space
    if not isinstance(observed, gym.spaces.Box):
        raise DatasetError(
            f"{dataset} has observations from a {type(observed).__name__}; flatten them to a Box, "
            "in a new dataset."
        )
    if not isinstance(acted, gym.spaces.Discrete):
        raise DatasetError(
            f"{dataset} has actions from a {type(acted).__name__}; learning from experts needs "
            "Discrete ones."
        )
    return int(np.prod(observed.shape)), int(acted.start), int(acted.n)


def _ids(dataset: Path | str, metadata: list[dict[str, Any]], id_column: str) -> list[Any]:
    """Returns the id of each episode's expert."""
    without = [number for number, episode in enumerate(metadata) if id_column not in episode]
    if without:
        common = set.intersection(*(set(episode) for episode in metadata))
        raise DatasetError(
            f"{id_column!r} is not in the metadata of {len(without)} of {len(metadata)} episodes "
            f"of {dataset}, which all have {', '.join(sorted(common))}; name the column with the "
            "expert's id, or add it with storage.update_episode_metadata."
        )
    return [episode[id_column] for episode in metadata]


def _owners(
    dataset: Path | str, ids: list[Any], id_column: str, experts: int | None
) -> tuple[int, Int[np.ndarray, " episodes"]]:
    """Returns the number of experts, and the number of each episode's expert."""
    if experts is None:
        known, owners = np.unique(ids, return_inverse=True)
        return len(known), owners
    numbers = all(isinstance(one, int | np.integer) for one in ids)
    owners = np.array(ids, np.int64) if numbers else np.array([-1])
    if np.any((owners < 0) | (owners >= experts)):
        raise DatasetError(
            f"{id_column!r} of {dataset} must be a number from 0 to {experts - 1}, one for each of "
            f"the {experts} experts, so that removing an expert moves no other; number them with "
            "storage.update_episode_metadata."
        )
    return experts, owners


def _firsts(
    owners: Int[np.ndarray, " episodes"], lengths: Int[np.ndarray, " episodes"]
) -> Int[np.ndarray, " episodes"]:
    """Returns where each episode begins if they are ordered by expert, then as in the dataset."""
    order = np.argsort(owners, kind="stable")
    firsts = np.empty_like(lengths)
    firsts[order] = np.cumsum(lengths[order]) - lengths[order]
    return firsts
