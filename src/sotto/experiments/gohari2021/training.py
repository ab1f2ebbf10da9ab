"""Trains the arms of Gohari et al. 2021: all seeds side by side in JAX, one by one on AirRaid.

A student asks in process, through a ledger of its own.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.base import Progress
from sotto.algorithms.baselines import ppo
from sotto.algorithms.baselines.gymnasium import GymnasiumRun
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.promises import promise
from sotto.algorithms.kickstarting.teachers import Ensemble, ExactTeacher, LocalTeacher, Teacher
from sotto.algorithms.kickstarting.training import Training
from sotto.experiments.engine import Arm, Report, Result, certificates, digest
from sotto.experiments.gohari2021.arms import PAPER_DELTA, PAPER_EPSILON, Learner
from sotto.keys import new_key
from sotto.privacy.answers.distances import PolicyDistance
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.rl.envs.base import ActionSpace, Discrete
from sotto.rl.envs.gymnasium.air_raid import AIR_RAID, air_raid
from sotto.rl.envs.registry import make
from sotto.rl.networks import Policy
from sotto.rl.rollout import evaluate

POINTS = 100
"""Points of a curve at most, besides the one before training."""

NEARBY = 0.01
"""L2 distance of rows at which the answers' cost is stated beside that of any two teachers."""

_FORMAT = 1  # of what is kept: raise it when training or evaluation changes
_EPISODES = 16  # behind each point of each seed, greedy and sampled
_PPO_PROGRAM = 10  # updates in one compiled program
_HOSTED_UPDATES = 16  # behind each point of AirRaid, whose episodes last a thousand steps or more
_STUDENT = "student"

# For what is said beforehand: seconds to import and compile, those of an update on one core
# (AirRaid plays on the host), and more for each seed and each answer that an update looks at.
_STARTING, _PER_UPDATE, _PER_HOSTED_UPDATE, _PER_SEED, _PER_ROW = 20.0, 0.02, 0.25, 0.006, 6e-6


def arm(
    learner: Learner,
    config: PPOConfig,
    seeds: tuple[int, ...],
    teachers: tuple[Arm, ...] = (),
    shards: bool = False,
) -> Arm:
    """An arm of a figure.

    Args:
        learner: who learns.
        config: its settings.
        seeds: of the runs.
        teachers: arms whose final policies the student asks.
        shards: the mean of all of them teaches every seed; else teacher i teaches seed i.
    """
    names = [f"{teacher.file}.parquet" for teacher in teachers]  # as earlier versions kept them
    what = [_FORMAT, learner.name, asdict(config), seeds, names, shards]
    rows = 0
    if isinstance(config, KickstartConfig):
        rows = config.queries_per_update * config.remember_updates
    update = _PER_HOSTED_UPDATE if config.env_id == AIR_RAID else _PER_UPDATE
    update += len(seeds) * (_PER_SEED + _PER_ROW * rows)
    return Arm(
        learner.name,
        learner.label,
        config,
        seeds,
        f"{config.env_id}-{learner.name}-{digest(json.dumps(what, sort_keys=True))}",
        partial(_kept, learner.role == "teacher", shards),
        _STARTING + config.num_updates * update,
        needs=teachers,
    )


def policies_of(arms: Sequence[Arm], folder: Path) -> Policy:
    """The final policies that teachers kept, with a leading axis of all their seeds.

    Args:
        arms: of the teachers.
        folder: of all arms.
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
    """Trains an arm with the teachers that it needs, and keeps its policies if it is a teacher."""
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
        arm: its settings are those of kickstarting for a student that asks.
        seeds: of networks, environments and actions; AirRaid takes one at a time.
        teachers: one for each seed of a student that asks; else none.
        folder: for ledgers and certificates, in seed-K.
        report: told how far it is.

    Returns:
        The result, and the final policies with a leading axis of seeds.
    """
    config: PPOConfig = arm.settings
    hosted = config.env_id == AIR_RAID
    points = _Points(("training",) if hosted else ("greedy", "sampled"))
    if not isinstance(config, KickstartConfig):
        policies = (_alone_on_host if hosted else _alone)(config, seeds, points, report)
        return points.result(arm, seeds), policies
    listening = _listening_on_host if hosted else _listening
    folders = [folder / f"seed-{seed}" for seed in seeds]
    ledgers, asked = _teachers(config, teachers, folders)
    policies = listening(config, seeds, asked, points, report)
    said = certificates(ledgers, folders)
    if ledgers:
        said |= {"delta": ledgers[0].budget.delta, "more": {"cost": _cost(ledgers[0])}}
    return points.result(arm, seeds, **said), policies


def blank_policy(env_id: str, hidden: tuple[int, ...], seeds: int) -> Policy:
    """The shape of `seeds` policies, to read stored ones into."""
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
    """The points of a curve as they come; all seeds at once."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = (*kinds, "answered")
        self._steps: list[int] = []
        self._values: list[Sequence[Float[np.ndarray, " seeds"]]] = []

    def add(
        self, steps: int, returns: Sequence[Float[np.ndarray, " seeds"]], answered: np.ndarray
    ) -> None:
        """One more point."""
        self._steps.append(steps)
        self._values.append((*returns, answered))

    def result(self, arm: Arm, seeds: Sequence[int], **said: Any) -> Result:
        """All of them."""
        values = np.asarray(self._values, np.float64)
        curves = {kind: values[:, index].T for index, kind in enumerate(self._kinds)}
        return Result(arm, tuple(seeds), np.asarray(self._steps), curves, **said)


# --- teachers ------------------------------------------------------------------------------------


def _teachers(
    config: KickstartConfig, ensembles: Sequence[Ensemble], folders: Sequence[Path]
) -> tuple[list[AnswerLedger], list[Teacher]]:
    """A teacher for each seed, and its ledger where answers are private.

    An exact one protects nobody. The same command has simulated it and whom it learned from.
    """
    if config.teacher_mechanism == "exact":
        return [], [ExactTeacher(one, one.actions, one.observation_size) for one in ensembles]
    ledgers: list[AnswerLedger] = []
    different = {id(rows): rows for rows in ensembles}
    promised = {key: promise(config, rows) for key, rows in different.items()}
    for rows, folder in zip(ensembles, folders, strict=True):
        statement, budget = promised[id(rows)]
        path = folder / "answers.sqlite"
        ledger = AnswerLedger.create(path, statement=statement, budget=budget)
        ledger.add_student(_STUDENT)
        ledgers.append(ledger)
    pairs = zip(ensembles, ledgers, strict=True)
    return ledgers, [LocalTeacher(rows, ledger, _STUDENT) for rows, ledger in pairs]


def _cost(ledger: AnswerLedger) -> dict[str, float]:
    """What one run's answers cost; all runs were answered as often.

    `epsilon` is certified for any two teachers, `epsilon_nearby` for two whose rows are `distance`
    apart in L2 norm at every query. `paper_epsilon` and `paper_delta` are the paper's claim for one
    answer, times the answers (its own remark on composition, section 4): they are not certified,
    and where `paper_delta` is 1 nothing is claimed.
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
    states = jax.jit(jax.vmap(partial(ppo.init, config)))(_keys(seeds, 0))
    keys = _keys(seeds, 1)
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
    """Mean returns of each policy on fresh episodes: greedy, and with sampled actions.

    The episodes are those of every arm after as many updates.
    """
    key = jax.random.fold_in(new_key(20210), updates)
    greedy, sampled = (np.asarray(_evaluated(env_id, policies, key, one)) for one in (True, False))
    return greedy, sampled


@partial(jax.jit, static_argnames=("env_id", "greedy"))
def _evaluated(env_id: str, policies: Policy, key: PRNGKeyArray, greedy: bool) -> Array:
    env = make(env_id)

    def one(policy: Policy) -> Array:
        return evaluate(env, env.default_params, policy, key, _EPISODES, greedy).mean()

    return jax.vmap(one)(policies)


def points_every(config: PPOConfig) -> int:
    """Updates between two points; on AirRaid enough for some episodes to end."""
    fewest = _HOSTED_UPDATES if config.env_id == AIR_RAID else 1
    return max(fewest, math.ceil(config.num_updates / POINTS))


# --- AirRaid -------------------------------------------------------------------------------------


def _alone_on_host(
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


def _listening_on_host(
    config: KickstartConfig,
    seeds: Sequence[int],
    teachers: Sequence[Teacher],
    points: _Points,
    report: Report,
) -> Policy:
    users, env = air_raid(config.num_envs)
    with users:
        run = GymnasiumRun(users, env, _only(seeds))
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
    """Mean return of the episodes that ended, from the mean and number of each update."""
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


def _keys(seeds: Sequence[int], purpose: int) -> PRNGKeyArray:
    keys = jax.vmap(new_key)(jnp.asarray(seeds, jnp.uint32))
    return jax.vmap(lambda key: jax.random.fold_in(key, purpose))(keys)
