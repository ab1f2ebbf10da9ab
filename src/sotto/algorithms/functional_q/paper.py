"""Algorithm 1 of Wang and Hegde 2019 as printed. It protects nobody; its certificate says why.

Each update takes B steps with a = argmax Q + g. Here g is a sample path of the Gaussian process for
each action. Then it makes one step of gradient descent on (Q + g - y)^2 / 2 with
y = r + gamma max (Q + g)(s'). The path is drawn J times. The algorithm returns Q without noise.

The paper leaves some choices open. Here the network is a tanh network, and y is constant in the
gradient, as in DQN. The update of line 22 descends the gradient, although it is printed with a
plus. With a given sigma the kernel has beta 1, as in the authors' code.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.baselines.q_learning import QNetwork
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.release import PUBLIC
from sotto.privacy.claims import rewards as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.mechanisms.functions.calibration import PAPER_GAPS, PaperNoise, paper_noise
from sotto.privacy.mechanisms.functions.gaussian_process import Kernel, Paths
from sotto.privacy.statements import Part, Returning, StreamStatement
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.registry import make
from sotto.rl.rollout import EpisodeState, start

_AUTHORS_BETA = 1.0


class PaperState(NamedTuple):
    """The state between two updates, without the path, which a resumed training draws again."""

    values: QNetwork
    lane: EpisodeState
    updates: Int[Array, ""]


class _Batch(NamedTuple):
    observations: Float[Array, "b obs"]
    actions: Int[Array, " b"]
    noise: Float[Array, " b"]
    """Value of g at each step's state and action."""
    goals: Float[Array, " b"]


def init(config: FunctionalQConfig, key: PRNGKeyArray) -> PaperState:
    """Returns a fresh network and an environment at the start of an episode."""
    env = config.environment
    network_key, lane_key = jax.random.split(key)
    return PaperState(
        values=QNetwork(env, config.hidden, network_key, 1.0),
        lane=start(env, env.default_params, lane_key),
        updates=jnp.zeros((), jnp.int32),
    )


def noise(config: FunctionalQConfig) -> PaperNoise:
    """Returns the noise, with the given sigma or that of Theorem 5 for target_epsilon."""
    updates = config.samples // config.batch
    if config.sigma is not None:
        return PaperNoise(config.sigma, _AUTHORS_BETA, 0.0, config.resets or updates)
    assert config.target_epsilon is not None
    return paper_noise(
        steps=config.samples,
        batch=config.batch,
        lipschitz=config.lipschitz,
        learning_rate=config.learning_rate,
        epsilon=config.target_epsilon,
        delta=config.delta,
        resets=config.resets,
    )


class Algorithm1:
    """One run of the paper's algorithm.

    Args:
        config: settings.
        state: state from which the run continues.
        ledger: ledger that records every update, with the gaps that void the guarantee.
        key: randomness of resets.
    """

    def __init__(
        self, config: FunctionalQConfig, state: PaperState, ledger: Ledger, key: PRNGKeyArray
    ) -> None:
        self._env = config.environment
        self._config, self.state, self._key = config, state, key
        self._noise = noise(config)
        self._left = config.num_updates - int(state.updates)
        self._stream = ledger.open_stream(_statement(config, self._noise, self._left))
        self._path = self._fresh_path()

    def advance(self) -> tuple[float, float]:
        """Makes one update; returns the batch's mean reward and mean absolute noise."""
        config, made = self._config, int(self.state.updates)
        self._stream.charge(self._stream.releases, 1, [PersonBlock(0, 1)])
        resets = config.resets or config.num_updates
        if made % max(1, config.num_updates // resets) == 0:
            self._path = self._fresh_path()
        batch, lane, reward = self._collect(jax.random.fold_in(self._key, made))
        values = _descend(config.learning_rate, self.state.values, batch)
        self.state = PaperState(values, lane, self.state.updates + 1)
        return reward, float(jnp.abs(batch.noise).mean())

    def _collect(self, key: PRNGKeyArray) -> tuple[_Batch, EpisodeState, float]:
        config, env = self._config, self._env
        fresh = np.asarray(jax.random.uniform(key, (config.batch, env.reset_size)))
        step, lane = _program(config.env_id), self.state.lane
        rows: list[tuple[np.ndarray, int, float, float]] = []
        rewards = []
        for uniforms in fresh:
            here, plain = _observe(env, self.state.values, lane.state)
            noisy = self._met(here)
            action = int(np.argmax(plain + noisy))
            state, reward, terminated = step(lane.state, np.int32(action))
            there, following = _observe(env, self.state.values, state)
            best = np.max(following + self._met(there))
            goal = float(reward) + config.discount * (0.0 if terminated else float(best))
            rows.append((here, action, float(noisy[action]), goal))
            rewards.append(float(reward))
            ended = bool(terminated) or int(lane.elapsed) + 1 >= env.max_episode_steps
            lane = (
                EpisodeState(env.reset(jnp.asarray(uniforms), env.default_params), jnp.int32(0))
                if ended
                else EpisodeState(state, lane.elapsed + 1)
            )
        columns = [np.asarray(column) for column in zip(*rows, strict=True)]
        observations, actions, met, goals = columns
        batch = _Batch(
            jnp.asarray(observations, jnp.float32),
            jnp.asarray(actions, jnp.int32),
            jnp.asarray(met, jnp.float32),
            jnp.asarray(goals, jnp.float32),
        )
        return batch, lane, float(np.mean(rewards))

    def _met(self, observation: Float[np.ndarray, "1"]) -> Float[np.ndarray, " actions"]:
        """Returns g at the observation, one value for each action."""
        return np.asarray(self._path.at(float(observation[0])))

    def _fresh_path(self) -> Paths:
        kernel = Kernel(beta=self._noise.beta, sigma=self._noise.sigma)
        return Paths(kernel, self._config.actions)


def _statement(config: FunctionalQConfig, paper: PaperNoise, updates: int) -> StreamStatement:
    """Returns the statement for the ledger. Its gaps make the numbers void."""
    v = 1 / paper.beta
    claimed = config.lipschitz * float(np.sqrt(v * v + v))
    multiplier = paper.sigma / (claimed * float(np.sqrt(updates)))
    return StreamStatement(
        name="Algorithm 1 as printed",
        unit=config.privacy_unit,
        participation=Returning(max_participations=updates, min_separation=1),
        parts={"values": Part(clip_norm=claimed, noise_multiplier=multiplier)},
        dimensions={"values": config.actions * 2 * config.batch * updates},
        divisor=1.0,
        horizon=updates,
        population=config.population,
        sampler_delta=0.0,
        does_not_protect=PUBLIC,
        assumptions=(claims.ONE_FUNCTION.assumption(),),
        gaps=PAPER_GAPS,
    )


@lru_cache
def _program(env_id: str) -> jax.stages.Wrapped:
    env = make(env_id)
    return jax.jit(lambda state, action: env.step(state, action, env.default_params))


@partial(jax.jit, static_argnums=0)
def _observed(env: AnyEnvironment, values: QNetwork, state: object) -> tuple[Array, Array]:
    observation = env.observe(state, env.default_params)
    return observation, values(observation)


def _observe(env: AnyEnvironment, values: QNetwork, state: object) -> tuple[np.ndarray, np.ndarray]:
    """Returns the observation of a state and the network's values there."""
    observation, found = _observed(env, values, state)
    return np.asarray(observation), np.asarray(found, np.float64)


@partial(jax.jit, static_argnums=0)
def _descend(rate: float, values: QNetwork, batch: _Batch) -> QNetwork:
    def loss(values: QNetwork) -> Float[Array, ""]:
        plain = values(batch.observations)
        chosen = batch.actions[:, None] == jax.lax.iota(jnp.int32, plain.shape[-1])
        own = jnp.sum(jnp.where(chosen, plain, 0.0), axis=-1)
        return jnp.mean(0.5 * jnp.square(own + batch.noise - batch.goals))

    gradients = eqx.filter_grad(loss)(values)
    stepped: QNetwork = eqx.apply_updates(values, jax.tree.map(lambda g: -rate * g, gradients))
    return stepped
