"""Attacks on offline learning from people's logs: shared scales, killed runs, what is stored."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from people_logs import people, scales, settings, write_visits

from sotto.algorithms.offline_people import algorithm, learning, rounds
from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.moments import Logged
from sotto.cli import main
from sotto.privacy.audits.audit import ReleaseTrials, audit_mechanism
from sotto.privacy.errors import NothingReleased
from sotto.privacy.ledger.ledger import Ledger


class Killed(BaseException):
    """An exception that no code under test catches."""


CONFIG = settings(people=170, delta=1e-3, target_epsilon=2.0)


def trials(scaled_by_everybody: bool) -> ReleaseTrials:
    """The first round with and without the first person, whose changes are the only large ones.

    The usual mistake takes the scales from the people themselves. Everybody else's moments then
    depend on whether the first person is there.
    """
    release = rounds.round_release(CONFIG, 0)
    drawn = people()
    units = Logged(*(np.array(leaf[: release.slots]) for leaf in drawn))
    units.present[:], units.cut[:], units.ends[:] = True, False, False
    units.observations[:] = 5 + 0.01 * units.observations
    units.observations[..., 1] = 0
    units.observations[0, ::2, 0], units.observations[0, 1::2, 0] = 0, 10

    def inputs(present: bool) -> tuple[np.ndarray, Logged]:
        persons = np.arange(release.slots)
        there = persons > (-1 if present else 0)
        found = units
        if scaled_by_everybody:
            found = units._replace(observations=units.observations.copy())
            middle = units.observations[..., 0] - 5
            found.observations[..., 0] = 5 + 5 * middle / np.abs(middle[there]).max()
        return np.where(there, persons, -1)[None], Logged(*(leaf[None] for leaf in found))

    return ReleaseTrials(
        release,
        jax.tree.map(jnp.asarray, rounds.blank(CONFIG, scales())),
        inputs,
        lambda log: np.asarray(log)[:, 0, [1, 37, 73]],  # the mean observation for each action
    )


def test_an_audit_finds_scales_that_are_read_off_the_people_and_nothing_else() -> None:
    sound, leaky = trials(False), trials(True)
    certified = sound.certified_epsilon(1e-3)
    assert certified == pytest.approx(2.0, rel=1e-3)
    assert not audit_mechanism(sound, 400, 0, 1e-3, certified_epsilon=certified).refuted
    assert audit_mechanism(leaky, 400, 0, 1e-3, certified_epsilon=certified).refuted


def test_a_release_that_was_charged_and_lost_is_not_made_again(tmp_path: Path) -> None:
    asked = algorithm.Offline()
    config = asked.resolved(OfflinePeopleConfig(on=str(write_visits(tmp_path, 40)), delta=1e-3))
    ledger = asked.create_ledger(config, tmp_path / "ledger.sqlite", "run")
    states = asked.initial_states(config, [0])
    next(asked.train(config, [0], [ledger], states, 0, [tmp_path]))  # killed before its checkpoint
    again = Ledger.open(tmp_path / "ledger.sqlite", "run")
    with pytest.raises(NothingReleased, match="charged and then lost"):
        next(asked.train(config, [0], [again], states, 0, [tmp_path]))
    assert (again.persons, [one.releases for one in again.streams]) == (4, [1])


def test_the_command_certifies_goes_on_and_shows_nothing_of_real_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log, out = write_visits(tmp_path, 60), tmp_path / "run"

    def killed(*given: Any) -> Any:
        raise Killed

    def nothing_learned(config: Any, *given: Any) -> Any:
        return learning.blank_policy(config, given[-1])

    monkeypatch.setattr(learning, "learn", killed)
    train = ["train", "offline", "--on", str(log), "--delta", "1e-3", "--out", str(out)]
    with pytest.raises(Killed):
        main(train)
    monkeypatch.setattr(learning, "learn", nothing_learned)
    assert main(["train", "offline", "--out", str(out), "--resume"]) == 0
    assert main(["certificate", str(out)]) == 0
    assert main(["certificate", str(out), "--verify"]) == 0
    said = capfd.readouterr()
    assert "Proved: epsilon 1 at delta 0.001" in said.out + said.err
    assert main(["eval", str(out)]) != 0
    assert "no simulator" in "".join(capfd.readouterr())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(not one.get("simulated") and not one.get("evaluation") for one in lines)
    ledger = Ledger.open(out / "ledger.sqlite", None)
    assert ledger.persons == 60


def test_a_run_does_not_go_on_with_another_import_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its people are in other places, so some would be in two releases, and pay for one."""
    log, out = write_visits(tmp_path, 60), tmp_path / "run"

    def killed(*given: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "round_release", killed)
        with pytest.raises(Killed):
            main(["train", "offline", "--on", str(log), "--delta", "1e-3", "--out", str(out)])
    shutil.rmtree(log)
    write_visits(tmp_path, 60)
    assert main(["train", "offline", "--out", str(out), "--resume"]) == 2
    assert "another import than the one that this run began with" in capfd.readouterr().err
    assert Ledger.open(out / "ledger.sqlite", None).persons == 6
