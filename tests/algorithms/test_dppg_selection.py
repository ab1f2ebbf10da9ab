"""Settings of DPPG chosen privately: what is charged, what is tried, and what leaves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sotto.algorithms.dppg import noise, tuning
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.dppg.training import DPPGTraining
from sotto.algorithms.dppg.tuning import Selected, candidates, create_selection_ledger, select
from sotto.cli import main
from sotto.errors import RunError
from sotto.privacy.accounting.composition import Gaussian, RepeatAndSelect, compose
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger

USERS, STEPS, MEAN = 4, 8, 3.0


def tiny(**changes: Any) -> DPPGConfig:
    settings: dict[str, Any] = {
        "users_per_update": USERS,
        "steps_per_user": STEPS,
        "total_steps": USERS * STEPS * 3,
        "hidden": (),
        "private_return": (0.0, 8.0),
        "target_epsilon": 1.7,
        "delta": 1e-5,
    }
    return preset("sotto", "CartPole-v1", **(settings | changes))


def cost(z: float, delta: float = 1e-5) -> float:
    run = Gaussian(noise_multiplier=z)
    event = RepeatAndSelect(run=run, tries="geometric", mean=MEAN, accounting=2)
    return compose([event]).epsilon(delta)


def opened(config: DPPGConfig, folder: Path) -> Ledger:
    return create_selection_ledger(config, MEAN, folder / "ledger.sqlite")


def test_every_combination_has_noise_that_pays_for_all_tries() -> None:
    tried = candidates(tiny(), {"clip_norm": [0.02, 0.05], "learning_rate": [0.1, 0.5, 1.0]}, MEAN)
    assert len(tried) == len({(one.clip_norm, one.learning_rate) for one in tried}) == 6
    (z,) = {one.noise_multiplier for one in tried}
    assert z is not None
    assert 1.68 < cost(z) <= 1.7
    assert cost(0.95 * z) > 1.7
    assert all(one.target_epsilon is None for one in tried)
    assert compose([noise.event(tried[0], z)]).epsilon(1e-5) < 1.4  # one try alone costs less


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[DPPGConfig]:
    """Trainings replaced by their clip norm as a score; what was tried is written down here."""
    made: list[DPPGConfig] = []

    def scored(config: DPPGConfig, seed: int) -> Selected:
        made.append(config)
        return Selected(config, seed, None, {}, config.clip_norm)  # type: ignore[arg-type]

    monkeypatch.setattr(tuning, "_try", scored)
    return made


def test_the_ledger_is_charged_for_everybody_before_the_first_try(
    tries: list[DPPGConfig], tmp_path: Path
) -> None:
    tried = candidates(tiny(), {"clip_norm": [0.02, 0.05]}, MEAN)
    ledger = opened(tiny(), tmp_path)
    best = select(tried, MEAN, ledger, seed=0)
    assert tries
    assert best.score == max(one.clip_norm for one in tries)
    certificate = derive(Ledger.open(tmp_path / "ledger.sqlite"))
    assert certificate.status == "proved"
    assert certificate.persons == 3 * USERS
    assert 1.68 < certificate.epsilon <= 1.7
    (stream,) = certificate.streams
    z = tried[0].noise_multiplier
    assert z is not None
    assert isinstance(stream.event, RepeatAndSelect)
    assert stream.event.run.noise_multiplier == pytest.approx(z)
    assert stream.event.mean == MEAN
    with pytest.raises(ValueError, match="ledger of its own"):
        select(tried, MEAN, ledger, seed=0)


def test_how_often_is_secret_and_geometric(
    tries: list[DPPGConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their numbers over many selections, without the ledger and the statement."""
    tried = candidates(tiny(), {"clip_norm": [0.02, 0.05]}, MEAN)
    statement = tuning._statement(tried, MEAN, 0)
    monkeypatch.setattr(tuning, "_statement", lambda *_: statement)
    counts = []
    for number in range(60):
        tries.clear()
        ledger = create_selection_ledger(tiny(), MEAN, tmp_path / f"{number}.sqlite")
        select(tried, MEAN, ledger, seed=0)
        counts.append(len(tries))
    # Mean 3 and standard deviation 2.45: the mean of sixty is 7 of its own deviations from 5.2.
    assert min(counts) >= 1
    assert abs(np.mean(counts) - MEAN) < 2.2
    assert len(set(counts)) > 1


def test_candidates_that_cost_differently_are_refused_before_any_charge(tmp_path: Path) -> None:
    tried = candidates(tiny(), {"critic_noise_ratio": [1.0, 2.0]}, MEAN)
    assert len(tried) == 2  # without a critic it changes nothing
    mixed = candidates(tiny(), {"private_return_noise_ratio": [1.0, 4.0]}, MEAN)
    ledger = opened(tiny(), tmp_path)
    with pytest.raises(ValueError, match=r"differ in what the cost depends on \(parts\)"):
        select(mixed, MEAN, ledger, seed=0)
    assert not ledger.streams


def test_over_budget_is_refused_before_any_try(tries: list[DPPGConfig], tmp_path: Path) -> None:
    ledger = opened(tiny(target_epsilon=1.0), tmp_path)
    with pytest.raises(PrivacyError, match="over the budget"):
        select(candidates(tiny(), {}, MEAN), MEAN, ledger, seed=0)
    assert not tries


def test_the_budget_is_the_target_or_what_the_given_noise_costs(tmp_path: Path) -> None:
    budget = opened(tiny(target_epsilon=1.0), tmp_path).budget
    assert (budget.epsilon, budget.delta) == (1.0, 1e-5)
    given = tiny(target_epsilon=None, noise_multiplier=5.0)
    ledger = create_selection_ledger(given, MEAN, tmp_path / "given.sqlite")
    assert ledger.budget.epsilon == pytest.approx(cost(5.0, 0.99e-5))
    tried = candidates(given, {"clip_norm": [0.02, 0.05]}, MEAN)
    assert {one.noise_multiplier for one in tried} == {5.0}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("noise_multiplier", 0.5),
        ("target_epsilon", 5.0),
        ("delta", 1e-3),
        ("adjacency", "replace-one"),
        ("unit", "segment"),
        ("population", "real"),
        ("population_size", 100),
        ("participations", 2),
        ("min_separation", 2),
        ("users_per_update", 8),
        ("total_steps", 640),
        ("env_id", "Acrobot-v1"),
        ("seed", 1),
    ],
)
def test_the_guarantee_and_who_takes_part_are_not_tried(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{setting} is part of the guarantee or of who takes"):
        candidates(tiny(), {"clip_norm": [0.02], setting: [value]}, MEAN)


def test_a_try_without_a_finite_score_loses_to_all_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not a number compares with nothing: first it would win, and later it would lose."""
    released = [np.nan, 5.0, np.inf, 9.0, -np.inf, 7.0]
    scores = [tuning._score(np.full(4, one, np.float32), 0.5) for one in released]
    assert scores == [-np.inf, 5.0, -np.inf, 9.0, -np.inf, 7.0]
    largest = np.full(4, np.finfo(np.float32).max)  # whose sum float32 does not hold
    assert tuning._score(largest, 1.0) == largest[0]

    tried = candidates(tiny(), {"clip_norm": [0.02]}, MEAN)
    left = iter(scores)
    monkeypatch.setattr(tuning, "draw_tries", lambda *_: len(scores))
    monkeypatch.setattr(
        tuning, "_try", lambda config, seed: Selected(config, 0, None, {}, next(left))
    )
    assert select(tried, MEAN, opened(tiny(), tmp_path), seed=0).score == 9.0


def test_a_try_that_fails_is_discarded_like_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An error would tell that one of all tries failed, and of the best try only may be told."""
    left = iter([True, False, True])

    def sometimes(config: DPPGConfig, seed: int) -> Selected:
        if next(left):
            raise OSError("the clinic of this person is closed")
        return Selected(config, seed, None, {}, 5.0)  # type: ignore[arg-type]

    tried = candidates(tiny(), {"clip_norm": [0.02]}, MEAN)
    monkeypatch.setattr(tuning, "draw_tries", lambda *_: 3)
    monkeypatch.setattr(tuning, "_try", sometimes)
    assert select(tried, MEAN, opened(tiny(), tmp_path), seed=0).score == 5.0
    left = iter([True] * 3)
    (tmp_path / "again").mkdir()
    with pytest.raises(RunError, match="every try of the selection failed") as caught:
        select(tried, MEAN, opened(tiny(), tmp_path / "again"), seed=0)
    assert caught.value.__context__ is None
    assert "clinic" not in str(caught.value)


def test_an_interrupted_selection_is_not_gone_on_with_as_a_training(
    tries: list[DPPGConfig], tmp_path: Path
) -> None:
    tried = candidates(tiny(), {"clip_norm": [0.02, 0.05]}, MEAN)
    ledger = opened(tiny(), tmp_path)
    select(tried, MEAN, ledger, seed=0)
    people = ledger.persons
    with pytest.raises(ValueError, match="run sotto tune again with another --out"):
        DPPGTraining(tried[0], [0], [Ledger.open(tmp_path / "ledger.sqlite")])
    after = Ledger.open(tmp_path / "ledger.sqlite")
    assert len(after.streams) == 1
    assert after.persons == people


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"private_return": None}, {}, "give private_return"),
        ({}, {"private_return": [(0.0, 8.0), None]}, "give private_return"),
        ({}, {"critic": ["none", "paper"]}, "tries that are proved"),
        ({"critic": "paper"}, {}, "tries that are proved"),
        ({}, {"nonsense": [1]}, "no setting 'nonsense'"),
        ({}, {"clip_norm": [-1.0]}, "clip.norm"),
    ],
)
def test_bad_candidates_are_refused(
    changes: dict[str, Any], settings: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        candidates(tiny(**changes), settings, MEAN)


def test_the_command_leaves_a_run_of_the_best_and_nothing_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tuned"
    flags = f"--users-per-update {USERS} --steps-per-user {STEPS} --total-steps {USERS * STEPS * 3}"
    flags += " --private-return 0 8 --target-epsilon 1.7 --settings clip_norm=.02,.05 --json"
    assert main(["tune", "dppg", *flags.split(), "--mean-tries", "1", "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == "proved"
    assert said["epsilon"] <= 1.7
    assert said["selected"]["clip_norm"] in (0.02, 0.05)
    stored = json.loads((out / "config.json").read_text())["config"]
    assert stored["clip_norm"] == said["selected"]["clip_norm"]
    (line,) = (out / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["simulated"] == {}
    assert json.loads(line)["seconds"] == 0
    assert main(["certificate", str(out), "--verify"]) == 0
    assert main(["eval", str(out), "--episodes", "2"]) == 0
    wrong = ["tune", "dppg", *flags.split(), "--settings", "critic_noise_ratio=", "--out"]
    assert main([*wrong, str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists()
