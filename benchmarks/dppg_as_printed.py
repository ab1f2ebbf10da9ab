"""DPPG as its paper prints it, in 27 readings of what the text leaves open.

Run: python benchmarks/dppg_as_printed.py --env-id CartPole-v1 --seeds 10

An independent program, without the privacy machinery of sotto: Algorithms 2 and 3 of Rio et al.
2025 with the settings of their table 3, and what CleanRL's PPO does where the paper says nothing
(networks, Adam, minibatches, the critic). CleanRL's clipping of gradients and of values is left
out, since the paper clips changes; "critic and policy in one loss" has the former. Each reading
changes one thing. None has a privacy guarantee that is proved: the critic is trained without noise.
The preset `paper` of sotto is close to "the same, with its moments", without minibatches.

Prints a line of JSON for each reading, with mean and standard deviation over seeds: the return of
the last policy with most likely and with drawn actions, that of the average of the last policies,
and the mean return of training episodes in the last tenth of the training, and in its best tenth.
"""

import dataclasses
import json
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from sotto.rl.envs.base import Discrete
from sotto.rl.envs.registry import make

USERS, STEPS, CLIP_NORM = 8, 64, 0.05
RATE, EPOCHS, MINIBATCHES = 7.26e-4, 8, 2
DISCOUNT, LAMBDA = 0.99, 0.85
EVALUATED = 20
"""Episodes of each evaluation."""


@dataclass(frozen=True)
class Reading:
    """One reading of the paper.

    Attributes:
        noise_multiplier: z.
        total_steps: environment steps of the training.
        entropy: weight of the entropy bonus.
        critic: pooled: Adam on the steps of all users. local: each user trains a copy with fresh
            moments, and the changes are averaged. carried: as local, and the moments of Adam are
            averaged and carried on, too. joint: as carried, in one loss with the policy, whose
            gradient is clipped to .5 as CleanRL does.
        moments: what Adam's moments are at the start of a local update. update: those of a gradient
            along which the last released update was a descent. against: the same with the other
            sign, which the paper's text has if its update is taken for the gradient. gradient: as
            update, divided by learning rate and steps. fresh: zero, with a count of one.
        count: steps that Adam's bias correction counts from. all: those of the whole training.
            one: as if the moments were of the first step. none: no correction.
        clipped: when the change is clipped: after every step, or once at the end.
        per_layer: whether each array is clipped to the norm, and not the whole.
        advantages: over which advantages are normalised.
        noise: users: z S / K for each parameter. each: every user's update has noise of z S / K,
            before the mean. variance: z S / K is the variance.
        annealed: whether the local learning rate falls linearly to 0, as in CleanRL.
        reset: whether every user starts from a reset.
        minibatches: in each local epoch.
        hidden: sizes of the hidden layers.
        scaled: whether observations have the public scale that sotto gives them.
        clip_ratio: of PPO; None: none, as the paper has it.
    """

    noise_multiplier: float = 1.0
    total_steps: int = 500_000
    entropy: float = 0.36
    critic: Literal["pooled", "local", "carried", "joint"] = "pooled"
    moments: Literal["update", "against", "gradient", "fresh"] = "update"
    count: Literal["all", "one", "none"] = "all"
    clipped: Literal["every", "end"] = "every"
    per_layer: bool = False
    advantages: Literal["minibatch", "user", "none"] = "minibatch"
    noise: Literal["users", "each", "variance"] = "users"
    annealed: bool = False
    reset: bool = False
    minibatches: int = MINIBATCHES
    hidden: tuple[int, ...] = (64, 64)
    scaled: bool = False
    clip_ratio: float | None = None


READINGS: dict[str, dict[str, Any]] = {
    "as printed": {},
    "without noise": {"noise_multiplier": 0.0},
    "entropy .01": {"entropy": 0.01},
    "entropy 0": {"entropy": 0.0},
    "critic of each user, averaged": {"critic": "local"},
    "the same, with its moments": {"critic": "carried"},
    "critic and policy in one loss": {"critic": "joint"},
    "moments against the last update": {"moments": "against"},
    "moments in a gradient's units": {"moments": "gradient"},
    "fresh moments": {"moments": "fresh", "count": "one"},
    "moments as of a first step": {"count": "one"},
    "moments without correction": {"count": "none"},
    "clipped once, at the end": {"clipped": "end"},
    "each layer clipped": {"per_layer": True},
    "advantages normalised by user": {"advantages": "user"},
    "advantages as they are": {"advantages": "none"},
    "noise in each update, then the mean": {"noise": "each"},
    "z S / K as variance": {"noise": "variance"},
    "learning rate falls to 0": {"annealed": True},
    "users start from a reset": {"reset": True},
    "minibatches of 2 steps": {"minibatches": 32},
    "observations scaled": {"scaled": True},
    "PPO's ratio clipped at .2": {"clip_ratio": 0.2},
    "100,000 steps": {"total_steps": 100_000},
    "200,000 steps": {"total_steps": 200_000},
    "1,000,000 steps": {"total_steps": 1_000_000},
    "5,000,000 steps": {"total_steps": 5_000_000},
}


def network(key: jax.Array, sizes: tuple[int, ...], last: float) -> list[tuple[Any, Any]]:
    """Returns orthogonal weights and zero biases, as in CleanRL."""
    keys = jax.random.split(key, len(sizes) - 1)
    gains = [np.sqrt(2.0)] * (len(sizes) - 2) + [last]
    return [
        (jax.nn.initializers.orthogonal(gain)(k, (m, n), jnp.float32), jnp.zeros(n))
        for k, gain, m, n in zip(keys, gains, sizes[:-1], sizes[1:], strict=True)
    ]


def applied(layers: list[tuple[Any, Any]], x: jax.Array) -> jax.Array:
    """Returns the outputs of a network with tanh between its layers."""
    for weights, bias in layers[:-1]:
        x = jnp.tanh(x @ weights + bias)
    weights, bias = layers[-1]
    found: jax.Array = x @ weights + bias
    return found


def norm(tree: Any) -> jax.Array:
    """Returns the L2 norm of all numbers in a pytree."""
    return jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(x**2) for x in jax.tree.leaves(tree)])))


def clipped(change: Any, per_layer: bool) -> Any:
    """Returns a change within the clip norm."""
    if per_layer:
        return jax.tree.map(lambda x: x * jnp.minimum(1, CLIP_NORM / (norm(x) + 1e-12)), change)
    scale = jnp.minimum(1, CLIP_NORM / (norm(change) + 1e-12))
    return jax.tree.map(lambda x: x * scale, change)


def adam(gradient: Any, moments: Any, count: Any, correct: bool = True) -> tuple[Any, list[Any]]:
    """Returns the direction of an Adam step and its moments, as PyTorch computes them."""
    mu, nu = moments
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, gradient)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, nu, gradient)
    first = 1 - 0.9**count if correct else 1.0
    second = 1 - 0.999**count if correct else 1.0
    step = jax.tree.map(lambda m, v: m / first / (jnp.sqrt(v / second) + 1e-5), mu, nu)
    return step, [mu, nu]


class Program:
    """Training and evaluation of one reading on one environment."""

    def __init__(self, env_id: str, reading: Reading) -> None:
        """Prepares the training."""
        self.env, self.reading = make(env_id), reading
        self.params = self.env.default_params
        self.updates = reading.total_steps // (USERS * STEPS)
        scale = self.env.observation_scale if reading.scaled else 1.0
        self.scale = jnp.asarray(scale, jnp.float32)

    def logits(self, policy: Any, seen: jax.Array) -> jax.Array:
        """Returns the logits of the actions."""
        return applied(policy, seen * self.scale)

    def value(self, critic: Any, seen: jax.Array) -> jax.Array:
        """Returns the values of observations."""
        return applied(critic, seen * self.scale)[..., 0]

    def fresh(self, key: jax.Array) -> Any:
        """Returns the state of a new episode."""
        return self.env.reset(jax.random.uniform(key, (self.env.reset_size,)), self.params)

    def play(self, policy: Any, start: Any, key: jax.Array, steps: int, greedy: bool) -> Any:
        """Returns the last state and the transitions of one user, whose episodes follow."""

        def step(carry: Any, key: jax.Array) -> Any:
            state, elapsed, total = carry
            seen = self.env.observe(state, self.params)
            logits = self.logits(policy, seen)
            drawn = jax.random.categorical(key, logits)
            action = jnp.argmax(logits) if greedy else drawn
            after, reward, terminated = self.env.step(state, action, self.params)
            done = terminated | (elapsed + 1 >= self.env.max_episode_steps)
            new = self.fresh(jax.random.fold_in(key, 1))
            following = jax.tree.map(lambda a, b: jnp.where(done, a, b), new, after)
            row = (seen, action, reward, done, jnp.where(done, total + reward, jnp.nan))
            left = jnp.where(done, 0, elapsed + 1), jnp.where(done, 0.0, total + reward)
            return (following, *left), row

        return jax.lax.scan(step, start, jax.random.split(key, steps))

    def local(
        self, policy: Any, critic: Any, moments: Any, last: Any, rows: Any, when: Any, key: Any
    ) -> Any:
        """Returns the updates of one user (Algorithm 3), and the critic's moments."""
        reading = self.reading
        seen, actions, *_ = rows
        old = jax.nn.log_softmax(self.logits(policy, seen))[jnp.arange(STEPS), actions]
        size = STEPS // reading.minibatches
        orders = jax.vmap(lambda k: jax.random.permutation(k, STEPS))(jax.random.split(key, EPOCHS))
        rate = RATE * (1 - when / self.updates) if reading.annealed else RATE
        steps = EPOCHS * reading.minibatches

        def loss(both: Any, batch: Any) -> jax.Array:
            seen, actions, advantages, returns, old = batch
            policy, critic = both
            log_p = jax.nn.log_softmax(self.logits(policy, seen))
            ratio = jnp.exp(log_p[jnp.arange(len(seen)), actions] - old)
            if reading.advantages == "minibatch":
                advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
            gain = ratio * advantages
            if (within := reading.clip_ratio) is not None:
                gain = jnp.minimum(gain, jnp.clip(ratio, 1 - within, 1 + within) * advantages)
            entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
            error = jnp.square(self.value(critic, seen) - returns)
            weight = 0.0 if reading.critic == "pooled" else 0.5
            return jnp.mean(-gain - reading.entropy * entropy + weight * error)

        def step(carry: Any, order: Any) -> Any:
            policy_now, critic_now, ours, theirs, number, valued = carry
            batch = jax.tree.map(lambda x: x[order], (*rows, old))
            gradient = jax.grad(loss)((policy_now, critic_now), batch)
            if reading.critic == "joint":
                scale = jnp.minimum(1, 0.5 / (norm(gradient) + 1e-6))
                gradient = jax.tree.map(lambda g: g * scale, gradient)
            correct = reading.count != "none"
            direction, ours = adam(gradient[0], ours, number, correct)
            policy_now = jax.tree.map(lambda p, d: p - rate * d, policy_now, direction)
            direction, theirs = adam(gradient[1], theirs, valued)
            critic_now = jax.tree.map(lambda c, d: c - rate * d, critic_now, direction)
            if reading.clipped == "every":
                change = jax.tree.map(jnp.subtract, policy_now, policy)
                policy_now = jax.tree.map(jnp.add, policy, clipped(change, reading.per_layer))
            return (policy_now, critic_now, ours, theirs, number + 1, valued + 1), None

        factor = {"update": -1.0, "against": 1.0, "gradient": -1 / (RATE * steps), "fresh": 0.0}
        mu = jax.tree.map(lambda x: factor[reading.moments] * x, last)
        begun = when * steps + 1.0
        if fresh := reading.critic == "local":
            moments = jax.tree.map(jnp.zeros_like, moments)
        carry = (
            policy,
            critic,
            [mu, jax.tree.map(jnp.square, mu)],
            list(moments),
            begun if reading.count == "all" else jnp.float32(1),
            jnp.float32(1) if fresh else begun,
        )
        (trained, valued, _, moments, *_), _ = jax.lax.scan(
            step, carry, orders.reshape(steps, size)
        )
        change = clipped(jax.tree.map(jnp.subtract, trained, policy), reading.per_layer)
        return change, (valued, moments)

    def fitted(self, critic: Any, moments: Any, rows: Any, key: jax.Array, count: Any) -> Any:
        """Returns the critic after CleanRL's epochs on the steps of all users together."""
        seen, returns = rows
        orders = jax.vmap(lambda k: jax.random.permutation(k, len(seen)))(
            jax.random.split(key, EPOCHS)
        ).reshape(EPOCHS * MINIBATCHES, -1)

        def loss(critic: Any, seen: Any, returns: Any) -> jax.Array:
            return 0.5 * jnp.mean(jnp.square(self.value(critic, seen) - returns))

        def step(carry: Any, order: Any) -> Any:
            critic, moments, number = carry
            gradient = jax.grad(loss)(critic, seen[order], returns[order])
            direction, moments = adam(gradient, moments, number)
            critic = jax.tree.map(lambda c, d: c - RATE * d, critic, direction)
            return (critic, moments, number + 1), None

        first = count * len(orders) + 1.0
        (critic, moments, _), _ = jax.lax.scan(step, (critic, moments, first), orders)
        return critic, moments

    def update(self, carry: Any, when: jax.Array) -> Any:
        """Makes one update of Algorithm 2; returns what comes next, and the episodes' returns."""
        policy, critic, moments, last, average, users, key = carry
        key, playing, learning, valuing, noising, resetting = jax.random.split(key, 6)
        if self.reading.reset:
            states = jax.vmap(self.fresh)(jax.random.split(resetting, USERS))
            users = (states, jnp.zeros(USERS, jnp.int32), jnp.zeros(USERS))

        def played(user: Any, key: jax.Array) -> Any:
            return self.play(policy, user, key, STEPS, False)

        users, (seen, actions, rewards, done, totals) = jax.vmap(played)(
            users, jax.random.split(playing, USERS)
        )
        values = self.value(critic, seen)
        ends = self.value(critic, jax.vmap(lambda s: self.env.observe(s, self.params))(users[0]))

        def backwards(later: Any, row: Any) -> Any:
            following, gain = later
            value, reward, done = row
            alive = 1.0 - done
            error = reward + DISCOUNT * alive * following - value
            gain = error + DISCOUNT * LAMBDA * alive * gain
            return (value, gain), gain

        by_time = jax.tree.map(lambda x: x.T, (values, rewards, done.astype(jnp.float32)))
        _, gains = jax.lax.scan(backwards, (ends, jnp.zeros(USERS)), by_time, reverse=True)
        advantages = gains.T
        returns = advantages + values
        if self.reading.advantages == "user":
            spread = advantages.std(axis=1, keepdims=True, ddof=1) + 1e-8
            advantages = (advantages - advantages.mean(axis=1, keepdims=True)) / spread
        rows = (seen, actions, advantages, returns)

        def learned(rows: Any, key: jax.Array) -> Any:
            return self.local(policy, critic, moments, last, rows, when, key)

        changes, valued = jax.vmap(learned)(rows, jax.random.split(learning, USERS))
        change = jax.tree.map(lambda x: x.mean(0), changes)
        if self.reading.critic == "pooled":
            pooled = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (seen, returns))
            critic, moments = self.fitted(critic, moments, pooled, valuing, when)
        else:
            critic, moments = jax.tree.map(lambda x: x.mean(0), valued)
        scale = self.reading.noise_multiplier * CLIP_NORM / USERS
        if self.reading.noise == "each":
            scale = scale / np.sqrt(USERS)
        if self.reading.noise == "variance":
            scale = np.sqrt(scale)
        leaves, shape = jax.tree.flatten(change)
        keys = jax.random.split(noising, len(leaves))
        noisy = [
            x + scale * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)
        ]
        last = jax.tree.unflatten(shape, noisy)
        policy = jax.tree.map(jnp.add, policy, last)
        average = jax.tree.map(lambda a, p: 0.98 * a + 0.02 * p, average, policy)
        return (policy, critic, moments, last, average, users, key), totals

    @partial(jax.jit, static_argnums=0)
    def train(self, key: jax.Array) -> dict[str, jax.Array]:
        """Returns the returns of one seed."""
        made, valued, starting, key = jax.random.split(key, 4)
        assert isinstance(self.env.action, Discrete)
        n, actions = self.env.observation_size, self.env.action.n
        policy = network(made, (n, *self.reading.hidden, actions), 0.01)
        critic = network(valued, (n, *self.reading.hidden, 1), 1.0)
        zero = jax.tree.map(jnp.zeros_like, critic)
        states = jax.vmap(self.fresh)(jax.random.split(starting, USERS))
        users = (states, jnp.zeros(USERS, jnp.int32), jnp.zeros(USERS))
        nothing = jax.tree.map(jnp.zeros_like, policy)
        carry = (policy, critic, [zero, zero], nothing, policy, users, key)
        (policy, _, _, _, average, _, key), totals = jax.lax.scan(
            self.update, carry, jnp.arange(self.updates)
        )
        late = totals[-max(1, self.updates // 10) :]
        return {
            "last": self.evaluated(policy, key, True),
            "last, drawn actions": self.evaluated(policy, key, False),
            "average of the last": self.evaluated(average, key, True),
            "training episodes": jnp.nanmean(late),
            "best tenth of training": jnp.max(
                jnp.stack([jnp.nanmean(x) for x in jnp.array_split(totals, 10)])
            ),
        }

    def evaluated(self, policy: Any, key: jax.Array, greedy: bool) -> jax.Array:
        """Returns the mean return of one episode each, from fresh starts."""
        keys = jax.random.split(jax.random.fold_in(key, greedy), EVALUATED)

        def episode(key: jax.Array) -> Any:
            start = (self.fresh(key), jnp.int32(0), jnp.float32(0))
            _, (*_, totals) = self.play(policy, start, key, self.env.max_episode_steps, greedy)
            return totals[jnp.argmax(~jnp.isnan(totals))]

        return jnp.mean(jax.vmap(episode)(keys))


def main(
    env_id: str = "CartPole-v1",
    seeds: int = 10,
    first_seed: int = 0,
    noise_multiplier: float | None = None,
    readings: tuple[str, ...] = (),
) -> None:
    """Prints mean and standard deviation over seeds of each reading, as lines of JSON."""
    for name in readings or tuple(READINGS):
        chosen = Reading(**READINGS[name])
        if noise_multiplier is not None and chosen.noise_multiplier:
            chosen = dataclasses.replace(chosen, noise_multiplier=noise_multiplier)
        begun = time.perf_counter()
        keys = jax.vmap(jax.random.key)(jnp.arange(first_seed, first_seed + seeds))
        found = jax.device_get(jax.vmap(Program(env_id, chosen).train)(keys))
        line: dict[str, Any] = {"reading": name, "env": env_id, "z": chosen.noise_multiplier}
        for what, values in found.items():
            spread = values.std(ddof=1) if seeds > 1 else 0.0
            ended = not np.isnan(values).any()  # whether any training episode did
            pair = [round(float(values.mean()), 1), round(float(spread), 1)]
            line[what] = pair if ended else None
        print(json.dumps(line | {"seconds": round(time.perf_counter() - begun)}), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
