"""The figures of Sharma et al. 2024: arms, numbers and pictures.

Epsilon and status are those of the certificates. A private arm whose certificate is not proved
raises an error.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sotto.algorithms.expert_offline import training
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.presets import filled
from sotto.algorithms.expert_offline.states import Sources, evaluate, initial_states, policies
from sotto.experiments.certified import certificates
from sotto.experiments.engine import Arm, Report, Result, ResultFolder, Say, digest, joined, run
from sotto.experiments.figure_files import about, seed_rows, write_data
from sotto.experiments.sharma2024 import plots
from sotto.experiments.sharma2024.arms import (
    PAPER,
    EnvName,
    FigureName,
    Method,
    methods,
)
from sotto.experiments.sharma2024.references import majority_returns, sampled_return
from sotto.experiments.statistics import over_seeds
from sotto.keys import new_key
from sotto.privacy.errors import NothingReleased, PrivacyError

_FORMAT = 4  # version of kept results: raise it when training or evaluation changes
_EPISODES, _QUICK_EPISODES = 100, 20  # of the final evaluation of each seed's policy
_MAJORITY_EPISODES = 200  # of all seeds together, since each step asks every expert
_WORST = {"Acrobot-v1": -200.0}  # return at which bars begin, if not zero


def make_figure(
    figure: FigureName,
    env_id: EnvName,
    seeds: Sequence[int],
    sources: Sources,
    out: Path,
    say: Say,
    quick: bool = False,
) -> dict[str, Any]:
    """Trains the missing arms, writes figure, data and summary, and returns the summary.

    Args:
        figure: name of the figure.
        env_id: name of the environment.
        seeds: seeds of every arm.
        sources: experts and their log.
        out: folder of the results; arms of all figures and environments are kept in out/arms.
        say: shows the progress.
        quick: whether to run a quick test, as in `methods`.
    """
    store = ResultFolder(out / "arms")
    results = run(arms(figure, env_id, seeds, sources, quick), store, 1, say)
    stem = out / f"{figure}-{env_id}{'-quick' if quick else ''}"
    experts = sources.facts.experts
    answer: dict[str, Any] = {"figure": figure, "env_id": env_id, "experts": experts}
    if figure == "table1":
        # The paper's table and its text disagree, except for a share of 1.
        best = max(results, key=lambda one: one.returns["return"].mean()).arm.x
        stated = {"paper_table": PAPER[env_id].printed, "paper_text": PAPER[env_id].stages[10.0][1]}
        answer |= stated | {"best": best, "note": "choosing among these arms is not accounted for"}
    _draw(stem.with_suffix(".png"), figure, env_id, experts, results)
    reference = [one.returns["return"].mean() for one in results if one.arm.name == "majority"]
    answer["arms"] = [summary(one, *reference) for one in results]
    write_data(stem, rows(figure, env_id, experts, results), answer)
    return answer


def _draw(
    path: Path, figure: FigureName, env_id: EnvName, experts: int, results: Sequence[Result]
) -> None:
    where = f"{env_id}, {experts:,} experts"
    if figure == "table1":
        title = f"The paper's pipeline at epsilon 10: {where}"
        plots.shares(path, results, PAPER[env_id].stages[10.0][1], title)
    elif figure == "fig3":
        title = f"{where}; coloured methods: epsilon 10, proved"
        plots.bars(path, results, _WORST.get(env_id, 0.0), title)
    else:
        title = f"{where}; all certificates proved; hollow: no prefix, so DP-SGD"
        plots.tradeoff(path, results, experts, title)


def rows(
    figure: FigureName, env_id: EnvName, experts: int, results: Sequence[Result]
) -> list[dict[str, Any]]:
    """Returns one row for each arm and seed."""
    shared = {"figure": figure, "env_id": env_id, "experts": experts}
    return [
        row
        for result in results
        for row in seed_rows(result, **shared, **about(result), x=result.arm.x)
    ]


def summary(result: Result, majority: float | None = None) -> dict[str, Any]:
    """Summarises an arm in numbers.

    Args:
        result: result of the arm.
        majority: return of the majority policy, if it is known.
    """
    returns = result.returns["return"]
    said = about(result) | {
        "x": result.arm.x,
        "seeds": list(result.seeds),
        "returns": returns.tolist(),
        **over_seeds(returns),
        "seconds": round(result.seconds, 1),
        "note": result.arm.note,
        "empty": result.more["empty"],
    }
    if majority is not None and majority > 0:
        said["share_of_majority"] = float(returns.mean() / majority)
    return said


# --- arms ----------------------------------------------------------------------------------------


def arms(
    figure: FigureName,
    env_id: EnvName,
    seeds: Sequence[int],
    sources: Sources,
    quick: bool = False,
) -> list[Arm]:
    """Returns the arms of a figure, in the order of training."""
    data = identity(sources)
    found = []
    for method in methods(figure, env_id, sources.facts, quick):
        does = method.does
        # Filled settings contain the preset's values, so another preset has another file name.
        whole = does if isinstance(does, str) else filled(does, sources.facts)
        found.append(arm(replace(method, does=whole), env_id, seeds, sources, data, quick))
    return found


def arm(
    method: Method,
    env_id: EnvName,
    seeds: Sequence[int],
    sources: Sources,
    data: str,
    quick: bool = False,
) -> Arm:
    """Returns the arm of a method for these data and seeds.

    Args:
        method: a method with filled settings.
        env_id: name of the environment.
        seeds: seeds of the runs.
        sources: experts and their log.
        data: result of `identity` for the sources.
        quick: whether evaluations have fewer episodes.
    """
    what = repr((_FORMAT, method.does, env_id, tuple(seeds), data, quick))
    return Arm(
        method.name,
        method.label,
        method.does,
        tuple(seeds),
        f"{env_id}-{digest(what)}",
        partial(train, sources, env_id, quick),
        # Compiling and making clones take equally long for all numbers of seeds.
        30 + (0.05 if quick else 1.0) * method.seconds * len(seeds) / 10,
        x=method.x,
        note=method.note,
    )


def identity(sources: Sources) -> str:
    """Returns a digest that identifies the experts and their log."""
    digest = hashlib.sha256()
    arrays = [] if sources.experts is None else jax.tree.leaves(sources.experts)
    if sources.log is not None:
        arrays += jax.tree.leaves(sources.log)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


# --- one arm -------------------------------------------------------------------------------------


def train(
    sources: Sources,
    env_id: EnvName,
    quick: bool,
    arm: Arm,
    seeds: Sequence[int],
    folder: Path,
    _report: Report,
) -> list[Result]:
    """Trains one arm and evaluates it.

    Raises:
        PrivacyError: a private arm's certificate is not proved.
    """
    if isinstance(arm.settings, str):
        returns = {"return": np.array(_reference(arm.settings, env_id, sources, seeds, quick))}
        more = {"empty": 0, "curve": []}
        made = [Result(arm, tuple(seeds), np.zeros(0), {}, returns, status="none", more=more)]
    else:
        episodes = _QUICK_EPISODES if quick else _EPISODES
        # One at a time where a run may turn out to release no prefix.
        groups = [[seed] for seed in seeds] if arm.settings.uses_prefixes else [seeds]
        made = [train_arm(arm, group, sources, folder, episodes) for group in groups]
        if arm.settings.is_private and any(one.status != "proved" for one in made):
            raise PrivacyError(
                f"{arm.label} has a certificate that is not proved, but the figure shows proved "
                f"results only; see the certificates in {folder}"
            )
    more = {
        "experts": sources.facts.experts,
        "empty": sum(one.more["empty"] for one in made),
        "curve": [row for one in made for row in one.more["curve"]],
    }
    return [replace(joined(made), more=more)]


def train_arm(
    arm: Arm, seeds: Sequence[int], sources: Sources, folder: Path, episodes: int
) -> Result:
    """Trains a method with several seeds, each with a separate ledger, and evaluates them.

    A run that was charged and released nothing has its first network as its result.

    Args:
        arm: the arm; open settings are filled in. Their `dataset` and `experts` are not read; they
            only state which data there are.
        seeds: one for each run; the settings' `seed` is not used.
        sources: experts and their log; clones are made once for all methods.
        folder: folder whose folders `seed-K` hold ledgers, certificates and released data.
        episodes: number of episodes of the final evaluation of each seed.

    Returns:
        Mean greedy returns of the averaged policies in the default environment. `more` has the mean
        return after each part of the training that learned, and how many seeds released nothing.

    Raises:
        PrivacyError, ValueError: the settings cannot be run.
    """
    config = filled(arm.settings, sources.facts)
    training.check(config)
    folders = [folder / f"seed-{seed}" for seed in seeds]
    for one in folders:
        one.mkdir(parents=True, exist_ok=True)
    ledgers = [
        training.create_ledger(config, one / "ledger.sqlite")
        for one in folders
        if config.is_private
    ]
    curve, empty = [], 0
    try:
        for progress in training.train(config, seeds, ledgers, sources, folders=folders):
            policy = policies(progress.states)["ema"]
            if progress.learned:
                key = jax.random.fold_in(new_key(20260), progress.updates)
                found = evaluate(config, policy, key, config.evaluation_episodes, True)
                curve.append(found.mean(axis=1))
        returns = evaluate(config, policy, new_key(12345), episodes, True)
    except NothingReleased:
        policy, empty = policies(initial_states(config, seeds))["ema"], len(seeds)
        returns = evaluate(config, policy, new_key(seeds[0]), episodes, True)
        curve = [returns.mean(axis=1)]
    said = certificates(ledgers, folders) | {"delta": config.delta}
    if not ledgers:
        said["status"] = "none"
    said["returns"] = {"return": np.array([row.mean() for row in returns])}
    more = {"empty": empty, "curve": np.stack(curve, axis=1).astype(float).tolist()}
    return Result(arm, tuple(seeds), np.zeros(0), {}, **said, more=more)


def _reference(
    name: str, env_id: str, sources: Sources, seeds: Sequence[int], quick: bool
) -> list[float]:
    assert sources.experts is not None
    config = ExpertOfflineConfig(method="cql", env_id=env_id, experts="experts", dataset="log")
    config = filled(config, sources.facts)
    if name == "majority":
        whole = _QUICK_EPISODES if quick else _MAJORITY_EPISODES
        each = math.ceil(whole / len(seeds))
        found = majority_returns(config, sources.experts, seeds[0], each * len(seeds))
        return [float(part.mean()) for part in np.split(found, len(seeds))]
    return [sampled_return(config, sources.experts, seed) for seed in seeds]


def choices(out: Path, quick: bool) -> str:
    """Returns table 1 of the paper and of this program as text, for the environments in `out`."""
    lines = [f"{'share of stable steps':<24}{'printed':>9}{'in text':>9}{'best':>7}{'return':>12}"]
    for env_id, paper in PAPER.items():
        path = out / f"table1-{env_id}{'-quick' if quick else ''}.json"
        ours, mean = "-", "-"
        if path.exists():
            kept = json.loads(path.read_text())
            ours = f"{kept['best']:g}"
            mean = f"{max(arm['mean'] for arm in kept['arms']):.4g}"
        said = paper.stages[10.0][1]
        lines.append(f"{env_id:<24}{paper.printed:>9g}{said:>9g}{ours:>7}{mean:>12}")
    lines.append("The best arm has the largest mean over seeds; choosing it is not accounted for.")
    return "\n".join(lines)
