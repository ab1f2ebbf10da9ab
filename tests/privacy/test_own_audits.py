"""`sotto audit MODULE:NAME` is right about users' code: sound, leaky, and wrongly described."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import printed, refused
from scipy import optimize, special, stats

import sotto
from sotto.cli import main
from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.events import SampledGaussian
from sotto.privacy.accounting.gaussian import epsilon_of_shift
from sotto.privacy.audits import canaries, one_run
from sotto.privacy.audits.features import lowest_bits, statistics
from sotto.privacy.audits.own import audit_own
from sotto.privacy.audits.replay import replay
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Correlation, Gap, Poisson

SAMPLES = 4_000
PERSON = sotto.Unit(kind="trajectory", adjacency="zero-out")
VECTORS = 3 * np.eye(4, 3, dtype=np.float32)


def local(_state, unit, _key):
    return {"update": unit}, ()


def server(state, released):
    return state + released["update"], ()


def release(z=1.0, slots=4, **changed):
    given = {
        "name": "mean",
        "local": local,
        "server": server,
        "unit": PERSON,
        "parts": {"update": sotto.Part(clip_norm=0.5, noise_multiplier=z)},
        "slots": slots,
        "divisor": 7.0,
        "horizon": 4 // slots,
        "population": "simulated",
    }
    return sotto.Release(**(given | changed))


def through_the_door(made, **claim):
    return sotto.Auditable.of_release(made, jnp.zeros(3), VECTORS, **claim)


# --- one person ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["independent", "prefix-sum", "binary-tree"])
def test_a_clipped_person_moves_sums_by_the_declared_sensitivity(kind):
    made = release(z=2.0, slots=1, correlation=Correlation(kind=kind))
    found = replay(through_the_door(made), seed=1)
    # Person 0 is in the first release. The last person, whose data are zero, moves nothing.
    assert found.person == 0
    assert found.shift == pytest.approx(1 / 2.0, rel=1e-3)
    assert found.epsilon_lower == pytest.approx(epsilon_of_shift(0.5, 1e-5), rel=2e-3)
    assert not found.refuted


def test_a_person_in_two_slots_moves_sums_twice_as_far():
    def twice(people, present):
        rows = np.concatenate([people, people])
        return np.where(np.concatenate([present, present]), np.arange(8), -1)[None], rows[None]

    made = release(z=2.0, slots=8, horizon=1)
    found = replay(through_the_door(made, enrol=twice), seed=1)
    assert found.shift == pytest.approx(2 / 2.0, rel=1e-3)
    assert found.refuted


def test_a_normaliser_before_the_door_is_found():
    """Everybody's number is less the mean of those present, and then it is clipped."""

    def centred(people, present):
        middle = people[present].mean(axis=0)
        return np.where(present, np.arange(4), -1)[None], (100 * (people - middle))[None]

    numbers = np.array([[1.0], [0.5], [0.5], [0.45]], np.float32) * np.ones(3, np.float32)
    audited = sotto.Auditable.of_release(release(z=2.0), jnp.zeros(3), numbers, enrol=centred)
    found = replay(audited, seed=1)
    # With the first person the signs are + - - -, and without + + -: the sum goes from -2 to 1.
    assert found.person == 0
    assert found.shift == pytest.approx(3 / 2.0, rel=1e-3)
    assert found.refuted


def test_people_whom_local_simulates_are_replayed_until_the_last_one_tried(monkeypatch):
    """Each of 64 releases has 4 people who come from their keys; 16 are tried, in 4 releases."""
    made = release(
        z=2.0,
        horizon=64,
        local=lambda state, unit, key: ({"update": jax.random.normal(key, (3,))}, ()),
        correlation=Correlation(kind="prefix-sum"),
    )

    def enrol(people, present):
        return np.where(present, np.arange(256), -1).reshape(64, 4), ()

    audited = sotto.Auditable.of_release(made, jnp.zeros(3), np.arange(256), enrol=enrol)
    ran, run = [], Stream.run
    monkeypatch.setattr(Stream, "run", lambda *given: ran.append(1) or run(*given))
    found = replay(audited, seed=1)
    assert len(ran) == 2 * 4
    # The noise of later releases is part of what the first person shifts.
    assert found.shift == pytest.approx(1 / 2.0, rel=1e-3)


def test_people_who_are_drawn_in_secret_are_replayed_with_the_same_draws():
    """An absent person's data are zero. Somebody else's clip norm would show as a longer shift."""

    def enrol(people, present):
        return None, np.where(present[:, None], people, 0)

    made = release(z=2.0, horizon=2, participation=Poisson(sampling_rate=0.5, population=4))
    event = SampledGaussian(noise_multiplier=2.0, sampling_rate=0.5, count=2)
    true = compose([event]).epsilon(1e-5)
    found = replay(through_the_door(made, enrol=enrol, epsilon=0.99 * true), seed=1)
    assert found.shift == pytest.approx(1 / 2.0, rel=1e-3)
    assert found.epsilon_lower == pytest.approx(true, rel=2e-3)
    assert found.refuted


def test_only_as_many_people_are_left_out_as_asked():
    numbers = np.array([[0.1], [0.2], [0.3], [0.4]], np.float32) * np.ones(3, np.float32)
    one = sotto.Auditable.of_release(release(), jnp.zeros(3), numbers, epsilon=9.0)
    assert [replay(one, seed=1, people=count).person for count in (1, 2)] == [0, 1]


def test_a_part_without_noise_is_named():
    made = release(
        local=lambda state, unit, key: ({"update": unit, "value": unit[:1]}, ()),
        unprotected={"value": Gap(name="value", why="it has no noise")},
    )
    with pytest.raises(ValueError, match="give the epsilon that you claim"):
        through_the_door(made)
    found = replay(through_the_door(made, epsilon=4.4), seed=1)
    assert found.without_noise == ("value",)
    assert found.epsilon_lower == math.inf
    assert found.refuted


def gaussian(noise, grid=2.0**-10):
    def train(people, present, seed):
        sums = (present[..., None] * people / 3).sum(axis=1)
        noisy = sums + np.random.default_rng(seed).normal(0, noise, sums.shape)
        return np.rint(noisy / grid) * grid if grid else noisy

    return sotto.Auditable(train, VECTORS, epsilon_of_shift(1.0, 0.05), delta=0.05)


def test_exact_noise_is_not_refuted_and_half_of_it_is():
    sound, leaky = (audit_own(gaussian(noise), SAMPLES, 3, 0.95) for noise in (1.0, 0.5))
    assert not sound.refuted
    assert sound.findings[0].epsilon_lower > 0.5 * sound.epsilon, "the audit has no power here"
    assert leaky.refuted


def test_noise_in_floats_gives_itself_away_in_its_lowest_bits():
    found = audit_own(gaussian(1.0, grid=0), SAMPLES, 3, 0.95).findings[0]
    assert found.epsilon_lower > 2 * epsilon_of_shift(1.0, 0.05)


@pytest.mark.parametrize("samples", [400, 4000])
def test_an_audit_says_which_claims_so_few_runs_cannot_refute(samples):
    """Even without any noise."""

    def train(people, present, seed):
        return (present @ people)[:, None]

    most = canaries.reach(samples, 1e-5, 0.95)
    for claim, says in ((0.9 * most, False), (1.1 * most, True)):
        verdict = audit_own(sotto.Auditable(train, np.ones(4), epsilon=claim), samples, 1, 0.95)
        assert any("refute no larger claim" in one for one in verdict.left_out) == says
        assert verdict.findings[0].epsilon_lower == pytest.approx(most)
        assert verdict.refuted != says


def test_an_audit_says_that_it_replaces_nobody():
    replaced = sotto.Unit(kind="trajectory", adjacency="replace-one")
    for unit, says in ((PERSON, False), (replaced, True)):
        left_out = audit_own(through_the_door(release(unit=unit)), 16, 1, 0.9).left_out
        assert any(line.startswith("Replacement of a person") for line in left_out) == says


@pytest.mark.parametrize("ignores", [True, False])
def test_an_audit_says_so_if_nobody_changes_the_output(ignores):
    def train(people, present, seed):
        noise = np.random.default_rng(seed).normal(size=(len(present), 1))
        return noise + (0.0 if ignores else (present @ people)[:, None])

    left_out = audit_own(sotto.Auditable(train, np.ones(4), epsilon=1.0), 16, 1, 0.9).left_out
    assert any("no output changed" in line for line in left_out) == ignores


def test_the_person_who_moves_most_is_left_out():
    people = np.array([[0.0], [1.0], [5.0], [2.0]])
    one = replace(gaussian(1.0), people=people)
    assert canaries.find(one, seed=1).person == 2


def test_a_training_that_cannot_be_repeated_is_refused():
    fresh = np.random.default_rng()
    own = replace(gaussian(1.0), train=lambda _, present, __: fresh.normal(size=(len(present), 2)))
    with pytest.raises(ValueError, match="draw all random numbers from the seed"):
        audit_own(own, SAMPLES, 0, 0.95)


def test_all_bounds_together_have_the_stated_confidence(monkeypatch):
    """Two statistical questions share it: each gets half of the probability of error."""
    asked = []
    right, right_lower = canaries.bound, one_run.epsilon_lower

    def spy(*given):
        asked.append(given[-1])
        return right(*given)

    def spy_lower(guesses, delta, confidence, *, gaussian):
        asked.append(confidence)
        return right_lower(guesses, delta, confidence, gaussian=gaussian)

    many = replace(gaussian(1.0), people=np.ones((32, 3)))
    monkeypatch.setattr(canaries, "bound", spy)
    monkeypatch.setattr(one_run, "epsilon_lower", spy_lower)
    verdict = audit_own(many, 100, 0, 0.94)
    assert len(verdict.findings) == 2
    asked = [one for one in asked if one != 0.95]  # by which the share of guesses is chosen
    assert asked == pytest.approx([0.97] * 2)


# --- what is looked at ---------------------------------------------------------------------------


def test_lowest_bits_by_hand():
    values = np.array([[1.0, 6.0, -0.75, 0.0, 1 + 2.0**-23]])
    assert lowest_bits(values).tolist() == [[0, 1, -2, 64, -23]]
    assert lowest_bits(values.astype(np.float32)).tolist() == [[0, 1, -2, 64, -23]]


def test_numbers_that_are_not_finite_are_counted():
    looked = statistics({"a": np.array([[1.0, np.nan], [np.inf, np.inf]])}, np.array([1.0, 0.0]))
    assert np.isfinite(looked).all()
    assert looked[:, 6].tolist() == [1, 2]


def test_a_difference_a_hundred_million_times_below_the_spread_is_found():
    shared = np.random.default_rng(0).normal(size=(2, 1000))
    small = 1e-8 * np.random.default_rng(1).normal(size=(2, 1000))
    present, absent = (np.stack([a, a + b], axis=1) for a, b in zip(shared, small, strict=True))
    present[:, 1] += 1e-7
    direction = canaries.discriminant(present, absent)
    assert (present @ direction).min() > (absent @ direction).max()


# --- one run -------------------------------------------------------------------------------------


def made_guesses(canaries_, made, correct):
    right = np.arange(canaries_) < correct
    return one_run.Guesses(canaries_, np.ones(canaries_), right, made)


def test_the_bound_on_pure_epsilon_is_the_binomial_one():
    """All guesses are made: the bound is the epsilon at which a binomial tail is the error."""
    found = one_run.epsilon_lower(made_guesses(40, 40, 35), 1e-12, 0.9, gaussian=False)
    # Two canaries about whom nothing is guessed change nothing at this delta.
    q = stats.beta.ppf(0.1, 35, 6)
    assert found == pytest.approx(math.log(q / (1 - q)), abs=1e-4)


@pytest.mark.parametrize("presumed", [False, True])
def test_independent_guesses_are_refuted_no_more_often_than_stated(presumed):
    """Each canary gets Gaussian noise of its own: the number of right guesses is binomial."""
    shift, people, delta, confidence = 0.7, 40, 1e-3, 0.9
    true = epsilon_of_shift(shift, delta)
    refuting = [
        correct
        for correct in range(people + 1)
        if one_run.epsilon_lower(
            made_guesses(people, people, correct), delta, confidence, gaussian=presumed
        )
        > true
    ]
    chance = stats.binom.pmf(refuting, people, special.ndtr(shift / 2)).sum()
    assert refuting, "the bound can never refute"
    assert chance <= 1 - confidence
    louder = stats.binom.pmf(refuting, people, special.ndtr(7 * shift / 2)).sum()
    assert louder > 0.5, "a seventh of the noise is not noticed"


def test_a_mechanism_that_gives_itself_away_is_covered_by_delta():
    """With probability delta it shows all coins, otherwise randomised response: enumerated."""
    people, epsilon, delta, confidence = 8, 0.5, 0.02, 0.9
    q = special.expit(epsilon)
    for correct in range(people + 1):
        tail = delta * 1.0 + (1 - delta) * stats.binom.sf(correct - 1, people, q)
        bound = one_run.epsilon_lower(
            made_guesses(people, people, correct), delta, confidence, gaussian=False
        )
        assert bound <= epsilon or tail <= 1 - confidence


def test_the_gaussian_bound_is_that_of_a_linear_program():
    """The largest probability of so many right guesses, over all laws that the proof allows."""
    people, correct, error, delta = 8, 8, 0.1, 1e-3
    found = one_run.epsilon_lower(
        made_guesses(people, people, correct), delta, 1 - error, gaussian=True
    )
    listed = people + 2  # with the two about whom nothing is guessed
    touching = special.ndtr(np.linspace(-6, 6, 801))

    def largest(shift):
        value = special.ndtr(special.ndtri(touching) + shift)
        slope = np.exp(-shift * special.ndtri(touching) - shift**2 / 2)
        rows, limits = [], []
        for j in range(1, people + 1):
            right = np.where(np.arange(people + 1) >= j, np.arange(people + 1), 0) / listed
            wrong = np.where(np.arange(people + 1) >= j - 1, people - np.arange(people + 1), 0)
            # right <= value + slope (wrong - touching) for each tangent of the trade-off curve
            rows.append(right - slope[:, None] * wrong / listed)
            limits.append(value - slope * touching)
        wanted = -(np.arange(people + 1) >= correct).astype(float)
        solved = optimize.linprog(
            wanted,
            A_ub=np.concatenate(rows),
            b_ub=np.concatenate(limits),
            A_eq=np.ones((1, people + 1)),
            b_eq=[1.0],
        )
        return -solved.fun

    shift = optimize.brentq(lambda s: largest(s) - error, 1e-3, 4, xtol=1e-4)
    assert found == pytest.approx(epsilon_of_shift(shift, delta), rel=0.01)


def test_one_run_of_the_door_finds_a_claim_that_is_too_small():
    people = np.eye(64, dtype=np.float32)
    made = release(z=0.2, slots=64, horizon=1)
    audited = sotto.Auditable.of_release(made, jnp.zeros(64), people, epsilon=1.0)
    guesses = one_run.train_once(audited, seed=2)
    assert guesses.correct > 0.9 * guesses.made
    assert one_run.epsilon_lower(guesses, 1e-5, 0.95, gaussian=False) > 1.0


# --- the command ---------------------------------------------------------------------------------

MODULE = """
import numpy as np
import sotto

def train(people, present, seed):
    sums = (present[..., None] * people).sum(axis=1)
    return np.rint(64 * (sums + np.random.default_rng(seed).normal(0, 1, sums.shape))) / 64

sound = sotto.Auditable(train, np.eye(3), 4.4)
leaky = sotto.Auditable(train, np.eye(3), 0.1)
other = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "module_of_a_user.py").write_text(MODULE)
    return "module_of_a_user"


def test_the_command_says_what_it_found_and_exits_accordingly(module, capsys):
    said = printed(capsys, "audit", f"{module}:sound", "--samples", "2000")
    assert "not refuted, which does not prove it" in said
    assert "Left out: One run with many canaries: give at least 32 people." in said
    assert main(["audit", f"{module}:leaky", "--samples", "2000", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["refuted"]
    assert found["findings"][0]["epsilon_lower"] > found["epsilon"] == 0.1


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("no_such_module_here:x", "cannot be imported"),
        ("module_of_a_user:nothing", "has no 'nothing'; define it there"),
        ("module_of_a_user:other", "is a int; it must be a sotto.Auditable"),
        ("module_of_a_user", "must be MODULE:NAME"),
        ("module_of_a_user:sound --samples 3", "at least 16"),
        ("module_of_a_user:sound --confidence 1", "below 1"),
        ("module_of_a_user:sound --explain", "leave out the module"),
        ("module_of_a_user:sound --people 0", "--people must be at least 1"),
        ("module_of_a_user:sound --ledger x", "--ledger is about the directory of a training"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_a_sentence(module, target, problem, capsys):
    assert problem in refused(capsys, "audit", *target.split())


def test_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    guide = (Path(__file__).parents[2] / "docs" / "auditing.md").read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    program, commands = blocks[:2]
    (tmp_path / "my_release.py").write_text(program)
    codes = [main(line.split()[1:]) for line in commands.splitlines()]
    assert codes == [0, 3]
