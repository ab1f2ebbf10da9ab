"""The server of a training on devices, as an app of Flower for `flwr run`.

Its settings are those of `[tool.flwr.app.config]` in the app's pyproject.toml. A run directory that
exists is continued.
"""

import json
import logging
from pathlib import Path

from flwr.app import Context
from flwr.app.user_config import UserConfigValue
from flwr.serverapp import Grid, ServerApp

from sotto.federated import runs
from sotto.federated.network import Network
from sotto.privacy.release.noise_shares import Promise
from sotto.runs.registry import algorithm_named, config_from_json
from sotto.runs.training import Update

_log = logging.getLogger(__name__)

app = ServerApp()
"""The app of the server."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains on the connected devices, from the beginning or the last checkpoint.

    Raises:
        ValueError: a setting is missing or has another type.
    """
    settings = context.run_config
    out = Path(_text(settings.get("out"), "out"))
    if not out.is_absolute():
        raise ValueError('give the run directory as an absolute path: out="..."')
    budget = _text(settings.get("budget"), "budget") or None
    env_id = _text(settings.get("env-id", ""), "env-id") or None
    if (out / "config.json").exists():
        experiment, promise = runs.go_on(out, env_id, budget)
    else:
        algorithm = algorithm_named(_text(settings.get("algorithm"), "algorithm"))
        config = config_from_json(
            algorithm, json.loads(_text(settings.get("settings"), "settings")), "the run config"
        )
        promised, colluding, bits = (
            _whole(settings.get(name), name) for name in ("promised", "colluding", "bits")
        )
        promise = Promise(promised, colluding, bits)
        experiment = runs.begin(algorithm, config, promise, out, "flwr run", budget)
    network = Network(grid, _whole(settings.get("seconds"), "seconds"))
    runs.train(experiment, promise, network, _report)


def _report(update: Update) -> None:
    epsilon = update.lines[0].epsilon
    _log.info("%d/%d updates, epsilon %s", update.updates, update.total_updates, epsilon)


def _text(value: UserConfigValue | None, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the setting {name} of the app must be a text")
    return value


def _whole(value: UserConfigValue | None, name: str) -> int:
    if type(value) is not int:
        raise ValueError(f"the setting {name} of the app must be a whole number")
    return value
