"""Figures 1 and 5 of Rio et al. 2025: cumulative regret on RiverSwim, with one episode per user.

The regret V* - V^pi of the policy that each user follows is computed exactly by dynamic
programming. If users perturb the released policy to explore, it is the mean over fresh
perturbations.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float64
from matplotlib.axes import Axes

from sotto.algorithms.dppg import training as dppg_training
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.ucb import calibrated as ucb_vi
from sotto.algorithms.ucb import published
from sotto.algorithms.ucb.calibrated import UCBConfig
from sotto.algorithms.ucb.published import OfficialConfig
from sotto.experiments import plots
from sotto.experiments.certified import certificates
from sotto.experiments.engine import Arm, Report, Result, ResultFolder, Say, row_file, run
from sotto.experiments.figure_files import about, point_rows, write_data
from sotto.experiments.statistics import over_seeds
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.tabular import FiniteMDP, regret, softmax

FigureName = Literal["fig1", "fig5"]
ENVIRONMENTS: dict[FigureName, str] = {"fig1": "RiverSwim-v0", "fig5": "RiverSwim90-v0"}
"""Environments, in which the probability of staying at the right bank is 0.6 and 0.9."""
EXCHANGED: dict[FigureName, str] = {
    "fig1": "RiverSwimExchanged-v0",
    "fig5": "RiverSwimExchanged90-v0",
}
"""The same with exchanged actions in half of the states."""

EPSILONS = (5.0, 1.0)
_POINTS = 100
_PERTURBATIONS = 16
_STARTING, _PER_EPISODE, _PER_SEED_EPISODE = 15.0, 2e-3, 4e-4  # seconds of one arm, on one core
_COLOURS = (*plots.COLOURS[:4], "#000000")
_STYLES = {5.0: "-", 1.0: "--", None: ":"}

PANELS = {"proved": "certified", "none": "without a valid guarantee"}


Config = DPPGConfig | UCBConfig | OfficialConfig


def arms(env_id: str, seeds: Sequence[int], episodes: int = 2000, delta: float = 1e-5) -> list[Arm]:
    """Returns all arms on an environment.

    The `x` of an arm is the epsilon to which its noise was calibrated, validly or not; None without
    noise. Its `panel` is right if its certificates are as expected; figures use `panel(result)`.

    Args:
        env_id: one of `ENVIRONMENTS` or `EXCHANGED`.
        seeds: seeds of the runs.
        episodes: number of users of each training.
        delta: delta of the guarantees, below 1 / episodes.
    """
    seconds = _STARTING + episodes * (_PER_EPISODE + len(seeds) * _PER_SEED_EPISODE)

    def arm(name: str, label: str, panel: str, epsilon: float | None, config: Config) -> Arm:
        file = row_file(name, config.first_repr(), seeds)
        made = partial(train, delta=delta)
        return Arm(name, label, config, tuple(seeds), file, made, seconds, x=epsilon, panel=panel)

    chosen = []
    for epsilon in EPSILONS:
        dppg: dict[str, Any] = {
            "population": "simulated",
            "target_epsilon": epsilon,
            "delta": delta,
            "total_steps": 20 * episodes,
            "evaluation_episodes": 0,
        }
        ours = preset("sotto", env_id, **dppg)
        chosen.append(arm("dppg", "DPPG (sotto)", "proved", epsilon, ours))
        r_max = UCBConfig(env_id, "r-max", "joint", "prefix-sum", episodes, epsilon, delta)
        chosen.append(arm("r-max", "R-MAX (sotto)", "proved", epsilon, r_max))
        for variant in ("vi", "po"):
            calibrated = UCBConfig(env_id, variant, "joint", "prefix-sum", episodes, epsilon, delta)
            official = OfficialConfig(env_id, variant, "joint", episodes, epsilon)
            name = f"UCB-{variant.upper()}"
            chosen += [
                arm(f"ucb-{variant}", name, "proved", epsilon, calibrated),
                arm(f"ucb-{variant}-official", f"{name}, their noise", "none", epsilon, official),
            ]
        for kind, name in (("kl", "KL"), ("l2", "L2")):
            config = preset("paper", env_id, clip_norm_from=f"{kind}-quantile", **dppg)
            chosen.append(
                arm(f"dppg-paper-{kind}", f"DPPG-{name} (paper)", "none", epsilon, config)
            )
    without = OfficialConfig(env_id, "vi", "joint", episodes, None)
    return [*chosen, arm("ucb-vi-without", "UCB-VI, no noise", "none", None, without)]


def train(
    arm: Arm, seeds: Sequence[int], folder: Path, _report: Report, *, delta: float = 1e-5
) -> list[Result]:
    """Trains all seeds of an arm; its curve is the cumulative regret."""
    config: Config = arm.settings
    folders = [folder / f"seed-{seed}" for seed in seeds]
    paths = [one / "ledger.sqlite" for one in folders]
    ledgers: list[Ledger] = []
    if isinstance(config, DPPGConfig):
        ledgers = [dppg_training.create_ledger(config, path) for path in paths]
        losses = dppg_regret(config, seeds, ledgers)
    elif isinstance(config, UCBConfig):
        ledgers = [ucb_vi.create_ledger(config, path) for path in paths]
        losses = ucb_vi.train(config, seeds, ledgers)
    else:
        losses = published.simulate(config, seeds)
    said: dict[str, Any] = {"delta": delta}
    said |= certificates(ledgers, folders) if ledgers else {"status": "none"}
    points = np.unique(np.linspace(1, losses.shape[1], _POINTS).astype(int))
    curves = {"regret": np.cumsum(losses, axis=1)[:, points - 1]}
    return [Result(arm, tuple(seeds), points, curves, **said)]


def dppg_regret(
    config: DPPGConfig, seeds: Sequence[int], ledgers: Sequence[Ledger]
) -> Float64[np.ndarray, "runs releases"]:
    """Returns the exact regret of the policy that the users of each release follow."""
    env = ucb_vi.environment(config.env_id)
    mdp = env.mdp(env.default_params)
    training = dppg_training.DPPGTraining(config, seeds, ledgers)
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
    """Returns the mean regret of users who perturb weights and biases with this deviation."""
    if spread == 0:
        return np.asarray(regret(mdp, softmax(logits)))
    size = (len(logits), _PERTURBATIONS, *logits.shape[1:])
    weights, biases = noise.standard_normal(size), noise.standard_normal((*size[:2], 1, size[3]))
    perturbed = logits[:, None] + spread * (weights + biases)
    return np.asarray(regret(mdp, softmax(perturbed)).mean(axis=1))


# --- the figure ----------------------------------------------------------------------------------


def make_regret(
    name: FigureName,
    env_id: str,
    seeds: Sequence[int],
    episodes: int,
    delta: float,
    out: Path,
    say: Say,
) -> dict[str, Any]:
    """Trains the missing arms, writes picture, table and summary, and returns the summary.

    Args:
        name: fig1 or fig5.
        env_id: the figure's environment, or the one with exchanged actions.
        seeds: seeds of every method.
        episodes: number of users of every training.
        delta: delta of the guarantees.
        out: folder of the results.
        say: shows the progress.
    """
    out.mkdir(parents=True, exist_ok=True)
    shown = f"{name}-exchanged" if env_id == EXCHANGED[name] else name
    stem = out / (shown if episodes == 2000 else f"{shown}-{episodes}-episodes")
    store = ResultFolder(out / "trainings")
    results = run(arms(env_id, seeds, episodes, delta), store, 1, say)
    first = results[0]
    users, uniform = int(first.points[-1]), _uniform(env_id)
    title = f"{env_id}, delta = {first.delta:g}, {plots.in_seeds(len(seeds))}"
    draw(stem.with_suffix(".png"), results, title, uniform)
    summary = {
        "name": stem.name,
        "figure": name,
        "env_id": env_id,
        "delta": first.delta,
        "seeds": list(first.seeds),
        "episodes": users,
        "uniform_regret": uniform * users,
        "curves": [_about(one) | over_seeds(one.curves["regret"][:, -1]) for one in results],
    }
    write_data(stem, [row for one in results for row in rows(one)], summary)
    return summary


def rows(result: Result) -> list[dict[str, Any]]:
    """Returns one row for each seed and point of an arm."""
    said = {"env_id": result.arm.settings.env_id, "nominal_epsilon": result.arm.x} | about(result)
    return point_rows(result, "episodes", **said)


def _about(result: Result) -> dict[str, Any]:
    return {
        "arm": result.arm.name,
        "label": result.arm.label,
        "nominal_epsilon": result.arm.x,
        "status": result.status,
        "certified_epsilon": result.epsilon,
        "seconds": round(result.seconds, 1),
    }


def _uniform(env_id: str) -> float:
    """Returns the regret of one episode of uniform actions."""
    env = ucb_vi.environment(env_id)
    mdp = env.mdp(env.default_params)
    return float(regret(mdp, softmax(np.zeros(mdp.rewards.shape))))


def panel(result: Result) -> str:
    """Returns the panel of a result, which depends on its certificates."""
    return "proved" if result.status == "proved" else "none"


def draw(path: Path, results: Sequence[Result], title: str, uniform: float) -> None:
    """Draws cumulative regret against users, in a panel with and one without certificates.

    Args:
        path: file of the PNG.
        results: results, drawn as mean over seeds with a band of one standard deviation. Lines are
            solid at epsilon 5 and dashed at epsilon 1.
        title: title of the whole figure.
        uniform: regret of one episode of uniform actions, drawn as a reference.
    """
    most = max(result.points[-1] for result in results)
    with plots.panels(path, (5.7, 4.8), columns=len(PANELS), share_y=True) as panels:
        for axes, (name, heading) in zip(panels, PANELS.items(), strict=True):
            ours = [result for result in results if panel(result) == name]
            labels = list(dict.fromkeys(result.arm.label for result in ours))
            for result in ours:
                _line(axes, result, _COLOURS[labels.index(result.arm.label)])
            style: dict[str, Any] = {"color": plots.GREY, "linestyle": ":", "linewidth": 1.3}
            axes.plot([0, most], [0, uniform * most], **style)
            axes.annotate(
                "uniform actions",
                (0.62 * most, 0.62 * uniform * most),
                xytext=(-4, 5),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=plots.GREY,
            )
            axes.set_title(heading, fontsize=10)
            axes.set_xlabel("users (episodes)")
            axes.set_xlim(0, most)
            axes.set_ylim(bottom=0)
            axes.legend(fontsize=7.5, loc="upper left")
        seeds = max(len(result.seeds) for result in results)
        panels[0].set_ylabel(f"cumulative regret, {plots.spread(seeds)}")
        plots.headline(panels[0], title)


def _line(axes: Axes, result: Result, colour: str) -> None:
    values, nominal = result.curves["regret"], result.arm.x
    mean, spread = values.mean(axis=0), values.std(axis=0)
    epsilon = "" if nominal is None else f", ε {nominal:g}"
    quoted = epsilon if result.status == "proved" else epsilon.replace("ε ", "“ε” ")
    deviation = f" ± {spread[-1]:.0f}" if len(values) > 1 else ""
    label = f"{result.arm.label}{quoted}: {mean[-1]:.0f}{deviation}"
    style = {"linestyle": _STYLES.get(nominal, "-."), "linewidth": 1.7, "label": label}
    plots.line(axes, result.points, mean, spread, color=colour, alpha=0.12, **style)
