"""`sotto account stable-prefix`: how many experts have to agree for a prefix to be released."""

from typing import Any

from sotto.cli.parsing import parse, print_json
from sotto.privacy.accounting.composition import ApproximateDP, compose
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


def account_stable_prefix(args: list[str]) -> int:
    """Runs `sotto account stable-prefix`."""

    def run(
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
        json: bool = False,
    ) -> None:
        """The threshold of stable prefixes: the mass of experts that a prefix needs to go on.

        Unit: one expert, there or absent (zero-out). Give one of --floor (all actions of all
        experts have at least this probability), --hazard (any experts; a secret coin ends prefixes
        at this rate) and --consensus (experts vote; the threshold is for the winner's lead).

        Examples:
          sotto account stable-prefix --experts 3000 --releases 25 --epsilon 5 --delta 1.6667e-4
          --floor 0.01 --json
          sotto account stable-prefix --experts 3000 --releases 25 --epsilon 5 --delta 1.6667e-4
          --hazard 0.02
          sotto account stable-prefix --experts 3000 --releases 25 --epsilon 5 --delta 1.6667e-4
          --floor 0.01 --accounting advanced

        Args:
            experts: public lower bound on the number of experts.
            releases: prefixes released in all.
            epsilon: that must not be exceeded by all of them together.
            delta: of all of them together; below 1/experts.
            floor: least probability of an action, of every expert.
            hazard: probability that a secret coin ends a prefix, at every step.
            consensus: roll out the experts' vote.
            noise: exponential (default), monotone-laplace or paper-laplace.
            accounting: the paper's instead of ours: its theorem and noise, with basic, advanced or
                exact composition. Needs --floor.
            horizon: longest prefix; the threshold's cost does not depend on it, but the choice
                between mechanisms of equal cost does.
            json: print one JSON object.
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
                    "--accounting is the paper's, which has --floor and its own noise; leave out "
                    "the others, or leave out --accounting"
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

    parse(run, args, "account stable-prefix")
    return 0


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
    """Thresholds of the paper's noise and accounting at the same cost; None where it has none."""
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
        f"threshold {answer['threshold']:.1f} of {answer['experts']} experts "
        f"({answer['releases']} releases, epsilon {answer['epsilon']:.4g} at delta "
        f"{answer['delta']:.3g}, {answer['accounting']} accounting, {answer['noise']} noise)"
    )
    if not answer["reachable"]:
        print("No prefix reaches it: all experts together have less mass.")
    if "needed" in answer:
        print(
            f"A rollout of {answer['horizon']} steps passes its queries nine times in ten where "
            f"the mass stays above {answer['needed']:.0f}."
        )
    for name, threshold in answer.get("comparison", {}).items():
        said = "too few experts" if threshold is None else f"{threshold:.0f}"
        print(f"  {name.replace('_', ' ')} accounting of the paper: {said}")
    print(f"Computed by: {answer['method']}.")
