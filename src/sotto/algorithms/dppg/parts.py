"""What a release of private policy gradient may hold beside the policy's and the critic's update.

Each extra part is a vector per user, bounded by construction, that the door clips, averages and
noises in the same release as the policy's update: one event, 1/z^2 = sum 1/z_p^2 over the parts.
What the server makes of it is post-processing, and is kept in `DPPGState.extras` under its name.

Guarantee:
    A part is a function of one user's trajectory and of the public state, so that the claim is the
    door's (`sotto.privacy.release.release`). An absent user contributes zero to each part: values
    are centred where that makes the most that one user can move a part the least (docs/privacy.md,
    section 17; uncentred, a bit has sensitivity 1).
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
    """One extra part: what a user contributes, and what the server makes of it."""

    @property
    def name(self) -> str:
        """Of the part, of its noise multiplier and of its public state."""

    @property
    def described(self) -> str:
        """What it tells of users, for the certificate."""

    @property
    def size(self) -> int:
        """How many numbers a user contributes."""

    @property
    def clip_norm(self) -> float:
        """The most that one user's contribution can be (L2), absent or not."""

    def initial(self) -> PyTree[Array]:
        """The public state before the first release, free of data."""

    def contribution(
        self, public: Any, trajectory: Trajectory, update: Policy
    ) -> Float[Array, " size"]:
        """One user's vector, from their own trajectory and policy update (not clipped)."""

    def after(
        self, public: Any, released: Float[Array, " size"]
    ) -> tuple[PyTree[Array], dict[str, Array]]:
        """The next public state, and what is logged: functions of releases."""


def extra_parts(config: DPPGConfig, env: AnyEnvironment) -> tuple[ExtraPart, ...]:
    """The extra parts that the settings ask for."""
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
    """A stream about a population has the length and the bounds that it was stated with.

    Raises:
        PrivacyError: it was stated for another number of updates.
        ValueError: it was stated by a version that bounded a part by another number.
    """
    streams = [stream.statement for ledger in ledgers for stream in ledger.streams]
    if promised := {statement.horizon for statement in streams} - {updates}:
        raise PrivacyError(
            f"the budget covers {max(promised)} releases about this population, which each of "
            "them draws from anew, and not more of them; start a new run"
        )
    for part, statement in itertools.product(extras, streams):
        stated = statement.parts.get(part.name)
        if stated is not None and stated.clip_norm != part.clip_norm:
            raise ValueError(
                f"this training stated that {part.described} are bounded by {stated.clip_norm:.6g} "
                f"for each user, and this version of sotto bounds them by {part.clip_norm:.6g}; go "
                "on with the version it was started with, or start a new training"
            )


# --- adaptive clipping ---------------------------------------------------------------------------


@dataclass(frozen=True)
class AdaptiveClip:
    """The clip norm follows a quantile of users' update norms (Andrew et al. 2021, Algorithm 1).

    The door's clip norm is fixed at 1: users divide their update by the public clip norm C of the
    moment, and the server multiplies the release by it. A user's bit says whether their update is
    within C; they contribute bit - 1/2, and the server steps log C by -rate (mean bit - quantile).

    Attributes:
        first: clip norm of the first release.
        quantile: share of users whose update is within the clip norm, in (0, 1).
        rate: step of log C.
    """

    first: float
    quantile: float
    rate: float
    name: ClassVar[str] = "clip"
    described: ClassVar[str] = "how many users' updates are within the clip norm"

    @property
    def size(self) -> int:
        """One bit."""
        return 1

    @property
    def clip_norm(self) -> float:
        """A centred bit is 1/2 or -1/2."""
        return 0.5

    def initial(self) -> Float[Array, ""]:
        """The first clip norm."""
        return jnp.asarray(self.first, jnp.float32)

    def contribution(
        self, public: Float[Array, ""], trajectory: Trajectory, update: Policy
    ) -> Float[Array, " 1"]:
        """Whether the update is within the clip norm, centred."""
        del trajectory
        within = optax.tree.norm(update) <= public
        return jnp.where(within, 0.5, -0.5).astype(jnp.float32)[None]

    def after(
        self, public: Float[Array, ""], released: Float[Array, " 1"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """The next clip norm."""
        share = released[0] + 0.5
        clip_norm = public * jnp.exp(-self.rate * (share - self.quantile))
        return clip_norm, {"clip_norm": public, "share_within_clip_norm": share}


# --- observation statistics ----------------------------------------------------------------------


_PRIOR_RELEASES = 10.0
"""The prior (mean 0, deviation 1 after the public scale) counts like so many releases."""
_LEAST_DEVIATION = 0.1
"""Of an input, in units of the public scale: noise may take an estimated variance below zero."""


class Moments(eqx.Module):
    """What releases say of observations: sums of means, and of mean squares less 1/2.

    After the environment's public centre and scale, observations are clipped to [-limit, limit];
    contributions are in units of `limit`.
    """

    sums: Float[Array, " 2*obs"]
    releases: Float[Array, ""]
    scale: tuple[float, ...] = eqx.field(static=True)
    centre: tuple[float, ...] | None = eqx.field(static=True)
    limit: float = eqx.field(static=True)

    def mean_and_deviation(self) -> tuple[Float[Array, " obs"], Float[Array, " obs"]]:
        """Of the policy's inputs (after the public scale), shrunk towards 0 and 1."""
        size = len(self.scale)
        weight = self.releases + _PRIOR_RELEASES
        mean = self.limit * self.sums[:size] / weight
        squares = self.limit**2 * (self.sums[size:] + 0.5 * self.releases) + _PRIOR_RELEASES
        variance = squares / weight - jnp.square(mean)
        return mean, jnp.sqrt(jnp.maximum(variance, _LEAST_DEVIATION**2))

    def standardised(self, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch obs"]:
        """Observations that the public centre and scale turn into standardised inputs."""
        mean, deviation = self.mean_and_deviation()
        inputs = (scaled(observations, self.scale, self.centre) - mean) / deviation
        raw = scaled(inputs, tuple(1 / factor for factor in self.scale))
        return raw if self.centre is None else shifted(raw, self.centre)


@dataclass(frozen=True)
class ObservationStatistics:
    """Means and variances of observations, by which the policy's inputs are standardised.

    A user contributes their means of x and of x^2 - 1, where x is within [-1, 1] (see `Moments`).

    Attributes:
        scale, centre: the environment's, public.
        limit: public range of observations after them.
    """

    scale: tuple[float, ...]
    centre: tuple[float, ...] | None
    limit: float
    name: ClassVar[str] = "observations"
    described: ClassVar[str] = "means and variances of users' observations"

    @property
    def size(self) -> int:
        """A mean and a mean square of each observation."""
        return 2 * len(self.scale)

    @property
    def clip_norm(self) -> float:
        """For means a of x and s of x^2, a^2 <= s <= 1: so a^2 + (s - 1)^2 <= 1."""
        return float(len(self.scale) ** 0.5)

    def initial(self) -> Moments:
        """No releases yet."""
        nothing = jnp.zeros(self.size, jnp.float32)
        return Moments(nothing, jnp.float32(0), self.scale, self.centre, self.limit)

    def contribution(
        self, public: Moments, trajectory: Trajectory, update: Policy
    ) -> Float[Array, " 2*obs"]:
        """Means over the user's living steps, centred."""
        del public, update
        inputs = scaled(trajectory.observations, self.scale, self.centre)
        inputs = jnp.clip(inputs / self.limit, -1, 1)
        moments = jnp.concatenate([inputs, jnp.square(inputs) - 1.0], axis=1)
        alive = trajectory.alive.astype(jnp.float32)
        return alive @ moments / jnp.maximum(jnp.sum(alive), 1.0)

    def after(
        self, public: Moments, released: Float[Array, " 2*obs"]
    ) -> tuple[Moments, dict[str, Array]]:
        """The sums with one more release."""
        mean_squares = slice(len(self.scale), None)
        sums = public.sums + released.at[mean_squares].add(0.5)
        releases = public.releases + 1
        return Moments(sums, releases, self.scale, self.centre, self.limit), {}


class StandardisedPolicy(eqx.Module):
    """A released policy with the released statistics it is used with."""

    policy: Policy
    moments: Moments

    def __call__(self, observation: Float[Array, "*batch obs"]) -> Distribution:
        """The distribution of the action at each observation."""
        return self.policy(self.moments.standardised(observation))

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        """Noise for sampling `shape` actions."""
        return self.policy.noise(key, shape)


def actor(extras: Mapping[str, Any], policy: Policy) -> Actor:
    """The policy as it acts on raw observations."""
    moments = extras.get(ObservationStatistics.name)
    return policy if moments is None else StandardisedPolicy(policy, moments)


def as_seen(extras: Mapping[str, Any], trajectory: Trajectory) -> Trajectory:
    """The trajectory with the observations that the policy's network is given."""
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
    """Users' mean return, the sum of the rewards of their data, clipped to a public range.

    Attributes:
        low, high: the range.
        decay: of the moving average over releases, which starts at `low`.
    """

    low: float
    high: float
    decay: float
    name: ClassVar[str] = "return"
    described: ClassVar[str] = "users' returns"

    @property
    def size(self) -> int:
        """One number."""
        return 1

    @property
    def clip_norm(self) -> float:
        """Half of the range is the unit."""
        return 1.0

    def initial(self) -> Float[Array, ""]:
        """The moving average before the first release."""
        return jnp.asarray(self.low, jnp.float32)

    def contribution(
        self, public: Float[Array, ""], trajectory: Trajectory, update: Policy
    ) -> Float[Array, " 1"]:
        """The return's distance from the middle of the range, in halves of it."""
        del public, update
        total = jnp.sum(jnp.where(trajectory.alive, trajectory.rewards, 0.0))
        centred = (total - (self.low + self.high) / 2) / ((self.high - self.low) / 2)
        return jnp.clip(centred, -1, 1)[None]

    def after(
        self, public: Float[Array, ""], released: Float[Array, " 1"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        """The moving average, and this release's mean return."""
        mean = (self.low + self.high) / 2 + released[0] * (self.high - self.low) / 2
        average = self.decay * public + (1 - self.decay) * mean
        return average, {"private_return": mean, "private_return_average": average}
