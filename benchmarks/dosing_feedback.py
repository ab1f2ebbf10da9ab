"""Writes the feedback of `insulin.policies` as a policy file, from which training can start.

    python benchmarks/dosing_feedback.py feedback.npz
    sotto train dppg --env-id Dosing-1 --hidden --first-policy feedback.npz \\
        --total-steps 2288000 --target-epsilon 0.1 --delta 1e-5 --out runs/dosing

The feedback follows from the model's constants (`insulin.policies.ModelController`), and nobody's
data are needed for it. Doses are drawn with a standard deviation of .5 mU/min around it.
"""

import argparse
from pathlib import Path

import numpy as np
from insulin.model import EATEN, GB, KABS, KE, P1, SI
from insulin.policies import ModelController

from sotto.rl.envs.dosing import TARGET
from sotto.rl.policy_files import Flat, write

_SPREAD = 0.5
_REMOTE, _PLASMA, _GUT, _MEAL, _MEAL_BEFORE = 1, 2, 5, 6, 8
"""Positions in the observation."""


def feedback(controller: ModelController) -> Flat:
    """Returns the controller as a linear policy, without its limits, which the box has too."""
    gain, damping, trend = controller.gain, controller.damping, controller.trend
    total = KE + gain + damping
    of_source = total / (TARGET * SI)
    weights = np.zeros((9, 1), np.float32)
    weights[_MEAL] = of_source * EATEN * (1 + trend)
    weights[_MEAL_BEFORE] = -of_source * EATEN * trend
    weights[_GUT] = of_source * EATEN * KABS
    weights[_REMOTE], weights[_PLASMA] = -gain, -damping
    bias = np.array([of_source * P1 * GB - total * P1 / SI], np.float32)
    spread = np.full(1, np.log(_SPREAD), np.float32)
    zeros, ones = np.zeros(9, np.float32), np.ones(9, np.float32)
    return Flat(zeros, ones, (weights,), (bias,), spread, "mean")


def main() -> None:
    """Writes the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="file to write; it ends in .npz")
    file = parser.parse_args().file
    if file.suffix != ".npz":
        parser.error(f"{file} does not end in .npz")
    found = feedback(ModelController())
    write(found, file, found.header)
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
