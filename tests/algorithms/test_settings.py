"""Settings that are refused in a sentence, before anything is compiled or charged."""

import dataclasses
import importlib
import math
import pkgutil
import re
import sys
import typing
from typing import Any

import jax
import numpy as np
import pytest
from pydantic import Field

import sotto.algorithms
from sotto.algorithms import settings, values
from sotto.algorithms.baselines.a2c import A2CConfig
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.kickstarting.config import KickstartConfig

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
        ("survival_bonus", (-1.0, NAN, INF)),
        ("critic_scale", (0.0, NAN)),
        ("clip_ratio", (-1.0, NAN)),
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
        ("observation_centre", (0.0, INF), INF),
        ("observation_scale", (1.0, 0.0), 0.0),
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
        ({"total_steps": 1000.5}, r"total_steps must be of type int, not 1000\.5"),
        ({"total_steps": math.inf}, "total_steps must be of type int, not inf"),
        ({"total_steps": "1e3"}, "total_steps must be of type int, not '1e3'"),
        ({"min_separation": 1.5}, r"min_separation must be of type int \| None, not 1\.5"),
        ({"hidden": (16, "a")}, r"hidden must be of type tuple\[int, \.\.\.\], not \(16, 'a'\)"),
        (
            {"learning_rate_schedule": (2.0, 1.5, 0.1)},
            r"learning_rate_schedule must be of type tuple\[float, int, float\] \| None, not .*",
        ),
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
    config = tiny(clip_norm=1, seed=np.int64(2**31 - 1), learning_rate=np.float32(0.5))
    assert (config.clip_norm, config.seed, config.learning_rate) == (1.0, 2**31 - 1, 0.5)
    assert (type(config.seed), type(config.learning_rate)) == (int, float)


def test_a_whole_number_may_be_written_with_an_exponent() -> None:
    config = tiny(total_steps=1e6, hidden=(16.0,), delta=1e-9)
    assert config == tiny(total_steps=1_000_000, hidden=(16,), delta=1e-9)
    assert type(config.total_steps) is int
    assert type(config.hidden[0]) is int


def _settings() -> list[Any]:
    """Every kind of settings there is."""
    for module in pkgutil.walk_packages(sotto.algorithms.__path__, "sotto.algorithms."):
        importlib.import_module(module.name)
    found: list[Any] = [settings.Settings]
    for one in found:
        found.extend(one.__subclasses__())
    # The command line makes classes of flags of them, which no module holds.
    held = [one for one in found if getattr(sys.modules[one.__module__], one.__name__, None) is one]
    return [one for one in held if one.__module__.startswith("sotto.algorithms.")][1:]


def _numbers(kind: Any) -> list[Any]:
    """The numbers in a type, with their annotations."""
    if typing.get_origin(kind) is typing.Annotated and kind.__origin__ is bool:
        return []  # it is annotated with its description
    if typing.get_origin(kind) is typing.Annotated or kind in (int, float):
        return [kind]
    return [number for inside in typing.get_args(kind) for number in _numbers(inside)]


def test_every_number_has_an_interval() -> None:
    """A new setting cannot be forgotten."""
    kinds = _settings()
    assert {PPOConfig, DPPGConfig, KickstartConfig} < set(kinds)
    for kind in kinds:
        assert kind.__dataclass_params__.frozen
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            for number in _numbers(hint):
                assert values.interval(number) is not None, f"{kind.__name__}.{name}"


@pytest.mark.parametrize(
    ("kind", "interval", "wanted"),
    [
        (settings.Count, "[1, inf)", "at least 1"),
        (settings.Seed, "[0, 2147483647]", "in [0, 2147483647]"),
        (settings.NoiseMultiplier, "[1e-6, 1e6]", "in [1e-6, 1e6]"),
        (settings.Share, "(0, 1]", "in (0, 1]"),
        (settings.Signed, "[-1e15, 1e15]", "in [-1e15, 1e15]"),
        (typing.Annotated[float, Field(gt=0.5)], "(0.5, inf)", "finite and above 0.5"),
        (typing.Annotated[int, Field(lt=3)], "(-inf, 3)", "in (-inf, 3)"),
    ],
)
def test_intervals_in_words(kind: Any, interval: str, wanted: str) -> None:
    found = values.interval(kind)
    assert found is not None
    assert (str(found), found.wanted) == (interval, wanted)


def test_what_is_no_number_has_no_interval() -> None:
    assert values.interval(int) is None
    assert values.interval(typing.Annotated[str, Field(max_length=3)]) is None


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
