"""`sotto simulate devices`: a training on simulated people's devices, which mask what they send."""

import json as json_text
import shlex
import sys
from pathlib import Path
from typing import Any

from sotto.algorithms.base import Algorithm
from sotto.cli.terminal.options import Json
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.cli.terminal.progress import Display
from sotto.extras import require
from sotto.runs.registry import algorithm_named, config_from_json, config_to_json
from sotto.runs.training import Update, begun

_GIVEN_UP = 1e-3  # largest probability that a round has fewer devices than promised
_SOURCE = "the command line"


@command("simulate devices")
def devices(
    *,
    out: Path,
    people: int = 10_000,
    invited: int = 400,
    drop_out: float = 0.3,
    target_epsilon: float = 0.1,
    delta: float = 1e-5,
    env_id: str = "CartPole-v1",
    algorithm: str = "dppg",
    settings: str = "{}",
    colluding: int = 0,
    bits: int = 16,
    seed: int = 0,
    resume: bool = False,
    json: Json = False,
) -> int:
    """Trains on simulated people's devices, which add the noise and mask what they send, so that
    the server sees nothing but noisy sums. Some devices drop out.

    A device is a person's phone or computer here. In --devices of sotto train it is an accelerator.

    Example:
      sotto simulate devices --people 10000 --drop-out 0.3 --target-epsilon 0.1 --out runs/devices

    Args:
        out: Directory of the run.
        people: Number of people. Each takes part in one release at most.
        invited: Number of people who are asked in a round of dppg.
        drop_out: Probability that a person drops out of a round, at a random stage of it. The
            promise follows from it: the noise is scaled for as many devices as stay in 999 of 1000
            rounds.
        target_epsilon: Epsilon that the certificate must not exceed.
        delta: Delta of the guarantee.
        env_id: Environment of dppg, one of those written in JAX.
        algorithm: Algorithm whose updates are releases about people.
        settings: Further settings of the algorithm, as JSON.
        colluding: Most of all devices that are asked in a round that may show everything to the
            server, in the sum or not.
        bits: Bits of each number of a sum.
        seed: Seed of the first policy, and of who drops out.
        resume: Continue the interrupted training in --out, with the same flags.
    """
    require("flwr")
    from sotto.federated import runs
    from sotto.federated.simulation import simulated_network
    from sotto.privacy.release.noise_shares import Promise

    if not 0 <= drop_out < 1:
        raise ValueError(f"--drop-out is a probability below 1, got {drop_out}")
    if resume:
        experiment, promise = runs.go_on(out, env_id)
        used = algorithm_named(experiment.settings.algorithm)
        config = config_from_json(used, experiment.settings.config)
    else:
        used = algorithm_named(algorithm)
        given = {"target_epsilon": target_epsilon, "delta": delta, "seed": seed}
        config = _config(used, env_id, people, invited, given | _settings(settings))
    release = used.on_devices(config, used.num_updates(config))[0]
    if release.population == "real":
        raise ValueError(
            "this training is about real people, whom no device simulates; start their own devices "
            "and use flwr run, as in docs/devices.md"
        )
    if not resume:
        promise = Promise(runs.least_present(release.slots, drop_out, _GIVEN_UP), colluding, bits)
        line = shlex.join(["sotto", *sys.argv[1:]])
        experiment = runs.begin(used, config, promise, out, line)
        config = config_from_json(used, experiment.settings.config)
    if resume:  # refuses a finished run before work is said to begin
        begun(experiment, used.num_updates(config))
    if not json:
        print(
            f"{used.name}: {used.num_updates(config)} releases of at least {promise.promised} "
            f"devices each, into {out}"
        )
    last: list[Update] = []
    with (
        simulated_network(people, drop_out, seed) as network,
        Display(used.num_updates(config), used.default_policy, used.words, json) as display,
    ):

        def report(update: Update) -> None:
            last[:] = [update]
            display(update)

        ended = runs.train(experiment, promise, network, report)
    line_of = last[0].lines[0]
    if json:
        found = {"out": str(out), "updates": last[0].updates, "epsilon": line_of.epsilon}
        print_json(found | {"promised": promise.promised, "return": line_of.evaluation})
    elif ended:
        print(f"Read the certificate with: sotto certificate {out}")
    if not ended:
        print("sotto: stopped; continue with the same flags and --resume", file=sys.stderr)
    return 0 if ended else 130


def _settings(text: str) -> dict[str, Any]:
    try:
        values = json_text.loads(text)
    except json_text.JSONDecodeError as error:
        raise ValueError(f"--settings is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError('--settings is a JSON object, such as {"clip_norm": 0.05}')
    return values


def _config(
    algorithm: Algorithm[Any], env_id: str, people: int, invited: int, given: dict[str, Any]
) -> Any:
    """Returns the settings: the recipe of dppg with independent noise, or the defaults."""
    if algorithm.name != "dppg":
        return config_from_json(algorithm, {"delta": 1e-5} | given, _SOURCE)
    from sotto.algorithms.dppg.presets import ON_DEVICES, preset

    if people < invited:
        raise ValueError(f"--invited {invited} is more than --people {people}")
    recipe = preset(
        "sotto",
        env_id,
        target_epsilon=given["target_epsilon"],
        correlated_noise=False,
        users_per_update=invited,
        **ON_DEVICES.get(env_id, {}),
    )
    values = config_to_json(algorithm, recipe) | given
    made = config_from_json(algorithm, values, _SOURCE)
    steps = people // made.users_per_update * made.steps_per_update
    return config_from_json(algorithm, values | {"total_steps": steps}, _SOURCE)
