"""Settings that are refused in a sentence, before anything is compiled or charged."""

import dataclasses
import math
import re
from typing import Any

import jax
import numpy as np
import pytest

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.a2c import A2CConfig
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.dppg import checks
from sotto.algorithms.dppg.config import DPPGConfig

NAN, INF = math.nan, math.inf


def tiny(**changes: Any) -> DPPGConfig:
    settings: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "total_steps": 128,
        "users_per_update": 4,
        "steps_per_user": 8,
        "delta": 1e-4,
    }
    return DPPGConfig(**(settings | changes))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("advantage_scale", (0.0, -1.0, NAN)),
        ("learning_rate", (NAN, INF, -0.1)),
        ("server_learning_rate", (NAN, INF, 0.0)),
        ("critic_learning_rate", (NAN, -1.0)),
        ("baseline", (NAN, INF)),
        ("entropy_coefficient", (INF, NAN)),
        ("parameter_noise", (-1.0, NAN)),
        ("critic_scale", (0.0, NAN)),
        ("ratio_clip", (-1.0, NAN)),
        ("adaptive_clip_rate", (INF, NAN, 0.0)),
        ("evaluation_episodes", (-3,)),
        ("clip_norm", (INF, 1e300, NAN, 1e-300)),
        ("critic_clip_norm", (INF, 1e300, NAN)),
        ("critic_noise_ratio", (1e-300, INF)),
        ("noise_multiplier", (1e-300, 1e300, NAN)),
        ("trust_region_radius", (-1.0, NAN)),
        ("discount", (1.0, NAN)),
        ("stop_at_return", (NAN, INF)),
        ("seed", (-1, 2**40)),
        ("users_per_update", (0, -4)),
    ],
)
def test_a_number_out_of_bounds_is_refused_by_name_and_value(
    name: str, values: tuple[float, ...]
) -> None:
    for value in values:
        wrong = re.escape(str(value))
        with pytest.raises(ValueError, match=rf"^{name} must be .*; {wrong} is not$"):
            tiny(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("hidden", (16, -3), -3),
        ("hidden", (0,), 0),
        ("critic_hidden", (-1,), -1),
        ("learning_rate_schedule", (0.0, 0, 0.0), 0.0),
        ("learning_rate_schedule", (2.0, 0, 0.1), 0),
        ("private_return", (0.0, 1e38), 1e38),
        ("private_return", (NAN, 1.0), NAN),
    ],
)
def test_every_number_of_several_counts(name: str, value: tuple[float, ...], wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be .*") as refusal:
        tiny(**{name: value})
    assert str(refusal.value).endswith(f"; {wrong} is not")


def test_a_schedule_divides() -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        tiny(learning_rate_schedule=(0.5, 10, 0.1))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"total_steps": 1e3}, r"total_steps must be of type int, not 1000\.0"),
        ({"users_per_update": 4.5}, r"users_per_update must be of type int, not 4\.5"),
        ({"delta": "1e-5"}, "delta must be of type float, not '1e-5'"),
        ({"noise_multiplier": True}, r"noise_multiplier must be of type float \| None, not True"),
        ({"hidden": [16]}, r"hidden must be of type tuple\[int, \.\.\.\], not \[16\]"),
        ({"critic": "privat"}, "critic must be of type Literal.*'private'.*, not 'privat'"),
        ({"adjacency": "zero-out"}, "adjacency must be of type Adjacency, not 'zero-out'"),
    ],
)
def test_a_setting_of_another_type_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        tiny(**changes)


def test_numbers_may_be_whole_or_numpys() -> None:
    assert tiny(clip_norm=1, seed=np.int64(2**31 - 1), learning_rate=np.float32(0.5)).seed > 0


def test_every_number_has_an_interval() -> None:
    """A new setting cannot be forgotten."""
    for config, intervals in ((DPPGConfig, checks._INTERVALS), (PPOConfig, ppo._INTERVALS)):
        numbers = {
            field.name
            for field in dataclasses.fields(config)
            if any(kind in str(field.type) for kind in ("int", "float"))
        }
        assert numbers == set(intervals)


@pytest.mark.parametrize("config", [PPOConfig, A2CConfig])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", NAN),
        ("learning_rate", INF),
        ("entropy_coefficient", NAN),
        ("max_grad_norm", 0.0),
        ("seed", -1),
        ("gae_lambda", NAN),
    ],
)
def test_baselines_refuse_the_same(config: Any, name: str, value: float) -> None:
    wrong = re.escape(str(value))
    with pytest.raises(ValueError, match=rf"^{name} must be .*; {wrong} is not$"):
        config(**{name: value})
    with pytest.raises(ValueError, match=r"^hidden must be at least 1; -3 is not$"):
        config(hidden=(-3,))
    with pytest.raises(ValueError, match=r"num_envs must be of type int, not 2\.5"):
        config(num_envs=2.5)


def test_a_learning_rate_may_be_traced() -> None:
    def rate(traced: Any) -> Any:
        return dataclasses.replace(PPOConfig(), learning_rate=traced).learning_rate

    assert float(jax.jit(rate)(0.5)) == 0.5
