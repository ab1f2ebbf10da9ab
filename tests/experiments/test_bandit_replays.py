"""Replays of the bandit on ratings: simulated noise, the shuffled arm, the declared data sets."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.axes import Axes
from rated_logs import people, settings

from sotto.algorithms.bandit.person import Rated
from sotto.experiments.recommenders import figures, replay
from sotto.experiments.recommenders.sources import RATINGS
from sotto.privacy.mechanisms import correlated


def test_reports_are_unbiased_and_no_wrong_norm_is() -> None:
    rng = np.random.default_rng(0)
    vector = np.array([0.3, -0.2, 0.1, 0.0, 0.05])
    reports = replay.randomised(0.5, 1.0, rng, np.tile(vector, (200_000, 1)))
    norm = replay.report_norm(0.5, 1.0, 5)
    np.testing.assert_allclose(np.linalg.norm(reports, axis=1), norm)
    error = norm / math.sqrt(5 * 200_000)
    assert np.abs(reports.mean(axis=0) - vector).max() < 4 * error
    assert np.abs(0.9 * reports.mean(axis=0) - vector).max() > 4 * error


def test_a_report_is_private_and_no_more_than_stated() -> None:
    """The half-spheres around opposite vectors of full norm have odds of e^epsilon."""
    rng, count = np.random.default_rng(1), 100_000
    there = np.tile([0.5, 0.0, 0.0], (count, 1))
    shares = [(replay.randomised(0.5, 1.5, rng, sign * there)[:, 0] > 0).mean() for sign in (1, -1)]
    assert math.log(shares[0] / shares[1]) == pytest.approx(1.5, abs=0.05)


def test_shuffling_amplifies_large_blocks_only() -> None:
    # Theorem 3.1 of Feldman, McMillan and Talwar (2021), computed by hand.
    by_hand = math.log(
        1
        + (math.e - 1)
        / (math.e + 1)
        * (8 * math.sqrt(math.e * math.log(4e6)) / 1000 + 8e-6 * math.e)
    )
    assert replay.shuffled_epsilon(1.0, 1e-6, 10**6) == pytest.approx(by_hand)
    assert replay.shuffled_epsilon(1.0, 1e-6, 100) == 1.0
    assert replay.local_epsilon(1.0, 1e-6, 100) == 1.0
    found = replay.local_epsilon(1.0, 1e-6, 10**6)
    assert replay.shuffled_epsilon(found, 1e-6, 10**6) <= 1 < found


@pytest.mark.parametrize("arm", ["private", "tree", "independent"])
def test_simulated_noise_in_sums_is_that_of_the_release(arm: replay.Arm) -> None:
    config = replay._of_arm(settings(blocks=5), arm)
    rows = replay._rows(config, 5)
    deviations = correlated.prefix_deviations(config.correlation, 5)
    np.testing.assert_allclose(np.linalg.norm(np.cumsum(rows, axis=0), axis=1), deviations)
    assert not np.allclose(np.linalg.norm(np.cumsum(1.2 * rows, axis=0), axis=1), deviations)


def test_every_sum_of_blocks_has_the_least_noise_of_one_sum() -> None:
    """Its standard deviation is that of one Gaussian release about all people so far."""
    config = settings(blocks=5, clip_norm=0.1)
    nobody, drawn = np.zeros((1, 2 * config.features)), []
    for seed in range(400):
        variances, noise = replay._noise(config, "least noise", np.random.default_rng(seed))
        drawn.append(np.cumsum([noise(block, nobody) for block in range(5)], axis=0))
    one = config.noise_multiplier * math.sqrt(17 / 16) * config.clip_norm
    np.testing.assert_allclose(np.sqrt(variances), one)
    np.testing.assert_allclose(np.std(drawn, axis=(0, 2)), one, rtol=0.05)
    for arm in ("private", "tree", "independent"):
        own, _ = replay._noise(replay._of_arm(config, arm), arm, np.random.default_rng(0))
        assert np.all(own >= variances * (1 - 1e-9))


def test_own_ratings_help_and_offers_are_the_same_for_all_arms() -> None:
    config = settings(people=200, blocks=2, horizon=100)
    everybody = jax.tree.map(jnp.asarray, Rated(*people(200, items=100)))
    found = {arm: replay.replay(config, everybody, arm, 3) for arm in replay.SILENT}
    assert len({one.random for one in found.values()}) == 1
    assert found["own only"].value > found["own only"].random
    assert found["without privacy"].value > found["own only"].value


def test_the_data_sets_are_declared_with_source_terms_and_assumptions() -> None:
    for one in RATINGS:
        assert one.declaration.source
        assert one.declaration.licence
        assert one.declaration.already_public
        assert one.assumes


def test_no_bar_of_the_figure_is_under_the_name_of_a_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    title = figures.headline

    def measured(axes: Axes, text: str) -> None:
        title(axes, text)
        axes.figure.canvas.draw()
        (last, _) = axes.transData.transform((len(figures.EPSILONS) - 1, 0))
        names = [one for one in axes.texts if one.get_text() in replay.SILENT]
        seen.extend(one.get_window_extent().x0 - last for one in names)

    monkeypatch.setattr(figures, "headline", measured)
    arms = [
        {"arm": arm, "epsilon": epsilon, "gain": 0.1, "gain_error": 0.01}
        for names, epsilons in ((replay.SILENT, [None]), (replay.NOISY, figures.EPSILONS))
        for arm in names
        for epsilon in epsilons
    ]
    figures.draw(tmp_path / "x.png", [{"arms": arms, "unit": "stars", "title": "Films"}])
    assert len(seen) == len(replay.SILENT)
    assert min(seen) > 5  # pixels between the middle of the last bars and a name
