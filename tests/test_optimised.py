"""The door's numbers with optimised machine code, as users run it; the other tests run it plain."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent

NUMBERS = (
    "clip or microbatches or alone or every_chunk or random_numbers or noisy_sum or scale "
    "or covariance or noise_of_their_own or absent or moves or memory"
)
"""The tests whose result depends on machine code. The others are about charges and refusals."""


def test_the_door_holds_with_optimised_code() -> None:
    files = ["tests/privacy/test_releases.py", "tests/attacks/test_recomputed_contributions.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *files, "-k", NUMBERS]
    environment = os.environ | {"SOTTO_OPTIMISED_TESTS": "1"}
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
