"""Statistics that trainings from human feedback compute beside the gradient, without noise.

The model is a softmax over three tokens given the token before. People give a prompt, get a
completion and score it. The update of the model goes through the door with noise multiplier 5. A
statistic is computed beside it from everybody's scores or completions. It steers the updates of
others or is visible itself. In the sound variants it is a part of the same release.

Whitening of advantages is `ADVANTAGE_NORMALISATION`, and the n best are in `best_of_n`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sotto.privacy.audits.leaks.leak import Training, enrolled
from sotto.privacy.statements import Gap

_RELEASES = 3

# --- a small language model ----------------------------------------------------------------------

TOKENS, _LENGTH = 3, 2
MODEL = np.zeros((TOKENS, TOKENS), np.float32)
"""First logits of the next token given the token before: mostly token 0."""
MODEL[:, 0] = 4.0
_REFERENCE = np.zeros((TOKENS, TOKENS), np.float32)
"""Logits of the reference model. After token 2 it mostly says token 2 again."""
_REFERENCE[:, 0] = 3.0
_REFERENCE[2] = [0.0, 0.0, 4.0]


def complete(
    logits: Float[Array, "tokens tokens"], prompt: Int[Array, ""], key: Array
) -> tuple[Int[Array, " length"], Int[Array, " length"]]:
    """Draws a completion; returns its tokens, and for each the token before."""
    said = [prompt]
    for gumbel in jax.random.gumbel(key, (_LENGTH, TOKENS)):
        said.append(jnp.argmax(logits[said[-1]] + gumbel))
    return jnp.stack(said[1:]), jnp.stack(said[:-1])


def policy_gradient(
    logits: Float[Array, "tokens tokens"],
    tokens: Int[Array, " length"],
    before: Int[Array, " length"],
    advantages: Float[Array, "*length"],
) -> Float[Array, "tokens tokens"]:
    """Returns the gradient of REINFORCE, far longer than the clip norm.

    The advantages are one for each token, or one for the completion.
    """
    rows = jax.nn.one_hot(tokens, TOKENS) - jax.nn.softmax(logits)[before]
    weighted = rows * jnp.broadcast_to(advantages, tokens.shape)[:, None]
    return 1000 * jnp.sum(jax.nn.one_hot(before, TOKENS)[:, :, None] * weighted[:, None], axis=0)


def _scored(state: Any, unit: Any, key: Array) -> tuple[Array, Array, Array]:
    """Returns a completion of the person's prompt and the person's score of it."""
    completion_key, score_key = jax.random.split(key)
    tokens, before = complete(state["logits"], unit["prompt"], completion_key)
    score = unit["score"] + unit["spread"] * jax.random.normal(score_key)
    return tokens, before, score


def _updated(state: dict[str, Array], update: Array, **others: Array) -> dict[str, Array]:
    """Returns the public state after an update of the model, with new values of other entries."""
    return state | {"logits": state["logits"] + update} | others


# --- a statistic beside the update ---------------------------------------------------------------


def _training(
    gap: Gap,
    local: Callable[[Any, Any, Array], tuple[Any, Any]],
    server: Callable[[Any, Any], tuple[Any, Any]],
    state: dict[str, Any],
    clip_norm: float = 1.0,
    *,
    score: float,
    others: float = 0.5,
    spread: float = 0.1,
    prompt: int = 0,
) -> Training:
    """Returns a training of the small language model, all of whose log an adversary sees.

    Args:
        gap, local, server, clip_norm: as in `Training`.
        state: first public state, beside the model and the reference model.
        score: score that the person under test gives.
        others: mean of the scores of others.
        spread: standard deviation of scores.
        prompt: prompt of the person under test; all others give prompt 0.
    """

    def people(present: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns people who take part once; the first of the first release may be absent."""
        tested = enrolled(True, releases=_RELEASES) == 0
        return enrolled(present, releases=_RELEASES), {
            "prompt": np.where(tested, prompt, 0),
            "score": np.where(tested, score, others).astype(np.float32),
            "spread": np.full(tested.shape, spread, np.float32),
        }

    first = {"logits": MODEL, "reference": _REFERENCE} | state
    return Training(gap, local, server, first, people, _RELEASES, clip_norm, _everything)


def _everything(log: Any) -> Float[np.ndarray, "samples d"]:
    """Returns all that the server logged, as one vector for each run."""
    leaves = jax.tree.leaves(log)
    return np.concatenate([np.reshape(one, (len(one), -1)) for one in leaves], axis=1)


# --- a value head --------------------------------------------------------------------------------

_VALUE_RATE = 0.2


def _value_local(state: Any, unit: Any, key: Array) -> tuple[Any, Any]:
    """Returns updates of the model and of a value head, which reads the token before."""
    tokens, before, score = _scored(state, unit, key)
    advantages = score - state["value"][before]
    read = jnp.mean(jax.nn.one_hot(before, TOKENS) * advantages[:, None], axis=0)
    return {
        "policy": policy_gradient(state["logits"], tokens, before, advantages),
        "statistic": _VALUE_RATE * read,
    }, ()


def _value_server(state: Any, released: Any) -> tuple[Any, Any]:
    value = state["value"] + released["statistic"]
    return _updated(state, released["policy"], value=value), released["policy"]


_VALUE_HEAD = _training(
    local=_value_local,
    server=_value_server,
    state={"value": np.full(TOKENS, 0.5)},
    clip_norm=_VALUE_RATE,
    gap=Gap(name="value head", why="it is fitted to everybody's scores without noise"),
    score=1.0,
    spread=0.005,
)

VALUE_HEAD = _VALUE_HEAD.leak(
    "shared-value-head",
    claim="A value head needs no noise, since only the language model is released.",
    why="One score moves the values of tokens that all people use, and thereby the signs of the "
    "advantages of all later people.",
    remedy="the update of the value head is a part of the same release",
)

# --- an adaptive coefficient of the KL penalty ---------------------------------------------------

_KL_TARGET, _KL_GAIN, _KL_LARGEST_ERROR = 0.3, 0.1, 0.2
_KL_BASELINE = 0.4


def _log_ratio(state: Any, tokens: Array, before: Array) -> Float[Array, ""]:
    """Returns the estimate of KL(model, reference) from one completion."""
    model, reference = (jax.nn.log_softmax(state[name]) for name in ("logits", "reference"))
    return jnp.sum((model - reference)[before, tokens])


def _kl_local(state: Any, unit: Any, key: Array) -> tuple[Any, Any]:
    """Returns an update for the penalised score, and the relative error of the person's KL."""
    tokens, before, score = _scored(state, unit, key)
    divergence = _log_ratio(state, tokens, before)
    advantage = score - state["coefficient"] * divergence - _KL_BASELINE
    return {
        "policy": policy_gradient(state["logits"], tokens, before, advantage),
        "statistic": divergence / _KL_TARGET - 1,
    }, ()


def _kl_server(state: Any, released: Any) -> tuple[Any, Any]:
    """Makes the update of the KL coefficient of Ziegler et al. 2019.

    The log holds the clipped error, which two consecutive coefficients in a real log reveal.
    """
    error = jnp.clip(released["statistic"], -_KL_LARGEST_ERROR, _KL_LARGEST_ERROR)
    coefficient = state["coefficient"] * (1 + _KL_GAIN * error)
    after = _updated(state, released["policy"], coefficient=coefficient)
    return after, (released["policy"], error)


_KL_COEFFICIENT = _training(
    local=_kl_local,
    server=_kl_server,
    state={"coefficient": 0.1},
    gap=Gap(name="KL coefficient", why="it follows the mean KL of all people without noise"),
    score=0.5,
    prompt=2,
)

KL_COEFFICIENT = _KL_COEFFICIENT.leak(
    "adaptive-kl-coefficient",
    claim="The coefficient of the KL penalty is a setting, so it may follow the mean KL.",
    why="The mean KL is computed from people's prompts without noise, and an unusual prompt moves "
    "the coefficient, which is logged and steers all later updates.",
    remedy="each person's relative KL error is a clipped part of the same release",
)

# --- a running normaliser of rewards -------------------------------------------------------------

_PENALTY, _LEAST_VARIANCE = 0.5, 0.1


def _reward_local(state: Any, unit: Any, key: Array) -> tuple[Any, Any]:
    """Returns an update for the scaled and penalised score, and moments of the score."""
    tokens, before, score = _scored(state, unit, key)
    scaled = score / jnp.sqrt(state["variance"])
    advantage = scaled - _PENALTY * _log_ratio(state, tokens, before)
    deviation = score - state["mean"]
    return {
        "policy": policy_gradient(state["logits"], tokens, before, advantage),
        "statistic": jnp.stack([deviation, deviation**2 - state["variance"]]),
    }, ()


def _reward_server(state: Any, released: Any) -> tuple[Any, Any]:
    """Averages over all batches so far; the first state counts as one batch."""
    batches = state["batches"] + 1
    mean_step, variance_step = released["statistic"] / batches
    after = _updated(
        state,
        released["policy"],
        mean=state["mean"] + mean_step,
        variance=jnp.maximum(state["variance"] + variance_step, _LEAST_VARIANCE),
        batches=batches,
    )
    return after, released["policy"]


_REWARD_NORMALISER = _training(
    local=_reward_local,
    server=_reward_server,
    state={"mean": 0.0, "variance": 1.0, "batches": 1.0},
    gap=Gap(name="reward normaliser", why="its moments have no noise"),
    score=100.0,
)

REWARD_NORMALISER = _REWARD_NORMALISER.leak(
    "reward-normaliser",
    claim="Rewards may be divided by a running standard deviation, which only scales them.",
    why="One outlier shrinks the rewards of all later people. Then the KL penalty outweighs them "
    "and turns the updates round.",
    remedy="the moments are a clipped part of the same release, or the scale is public",
)

# --- early stopping ------------------------------------------------------------------------------

_GOAL = 0.55


def _stop_local(state: Any, unit: Any, key: Array) -> tuple[Any, Any]:
    """Returns an update, and how far the person's score is above the goal."""
    tokens, before, score = _scored(state, unit, key)
    advantage = score - _GOAL
    return {
        "policy": policy_gradient(state["logits"], tokens, before, advantage),
        "statistic": advantage,
    }, ()


def _stop_server(state: Any, released: Any) -> tuple[Any, Any]:
    """Trains until the mean score reaches the goal. Nothing is logged after that but zeros."""
    goes_on = state["goes_on"]
    update = goes_on * released["policy"]
    still = goes_on * (released["statistic"] < 0)
    return _updated(state, update, goes_on=still), (update, still)


_EARLY_STOPPING = _training(
    local=_stop_local,
    server=_stop_server,
    state={"goes_on": 1.0},
    gap=Gap(name="early stopping", why="it compares the mean score with a goal without noise"),
    score=1.0,
    spread=0.05,
)

EARLY_STOPPING = _EARLY_STOPPING.leak(
    "early-stopping-on-rewards",
    claim="Stopping early saves privacy, so any stopping rule is allowed.",
    why="The rule reads people's scores without noise, and the length of the run shows its answer.",
    remedy="the rule reads a noisy mean, which is a part of the same release",
)
