"""Environments in JAX of users: which are taken, and the sentence that refuses each other one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sotto
from sotto.errors import EnvironmentFailed
from sotto.rl.envs.gymnasium.described import is_simulator
from sotto.rl.envs.registry import is_native, make
from sotto.rl.rollout import rollout
from sotto.rl.world import JaxWorld

WRONG = {
    "Branches": r"step of .* raised TracerBoolConversionError in .*halls.py, line \d+: .*jnp.where",
    "InNumpy": r"observe of .* raised TracerArrayConversionError in .*halls.py, line .*numpy$",
    "Misspelt": r"step of .* raised NameError in .*halls.py, line .* 'rewrad' is not defined$",
    "Random": "step of .* is another program each time that it is traced; take random numbers from",
    "Remembers": "step of .* is another program each time",
    "ChangesItself": "changes itself; keep in the state what changes",
    "Prints": "step of .* has a side effect .*; leave callbacks and prints of JAX out",
    "HoldsArray": r"observe of .* holds an array of shape \(1, 2\) of its own; write its numbers",
    "TwoRewards": r"step's reward of .* has shape \(2,\) and .* must have shape \(\) and type",
    "WholeReward": r"step's reward of .* type int32; it must have shape \(\) and type float32",
    "OtherState": "step of .* returns a state of the structure .*; return the same from both",
    "WiderState": r"step's state\[0\] of .* has shape \(1,\) .*; it must have shape \(\)",
    "OtherType": r"step's state\[1\] of .* type int32; it must have shape \(\) and type uint32",
    "ScalarSeen": r"observe's observation of .* has shape \(\) .* must have shape \(1,\)",
    "LongSeen": r"observe's observation of .* has shape \(2,\) .* must have shape \(1,\)",
    "FiveResults": "step of .* must return the next state, the reward and whether the episode",
    "NoObserve": "has no observe; write reset, step, observe",
    "Undecorated": r"gives no observation_size and .*; write @dataclass\(frozen=True, kw_only",
    "NoSize": "gives observation_size = 0; give a whole number from 1",
    "WrongAction": r"gives action = 2; give sotto.Discrete\(n\), or sotto.Box",
    "ArrayParams": "has other things than numbers in default_params; give numbers",
    "TwoScales": "gives observation_scale 2 numbers, and observation_size is 1",
    "Listed": "has a fact that can be changed .*, with numbers and tuples",
    "Clinic": r"halls has no class Clinic .* from sotto.Environment; .* such as halls:Clinic-v0",
    "Nothing": "halls has no class Nothing",
    "Hall+halls:Hall": "adds a wrapper of Gymnasium to an environment in JAX; leave it out",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_environment_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises((ValueError, EnvironmentFailed), match=WRONG[name]) as refusal:
        make(f"halls:{name}")
    assert "\n" not in str(refusal.value)
    assert f"halls:{name}" in str(refusal.value) or name in ("Clinic", "Nothing")


def test_a_module_that_is_missing_or_fails_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hall_that_fails.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(EnvironmentFailed, match=r"hall_that_fails raised Zero.* line 2: division"):
        make("hall_that_fails:Hall")
    with pytest.raises(ValueError, match="hall_nowhere, which cannot be imported: No module named"):
        make("hall_nowhere:Hall")
    with pytest.raises(ValueError, match="is not a name of an environment"):
        make("no module:Hall")


def test_the_name_alone_says_that_it_is_in_jax() -> None:
    assert is_native("nowhere.at_all:Hall")
    assert is_simulator("nowhere.at_all:Hall")
    for gymnasium in (
        "clinics:TestClinic-v0",
        "Hall",
        "Hall-v0",
        "CartPole-v1+halls:Hall",
        ":Hall",
    ):
        assert not is_native(gymnasium)


def test_facts_that_are_left_out_have_defaults() -> None:
    env = make("halls:Hall")
    assert env is make("halls:Hall")
    assert (env.id, env.observation_scale, env.reward_per_step) == ("halls:Hall", (1.0,), 0.0)
    assert make("halls:Hall", 4).max_episode_steps == 2


@pytest.mark.parametrize("name", ["Hall", "Pushed"])
@pytest.mark.parametrize("one_episode", [False, True])
def test_rollouts_have_the_types_of_every_other_environment(name: str, one_episode: bool) -> None:
    """Rewards and ends may be Python's numbers, which are constants of the program."""
    trajectories = []
    for env in (make(f"halls:{name}"), make("CartPole-v1")):
        key = jax.random.key(0)
        policy = sotto.Policy(env.observation_size, env.action, (4,), key)
        played = jax.jit(
            lambda key, env=env, policy=policy: rollout(
                env, env.default_params, policy, key, 20, one_episode
            )
        )(key)
        trajectories.append(played._replace(observations=0, actions=0, next_observations=0))
        assert played.alive.any()
    found, expected = (jax.tree.map(jnp.result_type, one) for one in trajectories)
    assert found == expected


def test_votes_are_asked_in_it() -> None:
    env = make("halls:Hall")
    world = JaxWorld(env, env.default_params, jax.random.key(0), 8)
    world.reset(3)
    _, rewards, ended = world.step(np.array([0, 1, 1]))
    assert rewards[0] < 0 < rewards[1] != rewards[2]
    assert not ended.any()
