"""Private policy gradient on CartPole-v1 at equal epsilon, with the same people.

sotto's preset is compared with DP-REINFORCE as one builds it from other libraries: clipped_grad of
jax_privacy clips each person's gradient, its privatizers add the noise, dp_accounting calibrates
it. A person is in one release with one episode of at most 128 steps, 64 persons are in each, and
delta is 1e-5. The peer's noise is either independent, with Adam, or correlated by jax_privacy's
optimal Toeplitz matrix, with plain steps. Both have sotto's network and its moving average. The
learning rate, clip norm and baseline of a peer are the best of a grid at each epsilon, on seeds
that are not reported.

Opacus has no part in it: it bounds the examples of a batch, and a person's trajectory is many of
them. Stable-Baselines3 shuffles all steps into minibatches, so nothing bounds a person's share.
"""

import functools
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from dp_accounting.pld import PLDAccountant
from jax_privacy.matrix_factorization import toeplitz
from jax_privacy.noise_addition import gaussian_privatizer, matrix_factorization_privatizer

from against.kept import Row
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.dppg.training import DPPGTraining, create_ledger, evaluate_policy, policies
from sotto.rl.envs.registry import make
from sotto.rl.networks import Policy
from sotto.rl.rollout import rollout

ENV, DELTA, EPISODES, EMA = "CartPole-v1", 1e-5, 100, 0.98
EPSILONS = (0.05, 0.3, 1.0)
RATES = {"independent": (0.003, 0.01, 0.03), "correlated": (0.1, 0.3, 1.0)}
"""Learning rates that are tried for each peer."""
CLIPS = (0.1, 1.0)
"""Clip norms that are tried. A person's gradient of the first policy has a norm of about 1.4."""
BASELINES = (0.0, 30.0)
"""Constants that are tried, which are subtracted from every reward to go."""
TUNING_SEEDS = tuple(range(8))


class Tried(NamedTuple):
    """Settings of a peer."""

    learning_rate: float
    clip_norm: float
    baseline: float


def settings(epsilon: float, quick: bool) -> DPPGConfig:
    """Returns sotto's preset, with a tenth of the people if it must be quick."""
    shorter = {"total_steps": 105_000} if quick else {}
    return preset(
        "sotto", ENV, target_epsilon=epsilon, delta=DELTA, evaluation_episodes=0, **shorter
    )


def ours(config: DPPGConfig, seeds: list[int]) -> tuple[np.ndarray, float]:
    """Returns each seed's mean greedy return and the noise multiplier."""
    with tempfile.TemporaryDirectory() as folder:
        ledgers = [create_ledger(config, Path(folder) / f"{seed}.sqlite") for seed in seeds]
        training = DPPGTraining(config, seeds, ledgers)
        for _ in training:
            pass
        assert config.target_epsilon is not None
        assert all(one.spent().epsilon <= config.target_epsilon for one in ledgers)
        ema = policies(training.states)["ema"]
    found = evaluate_policy(config, ema, jax.random.key(7), EPISODES)
    return found.mean(axis=1), float(training.noise_multiplier)


def least_noise(epsilon: float) -> float:
    """Returns the noise multiplier of one Gaussian release, for each person is in one only."""
    return float(
        dp_accounting.calibrate_dp_mechanism(
            PLDAccountant, dp_accounting.GaussianDpEvent, epsilon, DELTA
        )
    )


@functools.cache
def program(config: DPPGConfig, noise: float, kind: str, clip: float) -> Callable[..., Policy]:
    """Returns DP-REINFORCE from jax_privacy's parts, compiled.

    Its arguments are keys of several seeds, a learning rate and a baseline. It returns the moving
    averages of the policies.
    """
    env, people, updates = make(ENV), config.users_per_update, config.num_updates
    discount = config.discount

    def loss(policy: Policy, key: Any, baseline: Any) -> Any:
        """Returns REINFORCE's loss of one person's episode."""
        seen = rollout(env, env.default_params, policy, key, config.steps_per_user, True)
        back = lambda later, reward: (reward + discount * later,) * 2  # noqa: E731
        _, to_go = jax.lax.scan(back, 0.0, seen.rewards, reverse=True)
        worth = jax.lax.stop_gradient(to_go - baseline)
        scores = policy(seen.observations).log_prob(seen.actions)
        return -jnp.sum(jnp.where(seen.alive, scores * worth, 0.0)) / config.steps_per_user

    gradient = jax_privacy.clipped_grad(
        loss, batch_argnums=1, keep_batch_dim=False, l2_clip_norm=clip, rescale_to_unit_norm=True
    )
    strategy = toeplitz.optimal_max_error_strategy_coefs(updates)
    matrix = toeplitz.inverse_as_streaming_matrix(strategy)
    sensitivity = float(jnp.sqrt(toeplitz.sensitivity_squared(strategy, updates)))

    def train(key: Any, rate: Any, baseline: Any) -> Policy:
        optimizer = optax.adam(rate) if kind == "independent" else optax.sgd(rate)
        first_key, noise_key, key = jax.random.split(key, 3)
        policy = Policy(
            env.observation_size,
            env.action,
            config.hidden,
            first_key,
            observation_scale=env.observation_scale,
        )
        privatizer = (
            gaussian_privatizer(stddev=noise, prng_key=noise_key)
            if kind == "independent"
            else matrix_factorization_privatizer(
                matrix, stddev=noise * sensitivity, prng_key=noise_key
            )
        )

        def step(state: Any, index: Any) -> tuple[Any, None]:
            policy, average, optimizer_state, noise_state = state
            keys = jax.random.split(jax.random.fold_in(key, index), people)
            total, noise_state = privatizer.update(gradient(policy, keys, baseline), noise_state)
            mean = jax.tree.map(lambda x: x / people, total)
            moves, optimizer_state = optimizer.update(mean, optimizer_state)
            policy = optax.apply_updates(policy, moves)
            average = optax.incremental_update(policy, average, 1 - EMA)
            return (policy, average, optimizer_state, noise_state), None

        state = (policy, policy, optimizer.init(policy), privatizer.init(policy))
        return jax.lax.scan(step, state, jnp.arange(updates))[0][1]

    return jax.jit(jax.vmap(train, (0, None, None)))


def reinforce(
    config: DPPGConfig, noise: float, kind: str, seeds: Sequence[int], tried: Tried
) -> np.ndarray:
    """Returns each seed's mean greedy return of DP-REINFORCE."""
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    trained = program(config, noise, kind, tried.clip_norm)
    found = trained(keys, tried.learning_rate, tried.baseline)
    returns: np.ndarray = evaluate_policy(config, found, jax.random.key(7), EPISODES).mean(axis=1)
    return returns


def tuned(config: DPPGConfig, noise: float, kind: str) -> Tried:
    """Returns the settings of the grid with the largest mean return."""
    grid = [Tried(*one) for one in itertools.product(RATES[kind], CLIPS, BASELINES)]
    return max(grid, key=lambda one: reinforce(config, noise, kind, TUNING_SEEDS, one).mean())


def measure(quick: bool) -> list[Row]:
    """Returns a row for each method and epsilon."""
    seeds, rows = list(range(100, 102 if quick else 110)), []

    def add(name: str, epsilon: float, config: DPPGConfig, **found: Any) -> None:
        common = {"name": name, "epsilon": epsilon, "people": config.users}
        returns = [float(one) for one in found.pop("returns")]
        rows.append({**common, "returns": returns, **found})
        print(f"  epsilon {epsilon:g}, {name}: {np.mean(returns):.1f} {found}", flush=True)

    for epsilon in EPSILONS:
        config, least = settings(epsilon, quick), least_noise(epsilon)
        returns, multiplier = ours(config, seeds)
        add("sotto", epsilon, config, returns=returns, noise_multiplier=multiplier)
        for kind, rates in RATES.items():
            middle = Tried(rates[1], CLIPS[1], BASELINES[1])
            tried = middle if quick else tuned(config, least, kind)
            returns = reinforce(config, least, kind, seeds, tried)
            chosen = {**tried._asdict(), "noise_multiplier": least}
            name = f"DP-REINFORCE, {kind} noise (jax_privacy)"
            add(name, epsilon, config, returns=returns, **chosen)
    return rows
