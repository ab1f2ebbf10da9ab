"""Figures of Gohari et al. 2021, in sotto's style."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from sotto.experiments.learning_curves import BAND, Curve
from sotto.runs.figures import BLUE, GREEN, GREY, ORANGE, figure, steps_axis

PURPLE = "#CC79A7"
_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
_SHADED = 4  # more bands than these hide each other
_ABOUT = {
    "greedy": "return of the greedy policy",
    "sampled": "return of the policy",
    "training": "return of training episodes",
}


def learning_figure(
    path: Path, title: str, env_id: str, curves: Sequence[Curve], teacher: Curve
) -> None:
    """Medians over seeds with a band, the teacher's final return, and where it falls silent.

    Many curves go without bands.

    Args:
        path: where the PNG goes.
        title: of the figure.
        env_id: goes into the title.
        curves: in the order of the legend.
        teacher: whose final return is the line.
    """
    with figure(path, width=7.6, height=4.8) as axes:
        for curve, colour in zip(curves, _colours(len(curves)), strict=True):
            low, median, high = curve.band()
            width = 2.0 if len(curves) <= _SHADED else 1.4
            axes.plot(curve.steps, median, color=colour, label=curve.label, linewidth=width)
            if len(curves) <= _SHADED and len(curve.seeds) > 1:
                axes.fill_between(curve.steps, low, high, color=colour, alpha=0.16, linewidth=0)
        _teacher(axes, teacher, curves)
        _silence(axes, curves)
        axes.set_title(f"{title}: {env_id}\n")
        axes.text(0, 1.02, _seeds(curves), transform=axes.transAxes, fontsize=9, color=GREY)
        steps_axis(axes)
        axes.set_ylabel(_ABOUT[teacher.kind])
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.13), fontsize=9, ncols=3)


def _teacher(axes: Axes, teacher: Curve, curves: Sequence[Curve]) -> None:
    """How the teacher learnt, if it is not among the curves, and where it ended."""
    if teacher.arm not in {curve.arm for curve in curves}:
        _, median, _ = teacher.band()
        axes.plot(teacher.steps, median, color=GREY, linewidth=1.2, label="how the teacher learnt")
    final = float(np.median(teacher.final()))
    axes.axhline(
        final, color=GREY, linestyle="--", linewidth=1.5, label=f"teacher in the end: {final:.4g}"
    )


def _silence(axes: Axes, curves: Sequence[Curve]) -> None:
    """A line at each number of steps after which a teacher gave no more answers."""
    stops = sorted({steps for curve in curves if (steps := curve.silent_after) is not None})
    for index, steps in enumerate(stops):
        label = "teacher falls silent" if index == 0 else None
        axes.axvline(steps, color="#333333", linestyle=":", linewidth=1.5, label=label)


def _seeds(curves: Sequence[Curve]) -> str:
    seeds = max(len(curve.seeds) for curve in curves)
    if seeds == 1:
        return "one seed"
    band = f", {BAND[0]:.0f}th to {BAND[1]:.0f}th percentile" if len(curves) <= _SHADED else ""
    return f"median of {seeds} seeds{band}"


def _colours(count: int) -> Sequence[str]:
    if count <= len(_COLOURS):
        return _COLOURS[:count]
    return [
        mpl.colors.to_hex(mpl.colormaps["viridis"](i / (count - 1) * 0.92)) for i in range(count)
    ]
