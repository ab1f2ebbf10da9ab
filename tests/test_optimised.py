"""The door's tests with optimised machine code, as users run it; the other tests run it plain."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def test_the_door_holds_with_optimised_code() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/privacy/test_releases.py"]
    environment = os.environ | {"SOTTO_OPTIMISED_TESTS": "1"}
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
