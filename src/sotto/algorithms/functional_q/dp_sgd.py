"""DQN with DP-SGD on logged steps (Abadi et al. 2016), a baseline of Wang and Hegde 2019.

Steps are logged first, by a uniform actor. Every gradient step draws transitions by Poisson
sampling, clips the gradient of each one's temporal difference, and adds noise: the network, its
target and Adam's moments are functions of releases. The calibration is ours, for the paper's
appendix could not be obtained.

Guarantee:
    Unit transition. The door certifies (e', d') under zero-out adjacency, amplified by sampling,
    with privacy loss distributions. Replacing a reward is zeroing its transition out and putting
    another in, so all steps together are (2 e', (1 + e^e') d') when a reward is replaced; the
    ledger's budget is therefore (epsilon / 2, delta / (1 + e^(epsilon / 2))).

    Unit reward-function: not offered. All rewards change at once, so a draw hides nothing: sampling
    does not amplify, every clipped gradient of a batch may turn around, and the noise needed is the
    batch size times larger.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from sotto.algorithms.baselines.q_learning import QNetwork, Transitions, temporal_difference_loss
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.release import PUBLIC, Logged
from sotto.algorithms.settings import Count, Positive, Settings
from sotto.keys import new_key
from sotto.privacy.accounting.composition import SampledGaussian, calibrate_noise_multiplier
from sotto.privacy.certificates.joint import zero_out_budget
from sotto.privacy.claims import rewards as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms.noise import calibrate_with_sampler, sampler_delta
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Part, Poisson
from sotto.privacy.units import Adjacency, Unit

UNIT = Unit(kind="transition", adjacency=Adjacency.ZERO_OUT)
"""Of the ledger; `zero_out_budget` says what that means when a reward is replaced."""


@dataclass(frozen=True)
class DPSGDConfig(Settings):
    """Settings of DP-SGD.

    Attributes:
        task: steps, network, discount, epsilon and delta; its unit must be the transition.
        steps: gradient steps.
        batch: transitions per gradient step, on average.
        clip_norm: of each transition's gradient, in units of the value scale.
        learning_rate: Adam's, which goes linearly to zero.
        target_period: gradient steps between copies to the target network.
    """

    task: FunctionalQConfig
    steps: Count = 300
    batch: Count = 250
    clip_norm: Positive = 0.1
    learning_rate: Positive = 5e-3
    target_period: Count = 25

    def check(self) -> None:
        """Refuses a task that DP-SGD does not protect, and a batch of everything."""
        if self.task.unit != "transition":
            raise ValueError(
                "DP-SGD protects single transitions: when the whole reward function changes, "
                "sampling amplifies nothing; give --unit transition"
            )
        if self.task.target_epsilon is None:
            raise ValueError("DP-SGD is calibrated to an epsilon; give --target-epsilon")
        if self.batch >= self.task.samples:
            raise ValueError(f"batch must be below samples = {self.task.samples}, got {self.batch}")

    @property
    def sampling_rate(self) -> float:
        """Probability that a step draws a transition."""
        return self.batch / self.task.samples


class DPSGDState(NamedTuple):
    """All of it is a function of releases."""

    values: PyTree[Array]
    """Parameters of the network."""
    target: PyTree[Array]
    optimizer_state: optax.OptState
    steps: Int[Array, ""]


def noise_multiplier(config: DPSGDConfig, size: int) -> float:
    """The least multiplier of a step's noise for the task's epsilon and delta.

    Args:
        config: settings.
        size: parameters of the network.
    """
    assert config.task.target_epsilon is not None
    budget = zero_out_budget(config.task.target_epsilon, config.task.delta)

    def least(delta: float) -> float:
        return calibrate_noise_multiplier(
            lambda z: [
                SampledGaussian(
                    noise_multiplier=z, sampling_rate=config.sampling_rate, count=config.steps
                )
            ],
            budget.epsilon,
            delta,
        )

    def sampler(multiplier: float) -> float:
        return config.steps * sampler_delta(multiplier, config.steps * size)

    return calibrate_with_sampler(least, sampler, budget.delta)


def network(config: DPSGDConfig, key: PRNGKeyArray) -> QNetwork:
    """A fresh network of action values; the largest possible value is of order one in it."""
    task = config.task
    largest = max(abs(bound) for bound in task.rewards) / (1 - task.discount)
    return QNetwork(task.environment, task.hidden, key, largest)


def initial_state(config: DPSGDConfig, key: PRNGKeyArray) -> DPSGDState:
    """The state before any step; `network(config, key)` is what it holds the parameters of."""
    parameters = eqx.filter(network(config, key), eqx.is_array)
    return DPSGDState(
        values=parameters,
        target=parameters,
        optimizer_state=_optimizer(config).init(parameters),
        steps=jnp.zeros((), jnp.int32),
    )


def action_values(config: DPSGDConfig, parameters: PyTree[Array]) -> QNetwork:
    """The network with these parameters."""
    values: QNetwork = eqx.combine(parameters, _static(config))
    return values


def gradient_release(config: DPSGDConfig, size: int) -> Release:
    """The release of noisy clipped gradients.

    Unit data of the door: (state before, action, observation, next observation, terminated).

    Args:
        config: settings.
        size: parameters of the network.
    """
    task, env = config.task, config.task.environment
    settings = task.learner_settings
    low, high = task.rewards
    optimizer, static = _optimizer(config), _static(config)

    def local(state: Any, unit: Any, key: PRNGKeyArray) -> tuple[dict[str, Any], tuple[()]]:
        del key
        before, action, observation, following, terminated = unit
        _, reward, _ = env.step(before, action, env.default_params)
        reward = jnp.clip(reward, low, high)
        batch = jax.tree.map(
            lambda x: x[None], Transitions(observation, action, reward, following, terminated)
        )
        target: QNetwork = eqx.combine(state.target, static)

        def loss(parameters: PyTree[Array]) -> Array:
            values: QNetwork = eqx.combine(parameters, static)
            return temporal_difference_loss(values, target, settings, batch)

        return {"gradient": jax.grad(loss)(state.values)}, ()

    def server(state: Any, released: Any) -> tuple[Any, tuple[()]]:
        updates, optimizer_state = optimizer.update(released["gradient"], state.optimizer_state)
        values = optax.apply_updates(state.values, updates)
        made = state.steps + 1
        copied = made % config.target_period == 0
        target = jax.tree.map(lambda new, old: jnp.where(copied, new, old), values, state.target)
        return DPSGDState(values, target, optimizer_state, made), ()

    multiplier = noise_multiplier(config, size)
    return Release(
        name="gradients",
        local=local,
        server=server,
        unit=UNIT,
        parts={"gradient": Part(clip_norm=config.clip_norm, noise_multiplier=multiplier)},
        slots=task.samples,
        divisor=float(config.batch),
        horizon=config.steps,
        population=task.population,
        participation=Poisson(sampling_rate=config.sampling_rate, population=task.samples),
        protects=(claims.ZEROED(),),
        does_not_protect=PUBLIC,
        assumptions=(claims.REWARD_FREE.assumption(),),
    )


def open_gradients(
    config: DPSGDConfig, ledgers: list[Ledger], states: DPSGDState, logged: Logged, chunk: int
) -> Stream:
    """The open stream of gradients, over one run for each ledger.

    Args:
        config: settings.
        ledgers: one for each run, of `UNIT`.
        states: from `initial_state`, [runs, ...].
        logged: steps of each run, [runs, samples, ...].
        chunk: gradient steps of one call of `run`.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(states.values)) // len(ledgers)
    one = jax.tree.map(lambda x: x[0], unit_data(logged))
    return gradient_release(config, size).open(ledgers, states, one, chunk=chunk)


def unit_data(logged: Logged) -> tuple[Any, ...]:
    """What the door is given of each transition: everything but its reward."""
    return (
        logged.states,
        logged.actions,
        logged.observations,
        logged.next_observations,
        logged.terminated,
    )


def _static(config: DPSGDConfig) -> QNetwork:
    """The network without its parameters, which are replaced by None."""
    shapes = eqx.filter_eval_shape(network, config, new_key(0))
    static: QNetwork = eqx.filter(shapes, lambda x: not isinstance(x, jax.ShapeDtypeStruct))
    return static


def _optimizer(config: DPSGDConfig) -> optax.GradientTransformation:
    return optax.adam(optax.linear_schedule(config.learning_rate, 0.0, config.steps), eps=1e-5)
