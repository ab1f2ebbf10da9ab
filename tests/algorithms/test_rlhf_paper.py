"""Preset `paper` of private RLHF: its critic is not private, and its certificate says so."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from rlhf_people import config, simulated

from sotto.algorithms.rlhf import critic, training
from sotto.algorithms.rlhf.algorithm import RLHF
from sotto.algorithms.rlhf.config import PAPER, RLHFConfig
from sotto.algorithms.rlhf.directions import first_adapter
from sotto.algorithms.rlhf.feedback import Rated
from sotto.algorithms.rlhf.release import Open, make_release
from sotto.keys import new_key
from sotto.privacy.certificates.derive import derive
from sotto.rl.language import Completions, block_features, log_probabilities

SETTINGS = config(**PAPER | {"releases": 3})


def rated() -> Rated:
    """Ratings of everybody; the second person rated two completions only."""
    adapter = first_adapter(SETTINGS, simulated().language.decoder.architecture)
    found = Rated(*map(np.array, simulated().rated(replace(SETTINGS, releases=1), adapter, 0)))
    for leaf in found:
        leaf[1, 2] = 0
    return found


def one(person: int) -> Rated:
    """Ratings of one person, as a release reads them."""
    found = Rated(*(jnp.asarray(leaf[person]) for leaf in rated()))
    return found._replace(prompt_mask=found.prompt_mask | ~found.present[:, None])


@pytest.mark.parametrize("person", [0, 1])
def test_a_step_of_the_critic_descends_the_mean_squared_error(person: int) -> None:
    decoder, unit = simulated().language.decoder, one(person)
    stream = block_features(decoder, unit.prompts, unit.prompt_mask, len(decoder.blocks))[:, 1]
    weights = 0.1 * np.random.default_rng(0).standard_normal(stream.shape[1] + 1)

    def error(weights: jax.Array) -> jax.Array:
        rows = jnp.arange(2 if person == 1 else 3)
        said = weights[0] + (stream / jnp.sqrt((stream**2).sum(1, keepdims=True))) @ weights[1:]
        return ((unit.ratings - said)[rows] ** 2).mean() / 2

    found = critic.step(*critic.values(decoder, jnp.asarray(weights, jnp.float32), unit), unit)
    gradient = jax.grad(error)(jnp.asarray(weights, jnp.float32))
    np.testing.assert_allclose(found, -critic.LEARNING_RATE * gradient, atol=1e-6)


@pytest.mark.parametrize("person", [0, 1])
def test_its_advantage_is_the_rating_less_the_value_of_the_prompt(person: int) -> None:
    """The first values are 0.5, so the gradient is that of the mean of (rating - 0.5) log p."""
    settings = replace(SETTINGS, kl_coefficient=0.0)
    decoder, unit = simulated().language.decoder, one(person)
    state = training.initial_state(settings, simulated())
    flat, unravel = ravel_pytree(state.adapter)
    rows = np.asarray(unit.present)

    def objective(moved: jax.Array) -> jax.Array:
        said = Completions(unit.completions, unit.completion_mask)
        given = decoder, unit.prompts, unit.prompt_mask, said, unravel(moved)
        return ((unit.ratings - 0.5) * log_probabilities(*given).sum(1))[rows].mean()

    parts, _ = make_release(settings, 0.01).local(Open(state, decoder), unit, new_key(0))
    expected = jax.grad(objective)(flat)
    scale = float(np.abs(expected).max())
    found = ravel_pytree(parts["policy"])[0]
    np.testing.assert_allclose(found, expected, atol=1e-4 * scale)


def test_its_certificate_is_a_claim_and_names_the_critic(tmp_path: Path) -> None:
    algorithm = RLHF()
    ledger = algorithm.create_ledger(SETTINGS, tmp_path / "ledger", "paper")
    first = jax.tree.map(
        lambda x: np.asarray(x)[None], training.initial_state(SETTINGS, simulated())
    )
    *_, last = training.RLHFTraining(SETTINGS, simulated(), ledger, first, 0, tmp_path).run()
    assert np.abs(last.states.critic - first.critic).max() > 0
    found = derive(ledger)
    assert found.status == "paper-claim"
    assert critic.GAP.why in found.model_dump_json()
    without = replace(SETTINGS, critic="none", noise_multiplier=4.0)
    private = algorithm.create_ledger(without, tmp_path / "private", "private")
    first = first._replace(critic=())
    list(training.RLHFTraining(without, simulated(), private, first, 0, tmp_path).run())
    assert derive(private).status == "proved"


def test_the_preset_gives_way_to_flags() -> None:
    def settings(**flags: str) -> RLHFConfig:
        return RLHFConfig(**RLHF().defaults(flags))

    assert settings(preset="paper") == RLHFConfig(**PAPER)
    assert settings(preset="paper").noise_multiplier == 0.01
    assert settings(preset="paper", target_epsilon="3").noise_multiplier is None
    assert settings(preset="sotto") == settings() == RLHFConfig()
    assert settings(noise_multiplier="2").target_epsilon is None
    with pytest.raises(ValueError, match="there is no preset 'papre'; use sotto or paper"):
        settings(preset="papre")
    with pytest.raises(ValueError, match="the paper's critic is for policy-gradient"):
        config(critic="paper")


def test_real_people_are_not_given_a_critic_without_noise() -> None:
    """Its weights are in every checkpoint."""
    real = {"feedback": "log.jsonl", "public_prompts": "public.txt", "method": "policy-gradient"}
    assert config(**real).population == "real"
    with pytest.raises(ValueError, match="it is for simulated people"):
        config(**real, critic="paper")
