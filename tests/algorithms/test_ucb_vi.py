"""UCB-VI and UCB-PO: counters, plans, noise and certificates; and the published code's noise."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, stats

from sotto.algorithms.ucb import calibrated, published, r_max
from sotto.algorithms.ucb.calibrated import REWARD_WEIGHT, UCBConfig, create_ledger, train
from sotto.algorithms.ucb.published import OfficialConfig, simulate
from sotto.privacy.accounting.composition import NoGuarantee
from sotto.privacy.certificates.derive import derive
from sotto.rl.tabular import optimal_values

ENV = calibrated.environment("RiverSwim-v0")
MDP = ENV.mdp(ENV.default_params)


def uniform_plan() -> jax.Array:
    return jnp.full((20, 6, 2), 0.5)


# --- counters ------------------------------------------------------------------------------------


def test_counters_are_what_a_loop_over_the_episode_counts() -> None:
    state = calibrated.initial_state(UCBConfig(), ENV)
    (parts, seen), (here, action, reward, after) = jax.jit(
        lambda key: (
            calibrated._local(UCBConfig(), ENV, state, (), key),
            calibrated.play(ENV, state.policy, key),
        )
    )(jax.random.key(3))
    transitions, rewards = np.zeros((6, 2, 6)), np.zeros((6, 2))
    for s, a, r, t in zip(*map(np.asarray, (here, action, reward, after)), strict=True):
        transitions[s, a, t] += 1
        rewards[s, a] += REWARD_WEIGHT * float(r)
    np.testing.assert_allclose(parts["counters"].transitions, transitions)
    np.testing.assert_allclose(parts["counters"].rewards, rewards, rtol=1e-6)
    assert transitions.sum() == 20
    assert float(seen["reward"]) == pytest.approx(rewards.sum() / REWARD_WEIGHT, rel=1e-5)
    np.testing.assert_array_equal(here[1:], after[:-1])


def test_play_follows_the_policy_of_each_step() -> None:
    by_step = np.zeros((20, 6, 2), np.float32)
    actions = np.random.default_rng(0).integers(2, size=20)
    by_step[np.arange(20), :, actions] = 1
    _, action, _, _ = calibrated.play(ENV, jnp.asarray(by_step), jax.random.key(0))
    np.testing.assert_array_equal(action, actions)


def test_no_episode_has_longer_counters_than_the_clip_norm() -> None:
    """The longest: H visits and rewards of 1 at one state and action, always led to one state."""
    rng, longest = np.random.default_rng(0), 0.0
    for spread in (1, 1, 2, 6):
        cells, ends = rng.integers(spread, size=20), rng.integers(spread, size=20)
        counts, rewards = np.zeros((6, 6)), np.zeros(6)
        np.add.at(counts, (cells, ends), 1)
        np.add.at(rewards, cells, REWARD_WEIGHT)
        longest = max(longest, math.sqrt((counts**2).sum() + (rewards**2).sum()))
    assert longest == pytest.approx(calibrated.clip_norm(UCBConfig(), ENV), rel=1e-12)


# --- plans ---------------------------------------------------------------------------------------


def test_the_plan_without_bonuses_is_backward_induction() -> None:
    free = jnp.full(20, jnp.inf)
    values = calibrated.plan(
        jnp.asarray(MDP.rewards, jnp.float32),
        jnp.asarray(MDP.transitions, jnp.float32),
        jnp.zeros((20, 6, 2)),
        None,
        -free,
        free,
    )
    np.testing.assert_allclose(values, optimal_values(MDP), atol=1e-5)


def test_a_plan_of_a_policy_is_its_value_and_stays_in_its_bounds() -> None:
    rng = np.random.default_rng(1)
    policy = rng.dirichlet(np.ones(2), size=(20, 6)).astype(np.float32)
    expected, following = np.zeros((20, 6, 2)), np.zeros(6)
    bonuses = rng.random((20, 6, 2)).astype(np.float32)
    highest = np.linspace(9, 0.4, 20).astype(np.float32)
    for h in reversed(range(20)):
        values = MDP.rewards + MDP.transitions @ following + bonuses[h]
        expected[h] = np.minimum(values, highest[h])
        following = (policy[h] * expected[h]).sum(axis=1)
    values = calibrated.plan(
        jnp.asarray(MDP.rewards, jnp.float32),
        jnp.asarray(MDP.transitions, jnp.float32),
        jnp.asarray(bonuses),
        jnp.asarray(policy),
        jnp.zeros(20),
        jnp.asarray(highest),
    )
    np.testing.assert_allclose(values, expected, atol=1e-4)


def test_ties_are_broken_evenly_and_weights_grow_with_values() -> None:
    values = jnp.array([[[1.0, 1.0], [0.0, 2.0]]])
    np.testing.assert_allclose(calibrated.greedy(values)[0], [[0.5, 0.5], [0, 1]])
    tilted = calibrated.reweighted(jnp.full((1, 2, 2), 0.5), values, 0.3)[0]
    np.testing.assert_allclose(tilted[0], [0.5, 0.5])
    assert float(tilted[1, 1] / tilted[1, 0]) == pytest.approx(math.exp(0.6), rel=1e-5)


def test_bonuses_cover_the_noise_of_the_counters_and_a_smaller_one_does_not() -> None:
    """Error of P V from noise alone, before projection, for the worst values in [0, R]."""
    rng, deviation, visits, left = np.random.default_rng(2), 30.0, 4000.0, 19
    width = float(stats.norm.ppf(0.975))
    law = np.full(6, 1 / 6)
    values = np.array([0, 0, 0, left, left, left], float)
    exact = calibrated.Counters(
        jnp.full((6, 2, 6), visits / 6), jnp.full((6, 2), visits * REWARD_WEIGHT / 2)
    )
    _, _, bonuses = calibrated.estimates(exact, jnp.float32(width * deviation), 20)
    sure = visits - math.sqrt(6) * width * deviation
    statistical = math.sqrt(calibrated.CONFIDENCE / sure) * 20
    private = float(bonuses[0, 0, 0]) - statistical
    noisy = visits * law + deviation * rng.standard_normal((100_000, 6))
    errors = np.abs(noisy @ values / noisy.sum(axis=1) - law @ values)
    assert np.mean(errors > private) < 0.05
    assert np.mean(errors > 0.5 * private) > 0.05
    assert float(bonuses[19, 0, 0]) < float(bonuses[0, 0, 0])


# --- R-MAX ---------------------------------------------------------------------------------------


def test_shares_are_what_a_loop_over_the_episode_finds() -> None:
    rng = np.random.default_rng(0)
    here, action, after = (
        rng.integers(3, size=20),
        rng.integers(2, size=20),
        rng.integers(3, size=20),
    )
    reward = rng.uniform(size=20).astype(np.float32)
    transitions, rewards = r_max.shares((3, 2), *map(jnp.asarray, (here, action, reward, after)))
    for s in range(3):
        for a in range(2):
            own = (here == s) & (action == a)
            there = [np.mean(after[own] == t) if own.any() else 0.0 for t in range(3)]
            np.testing.assert_allclose(transitions[s, a], there, rtol=1e-6)
            mean = reward[own].mean() if own.any() else 0.0
            assert float(rewards[s, a]) == pytest.approx(r_max.MEAN_REWARD_WEIGHT * mean, rel=1e-5)


def test_a_model_is_optimistic_about_what_noise_hides_and_true_about_the_rest() -> None:
    transitions = jnp.zeros((2, 2, 2)).at[0, 0].set(jnp.array([2000.0, 6000.0]))
    transitions = transitions.at[1, 1].set(jnp.array([24.0, 0.0]))  # below 2.5 deviations of 10
    rewards = jnp.zeros((2, 2)).at[0, 0].set(8000 * r_max.MEAN_REWARD_WEIGHT * 0.25)
    found, law = r_max.model(transitions, rewards, jnp.float32(10.0))
    np.testing.assert_allclose(law.sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(law[0, 0], [0.25, 0.75], atol=3e-3)
    assert float(found[0, 0]) == pytest.approx(0.25, abs=3e-3)
    for s, a in ((0, 1), (1, 0), (1, 1)):
        assert float(found[s, a]) == pytest.approx(1.0)
        assert float(law[s, a, s]) == pytest.approx(1.0)


def test_what_noise_hides_is_optimistic_on_average() -> None:
    """Nobody came: what is left is noise, in the counters of rewards, too."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 10, (2000, 6, 2, 7)).astype(np.float32)
    found, law = jax.vmap(lambda n: r_max.model(n[..., :6], n[..., 6], jnp.float32(10.0)))(noise)
    assert 0.85 < float(found.mean()) < 0.92  # mean of 1 + normal / 4, clipped at 1: 0.90
    assert float(jnp.mean(law[:, 0, :, 0] > 0.999)) > 0.95


def test_shares_leave_the_door_with_norm_1(tmp_path) -> None:
    """Shares of one long episode have a norm above 1. The mean over runs shows it in the noise."""
    config, runs = UCBConfig(variant="r-max", episodes=1, target_epsilon=60.0, delta=1e-3), 16
    ledgers = [create_ledger(config, tmp_path / f"{run}.sqlite") for run in range(runs)]
    first = calibrated.initial_state(config, ENV)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (runs, *x.shape)), first)
    stream = calibrated.make_release(config, ENV).open(ledgers, states, chunk=1)
    keys = jax.random.split(jax.random.key(0), runs)
    states, _, _ = stream.run(states, keys, np.zeros((runs, 1, 1), int))
    squared = sum(float(jnp.sum(x**2)) for x in states.counters) / runs
    deviation = float(first.deviations[0])
    error = math.hypot(deviation**2 * math.sqrt(2 * 84), 2 * deviation) / math.sqrt(runs)
    assert error < 0.1
    assert 0.5 < squared - 84 * deviation**2 < 1.5  # without clipping it is above 1.25^2 = 1.56


@pytest.mark.parametrize("env_id", ["RiverSwim-v0", "RiverSwimExchanged-v0"])
def test_r_max_learns_whichever_way_actions_are_numbered(tmp_path, env_id) -> None:
    """Uniform actions lose 3.35 in each episode."""
    config = UCBConfig(env_id=env_id, variant="r-max", episodes=700, target_epsilon=5.0)
    losses = train(config, [0, 1], [create_ledger(config, tmp_path / f"{i}") for i in range(2)])
    assert losses[:, -100:].mean() < 0.6


# --- noise and certificates ----------------------------------------------------------------------


def strategy(config: UCBConfig, n: int) -> np.ndarray:
    """C, from definitions: nothing, the square root of prefix sums, or sums over aligned blocks."""
    if config.trust == "local":
        return np.eye(n)
    if config.noise == "prefix-sum":
        return np.asarray(linalg.sqrtm(np.tril(np.ones((n, n))))).real
    c = np.zeros((n, n))
    for end in range(1, n + 1):
        c[end - 1, end - (end & -end) : end] = 1
    return c


@pytest.mark.parametrize(
    ("trust", "noise", "variant"),
    [
        ("joint", "prefix-sum", "vi"),
        ("joint", "binary-tree", "vi"),
        ("local", "prefix-sum", "vi"),
        ("joint", "prefix-sum", "r-max"),
    ],
)
def test_noise_in_empty_counters_is_what_the_certificate_claims(
    tmp_path, trust, noise, variant
) -> None:
    """Nobody comes: what is left is noise. Three quarters of the scale claimed are noticed."""
    config = UCBConfig(trust=trust, noise=noise, variant=variant, episodes=12, delta=1e-3)
    ledger = create_ledger(config, tmp_path / "ledger.sqlite")
    states = jax.tree.map(lambda x: x[None], calibrated.initial_state(config, ENV))
    claimed = np.asarray(states.deviations[0])
    stream = calibrated.make_release(config, ENV).open([ledger], states, chunk=1)
    keys = jax.random.split(jax.random.key(0), 1)
    sums = [np.zeros(84)]
    for _ in range(12):
        states, _, _ = stream.run(states, keys, np.full((1, 1, 1), -1))
        sums.append(np.concatenate([np.asarray(x).reshape(-1) for x in states.counters]))
    c = strategy(config, 12)
    longest = 1.0 if variant == "r-max" else 20 * math.sqrt(1 + REWARD_WEIGHT**2)
    scale = config.noise_multiplier * longest
    scale *= np.linalg.norm(c, axis=0).max()
    inverse = np.tril(np.ones((12, 12))) @ np.linalg.inv(c)
    np.testing.assert_allclose(claimed, scale * np.linalg.norm(inverse, axis=1), rtol=1e-4)
    white = c @ np.diff(sums, axis=0) / scale
    lower = stats.chi2.cdf(np.square(white).sum(), white.size)
    assert 1e-7 < lower < 1 - 1e-7
    assert stats.chi2.cdf(np.square(0.75 * white).sum(), white.size) < 1e-7


@pytest.mark.parametrize(
    "changes",
    [{"variant": "po", "noise": "binary-tree"}, {"trust": "local"}, {"variant": "r-max"}],
)
def test_calibrated_training_is_proved_and_costs_what_was_asked(tmp_path, changes) -> None:
    config = UCBConfig(episodes=30, target_epsilon=2.0, delta=1e-3, **changes)
    ledgers = [create_ledger(config, tmp_path / f"{i}.sqlite") for i in range(2)]
    losses = train(config, [0, 1], ledgers)
    assert losses.shape == (2, 30)
    assert losses[:, 0] == pytest.approx(3.3973 - 0.044, abs=1e-3)
    assert (losses > -1e-9).all()
    certificate = derive(ledgers[0])
    assert certificate.status == "proved"
    assert 1.97 < certificate.epsilon <= 2.0
    assert certificate.persons == 30


def test_with_little_noise_it_learns(tmp_path) -> None:
    """Epsilon 60 is no privacy to speak of; the noise is still real, and the bonuses cover it."""
    config = UCBConfig(target_epsilon=60.0, episodes=1000, failure_probability=0.9)
    losses = train(config, [0], [create_ledger(config, tmp_path / "ledger.sqlite")])
    assert losses[0, -200:].mean() < 1.7  # half of what uniform actions lose


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"failure_probability": 1.0}, "failure_probability"),
        ({"delta": 1e-3}, "below 1 / episodes"),
        ({"target_epsilon": -1.0}, "target_epsilon must be in"),
    ],
)
def test_bad_settings_are_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        UCBConfig(**changes)
    with pytest.raises(ValueError, match="no finite number of states; UCB"):
        calibrated.environment("CartPole-v1")


# --- the published code --------------------------------------------------------------------------


def test_the_published_noise_has_no_guarantee() -> None:
    event = OfficialConfig(nominal_epsilon=5.0).event
    assert isinstance(event, NoGuarantee)
    assert "noise of the published code" in event.reason
    assert "no noise" in OfficialConfig(nominal_epsilon=None).event.reason
    with pytest.raises(ValueError, match="nominal_epsilon must be in"):
        OfficialConfig(nominal_epsilon=0.0)


def test_published_joint_noise_is_a_fresh_sum_of_laplace_draws() -> None:
    config, state = OfficialConfig(nominal_epsilon=2.0), _first_state()
    keys = jax.random.split(jax.random.key(0), 1500)
    drawn = jax.jit(
        lambda number: jax.vmap(lambda key: published._noise(config, state, key, number)[:3])(keys)
    )
    for number, levels in [(1, 1), (2, 1), (3, 2), (7, 2), (8, 3), (2000, 8)]:
        for noise in drawn(jnp.int32(number)):
            expected = math.sqrt(2 * levels) / 2.0
            assert float(np.std(np.asarray(noise))) == pytest.approx(expected, rel=0.08)


def test_published_local_noise_is_one_running_sum_for_all_states() -> None:
    config = OfficialConfig(nominal_epsilon=2.0, trust="local")
    state = _first_state()
    visits, rewards, transitions, summed = published._noise(
        config, state, jax.random.key(0), jnp.int32(1)
    )
    assert (visits.shape, rewards.shape, transitions.shape) == ((), (), (6,))
    later = published._noise(config, state._replace(noise=summed), jax.random.key(1), jnp.int32(2))
    fresh = published._noise(config, state, jax.random.key(1), jnp.int32(2))
    assert float(later[0]) == pytest.approx(float(visits + fresh[0]), rel=1e-5)


def test_without_noise_the_published_rule_learns_and_other_rules_run() -> None:
    losses = simulate(OfficialConfig(nominal_epsilon=None, episodes=700), [0, 1])
    assert losses.shape == (2, 700)
    assert losses[:, 0] == pytest.approx(3.35, abs=0.06)
    assert losses[:, -100:].mean() < 0.7
    # Five seeds of 2000 episodes gave 838 +- 29, an independent program 813: not 6707.
    assert losses.sum(axis=1).mean() < 1000
    other = simulate(
        OfficialConfig(variant="po", trust="local", nominal_epsilon=5.0, episodes=20), [0]
    )
    assert np.isfinite(other).all()


def _first_state() -> published.OfficialState:
    ones, zero = jnp.ones((6, 2)), jnp.zeros(())
    return published.OfficialState(
        ones, ones, jnp.ones((6, 2, 6)), uniform_plan(), (zero, zero, jnp.zeros(6))
    )
