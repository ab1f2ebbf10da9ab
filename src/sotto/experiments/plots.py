"""Parts of the figures of all papers, in the style of `runs.report.figures`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sotto.runs.report.figures import BLUE, GREEN, GREY, ORANGE, STYLE, steps_axis

__all__ = ["BLUE", "GREEN", "GREY", "ORANGE", "steps_axis"]

BLACK, PURPLE, YELLOW, SKY, VIOLET = "#333333", "#CC79A7", "#E69F00", "#56B4E9", "#8B4FBF"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, "#000000", VIOLET)
MARKERS = "osD^vPX*"


@contextmanager
def panels(
    path: Path, size: tuple[float, float], columns: int = 1, rows: int = 1, share_y: bool = False
) -> Iterator[list[Axes]]:
    """Opens a drawing with several plots and saves it as PNG at the end.

    Args:
        path: file of the PNG.
        size: width and height of each plot, in inches.
        columns: number of columns of plots.
        rows: number of rows of plots.
        share_y: whether all plots have the same y axis.
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
    """Draws a line with a band.

    Args:
        axes: plot.
        x: x coordinates of the points.
        middle: y coordinates of the line.
        edges: lower and upper edge of the band, or its half-width; NaN draws no band.
        color: colour of line and band.
        alpha: opacity of the band.
        style: further options of the line.
    """
    axes.plot(x, middle, color=color, **style)
    if edges is None:
        return
    if not isinstance(edges, tuple):
        spread = np.nan_to_num(edges)
        edges = middle - spread, middle + spread
    axes.fill_between(x, *edges, color=color, alpha=alpha, linewidth=0)


def level(axes: Axes, value: float, label: str, below: bool = False) -> None:
    """Draws a dotted horizontal line with a label at its right end, above or below the line."""
    axes.axhline(value, color=GREY, linestyle=":", linewidth=1.3)
    axes.annotate(
        label,
        (0.99, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, -10 if below else 2),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=GREY,
    )


def legend_below(axes: Axes, down: float = 0.17, left: bool = False, **style: Any) -> None:
    """Adds a legend below the plot, in its middle or at its left."""
    place = {"loc": "upper left" if left else "upper center"}
    axes.legend(
        **({"fontsize": 8, "bbox_to_anchor": (0.0 if left else 0.5, -down)} | place | style)
    )


def log_ticks(
    axes: Axes, values: Sequence[float], labels: Sequence[str] = (), **style: Any
) -> None:
    """Makes the x axis logarithmic, with ticks at these values only."""
    axes.set_xscale("log")
    axes.set_xticks(values, labels or [f"{value:g}" for value in values], **style)
    axes.minorticks_off()


def limit(set_limits: Callable[[float, float], object], seen: Sequence[float]) -> None:
    """Limits an axis to these values, since intervals of two or three seeds can be much wider."""
    margin = 0.2 * (max(seen) - min(seen)) or 1.0
    set_limits(min(seen) - margin, max(seen) + margin)


def title(axes: Axes, text: str, small: str) -> None:
    """Sets a title with a smaller line below it."""
    axes.set_title(f"{text}\n")
    axes.text(0, 1.02, small, transform=axes.transAxes, fontsize=9, color=GREY)


def headline(axes: Axes, text: str) -> None:
    """Sets the title of the whole drawing."""
    axes.figure.suptitle(text, fontsize=11, x=0.01, ha="left", weight="bold")


def in_seeds(count: int) -> str:
    """Returns the number of seeds in words."""
    return f"{count} seed{'s' if count > 1 else ''}"


def interval(seeds: int) -> str:
    """Describes a mean and its interval over seeds in words."""
    return f"mean and 95% interval of {seeds} seeds" if seeds > 1 else "one seed"


def spread(seeds: int) -> str:
    """Describes a mean and its standard deviation over seeds in words."""
    return "mean ± standard deviation" if seeds > 1 else "one seed"
