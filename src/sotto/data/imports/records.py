"""Imported logs as padded arrays; the first axis is the person.

A person is the unit of privacy. Everything about one person is one row of every array, and nothing
else depends on it: the sizes of the arrays are those of the declaration.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from sotto.data.datasets import (
    ID_COLUMN,
    IMPORT,
    DatasetError,
    require_room,
    storage_of,
    understood,
)
from sotto.data.imports.declaration import LARGEST, Declaration


@dataclass(frozen=True)
class Records:
    """Logs of P people with at most T steps each. Padding is zero."""

    identity: str
    """Identity of the import, random. Another import of the same log has other places."""
    declaration: Declaration
    """The public facts: columns, bounds, number of people, horizon, origin."""
    observations: Float[np.ndarray, "P T obs"]
    """Observations before each action, float32, within `declaration.observation_space`."""
    actions: Shaped[np.ndarray, "P T *a"]
    """Numbers of categories as int32 [P, T], or real actions as float32 [P, T, a]."""
    rewards: Float[np.ndarray, "P T"]
    """Rewards, float32, within `declaration.reward_bounds`."""
    propensities: Float[np.ndarray, "P T"] | None
    """Probabilities of the actions, or densities of real ones, float32, at least
    `declaration.chance.low`; padding is 1. None if the log has none."""
    present: Bool[np.ndarray, "P T"]
    """Whether there is a step. The steps of a person are the first ones of the row."""
    ends: Bool[np.ndarray, "P T"]
    """Whether the step is the last one of an episode."""
    cut: Bool[np.ndarray, "P T"]
    """Whether the step is the last one of an episode that did not end by itself: the horizon cut
    it, or the log says so."""

    @property
    def people(self) -> int:
        """Number of places P, which is public; some may be empty."""
        return len(self.present)


def load(path: Path | str) -> Records:
    """Reads a dataset that `sotto import` wrote.

    Args:
        path: folder of the dataset, or the name of one that Minari has stored.

    Raises:
        ValueError: there is no such dataset, it was not imported, it does not fit its declaration,
            or it needs more memory than this machine has.
        ModuleNotFoundError: Minari is not installed.
    """
    with understood(path):
        storage = storage_of(path)
        declaration = declaration_of(path, storage)
        step = 4 * declaration.observation_size + 4 * len(declaration.action) + 11
        people, horizon = declaration.people, declaration.horizon
        require_room(
            path,
            people * horizon * step,
            f"{people:,} people with {horizon:,} steps each",
            "import it with fewer people or a shorter horizon",
        )
        return _filled(path, storage, declaration)


def declaration_of(path: Path | str, storage: Any) -> Declaration:
    """Returns the declaration of an imported dataset, whose spaces must be as it says.

    Args:
        path: the dataset, for messages.
        storage: its storage, from `sotto.data.datasets.storage_of`.

    Raises:
        ValueError: the dataset was not imported, or does not fit its declaration.
    """
    stored = storage.metadata.get(IMPORT)
    if not isinstance(stored, dict) or stored.get("version") != 1:
        raise DatasetError(
            f"{path} was not made by this version of sotto import; import the log again"
        )
    try:
        declaration = Declaration.of(stored.get("declaration"))
    except ValueError as error:
        raise DatasetError(
            f"{path} has a damaged declaration ({error}); import the log again"
        ) from None
    if (declaration.observation_space, declaration.action_space) != (
        storage.observation_space,
        storage.action_space,
    ):
        raise _misfit(path)
    return declaration


def _filled(path: Path | str, storage: Any, declaration: Declaration) -> Records:
    people, horizon = declaration.people, declaration.horizon
    kind = np.int32 if declaration.discrete else np.float32
    shape = (people, horizon, *declaration.action_space.shape)
    found = Records(
        str(storage.metadata[IMPORT].get("identity")),
        declaration,
        np.zeros((people, horizon, declaration.observation_size), np.float32),
        np.zeros(shape, kind),
        np.zeros((people, horizon), np.float32),
        None if declaration.chance is None else np.ones((people, horizon), np.float32),
        np.zeros((people, horizon), bool),
        np.zeros((people, horizon), bool),
        np.zeros((people, horizon), bool),
    )
    done = np.zeros(people, np.int64)
    numbers = range(storage.total_episodes)
    metadata, episodes = storage.get_episode_metadata(numbers), storage.get_episodes(numbers)
    for about, episode in zip(metadata, episodes, strict=True):
        person, steps = about.get(ID_COLUMN), len(episode["rewards"])
        if not isinstance(person, int | np.integer) or not 0 <= person < people or not steps:
            raise _misfit(path)
        place = person, slice(done[person], done[person] + steps)
        if done[person] + steps > horizon or not _fits(episode, steps, declaration):
            raise _misfit(path)
        found.observations[place] = episode["observations"][:-1]
        found.actions[place] = episode["actions"]
        found.rewards[place] = episode["rewards"]
        if found.propensities is not None:
            found.propensities[place] = episode["infos"]["propensity"]
        found.present[place] = True
        done[person] += steps
        found.ends[person, done[person] - 1] = True
        found.cut[person, done[person] - 1] = episode["truncations"][-1]
    return found


def _fits(episode: dict[str, Any], steps: int, declaration: Declaration) -> bool:
    """Returns whether an episode has the shapes and is within the bounds of the declaration."""
    low, high = declaration.reward_bounds
    observed, acted = declaration.observation_space, declaration.action_space
    seen, actions, rewards = episode["observations"], episode["actions"], episode["rewards"]
    if seen.shape != (steps + 1, *observed.shape) or actions.shape != (steps, *acted.shape):
        return False
    if declaration.chance is not None:
        chances = (episode["infos"] or {}).get("propensity", np.zeros(0))
        least = np.float32(declaration.chance.low)
        most = 1 if declaration.discrete else np.float32(LARGEST)
        if chances.shape != (steps,) or not np.all((chances >= least) & (chances <= most)):
            return False
    if declaration.discrete:
        taken = np.all((actions >= 0) & (actions < acted.n)) and actions.dtype.kind in "iu"
    else:
        taken = np.all((actions >= acted.low) & (actions <= acted.high))
    inside = np.all((seen >= observed.low) & (seen <= observed.high))
    return bool(taken and inside and np.all((rewards >= low) & (rewards <= high)))


def _misfit(path: Path | str) -> DatasetError:
    return DatasetError(f"{path} does not fit its declaration; import the log again")


def require_numbered(dataset: Path | str) -> None:
    """Refuses imported logs, in which nobody knows the number of a person.

    Raises:
        ValueError: `sotto import` made the dataset.
    """
    with understood(dataset):
        imported = IMPORT in storage_of(dataset).metadata
    if imported:
        raise ValueError(
            "sotto import puts people in secret random places and forgets their ids, so a shared "
            "budget cannot know them; leave out --budget"
        )
