"""Dosing-0 and Dosing-1 against an adaptive integrator, scipy's filter, and known returns."""

import functools
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import solve_ivp
from scipy.signal import savgol_filter

from sotto.privacy.release.purity import ImpureFunction, require_pure
from sotto.rl.distributions import DiagonalGaussian
from sotto.rl.envs.dosing import MOST_INSULIN, TARGET, _day_of_meals, _normal, _smoothed
from sotto.rl.envs.registry import make
from sotto.rl.rollout import evaluate

PLAIN, VARIED = make("Dosing-0"), make("Dosing-1")
DAYS = 256


class GlucoseController(eqx.Module):
    """A proportional controller, clip(dose + gain * (G - 80)): a baseline that learns nothing.

    A gain of zero is a constant dose. The standard deviation of a dose is zero.
    """

    dose: float = 3.0
    gain: float = 0.0

    def __call__(self, observation) -> DiagonalGaussian:
        dose = self.dose + self.gain * (observation[..., :1] - TARGET)
        dose = jnp.clip(dose, 0.0, MOST_INSULIN)
        return DiagonalGaussian(dose, jnp.full_like(dose, -jnp.inf))


class Doser(eqx.Module):
    """A controller, or (`random` 1) any dose, as likely as any other."""

    controller: GlucoseController
    random: float = 0.0

    def __call__(self, observation) -> DiagonalGaussian:
        dose = self.controller(observation).mode()
        spread = jnp.full_like(dose, jnp.log(self.random))
        return DiagonalGaussian(dose * (1 - self.random), spread)

    def noise(self, key, shape):
        return 10.0 * jax.random.uniform(key, (*shape, 1))


@functools.cache
def mean_returns(env) -> dict[str, float]:
    """Means over many days, of all dosers at once."""
    dosers = {
        "nothing": Doser(GlucoseController(0.0)),
        "most": Doser(GlucoseController(10.0)),
        "3.0": Doser(GlucoseController(3.0)),
        "gain .1": Doser(GlucoseController(3.0, 0.1)),
        "gain .3": Doser(GlucoseController(3.0, 0.3)),
        "random": Doser(GlucoseController(), 1.0),
    }
    stacked = jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *dosers.values())

    @jax.jit
    @jax.vmap
    def play(doser):
        return evaluate(env, env.default_params, doser, jax.random.key(1), DAYS, False)

    returns = np.asarray(play(stacked))
    assert np.isfinite(returns).all()
    return dict(zip(dosers, returns.mean(axis=1).tolist(), strict=True))


@pytest.fixture(scope="module")
def days() -> np.ndarray:
    """The meals of many people in Dosing-1, [people, 145], and what they were drawn from."""
    return np.asarray(DAY_OF_MEALS(uniforms_of_meals()))


DAY_OF_MEALS = jax.jit(jax.vmap(_day_of_meals))


def uniforms_of_meals(people: int = 2000) -> np.ndarray:
    return np.random.default_rng(3).random((people, 19)).astype(np.float32)


def slopes(_, y, u, d):
    """The simulator's equations a second time, in its own order and names, per hour."""
    g, x, i, q1, q2, gut = y
    gb, p1, p2, si, ke, kabs, kemp, f, vg = 291, 0.0317, 0.0123, 0.029, 0.09, 0.012, 0.18, 0.8, 12
    return 60 * np.array(
        [
            -p1 * (g - gb) - si * x * g + f * kabs / vg * gut + f / vg * d,
            p2 * (i - x),
            -ke * i + u,
            u - kemp * q1,
            -kemp * (q2 - q1),
            kemp * q2 - kabs * gut,
        ]
    )


def reference(body, dose, meal):
    solved = solve_ivp(
        slopes, (0, 1 / 6), body, "DOP853", args=(dose, meal), rtol=1e-11, atol=1e-10
    )
    return solved.y[:, -1]


def corners() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bodies, doses and meals: ordinary ones, and the most insulin there can be (111 uU/mL)."""
    rng = np.random.default_rng(0)
    low, high = [40, 0, 0, 0, 0, 0, 800], [350, 111, 111, 56, 56, 800, 2800]
    rows = rng.uniform(low, high, (30, 7))
    rows[0] = [80, 111.1, 111.1, 55.6, 55.6, 800, 2800]
    rows[1] = [291, 0, 0, 0, 0, 0, 800]
    doses = np.concatenate([[10.0, 0.0], rng.uniform(0, 10, 28)])
    return rows[:, :6].astype(np.float32), doses.astype(np.float32), rows[:, 6].astype(np.float32)


def advance(env, bodies, doses, meals):
    """One step from each of these bodies."""
    state = env.reset(jnp.full(env.reset_size, 0.5), env.default_params)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(bodies), *x.shape)), state)
    whole_days = jnp.broadcast_to(jnp.asarray(meals)[:, None], states.meals.shape)
    states = states._replace(body=jnp.asarray(bodies), meals=whole_days)
    return jax.jit(jax.vmap(env.step, (0, 0, None)))(
        states, jnp.asarray(doses)[:, None], env.default_params
    )


def test_each_step_is_that_of_an_adaptive_integrator():
    bodies, doses, meals = corners()
    after, rewards, ended = advance(PLAIN, bodies, doses, meals)
    assert not ended.any()
    for body, dose, meal, found, reward in zip(
        bodies, doses, meals, after.body, rewards, strict=True
    ):
        expected = reference(body.astype(np.float64), float(dose), float(meal))
        # Float32 itself rounds values of 300 by up to 2e-5.
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-4)
        glucose = expected[0]
        wanted = 1 - np.tanh(0.1 * abs(glucose - 80) / 0.7) ** 2
        if not 65 <= glucose <= 105:
            wanted = -1.0
        assert float(reward) == pytest.approx(wanted, abs=1e-4)


def test_half_as_many_substeps_are_caught_by_these_tests():
    """They diverge where there is most insulin."""
    bodies, doses, meals = corners()
    wrong, _, _ = advance(replace(PLAIN, substeps=10), bodies, doses, meals)
    expected = reference(bodies[0].astype(np.float64), float(doses[0]), float(meals[0]))
    assert abs(float(wrong.body[0, 0]) - expected[0]) > 100


def test_smoothing_is_savitzky_and_golays():
    values = np.random.default_rng(1).uniform(0, 3000, 145)
    found = jax.jit(_smoothed)(jnp.asarray(values, jnp.float32))
    np.testing.assert_allclose(found, savgol_filter(values, 11, 3), rtol=1e-5, atol=1e-2)


def meals_by_scipy(uniforms: np.ndarray) -> np.ndarray:
    """The simulator's recipe in float64, with its distributions' inverses for its draws."""
    base = 800 + 400 * uniforms[0]
    day = np.full(145, np.floor(base))
    hours = [(5, 9, 7), (9, 10, 9.5), (11, 13, 12), (14, 16, 15), (16.5, 29.5, 18), (20, 22, 21)]
    likely = [0.95, 0.2] * 3
    amounts = [(2500, 100), (1250, 50), (2800, 100), (1250, 50), (2800, 100), (1250, 50)]
    for i, (low, high, usual) in enumerate(hours):
        at_all, when, how_much = uniforms[1 + 3 * i : 4 + 3 * i]
        centre = usual * 6 + 1
        law = stats.truncnorm((low * 6 + 1 - centre) / 10, (high * 6 + 1 - centre) / 10, centre, 10)
        if at_all < likely[i]:
            day[min(int(np.round(law.ppf(when))), 143)] = max(
                np.round(stats.norm(*amounts[i]).ppf(how_much)), 0
            )
    return np.maximum(savgol_filter(day, 11, 3), base)


def test_random_meals_follow_the_simulators_recipe(days):
    uniforms = uniforms_of_meals()
    assert days.shape == (len(uniforms), 145)
    agree = [
        np.abs(day - meals_by_scipy(row.astype(np.float64))).max() < 2
        for day, row in zip(days[:200], uniforms[:200], strict=True)
    ]
    # In float32 a time or an amount that is all but half-way may round the other way.
    assert np.mean(agree) >= 0.97
    assert np.isfinite(days).all()
    assert (days >= 800).all()


def test_normal_quantiles():
    uniforms = np.array([0, 2.0**-24, 0.001, 0.3, 0.5, 0.9, 1 - 2.0**-24], np.float32)
    found = np.asarray(_normal(jnp.asarray(uniforms)))
    expected = stats.norm.ppf(np.clip(uniforms.astype(np.float64), 2.0**-25, None))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_first_states_have_the_simulators_distributions():
    people = 2000
    uniforms = jax.random.uniform(jax.random.key(0), (people, VARIED.reset_size))
    # Without a step on the way there.
    still = replace(VARIED, minutes=0.0)
    state = jax.jit(jax.vmap(still.reset, (0, None)))(uniforms, VARIED.default_params)
    laws = [stats.uniform(65, 40), *(stats.norm(mean, 5) for mean in (33.33, 33.33, 25, 25, 250))]
    for column, law in zip(np.asarray(state.body).T, laws, strict=True):
        assert stats.kstest(column, law.cdf).pvalue > 1e-6
    assert (state.point == 1).all()
    np.testing.assert_array_equal(state.glucose_before, state.body[:, 0])


def test_observations_are_the_simulators_nine():
    uniforms = jnp.full(PLAIN.reset_size, 0.25)
    state = PLAIN.reset(uniforms, PLAIN.default_params)
    glucose, meals = [float(state.glucose_before), float(state.body[0])], [1000.0, 1000.0]
    for k in range(2, 60):
        state, _, _ = STEP(state, jnp.array([3.0]), PLAIN.default_params)
        glucose.append(float(state.body[0]))
        seen = np.asarray(PLAIN.observe(state, PLAIN.default_params))
        np.testing.assert_array_equal(seen[:6], state.body)
        assert seen[7] == glucose[-2]
        meals.append(float(seen[6]))
        assert seen[8] == meals[-2]
        assert int(state.point) == k
    assert meals[42:50] == [1000.0, 1259.0, 1451.0, 1632.0, 1632.0, 1468.0, 1314.0, 1240.0]
    assert len(state.meals) == 145
    assert (float(state.meals[143]), float(state.meals[144])) == (996.0, 986.0)


STEP = jax.jit(PLAIN.step)


def test_known_returns():
    """Dosing-0: 512 days in float64 with 100 substeps, apart from this code. Dosing-1: 5 to 8 days
    of a reimplementation with the simulator's own scipy, hence the tolerance. A day of one extreme
    dose is spent out of bounds, and finite."""
    plain, varied = mean_returns(PLAIN), mean_returns(VARIED)
    assert plain["3.0"] == pytest.approx(85.1, abs=2.0)
    assert plain["gain .1"] == pytest.approx(104.5, abs=0.5)
    assert plain["random"] == pytest.approx(-121.0, abs=4.0)
    assert varied["3.0"] == pytest.approx(41.0, abs=60.0)
    assert varied["gain .1"] == pytest.approx(106.8, abs=15.0)
    assert varied["gain .3"] == pytest.approx(117.3, abs=7.0)
    assert varied["random"] == pytest.approx(-125.9, abs=12.0)
    for returns in (plain, varied):
        assert returns["nothing"] == pytest.approx(-143, abs=15)
        assert returns["most"] == pytest.approx(-143, abs=15)


@pytest.mark.parametrize("env", [PLAIN, VARIED])
def test_a_day_captures_no_array(env):
    """So that the door accepts it; the check itself notices a captured one."""
    body = env.default_params
    _, state = require_pure("reset", lambda u: env.reset(u, body), jnp.zeros(env.reset_size))
    require_pure("step", lambda s, a: env.step(s, a, body), state, jnp.zeros(1))
    require_pure("observe", lambda s: env.observe(s, body), state)
    table = jnp.arange(145.0)
    with pytest.raises(ImpureFunction):
        require_pure("meals", lambda i: table[i], jnp.int32(3))
