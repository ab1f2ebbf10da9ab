"""`sotto evaluate`: values of policies from a log of real people."""

import json as json_module
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from sotto.algorithms.evaluation import analysis, densities
from sotto.algorithms.evaluation.analysis import (
    LEARNT,
    Asked,
    Found,
    as_json,
    default_delta,
    settings_of,
)
from sotto.algorithms.evaluation.models import ReturnModel, read_return_model
from sotto.algorithms.evaluation.persons import EstimatorName
from sotto.algorithms.evaluation.policies import Target, named, released
from sotto.algorithms.evaluation.policies import as_json as linear_json
from sotto.algorithms.evaluation.release import Spending
from sotto.algorithms.offline_people.algorithm import Offline
from sotto.algorithms.offline_people.returns import expected_returns
from sotto.cli.terminal.options import Json
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.data.imports.declaration import Declaration
from sotto.data.imports.records import load
from sotto.errors import RunError
from sotto.extras import require
from sotto.files import write_whole
from sotto.privacy.bounds import guarantee
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.spending import Budget
from sotto.runs.agents import agent
from sotto.runs.directory import open_experiment
from sotto.runs.evaluations import EvaluationRun, create_evaluation

_Weights = Annotated[
    tuple[float, ...],
    arg(help="Clip of the weights: one number, or one for each policy in their order."),
]

_Parts = Annotated[
    tuple[int, ...],
    arg(
        help="For marginalised: number of equal parts of each observation column of numbers within "
        "its bounds, or one number for all. Columns of categories have a cell for each category."
    ),
]


@command("evaluate")
def evaluate(
    runs: Positional[tuple[Path, ...]] = (),
    /,
    *,
    on: Path,
    epsilon: float,
    delta: float | None = None,
    policy: tuple[str, ...] = (),
    learn: bool = False,
    estimator: EstimatorName = "self-normalised",
    largest_weight: _Weights = (),
    discount: float = 1.0,
    returns: tuple[float, float] | None = None,
    model: Path | None = None,
    cells: _Parts = (),
    level: float = 0.95,
    sampled: bool = False,
    other_people: bool = False,
    env_id: str | None = None,
    out: Path | None = None,
    json: Json = False,
) -> None:
    """Estimates the values of policies from a log of real people, without a simulator.

    The log comes from `sotto import`, with the probabilities of its actions. One private release
    gives all values, with intervals that include sampling and noise. They hold for all policies
    together, so that the best one may be chosen by them. The unit of privacy is a person.
    docs/own_data.md is the guide. For returns in a simulator, use sotto eval.

    Policies are runs, in their order, then those of --policy, then the learnt one. A policy is
    always:K (the action with number K), uniform, or a file .json of a linear policy. If actions are
    real numbers, it is uniform, a file of a normal policy, or a run with --sampled.

    Examples:
      sotto evaluate runs/doses --on runs/visits --epsilon 1 --largest-weight 10
      sotto evaluate --policy always:0 always:1 --learn --on runs/trial --epsilon 0.5 --json

    Args:
        runs: Run directories.
        on: Folder of the imported log.
        epsilon: Epsilon that everybody in the log pays for this evaluation.
        delta: Delta of the guarantee (default: 1e-5, or a tenth of 1 / people if that is less).
        policy: Further policies.
        learn: Learn a linear policy from a random half of the people, and evaluate all policies on
            the other half. For logs with one step.
        estimator: self-normalised needs no exact probabilities; importance and per-decision are
            unbiased without clipping; doubly-robust corrects a --model by the log. marginalised is
            for many steps in finitely many --cells: half of the people give tables of visits, and
            the other half corrects what follows from them.
        discount: Factor of later rewards.
        returns: Public bounds LOW HIGH of a person's return. Returns beyond are moved to them.
        model: For doubly-robust: a run of sotto train offline, whose learned model is used, or a
            JSON file of a public linear model of returns.
        level: Probability with which all intervals hold.
        sampled: Let runs draw actions from their policy instead of taking the most likely one.
        other_people: Nobody in this log is in a log that a run was trained on without privacy.
        env_id: Environment of the runs. It is needed if its name has a module in it.
        out: Directory of the ledger, the values and the certificate (default: the log's name and
            "-evaluation").
    """
    require("minari", "h5py")
    records = load(on)
    declaration = records.declaration
    asked = Asked(estimator, largest_weight, discount, returns, level, learn, cells)
    settings_of(declaration, asked, len(runs) + len(policy) + learn)
    for path in runs:
        _refuse_unpaid(path, records.identity, other_people)
    targets = _targets(declaration, runs, policy, sampled, env_id)
    models = None if model is None else _models(model, declaration, discount, env_id)
    delta = default_delta(declaration.people) if delta is None else delta
    spending = Spending(epsilon, delta)
    settings = {
        "policies": [*targets, *([LEARNT] if learn else [])],
        "estimator": estimator,
        "largest_weight": list(largest_weight),
        "discount": discount,
        "returns": None if returns is None else list(returns),
        "model": None if model is None else str(model),
        "cells": list(cells),
        "level": level,
        "sampled": sampled,
    }
    place = out if out is not None else on.with_name(f"{on.name}-evaluation")
    run, ledger = create_evaluation(place, str(on), settings, Budget(epsilon=epsilon, delta=delta))
    try:
        found = analysis.evaluate(records, targets, asked, ledger, spending, models)
    except BaseException:
        if not ledger.streams:  # nothing was charged
            shutil.rmtree(run.path)
        raise
    certificate = derive(ledger)
    certificate.write(run.certificate)
    answer = as_json(found, spending, level) | {
        "directory": str(run.path),
        "certificate": certificate.status,
        "source": declaration.source,
        "licence": declaration.licence,
        "already_public": declaration.already_public,
    }
    _store(run, answer, found)
    if json:
        print_json(answer)
    else:
        print("\n".join(_lines(answer)))


def _sizes(declaration: Declaration) -> tuple[int, int]:
    """Returns the number of actions and the length of an observation."""
    return int(declaration.action_space.n), declaration.observation_size


def _models(
    model: Path, declaration: Declaration, discount: float, env_id: str | None
) -> Callable[[Target], ReturnModel]:
    """Returns the function that gives the model of a policy's returns.

    Raises:
        RunError: the file or the run has no model for this log.
    """
    steps = declaration.horizon
    if not model.is_dir():
        found = read_return_model(model, steps, *_sizes(declaration))
        return lambda _policy: found
    algorithm, config, state = agent.last_state(model, env_id=env_id)
    if not isinstance(algorithm, Offline):
        raise RunError(f"{model} is a run of {algorithm.name}; --model needs one of offline")
    seen = declaration.observation_space
    facts = (config.low, config.high, config.actions, config.reward_bounds)
    if facts != (
        tuple(seen.low.tolist()),
        tuple(seen.high.tolist()),
        _sizes(declaration)[0],
        declaration.reward_bounds,
    ):
        raise RunError(
            f"{model} was trained on a log with other columns or bounds than this one; give a "
            "model of this log's columns"
        )
    try:
        learned = algorithm.models(config, state)
    except ValueError as error:
        raise RunError(f"{model}: {error}") from error

    def expected(policy: Target) -> ReturnModel:
        assert not isinstance(policy, densities.Density)
        return expected_returns(config, learned, policy, steps, discount)

    return expected


def _refuse_unpaid(run: Path, identity: str, other_people: bool) -> None:
    """Refuses a run that was trained on a log without a ledger, or by a teacher that was.

    The certificate says that policies come from releases that were paid for. The same people may be
    in several logs, or in several imports of one, which nothing but the user knows.

    Args:
        run: directory of the run.
        identity: identity of this log.
        other_people: whether the user says that the people of other logs are others.

    Raises:
        RunError: the run is one, or its teacher is not there any more.
    """
    settings = open_experiment(run).settings
    log = settings.config.get("on") or settings.config.get("dataset")
    teacher = str(settings.config.get("teacher") or "")
    if settings.ledger is not None:
        return
    if log is None:
        if teacher and Path(teacher).is_dir():
            _refuse_unpaid(Path(teacher), identity, other_people)
        elif teacher and "://" not in teacher and not other_people:
            raise RunError(
                f"{run} was trained by {teacher}, which is not there; put it back, or if nobody of "
                "this log is in a log that it was trained on, say --other-people"
            )
        return
    unpaid = (
        f"{run} was trained on {log} without privacy, and this evaluation's certificate would not "
        "count that; train with privacy"
    )
    if settings.config.get("identity") == identity:
        raise RunError(f"{unpaid}, or evaluate it on a log of other people")
    if not other_people:
        raise RunError(f"{unpaid}, or if nobody is in both logs, say --other-people")


def _targets(
    declaration: Declaration,
    runs: tuple[Path, ...],
    words: tuple[str, ...],
    sampled: bool,
    env_id: str | None,
) -> dict[str, Target]:
    given: list[tuple[str, Target]]
    asked: list[tuple[str, Target]]
    sizes = _sizes(declaration) if declaration.discrete else None
    # Words first: a misspelt one is refused before runs are loaded, which takes seconds.
    if sizes:
        asked = [(word, named(word, *sizes)) for word in words]
    else:
        asked = [(word, densities.named(word, declaration)) for word in words]
    loaded = [(str(path), agent.load(path, env_id=env_id).policy) for path in runs]
    if sizes:
        given = [(name, released(one, *sizes, greedy=not sampled)) for name, one in loaded]
    else:
        given = [
            (name, densities.released(one, declaration, greedy=not sampled)) for name, one in loaded
        ]
    given += asked
    names = [name for name, _ in given]
    for name in names:
        if names.count(name) > 1 or name == LEARNT:
            raise RunError(f"the policy {name} is named twice; name each policy once")
    return dict(given)


def _store(run: EvaluationRun, answer: dict[str, Any], found: Found) -> None:
    if found.learnt is not None:
        write_whole(run.path / "linear.json", json_module.dumps(linear_json(found.learnt)) + "\n")
    write_whole(run.values, json_module.dumps(answer, indent=2) + "\n")


def _choice(answer: dict[str, Any]) -> str:
    """Returns which policy is best, and which ones the log does not tell from it."""
    largest, rivals = f"Largest value: {answer['best']}.", answer["may_be_as_good"]
    if rivals:
        return f"{largest} Given intervals and biases, these may be as good: {', '.join(rivals)}."
    if len(answer["policies"]) > 1:
        return f"{largest} It is above all others, also given intervals and biases."
    return largest


def _lines(answer: dict[str, Any]) -> list[str]:
    """Returns a table of the values, and what they assume."""
    percent = f"{100 * answer['level']:g}%"
    policies = answer["policies"]
    width = max(12, *(len(one["policy"]) for one in policies))
    lines = [
        f"{'policy':<{width}} {'value':>10} {percent + ' interval':>25} {'noise':>9} "
        f"{'mean weight':>12} {'bias at most':>13}"
    ]
    for one in policies:
        span = f"{one['low']:.4g} to {one['high']:.4g}"
        noise = "no bound" if one["noise"] is None else f"{one['noise']:.2g}"
        lines.append(
            f"{one['policy']:<{width}} {one['value']:>10.4g} {span:>25} {noise:>9} "
            f"{one['mean_weight']:>12.3g} {one['bias_from_clipping_at_most']:>13.2g}"
        )
    low, high = answer["returns"]
    lines += [
        _choice(answer),
        f"All {len(policies)} intervals hold together with probability {percent}, approximately "
        "and beside the bias. They include sampling and noise. Where few people have the outcome "
        "that counts, and the noise is small, they hold less often.",
        f"Estimator {answer['estimator']}; returns are from {low:g} to {high:g}. A mean weight far "
        "from 1 says that weights are clipped, or that the probabilities in the log are not true.",
        f"Certificate {answer['certificate']}: {guarantee(answer['epsilon'], answer['delta'])} "
        f"for each person, in {answer['directory']}.",
    ]
    if answer["estimator"] == "marginalised":
        most = max(one["added_for_tables"] for one in policies)
        lines.append(
            "Marginalised values assume that what follows depends on the cell and the action, not "
            "on what was before, and not on the step. Differences between steps are followed "
            "only where they show above the noise, and those in leaving never. If this is wrong, a "
            "value can be farther off than its interval. Half of the people gave tables; for the "
            f"errors of these, each end of an interval is up to {most:.2g} farther."
        )
    if answer["already_public"]:
        lines.append("The log is public already, so this protects nobody: it is an exercise.")
    if any(one["high"] - one["low"] >= high - low for one in policies):
        lines.append(
            "An interval is the whole range: the noise or too few people hide the weights of that "
            "policy. More people, more epsilon or a smaller --largest-weight would narrow it."
        )
    return lines
