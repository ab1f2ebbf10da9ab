"""Rio, Barlier, Colin 2025, "Differentially Private Policy Gradient": its figures.

Figure 3 is a matter of formulas. Figures 2 and 6 (return against epsilon) train both presets over
a grid of epsilons. Everything is data first (plain dataclasses), drawn by `runs.figures`.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sotto.algorithms.dppg_config import PresetName, preset
from sotto.algorithms.dppg_training import Training, create_ledger, evaluate_policy, policies
from sotto.privacy.accounting import gaussian_epsilon

PAPER_NOISE_MULTIPLIERS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
"""The grid of figures 2 and 6."""

CURVE_EPSILONS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The grid of our privacy-utility curve."""


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
    noise_multipliers: Sequence[float] = tuple(np.geomspace(0.05, 10, 60)), delta: float = 1e-5
) -> list[EpsilonPoint]:
    """Epsilon against the noise multiplier, by each formula (appendix B.1)."""
    c1 = math.sqrt(2 * math.log(1.25 / delta))
    c2 = math.sqrt(math.log(2 / (math.sqrt(16 * delta + 1) - 1)))
    return [
        EpsilonPoint(
            noise_multiplier=z,
            classical=c1 / z,
            zhao=(1 + 2 * math.sqrt(2) * c2 * z) / (2 * z * z),
            tight=gaussian_epsilon(z, delta),
            tight_replace_one=gaussian_epsilon(z / 2, delta),
        )
        for z in noise_multipliers
    ]


@dataclass(frozen=True)
class UtilityPoint:
    """Returns of all seeds at one epsilon: greedy and sampled, per kind of released policy."""

    preset: PresetName
    env_id: str
    epsilon: float
    """What the noise would certify (the paper preset's certificate is a paper-claim: infinity)."""
    noise_multiplier: float
    status: str
    returns: dict[str, list[float]]
    """Mean over episodes, one per seed, keyed "ema greedy", "last sampled", ..."""


def figure2(
    env_id: str,
    name: PresetName,
    epsilons: Sequence[float] = CURVE_EPSILONS,
    *,
    seeds: int = 10,
    first_seed: int = 100,
    episodes: int = 100,
    delta: float = 1e-5,
    done: Sequence[UtilityPoint] = (),
    report: Callable[[UtilityPoint], None] | None = None,
    **changes: Any,
) -> list[UtilityPoint]:
    """Return against epsilon: figures 2 and 6, for either preset.

    Args:
        env_id: CartPole-v1 or Acrobot-v1.
        name: the preset to train.
        epsilons: targets; each is calibrated by the tight accountant.
        seeds: trainings per point, side by side.
        first_seed: the seeds are first_seed, first_seed + 1, ...
        episodes: evaluation episodes per policy.
        delta: delta of the guarantee.
        done: points already computed, which are not computed again.
        report: called with each new point.
        changes: settings that differ from the preset.
    """
    finished = {(point.preset, point.env_id, point.epsilon): point for point in done}
    points = []
    for epsilon in epsilons:
        point = finished.get((name, env_id, epsilon))
        if point is None:
            point = _train_point(
                env_id, name, epsilon, seeds, first_seed, episodes, delta=delta, **changes
            )
            if report is not None:
                report(point)
        points.append(point)
    return points


def _train_point(
    env_id: str,
    name: PresetName,
    epsilon: float,
    seeds: int,
    first_seed: int,
    episodes: int,
    **changes: Any,
) -> UtilityPoint:
    settings = {"evaluation_episodes": 0} | changes
    config = preset(name, env_id, target_epsilon=epsilon, **settings)
    with tempfile.TemporaryDirectory() as folder:
        ledgers = [create_ledger(config, Path(folder) / f"{i}.sqlite") for i in range(seeds)]
        training = Training(config, range(first_seed, first_seed + seeds), ledgers)
        for progress in training:
            states = progress.states
    key = jax.random.key(first_seed)
    returns = {
        f"{kind} {mode}": evaluate_policy(config, policy, key, episodes, greedy=mode == "greedy")
        .mean(axis=1)
        .tolist()
        for kind, policy in policies(states).items()
        for mode in ("greedy", "sampled")
    }
    status = "proved" if config.is_proved else "paper-claim"
    return UtilityPoint(name, env_id, epsilon, training.noise_multiplier, status, returns)


def as_rows(points: Sequence[EpsilonPoint | UtilityPoint]) -> list[dict[str, Any]]:
    """The points as plain data, for JSON."""
    return [asdict(point) for point in points]
