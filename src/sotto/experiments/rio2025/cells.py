"""Rio, Barlier, Colin 2025, "Differentially Private Policy Gradient": printed results, and cells.

A cell is one method with its settings in one environment. Table 1 and figures 2, 6 and 8 are lists
of cells. Figure 3 consists of formulas, which are in this module. Figures 1 and 5 are in `regret`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sotto.algorithms.baselines.a2c import A2CConfig
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.baselines.presets import a2c_preset, ppo_preset
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import PresetName, preset
from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.mechanisms.noise import SAMPLER_SHARE, sampler_delta

LanguageArm = Literal[
    "reranked",
    "reward-model",
    "many-features",
    "ratings",
    "preferences",
    "policy-gradient",
    "best-of-n",
    "paper",
]
"""Kind of training of a language model in figure 7."""
Mode = Literal["greedy", "sampled"]
"""Whether a policy takes its most likely action or samples one."""

DELTA = 1e-5
"""Default delta of every epsilon; the paper does not print its delta."""

NOISE_MULTIPLIERS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
"""Grid of figures 2 and 6."""

EPSILONS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Grid of the privacy-utility curve with certificates."""


# --- results as printed in the paper -------------------------------------------------------------


@dataclass(frozen=True)
class Reported:
    """A printed return, with mean and confidence interval "on at least 10 random seeds"."""

    mean: float
    half_width: float


@dataclass(frozen=True)
class Row:
    """One row of table 1.

    Attributes:
        env_id: name of the environment in this program.
        ppo, a2c: returns without privacy; None if not printed.
        dppg: returns by noise multiplier.
        goal_epsilon: epsilon of an additional cell with a certificate.
    """

    env_id: str
    ppo: Reported
    a2c: Reported | None
    dppg: dict[float, Reported]
    goal_epsilon: float


TABLE1 = (
    Row(
        "CartPole-v1",
        Reported(493.2, 9.4),
        None,
        {1.0: Reported(496.4, 6.6), 3.0: Reported(375.5, 86.7)},
        0.05,
    ),
    Row(
        "Acrobot-v1",
        Reported(-82.1, 5.1),
        None,
        {1.0: Reported(-83.0, 4.4), 3.0: Reported(-89.8, 7.6)},
        0.1,
    ),
    Row(
        "HalfCheetah-v5",
        Reported(2105.5, 627.9),
        Reported(1003.3, 27.2),
        {0.05: Reported(1548.9, 399.1), 0.1: Reported(1328.4, 306.5)},
        10.0,
    ),
    Row(
        "Hopper-v5",
        Reported(2208.2, 477.6),
        Reported(625.0, 106.8),
        {0.05: Reported(645.0, 176.4), 0.1: Reported(808.9, 321.65)},
        10.0,
    ),
    Row(
        "Dosing-0",
        Reported(78.9, 47.7),
        None,
        {0.1: Reported(109.9, 4.8), 0.5: Reported(17.2, 57.6)},
        0.1,
    ),
    Row(
        "Dosing-1",
        Reported(99.5, 51.9),
        None,
        {0.1: Reported(20.7, 53.4), 0.5: Reported(-24.9, 58.8)},
        0.1,
    ),
)
"""Table 1 of the paper. It does not print the version of MuJoCo's environments; here it is v5."""


_BASELINE_STEPS = {
    **{"CartPole-v1": 100_000, "Acrobot-v1": 100_000},
    **{"HalfCheetah-v5": 1_000_000, "Hopper-v5": 1_000_000},
    **{"Dosing-0": 300_000, "Dosing-1": 300_000},
}
"""Environment steps of PPO and A2C in this program; the paper does not print its numbers."""


# --- cells ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One method with its settings in one environment.

    Attributes:
        env_id: name of the environment.
        method: the method; PPO and A2C have no privacy.
        preset: preset of DPPG's settings; None for PPO and A2C.
        noise_multiplier: z; None if `target_epsilon` is given.
        target_epsilon: epsilon to which the noise is calibrated; None if z is given.
        delta: delta of the guarantee.
        total_steps: environment steps of the training; None takes the preset's number.
    """

    env_id: str
    method: Literal["ppo", "a2c", "dppg"]
    preset: PresetName | None = None
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float = DELTA
    total_steps: int | None = None

    def config(self) -> DPPGConfig | PPOConfig | A2CConfig:
        """Returns the algorithm's settings; their seed is not used."""
        changes: dict[str, Any] = {}
        if self.total_steps is not None:
            changes["total_steps"] = self.total_steps
        if self.preset is None:
            changes = {"total_steps": _BASELINE_STEPS[self.env_id]} | changes
            settings = a2c_preset if self.method == "a2c" else ppo_preset
            return settings(self.env_id, **changes)
        return preset(
            self.preset,
            self.env_id,
            target_epsilon=self.target_epsilon,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            evaluation_episodes=0,
            **changes,
        )

    @property
    def released(self) -> Literal["last", "ema"]:
        """Policy that is evaluated: the average of released ones for preset `sotto`, otherwise the
        last one, as in the paper."""
        return "ema" if self.preset == "sotto" else "last"

    @property
    def mode(self) -> Mode:
        """Mode of the policy in evaluations; the paper reports returns of training episodes."""
        return "greedy" if self.preset == "sotto" else "sampled"

    @property
    def noise_epsilon(self) -> float | None:
        """Tight epsilon of one release with this noise; None without noise."""
        if self.noise_multiplier is None:
            return self.target_epsilon
        return gaussian_epsilon(self.noise_multiplier, self.delta)

    @property
    def claimed_epsilon(self) -> float | None:
        """Epsilon by the paper's formulas for the noise multiplier; None without one."""
        z = self.noise_multiplier
        return None if z is None else claimed_epsilon(z, self.delta)

    @property
    def label(self) -> str:
        """Name in tables and figures."""
        if self.preset is None:
            return self.method.upper()
        z, epsilon = self.noise_multiplier, self.target_epsilon
        noise = f"epsilon = {epsilon:g}" if z is None else f"z = {z:g}"
        return f"DPPG {noise}, {'sotto' if self.preset == 'sotto' else 'paper settings'}"

    def __str__(self) -> str:
        return f"{self.env_id} {self.label}"


def table1(
    env_ids: Sequence[str],
    presets: Sequence[PresetName],
    delta: float = DELTA,
    total_steps: int | None = None,
) -> list[Cell]:
    """Returns the cells of table 1 and of figure 8.

    There is a cell for each number that the paper prints. Preset `sotto` has one more cell, at the
    goal epsilon, and no cell at a noise multiplier for which no certificate is possible.

    Args:
        env_ids: environments whose rows are returned.
        presets: presets of DPPG's settings.
        delta: delta of the guarantees.
        total_steps: environment steps of every training, instead of the presets' numbers.
    """
    cells = []
    for row in (row for row in TABLE1 if row.env_id in env_ids):
        env_id = row.env_id
        cells.append(Cell(env_id, "ppo", delta=delta, total_steps=total_steps))
        if row.a2c is not None:
            cells.append(Cell(env_id, "a2c", delta=delta, total_steps=total_steps))
        for name in presets:
            cells += [
                Cell(env_id, "dppg", name, z, delta=delta, total_steps=total_steps)
                for z in row.dppg
                if name == "paper" or certifiable(z, delta)
            ]
            if name == "sotto":
                cells.append(Cell(env_id, "dppg", name, None, row.goal_epsilon, delta, total_steps))
    return cells


def reported(cell: Cell) -> Reported | None:
    """Returns the paper's result for this cell; None if it has none."""
    row = next((row for row in TABLE1 if row.env_id == cell.env_id), None)
    if row is None:
        return None
    match cell.method:
        case "ppo":
            return row.ppo
        case "a2c":
            return row.a2c
        case "dppg":
            z = cell.noise_multiplier
            return None if z is None else row.dppg.get(z)


def certifiable(noise_multiplier: float, delta: float) -> bool:
    """Returns whether a certificate is possible with so little noise.

    Below a z of about 0.086, the finite tails of the sampler cost too much delta: 7e-6 at 0.08. The
    release then refuses to run.
    """
    return sampler_delta(noise_multiplier, 1) <= delta / SAMPLER_SHARE


# --- figure 3 ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpsilonPoint:
    """Epsilon at one noise multiplier by each formula of figure 3."""

    noise_multiplier: float
    classical: float
    """Epsilon C1(delta) / z, which is a guarantee only below 1, as the paper says."""
    zhao: float
    """Epsilon (1 + 2 sqrt(2) C2(delta) z) / (2 z^2), which is valid but loose."""
    tight: float
    """Epsilon of the analytic Gaussian mechanism under zero-out adjacency, as in certificates."""
    tight_replace_one: float
    """Epsilon of the analytic Gaussian mechanism under replace-one adjacency."""


def figure3(
    noise_multipliers: Sequence[float] = tuple(np.geomspace(0.05, 10, 60)), delta: float = DELTA
) -> list[EpsilonPoint]:
    """Returns epsilon at each noise multiplier, by each formula (appendix B.1)."""
    return [
        EpsilonPoint(
            noise_multiplier=z,
            classical=_classical(z, delta),
            zhao=_zhao(z, delta),
            tight=gaussian_epsilon(z, delta),
            tight_replace_one=gaussian_epsilon(z / 2, delta),
        )
        for z in noise_multipliers
    ]


def claimed_epsilon(noise_multiplier: float, delta: float = DELTA) -> float:
    """Returns the paper's epsilon: C1 / z if that is below 1, else Zhao et al. (appendix B.1)."""
    classical = _classical(noise_multiplier, delta)
    return classical if classical < 1 else _zhao(noise_multiplier, delta)


def _classical(z: float, delta: float) -> float:
    return math.sqrt(2 * math.log(1.25 / delta)) / z


def _zhao(z: float, delta: float) -> float:
    c2 = math.sqrt(math.log(2 / (math.sqrt(16 * delta + 1) - 1)))
    return (1 + 2 * math.sqrt(2) * c2 * z) / (2 * z * z)
