"""Training of the arms of Gohari et al. 2021: all seeds at once in JAX, one at a time on AirRaid.

A student and its teacher are in one process, and every seed has a separate ledger.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from sotto.algorithms.base import Progress
from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.gymnasium import GymnasiumRun
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.gymnasium import GymnasiumStudent
from sotto.algorithms.kickstarting.promises import promise
from sotto.algorithms.kickstarting.teachers import Ensemble, ExactTeacher, LocalTeacher, Teacher
from sotto.algorithms.kickstarting.training import Training
from sotto.algorithms.settings import as_first_named
from sotto.experiments.certified import certificates
from sotto.experiments.engine import Arm, Report, Result, digest
from sotto.experiments.gohari2021.arms import PAPER_DELTA, PAPER_EPSILON, Learner
from sotto.keys import keys_of, new_key
from sotto.privacy.answers.distances import PolicyDistance
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.rl.envs.base import ActionSpace, Discrete
from sotto.rl.envs.gymnasium.air_raid import AIR_RAID, air_raid
from sotto.rl.envs.registry import make
from sotto.rl.evaluation import returns_in_jax
from sotto.rl.networks import Policy

POINTS = 100
"""Largest number of points of a curve, besides the one before training."""

NEARBY = 0.01
"""L2 distance of two teachers' rows at which `_cost` also states the answers' epsilon."""

_FORMAT = 1  # version of kept results: raise it when training or evaluation changes
_EPISODES = 16  # at each point of each seed, greedy and sampled
_PPO_PROGRAM = 10  # updates in one compiled program
_AIR_RAID_UPDATES = 16  # per point of AirRaid, whose episodes last a thousand steps or more
_STUDENT = "student"

# For the expected duration: seconds to import and compile, of an update on one core in JAX and on
# AirRaid, and more seconds for each seed and for each answer that an update reads, likewise.
_STARTING, _PER_UPDATE, _PER_AIR_RAID_UPDATE, _PER_SEED = 20.0, 0.02, 0.25, 0.006
_PER_ROW, _PER_AIR_RAID_ROW = 6e-6, 1.4e-5


def arm(
    learner: Learner,
    config: PPOConfig,
    seeds: tuple[int, ...],
    teachers: tuple[Arm, ...] = (),
    shards: bool = False,
) -> Arm:
    """Returns an arm of a figure.

    Args:
        learner: the learner.
        config: its settings.
        seeds: seeds of the runs.
        teachers: arms whose final policies answer the student.
        shards: whether the mean of all of them teaches every seed; otherwise teacher i teaches
            seed i.
    """
    names = [f"{teacher.file}.parquet" for teacher in teachers]  # as earlier versions kept them
    settings = as_first_named(type(config), asdict(config))
    what = [_FORMAT, learner.name, settings, seeds, names, shards]
    update, row = _PER_UPDATE, _PER_ROW
    if config.env_id == AIR_RAID:
        update, row = _PER_AIR_RAID_UPDATE, _PER_AIR_RAID_ROW
    seconds = _STARTING + config.num_updates * (update + len(seeds) * _PER_SEED)
    if isinstance(config, KickstartConfig):
        seconds += len(seeds) * row * _rows_read(config)
    return Arm(
        learner.name,
        learner.label,
        config,
        seeds,
        f"{config.env_id}-{learner.name}-{digest(json.dumps(what, sort_keys=True))}",
        partial(_kept, learner.role == "teacher", shards),
        seconds,
        needs=teachers,
    )


def _rows_read(config: KickstartConfig) -> int:
    """Returns the rows that a student reads in its training, while it remembers any answer."""
    updates = config.num_updates
    if not config.heedless:  # which takes silence for answers until the end
        asked = math.ceil(config.total_queries / config.queries_per_update)
        updates = min(updates, asked + config.remember_updates)
    return updates * config.queries_per_update * config.remember_updates


def policies_of(arms: Sequence[Arm], folder: Path) -> Policy:
    """Reads the final policies of teachers, with a leading axis of all their seeds.

    Args:
        arms: arms of the teachers.
        folder: folder of all arms.
    """
    found = []
    for one in arms:
        blank = blank_policy(one.settings.env_id, one.settings.hidden, len(one.seeds))
        found.append(eqx.tree_deserialise_leaves(folder / one.file / _POLICIES, blank))
    policies: Policy = jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)
    return policies


_POLICIES = "policies.eqx"


def _kept(
    teaches: bool, shards: bool, arm: Arm, seeds: Sequence[int], folder: Path, report: Report
) -> list[Result]:
    """Trains an arm with the teachers it needs, and writes its policies if it is a teacher."""
    ensembles = []
    if arm.needs:
        policies = policies_of(arm.needs, folder.parent)
        each = (jax.tree.map(lambda x, i=i: x[i : i + 1], policies) for i in range(len(seeds)))
        ensembles = [Ensemble(policies)] * len(seeds) if shards else [Ensemble(one) for one in each]
    result, policies = train(arm, seeds, ensembles, folder, report)
    if teaches:
        eqx.tree_serialise_leaves(folder / _POLICIES, policies)
    return [result]


def train(
    arm: Arm, seeds: Sequence[int], teachers: Sequence[Ensemble], folder: Path, report: Report
) -> tuple[Result, Policy]:
    """Trains one arm.

    Args:
        arm: the arm; a student that asks has settings of kickstarting.
        seeds: seeds of networks, environments and actions; AirRaid takes one at a time.
        teachers: one for each seed of a student that asks; otherwise empty.
        folder: folder whose folders seed-K hold ledgers and certificates.
        report: takes the completed share.

    Returns:
        The result, and the final policies with a leading axis of seeds.
    """
    config: PPOConfig = arm.settings
    plays = config.env_id == AIR_RAID
    points = _Points(("training",) if plays else ("greedy", "sampled"))
    if not isinstance(config, KickstartConfig):
        policies = (_alone_on_air_raid if plays else _alone)(config, seeds, points, report)
        return points.result(arm, seeds), policies
    listening = _listening_on_air_raid if plays else _listening
    folders = [folder / f"seed-{seed}" for seed in seeds]
    ledgers, asked = _teachers(config, teachers, folders)
    policies = listening(config, seeds, asked, points, report)
    said = certificates(ledgers, folders)
    if ledgers:
        said |= {"delta": ledgers[0].budget.delta, "more": {"cost": _cost(ledgers[0])}}
    return points.result(arm, seeds, **said), policies


def blank_policy(env_id: str, hidden: tuple[int, ...], seeds: int) -> Policy:
    """Returns the shapes of `seeds` policies, which reading stored policies needs."""
    action: ActionSpace = Discrete(6)
    observations, scale = 128, None
    if env_id != AIR_RAID:
        env = make(env_id)
        observations, action, scale = env.observation_size, env.action, env.observation_scale

    def one(key: PRNGKeyArray) -> Policy:
        return Policy(observations, action, hidden, key, observation_scale=scale)

    shape: Policy = jax.eval_shape(jax.vmap(one), jax.random.split(new_key(0), seeds))
    return shape


class _Points:
    """Collects the points of all seeds' curves."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = (*kinds, "answered")
        self._steps: list[int] = []
        self._values: list[Sequence[Float[np.ndarray, " seeds"]]] = []

    def add(
        self, steps: int, returns: Sequence[Float[np.ndarray, " seeds"]], answered: np.ndarray
    ) -> None:
        """Adds one point."""
        self._steps.append(steps)
        self._values.append((*returns, answered))

    def result(self, arm: Arm, seeds: Sequence[int], **said: Any) -> Result:
        """Returns all points as a result."""
        values = np.asarray(self._values, np.float64)
        curves = {kind: values[:, index].T for index, kind in enumerate(self._kinds)}
        return Result(arm, tuple(seeds), np.asarray(self._steps), curves, **said)


# --- teachers ------------------------------------------------------------------------------------


def _teachers(
    config: KickstartConfig, ensembles: Sequence[Ensemble], folders: Sequence[Path]
) -> tuple[list[AnswerLedger], list[Teacher]]:
    """Returns a ledger and a teacher for each seed; exact teachers have no ledger.

    An exact teacher protects nobody. It is allowed here because this command has simulated the
    people from whom it learned.
    """
    if config.teacher_mechanism == "exact":
        return [], [ExactTeacher(one, one.actions, one.observation_size) for one in ensembles]
    ledgers: list[AnswerLedger] = []
    different = {id(rows): rows for rows in ensembles}
    simulated = replace(config, population="simulated")
    promised = {key: promise(simulated, rows) for key, rows in different.items()}
    for rows, folder in zip(ensembles, folders, strict=True):
        statement, budget = promised[id(rows)]
        path = folder / "answers.sqlite"
        ledger = AnswerLedger.create(path, statement=statement, budget=budget)
        ledger.add_student(_STUDENT)
        ledgers.append(ledger)
    pairs = zip(ensembles, ledgers, strict=True)
    return ledgers, [LocalTeacher(rows, ledger, _STUDENT) for rows, ledger in pairs]


def _cost(ledger: AnswerLedger) -> dict[str, float]:
    """Returns the privacy cost of one run's answers; all runs got equally many.

    `epsilon` is certified for any two teachers. `epsilon_nearby` holds for two teachers whose rows
    differ by at most `distance` in L2 norm at every query. `paper_epsilon` and `paper_delta` are
    the paper's claim for one answer, multiplied by the number of answers (its remark on
    composition, section 4). They are not certified, and a `paper_delta` of 1 claims nothing.
    """
    spent, statement = ledger.spent(), ledger.statement
    nearby = statement.model_copy(update={"distance": PolicyDistance(l2=NEARBY)})
    return {
        "answered": spent.answered,
        "epsilon": spent.epsilon,
        "epsilon_nearby": nearby.planned_epsilon(spent.delta),
        "delta": spent.delta,
        "distance": NEARBY,
        "paper_epsilon": PAPER_EPSILON * spent.answered,
        "paper_delta": min(1.0, PAPER_DELTA * spent.answered),
    }


# --- environments in JAX -------------------------------------------------------------------------


def _alone(config: PPOConfig, seeds: Sequence[int], points: _Points, report: Report) -> Policy:
    states = jax.jit(jax.vmap(partial(ppo.init, config)))(keys_of(seeds, 0))
    keys = keys_of(seeds, 1)
    nothing = np.zeros(len(seeds), int)
    points.add(0, evaluated(config.env_id, states.networks.policy, 0), nothing)
    done, every = 0, points_every(config)
    while done < config.num_updates:
        upto = min(done + every, config.num_updates)
        while done < upto:
            count = min(_PPO_PROGRAM, upto - done)
            states, _ = jax.vmap(ppo.train_chunk, in_axes=(None, 0, 0, None))(
                config, states, keys, count
            )
            done += count
        returns = evaluated(config.env_id, states.networks.policy, done)
        points.add(done * config.steps_per_update, returns, nothing)
        report(done / config.num_updates)
    policies: Policy = states.networks.policy
    return policies


def _listening(
    config: KickstartConfig,
    seeds: Sequence[int],
    teachers: Sequence[Teacher],
    points: _Points,
    report: Report,
) -> Policy:
    training = Training(config, seeds, teachers)
    training.chunk_updates = points_every(config)
    first = evaluated(config.env_id, training.states.ppo.networks.policy, 0)
    points.add(0, first, np.zeros(len(seeds), int))
    for progress in training:
        returns = evaluated(config.env_id, _policies(progress), progress.updates)
        points.add(progress.updates * config.steps_per_update, returns, _answered(progress))
        report(progress.updates / config.num_updates)
    return _policies(progress)


def evaluated(
    env_id: str, policies: Policy, updates: int
) -> tuple[Float[np.ndarray, " seeds"], Float[np.ndarray, " seeds"]]:
    """Returns mean returns of each policy on fresh episodes: greedy, and with sampled actions.

    Every arm has the same episodes after the same number of updates.
    """
    key = jax.random.fold_in(new_key(20210), updates)
    env = make(env_id)
    greedy, sampled = (
        np.asarray(returns_in_jax(env, policies, key, _EPISODES, one).mean(axis=1))
        for one in (True, False)
    )
    return greedy, sampled


def points_every(config: PPOConfig) -> int:
    """Returns the updates between two points; on AirRaid, enough for some episodes to end."""
    fewest = _AIR_RAID_UPDATES if config.env_id == AIR_RAID else 1
    return max(fewest, math.ceil(config.num_updates / POINTS))


# --- AirRaid -------------------------------------------------------------------------------------


def _alone_on_air_raid(
    config: PPOConfig, seeds: Sequence[int], points: _Points, report: Report
) -> Policy:
    users, env = air_raid(config.num_envs)
    with users:
        run = GymnasiumRun(users, env, _only(seeds))
        points.add(0, [_NOTHING], np.zeros(1, int))
        ended: list[tuple[float, int]] = []
        for done, (state, metrics) in enumerate(run.train_ppo(config), 1):
            ended.append((float(metrics.episode_return), int(metrics.episodes)))
            if done % points_every(config) == 0 or done == config.num_updates:
                points.add(done * config.steps_per_update, [_mean(ended)], np.zeros(1, int))
                ended = []
                report(done / config.num_updates)
            policy = state.networks.policy
    policies: Policy = jax.tree.map(lambda x: x[None], policy)
    return policies


def _listening_on_air_raid(
    config: KickstartConfig,
    seeds: Sequence[int],
    teachers: Sequence[Teacher],
    points: _Points,
    report: Report,
) -> Policy:
    users, env = air_raid(config.num_envs)
    with users:
        run = GymnasiumStudent(users, env, _only(seeds))
        training = Training(config, seeds, teachers, run.student(config), collect=run.collect)
        training.chunk_updates = points_every(config)
        points.add(0, [_NOTHING], np.zeros(1, int))
        for progress in training:
            metrics = progress.released | progress.simulated
            ended = zip(metrics["episode_return"][0], metrics["episodes"][0], strict=True)
            steps = progress.updates * config.steps_per_update
            points.add(steps, [_mean(list(ended))], _answered(progress))
            report(progress.updates / config.num_updates)
    return _policies(progress)


_NOTHING = np.array([math.nan])


def _mean(ended: Sequence[tuple[float, int]]) -> Float[np.ndarray, " 1"]:
    """Returns the mean return of ended episodes, from the mean and number of each update."""
    episodes = sum(count for _, count in ended)
    if not episodes:
        return _NOTHING
    return np.array([sum(mean * count for mean, count in ended if count) / episodes])


def _only(seeds: Sequence[int]) -> int:
    (seed,) = seeds
    return seed


def _policies(progress: Progress) -> Policy:
    policies: Policy = progress.states.ppo.networks.policy
    return policies


def _answered(progress: Progress) -> np.ndarray:
    return np.asarray(progress.released["answered"][:, -1])
