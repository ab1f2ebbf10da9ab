"""Distributed noise: each device adds a share of it, and the server sees only the noisy sum.

```
device: contribution(state, unit, key)   local, clip, round, add a share of noise, modulo 2^bits
server: charge(persons), release(sum)    ledger, decode, divide, `server` of the release
```

Between the two stands a protocol that adds the devices' integers modulo 2^bits and shows the
server nothing but the sum (`sotto.federated`). A release is opened only if as many devices as
promised are in its sum, because those that drop out take their share of the noise along.

Guarantee:
    The observer is a server that follows the protocol and sees every sum. For one person under the
    stated adjacency, the stream is Gaussian differentially private with the noise multiplier of
    the statement, up to its `sampler_delta`. At most `colluding` of all devices that are asked in
    a round may tell the server what they know, or add no noise. So `promised - colluding` in every
    opened sum add a share that it does not know (docs/privacy.md, Theorems D1 to D3). Each device
    bounds its own person's contribution, so a device that does not bound it weakens nobody else's
    protection.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Int32, PRNGKeyArray, PyTree, UInt32

from sotto.privacy import settings
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.mechanisms import discrete_gaussian, gaussian
from sotto.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.release.declaration import ReleaseDeclaration, State, noise_scales
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Leaves, Traced, unflatten
from sotto.privacy.settings import COMPILER_OPTIONS
from sotto.privacy.statements import NoiseShares, Once, ShareOfNoise, StreamStatement
from sotto.trees import leaves_of, like

_DEVIATIONS = 6
"""Standard deviations of the noise for which a sum leaves room."""


@dataclass(frozen=True)
class Promise:
    """The public terms of sums with noise in shares.

    Attributes:
        promised: least number of devices in a sum that is opened. Noise is scaled for it.
        colluding: most of all devices that are asked in a round, in the sum or not, that may tell
            the server everything they know, or add no noise.
        bits: of each number of a sum, 8 to 32.
    """

    promised: int
    colluding: int = 0
    bits: int = 16

    def of(self, release: ReleaseDeclaration, dimensions: dict[str, int]) -> NoiseShares:
        """Returns the grids, and the variance of one device's share in each part.

        A sum has room for six standard deviations of the noise of all slots, and for everybody's
        contribution in one direction with coordinates of equal size. A sum that does not fit wraps
        around: a bad step of learning, which says no more about anybody. A grid is not finer than
        half the largest deviation of a share allows.
        """
        secret = self.promised - self.colluding
        if secret < 1:
            raise ValueError("more devices are promised than collude")
        scales, half, parts = noise_scales(release), 2.0 ** (self.bits - 1), {}
        for name, part in release.parts.items():
            noise = _DEVIATIONS * scales[name] * math.sqrt(release.slots / secret)
            room = noise + release.slots * part.clip_norm / math.sqrt(dimensions[name])
            finest = 2 * scales[name] / math.sqrt(secret) / discrete_gaussian.LARGEST_DEVIATION
            grid = max(room / half, finest)
            steps = part.clip_norm / grid
            variance = discrete_gaussian.least_variance(part.noise_multiplier, secret, steps)
            if steps < math.sqrt(dimensions[name]):
                raise ValueError(
                    f"{self.bits} bits leave {steps:.0f} steps for the clip norm of {name!r}, "
                    f"fewer than the root of its {dimensions[name]} numbers, so most contributions "
                    "would be rounded to zero; use more bits or fewer slots"
                )
            parts[name] = ShareOfNoise(grid=grid, variance=variance)
        return NoiseShares(
            bits=self.bits,
            slots=release.slots,
            promised=self.promised,
            colluding=self.colluding,
            parts=parts,
        )


class SharedRelease:
    """A release whose noise is made in shares by the people's devices.

    Args:
        release: the release. People take part once, with independent noise.
        promise: how many devices are in every sum.
        state: public state of the run, without a leading axis; shapes only are read.
        unit: one person's data; () where `local` simulates the person. Shapes only are read.
        noise_seed: for tests only; it voids the certificate.

    Raises:
        ImpureFunction: `local` or `server` could carry data past the door.
        ValueError: the release needs what shares of noise cannot give.
    """

    def __init__(
        self,
        release: Release,
        promise: Promise,
        state: State,
        unit: PyTree[Any] = (),
        noise_seed: int | None = None,
    ) -> None:
        _require_shareable(release)
        self.release, self._generators = release, GeneratorSource(noise_seed)
        self._traced: Traced = release.traced(*jax.eval_shape(lambda s, u: (s, u), state, unit))
        if self._traced.has_factored:
            raise ValueError(
                "a device adds noise to whole matrices; return them, not their factors"
            )
        dimensions = {
            name: sum(leaf.size for leaf in jax.tree.leaves(self._traced.parts[name]))
            for name in release.parts
        }
        self.shares = promise.of(release, dimensions)
        self.statement = self._statement(dimensions)
        self._noises = {name: DiscreteGaussian(one.variance) for name, one in self._parts}
        # Two programs, so that the norm is that of the numbers which are sent (see
        # `gaussian.materialised`).
        self._computed = jax.jit(self._local, compiler_options=COMPILER_OPTIONS)
        self._bounded = jax.jit(self._on_grid, compiler_options=COMPILER_OPTIONS)
        self._server = jax.jit(self._published, compiler_options=COMPILER_OPTIONS)

    @property
    def size(self) -> int:
        """Length of the vector of integers."""
        return sum(self.statement.dimensions.values())

    @property
    def bits(self) -> int:
        """Number of bits of each integer."""
        return self.shares.bits

    @property
    def _parts(self) -> list[tuple[str, ShareOfNoise]]:
        return list(self.shares.parts.items())

    def contribution(
        self, state: State, unit: PyTree[Any], key: PRNGKeyArray
    ) -> UInt32[np.ndarray, " size"]:
        """Returns one device's integers: its person's contribution and its share of the noise.

        Args:
            state: public state, without a leading axis.
            unit: the person's data.
            key: typed key of this person and release, never used for noise.

        Raises:
            PrivacyError: a setting of JAX or XLA is not one that was reviewed.
        """
        settings.in_force()  # a device has no ledger that would check them
        computed = self._computed(leaves_of(state), leaves_of(unit), key)
        bounded = np.asarray(self._bounded(computed), np.int64)
        generator = self._generators.next()
        noises = [
            self._noises[name].draw(generator, self.statement.dimensions[name])
            for name, _ in self._parts
        ]
        noisy = np.asarray(bounded + np.concatenate(noises), np.int64)
        return np.asarray(noisy % 2**self.bits, np.uint32)

    def open(self, ledger: Ledger, state: State, resume: bool = False) -> "SharedStream":
        """Writes the statement into the ledger, or goes on with an interrupted stream.

        Args:
            ledger: of the run.
            state: public state, without a leading axis.
            resume: go on with the ledger's stream; releases that were charged and lost stay lost.

        Raises:
            PrivacyError: the budget does not cover the stream, or the ledger is another one's.
        """
        largest, secret = discrete_gaussian.LARGEST_EPSILON, "operating-system"
        if ledger.budget.epsilon > largest and self.statement.entropy == secret:
            raise BudgetExceeded(
                f"noise in shares is accounted up to epsilon {largest:g}, and the budget has "
                f"{ledger.budget.epsilon:g}; use a smaller one"
            )
        charged = ledger.resume_stream if resume else ledger.open_stream
        return SharedStream(self, charged(self.statement), state)

    def published(self, state: State, total: UInt32[np.ndarray, " size"]) -> tuple[State, Any]:
        """Returns the public state and the log after a sum: post-processing."""
        half = 2 ** (self.bits - 1)
        signed = (total.astype(np.int64) + half) % 2**self.bits - half
        after, log = self._server(leaves_of(state), jnp.asarray(signed, jnp.int32))
        return like(self._traced.state, after), jax.tree.unflatten(self._traced.log, log)

    def _local(self, state: Leaves, unit: Leaves, key: PRNGKeyArray) -> dict[str, Leaves]:
        parts, _ = self._traced.local(state, unit, key)
        return {name: parts[name] for name in self.release.parts}

    def _on_grid(self, parts: dict[str, Leaves]) -> Int32[Array, " size"]:
        clip_norms = {name: part.clip_norm for name, part in self.release.parts.items()}
        bounded = gaussian.bound_contribution(parts, clip_norms, self.release.clipping)
        return jnp.concatenate(
            [gaussian.to_grid(bounded[n], clip_norms[n], one.grid) for n, one in self._parts]
        )

    def _published(self, state: Leaves, total: Int32[Array, " size"]) -> tuple[Leaves, Leaves]:
        stops = np.cumsum([self.statement.dimensions[name] for name, _ in self._parts])[:-1]
        released = {}
        for (name, one), sums in zip(self._parts, jnp.split(total, stops), strict=True):
            decode = functools.partial(
                gaussian.from_grid, spacing=one.grid, divisor=self.release.divisor
            )
            released[name] = jax.tree.map(decode, unflatten(sums, self._traced.parts[name]))
        return self._traced.server(state, released)

    def _statement(self, dimensions: dict[str, int]) -> StreamStatement:
        numbers = self.release.horizon * sum(dimensions.values())
        stated = self.release.statement(dimensions, self._generators.entropy)
        delta = discrete_gaussian.shares_delta(self.release.slots, numbers)
        shared = stated.model_copy(update={"sampler_delta": delta, "shares": self.shares})
        return StreamStatement.model_validate(shared.model_dump())


class SharedStream:
    """The server's half of an open stream.

    Attributes:
        state: public state after the releases so far.
    """

    def __init__(self, shared: SharedRelease, stream: LedgerStream, state: State) -> None:
        self.state, self._shared, self._ledger_stream = state, shared, stream
        self._charged = False

    @property
    def releases(self) -> int:
        """Number of releases that were charged."""
        return self._ledger_stream.releases

    def refused(self, persons: Sequence[int]) -> list[int]:
        """Returns those persons whom the ledger would refuse in the next release.

        Nobody is charged: who is asked may drop out before the sum, and then nothing is shown.
        """
        return self._ledger_stream.refused(persons)

    def charge(self, persons: Int[np.ndarray, " devices"]) -> None:
        """Charges a release, before its sum is opened.

        Args:
            persons: enrolment numbers of the people whose masked contributions are in the sum.

        Raises:
            TooFewDevices: fewer than promised. Nothing was charged, and the sum must stay closed.
            PrivacyError: the ledger refuses, or cannot be written. The sum must stay closed.
        """
        self._charged = False  # the sum before was lost
        self._ledger_stream.charge(self.releases, 1, [np.asarray(persons)])
        self._charged = True

    def release(self, total: UInt32[np.ndarray, " size"]) -> tuple[State, Any]:
        """Makes the charged release from the opened sum; returns the public state and the log.

        Raises:
            ValueError: no release was charged for this sum, or it has another length.
        """
        if not self._charged:
            raise ValueError("charge the release before its sum is opened")
        if total.shape != (self._shared.size,):
            raise ValueError(f"the sum has {total.shape} numbers, not ({self._shared.size},)")
        self._charged = False
        self.state, log = self._shared.published(self.state, total)
        return self.state, log


def _require_shareable(release: Release) -> None:
    """Refuses releases that noise in shares cannot make."""
    if not isinstance(release.participation, Once):
        raise ValueError("devices add noise for people who take part once, not for returning ones")
    if release.correlation.kind != "independent":
        raise ValueError(
            "devices that are there for one release cannot correlate its noise with that of "
            "others; use independent noise"
        )
    if release.unprotected or release.gaps or release.world is not None:
        raise ValueError("every part of a device's contribution is clipped and has noise")
