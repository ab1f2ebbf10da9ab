"""Whom an environment of real people meets is whom the ledger and the shared budget charge.

A service once failed in the middle of a release, and its continuation met the next people of the
waiting list: their data were released, and others were charged in the shared budget.
"""

from pathlib import Path

import pytest
from commands import refused

from sotto.algorithms.dppg.gymnasium_users import Collector
from sotto.cli import main
from sotto.privacy.ledger.shared import SharedBudget
from sotto.rl.envs.gymnasium import unseen
from sotto.runs.directory import open_experiment

WARD = '''
import os
from pathlib import Path

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

HERE = Path(__file__).parent


class Ward(CartPoleEnv):
    """Writes down whom each reset meets."""

    metadata = CartPoleEnv.metadata | {"meets_person": True}

    def reset(self, *, seed=None, options=None):
        with (HERE / "met").open("a") as file:
            file.write(f"{'again' if seed is None else 'first'} {options['person']}\\n")
        return super().reset(seed=seed)

    def step(self, action):
        if (HERE / "broken").exists():
            raise RuntimeError("a patient's device")
        return super().step(action)


class Unnamed(CartPoleEnv):
    """Does not ask whom it meets."""

    def reset(self, *, seed=None, options=None):
        assert options is None
        if seed is not None:
            with (HERE / "met").open("a") as file:
                file.write(f"first {seed}\\n")
        return super().reset(seed=seed)


gym.register("WhoWard-v0", entry_point=f"{__name__}:Ward", max_episode_steps=20)
gym.register("WhoUnnamed-v0", entry_point=f"{__name__}:Unnamed", max_episode_steps=20)
'''
ENV, UNNAMED = "who_is_met_ward:WhoWard-v0", "who_is_met_ward:WhoUnnamed-v0"
SMALL = (
    *("--population", "real", "--users-per-update", "4", "--steps-per-user", "8"),
    *("--critic", "none", "--hidden", "4", "--delta", "1e-3", "--target-epsilon", "1"),
)
EXPLORING = ("--local-update", "parameter-exploration", "--parameter-noise", "1")


@pytest.fixture(autouse=True)
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "who_is_met_ward.py").write_text(WARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "numbers.txt").write_text("\n".join(map(str, range(100, 140))))
    return tmp_path


def met(ward: Path) -> list[int]:
    """The numbers that first resets got, release by release and in order."""
    lines = [line.split() for line in (ward / "met").read_text().splitlines()]
    found = [int(number) for kind, number in lines if kind == "first"]
    return [one for i in range(0, len(found), 4) for one in sorted(found[i : i + 4])]


def words(ward: Path, *more: str, env_id: str = ENV) -> list[str]:
    return ["train", "dppg", "--env-id", env_id, "--out", str(ward / "run"), *more]


def test_people_of_a_failed_release_are_met_again(ward: Path, capsys, monkeypatch) -> None:
    budget = ward / "budget.sqlite"
    created = ["budget", "create", str(budget), "--epsilon", "2", "--delta", "1e-3"]
    assert main(created) == 0
    shared = ["--budget", str(budget), "--numbers", str(ward / "numbers.txt")]
    collect, calls = Collector.collect, []

    def failing_once(self, *given):
        calls.append(1)
        (ward / "broken").touch() if len(calls) == 2 else (ward / "broken").unlink(missing_ok=True)
        return collect(self, *given)

    monkeypatch.setattr(Collector, "collect", failing_once)
    error = refused(capsys, *words(ward, *SMALL, "--total-steps", "64", *shared))
    assert f"{ENV} failed where real people are met" in error
    assert main(words(ward, "--resume", *shared)) == 0
    assert met(ward) == [*range(8), *range(4, 8)]
    unnamed = WARD.replace("meets_person", "no_longer")
    (ward / "who_is_met_ward.py").write_text(unnamed)
    unseen._asked.cache_clear()  # as a later process would ask again
    longer = words(ward, "--resume", "--total-steps", "96", *shared)
    assert "a shared budget counts people by their" in refused(capsys, *longer)
    charged = SharedBudget.open(budget).account().people.tolist()
    assert sorted(charged) == list(range(100, 108))


def test_people_who_come_back_are_those_who_are_charged(ward: Path) -> None:
    back = ("--participations", "2", "--min-separation", "2", "--no-correlated-noise")
    assert main(words(ward, *SMALL, "--total-steps", "128", *back)) == 0
    assert met(ward) == [*range(8), *range(8)]
    (run,) = open_experiment(ward / "run").runs
    assert run.open_ledger().persons == 8
    assert "with a person's enrolment number meets that person" in run.certificate.read_text()


def test_a_later_episode_is_the_same_persons(ward: Path) -> None:
    """A reset within a trajectory has no seed, and the same number."""
    more = ("--total-steps", "160", "--steps-per-user", "40")
    assert main(words(ward, *SMALL, *more)) == 0
    lines = {tuple(line.split()) for line in (ward / "met").read_text().splitlines()}
    assert {number for kind, number in lines if kind == "again"} == set("0123")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--participations", "2"), "participations"),
        (EXPLORING, "parameter-exploration"),
    ],
)
def test_who_is_met_must_be_known_to_meet_somebody_again(
    ward: Path, capsys, more: tuple[str, ...], named: str
) -> None:
    steps = ("--total-steps", "64")
    assert main(words(ward, *SMALL, *steps, *more, env_id=UNNAMED)) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"{named} counts people by their enrolment numbers, so {UNNAMED} must meet" in said
    assert not (ward / "run").exists()


def test_real_people_are_not_met_by_the_tries_of_a_tuning(ward: Path, capsys) -> None:
    """Each of them would learn the number of tries, for which the certificate says nothing."""
    tune = ["tune", "dppg", "--settings", "learning_rate=.1,.2", "--mean-tries", "2", *SMALL]
    tune += ["--private-return", "0", "8", "--total-steps", "64", "--out", str(ward / "run")]
    assert "real people would take part in every try" in refused(capsys, *tune, "--env-id", ENV)
    assert not (ward / "run").exists()


def test_a_shared_budget_needs_to_know_who_is_met(ward: Path, capsys) -> None:
    budget = ward / "budget.sqlite"
    assert main(["budget", "create", str(budget), "--epsilon", "2", "--delta", "1e-3"]) == 0
    shared = ["--budget", str(budget), "--numbers", str(ward / "numbers.txt")]
    error = refused(capsys, *words(ward, *SMALL, "--total-steps", "64", *shared, env_id=UNNAMED))
    assert "a shared budget counts people by their enrolment numbers" in error
    assert not (ward / "run").exists()


def test_an_environment_that_does_not_ask_meets_new_people(ward: Path) -> None:
    assert main(words(ward, *SMALL, "--total-steps", "64", env_id=UNNAMED)) == 0
    (run,) = open_experiment(ward / "run").runs
    assert "meets a person whom no earlier one has met" in run.certificate.read_text()


def test_simulated_people_have_numbers_too(ward: Path) -> None:
    """So that an environment can be tried before it meets anybody."""
    simulated = (*SMALL[2:], "--population", "simulated", "--evaluation-episodes", "0")
    assert main(words(ward, *simulated, "--total-steps", "64")) == 0
    assert met(ward) == list(range(8))


def test_the_seed_of_a_reset_is_the_person_where_no_number_is_asked_for(ward: Path) -> None:
    """Seeds that are drawn can be equal: an environment that chose by them met somebody twice."""
    assert main(words(ward, *SMALL, "--total-steps", "64", env_id=UNNAMED)) == 0
    assert met(ward) == list(range(8))


def test_two_seeds_do_not_meet_the_same_people(ward: Path, capsys) -> None:
    """Each ledger stated the whole epsilon of its own seed, and together they cost more."""
    error = refused(capsys, *words(ward, *SMALL, "--total-steps", "64", "--seeds", "2"))
    assert "each seed would number the same real people from 0" in error
    assert not (ward / "met").exists()
    assert not (ward / "run").exists()
