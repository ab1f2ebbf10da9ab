"""DPPG: the algorithm, its critics and units, its certificate, and what it must not do."""

import dataclasses
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_noise import fixed_noise
from small_runs import SMALL_DPPG

from sotto.algorithms.dppg import critics, local_updates, noise, release
from sotto.algorithms.dppg.algorithm import DPPG
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.dppg.training import (
    DPPGTraining,
    create_ledger,
    evaluate_policy,
    initial_states,
    policies,
    public_fisher,
    training_environment,
)
from sotto.cli import main
from sotto.privacy.accounting.gaussian import largest_shift
from sotto.privacy.audits.auditable import Door
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import LedgerCorrupt, PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.declaration import noise_scales
from sotto.rl.envs.registry import make
from sotto.rl.networks import Value
from sotto.rl.rollout import rollout

TINY = {
    "total_steps": 4 * 32 * 3,
    "users_per_update": 4,
    "steps_per_user": 32,
    "hidden": (4,),
    "critic_hidden": (4,),
    "evaluation_episodes": 2,
    "delta": 1e-3,
}


def _tiny(**changes):
    name, env_id = changes.pop("name", "sotto"), changes.pop("env_id", "CartPole-v1")
    return preset(name, env_id, **(TINY | changes))


def _train(config, folder, runs=1, **keywords):
    ledgers = [create_ledger(config, folder / f"{i}.sqlite") for i in range(runs)]
    training = DPPGTraining(config, range(runs), ledgers, **keywords)
    return training, list(training), ledgers


@pytest.mark.parametrize(
    ("critic", "local_update"),
    [
        ("none", "adam"),
        ("private", "adam"),
        ("local", "one-step"),
        ("public", "one-step"),
        ("paper", "adam"),
    ],
)
def test_every_critic_trains_and_its_certificate_says_what_is_proved(
    critic, local_update, tmp_path
):
    config = _tiny(critic=critic, local_update=local_update, local_epochs=2, local_minibatches=2)
    _, chunks, (ledger,) = _train(config, tmp_path)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(chunks[-1].states))
    certificate = derive(ledger)
    if critic == "paper":
        assert certificate.status == "paper-claim"
        assert math.isinf(certificate.epsilon)
        assert any("critic" in gap.name for gap in certificate.gaps)
    else:
        assert certificate.status == "proved"
        assert 1.29 < certificate.epsilon <= 1.3


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """A training with the paper's settings: these, what it yielded and its ledger."""
    config = _tiny(name="paper", unit="segment")
    _, chunks, (ledger,) = _train(config, tmp_path_factory.mktemp("paper"))
    return config, chunks, ledger


def test_paper_preset_is_labelled(paper):
    config, chunks, ledger = paper
    assert (config.local_epochs, config.local_minibatches, config.clip_norm) == (8, 2, 0.05)
    certificate = derive(ledger)
    assert certificate.status == "paper-claim"
    assert {"non-private critic", "continuing segments"} <= {gap.name for gap in certificate.gaps}
    assert chunks[-1].updates == config.num_updates


def test_a_joint_critic_costs_what_the_policy_alone_costs(tmp_path):
    separate, joint = _tiny(critic="private"), _tiny(critic="private", joint_clip=True)
    total = noise.total_noise_multiplier(separate, 100)
    multipliers = noise.part_multipliers(separate, total)
    assert 1 / math.sqrt(sum(z**-2 for z in multipliers.values())) == pytest.approx(total)
    assert noise.part_multipliers(joint, total) == {"policy": total, "critic": total}
    _, _, (ledger,) = _train(joint, tmp_path)
    assert derive(ledger).epsilon == pytest.approx(1.3, abs=1e-3)


def test_the_certificate_names_a_critic_that_is_released(tmp_path):
    for critic, seen in (("private", True), ("public", False)):
        config = _tiny(critic=critic)
        ledger = create_ledger(config, tmp_path / f"{critic}.sqlite")
        protected = DPPGTraining(config, [0], [ledger]).statement.protects
        assert any("noisy sums that show a critic" in one for one in protected) is seen


def test_replace_one_needs_twice_the_noise(tmp_path):
    zero_out, replace_one = _tiny(), _tiny(adjacency="replace-one")
    ratio = noise.total_noise_multiplier(replace_one, 50) / noise.total_noise_multiplier(
        zero_out, 50
    )
    assert ratio == pytest.approx(2.0, rel=1e-6)
    _, _, (ledger,) = _train(replace_one, tmp_path)
    certificate = derive(ledger)
    assert certificate.epsilon == pytest.approx(1.3, abs=1e-3)
    assert "any other data in its place" in certificate.unit_sentence


def test_released_noise_has_the_scale_the_certificate_claims(tmp_path):
    """The update's spread over releases is z S / K; a scale 10% too small would be rejected."""
    config = _tiny(
        total_steps=4 * 2 * 400,
        steps_per_user=2,
        correlated_noise=False,
        noise_multiplier=50.0,
        clip_norm=0.01,
        hidden=(8,),
        evaluation_episodes=0,
        delta=1e-5,
    )
    _, chunks, _ = _train(config, tmp_path)
    norms = np.concatenate([chunk.released["update_norm"][0] for chunk in chunks])
    dimension = 4 * 8 + 8 + 8 * 2 + 2
    measured = np.sqrt(np.mean(norms**2) / dimension)
    claimed = 50.0 * 0.01 / 4
    assert measured == pytest.approx(claimed, rel=0.03)
    assert measured != pytest.approx(0.9 * claimed, rel=0.03)


def test_one_users_data_moves_only_their_own_contribution(tmp_path):
    """A user's rollout depends on their own key: absent neighbours change nobody else's part."""
    config = _tiny()
    env = training_environment(config)
    state = jax.tree.map(lambda x: x[0], initial_states(config, [0]))
    keys = jax.random.split(jax.random.key(3), 4)
    local = lambda key: release._local(config, env, 0.03, state, (), key)[0]  # noqa: E731
    together = jax.vmap(local)(keys)
    alone = jax.vmap(local)(keys[1:2])
    for both, one in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(both[1], one[0], rtol=1e-4, atol=1e-6)


def test_local_adam_stays_in_the_ball_and_improves_its_objective():
    config = _tiny(local_update="adam", local_epochs=8, local_minibatches=2, learning_rate=1e-2)
    env = training_environment(config)
    state = jax.tree.map(lambda x: x[0], initial_states(config, [0]))
    seen = rollout(env, env.default_params, state.policy, jax.random.key(1), 32, False)
    advantages = jax.random.normal(jax.random.key(2), (32,))
    old = state.policy(seen.observations).log_prob(seen.actions)
    change = local_updates.local_adam(
        config,
        0.05,
        state.policy,
        seen,
        advantages,
        state.previous,
        state.updates,
        jax.random.key(4),
    )
    norm = math.sqrt(sum(float(jnp.sum(x**2)) for x in jax.tree.leaves(change)))
    assert norm <= 0.05 * (1 + 1e-5)
    moved = jax.tree.map(jnp.add, state.policy, change)
    before = local_updates.objective(state.policy, config, seen, old, advantages)
    assert local_updates.objective(moved, config, seen, old, advantages) > before


def test_adams_first_step_has_the_moments_of_the_previous_release_or_none():
    """One step on all rows: sign of the gradient with fresh moments, and else the paper's rule."""
    rate, radius = 1e-3, 10.0
    config = _tiny(local_update="adam", local_epochs=1, local_minibatches=1, learning_rate=rate)
    env = training_environment(config)
    state = jax.tree.map(lambda x: x[0], initial_states(config, [0]))
    seen = rollout(env, env.default_params, state.policy, jax.random.key(1), 32, False)
    advantages = jax.random.normal(jax.random.key(2), (32,))
    old = state.policy(seen.observations).log_prob(seen.actions)
    previous = jax.tree.map(lambda x: jnp.full(x.shape, 0.05), state.policy)
    gradient = jax.grad(local_updates.objective)(state.policy, config, seen, old, advantages)
    given = radius, state.policy, seen, advantages, previous, jnp.int32(2), jax.random.key(4)
    for carried, first, count in ((True, 0.05, 3), (False, 0.0, 1)):
        changed = dataclasses.replace(config, carry_moments=carried)
        found = local_updates.local_adam(changed, *given)
        for one, g in zip(*map(jax.tree.leaves, (found, gradient)), strict=True):
            mean = (0.9 * first + 0.1 * np.asarray(g, float)) / (1 - 0.9**count)
            square = (0.999 * first**2 + 0.001 * np.asarray(g, float) ** 2) / (1 - 0.999**count)
            np.testing.assert_allclose(
                one, rate * mean / (np.sqrt(square) + 1e-5), rtol=2e-3, atol=1e-7
            )


def test_clip_ratio_stops_the_gradient_beyond_it():
    config = _tiny(clip_ratio=0.1, entropy_coefficient=0.0)
    env = training_environment(config)
    state = jax.tree.map(lambda x: x[0], initial_states(config, [0]))
    seen = rollout(env, env.default_params, state.policy, jax.random.key(1), 32, True)
    far_below = state.policy(seen.observations).log_prob(seen.actions) - 1.0
    gradient = jax.grad(local_updates.objective)(
        state.policy, config, seen, far_below, jnp.ones((32,))
    )
    assert all(float(jnp.abs(x).max()) == 0.0 for x in jax.tree.leaves(gradient))


def test_averages_are_the_averages_of_released_policies(tmp_path):
    config = _tiny(total_steps=4 * 32 * 6, ema_decay=0.5, tail_fraction=0.5)
    ledger = create_ledger(config, tmp_path / "ledger.sqlite")
    training = DPPGTraining(config, [0], [ledger])
    assert training.chunk_updates == 1
    first = training.states
    seen = [progress.states.policy.network.weights[0] for progress in training]
    ema = first.policy.network.weights[0]
    for weights in seen:
        ema = 0.5 * ema + 0.5 * weights
    np.testing.assert_allclose(training.states.ema.network.weights[0], ema, rtol=1e-4, atol=1e-6)
    tail = np.mean(seen[3:], axis=0)
    np.testing.assert_allclose(training.states.tail.network.weights[0], tail, rtol=1e-4, atol=1e-6)


def test_own_values_are_the_ridge_solution():
    config = _tiny(critic="local")
    env = training_environment(config)
    state = jax.tree.map(lambda x: x[0], initial_states(config, [0]))
    seen = rollout(env, env.default_params, state.policy, jax.random.key(1), 40, True)
    values, _ = critics.own_values(seen, env.observation_scale, 10.0, 0.9)
    alive = np.asarray(seen.alive)
    scaled = np.asarray(seen.observations) * np.asarray(env.observation_scale)
    pairs = [0.25 * scaled[:, i] * scaled[:, j] for i in range(4) for j in range(i, 4)]
    features = np.stack([np.ones(40), *(0.5 * scaled.T), *pairs], axis=1) * alive[:, None]
    returns, later = np.zeros(40), 10.0
    for t in reversed(range(40)):
        if not alive[t]:
            continue
        later = float(seen.rewards[t]) + (0.0 if seen.terminated[t] else 0.9 * later)
        returns[t] = later - 10.0
    weights = np.linalg.solve(features.T @ features + np.eye(15), features.T @ returns)
    np.testing.assert_allclose(values[alive], 10.0 + (features @ weights)[alive], rtol=1e-3)


def test_critic_fit_lowers_its_error():
    critic = Value(3, (8,), jax.random.key(0), scale=2.0)
    inputs = jax.random.normal(jax.random.key(1), (50, 3))
    targets = 2.0 * inputs[:, 0]
    change, _ = critics.fit(critic, inputs, targets, jnp.ones(50), learning_rate=1e-2, steps=100)
    fitted = jax.tree.map(jnp.add, critic, change)
    error = lambda c: float(jnp.mean((c(inputs) - targets) ** 2))  # noqa: E731
    assert error(fitted) < 0.1 * error(critic)


def test_a_fit_goes_on_from_moments_of_an_earlier_one():
    critic = Value(3, (8,), jax.random.key(0))
    inputs = jax.random.normal(jax.random.key(1), (50, 3))
    rows, rate = (inputs, 2.0 * inputs[:, 0], jnp.ones(50)), {"learning_rate": 1e-2}
    whole, end = critics.fit(critic, *rows, **rate, steps=10)
    half, moments = critics.fit(critic, *rows, **rate, steps=6)
    middle = jax.tree.map(jnp.add, critic, half)
    rest, after = critics.fit(middle, *rows, **rate, steps=4, moments=moments, before=6)
    together = jax.tree.map(jnp.add, half, rest)
    for one, other in ((together, whole), (after, end)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), one, other)


def test_the_papers_critic_carries_adams_moments_from_update_to_update(paper, tmp_path):
    """With moments that start anew, the settings are far from the paper's returns."""
    config, chunks, _ = paper
    moments = chunks[-1].states.moments
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(moments))
    # After n steps with one gradient g, a second moment is (1 - .999^n) g^2: it grows with n.
    first = dataclasses.replace(config, total_steps=config.steps_per_update)
    _, chunks, _ = _train(first, tmp_path)
    total = lambda m: sum(float(x.sum()) for x in jax.tree.leaves(m.square))  # noqa: E731
    assert total(moments) > 1.5 * total(chunks[-1].states.moments)


def test_the_papers_critic_goes_on_counting_adams_steps(monkeypatch):
    config, env, given = _tiny(name="paper", unit="segment"), make("CartPole-v1"), []
    state = release.initial_state(config, env, jnp.int32(0))._replace(updates=jnp.int32(3))
    steps = config.steps_per_user
    user = rollout(env, env.default_params, state.policy, jax.random.key(0), steps, False)
    fit = critics.fit
    monkeypatch.setattr(critics, "fit", lambda *a, **k: (given.append(k), fit(*a, **k))[1])
    parts, _ = release._local(config, env, 1.0, state, user, jax.random.key(1))
    assert int(given[0]["before"]) == 3 * config.critic_steps
    change, moments = parts["critic"]
    after, _ = release._server(
        config, env, state, {"policy": state.policy, "critic": parts["critic"]}
    )
    for one, other in (
        (after.moments, moments),
        (after.critic, jax.tree.map(jnp.add, state.critic, change)),
    ):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_without_critic_steps_the_papers_critic_has_the_minibatches_of_the_policy(monkeypatch):
    more = {"local_epochs": 2, "local_minibatches": 4, "critic_steps": None}
    config, env, given = _tiny(name="paper", unit="segment", **more), make("CartPole-v1"), []
    state = release.initial_state(config, env, jnp.int32(0))._replace(updates=jnp.int32(3))
    user = rollout(
        env, env.default_params, state.policy, jax.random.key(0), config.steps_per_user, False
    )
    fit, whole = critics.fit, np.arange(config.steps_per_user)
    monkeypatch.setattr(critics, "fit", lambda *a, **k: (given.append(k), fit(*a, **k))[1])
    release._local(config, env, 1.0, state, user, jax.random.key(1))
    rows = np.asarray(given[0]["steps"])
    assert rows.shape == (8, config.steps_per_user // 4)
    for epoch in rows.reshape(2, -1):
        np.testing.assert_array_equal(np.sort(epoch), whole)
    assert int(given[0]["before"]) == 3 * 8
    with pytest.raises(ValueError, match="give critic_steps, unless critic is private or paper"):
        _tiny(critic="public", critic_steps=None)


def test_a_minibatch_of_all_rows_makes_a_step_on_all_of_them():
    critic = release.initial_state(
        _tiny(name="paper", unit="segment"), make("CartPole-v1"), jnp.int32(0)
    ).critic
    rng = np.random.default_rng(0)
    data = rng.normal(size=(32, 4)), rng.normal(size=32), rng.uniform(size=32) < 0.8
    data = [jnp.asarray(x, jnp.float32) for x in data]
    orders = jnp.asarray([rng.permutation(32) for _ in range(5)])
    found, expected = (
        critics.fit(critic, *data, learning_rate=1e-2, steps=steps)[0] for steps in (orders, 5)
    )
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)
    halves = critics.fit(critic, *data, learning_rate=1e-2, steps=orders[:, :16])[0]
    assert (
        max(map(lambda a, b: float(jnp.abs(a - b).max()), *map(jax.tree.leaves, (halves, found))))
        > 1e-4
    )


def test_seeds_side_by_side_have_their_own_noise_ledger_and_certificate(tmp_path):
    config = _tiny()
    _, chunks, ledgers = _train(config, tmp_path, runs=3)
    norms = chunks[-1].released["update_norm"]
    assert norms.shape[0] == 3
    assert len({float(n) for n in norms[:, 0]}) == 3
    assert len({derive(ledger).run_id for ledger in ledgers}) == 3
    assert all(derive(ledger).persons == config.users for ledger in ledgers)


def test_the_same_training_seed_never_gives_the_same_noise(tmp_path):
    config = _tiny()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _, first, _ = _train(config, tmp_path / "a")
    _, second, _ = _train(config, tmp_path / "b")
    assert not np.array_equal(first[-1].released["update_norm"], second[-1].released["update_norm"])


def test_a_fixed_noise_seed_needs_a_ledger_without_a_budget(tmp_path):
    ledger = create_ledger(_tiny(), tmp_path / "ledger.sqlite")
    with fixed_noise(1), pytest.raises(PrivacyError):
        DPPGTraining(_tiny(), [0], [ledger])


def test_resume_meets_new_people_and_never_exceeds_the_budget(tmp_path):
    config = _tiny(total_steps=4 * 32 * 6)
    ledger = create_ledger(config, tmp_path / "ledger.sqlite")
    training = DPPGTraining(config, [0], [ledger])
    training.advance()
    kept = training.advance()
    training.advance()  # charged, but lost: the process dies before its checkpoint
    resumed = DPPGTraining(config, [0], [ledger], states=kept.states, done=kept.updates)
    assert list(resumed)[-1].updates == 6
    certificate = derive(ledger)
    assert certificate.persons == 7 * config.users_per_update
    assert certificate.epsilon <= 1.3
    with pytest.raises(ValueError, match="have been made"):
        DPPGTraining(config, [0], [ledger], states=resumed.states, done=6)
    (tmp_path / "older").mkdir()
    older = create_ledger(config, tmp_path / "older" / "ledger.sqlite")
    with pytest.raises(LedgerCorrupt, match=r"was made under 4 charges.*\(it has 0\)"):
        DPPGTraining(config, [0], [older], states=kept.states, done=4)


def test_over_budget_is_refused_before_any_release(tmp_path):
    generous, strict = _tiny(target_epsilon=2.0), _tiny(target_epsilon=1.0)
    ledger = create_ledger(strict, tmp_path / "ledger.sqlite")
    with pytest.raises(PrivacyError):
        DPPGTraining(generous, [0], [ledger])
    assert ledger.persons == 0


def test_trust_region_sets_the_clip_norm(tmp_path):
    config = _tiny(clip_norm_from="l2-quantile", trust_region_radius=1e-3)
    training, _, _ = _train(config, tmp_path)
    assert 0 < training.clip_norm < 0.2
    assert training.clip_norm != config.clip_norm


def test_trust_region_counts_the_noise_that_is_really_added(tmp_path):
    """Correlated noise has a larger spread in each release than independent noise."""
    clips = {}
    for correlated in (True, False):
        config = _tiny(
            clip_norm_from="l2-quantile",
            trust_region_radius=1e-3,
            correlated_noise=correlated,
            evaluation_episodes=0,
            total_steps=4 * 32 * 8,
        )
        ledger = create_ledger(config, tmp_path / f"{correlated}.sqlite")
        clips[correlated] = DPPGTraining(config, [0], [ledger]).clip_norm
    assert clips[True] < 0.9 * clips[False]


@pytest.mark.parametrize("drawn", [{}, {"population_size": 400, "correlated_noise": False}])
def test_a_clip_norm_from_a_trust_region_is_the_first_policys_on_resuming_too(drawn, tmp_path):
    config = _tiny(
        hidden=(),
        noise_multiplier=1.0,
        clip_norm_from="kl-quantile",
        total_steps=4 * 32 * 40,
        evaluation_episodes=0,
        **drawn,
    )
    ledger = create_ledger(config, tmp_path / "ledger.sqlite", "run")
    begun = DPPGTraining(config, [0], [ledger])
    done = begun.advance()
    again = DPPGTraining(
        config, [0], [Ledger.open(tmp_path / "ledger.sqlite", "run")], done.states, done.updates
    )
    assert again.clip_norm == begun.clip_norm


@pytest.mark.parametrize(
    "changes",
    [
        {"correlated_noise": False},
        {"correlated_noise": True},
        {"correlated_noise": True, "participations": 3, "min_separation": 1},
    ],
)
def test_reach_is_the_largest_shift_of_the_best_statistic(changes):
    config = _tiny(noise_multiplier=5.0, target_epsilon=None, **changes)
    made, _ = DPPG().on_devices(config, config.num_updates)
    rows, deviations = Door(made, (), None).whitening(config.num_updates), noise_scales(made)
    rows = rows if isinstance(rows, np.ndarray) else rows.toarray()
    deviation = deviations["policy"] / made.parts["policy"].clip_norm
    signs = np.array(list(itertools.product((1, -1), repeat=config.num_updates)))
    most = np.linalg.norm(rows @ (4 * signs.T), axis=0).max() / deviation
    assert noise.reach(config, 5.0) == pytest.approx(most, rel=1e-6)


def test_noise_in_which_nothing_can_be_learned_is_said_before_the_training(capsys, tmp_path):
    words = ["train", "dppg", "--env-id", "CartPole-v1", *SMALL_DPPG, "--out", str(tmp_path / "x")]
    assert main([*words, "--target-epsilon", "1e-9", "--json"]) == 0
    said = capsys.readouterr()
    (warning,) = (line for line in said.err.splitlines() if "warning" in line)
    assert json.loads(said.out)["epsilon"] <= 1e-9
    config = _tiny(target_epsilon=1e-9, delta=1e-5)
    (sentence,) = DPPG().notes(config)
    z = noise.total_noise_multiplier(config, 1)
    assert f"with noise multiplier {z:.3g} the policy can learn nothing. " in sentence
    assert "Even if all 12 users agreed, they would move all releases together by " in sentence
    assert f" by {noise.reach(config, z):.2g} standard deviations of the noise. " in sentence
    assert warning.startswith(sentence.partition(" Even if")[0])
    for epsilon in (0.048, 1.3):
        assert DPPG().notes(preset("sotto", "CartPole-v1", target_epsilon=epsilon)) == ()


def test_sampling_is_counted_where_it_is_said_that_nothing_can_be_learned():
    drawn = {"population_size": 400, "correlated_noise": False}
    (sentence,) = DPPG().notes(_tiny(target_epsilon=1e-9, **drawn))
    assert "all 400 users agreed" in sentence
    assert DPPG().notes(_tiny(target_epsilon=1.0, **drawn)) == ()
    # At this epsilon four people are moved by less than one deviation of noise without sampling.
    config = _tiny(target_epsilon=0.2, **drawn)
    assert 4 * largest_shift(0.2, config.delta) < 1
    assert noise.reach(config, noise.total_noise_multiplier(config, 1)) > 1
    assert DPPG().notes(config) == ()


def test_noise_that_delta_alone_covers_costs_epsilon_0(tmp_path):
    config = _tiny(noise_multiplier=20_000.0)
    _, _, (ledger,) = _train(config, tmp_path)
    assert 0 < ledger.budget.epsilon <= 1e-6
    certificate = derive(ledger)
    assert (certificate.status, certificate.epsilon) == ("proved", 0.0)


def test_public_fisher_is_a_covariance_of_scores():
    config = _tiny(hidden=())
    env = training_environment(config)
    policy = jax.tree.map(lambda x: x[0], initial_states(config, [0]).policy)
    fisher = public_fisher(config, env, policy)
    assert fisher.shape == (10, 10)
    assert np.linalg.eigvalsh(fisher).min() > -1e-9
    # The score of the two logits' biases at a uniform policy is +-1/2.
    assert fisher[-1, -1] == pytest.approx(0.25, rel=0.02)


def test_gymnasium_environments_with_box_actions(tmp_path):
    config = preset(
        "sotto",
        "Pendulum-v1",
        total_steps=2 * 10 * 2,
        users_per_update=2,
        steps_per_user=10,
        delta=1e-3,
    )
    _, chunks, (ledger,) = _train(config, tmp_path)
    assert chunks[-1].updates == 2
    assert derive(ledger).status == "proved"
    returns = evaluate_policy(config, policies(chunks[-1].states)["ema"], jax.random.key(0), 2)
    assert returns.shape == (1, 2)
    assert (returns < 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": -1.0}, r"noise_multiplier must be in \[1e-6, 1e6\]; -1.0 is not"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier must be in .*; nan is not"),
        ({"target_epsilon": None}, "either target_epsilon or noise_multiplier"),
        ({"delta": 0.5}, "not below 1 / users"),
        ({"delta": 0.0}, r"delta must be in \(0, 1\)"),
        ({"total_steps": 10}, "less than one update"),
        ({"local_minibatches": 5}, "must divide"),
        ({"clip_norm": 0.0}, "clip_norm must be in"),
        ({"joint_clip": True}, "private critic"),
        ({"adjacency": "within-radius"}, "no radius"),
        ({"nonsense": 1}, "no setting 'nonsense'"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _tiny(**changes)


def test_too_little_noise_for_any_sampler_is_refused():
    with pytest.raises(ValueError, match="finite tails"):
        noise.total_noise_multiplier(_tiny(target_epsilon=300.0), 50)


def test_unknown_environment_is_refused(tmp_path):
    config = preset("sotto", "CartPole-v7", delta=1e-5)
    with pytest.raises(ValueError, match="CartPole-v7"):
        training_environment(config)


def test_the_recipe_learns_cartpole_under_a_certificate(tmp_path):
    config = preset("sotto", "CartPole-v1", target_epsilon=1.3, total_steps=200_000)
    _, chunks, (ledger, *_) = _train(config, tmp_path, runs=4)
    returns = evaluate_policy(config, policies(chunks[-1].states)["ema"], jax.random.key(5), 20)
    # The noise is never seeded: single trainings of 16 gave 330 to 500 (438 +- 52), a random
    # policy 22. The mean of four is below this once in far more runs than will ever be made.
    assert returns.mean() > 250
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert certificate.epsilon <= 1.3


def test_config_type_is_plain_and_frozen():
    assert dataclasses.is_dataclass(DPPGConfig)
    with pytest.raises(dataclasses.FrozenInstanceError):
        _tiny().clip_norm = 1.0
