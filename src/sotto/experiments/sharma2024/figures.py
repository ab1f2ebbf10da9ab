"""The figures of Sharma et al. 2024: arms, numbers and pictures.

Epsilon and status are the certificates'; an arm whose certificate is not proved is an error.
"""

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.presets import filled
from sotto.algorithms.expert_offline.states import Sources, evaluate, initial_states, policies
from sotto.experiments import kept_before
from sotto.experiments.engine import (
    Arm,
    Report,
    Result,
    Say,
    Store,
    certificates,
    digest,
    run,
    write_json,
    write_table,
)
from sotto.experiments.sharma2024 import plots, training
from sotto.experiments.sharma2024.arms import (
    PAPER,
    EnvName,
    FigureName,
    Method,
    methods,
)
from sotto.experiments.sharma2024.references import majority_returns, sampled_return
from sotto.experiments.sharma2024.training import Trained
from sotto.experiments.statistics import over_seeds
from sotto.keys import new_key
from sotto.privacy.errors import NothingReleased, PrivacyError
from sotto.privacy.ledger.ledger import Ledger

_FORMAT = 4  # of what is kept: raise it when training or evaluation changes
_EPISODES, _QUICK_EPISODES = 100, 20  # of each seed's policy in the end
_MAJORITY_EPISODES = 200  # of all seeds together: each step asks every expert
_WORST = {"Acrobot-v1": -200.0}  # where bars begin if not at zero


def make_figure(
    figure: FigureName,
    env_id: EnvName,
    seeds: Sequence[int],
    sources: Sources,
    out: Path,
    say: Say,
    quick: bool = False,
) -> dict[str, Any]:
    """Trains what is missing, then writes figure, data and summary; returns the summary.

    Args:
        figure: which one.
        env_id: where.
        seeds: of every arm.
        sources: experts and their log.
        out: folder of the results; arms of all figures and environments are kept in out/arms.
        say: told in words what happens.
        quick: as in `methods`.
    """
    store = Store(out / "arms")
    kept_before.outcomes(store)
    results = run(arms(figure, env_id, seeds, sources, quick), store, 1, say)
    stem = out / f"{figure}-{env_id}{'-quick' if quick else ''}"
    experts = sources.facts.experts
    write_table(stem.with_suffix(".parquet"), rows(figure, env_id, experts, results))
    answer: dict[str, Any] = {"figure": figure, "env_id": env_id, "experts": experts}
    if figure == "table1":
        # The paper's table and its text disagree; a share of 1 is the same in both.
        best = max(results, key=lambda one: one.returns["return"].mean()).arm.x
        stated = {"paper_table": PAPER[env_id].printed, "paper_text": PAPER[env_id].stages[10.0][1]}
        answer |= stated | {"best": best, "note": "choosing among these arms is not accounted for"}
    _draw(stem.with_suffix(".png"), figure, env_id, experts, results)
    reference = [one.returns["return"].mean() for one in results if one.arm.name == "majority"]
    answer["arms"] = [summary(one, *reference) for one in results]
    write_json(stem.with_suffix(".json"), answer)
    return answer


def _draw(
    path: Path, figure: FigureName, env_id: EnvName, experts: int, results: Sequence[Result]
) -> None:
    where = f"{env_id}, {experts:,} experts"
    if figure == "table1":
        title = f"The paper's pipeline at epsilon 10: {where}"
        plots.shares(path, results, PAPER[env_id].stages[10.0][1], title)
    elif figure == "fig3":
        title = f"{where}; private ones (in colour) at epsilon 10, proved"
        plots.bars(path, results, _WORST.get(env_id, 0.0), title)
    else:
        title = f"{where}; all certificates proved; hollow: no prefix, so DP-SGD"
        plots.tradeoff(path, results, experts, title)


def rows(
    figure: FigureName, env_id: EnvName, experts: int, results: Sequence[Result]
) -> list[dict[str, Any]]:
    """One row for each arm and seed, for tables."""
    return [
        {
            "figure": figure,
            "env_id": env_id,
            "arm": result.arm.name,
            "label": result.arm.label,
            "x": result.arm.x,
            "status": result.status,
            "epsilon": result.epsilon,
            "delta": result.delta,
            "experts": experts,
            "seed": seed,
            "return": float(value),
        }
        for result in results
        for seed, value in zip(result.seeds, result.returns["return"], strict=True)
    ]


def summary(result: Result, majority: float | None = None) -> dict[str, Any]:
    """One arm in numbers.

    Args:
        result: the arm's.
        majority: return of the majority policy, where it is known.
    """
    returns = result.returns["return"]
    said = {
        "arm": result.arm.name,
        "label": result.arm.label,
        "x": result.arm.x,
        "status": result.status,
        "epsilon": result.epsilon,
        "delta": result.delta,
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
    """What a figure needs, in the order in which it is trained."""
    data = identity(sources)
    found = []
    for method in methods(figure, env_id, sources.facts, quick):
        does = method.does
        # Filled settings name everything: what is kept is told from what has another preset.
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
    """The arm of a method, with the data and seeds that it is trained on.

    Args:
        method: with filled settings.
        env_id: where.
        seeds: of the runs.
        sources: experts and their log.
        data: their identity, from `identity`.
        quick: fewer episodes.
    """
    what = repr((_FORMAT, method.does, env_id, tuple(seeds), data, quick))
    return Arm(
        method.name,
        method.label,
        method.does,
        tuple(seeds),
        f"{env_id}-{digest(what)}",
        partial(train, sources, env_id, quick),
        # Compiling and making clones take as long for any number of seeds.
        30 + (0.05 if quick else 1.0) * method.seconds * len(seeds) / 10,
        x=method.x,
        note=method.note,
    )


def identity(sources: Sources) -> str:
    """Tells experts and logs from others: a digest of what they do."""
    digest = hashlib.sha256()
    arrays = [] if sources.experts is None else jax.tree.leaves(sources.experts)
    if sources.log is not None:
        arrays += sources.log
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
        PrivacyError: its certificate is not proved.
    """
    started = time.monotonic()
    if isinstance(arm.settings, str):
        returns = _reference(arm.settings == "majority", env_id, sources, seeds, quick)
        said: dict[str, Any] = {"status": "none", "returns": {"return": np.array(returns)}}
        empty, curve = 0, []
    else:
        config: ExpertOfflineConfig = arm.settings
        episodes = _QUICK_EPISODES if quick else _EPISODES
        made, empty = _parts(config, seeds, sources, folder, episodes)
        if config.is_private and any(part.status != "proved" for part in made):
            raise PrivacyError(
                f"{arm.label} has a certificate that is not proved, see {folder}; figures show "
                "what is proved"
            )
        curve = [row.astype(float).tolist() for part in made for row in part.curve]
        said = {
            "status": made[0].status,
            "epsilon": max(part.epsilon for part in made) if config.is_private else None,
            "delta": made[0].config.delta,
            "returns": {"return": np.array([row.mean() for part in made for row in part.returns])},
        }
    more = {"experts": sources.facts.experts, "empty": empty, "curve": curve}
    seconds = time.monotonic() - started
    return [Result(arm, tuple(seeds), np.zeros(0), {}, **said, seconds=seconds, more=more)]


def _parts(
    config: ExpertOfflineConfig,
    seeds: Sequence[int],
    sources: Sources,
    folder: Path,
    episodes: int,
) -> tuple[list[Trained], int]:
    """Runs in the order of their seeds, and how many of them released nothing."""
    if not config.uses_prefixes:
        return [training.train_arm(config, seeds, sources, folder, episodes)], 0
    made, empty = [], 0
    for seed in seeds:  # one by one: whether there are prefixes is known once they are paid for
        try:
            made.append(training.train_arm(config, [seed], sources, folder, episodes))
        except NothingReleased:
            empty += 1
            made.append(_unlearned(config, seed, sources, folder, episodes))
    return made, empty


def _unlearned(
    config: ExpertOfflineConfig, seed: int, sources: Sources, folder: Path, episodes: int
) -> Trained:
    """A run that was charged and learned nothing: its first network."""
    config = filled(config, sources.facts)
    policy = policies(initial_states(config, [seed]))["ema"]
    returns = evaluate(config, policy, new_key(seed), episodes, True)
    place = folder / f"seed-{seed}"
    said = certificates([Ledger.open(place / "ledger.sqlite")], [place])
    epsilon = math.inf if said["epsilon"] is None else said["epsilon"]
    return Trained(config, returns, returns.mean(axis=1, keepdims=True), epsilon, said["status"])


def _reference(
    majority: bool, env_id: str, sources: Sources, seeds: Sequence[int], quick: bool
) -> list[float]:
    assert sources.experts is not None
    config = ExpertOfflineConfig(method="cql", env_id=env_id, experts="experts", dataset="log")
    config = filled(config, sources.facts)
    if majority:
        whole = _QUICK_EPISODES if quick else _MAJORITY_EPISODES
        each = math.ceil(whole / len(seeds))
        found = majority_returns(config, sources.experts, seeds[0], each * len(seeds))
        return [float(part.mean()) for part in np.split(found, len(seeds))]
    return [sampled_return(config, sources.experts, seed) for seed in seeds]


def choices(out: Path, quick: bool) -> str:
    """Table 1 of the paper beside ours, for the environments that are kept in `out`, as text."""
    lines = [f"{'share of stable steps':<24}{'printed':>9}{'in text':>9}{'ours':>7}{'return':>12}"]
    for env_id, paper in PAPER.items():
        path = out / f"table1-{env_id}{'-quick' if quick else ''}.json"
        ours, mean = "-", "-"
        if path.exists():
            kept = json.loads(path.read_text())
            ours = f"{kept['best']:g}"
            mean = f"{max(arm['mean'] for arm in kept['arms']):.4g}"
        said = paper.stages[10.0][1]
        lines.append(f"{env_id:<24}{paper.printed:>9g}{said:>9g}{ours:>7}{mean:>12}")
    lines.append(
        "Ours is the best of its arms in the mean over seeds; choosing it is not accounted for."
    )
    return "\n".join(lines)
