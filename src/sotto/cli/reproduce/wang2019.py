"""`sotto reproduce wang2019`: the figures of Wang and Hegde 2019, as data and as pictures."""

import json as json_module
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sotto.cli.parsing import parse, print_json
from sotto.experiments.wang2019 import figures
from sotto.experiments.wang2019.arms import DELTA, OPTIMUM, RANDOM, FigureName, arms
from sotto.keys import seed_range

_LINE = {"to the centre": OPTIMUM, "uniform actions": RANDOM}


def wang(args: list[str]) -> int:
    """Runs `sotto reproduce wang2019`."""

    def run(
        figure: Literal["fig1", "fig2a", "fig2b", "tradeoff", "cartpole"],
        /,
        seeds: int = 10,
        first_seed: int = 100,
        out: Path = Path("runs/wang2019"),
        quick: bool = False,
        json: bool = False,
    ) -> None:
        """Figures of Wang and Hegde 2019, "Privacy-preserving Q-learning with functional noise".

        fig1: Algorithm 1 as printed, by noise level and reset factor; it protects nobody. fig2a
        and fig2b: our proved modes and the baselines at epsilon 0.9 and 0.45 for the reward of one
        transition, and the paper's claim. tradeoff: return over epsilon, and over the radius of
        neighbouring reward functions. cartpole: a task of four dimensions against DQN.

        It says first how long it takes. Curves are kept in OUT as they come, and a stopped command
        goes on where it was. OUT gets FIGURE.png, FIGURE.parquet and FIGURE.json.

        Examples:
          sotto reproduce wang2019 fig2a --seeds 10 --out runs/wang2019
          sotto reproduce wang2019 tradeoff --quick

        Args:
            figure: fig1, fig2a, fig2b, tradeoff or cartpole.
            seeds: trainings of each method, side by side.
            first_seed: the seeds are first_seed, first_seed + 1, ...
            out: folder for figures and data.
            quick: a tenth of the samples and few methods, to see that it works.
            json: print the data as one JSON object.
        """
        numbers = seed_range(first_seed, seeds)
        out.mkdir(parents=True, exist_ok=True)
        name = f"{figure}-quick" if quick else figure
        data = out / f"{name}.json"
        kept = _kept(data)
        show = _Progress(figure, quick, list(numbers), kept, silent=json)

        def keep(curve: figures.Curve) -> None:
            kept.append(curve)
            _write(data, figures.as_data(kept))
            show(curve)

        curves = figures.run(figure, numbers, quick=quick, done=list(kept), report=keep)
        _write_table(out / f"{name}.parquet", figures.rows(curves))
        _draw(out / f"{name}.png", figure, curves)
        if json:
            print_json({"curves": [_summary(curve) for curve in curves]})
        else:
            print(f"Data: {data}, {data.with_suffix('.parquet')}; {data.with_suffix('.png')}")

    parse(run, args, "reproduce wang2019")
    return 0


class _Progress:
    """Says before how long everything takes, and after each curve how much is left."""

    def __init__(
        self,
        figure: FigureName,
        quick: bool,
        seeds: list[int],
        kept: Sequence[figures.Curve],
        silent: bool,
    ) -> None:
        have = {(curve.settings, tuple(curve.seeds)) for curve in kept}
        self._left = [
            arm for arm in arms(figure, quick) if (arm.settings, tuple(seeds)) not in have
        ]
        self._total, self._silent = len(self._left), silent
        self._scale = (3 + len(seeds)) / 13  # compiling takes as long for any number of seeds
        self._started, self._planned_done = time.monotonic(), 0.0
        if not silent and self._left:
            seconds = self._scale * sum(arm.seconds for arm in self._left)
            print(
                f"{self._total} methods to train, for each of {len(seeds)} seeds: about "
                f"{_duration(seconds)} on two cores.",
                flush=True,
            )

    def __call__(self, curve: figures.Curve) -> None:
        arm = self._left.pop(0)
        self._planned_done += arm.seconds
        if self._silent:
            return
        pace = (time.monotonic() - self._started) / self._planned_done
        left = pace * sum(one.seconds for one in self._left)
        said = "not private" if curve.epsilon is None else f"epsilon {curve.epsilon:.3g}"
        if curve.status == "paper-claim":
            said = "paper-claim"
        print(
            f"{self._total - len(self._left):>3}/{self._total} {curve.panel:<10} {curve.label:<36} "
            f"{said:<14} return {curve.final.mean():7.2f} ± {curve.final.std():6.2f}   "
            + (f"{_duration(left)} left" if self._left else "done"),
            flush=True,
        )


def _draw(path: Path, figure: FigureName, curves: Sequence[figures.Curve]) -> None:
    from sotto.experiments.wang2019 import plots

    count = len(curves[0].seeds)
    seeds = f"{count} seed{'s' if count > 1 else ''}"
    if figure == "tradeoff":
        plots.tradeoff(
            path,
            curves,
            f"Return after {curves[0].samples[-1]:,} steps, {seeds}; all certificates proved",
            {
                "epsilon": (
                    f"Unit: the reward of one transition, delta = {DELTA:g}",
                    "epsilon",
                ),
                "radius": (
                    f"Unit: the reward function, epsilon 0.9, delta = {DELTA:g}\n"
                    "shaded: r and 0.5 - r are neighbours, nobody does well on both",
                    "radius of neighbouring reward functions (their range is 0.5)",
                ),
            },
            _LINE,
            impossible_from=0.5,
        )
        return
    panels, title, references = _layout(figure, curves)
    plots.learning_curves(path, curves, f"{title}, {seeds}", panels, references)


def _layout(
    figure: FigureName, curves: Sequence[figures.Curve]
) -> tuple[dict[str, str], str, dict[str, float]]:
    """Panels with their titles, the figure's title, and reference lines."""
    if figure == "fig1":
        panels = {curve.panel: f"reset factor {curve.panel}" for curve in curves}
        title = "Algorithm 1 as printed, noise by hand: status paper-claim, nobody is protected"
        return panels, title, _LINE
    if figure == "cartpole":
        title = "CartPole with a private reward of the state (4 dimensions)"
        return {"ours": "Unit: the reward of one transition, delta = 1e-6"}, title, {}
    epsilon = 0.9 if figure == "fig2a" else 0.45
    panels = {
        "ours": f"proved at epsilon {epsilon:g}, delta {DELTA:g};\nDQN without privacy",
        "baselines": "baselines: proved at the same unit and epsilon;\n"
        "paper: claimed, for the reward function within radius 1",
    }
    return panels, f"Unit: the reward of one transition; epsilon {epsilon:g}", _LINE


def _summary(curve: figures.Curve) -> dict[str, Any]:
    return {
        "arm": curve.arm,
        "label": curve.label,
        "status": curve.status,
        "unit": curve.unit,
        "epsilon": curve.epsilon,
        "delta": curve.delta,
        "radius": curve.radius,
        "samples": curve.samples,
        "mean": np.mean(curve.returns, axis=1).tolist(),
        "std": np.std(curve.returns, axis=1).tolist(),
    }


def _kept(path: Path) -> list[figures.Curve]:
    if not path.exists():
        return []
    try:
        return [figures.Curve(**row) for row in json_module.loads(path.read_text())]
    except (TypeError, json_module.JSONDecodeError) as error:
        raise ValueError(f"{path} holds no curves of this version; move it away") from error


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replaces the file at once, so that a stopped command leaves whole data."""
    partial = path.with_suffix(".partial")
    partial.write_text(json_module.dumps(rows))
    partial.replace(path)


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def _duration(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 100 else f"{math.ceil(seconds / 60)} min"
