"""Gaussian noise on a policy: its scale, its cost, and that less noise is detected."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from sotto.privacy.accounting.composition import Gaussian, compose
from sotto.privacy.accounting.events import NoGuarantee
from sotto.privacy.audits.audit import audit_mechanism
from sotto.privacy.mechanisms.gaussian_policy import GaussianPolicy
from sotto.privacy.mechanisms.noise import sampler_delta

ROW = np.array([0.5, 0.3, 0.2])


def test_many_answers_are_one_gaussian_release() -> None:
    (event,) = GaussianPolicy(actions=3, noise_stddev=0.2).events(0.01, 400)
    # The cost includes rounding the rows to the grid of the noise.
    moved = 0.01 + 2.0**-40 * math.sqrt(3)
    assert event == Gaussian(noise_multiplier=0.2 / moved / 20)


def test_noise_so_small_that_the_end_of_its_range_shows_guarantees_nothing() -> None:
    mechanism = GaussianPolicy(actions=3, noise_stddev=0.1)
    assert isinstance(mechanism.events(0.49, 7)[0], Gaussian)
    assert isinstance(mechanism.events(0.51, 7)[0], NoGuarantee)
    # At the least multiplier none of 10^6 answers of 10 entries should leave the range.
    assert 1e7 * sampler_delta(0.2, 1) < 1e-25


def test_the_distance_is_capped_at_the_diameter() -> None:
    mechanism = GaussianPolicy(actions=3, noise_stddev=0.2, floor=0.1)
    assert mechanism.events(9.0, 1) == mechanism.events(math.sqrt(2) * 0.7, 1)


def test_noise_has_the_declared_scale_and_answers_are_projected() -> None:
    far_inside = GaussianPolicy(actions=3, noise_stddev=0.01)
    answers = far_inside.answer(np.tile(ROW, (50_000, 1)), np.random.default_rng(0))
    np.testing.assert_allclose(answers.mean(axis=0), ROW, atol=3e-4)
    # Noise along (1, 1, 1) is projected away, so 2/3 of the variance stays in each entry.
    np.testing.assert_allclose(answers.std(axis=0), 0.01 * math.sqrt(2 / 3), rtol=0.02)
    wild = GaussianPolicy(actions=3, noise_stddev=5.0)
    answers = wild.answer(np.tile(ROW, (1000, 1)), np.random.default_rng(0))
    assert (answers == 0).any()
    assert (answers.sum(axis=1) == 1).all()


@pytest.mark.parametrize(("factor", "found_out"), [(1.0, False), (0.6, True)])
def test_too_little_noise_is_caught_and_enough_is_not(factor, found_out) -> None:
    promised = GaussianPolicy(actions=3, noise_stddev=0.1)
    used = GaussianPolicy(actions=3, noise_stddev=0.1 * factor)
    d = np.array([0.08, -0.08, 0.0])

    def run(present, seed, samples):
        row = ROW + d / 2 if present else ROW - d / 2
        return used.answer(np.broadcast_to(row, (samples, 3)), np.random.default_rng(seed))

    certified = compose(promised.events(float(np.linalg.norm(d)), 1)).epsilon(0.05)
    result = audit_mechanism(run, 20_000, 5, 0.05, certified_epsilon=certified)
    assert result.refuted == found_out
    assert result.epsilon_lower > 0.7 * certified


def test_parameters_that_make_no_sense_are_refused() -> None:
    for wrong in ({"noise_stddev": 0.0}, {"floor": 0.5}, {"floor": -0.1}, {"actions": 1}):
        with pytest.raises(ValidationError):
            GaussianPolicy(**{"actions": 3, "noise_stddev": 0.1, **wrong})
