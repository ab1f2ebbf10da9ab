"""Small logs of people for offline learning, as arrays and as a dataset."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.moments import Logged, Scales
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.importing import import_log

PEOPLE, STEPS = 40, 6


def settings(**changes: Any) -> OfflinePeopleConfig:
    """Settings with the public facts of `people`."""
    facts: dict[str, Any] = {
        "on": "log",
        "people": PEOPLE,
        "horizon": STEPS,
        "low": (0.0, -2.0),
        "high": (10.0, 2.0),
        "actions": 3,
        "reward_bounds": (-1.0, 1.0),
        "delta": 1e-3,
    }
    return OfflinePeopleConfig(**(facts | changes))


REAL: dict[str, Any] = {"actions": None, "action_low": (-1.0,), "action_high": (3.0,)}
"""Changes of the settings for real actions."""


def people(real: bool = False, seed: int = 0) -> Logged:
    """Rows of everybody: some have several episodes, some are cut, and one place is empty."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, STEPS + 1, PEOPLE)
    lengths[3] = 0
    step = np.arange(STEPS)
    present = step < lengths[:, None]
    last = step == lengths[:, None] - 1
    ends = present & (last | (rng.random(present.shape) < 0.2))
    shape = (PEOPLE, STEPS)
    acted = rng.uniform(-1, 3, (*shape, 1)) if real else rng.integers(0, 3, shape)
    return Logged(
        (rng.uniform([0, -2], [10, 2], (*shape, 2)) * present[..., None]).astype(np.float32),
        (acted * (present[..., None] if real else present)).astype(np.float32 if real else int),
        (rng.uniform(-1, 1, shape) * present).astype(np.float32),
        present,
        ends,
        last & (rng.random(PEOPLE) < 0.5)[:, None],
    )


def scales() -> Scales:
    """Scales as a release may give them."""
    return Scales(
        np.array([0.1, -0.2], np.float32),
        np.array([[1.5, 0.2], [0.2, 0.8]], np.float32),
        np.array([0.3, 2.0], np.float32),
        np.float32(0.9),
    )


def write_visits(folder: Path, count: int, horizon: int = 4, **more: Any) -> Path:
    """Imports a log of people whose pain a high dose relieves if it is above 5, and not below."""
    rng = np.random.default_rng(0)
    with (folder / "visits.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["who", "pain", "dose", "relief"])
        for person in range(count):
            for pain in rng.uniform(0, 10, 4):
                dose = rng.choice(["none", "high"])
                relief = 0.0 if dose == "none" else np.tanh(pain - 5)
                rows.writerow([person, round(float(pain), 2), dose, round(float(relief), 3)])
    declared = {
        "person": "who",
        "observation": [{"column": "pain", "low": 0, "high": 10}],
        "action": {"column": "dose", "categories": ["none", "high"]},
        "reward": {"column": "relief", "low": -1, "high": 1},
        "people": count,
        "horizon": horizon,
        **more,
    }
    out = folder / "visits"
    import_log(str(folder / "visits.csv"), Declaration.of(declared), out, say=lambda _: None)
    return out
