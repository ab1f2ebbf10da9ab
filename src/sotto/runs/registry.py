"""The algorithms that a run can be of, by name, and their settings as JSON."""

import json
import math
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sotto.rl.envs.registry import from_data
from sotto.runs.adapters import DPPG_RUNS, Algorithm
from sotto.runs.baselines import A2C_RUNS, PPO_RUNS
from sotto.runs.directory import AlgorithmName, Experiment, RunError
from sotto.runs.expert_offline import expert_offline
from sotto.runs.functional_q import DQN_RUNS, functional_q
from sotto.runs.kickstart import kickstart

ALGORITHMS: dict[AlgorithmName, Algorithm] = {
    "dppg": DPPG_RUNS,
    "ppo": PPO_RUNS,
    "a2c": A2C_RUNS,
    "kickstart": kickstart(),
    "dqn": DQN_RUNS,
    "functional-q": functional_q(),
    "expert-offline": expert_offline(),
}


_LARGEST = 2**53
_LONGEST = 256  # of lists and texts (paths are longer)
_PATH = 4096
_LAYERS, _WIDEST, _MOST_WEIGHTS = 32, 2**16, 2**28


def config_to_json(algorithm: AlgorithmName, config: Any) -> dict[str, Any]:
    """The settings as JSON values.

    Raises:
        RunError: they are larger than any run's.
    """
    values: dict[str, Any] = TypeAdapter(ALGORITHMS[algorithm].config_type).dump_python(
        config, mode="json"
    )
    _require_bounded(algorithm, values)
    return values


def stored_config(experiment: Experiment) -> Any:
    """The settings of an experiment that is there, to be run with.

    Raises:
        RunError: they are not settings of its algorithm.
        ValueError: their environment would import a module, and the user did not name it.
    """
    settings = experiment.settings
    env_id = settings.config.get("env_id")
    if env_id is not None:
        from_data(str(env_id), experiment.path / "config.json", experiment.named.env_id)
    return config_from_json(settings.algorithm, settings.config)


def _require_bounded(algorithm: AlgorithmName, values: dict[str, Any]) -> None:
    """Refuses settings that would ask for memory without end, before anything is made of them."""
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        sizes = [one for one in items if isinstance(one, int)]
        wide = name.endswith("hidden") and (
            len(items) > _LAYERS
            or any(size > _WIDEST for size in sizes)
            or sum(a * b for a, b in pairwise(sizes)) > _MOST_WEIGHTS
        )
        if (
            wide
            or len(items) > _LONGEST
            or any(isinstance(one, list | dict) for one in items)
            or any(abs(size) > _LARGEST for size in sizes)
            or any(isinstance(one, float) and not math.isfinite(one) for one in items)
            or any(isinstance(one, str) and len(one) > _PATH for one in items)
        ):
            raise RunError(
                f"{name} = {repr(value)[:60]} is no setting that a run of {algorithm} can have; "
                "numbers are finite and at most 2^53, lists are flat, and a network has at most "
                f"{_LAYERS} layers of {_WIDEST} units and {_MOST_WEIGHTS} weights"
            )


def config_from_json(algorithm: AlgorithmName, values: dict[str, Any]) -> Any:
    """The settings that `config_to_json` wrote.

    Raises:
        RunError: they are not settings of this algorithm, or larger than any run's.
    """
    _require_bounded(algorithm, values)
    try:
        kind = TypeAdapter(ALGORITHMS[algorithm].config_type)
        return kind.validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise RunError(
            f"config.json holds no settings of {algorithm}: {where} {problem['msg']}"
        ) from error
