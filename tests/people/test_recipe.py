"""Campaigns with the recipe of a known environment, their simulated people and their result."""

import random
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from live import SLOTS, Live, World, started

from sotto.algorithms.dppg.presets import preset
from sotto.people import recipe, simulate
from sotto.people.desk import Desk
from sotto.people.plan import CampaignPlan
from sotto.people.simulate import Habits, Simulated
from sotto.rl.envs.base import Box
from sotto.rl.envs.registry import make


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Dosing-1"])
def test_the_spaces_of_a_recipe_are_those_of_the_environment(env_id):
    known = recipe.world(env_id)
    read = recipe.spaces(env_id).environment("campaign", 7)
    for fact in ("observation_size", "action", "observation_centre", "observation_scale"):
        assert getattr(read, fact) == getattr(known, fact), fact
    assert read.reward_per_step == known.reward_per_step
    assert read.max_episode_steps == 7


def test_one_decision_repeats_the_action_as_in_the_training():
    trained = preset("sotto", "Acrobot-v1", target_epsilon=1.0)
    made = recipe.settings("Acrobot-v1")
    assert (trained.action_repeat, made["action_repeat"]) == (2, 1)
    assert made["action_repeat_half_life"] is None
    assert made["discount"] == pytest.approx(trained.discount**2)
    once, twice = Simulated(make("Acrobot-v1"), 3), Simulated(recipe.world("Acrobot-v1"), 3)
    np.testing.assert_array_equal(once.reset(), twice.reset())
    once.step(1)
    np.testing.assert_allclose(once.step(1)[0], twice.step(1)[0], rtol=1e-5)


def test_actions_start_at_the_middle_unless_the_spaces_say_where():
    plain = recipe.spaces("Dosing-1").actions
    assert plain.box == Box((0.0,), (10.0,), (5.0,), (2.0,))
    without = plain.model_copy(update={"centre": None, "scale": None})
    assert without.box == Box((0.0,), (10.0,), (5.0,), (5.0,))


def test_the_result_is_the_moving_average_of_released_policies(tmp_path):
    with started(tmp_path) as live:
        for update in range(2):
            live.live(*range(update * SLOTS, (update + 1) * SLOTS))
            assert live.updater.step()
        with live.person(0) as one:
            result, last = one.result(), one.policy()
        plan = CampaignPlan(live.campaign)
        states = [_state(live, plan, version) for version in range(3)]
    assert (result.version, last.version) == (2, 2)
    decay = plan.config.ema_decay
    expected = states[0].policy
    for state in states[1:]:
        expected = jax.tree.map(
            lambda kept, new: decay * kept + (1 - decay) * new, expected, state.policy
        )
    for (found, _), weights in zip(result._layers, expected.network.weights, strict=True):
        np.testing.assert_allclose(found, weights, rtol=1e-5, atol=1e-7)
    assert any((a != b).any() for (a, _), (b, _) in zip(result._layers, last._layers, strict=True))


def test_a_straggler_comes_too_late(tmp_path, monkeypatch):
    with started(tmp_path) as live, live.person(0) as one:

        def sleep(seconds: float) -> None:
            live.now += seconds

        monkeypatch.setattr(simulate, "time", SimpleNamespace(sleep=sleep))
        happened = simulate._part(one, World(), Habits(straggle=1.0), random.Random(0))
        assert happened == ["late"]
        assert live.now > 60 * live.campaign.settings.terms.place_minutes


def _state(live: Live, plan: CampaignPlan, version: int):
    desk = Desk(live.campaign, live.store, lambda: live.now)
    return plan.state(desk._published(version))
