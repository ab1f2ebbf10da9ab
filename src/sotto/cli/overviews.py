"""The commands `sotto runs`, `sotto compare` and `sotto report`, which show results of runs."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from sotto.cli.terminal.options import Json, Ledger, RunPath
from sotto.cli.terminal.output import print_json, print_table
from sotto.cli.terminal.parsing import command
from sotto.errors import RunError, visible
from sotto.runs import summaries
from sotto.runs.directory import Named, open_experiment
from sotto.runs.printed.files import require_place
from sotto.runs.report.comparison import (
    measured,
    names,
    note,
    progress,
    rows,
    seeds,
    steps,
    trained,
    write_comparison,
    write_gallery,
)

Folder = tyro.conf.Positional[Path]
Runs = Annotated[tuple[Path, ...], tyro.conf.Positional]


@command("runs")
def runs(folder: Folder = Path("runs"), /, page: Path | None = None, json: Json = False) -> None:
    """Lists the trained runs in a folder and below it, with what was measured and is certified.

    The certificate of each run is derived from its ledger, as sotto certificate does. Campaigns,
    services and evaluations are not listed.

    Examples:
      sotto runs
      sotto runs runs --page runs/index.html

    Args:
        folder: Folder that holds runs.
        page: Also write a gallery of the runs, with links to their reports, into this .html file.
    """
    if page is not None:
        require_place(page, ".html")
    found, others = [], []
    for path in summaries.find(folder):
        try:
            found.append(summaries.summarise(path))
        except (RunError, ValueError) as error:
            others.append({"path": str(path), "why": str(error)})
    if page is not None:
        write_gallery(found, folder, page)
    if json:
        written = {} if page is None else {"page": str(page)}
        said = {"note": note(found)} if found else {}
        listed = [one.as_json() for one in found]
        print_json({"runs": listed, "left_out": others, **said, **written})
        return
    if found:
        body = [
            [
                name,
                trained(one),
                f"{seeds(one)}, {progress(one)}, {steps(one)}",
                "; ".join(f"{what} {value}" for what, value in measured(one).items()),
                one.guarantee.statement,
            ]
            for name, one in zip(names(found), found, strict=True)
        ]
        print_table(["run", "trained", "progress", "measured", "guarantee"], body)
        print(f"\n{note(found)}")
    else:
        print(f"There are no runs in {folder}; train one with: sotto train dppg --out {folder}/x")
    for one in others:
        print(f"sotto: left out {visible(one['path'])}: {visible(one['why'])}", file=sys.stderr)
    if page is not None:
        print(f"wrote {page}")


@command("compare")
def compare(paths: Runs, /, page: Path | None = None, json: Json = False) -> None:
    """Compares runs: their measured returns, their certificates, and the settings that differ.

    Measurements are the last ones of the training. For longer ones, use sotto eval.

    Examples:
      sotto compare runs/x runs/y
      sotto compare runs/x runs/y --page comparison.html

    Args:
        paths: Directories of two or more runs, or of several seeds each.
        page: Also write a page with the table, the learning curves and the settings into this .html
            file.
    """
    if page is not None:
        require_place(page, ".html")
    if len(paths) < 2:
        raise ValueError("compare takes two or more runs")
    found = [summaries.summarise(path) for path in paths]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError("a run is named twice; name each once")
    differ = summaries.differing(found)
    if page is not None:
        write_comparison(found, page)
    if json:
        written = {} if page is None else {"page": str(page)}
        said = {"settings": differ, "note": note(found)}
        print_json({"runs": [one.as_json() for one in found], **said, **written})
        return
    (_, *heads), body = rows(found)
    called = [row[0] for row in body]
    values = zip(*(row[1:] for row in body), strict=True)
    print_table(["", *called], [[name, *row] for name, row in zip(heads, values, strict=True)])
    if differ:
        print("\nSettings that differ:")
        print_table(
            ["setting", *called],
            [[name, *map(summaries.shown_setting, values)] for name, values in differ.items()],
        )
    else:
        print("\nNo settings differ, except for seeds.")
    for name, one in zip(called, found, strict=True):
        if not one.guarantee.proved:
            print(f"\n{name}: {one.guarantee.status}. {visible(one.guarantee.why)}")
    print(f"\n{note(found)}")
    if page is not None:
        print(f"wrote {page}")


@command("report")
def report(path: RunPath, /, ledger: Ledger = None, json: Json = False) -> None:
    """Writes figures (figures/*.png) and a page with the whole report (report.html).

    The page needs no other file and no network. This takes a few seconds.

    Example:
      sotto report runs/x

    Args:
        path: Run directory, or directory of several seeds.
    """
    from sotto.privacy.certificates.derive import why_false
    from sotto.runs.report.pages import write_reports

    experiment = open_experiment(path, Named(ledger))
    pages = write_reports(experiment)
    for run in experiment.runs if experiment.settings.ledger is not None else ():
        if reason := why_false(run.certificate, run.open_ledger()):
            print(
                f"warning: {run.certificate} is false, and the page says what the ledger gives: "
                f"{reason}",
                file=sys.stderr,
            )
    if json:
        print_json({"report": str(pages[0]), "reports": [str(page) for page in pages]})
    else:
        print("\n".join(f"wrote {page}" for page in pages))
