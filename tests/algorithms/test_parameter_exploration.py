"""Updates from two episodes: what a user draws, plays and contributes, and that it teaches."""

import math
from contextlib import closing

import gymnasium as gym
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from fixed_noise import fixed_noise

from sotto.algorithms.dppg import exploration
from sotto.algorithms.dppg import training as dppg_training
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.exploration import Explored
from sotto.algorithms.dppg.gymnasium_users import Collector
from sotto.algorithms.dppg.training import DPPGTraining, create_ledger, evaluate_policy, policies
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.rl.envs.base import Box
from sotto.rl.envs.registry import make
from sotto.rl.networks import Policy


def settings(**changes):
    values = {
        "env_id": "Pendulum-v1",
        "local_update": "parameter-exploration",
        "parameter_noise": 0.5,
        "learning_rate": 2.0,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "users_per_update": 2,
        "steps_per_user": 20,
        "total_steps": 80,
        "hidden": (),
        "evaluation_episodes": 0,
    }
    return DPPGConfig(**(values | changes))


def vector(policy):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(policy)])


def test_directions_have_length_one_and_leave_the_spread_of_actions_alone():
    policy = Policy(3, Box((-2.0,) * 2, (2.0,) * 2), (4,), jr.key(0))
    drawn = [exploration.direction(policy, jr.key(seed)) for seed in range(3)]
    for one in drawn:
        np.testing.assert_allclose(np.linalg.norm(vector(one)), 1.0, rtol=1e-6)
        np.testing.assert_array_equal(one.log_std, 0.0)
    assert abs(vector(drawn[0]) @ vector(drawn[1])) < 0.9
    pair = exploration.both_ways(settings(), policy, drawn[0])
    weights = 3 * 4 + 4 + 4 * 2 + 2
    for side, sign in enumerate((1, -1)):
        moved = vector(jax.tree.map(lambda x, i=side: x[i], pair)) - vector(policy)
        np.testing.assert_allclose(
            moved, sign * 0.5 * np.sqrt(weights) * vector(drawn[0]), atol=1e-6
        )


@pytest.mark.parametrize(
    ("scale", "weight"), [(None, 2.0), (10.0, 2.0 * -6 / 10)], ids=["sign", "scaled"]
)
def test_a_contribution_is_a_number_times_the_direction(scale, weight):
    policy = Policy(3, Box((-2.0,), (2.0,)), (), jr.key(0))
    drawn = exploration.direction(policy, jr.key(1))
    pair = jnp.zeros(2)
    seen = Explored(drawn, jnp.array([-8.0, -2.0]), pair, pair)
    found = exploration.update(settings(advantage_scale=scale), seen)
    expected = -2.0 if scale is None else weight
    np.testing.assert_allclose(vector(found), expected * vector(drawn), rtol=1e-6)
    tie = seen._replace(returns=jnp.array([3.0, 3.0]))
    assert not vector(exploration.update(settings(advantage_scale=scale), tie)).any()


@pytest.mark.parametrize(("bonus", "sign"), [(0.0, -1), (0.5, 1)])
def test_a_survival_bonus_is_left_out_of_the_comparison(bonus, sign):
    """The first episode gains 4 in 2 steps, and the second 7 in 10."""
    policy = Policy(3, Box((-2.0,), (2.0,)), (), jr.key(0))
    drawn = exploration.direction(policy, jr.key(1))
    seen = Explored(drawn, jnp.array([4.0, 7.0]), jnp.array([2.0, 10.0]), jnp.ones(2))
    found = exploration.update(settings(survival_bonus=bonus), seen)
    np.testing.assert_allclose(vector(found), sign * 2.0 * vector(drawn), rtol=1e-6)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_inputs_have_the_public_centre_and_scale_of_the_settings(env_id):
    size = {"CartPole-v1": 4, "Pendulum-v1": 3}[env_id]
    centre, scale = (0.5, -1.0, 0.0, 2.0)[:size], (2.0, 1.0, 3.0, 0.1)[:size]
    config = settings(env_id=env_id, observation_centre=centre, observation_scale=scale)
    state = dppg_training.initial_states(config, [0])
    policy = jax.tree.map(lambda x: x[0], state.policy)
    assert (policy.observation_centre, policy.observation_scale) == (centre, scale)
    seen = jnp.arange(1.0, size + 1)
    inputs = (seen - jnp.array(centre)) * jnp.array(scale)
    got = policy(seen)
    found = got.logits if env_id == "CartPole-v1" else got.mean
    np.testing.assert_allclose(found, policy.network(inputs), rtol=1e-5)
    for name in ("observation_centre", "observation_scale"):
        with pytest.raises(ValueError, match=rf"{name} has 1 values, and {env_id} observes {size}"):
            dppg_training.training_environment(settings(env_id=env_id, **{name: (1.0,)}))


def test_contributions_point_along_the_gradient_on_average():
    """Returns that are linear in the parameters, with known slopes."""
    policy = Policy(3, Box((-2.0,), (2.0,)), (), jr.key(0))
    slopes = exploration.direction(policy, jr.key(99))

    def one(key):
        drawn = exploration.direction(policy, key)
        pair = exploration.both_ways(settings(), policy, drawn)
        returns = sum(
            jnp.sum(p * s, axis=range(1, p.ndim))
            for p, s in zip(
                jax.tree.leaves(pair.network), jax.tree.leaves(slopes.network), strict=True
            )
        )
        nothing = jnp.zeros(2)
        return exploration.update(settings(), Explored(drawn, returns, nothing, nothing))

    mean = vector(jax.tree.map(lambda x: x.mean(axis=0), jax.vmap(one)(jr.split(jr.key(3), 4000))))
    assert mean @ vector(slopes) / np.linalg.norm(mean) > 0.95


def test_an_environment_in_jax_is_played_greedily_both_ways():
    env = make("CartPole-v1")
    config = settings(env_id="CartPole-v1", steps_per_user=60, total_steps=120)
    policy = Policy(4, env.action, (), jr.key(0))
    seen = exploration.explore(config, env, policy, jr.key(5))
    direction_key, play_key = jr.split(jr.key(5))
    drawn = exploration.direction(policy, direction_key)
    np.testing.assert_array_equal(vector(seen.direction), vector(drawn))
    pair = exploration.both_ways(config, policy, drawn)
    for side, key in enumerate(jr.split(play_key)):
        weight, bias = pair.network.weights[0][side], pair.network.biases[0][side]
        start_key, _ = jr.split(key)
        state = env.reset(jr.uniform(start_key, (4,), jnp.float32), env.default_params)
        steps, terminated = 0, False
        while steps < 30 and not terminated:
            logits = (
                env.observe(state, env.default_params) * np.array(policy.observation_scale) @ weight
                + bias
            )
            state, _, terminated = env.step(state, jnp.argmax(logits), env.default_params)
            steps += 1
        assert float(seen.steps[side]) == float(seen.returns[side]) == steps
        assert bool(seen.ended[side]) == bool(terminated)


def test_an_environment_in_gymnasium_is_played_greedily_both_ways():
    config = settings(steps_per_user=24)
    env_policy = Policy(3, Box((-2.0,), (2.0,)), (), jr.key(0))
    with closing(Collector(config)) as collector:
        seen = collector.collect(env_policy, jr.key(1), np.array([40, 41]))
    seed_key, _ = jr.split(jr.key(1))
    seeds = np.asarray(jr.randint(seed_key, (4,), 0, 2**31 - 1, jnp.int32)) + 40
    env = gym.make("Pendulum-v1")
    for user in range(2):
        drawn = jax.tree.map(lambda x, i=user: x[i], seen.direction)
        np.testing.assert_allclose(np.linalg.norm(vector(drawn)), 1.0, rtol=1e-6)
        for side, sign in enumerate((1, -1)):
            distance = sign * 0.5 * 2.0  # sqrt of four parameters
            weight = env_policy.network.weights[0] + distance * drawn.network.weights[0]
            bias = env_policy.network.biases[0] + distance * drawn.network.biases[0]
            observation, _ = env.reset(seed=int(seeds[2 * user + side]))
            total = 0.0
            for _ in range(12):
                action = np.clip(np.asarray(observation @ weight + bias), -2, 2)
                observation, reward, *_ = env.step(action)
                total += float(reward)
            np.testing.assert_allclose(seen.returns[user, side], total, rtol=1e-3)
    np.testing.assert_array_equal(seen.steps, 12.0)
    np.testing.assert_array_equal(seen.ended, 0.0)
    assert len(np.unique(seen.returns)) == 4  # four different people's starts, four policies


def test_it_learns_cartpole(tmp_path):
    config = settings(
        env_id="CartPole-v1",
        users_per_update=32,
        steps_per_user=400,
        total_steps=32 * 400 * 40,
        noise_multiplier=1.0,
        parameter_noise=0.3,
    )
    # A fixed noise seed proves nothing, which only such a budget covers.
    free = Budget(epsilon=math.inf, delta=1e-5)
    ledger = Ledger.create(tmp_path / "ledger.sqlite", unit=config.privacy_unit, budget=free)
    with fixed_noise(1):
        *_, last = DPPGTraining(config, [0], [ledger])
    returns = evaluate_policy(config, policies(last.states)["ema"], jr.key(0), 20)
    assert returns.mean() > 300
    assert last.diagnostics["steps"].max() <= 400


def test_through_gymnasium_the_noise_is_the_doors(tmp_path):
    """With ties, which contribute nothing, a release is noise of the certified scale alone."""
    config = settings(
        users_per_update=2,
        steps_per_user=2,
        total_steps=4 * 4,
        parameter_noise=1e-9,
        correlated_noise=False,
        noise_multiplier=3.0,
        clip_norm=0.7,
        hidden=(64,),
    )
    ledger = create_ledger(config, tmp_path / "ledger.sqlite")
    training = DPPGTraining(config, [0], [ledger])
    collector = Collector(config)
    real = collector.collect

    def tied(*given):
        seen = real(*given)
        return seen._replace(returns=jnp.ones_like(seen.returns))

    collector.collect = tied
    training._collector = collector
    policy = training.states.policy
    for progress in training:
        updates = vector(progress.states.policy) - vector(policy)
        policy = progress.states.policy
        # Of 322 numbers: the sample standard deviation is within 30 per cent but for 1e-12.
        assert np.std(updates) == pytest.approx(3.0 * 0.7 / 2, rel=0.3)
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert certificate.persons == 2 * 4
    assert certificate.epsilon == pytest.approx(1.27, abs=0.01)  # the Gaussian curve at z = 3


def test_real_people_met_through_gymnasium_are_not_evaluated(tmp_path, monkeypatch):
    """Episodes of evaluation would be theirs too, and their returns are logged without noise."""
    played = []
    evaluate = dppg_training.returns_of

    def counted(*given):
        played.append(given)
        return evaluate(*given)

    monkeypatch.setattr(dppg_training, "returns_of", counted)
    for population in ("simulated", "real"):
        config = settings(
            env_id="clinics:TestDosage-v0",
            users_per_update=2,
            steps_per_user=2,
            total_steps=2 * 4,
            evaluation_episodes=1,
            population=population,
        )
        ledger = create_ledger(config, tmp_path / f"{population}.sqlite")
        *_, last = DPPGTraining(config, [0], [ledger])
        simulated = population == "simulated"
        assert (bool(last.evaluation), last.diagnostics is not None) == (simulated,) * 2
        assert bool(played) == simulated
        played.clear()
    with pytest.raises(ValueError, match="with noise only"):
        evaluate_policy(config, policies(last.states)["ema"], jr.key(0), 1)
    assert not played


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parameter_noise": 0.0}, "parameter_noise"),
        ({"steps_per_user": 21, "total_steps": 210}, "even"),
        ({"critic": "private"}, "critic none"),
        ({"private_return": (0.0, 1.0)}, "further parts"),
        (
            {"local_update": "one-step", "survival_bonus": 1.0},
            "survival_bonus needs parameter-exploration",
        ),
        ({"action_repeat": 2, "survival_bonus": 1.0}, "and action_repeat 1"),
    ],
)
def test_refusals(changes, says):
    with pytest.raises(ValueError, match=says):
        settings(**changes)
