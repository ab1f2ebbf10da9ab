"""The leaks of trainings from human feedback are what such trainings do."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.keys import new_key
from sotto.privacy.audits.leaks import best_of_n, normalisation, rlhf
from sotto.privacy.audits.leaks.leak import CLAIMED, DELTA, SMALL_CLIP, USERS

TRAININGS = {
    "value head": rlhf._VALUE_HEAD,
    "KL coefficient": rlhf._KL_COEFFICIENT,
    "reward normaliser": rlhf._REWARD_NORMALISER,
    "early stopping": rlhf._EARLY_STOPPING,
}


@pytest.mark.parametrize("name", TRAININGS)
def test_the_door_does_not_certify_a_statistic_without_noise(name: str) -> None:
    training = TRAININGS[name]
    assert training.gap.name == name
    assert training.trials(private=False).certified_epsilon(DELTA) == math.inf
    assert training.trials(private=True).certified_epsilon(DELTA) == pytest.approx(CLAIMED)


# --- the language model --------------------------------------------------------------------------

LOGITS = np.array([[1.0, 0.0, -1.0], [0.5, 0.0, 2.0], [0.0, 0.3, 0.0]], np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def test_completions_have_the_probabilities_of_the_model() -> None:
    runs = 40_000
    draw = jax.vmap(lambda key: rlhf.complete(jnp.asarray(LOGITS), jnp.int32(1), key))
    tokens, before = map(np.asarray, draw(jax.random.split(new_key(0), runs)))
    assert (before[:, 0] == 1).all()
    assert (before[:, 1] == tokens[:, 0]).all()
    found = np.zeros((3, 3))
    np.add.at(found, tuple(tokens.T), 1 / runs)
    expected = softmax(LOGITS[1])[:, None] * softmax(LOGITS)
    assert np.abs(found - expected).max() < 5 * math.sqrt(0.25 / runs)


def test_the_gradient_is_that_of_the_weighted_log_likelihood() -> None:
    tokens, before = jnp.array([2, 0]), jnp.array([1, 2])
    advantages = jnp.array([0.7, -0.2])

    def objective(logits: jax.Array) -> jax.Array:
        return 1000 * jnp.sum(advantages * jax.nn.log_softmax(logits)[before, tokens])

    expected = jax.grad(objective)(jnp.asarray(LOGITS))
    found = rlhf.policy_gradient(jnp.asarray(LOGITS), tokens, before, advantages)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


# --- what servers compute ------------------------------------------------------------------------

NO_UPDATE = np.zeros((3, 3), np.float32)


@pytest.mark.parametrize(
    ("mean_kl", "expected"),
    [(0.3, 0.1), (0.33, 0.1 * 1.01), (0.15, 0.1 * 0.98), (9.0, 0.1 * 1.02)],
)
def test_the_kl_coefficient_follows_the_published_rule(mean_kl: float, expected: float) -> None:
    """beta (1 + 0.1 clip(KL / target - 1, -0.2, 0.2)) with target 0.3."""
    state = {"logits": jnp.asarray(rlhf.MODEL), "coefficient": jnp.float32(0.1)}
    released = {"policy": NO_UPDATE, "statistic": jnp.float32(mean_kl / 0.3 - 1)}
    after, _ = rlhf._kl_server(state, released)
    assert after["coefficient"] == pytest.approx(expected, rel=1e-5)


def test_rewards_are_divided_by_the_deviation_over_all_people_so_far() -> None:
    """Three batches of scores, after a first state that counts as a batch of mean 0, variance 1."""
    batches = np.random.default_rng(0).normal(2.0, 3.0, (3, USERS)).astype(np.float32)
    start = rlhf._REWARD_NORMALISER.state
    state = {name: jnp.asarray(value, jnp.float32) for name, value in start.items()}
    means, squares = [0.0], [1.0]
    for scores in batches:
        squares.append(float(np.mean((scores - np.mean(means)) ** 2)))
        means.append(float(scores.mean()))
        units = [{"prompt": 0, "score": one, "spread": 0.0} for one in scores]
        parts = [rlhf._reward_local(state, unit, new_key(0))[0] for unit in units]
        statistic = jnp.mean(jnp.stack([one["statistic"] for one in parts]), axis=0)
        state, _ = rlhf._reward_server(state, {"policy": NO_UPDATE, "statistic": statistic})
    assert state["mean"] == pytest.approx(np.mean(means), rel=1e-4)
    assert state["variance"] == pytest.approx(np.mean(squares), rel=1e-4)


def test_one_score_moves_the_values_of_others() -> None:
    """At rate 0.2, a score of 1 among eight people moves the value of their token by 0.0125."""
    state = {
        "logits": jnp.asarray([[50.0, 0, 0]] * 3),
        "reference": jnp.zeros((3, 3)),
        "value": jnp.full(3, 0.5),
    }
    unit = {"prompt": 0, "score": 1.0, "spread": 0.0}
    parts, _ = rlhf._value_local(state, unit, new_key(0))
    after, _ = rlhf._value_server(
        state, {"policy": NO_UPDATE, "statistic": parts["statistic"] / USERS}
    )
    np.testing.assert_allclose(after["value"], [0.5125, 0.5, 0.5], rtol=1e-6)


def test_a_run_that_reached_its_goal_logs_nothing_more() -> None:
    update = np.ones((3, 3), np.float32)
    state = {"logits": jnp.zeros((3, 3)), "goes_on": jnp.float32(1.0)}
    logs = []
    for above_goal in (-0.1, 0.2, -0.1):
        released = {"policy": update, "statistic": jnp.float32(above_goal)}
        state, log = rlhf._stop_server(state, released)
        logs.append((float(log[0].sum()), float(log[1])))
    assert logs == [(9.0, 1.0), (9.0, 0.0), (0.0, 0.0)]
    np.testing.assert_array_equal(state["logits"], 2 * update)


# --- what is computed before the door ------------------------------------------------------------


def clipped_sum(present: bool, contribution) -> np.ndarray:
    """Sum of the clipped contributions of those who are present."""
    persons, units = best_of_n._inputs(present)
    total = np.zeros((3, 3))
    for slot in np.flatnonzero(persons[0] >= 0):
        unit = {name: jnp.asarray(one[0, slot]) for name, one in units.items()}
        update = np.asarray(contribution(jnp.asarray(rlhf.MODEL), unit, new_key(0)))
        total += update * min(1.0, SMALL_CLIP / max(np.linalg.norm(update), 1e-12))
    return total


def test_one_person_takes_the_places_of_all_others() -> None:
    absent, present = (best_of_n._inputs(here)[1]["chosen"][0] for here in (False, True))
    assert absent.sum() == present.sum() == USERS
    assert (present[0] == 1).all()
    assert (absent[1:, 0] == 1).all()

    def moved(contribution) -> float:
        change = clipped_sum(True, contribution) - clipped_sum(False, contribution)
        return float(np.linalg.norm(change) / SMALL_CLIP)

    assert 7.5 < moved(best_of_n._best_of_batch) <= USERS
    assert moved(best_of_n._best_of_person) <= 1 + 1e-6


def cleanrl(advantages: np.ndarray) -> np.ndarray:
    return (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)


def trl(advantages: np.ndarray) -> np.ndarray:
    return (advantages - advantages.mean()) / np.sqrt(advantages.var(ddof=1) + 1e-8)


@pytest.mark.parametrize("published", [cleanrl, trl])
@pytest.mark.parametrize("present", [True, False])
def test_normalising_and_whitening_are_one_leak(published, present: bool) -> None:
    """After clipping, the contributions of the catalogue's entry are those of either formula."""
    persons, units = normalisation._normalised_inputs(present)
    members = persons[0] >= 0
    expected = published(normalisation._RETURNS[members])
    actions = units["actions"][0][members]
    ours, theirs = (
        [
            float(jnp.clip(normalisation._policy_gradient(jnp.float32(0), a, x), -0.05, 0.05))
            for a, x in zip(actions, advantages, strict=True)
        ]
        for advantages in (units["advantages"][0][members], expected)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert set(np.round(np.abs(ours), 6)) == {SMALL_CLIP}
