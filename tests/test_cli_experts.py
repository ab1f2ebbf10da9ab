"""`sotto experts`, from training to a dataset and a figure."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import printed, refused, run_json

from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.presets import DataFacts, filled
from sotto.algorithms.expert_offline.states import first_policy
from sotto.algorithms.experts import population as experts
from sotto.algorithms.experts import training as native
from sotto.algorithms.experts.population import ExpertSettings
from sotto.algorithms.experts.recipes import recipe
from sotto.cli import main
from sotto.data.minari_files import load as load_log

SETTINGS = ExpertSettings(env_id="CartPole-v1", experts=6, hidden=(8,))


@pytest.fixture(scope="module", autouse=True)
def small():
    """Small chunks and short trainings, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts, "_NATIVE_CHUNK", 2)
        patch.setattr(experts, "recipe", quick)
        yield


def quick(env_id, hidden):
    how = recipe(env_id, hidden)
    return replace(how, ppo=replace(how.ppo, num_epochs=1), stops=(1, 2), cap=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A population of six, trained by the command."""
    path = tmp_path_factory.mktemp("experts") / "cartpole"
    assert main(arguments(path)) == 0
    return path


def arguments(path: Path, *more: str) -> list[str]:
    return [
        *("experts", "train", "--env-id", "CartPole-v1", "--experts", "6"),
        *("--hidden", "8", "--workers", "1", "--out", str(path), *more),
    ]


def leaves(population):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(population.policies)]


def test_the_population_is_one_file_in_the_order_of_the_experts(folder):
    assert {path.name for path in folder.iterdir()} == {"experts.npz", "settings.json"}
    population = experts.load(folder)
    assert population.settings == SETTINGS
    assert population.returns.shape == (6, 20)
    with np.load(folder / "experts.npz") as file:
        header = json.loads(str(file["header"]))
        np.testing.assert_array_equal(file["stops"], SETTINGS.plan.stops)
    assert header["variants"] == ["gravity", "force_mag", "masscart"]
    chunk = SETTINGS.chunks[1]
    trained = experts.train_chunk(experts._Chunk(SETTINGS, 1, None))
    for name, weights in zip(
        [name for name in trained if name not in ("numbers", "returns")],
        leaves(population),
        strict=True,
    ):
        np.testing.assert_array_equal(weights[chunk.numbers], trained[name])
    np.testing.assert_array_equal(population.returns[chunk.numbers], trained["returns"])


def test_a_stopped_training_goes_on(folder, tmp_path, monkeypatch, capsys):
    whole, broken = experts.train_chunk, []

    def stopped(chunk):
        broken.append(chunk.number)
        if len(broken) == 2:
            raise KeyboardInterrupt
        return whole(chunk)

    path = tmp_path / "cartpole"
    monkeypatch.setattr(experts, "train_chunk", stopped)
    assert main(arguments(path)) == 130
    assert "no experts yet" in refused(capsys, "experts", "histogram", str(path))
    monkeypatch.setattr(experts, "train_chunk", whole)
    said = printed(capsys, *arguments(path))
    assert "4 experts to train (2 kept from before), about" in said
    assert "6/6 experts" in said
    for one, other in zip(leaves(experts.load(path)), leaves(experts.load(folder)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert "has its 6 experts already" in printed(capsys, *arguments(path))


def test_other_settings_need_another_folder(folder, capsys):
    error = refused(capsys, *arguments(folder, "--seed", "1"))
    assert "holds other experts (seed 0); choose another --out" in error


def test_collect_writes_a_dataset_that_says_whose_each_episode_is(folder, tmp_path, capsys):
    out = tmp_path / "cartpole-v0"
    command = ["experts", "collect", str(folder), "--trajectories", "3", "--out", str(out)]
    answer = run_json(capsys, *command)
    log = load_log(out)
    assert (answer["experts"], answer["episodes"]) == (log.experts, log.lasts.sum()) == (6, 18)
    assert answer["steps"] == log.steps.sum()
    assert answer["return_mean"] == pytest.approx(log.transitions.rewards.sum() / 18)
    again = experts.collect(experts.load(folder), 0.01, 3, 1, lambda _: None)
    np.testing.assert_array_equal(again.transitions.actions, log.transitions.actions)
    other = experts.collect(experts.load(folder), 0.01, 3, 2, lambda _: None)
    assert not np.array_equal(other.transitions.observations, again.transitions.observations)
    assert "exists; remove it" in refused(capsys, *command)


def test_histogram(folder, tmp_path, capsys):
    summary = run_json(capsys, "experts", "histogram", str(folder), "--out", str(tmp_path))
    means = experts.load(folder).returns.mean(axis=1)
    assert summary["experts"] == 6
    assert summary["mean"] == pytest.approx(means.mean())
    assert json.loads((tmp_path / "histogram.json").read_text()) == summary
    table = pq.read_table(tmp_path / "histogram.parquet").to_pydict()
    assert table["expert"] == list(range(6))
    np.testing.assert_allclose(table["return"], means)
    np.testing.assert_allclose(table["masscart"], SETTINGS.plan.variants.values[:, 2])
    assert (tmp_path / "histogram.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--env-id", "Pendulum-v1"], "no variants of 'Pendulum-v1'"),
        (["--experts", "0"], "experts must be at least 1"),
        (["--workers", "0"], "--workers must be at least 1"),
    ],
)
def test_train_refuses(tmp_path, capsys, more, says):
    assert says in refused(capsys, "experts", "train", "--out", str(tmp_path / "x"), *more)
    assert not (tmp_path / "x").exists()


def test_other_commands_refuse(folder, tmp_path, capsys):
    error = refused(capsys, "experts", "histogram", str(tmp_path / "none"))
    assert "make some with `sotto experts train" in error
    out = ["--out", str(tmp_path / "d")]
    error = refused(capsys, "experts", "collect", str(folder), *out, "--trajectories", "0")
    assert "--trajectories must be at least 1" in error
    assert "below 1/2" in refused(capsys, "experts", "collect", str(folder), *out, "--floor", "0.5")


def test_the_public_base_is_a_first_policy_of_students(tmp_path, monkeypatch):
    """The file has the base policy, in the format that `--first-policy` reads."""
    settings = ExpertSettings(env_id="HIV-v0", experts=1, hidden=(8,))
    with pytest.MonkeyPatch.context() as patch:
        untrained = native.blank(
            native.learning_environment("HIV-v0", settings.recipe), settings.recipe.ppo
        )
        patch.setattr(native, "train_base", lambda *_: untrained)
        base = experts._base(tmp_path, settings, lambda line: None)
    # Populations of earlier versions have no such file, and get it.
    (tmp_path / "base_policy.npz").unlink()
    (tmp_path / "experts.npz").touch()
    (tmp_path / "settings.json").write_text(settings.model_dump_json())
    monkeypatch.setattr(experts, "load", lambda folder: None)
    experts.train(tmp_path, settings, 1, lambda line: None)
    config = ExpertOfflineConfig(
        experts="x",
        target_epsilon=1.0,
        student_hidden=(8,),
        first_policy=str(tmp_path / "base_policy.npz"),
    )
    student = first_policy(filled(config, DataFacts("HIV-v0", 30, 6, 4)))
    seen = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
    np.testing.assert_allclose(student(seen).logits, base.policy(seen).logits, rtol=1e-4)
