"""DP-SGD on logged transitions: its calibration, its certificate and its learning."""

import math
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from logged_rewards import logged

from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.experiments.wang2019 import dp_sgd
from sotto.experiments.wang2019.dp_sgd import DPSGDConfig
from sotto.privacy.accounting.composition import SampledGaussian, compose
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import HorizonExceeded
from sotto.privacy.ledger.ledger import Ledger
from sotto.trees import at

LINE = FunctionalQConfig(target_epsilon=0.9, delta=1e-4, samples=200, num_envs=4, hidden=(8,))
CONFIG = DPSGDConfig(LINE, steps=12, batch=20, target_period=4)


def test_zeroing_out_twice_is_replacing():
    budget = dp_sgd.zero_out_budget(0.9, 1e-4)
    assert 2 * budget.epsilon == pytest.approx(0.9)
    assert (1 + math.exp(budget.epsilon)) * budget.delta == pytest.approx(1e-4)


def test_noise_is_the_least_that_the_budget_allows():
    budget = dp_sgd.zero_out_budget(0.9, 1e-4)

    def epsilon(z):
        rate = CONFIG.sampling_rate
        event = SampledGaussian(noise_multiplier=z, sampling_rate=rate, count=CONFIG.steps)
        return compose([event]).epsilon(budget.delta)

    z = dp_sgd.noise_multiplier(CONFIG, 50)
    assert epsilon(z) <= budget.epsilon < epsilon(0.98 * z)


def test_gradients_are_released_and_certified(tmp_path):
    seen, _ = logged(LINE)
    budget = dp_sgd.zero_out_budget(0.9, 1e-4)
    ledgers = [
        Ledger.create(tmp_path / f"{run}.sqlite", unit=dp_sgd.UNIT, budget=budget)
        for run in range(2)
    ]
    keys = jax.vmap(jax.random.key)(np.arange(2))
    states = jax.vmap(partial(dp_sgd.initial_state, CONFIG))(keys)
    before = jax.tree.map(np.asarray, states.values)
    stream = dp_sgd.open_gradients(CONFIG, ledgers, states, seen, chunk=5)
    units = dp_sgd.unit_data(seen)
    while stream.released < CONFIG.steps:
        states, _, diagnostics = stream.run(states, keys, units=units)
        assert diagnostics is None  # who was drawn is secret
    assert states.steps.tolist() == [12, 12]
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, states.values)
    assert min(jax.tree.leaves(moved)) > 0
    values = at(states.values, 0)
    assert values(np.array([0.3], np.float32)).shape == (2,)
    for ledger in ledgers:
        certificate = derive(ledger)
        assert certificate.status == "proved"
        assert 0.9 * budget.epsilon < certificate.epsilon <= budget.epsilon
        assert certificate.unit.adjacency == "zero-out"
    with pytest.raises(HorizonExceeded):
        stream.run(states, keys, units=units)


def test_a_reward_function_is_not_protected_by_sampling():
    with pytest.raises(ValueError, match="sampling does not amplify"):
        DPSGDConfig(replace(LINE, unit="reward-function", reward_radius=1.0))


def test_settings_that_cannot_run_are_refused():
    with pytest.raises(ValueError, match="target-epsilon"):
        DPSGDConfig(replace(LINE, target_epsilon=None, sigma=1.0))
    with pytest.raises(ValueError, match="batch must be below samples = 200"):
        replace(CONFIG, batch=200)
