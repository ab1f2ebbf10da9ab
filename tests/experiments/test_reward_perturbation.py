"""Weighted sums of rewards and input perturbation: their releases and their costs."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from logged_rewards import logged

from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.training import create_ledger
from sotto.experiments.wang2019 import reward_perturbation
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import HorizonExceeded

LINE = FunctionalQConfig(target_epsilon=0.9, delta=1e-4, samples=400, num_envs=4, rounds=2)
WHOLE = replace(LINE, rounds=1, unit="reward-function", reward_radius=0.01)


def ledgers(config, folder, runs=2):
    return [create_ledger(config, folder / f"{run}.sqlite") for run in range(runs)]


def test_each_reward_gets_noise_of_its_own(tmp_path):
    seen, rewards = logged(LINE)
    accounts = ledgers(LINE, tmp_path)
    release = reward_perturbation.input_perturbation(LINE, LINE.rounds)
    stream = reward_perturbation.open_sums(release, accounts, seen, LINE.round_samples)
    noise = [
        reward_perturbation.release_inputs(LINE, stream, seen, first) - rewards
        for first in (0, LINE.round_samples)
    ]
    # z(0.9, 1e-4) is 3.497 for a reward that moves by the range, 0.5.
    spread = np.std(noise)
    assert spread == pytest.approx(3.497 * 0.5, rel=0.12)
    assert abs(np.mean(noise)) < 5 * spread / 800**0.5
    assert np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1] == pytest.approx(0, abs=0.2)
    for account in accounts:
        certificate = derive(account)
        assert certificate.status == "proved"
        assert certificate.persons == LINE.samples
        assert 0.89 < certificate.epsilon <= 0.9
    with pytest.raises(HorizonExceeded):
        reward_perturbation.release_inputs(LINE, stream, seen, LINE.samples)


def test_sums_are_weighted_and_weights_bounded(tmp_path):
    """With little noise the sums are exact, and a row of norm 10 counts as one of norm 1."""
    config = replace(LINE, target_epsilon=None, sigma=0.1)
    seen, rewards = logged(config, 1)
    release = reward_perturbation.weighted_sums(config, "sums", 2, config.rounds)
    stream = reward_perturbation.open_sums(release, ledgers(config, tmp_path, 1), seen, 2)
    weights = np.random.default_rng(0).uniform(0, 0.7, (1, config.round_samples, 2))
    weights *= np.sign(rewards - 0.25)[..., None]  # so that sums are large
    sums = reward_perturbation.release_sums(stream, seen, jnp.asarray(weights), 0)
    np.testing.assert_allclose(sums[0], (rewards[0] - 0.25) @ weights[0], atol=0.6)
    assert sums.min() > 5

    large = np.zeros_like(weights)
    place = int(np.argmax(np.abs(rewards[0] - 0.25)))
    large[0, place] = [10.0, 0.0]
    sums = reward_perturbation.release_sums(stream, seen, jnp.asarray(large), config.round_samples)
    assert abs(sums[0, 0]) <= 0.25 + 0.6


def test_the_same_people_cannot_take_part_twice(tmp_path):
    seen, _ = logged(LINE)
    release = reward_perturbation.input_perturbation(LINE, LINE.rounds)
    stream = reward_perturbation.open_sums(
        release, ledgers(LINE, tmp_path), seen, LINE.round_samples
    )
    reward_perturbation.release_inputs(LINE, stream, seen, 0)
    with pytest.raises(ValueError, match="took part before"):
        reward_perturbation.release_inputs(LINE, stream, seen, 0)


def test_a_reward_function_moves_all_rewards_at_once(tmp_path):
    release = reward_perturbation.whole_function(WHOLE)
    assert release.sensitivity.value == pytest.approx(0.01 * 20)
    account = create_ledger(WHOLE, tmp_path / "ledger.sqlite")
    noise = release.open(account).release(np.zeros((WHOLE.samples, 1))).values
    assert np.std(noise) == pytest.approx(3.497 * 0.2, rel=0.15)
    certificate = derive(account)
    assert certificate.status == "proved"
    assert certificate.epsilon <= 0.9


def test_units_are_not_mixed_up():
    with pytest.raises(ValueError, match="unit transition"):
        reward_perturbation.input_perturbation(WHOLE, 1)
    with pytest.raises(ValueError, match="unit reward-function"):
        reward_perturbation.whole_function(LINE)
