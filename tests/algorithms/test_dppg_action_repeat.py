"""Actions that users repeat less and less often."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sotto.algorithms.dppg import release
from sotto.algorithms.dppg.algorithm import DPPG
from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.dppg.training import DPPGTraining, create_ledger, training_environment
from sotto.privacy.certificates.derive import derive
from sotto.rl.envs.registry import make

SHORT = {
    "users_per_update": 4,
    "steps_per_user": 60,
    "total_steps": 4 * 60 * 4 * 7,
    "action_repeat": 4,
    "action_repeat_half_life": 2,
    "hidden": (4,),
    "evaluation_episodes": 0,
    "delta": 1e-3,
}


def _short(env_id="Acrobot-v1", **changes):
    return preset("sotto", env_id, **(SHORT | changes))


def test_a_number_of_repeats_that_is_computed_does_what_a_fixed_one_does():
    env, fixed = make("Acrobot-v1", 2), make("Acrobot-v1", 4)
    start = env.reset(jnp.full(env.reset_size, 0.3), env.default_params)

    @jax.jit
    def stepped(repeat):
        params = env.default_params._replace(repeat=repeat)
        return env.step(start, jnp.int32(2), params), env.time_limit(params)

    (state, reward, terminated), limit = stepped(4)
    expected = fixed.step(start, jnp.int32(2), fixed.default_params)
    np.testing.assert_allclose(state, expected[0], rtol=1e-5)
    assert (float(reward), bool(terminated)) == (float(expected[1]), bool(expected[2]))
    assert int(limit) == fixed.max_episode_steps == fixed.time_limit(fixed.default_params) == 125


def test_repeats_are_halved_down_to_one():
    config = _short(action_repeat=6)
    assert config.action_repeats == (6, 3, 1)
    after = [int(config.action_repeat_after(jnp.int32(i))) for i in range(7)]
    assert after == [6, 6, 3, 3, 1, 1, 1]
    assert int(config.action_repeat_after(jnp.int32(10**6))) == 1
    assert _short(action_repeat_half_life=None).action_repeat_after(jnp.int32(9)) == 4


@pytest.mark.parametrize(("updates", "repeat"), [(0, 4), (3, 2), (5, 1)])
def test_a_users_update_is_that_of_the_repeat_of_its_release(updates, repeat):
    """Rewards, discount, baseline and time limit are those of decisions that last so long.

    Credit goes back over half as many decisions when each lasts twice as long.
    """
    halved = _short("CartPole-v1", gae_lambda=0.5)
    fixed = _short(
        "CartPole-v1",
        action_repeat=repeat,
        action_repeat_half_life=None,
        gae_lambda=0.5 ** (repeat / 4),
    )
    env = training_environment(halved)
    state = release.initial_state(halved, env, 0)._replace(updates=jnp.int32(updates))
    found, seen = jax.jit(partial(release._local, halved, env, 0.05))(state, (), jax.random.key(3))
    expected, expected_seen = jax.jit(
        partial(release._local, fixed, training_environment(fixed), 0.05)
    )(state, (), jax.random.key(3))
    assert any(np.any(x != 0) for x in jax.tree.leaves(expected["policy"]))
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-3, atol=1e-5)
    assert float(seen["steps"]) == float(expected_seen["steps"])
    assert float(seen["steps"]) == repeat * round(float(seen["steps"]) / repeat)


@pytest.mark.parametrize(("updates", "repeat", "steps"), [(0, 4, 500), (3, 2, 500), (5, 1, 260)])
def test_users_who_never_arrive_stop_at_the_time_limit_and_contribute_nothing(
    updates, repeat, steps
):
    """The baseline is the return of those who never arrive, whatever a decision lasts.

    With this key nobody arrives.
    """
    config = _short(steps_per_user=260, total_steps=4 * 260 * 4 * 7)
    env = training_environment(config)
    state = release.initial_state(config, env, 0)._replace(updates=jnp.int32(updates))
    found, seen = jax.jit(partial(release._local, config, env, 0.05))(state, (), jax.random.key(1))
    assert float(seen["steps"]) == steps
    assert float(seen["episodes"]) == (steps == 500)
    assert float(optax.tree.norm(found["policy"])) < 1e-5
    assert float(release._baseline(config, env, jnp.int32(repeat))) == pytest.approx(
        -repeat / (1 - 0.99**repeat), rel=1e-4
    )


def test_a_training_counts_the_steps_of_the_environment(tmp_path):
    config = _short()
    ledger = create_ledger(config, tmp_path / "ledger.sqlite")
    chunks = list(DPPGTraining(config, [0], [ledger]))
    steps = np.concatenate([one.simulated["steps_per_user"][0] for one in chunks])
    np.testing.assert_array_equal(steps, [240, 240, 120, 120, 60, 60, 60])  # nobody arrives
    assert derive(ledger).status == "proved"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action_repeat": 1}, "set it above 1"),
        ({"critic": "public"}, "parameter-exploration or critic public"),
        (
            {"local_update": "parameter-exploration", "parameter_noise": 0.1},
            "parameter-exploration or critic public",
        ),
        ({"unit": "segment", "one_episode": False}, "needs unit trajectory"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _short(**changes)


def test_every_number_of_repeats_must_divide_the_time_limit():
    with pytest.raises(ValueError, match="25 is halved to 12, which does not"):
        training_environment(_short(action_repeat=25, total_steps=4 * 60 * 25))


def test_gymnasium_environments_refuse_it():
    settings = SHORT | {"local_update": "one-step"}
    with pytest.raises(ValueError, match="leave action_repeat_half_life out"):
        training_environment(preset("sotto", "Pendulum-v1", **settings))


def test_a_small_epsilon_has_more_people():
    many = preset("sotto", "CartPole-v1", target_epsilon=0.02)
    few = preset("sotto", "CartPole-v1", target_epsilon=0.05)
    assert (many.users, few.users) == (61_440, 8_192)
    assert many.num_updates == few.num_updates == 128


@pytest.mark.parametrize(
    "chosen",
    [
        {"action_repeat": 1},
        {"critic": "public"},
        {"local_update": "parameter-exploration", "parameter_noise": 0.1},
        {"correlated_noise": False},
        {"population_size": 20_000, "correlated_noise": False},
        {"total_steps": 200_000},
    ],
)
def test_settings_that_are_chosen_by_hand_are_those_of_the_usual_recipe(chosen):
    for env_id in ("Acrobot-v1", "CartPole-v1"):
        small = preset("sotto", env_id, target_epsilon=0.01, **chosen)
        usual = preset("sotto", env_id, target_epsilon=1.0, **chosen)
        assert replace(small, target_epsilon=1.0) == usual
    flags = {"env_id": "Acrobot-v1", "target_epsilon": "0.01"} | dict.fromkeys(chosen, "...")
    assert DPPG().defaults(flags)["action_repeat"] == 2


def test_other_settings_change_the_recipe_of_a_small_epsilon():
    chosen = {"users_per_update": 128, "total_steps": 32_000_000, "ema_decay": 0.95}
    found = preset("sotto", "Acrobot-v1", target_epsilon=0.1, **chosen)
    assert (found.action_repeat, found.action_repeat_half_life, found.users) == (4, 50, 32_000)
