"""Training of the arms of Gohari et al. 2021: all seeds at once in JAX, one at a time on AirRaid.

A student and its teacher are in one process, and every seed has a separate ledger.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.algorithm import train_in_jax
from sotto.algorithms.baselines.gymnasium import GymnasiumRun
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.gymnasium import GymnasiumStudent
from sotto.algorithms.kickstarting.promises import promise
from sotto.algorithms.kickstarting.teachers import Ensemble, ExactTeacher, LocalTeacher, Teacher
from sotto.algorithms.kickstarting.training import StudentTraining
from sotto.algorithms.settings import as_first_named
from sotto.experiments.certified import certificates
from sotto.experiments.engine import Arm, Report, Result, digest
from sotto.experiments.gohari2021.arms import PAPER_DELTA, PAPER_EPSILON, FigureLearner
from sotto.keys import keys_of, new_key
from sotto.privacy.answers.distances import PolicyDistance
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.rl.envs.base import ActionSpace, Discrete
from sotto.rl.envs.gymnasium.air_raid import AIR_RAID, air_raid
from sotto.rl.envs.registry import make
from sotto.rl.evaluation import returns_in_jax
from sotto.rl.networks import Policy
from sotto.trees import single

POINTS = 100
"""Largest number of points of a curve, besides the one before training."""

NEARBY = 0.01
"""L2 distance of two teachers' rows at which `_cost` also states the answers' epsilon."""

_FORMAT = 1  # version of kept results: raise it when training or evaluation changes
_EPISODES = 16  # at each point of each seed, greedy and sampled
_AIR_RAID_UPDATES = 16  # per point of AirRaid, whose episodes last a thousand steps or more
_STUDENT = "student"

# For the expected duration: seconds to import and compile, of an update on one core in JAX and on
# AirRaid, and more seconds for each seed and for each answer that an update reads, likewise.
_STARTING, _PER_UPDATE, _PER_AIR_RAID_UPDATE, _PER_SEED = 20.0, 0.02, 0.25, 0.006
_PER_ROW, _PER_AIR_RAID_ROW = 6e-6, 1.4e-5


def arm(
    learner: FigureLearner,
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
    folders = [folder / f"seed-{seed}" for seed in seeds]
    ledgers: list[AnswerLedger] = []
    if isinstance(config, KickstartConfig):
        ledgers, asked = _teachers(config, teachers, folders)
        trained = _listening(config, seeds, asked)
    else:
        trained = (_alone_on_air_raid if plays else _alone)(config, seeds)
    kinds = ("training", "answered") if plays else ("greedy", "sampled", "answered")
    steps, values = [], []
    for updates, policies, ended, answered in trained:
        found = [_mean(ended)] if plays else evaluated(config.env_id, policies, updates)
        steps.append(updates * config.steps_per_update)
        values.append((*found, answered))
        if updates:
            report(updates / config.num_updates)
    curves = dict(zip(kinds, np.moveaxis(np.asarray(values, np.float64), 0, 2), strict=True))
    said = certificates(ledgers, folders)
    if ledgers:
        said |= {"delta": ledgers[0].budget.delta, "more": {"cost": _cost(ledgers[0])}}
    return Result(arm, tuple(seeds), np.asarray(steps), curves, **said), policies


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


# --- teachers ------------------------------------------------------------------------------------


def _teachers(
    config: KickstartConfig, ensembles: Sequence[Ensemble], folders: Sequence[Path]
) -> tuple[list[AnswerLedger], list[Teacher]]:
    """Returns a ledger and a teacher for each seed; exact teachers have no ledger.

    An exact teacher protects nobody. It is allowed here because this command has simulated the
    people from whom it learned.
    """
    if config.teacher_mechanism == "exact":
        return [], [ExactTeacher(one) for one in ensembles]
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


# --- students ------------------------------------------------------------------------------------

_Trained = Iterator[tuple[int, Policy, Sequence[tuple[float, int]], Int[np.ndarray, " seeds"]]]
"""Points of all seeds' curves, of which the first is before training: updates so far, policies,
mean return and number of the games that ended in each update on AirRaid, and answers so far."""


def _alone(config: PPOConfig, seeds: Sequence[int]) -> _Trained:
    states = jax.jit(jax.vmap(partial(ppo.init, config)))(keys_of(seeds, 0))
    every, nothing = points_every(config), np.zeros(len(seeds), int)
    yield 0, states.networks.policy, (), nothing
    for done, after, _ in train_in_jax(config, seeds, states, 0, every):
        if done % every == 0 or done == config.num_updates:
            yield done, after.networks.policy, (), nothing


def _alone_on_air_raid(config: PPOConfig, seeds: Sequence[int]) -> _Trained:
    (seed,), nothing = seeds, np.zeros(1, int)
    users, env = air_raid(config.num_envs)
    with users:
        run = GymnasiumRun(users, env, seed)
        begun = ppo.begin(config, env, run.network_key, ())
        yield 0, single(begun.networks.policy), (), nothing
        ended: list[tuple[float, int]] = []
        for done, (state, metrics) in enumerate(run.go_on(config, begun), 1):
            ended.append((float(metrics.episode_return), int(metrics.episodes)))
            if done % points_every(config) == 0 or done == config.num_updates:
                yield done, single(state.networks.policy), ended, nothing
                ended = []


def _listening(
    config: KickstartConfig, seeds: Sequence[int], teachers: Sequence[Teacher]
) -> _Trained:
    with ExitStack() as stack:
        if config.env_id == AIR_RAID:
            (seed,) = seeds
            users, env = air_raid(config.num_envs)
            run = GymnasiumStudent(stack.enter_context(users), env, seed)
            training = StudentTraining(
                config, seeds, teachers, run.student(config), collect=run.collect
            )
        else:
            training = StudentTraining(config, seeds, teachers)
        training.chunk_updates = points_every(config)
        yield 0, training.states.ppo.networks.policy, (), np.zeros(len(seeds), int)
        for progress in training:
            games = progress.simulated
            ended = list(zip(games["episode_return"][0], games["episodes"][0], strict=True))
            answered = np.asarray(progress.released["answered"][:, -1])
            yield progress.updates, progress.states.ppo.networks.policy, ended, answered


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


def _mean(ended: Sequence[tuple[float, int]]) -> Float[np.ndarray, " 1"]:
    """Returns the mean return of ended games, from the mean and number of each update."""
    games = sum(count for _, count in ended)
    if not games:
        return np.array([math.nan])
    return np.array([sum(mean * count for mean, count in ended if count) / games])
