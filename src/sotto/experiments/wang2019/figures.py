"""The figures of Wang and Hegde 2019, "Privacy-preserving Q-learning with functional noise".

All seeds of an arm are trained at once. Status and epsilon are those of the certificates.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sotto.algorithms.baselines.dqn import DQNConfig
from sotto.algorithms.baselines.q_learning import EpsilonGreedy
from sotto.algorithms.functional_q import training
from sotto.experiments.certified import certificates, stated
from sotto.experiments.engine import Arm, Report, Result, ResultFolder, Say, row_file, run
from sotto.experiments.figure_files import about, write_data
from sotto.experiments.plots import in_seeds
from sotto.experiments.wang2019 import baselines, dp_sgd, plots
from sotto.experiments.wang2019.arms import (
    DELTA,
    OPTIMUM,
    RANDOM,
    FigureName,
    Method,
    methods,
)
from sotto.experiments.wang2019.dp_sgd import DPSGDConfig
from sotto.keys import new_key
from sotto.privacy.certificates.joint import Cost, replaced, zero_out_budget
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.units import Adjacency
from sotto.rl.evaluation import returns_in_jax

_EVALUATION_KEY = 2019
_EPISODES = 64  # episodes of each evaluation, the same for all arms
_LINE = {"to the centre": OPTIMUM, "uniform actions": RANDOM}


def make_figure(
    figure: FigureName, seeds: Sequence[int], out: Path, say: Say, quick: bool = False
) -> dict[str, Any]:
    """Trains the missing arms, writes figure and data, and returns a summary.

    Args:
        figure: name of the figure.
        seeds: seeds of every arm.
        out: folder of the results; arms are kept in out/arms.
        say: shows the progress.
        quick: whether to run a quick test, as in `methods`.
    """
    out.mkdir(parents=True, exist_ok=True)
    stem, store = out / (f"{figure}-quick" if quick else figure), ResultFolder(out / "arms")
    results = run([arm(one, seeds) for one in methods(figure, quick)], store, 1, say)
    write_data(stem, rows(figure, results), [_about(one, figure) for one in results])
    draw(stem.with_suffix(".png"), figure, results)
    return {"curves": [_summary(one, figure) for one in results]}


def arm(one: Method, seeds: Sequence[int], episodes: int = _EPISODES) -> Arm:
    """Returns the arm of a method.

    Args:
        one: the method.
        seeds: seeds of the runs.
        episodes: number of episodes of each evaluation.
    """
    return Arm(
        one.name,
        one.label,
        one,
        tuple(seeds),
        row_file(one.name, one.settings, seeds),
        partial(train, episodes=episodes),
        # Compiling takes equally long for all numbers of seeds.
        one.seconds * (3 + len(seeds)) / 13,
        x=one.x,
        panel=one.panel,
    )


# --- training ------------------------------------------------------------------------------------


def train(
    arm: Arm, seeds: Sequence[int], folder: Path, _report: Report, *, episodes: int = _EPISODES
) -> list[Result]:
    """Trains one arm and evaluates its greedy policies during training."""
    one: Method = arm.settings
    folders = [folder / f"seed-{seed}" for seed in seeds]
    ledgers = _ledgers(one, folders)
    key = new_key(_EVALUATION_KEY)
    samples: list[int] = []
    returns: list[np.ndarray] = []
    for steps, values in _started(one, seeds, ledgers):
        samples.append(steps)
        actors = EpsilonGreedy(values, 0.0)
        found = returns_in_jax(one.task.environment, actors, key, episodes, True).mean(axis=1)
        returns.append(np.asarray(found, np.float64))
    said = {"delta": one.task.delta} | certificates(ledgers, folders, _cost)
    curves = {"return": np.stack(returns, axis=1)}
    return [Result(arm, tuple(seeds), np.array(samples), curves, **said)]


def _cost(certificate: Certificate) -> Cost:
    """Returns epsilon and delta for replaced rewards, about which the figures are."""
    zeroed = certificate.unit.adjacency is Adjacency.ZERO_OUT
    return replaced(certificate) if zeroed else stated(certificate)


def _ledgers(one: Method, folders: Sequence[Path]) -> list[Ledger]:
    paths = [folder / "ledger.sqlite" for folder in folders]
    if one.method == "dqn":
        return []
    if one.method == "dp-sgd":
        assert one.task.target_epsilon is not None
        budget = zero_out_budget(one.task.target_epsilon, one.task.delta)
        return [Ledger.create(path, unit=dp_sgd.UNIT, budget=budget) for path in paths]
    return [training.create_ledger(one.task, path) for path in paths]


def _started(one: Method, seeds: Sequence[int], ledgers: list[Ledger]) -> baselines.Curve:
    options = dict(one.options)
    match one.method:
        case "functional":
            return baselines.functional(one.task, seeds, ledgers)
        case "input":
            return baselines.input_perturbation(one.task, seeds, ledgers)
        case "policy-evaluation":
            return baselines.policy_iteration(one.task, seeds, ledgers, **options)
        case "dp-sgd":
            return baselines.dp_sgd(DPSGDConfig(one.task, **options), seeds, ledgers)
        case "dqn":
            return baselines.non_private(DQNConfig(env_id=one.task.env_id, **options), seeds)


# --- numbers -------------------------------------------------------------------------------------


def rows(figure: FigureName, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns one row for each arm, seed and point."""
    names = ("figure", "arm", "label", "status", "unit", "epsilon", "delta", "radius", "x")
    return [
        {name: said[name] for name in names} | {"seed": seed, "samples": samples, "return": value}
        for said in (_about(result, figure) for result in results)
        for samples, values in zip(said["samples"], said["returns"], strict=True)
        for seed, value in zip(said["seeds"], values, strict=True)
    ]


def _about(result: Result, figure: FigureName) -> dict[str, Any]:
    """Returns a result with its settings as JSON values; its returns are [points][seeds]."""
    one: Method = result.arm.settings
    return about(result) | {
        "figure": figure,
        "panel": one.panel,
        "x": one.x,
        "unit": "" if one.method == "dqn" else one.task.unit,
        "radius": one.task.reward_radius,
        "seeds": list(result.seeds),
        "samples": [int(steps) for steps in result.points],
        "returns": result.curves["return"].T.tolist(),
        "seconds": result.seconds,
        "settings": one.settings,
    }


def _summary(result: Result, figure: FigureName) -> dict[str, Any]:
    said, returns = _about(result, figure), result.curves["return"]
    names = ("arm", "label", "status", "unit", "epsilon", "delta", "radius", "samples")
    numbers = {"mean": returns.mean(axis=0).tolist(), "std": returns.std(axis=0).tolist()}
    return {name: said[name] for name in names} | numbers


# --- pictures ------------------------------------------------------------------------------------


def draw(path: Path, figure: FigureName, results: Sequence[Result]) -> None:
    """Draws a figure into a PNG."""
    seeds = in_seeds(len(results[0].seeds))
    if figure == "tradeoff":
        samples = int(results[0].points[-1])
        every = all(one.status == "proved" for one in results)
        proved = "all certificates proved" if every else "not all certificates proved"
        plots.tradeoff(
            path,
            results,
            f"Return after {samples:,} steps, {seeds}; {proved}",
            {
                "epsilon": (f"Unit: the reward of one transition, delta = {DELTA:g}", "epsilon"),
                "radius": (
                    f"Unit: the reward function, epsilon 0.9, delta = {DELTA:g}\n"
                    "shaded: r and 0.5 - r are neighbours, and no policy is good for both",
                    "radius of neighbouring reward functions (their range is 0.5)",
                ),
            },
            _LINE,
            impossible_from=0.5,
        )
        return
    epsilon = 0.9 if figure == "fig2a" else 0.45
    title = f"Unit: the reward of one transition; epsilon {epsilon:g}"
    panels = {
        "ours": f"proved at epsilon {epsilon:g}, delta {DELTA:g};\nDQN without privacy",
        "baselines": "baselines: proved at the same unit and epsilon;\n"
        "paper: claimed, for the reward function within radius 1",
    }
    if figure == "fig1":
        panels = {one.arm.panel: f"reset factor {one.arm.panel}" for one in results}
        title = "Algorithm 1 as printed, sigma set by hand: status paper-claim, no one is protected"
    elif figure == "cartpole":
        panels = {"ours": "Unit: the reward of one transition, delta = 1e-6"}
        title = "CartPole with a private reward of the state (4 dimensions)"
    references = {} if figure == "cartpole" else _LINE
    plots.learning_curves(path, results, f"{title}, {seeds}", panels, references)
