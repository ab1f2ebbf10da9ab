"""Whom several seeds share: in words, and in what their ledgers cost together."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from references import gaussian_delta
from scipy import optimize

from sotto.privacy.bounds import at_most
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import Gap, Once, Part, StreamStatement
from sotto.privacy.units import EXPERT, REWARD_FUNCTION, Unit
from sotto.runs.directory import RunSettings, new_settings
from sotto.runs.registry import algorithm_named, config_to_json
from sotto.runs.seeds import sharing

DELTA = 1e-3
PERSON = Unit(kind="trajectory", adjacency="zero-out")


CONFIGS = {
    "expert-offline": {"dataset": "log", "target_epsilon": 1.0},
    "functional-q": {"target_epsilon": 1.0},
    "dppg": {"target_epsilon": 1.0},
}


def settings(algorithm: str, population: Any = "simulated", **config: Any) -> RunSettings:
    which = algorithm_named(algorithm)
    return new_settings(
        algorithm=algorithm,
        config=config_to_json(which, which.config_type(**(CONFIGS[algorithm] | config))),
        preset=None,
        seeds=(0, 1),
        population=population,
        ledger="ledger.sqlite",
        command="test",
    )


def charged(
    path: Path, unit: Unit, persons: list[int], noise_multiplier: float = 1.0, gaps: Any = ()
) -> Ledger:
    """A ledger of one release about these people."""
    ledger = Ledger.create(path, unit=unit, budget=Budget(epsilon=math.inf, delta=DELTA))
    statement = StreamStatement(
        name="release",
        unit=unit,
        participation=Once(),
        parts={"all": Part(clip_norm=1.0, noise_multiplier=noise_multiplier)},
        dimensions={"all": 1},
        divisor=1.0,
        horizon=1,
        population="simulated",
        sampler_delta=1e-9,
        noise_law="on-grid",
        gaps=gaps,
    )
    ledger.open_stream(statement).charge(0, 1, [np.array(persons)])
    return ledger


def gaussian(noise_multiplier: float, delta: float) -> float:
    """Epsilon of one Gaussian release, by root finding."""

    def excess(epsilon: float) -> float:
        return gaussian_delta(1 / noise_multiplier, epsilon) - delta

    return float(optimize.brentq(excess, 0, 50))


@pytest.mark.parametrize(
    ("algorithm", "unit", "config", "same"),
    [
        ("expert-offline", EXPERT, {}, "the same experts"),
        (
            "functional-q",
            REWARD_FUNCTION,
            {"unit": "reward-function", "reward_radius": 0.1},
            "the same reward function",
        ),
    ],
)
def test_seeds_about_the_same_people_cost_what_one_ledger_of_all_would(
    tmp_path: Path, algorithm: str, unit: Unit, config: dict[str, str], same: str
) -> None:
    ledgers = [charged(tmp_path / f"{seed}", unit, [0], 2.0) for seed in range(3)]
    found = sharing(settings(algorithm, **config), ledgers)
    expected = gaussian(2 / math.sqrt(3), DELTA)
    assert found.epsilon == pytest.approx(expected, rel=1e-4)
    assert found.epsilon > 1.5 * ledgers[0].spent().epsilon
    assert same in found.words
    assert f"epsilon {at_most(expected)} at delta 0.001" in found.words
    assert "separate" not in found.words


def test_an_expert_pays_for_what_they_took_part_in(tmp_path: Path) -> None:
    """Experts have the same number in every ledger: these two have each paid once."""
    ledgers = [charged(tmp_path / f"{seed}", EXPERT, [seed]) for seed in range(2)]
    found = sharing(settings("expert-offline", "real"), ledgers)
    assert found.epsilon == pytest.approx(gaussian(1.0, DELTA), rel=1e-4)


def test_where_nothing_is_proved_no_number_is_said(tmp_path: Path) -> None:
    gap = Gap(name="leak", why="it leaks")
    ledgers = [charged(tmp_path / "one", EXPERT, [0]), charged(tmp_path / "two", EXPERT, [0], 1.0)]
    ledgers.append(charged(tmp_path / "three", EXPERT, [0], gaps=(gap,)))
    found = sharing(settings("expert-offline"), ledgers)
    assert found.epsilon == math.inf
    assert "add up." in found.words


@pytest.mark.parametrize(
    ("algorithm", "config", "whom"),
    [
        ("dppg", {"unit": "trajectory"}, "separate simulated people"),
        ("functional-q", {"unit": "transition"}, "separate simulated transitions"),
    ],
)
def test_simulated_people_are_others_in_every_seed(
    tmp_path: Path, algorithm: str, config: dict[str, str], whom: str
) -> None:
    ledgers = [charged(tmp_path / f"{seed}", PERSON, [0]) for seed in range(2)]
    found = sharing(settings(algorithm, **config), ledgers)
    assert found.epsilon is None
    assert whom in found.words


def test_real_people_of_earlier_versions_count_as_the_same_in_every_seed(tmp_path: Path) -> None:
    """Each ledger numbers them from 0, and nobody told the environment which seed asks."""
    ledgers = [charged(tmp_path / f"{seed}", PERSON, [0]) for seed in range(2)]
    found = sharing(settings("dppg", "real", unit="trajectory"), ledgers)
    assert found.epsilon == pytest.approx(gaussian(0.5**0.5, DELTA), rel=1e-4)
    assert "simulated" not in found.words
    assert "may have met the same people" in found.words
