"""Private algorithm that consists of a `Release`: a person's contribution, and the server's step.

```
class Mean(PrivateAlgorithm[MeanConfig]):
    '''Releases a running mean.'''
    name, summary, config_type = "mean", "a running mean", MeanConfig

    def release(self, config): return Release(...)       # `local`, `server` and the noise
    def initial_state(self, config, key): return ...     # before the first release
    def policies(self, states): return {"last": ...}
```

Guarantee:
    All output of a run comes from releases, so its certificate is that of
    `sotto.privacy.release.release`. Each person takes part in one release of one run.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from sotto.algorithms.base import Algorithm, Config, Progress
from sotto.keys import keys_of
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Once
from sotto.privacy.units import PopulationKind

_CHUNKS = 20
_EPISODES = 64


class PrivateAlgorithm(Algorithm[Config]):
    """Algorithm in which each update is one release, and each person takes part once.

    Its settings have a `seed`, and `target_epsilon` and `delta`, which are the ledger's budget.
    `local` simulates the people from its key. A resumed training opens a new stream with fresh
    noise, for people who have not taken part.
    """

    charged = True
    _last: tuple[Any, Release] | None = None

    @abstractmethod
    def release(self, config: Config) -> Release:
        """Returns the release that makes every update. Its `horizon` is the number of updates."""

    @abstractmethod
    def initial_state(self, config: Config, key: PRNGKeyArray) -> PyTree:
        """Returns the public state of one run before the first release."""

    def _made(self, config: Config) -> Release:
        """Returns the release of these settings, made once: its noise may be calibrated."""
        last = self._last  # read once: another thread may replace it
        if last is None or last[0] != config:
            self._last = last = config, self.release(config)
        return last[1]

    def on_devices(self, config: Config, horizon: int) -> tuple[Release, Any]:
        """Returns the release of one update, whose people `local` simulates."""
        return replace(self._made(config), horizon=horizon), ()

    def num_updates(self, config: Config) -> int:
        """Returns the number of updates in the whole training: the release's horizon."""
        return self._made(config).horizon

    def steps_per_update(self, config: Config) -> int:
        """Returns the largest number of environment steps behind one update: one per person."""
        return self._made(config).slots

    def population(self, config: Config) -> PopulationKind:
        """Returns what the release says of its people."""
        return self._made(config).population

    def create_ledger(self, config: Config, where: Path | str, run_id: str) -> Ledger:
        """Creates the ledger of a new run, with `target_epsilon` and `delta` as its budget."""
        wanted: Any = config
        budget = Budget(epsilon=wanted.target_epsilon, delta=wanted.delta)
        return Ledger.create(where, run_id, unit=self._made(config).unit, budget=budget)

    def initial_states(self, config: Config, seeds: Sequence[int]) -> PyTree:
        """Returns the state of every run before the first release, leaves of shape [runs, ...]."""
        return jax.vmap(lambda key: self.initial_state(config, key))(keys_of(seeds, 0))

    def train(
        self,
        config: Config,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Makes the remaining releases, and yields after each chunk.

        Raises:
            PrivacyError: the budget does not cover them.
            ValueError: people come back or are drawn. Such an algorithm implements `train` itself.
        """
        del folders
        release = self._made(config)
        if not isinstance(release.participation, Once):
            raise ValueError(
                f"the people of {self.name} take part once; implement Algorithm.train for others"
            )
        left = release.horizon - done
        chunk = math.ceil(release.horizon / _CHUNKS)
        keys = jax.vmap(lambda key: jax.random.fold_in(key, done))(keys_of(seeds, 1))
        first = np.array([ledger.next_person for ledger in ledgers])
        stream = replace(release, horizon=left).open(ledgers, states, chunk=min(chunk, left))
        for begin in range(0, left, chunk):
            count = min(chunk, left - begin)
            order = np.arange(begin * release.slots, (begin + count) * release.slots)
            people = first[:, None, None] + order.reshape(1, count, release.slots)
            states, log, simulated = stream.run(states, keys, people)
            updates = done + begin + count
            yield Progress(
                updates,
                states,
                _columns(log),
                self.scores(config, states, updates) if release.population == "simulated" else {},
                {n: x.mean(axis=2) for n, x in _columns(simulated).items()},
            )

    def scores(self, config: Config, states: PyTree, updates: int) -> dict[str, np.ndarray]:
        """Returns the mean return of the default policy on simulated people, for each run."""
        return {self.default_policy: self.mean_return(config, states, updates, _EPISODES)}


def _columns(found: Any) -> dict[str, np.ndarray]:
    """Returns the log of `server` or `local`, if it is a dictionary of arrays."""
    return {n: np.asarray(x) for n, x in found.items()} if isinstance(found, dict) else {}
