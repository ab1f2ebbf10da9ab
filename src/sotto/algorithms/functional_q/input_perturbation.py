"""Public weighted sums of private rewards, and input perturbation: noise on every logged reward.

Where states and actions are public, much of what may be released of rewards is linear in them with
public weights. `weighted_sums` releases such sums through the door. With one sum for each
transition it is input perturbation, a baseline of Wang and Hegde 2019 after Venkitasubramaniam
2013: the logged rewards themselves are published with noise, and any learner may read them.

The appendix of Wang and Hegde with its calibration could not be obtained; this one is ours.

Guarantee:
    Unit transition. Transition t contributes w_t (r_t - middle), with public weights of Euclidean
    norm at most 1 and |r_t - middle| at most half the range (both are clipped). Replacing r_t
    moves the sums of its round by at most the range, and no other round's: each transition takes
    part once. So all rounds together are one Gaussian mechanism, of noise / range.

    Unit reward-function. All T rewards move at once, each by at most the radius: the vector of
    rewards moves by at most radius sqrt(T), and is released once.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.release import PUBLIC, Logged, calibrated
from sotto.keys import new_key
from sotto.privacy.claims import rewards as claims
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import LARGEST_PERSON
from sotto.privacy.mechanisms.functions.rkhs import Sensitivity
from sotto.privacy.release.functions import FunctionRelease
from sotto.privacy.release.release import Release
from sotto.privacy.release.stream import Stream
from sotto.privacy.statements import Part

_LARGEST_BATCH = 2**22  # numbers of transitions that the door maps at once


def weighted_sums(config: FunctionalQConfig, name: str, size: int, rounds_left: int) -> Release:
    """The release of `size` weighted sums of a round's rewards.

    Unit data of the door: (state before, action, weights [size]) of each transition. Weights of a
    norm above 1 are clipped by the door, so that privacy does not rest on whoever computes them.

    Args:
        config: settings; the unit must be the transition.
        name: what is released, for the certificate.
        size: how many sums.
        rounds_left: most releases, each of other transitions.
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
        microbatch=_microbatch(config.round_samples, size),
        protects=(claims.ONE_REWARD(low=f"{low:g}", high=f"{high:g}"),),
        does_not_protect=PUBLIC,
        assumptions=(claims.REWARD_FREE.assumption(),),
    )


def multiplier(config: FunctionalQConfig, size: int) -> float:
    """Noise multiplier of weighted sums, in zero-out terms."""
    if config.sigma is not None:
        return config.sigma / (config.reward_range / 2)
    factor = config.privacy_unit.adjacency.sensitivity_factor
    return factor * calibrated(config, size * config.rounds)


def open_sums(release: Release, ledgers: list[Ledger], logged: Logged, size: int) -> Stream:
    """The open stream of weighted sums, over one run for each ledger.

    Args:
        release: from `weighted_sums`.
        ledgers: one for each run.
        logged: a round's steps of each run, [runs, slots, ...]; only shapes are read.
        size: how many sums.
    """
    one = jax.tree.map(lambda x: x[0], (logged.states, logged.actions))
    weights = jnp.zeros((release.slots, size), jnp.float32)
    nothing = jnp.zeros((len(ledgers), size), jnp.float32)
    return release.open(ledgers, nothing, (*one, weights), chunk=1)


def release_sums(
    stream: Stream, logged: Logged, weights: Float[Array, "runs slots size"], first_person: int
) -> Float[np.ndarray, "runs size"]:
    """Charges one round and releases its weighted sums of rewards about the middle of their range.

    Args:
        stream: from `open_sums`.
        logged: the round's steps of each run, [runs, slots, ...].
        weights: public, of norm at most 1 for each step.
        first_person: enrolment number of the round's first transition.
    """
    runs, slots, size = weights.shape
    assert first_person + slots <= LARGEST_PERSON
    persons = np.broadcast_to(first_person + np.arange(slots), (runs, 1, slots))
    units = (logged.states, logged.actions, jnp.asarray(weights, jnp.float32))
    keys = jax.vmap(new_key)(jnp.arange(runs))  # nothing here is random but the noise
    sums, _, _ = stream.run(
        jnp.zeros((runs, size), jnp.float32),
        keys,
        persons,
        jax.tree.map(lambda x: x[:, None], units),
    )
    return np.asarray(sums)


# --- input perturbation --------------------------------------------------------------------------


def input_perturbation(config: FunctionalQConfig, rounds_left: int) -> Release:
    """Every logged reward with noise of its own: as many sums as a round has transitions."""
    return weighted_sums(config, "logged rewards", config.round_samples, rounds_left)


def release_inputs(
    config: FunctionalQConfig, stream: Stream, logged: Logged, first_person: int
) -> Float[np.ndarray, "runs slots"]:
    """Charges one round and releases each of its rewards with noise."""
    runs, slots = logged.actions.shape
    weights = jnp.broadcast_to(jnp.eye(slots, dtype=jnp.float32), (runs, slots, slots))
    return release_sums(stream, logged, weights, first_person) + config.middle


def whole_function(config: FunctionalQConfig) -> FunctionRelease:
    """Input perturbation under the unit reward-function: all logged rewards, released once."""
    if config.unit != "reward-function" or config.reward_radius is None:
        raise ValueError("this protects a reward function; give --unit reward-function")
    radius = min(config.reward_radius, config.reward_range)
    moved = radius * math.sqrt(config.samples) * (1 + 1e-9)
    because = f"each of {config.samples} logged rewards moves by at most {radius:g}"
    sigma = config.sigma
    z = calibrated(config, config.samples) if sigma is None else sigma / moved
    return FunctionRelease(
        name="logged rewards",
        unit=config.privacy_unit,
        sensitivity=Sensitivity(moved, None, because),
        noise_multiplier=z,
        population=config.population,
        size=config.samples,
        protects=(claims.LOGGED_FUNCTION(radius=f"{radius:g}"),),
        does_not_protect=PUBLIC,
        assumptions=(claims.REWARD_FREE.assumption(), claims.ONE_FUNCTION.assumption()),
    )


def _microbatch(slots: int, size: int) -> int | None:
    """The largest divisor of the slots with which the door's arrays stay small."""
    most = max(1, _LARGEST_BATCH // size)
    if slots <= most:
        return None
    return max(count for count in range(1, most + 1) if slots % count == 0)
