"""Says in figures why the samples of the Open Bandit Dataset cannot carry a private bandit.

They are in the package `obp` (0.4.1): six samples of 10,000 impressions with true propensities and
no id of a person, so that the unit can only be an impression. The value of a policy is a mean of
weight * click, where the weight is clipped at LARGEST; one impression moves it by LARGEST / n.

Run: python benchmarks/open_bandit.py (in an environment with obp, which need not be importable)
"""

import csv
import importlib.util
import math
from pathlib import Path

from sotto.algorithms.calibration import calibrate

LARGEST = 10.0
DELTA = 1e-5


def main() -> None:
    """Prints clicks, sampling error and noise of each sample at epsilon 1."""
    found = importlib.util.find_spec("obp")
    if found is None or found.origin is None:
        raise SystemExit("install obp 0.4.1, which has the samples")
    folder = Path(found.origin).parent / "dataset" / "obd"
    multiplier = calibrate(target_epsilon=1, delta=DELTA)
    print("sample         clicks  click rate  its error  noise   impressions for 5% noise")
    for file in sorted(folder.glob("*/*/*.csv")):
        if file.stem != file.parent.name:
            continue
        with file.open() as lines:
            clicks = [float(row["click"]) for row in csv.DictReader(lines)]
        count, rate = len(clicks), sum(clicks) / len(clicks)
        noise = multiplier * LARGEST / count
        error = math.sqrt(rate * (1 - rate) / count)
        enough = multiplier * LARGEST / (0.05 * rate)
        name = f"{file.parent.parent.name} {file.stem}"
        print(
            f"{name:<14}{sum(clicks):>7.0f}{rate:>12.4f}{error:>11.4f}{noise:>7.4f}{enough:>14,.0f}"
        )


if __name__ == "__main__":
    main()
