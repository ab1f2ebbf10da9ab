"""PPO and A2C as runs, where the environment is Gymnasium's."""

import json
import math
import warnings

import jax
import numpy as np
import pytest
from small_runs import SMALL_PPO

from sotto.algorithms.baselines.a2c import A2CConfig
from sotto.algorithms.baselines.algorithm import A2C
from sotto.cli import main
from sotto.runs.registry import algorithm_named, config_from_json, config_to_json
from sotto.runs.report.figures import mean_and_spread

CONFIG = A2CConfig(
    env_id="Pendulum-v1", total_steps=4 * 25 * 3, num_envs=4, num_steps=25, hidden=(4,)
)


def test_seeds_side_by_side_are_runs_of_their_own_and_go_on(monkeypatch):
    monkeypatch.setattr("sotto.algorithms.baselines.algorithm._GYMNASIUM_EVALUATION_EPISODES", 1)
    assert A2C().resolved(CONFIG) == CONFIG
    begin = A2C().initial_states(CONFIG, [5, 6])
    chunks = list(A2C().train(CONFIG, [5, 6], [], begin, 0, []))
    assert [chunk.updates for chunk in chunks] == [1, 2, 3]
    for chunk in chunks:
        assert chunk.evaluation["last"].shape == (2,)
        assert (chunk.evaluation["last"] < 0).all()
        assert chunk.simulated["entropy"].shape == (2, 1)
    weights = np.asarray(chunks[-1].states.networks.policy.network.weights[0])
    assert not np.array_equal(weights[0], weights[1])
    alone = list(A2C().train(CONFIG, [6], [], A2C().initial_states(CONFIG, [6]), 0, []))
    np.testing.assert_array_equal(
        alone[-1].states.networks.policy.network.weights[0][0], weights[1]
    )
    rest = list(A2C().train(CONFIG, [5, 6], [], chunks[1].states, 2, []))
    assert [chunk.updates for chunk in rest] == [3]
    assert math.isfinite(rest[0].simulated["value_loss"].sum())
    policy = A2C().policies(rest[0].states)["last"]
    returns = A2C().evaluate(CONFIG, policy, jax.random.key(0), 3, True)
    assert returns.shape == (2, 3)


def test_settings_of_a2c_survive_as_json():
    assert isinstance(algorithm_named("a2c"), A2C)
    assert config_from_json(A2C(), config_to_json(A2C(), CONFIG)) == CONFIG


def test_an_unknown_environment_is_refused():
    with pytest.raises(ValueError, match="NoSuch-v0"):
        A2C().resolved(A2CConfig(env_id="NoSuch-v0"))


def test_infinite_returns_are_reported_without_a_warning(tmp_path, capsys):
    """numpy's deviation of them is inf - inf."""
    folder = tmp_path / "run"
    small = ("--env-id", "CartPole-v1", "--seeds", "2", "--out", str(folder))
    assert main(["train", "ppo", *small, *SMALL_PPO, "--json"]) == 0
    for run in ("seed-0", "seed-1"):
        file = folder / run / "metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            line["evaluation"]["last"] = "inf"
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    page = ("--page", str(tmp_path / "page.html"))
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["report", str(folder)]) == 0
        assert main(["compare", str(folder / "seed-0"), str(folder / "seed-1"), *page]) == 0
    assert "Warning" not in capsys.readouterr().err
    for values, said in (
        ([math.inf] * 2, "inf ± nan"),
        ([math.inf], "inf"),
        ([1.0, 3.0], "2.0 ± 1.0"),
    ):
        assert mean_and_spread(values, 1) == said
