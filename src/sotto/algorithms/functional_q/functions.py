"""Releases of functions: rewards at nodes (C), action values at the end (A) or every time (B).

Each goes through `FunctionRelease`; its sensitivity follows from public visits and from how far
apart neighbouring rewards are. The averager of fitted Q-iteration takes weighted means over logged
steps and interpolates between nodes, so that it never moves values further apart than rewards are:
after K iterations by at most (1 - gamma^K) / (1 - gamma) times as much (theory notes, B6). A
network is not as tame; `functional_q_network` says how far it goes.

A release that an earlier, killed training wrote to its file is read from there, at no cost.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from sotto.algorithms.functional_q.accounts import Account, explaining
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.network import Family, Log, NetworkFit
from sotto.algorithms.functional_q.nodes import averages, by_action, largest_share
from sotto.algorithms.functional_q.release import PUBLIC, Logged, calibrated, reward_weights
from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.claims import rewards as claims
from sotto.privacy.mechanisms.functions.calibration import averager_factor
from sotto.privacy.mechanisms.functions.rkhs import (
    Sensitivity,
    hat_basis_sensitivity,
    vector_sensitivity,
)
from sotto.privacy.release.functions import FunctionRelease, OpenFunctionRelease
from sotto.privacy.release.released import ReleasedFunction, ReleasedValues
from sotto.privacy.statements import UNBOUNDED_DRAWS

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
    config: FunctionalQConfig, logged: Logged, account: Account
) -> Float[np.ndarray, " features"]:
    """Mode reward-release: averages of the reward at nodes, once, as a vector or as paths."""
    weights = reward_weights(config, logged, config.samples)
    actions = config.features // config.grid.size
    change = _change(config, weights)
    size = config.grid.size * actions
    sensitivity = _sensitivity(config, change, actions)
    release = _release(config, "rewards at nodes", sensitivity, size, 1)
    secret = averages(weights, _secret_rewards(config, logged), config.middle)
    noisy = _once(config, release, account, secret.reshape(-1, actions)).reshape(-1)
    # Shrunk towards the middle as much as the noise says, which is post-processing.
    prior = config.reward_range**2 / 12
    kept = prior / (prior + release.sigma**2)
    found = config.middle + kept * (noisy - config.middle)
    return np.asarray(np.clip(found, *config.rewards), np.float32)


def release_output(
    config: FunctionalQConfig, logged: Logged, account: Account
) -> Float[np.ndarray, "size actions"]:
    """Mode output-release: action values after all iterations, once, with fresh noise."""
    if config.learner == "network":
        return _release_network(config, logged, account)
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
    sensitivity = _sensitivity(config, change, config.actions)
    release = _release(config, "action values", sensitivity, secret.size, 1)
    return averager.clipped(_once(config, release, account, secret))


def release_iterations(
    config: FunctionalQConfig, logged: Logged, account: Account
) -> Float[np.ndarray, "size actions"]:
    """Mode per-iteration: every iteration reads released values only, and is released itself.

    After a kill it goes on from the last one that was written; an iteration that was charged and
    not written is left out.
    """
    averager = Averager(config, logged)
    rewards = _secret_rewards(config, logged)
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
    config: FunctionalQConfig, logged: Logged, account: Account
) -> Float[np.ndarray, "size actions"]:
    """Mode output-release with a network: a whole function, asked at the nodes and then closed."""
    fit = network_fit(config)
    log = Log(
        _on_unit_interval(config, logged.observations),
        np.asarray(logged.actions),
        _secret_rewards(config, logged),
        _on_unit_interval(config, logged.next_observations),
        np.asarray(logged.terminated),
    )
    parameters = fit.train(log)

    def secret(points: Float[np.ndarray, "q 1"]) -> Float[np.ndarray, "q actions"]:
        return fit.values(parameters, points[:, 0])

    file = account.place(0).file
    if file is None:
        sensitivity = _network_sensitivity(config)
        release = _release(config, "action values of a network", sensitivity, None, 1)
        with explaining([account]):
            opened = release.open(account.ledger, account.folder)
        function = opened.release_function(secret, config.actions)
    else:
        function = ReleasedFunction.open(file, secret)
    if not function.closed:
        function.close(config.grid.axes)
    low, high = (bound / (1 - config.discount) for bound in config.rewards)
    return np.asarray(np.clip(function(config.grid.axes[0]), low, high))


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
    before, except of a network; there it is infinite, and the certificate says more.
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


def network_fit(config: FunctionalQConfig) -> NetworkFit:
    """The training of output-release with a network; it follows from public numbers."""
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
    return network_fit(config).sensitivity(_radius(config), one_reward=one_reward)


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
            claims.WHOLE_FUNCTION(
                radius=f"{config.reward_radius:g}",
                share=f"{config.reward_radius / config.reward_range:.3g}",
                low=f"{low:g}",
                high=f"{high:g}",
            )
            if config.reward_radius is not None
            else claims.ONE_REWARD(low=f"{low:g}", high=f"{high:g}"),
        ),
        does_not_protect=PUBLIC,
        assumptions=(
            claims.REWARD_FREE.assumption(),
            *((claims.ONE_FUNCTION.assumption(),) if whole else ()),
        ),
    )


def _once(
    config: FunctionalQConfig,
    release: FunctionRelease,
    account: Account,
    secret: Float[np.ndarray, "size actions"],
) -> Float[np.ndarray, "size actions"]:
    """A table's only release, or what an earlier training has written of it."""
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
    """One release of a table at nodes."""
    shape = (*config.grid.nodes, secret.shape[-1])
    axes = config.grid.axes if config.noise == "process" else None
    released = opened.release(secret.reshape(shape), axes)
    return np.asarray(released.values.reshape(secret.shape))


def _secret_rewards(config: FunctionalQConfig, logged: Logged) -> Float[np.ndarray, " steps"]:
    """The rewards of logged steps. Whatever is made of them leaves through a release.

    All are in the public range, which the sensitivity is about. A NaN stays one in `np.clip`, and
    every average that it is in would be none: it counts as a reward that nothing is known of.
    """
    env = config.environment
    step = jax.jit(jax.vmap(lambda s, a: env.step(s, a, env.default_params)[1]))
    rewards = np.asarray(step(logged.states, logged.actions), np.float64)
    return np.clip(np.where(np.isfinite(rewards), rewards, config.middle), *config.rewards)


def _on_unit_interval(config: FunctionalQConfig, observations: Any) -> Float[np.ndarray, " steps"]:
    """States in the box of the nodes, scaled to [0, 1]; those outside count as the nearest."""
    low, high = config.grid.low[0], config.grid.high[0]
    return np.clip((np.asarray(observations, np.float64)[:, 0] - low) / (high - low), 0.0, 1.0)
