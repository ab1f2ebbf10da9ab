"""Pictures of the comparison: rates as bars, returns and accuracies against epsilon."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from against.kept import Row, median
from sotto.experiments.plots import BLUE, COLOURS, GREY, MARKERS, legend_below, log_ticks, panels

BARS = {"ppo": "environment steps per second", "speed": "examples per second"}
LINES = {"private-rl": ("returns", "return", 1.0), "accuracy": ("accuracies", "accuracy, %", 100.0)}


def draw(kept: dict[str, Any], folder: Path) -> list[str]:
    """Draws the rooms that have a picture into a folder and returns their names."""
    drawn = []
    for room, found in kept.items():
        path = folder / f"benchmarks_{room.replace('-', '_')}.png"
        if room in BARS:
            bars(path, found["rows"], BARS[room])
        elif room in LINES:
            lines(path, found["rows"], *LINES[room])
        else:
            continue
        drawn.append(room)
    return drawn


def bars(path: Path, rows: Sequence[Row], label: str) -> None:
    """Draws median rates on a logarithmic axis, with their ranges."""
    with panels(path, (7.2, 0.45 * len(rows) + 1.0)) as (axes,):
        for place, row in enumerate(reversed(rows)):
            middle, rates = median(row["rates"]), row["rates"]
            colour = BLUE if row["name"].startswith("sotto") else GREY
            axes.barh(place, middle, color=colour, height=0.65)
            axes.plot([min(rates), max(rates)], [place, place], color="black", linewidth=1.2)
            axes.annotate(
                f"{middle:,.0f}",
                (max(rates), place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        axes.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)])
        axes.set_xscale("log")
        least, most = min(min(r["rates"]) for r in rows), max(max(r["rates"]) for r in rows)
        axes.set_xlim(least / 3, most * 4)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(label)


def lines(path: Path, rows: Sequence[Row], values: str, label: str, factor: float) -> None:
    """Draws the mean of each method against epsilon, with the standard deviation over seeds."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    epsilons = sorted({row["epsilon"] for row in rows})
    with panels(path, (7.2, 3.8)) as (axes,):
        for index, name in enumerate(names):
            own = [row for row in rows if row["name"] == name]
            x = np.array([row["epsilon"] for row in own]) * 1.04 ** (index - (len(names) - 1) / 2)
            y = [factor * np.mean(row[values]) for row in own]
            deviations = [factor * np.std(row[values], ddof=1) for row in own]
            axes.errorbar(
                x,
                y,
                deviations,
                color=COLOURS[index],
                marker=MARKERS[index],
                capsize=3,
                linewidth=1.6,
                label=name,
            )
        log_ticks(axes, epsilons)
        axes.set_xlabel("epsilon (smaller is more private), delta 1e-5")
        axes.set_ylabel(label)
        legend_below(axes, ncols=2)
