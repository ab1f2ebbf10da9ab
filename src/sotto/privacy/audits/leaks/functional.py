"""Functional noise on every step but not on the result: Wang and Hegde 2019, Algorithm 1.

This is Q-learning on the authors' MDP. Each of 39 steps adds a fresh sample path to Q, with the
noise of their Theorem 5, but the returned Q has no noise. Neighbouring reward functions are r and
r + 1. The constant adds up over the steps and moves Q by many standard deviations.
"""

import functools
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sotto.keys import new_key
from sotto.privacy.audits.audit import AuditResult
from sotto.privacy.audits.function_trials import FunctionTrials
from sotto.privacy.audits.leaks.leak import DELTA, Leak, against, against_certificate
from sotto.privacy.claims.rewards import LOGGED_FUNCTION
from sotto.privacy.mechanisms.functions.calibration import multiplier_for, paper_noise
from sotto.privacy.mechanisms.functions.rkhs import vector_sensitivity
from sotto.privacy.release.functions import FunctionRelease
from sotto.privacy.units import REWARD_FUNCTION

_EPSILON = 0.9
_RADIUS = 1.0

# --- Algorithm 1 as printed ----------------------------------------------------------------------

_STEPS, _BATCH, _RATE, _DISCOUNT, _EPISODE = 5000, 128, 0.01, 0.999, 50
_LIPSCHITZ = 0.5
"""Lipschitz constant assumed for the network; 300 trained networks stayed below 0.31."""

_NOISE = paper_noise(_STEPS, _BATCH, _LIPSCHITZ, _RATE, _EPSILON, DELTA)
_NODES = 257  # where paths are sampled, exactly; a state reads the nearest node
_RUNS = 2000  # enough for a bound of 4.8; more take minutes
_HIDDEN = 16


def _initial(key: Array) -> dict[str, Array]:
    """Returns the public network 1-16-16-2, the same for all runs."""
    parameters, sizes = {}, (1, _HIDDEN, _HIDDEN, 2)
    for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        key, weight_key, bias_key = jax.random.split(key, 3)
        bound = fan_in**-0.5
        shape = (fan_in, fan_out)
        parameters[f"w{layer}"] = jax.random.uniform(weight_key, shape, minval=-bound, maxval=bound)
        parameters[f"b{layer}"] = jax.random.uniform(
            bias_key, (fan_out,), minval=-bound, maxval=bound
        )
    return parameters


def _q(parameters: dict[str, Array], state: Float[Array, ""]) -> Float[Array, " 2"]:
    hidden = jax.nn.relu(state[None] @ parameters["w0"] + parameters["b0"])
    hidden = jax.nn.relu(hidden @ parameters["w1"] + parameters["b1"])
    return hidden @ parameters["w2"] + parameters["b2"]


def _paths(key: Array) -> Float[Array, "nodes 2"]:
    """Draws two sample paths at the nodes by an autoregression."""
    decay = jnp.exp(-_NOISE.beta / (_NODES - 1))
    noise = _NOISE.sigma * jax.random.normal(key, (_NODES, 2))

    def step(value: Array, fresh: Array) -> tuple[Array, Array]:
        value = decay * value + jnp.sqrt(1 - decay**2) * fresh
        return value, value

    return jnp.concatenate([noise[:1], jax.lax.scan(step, noise[0], noise[1:])[1]])


def _noisy_q(parameters: Any, paths: Array, state: Array) -> Float[Array, " 2"]:
    return _q(parameters, state) + paths[jnp.round(state * (_NODES - 1)).astype(int)]


def _collect(carry: Any, key: Array, parameters: Any, paths: Array, shift: float) -> Any:
    """Makes one transition of the authors' MDP, greedy in the noisy values."""
    state, count = carry
    move_key, reset_key = jax.random.split(key)
    action = jnp.argmax(_noisy_q(parameters, paths, state))
    move = 0.25 * jax.random.uniform(move_key)
    successor = jnp.clip(jnp.where(action == 0, state + move, state - move), 0.0, 1.0)
    reward = 0.5 - jnp.abs(successor - 0.5) + shift
    count = count + 1
    following = jnp.where(count % _EPISODE == 0, jax.random.uniform(reset_key), successor)
    return (following, count), (state, action, reward, successor)


def _update(carry: Any, key: Array, shift: float) -> tuple[Any, None]:
    """Makes one step of stochastic gradient descent, on a batch with a fresh path."""
    parameters, place = carry
    path_key, batch_key = jax.random.split(key)
    paths = _paths(path_key)
    collect = functools.partial(_collect, parameters=parameters, paths=paths, shift=shift)
    place, (states, actions, rewards, successors) = jax.lax.scan(
        collect, place, jax.random.split(batch_key, _BATCH)
    )
    noisy = jax.vmap(_noisy_q, in_axes=(None, None, 0))
    targets = rewards + _DISCOUNT * noisy(parameters, paths, successors).max(axis=1)

    def loss(parameters: Any) -> Array:
        chosen = noisy(parameters, paths, states)[jnp.arange(_BATCH), actions]
        return 0.5 * jnp.mean(jnp.square(chosen - targets))

    gradient = jax.grad(loss)(parameters)
    parameters = jax.tree.map(lambda p, g: p - _RATE * g, parameters, gradient)
    return (parameters, place), None


@jax.jit
def _train(keys: Array, shift: float) -> Float[Array, "samples 2"]:
    """Runs Algorithm 1 and returns each action's mean of Q over states."""

    def one(key: Array) -> Array:
        start_key, *keys = jax.random.split(key, 1 + _STEPS // _BATCH)
        place = (jax.random.uniform(start_key), jnp.int32(0))
        step = functools.partial(_update, shift=shift)
        (parameters, _), _ = jax.lax.scan(step, (public, place), jnp.stack(keys))
        return jnp.mean(jax.vmap(_q, in_axes=(None, 0))(parameters, jnp.linspace(0, 1, 33)), axis=0)

    public = _initial(new_key(0))
    means: Array = jax.lax.map(one, keys, batch_size=100)
    return means


def _returned(present: bool, seed: int, samples: int) -> Float[np.ndarray, "samples 2"]:
    keys = jax.random.split(new_key(seed % 2**31), samples)
    return np.asarray(_train(keys, _RADIUS if present else 0.0), dtype=np.float64)


def _leaky(samples: int, seed: int, confidence: float) -> AuditResult:
    return against(_EPSILON, _returned)(min(samples, _RUNS), seed, confidence)


# --- the rewards released once -------------------------------------------------------------------

_RELEASED = FunctionRelease(
    name="rewards",
    unit=REWARD_FUNCTION,
    sensitivity=vector_sensitivity(11, 2, _RADIUS),
    noise_multiplier=multiplier_for(_EPSILON, DELTA),
    population="simulated",
    size=22,
    protects=(LOGGED_FUNCTION(radius=f"{_RADIUS:g}"),),
)


def _averages(present: bool, _released: Any) -> Float[np.ndarray, "11 2"]:
    """Returns the rewards at eleven nodes, for two actions."""
    rewards = np.repeat(0.5 - np.abs(np.linspace(0, 1, 11)[:, None] - 0.5), 2, axis=1)
    return rewards + (_RADIUS if present else 0.0)


_TRIALS = FunctionTrials(_RELEASED, (11, 2), _averages)


FUNCTIONAL_NOISE = Leak(
    name="functional-noise",
    claim="A Gaussian-process path on Q at every step makes the learnt Q private.",
    why="Q is returned without noise, and the effect of rewards on Q adds up over the steps.",
    remedy="averaged rewards are released once, and learning reads nothing else",
    claimed_epsilon=_EPSILON,
    leaky=_leaky,
    sound=against_certificate(_TRIALS),
)
