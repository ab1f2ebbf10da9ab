"""Drawings for the figures of Wang and Hegde 2019."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from sotto.experiments import plots
from sotto.experiments.engine import Result
from sotto.experiments.plots import COLOURS, GREY, MARKERS


def learning_curves(
    path: Path,
    curves: Sequence[Result],
    title: str,
    panels: Mapping[str, str],
    references: Mapping[str, float],
) -> None:
    """Draws return against environment steps, with a panel for each group of curves.

    Args:
        path: file of the PNG.
        curves: results, drawn as the mean over seeds with a band of one standard deviation. A
            result with one point is drawn as a marker with a bar.
        title: title of the whole figure.
        panels: title of each panel, by name.
        references: returns drawn as horizontal lines, by label.
    """
    labels = list(dict.fromkeys(one.arm.label for one in curves if one.status != "not private"))
    mixed = len({curve.status for curve in curves}) > 1  # otherwise the title names the status
    size = (max(6.4 / len(panels), 5.2), 4.9)
    with plots.panels(path, size, columns=len(panels), share_y=True) as drawn:
        for axes, (name, heading) in zip(drawn, panels.items(), strict=True):
            for curve in (one for one in curves if one.arm.panel == name):
                label = curve.arm.label
                _draw(axes, curve, labels.index(label) if label in labels else None, mixed)
            for label, value in references.items():
                plots.level(axes, value, label)
            axes.set_title(heading, fontsize=10)
            axes.set_xlabel("environment steps")
            axes.set_xlim(left=0)
            plots.legend_below(axes, ncols=2)
        drawn[0].set_ylabel(_label(curves))
        plots.headline(drawn[0], title)


def tradeoff(
    path: Path,
    curves: Sequence[Result],
    title: str,
    panels: Mapping[str, tuple[str, str]],
    references: Mapping[str, float],
    impossible_from: float | None = None,
) -> None:
    """Draws the final return against epsilon, and against the radius of neighbouring rewards.

    Args:
        path: file of the PNG.
        curves: results, one for each method and position.
        title: title of the whole figure.
        panels: heading and label of the x axis of each panel, by name.
        references: returns drawn as horizontal lines, by label.
        impossible_from: radius from which privacy makes reliable learning impossible.
    """
    methods = list(dict.fromkeys(curve.arm.label for curve in curves))
    with plots.panels(path, (5.4, 4.9), columns=len(panels), share_y=True) as drawn:
        for axes, (name, (heading, label)) in zip(drawn, panels.items(), strict=True):
            chosen = [one for one in curves if one.arm.panel == name and one.arm.x is not None]
            chosen.sort(key=lambda one: one.arm.x or 0.0)
            for number, method in enumerate(methods):
                ours = [one for one in chosen if one.arm.label == method]
                if not ours:
                    continue
                last = np.array([one.curves["return"][:, -1] for one in ours])
                style: dict[str, Any] = {
                    "color": COLOURS[number],
                    "marker": MARKERS[number],
                    "label": method,
                }
                x, mean, spread = [one.arm.x for one in ours], last.mean(axis=1), last.std(axis=1)
                plots.line(axes, x, mean, spread, alpha=0.13, markersize=4, **style)
            for value in references.values():
                axes.axhline(value, color=GREY, linestyle=":", linewidth=1.3)
            if name == "radius" and impossible_from is not None:
                axes.axvspan(impossible_from, chosen[-1].arm.x or 0.0, color="#f3e3dc")
            axes.set(xscale="log", xlabel=label)
            axes.set_title(heading, fontsize=10)
            plots.legend_below(axes, ncols=2)
        drawn[0].set_ylabel(_label(curves))
        plots.headline(drawn[0], title)


def _label(curves: Sequence[Result]) -> str:
    """Returns the label of the axis of returns."""
    return f"greedy return, {plots.spread(max(len(curve.seeds) for curve in curves))}"


def _draw(axes: Axes, curve: Result, number: int | None, say_status: bool) -> None:
    """Draws one curve in the colour of its number; None, for no privacy, is grey."""
    unproved = say_status and curve.status in ("paper-claim", "none")
    label = f"{curve.arm.label} ({curve.status})" if unproved else curve.arm.label
    colour, marker = (GREY, "o") if number is None else (COLOURS[number], MARKERS[number])
    returns = curve.curves["return"]
    mean, spread = returns.mean(axis=0), returns.std(axis=0)
    style: dict[str, Any] = {"color": colour, "label": label}
    if len(mean) == 1:
        bar: dict[str, Any] = {"marker": marker, "linestyle": "none", "capsize": 3}
        axes.errorbar(curve.points, mean, spread, **bar, **style)
        return
    style["linestyle"] = "-" if curve.status == "proved" else "--"
    plots.line(axes, curve.points, mean, spread, alpha=0.13, linewidth=1.7, **style)
