"""The best return of Dosing: known doses, any control, and controllers, in their order."""

import json
import sys

import dosing_optimum
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from insulin.bound import relaxation_of, upper_bound
from insulin.control import best_doses, first_states, replay
from insulin.model import GB, P1, SI, least_glucose, require_enclosed, reward, simulate, tube
from insulin.policies import ModelController, play, returns, trained
from insulin.slabs import boxes_of, kept

DAYS, STEPS = 6, 143
PLAIN, VARIED = dosing_optimum.ENVIRONMENTS.values()


def days(env):
    """States, bodies and meals of a few days, and random doses for each."""
    states = first_states(env, jax.random.key(3), DAYS)
    doses = np.random.default_rng(4).uniform(0.0, 10.0, (DAYS, STEPS)).astype(np.float32)
    return states, np.asarray(states.body, float), np.asarray(states.meals[:, 2:], float), doses


@pytest.mark.parametrize("env", [PLAIN, VARIED], ids=lambda env: env.id)
def test_the_closed_form_is_the_simulator(env):
    states, bodies, meals, doses = days(env)
    glucose, rewards = replay(env, states, jnp.asarray(doses))
    exact = simulate(bodies, doses.astype(float), meals)[..., 0]
    assert np.abs(exact - glucose).max() < 2e-4
    np.testing.assert_allclose(reward(exact), rewards, atol=1e-4)


@pytest.mark.parametrize("env", [PLAIN, VARIED], ids=lambda env: env.id)
def test_more_insulin_is_less_glucose_in_the_simulator(env):
    states, _, _, doses = days(env)
    more = np.minimum(doses + np.random.default_rng(5).uniform(0, 3, doses.shape), 10.0)
    usual, less = (replay(env, states, jnp.asarray(x, jnp.float32))[0] for x in (doses, more))
    assert np.all(less <= usual + 1e-3)
    assert least_glucose() < 1.0 < 2.0 < P1 * GB / (P1 + SI * 112.0)


def test_the_tube_encloses_random_doses_and_half_of_it_does_not():
    _, bodies, meals, doses = days(VARIED)
    doses[1] = 10.0
    for body, eaten, day in zip(bodies, meals, doses.astype(float), strict=True):
        require_enclosed(*tube(body, eaten), simulate(body, day, eaten))
    with pytest.raises(ValueError, match="outside"):
        require_enclosed(*tube(bodies[1], meals[1], 5.0), simulate(bodies[1], day * 0 + 10, eaten))


def test_the_rewards_of_random_doses_are_below_those_of_their_slabs():
    """Around doses that have nothing to do with them."""
    _, bodies, meals, doses = days(VARIED)
    body, eaten = bodies[0], meals[0, :60]
    relaxation = relaxation_of(body, eaten, np.full(60, 3.0), 10.0)
    tried = np.concatenate([doses[:, :60], np.random.default_rng(6).uniform(2, 4, (100, 60))])
    tried = tried.astype(float)
    several = len(tried)
    found = reward(
        simulate(np.tile(body, (several, 1)), tried, np.tile(eaten, (several, 1)))[..., 0]
    )
    assert found.max() > 0.99
    w = tried @ relaxation.effects.T
    for k, points in enumerate(relaxation.points):
        low, high = points[:, 0].reshape(2, -1)
        slab = np.searchsorted(high, w[:, k])
        assert np.all(w[:, k] >= low[slab] - 1e-9)
        # A penalty of the step before may add to the reward, and is paid for there.
        before = np.ones(several) if k == 0 else found[:, k - 1]
        assert np.all(found[before > -1, k] <= points[slab[before > -1], 1])


def test_glucose_is_between_the_two_sums():
    _, bodies, meals, doses = days(VARIED)
    for body, eaten, day in zip(bodies, meals, doses.astype(float), strict=True):
        response, boxes = boxes_of(body, eaten, np.full(STEPS, 3.0), 10.0)
        glucose = np.concatenate([[body[0]], simulate(body, day, eaten)[:, 0]])
        for k, box in enumerate(boxes):
            v = box.nominal + response[k] @ (day - 3.0)
            assert np.all(box.low - 1e-9 <= v)
            assert np.all(v <= box.high + 1e-9)
            rest = glucose[k] * kept(v)
            assert box.lower(v)[0] <= np.log(glucose[k + 1]) + 1e-9
            assert glucose[k + 1] <= box.upper(v) + rest + 1e-9


def test_controllers_are_below_best_doses_and_these_are_below_the_bound():
    """On a morning, with the first meal."""
    states, bodies, meals, _ = days(PLAIN)
    states, body, eaten = jax.tree.map(lambda x: x[:1], states), bodies[0], meals[0, :55]
    doses = best_doses(states, updates=500)
    found = replay(PLAIN, states, doses)[1][0, :55].sum()
    fed = jax.tree.map(lambda x: x[0], states)
    by_feedback = play(PLAIN, ModelController(), fed, simulator=True)[1][:55].sum()
    known = np.asarray(doses[0, :55], float)
    bound = upper_bound(body, eaten, known)
    assert 40 < by_feedback < found <= bound <= 55
    assert bound < found + 0.2
    # A bound of other controls, with half of the largest dose, does not hold for these.
    assert upper_bound(body, eaten, np.minimum(known, 5.0), most=5.0) < found


def test_training_improves_a_network():
    states = days(VARIED)[0]
    before, after = (
        returns(
            VARIED, trained(VARIED, jax.random.key(0), False, n, width=8, days=2), states
        ).mean()
        for n in (1, 60)
    )
    assert after > before + 5


def test_the_command_prints_and_writes_its_table(tmp_path, monkeypatch, capsys):
    path = tmp_path / "found.json"
    words = ["--env-id", "Dosing-1", "--days", "2", "--bounded", "1", "--no-training", "--json"]
    monkeypatch.setattr(sys, "argv", ["dosing_optimum.py", *words, str(path)])
    monkeypatch.setattr(dosing_optimum, "best_doses", lambda states: best_doses(states, 200))
    monkeypatch.setattr(dosing_optimum, "upper_bound", lambda body, meals, doses: 143.0)
    dosing_optimum.main()
    assert "bound of any control" in capsys.readouterr().out
    rows = json.loads(path.read_text())["Dosing-1"]
    assert rows["feedback by the model"][0] < rows["known day, best doses"][0]
    assert rows["gap to the bound"][0] > 0
