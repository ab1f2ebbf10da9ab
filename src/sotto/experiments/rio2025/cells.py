"""Rio, Barlier, Colin 2025, "Differentially Private Policy Gradient": what it reports, and cells.

A cell is one method with its settings in one environment. Table 1 and figures 2, 6 and 8 are lists
of cells. Figure 3 is a matter of formulas, and here. Figures 1 and 5 are in `regret`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sotto.algorithms.baselines.a2c import A2CConfig
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.baselines.presets import a2c_preset, ppo_preset
from sotto.algorithms.dppg.config import DPPGConfig, PresetName, preset
from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.mechanisms.noise import SAMPLER_SHARE, sampler_delta

Mode = Literal["greedy", "sampled"]
"""How a policy acts."""

DELTA = 1e-5
"""Of every epsilon here, unless another is asked for; the paper's is not printed."""

NOISE_MULTIPLIERS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
"""The grid of figures 2 and 6."""

EPSILONS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The grid of our privacy-utility curve."""


# --- what the paper reports ----------------------------------------------------------------------


@dataclass(frozen=True)
class Reported:
    """A return as printed: mean and confidence interval "on at least 10 random seeds"."""

    mean: float
    half_width: float


@dataclass(frozen=True)
class Row:
    """One row of table 1.

    Attributes:
        env_id: the environment, as it is called here.
        ppo, a2c: without privacy; None where nothing is printed.
        dppg: return by noise multiplier.
        goal_epsilon: our own goal, with a certificate.
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
"""Table 1. The version of MuJoCo's environments is not printed; ours is v5."""


_BASELINE_STEPS = {
    **{"CartPole-v1": 100_000, "Acrobot-v1": 100_000},
    **{"HalfCheetah-v5": 1_000_000, "Hopper-v5": 1_000_000},
    **{"Dosing-0": 300_000, "Dosing-1": 300_000},
}
"""Environment steps of PPO and A2C here; the paper's are not printed."""


# --- cells ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What is trained.

    Attributes:
        env_id: the environment.
        method: PPO and A2C are without privacy.
        preset: whose settings DPPG has; None for the others.
        noise_multiplier: z, or
        target_epsilon: what noise is calibrated to.
        delta: of the guarantee.
        total_steps: environment steps of the training; None for the preset's own.
    """

    env_id: str
    method: Literal["ppo", "a2c", "dppg"]
    preset: PresetName | None = None
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float = DELTA
    total_steps: int | None = None

    def config(self) -> DPPGConfig | PPOConfig | A2CConfig:
        """Settings of the algorithm; the seed among them is not used."""
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
        """The policy that is judged: the average of released ones is our recipe's, not the paper's,
        and PPO and A2C have none."""
        return "ema" if self.preset == "sotto" else "last"

    @property
    def mode(self) -> Mode:
        """How it acts when it is judged: the paper reports what training episodes returned."""
        return "greedy" if self.preset == "sotto" else "sampled"

    @property
    def noise_epsilon(self) -> float | None:
        """What the noise is worth at best: tight epsilon of one release; None without noise."""
        if self.noise_multiplier is None:
            return self.target_epsilon
        return gaussian_epsilon(self.noise_multiplier, self.delta)

    @property
    def claimed_epsilon(self) -> float | None:
        """What the paper's formulas say of its noise multiplier; None where it has none."""
        z = self.noise_multiplier
        return None if z is None else claimed_epsilon(z, self.delta)

    @property
    def label(self) -> str:
        """In tables and figures."""
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
    """Cells of table 1 and of figure 8.

    The paper's columns are trained where the paper has a number. With our preset there is one more,
    at the goal epsilon, and none at a noise multiplier that no certificate can be given for.

    Args:
        env_ids: of which rows.
        presets: whose settings DPPG has.
        delta: of the guarantees.
        total_steps: of every training, instead of the presets' own.
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
    """What the paper has for this cell; None where it has nothing."""
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


def certifiable(noise_multiplier: float, delta: float = DELTA) -> bool:
    """Whether a certificate can be given for noise this small.

    Below z of about 0.086 the finite tails of the sampler show: at 0.08 they alone cost delta 7e-6,
    so that the door refuses it.
    """
    return sampler_delta(noise_multiplier, 1) <= delta / SAMPLER_SHARE


# --- figure 3 ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpsilonPoint:
    """Figure 3 at one noise multiplier: the formula the paper calls invalid, its own, the truth."""

    noise_multiplier: float
    classical: float
    """C1(delta) / z; a guarantee only below 1."""
    zhao: float
    """(1 + 2 sqrt(2) C2(delta) z) / (2 z^2): valid, loose."""
    tight: float
    """The analytic Gaussian mechanism, zero-out adjacency: what a certificate states."""
    tight_replace_one: float
    """The same under replace-one adjacency."""


def figure3(
    noise_multipliers: Sequence[float] = tuple(np.geomspace(0.05, 10, 60)), delta: float = DELTA
) -> list[EpsilonPoint]:
    """Epsilon against the noise multiplier, by each formula (appendix B.1)."""
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
    """The paper's own: C1 / z where that is below 1, else Zhao et al. (appendix B.1)."""
    classical = _classical(noise_multiplier, delta)
    return classical if classical < 1 else _zhao(noise_multiplier, delta)


def _classical(z: float, delta: float) -> float:
    return math.sqrt(2 * math.log(1.25 / delta)) / z


def _zhao(z: float, delta: float) -> float:
    c2 = math.sqrt(math.log(2 / (math.sqrt(16 * delta + 1) - 1)))
    return (1 + 2 * math.sqrt(2) * c2 * z) / (2 * z * z)
