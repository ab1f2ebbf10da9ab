"""What a device may give: everything else is refused by name, and all units have one size."""

import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.special import softmax

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.errors import RunError
from sotto.keys import new_key
from sotto.people.campaign import Campaign, Terms, check, new_settings
from sotto.people.database.records import Place
from sotto.people.desk import _actions
from sotto.people.errors import BadContribution
from sotto.people.plan import CampaignPlan
from sotto.people.policy import NumpyPolicy, as_json
from sotto.people.spaces import Spaces
from sotto.people.units import (
    empty_trajectory,
    packed,
    read_trajectory,
    read_update,
    unpacked,
    written_update,
)
from sotto.rl.networks import Policy

SPACES = Spaces(observations=2, actions=3)
ENV = SPACES.environment("world", 4)
GOOD = {
    "place": "p",
    "observations": [[0.5, 1], [1, 2], [3, 4]],
    "actions": [2, 0],
    "rewards": [1.5, -1],
    "terminated": True,
}


def policy(spaces: Spaces = SPACES, hidden: tuple[int, ...] = (8,)) -> Policy:
    env = spaces.environment("world", 4)
    return Policy(
        env.observation_size,
        env.action,
        hidden,
        new_key(0),
        observation_scale=env.observation_scale,
        observation_centre=env.observation_centre,
        last_gain=1.0,
    )


# --- trajectories --------------------------------------------------------------------------------


def test_a_trajectory_is_padded_and_marked():
    found = read_trajectory(GOOD, ENV, 4)
    np.testing.assert_array_equal(found.observations[:, 0], [0.5, 1, 0, 0])
    np.testing.assert_array_equal(found.next_observations[:, 1], [2, 4, 0, 0])
    np.testing.assert_array_equal(found.actions, [2, 0, 0, 0])
    np.testing.assert_array_equal(found.rewards, [1.5, -1, 0, 0])
    np.testing.assert_array_equal(found.alive, [True, True, False, False])
    np.testing.assert_array_equal(found.terminated, [False, True, False, False])
    cut = read_trajectory(GOOD | {"terminated": False}, ENV, 4)
    np.testing.assert_array_equal(cut.truncated, [False, True, False, False])
    assert not cut.terminated.any()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rewards": []}, "1 to 4 steps, got 0"),
        ({"rewards": [0] * 5}, "1 to 4 steps, got 5"),
        ({"observations": [[0, 1], [1, 2]]}, "observations must be numbers of shape 3x2"),
        ({"observations": [[0, 1], [1], [3, 4]]}, "observations must be"),
        ({"observations": [[0, 1], [1, "2"], [3, 4]]}, "observations must be numbers"),
        ({"observations": [[0, 1], [1, math.nan], [3, 4]]}, "between -1e6 and 1e6"),
        ({"observations": [[0, 1], [1, 2e6], [3, 4]]}, "between -1e6 and 1e6"),
        ({"actions": [2, 3]}, "whole numbers from 0 to 2"),
        ({"actions": [2, -1]}, "whole numbers from 0 to 2"),
        ({"actions": [2, 0.5]}, "whole numbers from 0 to 2"),
        ({"actions": [True, False]}, "actions must be numbers"),
        ({"actions": [[2], [0]]}, "actions must be numbers of shape 2"),
        ({"rewards": [math.inf, 0]}, "between -1e6 and 1e6"),
        ({"terminated": 1}, "terminated must be true or false"),
        ({"person": 7}, "no field 'person'"),
    ],
)
def test_other_trajectories_are_refused_by_name(changes, says):
    with pytest.raises(BadContribution, match=says):
        read_trajectory(GOOD | changes, ENV, 4)


@pytest.mark.parametrize("name", ["observations", "actions", "rewards"])
def test_nothing_may_be_missing(name):
    given = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(BadContribution, match=f"{name} is missing"):
        read_trajectory(given, ENV, 4)


def test_every_contribution_has_one_size():
    short = read_trajectory(GOOD, ENV, 4)
    whole = GOOD | {
        "observations": [[1, 1]] * 5,
        "actions": [1] * 4,
        "rewards": [1e6] * 4,
    }
    sizes = {
        len(packed(one))
        for one in (short, read_trajectory(whole, ENV, 4), empty_trajectory(ENV, 4))
    }
    assert len(sizes) == 1
    again = unpacked(packed(short), empty_trajectory(ENV, 4))
    for before, after in zip(short, again, strict=True):
        np.testing.assert_array_equal(before, after)
    with pytest.raises(ValueError, match="another size"):
        unpacked(packed(short)[:-1], empty_trajectory(ENV, 4))


# --- updates -------------------------------------------------------------------------------------


def test_an_update_has_the_form_of_the_policy():
    leaves = jax.tree.leaves(policy())
    numbers = list(range(sum(leaf.size for leaf in leaves)))

    def read(*numbers, **more):
        given = {"place": "p", "update": written_update(np.array(numbers))}
        return jax.tree.leaves(read_update(given | more, policy()))

    found = read(*numbers)
    assert [one.shape for one in found] == [one.shape for one in leaves]
    assert np.concatenate([one.ravel() for one in found]).tolist() == numbers
    for wrong in (written_update(np.array(numbers[1:])), "A" * 8 + "!", numbers, None, 7):
        with pytest.raises(BadContribution, match="must be the base64 text of"):
            read(*numbers, update=wrong)
    for beyond in (math.inf, math.nan, -2e6):
        with pytest.raises(BadContribution, match="between -1e6 and 1e6"):
            read(*numbers[1:], beyond)
    with pytest.raises(BadContribution, match="no other field"):
        read(*numbers, noise=0)


def test_the_size_of_an_update_tells_nothing():
    """Decimal numbers are shorter where gradients are zero, as where a person's fact is 0."""
    sizes = {len(written_update(np.array(one))) for one in ([0.0, 0.0], [-1.2345e-30, 1 / 3])}
    assert len(sizes) == 1


# --- policies ------------------------------------------------------------------------------------

BOX = Spaces(
    observations=2,
    actions={"low": [-1, 0], "high": [1, 10]},
    observation_scale=(2.0, 0.5),
    observation_centre=(1.0, -1.0),
)


@pytest.mark.parametrize("spaces", [SPACES, BOX])
def test_the_policy_in_numpy_is_the_policy(spaces):
    made = policy(spaces)
    found = NumpyPolicy(json.loads(json.dumps(as_json(made, 3))))
    assert (found.version, found.observations) == (3, 2)
    seen = np.array([0.3, -2.0])
    distribution = made(seen.astype(np.float32))
    np.testing.assert_allclose(found.most_likely(seen), distribution.mode(), rtol=1e-5)
    rng = np.random.default_rng(0)
    drawn = np.array([found.action(seen, rng) for _ in range(4000)], float)
    if spaces is SPACES:
        expected = np.asarray(jax.nn.softmax(distribution.logits))
        shares = np.bincount(drawn.astype(int), minlength=3) / len(drawn)
        assert np.abs(shares - expected).max() < 0.03
    else:
        spread = np.exp(np.asarray(distribution.log_std))
        errors = (drawn.mean(0) - np.asarray(distribution.mode())) / (spread / len(drawn) ** 0.5)
        assert np.abs(errors).max() < 4
        np.testing.assert_allclose(drawn.std(0), spread, rtol=0.06)


@pytest.mark.parametrize("spaces", [SPACES, BOX])
@pytest.mark.parametrize("length", [1, 3])
def test_a_device_acts_on_whole_observations(spaces, length):
    """NumPy alone would take one number for both."""
    found = NumpyPolicy(json.loads(json.dumps(as_json(policy(spaces), 3))))
    rng = np.random.default_rng(0)
    for act in (found.most_likely, lambda seen: found.action(seen, rng)):
        with pytest.raises(ValueError, match=f"must have 2 numbers, got {length}"):
            act(np.ones(length))


@pytest.mark.parametrize("spaces", [SPACES, BOX])
def test_actions_do_not_depend_on_what_else_is_asked(spaces):
    """The service chooses them one by one, and computes them again together, to the last bit."""
    found = NumpyPolicy(json.loads(json.dumps(as_json(policy(spaces), 3))))
    place = Place("place", 3, 0, bytes(range(32)), 1.0)
    rows = np.random.default_rng(0).normal(size=(201, 2)).tolist()
    together = _actions(found, place, 0, rows)
    assert together == [_actions(found, place, step, [row])[0] for step, row in enumerate(rows)]
    assert together[1:] == _actions(found, place, 1, rows[1:])
    other = Place("place", 3, 0, bytes(32), 1.0)
    assert together != _actions(found, other, 0, rows)


def test_every_step_and_every_number_of_an_action_is_drawn_by_itself():
    """The draws follow from the place's secret, and one draw for all would make them equal."""
    place, same = Place("place", 3, 0, bytes(range(32)), 1.0), [[0.3, -2.0]] * 2000
    discrete, real = (NumpyPolicy(as_json(policy(one), 3)) for one in (SPACES, BOX))
    shares = np.bincount(_actions(discrete, place, 0, same), minlength=3) / len(same)
    assert np.abs(shares - softmax(discrete.outputs(np.array(same[0])))).max() < 0.05
    assert abs(np.corrcoef(np.transpose(_actions(real, place, 0, same)))[0, 1]) < 0.1


# --- spaces and settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ('{"observations": 4}', "actions is missing"),
        ('{"observations": 0, "actions": 2}', "observations"),
        ('{"observations": 4, "actions": 1}', "actions"),
        ('{"observations": 4, "actions": {"low": [0], "high": [0]}}', "below"),
        ('{"observations": 4, "actions": {"low": [0, 0], "high": [1]}}', "same length"),
        ('{"observations": 4, "actions": 2, "observation_scale": [1]}', "needs 4 numbers"),
        ('{"observations": 4, "actions": 2, "module": "os"}', "module"),
    ],
)
def test_wrong_spaces_are_one_sentence(tmp_path: Path, text, says):
    file = tmp_path / "spaces.json"
    file.write_text(text)
    with pytest.raises(RunError, match=says) as refused:
        Spaces.read(file)
    assert "\n" not in str(refused.value)


def config(**changes) -> DPPGConfig:
    fields = {
        "population": "real",
        "users_per_update": 4,
        "steps_per_user": 4,
        "total_steps": 160,
        "target_epsilon": 1.0,
        "one_episode": True,
    }
    return DPPGConfig(**fields | changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"population": "simulated"}, "population"),
        ({"critic": "public"}, "critic"),
        ({"first_policy": "policy.npz"}, "first_policy"),
        ({"observation_centre": (0.0,) * 4}, "observation_centre"),
        ({"observation_scale": (1.0,) * 4}, "observation_scale"),
        ({"observation_statistics": True}, "observation_statistics"),
        ({"participations": 2}, "correlated_noise"),
        ({"clip_norm_from": "l2-quantile"}, "clip_norm_from"),
        ({"action_repeat": 2}, "action_repeat"),
        ({"local_update": "parameter-exploration", "parameter_noise": 0.1}, "local_update"),
        ({"parameter_noise": 0.1}, "parameter_noise"),
        ({"population_size": 400, "correlated_noise": False}, "population_size"),
        ({"unit": "segment", "one_episode": False}, "unit"),
        ({"private_return": (0.0, 9.0), "stop_at_return": 5.0}, "stop_at_return"),
    ],
)
def test_settings_that_live_people_cannot_have_are_refused(changes, says):
    check(config(), Terms())
    with pytest.raises(ValueError, match=f"{says} does not fit a campaign"):
        check(config(**changes), Terms())
    with pytest.raises(ValueError, match="real people need noise"):
        config(critic="paper")


def test_the_error_of_a_released_return_is_the_spread_of_its_noise(tmp_path: Path):
    """It is the noise of a mean over the slots, in returns."""
    returns = config(private_return=(1.0, 5.0), correlated_noise=False)
    settings = new_settings("test", SPACES, returns, Terms(), None)
    plan = CampaignPlan(Campaign(tmp_path, settings))
    release, nothing = plan.release(10), jax.tree.map(np.zeros_like, plan.first.policy)
    part = release.parts["return"]
    spread = part.clip_norm * part.noise_multiplier / release.divisor
    middle, beside = (
        release.server(plan.first, {"policy": nothing, "return": np.full(1, one)})[1]
        for one in (0.0, spread)
    )
    error = float(beside["private_return"] - middle["private_return"])
    assert plan.return_error == pytest.approx(error, rel=1e-5)


def test_settings_hold_no_password():
    with pytest.raises(RunError, match="would reveal the password"):
        new_settings("test", SPACES, config(), Terms(), "postgresql://ann:secret@host/people")


def test_updates_of_devices_are_the_policys_only():
    with pytest.raises(ValueError, match="a device's update is the policy's only"):
        check(config(critic="private"), Terms(gives="update"))
    with pytest.raises(ValueError, match="needs the policy"):
        Terms(gives="update", acts="server")
