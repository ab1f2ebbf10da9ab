"""`sotto eval --video`: one episode as a GIF, or one sentence that says why not."""

import sys

import gymnasium as gym
import jax
import numpy as np
import pytest
from PIL import Image
from small_runs import SMALL_PPO

from sotto.cli import main
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy
from sotto.runs.agents.video import record
from sotto.runs.directory import new_settings

POLICY = Policy(4, Discrete(2), (), jax.random.key(0))


class Unseen(gym.Env):
    """Has nothing to look at."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 0.0, False, False, {}


gym.register("SottoUnseen-v0", entry_point=Unseen, max_episode_steps=3)


def settings(env_id="CartPole-v1", population="simulated"):
    config = {} if env_id is None else {"env_id": env_id}
    return new_settings(
        algorithm="dppg", config=config, preset=None, seeds=(0,), population=population,
        ledger=None, command="",
    )  # fmt: skip


def test_it_shows_a_whole_episode(tmp_path):
    for greedy in (True, False):
        file = tmp_path / f"{greedy}.gif"
        total = record(settings(), POLICY, 3, greedy, file)
        with Image.open(file) as film:
            first, shown = np.array(film.convert("RGB")), 0
            for frame in range(film.n_frames):  # of pictures that are alike, one stays longer
                film.seek(frame)
                shown += film.info["duration"]
            assert shown == 20 * (total + 1)  # the reset, and a picture for each reward of 1
            last = np.array(film.convert("RGB"))
        assert first.shape == (400, 600, 3)
        assert (first != last).any()
    again = tmp_path / "again.gif"
    assert record(settings(), POLICY, 3, True, again) > 0
    assert again.read_bytes() == (tmp_path / "True.gif").read_bytes()


@pytest.mark.parametrize(
    ("env_id", "population", "name", "sentence"),
    [
        ("CartPole-v1", "simulated", "x.mp4", r"ends in \.gif, not x\.mp4"),
        ("Line-v0", "simulated", "x.gif", "Line-v0 has no pictures"),
        ("SottoUnseen-v0", "simulated", "x.gif", "SottoUnseen-v0 has no pictures: .*rgb_array"),
        ("SottoUnseen-v0", "real", "x.gif", "meets real people, who must not be filmed"),
        (None, "simulated", "x.gif", "no environment that could be drawn"),
    ],
)
def test_refusals(tmp_path, env_id, population, name, sentence):
    with pytest.raises(ValueError, match=sentence):
        record(settings(env_id, population), POLICY, 0, True, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ValueError, match=r"sotto\[video\]"):
        record(settings(), POLICY, 0, True, tmp_path / "x.gif")
    assert list(tmp_path.iterdir()) == []


def test_the_command_films_the_first_seed(tmp_path, capsys):
    out, film = tmp_path / "run", tmp_path / "x.gif"
    assert main(["train", "ppo", "--out", str(out), *SMALL_PPO, "--json"]) == 0
    capsys.readouterr()
    assert main(["eval", str(out), "--episodes", "2", "--video", str(film)]) == 0
    assert f"wrote {film}: one episode, with a return of" in capsys.readouterr().out
    assert film.stat().st_size > 1000
