"""Action values of a tanh network, trained in secret by steps that keep neighbours close.

One network of one hidden layer for each action, on states scaled to [0, 1]:

    Q_a(x) = centre + scale f_a(x),    f_a(x) = c + h^(-1/2) sum_j v_j tanh(w_j x + b_j).

Each of K iterations fits r + gamma max Q anew, from the same public network on, by plain gradient
descent over the whole log: a fixed number of steps of a fixed size, each followed by a projection.
Only the last iteration's function leaves, once, with a fresh path (`functional_q_functions`).

Guarantee:
    Parameters theta, theta' of neighbouring logs are at most `NetworkFit.moved` apart, and
    `NetworkFit.sensitivity` bounds the norm of what they make of it, all actions together. With
    the bounds L, H and L' of `Family`, losses of slope at most kappa and curvature at most 1, steps
    alpha <= 1 / L^2 and N transitions, d = |theta - theta'| grows in a step to at most
        alpha kappa H d + min(sqrt(d^2 + alpha q^2 / (2 - alpha L^2)), d + alpha L q) + u,
    and to at most d + 2 alpha kappa L. Here q bounds how far all targets move: gamma times what
    the last iteration's values do, and the radius of reward functions; u = alpha L min(2 kappa, D)
    / N is the share of one reward that moves by D. The proof is in docs/privacy.md, section 13.

It is not enough to add u in every step: after the first one all gradients differ between
neighbours, not only that of the transition whose reward does.

Source: theory notes, B6 (A), for Wang and Hegde 2019; the bounds are ours.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int

from sotto.privacy.mechanisms.functions.rkhs import Sensitivity, generic_sensitivity

_CURVATURE = 4 / (3 * math.sqrt(3))
"""The largest second derivative of tanh; its first is at most 1."""

_SLOPE = 4.0
"""First-layer weights at the start: features that rise over about half of the unit interval."""

_RADIUS = 2.0
"""How far the parameters of one action's network may go from where they start."""

_LARGEST_OUTPUT_WEIGHT = 0.5
_KAPPA = 0.1
"""Slope of the loss at infinity, in units of the scale: what one target can pull."""

_ROUNDING = 1 + 1e-9
"""Surplus of sensitivities over the rounding of training in float64."""


class Parameters(NamedTuple):
    """Of all actions' networks; the first axis is the action's."""

    c: Float64[np.ndarray, " actions"]
    v: Float64[np.ndarray, "actions h"]
    w: Float64[np.ndarray, "actions h"]
    b: Float64[np.ndarray, "actions h"]


@dataclass(frozen=True)
class Family:
    """All networks of one width whose parameters are near the public start; a convex set.

    Attributes:
        width: h, the size of the hidden layer.
        actions: one network each.
    """

    width: int
    actions: int

    @cached_property
    def start(self) -> Parameters:
        """The public network, which is 0 everywhere; its features rise at even places."""
        shape = (self.actions, self.width)
        places = (np.arange(self.width) + 0.5) / self.width
        return Parameters(
            c=np.zeros(self.actions),
            v=np.zeros(shape),
            w=np.full(shape, _SLOPE),
            b=np.broadcast_to(-_SLOPE * places, shape),
        )

    def project(self, parameters: Parameters) -> Parameters:
        """The nearest parameters in each action's ball, then output weights within their bound.

        Either is the projection onto a convex set, so neighbours come no further apart. The start
        has output weights 0, so the second step does not leave the ball.
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
    def lipschitz(self) -> float:
        """L: bound on the gradient of f_a(x) in the parameters.

        Its squared parts are 1 (c), at most 1 (v, for |tanh| <= 1), and at most 2 |v|^2 / h
        (w and b, for x^2 + 1 <= 2 and tanh' <= 1).
        """
        return math.sqrt(2 + 2 * _RADIUS**2 / self.width)

    @property
    def curvature(self) -> float:
        """H: bound on the norm of the second derivative of f_a(x) in the parameters.

        It is block-diagonal over units. In v_j and the direction (x, 1) of (w_j, b_j) a block is
        h^(-1/2) [[0, p], [p, q]] with p <= sqrt(2) and |q| <= 2 max |v| max |tanh''|.
        """
        half = _LARGEST_OUTPUT_WEIGHT * _CURVATURE
        return (half + math.sqrt(half**2 + 2)) / math.sqrt(self.width)

    @property
    def slope_lipschitz(self) -> float:
        """L': bound on the gradient in the parameters of the slope of f_a in x.

        The slope is h^(-1/2) sum_j v_j w_j tanh'; its derivatives in v, w and b are at most
        |w|, |v| (1 + max |w| max |tanh''|) and |v| max |w| max |tanh''|, over sqrt(h).
        """
        root = math.sqrt(self.width)
        bend = (_SLOPE + _RADIUS) * _CURVATURE
        output = _SLOPE + _RADIUS / root
        return math.hypot(output, _RADIUS / root * (1 + bend), _RADIUS / root * bend)

    def values(
        self, parameters: Parameters, points: Float[np.ndarray, " q"]
    ) -> Float64[np.ndarray, "q actions"]:
        """f at states in [0, 1]."""
        root = math.sqrt(self.width)
        columns = [
            c + np.tanh(points[:, None] * w + b) @ v / root
            for c, v, w, b in zip(*parameters, strict=True)
        ]
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class NetworkFit:
    """A schedule of training, all of it public, and how far neighbours end up apart.

    Attributes:
        family: of networks.
        transitions: N, how many there are.
        iterations: K.
        steps: of gradient descent in each iteration.
        discount: gamma.
        middle: of the public range of rewards.
        reward_range: its width.
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
        """Half the range of what K rewards can add up to."""
        horizon = math.fsum(self.discount**k for k in range(self.iterations))
        return self.reward_range / 2 * horizon

    @property
    def centre(self) -> float:
        """The values from which the first iteration starts."""
        return self.middle / (1 - self.discount)

    @property
    def step_size(self) -> float:
        """alpha: half of the most for which the guarantee holds."""
        return 1 / (2 * self.family.lipschitz**2)

    def train(self, log: "Log") -> Parameters:
        """The parameters after all iterations. They are secret.

        Raises:
            ValueError: the log has not as many transitions as the schedule says.
        """
        family = self.family
        if len(log.rewards) != self.transitions:
            raise ValueError(f"{self.transitions} transitions were stated, not {len(log.rewards)}")
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
        """Q at states in [0, 1]."""
        return self.centre + self.scale * self.family.values(parameters, points)

    def _step(
        self, parameters: Parameters, log: "Log", goals: Float64[np.ndarray, " n"]
    ) -> Parameters:
        """One step of gradient descent on the mean loss, and the projection."""
        root, rate = math.sqrt(self.family.width), self.step_size / self.transitions
        moved = Parameters(*(np.array(one) for one in parameters))
        for action, (c, v, w, b) in enumerate(zip(*parameters, strict=True)):
            rows = log.actions == action
            x = log.states[rows]
            features = np.tanh(x[:, None] * w + b)
            error = c + features @ v / root - goals[rows]
            # Of the loss kappa^2 (sqrt(1 + (error / kappa)^2) - 1): at most kappa, its slope 1.
            pull = error / np.sqrt(1 + np.square(error / _KAPPA))
            backwards = (1 - np.square(features)) * pull[:, None]
            moved.c[action] -= rate * pull.sum()
            moved.v[action] -= rate / root * (pull @ features)
            moved.w[action] -= rate / root * v * (x @ backwards)
            moved.b[action] -= rate / root * v * backwards.sum(axis=0)
        return self.family.project(moved)

    # --- privacy ---

    def moved(self, radius: float, *, one_reward: bool) -> float:
        """Bound on the distance of the parameters of neighbours, after all iterations.

        Args:
            radius: how far a reward of one is from that of the other, at most.
            one_reward: one transition's reward differs; otherwise all of them may.
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
        """How far apart neighbours' action values are, in the norm of the best kernel.

        Each action has parameters of its own, so that their squared distances, and with them those
        of the functions, add up to that of all together: as if there were one action.
        """
        distance = self.moved(radius, one_reward=one_reward) * self.scale * _ROUNDING
        family = self.family
        found = generic_sensitivity(
            family.lipschitz * distance, family.slope_lipschitz * distance, actions=1
        )
        because = (
            f"{self.iterations} times {self.steps} bounded gradient steps of size "
            f"{self.step_size:.4g} over {self.transitions} transitions, from a public network of "
            f"{family.width} tanh units an action, move parameters by at most "
            f"{distance / self.scale:.4g} when "
            + ("one reward moves" if one_reward else "all rewards move")
            + f" by at most {radius:g}"
        )
        return Sensitivity(found.value, found.beta, because)


class Log(NamedTuple):
    """What a network is fitted to."""

    states: Float64[np.ndarray, " n"]
    """Scaled to [0, 1]."""
    actions: Int[np.ndarray, " n"]
    rewards: Float64[np.ndarray, " n"]
    """The secret."""
    following: Float64[np.ndarray, " n"]
    """The states that steps led to, scaled alike."""
    terminated: np.ndarray
