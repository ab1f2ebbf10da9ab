"""Pages about several runs: a comparison, and a gallery of all runs in a folder.

The pages need no network and no scripts. They show measurements of released policies and what the
ledgers certify.
"""

import os
from collections.abc import Collection, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import quote

from matplotlib.artist import Artist

from sotto.errors import visible
from sotto.files import write_whole
from sotto.runs.registry import algorithm_named
from sotto.runs.report import elements, figures, learning
from sotto.runs.summaries import Summary, differing, shown_setting

ADD_UP = (
    "Each epsilon is about one run alone. If two runs learn from the same people, these people pay "
    "for both, and also for runs that are not shown. Whoever hands out the best of several runs on "
    "the same people reveals a result of all of them."
)
"""The warning that a reader of several certificates needs."""

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#767676", "#000000")


class Measure(NamedTuple):
    """A quantity that runs can be compared by.

    Attributes:
        label: name of the quantity.
        unit: unit of its axis.
        task: what the run learns on, or its algorithm if no setting names it.
    """

    label: str
    unit: str
    task: str


def note(summaries: Sequence[Summary]) -> str:
    """Returns the warnings that a reader of these runs' certificates needs."""
    found = [one.guarantee for one in summaries if one.guarantee.proved]
    different: dict[str, set[Any]] = {
        "units of privacy": {one.unit and one.unit.kind for one in found},
        "adjacencies": {one.unit and one.unit.adjacency for one in found},
        "distances": {one.distance for one in found},
        "deltas": {one.delta for one in found},
    }
    named = " and ".join(what for what, values in different.items() if len(values) > 1)
    return f"These epsilons cannot be compared: their {named} differ. {ADD_UP}" if named else ADD_UP


def names(summaries: Sequence[Summary]) -> list[str]:
    """Returns the shortest ends of the runs' paths that tell them apart."""
    parts = [one.path.absolute().parts for one in summaries]
    for size in range(1, max(map(len, parts)) + 1):
        found = ["/".join(one[-size:]) for one in parts]
        if len(set(found)) == len(set(parts)):
            return [visible(one) for one in found]
    raise AssertionError("whole paths tell runs apart")


def measures(summary: Summary) -> dict[Measure, str]:
    """Returns what a run measures, with the name that its metrics use."""
    known = learning.labels(algorithm_named(summary.algorithm).words)
    task = summary.task or summary.algorithm
    return {
        Measure(*known.get(name, (name, figures.RETURN)), task): name for name in summary.evaluation
    }


def measured(summary: Summary) -> dict[str, str]:
    """Returns the last measurements, by label: the mean over seeds, with the standard deviation."""
    return {one.label: _value(summary, one) for one in measures(summary)}


def _value(summary: Summary, measure: Measure) -> str:
    """Returns a measurement of a run as text; empty if it has none."""
    name = measures(summary).get(measure)
    decimals = algorithm_named(summary.algorithm).words.decimals
    return "" if name is None else figures.mean_and_spread(summary.evaluation[name], decimals)


def _title(measure: Measure, among: Collection[Measure]) -> str:
    """Returns a measure's label, with its task and its unit where others have another one."""
    units = {one.unit for one in among if one.label == measure.label}
    unit = f" ({measure.unit})" if len(units) > 1 else ""
    on = f" on {measure.task}" if len({one.task for one in among}) > 1 else ""
    return f"{measure.label}{unit}{on}"


def trained(summary: Summary) -> str:
    """Returns the algorithm, and what it learns on."""
    return summary.algorithm + (f" on {summary.task}" if summary.task else "")


def progress(summary: Summary) -> str:
    """Returns how many of the updates are made."""
    total = summary.total_updates
    return "done" if summary.updates >= total else f"{summary.updates:,} of {total:,}"


def steps(summary: Summary) -> str:
    """Returns the number of steps so far, in the algorithm's word for them."""
    return f"{summary.env_steps:,} {_steps(summary)}"


def _steps(summary: Summary) -> str:
    """Returns the algorithm's word for steps."""
    return algorithm_named(summary.algorithm).words.steps


def seeds(summary: Summary) -> str:
    """Returns which seed was trained, or how many."""
    found = summary.seeds
    return f"{len(found)} seeds" if len(found) > 1 else f"seed {found[0]}"


def rows(summaries: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of the table of runs."""
    columns = list(dict.fromkeys(one for summary in summaries for one in measures(summary)))
    titles = [_title(one, columns) for one in columns]
    header = ["run", "trained", "seeds", "updates", "steps", *titles, "guarantee"]
    body = [
        [name, trained(one), str(len(one.seeds)), progress(one), steps(one)]
        + [_value(one, column) for column in columns]
        + [one.guarantee.statement]
        for name, one in zip(names(summaries), summaries, strict=True)
    ]
    return header, body


def write_comparison(summaries: Sequence[Summary], page: Path) -> None:
    """Writes the page that compares runs: table, curves, and the settings that differ.

    Raises:
        OSError: it cannot be written.
    """
    header, body = rows(summaries)
    differ = differing(summaries)
    found = [
        f"<h1>{len(summaries)} runs compared</h1>",
        _wide(elements.table(header, body)),
        *_reasons(summaries),
        elements.paragraph(note(summaries), soft=True),
        elements.heading("Learning"),
        *_curves(summaries),
        elements.heading("Settings that differ"),
        _wide(
            elements.table(
                ["setting", *names(summaries)],
                [[name, *map(shown_setting, values)] for name, values in differ.items()],
            )
        )
        if differ
        else elements.paragraph("None, except for seeds."),
    ]
    write_whole(page, elements.page(f"{len(summaries)} runs compared", found))


def write_gallery(summaries: Sequence[Summary], folder: Path, page: Path) -> None:
    """Writes a page with a card for each run of a folder, linked to its report if there is one.

    Raises:
        OSError: it cannot be written.
    """
    cards = [_card(one, folder, page) for one in summaries]
    title = f"Runs in {visible(folder.absolute().name)}"
    body = [
        f"<h1>{escape(title)}</h1>",
        elements.paragraph(f"{len(summaries)} runs. {note(summaries)}", soft=True),
        *cards,
    ]
    write_whole(page, elements.page(title, body))


def _card(summary: Summary, folder: Path, page: Path) -> str:
    """Returns the card of one run."""
    name = escape(visible(str(summary.path.relative_to(folder))))
    report = summary.path / "report.html"
    if report.is_file():
        there = quote(os.fsencode(os.path.relpath(report, page.absolute().parent)))
        name = f'<a href="{there}">{name}</a>'
    facts = (
        f"{trained(summary)}, {seeds(summary)}, {summary.population} people, {progress(summary)}"
    )
    found = summary.guarantee
    sort = "" if found.proved else " bad"
    return (
        f'<div class="card{sort}"><h3>{name}</h3>{elements.paragraph(facts, soft=True)}'
        f"{elements.paragraph(found.statement)}{elements.tiles(measured(summary))}"
        + (elements.paragraph(visible(found.why), soft=True) if found.why else "")
        + ("" if report.is_file() else _no_report(summary.path))
        + "</div>"
    )


def _no_report(path: Path) -> str:
    return elements.paragraph(
        f"Write its report with: sotto report {visible(str(path))}", soft=True
    )


def _reasons(summaries: Sequence[Summary]) -> list[str]:
    lines = [
        (f"{name}: {one.guarantee.status}", visible(one.guarantee.why))
        for name, one in zip(names(summaries), summaries, strict=True)
        if not one.guarantee.proved
    ]
    return [elements.bullets("Without a proved guarantee", lines)]


def _curves(summaries: Sequence[Summary]) -> list[str]:
    """Returns the figure of what all runs measure, against steps or updates."""
    shared = shared_measure(summaries)
    if shared is None:
        text = "The runs measure nothing in common during training, so there is no common figure."
        return [elements.paragraph(text)]
    measured = [measures(one)[shared] for one in summaries]
    by_steps = len({_steps(one) for one in summaries}) == 1 and all(
        len({line.env_steps for line in lines if measure in line.evaluation}) > 1
        for one, measure in zip(summaries, measured, strict=True)
        for lines in one.lines
    )
    with TemporaryDirectory() as made:
        file = Path(made) / "curves.png"
        with figures.figure(file, height=4.2 + 0.2 * len(summaries)) as axes:
            legend: list[tuple[Artist, str]] = []
            for place, (name, one) in enumerate(zip(names(summaries), summaries, strict=True)):
                measure = measured[place]
                points = [
                    [
                        (line.env_steps if by_steps else line.updates, line.evaluation[measure])
                        for line in lines
                        if measure in line.evaluation
                    ]
                    for lines in one.lines
                ]
                x, values = figures.aligned(points)
                mean, spread = figures.over_seeds(values)
                colour = _COLOURS[place % len(_COLOURS)]
                style = "-" if place < len(_COLOURS) else "--"
                (curve,) = axes.plot(x, mean, style, color=colour, marker="o", markersize=3)
                legend.append((curve, f"{name}: {one.guarantee.statement}"))
                if len(values) > 1:
                    axes.fill_between(
                        x, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0
                    )
            if by_steps:
                figures.steps_axis(axes, _steps(summaries[0]))
            else:
                axes.set_xlabel("updates")
            axes.set_ylabel(shared.label)
            figures.legend_below(axes, legend)
        caption = (
            "Measurements during training. A line is the mean over seeds, and the band is one "
            "standard deviation."
        )
        return [elements.picture(file, caption)]


def shared_measure(summaries: Sequence[Summary]) -> Measure | None:
    """Returns what all runs measure: the policy that the first run's algorithm names, or another.

    It is None if there is nothing in common.
    """
    first, *others = map(measures, summaries)
    common = [one for one in first if all(one in other for other in others)]
    preferred = algorithm_named(summaries[0].algorithm).default_policy
    named = (one for one in common if first[one] == preferred)
    return next(named, next(iter(common), None))


def _wide(table: str) -> str:
    """Returns a table that scrolls where the page is narrower."""
    return f'<div class="wide">{table}</div>'
