"""Logs of experts as Minari datasets, with the expert's id in the metadata of each episode.

Any Minari dataset with Box observations, Discrete actions and such an id can be read; its
environment need not exist here. Episodes are kept in Minari's HDF5 format: its Arrow format looks
at every file of the dataset after every episode, which for 60,000 of them takes days.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from jaxtyping import Int

from sotto.data.trajectories import ExpertLog, checked

ID_COLUMN = "expert_id"
_DATA = "data"  # the folder in a dataset's folder where Minari wants its files


def save(
    log: ExpertLog, path: Path, *, env_id: str, actions: int, floor: float, policies: str
) -> None:
    """Writes a log as a Minari dataset, or nothing.

    `minari.load_dataset(path.name)` finds it where `path` is NAME-v0 in MINARI_DATASETS_PATH;
    `minari.MinariDataset(path / "data")` does anywhere.

    Args:
        log: whose row e is the expert with id e; empty slots are left out.
        path: folder of the dataset, which must not exist.
        env_id: what the episodes were played in.
        actions: how many there are.
        floor: probability that every action had at least.
        policies: which policies acted, in words.

    Raises:
        ValueError: there is something already, or the log's arrays do not fit together.
        ModuleNotFoundError: Minari is not installed.
    """
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    checked(log)
    path = path.resolve()  # Minari takes a relative folder to be inside of itself
    if path.exists():
        raise ValueError(f"{path} exists; remove it, or choose another name for the dataset.")
    experts, slots = np.nonzero(log.lengths)

    def episodes() -> Iterator[Any]:
        for number, (expert, slot) in enumerate(zip(experts, slots, strict=True)):
            length = log.lengths[expert, slot]
            last = np.arange(length) == length - 1
            terminations = last & log.terminated[expert, slot]
            yield EpisodeBuffer(
                id=number,
                observations=log.observations[expert, slot, : length + 1],
                actions=log.actions[expert, slot, :length].astype(np.int64),
                rewards=log.rewards[expert, slot, :length],
                terminations=terminations,
                truncations=last & ~terminations,
                infos=None,
            )

    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    storage = MinariStorage.new(
        partial / _DATA,
        observation_space=gym.spaces.Box(-np.inf, np.inf, (log.observation_size,), np.float32),
        action_space=gym.spaces.Discrete(actions),
        data_format="hdf5",
    )
    storage.update_metadata(
        {
            "dataset_id": path.name,
            "minari_version": minari.__version__,
            "algorithm_name": policies,
            "description": f"{env_id}, every action with probability at least {floor:g}; "
            f"each episode's metadata has the {ID_COLUMN} of who played it",
            "sotto": {"env_id": env_id, "floor": floor, "experts": log.experts, "cap": log.cap},
        }
    )
    storage.update_episodes(episodes())
    storage.update_episode_metadata([{ID_COLUMN: int(expert)} for expert in experts])
    partial.rename(path)


def load(dataset: Path | str, id_column: str = ID_COLUMN) -> ExpertLog:
    """A Minari dataset as a log, experts in the order of their ids.

    Args:
        dataset: the folder of a dataset, or the name of one that Minari has stored.
        id_column: where the metadata of an episode says whose it is: a number or a word.

    Returns:
        A row for each id that occurs, as many slots as the busiest expert has episodes, and a cap
        that is the longest episode. An id without episodes is no row: the number of rows is a
        function of the data, so say how many experts there are where that is to be public.

    Raises:
        ValueError: no such dataset, no such column, or other spaces than Box and Discrete.
        ModuleNotFoundError: Minari is not installed.
    """
    storage = _storage(dataset)
    size, first_action, actions = _sizes(dataset, storage)
    numbers = range(storage.total_episodes)
    metadata = list(storage.get_episode_metadata(numbers))
    lengths = np.array([int(episode["total_steps"]) for episode in metadata], np.int64)
    if not lengths.any():
        raise ValueError(f"{dataset} has no steps in it.")
    experts, slots = _places(dataset, metadata, id_column)
    shape, cap = (int(experts.max()) + 1, int(slots.max()) + 1), int(lengths.max())
    log = ExpertLog(
        observations=np.zeros((*shape, cap + 1, size), np.float32),
        actions=np.zeros((*shape, cap), np.int32),
        rewards=np.zeros((*shape, cap), np.float32),
        lengths=np.zeros(shape, np.int32),
        terminated=np.zeros(shape, bool),
    )
    log.lengths[experts, slots] = lengths
    for place, length, episode in zip(
        zip(experts, slots, strict=True), lengths, storage.get_episodes(numbers), strict=True
    ):
        if length == 0:
            continue
        chosen = np.asarray(episode["actions"]) - first_action
        if chosen.min() < 0 or chosen.max() >= actions:
            raise ValueError(f"{dataset} has an action that is none of its {actions} actions.")
        observations = np.asarray(episode["observations"]).reshape(-1, size)
        log.observations[place][: length + 1] = observations[: length + 1]
        log.actions[place][:length] = chosen
        log.rewards[place][:length] = episode["rewards"]
        log.terminated[place] = bool(episode["terminations"][-1])
    return checked(log)


def described(dataset: Path | str) -> tuple[str | None, int]:
    """Where a Minari dataset was collected, if it says so, and how many actions there are.

    Raises:
        ValueError: no such dataset, or other spaces than Box and Discrete.
    """
    storage = _storage(dataset)
    _, _, actions = _sizes(dataset, storage)
    own, spec = storage.metadata.get("sotto", {}), storage.metadata.get("env_spec")
    if isinstance(spec, str):
        spec = json.loads(spec)
    named = spec.get("id") if isinstance(spec, dict) else getattr(spec, "id", None)
    return own.get("env_id", named), actions


def _storage(dataset: Path | str) -> Any:
    import minari
    from minari.dataset.minari_storage import MinariStorage

    here = Path(dataset).resolve()
    for folder in (here / _DATA, here):
        if (folder / "metadata.json").is_file():
            return MinariStorage.read(folder)
    try:
        return minari.load_dataset(str(dataset)).storage
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"There is no Minari dataset {str(dataset)!r}: give the folder of one, or the name of "
            "one that `minari list local` shows."
        ) from error


def _sizes(dataset: Path | str, storage: Any) -> tuple[int, int, int]:
    """Numbers in an observation, the first action, how many actions there are."""
    observed, acted = storage.observation_space, storage.action_space
    if not isinstance(observed, gym.spaces.Box):
        raise ValueError(
            f"{dataset} observes a {type(observed).__name__}; flatten it to a Box, in a dataset of "
            "its own."
        )
    if not isinstance(acted, gym.spaces.Discrete):
        raise ValueError(
            f"{dataset} has actions from a {type(acted).__name__}; learning from experts needs "
            "Discrete ones."
        )
    return int(np.prod(observed.shape)), int(acted.start), int(acted.n)


def _places(
    dataset: Path | str, metadata: list[dict[str, Any]], id_column: str
) -> tuple[Int[np.ndarray, " episodes"], Int[np.ndarray, " episodes"]]:
    """The row of each episode's expert, and which of that expert's episodes it is."""
    without = [number for number, episode in enumerate(metadata) if id_column not in episode]
    if without:
        common = set.intersection(*(set(episode) for episode in metadata))
        raise ValueError(
            f"{id_column!r} is not in the metadata of {len(without)} of {len(metadata)} episodes "
            f"of {dataset}, which all have {', '.join(sorted(common))}: name the column that says "
            "whose an episode is, or add it with storage.update_episode_metadata."
        )
    _, experts = np.unique([episode[id_column] for episode in metadata], return_inverse=True)
    order = np.argsort(experts, kind="stable")
    begins = np.searchsorted(experts[order], experts[order])
    slots = np.empty_like(experts)
    slots[order] = np.arange(len(experts)) - begins
    return experts, slots
