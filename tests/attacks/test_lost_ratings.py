"""Attacks on private RLHF: killed trainings, absent people, and what a run leaves behind."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlhf_people import MODEL, PEOPLE, config, simulated, write_log
from tiny_models import model

from sotto.algorithms.base import Progress
from sotto.algorithms.rlhf import training
from sotto.algorithms.rlhf.algorithm import RLHF
from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.people import People, meet
from sotto.cli import main
from sotto.privacy.errors import NothingReleased, PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms import gaussian, noise
from sotto.runs import checkpoints, metrics
from sotto.runs.directory import open_experiment
from sotto.runs.start import config_of

# --- a training that is killed after a charge ----------------------------------------------------


def begin(settings: RLHFConfig, people: People) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x)[None], training.initial_state(settings, people))


def train(
    settings: RLHFConfig, people: People, ledger: Ledger, states: Any, done: int, where: Path
) -> Iterator[Progress]:
    folder = where / "released"
    return training.RLHFTraining(settings, people, ledger, states, done, folder).run()


def test_a_lost_release_of_real_people_is_not_made_again_under_new_numbers(tmp_path: Path) -> None:
    """It would be about the same ratings, and be certified as about other people."""
    log, public = write_log(tmp_path)
    settings = config(feedback=str(log), public_prompts=str(public), delta=1e-3)
    people = meet(settings, model("llama"))
    states = begin(settings, people)
    ledger = RLHF().create_ledger(settings, tmp_path / "ledger.sqlite", "run")
    next(train(settings, people, ledger, states, 0, tmp_path))  # killed before its checkpoint
    again = Ledger.open(tmp_path / "ledger.sqlite", "run")
    with pytest.raises(
        NothingReleased, match="every release of this run was charged and then lost"
    ):
        next(train(settings, people, again, states, 0, tmp_path))
    assert (again.persons, [one.releases for one in again.streams]) == (PEOPLE, [1])


STEPS = config(
    method="best-of-n", adapter="steering", directions=0, releases=4, evaluation_prompts=2
)


class Watched(People):
    """Simulated people of whom it is noted who was asked."""

    def rated(self, *given: Any) -> Any:
        self.asked.append(given[-1])
        return super().rated(*given)

    @property
    def asked(self) -> list[int]:
        return self.__dict__.setdefault("_asked", [])


def test_simulated_people_of_a_lost_release_are_not_asked_again(tmp_path: Path) -> None:
    """Two of four releases are made, the second one is lost, and the last two people remain."""
    people = Watched(**vars(simulated()))
    ledger = RLHF().create_ledger(STEPS, tmp_path / "ledger.sqlite", "run")
    running = train(STEPS, people, ledger, begin(STEPS, people), 0, tmp_path)
    first, _ = next(running), next(running)
    again = Ledger.open(tmp_path / "ledger.sqlite", "run")
    *rest, last = train(STEPS, people, again, first.states, first.updates, tmp_path)
    assert people.asked == [0, 1, 2, 3]
    assert (again.persons, again.next_person) == (PEOPLE, PEOPLE)
    assert [one.releases for one in again.streams] == [2, 2]
    assert [one.updates for one in (*rest, last)] == [3, 4, 5]
    lost, made = rest[0].released["update_norm"][0]  # one value for each update
    assert np.isnan(lost)
    assert made > 0
    adapters = [np.asarray(one.states.adapter.steering[1]) for one in rest]
    average = np.asarray(rest[-1].states.average.steering[1])
    np.testing.assert_allclose(average, np.mean(adapters, axis=0), rtol=1e-4, atol=1e-6)


def test_a_training_whose_last_release_is_lost_ends_with_what_it_has(tmp_path: Path) -> None:
    ledger = RLHF().create_ledger(STEPS, tmp_path / "ledger.sqlite", "run")
    running = train(STEPS, simulated(), ledger, begin(STEPS, simulated()), 0, tmp_path)
    *_, third, _ = (next(running) for _ in range(4))
    again = Ledger.open(tmp_path / "ledger.sqlite", "run")
    (last,) = train(STEPS, simulated(), again, third.states, third.updates, tmp_path)
    assert last.updates == STEPS.num_updates
    assert again.persons == PEOPLE


def test_of_two_processes_only_one_is_charged(tmp_path: Path) -> None:
    ledger = RLHF().create_ledger(config(), tmp_path / "ledger.sqlite", "run")
    other = Ledger.open(tmp_path / "ledger.sqlite", "run")
    states = begin(config(), simulated())
    next(train(config(), simulated(), ledger, states, 0, tmp_path))
    with pytest.raises(PrivacyError):
        next(train(config(), simulated(), other, states, 0, tmp_path))
    assert Ledger.open(tmp_path / "ledger.sqlite", "run").persons == PEOPLE


# --- somebody who is not in the log --------------------------------------------------------------


def test_nobody_comes_in_when_somebody_is_absent(tmp_path: Path) -> None:
    """With one person less, one place is empty, and nothing fails or changes its shape."""
    found = []
    for count in (PEOPLE, PEOPLE - 1):
        (folder := tmp_path / str(count)).mkdir()
        log, public = write_log(folder, people=count)
        people = meet(config(feedback=str(log), public_prompts=str(public)), model("llama"))
        found.append(people.rated(config(), None, 0))
    for whole, without in zip(*found, strict=True):
        np.testing.assert_array_equal(whole[:-1], without[:-1])
        assert whole.shape == without.shape
        assert not without[-1].any()


# --- what a run leaves ---------------------------------------------------------------------------

FLAGS = (
    *("--model", str(MODEL), "--people", str(PEOPLE), "--completions", "3"),
    *("--prompt-tokens", "4", "--new-tokens", "5", "--features", "4", "--delta", "1e-3"),
    *("--improvement-prompts", "16", "--candidates", "3"),
    *("--rank", "2", "--targets", "q_proj", "--json"),
    *("--noise-multiplier", "4"),
)


def left_by(folder: Path, seed: int) -> tuple[dict[str, Any], list[Any], str]:
    """The last checkpoint, the metrics and the certificate of a run about people of this seed."""
    folder.mkdir()
    log, public = write_log(folder, people=PEOPLE - seed, seed=seed)
    out = folder / "run"
    named = ("--feedback", str(log), "--public-prompts", str(public), "--out", str(out))
    assert main(["train", "rlhf", *FLAGS, *named]) == 0
    lines = [
        (one.updates, one.released, one.evaluation, one.simulated, one.samples)
        for one in metrics.read(out / "metrics.jsonl")
    ]
    experiment = open_experiment(out)
    settings = config_of(experiment)
    states = checkpoints.load_all(RLHF(), settings, experiment, settings.num_updates)
    certificate = json.loads((out / "certificate.json").read_text())
    return states, lines, json.dumps(certificate["claims"])


def test_whatever_a_run_leaves_is_a_function_of_its_release(tmp_path: Path, monkeypatch) -> None:
    """Contributions become zero and noise is fixed; then the logs of others leave the same run."""

    def nothing(parts: dict[str, Any], *_given: Any, **_named: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, bound(parts, *_given, **_named))

    bound = gaussian.bound_contribution
    monkeypatch.setattr(gaussian, "bound_contribution", nothing)
    monkeypatch.setattr(
        noise, "GeneratorSource", partial(lambda make, _: make(0), noise.GeneratorSource)
    )
    one, other = left_by(tmp_path / "a", 0), left_by(tmp_path / "b", 1)
    for here, there in zip(*map(jax.tree.leaves, (one[0], other[0])), strict=True):
        np.testing.assert_array_equal(np.asarray(here), np.asarray(there))
    assert one[1:] == other[1:]
    series = [set(released) for _, released, *_ in one[1]]
    assert series == [{"update_norm"}, {"scale"}]
    assert all(shown == [{}, {}, ()] for _, _, *shown in one[1])  # of single people
