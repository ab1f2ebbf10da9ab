"""Draws of a stream: noise for several releases at once, and people who are drawn in secret."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import small
from scipy import stats

from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms.correlated import NoiseSequence
from sotto.privacy.mechanisms.gaussian import Grid
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.release import draws
from sotto.privacy.release.declaration import noise_scales
from sotto.privacy.release.draws import Draws, batches
from sotto.privacy.statements import Correlation, Part, Poisson

RUNS, RELEASES = 3, 7
DIMENSIONS = {"policy": 40, "critic": 11}
RATIOS = {"policy": 2.0**20, "critic": 2.0**12}


def drawn(participation: Poisson | None = None, generators: Any = None) -> draws.Drawn:
    """Returns the draws of a stream in one chunk."""
    return Draws(
        generators or GeneratorSource(0),
        NoiseSequence(Correlation(), RELEASES),
        DIMENSIONS,
        RATIOS,
        dict.fromkeys(RATIOS, Grid(1.0)),
        runs=RUNS,
        horizon=RELEASES,
        chunk=RELEASES,
        participation=participation,
        batches=None if participation is None else batches(participation, None, 1),
        pool=None,
        unit=(),
    ).take(RELEASES)


@pytest.mark.parametrize("together", [1, 2 * RUNS * 40, 2**20])
def test_noise_is_fresh_in_every_release_however_many_are_drawn_at_once(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(draws, "_TOGETHER", together)
    found = drawn().noise
    for name, noise in found.items():
        assert noise.shape == (RUNS, RELEASES, DIMENSIONS[name])
        assert stats.kstest(noise.ravel() / RATIOS[name], "norm").pvalue > 1e-3
    assert np.unique(found["policy"]).size == found["policy"].size


@pytest.mark.unchecked_types
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
def test_everybody_whose_coin_falls_is_drawn_once_in_that_release_alone(rate: float) -> None:
    population = 23
    coins = np.random.default_rng(0).random((RUNS, RELEASES, population))

    class Coins:
        """The coins of this test; noise is noise."""

        def next(self) -> Any:
            generator = GeneratorSource(0).next()

            class One:
                bit_generator = generator.bit_generator

                def random(self, shape: tuple[int, ...]) -> np.ndarray:
                    return coins.reshape(shape)

            return One()

    stated = Poisson(sampling_rate=max(rate, 1e-12), population=population)
    persons = drawn(stated, Coins()).persons
    assert persons is not None
    for run, release in np.ndindex(RUNS, RELEASES):
        row = persons[run, release]
        expected = np.flatnonzero(coins[run, release] < rate)
        np.testing.assert_array_equal(row[: expected.size], expected)
        assert (row[expected.size :] == -1).all()


@pytest.mark.parametrize(("population", "rate"), [(10, 0.5), (3000, 0.1), (100_000, 1e-4)])
@pytest.mark.parametrize("miss", [0.3, 1e-3, 2.0**-100])
def test_more_are_drawn_than_said_with_at_most_the_said_probability(
    population: int, rate: float, miss: float
) -> None:
    most = draws.most_drawn(Poisson(sampling_rate=rate, population=population), miss)
    assert rate * population < most <= population
    assert stats.binom.sf(most, population, rate) <= miss


@pytest.mark.parametrize(("population", "rate"), [(1437, 0.178), (3000, 0.08), (200_000, 0.001)])
def test_the_first_batch_holds_three_draws_in_four_and_the_likely_ones_nearly_all(
    population: int, rate: float
) -> None:
    sizes = batches(Poisson(sampling_rate=rate, population=population), None, 1)
    size = stats.binom(population, rate)
    assert 0.72 < size.cdf(sizes.first) < 0.82
    assert size.sf(sizes.likely) < 1e-8
    assert sizes.rest < sizes.first / 5


def test_places_that_pad_a_batch_are_nobody(make_ledgers: Callable[..., list[Ledger]]) -> None:
    """A simulated person who counts again in the padding moves a sum twice as far."""
    made = small.release(
        local=lambda state, unit, key: ({"u": jnp.ones(2)}, ()),
        clip_norm=2.0,
        slots=5,
        microbatch=2,
    )
    stream = made.open(make_ledgers(), jnp.zeros(1), noise_seed=0)
    _, log, _ = stream.run(jnp.zeros(1), small.keys(), small.newcomers(releases=1, slots=5))
    np.testing.assert_allclose(log["u"], 5.0, atol=1e-3)


@pytest.mark.parametrize("kind", ["independent", "prefix-sum", "binary-tree"])
def test_each_part_has_noise_of_its_own_scale(
    make_ledgers: Callable[..., list[Ledger]], kind: str
) -> None:
    """The parts' noise is drawn in steps of their own grids, which differ by powers of two."""
    clips, size = {"u": 1.0, "v": 1.5}, 600
    made = small.release(
        local=lambda state, unit, key: ({name: jnp.zeros(size) for name in clips}, ()),
        parts={name: Part(clip_norm=clip, noise_multiplier=2.0) for name, clip in clips.items()},
        correlation=Correlation(kind=kind),
    )
    stream = made.open(make_ledgers(), jnp.zeros(1), noise_seed=0)
    _, log, _ = stream.run(jnp.zeros(1), small.keys(), small.newcomers())
    for name, scale in noise_scales(made).items():  # the first release has no earlier noise in it
        assert np.asarray(log[name])[0, 0].std() == pytest.approx(scale, rel=0.12)
