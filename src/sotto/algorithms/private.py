"""An algorithm that is a release: what one person contributes, and what is made of the sum.

```
class Mean(PrivateAlgorithm[MeanConfig]):
    '''Releases a running mean.'''
    name, summary, config_type = "mean", "a running mean", MeanConfig

    def release(self, config): return Release(...)       # `local` and `server`, and the noise
    def initial_state(self, config, key): return ...     # before anybody took part
    def policies(self, states): return {"last": ...}
```

Guarantee:
    Whatever leaves has passed the door, so that the certificate of a run is that of
    `sotto.privacy.release.release`: each person takes part in one release of one run.
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

_CHUNKS = 20
_EPISODES = 64


class PrivateAlgorithm(Algorithm[Config]):
    """An algorithm whose every update is one release about people who take part once.

    Its settings have `target_epsilon` and `delta`, which are the ledger's budget, and a `seed`. The
    people are simulated by `local` from its key. A resumed training opens a new stream with fresh
    noise, for people who have not taken part.
    """

    _last: tuple[Any, Release] | None = None

    @abstractmethod
    def release(self, config: Config) -> Release:
        """The release of every update; its `horizon` is the number of updates."""

    @abstractmethod
    def initial_state(self, config: Config, key: PRNGKeyArray) -> PyTree:
        """The public state of one run before the first release."""

    def _made(self, config: Config) -> Release:
        """Returns the release of these settings, made once: its noise may be calibrated."""
        if self._last is None or self._last[0] != config:
            self._last = config, self.release(config)
        return self._last[1]

    def num_updates(self, config: Config) -> int:
        """Updates of the whole training: the release's horizon."""
        return self._made(config).horizon

    def steps_per_update(self, config: Config) -> int:
        """Most environment steps behind one update: here, one for each person."""
        return self._made(config).slots

    def has_ledger(self, config: Config) -> bool:
        """Every run of a private algorithm is charged."""
        del config
        return True

    def create_ledger(self, config: Config, where: Path | str, run_id: str) -> Ledger:
        """The ledger of a new run, with the budget of `target_epsilon` and `delta`."""
        wanted: Any = config
        budget = Budget(epsilon=wanted.target_epsilon, delta=wanted.delta)
        return Ledger.create(where, run_id, unit=self._made(config).unit, budget=budget)

    def initial_states(self, config: Config, seeds: Sequence[int]) -> PyTree:
        """The state of every run before the first release, leaves of shape [runs, ...]."""
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
        """Makes the releases that are left, a chunk at a time.

        Raises:
            PrivacyError: the budget does not cover them.
            ValueError: people return or are drawn, which needs an algorithm that says who comes.
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
        """Mean return of the default policy for each run; asked of simulated people only."""
        return {self.default_policy: self.mean_return(config, states, updates, _EPISODES)}


def _columns(found: Any) -> dict[str, np.ndarray]:
    """What `server` or `local` logged, if it is a dictionary of arrays."""
    return {n: np.asarray(x) for n, x in found.items()} if isinstance(found, dict) else {}
