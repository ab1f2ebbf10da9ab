"""The algorithms that a run can be of, by name, and their settings as JSON."""

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


def config_to_json(algorithm: AlgorithmName, config: Any) -> dict[str, Any]:
    """The settings as JSON values."""
    values: dict[str, Any] = TypeAdapter(ALGORITHMS[algorithm].config_type).dump_python(
        config, mode="json"
    )
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


def config_from_json(algorithm: AlgorithmName, values: dict[str, Any]) -> Any:
    """The settings that `config_to_json` wrote.

    Raises:
        RunError: they are not settings of this algorithm.
    """
    try:
        return TypeAdapter(ALGORITHMS[algorithm].config_type).validate_python(values)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise RunError(
            f"config.json holds no settings of {algorithm}: {where} {problem['msg']}"
        ) from error
