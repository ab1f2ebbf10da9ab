"""Figures 1 and 5 of Rio et al. 2025: cumulative regret on RiverSwim, one episode per user.

An arm is one method with its settings. Regret is exact, V* - V^pi of the policy that each user
follows, by dynamic programming; where users perturb the released policy to explore, it is the mean
over fresh perturbations. Status and epsilon of a curve are its certificates'. `runs.regret_figures`
draws them.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float64

from sotto.algorithms.dppg import training as dppg_training
from sotto.algorithms.dppg.config import DPPGConfig, preset
from sotto.algorithms.ucb import calibrated as ucb_vi
from sotto.algorithms.ucb import published
from sotto.algorithms.ucb.calibrated import UCBConfig
from sotto.algorithms.ucb.published import OfficialConfig
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.tabular import FiniteMDP, regret, softmax

FigureName = Literal["fig1", "fig5"]
ENVIRONMENTS: dict[FigureName, str] = {"fig1": "RiverSwim-v0", "fig5": "RiverSwim90-v0"}
"""Probability of staying at the right bank: 0.6 and 0.9."""

EPSILONS = (5.0, 1.0)
_POINTS = 100
_PERTURBATIONS = 16

PANELS = {"proved": "certified", "none": "without a valid guarantee"}


@dataclass(frozen=True)
class Arm:
    """One method with its settings.

    Attributes:
        name: for files and tables.
        label: for the figure.
        panel: where its curve belongs, if its certificates are what its settings promise.
        epsilon: what noise was calibrated to, validly or not; None without noise.
        config: all settings.
    """

    name: str
    label: str
    panel: str
    epsilon: float | None
    config: DPPGConfig | UCBConfig | OfficialConfig


@dataclass(frozen=True)
class Curve:
    """What one arm gave.

    Attributes:
        env_id: the environment.
        arm, label: as in `Arm`.
        nominal_epsilon: what noise was calibrated to, validly or not; None without noise.
        status: of its certificates: "proved", "paper-claim" or "none".
        epsilon: certified at `delta`, of the worst seed; None where nothing is.
        delta: of the epsilons.
        seeds: one per column of `regret`.
        episodes: users behind each point.
        regret: cumulative, [points][seeds].
        seconds: that it took.
        settings: all of the arm's, so that data of other settings is not mistaken for it.
    """

    env_id: str
    arm: str
    label: str
    nominal_epsilon: float | None
    status: str
    epsilon: float | None
    delta: float
    seeds: list[int]
    episodes: list[int]
    regret: list[list[float]]
    seconds: float
    settings: str

    @property
    def panel(self) -> str:
        """Where it is drawn: by what its certificates say."""
        return "proved" if self.status == "proved" else "none"

    @property
    def final(self) -> Float64[np.ndarray, " seeds"]:
        """Cumulative regret of each seed at the end."""
        return np.asarray(self.regret[-1])


def arms(figure: FigureName, episodes: int = 2000, delta: float = 1e-5) -> tuple[Arm, ...]:
    """All arms of a figure.

    Args:
        figure: which one.
        episodes: users of each training.
        delta: of the guarantees, and below 1 / episodes.
    """
    env_id = ENVIRONMENTS[figure]
    chosen = []
    for epsilon in EPSILONS:
        dppg: dict[str, Any] = {
            "target_epsilon": epsilon,
            "delta": delta,
            "total_steps": 20 * episodes,
            "evaluation_episodes": 0,
        }
        chosen.append(
            Arm("dppg", "DPPG (sotto)", "proved", epsilon, preset("sotto", env_id, **dppg))
        )
        for variant in ("vi", "po"):
            calibrated = UCBConfig(env_id, variant, "joint", "prefix-sum", episodes, epsilon, delta)
            official = OfficialConfig(env_id, variant, "joint", episodes, epsilon)
            name = f"UCB-{variant.upper()}"
            chosen += [
                Arm(f"ucb-{variant}", name, "proved", epsilon, calibrated),
                Arm(f"ucb-{variant}-official", f"{name}, their noise", "none", epsilon, official),
            ]
        for kind, name in (("kl", "KL"), ("l2", "L2")):
            config = preset("paper", env_id, clip_norm_from=f"{kind}-quantile", **dppg)
            chosen.append(
                Arm(f"dppg-paper-{kind}", f"DPPG-{name} (paper)", "none", epsilon, config)
            )
    without = OfficialConfig(env_id, "vi", "joint", episodes, None)
    chosen.append(Arm("ucb-vi-without", "UCB-VI, no noise", "none", None, without))
    return tuple(chosen)


def figure(
    name: FigureName,
    seeds: Sequence[int],
    *,
    episodes: int = 2000,
    delta: float = 1e-5,
    done: Sequence[Curve] = (),
    report: Callable[[Curve], None] | None = None,
) -> list[Curve]:
    """All curves of figure 1 (p = 0.6) or 5 (p = 0.9).

    Args:
        name: which one.
        seeds: side by side.
        episodes: users of each training.
        delta: of the guarantees.
        done: curves already there, which are not computed again.
        report: called with each new one.
    """
    kept = {(curve.settings, tuple(curve.seeds)): curve for curve in done}
    curves = []
    for arm in arms(name, episodes, delta):
        curve = kept.get((arm.config.first_repr(), tuple(seeds)))
        if curve is None:
            curve = train(arm, seeds, delta)
            if report is not None:
                report(curve)
        curves.append(curve)
    return curves


def train(arm: Arm, seeds: Sequence[int], delta: float = 1e-5) -> Curve:
    """Trains one arm with several seeds side by side."""
    started = time.monotonic()
    config = arm.config
    status, epsilon = "none", None
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{index}.sqlite" for index in range(len(seeds))]
        ledgers: list[Ledger] = []
        if isinstance(config, DPPGConfig):
            ledgers = [dppg_training.create_ledger(config, path) for path in paths]
            losses = dppg_regret(config, seeds, ledgers)
        elif isinstance(config, UCBConfig):
            ledgers = [ucb_vi.create_ledger(config, path) for path in paths]
            losses = ucb_vi.train(config, seeds, ledgers)
        else:
            losses = published.simulate(config, seeds)
        if ledgers:
            certificates = [derive(ledger) for ledger in ledgers]
            # One that is not proved speaks for all.
            status = next((s for c in certificates if (s := c.status) != "proved"), "proved")
            if status == "proved":
                epsilon = max(one.epsilon for one in certificates)
    points = np.unique(np.linspace(1, losses.shape[1], _POINTS).astype(int))
    cumulative = np.cumsum(losses, axis=1)[:, points - 1]
    return Curve(
        env_id=config.env_id,
        arm=arm.name,
        label=arm.label,
        nominal_epsilon=arm.epsilon,
        status=status,
        epsilon=epsilon,
        delta=delta,
        seeds=list(seeds),
        episodes=points.tolist(),
        regret=cumulative.T.tolist(),
        seconds=time.monotonic() - started,
        settings=config.first_repr(),
    )


def dppg_regret(
    config: DPPGConfig, seeds: Sequence[int], ledgers: Sequence[Ledger]
) -> Float64[np.ndarray, "runs releases"]:
    """Exact regret of the policy that each release's users follow, in a finite MDP."""
    env = ucb_vi.environment(config.env_id)
    mdp = env.mdp(env.default_params)
    training = dppg_training.Training(config, seeds, ledgers)
    first = training.states.policy.network
    tables = np.asarray(first.weights[0] + first.biases[0][:, None])[:, None]
    released = [tables, *(progress.logits for progress in training)]
    followed = np.concatenate([table for table in released if table is not None], axis=1)[:, :-1]
    noise = np.random.default_rng(0)
    return np.stack([_expected(mdp, one, config.parameter_noise, noise) for one in followed])


def _expected(
    mdp: FiniteMDP,
    logits: Float[np.ndarray, "releases S A"],
    spread: float,
    noise: np.random.Generator,
) -> Float64[np.ndarray, " releases"]:
    """Regret, on average over users who perturb weights and biases by `spread`."""
    if spread == 0:
        return regret(mdp, softmax(logits))
    size = (len(logits), _PERTURBATIONS, *logits.shape[1:])
    weights, biases = noise.standard_normal(size), noise.standard_normal((*size[:2], 1, size[3]))
    perturbed = logits[:, None] + spread * (weights + biases)
    return np.asarray(regret(mdp, softmax(perturbed)).mean(axis=1))


def rows(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """One row for each curve, seed and point, for tables."""
    return [
        {
            "env_id": curve.env_id,
            "arm": curve.arm,
            "label": curve.label,
            "nominal_epsilon": curve.nominal_epsilon,
            "status": curve.status,
            "epsilon": curve.epsilon,
            "delta": curve.delta,
            "seed": seed,
            "episodes": episodes,
            "regret": value,
        }
        for curve in curves
        for episodes, values in zip(curve.episodes, curve.regret, strict=True)
        for seed, value in zip(curve.seeds, values, strict=True)
    ]


def as_data(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The curves as plain data, for JSON; `Curve(**row)` brings one back."""
    return [asdict(curve) for curve in curves]
