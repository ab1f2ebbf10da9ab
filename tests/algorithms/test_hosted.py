"""PPO and kickstarting outside JAX: what they collect, and that they learn as inside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.gymnasium import GymnasiumRun
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.gymnasium import GymnasiumStudent
from sotto.algorithms.kickstarting.teachers import ExactTeacher
from sotto.algorithms.kickstarting.training import StudentTraining
from sotto.privacy.answers.rows import RowsOf
from sotto.rl.envs.gymnasium.bridge import GymnasiumUsers
from sotto.rl.envs.registry import make

CONFIG = PPOConfig(total_steps=12_288, num_envs=8, num_steps=64, num_epochs=10)
SMALL = PPOConfig(total_steps=1024, num_envs=4, num_steps=64, hidden=(8,))


def lanes(config):
    """CartPole in Gymnasium, with the public facts of ours."""
    return GymnasiumUsers("CartPole-v1", config.num_envs), make("CartPole-v1")


def balance(observations):
    right = 1 / (1 + np.exp(-10 * (4 * observations[:, 2] + observations[:, 3])))
    return np.stack([1 - right, right], axis=1)


def test_networks_begin_as_they_do_in_jax():
    users, env = lanes(SMALL)
    with users:
        run = GymnasiumRun(users, env, seed=3)
        state, _ = next(iter(run.train_ppo(SMALL)))
    inside = ppo.init(SMALL, jax.random.fold_in(jax.random.key(3), 0))
    outside = ppo.begin(SMALL, env, jax.random.fold_in(jax.random.key(3), 0), ())
    for one, other in zip(
        jax.tree.leaves(inside.networks), jax.tree.leaves(outside.networks), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert state.updates == 1


def test_ppo_learns_cartpole_outside_jax():
    users, env = lanes(CONFIG)
    with users:
        metrics = [one for _, one in GymnasiumRun(users, env, seed=0).train_ppo(CONFIG)]
    ended = [(float(one.episode_return), int(one.episodes)) for one in metrics]
    first = [mean for mean, count in ended[:3] if count]
    last = [mean for mean, count in ended[-8:] if count]
    assert np.mean(first) < 40
    assert np.mean(last) > 120
    # Every step belongs to one episode: those that ended account for nearly all of them.
    steps = sum(mean * count for mean, count in ended if count)
    assert 0.6 * CONFIG.total_steps < steps <= CONFIG.total_steps


def test_a_student_outside_jax_asks_and_follows():
    config = KickstartConfig(
        teacher="x",
        teacher_mechanism="exact",
        total_steps=4096,
        num_envs=8,
        num_steps=64,
        num_epochs=10,
        queries_per_update=128,
        kickstart_weight=5.0,
        radius_factor=0.0,
    )
    users, env = lanes(config)
    asked = []

    def rows(observations):
        asked.append(observations)
        return balance(observations)

    with users:
        run = GymnasiumStudent(users, env, seed=1)
        teacher = ExactTeacher(RowsOf(rows, 2, 4))
        asked.clear()
        training = StudentTraining(config, [1], [teacher], run.student(config), collect=run.collect)
        progress = list(training)[-1]
    assert progress.updates == 8
    assert progress.released["answered"][0, -1] == 8 * 128
    assert [len(one) for one in asked] == [128] * 8
    # All of the questions of an update are different states of it.
    assert all(len(np.unique(one, axis=0)) == 128 for one in asked)
    policy = jax.tree.map(lambda x: x[0], progress.states.ppo.networks.policy)
    seen = np.concatenate(asked)
    followed = jax.nn.softmax(policy(jnp.asarray(seen, jnp.float32)).logits)
    assert np.mean(np.argmax(followed, axis=1) == np.argmax(balance(seen), axis=1)) > 0.85


def test_a_run_is_reproduced_by_its_seed():
    def train():
        users, env = lanes(SMALL)
        with users:
            return [
                state.networks for state, _ in GymnasiumRun(users, env, seed=5).train_ppo(SMALL)
            ]

    for one, other in zip(jax.tree.leaves(train()), jax.tree.leaves(train()), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_student_meets_other_people_than_a_teacher_of_its_seed():
    users, env = lanes(SMALL)
    played = []
    with users:
        for kind in (GymnasiumRun, GymnasiumStudent):
            run = kind(users, env, seed=5)
            state = ppo.begin(SMALL, env, run.network_key, ())
            played.append(run.play(SMALL, state, run.key).batch.observations)
    starts = [np.reshape(one, (SMALL.num_envs, SMALL.num_steps, 4))[:, 0] for one in played]
    assert not np.isin(starts[0], starts[1]).any()


def test_continuous_actions_have_no_teacher():
    config = KickstartConfig(teacher="x", teacher_mechanism="exact")
    with GymnasiumUsers("Pendulum-v1", 1) as pendulum:
        run = GymnasiumStudent(pendulum, pendulum.described(), seed=0)
        with pytest.raises(ValueError, match="no finite set of actions"):
            run.student(config)


def test_a_training_goes_on_from_a_state():
    users, env = lanes(SMALL)
    with users:
        states = [state for state, _ in GymnasiumRun(users, env, seed=5).train_ppo(SMALL)]
        rest = [state for state, _ in GymnasiumRun(users, env, seed=5).go_on(SMALL, states[2])]
    assert [int(state.updates) for state in rest] == [4]
