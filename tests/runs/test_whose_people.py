"""Own algorithms whose release alone says that people are real: what a run writes of them."""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import sotto
from sotto.algorithms.base import Algorithm, Progress
from sotto.cli.train import _train
from sotto.errors import RunError
from sotto.keys import new_key
from sotto.runs import registry, start
from sotto.runs.directory import open_experiment
from sotto.runs.metrics import read

PEOPLE = 8


@dataclass(frozen=True)
class MeanConfig:
    num_updates: int = 3
    target_epsilon: float = 1.0
    delta: float = 1e-3
    seed: int = 0


class Mean(sotto.PrivateAlgorithm[MeanConfig]):
    """Releases means of numbers that people gave."""

    name, summary, config_type = "test-real-mean", "a mean", MeanConfig

    def release(self, config):
        z = sotto.calibrate(target_epsilon=config.target_epsilon, delta=config.delta)
        return sotto.Release(
            name="mean of numbers",
            local=lambda _state, number, _key: ({"number": number[None]}, ()),
            server=lambda _state, released: (released["number"], ()),
            unit=sotto.Unit(kind="trajectory", adjacency="zero-out"),
            parts={"number": sotto.Part(clip_norm=1.0, noise_multiplier=z)},
            slots=PEOPLE,
            divisor=float(PEOPLE),
            horizon=config.num_updates,
            population="real",
        )

    def initial_state(self, _config, _key):
        return jnp.zeros(1)

    def policies(self, states):
        return {"last": states}

    def train(self, config, seeds, ledgers, states, done, folders):
        del folders
        given = jnp.ones((len(seeds), config.num_updates, PEOPLE))
        stream = self.release(config).open(ledgers, states, given[0, 0], chunk=1)
        keys = jnp.stack([new_key(seed) for seed in seeds])
        for update in range(done, config.num_updates):
            first = np.array([[ledger.next_person] for ledger in ledgers])[..., None]
            people = first + np.arange(PEOPLE)
            states, _, _ = stream.run(states, keys, people, given[:, update : update + 1])
            exact = {"number": np.ones((len(seeds), 1))}
            words = (("a prompt", "an answer"),)
            yield Progress(update + 1, states, simulated=exact, samples=words, samples_before=words)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {Mean.name: registry.Entry(f"{__name__}:Mean", "a mean")}
    entries = {**registry.entries(), **entry}
    monkeypatch.setattr(registry, "entries", lambda: entries)


def labels(out: Path) -> set[str]:
    experiment = open_experiment(out)
    return {experiment.settings.population, *(run.settings.population for run in experiment.runs)}


def seconds(out: Path) -> set[float]:
    return {line.seconds for run in open_experiment(out).runs for line in read(run.metrics)}


def test_whom_the_release_calls_real_the_run_does(tmp_path: Path) -> None:
    """Its settings say nothing of people."""
    out = tmp_path / "one"
    sotto.train(MeanConfig(), out)
    assert labels(out) == {"real"}
    assert seconds(out) == {0.0}


def test_exact_numbers_of_real_people_are_not_written(tmp_path: Path) -> None:
    """An author's learning curve is `simulated`, whoever took part."""
    sotto.train(MeanConfig(), tmp_path / "one")
    (run,) = open_experiment(tmp_path / "one").runs
    for line in read(run.metrics):
        assert (line.simulated, line.samples, line.samples_before) == ({}, (), ())


def test_seeds_do_not_meet_the_same_real_people(tmp_path: Path) -> None:
    """Each ledger would count one seed, and numbers people from 0."""
    out = tmp_path / "two"
    with pytest.raises(ValueError, match="each seed would number the same real people from 0"):
        sotto.train(MeanConfig(), out, seeds=2)
    assert not out.exists()


def test_seeds_of_an_earlier_version_go_on_no_more(tmp_path: Path, monkeypatch) -> None:
    """It let them meet the same real people."""
    out = tmp_path / "two"
    with monkeypatch.context() as earlier:
        earlier.setattr(start, "_would_meet_again", lambda *_: False)
        start.begin(Mean(), MeanConfig(), out, seeds=2, command="test")
    with pytest.raises(RunError, match="number the same real people from 0, and go on no more"):
        start.go_on(Mean(), MeanConfig(), out)


def test_resuming_mends_what_an_earlier_version_wrote(tmp_path: Path) -> None:
    out = tmp_path / "run"
    sotto.train(MeanConfig(), out)
    text = (out / "config.json").read_text()
    assert text.count('"real"') == 1
    (out / "config.json").write_text(text.replace('"real"', '"simulated"'))
    shutil.rmtree(out / "checkpoints" / f"{3:08d}")
    sotto.train(MeanConfig(), out, resume=True)
    assert labels(out) == {"real"}
    assert seconds(out) == {0.0}


def test_no_release_is_made_of_settings_that_only_the_file_names(tmp_path: Path) -> None:
    """A release may import what its settings name, and another person may have made the file."""
    out, asked = tmp_path / "run", []
    sotto.train(MeanConfig(), out)
    text = (out / "config.json").read_text()
    (out / "config.json").write_text(text.replace('"num_updates": 3', '"num_updates": 4'))

    class Watched(Mean):
        def release(self, config):
            asked.append(config.num_updates)
            return super().release(config)

    with pytest.raises(RunError, match="leave out --num-updates"):
        start.go_on(Watched(), MeanConfig(), out)
    assert 4 not in asked


@dataclass(frozen=True)
class SaidConfig(MeanConfig):
    population: str = "simulated"


@pytest.mark.parametrize("config", [MeanConfig(), SaidConfig()])
def test_a_tracker_is_opened_late_for_them(config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stamps what it is told with the time, from its opening on."""
    opened = []

    def tracker(_name: str, _run: str, *, maybe_real: bool):
        opened.append(maybe_real)
        return contextlib.nullcontext()

    monkeypatch.setattr("sotto.cli.train.tracker", tracker)
    monkeypatch.setattr("sotto.cli.train._show", lambda *_: 0)
    options = SimpleNamespace(devices=1, ray=None, tracker="wandb", out=Path("x"))
    assert _train(Mean(), options, config, [], {}) == 0
    assert opened == [True]


def test_people_of_a_ledger_are_real_unless_somebody_says_otherwise() -> None:
    class Silent(Algorithm):
        initial_states = train = policies = None

    class Charged(Silent):
        def has_ledger(self, _config):
            return True

    nothing, simulated = SimpleNamespace(), SimpleNamespace(population="simulated")
    assert Silent().population(nothing) == "simulated"
    assert Charged().population(nothing) == "real"
    assert Charged().population(simulated) == "simulated"


def test_settings_that_call_real_people_simulated_stop_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(Mean, "population", lambda *_: "simulated")
    with pytest.raises(RunError, match="its ledger that they are real"):
        sotto.train(MeanConfig(), out)
    (run,) = open_experiment(out).runs
    assert run.open_ledger().persons == PEOPLE
    assert not list(run.checkpoints.glob("*"))
    assert not read(run.metrics)
    with pytest.raises(RunError, match="its ledger that they are real"):
        sotto.train(MeanConfig(), out, resume=True)
    assert run.open_ledger().persons == PEOPLE  # nobody else is charged in vain
