"""Experts are functions of seed and number, differ as planned, and are logged as they play."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.experts import gymnasium, training
from sotto.algorithms.experts.recipes import recipe
from sotto.algorithms.experts.training import Floored, plan
from sotto.data.trajectories import checked
from sotto.rl.envs.registry import make
from sotto.rl.envs.variants import LUNAR_LANDER, variants
from sotto.rl.networks import Policy

CARTPOLE = replace(recipe("CartPole-v1", (16,)), stops=(2, 4))
LANDER = recipe(LUNAR_LANDER, (8,))
# The base's settings are an expert's, so that they are compiled once.
_PPO = replace(LANDER.ppo, num_envs=2, num_steps=16, total_steps=64)
LANDER = replace(LANDER, ppo=_PPO, base=_PPO, learning_rates=(_PPO.learning_rate,), stops=(1, 2))


def leaves(policies):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(policies)]


@pytest.fixture(scope="module")
def trained():
    chosen = plan("CartPole-v1", CARTPOLE, 6, 0)
    return chosen, training.train("CartPole-v1", CARTPOLE, chosen, 0)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "HIV-v0", LUNAR_LANDER])
def test_a_plan_goes_through_the_whole_grid_and_its_beginning_stays(env_id):
    how = recipe(env_id)
    grid = variants(env_id).values
    many, few = plan(env_id, how, len(grid) + 7, 3), plan(env_id, how, 5, 3)
    assert len(np.unique(many.variants.values[: len(grid)], axis=0)) == len(grid)
    np.testing.assert_array_equal(many.variants.values[-7:], many.variants.values[:7])
    for one, other in ((many.learning_rates, few.learning_rates), (many.stops, few.stops)):
        np.testing.assert_array_equal(one[:5], other)
    np.testing.assert_array_equal(many.variants.values[:5], few.variants.values)
    for values, offered in ((many.learning_rates, how.learning_rates), (many.stops, how.stops)):
        counts = [np.sum(values == one) for one in offered]
        assert min(counts) > 0.7 * len(values) / len(offered)
        assert sum(counts) == len(values)
    assert not np.array_equal(plan(env_id, how, 5, 4).variants.values, few.variants.values)


def test_no_experts():
    with pytest.raises(ValueError, match="at least 1"):
        plan("CartPole-v1", CARTPOLE, 0, 0)


def test_an_expert_does_not_depend_on_who_is_trained_beside_it(trained):
    chosen, policies = trained
    rows = np.array([4, 1, 1, 4, 4, 4])  # as many, so that nothing is compiled again
    again = training.train("CartPole-v1", CARTPOLE, chosen.select(rows), 0)
    for together, apart in zip(leaves(policies), leaves(again), strict=True):
        np.testing.assert_allclose(together[rows], apart, atol=1e-5)
    weights = leaves(policies)[0]
    assert not np.allclose(weights[4], weights[1], atol=0.1)


def test_learning_stops_where_it_is_planned_to(trained):
    chosen, policies = trained
    assert set(chosen.stops) == {2, 4}
    longer = chosen._replace(stops=np.full(6, 4))
    on = training.train("CartPole-v1", CARTPOLE, longer, 0)
    stopped = chosen.stops == 2
    weights, later = leaves(policies)[0], leaves(on)[0]
    assert np.all(np.abs(weights - later)[stopped].max(axis=(1, 2)) > 1e-4)
    np.testing.assert_allclose(weights[~stopped], later[~stopped], atol=1e-5)


def test_learning_rate_and_physics_are_the_experts_own(trained):
    chosen, policies = trained
    faster = chosen._replace(learning_rates=chosen.learning_rates * np.array([1, 2, 1, 1, 1, 1]))
    values = chosen.variants.values.copy()
    values[2] = 11, 9, 1.25
    moved = faster._replace(variants=chosen.variants._replace(values=values))
    changed = leaves(training.train("CartPole-v1", CARTPOLE, moved, 0))[0]
    difference = np.abs(changed - leaves(policies)[0]).max(axis=(1, 2))
    assert np.all(difference[[1, 2]] > 1e-3)
    assert np.all(difference[[0, 3, 4, 5]] < 1e-4)


def test_training_helps(trained):
    chosen, _ = trained
    chosen = chosen._replace(stops=np.full(6, 20), learning_rates=np.full(6, 2e-3))
    policies = training.train("CartPole-v1", CARTPOLE, chosen, 0)
    returns = training.judge("CartPole-v1", policies, chosen.numbers, 0, 200, 10)
    assert returns.shape == (6, 10)
    assert returns.max() <= 200
    assert returns.mean() > 80  # a random policy: 22


def one_policy(bias=(0.0, 3.0, 0.0)):
    """Returns a policy that always prefers the same action."""
    env = make("Acrobot-v1")
    policy = Policy(env.observation_size, env.action, (4,), jax.random.key(0), last_gain=0.0)
    biases = (*policy.network.biases[:-1], jnp.array(bias))
    policy = eqx.tree_at(lambda p: p.network.biases, policy, biases)
    return jax.tree.map(lambda x: x[None], policy)


def test_floored_probabilities_are_a_function_of_the_greedy_action():
    for bias in ((0.0, 3.0, 0.0), (2.0, 2.1, -5.0)):
        policy = jax.tree.map(lambda x: x[0], one_policy(bias))
        logits = Floored(policy, 0.01)(jnp.zeros(6)).logits
        np.testing.assert_allclose(np.exp(logits), [0.01, 0.98, 0.01], rtol=1e-5)


def test_a_logs_actions_have_the_floors_frequencies():
    floor, episodes = 0.1, 60
    log = training.logs("Acrobot-v1", one_policy(), np.arange(1), 0, floor, 200, episodes)
    counts = np.bincount(log.transitions.actions, minlength=3)
    total = counts.sum()
    assert total > 10_000
    error = 5.5 * np.sqrt(0.16 / total)  # 5.5 standard deviations of any of the three
    np.testing.assert_allclose(counts / total, [0.1, 0.8, 0.1], atol=error)


def test_a_log_holds_what_happened(trained):
    chosen, policies = trained
    log = checked(training.logs("CartPole-v1", policies, chosen.numbers, 5, 0.01, 30, 4))
    env = make("CartPole-v1")
    step = jax.jit(env.step)
    assert (log.experts, log.lasts.sum()) == (6, 24)
    lengths = np.diff(np.flatnonzero(log.lasts), prepend=-1)
    assert np.all((lengths == 30) | log.transitions.terminated[log.lasts])
    assert log.transitions.terminated.any()
    for expert in (0, 3):
        own, lasts, _ = log.of(expert)
        assert lasts.sum() == 4
        for t in range(len(lasts)):
            seen = jnp.asarray(own.observations[t])
            state = type(env.reset(jnp.zeros(4), env.default_params))(*seen)
            after, reward, terminated = step(state, jnp.int32(own.actions[t]), env.default_params)
            np.testing.assert_allclose(own.next_observations[t], np.array(after), atol=1e-5)
            assert own.rewards[t] == reward
            assert own.terminated[t] == terminated
            if not lasts[t]:
                np.testing.assert_array_equal(own.next_observations[t], own.observations[t + 1])
    other = training.logs("CartPole-v1", policies, chosen.numbers, 6, 0.01, 30, 4)
    assert not np.array_equal(log.transitions.observations, other.transitions.observations)


@pytest.mark.parametrize("floor", [-0.1, 0.5, 0.7])
def test_a_floor_that_is_none(trained, floor):
    with pytest.raises(ValueError, match="floor must be at least 0 and below 1/2"):
        training.logs("CartPole-v1", trained[1], np.arange(6), 0, floor, 5, 1)


def test_lunar_lander_goes_on_from_a_public_base():
    shares = []
    base = gymnasium.train_base(LUNAR_LANDER, LANDER, 0, lambda share, _: shares.append(share))
    assert shares == [0.5, 1.0]
    chosen = plan(LUNAR_LANDER, LANDER, 3, 0)._replace(stops=np.array([1, 2, 2]))
    policies = gymnasium.train(LUNAR_LANDER, LANDER, chosen, 0, base)
    again = gymnasium.train(LUNAR_LANDER, LANDER, chosen.select(np.array([1])), 0, base)
    first = leaves(base.policy)[0]
    moved = np.abs(leaves(policies)[0] - first).max(axis=(1, 2))
    assert np.all((moved > 1e-5) & (moved < 0.1))
    for together, alone in zip(leaves(policies), leaves(again), strict=True):
        np.testing.assert_allclose(together[1], alone[0], atol=1e-6)
    returns = gymnasium.judge(LUNAR_LANDER, policies, chosen.numbers, 0, 20, 2)
    assert returns.shape == (3, 2)
    numbers, play = chosen.numbers, gymnasium.play
    log = checked(training.logs(LUNAR_LANDER, policies, numbers, 0, 0.02, 20, 2, play))
    assert (log.experts, log.steps.tolist(), log.observation_size) == (3, [40, 40, 40], 8)
    assert set(np.unique(log.transitions.actions)) <= {0, 1, 2, 3}
    assert not log.transitions.terminated.any()  # nothing lands or crashes within 20 steps


def test_experts_in_jax_go_on_from_a_public_base(trained):
    chosen, alone = trained
    base = training.blank(make("CartPole-v1"), CARTPOLE.ppo)
    policies = training.train("CartPole-v1", CARTPOLE, chosen, 0, base)

    def away(trained):
        pairs = zip(leaves(trained), leaves(base.policy), strict=True)
        return max(float(np.abs(a - b).max()) for a, b in pairs)

    assert 0 < away(policies) < away(alone) / 2  # few updates move them little


def test_the_base_in_jax_learns_from_its_own_rewards():
    ppo = replace(CARTPOLE.ppo, num_envs=2, num_steps=8, num_epochs=1, num_minibatches=1)
    ppo = replace(ppo, total_steps=3 * ppo.steps_per_update)
    how = replace(CARTPOLE, base=ppo, log_reward=1.0)
    shares = []
    base = training.train_base("CartPole-v1", how, 0, lambda share, _: shares.append(share))
    start = training.blank(training.learning_environment("CartPole-v1", how), ppo)
    assert jax.tree.structure(base) == jax.tree.structure(start)  # so that files can be read
    assert shares == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert all(np.isfinite(leaf).all() for leaf in leaves(base))
    # The critic's scale follows from the rewards of the learning environment.
    assert base.value.scale == pytest.approx(np.log(2) / (1 - ppo.discount))
