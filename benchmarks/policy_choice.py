"""The modes of `functional-q` on the line with other rewards than the tent of the task.

A whole reward function is protected within a radius. Candidates of policy-choice and all settings
are the same for every reward, and nothing was chosen for any of them.

    python benchmarks/policy_choice.py --seeds 50
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Array

from sotto.algorithms.baselines.q_learning import EpsilonGreedy, greedy_runs
from sotto.algorithms.functional_q import training
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.nodes import Grid, GridValues
from sotto.algorithms.functional_q.states import action_values
from sotto.rl.envs.line import Line
from sotto.rl.evaluation import returns_in_jax

REWARDS: dict[str, Callable[[Array], Array]] = {
    "tent": lambda x: 0.5 - jnp.abs(x - 0.5),
    "mirrored": lambda x: jnp.abs(x - 0.5),
    "rising": lambda x: x / 2,
    "tent at .3": lambda x: jnp.clip(0.5 - jnp.abs(x - 0.3), 0, 0.5),
    "valley at .7": lambda x: jnp.minimum(jnp.abs(x - 0.7), 0.5),
    "bump at .25": lambda x: 0.5 * jnp.exp(-(((x - 0.25) / 0.12) ** 2)),
}
"""Rewards of the next position; the public range is [0, 0.5]."""


@dataclass(frozen=True)
class Settings:
    """What to train."""

    seeds: int = 50
    first: int = 1000
    radius: float = 0.05
    epsilon: float = 0.9
    modes: tuple[Literal["policy-choice", "vector", "process"], ...] = ("policy-choice",)
    """policy-choice, vector (released rewards) or process (the same, as paths)."""


@dataclass(frozen=True, kw_only=True)
class Walk(Line):
    """The line with another reward."""

    shape: str

    def step(self, state, action, params):  # type: ignore[no-untyped-def]
        """Takes one step."""
        after, _, terminated = super().step(state, action, params)
        return after, REWARDS[self.shape](after.position), terminated


@dataclass(frozen=True)
class Task(FunctionalQConfig):
    """The task with another reward."""

    shape: str = "tent"

    @property
    def environment(self) -> Walk:
        """The line with this reward."""
        return Walk(shape=self.shape)


def trained(task: Task, seeds: range) -> EpsilonGreedy:
    """Returns the policies of a training with these seeds, each with a ledger of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ledgers = [training.create_ledger(task, Path(folder) / f"{seed}") for seed in seeds]
        *_, last = training.train(task, list(seeds), ledgers)
    return greedy_runs(action_values(last.states))


def returns(shape: str, policies: EpsilonGreedy, episodes: int = 64) -> np.ndarray:
    """Returns the mean return of each policy."""
    greedy = bool(np.all(np.asarray(policies.epsilon) == 0))
    found = returns_in_jax(Walk(shape=shape), policies, jax.random.key(0), episodes, greedy)
    return np.asarray(np.asarray(found).mean(axis=1))


def best(shape: str, nodes: int = 201) -> EpsilonGreedy:
    """Returns a policy that is optimal up to the width of a grid, for one episode's horizon."""
    places = np.linspace(0, 1, nodes)
    steps = (np.arange(50) + 0.5) / 200
    after = np.clip(places[:, None, None] + np.array([1, -1])[:, None] * steps, 0, 1)
    worth = np.asarray(REWARDS[shape](jnp.asarray(after)))
    value = np.zeros(nodes)
    for _ in range(50):
        table = (worth + np.interp(after, places, value)).mean(axis=2)
        value = table.max(axis=1)
    grid = Grid((0.0,), (1.0,), (nodes,))
    return greedy_runs(GridValues(jnp.asarray(table[None], jnp.float32), grid))


def uniform() -> EpsilonGreedy:
    """Returns the policy of uniform actions."""
    nothing = GridValues(jnp.zeros((1, 2, 2)), Grid((0.0,), (1.0,), (2,)))
    return EpsilonGreedy(nothing, jnp.ones((1,)))


def main(settings: Settings) -> None:
    """Prints a table: one row for each reward, mean and standard deviation over seeds."""
    seeds = range(settings.first, settings.first + settings.seeds)
    base = Task(
        unit="reward-function",
        reward_radius=settings.radius,
        target_epsilon=settings.epsilon,
        delta=1e-4,
    )
    print(f"{'reward':14}{'optimum':>9}{'random':>9}", *(f"{mode:>16}" for mode in settings.modes))
    for shape in REWARDS:
        row = []
        for mode in settings.modes:
            task = replace(base, shape=shape)
            if mode == "policy-choice":
                task = replace(task, mode="policy-choice")
            else:
                task = replace(task, noise=mode)
            found = returns(shape, trained(task, seeds))
            row.append(f"{found.mean():9.2f} ± {found.std(ddof=1):4.2f}")
        ends = [returns(shape, one, 10_000).mean() for one in (best(shape), uniform())]
        print(f"{shape:14}{ends[0]:9.2f}{ends[1]:9.2f}", *row, flush=True)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
