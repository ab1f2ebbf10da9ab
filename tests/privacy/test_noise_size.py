"""One training with canaries measures the noise, and its bound has the stated confidence."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import sotto
from sotto.privacy.accounting.gaussian import epsilon_of_shift
from sotto.privacy.audits import canaries, noise_size, one_run
from sotto.privacy.audits.audit import audit
from sotto.privacy.audits.own import audit_own
from sotto.privacy.mechanisms import gaussian, noise
from sotto.privacy.release.draws import Draws
from sotto.privacy.statements import Correlation, Gap, Poisson

PERSON = sotto.Unit(kind="trajectory", adjacency="zero-out")
PEOPLE, SIZE = 256, 40


def local(_state, unit, _key):
    return {"update": unit, "critic": unit[:9].reshape(3, 3)}, {"length": unit[0]}


def server(state, released):
    return state + released["update"], ()


def release(z=1.0, slots=PEOPLE, **changed):
    given = {
        "name": "mean",
        "local": local,
        "server": server,
        "unit": PERSON,
        "parts": {
            "update": sotto.Part(clip_norm=0.5, noise_multiplier=z * 2**0.5),
            "critic": sotto.Part(clip_norm=3.0, noise_multiplier=z * 2**0.5),
        },
        "slots": slots,
        "divisor": 7.0,
        "horizon": PEOPLE // slots,
        "population": "simulated",
    }
    return sotto.Release(**(given | changed))


def audited(made, **claim):
    people = np.ones((PEOPLE, SIZE), np.float32)
    return sotto.Auditable.of_release(made, jnp.zeros(SIZE), people, **claim)


# --- the bound -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("numbers", "length"), [(3, 4.0), (400, 9.0)])
def test_the_bound_exceeds_the_truth_as_often_as_stated(numbers, length):
    """500 trainings whose noise is exactly as claimed, for a bound with confidence 0.9."""
    rng, trials, ratio = np.random.default_rng(0), 500, 0.7
    expected = np.full(numbers, length / numbers**0.5)
    exceeding = sum(
        noise_size.ratio_lower(expected, ratio * expected + one, 0.9) > ratio
        for one in rng.standard_normal((trials, numbers))
    )
    # The bound is exact: it exceeds the truth in 50 of them, up to 4 standard deviations.
    assert 50 - 27 <= exceeding <= 50 + 27


def test_half_the_noise_is_found_and_all_of_it_is_not_refuted():
    rng = np.random.default_rng(1)
    expected = np.full(100, 0.8)  # 64 canaries of shift 1
    drawn = rng.standard_normal((200, 100))
    found = [noise_size.ratio_lower(expected, expected + one / 2, 0.95) > 1 for one in drawn]
    assert np.mean(found) > 0.95
    assert noise_size.ratio_lower(expected, expected + drawn[0], 0.95) > 0.5


def test_the_bound_is_that_of_a_noncentral_t_distribution():
    rng = np.random.default_rng(2)
    expected, freedom = np.full(6, 2.0), 5
    seen = expected + rng.standard_normal(6)
    length = np.linalg.norm(expected)
    bound = noise_size.ratio_lower(expected, seen, 0.95) * length
    slope = (expected @ seen) / length**2
    deviation = np.sqrt(np.sum((seen - slope * expected) ** 2) / freedom)
    t = slope * length / deviation
    # With noncentrality `bound`, a larger t has probability 5%: an integral over the deviation.
    chance, _ = integrate.quad(
        lambda s: special.ndtr(bound - t * np.sqrt(s / freedom)) * stats.chi2.pdf(s, freedom),
        0,
        100,
    )
    assert chance == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("expected", "seen", "bound"),
    [
        (np.zeros(4), np.ones(4), 0.0),  # nobody took part
        (np.ones(4), -np.ones(4), 0.0),
        (np.ones(4), np.ones(4), np.inf),  # no noise at all
        (np.ones(1), np.ones(1), 0.0),  # one number shows no deviation
    ],
)
def test_extremes(expected, seen, bound):
    assert noise_size.ratio_lower(expected, seen, 0.95) == bound


@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-9])
def test_almost_no_noise_is_found(noise):
    draw = np.random.default_rng(0)
    expected = draw.normal(size=10_000)
    seen = expected + noise * draw.normal(size=10_000)
    assert 90 < noise_size.ratio_lower(expected, seen, 0.95) < 1 / noise


# --- the door ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "clipping"),
    [("prefix-sum", "joint"), ("binary-tree", "separate")],
)
def test_canaries_move_the_door_as_expected(kind, clipping):
    """With little noise, x and y of the proof agree, and a canary moves them by 1 / z."""
    z = 0.01
    made = release(
        z=z,
        slots=16,
        correlation=Correlation(kind=kind),
        clipping=clipping,
        local=lambda state, unit, key: (local(state, unit, key)[0] | {"loss": unit[0]}, ()),
        unprotected={"loss": Gap(name="loss", why="no canary moves it")},
    )
    found = noise_size.measure(audited(made, epsilon=1.0), seed=1)
    assert found.seen.size == 16 * (SIZE + 9)
    slope = found.expected @ found.seen / (found.expected @ found.expected)
    error = 1 / np.linalg.norm(found.expected)
    assert slope == pytest.approx(1.0, abs=4 * error)
    assert error < 0.003
    assert np.std(found.seen - found.expected) == pytest.approx(1.0, abs=0.2)
    of_one_part = 1 / (z * 2**0.5)
    assert found.largest == pytest.approx(
        of_one_part * (2**0.5 if clipping == "separate" else 1), rel=1e-3
    )
    assert found.scores[found.took_part].mean() > 0 > found.scores[~found.took_part].mean()


def test_half_the_noise_of_the_door_is_found(monkeypatch):
    one, right = audited(release()), noise.rounded_normal

    def halved(generator, shape, ratio):
        return right(generator, shape, ratio / 2)

    monkeypatch.setattr(noise, "rounded_normal", halved)
    leaky = noise_size.epsilon_lower(noise_size.measure(one, seed=3), one.delta, 0.95)
    assert leaky > one.epsilon


def same_in_all_releases(noises):
    return {name: np.broadcast_to(x[:, :1], x.shape) for name, x in noises.items()}


def none_in_the_last_release(noises):
    return {name: np.where(np.arange(x.shape[1])[:, None] < 15, x, 0) for name, x in noises.items()}


def a_fifth_in_one_part(noises):
    return noises | {"critic": noises["critic"] // 5}


@pytest.mark.parametrize(
    "wrong", [same_in_all_releases, none_in_the_last_release, a_fifth_in_one_part]
)
def test_noise_that_is_wrong_in_some_of_its_places_is_found(monkeypatch, wrong):
    """Its size in all releases and parts together would not refute the claim."""
    one, right = audited(release(slots=16)), Draws._noise
    monkeypatch.setattr(noise_size, "_CHUNKS", 1)  # all releases are drawn at once
    monkeypatch.setattr(Draws, "_noise", lambda draws, count: wrong(right(draws, count)))
    found = noise_size.measure(one, seed=3)
    together = noise_size.ratio_lower(found.expected, found.seen, 0.95) * found.largest
    assert epsilon_of_shift(together, one.delta) < one.epsilon
    assert noise_size.epsilon_lower(found, one.delta, 0.95) > one.epsilon


def test_noise_that_is_moved_from_one_part_to_another_refutes_no_true_claim(monkeypatch):
    """Most numbers are in the part that has too little noise, and hardly moves anybody."""
    parts = {
        "update": sotto.Part(clip_norm=1.0, noise_multiplier=50.0),
        "critic": sotto.Part(clip_norm=1.0, noise_multiplier=1.0),
    }
    made, right = release(slots=16, parts=parts), Draws._noise
    people = np.ones((PEOPLE, 2000), np.float32)
    one = sotto.Auditable.of_release(made, jnp.zeros(2000), people)

    def moved(draws, count):
        found = right(draws, count)
        return {"update": found["update"] // 10, "critic": found["critic"] * 11 // 10}

    monkeypatch.setattr(noise_size, "_CHUNKS", 1)
    monkeypatch.setattr(Draws, "_noise", moved)
    true = epsilon_of_shift(float(np.hypot(10 / 50, 10 / 11)), one.delta)
    assert true < one.epsilon
    bounds = [
        noise_size.epsilon_lower(noise_size.measure(one, seed), one.delta, 0.99)
        for seed in range(3)
    ]
    assert max(bounds) <= true


@pytest.mark.parametrize("seed", range(4))
def test_a_door_of_several_releases_is_not_refuted(seed):
    """Its largest canary in one combination of releases is no larger than in all of them."""
    one = audited(release(slots=16, correlation=Correlation(kind="prefix-sum")))
    found = noise_size.measure(one, seed)
    assert np.linalg.norm([part.largest for part in found.combined]) < found.largest
    assert noise_size.epsilon_lower(found, one.delta, 0.99) <= one.epsilon
    rest = np.concatenate([part.seen - part.expected for part in found.combined])
    assert np.std(rest) == pytest.approx(1.0, abs=0.5)


def test_a_person_with_two_slots_is_found():
    def twice(people, present):
        rows = np.concatenate([people, people])[None]
        return np.where(np.tile(present, 2), np.arange(2 * PEOPLE), -1)[None], rows

    made = release(slots=2 * PEOPLE, horizon=1)
    one = audited(made, enrol=twice, epsilon=epsilon_of_shift(1.0, 1e-5))
    found = noise_size.measure(one, seed=3)
    assert found.largest == pytest.approx(2.0, rel=1e-3)
    assert noise_size.epsilon_lower(found, one.delta, 0.95) > one.epsilon


def test_slots_without_a_fixed_owner_cannot_be_measured():
    def moved_up(people, present):
        """Fills the first slots with those who take part."""
        numbers = np.concatenate([np.flatnonzero(present), np.full((~present).sum(), -1)])
        return numbers[None], people[None]

    assert noise_size.can_measure(audited(release()))
    assert not noise_size.can_measure(audited(release(), enrol=moved_up, epsilon=1.0))
    drawn = release(participation=Poisson(sampling_rate=0.5, population=PEOPLE))
    enrolled = audited(drawn, enrol=lambda people, present: (None, people), epsilon=1.0)
    assert not noise_size.can_measure(enrolled)


def test_the_verdict_presumes_gaussian_noise_and_shares_the_confidence(monkeypatch):
    asked = []
    right = noise_size.epsilon_lower

    def spy(found, delta, confidence):
        asked.append(confidence)
        return right(found, delta, confidence)

    one = audited(release())
    nothing = audit(np.zeros(4), np.zeros(4), one.delta)
    guesses = one_run.Guesses(PEOPLE, np.ones(PEOPLE), np.ones(PEOPLE, bool), 1)
    monkeypatch.setattr(canaries, "find", lambda *_: canaries.Canary(0, np.ones(1)))
    monkeypatch.setattr(canaries, "bound", lambda *_: nothing)
    monkeypatch.setattr(one_run, "train_once", lambda *_: guesses)
    monkeypatch.setattr(noise_size, "epsilon_lower", spy)
    verdict = audit_own(one, 16, 0, 0.92)
    assert [one.presumes for one in verdict.findings] == [
        "the door's noise",
        "nothing",
        "nothing",
        "Gaussian DP",
        "Gaussian noise",
    ]
    assert asked == pytest.approx([0.98])  # four statistical questions share 0.08
    assert one.epsilon / 2 < verdict.findings[-1].epsilon_lower <= one.epsilon
    assert not verdict.refuted
    said = ("Diagnostics of `local`: they", "Noise that is too small in", "Noise that is the same")
    assert all(one.startswith(two) for one, two in zip(verdict.left_out, said, strict=True))


def test_a_door_that_does_not_clip_is_found(monkeypatch):
    """Canaries contribute twice what the clip leaves of them."""
    one = audited(release())
    monkeypatch.setattr(gaussian, "clip_scale", lambda squared, _margin: jnp.ones_like(squared))
    found = noise_size.measure(one, seed=3)
    assert found.ratio > 1.5
    assert noise_size.epsilon_lower(found, one.delta, 0.95) > one.epsilon
