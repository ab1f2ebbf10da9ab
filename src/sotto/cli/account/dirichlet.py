"""`sotto account` and `sotto calibrate` for the noisy answers of a teacher."""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro

from sotto.cli.terminal.options import (
    Actions,
    Concentration,
    Delta,
    Distance,
    Floor,
    Json,
    Queries,
    TargetEpsilon,
    Threshold,
)
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.privacy.accounting.composition import compose
from sotto.privacy.bounds import at_least, at_most, guarantee
from sotto.privacy.mechanisms.dirichlet.mechanism import Dirichlet, TruncatedDirichlet
from sotto.privacy.mechanisms.dirichlet.radius import estimated_radius, radii
from sotto.privacy.mechanisms.dirichlet.theorem1 import PAPER_NOTE, paper_epsilon, repaired_epsilon
from sotto.privacy.mechanisms.gaussian_policy import GaussianPolicy
from sotto.privacy.mechanisms.policies import PolicyMechanism

_MechanismName = Annotated[
    Literal["dirichlet", "truncated-dirichlet"],
    tyro.conf.arg(help="truncated-dirichlet draws answers with no entry below --threshold."),
]

_EQUAL = "Neighbouring rows are equal, so no answer depends on the data"
"""It stands in the place of a method where no answer costs anything."""


@command("account dirichlet")
def account_dirichlet(
    actions: Actions,
    concentration: Concentration,
    floor: Floor,
    distance: Distance,
    delta: Delta,
    queries: Queries = 1,
    mechanism: _MechanismName = "dirichlet",
    threshold: Threshold = None,
    json: Json = False,
) -> None:
    """Prints the epsilon of a teacher's answers drawn by the Dirichlet mechanism.

    The first epsilon is proved: it composes Renyi divergences. For the plain mechanism the command
    also prints Theorem 1 of Gohari et al. 2021, once repaired and once as the paper states it.

    Example:
      sotto account dirichlet --actions 6 --concentration 5 --floor 0.05 --distance 0.01 \\
        --queries 1000 --delta 1e-5 --json
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


@command("account gaussian-policy")
def account_gaussian_policy(
    actions: Actions,
    noise_stddev: Annotated[
        float, tyro.conf.arg(help="Standard deviation of the noise in each probability.")
    ],
    distance: Distance,
    delta: Delta,
    queries: Queries = 1,
    floor: Floor = 0.0,
    json: Json = False,
) -> None:
    """Prints the epsilon of a teacher's answers with Gaussian noise.

    An answer is the policy row plus noise, projected to the nearest policy row.

    Example:
      sotto account gaussian-policy --actions 6 --noise-stddev 0.1 --distance 0.01 \\
        --queries 1000 --delta 1e-5
    """
    chosen = GaussianPolicy(actions=actions, noise_stddev=noise_stddev, floor=floor)
    _print(_account(chosen, distance, queries, delta), json)


@command("account dirichlet-radius")
def account_dirichlet_radius(
    actions: Actions,
    concentration: Concentration,
    beta: Annotated[float, tyro.conf.arg(help="Probability of a larger distance.")],
    floor: Floor = 1e-6,
    mechanism: _MechanismName = "dirichlet",
    threshold: Threshold = None,
    samples: Annotated[
        int, tyro.conf.arg(help="Number of Monte-Carlo draws for each row of the grid.")
    ] = 20_000,
    json: Json = False,
) -> None:
    """Prints a distance between answer and teacher that is exceeded with probability beta.

    A radius with status "valid" is proved for every policy row. "estimated" is the upper confidence
    limit of a Monte-Carlo estimate over a grid of rows. "invalid" is Lemma 1 of Gohari et al. 2021,
    which does not hold.

    Example:
      sotto account dirichlet-radius --actions 6 --concentration 5 --beta 0.05 --json
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
    print(f"radius {at_most(best.value)} ({best.method}) holds with probability {1 - beta:g}")
    for one in (*found, estimate):
        print(f"  {at_most(one.value):<8}{one.status:<11}{one.method}")


@command("calibrate dirichlet")
def calibrate_dirichlet(
    target_epsilon: TargetEpsilon,
    actions: Actions,
    floor: Floor,
    distance: Distance,
    delta: Delta,
    queries: Queries = 1,
    json: Json = False,
) -> None:
    """Prints the largest concentration whose epsilon does not exceed the target.

    The "epsilon" in the answer is that of this concentration, computed again. Epsilon does not
    go to zero with the concentration, so for a small target there may be none. This takes a few
    seconds.

    Example:
      sotto calibrate dirichlet --target-epsilon 8 --actions 6 --floor 0.1 --distance 0.002 \\
        --queries 1000 --delta 1e-5
    """
    _check_queries(queries)
    if not 0 < target_epsilon < math.inf:
        raise ValueError(f"--target-epsilon must be positive and finite, got {target_epsilon}")
    if not Dirichlet(actions=actions, concentration=1.0, floor=floor).events(distance, queries):
        raise ValueError(f"{_EQUAL[0].lower()}{_EQUAL[1:]}: every concentration costs epsilon 0")

    def epsilon(concentration: float) -> float:
        mechanism = Dirichlet(actions=actions, concentration=concentration, floor=floor)
        return compose(mechanism.events(distance, queries)).epsilon(delta)

    found = _largest_concentration(epsilon, target_epsilon)
    mechanism = Dirichlet(actions=actions, concentration=found, floor=floor)
    answer = _account(mechanism, distance, queries, delta)
    _print(answer | {"target_epsilon": target_epsilon}, json)


def _largest_concentration(epsilon: Callable[[float], float], target: float) -> float:
    """Returns a concentration between 1e-6 and 1e6 that meets the target, by bisection.

    It is smaller than the largest such concentration by at most half a per cent.

    Raises:
        ValueError: no concentration meets the target, or all of them do.
    """
    low, high = 1e-6, 1e6
    if epsilon(low) > target:
        raise ValueError(
            f"no concentration brings epsilon to {target:g}: at {low:g} it is still "
            f"{epsilon(low):.4g}; take fewer queries, a smaller distance or a larger floor"
        )
    if epsilon(high) <= target:
        raise ValueError(
            f"even concentration {high:g} costs less than epsilon {target:g}; choose a smaller "
            "--target-epsilon"
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
        raise ValueError("give --threshold with --mechanism truncated-dirichlet, and with no other")
    if threshold is None:
        return Dirichlet(actions=actions, concentration=concentration, floor=floor)
    return TruncatedDirichlet.sized(
        actions=actions, concentration=concentration, floor=floor, threshold=threshold
    )


def _check_queries(queries: int) -> None:
    if queries < 1:
        raise ValueError(f"queries must be at least 1, got {queries}")


def _account(
    mechanism: PolicyMechanism, distance: float, queries: int, delta: float
) -> dict[str, Any]:
    _check_queries(queries)
    events = mechanism.events(distance, queries)
    curve = compose(events)
    return {
        "mechanism": mechanism.kind,
        "epsilon": curve.epsilon(delta),
        "delta": delta,
        **mechanism.model_dump(exclude={"kind"}),
        "distance": distance,
        "queries": queries,
        "method": curve.method if events else _EQUAL,
    }


def _print(answer: dict[str, Any], json: bool) -> None:
    if json:
        print_json(answer)
        return
    queries = answer["queries"]
    print(
        f"{guarantee(answer['epsilon'], answer['delta'])} ({queries} "
        f"answer{'' if queries == 1 else 's'} of {answer['mechanism']}, "
        f"rows {answer['distance']:g} apart)"
    )
    if "target_epsilon" in answer:
        print(f"Concentration: {at_least(answer['concentration'], 6)}.")
    equal = answer["method"] == _EQUAL
    print(f"{_EQUAL if equal else 'Computed by: ' + answer['method']}.")
    if "paper_epsilon" in answer:
        print(f"Theorem 1 of the paper, repaired: {at_most(answer['repaired_epsilon'])}.")
        print(f"As the paper states it: {at_most(answer['paper_epsilon'])} ({PAPER_NOTE}).")
