"""Weighted sums of private rewards with public weights, and input perturbation.

States and actions are public, so many useful statistics are linear in the rewards with public
weights. `weighted_sums` releases such sums. With one sum for each transition it is input
perturbation, a baseline of Wang and Hegde 2019 after Venkitasubramaniam 2013: the logged rewards
are published with noise, and any learner may read them.

The appendix of Wang and Hegde with the calibration could not be obtained, so this calibration is
not the paper's.

Guarantee:
    Unit transition. Transition t contributes w_t (r_t - middle), with public weights of Euclidean
    norm at most 1 and |r_t - middle| at most half the range (both are clipped). Replacing r_t
    moves the sums of its round by at most the range, and those of no other round, since each
    transition takes part once. So all rounds together are one Gaussian mechanism with noise
    multiplier noise / range.

    Unit reward-function. All T rewards move at once, each by at most the radius. So the vector of
    rewards moves by at most radius sqrt(T), and it is released once.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.release import PUBLIC, Logged, calibrated, microbatch
from sotto.keys import new_key
from sotto.privacy.claims import rewards as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import LARGEST_PERSON
from sotto.privacy.mechanisms.functions.rkhs import Sensitivity
from sotto.privacy.release.functions import FunctionRelease
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Part
from sotto.trees import at


def weighted_sums(config: FunctionalQConfig, name: str, size: int, rounds_left: int) -> Release:
    """Returns the release of `size` weighted sums of a round's rewards.

    The data of a unit are (state before, action, weights [size]) of a transition. The release clips
    every contribution to half the range, so the guarantee holds for weights of any norm.

    Args:
        config: settings, whose unit must be the transition.
        name: name of the release, for the certificate.
        size: number of sums.
        rounds_left: largest number of releases, each of other transitions.
    """
    if config.unit != "transition":
        raise ValueError(
            "weighted sums of rewards protect transitions; give --unit transition, or use "
            "`whole_function`"
        )
    env, (low, high) = config.environment, config.rewards

    def local(state: Any, unit: Any, key: PRNGKeyArray) -> tuple[dict[str, Array], tuple[()]]:
        del state, key
        before, action, weights = unit
        _, reward, _ = env.step(before, action, env.default_params)
        return {"sums": weights * (jnp.clip(reward, low, high) - (low + high) / 2)}, ()

    def server(state: Any, released: Any) -> tuple[Any, tuple[()]]:
        del state
        return released["sums"], ()

    return Release(
        name=name,
        local=local,
        server=server,
        unit=config.privacy_unit,
        parts={"sums": Part(clip_norm=(high - low) / 2, noise_multiplier=multiplier(config, size))},
        slots=config.round_samples,
        divisor=1.0,
        horizon=rounds_left,
        population=config.population,
        microbatch=microbatch(size),
        protects=(claims.ONE_REWARD(low=claims.exactly(low), high=claims.exactly(high)),),
        does_not_protect=PUBLIC,
        assumptions=(claims.REWARD_FREE.assumption(),),
    )


def multiplier(config: FunctionalQConfig, size: int) -> float:
    """Returns the noise multiplier of weighted sums under zero-out adjacency."""
    if config.sigma is not None:
        return config.sigma / (config.reward_range / 2)
    factor = config.privacy_unit.adjacency.sensitivity_factor
    return factor * calibrated(config, size * config.rounds)


def open_sums(release: Release, ledgers: list[Ledger], logged: Logged, size: int) -> Stream:
    """Opens the stream of weighted sums, with one run for each ledger.

    Args:
        release: release from `weighted_sums`.
        ledgers: ledgers, one for each run.
        logged: a round's steps of each run, [runs, slots, ...]. Only shapes are read.
        size: number of sums.
    """
    one = at((logged.states, logged.actions), 0)
    weights = jnp.zeros((release.slots, size), jnp.float32)
    nothing = jnp.zeros((len(ledgers), size), jnp.float32)
    return release.open(ledgers, nothing, (*one, weights), chunk=1)


def release_sums(
    stream: Stream, logged: Logged, weights: Float[Array, "runs slots size"], first_person: int
) -> Float[np.ndarray, "runs size"]:
    """Charges one round and releases its weighted sums of rewards minus the middle of their range.

    Args:
        stream: stream from `open_sums`.
        logged: the round's steps of each run, [runs, slots, ...].
        weights: public weights, of norm at most 1 for each step.
        first_person: enrolment number of the round's first transition.
    """
    runs, slots, size = weights.shape
    assert first_person + slots <= LARGEST_PERSON
    persons = np.broadcast_to(first_person + np.arange(slots), (runs, 1, slots))
    units = (logged.states, logged.actions, jnp.asarray(weights, jnp.float32))
    keys = jax.vmap(new_key)(jnp.arange(runs))  # only the noise is random, and it has no key
    sums, _, _ = stream.run(
        jnp.zeros((runs, size), jnp.float32),
        keys,
        persons,
        jax.tree.map(lambda x: x[:, None], units),
    )
    return np.asarray(sums)


# --- input perturbation --------------------------------------------------------------------------


def input_perturbation(config: FunctionalQConfig, rounds_left: int) -> Release:
    """Returns the release of every logged reward with independent noise, one sum for each."""
    return weighted_sums(config, "logged rewards", config.round_samples, rounds_left)


def release_inputs(
    config: FunctionalQConfig, stream: Stream, logged: Logged, first_person: int
) -> Float[np.ndarray, "runs slots"]:
    """Charges one round and releases each of its rewards with noise."""
    runs, slots = logged.actions.shape
    weights = jnp.broadcast_to(jnp.eye(slots, dtype=jnp.float32), (runs, slots, slots))
    return release_sums(stream, logged, weights, first_person) + config.middle


def whole_function(config: FunctionalQConfig) -> FunctionRelease:
    """Returns the release of all logged rewards at once, for the unit reward-function."""
    if config.unit != "reward-function" or config.reward_radius is None:
        raise ValueError(
            "this release protects a reward function; give --unit reward-function and "
            "--reward-radius"
        )
    radius = min(config.reward_radius, config.reward_range)
    moved = radius * math.sqrt(config.samples) * (1 + 1e-9)
    because = f"each of {config.samples} logged rewards moves by at most {radius:g}"
    sigma = config.sigma
    z = calibrated(config, config.samples) if sigma is None else sigma / moved
    return FunctionRelease(
        name="logged rewards",
        unit=config.privacy_unit,
        sensitivity=Sensitivity(moved, None, because, radius),
        noise_multiplier=z,
        population=config.population,
        size=config.samples,
        protects=(claims.LOGGED_FUNCTION(radius=claims.exactly(radius)),),
        does_not_protect=PUBLIC,
        assumptions=(claims.REWARD_FREE.assumption(), claims.ONE_FUNCTION.assumption()),
    )
