"""Figures 1 and 5 of Rio et al. 2025, made from what `papers.rio2025_regret` trains.

Every curve is kept as it finishes, in NAME-curves.json.
"""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sotto.errors import RunError
from sotto.experiments.kept_jobs import Say, write_json
from sotto.experiments.rio2025 import regret as rio2025_regret
from sotto.experiments.rio2025 import regret_plots
from sotto.experiments.rio2025.regret import ENVIRONMENTS, Curve, FigureName
from sotto.experiments.statistics import half_width
from sotto.rl.tabular import regret, softmax

_STARTING, _PER_EPISODE, _PER_SEED_EPISODE = 15.0, 2e-3, 4e-4  # seconds of one curve, on one core


def make_regret(
    name: FigureName, seeds: Sequence[int], episodes: int, delta: float, out: Path, say: Say
) -> dict[str, Any]:
    """Trains what is missing, then writes picture, table and summary; returns the summary.

    Args:
        name: fig1 or fig5.
        seeds: of every method, side by side.
        episodes: users of every training.
        delta: of the guarantees.
        out: folder of the results.
        say: told in words what happens.
    """
    out.mkdir(parents=True, exist_ok=True)
    stem = out / (name if episodes == 2000 else f"{name}-{episodes}-episodes")
    data = stem.with_name(f"{stem.name}-curves.json")
    kept = _kept(data)
    have = {(curve.settings, tuple(curve.seeds)) for curve in kept}
    arms = rio2025_regret.arms(name, episodes, delta)
    missing = sum((arm.config.first_repr(), tuple(seeds)) not in have for arm in arms)
    each = _STARTING + episodes * (_PER_EPISODE + len(seeds) * _PER_SEED_EPISODE)
    say(
        f"{missing} curves to train ({len(arms) - missing} kept from before), about "
        f"{math.ceil(missing * each / 60)} min; stop any time, the same command goes on"
    )
    started, count = time.monotonic(), 0

    def keep(curve: Curve) -> None:
        nonlocal count
        count += 1
        kept.append(curve)
        write_json(data, rio2025_regret.as_data(kept))
        say(f"{count}/{missing} done: {_line(curve)}; {time.monotonic() - started:.0f} s so far")

    curves = rio2025_regret.figure(
        name, seeds, episodes=episodes, delta=delta, done=list(kept), report=keep
    )
    return _write(stem, name, curves)


def _write(stem: Path, name: FigureName, curves: Sequence[Curve]) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    env_id = ENVIRONMENTS[name]
    uniform = _uniform(env_id)
    count = len(curves[0].seeds)
    title = f"{env_id}, delta = {curves[0].delta:g}, {count} seed{'s' if count > 1 else ''}"
    regret_plots.cumulative_regret(stem.with_suffix(".png"), curves, title, uniform)
    pq.write_table(pa.Table.from_pylist(rio2025_regret.rows(curves)), stem.with_suffix(".parquet"))
    summary = {
        "name": stem.name,
        "figure": name,
        "env_id": env_id,
        "delta": curves[0].delta,
        "seeds": curves[0].seeds,
        "episodes": curves[0].episodes[-1],
        "uniform_regret": uniform * curves[0].episodes[-1],
        "curves": [_numbers(curve) for curve in curves],
    }
    write_json(stem.with_suffix(".json"), summary)
    return summary


def _numbers(curve: Curve) -> dict[str, Any]:
    final = curve.final
    return {
        "arm": curve.arm,
        "label": curve.label,
        "nominal_epsilon": curve.nominal_epsilon,
        "status": curve.status,
        "certified_epsilon": curve.epsilon,
        "mean": float(final.mean()),
        "half_width": float(half_width(final)) if len(final) > 1 else None,
        "std": float(final.std()),
        "seconds": round(curve.seconds, 1),
    }


def _uniform(env_id: str) -> float:
    """Regret of one episode of uniform actions."""
    from sotto.algorithms.ucb.calibrated import environment

    env = environment(env_id)
    mdp = env.mdp(env.default_params)
    return float(regret(mdp, softmax(np.zeros(mdp.rewards.shape))))


def _line(curve: Curve) -> str:
    epsilon = "" if curve.nominal_epsilon is None else f" at epsilon {curve.nominal_epsilon:g}"
    return f"{curve.label}{epsilon}, regret {curve.final.mean():.0f} ± {curve.final.std():.0f}"


def _kept(path: Path) -> list[Curve]:
    if not path.exists():
        return []
    try:
        return [Curve(**row) for row in json.loads(path.read_text())]
    except (TypeError, json.JSONDecodeError) as error:
        raise RunError(f"{path} holds no curves; delete it, and they are made again") from error
