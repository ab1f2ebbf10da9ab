"""People who rate items, as arrays and as an imported dataset."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from sotto.algorithms.bandit.config import BanditConfig
from sotto.algorithms.bandit.person import Rated
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.importing import import_log

TASTE = np.array([0.5, -0.4, 0.2, 0.0])


def settings(**changes: Any) -> BanditConfig:
    """Settings with the public facts of `people`."""
    facts: dict[str, Any] = {
        "on": "log",
        "candidates": 4,
        "blocks": 5,
        "people": 50,
        "horizon": 20,
        "low": (0.0,) * 4,
        "high": (1.0,) * 4,
        "reward_bounds": (0.0, 5.0),
        "delta": 1e-3,
    }
    return BanditConfig(**(facts | changes))


def people(count: int = 50, items: int = 20, seed: int = 0) -> Rated:
    """Rows of people whose tastes are near `TASTE`; the number of rows varies."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(0, 0.5, (count, items, 4))
    tastes = TASTE + rng.normal(0, 0.05, (count, 1, 4))
    ratings = 0.5 + (features * tastes).sum(-1) + rng.normal(0, 0.1, (count, items))
    present = np.arange(items) < rng.integers(2, items + 1, count)[:, None]
    return Rated(
        (features * present[..., None]).astype(np.float32),
        (ratings.clip(0, 1) * present).astype(np.float32),
        present,
    )


def write_ratings(folder: Path, count: int) -> Path:
    """Imports ratings from 0 to 5 of items with two observations and three kinds."""
    rng = np.random.default_rng(0)
    with (folder / "ratings.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["who", "a", "b", "kind", "score"])
        for person in range(count):
            for a, b in rng.uniform(0, 1, (rng.integers(4, 12), 2)):
                kind = rng.choice(["x", "y", "z"])
                score = 2 + 2 * a - b + (kind == "x") + rng.normal(0, 0.3)
                rows.writerow([person, round(a, 3), round(b, 3), kind, round(score, 2)])
    declared = {
        "person": "who",
        "observation": [
            {"column": "a", "low": 0, "high": 1},
            {"column": "b", "low": 0, "high": 1},
        ],
        "action": {"column": "kind", "categories": ["x", "y", "z"]},
        "reward": {"column": "score", "low": 0, "high": 5},
        "people": count,
        "horizon": 12,
        "source": "simulated",
        "licence": "CC0-1.0",
    }
    import_log(str(folder / "ratings.csv"), Declaration.of(declared), folder / "ratings", say=str)
    return folder / "ratings"
