"""Physics and policy of the page of the game, run in a real browser, against those of Python."""

import json

import equinox as eqx
import gymnasium
import jax
import numpy as np
import pytest
from fake_campaign import BALANCING

from sotto.rl.envs.base import Discrete
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
    with pytest.raises(RuntimeError, match="this policy is tanh with gaussian; use another client"):
        page.run(
            "import('/policy.js').then(({ Policy }) => "
            f"new Policy({json.dumps(BALANCING | {'distribution': 'gaussian'})}))"
        )
