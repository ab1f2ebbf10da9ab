"""Figure 7 of Rio et al. 2025: gains of language models, without the large model."""

from dataclasses import replace

import numpy as np
import pytest
from rlhf_people import PEOPLE, config, simulated

from sotto.algorithms.rlhf import improvement
from sotto.algorithms.rlhf.directions import first_adapter
from sotto.cli import main
from sotto.experiments.engine import Result, ResultFolder, run
from sotto.experiments.rio2025 import language


def lengths(rows):
    """Stands in for a judge."""
    return np.array([sum(row) % 7 for row in rows], float)


@pytest.fixture
def tiny(monkeypatch):
    """The tiny language model and its people, in place of SmolLM2 and films."""
    people = replace(simulated(), judge=lengths)
    people = replace(people, held_out=np.repeat(people.held_out, 16, axis=0))
    people = replace(people, log=people.rated(config(), unchanged(people), 0))
    monkeypatch.setattr(language, "read_language_model", lambda name: people.language)
    monkeypatch.setattr(language, "meet", lambda *given: people)
    monkeypatch.setattr(language, "_people", lambda settings: people)
    return people


def unchanged(people):
    return first_adapter(config(), people.language.decoder.architecture)


def test_gains_of_the_base_model_itself_are_nothing(tiny, tmp_path, monkeypatch) -> None:
    """They would be exactly zero if an arm and the base model shared their random keys."""
    monkeypatch.setitem(language._DIRECT, "ratings", lambda settings, people: unchanged(people))
    monkeypatch.setattr(
        improvement, "scaled_to_target", lambda config, people, model, key: (model, 1)
    )
    store, said = ResultFolder(tmp_path), []
    results = run(language.arms([3, 4], (), 1e-5, PEOPLE, ("ratings",)), store, 1, said.append)
    (found,) = results
    assert found.seeds == (3, 4)
    assert sum("base-model" in line for line in said) == 1
    for kind in language.KINDS:
        gains, errors = (
            found.returns[f"{kind} {one} at KL 1"] for one in ("gain", "standard error")
        )
        assert (abs(gains) < 4 * errors).all()
        assert gains[0] != gains[1] != 0
    base = store.read(language.arms([3], (), 1e-5, PEOPLE, ("ratings",))[0].needs[0])
    assert len(base.more["rating"]) == len(tiny.held_out)
    assert base.returns["judge"] == pytest.approx(np.mean(base.more["judge"]))
    spread = np.std(base.more["judge"]) / np.std(lengths(tiny.held_out))
    assert spread < 0.8  # of means of several answers
    np.testing.assert_array_equal(found.returns["kl at KL 1"], [0.0, 0.0])


def test_people_who_like_what_it_says_move_the_model(tiny, tmp_path) -> None:
    (arm,) = language.arms([3], (), 1e-5, PEOPLE, ("ratings",))
    (found,) = run([arm], ResultFolder(tmp_path), 1, print)
    for kl in language.KLS:
        assert found.returns[f"kl at KL {kl:g}"] == pytest.approx(kl, rel=0.5)
    assert len(found.more["samples"]["1"]) == language._SAMPLES


def test_the_command_prints_gains_of_language_models(tmp_path, monkeypatch, capsys):
    def train(arm, seeds, folder, report):
        kinds = ("gain", "standard error")
        names = [
            f"{one} {kind} at KL {kl:g}"
            for one in language.KINDS
            for kind in kinds
            for kl in (1, 3)
        ]
        names += [f"{one} at KL {kl:g}" for one in ("kl", "distinct_2") for kl in (1, 3)]
        gain = 0.1 if arm.x is None else 0.08
        returns = {name: np.array([gain]) for name in names}
        said = {"status": "proved", "epsilon": arm.x or 90.0, "delta": 1e-5}
        return [Result(arm, tuple(seeds), np.zeros(0), {}, returns, **said)]

    monkeypatch.setattr(language, "train", train)
    monkeypatch.setattr(language, "measure_base", train)
    monkeypatch.setattr(language, "check_installed", lambda model: None)
    words = ["reproduce", "rio2025", "fig7", "--seeds", "1", "--epsilons", "0.3", "--workers", "1"]
    words += ["--arms", "reward-model", "--out", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if line.startswith("reward model (sotto)")]
    assert len(rows) == 4  # with and without noise, at two divergences
    assert rows[2].split()[3:] == ["0.3", "0.3", "1", "0.080", "0.080", "80%"]


def test_the_papers_settings_are_no_arm_without_noise(tmp_path) -> None:
    """They have many releases, each about what the model says by then."""
    (arm,) = language.arms([3], (), 1e-5, 3840, ("paper",))
    assert (arm.settings.releases, arm.settings.noise_multiplier) == (30, 0.01)
    assert arm.settings.target_epsilon is None
    (ratings,) = language.arms([3], (), 1e-5, 3840, ("ratings",))
    results = [
        Result(one, (3,), np.zeros(0), {}, {"gain": np.array([gain])})
        for one, gain in ((arm, 2.0), (ratings, 1.0))
    ]
    assert language.best_without_privacy(results, "gain") == 1.0
    assert np.isnan(language.best_without_privacy(results[:1], "gain"))


def test_later_releases_are_about_what_the_model_says_then(tiny, tmp_path, monkeypatch) -> None:
    met = []

    def trained(config, people, ledger, states, done, folder):
        met.append(people.log)
        raise InterruptedError

    monkeypatch.setattr(language.training, "RLHFTraining", trained)
    (arm,) = language.arms([3], (), 1e-3, PEOPLE, ("paper",))
    for releases in (1, 3):
        settings = config(method="policy-gradient", releases=releases, adapter="lora")
        (tmp_path / f"{releases}" / "seed-3").mkdir(parents=True)
        with pytest.raises(InterruptedError):
            language.train(replace(arm, settings=settings), (3,), tmp_path / f"{releases}", print)
    assert met == [tiny.log, None]


def test_a_missing_model_is_named_before_the_estimate(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOTTO_DATA", str(tmp_path / "empty"))
    assert main(["reproduce", "rio2025", "fig7", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("\n") == 1
    assert "run `sotto install smollm2`" in said.err
    assert not (tmp_path / "out").exists()
