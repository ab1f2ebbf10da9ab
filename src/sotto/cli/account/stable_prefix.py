"""`sotto account stable-prefix`: the number of experts that must agree to release a prefix."""

from typing import Any

from sotto.cli.terminal.options import Json
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.privacy.accounting.composition import ApproximateDP, compose
from sotto.privacy.bounds import at_most, guarantee
from sotto.privacy.mechanisms.prefix_calibration import (
    COMPOSITIONS,
    Composition,
    Target,
    Theorem1,
    calibrate_consensus,
    calibrate_floor,
    calibrate_random_stop,
    consensus_with_union,
    theorem1,
)
from sotto.privacy.mechanisms.sparse_vector import NoiseName
from sotto.privacy.mechanisms.stable_prefixes import StablePrefixMechanism


@command("account stable-prefix")
def account_stable_prefix(
    experts: int,
    releases: int,
    epsilon: float,
    delta: float,
    floor: float | None = None,
    hazard: float | None = None,
    consensus: bool = False,
    noise: NoiseName | None = None,
    accounting: Composition | None = None,
    horizon: int = 200,
    json: Json = False,
) -> None:
    """Prints the threshold of stable prefixes.

    A stable prefix is the start of an episode. It goes on as long as the noisy mass of experts
    that act alike is above the threshold. The unit is one expert, and adjacency is zero-out. Give
    one of --floor, --hazard and --consensus.

    Examples:
      sotto account stable-prefix --experts 3000 --releases 25 --epsilon 5 --delta 1.6667e-4 \\
        --floor 0.01 --json
      sotto account stable-prefix --experts 3000 --releases 25 --epsilon 5 --delta 1.6667e-4 \\
        --hazard 0.02
      sotto account stable-prefix --experts 3000 --releases 25 --epsilon 5 --delta 1.6667e-4 \\
        --floor 0.01 --accounting advanced

    Args:
        experts: Public lower bound on the number of experts.
        releases: Number of prefixes that are released in total.
        epsilon: Largest epsilon that is allowed for all prefixes together.
        delta: Delta of all prefixes together; below 1 / experts.
        floor: Least probability of every action of every expert.
        hazard: Probability per step that a secret coin ends the prefix. Experts need no floor.
        consensus: Let the experts vote on every action. The threshold is for the winner's lead.
        noise: exponential (default), monotone-laplace or paper-laplace.
        accounting: Use the theorem and the noise of the paper (Sharma et al. 2024), with basic,
            advanced or exact composition. It needs --floor.
        horizon: Longest prefix. It does not change the cost of the threshold. It decides between
            mechanisms of equal cost.
    """
    target = Target(experts, releases, epsilon, delta, horizon)
    rules = [name for name, given in _given(floor, hazard, consensus) if given]
    if len(rules) != 1:
        raise ValueError(
            "give one of --floor, --hazard and --consensus"
            + (f", not {' and '.join(rules)}" if rules else "")
        )
    answer: dict[str, Any]
    if accounting is not None:
        if floor is None or noise not in (None, "paper-laplace"):
            raise ValueError(
                "--accounting stands for the paper's method, which needs --floor and has its own "
                "noise; leave out the other flags, or leave out --accounting"
            )
        answer = _paper(target, theorem1(target, floor, accounting))
    else:
        law = noise or "exponential"
        if floor is not None:
            found = calibrate_floor(target, floor, law)
        elif hazard is not None:
            found = calibrate_random_stop(target, hazard, law)
        else:
            found = calibrate_consensus(target, law)
        answer = _ours(target, found, law)
        answer["comparison"] = _comparison(target, floor, consensus)
    print_json(answer) if json else _print(answer)


def _given(
    floor: float | None, hazard: float | None, consensus: bool
) -> tuple[tuple[str, bool], ...]:
    return (
        ("--floor", floor is not None),
        ("--hazard", hazard is not None),
        ("--consensus", consensus),
    )


def _shared(target: Target, threshold: float) -> dict[str, Any]:
    return {
        "status": "proved",
        "unit": "expert",
        "adjacency": "zero-out",
        "target_epsilon": target.epsilon,
        "delta": target.delta,
        "experts": target.experts,
        "releases": target.releases,
        "horizon": target.horizon,
        "threshold": threshold,
        "reachable": threshold < target.experts,
    }


def _ours(target: Target, found: StablePrefixMechanism, law: NoiseName) -> dict[str, Any]:
    event = found.event(target.releases)
    curve = compose([event])
    return {
        "accounting": "two-hop" if event.ratio else "exact",
        "epsilon": curve.epsilon(target.delta),
        **_shared(target, found.threshold),
        "needed": found.needed(target.horizon),
        "least_mass": found.rule.least_mass,
        "rule": found.rule.model_dump(),
        "noise": law,
        "threshold_rate": found.noise.threshold_rate,
        "query_rate": found.noise.query_rate,
        "epsilon_each": found.epsilon,
        "failure_each": found.failure,
        "method": curve.method,
    }


def _paper(target: Target, found: Theorem1) -> dict[str, Any]:
    each = ApproximateDP(epsilon=2 * found.epsilon_each, delta=found.failure, count=target.releases)
    return {
        "accounting": found.composition,
        "epsilon": target.epsilon,
        "epsilon_by_exact_composition": compose([each]).epsilon(target.delta),
        **_shared(target, found.threshold),
        "noise": "paper-laplace",
        "epsilon_each": found.epsilon_each,
        "failure_each": found.failure,
        "method": "Theorem 1 (Sharma et al. 2024, proved without a union over steps)",
    }


def _comparison(target: Target, floor: float | None, consensus: bool) -> dict[str, Any]:
    """Returns thresholds of the paper's method at the same cost; None where it has none."""
    if consensus:
        return {"paper_laplace_with_union_over_steps": consensus_with_union(target)}
    if floor is None:
        return {}
    found: dict[str, Any] = {}
    for composition in COMPOSITIONS:
        try:
            found[composition] = theorem1(target, floor, composition).threshold
        except ValueError:  # fewer experts than Theorem 1 needs
            found[composition] = None
    return found


def _print(answer: dict[str, Any]) -> None:
    print(
        f"threshold {at_most(answer['threshold'], 6)} of {answer['experts']} experts "
        f"({answer['releases']} releases, {guarantee(answer['epsilon'], answer['delta'])}, "
        f"{answer['accounting']} accounting, {answer['noise']} noise)"
    )
    if not answer["reachable"]:
        print("No prefix reaches it, since all experts together have less mass.")
    if "needed" in answer:
        print(
            f"A rollout of {answer['horizon']} steps reaches its end with probability about 0.9 if "
            f"the mass stays above {answer['needed']:.0f}."
        )
    for name, threshold in answer.get("comparison", {}).items():
        said = "too few experts" if threshold is None else f"{threshold:.0f}"
        print(f"  {name.replace('_', ' ')} accounting of the paper: {said}")
    print(f"Computed by: {answer['method']}.")
