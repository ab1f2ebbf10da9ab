"""Presets of DPPG: settings for known environments in tables, and `preset`, which reads them."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Literal

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.privacy.units import Adjacency

PresetName = Literal["sotto", "paper"]

USUAL_EPSILON = 1.3
"""Target epsilon where none is given."""

_RIVER_SWIM: dict[str, object] = {
    # Each release is about one user, with one episode. Parameter noise makes a user prefer one
    # action throughout the episode, which explores.
    "users_per_update": 1,
    "steps_per_user": 20,
    "one_episode": True,
    "total_steps": 40_000,
    "local_update": "visit-average",
    "hidden": (),
    "gae_lambda": 1.0,
    "baseline": 5.0,
    "advantage_scale": 4.0,
    "clip_norm": 0.7,
    "parameter_noise": 2.0,
    "parameter_decay": 0.995,
}

_DOSING: dict[str, object] = {
    # A person's data are a whole day. Doses act within an hour, so lambda is small. A smaller
    # epsilon needs more people: at 0.1, 16,000 people reach 127.6 on Dosing-1.
    "one_episode": True,
    "users_per_update": 256,
    "steps_per_user": 143,
    "total_steps": 13_700_000,
    "clip_norm": 0.3,
    "gae_lambda": 0.3,
    "entropy_coefficient": 0.0,
}

_EXPLORATION: dict[str, object] = {
    # A linear policy is moved both ways along each person's own direction. Every contribution is
    # as long as the clip norm, and points to the larger return.
    "local_update": "parameter-exploration",
    "hidden": (),
    "learning_rate": 1.0,
    "clip_norm": 1.0,
    "entropy_coefficient": 0.0,
    "ema_decay": 0.9,
    "evaluation_episodes": 2,
}

_HALF_CHEETAH: dict[str, object] = _EXPLORATION | {
    # Two episodes of 200 steps are enough to see how fast a policy is.
    "users_per_update": 32,
    "steps_per_user": 400,
    "total_steps": 5_120_000,
    "parameter_noise": 0.15,
}

_HOPPER: dict[str, object] = _EXPLORATION | {
    # Early episodes end within a few steps, so far fewer steps are taken than these.
    "users_per_update": 48,
    "steps_per_user": 2000,
    "total_steps": 6_144_000,
    "parameter_noise": 0.02,
    "server_learning_rate": 0.25,
    # With the reward for surviving, policies learn to stand, and then no more.
    "survival_bonus": 1.0,
    # Means of observations, and one over their standard deviations, while a policy learns to hop.
    # The policies were trained in the simulator, without people.
    "observation_centre": (1.2, 0.0, -0.4, 0.0, 0.2, 1.2, -0.3, 0.0, -0.7, 0.0, 0.0),
    "observation_scale": (7.0, 16.0, 3.0, 7.0, 2.3, 1.2, 1.3, 1.9, 1.15, 1.0, 0.3),
}

SOTTO: dict[str, dict[str, object]] = {
    "RiverSwim-v0": _RIVER_SWIM,
    "RiverSwim90-v0": _RIVER_SWIM,
    "RiverSwimExchanged-v0": _RIVER_SWIM,
    "RiverSwimExchanged90-v0": _RIVER_SWIM,
    # All people have the same meals, so there is less to learn, and more releases add noise.
    "Dosing-0": _DOSING | {"total_steps": 9_200_000, "gae_lambda": 0.4},
    "Dosing-1": _DOSING,
    "HalfCheetah-v4": _HALF_CHEETAH,
    "HalfCheetah-v5": _HALF_CHEETAH,
    "Hopper-v4": _HOPPER,
    "Hopper-v5": _HOPPER,
    "CartPole-v1": {
        # A person's data end with their first episode. Early episodes are short, so about 480k of
        # these steps are taken.
        "one_episode": True,
        "total_steps": 1_050_000,
        "clip_norm": 0.035,
        "entropy_coefficient": 0.3,
    },
    "Acrobot-v1": {
        # Repeated actions explore more: they reach the goal in 17% of episodes, not in 0.8%.
        "action_repeat": 2,
        "one_episode": True,
        # Many releases of few people: with 64 people some policies are stuck.
        "users_per_update": 32,
        "steps_per_user": 250,
        "total_steps": 8_000_000,
        "clip_norm": 0.05,
        "gae_lambda": 0.9,
        "advantage_scale": 10.0,
        "entropy_coefficient": 0.0,
        "ema_decay": 0.97,
    },
}
"""Our recipe for each environment: settings that differ from the defaults of `DPPGConfig`."""

ON_DEVICES: dict[str, dict[str, object]] = {
    # Independent noise adds up over releases, so few long steps of few parameters are best.
    "CartPole-v1": _EXPLORATION
    | {
        "steps_per_user": 400,
        "server_learning_rate": 3.0,
        "parameter_noise": 1.0,
        "evaluation_episodes": 16,
    },
}
"""Changes to our recipe for people's own devices, whose noise is independent over time."""

_MANY_CHEETAHS: dict[str, object] = {
    # More noise needs smaller steps. Episodes are as long as above: shorter ones do not show falls.
    "users_per_update": 256,
    "steps_per_user": 400,
    "total_steps": 12_288_000,
    "parameter_noise": 0.03,
    "server_learning_rate": 0.5,
    # Means of observations, and one over their standard deviations, while a policy learns to run.
    # The policies were trained in the simulator, without people.
    "observation_centre": (
        *(-0.16, 0.35, 0.06, 0.06, 0.06, -0.07, -0.15, -0.1, 1.0),
        *(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    ),
    "observation_scale": (
        *(8.0, 1.0, 4.5, 6.0, 5.0, 2.5, 6.0, 3.0, 1.0),
        *(2.5, 0.55, 0.3, 0.35, 0.35, 0.15, 0.27, 0.18),
    ),
}

_MANY_HOPPERS: dict[str, object] = {
    # Two episodes of 500 steps are enough to see how a policy hops, and take half of the steps.
    "users_per_update": 320,
    "steps_per_user": 1000,
    "total_steps": 17_920_000,
}

_MANY_CARTS: dict[str, object] = {
    # 30 trainings took 3.6M of these steps on average, and 3.8M at most.
    "users_per_update": 480,
    "total_steps": 7_864_320,
}

_FEWER_AND_FEWER_REPEATS: dict[str, object] = {
    # Four repeats reach the goal in half of the first episodes, and single actions control finely
    # at the end, which takes many releases. About 10M of these steps are taken.
    "action_repeat": 4,
    "action_repeat_half_life": 50,
    "users_per_update": 128,
    "total_steps": 61_440_000,
    "ema_decay": 0.97,
}

SOTTO_SMALL_EPSILON: dict[str, tuple[float, dict[str, object]]] = {
    "CartPole-v1": (0.05, _MANY_CARTS),
    "Acrobot-v1": (0.3, _FEWER_AND_FEWER_REPEATS),
    "HalfCheetah-v4": (5.0, _MANY_CHEETAHS),
    "HalfCheetah-v5": (5.0, _MANY_CHEETAHS),
    "Hopper-v4": (5.0, _MANY_HOPPERS),
    "Hopper-v5": (5.0, _MANY_HOPPERS),
}
"""Epsilon below which our recipe changes, and its changes: more people, and what suits them."""

_BY_HAND = frozenset(
    {
        "action_repeat",
        "correlated_noise",
        "critic",
        "local_update",
        "participations",
        "population_size",
        "unit",
    }
)
"""Settings beside which changes for a small epsilon do not fit, since they were chosen without."""

_INPUTS = frozenset({"observation_centre", "observation_scale"})
"""Constants that belong together. A preset gives both or, where one of them is chosen, neither."""

PAPER: dict[str, object] = {
    "unit": "segment",
    "critic": "paper",
    "users_per_update": 8,
    "steps_per_user": 64,
    "clip_norm": 0.05,
    "correlated_noise": False,
    "local_update": "adam",
    "learning_rate": 7.26e-4,
    "local_epochs": 8,
    "local_minibatches": 2,
    "entropy_coefficient": 0.36,
    "gae_lambda": 0.85,
    "hidden": (64, 64),
    "critic_hidden": (64, 64),
    "critic_scale": 1.0,
    "critic_learning_rate": 7.26e-4,
    "critic_steps": 16,  # on all of a user's steps; the policy has 8 epochs of 2 minibatches
    "baseline": 0.0,
}
"""Settings of Algorithms 2 and 3, from table 3 of the paper, column "Control"."""

_PAPER_RIVER_SWIM: dict[str, object] = {
    "unit": "trajectory",
    "users_per_update": 1,
    "steps_per_user": 20,
    "one_episode": True,
    "total_steps": 40_000,
    "local_update": "one-step",
    "learning_rate": 12.0,
    "learning_rate_schedule": (5.0, 50, 0.06),
    "clip_norm_from": "kl-quantile",
    "trust_region_radius": 3.5,
    "trust_region_confidence": 0.6,
    "gae_lambda": 1.0,
    "advantage_scale": 1.0,
    "entropy_coefficient": 0.0,
    "hidden": (),
    "critic_hidden": (),
}

_PAPER_DOSING: dict[str, object] = {
    "clip_norm": 0.08,
    "learning_rate": 9.25e-4,
    "local_epochs": 4,
    "entropy_coefficient": 0.01,
    "gae_lambda": 0.97,
    "critic_learning_rate": 9.25e-4,
    "critic_steps": 8,
}

_PAPER_MUJOCO: dict[str, object] = {
    # Gymnasium starts every user from a reset, so there are no continuing segments. The critic is
    # still the paper's, which leaks. Adam starts anew: with the printed moments HalfCheetah stays
    # at half of the printed return, even without noise.
    "unit": "trajectory",
    "steps_per_user": 2048,
    "total_steps": 1_000_000,
    "clip_norm": 1.80,
    "learning_rate": 2.04e-4,
    "local_minibatches": 64,
    "entropy_coefficient": 0.02,
    "gae_lambda": 0.91,
    "critic_learning_rate": 2.04e-4,
    "critic_steps": None,
    "carry_moments": False,
}

PAPER_CHANGES: dict[str, dict[str, object]] = {
    "RiverSwim-v0": _PAPER_RIVER_SWIM,
    "RiverSwim90-v0": _PAPER_RIVER_SWIM,
    "RiverSwimExchanged-v0": _PAPER_RIVER_SWIM,
    "RiverSwimExchanged90-v0": _PAPER_RIVER_SWIM,
    "Dosing-0": _PAPER_DOSING,
    "Dosing-1": _PAPER_DOSING,
    "HalfCheetah-v4": _PAPER_MUJOCO,
    "HalfCheetah-v5": _PAPER_MUJOCO,
    "Hopper-v4": _PAPER_MUJOCO,
    "Hopper-v5": _PAPER_MUJOCO,
}
"""Settings for other environments, from tables 2 and 3 of the paper."""


def preset(
    name: PresetName,
    env_id: str,
    *,
    target_epsilon: float | None = USUAL_EPSILON,
    **changes: object,
) -> DPPGConfig:
    """Returns named settings: `sotto` (our recipe) or `paper` (Algorithms 2 and 3, table 3).

    Args:
        name: the preset.
        env_id: the environment. A preset has its own settings for environments that it knows.
        target_epsilon: ignored where `noise_multiplier` is given.
        changes: settings that differ from the preset.

    Raises:
        ValueError: a setting has an unknown name or an unsuitable value.
    """
    return before_changes(name, env_id, target_epsilon, changes, changes)


def before_changes(
    name: PresetName,
    env_id: str,
    target_epsilon: float | None,
    changes: Mapping[str, object],
    chosen: Collection[str],
) -> DPPGConfig:
    """Returns named settings that the caller changes further.

    Args:
        name, env_id, target_epsilon, changes: as for `preset`.
        chosen: names of all settings that are changed, here or by the caller.

    Raises:
        ValueError: a setting has an unknown name or an unsuitable value.
    """
    if changes.get("noise_multiplier") is not None:
        target_epsilon = None
    if name == "paper":
        values = PAPER | PAPER_CHANGES.get(env_id, {})
    else:
        below, changed = SOTTO_SMALL_EPSILON.get(env_id, (0.0, {}))
        fewer_steps = "total_steps" in chosen and "users_per_update" not in chosen
        fits = _BY_HAND.isdisjoint(chosen) and not fewer_steps
        small = target_epsilon is not None and target_epsilon < below
        values = SOTTO.get(env_id, {}) | (changed if small and fits else {})
    if not _INPUTS.isdisjoint(chosen):
        values = {name: value for name, value in values.items() if name not in _INPUTS}
    values |= changes
    if "adjacency" in values:
        values["adjacency"] = Adjacency(str(values["adjacency"]))
    known = {field.name for field in dataclasses.fields(DPPGConfig)}
    if unknown := set(values) - known:
        raise ValueError(f"DPPG has no setting {sorted(unknown)[0]!r}")
    return DPPGConfig(env_id=env_id, target_epsilon=target_epsilon, **values)  # type: ignore[arg-type]
