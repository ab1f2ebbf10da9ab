"""Figures 1 and 5 of Rio et al. 2025, in sotto's style."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sotto.experiments.rio2025.regret import PANELS, Curve
from sotto.runs.figures import BLUE, GREEN, GREY, ORANGE, STYLE

_COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#000000")
_STYLES = {5.0: "-", 1.0: "--", None: ":"}


def cumulative_regret(path: Path, curves: Sequence[Curve], title: str, uniform: float) -> None:
    """Cumulative regret against users, a panel for what is certified and one for what is not.

    Args:
        path: where the PNG goes.
        curves: mean over seeds, with a band of one standard deviation; epsilon 5 solid, 1 dashed.
        title: of the whole figure.
        uniform: regret of one episode of uniform actions, drawn as a reference.
    """
    with mpl.rc_context(STYLE):
        drawing = Figure(figsize=(11.4, 4.8))
        panels = drawing.subplots(1, len(PANELS), sharey=True)
        for axes, (name, heading) in zip(panels, PANELS.items(), strict=True):
            ours = [curve for curve in curves if curve.panel == name]
            labels = list(dict.fromkeys(curve.label for curve in ours))
            for curve in ours:
                _draw(axes, curve, _COLOURS[labels.index(curve.label)])
            most = max(curve.episodes[-1] for curve in curves)
            axes.plot([0, most], [0, uniform * most], color=GREY, linestyle=":", linewidth=1.3)
            axes.annotate(
                "uniform actions",
                (0.62 * most, 0.62 * uniform * most),
                xytext=(-4, 5),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=GREY,
            )
            axes.set_title(heading, fontsize=10)
            axes.set_xlabel("users (episodes)")
            axes.set_xlim(0, most)
            axes.set_ylim(bottom=0)
            axes.legend(fontsize=7.5, loc="upper left")
        panels[0].set_ylabel("cumulative regret, mean ± standard deviation")
        drawing.suptitle(title, fontsize=11, x=0.01, ha="left", weight="bold")
        drawing.savefig(path, dpi=160)


def _draw(axes: Axes, curve: Curve, colour: str) -> None:
    values = np.asarray(curve.regret)
    mean, spread = values.mean(axis=1), values.std(axis=1)
    epsilon = "" if curve.nominal_epsilon is None else f", ε {curve.nominal_epsilon:g}"
    quoted = epsilon if curve.status == "proved" else epsilon.replace("ε ", "“ε” ")
    axes.plot(
        curve.episodes,
        mean,
        color=colour,
        linestyle=_STYLES.get(curve.nominal_epsilon, "-."),
        linewidth=1.7,
        label=f"{curve.label}{quoted}: {mean[-1]:.0f} ± {spread[-1]:.0f}",
    )
    axes.fill_between(
        curve.episodes, mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0
    )
