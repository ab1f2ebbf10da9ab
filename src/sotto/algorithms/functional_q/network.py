"""Trains a tanh network of action values on exact rewards, with a bound between neighbours.

Each action has a network with one hidden layer, on states scaled to [0, 1]:

    Q_a(x) = centre + scale f_a(x),    f_a(x) = c + h^(-1/2) sum_j v_j tanh(w_j x + b_j).

Each of K iterations fits r + gamma max Q, starting from the same public network, by plain gradient
descent over the whole log. The number and the size of the steps are fixed, and a projection follows
each step. Only the function of the last iteration is released, once, with a fresh sample path
(`sotto.algorithms.functional_q.functions`).

Guarantee:
    `NetworkFit.moved` bounds the distance of the parameters theta, theta' of neighbouring logs.
    `NetworkFit.sensitivity` bounds the norm of the difference of their functions, all actions
    together. Let L, H and L' be the bounds of `Family`, let the loss have slope at most kappa and
    curvature at most 1, let steps have size alpha <= 1 / L^2, and let there be N transitions. Then
    a step takes the distance d = |theta - theta'| to at most
        alpha kappa H d + min(sqrt(d^2 + alpha q^2 / (2 - alpha L^2)), d + alpha L q) + u,
    and to at most d + 2 alpha kappa L. Here q bounds the difference of all targets. It is gamma
    times the difference of the last iteration's values, plus the radius for reward functions. If
    one reward differs by D, its share is u = alpha L min(2 kappa, D) / N. The proof is Theorem 6'
    in docs/privacy.md, section 13.

The sum of u over all steps is not a bound. After the first step the gradients of all transitions
differ between neighbours, not only that of the transition whose reward differs.

Source: docs/privacy.md, section 13, for the setting of Wang and Hegde 2019, who have no such bound.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int

from sotto.privacy.mechanisms.functions.rkhs import Sensitivity, generic_sensitivity

_CURVATURE = 4 / (3 * math.sqrt(3))
"""Largest second derivative of tanh. The first derivative is at most 1."""

_SLOPE = 4.0
"""First-layer weights at the start. Each feature rises over about half of the unit interval."""

_RADIUS = 2.0
"""Largest distance of the parameters of one action's network from the start."""

_LARGEST_OUTPUT_WEIGHT = 0.5
_KAPPA = 0.1
"""Slope of the loss at infinity, in units of the scale. It limits the effect of one target."""

_ROUNDING = 1 + 1e-9
"""Factor of sensitivities that covers the rounding of training in float64."""


class Parameters(NamedTuple):
    """Parameters of the networks of all actions; the first axis is the action."""

    c: Float64[np.ndarray, " actions"]
    v: Float64[np.ndarray, "actions h"]
    w: Float64[np.ndarray, "actions h"]
    b: Float64[np.ndarray, "actions h"]


@dataclass(frozen=True)
class Family:
    """The convex set of networks of one width whose parameters are near the public start.

    Attributes:
        width: size of the hidden layer, h.
        actions: number of actions, each of which has a network.
    """

    width: int
    actions: int

    @cached_property
    def start(self) -> Parameters:
        """The public network, which is 0 everywhere and whose features rise at even places."""
        shape = (self.actions, self.width)
        places = (np.arange(self.width) + 0.5) / self.width
        return Parameters(
            c=np.zeros(self.actions),
            v=np.zeros(shape),
            w=np.full(shape, _SLOPE),
            b=np.broadcast_to(-_SLOPE * places, shape),
        )

    def project(self, parameters: Parameters) -> Parameters:
        """Projects parameters onto each action's ball, and then clips the output weights.

        Both steps project onto convex sets, so they do not increase the distance of neighbours. The
        start has output weights 0, so the second step stays in the ball.
        """
        moves = [one - start for one, start in zip(parameters, self.start, strict=True)]
        squares = [np.square(move).reshape(self.actions, -1).sum(axis=1) for move in moves]
        far = np.maximum(1.0, np.sqrt(np.sum(squares, axis=0)) / _RADIUS)
        c, v, w, b = (
            start + move / far.reshape(-1, *[1] * (move.ndim - 1))
            for start, move in zip(self.start, moves, strict=True)
        )
        largest = _LARGEST_OUTPUT_WEIGHT
        return Parameters(c, np.clip(v, -largest, largest), w, b)

    # --- bounds over the whole set, and over all states in [0, 1] ---

    @property
    def diameter(self) -> float:
        """The largest distance of two parameters, all actions together."""
        return 2 * _RADIUS * math.sqrt(self.actions)

    @property
    def largest(self) -> float:
        """Bound on |f_a(x)|: |c| + |v| is largest where both are equal."""
        return math.sqrt(2) * _RADIUS

    @property
    def lipschitz(self) -> float:
        """Bound L on the gradient of f_a(x) in the parameters.

        The squared norm is the sum of 1 for c, at most 1 for v (since |tanh| <= 1), and at most
        2 |v|^2 / h for w and b (since x^2 + 1 <= 2 and tanh' <= 1).
        """
        return math.sqrt(2 + 2 * _RADIUS**2 / self.width)

    @property
    def curvature(self) -> float:
        """Bound H on the norm of the second derivative of f_a(x) in the parameters.

        The second derivative is block-diagonal over hidden units. In v_j and the direction (x, 1)
        of (w_j, b_j) a block is h^(-1/2) [[0, p], [p, q]], with p <= sqrt(2) and
        |q| <= 2 max |v| max |tanh''|.
        """
        half = _LARGEST_OUTPUT_WEIGHT * _CURVATURE
        return (half + math.sqrt(half**2 + 2)) / math.sqrt(self.width)

    @property
    def slope_lipschitz(self) -> float:
        """Bound L' on the gradient, in the parameters, of the slope of f_a in x.

        The slope is h^(-1/2) sum_j v_j w_j tanh'. Times sqrt(h), its derivatives in v, w and b are
        at most |w|, |v| (1 + max |w| max |tanh''|) and |v| max |w| max |tanh''|.
        """
        root = math.sqrt(self.width)
        bend = (_SLOPE + _RADIUS) * _CURVATURE
        output = _SLOPE + _RADIUS / root
        return math.hypot(output, _RADIUS / root * (1 + bend), _RADIUS / root * bend)

    def values(
        self, parameters: Parameters, points: Float[np.ndarray, " q"]
    ) -> Float64[np.ndarray, "q actions"]:
        """Returns f at states in [0, 1]."""
        root = math.sqrt(self.width)
        columns = [
            c + np.tanh(points[:, None] * w + b) @ v / root
            for c, v, w, b in zip(*parameters, strict=True)
        ]
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class NetworkFit:
    """A public schedule of training, and the bounds that follow from it.

    Attributes:
        family: set of networks.
        transitions: number of transitions, N.
        iterations: number of iterations, K.
        steps: steps of gradient descent in each iteration.
        discount: discount factor gamma.
        middle: middle of the public range of rewards.
        reward_range: width of the public range of rewards.
    """

    family: Family
    transitions: int
    iterations: int
    steps: int
    discount: float
    middle: float
    reward_range: float

    @property
    def scale(self) -> float:
        """Half the range of discounted sums of K rewards."""
        horizon = math.fsum(self.discount**k for k in range(self.iterations))
        return self.reward_range / 2 * horizon

    @property
    def centre(self) -> float:
        """The values from which the first iteration starts."""
        return self.middle / (1 - self.discount)

    @property
    def step_size(self) -> float:
        """Step size alpha, half of the largest for which the guarantee holds."""
        return 1 / (2 * self.family.lipschitz**2)

    def train(self, log: "Log") -> Parameters:
        """Returns the parameters after all iterations, which are secret.

        Raises:
            ValueError: the number of transitions in the log is not that of the schedule.
        """
        family = self.family
        if len(log.rewards) != self.transitions:
            raise ValueError(
                f"the schedule is for {self.transitions} transitions, but the log has "
                f"{len(log.rewards)}"
            )
        onwards = np.zeros(len(log.rewards))
        parameters = family.start
        for iteration in range(self.iterations):
            if iteration:
                best = family.values(parameters, log.following).max(axis=1)
                onwards = np.clip(best, -1.0, 1.0) * self.scale
            following = np.where(log.terminated, 0.0, self.centre + onwards)
            goals = (log.rewards + self.discount * following - self.centre) / self.scale
            parameters = family.start
            for _ in range(self.steps):
                parameters = self._step(parameters, log, goals)
        return parameters

    def values(
        self, parameters: Parameters, points: Float[np.ndarray, " q"]
    ) -> Float64[np.ndarray, "q actions"]:
        """Returns Q less the public centre, at states in [0, 1]."""
        return self.scale * self.family.values(parameters, points)

    @property
    def largest(self) -> float:
        """Bound on the magnitude of `values`."""
        return self.scale * self.family.largest

    def _step(
        self, parameters: Parameters, log: "Log", goals: Float64[np.ndarray, " n"]
    ) -> Parameters:
        """Makes one step of gradient descent on the mean loss, and projects."""
        root, rate = math.sqrt(self.family.width), self.step_size / self.transitions
        moved = Parameters(*(np.array(one) for one in parameters))
        for action, (c, v, w, b) in enumerate(zip(*parameters, strict=True)):
            rows = log.actions == action
            x = log.states[rows]
            features = np.tanh(x[:, None] * w + b)
            error = c + features @ v / root - goals[rows]
            # The derivative of kappa^2 (sqrt(1 + (error / kappa)^2) - 1) is below kappa; its slope
            # is at most 1.
            pull = error / np.sqrt(1 + np.square(error / _KAPPA))
            backwards = (1 - np.square(features)) * pull[:, None]
            moved.c[action] -= rate * pull.sum()
            moved.v[action] -= rate / root * (pull @ features)
            moved.w[action] -= rate / root * v * (x @ backwards)
            moved.b[action] -= rate / root * v * backwards.sum(axis=0)
        return self.family.project(moved)

    # --- privacy ---

    def moved(self, radius: float, *, one_reward: bool) -> float:
        """Returns a bound on the distance of neighbours' parameters after all iterations.

        Args:
            radius: largest difference of a reward between neighbours.
            one_reward: whether the reward of one transition differs; otherwise all may differ.
        """
        family, alpha = self.family, self.step_size
        slope, change = family.lipschitz, radius / self.scale
        share = alpha * slope * min(2 * _KAPPA, change) / self.transitions if one_reward else 0.0
        distance = 0.0
        for iteration in range(self.iterations):
            targets = self.discount * slope * distance if iteration else 0.0
            targets += 0.0 if one_reward else change
            distance = 0.0
            for _ in range(self.steps):
                together = min(
                    math.sqrt(distance**2 + alpha * targets**2 / (2 - alpha * slope**2)),
                    distance + alpha * slope * targets,
                )
                distance = min(
                    together + alpha * _KAPPA * family.curvature * distance + share,
                    distance + 2 * alpha * _KAPPA * slope,
                    family.diameter,
                )
        return distance

    def sensitivity(self, radius: float, *, one_reward: bool) -> Sensitivity:
        """Returns a bound on the difference of neighbours' action values in the best kernel's norm.

        The actions have disjoint parameters, so the squared distances of the actions add up to that
        of all parameters. The bound is therefore the same as for one action.
        """
        distance = self.moved(radius, one_reward=one_reward) * self.scale * _ROUNDING
        family = self.family
        found = generic_sensitivity(
            family.lipschitz * distance, family.slope_lipschitz * distance, 1, radius
        )
        because = (
            f"{self.iterations} times {self.steps} bounded gradient steps of size "
            f"{self.step_size:.4g} over {self.transitions} transitions, from a public network of "
            f"{family.width} tanh units an action, move parameters by at most "
            f"{distance / self.scale:.4g} when "
            + ("one reward moves" if one_reward else "all rewards move")
            + f" by at most {radius:g}"
        )
        return Sensitivity(found.value, found.beta, because, radius)


class Log(NamedTuple):
    """The transitions to which a network is fitted."""

    states: Float64[np.ndarray, " n"]
    """States before the steps, scaled to [0, 1]."""
    actions: Int[np.ndarray, " n"]
    rewards: Float64[np.ndarray, " n"]
    """Exact rewards, which are secret."""
    following: Float64[np.ndarray, " n"]
    """States after the steps, scaled in the same way."""
    terminated: np.ndarray
