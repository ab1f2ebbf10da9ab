"""Loss distributions of one sampled release are those of dp_accounting, which takes longer."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld_lib

import sotto
from sotto.privacy.accounting.loss_distributions import sampled_gaussian


@pytest.mark.parametrize("noise_multiplier", [0.4, 1.0, 20.0])
@pytest.mark.parametrize("rate", [1e-3, 0.05, 0.3, 0.999, 1.0])
@pytest.mark.parametrize("edge_on_the_grid", [False, True])
def test_a_sampled_release_has_the_distribution_of_dp_accounting(
    noise_multiplier: float, rate: float, edge_on_the_grid: bool
) -> None:
    """Losses end at log(1 - rate), and no float tells whether that edge on a grid is one of them.

    A rounding of delta by 1e-16 moves a cell by a few times this, divided by the interval.
    """
    interval = 1e-3
    if edge_on_the_grid and rate < 1:
        interval = -math.log1p(-rate) / math.ceil(-math.log1p(-rate) / interval)
    found = sampled_gaussian(noise_multiplier, rate, interval)
    true = pld_lib.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, value_discretization_interval=interval
    )
    for order in ("_pmf_remove", "_pmf_add"):
        one, other = (getattr(x, order).to_dense_pmf() for x in (found, true))
        assert one._lower_loss == other._lower_loss
        np.testing.assert_allclose(one._probs, other._probs, rtol=1e-12, atol=2e-15 / interval)
        assert one._infinity_mass == pytest.approx(other._infinity_mass, rel=1e-12, abs=1e-16)


@pytest.mark.parametrize("noise_multiplier", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("missing", [1e-9, 1e-12, 1e-15])
def test_whom_almost_every_sample_holds_pays_as_in_every_one(
    noise_multiplier: float, missing: float
) -> None:
    """The ratio of the rate to its complement has only one digit of the smallest complement."""
    every = sotto.account(noise_multiplier=noise_multiplier, delta=1e-5)
    found = sotto.account(noise_multiplier=noise_multiplier, delta=1e-5, sampling_rate=1 - missing)
    assert every * (1 - 1e-3) < found < every * (1 + 1e-2)
