"""Learning from private experts: charges are stated and kept, and are never paid twice."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from killed import Killed
from padded_logs import without
from references import gaussian_delta

from sotto.algorithms.expert_offline import algorithm, prefixes, voting_rounds
from sotto.algorithms.expert_offline import states as expert_offline_states
from sotto.algorithms.expert_offline import training as expert_offline
from sotto.algorithms.expert_offline import votes as expert_offline_votes
from sotto.algorithms.expert_offline.clones import CloneConfig
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.distillation import DistillationConfig
from sotto.algorithms.expert_offline.presets import DataFacts, filled
from sotto.algorithms.expert_offline.states import Sources
from sotto.algorithms.expert_offline.voting import EXPERT
from sotto.algorithms.experts.training import logs
from sotto.experiments.engine import Arm, Result
from sotto.experiments.sharma2024.figures import train_arm
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import BudgetExceeded, LedgerCorrupt, NothingReleased, PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy
from sotto.rl.policy_files import flat_policy, write

COUNT = 40
CARTPOLE = DataFacts("CartPole-v1", COUNT, 4, 2)
TINY = {
    **{"target_epsilon": 20.0, "queries": 8, "rounds": 3, "lanes": 2, "rollout_cap": 20},
    **{"gradient_steps": 20, "hidden": (8,), "student_hidden": (8,), "minibatch": 16},
    **{"evaluation_cap": 50, "evaluation_episodes": 4, "batch": 10, "noisy_steps": 25},
}


def settings(**changes) -> ExpertOfflineConfig:
    data = {"experts": "x", "dataset": "y", "population": "simulated"}
    return ExpertOfflineConfig(**(data | TINY | changes))


def plain(**changes) -> ExpertOfflineConfig:
    return settings(target_epsilon=None, **changes)


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Shortens the fits of students and clones."""
    with pytest.MonkeyPatch.context() as patch:
        short = partial(DistillationConfig, steps=200, minibatch=32)
        patch.setattr(expert_offline_votes, "DistillationConfig", short)
        patch.setattr(expert_offline_states, "_CLONES", CloneConfig(hidden=(8,), steps=50))
        yield


@pytest.fixture(scope="module")
def sources() -> Sources:
    """Returns experts that push the cart where the pole falls, each with different weights."""
    one = Policy(4, Discrete(2), (), jax.random.key(0))
    weights = np.array([[0, 0], [0, 0.5], [0, 10], [0, 1.5]], np.float32)
    spread = np.random.default_rng(0).normal(0, 0.3, (COUNT, 4, 2)).astype(np.float32)
    experts = jax.tree.map(lambda x: jnp.zeros((COUNT, *x.shape), jnp.float32), one)
    experts = replace_weights(experts, jnp.asarray(weights + spread))
    log = logs("CartPole-v1", experts, np.arange(COUNT), 0, 0.05, 20, 2)
    return Sources(experts, log, "CartPole-v1")


def replace_weights(experts: Policy, weights: jax.Array) -> Policy:
    leaves, tree = jax.tree.flatten(experts)
    return jax.tree.unflatten(tree, [weights if x.ndim == 3 else x for x in leaves])


def new_ledger(folder: Path, config: ExpertOfflineConfig) -> Ledger:
    folder.mkdir(parents=True, exist_ok=True)
    return expert_offline.create_ledger(config, folder / "ledger.sqlite", "run")


def trained(config: ExpertOfflineConfig, ledgers, sources: Sources, folders, **more):
    *_, last = expert_offline.train(config, [0], ledgers, sources, folders=folders, **more)
    return last.states


def numbers(state) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"experts": None, "dataset": None}, "give --dataset"),
        ({"method": "dp-sgd", "dataset": None}, "learns from a log; give --dataset"),
        ({"method": "stable-prefix", "experts": None}, "a fixed log cannot take their place"),
        ({"voters": "experts", "experts": None}, "needs --experts"),
        ({"voters": "clones", "dataset": None}, "needs --dataset"),
        ({"target_epsilon": None}, "needs --target-epsilon"),
        ({"method": "cql"}, "protects nobody; leave out --target-epsilon"),
        ({"learner": "cql", "states": "box"}, "whole transitions"),
        ({"method": "dp-sgd", "states": "box"}, "belongs to --method votes"),
        ({"method": "dp-sgd", "first_policy": "z"}, "--first-policy belongs to --method votes"),
        ({"learner": "cql", "states": "rollouts", "first_policy": "z"}, "is for students of votes"),
        ({"least_return": 1.0, "dataset": None}, "about the experts' log; give --dataset"),
        ({"method": "dp-sgd", "least_return": 1.0}, "belongs to --method votes"),
        ({"public_share": 1.0}, r"in \(0, 1\)"),
        ({"rounds": 0}, "at least 1"),
        ({"choice_episodes": -1}, "at least 0"),
        ({"target_epsilon": float("nan")}, r"target_epsilon must be in \(0, 1e9\]; nan is not"),
        ({"exploration": 2.0}, r"in \[0, 1\]"),
        ({"hidden": (0,)}, "hidden must be at least 1"),
        ({"batch": 2.5}, "must be of type int"),
        ({"seed": -1}, "seed must be in"),
        ({"box_low": (1.0,), "box_high": (1.0,)}, "below box_high"),
    ],
)
def test_settings_that_contradict_each_other(changes, says) -> None:
    with pytest.raises(ValueError, match=says):
        settings(**changes)


def test_what_is_left_out_is_filled_in_once() -> None:
    config = filled(ExpertOfflineConfig(dataset="y", target_epsilon=1.0), CARTPOLE)
    assert (config.voters, config.learner) == ("clones", "distillation")
    assert config.delta == pytest.approx(1 / (10 * COUNT))
    assert (config.rollout_cap, config.evaluation_cap, config.actions) == (200, 1000, 2)
    assert 900 <= config.queries * config.rounds <= 1000
    assert filled(config, CARTPOLE) == config
    with_experts = replace(ExpertOfflineConfig(dataset="y", target_epsilon=1.0), experts="x")
    assert filled(with_experts, CARTPOLE).voters == "experts"


def test_who_abstains_is_told_by_their_own_log_alone(sources: Sources) -> None:
    assert sources.weights(settings()) is None
    log = sources.log
    each = [log.of(expert) for expert in range(log.experts)]
    means = np.array([own.transitions.rewards.sum() / own.lasts.sum() for own in each])
    bar = float(np.median(means))
    config = settings(least_return=bar)
    weights = sources.weights(config)
    np.testing.assert_array_equal(weights, means >= bar)
    other = without(log, 9)  # a copy
    other.of(7).transitions.rewards[:] = 1e6
    other.of(8).transitions.rewards[:] = np.nan
    changed = Sources(sources.experts, other, "CartPole-v1").weights(config)
    assert (changed[7], changed[8], changed[9]) == (1, 0, 0)
    np.testing.assert_array_equal(np.delete(changed, [7, 8, 9]), np.delete(weights, [7, 8, 9]))


def test_tasks_have_a_bar_where_there_is_a_log() -> None:
    hiv = DataFacts("HIV-v0", COUNT, 6, 4)
    for dataset, epsilon, bar in (("y", 0.5, 3e8), ("y", 0.49, None), (None, 1.0, None)):
        config = ExpertOfflineConfig(experts="x", dataset=dataset, target_epsilon=epsilon)
        assert filled(config, hiv).least_return == bar
    reference = ExpertOfflineConfig(method="cql", dataset="y")
    assert filled(reference, hiv).least_return is None
    lander = DataFacts("LunarLander-v3", COUNT, 8, 4)
    for epsilon, bar in ((1.0, 100.0), (0.9, None)):
        config = ExpertOfflineConfig(dataset="y", target_epsilon=epsilon)
        assert filled(config, lander).least_return == bar


def test_the_student_that_plays_best_is_chosen(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All students play the same episodes; without episodes the last student is kept."""
    made: list[Policy] = []
    fit = voting_rounds.fit_student

    def noted(*args, **kwargs) -> Policy:
        made.append(fit(*args, **kwargs))
        return made[-1]

    def second_is_best(config, policy: Policy, key, episodes: int, greedy: bool) -> np.ndarray:
        assert policy.network.weights[0].shape[0] == len(made) == config.rounds
        assert (episodes, greedy) == (config.choice_episodes, True)
        return np.array([[0.0] * episodes, [2.0] * episodes, [1.0] * episodes])

    monkeypatch.setattr(voting_rounds, "fit_student", noted)
    monkeypatch.setattr(expert_offline_votes, "evaluate", second_is_best)
    for episodes, best in ((6, 1), (0, 2)):
        made.clear()
        config = filled(settings(states="students", choice_episodes=episodes), sources.facts)
        folder = tmp_path / str(episodes)
        state = trained(config, [new_ledger(folder, config)], sources, [folder])
        for one, other in zip(numbers(state.student), numbers(made[best]), strict=True):
            np.testing.assert_array_equal(one[0], other)


def first_policy(folder: Path) -> tuple[Policy, Path]:
    """Returns a public policy for CartPole and its file."""
    scale = (0.5, 0.25, 2.0, 1.0)
    flat = Policy(4, Discrete(2), (8,), jax.random.key(5), observation_scale=scale)
    policy = eqx.tree_at(lambda p: p.network.weights[-1], flat, 300 * flat.network.weights[-1])
    write(flat_policy(policy), folder / "first.npz", {})
    return policy, folder / "first.npz"


def test_a_first_policy_is_one_of_those_to_choose_from(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_is_best(config, policies: Policy, key, episodes: int, greedy: bool) -> np.ndarray:
        best = np.zeros((policies.network.weights[0].shape[0], episodes))
        assert len(best) == config.rounds + 1
        best[0] = 1.0
        return best

    monkeypatch.setattr(expert_offline_votes, "evaluate", first_is_best)
    policy, file = first_policy(tmp_path)
    config = filled(settings(states="students", first_policy=str(file)), sources.facts)
    expert_offline.check(config)
    ledger = new_ledger(tmp_path, config)
    student = trained(config, [ledger], sources, [tmp_path]).student
    seen = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    kept = jax.tree.map(lambda x: x[0], student)
    np.testing.assert_allclose(kept(seen).logits, policy(seen).logits, atol=1e-5)


@pytest.mark.parametrize("states", ["students", "box", "rollouts"])
def test_students_of_clones_start_from_a_first_policy_too(
    states: str, sources: Sources, tmp_path: Path
) -> None:
    """With hardly any epsilon the student acts as the first policy, and the certificate says so."""
    policy, file = first_policy(tmp_path)
    noise = {"target_epsilon": 1e-3, "delta": 1e-6}
    changes = noise | {"states": states, "voters": "clones", "choice_episodes": 0}
    config = filled(settings(**changes, first_policy=str(file)), sources.facts)
    ledger = new_ledger(tmp_path, config)
    student = trained(config, [ledger], sources, [tmp_path]).student
    kept = jax.tree.map(lambda x: x[0], student)
    seen = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)
    same = np.asarray(kept(seen).mode() == policy(seen).mode())
    assert same.mean() > 0.9
    assumed = [one.statement for one in derive(ledger).assumptions]
    assert any("made without data of the protected people" in one for one in assumed)


def test_among_equals_the_last_student_is_chosen(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def equal(config, policies: Policy, key, episodes: int, greedy: bool) -> np.ndarray:
        return np.zeros((policies.network.weights[0].shape[0], episodes))

    monkeypatch.setattr(expert_offline_votes, "evaluate", equal)
    _, file = first_policy(tmp_path)
    config = filled(settings(states="students", first_policy=str(file)), sources.facts)
    ledgers = [new_ledger(tmp_path, config)]
    (progress,) = expert_offline.train(config, [3], ledgers, sources, None, 0, [tmp_path])
    assert progress.released["chosen_student"].tolist() == [[config.rounds]]
    plays = config.choice_episodes * config.evaluation_cap
    without = expert_offline.env_steps(replace(config, first_policy=None))
    assert expert_offline.env_steps(config) == without + plays


def test_a_poll_whose_answers_are_all_lost_says_so(sources: Sources, tmp_path: Path) -> None:
    config = filled(settings(states="students"), sources.facts)
    ledger = new_ledger(tmp_path, config)
    trained(config, [ledger], sources, [tmp_path])
    for file in tmp_path.glob("*.votes"):
        file.unlink()
    reopened = Ledger.open(tmp_path / "ledger.sqlite")
    with pytest.raises(NothingReleased, match="charged, and their answers are lost"):
        trained(config, [reopened], sources, [tmp_path])


def test_a_run_is_bound_to_its_first_policy(tmp_path: Path) -> None:
    _, file = first_policy(tmp_path)
    config = settings(first_policy=str(file))
    begun = replace(config, first_policy_identity=algorithm._first_policy_identity(config))
    assert algorithm._first_policy_identity(begun) == begun.first_policy_identity
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="has changed since the run began"):
        next(algorithm.ExpertOffline().train(replace(begun, dataset=None), [0], [], None, 0, []))
    file.unlink()
    with pytest.raises(ValueError, match="there is no such file"):
        algorithm._first_policy_identity(begun)


def test_a_first_policy_of_another_shape_is_refused(sources: Sources, tmp_path: Path) -> None:
    _, file = first_policy(tmp_path)
    config = settings(states="students", first_policy=str(file), student_hidden=(9,))
    with pytest.raises(
        ValueError, match=r"first.npz has layers of \[4, 8, 2\].* of student_hidden"
    ):
        expert_offline.check(filled(config, sources.facts))
    config = settings(states="students", first_policy=str(tmp_path / "none.npz"))
    with pytest.raises(ValueError, match="there is no such file"):
        expert_offline.check(filled(config, sources.facts))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"delta": 1 / COUNT}, "vacuous for 40 experts"),
        ({"expert_count": 41}, "not of 41"),
        ({"env_id": "none"}, "needs an environment"),
        ({"env_id": "none", "states": "box"}, "give --box-low"),
        ({"observation_scale": (1.0,)}, "has 1 numbers, but an observation has 4"),
        ({"env_id": "LunarLander-v3"}, "has 8 numbers in LunarLander-v3 and 4 in the data; give"),
        ({"env_id": "Acrobot-v1"}, "has 6 numbers in Acrobot-v1 and 4 in the data; give --env-id"),
        ({"method": "dp-sgd", "batch": COUNT}, "below the 40 experts"),
    ],
)
def test_settings_that_do_not_fit_the_data(changes, says) -> None:
    if changes.get("env_id") == "none" and "states" not in changes:
        changes = changes | {"states": "students"}
    with pytest.raises(ValueError, match=says):
        filled(settings(**changes), CARTPOLE)


def test_experts_and_logs_of_others_are_refused(sources: Sources) -> None:
    with pytest.raises(ValueError, match="give the log of these experts"):
        Sources(sources.experts, sources.log.of(0))


# --- whole trainings -----------------------------------------------------------------------------


def evaluated(config: ExpertOfflineConfig, seeds: list[int], sources: Sources, folder) -> Result:
    arm = Arm("an arm", "An arm", config, tuple(seeds), "arm", lambda *_: [], 1.0)
    return train_arm(arm, seeds, sources, folder, 4)


@pytest.mark.parametrize(
    "changes",
    [
        {"states": "students"},
        {"states": "rollouts", "learner": "cql"},
        {"states": "box", "voters": "clones"},
        {"method": "dp-sgd", "target_epsilon": 1.0},
        {"method": "prefix-only", "prefix_rule": "consensus", "releases": 2},
        {"method": "stable-prefix", "prefix_rule": "consensus", "releases": 2},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_all_of_the_budget_is_spent_and_no_more(changes, sources: Sources, tmp_path: Path) -> None:
    config = settings(**changes)
    arm = evaluated(config, [3], sources, tmp_path / "arm")
    assert arm.status == "proved"
    assert 0.975 * config.target_epsilon < arm.epsilon <= config.target_epsilon
    assert arm.returns["return"].shape == (1,)
    assert (arm.returns["return"] > 0).all()
    ledger = Ledger.open(tmp_path / "arm" / "seed-3" / "ledger.sqlite")
    assert ledger.unit == EXPERT
    streams = {one.statement.name: one.releases for one in ledger.streams}
    assert streams == {
        **({"votes": config.rounds} if config.uses_votes else {}),
        **({"stable prefixes": 2} if config.uses_prefixes else {}),
        **({"gradients": 25} if config.uses_dp_sgd else {}),
    }


def test_references_keep_no_ledger(sources: Sources, tmp_path: Path) -> None:
    for method in ("cql", "bc"):
        arm = evaluated(plain(method=method), [0, 1], sources, tmp_path / method)
        assert (arm.epsilon, arm.status) == (None, "none")
        assert arm.returns["return"].shape == (2,)
        assert not (tmp_path / method / "seed-0" / "ledger.sqlite").exists()


def test_votes_teach_what_most_experts_do(sources: Sources, tmp_path: Path) -> None:
    """With noise of a twentieth of the experts a student balances as well as they do."""
    changes = {"queries": 100, "lanes": 8, "rollout_cap": 100}
    arm = evaluated(settings(**changes), [0], sources, tmp_path / "arm")
    assert arm.returns["return"] > 47.5  # of four episodes of at most 50 steps, so each has over 40


def test_gymnasium_plays_what_is_not_written_in_jax(tmp_path: Path) -> None:
    pytest.importorskip("Box2D")
    one = Policy(8, Discrete(4), (), jax.random.key(0))
    rng = np.random.default_rng(0)
    experts = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(0, 1, (COUNT, *x.shape)), jnp.float32), one
    )
    sources = Sources(experts, None, "LunarLander-v3")
    config = filled(settings(dataset=None, rollout_cap=5, evaluation_cap=5), sources.facts)
    assert config.states == "students"
    states = trained(config, [new_ledger(tmp_path, config)], sources, [tmp_path])
    policy = expert_offline_states.policies(states)["ema"]
    returns = expert_offline_states.evaluate(config, policy, jax.random.key(1), 3, True)
    assert returns.shape == (1, 3)
    assert np.isfinite(returns).all()
    assert len(np.unique(returns)) == 3  # every episode has a different start


# --- noise ---------------------------------------------------------------------------------------


def test_the_noise_of_votes_meets_epsilon_by_an_independent_computation() -> None:
    config = filled(settings(target_epsilon=1.5), CARTPOLE)
    multiplier = expert_offline_votes.vote_multiplier(config)
    assert gaussian_delta(1 / multiplier, 1.5) <= config.delta
    assert gaussian_delta(1 / (0.999 * multiplier), 1.5) > config.delta


@pytest.mark.parametrize("method", ["votes", "dp-sgd", "stable-prefix"])
def test_less_noise_than_calibrated_is_refused(
    method, sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = filled(
        settings(method=method, prefix_rule="consensus", releases=2),
        sources.facts,
    )
    votes, gradients = expert_offline_votes.vote_multiplier, expert_offline.gradient_multiplier
    monkeypatch.setattr(expert_offline_votes, "vote_multiplier", lambda c: 0.98 * votes(c))
    monkeypatch.setattr(expert_offline, "gradient_multiplier", lambda c: 0.98 * gradients(c))
    with pytest.raises(BudgetExceeded, match="over the budget"):
        trained(config, [new_ledger(tmp_path, config)], sources, [tmp_path])


def test_prefixes_and_gradients_share_one_budget_jointly(sources: Sources) -> None:
    """Joint composition leaves DP-SGD more than epsilon minus the prefixes' share."""
    both = settings(method="stable-prefix", prefix_rule="consensus", releases=2)
    both = filled(both, sources.facts)
    rest = replace(both, target_epsilon=10.0, delta=both.delta / 2)
    alone = replace(rest, method="dp-sgd")
    assert expert_offline.gradient_multiplier(both) < expert_offline.gradient_multiplier(alone)


# --- interruptions -------------------------------------------------------------------------------


def killed_after(rounds: int, monkeypatch: pytest.MonkeyPatch, before_writing: bool = False):
    """Stops the poll after some rounds, before or after the votes of the next are on disk."""
    ask, append, done = (
        expert_offline_votes.KeptVotes.ask,
        expert_offline_votes.ReleaseFile.append,
        [],
    )

    def dying(self, observations):
        if len(done) == rounds and not before_writing:
            raise Killed
        done.append(1)
        return ask(self, observations)

    def unwritten(self, points, noisy):
        if len(done) > rounds:
            raise Killed
        append(self, points, noisy)

    monkeypatch.setattr(expert_offline_votes.KeptVotes, "ask", dying)
    if before_writing:
        monkeypatch.setattr(expert_offline_votes.ReleaseFile, "append", unwritten)


@pytest.mark.parametrize("states", ["students", "rollouts", "box"])
def test_a_poll_goes_on_from_votes_on_disk(
    states, sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = filled(settings(states=states), sources.facts)
    ledger = new_ledger(tmp_path, config)
    with monkeypatch.context() as patch:
        killed_after(2, patch)
        with pytest.raises(Killed):
            trained(config, [ledger], sources, [tmp_path])
    assert [stream.releases for stream in ledger.streams] == [2]
    reopened = Ledger.open(tmp_path / "ledger.sqlite")
    spent = reopened.spent().epsilon
    first = trained(config, [reopened], sources, [tmp_path])
    assert [stream.releases for stream in reopened.streams] == [3]
    assert reopened.spent().epsilon == spent <= config.target_epsilon
    # The third time everything is on disk, so nothing is asked and the result is the same.
    again = Ledger.open(tmp_path / "ledger.sqlite")
    second = trained(config, [again], sources, [tmp_path])
    assert [stream.releases for stream in again.streams] == [3]
    for one, other in zip(numbers(first), numbers(second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_round_that_was_charged_and_not_written_is_over(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = filled(settings(states="students"), sources.facts)
    with monkeypatch.context() as patch:
        killed_after(1, patch, before_writing=True)
        with pytest.raises(Killed):
            trained(config, [new_ledger(tmp_path, config)], sources, [tmp_path])
    reopened = Ledger.open(tmp_path / "ledger.sqlite")
    (progress,) = expert_offline.train(config, [0], [reopened], sources, folders=[tmp_path])
    assert progress.released["lost_rounds"].tolist() == [[1.0]]
    assert [stream.releases for stream in reopened.streams] == [3]
    assert derive(reopened).epsilon <= config.target_epsilon


def test_another_polls_votes_are_refused(sources: Sources, tmp_path: Path) -> None:
    config = filled(settings(states="box"), sources.facts)
    trained(config, [new_ledger(tmp_path, config)], sources, [tmp_path])
    again = Ledger.open(tmp_path / "ledger.sqlite")
    with pytest.raises(PrivacyError, match="plays another poll"):
        list(expert_offline.train(config, [1], [again], sources, folders=[tmp_path]))


def test_prefixes_are_released_once(sources: Sources, tmp_path: Path) -> None:
    config = filled(
        settings(method="prefix-only", prefix_rule="consensus", releases=2),
        sources.facts,
    )
    ledger = new_ledger(tmp_path, config)
    key, file = jax.random.key(0), tmp_path / "some.prefixes"
    arguments = (config, sources.experts)
    first = prefixes.stable_transitions(*arguments, ledger, key, 0, file)
    reopened = Ledger.open(tmp_path / "ledger.sqlite")
    again = prefixes.stable_transitions(*arguments, reopened, key, 0, file)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
        assert one.dtype == other.dtype
    assert len(reopened.streams) == 1
    (protected,) = derive(reopened).protects
    assert protected.startswith("What each expert would do, as far as it shows in actions")
    other = new_ledger(tmp_path / "uncharged", config)
    with pytest.raises(LedgerCorrupt, match="restore the ledger from a newer backup"):
        prefixes.stable_transitions(*arguments, other, key, 0, file)
    file.unlink()
    with pytest.raises(PrivacyError, match="never written: nothing was released"):
        prefixes.stable_transitions(*arguments, reopened, key, 0, file)


def test_noisy_steps_are_charged_once_however_often_interrupted(
    sources: Sources, tmp_path: Path
) -> None:
    """Two parts of the ten are lost after their charge and are not made again."""
    config = filled(settings(method="dp-sgd"), sources.facts)
    ledger = new_ledger(tmp_path, config)
    training = expert_offline.train(config, [0], [ledger], sources)
    third = [next(training) for _ in range(5)][2]
    training.close()
    assert ledger.streams[0].releases == 15
    reopened = Ledger.open(tmp_path / "ledger.sqlite")
    *_, last = expert_offline.train(config, [0], [reopened], sources, third.states, 3)
    assert last.updates == config.num_updates
    assert [stream.releases for stream in reopened.streams] == [25]
    assert reopened.spent().epsilon <= config.target_epsilon
    assert int(last.states.learner.steps[0]) == 25 - (15 - 9)


def test_a_run_that_lost_more_than_another_goes_on_with_it(
    sources: Sources, tmp_path: Path
) -> None:
    config = filled(settings(method="dp-sgd"), sources.facts)
    ledgers = [new_ledger(tmp_path / name, config) for name in "ab"]
    next(expert_offline.train(config, [0, 1], ledgers, sources))
    alone = Ledger.open(tmp_path / "a" / "ledger.sqlite")
    alone.resume_stream(alone.streams[0].statement).charge(3, 2, None)
    reopened = [Ledger.open(tmp_path / name / "ledger.sqlite") for name in "ab"]
    *_, _ = expert_offline.train(config, [0, 1], reopened, sources)
    assert [one.streams[0].releases for one in reopened] == [25, 25]


def test_a_budget_of_another_unit_is_refused(sources: Sources, tmp_path: Path) -> None:
    config = filled(settings(), sources.facts)
    unit = EXPERT.model_copy(update={"kind": "trajectory"})
    ledger = Ledger.create(
        tmp_path / "ledger.sqlite", unit=unit, budget=Budget(epsilon=5, delta=config.delta)
    )
    with pytest.raises(PrivacyError, match="this ledger protects"):
        trained(config, [ledger], sources, [tmp_path])
