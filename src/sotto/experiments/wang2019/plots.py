"""Figures of Wang and Hegde 2019, in sotto's style."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sotto.experiments.wang2019.figures import Curve
from sotto.runs.figures import BLUE, GREEN, GREY, ORANGE, STYLE

_COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B4FBF")
_MARKERS = "osD^vPX*"


def learning_curves(
    path: Path,
    curves: Sequence[Curve],
    title: str,
    panels: Mapping[str, str],
    references: Mapping[str, float],
) -> None:
    """Return against environment steps, a panel for each group of curves.

    Args:
        path: where the PNG goes.
        curves: mean over seeds with a band of one standard deviation; those of one point are a
            marker with a bar.
        title: of the whole figure.
        panels: title of each panel, by name.
        references: returns drawn as horizontal lines, by label.
    """
    labels = list(dict.fromkeys(curve.label for curve in curves if curve.status != "not private"))
    mixed = len({curve.status for curve in curves}) > 1  # otherwise the title says it
    with mpl.rc_context(STYLE):
        drawing = Figure(figsize=(max(6.4, 5.2 * len(panels)), 4.9))
        for axes, (name, heading) in zip(_axes(drawing, len(panels)), panels.items(), strict=True):
            for curve in (one for one in curves if one.panel == name):
                number = labels.index(curve.label) if curve.label in labels else None
                _draw(axes, curve, number, mixed)
            for label, value in references.items():
                axes.axhline(value, color=GREY, linestyle=":", linewidth=1.3)
                axes.annotate(
                    label,
                    (0.99, value),
                    xycoords=("axes fraction", "data"),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="right",
                    fontsize=8,
                    color=GREY,
                )
            axes.set_title(heading, fontsize=10)
            axes.set_xlabel("environment steps")
            axes.set_xlim(left=0)
            _legend(axes)
        drawing.axes[0].set_ylabel("greedy return, mean ± standard deviation")
        drawing.suptitle(title, fontsize=11, x=0.01, ha="left", weight="bold")
        drawing.savefig(path, dpi=160)


def tradeoff(
    path: Path,
    curves: Sequence[Curve],
    title: str,
    panels: Mapping[str, tuple[str, str]],
    references: Mapping[str, float],
    impossible_from: float | None = None,
) -> None:
    """Return at the end against epsilon, and against the radius of neighbouring rewards.

    Args:
        path: where the PNG goes.
        curves: one for each method and position.
        title: of the whole figure.
        panels: heading and label of the x axis of each panel, by name.
        references: returns drawn as horizontal lines, by label.
        impossible_from: radius from which privacy rules reliable learning out.
    """
    methods = list(dict.fromkeys(curve.label for curve in curves))
    with mpl.rc_context(STYLE):
        drawing = Figure(figsize=(5.4 * len(panels), 4.9))
        for axes, (name, (heading, label)) in zip(
            _axes(drawing, len(panels)), panels.items(), strict=True
        ):
            chosen = [curve for curve in curves if curve.panel == name and curve.x is not None]
            for number, method in enumerate(methods):
                if method not in {curve.label for curve in chosen}:
                    continue
                points = sorted((c.x or 0.0, c.final) for c in chosen if c.label == method)
                x = np.array([one for one, _ in points])
                mean = np.array([values.mean() for _, values in points])
                spread = np.array([values.std() for _, values in points])
                colour = _COLOURS[number % len(_COLOURS)]
                marker = _MARKERS[number % len(_MARKERS)]
                axes.plot(x, mean, color=colour, marker=marker, markersize=4, label=method)
                axes.fill_between(
                    x, mean - spread, mean + spread, color=colour, alpha=0.13, linewidth=0
                )
            for value in references.values():
                axes.axhline(value, color=GREY, linestyle=":", linewidth=1.3)
            if name == "radius" and impossible_from is not None:
                axes.axvspan(impossible_from, max(c.x or 0.0 for c in chosen), color="#f3e3dc")
            axes.set(xscale="log", xlabel=label)
            axes.set_title(heading, fontsize=10)
            _legend(axes)
        drawing.axes[0].set_ylabel("greedy return, mean ± standard deviation")
        drawing.suptitle(title, fontsize=11, x=0.01, ha="left", weight="bold")
        drawing.savefig(path, dpi=160)


def _axes(drawing: Figure, count: int) -> list[Axes]:
    return list(drawing.subplots(1, count, squeeze=False, sharey=True)[0])


def _draw(axes: Axes, curve: Curve, number: int | None, say_status: bool) -> None:
    """One curve in its own colour; without a number, as one without privacy, in grey."""
    colour = GREY if number is None else _COLOURS[number % len(_COLOURS)]
    style = "-" if curve.status == "proved" else "--"
    claimed = say_status and curve.status == "paper-claim"
    label = f"{curve.label} (paper-claim)" if claimed else curve.label
    returns = np.asarray(curve.returns)
    mean, spread = returns.mean(axis=1), returns.std(axis=1)
    if len(mean) == 1:
        axes.errorbar(
            curve.samples,
            mean,
            spread,
            color=colour,
            marker=_MARKERS[(number or 0) % len(_MARKERS)],
            linestyle="none",
            capsize=3,
            label=label,
        )
        return
    axes.plot(curve.samples, mean, color=colour, linestyle=style, linewidth=1.7, label=label)
    axes.fill_between(
        curve.samples, mean - spread, mean + spread, color=colour, alpha=0.13, linewidth=0
    )


def _legend(axes: Axes) -> None:
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
