"""Offline learning from people's logs, against the same learning without noise.

Run: python benchmarks/offline_people.py --task CartPole-v1 --seeds 3

Recipe of the logs. A simulated person plays one episode of at most 200 steps. Each person has a
skill, uniform in [0, 1], and gains of a hand-written controller that differ from person to person.
At each step the person follows the controller with the probability of the skill, and acts at random
otherwise. CartPole: the controller pushes to the side of the sign of a linear function of the
observation; a random action is a fair coin. Pendulum: the controller pumps energy below, and is a
linear feedback near the top; a random torque is drawn anew with probability 0.2. HalfCheetah: the
controller is a linear teacher, which DPPG learned from simulated users at epsilon 30
(`--teacher`, trained when the folder is missing), and a person's torques err by a normal error of
standard deviation 0.5 (1 - skill). An episode there has 100 steps.

The steps of CartPole and Pendulum are those of Gymnasium's equations for all people at once. The
log is a Parquet file, which `sotto import` reads. Every seed has new people, noise and networks.
"""

import json
import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyarrow as pa
import pyarrow.parquet as pq
import tyro

from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.offline_people import learning, moments, rounds, steps
from sotto.algorithms.offline_people.algorithm import rows_of
from sotto.algorithms.offline_people.config import Method, OfflinePeopleConfig, filled
from sotto.algorithms.offline_people.model import scales_of
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.importing import import_log
from sotto.data.imports.records import Records, load
from sotto.keys import new_key
from sotto.rl.evaluation import returns_of
from sotto.runs.agents.agent import load as load_agent
from sotto.runs.api import train

STEPS = 200
EPISODES = 100
CHEETAH_STEPS = 100
COLLECTED = 250
"""Number of people who run at the same time."""
CHEETAH_BOUNDS = (1, 4, *(1.5,) * 6, 10, 5, 10, *(25,) * 6)
"""Declared bounds of height, pitch and joints, and of their speeds."""
Task = Literal["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"]
Rows = dict[str, np.ndarray]


def cart_poles(people: int, rng: np.random.Generator) -> tuple[Rows, dict[str, Any]]:
    """Returns the log of people who balance a pole, and its declaration."""
    state = rng.uniform(-0.05, 0.05, (people, 4))
    skill = rng.uniform(size=people)
    gains = rng.normal([0.3, 0.5, 5, 1], [0.3, 0.5, 2, 0.5], (people, 4))
    alive, rows = np.ones(people, bool), []
    for step in range(STEPS + 1):
        skilled = rng.uniform(size=people) < skill
        action = np.where(skilled, (state * gains).sum(1) > 0, rng.uniform(size=people) < 0.5)
        who = np.flatnonzero(alive)
        rows.append((who, np.full(len(who), step), *state[who].T, action[who].astype(int)))
        _, speed, angle, turn = state.T
        cosine, sine = np.cos(angle), np.sin(angle)
        push = (20.0 * action - 10 + 0.05 * turn**2 * sine) / 1.1
        bend = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        pull = push - 0.05 * bend * cosine / 1.1
        state = state + 0.02 * np.stack([speed, pull, turn, bend], axis=1)
        alive = alive & (abs(state[:, 0]) <= 2.4) & (abs(state[:, 2]) <= math.radians(12))
    names = ("person", "step", "x", "speed", "angle", "turn", "push")
    found = dict(zip(names, map(np.concatenate, zip(*rows, strict=True)), strict=True))
    found["reward"] = np.ones(len(found["x"]))
    bounds = {"x": 2.4, "speed": 3, "angle": 0.21, "turn": 3.5}
    return found, _declared(people, bounds, {"column": "push", "categories": [0, 1]}, (0, 1))


def pendulums(people: int, rng: np.random.Generator) -> tuple[Rows, dict[str, Any]]:
    """Returns the log of people who swing a pendulum up, and its declaration."""
    angle, speed = rng.uniform(-np.pi, np.pi, people), rng.uniform(-1, 1, people)
    skill, gain = rng.uniform(size=people), rng.normal(1, 0.5, people)
    random, rows = np.zeros(people), []
    for step in range(STEPS + 1):
        cosine, sine = np.cos(angle), np.sin(angle)
        from_top = np.arctan2(sine, cosine)
        energy = speed**2 / 6 + 5 * (cosine - 1)
        pump = np.where(energy < 0, 2, -2) * np.sign(speed) * gain
        controlled = np.where(cosine > 0.9, -(10 * from_top + 2 * speed) * gain, pump)
        redrawn = rng.uniform(size=people) < 0.2
        random = np.where(redrawn, rng.uniform(-2, 2, people), random)
        skilled = rng.uniform(size=people) < skill
        torque = np.clip(np.where(skilled, controlled, random), -2, 2)
        reward = -(from_top**2 + 0.1 * speed**2 + 0.001 * torque**2)
        rows.append((np.arange(people), np.full(people, step), cosine, sine, speed, torque, reward))
        speed = np.clip(speed + 0.05 * (15 * sine + 3 * torque), -8, 8)
        angle = angle + 0.05 * speed
    names = ("person", "step", "cosine", "sine", "speed", "torque", "reward")
    found = dict(zip(names, map(np.concatenate, zip(*rows, strict=True)), strict=True))
    bounds = {"cosine": 1, "sine": 1, "speed": 8}
    torque_bounds = {"column": "torque", "low": -2, "high": 2}
    return found, _declared(people, bounds, torque_bounds, (-16.3, 0))


def cheetahs(people: int, rng: np.random.Generator, teacher: Path) -> tuple[Rows, dict[str, Any]]:
    """Returns the log of people who run as the teacher does, with errors, and its declaration."""
    if not teacher.exists():
        train(preset("sotto", "HalfCheetah-v5", target_epsilon=30.0, seed=1), out=teacher)
    agent = load_agent(teacher)
    envs = gymnasium.make_vec("HalfCheetah-v5", COLLECTED, vectorization_mode="sync")
    error, rows = 0.5 * (1 - rng.uniform(size=(people, 1))), []
    for first in range(0, people, COLLECTED):
        who = np.arange(first, min(first + COLLECTED, people))
        seen, _ = envs.reset(seed=int(rng.integers(2**31)))
        for step in range(CHEETAH_STEPS + 1):
            torque = agent.act(seen).copy()
            torque[: len(who)] += error[who] * rng.normal(size=(len(who), 6))
            torque = np.clip(torque, -1, 1)
            after, reward, *_ = envs.step(torque)
            when = np.full(len(who), step)
            values = (x[: len(who)] for x in (*seen.T.astype(np.float32), *torque.T, reward))
            rows.append((who, when, *values))
            seen = after
    observed = [f"seen_{i}" for i in range(len(CHEETAH_BOUNDS))]
    torques = [f"torque_{i}" for i in range(6)]
    names = ("person", "step", *observed, *torques, "reward")
    found = dict(zip(names, map(np.concatenate, zip(*rows, strict=True)), strict=True))
    bounds = dict(zip(observed, CHEETAH_BOUNDS, strict=True))
    action = [{"column": name, "low": -1, "high": 1} for name in torques]
    return found, _declared(people, bounds, action, (-4, 8)) | {"horizon": CHEETAH_STEPS}


def _declared(
    people: int, bounds: Mapping[str, float], action: Any, reward: tuple[float, float]
) -> dict[str, Any]:
    return {
        "person": "person",
        "time": "step",
        "observation": [{"column": n, "low": -b, "high": b} for n, b in bounds.items()],
        "action": action,
        "reward": {"column": "reward", "low": reward[0], "high": reward[1]},
        "people": people,
        "horizon": STEPS,
        "source": "benchmarks/offline_people.py",
    }


def collected(task: Task, people: int, seed: int, teacher: Path) -> tuple[Rows, dict[str, Any]]:
    """Returns the log of new people, and its declaration."""
    rng = np.random.default_rng(seed)
    if task == "HalfCheetah-v5":
        return cheetahs(people, rng, teacher)
    return {"CartPole-v1": cart_poles, "Pendulum-v1": pendulums}[task](people, rng)


def imported(task: Task, people: int, seed: int, folder: Path, teacher: Path) -> Path:
    """Collects the logs of new people and imports them; returns the folder of the dataset."""
    rows, declared = collected(task, people, seed, teacher)
    pq.write_table(pa.table(rows), folder / "log.parquet")
    out = folder / "log"
    import_log(str(folder / "log.parquet"), Declaration.of(declared), out, say=lambda _: None)
    return out


def without_noise(config: OfflinePeopleConfig, records: Records) -> Any:
    """Returns the policy of the same method, without noise.

    The moments are those of all people, without clipping. Steps are clipped.
    """
    everybody = rows_of(records, slice(0, records.people))
    if config.method != "model":
        return without_noise_in_steps(config, everybody)

    def mean(contribution: Any) -> np.ndarray:
        def one(unit: Any) -> Any:
            return contribution(unit, new_key(0))

        batches = [
            np.asarray(jax.vmap(one)(jax.tree.map(lambda x, i=i: x[i : i + 250], everybody)).sum(0))
            for i in range(0, records.people, 250)
        ]
        return np.asarray(np.sum(batches, axis=0, dtype=np.float64) / records.people)

    nothing = jnp.zeros(1)
    scales = scales_of(mean(lambda u, k: moments.person_scales(config, nothing, u, k)), 0.0)
    known = rounds.blank(config, scales)
    found = mean(lambda u, k: rounds.person_residual(config, known, u, k))
    return learning.learn(config, known, found, 0.0, new_key(config.seed))


def without_noise_in_steps(config: OfflinePeopleConfig, rows: Any) -> Any:
    """Returns the policy of `config.steps` clipped steps about drawn people, without noise."""
    rng = np.random.default_rng(config.seed)
    clip = steps.CLIP_NORM

    @jax.jit
    def step(state: steps.StepsState, some: Any) -> steps.StepsState:
        def one(unit: Any) -> Any:
            gradient = steps.person_gradient(config, state, unit)
            norm = optax.global_norm(gradient)
            return jax.tree.map(
                lambda x: x * jnp.minimum(1, clip / jnp.maximum(norm, 1e-9)), gradient
            )

        mean = jax.tree.map(lambda x: x.mean(0), jax.vmap(one)(some))
        return steps.stepped(config, state, mean)

    state = steps.initial_state(config, new_key(config.seed))
    people = len(rows.present)
    rows = jax.tree.map(np.asarray, rows)
    for _ in range(config.steps):
        drawn = rng.choice(people, round(people * config.sampling_rate), replace=False)
        state = step(state, jax.tree.map(lambda x, d=drawn: x[d], rows))
    return state.policy


def main(
    task: Task = "CartPole-v1",
    seeds: int = 3,
    first_seed: int = 100,
    people: int = 10_000,
    epsilon: float = 1.0,
    methods: tuple[Method, ...] = ("model", "advantage", "cql", "cloning"),
    teacher: Path = Path("runs/cheetah-teacher"),
) -> None:
    """Prints the mean greedy return of each arm and seed, as lines of JSON."""
    for seed in range(first_seed, first_seed + seeds):
        with tempfile.TemporaryDirectory() as made:
            begun = time.perf_counter()
            log = imported(task, people, seed, Path(made), teacher)
            records = load(log)
            read = time.perf_counter() - begun
            logged = float(records.rewards.sum(axis=1).mean())
            for method in methods:
                config = OfflinePeopleConfig(
                    on=str(log),
                    method=method,
                    env_id=task,
                    seed=seed,
                    population="simulated",
                    target_epsilon=epsilon,
                    delta=1e-5,
                )
                begun = time.perf_counter()
                run = train(config, out=Path(made) / method)
                policies = jax.tree.map(lambda x: x[None], run.load().policy)
                private = returns_of(task, policies, new_key(seed), EPISODES, True).mean()
                took = time.perf_counter() - begun
                free = without_noise(filled(config, records), records)
                policies = jax.tree.map(lambda x: x[None], free)
                open_ = returns_of(task, policies, new_key(seed), EPISODES, True).mean()
                found = {
                    **{"task": task, "people": people, "epsilon": epsilon, "seed": seed},
                    **{"method": method, "private": round(float(private), 1)},
                    **{"without_noise": round(float(open_), 1), "logged": round(logged, 1)},
                    **{"import_seconds": round(read), "seconds": round(took)},
                }
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
