"""Drawings for the figures of Sharma et al. 2024."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from sotto.experiments import plots
from sotto.experiments.engine import Result
from sotto.experiments.plots import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, YELLOW
from sotto.experiments.statistics import half_width

_COLOURS = {"votes-experts": BLUE, "votes-clones": GREEN, "pipeline": ORANGE}
_COLOURS |= {"prefixes": PURPLE, "dp-sgd": YELLOW, "dp-sgd-bc": SKY}
_MARKERS = {"votes-experts": "o", "votes-clones": "s", "pipeline": "D", "prefixes": "^"}
_MARKERS |= {"dp-sgd": "v", "dp-sgd-bc": "P"}
_LINES = {"majority": "--", "cql": ":", "bc": "-.", "sampled": (0, (1, 3))}


def bars(path: Path, results: Sequence[Result], start: float, title: str) -> None:
    """Draws figure 3: a bar for each method, with its 95 per cent confidence interval over seeds.

    Args:
        path: file of the PNG.
        results: results from top to bottom; private ones are in colour.
        start: return at which bars begin; a smaller return has a number but no bar.
        title: title of the figure.
    """
    with plots.panels(path, (8.4, 1.2 + 0.42 * len(results))) as (axes,):
        places = np.arange(len(results))[::-1]
        means = np.array([_mean(one) for one in results])
        whiskers = np.where(means > start, np.nan_to_num(_whiskers(results)), 0.0)
        axes.barh(
            places,
            np.maximum(means - start, 0.0),
            left=start,
            xerr=whiskers,
            color=[_COLOURS.get(_kind(one), GREY) for one in results],
            height=0.66,
            error_kw={"ecolor": BLACK, "elinewidth": 1.2, "capsize": 3},
        )
        for place, mean in zip(places, means, strict=True):
            axes.annotate(
                f"{mean:.4g}",
                (max(mean, start), place),
                xytext=(5, 8),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        axes.set_yticks(places, [one.arm.label for one in results])
        axes.grid(visible=False, axis="y")
        # The intervals of two or three seeds can be much wider than the differences of means.
        span = max(means.max() - start, 1e-9)
        ends = (means + whiskers).max() - start
        axes.set_xlim(start, start + np.clip(1.05 * ends, 1.25 * span, 1.6 * span))
        axes.set_xlabel(_returns(results))
        axes.set_title(title, fontsize=11, loc="right")


def tradeoff(path: Path, results: Sequence[Result], experts: int, title: str) -> None:
    """Draws figure 4: return over epsilon, with 95 per cent confidence bands over seeds.

    Args:
        path: file of the PNG.
        results: results; one with an x is a point of a line, and another one a horizontal line.
        experts: number of experts.
        title: title of the figure.
    """
    placed = [one for one in results if one.arm.x is not None]
    with plots.panels(path, (8.0, 5.4)) as (axes,):
        for kind in dict.fromkeys(map(_kind, placed)):
            _line(axes, kind, [one for one in placed if _kind(one) == kind])
        for one in (one for one in results if one.arm.x is None):
            style: dict[str, Any] = {
                "color": BLACK,
                "linestyle": _LINES[one.arm.name],
                "linewidth": 1.4,
            }
            axes.axhline(_mean(one), label=one.arm.label, **style)
        plots.log_ticks(axes, sorted({one.arm.x or 0.0 for one in placed}))
        axes.set_xlabel(f"epsilon of one expert, delta = 1/(10 m), m = {experts:,}")
        axes.set_ylabel(_returns(results))
        axes.set_title(title, fontsize=11)
        plots.legend_below(axes, 0.14, fontsize=8.5, ncols=2)


def shares(path: Path, results: Sequence[Result], papers: float, title: str) -> None:
    """Draws table 1: return over the share of steps made on stable prefixes.

    Args:
        path: file of the PNG.
        results: one for each share.
        papers: share that the paper chooses.
        title: title of the figure.
    """
    with plots.panels(path, (7.2, 4.0)) as (axes,):
        _line(axes, "pipeline", results)
        axes.axvline(papers, color=GREY, linestyle="--", linewidth=1.5, label="the paper's choice")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("steps made on stable prefixes; 0% is DP-SGD alone")
        axes.set_ylabel(_returns(results).replace(", ", ",\n", 1))
        axes.set_title(title, fontsize=11)
        axes.legend(fontsize=9)


def _line(axes: Axes, kind: str, results: Sequence[Result]) -> None:
    """Draws a line with its band; a point without released prefixes is hollow."""
    placed = sorted(results, key=lambda one: one.arm.x or 0.0)
    x, colour = [one.arm.x for one in placed], _COLOURS[kind]
    mean = np.array([_mean(one) for one in placed])
    style = {"linewidth": 1.8, "label": placed[0].arm.label}
    plots.line(axes, x, mean, _whiskers(placed), color=colour, alpha=0.14, **style)
    for one in placed:
        face = "white" if one.arm.note and kind == "pipeline" else colour
        mark: dict[str, Any] = {"marker": _MARKERS[kind], "markersize": 6, "markerfacecolor": face}
        axes.plot(one.arm.x or 0.0, _mean(one), color=colour, **mark)


def _kind(result: Result) -> str:
    """Returns the method's name: the arm's name without its epsilon or share."""
    name, _, number = result.arm.name.rpartition("-")
    return name if number.replace(".", "").isdigit() else result.arm.name


def _mean(result: Result) -> float:
    return float(result.returns["return"].mean())


def _whiskers(results: Sequence[Result]) -> np.ndarray:
    return np.asarray([half_width(one.returns["return"]) for one in results])


def _returns(results: Sequence[Result]) -> str:
    count = len(results[0].seeds)
    over = f", mean of {count} seeds with 95% confidence" if count > 1 else ", one seed"
    return f"greedy return{over}"
