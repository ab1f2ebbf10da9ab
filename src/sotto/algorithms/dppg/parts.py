"""Extra parts of a DPPG release, next to the updates of policy and critic.

Each extra part is one vector per user, with a bounded norm. It is clipped, averaged and noised in
the same release as the policy's update. Together the parts are one event, with
1/z^2 = sum over p of 1/z_p^2. The server's use of a part is post-processing, and its result is in
`DPPGState.extras` under the part's name.

Guarantee:
    A part is a function of one user's trajectory and of the public state, so the guarantee is that
    of `sotto.privacy.release.release`. An absent user contributes zero to each part. Values are
    centred, which makes their bound smaller: a bit has sensitivity 1, and a centred bit 1/2
    (docs/privacy.md, section 17).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.distributions import Distribution
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.networks import Policy, scaled, shifted
from sotto.rl.rollout import Actor, Trajectory


class ExtraPart(Protocol):
    """Extra part: a user's contribution, and the server's use of the release."""

    @property
    def name(self) -> str:
        """Name of the part, of its noise multiplier and of its public state."""

    @property
    def described(self) -> str:
        """Words for the certificate that say which facts about users it releases."""

    @property
    def size(self) -> int:
        """Length of a user's contribution."""

    @property
    def clip_norm(self) -> float:
        """Bound on the L2 norm of one user's contribution."""

    def initial(self) -> PyTree[Array]:
        """Returns the public state before the first release, free of data."""

    def contribution(
        self, public: Any, trajectory: Trajectory, update: Policy
    ) -> Float[Array, " size"]:
        """Returns one user's vector, from their own trajectory and policy update (not clipped)."""

    def after(
        self, public: Any, released: Float[Array, " size"]
    ) -> tuple[PyTree[Array], dict[str, Array]]:
        """Returns the next public state and the log, which are functions of releases."""


def extra_parts(config: DPPGConfig, env: AnyEnvironment) -> tuple[ExtraPart, ...]:
    """Returns the extra parts that the settings ask for."""
    parts: list[ExtraPart] = []
    if config.adaptive_clip is not None:
        parts.append(
            AdaptiveClip(config.clip_norm, config.adaptive_clip, config.adaptive_clip_rate)
        )
    if config.observation_statistics:
        parts.append(
            ObservationStatistics(
                env.observation_scale, env.observation_centre, config.observation_range
            )
        )
    if config.private_return is not None:
        parts.append(PrivateReturn(*config.private_return, config.ema_decay))
    return tuple(parts)


def require_as_stated(updates: int, extras: Sequence[ExtraPart], ledgers: Sequence[Ledger]) -> None:
    """Checks that a stream about a population has the horizon and bounds that were stated.

    Raises:
        PrivacyError: another number of updates was stated.
        ValueError: another version of sotto stated another bound of a part.
    """
    streams = [stream.statement for ledger in ledgers for stream in ledger.streams]
    if promised := {statement.horizon for statement in streams} - {updates}:
        raise PrivacyError(
            f"the budget covers {max(promised)} releases about this population, and each further "
            "release would cost more; start a new run"
        )
    for part, statement in itertools.product(extras, streams):
        stated = statement.parts.get(part.name)
        if stated is not None and stated.clip_norm != part.clip_norm:
            raise ValueError(
                f"this training stated that {part.described} are bounded by {stated.clip_norm:.6g} "
                f"for each user, and this version of sotto bounds them by {part.clip_norm:.6g}; "
                "continue with the version that started it, or start a new training"
            )


# --- adaptive clipping ---------------------------------------------------------------------------


@dataclass(frozen=True)
class AdaptiveClip:
    """Part that makes the clip norm follow a quantile (Andrew et al. 2021, Algorithm 1).

    The clip norm of the release is fixed at 1. Users divide their update by the current public clip
    norm C, and the server multiplies the release by it. A user's bit is 1 if the norm of their
    update is at most C. They contribute bit - 1/2. The server adds -rate (mean bit - quantile) to
    log C.

    Attributes:
        first: clip norm of the first release.
        quantile: desired share of users whose update is within the clip norm, in (0, 1).
        rate: step of log C.
    """

    first: float
    quantile: float
    rate: float
    name: ClassVar[str] = "clip"
    described: ClassVar[str] = "how many users' updates are within the clip norm"
    size: ClassVar[int] = 1
    clip_norm: ClassVar[float] = 0.5  # of a centred bit, which is 1/2 or -1/2

    def initial(self) -> Float[Array, ""]:
        """Returns the first clip norm."""
        return jnp.asarray(self.first, jnp.float32)

    def contribution(
        self, public: Float[Array, ""], trajectory: Trajectory, update: Policy
    ) -> Float[Array, " 1"]:
        """Returns the bit that says whether the update is within the clip norm, less 1/2."""
        del trajectory
        within = optax.tree.norm(update) <= public
        return jnp.where(within, 0.5, -0.5).astype(jnp.float32)[None]

    def after(
        self, public: Float[Array, ""], released: Float[Array, " 1"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Returns the next clip norm, and the log of this one."""
        share = released[0] + 0.5
        clip_norm = public * jnp.exp(-self.rate * (share - self.quantile))
        return clip_norm, {"clip_norm": public, "share_within_clip_norm": share}


# --- observation statistics ----------------------------------------------------------------------


_PRIOR_RELEASES = 10.0
"""Weight of the prior (mean 0, deviation 1 after the public scale), in releases."""
_LEAST_DEVIATION = 0.1
"""Smallest deviation of an input, in units of the public scale. Noise can make an estimated
variance negative."""


class ObservationMoments(eqx.Module):
    """Released statistics of observations: sums of means, and of mean squares less 1/2.

    Observations are centred and scaled as is public for the environment, and then clipped to
    [-limit, limit]. Contributions are in units of `limit`.
    """

    sums: Float[Array, " 2*obs"]
    releases: Float[Array, ""]
    scale: tuple[float, ...] = eqx.field(static=True)
    centre: tuple[float, ...] | None = eqx.field(static=True)
    limit: float = eqx.field(static=True)

    def mean_and_deviation(self) -> tuple[Float[Array, " obs"], Float[Array, " obs"]]:
        """Returns mean and deviation of inputs (after the public scale), shrunk towards 0 and 1."""
        size = len(self.scale)
        weight = self.releases + _PRIOR_RELEASES
        mean = self.limit * self.sums[:size] / weight
        squares = self.limit**2 * (self.sums[size:] + 0.5 * self.releases) + _PRIOR_RELEASES
        variance = squares / weight - jnp.square(mean)
        return mean, jnp.sqrt(jnp.maximum(variance, _LEAST_DEVIATION**2))

    def standardised(self, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch obs"]:
        """Returns observations that become standardised inputs by the public centre and scale."""
        mean, deviation = self.mean_and_deviation()
        inputs = (scaled(observations, self.scale, self.centre) - mean) / deviation
        raw = scaled(inputs, tuple(1 / factor for factor in self.scale))
        return raw if self.centre is None else shifted(raw, self.centre)


@dataclass(frozen=True)
class ObservationStatistics:
    """Part that releases means and variances of observations, to standardise the policy's inputs.

    A user contributes their means of x and of x^2 - 1, where x is within [-1, 1] (see
    `ObservationMoments`).

    Attributes:
        scale, centre: public scale and centre of the environment.
        limit: public range of observations after them.
    """

    scale: tuple[float, ...]
    centre: tuple[float, ...] | None
    limit: float
    name: ClassVar[str] = "observations"
    described: ClassVar[str] = "means and variances of users' observations"

    @property
    def size(self) -> int:
        """Length of a contribution: a mean and a mean square of each observation."""
        return 2 * len(self.scale)

    @property
    def clip_norm(self) -> float:
        """Bound on the norm: means a of x, s of x^2 have a^2 <= s <= 1, so a^2 + (s - 1)^2 <= 1."""
        return float(len(self.scale) ** 0.5)

    def initial(self) -> ObservationMoments:
        """Returns the statistics of no releases."""
        nothing = jnp.zeros(self.size, jnp.float32)
        return ObservationMoments(nothing, jnp.float32(0), self.scale, self.centre, self.limit)

    def contribution(
        self, public: ObservationMoments, trajectory: Trajectory, update: Policy
    ) -> Float[Array, " 2*obs"]:
        """Returns the centred means over the user's living steps."""
        del public, update
        inputs = scaled(trajectory.observations, self.scale, self.centre)
        inputs = jnp.clip(inputs / self.limit, -1, 1)
        moments = jnp.concatenate([inputs, jnp.square(inputs) - 1.0], axis=1)
        alive = trajectory.alive.astype(jnp.float32)
        return alive @ moments / jnp.maximum(jnp.sum(alive), 1.0)

    def after(
        self, public: ObservationMoments, released: Float[Array, " 2*obs"]
    ) -> tuple[ObservationMoments, dict[str, Array]]:
        """Returns the sums with one more release."""
        mean_squares = slice(len(self.scale), None)
        sums = public.sums + released.at[mean_squares].add(0.5)
        releases = public.releases + 1
        return ObservationMoments(sums, releases, self.scale, self.centre, self.limit), {}


class StandardisedPolicy(eqx.Module):
    """Released policy with the released statistics that standardise its inputs."""

    policy: Policy
    moments: ObservationMoments

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Distribution:
        """Returns the distribution of the action at each observation."""
        return self.policy(self.moments.standardised(observation))

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        """Draws noise for sampling `shape` actions."""
        return self.policy.noise(key, shape)


def actor(extras: Mapping[str, Any], policy: Policy) -> Actor:
    """Returns the policy as a function of raw observations."""
    moments = extras.get(ObservationStatistics.name)
    return policy if moments is None else StandardisedPolicy(policy, moments)


def as_seen(extras: Mapping[str, Any], trajectory: Trajectory) -> Trajectory:
    """Returns the trajectory with the observations that the policy's network receives."""
    moments = extras.get(ObservationStatistics.name)
    if moments is None:
        return trajectory
    return trajectory._replace(
        observations=moments.standardised(trajectory.observations),
        next_observations=moments.standardised(trajectory.next_observations),
    )


# --- returns -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrivateReturn:
    """Part that releases users' mean return. A return is the sum of a user's rewards, clipped.

    Attributes:
        low, high: public range to which returns are clipped.
        decay: decay of the moving average over releases, which starts at `low`.
    """

    low: float
    high: float
    decay: float
    name: ClassVar[str] = "return"
    described: ClassVar[str] = "users' returns"
    size: ClassVar[int] = 1
    clip_norm: ClassVar[float] = 1.0  # of a contribution, whose unit is half of the range

    def initial(self) -> Float[Array, ""]:
        """Returns the moving average before the first release."""
        return jnp.asarray(self.low, jnp.float32)

    def contribution(
        self, public: Float[Array, ""], trajectory: Trajectory, update: Policy
    ) -> Float[Array, " 1"]:
        """Returns the distance of the return from the middle of the range, in half ranges."""
        del public, update
        total = jnp.sum(jnp.where(trajectory.alive, trajectory.rewards, 0.0))
        centred = (total - (self.low + self.high) / 2) / ((self.high - self.low) / 2)
        return jnp.clip(centred, -1, 1)[None]

    def after(
        self, public: Float[Array, ""], released: Float[Array, " 1"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """Returns the moving average, and the log of this release's mean return."""
        mean = (self.low + self.high) / 2 + released[0] * (self.high - self.low) / 2
        average = self.decay * public + (1 - self.decay) * mean
        return average, {"private_return": mean, "private_return_average": average}
