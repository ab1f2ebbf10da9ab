"""`sotto account functional-noise`: the noise of each mode of `sotto train functional-q`."""

import math
from typing import Any, Literal

from sotto.cli.terminal.options import Delta, Json
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.privacy.bounds import at_most, guarantee

_Mode = Literal["reward-release", "output-release", "per-iteration", "paper"]
_Unit = Literal["reward-function", "transition"]


@command("account functional-noise")
def account_functional_noise(
    mode: _Mode,
    delta: Delta,
    target_epsilon: float | None = None,
    nodes: int | None = None,
    actions: int | None = None,
    reward_radius: float | None = None,
    reward_range: float | None = None,
    unit: _Unit = "reward-function",
    least_visits: float | None = None,
    iterations: int | None = None,
    discount: float | None = None,
    epsilon: float | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lipschitz: float | None = None,
    learning_rate: float | None = None,
    json: Json = False,
) -> None:
    """Prints the standard deviation of the noise that hides rewards in learnt values.

    The first three modes are proved (analytic Gaussian mechanism). In the answer, "sigma" is the
    noise of each released value. "sigma_gp" is the noise of Gaussian-process paths, if whole
    functions are released that are linear between evenly spaced nodes. The mode "paper" is
    Theorem 5 of Wang and Hegde 2019 as printed, which guarantees nothing.

    Examples:
      sotto account functional-noise --mode reward-release --nodes 11 --actions 2 \\
        --reward-radius 1 --target-epsilon 0.9 --delta 1e-4 --json
      sotto account functional-noise --mode reward-release --unit transition \\
        --least-visits 118 --reward-range 1 --target-epsilon 0.9 --delta 1e-4
      sotto account functional-noise --mode paper --steps 5000 --batch 128 --lipschitz 1 \\
        --learning-rate 0.01 --epsilon 0.9 --delta 1e-4 --json

    Args:
        mode: reward-release (averaged rewards, once), output-release (values after averager
            fitted Q-iteration, once), per-iteration (the values of every iteration), or paper.
        target_epsilon: Largest epsilon that is allowed. Not for mode paper.
        nodes: Number of states that have a value.
        actions: Number of values at each node.
        reward_radius: Largest difference of neighbouring reward functions at any point.
        reward_range: Largest reward minus smallest reward.
        unit: What neighbouring inputs differ in: the reward function, or the reward of one
            transition (mode reward-release only).
        least_visits: Divisor of every node's average. For unit transition.
        iterations: Number of iterations. For modes output-release and per-iteration.
        discount: Discount factor. For mode output-release.
        epsilon: Epsilon that the theorem claims. For mode paper.
        steps: Number of samples T. For mode paper.
        batch: Batch size B. For mode paper.
        lipschitz: Lipschitz constant L. For mode paper.
        learning_rate: Learning rate alpha. For mode paper.
    """
    given = {
        name: value
        for name, value in {
            "target_epsilon": target_epsilon,
            "nodes": nodes,
            "actions": actions,
            "reward_radius": reward_radius,
            "reward_range": reward_range,
            "least_visits": least_visits,
            "iterations": iterations,
            "discount": discount,
            "epsilon": epsilon,
            "steps": steps,
            "batch": batch,
            "lipschitz": lipschitz,
            "learning_rate": learning_rate,
        }.items()
        if value is not None
    }
    if unit == "transition" and mode != "reward-release":
        raise ValueError("--unit transition belongs to --mode reward-release")
    kind = "transition" if unit == "transition" else mode
    answer = {"mode": mode, "unit": unit} | _ACCOUNTS[kind](_only(kind, given), delta)
    print_json(answer) if json else _print(answer)


_NEEDED = {
    "reward-release": ("target_epsilon", "nodes", "actions", "reward_radius"),
    "transition": ("target_epsilon", "least_visits", "reward_range"),
    "output-release": (
        "target_epsilon",
        "nodes",
        "actions",
        "reward_radius",
        "iterations",
        "discount",
    ),
    "per-iteration": ("target_epsilon", "nodes", "actions", "reward_radius", "iterations"),
    "paper": ("epsilon", "steps", "batch", "lipschitz", "learning_rate"),
}


def _only(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of this mode.

    Raises:
        ValueError: one is missing, or one is given that the mode does not use.
    """
    needed = _NEEDED[kind]
    allowed = {*needed, *(() if kind in ("transition", "paper") else ("reward_range",))}
    flags = {name: f"--{name.replace('_', '-')}" for name in (*needed, *given)}
    what = "--unit transition" if kind == "transition" else f"--mode {kind}"
    if missing := [flags[name] for name in needed if name not in given]:
        raise ValueError(f"{what} needs {', '.join(missing)}")
    if foreign := [flags[name] for name in given if name not in allowed]:
        raise ValueError(f"{what} has no use for {', '.join(foreign)}")
    return given


def _released(kind: str, given: dict[str, Any], delta: float) -> dict[str, Any]:
    from sotto.privacy.mechanisms.functions.calibration import (
        averager_factor,
        impossibility,
        multiplier_for,
    )
    from sotto.privacy.mechanisms.functions.rkhs import hat_basis_sensitivity, vector_sensitivity

    target, radius = given["target_epsilon"], given["reward_radius"]
    moved, releases = radius, 1
    if kind == "output-release":
        moved *= averager_factor(given["discount"], given["iterations"])
    elif kind == "per-iteration":
        # An iterate is made from released values, so it moves by the radius without a discount.
        releases = given["iterations"]
        if releases < 1:
            raise ValueError(f"--iterations must be at least 1, got {releases}")
    vector = vector_sensitivity(given["nodes"], given["actions"], moved)
    process = hat_basis_sensitivity(given["nodes"], given["actions"], moved)
    multiplier, root = multiplier_for(target, delta), math.sqrt(releases)
    answer = {
        "status": "proved",
        "epsilon": target,
        "delta": delta,
        **{name: value for name, value in given.items() if name != "target_epsilon"},
        "sigma": multiplier * vector.value * root,
        "sigma_gp": multiplier * process.value * root,
        "beta_gp": process.beta,
        "sensitivity": vector.value,
        "sensitivity_gp": process.value,
        "releases": releases,
    }
    if reward_range := given.get("reward_range"):
        answer["radius_to_range"] = radius / reward_range
        answer["impossible"] = impossibility(target, delta, radius, reward_range)
    return answer


def _transition(given: dict[str, Any], delta: float) -> dict[str, Any]:
    from sotto.privacy.mechanisms.functions.calibration import multiplier_for

    target, visits, reach = given["target_epsilon"], given["least_visits"], given["reward_range"]
    if not (0 < visits < math.inf and 0 < reach < math.inf):
        raise ValueError(
            f"--least-visits and --reward-range must be positive, got {visits:g} and {reach:g}"
        )
    return {
        "status": "proved",
        "epsilon": target,
        "delta": delta,
        "least_visits": visits,
        "reward_range": reach,
        "sigma": multiplier_for(target, delta) * (reach / visits),
        "sensitivity": reach / visits,
        "releases": 1,
    }


def _paper(given: dict[str, Any], delta: float) -> dict[str, Any]:
    from sotto.privacy.mechanisms.functions.calibration import (
        PAPER_AUDITED_EPSILON,
        PAPER_GAPS,
        paper_noise,
    )

    found = paper_noise(**given, delta=delta)
    return {
        "status": "paper-claim",
        "epsilon": math.inf,
        "claimed_epsilon": given["epsilon"],
        "audited_epsilon_at_least": PAPER_AUDITED_EPSILON,
        "delta": delta,
        **{name: value for name, value in given.items() if name != "epsilon"},
        "sigma": found.sigma,
        "beta": found.beta,
        "k": found.k,
        "resets": found.resets,
        "gaps": [f"{gap.name}: {gap.why}" for gap in PAPER_GAPS],
    }


_ACCOUNTS = {
    "reward-release": lambda given, delta: _released("reward-release", given, delta),
    "output-release": lambda given, delta: _released("output-release", given, delta),
    "per-iteration": lambda given, delta: _released("per-iteration", given, delta),
    "transition": _transition,
    "paper": _paper,
}


def _print(answer: dict[str, Any]) -> None:
    if answer["status"] == "paper-claim":
        print(
            f"sigma {at_most(answer['sigma'], 6)}, beta {answer['beta']:.4g}: Theorem 5 as "
            f"printed, for epsilon {answer['claimed_epsilon']:g}. Not a guarantee; at 0.9 an audit "
            f"of such a run finds epsilon of at least {answer['audited_epsilon_at_least']:g}. Gaps:"
        )
        for gap in answer["gaps"]:
            print(f"  {gap}")
        return
    print(
        f"sigma {at_most(answer['sigma'], 6)} for {guarantee(answer['epsilon'], answer['delta'])} "
        f"({answer['releases']} releases, sensitivity {at_most(answer['sensitivity'], 6)})"
    )
    if "sigma_gp" in answer:
        # Beta has all its digits: the sensitivity grows if it is rounded up, and if rounded down.
        print(
            f"As Gaussian-process paths: sigma {at_most(answer['sigma_gp'], 6)}, beta "
            f"{answer['beta_gp']}."
        )
        print(f"Protected: the reward function, within {answer['reward_radius']:g} everywhere.")
    if answer.get("impossible"):
        print(f"Learning is out of reach: {answer['impossible']}.")
