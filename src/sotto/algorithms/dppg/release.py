"""Release of one DPPG policy update (Rio et al. 2025, Algorithms 2 and 3; errata: docs/papers.md).

In each update, K users roll out the released policy from a reset, and compute a local update. The
release charges the ledger, clips the updates to norm S, averages them, and adds noise
N(0, (z S / K)^2). The server adds the result to the policy.

Users only share releases: no critic, normaliser, optimiser moment or batch statistic carries one
user's data to another without noise, unless a setting has the value `paper`.

Guarantee:
    All released policies together are Gaussian differentially private with multiplier z for each
    user. The noise covers all participations of a user: one, or several in a public order
    (docs/privacy.md, sections 3, 4 and 17). A user who is drawn in secret pays for every release at
    the sampling rate (section 6). See `sotto.privacy.release.release`.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.dppg import critics, exploration, local_updates, noise, segments
from sotto.algorithms.dppg import parts as dppg_parts
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.gymnasium_users import people
from sotto.keys import new_key
from sotto.privacy.claims import streams as claims
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Assumption, Gap, Part, Poisson
from sotto.rl.envs.base import AnyEnvironment
from sotto.rl.envs.gymnasium.described import Described
from sotto.rl.envs.wrappers import Repeats
from sotto.rl.networks import Policy, Value
from sotto.rl.returns import gae, normalise_advantages
from sotto.rl.rollout import Trajectory, rollout
from sotto.rl.tabular import TabularEnvironment
from sotto.trees import flattened


class DPPGState(NamedTuple):
    """Public state of a training, first free of data and later a function of releases."""

    policy: Policy
    """Last released policy, which the next users follow."""
    critic: Value | tuple[()]
    """Critic, if it is private, public or the paper's. Otherwise ()."""
    previous: Policy
    """Last released update, from which local Adam's moments start."""
    ema: Policy
    """Moving average of released policies."""
    tail: Policy
    """Average of the last released policies, a share of `tail_fraction`."""
    updates: Int[Array, ""]
    """Number of releases so far."""
    seed: Int[Array, ""]
    """Seed of the public simulator that fits a public critic."""
    extras: dict[str, Any]
    """Public states of extra parts (`sotto.algorithms.dppg.parts`), by their names."""
    moments: critics.AdamMoments | tuple[()] = ()
    """Adam's moments of the paper's critic. Otherwise ()."""


def initial_state(config: DPPGConfig, env: AnyEnvironment, seed: Int[Array, ""]) -> DPPGState:
    """Returns the public state before the first release, with networks drawn from the seed."""
    policy_key, critic_key = jax.random.split(new_key(seed))
    policy = Policy(
        env.observation_size,
        env.action,
        config.hidden,
        policy_key,
        observation_scale=env.observation_scale,
        observation_centre=env.observation_centre,
    )
    critic: Value | tuple[()] = ()
    moments: critics.AdamMoments | tuple[()] = ()
    if config.critic in ("private", "public", "paper"):
        critic = Value(
            env.observation_size,
            config.critic_hidden,
            critic_key,
            observation_scale=env.observation_scale,
            observation_centre=env.observation_centre,
            last_gain=0.01,
            scale=config.critic_scale,
            offset=(
                float(_baseline(config, env, config.action_repeat))
                if config.critic != "private"
                else config.baseline or 0.0
            ),
        )
        if config.critic == "paper":
            moments = critics.no_moments(critic)
    nothing = jax.tree.map(jnp.zeros_like, policy)
    return DPPGState(
        policy,
        critic,
        nothing,
        policy,
        policy,
        jnp.int32(0),
        jnp.asarray(seed, jnp.int32),
        {part.name: part.initial() for part in dppg_parts.extra_parts(config, env)},
        moments,
    )


def make_release(
    config: DPPGConfig,
    env: AnyEnvironment,
    *,
    multipliers: dict[str, float],
    clip_norm: float,
    horizon: int,
    collected: bool,
) -> Release:
    """Returns the release of one policy update, which can then be opened.

    Args:
        config: settings.
        env: the training environment (its action repeat included).
        multipliers: noise multiplier of each part.
        clip_norm: bound on one user's policy update. If it is adaptive, it is the first bound.
        horizon: number of releases that remain.
        collected: whether trajectories are collected outside and given as unit data.
    """
    # If adaptive, users divide by the current public clip norm, and the server multiplies by it.
    bound = 1.0 if config.adaptive_clip is not None else clip_norm
    norms, shown = {"policy": bound}, list[str]()
    if config.critic == "private":
        norms["critic"] = config.critic_clip_norm
        shown.append(critics.DESCRIBED)
    for extra in dppg_parts.extra_parts(config, env):
        norms[extra.name] = extra.clip_norm
        shown.append(extra.described)
    parts = {p: Part(clip_norm=n, noise_multiplier=multipliers[p]) for p, n in norms.items()}
    continuing = config.unit == "segment"
    participation = config.participation
    return Release(
        name="DPPG policy update",
        local=(
            partial(exploration.local, config, env)
            if config.local_update == "parameter-exploration"
            else partial(_local, config, env, clip_norm)
        ),
        server=partial(_server, config, env),
        unit=config.privacy_unit,
        parts=parts,
        slots=(
            participation.population
            if isinstance(participation, Poisson)
            else config.users_per_update
        ),
        divisor=float(config.users_per_update),
        horizon=horizon,
        population=people(config, env),
        participation=participation,
        correlation=noise.correlation(config),
        clipping="joint" if config.joint_clip else "separate",
        unprotected={"critic": CRITIC_GAP} if config.critic == "paper" else None,
        world=partial(segments.following, config, env) if continuing and not collected else None,
        gaps=(segments.GAP,) if continuing else (),
        protects=(claims.POLICIES(), *(claims.PARTS(what=one) for one in shown)),
        does_not_protect=(claims.PATTERNS(), claims.OWN_TRAJECTORY()),
        assumptions=(
            *((claims.FIRST_POLICY.assumption(),) if config.first_policy is not None else ()),
            *(_of_environment(config, env) if collected else ()),
        ),
    )


def dimension(config: DPPGConfig, env: AnyEnvironment, state: DPPGState) -> int:
    """Returns how many numbers one release has; leaves of the state have no axis of runs."""
    released = [state.policy, *([state.critic] if config.critic == "private" else [])]
    arrays = jax.tree.leaves(eqx.filter(released, eqx.is_array))
    extras = dppg_parts.extra_parts(config, env)
    return int(sum(leaf.size for leaf in arrays) + sum(part.size for part in extras))


def _of_environment(config: DPPGConfig, env: AnyEnvironment) -> tuple[Assumption, ...]:
    """Returns the assumptions of the proof about a Gymnasium environment."""
    if config.population != "real":
        return (claims.NO_MEMORY.assumption(),)
    told = isinstance(env, Described) and env.meets_person
    who = claims.MEETS_PERSON if told else claims.NEW_PEOPLE
    met = (claims.NO_MEMORY, claims.UNSEEN, claims.OWN_OUTPUT, who)
    return tuple(one.assumption() for one in met)


CRITIC_GAP = Gap(
    name="non-private critic",
    why="the critic is fitted to users' data without noise and shapes every later update "
    "(audited epsilon 2.84 where 0.73 is claimed; the paper's appendix C.2.1 is wrong)",
)


def _local(
    config: DPPGConfig,
    env: AnyEnvironment,
    clip_norm: float,
    state: DPPGState,
    unit: Trajectory | tuple[()],
    key: PRNGKeyArray,
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Returns one user's contribution, from their rollout (unless given), and diagnostics."""
    explore_key, rollout_key, batch_key = jax.random.split(key, 3)
    extras = dppg_parts.extra_parts(config, env)
    followed = state.policy
    repeat = config.action_repeat_after(state.updates)
    discount = config.discount**repeat
    if isinstance(unit, Trajectory):
        raw_trajectory = unit
    else:
        params = env.default_params
        if isinstance(params, Repeats):
            params = params._replace(repeat=repeat)
        followed = exploration.perturbed(state.policy, config.parameter_noise, explore_key)
        raw_trajectory = rollout(
            env,
            params,
            dppg_parts.actor(state.extras, followed),
            rollout_key,
            config.steps_per_user,
            config.one_episode,
        )
    trajectory = dppg_parts.as_seen(state.extras, raw_trajectory)
    values, next_values = _values(config, env, state, trajectory, repeat)
    # The exponent is 1 until repeats are halved. Credit then goes back equally far in time.
    gae_lambda = config.gae_lambda ** (repeat / config.action_repeat)
    raw = gae(trajectory, values, next_values, discount, gae_lambda)
    if config.advantage_scale is None:
        advantages = normalise_advantages(raw, trajectory.alive)
    else:
        advantages = raw / config.advantage_scale
    if config.local_update == "one-step":
        update = local_updates.one_step(config, followed, trajectory, advantages, state.updates)
    elif config.local_update == "visit-average":
        update = local_updates.visit_average(followed, trajectory, advantages)
    else:
        update = local_updates.local_adam(
            config,
            clip_norm,
            followed,
            trajectory,
            advantages,
            state.previous,
            state.updates,
            batch_key,
        )
    parts: dict[str, Any] = {
        extra.name: extra.contribution(state.extras[extra.name], raw_trajectory, update)
        for extra in extras
    }
    if config.adaptive_clip is not None:
        update = jax.tree.map(lambda x: x / state.extras["clip"], update)
    parts["policy"] = update
    if config.critic in ("private", "paper"):
        assert isinstance(state.critic, Value)
        steps = config.critic_steps or local_updates.local_minibatches(config, batch_key)
        made = steps if isinstance(steps, int) else len(steps)
        change, moments = critics.fit(
            state.critic,
            trajectory.observations,
            raw + values,
            trajectory.alive.astype(jnp.float32),
            learning_rate=config.critic_learning_rate,
            steps=steps,
            moments=state.moments or None,
            before=state.updates * made if config.critic == "paper" else 0,
        )
        parts["critic"] = (change, moments) if config.critic == "paper" else change
    return parts, _diagnostics(raw_trajectory, repeat)


def _baseline(
    config: DPPGConfig, env: AnyEnvironment, repeat: int | Int[Array, ""]
) -> float | Float[Array, ""]:
    """Returns the public constant: by default the return of an endless ordinary episode."""
    if config.baseline is not None:
        return config.baseline
    reward = env.reward_per_step / config.action_repeat * repeat
    return reward / (1 - config.discount**repeat)


def _values(
    config: DPPGConfig,
    env: AnyEnvironment,
    state: DPPGState,
    trajectory: Trajectory,
    repeat: int | Int[Array, ""],
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Returns the critic's values at each observation and at each next one."""
    constant = _baseline(config, env, repeat)
    if isinstance(state.critic, Value):
        return state.critic(trajectory.observations), state.critic(trajectory.next_observations)
    if config.critic == "local":
        return critics.own_values(
            trajectory,
            env.observation_scale,
            constant,
            config.discount**repeat,
            centre=env.observation_centre,
        )
    return critics.constant_values(trajectory, constant)


def _server(
    config: DPPGConfig, env: AnyEnvironment, state: DPPGState, released: dict[str, Any]
) -> tuple[DPPGState, dict[str, Array]]:
    """Returns the next public state, and the log. It is post-processing of the release."""
    update = released["policy"]
    if config.adaptive_clip is not None:
        update = jax.tree.map(lambda x: x * state.extras["clip"], update)
    policy = jax.tree.map(
        lambda p, g: config.parameter_decay * p + config.server_learning_rate * g,
        state.policy,
        update,
    )
    updates = state.updates + 1
    first_in_tail = config.num_updates - round(config.tail_fraction * config.num_updates)
    in_tail = jnp.maximum(updates - first_in_tail, 1).astype(jnp.float32)
    critic, moments = state.critic, state.moments
    if config.critic == "paper":
        change, moments = released["critic"]
        critic = jax.tree.map(jnp.add, critic, change)
    elif "critic" in released:
        critic = jax.tree.map(jnp.add, critic, released["critic"])
    elif config.critic == "public":
        critic = _public_fit(config, env, state._replace(policy=policy, updates=updates))
    extras, log = {}, {"update_norm": optax.tree.norm(update)}
    for extra in dppg_parts.extra_parts(config, env):
        public = state.extras[extra.name]
        extras[extra.name], logged = extra.after(public, released[extra.name])
        log |= logged
    if isinstance(env, TabularEnvironment):
        log["logits"] = policy.network(jnp.eye(env.observation_size, dtype=jnp.float32))
    after = DPPGState(
        policy=policy,
        critic=critic,
        previous=update,
        ema=jax.tree.map(
            lambda e, p: config.ema_decay * e + (1 - config.ema_decay) * p, state.ema, policy
        ),
        # Before the tail begins the count stays at 1, so that the average is the last policy.
        tail=jax.tree.map(lambda t, p: t + (p - t) / in_tail, state.tail, policy),
        updates=updates,
        seed=state.seed,
        extras=extras,
        moments=moments,
    )
    return after, log


def _public_fit(config: DPPGConfig, env: AnyEnvironment, state: DPPGState) -> Value:
    """Returns the critic after a fit in the public simulator, which needs no one's data."""
    key = jax.random.fold_in(new_key(state.seed), state.updates)

    def one(key: PRNGKeyArray) -> Trajectory:
        steps, once = config.steps_per_user, config.one_episode
        acting = dppg_parts.actor(state.extras, state.policy)
        seen = rollout(env, env.default_params, acting, key, steps, once)
        return dppg_parts.as_seen(state.extras, seen)

    crowd = jax.vmap(one)(jax.random.split(key, config.users_per_update))
    repeat = config.action_repeat
    discount = config.discount**repeat
    values, next_values = jax.vmap(lambda t: _values(config, env, state, t, repeat))(crowd)
    advantages = jax.vmap(lambda t, v, n: gae(t, v, n, discount, config.gae_lambda))(
        crowd, values, next_values
    )
    flat = flattened((crowd, advantages + values))
    assert isinstance(state.critic, Value)
    assert config.critic_steps is not None
    change, _ = critics.fit(
        state.critic,
        flat[0].observations,
        flat[1],
        flat[0].alive.astype(jnp.float32),
        learning_rate=config.critic_learning_rate,
        steps=config.critic_steps,
    )
    fitted: Value = eqx.apply_updates(state.critic, change)
    return fitted


def _diagnostics(trajectory: Trajectory, repeat: int | Int[Array, ""]) -> dict[str, Array]:
    """Returns sums over one simulated user's steps, for the experimenter's learning curve.

    Steps are those of the environment: each decision counts as `repeat` of them.
    """
    ended = trajectory.terminated | trajectory.truncated
    return {
        "steps": repeat * jnp.sum(trajectory.alive, dtype=jnp.float32),
        "reward": jnp.sum(trajectory.rewards),
        "episodes": jnp.sum(ended, dtype=jnp.float32),
    }
