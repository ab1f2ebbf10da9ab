"""A replay's lower bound is never above the truth: not for sums over many people either."""

import jax.numpy as jnp
import numpy as np
import pytest
from commands import printed

import sotto
from sotto import modules
from sotto.cli import main
from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.events import SampledGaussian
from sotto.privacy.accounting.gaussian import gaussian_epsilon
from sotto.privacy.audits import leaks, own
from sotto.privacy.audits.replay import replay
from sotto.privacy.mechanisms import gaussian
from sotto.privacy.statements import Poisson

DELTA = 1e-7
NOISE = sotto.calibrate(target_epsilon=1.0, delta=DELTA)
EPSILON = gaussian_epsilon(NOISE, DELTA)


def count_of(people: int, noise: float, epsilon: float) -> sotto.Auditable:
    """Returns a count of people, divided by their number, with a claim."""
    made = sotto.Release(
        "count",
        lambda state, unit, key: ({"count": jnp.ones(1)}, ()),
        lambda state, released: (state + released["count"], ()),
        sotto.Unit(kind="trajectory", adjacency="zero-out"),
        {"count": sotto.Part(clip_norm=1.0, noise_multiplier=noise)},
        slots=people,
        divisor=float(people),
        horizon=1,
        population="simulated",
    )

    def enrol(numbers, present):
        return np.where(present, numbers, -1)[None], ()

    return sotto.Auditable.of_release(
        made, jnp.zeros(1), np.arange(people), enrol=enrol, epsilon=epsilon, delta=DELTA
    )


@pytest.mark.parametrize("people", [1_000, 30_000])
def test_a_true_claim_about_many_people_is_not_refuted(people):
    """A release of 30,000 people is off by more than the thousandth that was allowed."""
    for seed in range(3):
        found = replay(count_of(people, NOISE, EPSILON), seed, people=2)
        assert found.shift <= 1 / NOISE
        assert found.epsilon_lower <= EPSILON
        assert not found.refuted
        assert found.shift > (1 - 1e-5 - 3e-7 * people) / NOISE


def test_half_of_the_noise_is_refuted_among_a_hundred_thousand_people():
    found = replay(count_of(100_000, NOISE / 2, EPSILON), seed=0, people=1)
    assert found.refuted
    assert 1.9 * EPSILON < found.epsilon_lower <= gaussian_epsilon(NOISE / 2, DELTA)


@pytest.mark.parametrize("people", [3, 100, 20_000, 10**6, 2**27])
@pytest.mark.parametrize("divisor", [1.0, 7.0, 3e6])
def test_the_sum_behind_a_release_is_within_its_bound(people, divisor):
    """Sums from none to the largest, near to whole words, and with a noise of either sign."""
    rng, grid = np.random.default_rng(people), gaussian.grid_of(1.0, people, 30.0)
    most = int(people / grid.spacing)
    word = 2 ** (grid.bits * (grid.words - 1))
    sums = np.concatenate(
        [
            rng.integers(-most, most + 1, 4_000),
            rng.integers(-min(most, word), min(most, word) + 1, 4_000),
            np.sign(rng.normal(size=4_000)) * np.geomspace(1, most, 4_000),
        ]
    ).astype(np.int64)
    noise = rng.integers(-int(30 / grid.spacing), int(30 / grid.spacing) + 1, sums.size)
    # int64 words, because JAX has 32 bits; the first has the sign
    lower = [(sums >> grid.bits * at) & (2**grid.bits - 1) for at in range(grid.words - 2, -1, -1)]
    words = np.stack([sums >> grid.bits * (grid.words - 1), *lower]).astype(np.int32)
    released = np.asarray(
        gaussian.noisy(jnp.asarray(words), jnp.asarray(noise, jnp.int32), grid, divisor)
    )
    found, error = gaussian.unrounded(released, grid, divisor)
    off = np.abs(found - (sums + noise) * grid.spacing)
    assert (off <= error).all()
    assert (off / error).max() > 0.1, "the bound is far too wide"


def test_the_bound_about_people_who_are_drawn_is_below_the_account():
    """Also where one person moves a sum so far that no account is at hand."""
    noise, rate = 2.0, 0.5
    event = SampledGaussian(noise_multiplier=noise, sampling_rate=rate, count=2)
    for times in (1, 100):

        def enrol(numbers, present, times=times):
            rows = np.concatenate([numbers[:1]] * times + [numbers[1:]])
            here = np.concatenate([present[:1]] * times + [present[1:]])
            return None, np.where(here[:, None], rows, 0)

        people = np.ones((4, 3), np.float32)
        made = sotto.Release(
            "sum",
            lambda state, unit, key: ({"sum": unit}, ()),
            lambda state, released: (state + released["sum"], ()),
            sotto.Unit(kind="trajectory", adjacency="zero-out"),
            {"sum": sotto.Part(clip_norm=1.0, noise_multiplier=noise)},
            slots=3 + times,
            divisor=1.0,
            horizon=2,
            population="simulated",
            participation=Poisson(sampling_rate=rate, population=3 + times),
        )
        true = compose([event]).epsilon(1e-5)
        audited = sotto.Auditable.of_release(made, jnp.zeros(3), people, enrol=enrol, epsilon=true)
        found = replay(audited, seed=1)
        if times == 1:
            assert 0.99 * true < found.epsilon_lower < true
            assert not found.refuted
        else:
            assert found.refuted


def test_printed_lower_bounds_are_rounded_down(monkeypatch, capsys):
    """The bound 1.2706 is not printed as 1.271, which is above the claim 1.27055."""
    finding = own.Finding("replay", "the door's noise", 1.2706, True, "person 0 moves the sums")
    verdict = own.Verdict(1.27055, 1e-5, 0.95, (finding,), (), 0.0)
    monkeypatch.setattr(own, "audit_own", lambda *given: verdict)
    monkeypatch.setattr(modules, "named", lambda *given: None)
    assert main(["audit", "a_module:a_name"]) == 3
    said = capsys.readouterr().out
    assert "claims epsilon 1.271 at delta 1e-05" in said
    assert " 1.27 " in said


def test_the_catalogue_prints_lower_bounds_rounded_down(monkeypatch, capsys):
    report = leaks.LeakReport(
        "a-leak",
        0.72561,
        2.93469,
        0.18669,
        0.72561,
        confidence=0.9,
        seconds=1.0,
        verdict="leak shown",
    )
    monkeypatch.setattr(leaks, "run_catalogue", lambda *given: [report])
    said = printed(capsys, "audit")
    assert said.splitlines()[-1].split()[1:5] == ["0.7257", "2.934", "0.1866", "0.7257"]
