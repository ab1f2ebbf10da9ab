"""Does a campaign learn as well over HTTP as the same training in one process?

For each environment and seed, simulated people take part in a campaign that `sotto campaign serve`
serves. Some of them drop out, come too late, or repeat a request. The campaign has the recipe of
`sotto train dppg` for the environment. It is compared with that training in one process, and with a
campaign that has almost no noise. All results are the averages of policies, with their most likely
actions in fresh episodes.

    python benchmarks/people_learning.py --env-ids CartPole-v1 --seeds 3
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import preset
from sotto.people.client import Person
from sotto.people.policy import NumpyPolicy, as_json
from sotto.people.simulate import Habits, drive, mean_return
from sotto.runs.agents.agent import load
from sotto.runs.api import train

ALMOST_NO_NOISE = 0.1
"""Noise multiplier of the campaign without privacy. The standard deviation of a mean of 64 updates
is then less than two thousandths of the clip norm."""
FEWER = {"Dosing-1": {"users_per_update": 64, "total_steps": 64 * 143 * 250}}
"""Numbers of people that differ from the recipe's, which is made for epsilon 0.1."""


HABITS = Habits(drop_out=0.03, straggle=0.01, repeat=0.05, withdraw=0.01)


@dataclass
class Settings:
    """What is compared."""

    env_ids: tuple[str, ...] = ("CartPole-v1", "Acrobot-v1", "Dosing-1")
    """Environments."""
    seeds: int = 3
    """Number of seeds."""
    first_seed: int = 2000
    """First of them."""
    target_epsilon: float = 1.0
    """Epsilon of each person."""
    delta: float = 1e-5
    """Delta of each person."""
    episodes: int = 100
    """Number of episodes in which a result is evaluated."""
    at_once: int = 16
    """Number of people who are active at once."""
    place_minutes: float = 0.05
    """Time in minutes after which a place expires."""
    without_noise: bool = True
    """Whether to run the campaigns with almost no noise."""
    json: bool = False
    """Print one JSON object."""


def settings(asked: Settings, env_id: str) -> DPPGConfig:
    """Returns the settings of the training in one process."""
    changes: dict[str, Any] = {"delta": asked.delta, "seed": asked.first_seed}
    return preset(
        "sotto", env_id, target_epsilon=asked.target_epsilon, **changes, **FEWER.get(env_id, {})
    )


def in_process(asked: Settings, env_id: str, folder: Path) -> list[float]:
    """Trains all seeds in this process, and returns the mean return of each."""
    run = train(settings(asked, env_id), folder, seeds=asked.seeds)
    found = []
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        path = run.path / f"seed-{seed}" if asked.seeds > 1 else run.path
        policy: Any = load(path, policy="ema").policy
        found.append(evaluated(asked, NumpyPolicy(as_json(policy, 0)), env_id, seed))
    return found


def evaluated(asked: Settings, policy: NumpyPolicy, env_id: str, seed: int) -> float:
    """Returns the mean return in episodes that no person has lived."""
    return mean_return(policy, env_id, asked.episodes, 10_000 + seed)


def over_http(
    asked: Settings, env_id: str, folder: Path, seed: int, noise: list[str]
) -> dict[str, Any]:
    """Runs a campaign, and returns its result's mean return, its speed and what people did."""
    same = settings(asked, env_id)
    updates, slots = same.num_updates, same.users_per_update
    words = ["--recipe", env_id, "--updates", str(updates), "--seed", str(seed)]
    words += ["--users-per-update", str(slots), "--delta", str(asked.delta), *noise]
    words += ["--place-minutes", str(asked.place_minutes)]
    command("campaign", "start", str(folder), *words)
    people = round(1.25 * updates * slots)
    tokens = command("campaign", "invite", str(folder), str(people)).split()
    began = time.perf_counter()
    with serving(folder) as url:
        counts = drive(url, tokens, env_id, habits=HABITS, at_once=asked.at_once, seed=seed)
        seconds = time.perf_counter() - began
        with Person(url, tokens[0]) as one:
            policy = one.result()
            epsilon = one.campaign["privacy"]["epsilon"]
    command("certificate", str(folder), "--verify")
    if policy.version != updates:
        raise RuntimeError(f"only {policy.version} of {updates} releases were made")
    return {
        "return": evaluated(asked, policy, env_id, seed),
        "epsilon": epsilon,
        "trajectories_per_second": counts["given"] / seconds,
        **counts,
    }


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serves a campaign in another process, and yields its address."""
    words = ["campaign", "serve", str(folder), "--port", "0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sotto", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = ""
        while not said.rstrip().endswith("}"):
            said += process.stdout.readline()
        yield json.loads(said)["url"]
    finally:
        process.terminate()
        process.wait()


def command(*words: str) -> str:
    """Runs a command of sotto, and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "sotto", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def main(asked: Settings) -> None:
    """Compares, and prints a row for each environment."""
    private = ["--target-epsilon", str(asked.target_epsilon)]
    arms = {"service": private}
    if asked.without_noise:
        arms["service without noise"] = ["--noise-multiplier", str(ALMOST_NO_NOISE)]
    found: dict[str, Any] = {}
    for env_id in asked.env_ids:
        with tempfile.TemporaryDirectory() as folder:
            alone = in_process(asked, env_id, Path(folder) / "run")
            found[env_id] = {"in process": [{"return": one} for one in alone]}
            for name, noise in arms.items():
                found[env_id][name] = []
                for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
                    place = Path(folder) / f"{name} {seed}"
                    found[env_id][name].append(over_http(asked, env_id, place, seed, noise))
                    if not asked.json:
                        print(env_id, name, seed, found[env_id][name][-1], flush=True)
        if not asked.json:
            for name, runs in found[env_id].items():
                returns = [one["return"] for one in runs]
                print(f"{env_id}, {name}: {statistics.mean(returns):.1f} of", returns, flush=True)
    if asked.json:
        print(json.dumps({"settings": str(asked), "found": found}))


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
