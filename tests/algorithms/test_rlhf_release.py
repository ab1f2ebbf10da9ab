"""Contributions of people's feedback to a release, and the noise of the release."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from rlhf_people import PEOPLE, config, simulated
from scipy import stats
from tiny_models import log_probabilities

from sotto.algorithms.rlhf import training
from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.directions import first_adapter
from sotto.algorithms.rlhf.features import fit_whitening, raw_features
from sotto.algorithms.rlhf.feedback import Rated
from sotto.algorithms.rlhf.release import Open, RLHFState, make_release
from sotto.keys import new_key
from sotto.privacy.audits.audit import ReleaseTrials, audit_mechanism
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.rl.language import Completions

CONFIGS = {
    "reward-model": config(),
    "policy-gradient": config(method="policy-gradient", kl_coefficient=0.2),
    "best-of-n": config(method="best-of-n", adapter="steering", directions=0),
}
METHODS = sorted(CONFIGS)


@cache
def state(method: str) -> RLHFState:
    """The first state, with an adapter that changes the model: its KL penalty is not zero."""
    first = training.initial_state(CONFIGS[method], simulated())
    flat, unravel = ravel_pytree(first.adapter)
    rng = np.random.default_rng(5)
    moved = unravel(flat + jnp.asarray(0.1 * rng.standard_normal(flat.size), jnp.float32))
    return first._replace(adapter=moved)


def public(method: str) -> Open:
    return Open(state(method), simulated().language.decoder)


@cache
def rated() -> Rated:
    """Ratings of everybody; the second person rated two completions only."""
    found = simulated().rated(
        config(), first_adapter(config(), simulated().language.decoder.architecture), 0
    )
    return without_row(found, 1, 2)


def without_row(people: Rated, person: int, row: int) -> Rated:
    """Returns the ratings without one of them, padded as a log is."""
    copies = Rated(*map(np.array, people))
    for leaf in copies:
        leaf[person, row] = 0
    return copies


def others_moved(person: int) -> Rated:
    """Returns ratings in which everything of everybody but one person differs."""
    found = Rated(*map(np.array, rated()))
    rng = np.random.default_rng(3)
    others = np.arange(PEOPLE) != person
    found.prompts[others] = rng.integers(1, 256, found.prompts[others].shape)
    found.completions[others] = rng.integers(1, 256, found.completions[others].shape)
    found.completion_mask[others] = True
    found.ratings[others] = rng.random(found.ratings[others].shape)
    found.present[others] = rng.random(found.present[others].shape) < 0.7
    return found


@cache
def contribution_of(method: str) -> Callable[[Open, Rated], np.ndarray]:
    """The program that maps people to contributions of shape [people, numbers]."""
    release = make_release(CONFIGS[method], 4.0)

    @jax.jit
    def program(given: Open, people: Rated) -> jax.Array:
        parts, _ = jax.vmap(lambda unit: release.local(given, unit, new_key(0)))(people)
        (part,) = parts.values()
        return jax.vmap(lambda one: ravel_pytree(one)[0])(part)

    return lambda given, people: np.asarray(program(given, people))


def contributions(method: str, people: Rated) -> np.ndarray:
    return contribution_of(method)(public(method), people)


# --- one person's rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_contribution_depends_on_the_persons_own_rows_only(method: str) -> None:
    before = contributions(method, rated())
    assert np.isfinite(before).all()
    for person in (0, 7):
        after = contributions(method, others_moved(person))
        np.testing.assert_array_equal(before[person], after[person])
        assert not np.array_equal(before, after)


@pytest.mark.parametrize("method", METHODS)
def test_rows_and_people_who_are_absent_contribute_nothing(method: str) -> None:
    """Garbage in an absent row moves no bit, and a person without rows contributes zero."""
    before = contributions(method, rated())
    assert np.linalg.norm(before[1]) > 0  # who has an absent row
    garbage = Rated(*map(np.array, rated()))
    garbage.prompts[1, 2], garbage.completions[1, 2], garbage.ratings[1, 2] = 9, 11, 1.0
    garbage.completion_mask[1, 2] = garbage.prompt_mask[1, 2] = True
    np.testing.assert_array_equal(contributions(method, garbage), before)
    nobody = Rated(*map(np.zeros_like, rated()))
    assert not contributions(method, nobody).any()


@pytest.mark.parametrize("method", METHODS)
def test_a_person_with_one_rating_contributes_to_best_of_n_only(method: str) -> None:
    found = contributions(method, without_row(rated(), 1, 1))
    assert found[1].any() == (method == "best-of-n")


# --- what the contributions are ------------------------------------------------------------------


def said(method: str, person: int, moved: np.ndarray | None) -> np.ndarray:
    """Log-probabilities of one person's rows; `moved` changes the adapter, None is the base."""
    now, own = state(method), Rated(*(jnp.asarray(leaf[person]) for leaf in rated()))
    adapter = None
    if moved is not None:
        flat, unravel = ravel_pytree(now.adapter)
        step = moved if isinstance(now.directions, tuple) else moved @ now.directions
        adapter = unravel(flat + jnp.asarray(step, jnp.float32))
    completions = Completions(own.completions, own.completion_mask)
    given = simulated().language.decoder, own.prompts, own.prompt_mask, completions
    found = np.asarray(log_probabilities(*given, adapter), np.float64).sum(axis=1)
    return found[rated().present[person]]


def differences(method: str, person: int, numbers: range) -> np.ndarray:
    """Central differences of the log-probabilities, [rows, numbers]."""
    size, step = contributions(method, rated()).shape[1], 0.02
    units = [step * np.eye(size)[number] for number in numbers]
    return np.stack(
        [(said(method, person, u) - said(method, person, -u)) / (2 * step) for u in units], axis=1
    )


@pytest.mark.parametrize("person", [0, 1])
def test_the_policy_gradient_is_the_sum_of_advantages_and_scores(person: int) -> None:
    """With a baseline by hand: the mean of the person's other ratings, less the KL penalty."""
    method = "policy-gradient"
    ratings = rated().ratings[person][rated().present[person]].astype(np.float64)
    ratio = said(method, person, np.zeros(4)) - said(method, person, None)
    assert np.abs(ratio).min() > 1e-3
    values = ratings - 0.2 * ratio
    rows = len(values)
    baseline = [np.mean([values[j] for j in range(rows) if j != i]) for i in range(rows)]
    expected = (values - baseline) @ differences(method, person, range(4)) / rows
    found = contributions(method, rated())[person]
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=2e-3 * np.abs(expected).max())


def test_best_of_n_imitates_the_best_row_that_is_present() -> None:
    people = Rated(*map(np.array, rated()))
    people.ratings[0] = [0.2, 0.9, 0.4]
    people.ratings[1] = [0.1, 0.3, 0.99]  # the last one is absent
    found = contributions("best-of-n", people)
    for person, best in ((0, 1), (1, 1)):
        expected = differences("best-of-n", person, range(6))[best]
        np.testing.assert_allclose(
            found[person][:6], expected, rtol=0.03, atol=5e-3 * np.abs(expected).max()
        )


def test_the_mean_of_reward_contributions_is_the_least_squares_fit() -> None:
    """On synthetic ratings of the completions that the features were whitened on."""
    people = Rated(*map(np.array, simulated().rated(config(), state("reward-model").adapter, 0)))
    raw = np.asarray(jax.vmap(partial(raw_features, simulated().language.decoder))(*people[:4]))
    whitening = fit_whitening(raw, 4)
    features = raw.astype(np.float64) @ np.asarray(whitening.projection)
    rng = np.random.default_rng(0)
    people.ratings[:] = features @ rng.standard_normal(4) + rng.random((PEOPLE, 1))
    people.ratings[:] += 0.3 * rng.standard_normal(people.ratings.shape)
    given = Open(state("reward-model")._replace(whitening=whitening), public("reward-model").base)
    found = contribution_of("reward-model")(given, people).mean(axis=0)
    centred = (features - features.mean(axis=1, keepdims=True)).reshape(-1, 4)
    targets = (people.ratings - people.ratings.mean(axis=1, keepdims=True)).reshape(-1)
    expected = np.linalg.lstsq(centred, targets, rcond=None)[0]
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


def test_both_depths_weigh_alike_however_large_their_numbers_are() -> None:
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((40, 3, 12))
    larger = raw * np.repeat([1e3, 1.0], 6)
    one, other = (
        x.reshape(-1, 12) @ np.asarray(fit_whitening(x, 5).projection) for x in (raw, larger)
    )
    np.testing.assert_allclose(np.abs(one), np.abs(other), rtol=1e-3, atol=1e-3)


def test_a_depth_at_which_nothing_differs_is_left_out() -> None:
    raw = np.random.default_rng(0).standard_normal((40, 3, 12)).astype(np.float32)
    raw[..., :6] = raw[:, :1, :6]
    projection = np.asarray(fit_whitening(raw, 5).projection)
    assert np.isfinite(projection).all()
    assert np.abs(projection[6:]).max() > 0.01 * np.abs(projection).max()
    with pytest.raises(ValueError, match="do not differ in 7 directions"):
        fit_whitening(raw, 7)


# --- what is released ----------------------------------------------------------------------------


def ledger(folder: Path, epsilon: float = math.inf) -> Ledger:
    budget = Budget(epsilon=epsilon, delta=1e-4)
    return Ledger.create(folder / "l.sqlite", unit=config().privacy_unit, budget=budget)


def released(
    folder: Path, settings: RLHFConfig, persons: np.ndarray, people: Rated, multiplier: float = 4.0
) -> np.ndarray:
    """Sums of a seeded stream of releases, [releases, numbers]; persons are [releases, slots]."""
    method = settings.method
    release = replace(make_release(settings, multiplier), horizon=len(persons))
    seen = replace(release, server=lambda given, found: (given, ravel_pytree(found)[0]))
    given = jax.tree.map(lambda x: jnp.asarray(x)[None], public(method))
    stream = seen.open([ledger(folder)], given, people, noise_seed=0)
    units = jax.tree.map(lambda x: np.broadcast_to(x, (1, len(persons), *x.shape)), people)
    _, found, _ = stream.run(given, new_key(0)[None], persons[None], units)
    return np.asarray(found, np.float64)[0] * release.divisor


@pytest.mark.parametrize("method", ["reward-model", "best-of-n"])
def test_one_person_moves_the_sum_by_at_most_the_clip_norm(tmp_path: Path, method: str) -> None:
    settings = replace(CONFIGS[method], clip_norm=0.001)
    people = Rated(*map(np.array, rated()))
    people.ratings[2] = [0.0, 1.0, 0.0]
    sums = []
    for present in (True, False):
        persons = np.arange(3 * PEOPLE).reshape(3, PEOPLE)
        persons[1, 2] = persons[1, 2] if present else -1
        (folder := tmp_path / str(present)).mkdir()
        sums.append(released(folder, settings, persons, people))
    moved = np.linalg.norm(sums[0] - sums[1], axis=1)
    assert moved[0] == moved[2] == 0  # nobody else moves
    assert 0.00099 < moved[1] <= 0.001


def right_scale(noise: np.ndarray, scale: float) -> bool:
    """Whether noise may be Gaussian of this scale; one in a million times it is said to be not."""
    chance = stats.chi2(noise.size).cdf(np.sum(noise**2) / scale**2)
    return bool(5e-7 < chance < 1 - 5e-7)


@pytest.mark.parametrize("method", ["reward-model", "best-of-n"])
def test_noise_has_the_stated_scale_and_a_wrong_one_is_noticed(tmp_path: Path, method) -> None:
    settings = replace(CONFIGS[method], clip_norm=0.5)
    nobody = np.full((200, PEOPLE), -1)
    noise = released(tmp_path, settings, nobody, rated(), multiplier=4.0)
    assert right_scale(noise, 4.0 * 0.5)
    assert not right_scale(noise, 4.0 * 0.5 / 1.2)
    assert not right_scale(noise, 4.0 * 0.5 * 1.2)


# --- an audit ------------------------------------------------------------------------------------


def trials(scaled_over_people: bool) -> ReleaseTrials:
    """A release about people with equal ratings and one, the first, with very different ones.

    Where ratings are divided by their deviation over all people, that person moves everybody.
    """
    people = Rated(*(np.repeat(leaf[:1], PEOPLE, axis=0) for leaf in rated()))
    people.ratings[:] = 0.5 + 0.02 * np.array([1, -1, 0])
    people.ratings[0] = [0.0, 1.0, 0.0]
    whole = contributions("reward-model", people)
    norm = float(np.linalg.norm(whole[1])) / float(np.std(people.ratings[1:]))
    settings = config(clip_norm=norm if scaled_over_people else float(np.linalg.norm(whole[0])))
    release = make_release(settings, 4.0)
    seen = replace(release, server=lambda given, found: (given, found["reward"]))

    def inputs(present: bool) -> tuple[np.ndarray, Rated]:
        persons = np.arange(PEOPLE)
        there = persons > (-1 if present else 0)
        found = people
        if scaled_over_people:
            found = people._replace(
                ratings=(people.ratings / np.std(people.ratings[there])).astype(np.float32)
            )
        return np.where(there, persons, -1)[None], Rated(*(leaf[None] for leaf in found))

    return ReleaseTrials(seen, public("reward-model"), inputs, lambda log: log[:, 0])


def test_an_audit_stays_below_the_certificate_and_finds_what_is_shared_by_people() -> None:
    sound, leaky = trials(False), trials(True)
    certified = sound.certified_epsilon(1e-3)
    assert leaky.certified_epsilon(1e-3) == pytest.approx(certified)
    result = audit_mechanism(sound, 400, 0, 1e-3, certified_epsilon=certified)
    assert not result.refuted
    assert audit_mechanism(leaky, 400, 0, 1e-3, certified_epsilon=certified).refuted
