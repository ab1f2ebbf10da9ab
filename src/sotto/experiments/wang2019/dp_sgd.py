"""DQN with DP-SGD on logged steps (Abadi et al. 2016), a baseline of Wang and Hegde 2019.

A uniform actor first logs the steps. Every gradient step then draws transitions by Poisson
sampling, clips the gradient of each transition's temporal-difference loss, and adds noise. So the
network, its target and the moments of Adam are functions of releases. The paper's appendix could
not be obtained, so this calibration is not the paper's.

Guarantee:
    Unit transition. The release certifies (e', d') under zero-out adjacency, amplified by sampling,
    with privacy loss distributions. To replace a reward is to remove its transition and to add
    another one. So all steps together are (2 e', (1 + e^e') d')-DP when a reward is replaced, and
    the budget of the ledger is (epsilon / 2, delta / (1 + e^(epsilon / 2))).

    The unit reward-function is not offered. All rewards change at once, so sampling does not
    amplify and every clipped gradient of a batch may change its sign. The noise would have to be
    larger by a factor of the batch size.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray

from sotto.algorithms.baselines.q_learning import (
    QLearner,
    QNetwork,
    Transitions,
    start_learner,
    stepped,
    temporal_difference_loss,
)
from sotto.algorithms.calibration import calibrated_multiplier
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.release import PUBLIC, Logged
from sotto.algorithms.settings import Count, Positive, Settings
from sotto.privacy.accounting.composition import SampledGaussian
from sotto.privacy.certificates.joint import zero_out_budget
from sotto.privacy.claims import rewards as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Part, Poisson
from sotto.privacy.units import Adjacency, Unit
from sotto.trees import at, single

UNIT = Unit(kind="transition", adjacency=Adjacency.ZERO_OUT)
"""Unit of the ledger. `zero_out_budget` translates its guarantee to a reward that is replaced."""


@dataclass(frozen=True)
class DPSGDConfig(Settings):
    """Settings of DP-SGD.

    Attributes:
        task: settings of the steps, network, discount, epsilon and delta. Its unit must be the
            transition.
        steps: number of gradient steps.
        batch: mean number of transitions of a gradient step.
        clip_norm: largest norm of a transition's gradient, in units of the value scale.
        learning_rate: initial learning rate of Adam, which falls linearly to zero.
        target_period: gradient steps between two copies to the target network.
    """

    task: FunctionalQConfig
    steps: Count = 300
    batch: Count = 250
    clip_norm: Positive = 0.1
    learning_rate: Positive = 5e-3
    target_period: Count = 25

    def check(self) -> None:
        """Refuses a task that DP-SGD does not protect, and a batch of all transitions."""
        if self.task.unit != "transition":
            raise ValueError(
                "DP-SGD protects single transitions, since sampling does not amplify when the "
                "whole reward function changes; give --unit transition"
            )
        if self.task.target_epsilon is None:
            raise ValueError("DP-SGD is calibrated to an epsilon; give --target-epsilon")
        if self.batch >= self.task.samples:
            raise ValueError(f"batch must be below samples = {self.task.samples}, got {self.batch}")

    @property
    def sampling_rate(self) -> float:
        """Probability that a step draws a transition."""
        return self.batch / self.task.samples


def noise_multiplier(config: DPSGDConfig, size: int) -> float:
    """Returns the least multiplier of a step's noise for the task's epsilon and delta.

    Args:
        config: settings.
        size: number of parameters of the network.
    """
    assert config.task.target_epsilon is not None
    budget = zero_out_budget(config.task.target_epsilon, config.task.delta)
    rate, steps = config.sampling_rate, config.steps
    return calibrated_multiplier(
        lambda z: [SampledGaussian(noise_multiplier=z, sampling_rate=rate, count=steps)],
        budget.epsilon,
        budget.delta,
        draws=steps * size,
        met=steps,
    )


def initial_state(config: DPSGDConfig, key: PRNGKeyArray) -> QLearner:
    """Returns the learner before any step, with a fresh network of values of order one."""
    task = config.task
    largest = max(abs(bound) for bound in task.rewards) / (1 - task.discount)
    values = QNetwork(task.environment, task.hidden, key, largest)
    return start_learner(_optimizer(config), values)


def gradient_release(config: DPSGDConfig, size: int) -> Release:
    """Returns the release of noisy clipped gradients.

    The data of a unit are (state before, action, observation, next observation, terminated).

    Args:
        config: settings.
        size: number of parameters of the network.
    """
    task, env = config.task, config.task.environment
    settings = task.learner_settings
    low, high = task.rewards
    optimizer = _optimizer(config)

    def local(state: Any, unit: Any, key: PRNGKeyArray) -> tuple[dict[str, Any], tuple[()]]:
        del key
        before, action, observation, following, terminated = unit
        _, reward, _ = env.step(before, action, env.default_params)
        reward = jnp.clip(reward, low, high)
        batch = single(Transitions(observation, action, reward, following, terminated))
        gradient = jax.grad(temporal_difference_loss)
        return {"gradient": gradient(state.values, state.target, settings, batch)}, ()

    def server(state: Any, released: Any) -> tuple[Any, tuple[()]]:
        return stepped(optimizer, config.target_period, state, released["gradient"]), ()

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
    config: DPSGDConfig, ledgers: list[Ledger], states: QLearner, logged: Logged, chunk: int
) -> Stream:
    """Opens the stream of gradients, with one run for each ledger.

    Args:
        config: settings.
        ledgers: ledgers of `UNIT`, one for each run.
        states: states from `initial_state`, [runs, ...].
        logged: steps of each run, [runs, samples, ...].
        chunk: gradient steps of one call of `run`.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(states.values)) // len(ledgers)
    one = at(unit_data(logged), 0)
    return gradient_release(config, size).open(ledgers, states, one, chunk=chunk)


def unit_data(logged: Logged) -> tuple[Any, ...]:
    """Returns the data of each transition that enter the release; rewards are not among them."""
    return (
        logged.states,
        logged.actions,
        logged.observations,
        logged.next_observations,
        logged.terminated,
    )


def _optimizer(config: DPSGDConfig) -> optax.GradientTransformation:
    return optax.adam(optax.linear_schedule(config.learning_rate, 0.0, config.steps), eps=1e-5)
