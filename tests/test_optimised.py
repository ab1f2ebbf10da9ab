"""The door's tests with optimised machine code, as users run it; the other tests run it plain."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    "file", ["privacy/test_gaussian.py", "privacy/test_factored.py", "privacy/test_releases.py"]
)
def test_the_door_holds_with_optimised_code(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"tests/{file}"]
    environment = os.environ | {"SOTTO_OPTIMISED_TESTS": "1"}
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
