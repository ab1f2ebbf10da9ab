"""Pages about several runs: a comparison, and a gallery of all runs in a folder.

The pages need no network and no scripts. They show measurements of released policies and what the
ledgers certify.
"""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from sotto.files import write_whole
from sotto.privacy.bounds import at_most, guarantee
from sotto.runs.registry import algorithm_named
from sotto.runs.report import elements, figures, learning
from sotto.runs.summaries import NOT_PRIVATE, Summary, differing, shown_setting

ADD_UP = (
    "Each epsilon is about one run alone. If two runs learn from the same people, these people pay "
    "for both, and also for runs that are not shown. Whoever hands out the best of several runs on "
    "the same people reveals a result of all of them."
)
"""The warning that a reader of several certificates needs."""

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#767676", "#000000")


def names(summaries: Sequence[Summary]) -> list[str]:
    """Returns the shortest ends of the runs' paths that tell them apart."""
    parts = [one.path.absolute().parts for one in summaries]
    for size in range(1, max(map(len, parts)) + 1):
        found = ["/".join(one[-size:]) for one in parts]
        if len(set(found)) == len(set(parts)):
            return found
    raise AssertionError("whole paths tell runs apart")


def measured(summary: Summary) -> dict[str, str]:
    """Returns the last measurements, by label: the mean over seeds, with the standard deviation."""
    words = algorithm_named(summary.algorithm).words
    return {
        _label(summary, name): figures.mean_and_spread(values, words.decimals)
        for name, values in summary.evaluation.items()
    }


def _label(summary: Summary, measure: str) -> str:
    """Returns the label of a measurement."""
    return learning.labels(algorithm_named(summary.algorithm).words).get(measure, measure)


def _certified(summary: Summary) -> str:
    """Returns the certified guarantee, or why there is none."""
    if summary.epsilon is None or summary.delta is None:
        return summary.status
    return guarantee(summary.epsilon, summary.delta)


def _trained(summary: Summary) -> str:
    """Returns the algorithm, and what it learns on."""
    return summary.algorithm + (f" on {summary.task}" if summary.task else "")


def progress(summary: Summary) -> str:
    """Returns how many of the updates are made."""
    total = summary.total_updates
    return "done" if summary.updates >= total else f"{summary.updates:,} of {total:,}"


def rows(summaries: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of the table of runs."""
    shown = [measured(one) for one in summaries]
    columns = list(dict.fromkeys(name for one in shown for name in one))
    header = ["run", "trained", "seeds", "updates", "steps", *columns, "guarantee"]
    body = [
        [name, _trained(one), str(len(one.seeds)), progress(one), f"{one.env_steps:,}"]
        + [found.get(column, "") for column in columns]
        + [_certified(one)]
        for name, one, found in zip(names(summaries), summaries, shown, strict=True)
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
        elements.paragraph(ADD_UP, soft=True),
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
    body = [
        f"<h1>Runs in {escape(folder.absolute().name)}</h1>",
        elements.paragraph(f"{len(summaries)} runs. {ADD_UP}", soft=True),
        *cards,
    ]
    write_whole(page, elements.page(f"Runs in {folder.absolute().name}", body))


def _card(summary: Summary, folder: Path, page: Path) -> str:
    """Returns the card of one run."""
    name = escape(str(summary.path.relative_to(folder)))
    report = summary.path / "report.html"
    if report.is_file():
        there = quote(os.path.relpath(report, page.absolute().parent))
        name = f'<a href="{there}">{name}</a>'
    seeds = f"{len(summary.seeds)} seeds" if len(summary.seeds) > 1 else f"seed {summary.seeds[0]}"
    facts = f"{_trained(summary)}, {seeds}, {summary.population} people, {progress(summary)}"
    sort = "" if summary.status == "proved" else " bad"
    return (
        f'<div class="card{sort}"><h3>{name}</h3>{elements.paragraph(facts, soft=True)}'
        f"{elements.tiles({'guarantee': _certified(summary)} | measured(summary))}"
        + (elements.paragraph(summary.why, soft=True) if summary.why else "")
        + ("" if report.is_file() else _no_report(summary.path))
        + "</div>"
    )


def _no_report(path: Path) -> str:
    return elements.paragraph(f"Write its report with: sotto report {path}", soft=True)


def _reasons(summaries: Sequence[Summary]) -> list[str]:
    lines = [
        (f"{name}: {one.status}", one.why)
        for name, one in zip(names(summaries), summaries, strict=True)
        if one.status not in ("proved", NOT_PRIVATE)
    ]
    return [elements.bullets("Without a proved guarantee", lines)]


def _curves(summaries: Sequence[Summary]) -> list[str]:
    """Returns the figure of what all runs measure, against steps or updates."""
    measure = shared_measure(summaries)
    if measure is None:
        text = "The runs measure nothing in common during training, so there is no common figure."
        return [elements.paragraph(text)]
    by_steps = all(
        len({line.env_steps for line in lines if measure in line.evaluation}) > 1
        for one in summaries
        for lines in one.lines
    )
    with TemporaryDirectory() as made:
        file = Path(made) / "curves.png"
        with figures.figure(file, height=4.2) as axes:
            for place, (name, one) in enumerate(zip(names(summaries), summaries, strict=True)):
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
                label = name + (f" (epsilon {at_most(one.epsilon, 3)})" if one.epsilon else "")
                axes.plot(x, mean, style, color=colour, label=label, marker="o", markersize=3)
                if len(values) > 1:
                    axes.fill_between(
                        x, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0
                    )
            if by_steps:
                figures.steps_axis(axes)
            else:
                axes.set_xlabel("updates")
            axes.set_ylabel(_label(summaries[0], measure))
            axes.legend(loc="best", fontsize=9)
        caption = (
            "Measurements during training. A line is the mean over seeds, and the band is one "
            "standard deviation."
        )
        return [elements.picture(file, caption)]


def shared_measure(summaries: Sequence[Summary]) -> str | None:
    """Returns what all runs measure: the policy that the first run's algorithm names, or another.

    It is None if there is nothing in common.
    """
    common = [
        name for name in summaries[0].evaluation if all(name in one.evaluation for one in summaries)
    ]
    preferred = algorithm_named(summaries[0].algorithm).default_policy
    return preferred if preferred in common else next(iter(common), None)


def _wide(table: str) -> str:
    """Returns a table that scrolls where the page is narrower."""
    return f'<div class="wide">{table}</div>'
