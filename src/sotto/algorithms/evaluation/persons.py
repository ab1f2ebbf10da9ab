"""One person's contribution to the values of policies, and the public numbers that bound it.

The weight of a policy is rho = product over the person's steps of pi(a_t | s_t) / p_t. Here p_t is
the probability of the logged action, or its density if actions are real numbers. The weight is
clipped at a public number c. Returns are centred: y = (G - b) / h is in [-1, 1], where b and h are
the middle and the half-width of the public bounds. As E rho = 1, the mean of b + rho (G - b) is the
policy's value.

Estimators, each for one policy, with v and x for one person:

* self-normalised: value b + h sum(rho y) / sum(rho) (Hesterberg 1995).
* importance: value b + h mean(rho y).
* per-decision: x = sum over t of d^t rho_1:t (r_t - b_r) / h (Precup, Sutton and Singh 2000).
* doubly-robust: the value of a public model, corrected by its errors on the person's own steps,
  x = V_1 + sum over t of d^t rho_1:t (r_t + d V_{t+1} - Q_t), less b and over h. Q_t is the model's
  return from step t on, and V_t its mean under the policy (Jiang and Li 2016; for one step Dudik,
  Langford and Li 2011). The sum is clipped at 1 + 2c, which one step cannot exceed.
* marginalised: the same with min(omega_t pi(a_t | s_t) / p_t, c) in place of min(rho_1:t, c). Here
  omega_t and Q are those of `cells.Correction`, from tables of other people. The sum is clipped at
  the largest one that a log can have, or at 1 + 2c if that is less.

Guarantee:
    The norm of a contribution is at most `Bounds.clip_norms`, for every person's data
    (docs/privacy.md, section 22). The door clips there once more.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from sotto.algorithms.evaluation.cells import Correction, reach
from sotto.algorithms.evaluation.densities import Density
from sotto.algorithms.evaluation.models import ReturnModel
from sotto.algorithms.evaluation.policies import Target, deterministic, largest_probabilities
from sotto.data.imports.records import Records

EstimatorName = Literal[
    "self-normalised", "importance", "per-decision", "doubly-robust", "marginalised"
]

EXCESS = 0.5
"""Largest size of the number that tells how much clipping changes a sum at most."""
_ROUNDING = 1e-4
"""Relative room for float32 in the largest sum that a log can have."""
_SMALLEST = 0.1
"""Least bound of a sum, so that no scale is close to zero."""


class PersonLog(NamedTuple):
    """The log of one person with at most T steps, or with a leading axis those of all people."""

    observations: Float[Array, "*people T obs"]
    actions: Shaped[Array, "..."]
    """Numbers of categories [*people, T], or real actions [*people, T, a]."""
    rewards: Float[Array, "*people T"]
    propensities: Float[Array, "*people T"]
    present: Bool[Array, "*people T"]

    @classmethod
    def of(cls, records: Records) -> "PersonLog":
        """Returns the log of every person.

        Raises:
            ValueError: the records have no propensities.
        """
        if records.propensities is None:
            raise ValueError(
                "the log has no probabilities or densities of its actions, without which no other "
                "policy can be evaluated; import it with --propensity or --density"
            )
        return cls(
            jnp.asarray(records.observations),
            jnp.asarray(records.actions),
            jnp.asarray(records.rewards),
            jnp.asarray(records.propensities),
            jnp.asarray(records.present),
        )


class Public(NamedTuple):
    """The policies and models of their returns, which are public."""

    policies: tuple[Target, ...]
    models: tuple[ReturnModel | Correction, ...] = ()
    """A model for each policy, or none."""


@dataclass(frozen=True)
class Evaluation:
    """Public settings of an evaluation.

    Attributes:
        estimator: name of the estimator.
        largest_weights: clip c of the weights, one for each policy.
        discount: factor of later rewards.
        rewards: bounds of a reward.
        returns: bounds of a return.
        horizon: largest number of steps.
    """

    estimator: EstimatorName
    largest_weights: tuple[float, ...]
    discount: float
    rewards: tuple[float, float]
    returns: tuple[float, float]
    horizon: int

    def __post_init__(self) -> None:
        if not all(0 < one < math.inf for one in self.largest_weights):
            raise ValueError("the largest weight must be a positive number")
        if not 0 < self.discount <= 1:
            raise ValueError("the discount must be above 0 and at most 1")
        if not -math.inf < self.returns[0] < self.returns[1] < math.inf:
            raise ValueError("the bounds of returns must be two finite numbers, LOW below HIGH")

    @property
    def middle(self) -> float:
        """Middle of the bounds of returns."""
        return sum(self.returns) / 2

    @property
    def half_width(self) -> float:
        """Half of the width of the bounds of returns."""
        return (self.returns[1] - self.returns[0]) / 2

    @property
    def remaining(self) -> tuple[tuple[float, float], ...]:
        """Bounds of the return from each step on, if there is the step."""
        if self.horizon == 1:
            return (self.returns,)
        left = range(self.horizon, 0, -1)
        return tuple(return_bounds(self.rewards, steps, self.discount) for steps in left)


def return_bounds(
    rewards: tuple[float, float], horizon: int, discount: float
) -> tuple[float, float]:
    """Returns bounds of a return that follow from those of a reward.

    There is at least one step. Later steps may be missing, and then count as 0.
    """
    low, high = rewards
    later = sum(discount**step for step in range(1, horizon))
    return low + later * min(low, 0.0), high + later * max(high, 0.0)


@dataclass(frozen=True)
class Bounds:
    """Public bounds on a contribution.

    Attributes:
        scales: largest |x| of each policy; 1 for self-normalised.
        weights: bound on the sum over policies of (rho / c)^2, and of (rho / c)^4.
        values: bound on the sum over policies of (x / scale)^2, and of (x / scale)^4.
        share: number that stands for one person in the sum of people, beside which x is at most 1.
        beyond: how much clipping can change x, for each policy; 0 if it cannot. For marginalised
            this includes the clipping of weights.
        lost: largest bias of each policy if a weight of 1 is lost, in half-widths of returns. For
            self-normalised it is the bias of a lost weight with value 0. For marginalised it is the
            bias of raised propensities, since one person's log does not tell the weights.
    """

    scales: tuple[float, ...]
    weights: tuple[float, float]
    values: tuple[float, float]
    share: float
    beyond: tuple[float, ...]
    lost: tuple[float, ...]

    @classmethod
    def of(cls, asked: Evaluation, public: Public, least: float, actions: int) -> "Bounds":
        """Computes the bounds from public facts.

        Args:
            asked: settings.
            public: policies and model.
            least: lower bound of the propensities.
            actions: number of actions, 1 for real ones.
        """
        # A weight is at most the probability of the first action over least^horizon.
        most = math.exp(min(asked.horizon * math.log(1 / least), 600.0))
        possible = [np.array(largest_probabilities(one, actions)) * most for one in public.policies]
        clips = np.array(asked.largest_weights)
        relative = np.minimum(1.0, np.stack(possible) / clips[:, None])
        weights = tuple(float((relative**power).sum(axis=0).max()) for power in (2, 4))
        _check_models(asked, public)
        lost, beyond = (1.0,) * len(clips), (0.0,) * len(clips)
        scales, values = tuple(asked.largest_weights), weights
        if asked.estimator == "self-normalised":
            scales = (1.0,) * len(clips)
        if asked.estimator == "doubly-robust":
            errors = _largest_errors(asked)
            scales = tuple(1 + 2 * c for c in asked.largest_weights)
            beyond = tuple((errors - 2) * c for c in asked.largest_weights)
            values = (float(len(clips)),) * 2
            lost = tuple(
                min(errors, 2 * _all_present(asked)) if deterministic(one) else errors
                for one in public.policies
            )
        if asked.estimator == "marginalised":
            largest = [_reach(asked, public, place, least) for place in range(len(clips))]
            sizes, losses, errors_of_steps = zip(*largest, strict=True)
            scales = tuple(
                min(1 + 2 * c, size) for c, size in zip(clips.tolist(), sizes, strict=True)
            )
            beyond = tuple(
                size - scale + more for scale, size, more in zip(scales, sizes, losses, strict=True)
            )
            # A weight of one step may be that of any action, so policies do not share the norm.
            weights = values = (float(len(clips)),) * 2
            lost = tuple(asked.horizon * error for error in errors_of_steps)
        return cls(
            scales=scales,
            weights=(weights[0], weights[1]),
            values=(values[0], values[1]),
            share=max(scales) ** -0.5,
            beyond=beyond,
            lost=lost,
        )

    def clip_norms(self, estimator: EstimatorName) -> dict[str, float]:
        """Returns the largest norm of each part of a contribution."""
        if estimator == "self-normalised":
            return {
                "sums": math.sqrt(2 * self.weights[0]),
                "squares": math.sqrt(1 + 3 * self.weights[1]),
            }
        excess = sum(EXCESS**2 for one in self.beyond if one)
        return {
            "sums": math.sqrt(self.share**2 + self.values[0] + excess),
            "squares": math.sqrt(self.weights[0] + self.values[1]),
        }


def _check_models(asked: Evaluation, public: Public) -> None:
    given = any(isinstance(one, ReturnModel) for one in public.models)
    if (asked.estimator == "doubly-robust") != given:
        raise ValueError("a public --model of returns is for doubly-robust, which needs one")


def _reach(
    asked: Evaluation, public: Public, place: int, least: float
) -> tuple[float, float, float]:
    """Returns the largest |x| of a policy's logs, change by clipped weights, and error of a step.

    All are in half-widths of returns.
    """
    clip = asked.largest_weights[place]
    if not public.models:  # there are no tables yet: any sum is possible
        return 1 + 2 * clip, 1.0, 2.0
    correction = public.models[place]
    assert isinstance(correction, Correction)
    found = reach(correction, public.policies[place], least, clip, asked.rewards, asked.discount)
    size = max(found.high - asked.middle, asked.middle - found.low) / asked.half_width
    large = max(size, _SMALLEST) * (1 + _ROUNDING)
    return large, found.lost / asked.half_width, found.error / asked.half_width


def _largest_errors(asked: Evaluation) -> float:
    """Returns the sum of the model's largest errors at each step, in half-widths of returns."""
    widths = [high - low for low, high in asked.remaining]
    return sum(w * asked.discount**step for step, w in enumerate(widths)) / asked.half_width


def _all_present(asked: Evaluation) -> float:
    """Returns the half-width of bounds of returns in which any step may be missing."""
    low, high = asked.rewards
    each = (max(high, 0.0) - min(low, 0.0)) / 2
    return each * sum(asked.discount**step for step in range(asked.horizon)) / asked.half_width


def contribution(
    asked: Evaluation, bounds: Bounds, public: Public, person: PersonLog, key: PRNGKeyArray
) -> tuple[dict[str, Array], tuple[()]]:
    """Returns the parts of one person.

    With s for sums over people, K policies, w = rho / c and u = x / scale, the parts are

    * self-normalised: sums (w, w y), squares (1, w^2, w^2 y, w^2 y^2), of 2K and 1 + 3K numbers;
    * others: sums (share, u), squares (w, u^2), of 1 + K and 2K numbers. Doubly-robust sums of
      several steps and marginalised ones also have how much clipping changes x at most, in units
      of the largest change over `EXCESS`: another K numbers.

    A person without a step contributes zero.
    """
    del key
    there = jnp.any(person.present).astype(jnp.float32)
    models = public.models or (None,) * len(public.policies)
    found = [
        _one_policy(asked, policy, model, c, scale, person)
        for policy, model, c, scale in zip(
            public.policies, models, asked.largest_weights, bounds.scales, strict=True
        )
    ]
    weights = there * jnp.stack([one[0] for one in found])
    values = there * jnp.stack([jnp.clip(one[1], -1, 1) for one in found])
    excess = [
        there
        * EXCESS
        * jnp.clip((jnp.maximum(jnp.abs(one[1]) - 1, 0) * scale + one[2]) / beyond, 0, 1)
        for one, scale, beyond in zip(found, bounds.scales, bounds.beyond, strict=True)
        if beyond
    ]
    if asked.estimator == "self-normalised":
        squares = (there[None], weights**2, weights * values, values**2)
        parts = {"sums": jnp.concatenate([weights, values]), "squares": jnp.concatenate(squares)}
    else:
        parts = {
            "sums": jnp.concatenate(
                [bounds.share * there[None], values, *(one[None] for one in excess)]
            ),
            "squares": jnp.concatenate([weights, values**2]),
        }
    return parts, ()


def _one_policy(
    asked: Evaluation,
    policy: Target,
    model: ReturnModel | Correction | None,
    largest: float,
    scale: float,
    person: PersonLog,
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Returns the numbers of one policy in `contribution`: w, and w y or u, not clipped yet.

    The third number is how much clipped weights change x at most, where a person's log tells it.
    """
    # In logarithms, an infinite product times zero is zero.
    if isinstance(policy, Density):
        taken = policy.log_density(person.observations, person.actions)
    else:
        taken = jnp.log(_chosen(policy(person.observations), person.actions))
    steps = jnp.where(person.present, taken - jnp.log(person.propensities), 0.0)
    if isinstance(model, Correction):
        ratios = model.ratio(person.observations, person.present) * jnp.exp(steps)
        weights = jnp.minimum(ratios, largest)
        x, errors = _corrected(asked, policy, model, weights, person)
        lost = jnp.sum((ratios - weights) * jnp.abs(errors)) / asked.half_width
        return jnp.mean(weights) / largest, x / scale, lost
    none = jnp.zeros(())
    weights = jnp.exp(jnp.minimum(jnp.cumsum(steps), math.log(largest)))
    weight = weights[-1] / largest
    if model is not None:
        x, _ = _corrected(asked, policy, model, weights, person)
        return weight, x / scale, none
    discounts = asked.discount ** jnp.arange(asked.horizon, dtype=jnp.float32)
    rewards = jnp.where(person.present, person.rewards, 0.0) * discounts
    if asked.estimator == "per-decision":
        middles = _step_middles(asked)
        centred = jnp.stack([rewards[step] - middle for step, middle in enumerate(middles)])
        return weight, jnp.sum(weights * centred) / asked.half_width / scale, none
    gain = jnp.clip((jnp.sum(rewards) - asked.middle) / asked.half_width, -1, 1)
    return weight, weight * gain, none


def _corrected(
    asked: Evaluation,
    policy: Target,
    model: ReturnModel | Correction,
    weights: Float[Array, " T"],
    person: PersonLog,
) -> tuple[Float[Array, ""], Float[Array, " T"]]:
    """Returns x, and the model's discounted error on each step in units of returns."""
    assert not isinstance(policy, Density)
    found = zip(model(person.observations), person.rewards, asked.remaining, strict=True)
    # Door functions hold no arrays of their own, so bounds are numbers.
    bounded = [
        (jnp.clip(jnp.where(jnp.isnan(q), sum(limits) / 2, q), *limits), jnp.clip(r, *limits))
        for q, r, limits in found
    ]
    expected, own = (jnp.stack(one) for one in zip(*bounded, strict=True))
    expected = jnp.where(person.present[:, None], expected, 0.0)
    means = jnp.sum(policy(person.observations) * expected, axis=-1)
    after = jnp.concatenate([means[1:], jnp.zeros(1)])
    errors = own + asked.discount * after - _chosen(expected, person.actions)
    discounts = asked.discount ** jnp.arange(asked.horizon, dtype=jnp.float32)
    errors = discounts * jnp.where(person.present, errors, 0.0)
    return (means[0] + jnp.sum(weights * errors) - asked.middle) / asked.half_width, errors


def _chosen(rows: Float[Array, "n actions"], actions: Int[Array, " n"]) -> Float[Array, " n"]:
    chosen = actions[:, None] == jnp.arange(rows.shape[-1], dtype=actions.dtype)
    return jnp.sum(jnp.where(chosen, rows, 0.0), axis=-1)


def _step_middles(asked: Evaluation) -> tuple[float, ...]:
    """Returns the middle of each step's discounted reward; a step that is missing counts as 0."""
    low, high = asked.rewards
    later = (min(low, 0.0) + max(high, 0.0)) / 2
    return tuple(
        asked.discount**step * (later if step else (low + high) / 2)
        for step in range(asked.horizon)
    )
