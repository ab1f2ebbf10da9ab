"""Mode policy-choice: the public model, its candidates and their values, and whole trainings."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sotto.algorithms.baselines.q_learning import EpsilonGreedy
from sotto.algorithms.functional_q import training
from sotto.algorithms.functional_q.accounts import RunAccount
from sotto.algorithms.functional_q.choice import (
    PublicModel,
    planned,
    random_rewards,
    release_choice,
)
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.functions import secret_rewards
from sotto.algorithms.functional_q.nodes import GridValues
from sotto.algorithms.functional_q.release import Dynamics, Logged, collect, start_lanes
from sotto.cli import main
from sotto.privacy.certificates.derive import derive
from sotto.privacy.claims.rewards import CANDIDATES, NOISY_MAXIMUM
from sotto.privacy.errors import PrivacyError
from sotto.privacy.mechanisms.noisy_max import moved_by_all
from sotto.privacy.release.released import ReleasedValues

LINE = FunctionalQConfig(
    mode="policy-choice",
    unit="reward-function",
    reward_radius=0.05,
    target_epsilon=0.9,
    delta=1e-4,
    candidates=40,
)
SMALL = replace(LINE, samples=400, num_envs=4, iterations=20, candidates=8)


def collected(config: FunctionalQConfig, values: GridValues | None = None, seed: int = 0) -> Logged:
    """Steps of the greedy policy of these values, or of uniform actions."""
    nothing = GridValues(jnp.zeros((config.grid.size, config.actions)), config.grid)
    actor = EpsilonGreedy(nothing, 1.0) if values is None else EpsilonGreedy(values)
    lanes = start_lanes(config, jax.random.key(seed))
    key = jax.random.key(seed + 1)
    logged, _ = collect(Dynamics(config.environment), actor, lanes, key, config.lane_steps)
    return logged


def trained(config: FunctionalQConfig, folder, seeds=(0,)):
    ledgers = [training.create_ledger(config, folder / f"{seed}.sqlite") for seed in seeds]
    (progress,) = training.train(config, list(seeds), ledgers)
    return progress.states, ledgers


# --- the public model ----------------------------------------------------------------------------


def dense(config: FunctionalQConfig, logged: Logged) -> tuple[np.ndarray, np.ndarray]:
    """Shares of steps in pairs and next nodes of pairs, in plain loops over a line's nodes."""
    places = np.linspace(config.grid.low[0], config.grid.high[0], config.grid.size)
    gap = places[1] - places[0]

    def hats(points):
        return np.maximum(0.0, 1 - np.abs(np.asarray(points, np.float64) - places) / gap)

    here, after = hats(logged.observations), hats(logged.next_observations)
    shares = np.zeros((len(here), config.grid.size, config.actions))
    for step, action in enumerate(np.asarray(logged.actions)):
        shares[step, :, action] = here[step]
    shares /= shares.sum(axis=0)
    return shares, np.einsum("tsa,tj->saj", shares, after)


def test_values_are_those_of_a_linear_solve() -> None:
    """Values of a finite episode, backwards with dense matrices, against weights forwards."""
    logged = collected(SMALL)
    model = PublicModel.of(SMALL, logged)
    tables = planned(SMALL, model, jax.random.key(3))
    weights = model.weights(tables, 50)
    assert len(tables) > 3
    assert np.all(weights >= 0)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    rewards = secret_rewards(SMALL, logged)
    shares, ahead = dense(SMALL, logged)
    worth = np.einsum("tsa,t->sa", shares, rewards)
    start = np.maximum(
        0.0, 1 - np.abs(np.asarray(logged.observations) - np.linspace(0, 1, 11)) / 0.1
    ).mean(axis=0)
    nodes = np.arange(11)
    for table, row in zip(tables, weights, strict=True):
        greedy = table.argmax(axis=1)
        value = np.zeros(11)
        for _ in range(50):
            value = worth[nodes, greedy] + ahead[nodes, greedy] @ value
        assert row @ rewards == pytest.approx(start @ value / 50, rel=1e-5)


def test_candidates_are_optimal_for_their_rewards_and_there_once() -> None:
    logged = collected(SMALL)
    model = PublicModel.of(SMALL, logged)
    tables = planned(SMALL, model, jax.random.key(0))
    greedy = tables.argmax(axis=-1)
    assert len(np.unique(greedy, axis=0)) == len(tables) <= SMALL.candidates
    _, ahead = dense(SMALL, logged)
    drawn = random_rewards(SMALL, jax.random.key(0))
    for rewards in drawn:
        found = np.zeros((11, 2))
        for _ in range(SMALL.iterations):
            found = ahead @ rewards + SMALL.discount * ahead @ found.max(axis=1)
        assert any(np.array_equal(found.argmax(axis=1), one) for one in greedy)


def test_random_rewards_are_smooth_and_have_the_stated_covariance() -> None:
    config = replace(SMALL, candidates=20_000)
    drawn = random_rewards(config, jax.random.key(0))
    assert drawn.shape == (20_000, 11)
    x = np.linspace(0, 1, 11)
    expected = np.exp(-((x[:, None] - x) ** 2) / (2 * 0.5**2))
    np.testing.assert_allclose(drawn.T @ drawn / 20_000, expected, atol=0.05)
    plane = replace(config, env_id="CartPoleCentred-v0", node_variable="state-action")
    drawn = random_rewards(plane, jax.random.key(0))
    assert drawn.shape == (20_000, 9 * 9 * 2)
    first, other, diagonal = drawn[:, 0], drawn[:, 1], drawn[:, 2 * (9 * 4 + 4)]
    assert abs(np.mean(first * other)) < 0.05  # actions have functions of their own
    assert np.mean(first * diagonal) == pytest.approx(np.exp(-2 * 0.5**2 / (2 * 0.5**2)), abs=0.05)


def test_a_value_is_the_mean_reward_of_real_episodes() -> None:
    """A model with many nodes tells how candidates fare in the environment."""
    config = replace(LINE, nodes=(41,), candidates=8)
    logged = collected(config)
    model = PublicModel.of(config, logged)
    tables = planned(config, model, jax.random.key(0))
    values = model.weights(tables, 50) @ secret_rewards(config, logged)
    for table, value in zip(tables, values, strict=True):
        policy = GridValues(jnp.asarray(table, jnp.float32), config.grid)
        real = secret_rewards(config, collected(config, policy, seed=7)).mean()
        assert value == pytest.approx(real, abs=0.02)
    assert np.ptp(values) > 0.1


def test_ends_of_episodes_and_pairs_without_visits() -> None:
    """Two nodes; the right one was never left. The step to the right ended the episode."""
    config = replace(SMALL, nodes=(2,), samples=4)
    logged = Logged(
        states=None,
        actions=np.array([0, 0, 1, 1], np.int32),
        observations=np.zeros((4, 1), np.float32),
        next_observations=np.array([[0.0], [1.0], [0.0], [0.0]], np.float32),
        terminated=np.array([False, True, False, False]),
    )
    model = PublicModel.of(config, logged)
    right_then_what = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]])
    weights = model.weights(right_then_what, 2)
    np.testing.assert_allclose(weights[0], [0.5 * 0.75, 0.5 * 0.75, 0, 0])  # half of them end
    np.testing.assert_allclose(weights[1], [0, 0, 0.5, 0.5])
    begun = replace(model, start=np.array([0.0, 1.0]))  # where nothing is known
    unknown = begun.weights(right_then_what[:1], 1)
    np.testing.assert_allclose(unknown, np.full((1, 4), 0.25))
    tables = model.plan(np.array([[1.0, 2.0, 9.0, 9.0]]), 0.5, 30)
    np.testing.assert_allclose(tables[0], [[1 + 0.5 * 0.5 * 4, 4], [-18, -18]], rtol=1e-6)


# --- trainings -----------------------------------------------------------------------------------


def test_with_much_epsilon_the_best_candidate_wins(tmp_path) -> None:
    config = replace(LINE, target_epsilon=60.0)
    states, _ = trained(config, tmp_path, seeds=range(3))
    for run in range(3):
        policy = GridValues(states.values.table[run], config.grid)
        rewards = secret_rewards(config, collected(config, policy, seed=5))
        assert 50 * rewards.mean() > 19


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"unit": "transition", "reward_radius": None},
        {"node_variable": "state-action"},
        {"env_id": "CartPoleCentred-v0", "samples": 2000},
    ],
    ids=["function", "transition", "state-action", "CartPole"],
)
def test_a_choice_is_proved_and_costs_the_target(tmp_path, changes) -> None:
    config = replace(SMALL, **changes)
    states, (ledger,) = trained(config, tmp_path)
    assert np.isfinite(np.asarray(states.values.table)).all()
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert 0.999 * 0.9 < certificate.epsilon <= 0.9
    assert ledger.streams[0].statement.event.epsilon <= 0.9
    assert ledger.streams[0].statement.event.delta == 0
    said = {one.statement for one in ledger.streams[0].statement.assumptions}
    assert {CANDIDATES.sentence, NOISY_MAXIMUM.sentence} <= said


def test_candidates_depend_on_the_seed_and_not_on_rewards(tmp_path, monkeypatch) -> None:
    from sotto.algorithms.functional_q import choice

    weighed = []

    class Seen(choice.ChoiceRelease):
        def __post_init__(self) -> None:
            super().__post_init__()
            weighed.append((self.candidates, self.weights))
            assert self._sensitivity == moved_by_all(self.weights, 0.05)

    monkeypatch.setattr(choice, "ChoiceRelease", Seen)
    for name, worth in (("a", 0.0), ("b", 0.5)):
        monkeypatch.setattr(choice, "secret_rewards", lambda *_, w=worth: np.full(400, w))
        (tmp_path / name).mkdir()
        trained(SMALL, tmp_path / name, seeds=(3, 4))
    for one, other in zip(weighed[:2], weighed[2:], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert weighed[0][0].shape != weighed[1][0].shape or np.any(weighed[0][0] != weighed[1][0])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target_epsilon": None, "sigma": 1.0}, "has no sigma; give --target-epsilon"),
        ({"noise": "process"}, "leave out --noise"),
        ({"learner": "network"}, "give --mode output-release"),
        ({"rounds": 2}, "leave out --rounds"),
        ({"candidates": 1}, "candidates must be at least 2"),
    ],
)
def test_settings_that_contradict_the_mode_are_refused(changes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(LINE, **changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"learner": "averager"}, "leave out --learner"),
        ({"target_epsilon": 1e-12}, "an epsilon of at least 1e-9"),
        ({"reward_radius": 1e-13}, "--reward-radius 1e-13 is below"),
    ],
)
def test_what_no_choice_can_do_is_refused_before_steps_are_collected(changes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        training.check(replace(LINE, **changes))


def test_candidates_of_other_seeds_differ_on_the_same_log(tmp_path, monkeypatch) -> None:
    from sotto.algorithms.functional_q import choice

    seen, log = [], collected(SMALL)
    monkeypatch.setattr(choice, "planned", lambda *given: seen.append(planned(*given)) or seen[-1])
    for seed in (3, 4):
        account = RunAccount(training.create_ledger(SMALL, tmp_path / f"{seed}.sqlite"))
        choice.release_choice(replace(SMALL, seed=seed), log, account)
    assert seen[0].shape != seen[1].shape or np.any(seen[0] != seen[1])


def test_a_file_of_another_shape_is_not_taken(tmp_path) -> None:
    account = RunAccount(training.create_ledger(SMALL, tmp_path / "l.sqlite"), tmp_path / "kept")
    made = release_choice(SMALL, collected(SMALL), account)
    np.testing.assert_array_equal(release_choice(SMALL, collected(SMALL), account), made)
    file = account.place(0).file
    assert file is not None
    file.unlink()
    ReleasedValues(np.zeros((3, 2))).save(file)
    with pytest.raises(PrivacyError, match="does not hold the choice of this training"):
        release_choice(SMALL, collected(SMALL), account)


def test_one_policy_is_no_choice_and_costs_nothing(tmp_path) -> None:
    config = replace(SMALL, nodes=(1,), candidates=2)
    ledger = training.create_ledger(config, tmp_path / "l.sqlite")
    with pytest.raises(ValueError, match="give more --nodes"):
        next(training.train(config, [0], [ledger]))
    assert not ledger.streams


def test_names_of_kept_results_do_not_change() -> None:
    assert "candidates" not in FunctionalQConfig(target_epsilon=0.9).first_repr()
    assert "candidates=8" in SMALL.first_repr()


def test_the_command_trains_verifies_and_resumes(tmp_path, capsys) -> None:
    out = str(tmp_path / "run")
    command = ["train", "functional-q", "--mode", "policy-choice", "--unit", "reward-function"]
    command += ["--reward-radius", "0.1", "--target-epsilon", "0.9", "--delta", "1e-4"]
    command += ["--samples", "400", "--num-envs", "4", "--candidates", "8", "--out", out]
    assert main(command) == 0
    assert main(["verify", f"{out}/certificate.json"]) == 0
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["status"] == "proved"
