"""Logs of experts as Minari datasets, with the expert's id in the metadata of each episode.

Any Minari dataset with Box observations, Discrete actions and such an id can be read; its
environment need not exist here. Episodes are kept in Minari's HDF5 format: its Arrow format looks
at every file of the dataset after every episode, which for 60,000 of them takes days.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from jaxtyping import Int

from sotto.data.trajectories import ExpertLog, checked
from sotto.regular import require_regular

ID_COLUMN = "expert_id"
_DATA = "data"  # the folder in a dataset's folder where Minari wants its files


class DatasetError(ValueError):
    """A dataset is not what it has to be."""


@contextmanager
def _understood(dataset: Path | str) -> Iterator[None]:
    """Says in a sentence that files are damaged, whatever Minari raises over them."""
    try:
        yield
    except (DatasetError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise DatasetError(
            f"{dataset} cannot be read as a Minari dataset, its files are damaged "
            f"({type(error).__name__}); get it again"
        ) from error


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


def load(dataset: Path | str, id_column: str = ID_COLUMN, experts: int | None = None) -> ExpertLog:
    """A Minari dataset as a log.

    Args:
        dataset: the folder of a dataset, or the name of one that Minari has stored.
        id_column: where the metadata of an episode says whose it is.
        experts: how many there are, a public number: ids are then below it, and an expert's id is
            their row. None: what the dataset itself says, as those of `save` do, and otherwise a
            row for each id that occurs, in the order of ids, which may be words then. How many
            that are is a function of the data.

    Returns:
        As many slots as the busiest expert has episodes, and a cap that is the longest episode.
        Where it is known how many experts there are, taking one expert's episodes away empties
        their row and leaves all others as they are. An episode is left out, and nothing raises,
        where it has an action that is none or not as many observations as its steps need.

    Raises:
        ValueError: no such dataset, no such column, other spaces than Box and Discrete, an id that
            is not below the number of experts, or no steps at all.
        ModuleNotFoundError: Minari is not installed.
    """
    with _understood(dataset):
        return _load(dataset, id_column, experts)


def _load(dataset: Path | str, id_column: str, experts: int | None) -> ExpertLog:
    storage = _storage(dataset)
    size, first_action, actions = _sizes(dataset, storage)
    if experts is None:
        experts = _stated(storage, id_column)
    numbers = range(storage.total_episodes)
    metadata = list(storage.get_episode_metadata(numbers))
    lengths = np.array([_length(dataset, episode) for episode in metadata], np.int64)
    ids = _ids(dataset, metadata, id_column)
    count, rows = _rows(dataset, ids, id_column, experts)
    slots = _slots(rows)
    shape, cap = (count, int(slots.max(initial=0)) + 1), max(1, int(lengths.max(initial=0)))
    _require_room(dataset, count, shape[1], cap, size)
    log = ExpertLog(
        observations=np.zeros((*shape, cap + 1, size), np.float32),
        actions=np.zeros((*shape, cap), np.int32),
        rewards=np.zeros((*shape, cap), np.float32),
        lengths=np.zeros(shape, np.int32),
        terminated=np.zeros(shape, bool),
    )
    for place, length, episode in zip(
        zip(rows, slots, strict=True), lengths, storage.get_episodes(numbers), strict=True
    ):
        chosen = np.asarray(episode["actions"])
        observations = np.asarray(episode["observations"]).reshape(-1, size)
        known = (chosen >= first_action) & (chosen < first_action + actions)
        if not len(chosen) == len(episode["rewards"]) == length > 0 or not np.all(known):
            continue
        if len(observations) <= length:
            continue
        log.lengths[place] = length
        with np.errstate(over="ignore"):  # what float32 has not is this expert's own affair
            log.observations[place][: length + 1] = observations[: length + 1]
            log.rewards[place][:length] = episode["rewards"]
        log.actions[place][:length] = chosen - first_action
        log.terminated[place] = bool(episode["terminations"][-1])
    if not log.lengths.any():
        raise DatasetError(f"{dataset} has no steps in it.")
    return checked(log)


class Described(NamedTuple):
    """What a dataset says of itself."""

    env_id: str | None
    """Where it was collected."""
    actions: int
    """How many there are."""
    experts: int | None
    """How many there are, whether they have episodes or not."""
    simulated: bool
    """Whether `save` wrote it: its experts are then those of `sotto experts train`."""


def described(dataset: Path | str, id_column: str = ID_COLUMN) -> Described:
    """What a Minari dataset says of itself, without a look at its episodes.

    Args:
        dataset: the folder of a dataset, or the name of one that Minari has stored.
        id_column: where the metadata of an episode says whose it is.

    Raises:
        ValueError: no such dataset, or other spaces than Box and Discrete.
    """
    with _understood(dataset):
        storage = _storage(dataset)
        _, _, actions = _sizes(dataset, storage)
        own, spec = _own(storage), storage.metadata.get("env_spec")
        if isinstance(spec, str):
            spec = json.loads(spec)
        named = spec.get("id") if isinstance(spec, dict) else getattr(spec, "id", None)
        env_id = own.get("env_id", named)
        if not isinstance(env_id, str | None):
            raise DatasetError(f"{dataset} says that its environment is {env_id!r}, which is none.")
        return Described(env_id, actions, _stated(storage, id_column), bool(own))


_MOST_EXPERTS = 10**8


def _own(storage: Any) -> dict[str, Any]:
    """What `save` wrote down; empty for a dataset that somebody else made."""
    own = storage.metadata.get("sotto", {})
    if not isinstance(own, dict):
        raise DatasetError("what the dataset's metadata say under 'sotto' is no object.")
    return own


def _stated(storage: Any, id_column: str) -> int | None:
    """How many experts there are, as `save` wrote it down; of other columns it says nothing."""
    count = _own(storage).get("experts") if id_column == ID_COLUMN else None
    if count is None:
        return None
    if type(count) is not int or not 1 <= count <= _MOST_EXPERTS:
        raise DatasetError(
            f"the dataset's metadata say that there are {str(count)[:40]} experts; it must be a "
            f"whole number from 1 to {_MOST_EXPERTS:,}."
        )
    return count


def _length(dataset: Path | str, episode: dict[str, Any]) -> int:
    """Steps of an episode, as its metadata say."""
    steps = episode["total_steps"]
    if not isinstance(steps, int | np.integer) or steps < 0:
        raise DatasetError(f"an episode of {dataset} says that it has {str(steps)[:40]} steps.")
    return int(steps)


def _require_room(dataset: Path | str, experts: int, slots: int, cap: int, size: int) -> None:
    """Refuses what does not fit into this machine's memory, before it is asked for."""
    step = 4 * size + 8  # an observation, an action and a reward
    needed = experts * slots * (cap + 1) * step
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise DatasetError(
            f"{dataset} needs {needed / 2**30:,.0f} GiB of memory for {experts:,} experts with "
            f"{slots:,} episodes of {cap:,} steps each, and there are {there / 2**30:,.0f}; make "
            "it smaller, or state fewer experts."
        )


def _storage(dataset: Path | str) -> Any:
    import minari
    from minari.dataset.minari_storage import MinariStorage

    here = Path(dataset).resolve()
    for folder in (here / _DATA, here):
        if (folder / "metadata.json").is_file():
            try:
                require_regular(folder)
            except ValueError as error:
                raise DatasetError(str(error)) from error
            return MinariStorage.read(folder)
    try:
        return minari.load_dataset(str(dataset)).storage
    except (FileNotFoundError, ValueError) as error:
        raise DatasetError(
            f"There is no Minari dataset {str(dataset)!r}: give the folder of one, or the name of "
            "one that `minari list local` shows."
        ) from error


def _sizes(dataset: Path | str, storage: Any) -> tuple[int, int, int]:
    """Numbers in an observation, the first action, how many actions there are."""
    observed, acted = storage.observation_space, storage.action_space
    if not isinstance(observed, gym.spaces.Box):
        raise DatasetError(
            f"{dataset} observes a {type(observed).__name__}; flatten it to a Box, in a dataset of "
            "its own."
        )
    if not isinstance(acted, gym.spaces.Discrete):
        raise DatasetError(
            f"{dataset} has actions from a {type(acted).__name__}; learning from experts needs "
            "Discrete ones."
        )
    return int(np.prod(observed.shape)), int(acted.start), int(acted.n)


def _ids(dataset: Path | str, metadata: list[dict[str, Any]], id_column: str) -> list[Any]:
    """Whose each episode is."""
    without = [number for number, episode in enumerate(metadata) if id_column not in episode]
    if without:
        common = set.intersection(*(set(episode) for episode in metadata))
        raise DatasetError(
            f"{id_column!r} is not in the metadata of {len(without)} of {len(metadata)} episodes "
            f"of {dataset}, which all have {', '.join(sorted(common))}: name the column that says "
            "whose an episode is, or add it with storage.update_episode_metadata."
        )
    return [episode[id_column] for episode in metadata]


def _rows(
    dataset: Path | str, ids: list[Any], id_column: str, experts: int | None
) -> tuple[int, Int[np.ndarray, " episodes"]]:
    """How many experts there are, and the row of each episode's."""
    if experts is None:
        known, rows = np.unique(ids, return_inverse=True)
        return len(known), rows
    numbers = all(isinstance(one, int | np.integer) for one in ids)
    rows = np.array(ids, np.int64) if numbers else np.array([-1])
    if np.any((rows < 0) | (rows >= experts)):
        raise DatasetError(
            f"{id_column!r} of {dataset} must be a number from 0 to {experts - 1}, one for each of "
            f"the {experts} experts: an expert without episodes then leaves the others where they "
            "are; number them with storage.update_episode_metadata."
        )
    return experts, rows


def _slots(rows: Int[np.ndarray, " episodes"]) -> Int[np.ndarray, " episodes"]:
    """Which of their expert's episodes each one is."""
    order = np.argsort(rows, kind="stable")
    begins = np.searchsorted(rows[order], rows[order])
    slots = np.empty_like(rows)
    slots[order] = np.arange(len(rows)) - begins
    return slots
