"""Attacks on offline learning from people's logs: shared scales and spreads, killed runs, what is
stored."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from killed import Killed
from people_logs import people, scales, settings, write_visits

from sotto.algorithms.offline_people import algorithm, learning, rounds, steps
from sotto.algorithms.offline_people.config import OfflinePeopleConfig
from sotto.algorithms.offline_people.moments import Logged
from sotto.cli import main
from sotto.keys import new_key
from sotto.privacy.audits.audit import ReleaseTrials, audit_mechanism
from sotto.privacy.errors import NothingReleased
from sotto.privacy.ledger.ledger import Ledger

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


STEPS = settings(people=20, method="advantage", steps=1, sampling_rate=0.99, target_epsilon=1.0)


def noisy_steps(spread_of_everybody: bool) -> Any:
    """A step with and without the first person, whose advantages are the only large ones.

    The usual mistake divides advantages by the mean of these people, without noise. Everybody's
    gradient then depends on whether the first person is there. The sound variant takes the spread
    of the public state. Noise and draws are those of the release.
    """
    units = Logged(*(np.array(leaf[:20]) for leaf in people()))
    units.present[:], units.cut[:], units.ends[:] = True, True, True  # a goal is its own reward
    units.actions[:] = np.arange(6) % 2
    units.observations[:] = np.where(units.actions[..., None] == 0, [10, 2], [0, -2])
    units.rewards[:] = np.where(units.actions == 0, 0.04, -0.04)
    units.rewards[0] *= 25
    state = steps.initial_state(STEPS, new_key(0))
    gradients = jax.jit(jax.vmap(partial(steps.person_gradient, STEPS), in_axes=(None, 0)))
    multiplier = steps.noise_multiplier(STEPS)

    def run(present: bool, seed: int, samples: int) -> np.ndarray:
        there = units.present & (np.arange(20) >= (0 if present else 1))[:, None]
        rows, used = units._replace(present=there), state
        if spread_of_everybody:
            spread = 5 * jnp.mean(gradients(state, rows).spread)  # a fifth of it is contributed
            used = state._replace(spread=spread)
        leaves = jax.tree.leaves(gradients(used, rows))
        parts = np.concatenate([np.reshape(leaf, (20, -1)) for leaf in leaves], axis=1)
        parts = parts / np.maximum(np.linalg.norm(parts, axis=1, keepdims=True), steps.CLIP_NORM)
        rng = np.random.default_rng(seed)
        drawn = rng.random((samples, 20)) < STEPS.sampling_rate
        return drawn @ parts + rng.normal(0, multiplier, (samples, parts.shape[1]))

    return run


def test_an_audit_finds_a_spread_of_advantages_without_noise_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "HIDDEN", (4,))  # few numbers, in which the audit looks
    certified = STEPS.target_epsilon
    found = [
        audit_mechanism(noisy_steps(leaky), 2000, 0, 1e-3, certified_epsilon=certified)
        for leaky in (False, True)
    ]
    assert [one.refuted for one in found] == [False, True]


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
    assert "another import than the one with the identity" in capfd.readouterr().err
    assert Ledger.open(out / "ledger.sqlite", None).persons == 6
