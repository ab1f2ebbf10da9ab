"""The linear policy that is learnt from one private release."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluated import declared, trial

from sotto.algorithms.evaluation import learning
from sotto.algorithms.evaluation.persons import PersonLog
from sotto.algorithms.evaluation.release import UNIT, Spending
from sotto.keys import new_key
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget


def parts_of(declaration, people):
    one = learning.contribution_for(declaration)
    scaling = learning.Scaling.of(declaration)
    return jax.vmap(lambda person: one(scaling, person, new_key(0))[0])(people)


def test_no_person_is_longer_than_one_and_some_are_as_long():
    records = trial(500)
    parts = parts_of(records.declaration, PersonLog.of(records))
    for part in parts.values():
        lengths = np.linalg.norm(np.asarray(part).reshape(500, -1), axis=1)
        assert lengths.max() <= 1 + 1e-6
    corner = PersonLog.of(records)._replace(observations=jnp.ones((500, 1, 1)))
    tables = np.asarray(parts_of(records.declaration, corner)["tables"]).reshape(500, -1)
    np.testing.assert_allclose(np.linalg.norm(tables, axis=1), 1, rtol=1e-6)


def test_without_noise_it_is_least_squares():
    records = trial(2000)
    parts = parts_of(records.declaration, PersonLog.of(records))
    sums = [np.asarray(parts[name], np.float64).sum(axis=0) for name in ("tables", "targets")]
    found = learning.solved(records.declaration, *sums, 1e-9)
    for action in (0, 1):
        chosen = records.actions[:, 0] == action
        x, y = records.observations[chosen, 0, 0], records.rewards[chosen, 0] - 1
        slope, constant = np.polyfit(np.float64(x), np.float64(y), 1)
        assert float(found.weights[action, 0]) == pytest.approx(slope, abs=1e-3)
        assert float(found.bias[action]) == pytest.approx(constant, abs=1e-3)


def test_it_learns_the_sign_of_x(tmp_path):
    records = trial(3000)
    budget = Budget(epsilon=1, delta=1e-5)
    ledger = Ledger.create(tmp_path / "ledger.sqlite", unit=UNIT, budget=budget)
    found = learning.learn(records.declaration, PersonLog.of(records), ledger, Spending(1, 1e-5))
    x = np.linspace(-1, 1, 41)[:, None]
    chosen = np.asarray(found(jnp.asarray(x, jnp.float32)))[:, 1]
    assert np.mean(chosen == (x[:, 0] > 0)) > 0.85


def test_both_parts_cost_the_target_together():
    noise = learning.multiplier(declared(100, 1), Spending(1.0, 1e-5))
    assert noise / np.sqrt(2) == pytest.approx(3.7304, rel=1e-3)


def test_several_steps_are_refused(tmp_path):
    budget = Budget(epsilon=1, delta=1e-5)
    ledger = Ledger.create(tmp_path / "ledger.sqlite", unit=UNIT, budget=budget)
    with pytest.raises(ValueError, match="one step"):
        learning.learn(declared(400, 2), PersonLog.of(trial(400)), ledger, Spending(1.0, 1e-5))
    assert not ledger.streams
