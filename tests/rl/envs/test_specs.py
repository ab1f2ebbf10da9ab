"""Environments of the user's own: named by module, wrapped, imported only where that is asked."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sotto
from sotto.cli import main
from sotto.rl.envs.gymnasium import specs
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
from sotto.rl.envs.gymnasium.parallel import LocalEnvs, ProcessEnvs
from sotto.rl.envs.gymnasium.unseen import UnseenError
from sotto.rl.world import GymnasiumWorld

MODULE = """\
import gymnasium as gym
import numpy as np

class Walk(gym.Env):
    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-1, 1)
        return np.array([self.x, 1], np.float32), {}

    def step(self, action):
        self.x += 0.2 * (2 * int(action) - 1)
        return np.array([self.x, 1], np.float32), -abs(self.x), False, False, {}

class Halved(gym.RewardWrapper):
    def reward(self, reward):
        return reward / 2

def function(env):
    return env

gym.register("WalkOf{name}-v0", entry_point="{name}:Walk", max_episode_steps=10)
"""


@pytest.fixture
def walk(tmp_path, monkeypatch, request):
    """The name of a module in the working directory that nobody has imported."""
    name = f"walk_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(MODULE.replace("{name}", name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)
    gym.registry.pop(f"WalkOf{name}-v0", None)


def played(env_id, processes):
    with GymnasiumUsers(env_id, 4, processes) as users:
        taken = users.collect(
            lambda seen, key: jnp.ones(4, jnp.int32), jax.random.key(0), [1, 2, 3, 4], 5, True
        )
        return users._envs, np.asarray(taken.rewards)


def test_a_module_in_a_name_is_imported_by_whoever_makes_the_environment(walk):
    name = f"{walk}:WalkOf{walk}-v0"
    alone, rewards = played(name, 1)
    several, same = played(name, 2)
    assert isinstance(alone, LocalEnvs)
    assert isinstance(several, ProcessEnvs)
    np.testing.assert_array_equal(rewards, same)
    with GymnasiumWorld(name, 0, 5) as world:
        assert world.reset(2).shape == (2, 2)


def test_where_real_people_are_met_other_processes_import_it(walk):
    name = f"{walk}:WalkOf{walk}-v0+{walk}:Halved"
    with GymnasiumUsers(name, 2, unseen=True) as users:
        taken = users.collect(
            lambda seen, key: jnp.ones(2, jnp.int32), jax.random.key(0), [1, 2], 5, True
        )
    assert walk not in sys.modules
    np.testing.assert_array_equal(np.asarray(taken.rewards), played(name, 1)[1][:2])
    assert walk in sys.modules
    with pytest.raises(UnseenError):
        GymnasiumUsers(f"{walk}:WalkOf{walk}-v0+{walk}:function", 2, unseen=True)
    with pytest.raises(ValueError, match="is a simulator that comes with gymnasium"):
        GymnasiumUsers("CartPole-v1+gymnasium.wrappers:FlattenObservation", 2, unseen=True)


def test_wrappers_are_named_after_the_environment_and_reach_other_processes(walk):
    plain, wrapped = f"{walk}:WalkOf{walk}-v0", f"{walk}:WalkOf{walk}-v0+{walk}:Halved"
    for processes in (1, 2):
        twice = played(f"{wrapped}+{walk}:Halved", processes)[1]
        np.testing.assert_array_equal(twice, played(plain, processes)[1] / 4)
    with GymnasiumUsers("CartPole-v1+gymnasium.wrappers:TimeAwareObservation", 1) as users:
        assert users.observation_size == 5


def test_a_wrapper_with_memory_of_earlier_users_is_found_by_its_name():
    with GymnasiumUsers("CartPole-v1+gymnasium.wrappers:NormalizeObservation", 1) as users:
        assert users.normalisers == ("NormalizeObservation",)


def test_only_wrappers_can_be_named_as_wrappers(walk):
    for name in (f"{walk}:function", f"{walk}:Walk", "os:system", f"{walk}:nothing"):
        with pytest.raises(ValueError, match="has no wrapper"):
            specs.spec_of(f"CartPole-v1+{name}")


@pytest.mark.parametrize("name", ["a b:c", "x:y:Z-v0", "CartPole-v1+foo", "CartPole-v1+a:b:c", ":"])
def test_what_is_no_name(name):
    for look_up in (specs.remote_spec, specs.spec_of):
        with pytest.raises(ValueError, match="is not a name of an environment"):
            look_up(name)


def test_a_module_that_is_not_there():
    with pytest.raises(ValueError, match="no_such_module, which cannot be imported"):
        specs.spec_of("no_such_module:Env-v0")
    for name in ("no_such_module:Env-v0", "CartPole-v1+no_such_module:Wrapper"):
        with pytest.raises(ValueError, match="there is no module no_such_module"):
            specs.remote_spec(name)


def test_a_class_of_the_main_program_plays_in_its_own_process():
    code = MODULE.replace("{name}", "Main").replace('"Main:Walk"', "Walk") + textwrap.dedent("""
        from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
        with GymnasiumUsers("WalkOfMain-v0", 4, 2) as users:
            print(type(users._envs).__name__)
    """)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "LocalEnvs\n"


def test_a_run_with_a_module_of_its_own(walk, tmp_path, capsys):
    """The command line that names a module imports it; others that only read it do not."""
    env_id, out = f"{walk}:WalkOf{walk}-v0+{walk}:Halved", str(tmp_path / "run")

    def forget():
        sys.modules.pop(walk, None)
        gym.registry.pop(f"WalkOf{walk}-v0", None)
        capsys.readouterr()

    words = ["--env-id", env_id, "--total-steps", "64", "--num-envs", "4", "--num-steps", "8"]
    assert main(["train", "ppo", "--out", out, *words, "--hidden", "4", "--json"]) == 0
    again = (["eval", out, "--episodes", "4"], ["train", "ppo", "--out", out, "--resume"])
    again[1].extend(["--total-steps", "96"])
    for command in again:
        forget()
        for named in ([], ["--env-id", f"{walk}:WalkOf{walk}-v0"]):  # another is no better
            assert main([*command, *named]) == 2
            assert f"give --env-id {env_id} if you trust it" in capsys.readouterr().err
            assert walk not in sys.modules
        assert main([*command, "--env-id", env_id, "--json"]) == 0
    forget()
    with pytest.raises(ValueError, match=f"would import '{walk}'"):
        sotto.load(out)
    assert main(["report", out]) == 0  # plays nothing, so imports nothing
    assert walk not in sys.modules
    assert sotto.load(out, env_id=env_id).updates == 3


def test_dppg_meets_people_in_it(walk, tmp_path):
    env_id = f"{walk}:WalkOf{walk}-v0+{walk}:Halved"
    settings = sotto.DPPG(
        env_id=env_id, population="simulated", target_epsilon=1.0, users_per_update=4,
        steps_per_user=5, total_steps=20, hidden=(4,), evaluation_episodes=1,
        correlated_noise=False,
    )  # fmt: skip
    run = sotto.train(settings, out=tmp_path / "run")
    assert run.certificate.status == "proved"
    assert run.load().updates == 1
    with pytest.raises(ValueError, match="NormalizeObservation, whose statistics"):
        sotto.train(
            replace(settings, env_id=f"{env_id}+gymnasium.wrappers:NormalizeObservation"),
            out=tmp_path / "refused",
        )
    assert not (tmp_path / "refused").exists()
