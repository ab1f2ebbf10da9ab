"""Releases of functions: rewards at nodes (C), action values at the end (A) or every time (B).

Each goes through `FunctionRelease`; its sensitivity follows from public visits and from how far
apart neighbouring rewards are. The averager of fitted Q-iteration takes weighted means over logged
steps and interpolates between nodes, so that it never moves values further apart than rewards are:
after K iterations by at most (1 - gamma^K) / (1 - gamma) times as much (theory notes, B6).
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from sotto.algorithms.functional_q import (
    ONE_FUNCTION,
    PUBLIC,
    REWARD_FREE,
    Logged,
    calibrated,
    reward_weights,
)
from sotto.algorithms.functional_q_config import FunctionalQConfig
from sotto.algorithms.reward_nodes import averages, by_action, largest_share
from sotto.privacy.functional_noise import averager_factor
from sotto.privacy.functions import FunctionRelease
from sotto.privacy.ledger import Ledger
from sotto.privacy.mechanisms.rkhs import Sensitivity, hat_basis_sensitivity, vector_sensitivity

_ROUNDING = 1 + 1e-9
"""Surplus of sensitivities, for weights in float64 that sum to 1 but for rounding."""


@dataclass(frozen=True)
class _Change:
    """How far weighted averages of neighbouring rewards are apart.

    Attributes:
        largest: any single one.
        norm: all of them together, in the Euclidean norm.
        because: why, in a sentence for the certificate.
    """

    largest: float
    norm: float
    because: str


# --- what is released ----------------------------------------------------------------------------


def release_rewards(
    config: FunctionalQConfig, logged: Logged, ledger: Ledger
) -> Float[np.ndarray, " features"]:
    """Mode reward-release: averages of the reward at nodes, once, as a vector or as paths."""
    weights = reward_weights(config, logged, config.samples)
    actions = config.features // config.grid.size
    change = _change(config, weights)
    release = _release(config, "rewards at nodes", change, actions, 1)
    secret = averages(weights, _secret_rewards(config, logged), config.middle)
    noisy = _opened(config, release, ledger, secret.reshape(-1, actions)).reshape(-1)
    # Shrunk towards the middle as much as the noise says, which is post-processing.
    prior = config.reward_range**2 / 12
    kept = prior / (prior + release.sigma**2)
    found = config.middle + kept * (noisy - config.middle)
    return np.asarray(np.clip(found, *config.rewards), np.float32)


def release_output(
    config: FunctionalQConfig, logged: Logged, ledger: Ledger
) -> Float[np.ndarray, "size actions"]:
    """Mode output-release: action values after all iterations, once, with fresh noise."""
    averager = Averager(config, logged)
    rewards = _secret_rewards(config, logged)
    secret = averager.nothing
    for _ in range(config.iterations):
        secret = averager.iterate(secret, rewards)
    factor = averager_factor(config.discount, config.iterations)
    change = _change(config, averager.weights)
    # Later iterations spread one node's change to all of them.
    visited = _visited(averager.weights)
    spread = change.largest * factor * math.sqrt(visited)
    because = (
        f"{change.because}, and each of {config.iterations} averaging iterations with discount "
        f"{config.discount:g} adds that to what the discount leaves of the last one's"
    )
    change = _Change(change.largest * factor, spread, because)
    release = _release(config, "action values", change, config.actions, 1)
    noisy = _opened(config, release, ledger, secret)
    return averager.clipped(noisy)


def release_iterations(
    config: FunctionalQConfig, logged: Logged, ledger: Ledger
) -> Float[np.ndarray, "size actions"]:
    """Mode per-iteration: every iteration reads released values only, and is released itself."""
    averager = Averager(config, logged)
    rewards = _secret_rewards(config, logged)
    change = _change(config, averager.weights)
    release = _release(
        config, "action values of each iteration", change, config.actions, config.iterations
    )
    opened = release.open(ledger)
    values = averager.nothing
    for _ in range(config.iterations):
        secret = averager.iterate(values, rewards)
        values = averager.clipped(_noisy(config, opened, secret))
    return values


class Averager:
    """Fitted Q-iteration with weighted means at nodes, on a fixed log of steps.

    Attributes:
        weights: of each step over (node, action) pairs, public.
        nothing: values to start from, which nodes that nobody visited keep.
    """

    def __init__(self, config: FunctionalQConfig, logged: Logged) -> None:
        grid, actions = config.grid, config.actions
        nodes = grid.matrix(np.asarray(logged.observations))
        self.weights = by_action(nodes, np.asarray(logged.actions), actions)
        low, high = config.rewards
        self._range = low / (1 - config.discount), high / (1 - config.discount)
        self.nothing = np.full((grid.size, actions), self._range[0])
        self._following = grid.matrix(np.asarray(logged.next_observations))
        self._onwards = config.discount * ~np.asarray(logged.terminated)

    def iterate(
        self, values: Float[np.ndarray, "size actions"], rewards: Float[np.ndarray, " steps"]
    ) -> Float[np.ndarray, "size actions"]:
        """One iteration from these values."""
        goals = rewards + self._onwards * (self._following @ values).max(axis=1)
        found = averages(self.weights, goals, self._range[0])
        return found.reshape(values.shape)

    def clipped(
        self, values: Float[np.ndarray, "size actions"]
    ) -> Float[np.ndarray, "size actions"]:
        """Within what rewards in their public range can add up to; post-processing."""
        return np.asarray(np.clip(values, *self._range))


# --- privacy -------------------------------------------------------------------------------------


def planned_epsilon(config: FunctionalQConfig) -> float:
    """Epsilon before anything is collected: the target, or what the given noise costs at most.

    For a reward function, with all nodes visited. Of given noise for transitions nothing is known
    before, except in reward-release; there it is infinite, and the certificate says more.
    """
    from sotto.privacy.accounting import gaussian_epsilon

    if config.target_epsilon is not None:
        return config.target_epsilon
    if config.unit == "transition" or config.mode == "paper":
        return math.inf
    assert config.sigma is not None
    grid, actions = config.grid, config.actions
    horizon, moved = 1, _radius(config)
    if config.mode == "reward-release":
        actions = config.features // grid.size
    elif config.mode == "output-release":
        moved *= averager_factor(config.discount, config.iterations)
    else:
        horizon = config.iterations
    most = _sensitivity(config, _Change(moved, moved * math.sqrt(grid.size * actions), ""), actions)
    return gaussian_epsilon(config.sigma / (most.value * math.sqrt(horizon)), config.delta * 0.99)


def _radius(config: FunctionalQConfig) -> float:
    """How far apart two neighbours' rewards can be; both are clipped to the public range."""
    if config.unit == "transition":
        return config.reward_range
    assert config.reward_radius is not None
    return min(config.reward_radius, config.reward_range)


def _change(config: FunctionalQConfig, weights: Any) -> _Change:
    radius = _radius(config)
    if config.unit == "transition":
        largest, norm = largest_share(weights)
        because = f"one reward moves by at most {radius:g}, and averages by its share in them"
        return _Change(radius * largest, radius * norm, because)
    visited = _visited(weights)
    because = f"all rewards move by at most {radius:g}, and {visited} averages of them do"
    return _Change(radius, vector_sensitivity(visited, 1, radius).value, because)


def _visited(weights: Any) -> int:
    return int(np.count_nonzero(np.asarray(weights.sum(axis=0)) > 0))


def _sensitivity(config: FunctionalQConfig, change: _Change, actions: int) -> Sensitivity:
    if config.noise == "vector":
        return Sensitivity(change.norm * _ROUNDING, None, change.because)
    hats = hat_basis_sensitivity(config.grid.size, actions, change.largest * _ROUNDING)
    return Sensitivity(hats.value, hats.beta, f"{change.because}; {hats.because}")


def _release(
    config: FunctionalQConfig,
    name: str,
    change: _Change,
    actions: int,
    horizon: int,
) -> FunctionRelease:
    sensitivity = _sensitivity(config, change, actions)
    size = config.grid.size * actions
    if config.sigma is not None:
        multiplier = config.sigma / (sensitivity.value * math.sqrt(horizon))
    else:
        multiplier = calibrated(config, size * horizon)
    whole = config.unit == "reward-function"
    low, high = config.rewards
    return FunctionRelease(
        name=name,
        unit=config.privacy_unit,
        sensitivity=sensitivity,
        noise_multiplier=multiplier,
        population=config.population,
        size=size,
        horizon=horizon,
        units=1 if whole else config.samples,
        protects=(
            f"The whole reward function, against every other within {config.reward_radius:g} of "
            f"it ({config.reward_radius / config.reward_range:.3g} of the public range "
            f"[{low:g}, {high:g}])."
            if config.reward_radius is not None
            else f"The reward of each transition, anywhere in [{low:g}, {high:g}].",
        ),
        does_not_protect=PUBLIC,
        assumptions=(REWARD_FREE, ONE_FUNCTION) if whole else (REWARD_FREE,),
    )


def _opened(
    config: FunctionalQConfig,
    release: FunctionRelease,
    ledger: Ledger,
    secret: Float[np.ndarray, "size actions"],
) -> Float[np.ndarray, "size actions"]:
    return _noisy(config, release.open(ledger), secret)


def _noisy(
    config: FunctionalQConfig, opened: Any, secret: Float[np.ndarray, "size actions"]
) -> Float[np.ndarray, "size actions"]:
    """One release of a table at nodes."""
    shape = (*config.grid.nodes, secret.shape[-1])
    axes = config.grid.axes if config.noise == "process" else None
    released = opened.release(secret.reshape(shape), axes)
    return np.asarray(released.values.reshape(secret.shape))


def _secret_rewards(config: FunctionalQConfig, logged: Logged) -> Float[np.ndarray, " steps"]:
    """The rewards of logged steps. Whatever is made of them leaves through a release."""
    env = config.environment
    step = jax.jit(jax.vmap(lambda s, a: env.step(s, a, env.default_params)[1]))
    rewards = np.asarray(step(logged.states, logged.actions), np.float64)
    return np.clip(rewards, *config.rewards)
