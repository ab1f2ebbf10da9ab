"""`sotto account` and `sotto calibrate` for the answers of a teacher."""

import math
from collections.abc import Callable
from typing import Any, Literal

from sotto.cli.parsing import parse, print_json
from sotto.privacy.accounting.composition import compose
from sotto.privacy.mechanisms.dirichlet.mechanism import Dirichlet, TruncatedDirichlet
from sotto.privacy.mechanisms.dirichlet.radius import estimated_radius, radii
from sotto.privacy.mechanisms.dirichlet.theorem1 import PAPER_NOTE, paper_epsilon, repaired_epsilon
from sotto.privacy.mechanisms.gaussian_policy import GaussianPolicy
from sotto.privacy.mechanisms.policies import PolicyMechanism

_MechanismName = Literal["dirichlet", "truncated-dirichlet"]


def account_dirichlet(args: list[str]) -> int:
    """Runs `sotto account dirichlet`."""

    def run(
        actions: int,
        concentration: float,
        floor: float,
        distance: float,
        delta: float,
        queries: int = 1,
        mechanism: _MechanismName = "dirichlet",
        threshold: float | None = None,
        json: bool = False,
    ) -> None:
        """Epsilon of a teacher's answers by the Dirichlet mechanism, certified.

        Besides the certified epsilon (Renyi divergences, composed) the plain mechanism shows
        Theorem 1 of Gohari et al. 2021: repaired, and as the paper states it.

        Example:
          sotto account dirichlet --actions 6 --concentration 5 --floor 0.05 --distance 0.01
          --queries 1000 --delta 1e-5 --json

        Args:
            actions: number of actions, the length of a row.
            concentration: of the Dirichlet draws; larger is closer to the row.
            floor: no probability is below it, after mixing with the uniform row.
            distance: L2 distance of neighbouring rows after mixing. For n teachers trained on
                disjoint people it is sqrt(2) (1 - actions * floor) / n.
            delta: probability scale of failure.
            queries: answers in all.
            mechanism: dirichlet, or truncated-dirichlet: draws with no entry below a threshold.
            threshold: of truncated-dirichlet; below the floor.
            json: print one JSON object.
        """
        chosen = _mechanism(mechanism, actions, concentration, floor, threshold)
        answer = _account(chosen, distance, queries, delta)
        if mechanism == "dirichlet":
            setting = (actions, concentration, floor, distance, delta, queries)
            answer |= {
                "repaired_epsilon": repaired_epsilon(*setting),
                "paper_epsilon": paper_epsilon(*setting),
                "paper_epsilon_note": PAPER_NOTE,
            }
        _print(answer, json)

    parse(run, args, "account dirichlet")
    return 0


def account_gaussian_policy(args: list[str]) -> int:
    """Runs `sotto account gaussian-policy`."""

    def run(
        actions: int,
        noise_stddev: float,
        distance: float,
        delta: float,
        queries: int = 1,
        floor: float = 0.0,
        json: bool = False,
    ) -> None:
        """Epsilon of a teacher's answers by Gaussian noise on the row, then the nearest row.

        Example:
          sotto account gaussian-policy --actions 6 --noise-stddev 0.1 --distance 0.01
          --queries 1000 --delta 1e-5

        Args:
            actions: number of actions, the length of a row.
            noise_stddev: standard deviation of the noise in each probability.
            distance: L2 distance of neighbouring rows after mixing.
            delta: probability scale of failure.
            queries: answers in all.
            floor: no probability is below it, after mixing with the uniform row.
            json: print one JSON object.
        """
        chosen = GaussianPolicy(actions=actions, noise_stddev=noise_stddev, floor=floor)
        _print(_account(chosen, distance, queries, delta), json)

    parse(run, args, "account gaussian-policy")
    return 0


def account_dirichlet_radius(args: list[str]) -> int:
    """Runs `sotto account dirichlet-radius`."""

    def run(
        actions: int,
        concentration: float,
        beta: float,
        floor: float = 1e-6,
        mechanism: _MechanismName = "dirichlet",
        threshold: float | None = None,
        samples: int = 20_000,
        json: bool = False,
    ) -> None:
        """How far an answer is from the teacher's row: radii that it exceeds with probability beta.

        valid: proved for every row. estimated: Monte Carlo over a grid of rows, upper confidence
        limit. invalid: Lemma 1 of Gohari et al. 2021, which does not hold.

        Example:
          sotto account dirichlet-radius --actions 6 --concentration 5 --beta 0.05 --json

        Args:
            actions: number of actions, the length of a row.
            concentration: of the Dirichlet draws.
            beta: probability of a larger distance.
            floor: no probability of the row is below it.
            mechanism: dirichlet or truncated-dirichlet.
            threshold: of truncated-dirichlet; below the floor.
            samples: Monte-Carlo draws per row of the grid.
            json: print one JSON object.
        """
        from sotto.privacy.mechanisms.noise import GeneratorSource

        chosen = _mechanism(mechanism, actions, concentration, floor, threshold)
        found = radii(chosen, beta)
        estimate = estimated_radius(chosen, beta, GeneratorSource().next(), samples=samples)
        best = min((one for one in found if one.status == "valid"), key=lambda one: one.value)
        answer = {
            "mechanism": mechanism,
            "beta": beta,
            "radius": best.value,
            "radius_method": best.method,
            "radii": [
                {"method": one.method, "radius": one.value, "status": one.status}
                for one in (*found, estimate)
            ],
        }
        if json:
            print_json(answer)
            return
        print(f"radius {best.value:.4g} ({best.method}) holds with probability {1 - beta:g}")
        for one in (*found, estimate):
            print(f"  {one.value:<8.4g}{one.status:<11}{one.method}")

    parse(run, args, "account dirichlet-radius")
    return 0


def calibrate_dirichlet(args: list[str]) -> int:
    """Runs `sotto calibrate dirichlet`."""

    def run(
        target_epsilon: float,
        actions: int,
        floor: float,
        distance: float,
        delta: float,
        queries: int = 1,
        json: bool = False,
    ) -> None:
        """The largest concentration whose epsilon does not exceed the target (a few seconds).

        The result is accounted again: "epsilon" is what it really costs. The cost does not vanish
        with the concentration, so there may be none.

        Example:
          sotto calibrate dirichlet --target-epsilon 8 --actions 6 --floor 0.1 --distance 0.002
          --queries 1000 --delta 1e-5

        Args:
            target_epsilon: epsilon that must not be exceeded.
            actions: number of actions, the length of a row.
            floor: no probability is below it, after mixing with the uniform row.
            distance: L2 distance of neighbouring rows after mixing.
            delta: probability scale of failure.
            queries: answers in all.
            json: print one JSON object.
        """

        def epsilon(concentration: float) -> float:
            mechanism = Dirichlet(actions=actions, concentration=concentration, floor=floor)
            return compose(mechanism.events(distance, queries)).epsilon(delta)

        found = _largest_concentration(epsilon, target_epsilon)
        mechanism = Dirichlet(actions=actions, concentration=found, floor=floor)
        answer = _account(mechanism, distance, queries, delta)
        _print(answer | {"target_epsilon": target_epsilon}, json)

    parse(run, args, "calibrate dirichlet")
    return 0


def _largest_concentration(epsilon: Callable[[float], float], target: float) -> float:
    """Bisection in log concentration between 1e-6 and 1e6, to half a percent, always safe."""
    low, high = 1e-6, 1e6
    if epsilon(low) > target:
        raise ValueError(
            f"no concentration brings epsilon to {target:g}: at {low:g} it is still "
            f"{epsilon(low):.4g}; take fewer queries, a smaller distance or a larger floor"
        )
    if epsilon(high) <= target:
        raise ValueError(
            f"even concentration {high:g} costs less than epsilon {target:g}: the target is not "
            "what limits you"
        )
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon(middle) <= target else (low, middle)
    return low


def _mechanism(
    name: _MechanismName,
    actions: int,
    concentration: float,
    floor: float,
    threshold: float | None,
) -> Dirichlet | TruncatedDirichlet:
    if (name == "truncated-dirichlet") != (threshold is not None):
        raise ValueError("--threshold belongs to --mechanism truncated-dirichlet, which needs it")
    if threshold is None:
        return Dirichlet(actions=actions, concentration=concentration, floor=floor)
    return TruncatedDirichlet.sized(
        actions=actions, concentration=concentration, floor=floor, threshold=threshold
    )


def _account(
    mechanism: PolicyMechanism, distance: float, queries: int, delta: float
) -> dict[str, Any]:
    if queries < 1:
        raise ValueError(f"queries must be at least 1, got {queries}")
    curve = compose(mechanism.events(distance, queries))
    return {
        "mechanism": mechanism.kind,
        "epsilon": curve.epsilon(delta),
        "delta": delta,
        **mechanism.model_dump(exclude={"kind"}),
        "distance": distance,
        "queries": queries,
        "method": curve.method,
    }


def _print(answer: dict[str, Any], json: bool) -> None:
    if json:
        print_json(answer)
        return
    print(
        f"epsilon {answer['epsilon']:.4g} at delta {answer['delta']:.3g} "
        f"({answer['queries']} answers of {answer['mechanism']}, rows {answer['distance']:g} apart)"
    )
    if "target_epsilon" in answer:
        print(f"Concentration: {answer['concentration']:.6g}.")
    print(f"Computed by: {answer['method']}.")
    if "paper_epsilon" in answer:
        print(f"Theorem 1 of the paper, repaired: {answer['repaired_epsilon']:.4g}.")
        print(f"As the paper states it: {answer['paper_epsilon']:.4g} ({PAPER_NOTE}).")
