"""Minari datasets of episodes, each with the number of its expert or person in its metadata.

`write` uses Minari's HDF5 format, because writing 60,000 episodes in its Arrow format takes days:
it looks at every file of the dataset after every episode.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from jaxtyping import Float

from sotto.files import require_regular

ID_COLUMN = "expert_id"
IMPORT = "sotto_import"
"""Key in the metadata of a dataset under which `sotto import` keeps the declaration."""
OWN_ORDER = "own_order"
"""Key in that entry: the order of a person's rows depends on that person's rows alone."""
_DATA = "data"  # the folder inside a dataset's folder in which Minari keeps its files


class DatasetError(ValueError):
    """Error about a dataset that cannot be used."""


@contextmanager
def understood(dataset: Path | str) -> Iterator[None]:
    """Turns whatever Minari raises about damaged files into one sentence, a `DatasetError`."""
    try:
        yield
    except (DatasetError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise DatasetError(
            f"{dataset} cannot be read as a Minari dataset because its files are damaged "
            f"({type(error).__name__}); get it again"
        ) from error


def require_new(path: Path) -> None:
    """Refuses the folder of a new dataset if something is there.

    Raises:
        ValueError: it exists.
    """
    if path.exists():
        raise ValueError(f"{path} exists; remove it, or choose another name for the dataset.")


class Episode(NamedTuple):
    """One episode of n steps, and the number of the expert or person whose it is."""

    owner: int
    observations: Float[np.ndarray, "steps1 obs"]
    actions: Any
    """Numbers as int64 [n], or real actions as float32 [n, a]."""
    rewards: Float[np.ndarray, " steps"]
    terminated: bool
    """Whether the last step ended the episode; otherwise it was truncated."""
    infos: dict[str, Any] | None
    """Further arrays with an entry for each step."""


def write(
    folder: Path,
    episodes: Iterable[Episode],
    *,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    metadata: dict[str, Any],
) -> None:
    """Writes episodes, whose metadata get their owners, into an empty folder as a Minari dataset.

    Raises:
        ModuleNotFoundError: Minari is not installed.
    """
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    owners: list[int] = []

    def buffers() -> Iterator[Any]:
        for number, one in enumerate(episodes):
            owners.append(one.owner)
            last = np.arange(len(one.rewards)) == len(one.rewards) - 1
            yield EpisodeBuffer(
                id=number,
                observations=one.observations,
                actions=one.actions,
                rewards=one.rewards,
                terminations=last & one.terminated,
                truncations=last & (not one.terminated),
                infos=one.infos,
            )

    storage = MinariStorage.new(
        folder / _DATA,
        observation_space=observation_space,
        action_space=action_space,
        data_format="hdf5",
    )
    storage.update_metadata({"minari_version": minari.__version__, **metadata})
    storage.update_episodes(buffers())
    storage.update_episode_metadata([{ID_COLUMN: owner} for owner in owners])


def storage_of(dataset: Path | str) -> Any:
    """Returns Minari's storage of the dataset in a folder, or of the name that Minari has stored.

    Raises:
        DatasetError: there is no such dataset, or its folder holds something else than files; or
            an earlier version imported it from a database.
    """
    storage = _storage_of(dataset)
    imported = storage.metadata.get(IMPORT)
    from_database = isinstance(imported, dict) and imported.get("kind") == "database"
    if from_database and imported.get(OWN_ORDER) is not True:
        raise DatasetError(
            f"{dataset} was imported from a database by an earlier version, in which the order of "
            "a person's rows depended on other people; import the log again"
        )
    return storage


def _storage_of(dataset: Path | str) -> Any:
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
            f"There is no Minari dataset {str(dataset)!r}: give the folder of one, which `sotto "
            "import` makes from a log, or the name of one that `minari list local` shows."
        ) from error


def require_room(dataset: Path | str, needed: int, contents: str, remedy: str) -> None:
    """Refuses arrays of so many bytes if this machine has less memory, before they are made.

    Raises:
        DatasetError: it has less; the message names contents and remedy.
    """
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise DatasetError(
            f"{dataset} needs {needed / 2**30:,.0f} GiB of memory for {contents}, and there are "
            f"{there / 2**30:,.0f}; {remedy}."
        )
