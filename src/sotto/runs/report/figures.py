"""Figures of a run, or of several seeds together, in one style."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sotto.errors import RunError
from sotto.files import replacing
from sotto.privacy.bounds import at_most
from sotto.runs.metrics import Line

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#767676"
RETURN = "return of an episode"
"""Unit of the measurements of a policy."""
_LEGEND_COLUMNS = 100  # characters of a line that fit below the figure
_POLICIES = {
    "ema": ("average of released policies", BLUE),
    "last": ("last released policy", ORANGE),
}
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#333333",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "figure.constrained_layout.use": True,
}


@contextmanager
def figure(path: Path, height: float = 3.6) -> Iterator[Axes]:
    """Opens one plot in sotto's style and saves it as PNG at the end."""
    with mpl.rc_context(STYLE):
        drawing = Figure(figsize=(7.2, height))
        yield drawing.add_subplot()
        _save(drawing, path)


def _save(drawing: Figure, path: Path) -> None:
    """Writes a drawing as PNG. Its folder is made if needed.

    The folder may come from somebody else. A link in the place of the file is replaced and not
    followed.

    Raises:
        RunError: the folder is a link, which would lead out of the run.
        OSError: the file cannot be written.
    """
    folder = path.parent
    if folder.is_symlink():
        raise RunError(f"{folder} is a link, and figures would be written elsewhere; remove it")
    folder.mkdir(exist_ok=True)
    content = BytesIO()
    drawing.savefig(content, format="png", dpi=160)
    with replacing(path) as file:
        file.write(content.getvalue())


def legend_below(axes: Axes, named: Sequence[tuple[Artist, str]]) -> None:
    """Adds a legend below the plot, with every text as it stands.

    Matplotlib leaves out labels that begin with "_", and reads "$" as the beginning of a formula.
    Names of directories may have both.
    """
    handles = [handle for handle, _ in named]
    legend = axes.figure.legend(handles, [""] * len(named), loc="outside lower left", fontsize=9)
    for place, (_, text) in zip(legend.get_texts(), named, strict=True):
        place.set_parse_math(False)
        place.set_text(fill(text, _LEGEND_COLUMNS))


def learning_curve(path: Path, runs: Sequence[Sequence[Line]], steps: str) -> None:
    """Draws the return of released policies on fresh simulated people against steps.

    If all steps are taken before learning begins, the x axis has updates instead. The known return
    of a student's teacher is a horizontal line.

    Args:
        path: file of the PNG.
        runs: lines of each seed; several seeds give a mean and a band of one standard deviation.
        steps: the algorithm's word for steps, `Words.steps`.
    """
    teacher = runs[0][-1].simulated.get("teacher_return")
    evaluated = [line.env_steps for line in runs[0] if line.evaluation]
    collected_before = len(evaluated) > 1 and len(set(evaluated)) == 1
    with figure(path) as axes:
        for name, (label, colour) in _POLICIES.items():
            points = [
                [
                    (line.updates if collected_before else line.env_steps, line.evaluation[name])
                    for line in lines
                    if name in line.evaluation
                ]
                for lines in runs
            ]
            x, values = aligned(points)
            if not len(x):
                continue
            mean, spread = over_seeds(values)
            axes.plot(x, mean, color=colour, label=label, marker="o", markersize=3.5)
            if len(values) > 1:
                axes.fill_between(
                    x, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0
                )
        if teacher:
            axes.axhline(teacher[-1], color=GREY, linestyle="--", linewidth=1.5, label="teacher")
        several = f", mean ± standard deviation of {len(runs)} seeds" if len(runs) > 1 else ""
        axes.set_title(f"Return{several}")
        if collected_before:
            axes.set_xlabel(f"updates, after {evaluated[0]:,} {steps}")
        else:
            steps_axis(axes, steps)
        axes.set_ylabel(RETURN)
        axes.legend(loc="best")


def quantities(
    path: Path, runs: Sequence[Sequence[Line]], named: Mapping[str, tuple[str, str]]
) -> None:
    """Draws the quantities of the evaluations against updates, each in one plot.

    Args:
        path: file of the PNG.
        runs: lines of each seed.
        named: title and axis label of each quantity. Those without values are left out.
    """
    there = [name for name in named if any(name in line.evaluation for line in runs[0])]
    with mpl.rc_context(STYLE):
        drawing = Figure(figsize=(7.2, 2.6 * math.ceil(len(there) / 2)))
        for place, name in enumerate(there, 1):
            axes = drawing.add_subplot(math.ceil(len(there) / 2), min(2, len(there)), place)
            updates, values = aligned(
                [
                    [(0, line.before[name]) for line in lines if name in line.before]
                    + [
                        (line.updates, line.evaluation[name])
                        for line in lines
                        if name in line.evaluation
                    ]
                    for lines in runs
                ]
            )
            axes.plot(updates, values.mean(axis=0), color=BLUE, marker="o", markersize=3.5)
            axes.set_title(named[name][0])
            axes.set_xlabel("updates")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_ylabel(named[name][1])
        _save(drawing, path)


def mean_and_spread(values: Sequence[float], decimals: int) -> str:
    """Returns the mean over seeds, with the standard deviation if there are several."""
    mean, deviation = over_seeds(np.asarray(values, float))
    spread = f" ± {deviation:.{decimals}f}" if len(values) > 1 else ""
    return f"{mean:.{decimals}f}{spread}"


def over_seeds(values: Float[np.ndarray, "seeds ..."]) -> tuple[Any, Any]:
    """Returns mean and standard deviation over seeds. The deviation of infinite values is NaN."""
    with np.errstate(invalid="ignore"):
        return values.mean(axis=0), values.std(axis=0)


def budget(
    path: Path,
    runs: Sequence[Sequence[Line]],
    target: float,
    what: str = "Epsilon charged to the most charged person",
    steps: str = "releases",
) -> None:
    """Draws the charged epsilon against releases.

    Args:
        path: file of the PNG.
        runs: lines of each seed.
        target: epsilon of the budget.
        what: title of the plot.
        steps: label of the x axis.
    """
    with figure(path, height=2.9) as axes:
        for lines in runs:
            spent = [(line.updates, line.epsilon) for line in lines if line.epsilon is not None]
            if spent:
                releases, epsilons = zip(*[(0, 0.0), *spent], strict=True)
                # A chunk is charged before its first release, so epsilon rises at its beginning.
                axes.step(releases, epsilons, where="pre", color=BLUE, alpha=0.9)
        if math.isfinite(target):
            axes.axhline(target, color=ORANGE, linestyle="--", linewidth=1.5)
            axes.annotate(
                f"budget {target:.3g}",
                (0.995, target),
                xycoords=("axes fraction", "data"),
                xytext=(0, 4),
                textcoords="offset points",
                ha="right",
                color=ORANGE,
            )
            axes.set_ylim(0, 1.25 * target)
        axes.set_title(what)
        axes.set_xlabel(steps)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("epsilon")


def update_size(
    path: Path, runs: Sequence[Sequence[Line]], clip_norm: float, radius: float | None
) -> None:
    """Draws the norm of every released update, with the clip norm and the trust region.

    Args:
        path: file of the PNG.
        runs: lines of each seed.
        clip_norm: bound on one person's update, and thus on the average before noise. If it
            adapts, the released clip norms are drawn instead.
        radius: L2 radius of the trust region, if there is one.
    """
    with figure(path, height=3.1) as axes:
        releases, values = _released(runs, "update_norm")
        if len(releases):
            axes.plot(releases, values.mean(axis=0), color=BLUE, linewidth=1.4, label="released")
            if len(values) > 1:
                axes.fill_between(
                    releases,
                    values.min(axis=0),
                    values.max(axis=0),
                    color=BLUE,
                    alpha=0.18,
                    linewidth=0,
                )
        bound: dict[str, Any] = {"color": ORANGE, "linestyle": "--", "linewidth": 1.5}
        followed, clip_norms = _released(runs, "clip_norm")
        if len(followed):
            axes.plot(followed, clip_norms.mean(axis=0), label="clip norm (before noise)", **bound)
        else:
            axes.axhline(clip_norm, label="clip norm (before noise)", **bound)
        if radius is not None:
            axes.axhline(
                radius, color=GREEN, linestyle=":", linewidth=2, label="trust region's radius"
            )
        axes.set_ylim(bottom=0)
        axes.set_title("Size of released updates" + (", range over seeds" if len(runs) > 1 else ""))
        axes.set_xlabel("releases")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("L2 norm")
        axes.legend(loc="best")


def released_returns(path: Path, runs: Sequence[Sequence[Line]]) -> None:
    """Draws the released mean return of users, with its noise, and its moving average."""
    with figure(path) as axes:
        for name, label, colour, width in (
            ("private_return", "released", GREY, 0.8),
            ("private_return_average", "moving average", BLUE, 1.8),
        ):
            releases, values = _released(runs, name)
            axes.plot(releases, values.mean(axis=0), color=colour, linewidth=width, label=label)
        several = f", mean of {len(runs)} seeds" if len(runs) > 1 else ""
        axes.set_title(f"Return of users, released with noise{several}")
        axes.set_xlabel("releases")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("return within the public range")
        axes.legend(loc="best")


def privacy_curve(
    path: Path, curve: Sequence[tuple[float, float]], epsilon: float, delta: float
) -> None:
    """Draws epsilon at every delta, and the point that the certificate names."""
    with figure(path, height=2.9) as axes:
        epsilons, deltas = zip(*curve, strict=True)
        axes.plot(deltas, epsilons, color=BLUE)
        axes.plot([delta], [epsilon], "o", color=ORANGE, markersize=8)
        axes.annotate(
            f"epsilon {at_most(epsilon, 3)} at delta {at_most(delta, 2)}",
            (delta, epsilon),
            xytext=(10, 6),
            textcoords="offset points",
            color=ORANGE,
        )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_title("Guarantee at every delta")
        axes.set_xlabel("delta")
        axes.set_ylabel("epsilon")


def _released(runs: Sequence[Sequence[Line]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a released series against the number of the release, as `aligned` does."""
    return aligned(
        [
            [
                (number, value)
                for line in lines
                for number, value in enumerate(line.released.get(name, ()), line.first_update + 1)
            ]
            for lines in runs
        ]
    )


def aligned(
    runs: Sequence[Sequence[tuple[float, float]]],
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, "runs points"]]:
    """Returns the points whose first coordinate all runs have."""
    tables = [dict(run) for run in runs]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return np.array(shared), np.array([[table[x] for x in shared] for table in tables])


def steps_axis(axes: Axes, steps: str = "environment steps") -> None:
    """Formats the x axis as steps of this name from 0, in thousands and millions."""

    def readable(count: float, _position: int) -> str:
        if count >= 1e6:
            return f"{count / 1e6:g}M"
        return f"{count / 1e3:g}k" if count >= 1e3 else f"{count:g}"

    axes.xaxis.set_major_formatter(FuncFormatter(readable))
    axes.set_xlim(left=0)
    axes.set_xlabel(steps)
