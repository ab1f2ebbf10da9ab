"""Training of DPPG in chunks of releases, with several seeds side by side.

Each seed is a separate run, with its own people, ledger and certificate. One compiled program
trains all of them. Iterating over a `DPPGTraining` yields progress after each chunk.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.base import Progress
from sotto.algorithms.dppg import gymnasium_users, noise, parts, segments, trust_region
from sotto.algorithms.dppg import release as dppg
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.gymnasium_users import Collector, without_memory
from sotto.algorithms.dppg.public_start import from_first_policy, with_public_inputs
from sotto.algorithms.dppg.release import DPPGState
from sotto.keys import new_key
from sotto.privacy.errors import LedgerOlder
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import StreamStatement
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.gymnasium.described import described
from sotto.rl.envs.gymnasium.unseen import meets_nobody
from sotto.rl.envs.registry import is_native, make
from sotto.rl.envs.wrappers import require_divisors
from sotto.rl.evaluation import returns_of
from sotto.rl.networks import Policy
from sotto.rl.rollout import Actor, rollout
from sotto.rl.tabular import TabularEnvironment
from sotto.trees import at

_PROGRESS_POINTS = 20
_FISHER_EPISODES, _FISHER_REGULARISER = 25, 1e-3  # as in table 2 of the paper
_COINS = 2**24  # tossed in one chunk, if users are drawn from a population


@dataclass(frozen=True)
class DPPGProgress(Progress):
    """Progress after one chunk of releases, with details that runs do not keep.

    Attributes:
        diagnostics: sums over simulated users, [runs, releases, users] each. None: users are real.
        logits: logits of every released policy, [runs, releases, S, A]. None: there are infinitely
            many states.
    """

    diagnostics: dict[str, np.ndarray] | None = None
    logits: np.ndarray | None = None


def training_environment(config: DPPGConfig) -> AnyEnvironment:
    """Returns the environment of users. From Gymnasium, it only has the public facts.

    Raises:
        ValueError: the settings do not fit it, or ask for real people in a simulator.
    """
    real = config.population == "real"
    if is_native(config.env_id):
        if real:
            raise meets_nobody(config.env_id)
        env = make(config.env_id, config.action_repeat)
        require_divisors(make(config.env_id), config.action_repeats)
        if config.local_update == "visit-average" and not isinstance(env, TabularEnvironment):
            raise ValueError(
                f"visit-average needs finitely many states, unlike {config.env_id}; use one-step"
            )
        return with_public_inputs(config, env)
    exploring = config.local_update == "parameter-exploration"
    perturbed = config.parameter_noise > 0 and not exploring
    if config.unit == "segment" or config.critic == "public" or perturbed:
        raise ValueError(
            f"{config.env_id} runs through Gymnasium, which has no continuing segments, no public "
            "critic, and no parameter noise of users with a policy gradient; choose other settings"
        )
    if config.action_repeat_half_life is not None:
        raise ValueError(
            f"{config.env_id} runs through Gymnasium, where action_repeat stays as it is; leave "
            "action_repeat_half_life out"
        )
    if config.population_size is not None:
        raise ValueError(
            f"users are drawn in secret inside the compiled program, where {config.env_id} cannot "
            "run; leave population_size out"
        )
    env = without_memory(described(config.env_id, config.action_repeat, unseen=real))
    return with_public_inputs(config, env)


def initial_states(config: DPPGConfig, seeds: Sequence[int]) -> DPPGState:
    """Returns the public state of every seed before the first release, leaves [runs, ...]."""
    env = training_environment(config)
    drawn = jax.vmap(partial(dppg.initial_state, config, env))(jnp.asarray(seeds, jnp.int32))
    return from_first_policy(config, drawn)


def create_ledger(config: DPPGConfig, where: Path | str, run_id: str | None = None) -> Ledger:
    """Creates a ledger with the budget and the unit of these settings."""
    budget = Budget(epsilon=noise.budget_epsilon(config), delta=config.delta)
    return Ledger.create(where, run_id, unit=config.privacy_unit, budget=budget)


class DPPGTraining:
    """Training with an open stream of releases.

    Args:
        config: settings.
        seeds: one per run.
        ledgers: one per run, from `create_ledger`, or opened again to resume.
        states: states to continue from. None: the states before the first release.
        done: number of releases behind `states`. A resumed training opens a new stream with fresh
            noise and new people, and releases of an interrupted chunk stay charged. If users are
            drawn from a population, it continues the same stream instead, and releases that were
            charged but not stored are lost.

    Raises:
        PrivacyError: the budget does not cover the training. No data has been used.
        ValueError: the settings do not fit the environment.
    """

    def __init__(
        self,
        config: DPPGConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: DPPGState | None = None,
        done: int = 0,
    ) -> None:
        if any(stream.statement.selection for one in ledgers for stream in one.streams):
            raise ValueError(
                "this ledger was charged for choosing settings, and cannot be continued; run "
                "sotto tune again with another --out"
            )
        if (held := min(sum(one.releases for one in each.streams) for each in ledgers)) < done:
            raise LedgerOlder("the ledger", "the state to go on from", done, held)
        self.config, self.done = config, done
        self.env = training_environment(config)
        gymnasium_users.require_collectable(config, self.env)
        begin = config if states is None else replace(config, first_policy=None)
        first = initial_states(begin, seeds)
        self.states = first if states is None else states
        self._native = is_native(config.env_id)
        self._drawn = config.population_size is not None
        self._collector: Collector | None = None
        remaining = config.num_updates - done
        if remaining < 1:
            raise ValueError(f"all {config.num_updates} releases of this training have been made")
        if self._reached():
            raise ValueError(
                f"this training stopped after {done} updates, when released returns had reached "
                f"stop_at_return = {config.stop_at_return:g}"
            )
        self._interval = math.ceil(config.num_updates / _PROGRESS_POINTS)
        self.chunk_updates = self._interval if self._native else 1
        if self._drawn:  # one coin for each person of the population, release and run
            most = _COINS // (config.users * len(seeds))
            self.chunk_updates = max(1, min(self.chunk_updates, most))
        policy = at(first.policy, 0)  # free of data, also on resuming
        if self._drawn:
            extras = parts.extra_parts(config, self.env)
            parts.require_as_stated(config.num_updates, extras, ledgers)
        dimension = dppg.dimension(config, self.env, at(self.states, 0))
        self.noise_multiplier = noise.total_noise_multiplier(config, dimension)
        multipliers = noise.part_multipliers(config, self.noise_multiplier)
        self.clip_norm = chosen_clip_norm(config, self.env, policy, multipliers["policy"])
        # The seed determines the simulated people. A resumed training simulates new ones.
        keys = jax.vmap(lambda s: jax.random.fold_in(new_key(s), done))(
            jnp.asarray(seeds, jnp.uint32)
        )
        self._keys, segment_keys = jax.vmap(lambda k: jax.random.split(k, 2), out_axes=1)(keys)
        self._ledgers = ledgers
        release = dppg.make_release(
            config,
            self.env,
            multipliers=multipliers,
            clip_norm=self.clip_norm,
            horizon=config.num_updates if self._drawn else remaining,
            collected=not self._native,
        )
        self._first_people = [ledger.next_person for ledger in ledgers]
        self._opened_at = done
        continuing = release.world is not None
        self._stream = release.open(
            ledgers,
            self.states,
            () if self._native else gymnasium_users.nothing_collected(config, self.env, policy),
            world_states=(
                jax.vmap(partial(segments.begin, config, self.env))(segment_keys)
                if continuing
                else ()
            ),
            chunk=min(self.chunk_updates, remaining),
            resume=self._drawn and any(ledger.streams for ledger in ledgers),
        )
        if self._drawn:
            self.done = self._stream.released
            if self.done == config.num_updates:
                raise ValueError(
                    f"all {config.num_updates} releases of this training have been charged; those "
                    f"after the first {done} were lost, so start a new run"
                )

    @property
    def statement(self) -> StreamStatement:
        """Statement of the stream, as it is in the ledgers."""
        return self._stream.statement

    def __iter__(self) -> Iterator[DPPGProgress]:
        """Makes the remaining releases in chunks, or fewer where `stop_at_return` is reached."""
        try:
            while self.done < self.config.num_updates and not self._reached():
                yield self.advance()
        finally:
            self.close()

    def advance(self) -> DPPGProgress:
        """Charges and makes the next chunk of releases."""
        count = min(self.chunk_updates, self.config.num_updates - self.done)
        people = None if self._drawn else self._next_people(count)
        units = () if people is None or self._native else self._collect(people)
        self.states, log, diagnostics = self._stream.run(self.states, self._keys, people, units)
        self.done += count
        evaluation: dict[str, np.ndarray] = {}
        last = self.done == self.config.num_updates
        due = self._native or last or self.done % self._interval == 0
        if due and self.config.evaluation_episodes > 0 and has_simulator(self.config):
            key = jax.random.fold_in(new_key(20260), self.done)
            evaluation = {
                name: evaluate_policy(
                    self.config, policy, key, self.config.evaluation_episodes
                ).mean(axis=1)
                for name, policy in policies(self.states).items()
                if name != "tail"
            }
        as_numpy = partial(jax.tree.map, np.asarray)
        released, sums = as_numpy(log), as_numpy(diagnostics)
        logits = released.pop("logits", None)
        return DPPGProgress(
            self.done,
            self.states,
            released,
            evaluation,
            _per_user(sums),
            diagnostics=sums,
            logits=logits,
        )

    def _next_people(self, count: int) -> Int[np.ndarray, "runs releases users"]:
        """Returns the enrolment numbers of the next people, who are new or come back in turn."""
        groups = self.config.groups(self.done - self._opened_at + np.arange(count))
        size = self.config.users_per_update
        order = groups[:, None] * size + np.arange(size)
        return np.stack([first + order for first in self._first_people])

    def _reached(self) -> bool:
        """Returns whether the released returns of all runs have reached `stop_at_return`."""
        goal = self.config.stop_at_return
        return goal is not None and bool(jnp.all(self.states.extras["return"] >= goal))

    def _collect(self, people: Int[np.ndarray, "runs one users"]) -> Any:
        """Collects one release's unit data in Gymnasium, leaves of shape [runs, 1, users, ...]."""
        if self._collector is None:
            self._collector = Collector(self.config)
        acting = parts.actor(self.states.extras, self.states.policy)
        runs = [
            self._collector.collect(
                at(acting, index),
                jax.random.fold_in(self._keys[index], self.done),
                numbers,
            )
            for index, (numbers,) in enumerate(people)
        ]
        return jax.tree.map(lambda *x: jnp.stack(x)[:, None], *runs)

    def close(self) -> None:
        """Closes the environments outside JAX, if there are any."""
        if self._collector is not None:
            self._collector.close()
            self._collector = None


def _per_user(sums: dict[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    """Returns means over users: sums of shape [runs, releases, users] become [runs, releases]."""
    if sums is None:
        return {}
    reward, ended = sums["reward"].sum(axis=2), sums["episodes"].sum(axis=2)
    return {
        "steps_per_user": sums["steps"].mean(axis=2),
        "reward_per_user": sums["reward"].mean(axis=2),
        # It includes rewards of episodes that were cut off, and is NaN if no episode ended.
        "reward_per_ended_episode": np.divide(
            reward, ended, out=np.full(reward.shape, np.nan), where=ended > 0
        ),
    }


def policies(states: DPPGState) -> dict[str, Actor]:
    """Returns the released policies, each with a leading axis of runs."""
    released = {"last": states.policy, "ema": states.ema, "tail": states.tail}
    return {name: parts.actor(states.extras, one) for name, one in released.items()}


def has_simulator(config: DPPGConfig) -> bool:
    """Returns whether the environment can be played without the people who are protected.

    Real people are met through Gymnasium, and their returns must not be shown without noise.
    """
    return config.population != "real"


def evaluate_policy(
    config: DPPGConfig,
    policy: Actor,
    key: PRNGKeyArray,
    episodes: int,
    *,
    greedy: bool = True,
) -> Float[np.ndarray, "runs episodes"]:
    """Returns undiscounted returns of simulated people, with one decision per environment step.

    Args:
        config: settings, of which only the environment is used.
        policy: a policy with a leading axis of runs.
        key: randomness of the evaluation.
        episodes: number of whole episodes per run.
        greedy: whether actions are the policy's mode. Otherwise they are sampled.

    Raises:
        ValueError: there is no simulator.
    """
    if not has_simulator(config):
        raise ValueError(
            f"in {config.env_id} real people are met, whose returns may be shown with noise only; "
            "train with private_return for a released learning curve"
        )
    return returns_of(config.env_id, policy, key, episodes, greedy)


def chosen_clip_norm(
    config: DPPGConfig, env: AnyEnvironment, policy: Policy, multiplier: float
) -> float:
    """Returns the clip norm: the given one, or from a trust region around the first policy."""
    if config.clip_norm_from is None:
        return config.clip_norm
    common: dict[str, Any] = {
        "noise_ratio": multiplier * noise.spread(config) / config.users_per_update,
        "radius": config.trust_region_radius,
        "confidence": config.trust_region_confidence,
        "learning_rate": config.server_learning_rate,
    }
    match config.clip_norm_from:
        case "l2-quantile":
            return trust_region.l2_quantile(dimension=_size(policy), **common)
        case "l2-markov":
            return trust_region.l2_markov(dimension=_size(policy), **common)
        case "kl-quantile":
            return trust_region.kl_quantile(public_fisher(config, env, policy), **common)
        case "kl-markov":
            return trust_region.kl_markov(public_fisher(config, env, policy), **common)


def public_fisher(
    config: DPPGConfig, env: AnyEnvironment, policy: Policy
) -> Float[np.ndarray, "d d"]:
    """Returns the Fisher matrix of a policy without data, in the public simulator."""
    if not is_native(config.env_id):
        raise ValueError(
            f"a KL trust region needs a public simulator, and {config.env_id} has none; "
            "use l2-quantile"
        )

    def scores(key: PRNGKeyArray) -> Float[Array, "T d"]:
        seen = rollout(env, env.default_params, policy, key, config.steps_per_user, True)
        gradients = jax.vmap(jax.grad(lambda p, o, a: p(o).log_prob(a)), in_axes=(None, 0, 0))(
            policy, seen.observations, seen.actions
        )
        flat = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(gradients)]
        return jnp.where(seen.alive[:, None], jnp.concatenate(flat, axis=1), jnp.nan)

    keys = jax.random.split(new_key(0), _FISHER_EPISODES)
    rows = np.asarray(jax.jit(jax.vmap(scores))(keys), dtype=np.float64)
    rows = rows.reshape(-1, rows.shape[-1])
    rows = rows[~np.isnan(rows[:, 0])]
    return rows.T @ rows / len(rows) + _FISHER_REGULARISER * np.eye(rows.shape[1])


def _size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array)))
