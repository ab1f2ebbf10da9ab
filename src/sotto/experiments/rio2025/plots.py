"""Drawings for the table and the figures of Rio et al. 2025."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from sotto.algorithms.dppg.presets import PresetName
from sotto.experiments import plots
from sotto.experiments.engine import Result
from sotto.experiments.plots import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE
from sotto.experiments.rio2025.cells import TABLE1, Cell, EpsilonPoint, reported
from sotto.experiments.rio2025.trainings import judged
from sotto.experiments.statistics import half_width
from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.bounds import at_most

_LIGHT = "#b8b8b8"
_COLOURS = {"sotto": BLUE, "paper": ORANGE, None: GREY}
_LABELS = {
    "sotto": "sotto: certificates proved",
    "paper": "paper's settings: status paper-claim, epsilon infinite",
    None: "without privacy",
}


def epsilon_formulas(path: Path, points: Sequence[EpsilonPoint], delta: float) -> None:
    """Draws figure 3: epsilon against the noise multiplier by each formula, and where one fails."""
    z = np.asarray([point.noise_multiplier for point in points])
    classical = np.asarray([point.classical for point in points])
    last_invalid = classical[0] * z[0]  # C1 / z is 1 at z = C1
    with plots.panels(path, (7.6, 4.6)) as (axes,):
        axes.axvspan(z[0], last_invalid, color=GREY, alpha=0.1, linewidth=0)
        axes.axvline(last_invalid, color=GREY, linewidth=1.2)
        axes.annotate(
            f"C1 / z is no guarantee\nleft of z = C1 = {last_invalid:.3g}",
            (last_invalid, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-6, -6),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=9,
            color=GREY,
        )
        tight = np.asarray([point.tight for point in points])
        axes.fill_between(
            z,
            classical,
            tight,
            where=classical < tight,
            color=ORANGE,
            alpha=0.25,
            linewidth=0,
            label="where C1 / z promises too much",
        )
        axes.plot(z, [point.zhao for point in points], color=ORANGE, label="Zhao et al.: loose")
        valid = classical < 1
        axes.plot(z, np.where(valid, np.nan, classical), color=BLACK, linestyle=":", label="C1 / z")
        axes.plot(z, np.where(valid, classical, np.nan), color=BLACK, label="C1 / z, valid")
        axes.plot(z, tight, color=BLUE, label="analytic Gaussian: tight")
        axes.plot(
            z,
            [point.tight_replace_one for point in points],
            color=GREEN,
            linestyle="--",
            label="tight, replace-one adjacency",
        )
        axes.set(xscale="log", yscale="log", xlabel="noise multiplier z", ylabel="epsilon")
        axes.set_xlim(z[0], z[-1])
        axes.set_title(f"Privacy of one pass of DPPG, delta = {delta:g}")
        axes.legend(fontsize=9, loc="lower left")


def tradeoff(path: Path, results: Sequence[Result], delta: float, by_noise: bool) -> None:
    """Draws figures 2 and 6: return against epsilon, with a panel for each environment.

    Args:
        path: file of the PNG.
        results: results of all presets; returns that table 1 of the paper prints are added.
        delta: delta of the guarantees.
        by_noise: whether the x axis is the noise multiplier, with its epsilon, as in figure 6.
    """
    by_env = _by_env(results)
    with plots.panels(path, (5.2, 4.4), columns=len(by_env)) as panels:
        for axes, (env_id, here) in zip(panels, by_env.items(), strict=True):
            for preset in dict.fromkeys(one.arm.settings.preset for one in here):
                chosen = [one for one in here if one.arm.settings.preset == preset]
                chosen.sort(key=lambda one: _place(one, by_noise))
                plots.line(
                    axes,
                    [_place(one, by_noise) for one in chosen],
                    np.array([_mean(one) for one in chosen]),
                    np.array([half_width(_judged(one)) for one in chosen]),
                    color=_COLOURS[preset],
                    alpha=0.18,
                    marker="o",
                    markersize=4,
                    label=_LABELS[preset],
                )
            _printed_points(axes, env_id, delta, by_noise)
            printed = [
                one.mean for row in TABLE1 if row.env_id == env_id for one in row.dppg.values()
            ]
            plots.limit(axes.set_ylim, [*map(_mean, here), *printed])
            axes.set_xscale("log")
            if by_noise:
                places = sorted({_place(one, by_noise) for one in here})
                labels = [f"{z:g}\n{gaussian_epsilon(z, delta):.2g}" for z in places]
                plots.log_ticks(axes, places, labels, fontsize=7.5)  # some ticks are close
                axes.set_xlabel(f"noise multiplier z; below, its epsilon at delta = {delta:g}")
            else:
                axes.set_xlabel(f"epsilon of the noise at delta = {delta:g}")
            axes.set_ylabel(f"return, {plots.interval(len(here[0].seeds))}")
            axes.set_title(env_id)
        plots.legend_below(panels[0], 0.2, left=True, fontsize=9)


def learning_curves(path: Path, results: Sequence[Result], preset: PresetName) -> None:
    """Draws figure 8: return over environment steps, with a panel for each environment.

    Args:
        path: file of the PNG.
        results: results of one preset, and those without privacy.
        preset: the preset.
    """
    judged_by = "average of released policies, greedy" if preset == "sotto" else "last policy"
    title = f"{_LABELS[preset]}\n{judged_by}; {plots.interval(len(results[0].seeds))}"
    with _grid(path, (5.6, 4.6), results, title) as panels:
        for axes, here in panels:
            private = iter((BLUE, ORANGE, GREEN, BLACK))
            public = {"ppo": GREY, "a2c": PURPLE}
            for one in here:
                cell, curve = one.arm.settings, one.curves["return"]
                plots.line(
                    axes,
                    one.points,
                    curve.mean(axis=0),
                    half_width(curve),
                    color=public.get(cell.method) or next(private),
                    linestyle="--" if cell.preset is None else "-",
                    label=_about(one),
                )
            axes.set_ylabel("return")
            seen = [one.curves["return"].mean(axis=0) for one in here]
            plots.limit(axes.set_ylim, np.concatenate(seen).tolist())
            plots.steps_axis(axes)
            plots.legend_below(axes, left=True)


def table1(path: Path, results: Sequence[Result], delta: float) -> None:
    """Draws table 1: results of this program and of the paper, each with a confidence interval.

    Args:
        path: file of the PNG.
        results: results in the order of the table.
        delta: delta of every epsilon.
    """
    interval = plots.interval(len(results[0].seeds))
    title = f"Table 1 of Rio et al. 2025: {interval}; delta = {delta:g}"
    most = max(map(len, _by_env(results).values()))
    with _grid(path, (7.4, 1.3 + 0.46 * most), results, title) as panels:
        for axes, here in panels:
            _table_panel(axes, here)


def _table_panel(axes: Axes, results: Sequence[Result]) -> None:
    places = np.arange(len(results))[::-1]
    for place, one in zip(places, results, strict=True):
        paper = reported(one.arm.settings)
        if paper is not None:
            axes.errorbar(
                paper.mean,
                place + 0.14,
                xerr=paper.half_width,
                fmt="D",
                color=_LIGHT,
                ecolor=_LIGHT,
                markersize=5,
                capsize=2.5,
            )
        colour = _COLOURS[one.arm.settings.preset]
        axes.errorbar(
            _mean(one),
            place - 0.14,
            xerr=np.nan_to_num(half_width(_judged(one))),
            fmt="o",
            color=colour,
            ecolor=colour,
            markersize=6,
            capsize=2.5,
        )
    axes.set_yticks(places, [_about(one) for one in results], fontsize=9)
    axes.set_ylim(-0.6, len(results) - 0.4)
    seen = [_mean(one) for one in results]
    for paper in filter(None, map(reported, (one.arm.settings for one in results))):
        seen += [paper.mean - paper.half_width, paper.mean + paper.half_width]
    plots.limit(axes.set_xlim, seen)
    axes.grid(visible=False, axis="y")
    axes.set_title(results[0].arm.settings.env_id)
    handles = [
        mpl.lines.Line2D([], [], color=_LIGHT, marker="D", linestyle="", label="paper, as printed"),
        mpl.lines.Line2D([], [], color=BLACK, marker="o", linestyle="", label="this program"),
    ]
    below: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0.0, 0.0)}
    axes.legend(handles=handles, fontsize=8, borderaxespad=2.8, ncols=2, **below)


# --- parts ---------------------------------------------------------------------------------------


def _by_env(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for one in results:
        found.setdefault(one.arm.settings.env_id, []).append(one)
    return found


@contextmanager
def _grid(
    path: Path, size: tuple[float, float], results: Sequence[Result], title: str
) -> Iterator[list[tuple[Axes, list[Result]]]]:
    """Opens a drawing with a panel for each environment, and yields each with its results."""
    by_env = _by_env(results)
    columns = min(2, len(by_env))
    with plots.panels(path, size, columns, -(-len(by_env) // columns)) as panels:
        for axes, env_id in zip(panels, by_env, strict=False):
            axes.set_title(env_id)
        for axes in panels[len(by_env) :]:
            axes.set_axis_off()
        yield list(zip(panels, by_env.values(), strict=False))
        panels[0].figure.suptitle(title, fontsize=12 if columns > 1 else 10)


def _judged(result: Result) -> np.ndarray:
    """Returns each seed's return of the policy and mode that figures show."""
    return result.returns[judged(result.arm.settings)]


def _mean(result: Result) -> float:
    return float(_judged(result).mean())


def _about(result: Result) -> str:
    """Returns the cell's label with its proved epsilon, or says that nothing is proved."""
    cell: Cell = result.arm.settings
    if cell.preset is None:
        return cell.label
    if result.epsilon is None:
        return f"{cell.label} (noise: {cell.noise_epsilon:.3g}; not proved)"
    if cell.noise_multiplier is None:
        return f"{cell.label} (proved)"
    return f"{cell.label} (epsilon {at_most(result.epsilon, 3)}, proved)"


def _place(result: Result, by_noise: bool) -> float:
    cell = result.arm.settings
    return float(cell.noise_multiplier if by_noise else cell.noise_epsilon)


def _printed_points(axes: Axes, env_id: str, delta: float, by_noise: bool) -> None:
    """Draws the returns of the paper's table 1 at its noise multipliers."""
    row = next((row for row in TABLE1 if row.env_id == env_id), None)
    if row is None:
        return
    axes.errorbar(
        [z if by_noise else gaussian_epsilon(z, delta) for z in row.dppg],
        [printed.mean for printed in row.dppg.values()],
        yerr=[printed.half_width for printed in row.dppg.values()],
        fmt="D",
        color=BLACK,
        markersize=5,
        capsize=3,
        label="paper's table 1, as printed",
    )
