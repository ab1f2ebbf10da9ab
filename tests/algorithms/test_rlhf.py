"""Private RLHF from settings to adapters: refusals, public choices, releases, and what follows."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from rlhf_people import NEW, PEOPLE, PROMPT, config, simulated, write_log
from tiny_models import model

from sotto.algorithms.base import Progress
from sotto.algorithms.rlhf import evaluation, improvement, training
from sotto.algorithms.rlhf.algorithm import RLHF, _require_effect
from sotto.algorithms.rlhf.answers import TunedModel, answers, divergences
from sotto.algorithms.rlhf.config import PAPER, RLHFConfig, kl_of_choice
from sotto.algorithms.rlhf.directions import first_adapter, public_directions
from sotto.algorithms.rlhf.features import RewardModel, Whitening, fit_whitening, raw_features
from sotto.algorithms.rlhf.feedback import Rated
from sotto.algorithms.rlhf.improvement import Candidates
from sotto.algorithms.rlhf.keys import Use, key_for
from sotto.algorithms.rlhf.people import complete, log_ratios, meet, require_prompts
from sotto.algorithms.rlhf.release import make_release
from sotto.errors import RunError
from sotto.keys import new_key
from sotto.privacy.accounting.composition import gaussian_epsilon
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger.ledger import Ledger

# --- settings ------------------------------------------------------------------------------------

REFUSED: dict[str, dict[str, Any]] = {
    "give either target_epsilon or noise_multiplier": {"target_epsilon": 1.0},
    "delta 0.1 is vacuous for 12 people; use a delta below 1/12": {"delta": 0.1},
    "13 releases need as many people; there are 12": {"releases": 13},
    "12 people cannot be divided among 5 releases": {"releases": 5, "method": "best-of-n"},
    "reward-model makes one release with everybody; leave out releases": {"releases": 2},
    "ratings of a file are of completions of the base model; use one release": {
        "feedback": "log.jsonl",
        "releases": 2,
        "method": "policy-gradient",
    },
    "real people's feedback needs --public-prompts of your own domain": {"feedback": "log.jsonl"},
    "reward-model tunes steering vectors; leave out adapter": {"adapter": "lora"},
    "best-of-n has no reward model that chooses; leave out reranked": {
        "method": "best-of-n",
        "reranked": 2,
    },
    "a choice among 7 completions may differ from the base model by 1.09 nats": {"reranked": 7},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_settings_that_contradict_each_other_are_refused(sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        config(**REFUSED[sentence])


def test_settings_that_the_method_does_not_read_are_refused_in_new_runs() -> None:
    odd = RLHFConfig(method="best-of-n", kl_coefficient=0.1)  # an earlier run may have it
    with pytest.raises(ValueError, match="kl_coefficient has no effect with best-of-n"):
        RLHF().resolved(odd)
    for settings in (RLHFConfig(), RLHFConfig(**PAPER), replace(odd, method="policy-gradient")):
        _require_effect(settings)
    _require_effect(RLHFConfig(method="best-of-n", directions=4))


def test_a_file_that_only_config_json_names_is_not_read() -> None:
    settings = config(feedback="log.jsonl", public_prompts="public.txt")
    named = {"model": "m", "feedback": "f"}
    with pytest.raises(ValueError, match=r"only config\.json names the file public\.txt"):
        RLHF().use(None, settings, named)
    RLHF().use(None, settings, named | {"public_prompts": "p"})


def test_seeds_do_not_train_side_by_side() -> None:
    with pytest.raises(ValueError, match="train them one after the other"):
        RLHF().check_seeds(config(), [0, 1])


def test_the_base_model_of_an_adapter_has_a_name_that_peft_loads(tmp_path: Path) -> None:
    assert training.base_name("smollm2") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert training.base_name(str(tmp_path)) == str(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert training.base_name(str(tmp_path / "x.gguf")) is None


# --- public choices ------------------------------------------------------------------------------


def test_directions_are_orthonormal_and_computed_without_people() -> None:
    settings, key = config(method="policy-gradient"), new_key(3)
    adapter = first_adapter(settings, simulated().language.decoder.architecture)
    found = np.asarray(public_directions(settings, simulated(), adapter, key), np.float64)
    assert found.shape == (4, ravel_pytree(adapter)[0].size)
    np.testing.assert_allclose(found @ found.T, np.eye(4), atol=1e-5)
    others = public_directions(settings, simulated(50), adapter, key)
    np.testing.assert_array_equal(found, np.asarray(others, np.float64))


def test_directions_that_the_public_prompts_do_not_span_are_refused() -> None:
    settings = config(method="policy-gradient", directions=33)
    adapter = first_adapter(settings, simulated().language.decoder.architecture)
    with pytest.raises(ValueError, match="33 directions need as many"):
        public_directions(settings, simulated(), adapter, new_key(3))


def some_candidates(prompts: int = 6, candidates: int = 3) -> Candidates:
    """Candidates whose tokens say which they are."""
    rng = np.random.default_rng(0)
    number = np.arange(prompts * candidates, dtype=np.int32).reshape(prompts, candidates)
    tokens = np.repeat(number[..., None], 2, axis=2)
    mask, ratings = np.ones(tokens.shape, bool), np.zeros(number.shape, np.float32)
    rated = Rated(tokens, mask, tokens, mask, ratings, np.ones(number.shape, bool))
    raw = rng.standard_normal((prompts, candidates, 8)).astype(np.float32)
    return Candidates(rated, raw, np.zeros((prompts, candidates, 1), np.float32))


def test_rewards_are_those_of_the_released_weights() -> None:
    found = some_candidates()
    whitening = fit_whitening(found.raw, 4)
    weights = jnp.array([1.0, -2.0, 0.5, 0.0])
    rewards = improvement.rewards(found, whitening, weights)
    for prompt, one in np.ndindex(6, 3):
        features = found.raw[prompt, one] @ np.asarray(whitening.projection)
        assert rewards[prompt, one] == pytest.approx(float(features @ np.asarray(weights)), 1e-4)


def test_scores_are_slopes_of_log_probabilities() -> None:
    people = simulated()
    base, settings = people.language.decoder, config(improvement_prompts=4, candidates=2)
    found = improvement.draw_candidates(settings, people)
    flat, unravel = ravel_pytree(first_adapter(settings, base.architecture))
    assert found.scores.shape == (4, 2, flat.size)
    direction = np.random.default_rng(0).standard_normal(flat.size)
    rows = [leaf.reshape(8, -1) for leaf in found.rated[:4]]

    def log_ratio(step: float) -> np.ndarray:
        moved = unravel(jnp.asarray(step * direction, flat.dtype))
        return log_ratios(people.language, moved, *rows[:2], (rows[2], rows[3])).reshape(4, 2)

    slopes = (log_ratio(1e-2) - log_ratio(-1e-2)) / 2e-2
    np.testing.assert_allclose(found.scores @ direction, slopes, rtol=0.02, atol=0.02)


def test_scores_that_are_not_numbers_are_refused_before_the_release(monkeypatch) -> None:
    monkeypatch.setattr(improvement, "_scores", lambda *given: np.full((len(given[2]), 3), np.inf))
    with pytest.raises(ValueError, match="gradients are not numbers; use another model"):
        training.initial_state(config(improvement_prompts=5), simulated())


def test_the_regression_finds_the_change_that_made_the_rewards() -> None:
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((400, 4, 5)) + 10 * rng.standard_normal((400, 1, 5))
    change = np.array([1.0, -2.0, 0.5, 0.0, 3.0])
    rewards = scores @ change + 7 * rng.standard_normal((400, 1))  # each prompt has its own mean
    found = improvement.regressed(scores, rewards, kl=2.0)
    cosine = found @ change / np.linalg.norm(found) / np.linalg.norm(change)
    assert cosine > 0.999
    log_ratios = (scores - scores.mean(axis=1, keepdims=True)) @ found
    assert np.sum(log_ratios**2) / (400 * 3) / 2 == pytest.approx(2.0)
    nothing = improvement.regressed(scores, np.ones((400, 4)), kl=2.0)
    np.testing.assert_array_equal(nothing, 0)


def test_a_tuned_model_gets_the_rewards(tmp_path: Path) -> None:
    """With rewards of words, the tuned model says them more often, at the KL that was asked for."""
    people = simulated()
    settings = config(improvement_prompts=32, candidates=16, kl_target=2.0)
    found = improvement.draw_candidates(settings, people)
    low = (found.rated.completions < 128) & found.rated.completion_mask
    start = first_adapter(settings, people.language.decoder.architecture)
    moved = improvement.tuned(start, found.scores, low.sum(axis=2), settings.kl_target)
    key = key_for(0, Use.KL)
    model, _ = improvement.scaled_to_target(settings, people, TunedModel(moved, None), key)
    prompts, mask = people.public_prompts.repeat(16, 0), people.public_mask.repeat(16, 0)

    def share(adapter: Any) -> float:
        tokens, real = complete(people.language, adapter, prompts, mask, NEW, new_key(5))
        return float((tokens < 128)[real].mean())

    assert share(model.adapter) > share(None) + 0.05


def test_an_answer_is_the_completion_with_the_largest_reward() -> None:
    people, settings = simulated(), config(reranked=3, kl_target=2.0)
    base, rng = people.language.decoder, np.random.default_rng(2)
    adapter = first_adapter(settings, base.architecture)
    weights = rng.standard_normal(2 * base.architecture.width).astype(np.float32)
    reward = RewardModel(Whitening(jnp.eye(len(weights))), jnp.asarray(weights))
    prompts, mask, key = people.public_prompts[:5], people.public_mask[:5], new_key(6)
    tokens, real = answers(settings, people, TunedModel(adapter, reward), prompts, mask, key)
    rows = prompts.repeat(3, 0), mask.repeat(3, 0)
    said = complete(people.language, adapter, *rows, NEW, key)
    rewards = (np.asarray(raw_features(base, *rows, *said)) @ weights).reshape(5, 3)
    assert (rewards.argmax(axis=1) > 0).any()
    for prompt in range(5):
        best = 3 * prompt + rewards[prompt].argmax()
        np.testing.assert_array_equal(tokens[prompt], said[0][best])
        np.testing.assert_array_equal(real[prompt], said[1][best])


def test_the_divergence_of_a_choice_counts() -> None:
    """It is nearly that of the best of several draws from many equally likely outcomes."""
    outcomes = np.arange(1, 20_001) / 20_000  # equally likely, with as many different rewards
    for count in (1, 2, 4, 6, 50):
        best = np.diff(outcomes**count, prepend=0)
        exact = float(np.sum(best * np.log(best * len(outcomes))))
        assert exact <= kl_of_choice(count) + 1e-12
        assert exact == pytest.approx(kl_of_choice(count), abs=0.01)
    people = simulated()
    adapter = first_adapter(config(), people.language.decoder.architecture)
    rows = people.public_prompts[:4], people.public_mask[:4]
    said = complete(people.language, adapter, *rows, NEW, new_key(1))
    settings = config(reranked=4)
    found = divergences(settings, people, TunedModel(adapter, None), *rows, said)
    np.testing.assert_allclose(found, np.log(4) - 3 / 4, atol=1e-5)


def test_whitened_features_have_variance_one_within_a_prompt() -> None:
    found = some_candidates(prompts=50)
    features = found.raw @ np.asarray(fit_whitening(found.raw, 4).projection)
    centred = (features - features.mean(axis=1, keepdims=True)).reshape(-1, 4)
    np.testing.assert_allclose(centred.T @ centred / (50 * 2), np.eye(4), atol=1e-4)
    with pytest.raises(ValueError, match="9 features need as many differences"):
        fit_whitening(found.raw, 9)


# --- training on simulated people ----------------------------------------------------------------

STEPS = config(
    method="best-of-n",
    adapter="steering",
    releases=4,
    directions=0,
    noise_multiplier=None,
    target_epsilon=2.0,
    server_learning_rate=5.0,
    kl_target=0.05,
)


def train(where: Path, settings: RLHFConfig = STEPS) -> Iterator[Progress]:
    """Trains with simulated people in a new ledger."""
    ledger = RLHF().create_ledger(settings, where / "ledger.sqlite", "run")
    states = jax.tree.map(lambda x: x[None], training.initial_state(settings, simulated()))
    people, folder = simulated(), where / "released"
    return training.RLHFTraining(settings, people, ledger, states, 0, folder).run()


def vector(adapter: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(adapter)[0])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Progress]]:
    where = tmp_path_factory.mktemp("steps")
    return where, list(train(where))


def test_releases_with_correlated_noise_cost_one_gaussian_release(trained) -> None:
    where, _ = trained
    (stream,) = Ledger.open(where / "ledger.sqlite").streams
    assert stream.statement.correlation.kind == "prefix-sum"
    assert (stream.releases, stream.statement.horizon, stream.statement.divisor) == (4, 4, 3.0)
    spent = Ledger.open(where / "ledger.sqlite").spent()
    multiplier = stream.statement.parts["policy"].noise_multiplier
    assert spent.epsilon == pytest.approx(gaussian_epsilon(multiplier, 1e-3), rel=1e-3)
    assert 1.9 < spent.epsilon <= 2.0
    independent = make_release(config(method="best-of-n", releases=4, correlated_noise=False), 4.0)
    assert independent.correlation.kind == "independent"


def test_everybody_takes_part_once_under_the_number_of_their_place(trained) -> None:
    where, _ = trained
    ledger = Ledger.open(where / "ledger.sqlite")
    assert (ledger.persons, ledger.next_person) == (PEOPLE, PEOPLE)


def test_the_average_is_that_of_the_last_released_adapters(trained) -> None:
    *released, finished = trained[1]
    adapters = [vector(one.states.adapter) for one in released]
    assert [one.updates for one in trained[1]] == [1, 2, 3, 4, 5]
    last = vector(released[-1].states.average)
    np.testing.assert_allclose(last, np.mean(adapters[2:], axis=0), rtol=1e-4, atol=1e-6)
    average = vector(finished.states.average)  # scaled to the target, and otherwise the same
    np.testing.assert_allclose(
        average / np.linalg.norm(average), last / np.linalg.norm(last), atol=1e-4
    )


def test_what_is_said_of_simulated_people(trained) -> None:
    first, *_ = trained[1]
    assert set(first.simulated) == {"rating"}
    assert set(first.evaluation) == {"last", "kl", "distinct_2"}
    assert len(first.samples) == 5


def test_the_change_meets_the_kl_target(trained) -> None:
    released, finished = trained[1][-2:]
    key = key_for(STEPS.seed, Use.KL)
    model = jax.tree.map(lambda x: x[0], RLHF().policies(finished.states)["last"])
    found = improvement.kl(STEPS, simulated(), model, key)
    assert found == pytest.approx(0.05, rel=0.5)
    scale = float(finished.released["scale"][0, 0])
    expected = vector(released.states.adapter) * scale
    np.testing.assert_allclose(vector(finished.states.adapter), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("size", "limit"), [(1e4, 0), (1e-6, 1)])
def test_the_factor_of_a_change_stays_within_its_bounds(
    trained, monkeypatch, size: float, limit: int
) -> None:
    # The divergence of a real model saturates, so which of two huge changes has less is chance.
    def squared(config, people, model, key) -> float:
        return float((vector(model.adapter) ** 2).sum())

    adapter = jax.tree.map(lambda x: x[0], trained[1][-1].states.adapter)
    model = TunedModel(adapter, None)
    change = improvement.scaled(model, size / float(np.linalg.norm(vector(adapter))))
    monkeypatch.setattr(improvement, "kl", squared)
    _, factor = improvement.scaled_to_target(STEPS, simulated(), change, key_for(0, Use.KL))
    assert factor == improvement.SCALES[limit]


@pytest.mark.parametrize("count", [1, 4, 6])
def test_a_change_meets_what_the_choice_leaves_of_the_kl_target(
    trained, monkeypatch, count
) -> None:
    settings = config(reranked=count, kl_target=1.0)

    def grown(config, people, model, key) -> float:
        return kl_of_choice(config.reranked) + float((vector(model.adapter) ** 2).sum())

    adapter = jax.tree.map(lambda x: x[0], trained[1][-1].states.adapter)
    change = TunedModel(adapter, None)
    change = improvement.scaled(change, 1 / float(np.linalg.norm(vector(adapter))))
    monkeypatch.setattr(improvement, "kl", grown)
    key = key_for(0, Use.KL)
    found, _ = improvement.scaled_to_target(settings, simulated(), change, key)
    assert grown(settings, None, found, key) == pytest.approx(1, abs=0.02)


def test_the_same_seed_never_gives_the_same_noise(trained, tmp_path: Path) -> None:
    first, again = trained[1][0], next(train(tmp_path))
    np.testing.assert_array_equal(first.simulated["rating"], again.simulated["rating"])
    assert (vector(first.states.adapter) != vector(again.states.adapter)).all()


def test_a_release_beyond_the_budget_is_refused(tmp_path: Path) -> None:
    ledger = RLHF().create_ledger(
        config(target_epsilon=0.5, noise_multiplier=None), tmp_path / "l", "r"
    )
    settings = config()  # with noise multiplier 4, which costs 0.97
    states = jax.tree.map(lambda x: x[None], training.initial_state(settings, simulated()))
    with pytest.raises(BudgetExceeded):
        next(training.RLHFTraining(settings, simulated(), ledger, states, 0, tmp_path).run())
    assert not ledger.streams


def test_a_completion_depends_on_its_own_prompt_and_key_alone() -> None:
    """In a batch of one shape, other rows move no bit of a row."""
    people, key = simulated(), new_key(4)
    mask = np.ones((PEOPLE, PROMPT), bool)
    assert people.prompts is not None
    moved = people.prompts.copy()
    moved[1:] = moved[1:] % 200 + 7
    both = [
        complete(people.language, None, prompts, mask, NEW, key)
        for prompts in (people.prompts, moved)
    ]
    np.testing.assert_array_equal(both[0][0][0], both[1][0][0])
    assert (both[0][0][1:] != both[1][0][1:]).any()


# --- real people ---------------------------------------------------------------------------------


def test_real_people_are_neither_measured_nor_shown(tmp_path: Path) -> None:
    log, public = write_log(tmp_path)
    settings = config(feedback=str(log), public_prompts=str(public))
    people = meet(settings, model("llama"))
    assert settings.population == "real"
    assert (people.rater, people.judge, people.held_out, people.prompts) == (None,) * 4
    with pytest.raises(ValueError, match="the people are real"):
        evaluation.measure(
            settings,
            people,
            TunedModel(first_adapter(settings, people.language.decoder.architecture), None),
            new_key(0),
            4,
        )


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_public_prompts_in_another_encoding_are_refused(tmp_path: Path, encoding: str) -> None:
    log, public = write_log(tmp_path)
    public.write_text("a café\nthe film\n", encoding)
    settings = config(feedback=str(log), public_prompts=str(public))
    with pytest.raises(RunError, match=r"public\.txt is not a text in UTF-8; save it as UTF-8"):
        meet(settings, model("llama"))


def test_too_few_public_prompts_are_refused_before_the_model_is_read(tmp_path: Path) -> None:
    """With 3 candidates each prompt has 2 directions, so 2 prompts are for 4 features."""
    log, public = write_log(tmp_path)
    public.write_text("the film\n\na book\n")
    settings = config(feedback=str(log), public_prompts=str(public), model=str(tmp_path / "none"))
    require_prompts(settings)
    require_prompts(replace(settings, method="best-of-n", improvement_prompts=1, features=99))
    more = replace(settings, features=5, directions=16)
    said = "^2 public prompts are too few for 5 features; give at least 3 in --public-prompts, or "
    with pytest.raises(RunError, match=said):
        RLHF().resolved(more)


def test_too_few_prompts_of_improvement_are_refused() -> None:
    config(features=4, improvement_prompts=2)
    with pytest.raises(ValueError, match="improvement_prompts 2 are too few for 5 features; use a"):
        config(features=5, improvement_prompts=2)


def test_a_byte_order_mark_is_no_part_of_a_prompt_or_a_rating(tmp_path: Path) -> None:
    """Editors on Windows write one in front of a text."""
    log, public = write_log(tmp_path)
    settings = config(feedback=str(log), public_prompts=str(public))
    before = meet(settings, model("llama"))
    for path in (log, public):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    after = meet(settings, model("llama"))
    np.testing.assert_array_equal(before.public_prompts, after.public_prompts)
    np.testing.assert_array_equal(before.public_mask, after.public_mask)
    assert before.log is not None
    assert after.log is not None
    for one, other in zip(before.log, after.log, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_log_with_more_people_than_places_is_refused(tmp_path: Path) -> None:
    log, public = write_log(tmp_path, people=5)
    settings = config(feedback=str(log), public_prompts=str(public), people=4)
    with pytest.raises(RunError, match="has more than 4 people; choose --people at or above"):
        meet(settings, model("llama"))
