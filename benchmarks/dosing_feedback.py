"""Writes the feedback of `insulin.policies` as a policy file, from which training can start.

    python benchmarks/dosing_feedback.py feedback.npz
    sotto train dppg --env-id Dosing-1 --hidden --first-policy feedback.npz \\
        --total-steps 2288000 --target-epsilon 0.1 --delta 1e-5 --out runs/dosing

The feedback follows from the model's constants (`insulin.policies.ModelController`), and nobody's
data are needed for it. Doses are drawn with a standard deviation of .5 mU/min around it.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from insulin.policies import ModelController

from sotto.rl.policy_files import Flat, write

_SPREAD = 0.5


def feedback(controller: ModelController) -> Flat:
    """Returns the controller as a linear policy, without its limits, which the box has too."""
    zeros, ones = np.zeros(9, np.float32), np.ones(9, np.float32)
    bias, weights = jax.value_and_grad(controller.without_limits)(jnp.zeros(9))
    spread = np.full(1, np.log(_SPREAD), np.float32)
    return Flat(
        zeros, ones, (np.asarray(weights)[:, None],), (np.asarray(bias)[None],), spread, "mean"
    )


def main() -> None:
    """Writes the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="file to write; it ends in .npz")
    file = parser.parse_args().file
    if file.suffix != ".npz":
        parser.error(f"{file} does not end in .npz")
    write(feedback(ModelController()), file, {})
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
