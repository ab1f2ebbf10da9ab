"""Parallel environments in several processes: the same as in one, and no process is left over."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import psutil
import pytest

from sotto.errors import EnvironmentFailed
from sotto.rl.envs.gymnasium import bridge
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers, processes_for
from sotto.rl.envs.gymnasium.parallel import ProcessEnvs


@jax.jit
def swing(observations, key):
    """A little of the observation, a little chance."""
    noise = jr.normal(key, (len(observations), 1))
    return jnp.clip(observations[:, 2:3] / 4 + noise, -2, 2)


@jax.jit
def lean(observations, key):
    return (observations[:, 2] + 0.1 * jr.normal(key, (len(observations),)) > 0).astype(jnp.int32)


def processes_of(users: GymnasiumUsers) -> list[int]:
    assert isinstance(users._envs, ProcessEnvs)
    return [process.pid for process, _ in users._envs._workers]


def gone(pid: int) -> bool:
    """Whether no such process is left, not even as a zombie."""
    end = time.monotonic() + 20
    while psutil.pid_exists(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def carts():
    """Seven environments in two processes: blocks of three and four."""
    with GymnasiumUsers("CartPole-v1", 7, 2) as users:
        yield users


@pytest.mark.parametrize("one_episode", [True, False])
def test_processes_collect_what_one_process_collects(carts, one_episode):
    seeds = [5, 6, 7, 8, 9, 10, 11]
    with GymnasiumUsers("CartPole-v1", 7) as here:
        expected = here.collect(lean, jr.key(1), seeds, 60, one_episode)
    got = carts.collect(lean, jr.key(1), seeds, 60, one_episode)
    for name in got._fields:
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
    ended = np.asarray(got.terminated)
    assert ended.any()  # otherwise nothing about resets would have been compared
    if one_episode:
        assert not np.asarray(got.alive).all()


def test_returns_are_sums_over_first_episodes(carts):
    seeds = range(7)
    collected = carts.collect(lean, jr.key(2), seeds, 40, True)
    totals, steps, ended = carts.returns(lean, jr.key(2), seeds, 40)
    np.testing.assert_allclose(totals, collected.rewards.sum(axis=1))
    np.testing.assert_array_equal(steps, collected.alive.sum(axis=1))
    np.testing.assert_array_equal(ended, (collected.terminated | collected.truncated).any(axis=1))
    assert 0 < ended.sum() < 7


def test_repeated_actions_add_rewards_and_shorten_episodes():
    with GymnasiumUsers("Pendulum-v1", 2) as users:
        slow = users.collect(lambda o, k: jnp.ones((2, 1)), jr.key(0), [0, 1], 9, True)
    with GymnasiumUsers("Pendulum-v1", 2, action_repeat=3) as users:
        assert users.max_episode_steps == 67  # of 200
        fast = users.collect(lambda o, k: jnp.ones((2, 1)), jr.key(0), [0, 1], 3, True)
    rewards = np.asarray(slow.rewards).reshape(2, 3, 3).sum(axis=2)
    np.testing.assert_allclose(fast.rewards, rewards, rtol=1e-5)
    np.testing.assert_allclose(fast.next_observations, slow.next_observations[:, 2::3])


def test_closing_leaves_no_process():
    users = GymnasiumUsers("CartPole-v1", 4, 2)
    pids = processes_of(users)
    assert len(pids) == 2
    users.close()
    users.close()
    assert all(gone(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="closed"):
        users.begin(range(4))


def test_forgotten_environments_leave_no_process():
    users = GymnasiumUsers("CartPole-v1", 4, 2)
    pids = processes_of(users)
    del users
    assert all(gone(pid) for pid in pids)


def test_a_killed_process_is_one_clear_error():
    with GymnasiumUsers("CartPole-v1", 4, 2) as users:
        pids = processes_of(users)
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(
            ChildProcessError, match=f"process {pids[1]}, .* CartPole-v1, .* signal 9"
        ):
            users.collect(lean, jr.key(0), range(4), 5, True)
        assert all(gone(pid) for pid in pids)


def test_an_error_in_an_environment_arrives(monkeypatch):
    with GymnasiumUsers("CartPole-v1", 4, 2) as users:
        pids = processes_of(users)
        monkeypatch.setattr(users, "_executed", lambda actions: np.full(4, 7))  # no such action
        with pytest.raises(EnvironmentFailed, match=r"CartPole-v1 raised AssertionError in .*: "):
            users.collect(lean, jr.key(0), range(4), 5, True)
        assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_processes_do_not_outlive_the_one_that_started_them(end):
    script = """
        import signal, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
        users = GymnasiumUsers("CartPole-v1", 4, 2)
        print(*(process.pid for process, _ in users._envs._workers), flush=True)
        time.sleep(60)
    """
    starter = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert starter.stdout is not None
    pids = [int(word) for word in starter.stdout.readline().split()]
    assert len(pids) == 2
    starter.send_signal(end)
    starter.wait()
    starter.stdout.close()
    assert all(gone(pid) for pid in pids)


def test_ctrl_c_is_not_for_them(carts):
    for pid in processes_of(carts):
        os.kill(pid, signal.SIGINT)  # what a terminal sends to all processes
    totals, _, _ = carts.returns(lean, jr.key(0), range(7), 5)
    np.testing.assert_array_equal(totals, 5.0)


def test_processes_are_as_many_as_are_worth_it(monkeypatch):
    monkeypatch.setattr(bridge.os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert [processes_for(count) for count in (1, 7, 8, 31, 1000)] == [1, 1, 2, 7, 8]


def test_one_of_several_trainings_steps_its_own():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(processes_for, 1000).result() == 1
