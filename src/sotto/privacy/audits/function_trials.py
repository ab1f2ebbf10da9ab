"""A `FunctionRelease` as a mechanism to audit: the real door, many runs at once."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.release.functions import FunctionRelease

_BUDGET = Budget(epsilon=float("inf"), delta=1e-9)  # refuses nothing that an audit has to do with

NextValues = Callable[
    [bool, Sequence[Float[np.ndarray, "*nodes actions samples"]]],
    Float[np.ndarray, "..."],
]


@dataclass(frozen=True)
class FunctionTrials:
    """Many runs of one release, as one release of many values, each with noise of its own.

    The noise comes from the real sampler with a fixed seed, so that an audit can be repeated.

    Attributes:
        release: of one run, with a stated size.
        shape: of one run's values, [*nodes, actions].
        values: `values(present, released)`: what is released next on one of the two neighbouring
            inputs, given what every run has released so far, [*nodes, actions, samples] each; or
            without the last axis, where it is the same for all runs.
        axes: positions of the nodes, under a kernel.
    """

    release: FunctionRelease
    shape: tuple[int, ...]
    values: NextValues
    axes: tuple[Float[np.ndarray, " _"], ...] | None = None

    def __call__(self, present: bool, seed: int, samples: int) -> Float[np.ndarray, "samples d"]:
        """Everything that independent runs released; see `audit.Mechanism`."""
        many = replace(self.release, size=int(np.prod(self.shape)) * samples)
        released: list[np.ndarray] = []
        with tempfile.TemporaryDirectory() as folder:
            stream = many.open(self._ledger(folder), noise_seed=seed)
            for _ in range(many.horizon):
                values = self.values(present, released)
                if values.ndim == len(self.shape):
                    values = np.broadcast_to(values[..., None], (*self.shape, samples))
                flat = values.reshape(*self.shape[:-1], -1)
                noisy = stream.release(flat, self.axes).values
                released.append(noisy.reshape(*self.shape, samples))
        return np.concatenate([one.reshape(-1, samples) for one in released]).T

    def certified_epsilon(self, delta: float) -> float:
        """The epsilon that the ledger gives for one run with noise from the operating system."""
        with tempfile.TemporaryDirectory() as folder:
            ledger = self._ledger(folder)
            stream = self.release.open(ledger)
            for _ in range(self.release.horizon):
                stream.release(np.zeros(self.shape), self.axes)
            return ledger.spent().epsilon_at(delta)

    def _ledger(self, folder: str) -> Ledger:
        return Ledger.create(Path(folder) / "ledger", unit=self.release.unit, budget=_BUDGET)
