"""Wang and Hegde 2019, "Privacy-preserving Q-learning with functional noise": its figures.

A figure is a list of arms; an arm is one method with its settings, trained with several seeds side
by side. What comes out is data first (`Curve`), drawn by `runs.functional_figures`. Status and
epsilon of a curve are its certificates', not its settings'.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sotto.algorithms.baselines.dqn import DQNConfig
from sotto.algorithms.functional_q import dp_sgd, training
from sotto.algorithms.functional_q.dp_sgd import DPSGDConfig
from sotto.experiments.wang2019 import baselines
from sotto.experiments.wang2019.arms import Arm, FigureName, arms
from sotto.keys import new_key
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.joint import replaced, zero_out_budget
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.units import Adjacency

_EVALUATION_KEY = 2019


@dataclass(frozen=True)
class Curve:
    """What one arm gave.

    Attributes:
        figure, arm, label, panel, x: as in `Arm`.
        status: of its certificates; "not private" for DQN.
        unit: what is protected.
        epsilon: certified at `delta`, of the worst seed; None where nothing is. Where a certificate
            is of zero-out adjacency, what follows from it for a replaced reward
            (`privacy.composition.replaced`).
        delta: of `epsilon`.
        radius: of neighbouring reward functions.
        seeds: one per column of `returns`.
        samples: environment steps behind each point.
        returns: mean greedy return, [points][seeds].
        seconds: that it took.
        settings: all of the arm's, so that data of other settings is not mistaken for it.
    """

    figure: str
    arm: str
    label: str
    panel: str
    x: float | None
    status: str
    unit: str
    epsilon: float | None
    delta: float
    radius: float | None
    seeds: list[int]
    samples: list[int]
    returns: list[list[float]]
    seconds: float
    settings: str

    @property
    def final(self) -> np.ndarray:
        """Return of each seed at the end."""
        return np.asarray(self.returns[-1])


def rows(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """One row for each curve, seed and point, for tables."""
    return [
        {
            "figure": curve.figure,
            "arm": curve.arm,
            "label": curve.label,
            "status": curve.status,
            "unit": curve.unit,
            "epsilon": curve.epsilon,
            "delta": curve.delta,
            "radius": curve.radius,
            "x": curve.x,
            "seed": seed,
            "samples": samples,
            "return": value,
        }
        for curve in curves
        for samples, values in zip(curve.samples, curve.returns, strict=True)
        for seed, value in zip(curve.seeds, values, strict=True)
    ]


# --- training ------------------------------------------------------------------------------------


def train(figure: str, arm: Arm, seeds: Sequence[int], episodes: int = 64) -> Curve:
    """Trains one arm and evaluates its greedy policies as it goes.

    Args:
        figure: which it belongs to.
        arm: what to train.
        seeds: side by side.
        episodes: of each evaluation, the same for all arms.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ledgers = _ledgers(arm, Path(folder), len(seeds))
        key = new_key(_EVALUATION_KEY)
        samples: list[int] = []
        returns: list[list[float]] = []
        for steps, values in _started(arm, seeds, ledgers):
            samples.append(steps)
            found = baselines.greedy_returns(arm.task.environment, values, key, episodes)
            returns.append(np.asarray(found, np.float64).tolist())
        status, epsilon, delta = _certified(arm, ledgers)
    return Curve(
        figure=figure,
        arm=arm.name,
        label=arm.label,
        panel=arm.panel,
        x=arm.x,
        status=status,
        unit="" if arm.method == "dqn" else arm.task.unit,
        epsilon=epsilon,
        delta=delta,
        radius=arm.task.reward_radius,
        seeds=list(seeds),
        samples=samples,
        returns=returns,
        seconds=time.monotonic() - started,
        settings=arm.settings,
    )


def run(
    figure: FigureName,
    seeds: Sequence[int],
    *,
    quick: bool = False,
    done: Sequence[Curve] = (),
    report: Callable[[Curve], None] | None = None,
) -> list[Curve]:
    """All curves of a figure.

    Args:
        figure: which one.
        seeds: side by side.
        quick: as in `arms`.
        done: curves already there, which are not computed again.
        report: called with each new one.
    """
    kept = {(curve.settings, tuple(curve.seeds)): curve for curve in done}
    curves = []
    for arm in arms(figure, quick):
        curve = kept.get((arm.settings, tuple(seeds)))
        if curve is None:
            curve = train(figure, arm, seeds)
            if report is not None:
                report(curve)
        curves.append(curve)
    return curves


def _ledgers(arm: Arm, folder: Path, runs: int) -> list[Ledger]:
    paths = [folder / f"{run}.sqlite" for run in range(runs)]
    if arm.method == "dqn":
        return []
    if arm.method == "dp-sgd":
        assert arm.task.target_epsilon is not None
        budget = zero_out_budget(arm.task.target_epsilon, arm.task.delta)
        return [Ledger.create(path, unit=dp_sgd.UNIT, budget=budget) for path in paths]
    return [training.create_ledger(arm.task, path) for path in paths]


def _started(arm: Arm, seeds: Sequence[int], ledgers: list[Ledger]) -> baselines.Curve:
    options = dict(arm.options)
    match arm.method:
        case "functional":
            return baselines.functional(arm.task, seeds, ledgers)
        case "input":
            return baselines.input_perturbation(arm.task, seeds, ledgers)
        case "policy-evaluation":
            return baselines.policy_iteration(arm.task, seeds, ledgers, **options)
        case "dp-sgd":
            return baselines.dp_sgd(DPSGDConfig(arm.task, **options), seeds, ledgers)
        case "dqn":
            return baselines.non_private(DQNConfig(env_id=arm.task.env_id, **options), seeds)


def _certified(arm: Arm, ledgers: list[Ledger]) -> tuple[str, float | None, float]:
    """Status, epsilon and delta that follow from the certificates, of the worst seed."""
    if not ledgers:
        return "not private", None, arm.task.delta
    certificates = [derive(ledger) for ledger in ledgers]
    proved = all(certificate.status == "proved" for certificate in certificates)
    if not proved:
        return certificates[0].status, None, arm.task.delta
    worst = max(certificates, key=lambda certificate: certificate.epsilon)
    if worst.unit.adjacency is Adjacency.ZERO_OUT:  # figures are about replaced rewards
        return "proved", *replaced(worst)
    return "proved", worst.epsilon, worst.delta


def as_data(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The curves as plain data, for JSON."""
    return [asdict(curve) for curve in curves]
