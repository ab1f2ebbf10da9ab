"""Figures of Sharma et al. 2024, in sotto's style."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from sotto.experiments.sharma2024.figures import Outcome
from sotto.runs.figures import BLUE, GREEN, GREY, ORANGE, STYLE, figure

_PURPLE, _YELLOW, _SKY = "#CC79A7", "#E69F00", "#56B4E9"
_COLOURS = {"votes-experts": BLUE, "votes-clones": GREEN, "pipeline": ORANGE}
_COLOURS |= {"prefixes": _PURPLE, "dp-sgd": _YELLOW, "dp-sgd-bc": _SKY}
_MARKERS = {"votes-experts": "o", "votes-clones": "s", "pipeline": "D", "prefixes": "^"}
_MARKERS |= {"dp-sgd": "v", "dp-sgd-bc": "P"}
_LINES = {"majority": "--", "cql": ":", "bc": "-.", "sampled": (0, (1, 3))}


def bars(path: Path, outcomes: Sequence[Outcome], start: float, title: str) -> None:
    """Figure 3: a bar for each method, with its 95 per cent confidence interval over seeds.

    Args:
        path: where the PNG goes.
        outcomes: from top to bottom; private ones in colour.
        start: where bars begin; what returns less has no bar, and its number all the same.
        title: of the figure.
    """
    with figure(path, width=8.4, height=1.2 + 0.42 * len(outcomes)) as axes:
        places = np.arange(len(outcomes))[::-1]
        means = np.array([one.mean for one in outcomes])
        whiskers = np.where(means > start, _whiskers(outcomes), 0.0)
        axes.barh(
            places,
            np.maximum(means - start, 0.0),
            left=start,
            xerr=whiskers,
            color=[_COLOURS.get(_kind(one), GREY) for one in outcomes],
            height=0.66,
            error_kw={"ecolor": "#333333", "elinewidth": 1.2, "capsize": 3},
        )
        for place, one in zip(places, outcomes, strict=True):
            axes.annotate(
                f"{one.mean:.4g}",
                (max(one.mean, start), place),
                xytext=(5, 8),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        axes.set_yticks(places, [one.label for one in outcomes])
        axes.grid(visible=False, axis="y")
        # The interval of two or three seeds is wider than anything there is to see.
        span = max(means.max() - start, 1e-9)
        ends = (means + whiskers).max() - start
        axes.set_xlim(start, start + np.clip(1.05 * ends, 1.25 * span, 1.6 * span))
        axes.set_xlabel(_returns(outcomes))
        axes.set_title(title, fontsize=11, loc="right")


def tradeoff(path: Path, outcomes: Sequence[Outcome], title: str) -> None:
    """Figure 4: return over epsilon, with 95 per cent confidence bands over seeds.

    Args:
        path: where the PNG goes.
        outcomes: those with an x are a point of a line; the others are horizontal lines.
        title: of the figure.
    """
    with mpl.rc_context(STYLE):
        drawing = Figure(figsize=(8.0, 5.4))
        axes = drawing.add_subplot()
        for kind in dict.fromkeys(_kind(one) for one in outcomes if one.x is not None):
            _line(axes, kind, [one for one in outcomes if _kind(one) == kind])
        for one in (one for one in outcomes if one.x is None):
            style = _LINES[one.arm]
            axes.axhline(one.mean, color="#333333", linestyle=style, label=one.label, linewidth=1.4)
        chosen = sorted({one.x for one in outcomes if one.x is not None})
        axes.set_xscale("log")
        axes.set_xticks(chosen, [f"{epsilon:g}" for epsilon in chosen])
        axes.minorticks_off()
        axes.set_xlabel(f"epsilon of one expert, delta = 1/(10 m), m = {outcomes[0].experts:,}")
        axes.set_ylabel(_returns(outcomes))
        axes.set_title(title, fontsize=11)
        axes.legend(fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
        path.parent.mkdir(exist_ok=True, parents=True)
        drawing.savefig(path, dpi=160)


def shares(path: Path, outcomes: Sequence[Outcome], papers: float, title: str) -> None:
    """Table 1: return over the share of steps made on stable prefixes.

    Args:
        path: where the PNG goes.
        outcomes: one for each share.
        papers: the share that the paper chooses.
        title: of the figure.
    """
    with figure(path, height=4.0) as axes:
        _line(axes, "pipeline", outcomes)
        axes.axvline(papers, color=GREY, linestyle="--", linewidth=1.5, label="the paper's choice")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
        axes.set_xlabel("steps made on stable prefixes; 0% is DP-SGD alone")
        axes.set_ylabel(_returns(outcomes).replace(", ", ",\n", 1))
        axes.set_title(title, fontsize=11)
        axes.legend(fontsize=9)


def _line(axes: Axes, kind: str, outcomes: Sequence[Outcome]) -> None:
    """A line with its band; points at which nothing was released but noisy steps are hollow."""
    placed = sorted(((one.x, one) for one in outcomes if one.x is not None), key=lambda one: one[0])
    x = np.array([place for place, _ in placed])
    mean = np.array([one.mean for _, one in placed])
    spread = np.nan_to_num([one.half_width for _, one in placed])
    colour = _COLOURS[kind]
    axes.plot(x, mean, color=colour, linewidth=1.8, label=placed[0][1].label)
    axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.14, linewidth=0)
    for place, one in placed:
        face = "white" if one.note and kind == "pipeline" else colour
        axes.plot(
            place, one.mean, marker=_MARKERS[kind], color=colour, markersize=6, markerfacecolor=face
        )


def _kind(outcome: Outcome) -> str:
    """The method: the arm's name without its epsilon or share."""
    name, _, number = outcome.arm.rpartition("-")
    return name if number.replace(".", "").isdigit() else outcome.arm


def _whiskers(outcomes: Sequence[Outcome]) -> np.ndarray:
    return np.nan_to_num([one.half_width for one in outcomes])


def _returns(outcomes: Sequence[Outcome]) -> str:
    count = len(outcomes[0].seeds)
    over = f", mean of {count} seeds with 95% confidence" if count > 1 else ", one seed"
    return f"greedy return{over}"
