"""A `FunctionRelease` as a mechanism to audit: many runs of the real door at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from sotto.privacy.audits.audit import temporary_ledger
from sotto.privacy.release.functions import FunctionRelease

NextValues = Callable[
    [bool, Sequence[Float[np.ndarray, "*nodes actions samples"]]],
    Float[np.ndarray, "..."],
]


@dataclass(frozen=True)
class FunctionTrials:
    """Many runs of one release, as one release of many values with independent noise.

    The real sampler draws the noise from a fixed seed, so that an audit can be repeated.

    Attributes:
        release: release of one run, with a stated size.
        shape: shape of one run's values, [*nodes, actions].
        values: function of `present` and the released values so far, [*nodes, actions, samples]
            each. It gives the next values on one of the two inputs, without the last axis if they
            are the same for all runs.
        axes: positions of the nodes, for noise with a kernel.
    """

    release: FunctionRelease
    shape: tuple[int, ...]
    values: NextValues
    axes: tuple[Float[np.ndarray, " _"], ...] | None = None

    def __call__(self, present: bool, seed: int, samples: int) -> Float[np.ndarray, "samples d"]:
        """Returns everything that independent runs released; see `audit.Mechanism`."""
        alone = replace(self.release.sensitivity, size=None, actions=None)  # of each run
        size = int(np.prod(self.shape)) * samples
        many = replace(self.release, size=size, sensitivity=alone)
        released: list[np.ndarray] = []
        with temporary_ledger(many.unit) as ledger:
            stream = many.open(ledger, noise_seed=seed)
            for _ in range(many.horizon):
                values = self.values(present, released)
                if values.ndim == len(self.shape):
                    values = np.broadcast_to(values[..., None], (*self.shape, samples))
                flat = values.reshape(*self.shape[:-1], -1)
                noisy = stream.release(flat, self.axes).values
                released.append(noisy.reshape(*self.shape, samples))
        return np.concatenate([one.reshape(-1, samples) for one in released]).T

    def certified_epsilon(self, delta: float) -> float:
        """Returns the ledger's epsilon for one run with noise from the operating system."""
        with temporary_ledger(self.release.unit) as ledger:
            stream = self.release.open(ledger)
            for _ in range(self.release.horizon):
                stream.release(np.zeros(self.shape), self.axes)
            return ledger.spent().epsilon_at(delta)
