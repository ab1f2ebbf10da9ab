"""DPPG from a public policy: where it starts, what its certificate assumes, and what is refused."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from commands import printed, run_json

from sotto.algorithms.dppg import training
from sotto.algorithms.dppg.algorithm import DPPG
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import preset
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
    write(HEADS_RIGHT, tmp_path / "first.npz", {})
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
    assert not any(leaf.any() for leaf in jax.tree.leaves(states.previous))
    assert not np.array_equal(drawn.policy.network.weights[0], states.policy.network.weights[0])


def test_the_command_starts_from_it_and_its_certificate_says_so(file, tmp_path, capsys):
    out = tmp_path / "run"
    given = ("--first-policy", file, "--hidden", "--out", str(out), "--json")
    assert main([*TRAINED, *given]) == 0
    said = " ".join(printed(capsys, "certificate", str(out)).split())
    assert "The policy from which training starts was made without data of the" in said
    (tmp_path / "first.npz").unlink()  # a trained agent does not need the file
    assert run_json(capsys, "eval", str(out), "--episodes", "20")["mean"] > 400


def test_without_a_file_nothing_is_assumed(tmp_path):
    ledger = training.create_ledger(settings(), tmp_path / "ledger.sqlite")
    training.DPPGTraining(settings(), [0], [ledger])
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
    config = settings(first_policy=file, correlated_noise=False)
    with pytest.raises(ValueError, match="leave first_policy out"):
        DPPG().on_devices(config, 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"observation_statistics": True}, "give one"),
        ({"clip_norm_from": "kl-quantile"}, "random weights"),
        ({"clip_norm_from": "kl-markov"}, "random weights"),
        ({"hidden": (16,)}, "has layers of"),
    ],
)
def test_settings_that_do_not_fit_it_are_refused_with_the_other_settings(file, changes, says):
    DPPG().resolved(settings(first_policy=file))
    with pytest.raises(ValueError, match=says):
        DPPG().resolved(settings(first_policy=file, **changes))


def test_resuming_does_not_read_the_file(file, tmp_path):
    config = settings(first_policy=file)
    ledger = training.create_ledger(config, tmp_path / "ledger.sqlite")
    made = training.DPPGTraining(config, [0], [ledger])
    state = next(iter(made)).states
    (tmp_path / "first.npz").unlink()
    again = training.DPPGTraining(config, [0], [ledger], state, made.done)
    *_, last = again
    assert last.updates == config.num_updates
    said = derive(ledger).assumptions
    assert sum("from which training starts" in str(one) for one in said) == 1


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "clinics:TestDosage-v0"])
def test_people_met_through_gymnasium_are_told_too(env_id, tmp_path):
    config = settings(
        env_id=env_id,
        population="simulated" if env_id == "Pendulum-v1" else "real",
        users_per_update=2,
        steps_per_user=2,
        total_steps=8,
        evaluation_episodes=0,
    )
    size = training.training_environment(config).observation_size
    inputs, weights = np.zeros(size, np.float32), np.zeros((size, 1), np.float32)
    one = Flat(inputs, inputs + 1, (weights,), (weights[0],), weights[0], "mean")
    write(one, tmp_path / "first.npz", {})
    config = replace(config, first_policy=str(tmp_path / "first.npz"))
    ledger = training.create_ledger(config, tmp_path / "ledger.sqlite")
    list(training.DPPGTraining(config, [0], [ledger]))
    said = [str(one) for one in derive(ledger).assumptions]
    for words in ("from which training starts", "keeps no memory of earlier users"):
        assert sum(words in one for one in said) == 1


def test_counts_of_visits_need_observations_as_they_are():
    config = preset("sotto", "RiverSwim-v0", observation_centre=(1.0,) * 6)
    with pytest.raises(ValueError, match="leave observation_centre out"):
        DPPG().resolved(config)


def test_a_chosen_scale_is_not_joined_to_the_presets_centre():
    for chosen in ({"observation_scale": (2.0,) * 11}, {"observation_centre": (2.0,) * 11}):
        config = preset("sotto", "Hopper-v5", target_epsilon=1.0, **chosen)
        assert {config.observation_centre, config.observation_scale} == {None, (2.0,) * 11}
    both = preset("sotto", "Hopper-v5", target_epsilon=1.0)
    assert None not in (both.observation_centre, both.observation_scale)
