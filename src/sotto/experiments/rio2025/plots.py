"""Table and figures of Rio et al. 2025, in sotto's style."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sotto.algorithms.dppg.config import PresetName
from sotto.experiments.rio2025.cells import TABLE1, EpsilonPoint, reported
from sotto.experiments.rio2025.trainings import Result
from sotto.experiments.statistics import half_width
from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.runs.figures import BLUE, GREEN, GREY, ORANGE, STYLE, figure, steps_axis

_BLACK, _PURPLE, _LIGHT = "#333333", "#CC79A7", "#b8b8b8"
_COLOURS = {"sotto": BLUE, "paper": ORANGE, None: GREY}
_LABELS = {
    "sotto": "sotto: certificates proved",
    "paper": "paper's settings: status paper-claim, epsilon infinite",
    None: "without privacy",
}


def epsilon_formulas(path: Path, points: Sequence[EpsilonPoint], delta: float) -> None:
    """Figure 3: epsilon against the noise multiplier, by each formula; where one is invalid."""
    z = np.asarray([point.noise_multiplier for point in points])
    classical = np.asarray([point.classical for point in points])
    last_invalid = classical[0] * z[0]  # C1 / z is 1 at z = C1
    with figure(path, width=7.6, height=4.6) as axes:
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
        axes.plot(
            z, np.where(valid, np.nan, classical), color=_BLACK, linestyle=":", label="C1 / z"
        )
        axes.plot(z, np.where(valid, classical, np.nan), color=_BLACK, label="C1 / z, valid")
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
    """Figures 2 and 6: return against epsilon, a panel for each environment.

    Args:
        path: where the PNG goes.
        results: of both presets; the paper's own returns are added where table 1 has them.
        delta: of the guarantees.
        by_noise: along the noise multiplier, with its epsilon below it, as in figure 6.
    """
    env_ids = list(dict.fromkeys(one.cell.env_id for one in results))
    with _panels(path, 1, len(env_ids), (5.2, 4.4)) as panels:
        for axes, env_id in zip(panels, env_ids, strict=True):
            here = [one for one in results if one.cell.env_id == env_id]
            for preset in dict.fromkeys(one.cell.preset for one in here):
                chosen = sorted(
                    (_place(one, by_noise), index)
                    for index, one in enumerate(here)
                    if one.cell.preset == preset
                )
                x = np.array([place for place, _ in chosen])
                mean = np.array([here[index].mean for _, index in chosen])
                spread = np.nan_to_num([here[index].half_width for _, index in chosen])
                colour = _COLOURS[preset]
                axes.plot(x, mean, color=colour, marker="o", markersize=4, label=_LABELS[preset])
                axes.fill_between(
                    x, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0
                )
            _printed_points(axes, env_id, delta, by_noise)
            printed = [
                one.mean for row in TABLE1 if row.env_id == env_id for one in row.dppg.values()
            ]
            _limit(axes.set_ylim, [*(one.mean for one in here), *printed])
            axes.set_xscale("log")
            if by_noise:
                places = sorted({_place(one, by_noise) for one in here})
                labels = [f"{z:g}\n{gaussian_epsilon(z, delta):.2g}" for z in places]
                axes.set_xticks(places, labels, fontsize=7.5)  # the largest are close together
                axes.minorticks_off()
                axes.set_xlabel(f"noise multiplier z; below, its epsilon at delta = {delta:g}")
            else:
                axes.set_xlabel(f"epsilon of the noise at delta = {delta:g}")
            axes.set_ylabel(f"return, {_interval(here[0])}")
            axes.set_title(env_id)
        panels[0].legend(fontsize=9, loc="upper left", bbox_to_anchor=(0.0, -0.2))


def learning_curves(path: Path, results: Sequence[Result], preset: PresetName) -> None:
    """Figure 8: return over environment steps, a panel for each environment.

    Args:
        path: where the PNG goes.
        results: of one preset, and those without privacy.
        preset: whose settings DPPG has here.
    """
    env_ids = list(dict.fromkeys(one.cell.env_id for one in results))
    columns = min(2, len(env_ids))
    rows = -(-len(env_ids) // columns)
    with _panels(path, rows, columns, (5.6, 4.6)) as panels:
        for axes, env_id in zip(panels, env_ids, strict=False):
            private = iter((BLUE, ORANGE, GREEN, _BLACK))
            public = {"ppo": GREY, "a2c": _PURPLE}
            seen: list[float] = []
            for one in (one for one in results if one.cell.env_id == env_id):
                cell = one.cell
                colour = public.get(cell.method) or next(private)
                mean = one.curve.mean(axis=0)
                spread = np.nan_to_num(half_width(one.curve))
                seen += mean.tolist()
                style = "--" if cell.preset is None else "-"
                axes.plot(one.steps, mean, color=colour, linestyle=style, label=_about(one))
                axes.fill_between(
                    one.steps, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0
                )
            axes.set_title(env_id)
            axes.set_ylabel("return")
            _limit(axes.set_ylim, seen)
            steps_axis(axes)
            axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.17))
        for axes in panels[len(env_ids) :]:
            axes.set_axis_off()
        judged = "average of released policies, greedy" if preset == "sotto" else "last policy"
        panels[0].figure.suptitle(
            f"{_LABELS[preset]}\n{judged}; {_interval(results[0])}",
            fontsize=12 if columns > 1 else 10,
        )


def table1(path: Path, results: Sequence[Result], delta: float) -> None:
    """Table 1 as a picture: ours and the paper's, each with its confidence interval.

    Args:
        path: where the PNG goes.
        results: in the order of the table.
        delta: of every epsilon.
    """
    env_ids = list(dict.fromkeys(one.cell.env_id for one in results))
    columns = min(2, len(env_ids))
    rows = -(-len(env_ids) // columns)
    most = max(sum(one.cell.env_id == env_id for one in results) for env_id in env_ids)
    with _panels(path, rows, columns, (7.4, 1.3 + 0.46 * most)) as panels:
        for axes, env_id in zip(panels, env_ids, strict=False):
            _table_panel(axes, env_id, [one for one in results if one.cell.env_id == env_id])
        for axes in panels[len(env_ids) :]:
            axes.set_axis_off()
        panels[0].figure.suptitle(
            f"Table 1 of Rio et al. 2025: {_interval(results[0])}; delta = {delta:g}",
            fontsize=12 if columns > 1 else 10,
        )


def _table_panel(axes: Axes, env_id: str, results: Sequence[Result]) -> None:
    places = np.arange(len(results))[::-1]
    for place, one in zip(places, results, strict=True):
        paper = reported(one.cell)
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
        colour = _COLOURS[one.cell.preset]
        axes.errorbar(
            one.mean,
            place - 0.14,
            xerr=np.nan_to_num(one.half_width),
            fmt="o",
            color=colour,
            ecolor=colour,
            markersize=6,
            capsize=2.5,
        )
    axes.set_yticks(places, [_about(one) for one in results], fontsize=9)
    axes.set_ylim(-0.6, len(results) - 0.4)
    seen = [one.mean for one in results]
    for paper in filter(None, map(reported, (one.cell for one in results))):
        seen += [paper.mean - paper.half_width, paper.mean + paper.half_width]
    _limit(axes.set_xlim, seen)
    axes.grid(visible=False, axis="y")
    axes.set_title(f"{env_id}   ")
    handles = [
        mpl.lines.Line2D([], [], color=_LIGHT, marker="D", linestyle="", label="paper, as printed"),
        mpl.lines.Line2D([], [], color=_BLACK, marker="o", linestyle="", label="here"),
    ]
    axes.legend(handles=handles, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)


# --- parts ---------------------------------------------------------------------------------------


def _about(result: Result) -> str:
    """The cell's label, with what is true of its privacy."""
    cell = result.cell
    if cell.preset is None:
        return cell.label
    if result.epsilon is None:
        return f"{cell.label} (noise: {cell.noise_epsilon:.3g}; not proved)"
    if cell.noise_multiplier is None:
        return f"{cell.label} (proved)"
    return f"{cell.label} (epsilon {result.epsilon:.3g}, proved)"


def _place(result: Result, by_noise: bool) -> float:
    place = result.cell.noise_multiplier if by_noise else result.cell.noise_epsilon
    assert place is not None
    return place


def _printed_points(axes: Axes, env_id: str, delta: float, by_noise: bool) -> None:
    """Table 1's returns at its noise multipliers."""
    row = next((row for row in TABLE1 if row.env_id == env_id), None)
    if row is None:
        return
    axes.errorbar(
        [z if by_noise else gaussian_epsilon(z, delta) for z in row.dppg],
        [printed.mean for printed in row.dppg.values()],
        yerr=[printed.half_width for printed in row.dppg.values()],
        fmt="D",
        color=_BLACK,
        markersize=5,
        capsize=3,
        label="paper's table 1, as printed",
    )


def _limit(set_limits: Callable[[float, float], object], seen: Sequence[float]) -> None:
    """Shows these: the interval of two or three seeds is wider than anything there is to see."""
    margin = 0.2 * (max(seen) - min(seen)) or 1.0
    set_limits(min(seen) - margin, max(seen) + margin)


def _interval(result: Result) -> str:
    count = len(result.outcomes)
    return f"mean and 95% interval of {count} seeds" if count > 1 else "one seed"


@contextmanager
def _panels(
    path: Path, rows: int, columns: int, size: tuple[float, float]
) -> Iterator[Sequence[Axes]]:
    """A drawing with several plots, saved as PNG at the end."""
    with mpl.rc_context(STYLE):
        drawing = Figure(figsize=(size[0] * columns, size[1] * rows))
        yield list(drawing.subplots(rows, columns, squeeze=False).ravel())
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path, dpi=160)
