"""DPPG from a public policy: where it starts, what its certificate assumes, and what is refused."""

import json

import jax
import numpy as np
import pytest

from sotto.algorithms.dppg import training
from sotto.algorithms.dppg.algorithm import DPPG
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.cli import main
from sotto.privacy.certificates.derive import derive
from sotto.rl.policy_files import Flat, write

HEADS_RIGHT = Flat(
    np.zeros(4, np.float32),
    np.ones(4, np.float32),
    (np.array([[0, 0], [0, 0.5], [0, 8], [0, 4]], np.float32),),  # a pole is caught where it falls
    (np.zeros(2, np.float32),),
    None,
    "logits",
)
TRAINED = (
    *("train", "dppg", "--env-id", "CartPole-v1", "--target-epsilon", "0.1", "--delta", "1e-5"),
    *("--total-steps", "16384", "--users-per-update", "64", "--clip-norm", "0.001"),
)


@pytest.fixture
def file(tmp_path):
    write(HEADS_RIGHT, tmp_path / "first.npz", HEADS_RIGHT.header)
    return str(tmp_path / "first.npz")


def settings(**changes):
    values = {"target_epsilon": 1.0, "total_steps": 16_384, "hidden": ()}
    return DPPGConfig(**(values | changes))


def test_every_seed_starts_from_the_file(file):
    states = training.initial_states(settings(first_policy=file), [0, 1])
    drawn = training.initial_states(settings(), [0, 1])
    seen = np.array([[0.1, 0.2, -0.1, 0.3]], np.float32)
    for name, policies in training.policies(states).items():
        for run in range(2):
            policy = jax.tree.map(lambda x, i=run: x[i], policies)
            expected = seen @ HEADS_RIGHT.weights[0]
            logits = policy(seen).logits
            np.testing.assert_allclose(logits, expected, rtol=1e-5, err_msg=name)
    assert jax.tree.structure(states) == jax.tree.structure(drawn)
    assert not np.array_equal(drawn.policy.network.weights[0], states.policy.network.weights[0])


def test_the_command_starts_from_it_and_its_certificate_says_so(file, tmp_path, capsys):
    out = tmp_path / "run"
    given = ("--first-policy", file, "--hidden", "--out", str(out), "--json")
    assert main([*TRAINED, *given]) == 0
    capsys.readouterr()
    assert main(["certificate", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The policy from which training starts was made without data of the" in said
    (tmp_path / "first.npz").unlink()  # a trained agent does not need the file
    assert main(["eval", str(out), "--episodes", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] > 400


def test_without_a_file_nothing_is_assumed(tmp_path):
    ledger = training.create_ledger(settings(), tmp_path / "ledger.sqlite")
    training.Training(settings(), [0], [ledger])
    said = derive(ledger).assumptions
    assert not any("from which training starts" in str(one) for one in said)


def test_wrong_files_are_refused_before_anything_is_made(file, tmp_path, capsys):
    out = str(tmp_path / "run")
    for changes, says in (
        (("--first-policy", file), "has layers of [4, 2] numbers, and training has [4, 16, 2]"),
        (("--first-policy", str(tmp_path / "none.npz")), "there is no such file"),
    ):
        assert main([*TRAINED, *changes, "--out", out]) == 2
        (sentence,) = capsys.readouterr().err.strip().splitlines()
        assert says in sentence
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="give one"):
        settings(first_policy=file, observation_statistics=True)
    config = settings(first_policy=file, correlated_noise=False)
    with pytest.raises(ValueError, match="no first_policy"):
        DPPG().on_devices(config, 2)
