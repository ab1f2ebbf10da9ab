"""Releases of functions: rewards at nodes, and action values at the end or of every iteration.

Each goes through `FunctionRelease`. Its sensitivity follows from the public visits and from the
largest difference of neighbouring rewards. The averager of fitted Q-iteration takes weighted means
over logged steps and interpolates between nodes. So its values differ between neighbours by at most
(1 - gamma^K) / (1 - gamma) times as much as the rewards, after K iterations (docs/privacy.md,
section 13). `sotto.algorithms.functional_q.network` has the bound for a network.

A release that an earlier, killed training wrote to its file is read from there at no cost.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from sotto.algorithms.functional_q.accounts import RunAccount, explaining
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.network import Family, Log, NetworkFit
from sotto.algorithms.functional_q.nodes import averages, by_action, largest_share
from sotto.algorithms.functional_q.release import PUBLIC, Logged, calibrated, reward_weights
from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.claims import rewards as claims
from sotto.privacy.errors import PrivacyError
from sotto.privacy.mechanisms.functions.calibration import averager_factor
from sotto.privacy.mechanisms.functions.rkhs import (
    Sensitivity,
    hat_basis_sensitivity,
    vector_sensitivity,
)
from sotto.privacy.release.functions import FunctionRelease, OpenFunctionRelease
from sotto.privacy.release.released import LARGEST_VALUE, ReleasedFunction, ReleasedValues
from sotto.privacy.statements import UNBOUNDED_DRAWS, Assumption

_NETWORK = "action values of a network, less their public centre"
"""Name of the release of a network. Earlier versions had another name, and clipped large values."""
_ROUNDING = 1 + 1e-9
"""Factor of sensitivities that covers the rounding of weights in float64."""


@dataclass(frozen=True)
class _Change:
    """Bounds on the differences of weighted averages between neighbours.

    Attributes:
        largest: bound on the difference of any single average.
        norm: bound on the Euclidean norm of all differences.
        because: reason for the bounds, as a sentence of the certificate.
    """

    largest: float
    norm: float
    because: str


# --- what is released ----------------------------------------------------------------------------


def release_rewards(
    config: FunctionalQConfig, logged: Logged, account: RunAccount
) -> Float[np.ndarray, " features"]:
    """Releases averages of the reward at nodes once, as a vector or as paths (reward-release)."""
    weights = reward_weights(config, logged, config.samples)
    actions = config.features // config.grid.size
    change = _change(config, weights)
    size = config.grid.size * actions
    sensitivity = _sensitivity(config, change, actions)
    release = _release(config, "rewards at nodes", sensitivity, size, 1)
    secret = averages(weights, secret_rewards(config, logged), config.middle)
    noisy = _once(config, release, account, secret.reshape(-1, actions)).reshape(-1)
    # Shrinking towards the middle according to the noise is post-processing.
    prior = config.reward_range**2 / 12
    kept = prior / (prior + release.sigma**2)
    found = config.middle + kept * (noisy - config.middle)
    return np.asarray(np.clip(found, *config.rewards), np.float32)


def release_output(
    config: FunctionalQConfig, logged: Logged, account: RunAccount
) -> Float[np.ndarray, "size actions"]:
    """Releases the action values after all iterations once, with fresh noise (output-release)."""
    if config.learner == "network":
        return _release_network(config, logged, account)
    averager = Averager(config, logged)
    rewards = secret_rewards(config, logged)
    secret = averager.nothing
    for _ in range(config.iterations):
        secret = averager.iterate(secret, rewards)
    factor = averager_factor(config.discount, config.iterations)
    change = _change(config, averager.weights)
    # Later iterations spread one node's difference to all nodes.
    visited = _visited(averager.weights)
    spread = change.largest * factor * math.sqrt(visited)
    because = (
        f"{change.because}, and each of {config.iterations} averaging iterations with discount "
        f"{config.discount:g} adds that to what the discount leaves of the last one's"
    )
    change = _Change(change.largest * factor, spread, because)
    sensitivity = _sensitivity(config, change, config.actions)
    release = _release(config, "action values", sensitivity, secret.size, 1)
    return averager.clipped(_once(config, release, account, secret))


def release_iterations(
    config: FunctionalQConfig, logged: Logged, account: RunAccount
) -> Float[np.ndarray, "size actions"]:
    """Releases the action values of every iteration, which starts from released values only.

    After a kill the training continues from the last iteration on disk. An iteration that was
    charged and not written is left out.
    """
    averager = Averager(config, logged)
    rewards = secret_rewards(config, logged)
    sensitivity = _sensitivity(config, _change(config, averager.weights), config.actions)
    name = "action values of each iteration"
    values = averager.nothing
    release = _release(config, name, sensitivity, values.size, config.iterations)
    begin = release.resume if account.charged else release.open
    opened, written = begin(account.ledger, account.folder), account.written
    if written:
        values = averager.clipped(_read(written[-1].file).reshape(values.shape))
    elif opened.released == config.iterations:
        raise account.nothing_left()
    for _ in range(config.iterations - opened.released):
        secret = averager.iterate(values, rewards)
        values = averager.clipped(_noisy(config, opened, secret))
    return values


def _release_network(
    config: FunctionalQConfig, logged: Logged, account: RunAccount
) -> Float[np.ndarray, "size actions"]:
    """Releases the action values of a network as a function, evaluated at the nodes and closed.

    The public centre of the values is added after the release.

    Raises:
        ValueError: the values may be too large for the grid.
        PrivacyError: an earlier version, which clipped large values, began this release.
    """
    release, fit = network_release(config), network_fit(config)
    if any(stream.statement.name != _NETWORK for stream in account.ledger.streams):
        raise PrivacyError(
            f"run {account.ledger.run_id} was begun by an earlier version, which could clip the "
            "values of its network; start a new run, whose cost adds to this one's"
        )
    log = Log(
        _on_unit_interval(config, logged.observations),
        np.asarray(logged.actions),
        secret_rewards(config, logged),
        _on_unit_interval(config, logged.next_observations),
        np.asarray(logged.terminated),
    )
    parameters = fit.train(log)

    def secret(points: Float[np.ndarray, "q 1"]) -> Float[np.ndarray, "q actions"]:
        return fit.values(parameters, points[:, 0])

    file = account.place(0).file
    if file is None:
        with explaining([account]):
            opened = release.open(account.ledger, account.folder)
        function = opened.release_function(secret, config.actions)
    else:
        function = ReleasedFunction.open(file, secret)
    if not function.closed:
        function.close(config.grid.axes)
    low, high = (bound / (1 - config.discount) for bound in config.rewards)
    return np.asarray(np.clip(fit.centre + function(config.grid.axes[0]), low, high))


class Averager:
    """Fitted Q-iteration with weighted means at nodes, on a fixed log of steps.

    Attributes:
        weights: public weights of each step over (node, action) pairs.
        nothing: initial values, which nodes without visits keep.
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
        """Returns the values after one iteration from these values."""
        goals = rewards + self._onwards * (self._following @ values).max(axis=1)
        found = averages(self.weights, goals, self._range[0])
        return found.reshape(values.shape)

    def clipped(
        self, values: Float[np.ndarray, "size actions"]
    ) -> Float[np.ndarray, "size actions"]:
        """Clips values to the range of discounted sums of rewards, which is post-processing."""
        return np.asarray(np.clip(values, *self._range))


# --- privacy -------------------------------------------------------------------------------------


def planned_epsilon(config: FunctionalQConfig) -> float:
    """Returns a bound on epsilon before the steps are collected.

    It is the target epsilon if there is one, and otherwise infinite in mode paper. With a given
    sigma and unit reward-function it assumes that all nodes are visited. With a given sigma and
    unit transition it is infinite, except for a network, since epsilon then depends on the visits.
    The certificate states the epsilon that follows from the visits.
    """
    if config.target_epsilon is not None:
        return config.target_epsilon
    if config.mode == "paper" or (config.unit == "transition" and config.learner != "network"):
        return math.inf
    assert config.sigma is not None
    if config.learner == "network":
        most = _network_sensitivity(config)
        return gaussian_epsilon(config.sigma / most.value, config.delta * 0.99)
    grid, actions = config.grid, config.actions
    horizon, moved = 1, reward_change(config)
    if config.mode == "reward-release":
        actions = config.features // grid.size
    elif config.mode == "output-release":
        moved *= averager_factor(config.discount, config.iterations)
    else:
        horizon = config.iterations
    most = _sensitivity(config, _Change(moved, moved * math.sqrt(grid.size * actions), ""), actions)
    return gaussian_epsilon(config.sigma / (most.value * math.sqrt(horizon)), config.delta * 0.99)


def reward_change(config: FunctionalQConfig) -> float:
    """Returns the largest difference of neighbouring rewards, which are clipped to the range."""
    if config.unit == "transition":
        return config.reward_range
    assert config.reward_radius is not None
    return min(config.reward_radius, config.reward_range)


def _change(config: FunctionalQConfig, weights: Any) -> _Change:
    radius = reward_change(config)
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
        return Sensitivity(change.norm * _ROUNDING, None, change.because, reward_change(config))
    hats = hat_basis_sensitivity(config.grid.size, actions, change.largest * _ROUNDING)
    because = f"{change.because}; {hats.because}"
    return replace(hats, because=because, change=reward_change(config))


def network_release(config: FunctionalQConfig) -> FunctionRelease:
    """Returns the release of a network's values, which never reach the end of their grid.

    A function that is clipped there can differ from its neighbour by more than the stated norm.

    Raises:
        ValueError: the values may be too large for the grid.
    """
    release = _release(config, _NETWORK, _network_sensitivity(config), None, 1)
    largest, limit = network_fit(config).largest, LARGEST_VALUE * release.grid
    if largest > limit:
        raise ValueError(
            f"values of this network may be as large as {largest:.3g}, but the grid of released "
            f"values ends at {limit:.3g}, because the sensitivity is so small; use fewer samples, "
            "a smaller discount, or the learner averager"
        )
    return release


def network_fit(config: FunctionalQConfig) -> NetworkFit:
    """Returns the training of output-release with a network, which depends on public numbers."""
    return NetworkFit(
        family=Family(config.hidden[0], config.actions),
        transitions=config.samples,
        iterations=config.iterations,
        steps=config.gradient_steps // config.iterations,
        discount=config.discount,
        middle=config.middle,
        reward_range=config.reward_range,
    )


def _network_sensitivity(config: FunctionalQConfig) -> Sensitivity:
    one_reward = config.unit == "transition"
    return network_fit(config).sensitivity(reward_change(config), one_reward=one_reward)


def _release(
    config: FunctionalQConfig,
    name: str,
    sensitivity: Sensitivity,
    size: int | None,
    horizon: int,
) -> FunctionRelease:
    if config.sigma is not None:
        multiplier = config.sigma / (sensitivity.value * math.sqrt(horizon))
    else:
        multiplier = calibrated(config, (size or UNBOUNDED_DRAWS) * horizon)
    return FunctionRelease(
        name=name,
        unit=config.privacy_unit,
        sensitivity=sensitivity,
        noise_multiplier=multiplier,
        population=config.population,
        size=size,
        horizon=horizon,
        units=1 if config.unit == "reward-function" else config.samples,
        protects=protects(config),
        does_not_protect=PUBLIC,
        assumptions=assumptions(config),
    )


def protects(config: FunctionalQConfig) -> tuple[str, ...]:
    """Returns the sentence about the protected unit."""
    low, high = map(claims.exactly, config.rewards)
    if config.reward_radius is None:
        return (claims.ONE_REWARD(low=low, high=high),)
    share = f"{config.reward_radius / config.reward_range:.3g}"
    radius = claims.exactly(config.reward_radius)
    return (claims.WHOLE_FUNCTION(radius=radius, share=share, low=low, high=high),)


def assumptions(config: FunctionalQConfig) -> tuple[Assumption, ...]:
    """Returns what every release of logged rewards assumes."""
    whole = config.unit == "reward-function"
    free = claims.REWARD_FREE.assumption()
    return (free, claims.ONE_FUNCTION.assumption()) if whole else (free,)


def _once(
    config: FunctionalQConfig,
    release: FunctionRelease,
    account: RunAccount,
    secret: Float[np.ndarray, "size actions"],
) -> Float[np.ndarray, "size actions"]:
    """Returns the only release of a table, or reads it from the file of an earlier training."""
    file = account.place(0).file
    if file is not None:
        return _read(file).reshape(secret.shape)
    with explaining([account]):
        opened = release.open(account.ledger, account.folder)
    return _noisy(config, opened, secret)


def _read(file: Path | None) -> Float[np.ndarray, "..."]:
    assert file is not None
    return ReleasedValues.open(file).values


def _noisy(
    config: FunctionalQConfig,
    opened: OpenFunctionRelease,
    secret: Float[np.ndarray, "size actions"],
) -> Float[np.ndarray, "size actions"]:
    """Makes one release of a table at nodes."""
    shape = (*config.grid.nodes, secret.shape[-1])
    axes = config.grid.axes if config.noise == "process" else None
    released = opened.release(secret.reshape(shape), axes)
    return np.asarray(released.values.reshape(secret.shape))


def secret_rewards(config: FunctionalQConfig, logged: Logged) -> Float[np.ndarray, " steps"]:
    """Returns the rewards of logged steps, which are secret and may only leave through a release.

    All are in the public range, as the sensitivity requires. `np.clip` keeps a NaN, which would
    spread to every average that contains it. So a reward that is not finite counts as the middle of
    the range.
    """
    env = config.environment
    step = jax.jit(jax.vmap(lambda s, a: env.step(s, a, env.default_params)[1]))
    rewards = np.asarray(step(logged.states, logged.actions), np.float64)
    return np.clip(np.where(np.isfinite(rewards), rewards, config.middle), *config.rewards)


def _on_unit_interval(config: FunctionalQConfig, observations: Any) -> Float[np.ndarray, " steps"]:
    """Returns states scaled from the box of nodes to [0, 1]; states outside are clipped to it."""
    low, high = config.grid.low[0], config.grid.high[0]
    return np.clip((np.asarray(observations, np.float64)[:, 0] - low) / (high - low), 0.0, 1.0)
