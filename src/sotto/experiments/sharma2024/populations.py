"""Returns of a population of experts: figure 2 of Sharma et al. 2024."""

from pathlib import Path
from typing import Any

import numpy as np

from sotto.algorithms.experts.population import Population
from sotto.experiments.figure_files import write_data
from sotto.runs.report.figures import BLUE, ORANGE, figure


def make_histogram(stem: Path, population: Population) -> dict[str, Any]:
    """Writes STEM.png, STEM.parquet and STEM.json, and returns the contents of the JSON."""
    _histogram(stem.with_suffix(".png"), population)
    found = _summary(population)
    write_data(stem, _rows(population), found)
    return found


def _summary(population: Population) -> dict[str, Any]:
    """Summarises the distribution of the experts' mean returns."""
    settings = population.settings
    means = population.returns.mean(axis=1)
    quantiles = np.quantile(means, [0.1, 0.5, 0.9])
    return {
        "env_id": settings.env_id,
        "experts": settings.experts,
        "cap": settings.recipe.cap,
        "episodes": population.returns.shape[1],
        "mean": float(means.mean()),
        "std": float(means.std()),
        "p10": float(quantiles[0]),
        "median": float(quantiles[1]),
        "p90": float(quantiles[2]),
        "min": float(means.min()),
        "max": float(means.max()),
    }


def _histogram(path: Path, population: Population) -> None:
    """Draws a histogram of the experts' returns; the axis is logarithmic if they span decades."""
    settings = population.settings
    means = population.returns.mean(axis=1)
    spans_decades = means.min() > 0 and means.max() > 100 * means.min()
    edges = (
        np.geomspace(means.min(), means.max(), 41)
        if spans_decades
        else np.linspace(*_limits(means), 41)
    )
    with figure(path, height=3.9) as axes:
        axes.hist(means, bins=list(edges), color=BLUE, edgecolor="white", linewidth=0.4)
        axes.axvline(
            float(np.median(means)),
            color=ORANGE,
            linestyle="--",
            linewidth=1.5,
            label=f"median {np.median(means):.4g}",
        )
        if spans_decades:
            axes.set_xscale("log")
        axes.set_xlabel(
            f"greedy return in the default environment, at most {settings.recipe.cap} steps"
        )
        axes.set_ylabel("experts")
        axes.set_title(f"{settings.experts:,} experts of {settings.env_id}")
        axes.legend(fontsize=9)


def _rows(population: Population) -> list[dict[str, Any]]:
    """Returns a row for each expert: number, variant, learning rate, updates and mean return."""
    plan = population.settings.plan
    columns = {
        "expert": plan.numbers,
        **dict(zip(plan.variants.names, plan.variants.values.T, strict=True)),
        "learning_rate": plan.learning_rates,
        "updates": plan.stops,
        "return": population.returns.mean(axis=1),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _limits(means: np.ndarray) -> tuple[float, float]:
    """Returns the smallest and the largest mean; an interval of length one if they are equal."""
    low, high = float(means.min()), float(means.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)
