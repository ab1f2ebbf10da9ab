"""Attacks on the bandit for people who rate items: what others see of one person."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from killed import Killed
from rated_logs import people, settings, write_ratings

from sotto.algorithms.bandit import algorithm, release
from sotto.algorithms.bandit.person import Rated
from sotto.cli import main
from sotto.keys import keys_of
from sotto.privacy.audits.audit import ReleaseTrials, audit_mechanism
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget

CONFIG = settings(blocks=1, people=20, delta=1e-3, target_epsilon=2.0, clip_norm=0.05)


def trials(scaled_by_everybody: bool) -> ReleaseTrials:
    """A block with and without its first person, who alone uses the ends of the scale.

    The usual mistake takes the bounds of ratings from the ratings themselves. Everybody else's
    contribution then depends on whether the first person is there.
    """
    drawn = jax.tree.map(np.array, people(20))
    drawn.present[:] = True
    drawn.items[:] = 0.01 * drawn.items
    drawn.items[:, ::4, 0] = 0.8
    drawn.ratings[:] = np.where(drawn.items[..., 0] > 0.5, 0.502, 0.498)
    drawn.ratings[0, :2] = 0, 1

    def inputs(present: bool) -> tuple[np.ndarray, Rated]:
        persons = np.arange(20)
        there = persons > (-1 if present else 0)
        found = drawn
        if scaled_by_everybody:
            low, high = drawn.ratings[there].min(), drawn.ratings[there].max()
            found = drawn._replace(ratings=((drawn.ratings - low) / (high - low)).clip(0, 1))
        return np.where(there, persons, -1)[None], Rated(*(leaf[None] for leaf in found))

    def score(log: Any) -> np.ndarray:
        return np.asarray(log)[:, 0]

    def seen(state: release.BanditState, released: Any) -> tuple[release.BanditState, Any]:
        after, _ = release.added(state, released)
        return after, after.sums.products

    made = replace(release.block_release(CONFIG, 1), server=seen)
    return ReleaseTrials(made, release.first_state(CONFIG), inputs, score)


def test_an_audit_finds_bounds_that_are_read_off_the_ratings_and_nothing_else() -> None:
    sound, leaky = trials(False), trials(True)
    certified = sound.certified_epsilon(1e-3)
    assert certified <= 2.0
    assert not audit_mechanism(sound, 400, 0, 1e-3, certified_epsilon=certified).refuted
    assert audit_mechanism(leaky, 400, 0, 1e-3, certified_epsilon=certified).refuted


def blocks_of(
    units: Rated, states: list[release.BanditState] | None, folder: Path
) -> tuple[list[release.BanditState], list[dict[str, np.ndarray]]]:
    """The states before every block, and what the people of the blocks see: mean ratings.

    The noise is that of a fixed seed. States are given, or those that the releases make.
    """
    config = settings(population="simulated")
    budget = Budget(epsilon=np.inf, delta=1e-3)
    ledger = Ledger.create(folder, "a", unit=release.UNIT, budget=budget)
    made = release.block_release(config, config.blocks)
    variances = release.sum_variances(made, "moments"), release.sum_variances(made, "gain")
    before, seen = [release.first_state(config)], []
    nested = partial(jax.tree.map, lambda x: jnp.asarray(x)[None])
    first = nested(before[0]), algorithm.block_of(config, units, 0)[1]
    stream = made.open([ledger], *first, chunk=1, noise_seed=5)
    for block in range(config.blocks):
        persons, own = algorithm.block_of(config, units, block)
        state = before[block] if states is None else states[block]
        after, _, shown = stream.run(
            nested(state), keys_of([0], 0), persons[None, None], nested(nested(own))
        )
        assert shown is not None  # simulated people are
        seen.append({name: np.asarray(x)[0, 0] for name, x in shown.items()})
        one = jax.tree.map(lambda x: x[0], after)
        before.append(algorithm.learned(config, one, *(float(x[block]) for x in variances)))
    return before, seen


def test_others_see_a_person_through_the_release_only(tmp_path: Path) -> None:
    """In every block, one person's ratings change nobody else's rounds if the prior is the same.
    They change the priors of later blocks, and of no earlier one (joint privacy)."""
    units = Rated(*map(jnp.asarray, people()))
    sizes = np.asarray(units.present).sum(axis=1).reshape(5, 10)
    rows = 10 * np.arange(5) + sizes.argmax(axis=1)  # one person of each block

    def turned(rows: Any) -> Rated:
        opposite = (1 - units.ratings[rows]) * units.present[rows]
        return units._replace(ratings=units.ratings.at[rows].set(opposite))

    states, seen = blocks_of(units, None, tmp_path / "one")
    _, same_priors = blocks_of(turned(rows), states, tmp_path / "two")
    for block, (one, two) in enumerate(zip(seen, same_priors, strict=True)):
        for name in ("reward", "random"):
            changed = 10 * block + np.flatnonzero(one[name] != two[name])
            assert changed.tolist() == [rows[block]]
    own_states, _ = blocks_of(turned(rows[2]), None, tmp_path / "three")
    differ = [np.any(a.prior.mean != b.prior.mean) for a, b in zip(states, own_states, strict=True)]
    assert differ == [block > 2 for block in range(6)]


def test_the_command_certifies_goes_on_and_shows_nothing_of_single_people(
    tmp_path: Path, capfd: Any
) -> None:
    log, out = write_ratings(tmp_path, 60), tmp_path / "run"
    words = ["train", "bandit", "--on", str(log), "--candidates", "2", "--blocks", "3"]
    assert main([*words, "--delta", "1e-3", "--out", str(out)]) == 0
    assert main(["certificate", str(out)]) == 0
    assert main(["certificate", str(out), "--verify"]) == 0
    said = "".join(capfd.readouterr())
    assert "Proved: epsilon 1 at delta 0.001" in said
    for sentence in (
        "against all other people together",
        "gave each person one id",
        "No cell of the log is public",
        "chosen without this log, or from releases that were paid for",
        "The log has this origin: simulated",
        "under these terms: CC0-1.0",
    ):
        assert sentence in " ".join(said.split())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(not one["simulated"] for one in lines)
    assert set(lines[-1]["evaluation"]) == {"gain", "gain_noise"}
    assert main(["eval", str(out)]) != 0
    assert "no simulator" in "".join(capfd.readouterr())


def test_nothing_without_noise_is_written_whatever_is_said_of_the_people(tmp_path: Path) -> None:
    """Their mean ratings, exact, were in metrics.jsonl with --population simulated."""
    log, out = write_ratings(tmp_path, 60), tmp_path / "run"
    words = ["train", "bandit", "--on", str(log), "--candidates", "2", "--blocks", "2"]
    words += ["--population", "simulated", "--delta", "1e-3", "--out", str(out)]
    assert main(words) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [one["simulated"] for one in lines] == [{}, {}]


def test_a_run_does_not_go_on_with_another_import_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """Its people are in other places, so some would be in two blocks, and pay for one."""
    log, out = write_ratings(tmp_path, 60), tmp_path / "run"
    words = ["train", "bandit", "--on", str(log), "--candidates", "2", "--blocks", "3"]

    def killed(*_given: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(algorithm, "learned", killed)
        with pytest.raises(Killed):
            main([*words, "--delta", "1e-3", "--out", str(out)])
    shutil.rmtree(log)
    write_ratings(tmp_path, 60)
    assert main(["train", "bandit", "--out", str(out), "--resume"]) == 2
    assert "another import than the one with the identity" in capfd.readouterr().err
    assert Ledger.open(out / "ledger.sqlite", None).persons == 20


def test_the_replay_of_an_import_does_not_depend_on_empty_places() -> None:
    """An empty place contributes zeros, also behind the last place of a log."""
    config = settings(people=48, blocks=5)
    assert (config.slots, config.num_updates) == (10, 5)
    persons, units = algorithm.block_of(config, people(48), 4)
    assert persons.tolist() == [40, 41, 42, 43, 44, 45, 46, 47, -1, -1]
    assert not np.any(units.present[8:])
    assert not np.any(units.items[8:])
