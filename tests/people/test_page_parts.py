"""Physics and policy of the page of the game, run in a real browser, against those of Python."""

import json

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_campaign import BALANCING
from scipy import stats

from sotto.people.policy import NumpyPolicy
from sotto.rl.envs.base import Discrete
from sotto.rl.envs.dosing import Dosing, DosingState
from sotto.rl.networks import Policy


def test_cartpole_is_that_of_gymnasium(visit):
    page, _ = visit("/play", None)
    rng = np.random.default_rng(5)
    for _ in range(4):
        start = rng.uniform(-0.05, 0.05, 4)
        # Leans against the fall, with chance, so that episodes have different lengths.
        env = gymnasium.make("CartPole-v1").unwrapped
        env.reset()
        env.state = start
        actions, states, over = [], [], False
        while not over and len(actions) < 500:
            lean = env.state[2] + 0.5 * env.state[3]
            actions.append(int(lean > 0) if rng.random() < 0.9 else int(rng.integers(2)))
            over = env.step(actions[-1])[2]
            states.append(env.state.tolist())
        found = page.run(
            f"import('/cartpole.js').then(({{ CartPole }}) => {{ const cart = new CartPole("
            f"{start.tolist()}); return {actions}.map((a) => [cart.step(a), cart.state, "
            f"cart.observation, cart.terminated]); }})"
        )
        rewards, seen, single, ends = zip(*found, strict=True)
        np.testing.assert_allclose(seen, states, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(single, np.float32(seen).astype(float))
        assert set(rewards) == {1.0}
        assert [*ends] == [False] * (len(ends) - 1) + [over]


def test_an_episode_has_at_most_500_steps_and_does_not_go_on(visit):
    page, _ = visit("/play", None)
    steps = page.run(
        "import('/cartpole.js').then(({ CartPole }) => { const cart = new CartPole(); "
        "while (!cart.over) { const [x, v, a, s] = cart.state; "
        "cart.step(a + 0.4 * s + 0.05 * x + 0.1 * v > 0 ? 1 : 0); } "
        "return [cart.steps, cart.terminated]; })"
    )
    assert steps == [500, False]
    with pytest.raises(RuntimeError, match="This episode is over"):
        page.run(
            "import('/cartpole.js').then(({ CartPole }) => { const cart = new CartPole(); "
            "for (let i = 0; i < 30; i += 1) cart.step(1); })"
        )


def test_dosing_is_that_of_the_project(visit):
    """The same bodies and doses, also beyond the largest and the smallest dose."""
    page, _ = visit("/play", None)
    env, rng = Dosing(), np.random.default_rng(7)
    step, params = jax.jit(env.step), env.default_params
    for _ in range(2):
        body = rng.normal([85, 33, 33, 25, 25, 250], [10, 5, 5, 5, 5, 5])
        doses = rng.uniform(-2, 14, env.max_episode_steps)
        drawn = env.reset(np.full(env.reset_size, 0.5, np.float32), params)
        meals = drawn.meals
        state = DosingState(
            jnp.float32(body), jnp.float32(body[0]), meals[0], meals[0], meals, jnp.int32(0)
        )
        state, *_ = step(state, jnp.float32([3.0]), params)
        seen, rewards = [env.observe(state, params)], []
        for dose in doses:
            state, reward, _ = step(state, env.action.clip(jnp.float32([dose])), params)
            seen.append(env.observe(state, params))
            rewards.append(reward)
        found, got, over, steps = page.run(
            f"import('/dosing.js').then(({{ Dosing }}) => {{ const day = new Dosing("
            f"{body.tolist()}); const seen = [day.observation]; const got = {doses.tolist()}"
            ".map((dose) => { const reward = day.step([dose]); seen.push(day.observation); "
            "return reward; }); return [seen, got, day.over, day.steps]; })"
        )
        np.testing.assert_allclose(found, np.array(seen), rtol=2e-5, atol=1e-3)
        np.testing.assert_allclose(got, rewards, atol=2e-4)
        assert (over, steps) == (True, env.max_episode_steps)
        assert {-1.0} < set(got)


def test_a_day_begins_with_a_random_body(visit):
    page, _ = visit("/play", None)
    bodies = np.array(
        page.run(
            "import('/dosing.js').then(({ Dosing }) => Array.from({ length: 2000 }, () => "
            "{ const day = new Dosing(); return [day.glucose[0], ...day.body]; }))"
        )
    )
    assert 65 <= bodies[:, 0].min() < 66
    assert 104 < bodies[:, 0].max() <= 105
    uniforms = np.random.default_rng(0).random((2000, 6), np.float32)
    env = Dosing()
    starts = jax.vmap(lambda u: env.reset(u, env.default_params).body)(uniforms)
    np.testing.assert_allclose(bodies[:, 1:].mean(0), np.mean(starts, 0), rtol=0.02)
    np.testing.assert_allclose(bodies[:, 1:].std(0), np.std(starts, 0), rtol=0.1)


def test_real_actions_have_the_distribution_of_the_project(visit):
    page, _ = visit("/play", None)
    policy = {
        **{"version": 0, "activation": "tanh", "distribution": "gaussian"},
        "layers": [{"weights": [[1.0, 0.0], [0.0, -1.0]], "bias": [0.5, 0.0]}],
        **{"observation_scale": [1.0, 2.0], "observation_centre": None},
        **{"log_std": [-1.0, 0.5], "action_scale": [2.0, 3.0], "action_centre": [5.0, -1.0]},
    }
    drawn = page.run(
        f"import('/policy.js').then(({{ Policy }}) => {{ const policy = new Policy("
        f"{json.dumps(policy)}); "
        "return Array.from({ length: 20000 }, () => policy.draw([0.25, 0.5])); })"
    )
    refused = page.run(
        f"import('/policy.js').then(({{ Policy }}) => [[1], [1, 2, 3]].map((seen) => {{ try {{ "
        f"return new Policy({json.dumps(policy)}).draw(seen); }} "
        "catch (error) { return error.message; } }))"
    )
    assert refused == [f"An observation must have 2 numbers, got {count}." for count in (1, 3)]
    seen = np.array([0.25, 0.5])
    mean = NumpyPolicy(policy).most_likely(seen)
    std = np.exp(policy["log_std"]) * policy["action_scale"]
    for index in range(2):
        scaled = (np.array(drawn)[:, index] - mean[index]) / std[index]
        assert stats.kstest(scaled, "norm").pvalue > 1e-6


@pytest.mark.parametrize("centre", [None, (0.1, -0.2, 0.3, 0.0)])
def test_policies_give_the_probabilities_of_the_project(visit, centre):
    page, _ = visit("/play", None)
    scale = (0.4, 0.5, 5.0, 0.5)
    policy = Policy(
        4, Discrete(3), (16, 8), jax.random.key(3), observation_scale=scale,
        observation_centre=centre, last_gain=1.0,
    )  # fmt: skip
    biases = tuple(0.1 + bias for bias in policy.network.biases)
    policy = eqx.tree_at(lambda p: p.network.biases, policy, biases)
    layers = [
        {"weights": np.asarray(weight).tolist(), "bias": np.asarray(bias).tolist()}
        for weight, bias in zip(policy.network.weights, biases, strict=True)
    ]
    found = BALANCING | {"layers": layers, "observation_scale": scale, "observation_centre": centre}
    seen = np.random.default_rng(1).normal(size=(20, 4))
    said = page.run(
        f"import('/policy.js').then(({{ Policy }}) => {{ const policy = new Policy("
        f"{json.dumps(found)}); return {seen.tolist()}.map((o) => policy.probabilities(o)); }})"
    )
    expected = jax.nn.softmax(policy(np.float32(seen)).logits)
    np.testing.assert_allclose(said, expected, atol=2e-6)
    assert np.ptp(said, axis=0).max() > 0.1


def test_actions_are_drawn_from_the_softmax(visit):
    page, _ = visit("/play", None)
    chances = np.array([0.05, 0.6, 0.35])
    layers = [{"weights": [[0, 0, 0]], "bias": np.log(chances).tolist()}]
    found = BALANCING | {"layers": layers, "observation_scale": 1}
    counts = page.run(
        f"import('/policy.js').then(({{ Policy }}) => {{ const policy = new Policy("
        f"{json.dumps(found)}); const counts = [0, 0, 0]; for (let i = 0; i < 40000; i += 1) "
        "counts[policy.draw([0])] += 1; return counts; })"
    )
    expected = 40000 * chances
    assert np.sum((counts - expected) ** 2 / expected) < 27.6  # chi-square: one in a million


def test_uniforms_are_uniform_and_fine(visit):
    page, _ = visit("/play", None)
    drawn = np.array(
        page.run(
            "import('/policy.js').then(({ uniform }) => Array.from({ length: 10000 }, uniform))"
        )
    )
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
    assert np.sum((counts - 500) ** 2 / 500) < 65  # chi-square: one in a million
    assert len(set((drawn * 2**53 % 2**20).tolist())) > 9900  # the last bits are random, too


def test_other_policies_are_refused(visit):
    page, _ = visit("/play", None)
    with pytest.raises(RuntimeError, match="this policy is relu with softmax; use another client"):
        page.run(
            "import('/policy.js').then(({ Policy }) => "
            f"new Policy({json.dumps(BALANCING | {'activation': 'relu'})}))"
        )
