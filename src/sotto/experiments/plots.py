"""What the figures of all papers are drawn with, in the style of `runs.figures`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sotto.runs.figures import BLUE, GREEN, GREY, ORANGE, STYLE, steps_axis

__all__ = ["BLUE", "GREEN", "GREY", "ORANGE", "steps_axis"]

BLACK, PURPLE, YELLOW, SKY, VIOLET = "#333333", "#CC79A7", "#E69F00", "#56B4E9", "#8B4FBF"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, "#000000", VIOLET)
MARKERS = "osD^vPX*"


@contextmanager
def panels(
    path: Path, size: tuple[float, float], columns: int = 1, rows: int = 1, share_y: bool = False
) -> Iterator[list[Axes]]:
    """A drawing with several plots, saved as PNG at the end.

    Args:
        path: where the PNG goes.
        size: width and height of each plot, in inches.
        columns: of plots.
        rows: of plots.
        share_y: all plots have the same y axis.
    """
    with mpl.rc_context(STYLE):
        drawing = Figure(figsize=(size[0] * columns, size[1] * rows))
        yield list(drawing.subplots(rows, columns, squeeze=False, sharey=share_y).ravel())
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path, dpi=160)


def line(
    axes: Axes,
    x: Any,
    middle: np.ndarray,
    edges: tuple[np.ndarray, np.ndarray] | np.ndarray | None,
    *,
    color: str,
    alpha: float = 0.15,
    **style: Any,
) -> None:
    """A line with its band.

    Args:
        axes: where it is drawn.
        x: of the points.
        middle: the line.
        edges: lower and upper edge of the band, or its half-width; NaN has no band.
        color: of line and band.
        alpha: of the band.
        style: of the line.
    """
    axes.plot(x, middle, color=color, **style)
    if edges is None:
        return
    if not isinstance(edges, tuple):
        spread = np.nan_to_num(edges)
        edges = middle - spread, middle + spread
    axes.fill_between(x, *edges, color=color, alpha=alpha, linewidth=0)


def level(axes: Axes, value: float, label: str) -> None:
    """A dotted horizontal line that is named at its right end."""
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


def legend_below(axes: Axes, down: float = 0.17, left: bool = False, **style: Any) -> None:
    """A legend below the plot, in its middle or at its left."""
    place = {"loc": "upper left" if left else "upper center"}
    axes.legend(
        **({"fontsize": 8, "bbox_to_anchor": (0.0 if left else 0.5, -down)} | place | style)
    )


def log_ticks(
    axes: Axes, values: Sequence[float], labels: Sequence[str] = (), **style: Any
) -> None:
    """A logarithmic x axis with a tick at each of these values, and nowhere else."""
    axes.set_xscale("log")
    axes.set_xticks(values, labels or [f"{value:g}" for value in values], **style)
    axes.minorticks_off()


def limit(set_limits: Callable[[float, float], object], seen: Sequence[float]) -> None:
    """Shows these values: the interval of two or three seeds is wider than all there is to see."""
    margin = 0.2 * (max(seen) - min(seen)) or 1.0
    set_limits(min(seen) - margin, max(seen) + margin)


def title(axes: Axes, text: str, small: str) -> None:
    """A title with a smaller line below it."""
    axes.set_title(f"{text}\n")
    axes.text(0, 1.02, small, transform=axes.transAxes, fontsize=9, color=GREY)


def headline(axes: Axes, text: str) -> None:
    """The title of the whole drawing."""
    axes.figure.suptitle(text, fontsize=11, x=0.01, ha="left", weight="bold")


def interval(seeds: int) -> str:
    """What a mean with its interval is of, in words."""
    return f"mean and 95% interval of {seeds} seeds" if seeds > 1 else "one seed"
