"""Tables and the figure of the trials: private values beside the values without privacy.

For each trial and epsilon there are two evaluations through the door, each with its ledger and
certificate: one of the policies that always take one action, on everybody, and one that learns a
linear policy from half of the people and compares all policies on the other half. Their costs add
up for whoever sees both. Simulated releases on resampled people then measure coverage and width of
the intervals, and the value of the policy that is selected (`simulated`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sotto.algorithms.evaluation.analysis import LEARNT, Asked, as_json, evaluate, settings_of
from sotto.algorithms.evaluation.intervals import Value
from sotto.algorithms.evaluation.persons import PersonLog, Public
from sotto.algorithms.evaluation.policies import Linear, Target, named
from sotto.algorithms.evaluation.release import Spending
from sotto.data.imports.records import Records
from sotto.experiments.engine import Say
from sotto.experiments.figure_files import write_data
from sotto.experiments.plots import COLOURS, GREY, headline, panels, title
from sotto.experiments.trials.simulated import LinearLearner, Mechanism, drawn
from sotto.experiments.trials.sources import TRIALS, Trial
from sotto.files import write_whole
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.spending import Budget
from sotto.runs.evaluations import create_evaluation

EPSILONS = (0.3, 1.0, 3.0)
DELTA = 1e-5
_LEVEL = 0.95
_SEED = 2026


def make(out: Path, resamples: int, selections: int, say: Say) -> dict[str, Any]:
    """Evaluates all trials, writes the figure and its data, and returns a summary.

    Evaluations that `out` holds are not made again.

    Args:
        out: folder of the results.
        resamples: number of simulated releases for coverage and width.
        selections: number of simulated learnings and selections.
        say: shows progress.
    """
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for trial in TRIALS:
        say(f"{trial.title}: import")
        records = trial.imported(out / "logs" / trial.name, say)
        found += [_cell(trial, records, out, e, resamples, selections, say) for e in EPSILONS]
    rows = [cell | one for cell in found for one in cell["policies"]]
    plain = [{name: one[name] for name in one if name not in _NESTED} for one in rows]
    summary = {"delta": DELTA, "level": _LEVEL, "resamples": resamples, "cells": found}
    write_data(out / "trials", plain, summary)
    _draw(out / "trials.png", found)
    return summary


_NESTED = ("policies", "learnt", "through_the_door")


def _cell(
    trial: Trial,
    records: Records,
    out: Path,
    epsilon: float,
    resamples: int,
    selections: int,
    say: Say,
) -> dict[str, Any]:
    """Returns everything about one trial at one epsilon."""
    say(f"{trial.title}: epsilon {epsilon:g}")
    spending = Spending(epsilon, DELTA)
    clips = tuple(1 / chance for chance in trial.chances)
    words = [f"always:{number}" for number in range(len(clips))]
    size = sum(one.width for one in trial.declaration.observation)
    targets: dict[str, Target] = {word: named(word, len(clips), size) for word in words}
    place = out / trial.name / f"epsilon-{epsilon:g}"
    everybody = Asked(largest_weights=clips, level=_LEVEL)
    halves = Asked(largest_weights=(*clips, max(clips)), level=_LEVEL, learn=True)
    through = _through_the_door(trial, records, targets, everybody, spending, place)
    learnt = _through_the_door(
        trial, records, targets, halves, spending, place.with_name(f"{place.name}-learnt")
    )
    measured = _measured(records, targets, everybody, spending, resamples)
    policies = [
        {"policy": word, "action": action, **_private(through, word), **measured[word]}
        for word, action in zip(words, trial.actions, strict=True)
    ]
    return {
        "trial": trial.name,
        "title": trial.title,
        "unit": trial.unit,
        "epsilon": epsilon,
        "delta": DELTA,
        "assumes": trial.assumes,
        "source": trial.declaration.source,
        "licence": trial.declaration.licence,
        "already_public": trial.declaration.already_public,
        "certificate": through["certificate"],
        "policies": policies,
        "joint_coverage": measured["together"]["coverage"],
        "learnt": {
            "through_the_door": learnt,
            **_selected(records, targets, halves, spending, selections),
        },
    }


def _private(answer: dict[str, Any], policy: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in answer["policies"] if one["policy"] == policy)
    return {name: found[name] for name in ("value", "low", "high", "noise", "mean_weight")}


def _through_the_door(
    trial: Trial,
    records: Records,
    targets: dict[str, Target],
    asked: Asked,
    spending: Spending,
    place: Path,
) -> dict[str, Any]:
    """Returns the values of one evaluation, which is made if `place` does not hold them."""
    if not (place / "values.json").exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        settings = {"policies": list(targets)} | asdict(asked)
        budget = Budget(epsilon=spending.epsilon, delta=spending.delta)
        run, ledger = create_evaluation(place, trial.name, settings, budget)
        found = evaluate(records, targets, asked, ledger, spending)
        certificate = derive(ledger)
        certificate.write(run.certificate)
        answer = as_json(found, spending, asked.level) | {"certificate": certificate.status}
        write_whole(run.values, json.dumps(answer, indent=2) + "\n")
    stored: dict[str, Any] = json.loads((place / "values.json").read_text())
    return stored


def _measured(
    records: Records,
    targets: dict[str, Target],
    asked: Asked,
    spending: Spending,
    resamples: int,
) -> dict[str, dict[str, Any]]:
    """Returns values without privacy, and coverage and width of intervals on resampled people.

    Intervals of single policies have the asked level each. Those that hold together do not, and
    their coverage is under the name "together".
    """
    evaluation, _, _ = settings_of(records.declaration, asked, len(targets))
    public, people = Public(tuple(targets.values())), PersonLog.of(records)
    mechanism = Mechanism.of(evaluation, public, records.declaration, records.people, spending)
    parts = mechanism.parts(public, people)
    everybody = np.ones(records.people)
    count = len(targets)
    single = 1 - (1 - asked.level) * count
    truth = mechanism.exact(parts, everybody, single)
    covered, plain_covered = np.zeros(count), np.zeros(count)
    widths, plain_widths, together = np.zeros(count), np.zeros(count), 0
    rng = np.random.default_rng(_SEED)
    for _ in range(resamples):
        counts = drawn(rng, records.people)
        state = rng.bit_generator.state
        private = mechanism.private(parts, counts, rng, single)
        rng.bit_generator.state = state  # the same release with the wider, joint intervals
        joint = mechanism.private(parts, counts, rng, asked.level)
        plain = mechanism.exact(parts, counts, single)
        covered += _covers(private, truth)
        plain_covered += _covers(plain, truth)
        together += bool(_covers(joint, truth).all())
        widths += [one.high - one.low for one in private]
        plain_widths += [one.high - one.low for one in plain]
    found: dict[str, dict[str, Any]] = {
        name: {
            "without_privacy": one.value,
            "without_privacy_low": one.low,
            "without_privacy_high": one.high,
            "coverage": covered[place] / resamples,
            "coverage_without_privacy": plain_covered[place] / resamples,
            "width": widths[place] / resamples,
            "width_ratio": widths[place] / plain_widths[place],
        }
        for place, (name, one) in enumerate(zip(targets, truth, strict=True))
    }
    return found | {"together": {"coverage": together / resamples}}


def _covers(found: list[Value], truth: list[Value]) -> np.ndarray:
    return np.array([a.low <= b.value <= a.high for a, b in zip(found, truth, strict=True)])


def _selected(
    records: Records,
    targets: dict[str, Target],
    asked: Asked,
    spending: Spending,
    selections: int,
) -> dict[str, Any]:
    """Returns how good learnt and selected policies are, over random halves of the people.

    Each policy is judged by its value without privacy on everybody. The reference is the best of
    the same policies without privacy, whose linear policy is learnt from everybody.
    """
    declaration, people = records.declaration, PersonLog.of(records)
    learner, rng = LinearLearner.of(declaration, people), np.random.default_rng(_SEED)
    evaluation, _, actions = settings_of(declaration, asked, len(targets) + 1)
    everybody = np.ones(records.people)
    size = sum(one.width for one in declaration.observation)

    def public(linear: Linear) -> Public:
        return Public((*targets.values(), linear))

    mechanism = Mechanism.of(
        evaluation,
        public(Linear.zeros(actions, size)),
        declaration,
        records.people - records.people // 2,
        spending,
    )

    def judged(linear: Linear) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        parts = mechanism.parts(public(linear), people)
        return _numbers(mechanism.exact(parts, everybody, asked.level)), parts

    best, _ = judged(learner.learnt(everybody > 0, None, rng))
    shares, linear_shares, chosen_linear = [], [], 0
    for _ in range(selections):
        order = rng.permutation(records.people)
        first = np.zeros(records.people, bool)
        first[order[: records.people // 2]] = True
        true, parts = judged(learner.learnt(first, spending, rng))
        private = mechanism.private(parts, (~first).astype(np.float64), rng, asked.level)
        pick = int(np.argmax(_numbers(private)))
        chosen_linear += pick == len(true) - 1
        shares.append(true[pick] / best.max())
        linear_shares.append(true[-1] / best.max())
    return {
        "best_without_privacy": float(best.max()),
        "linear_without_privacy": float(best[-1]),
        "selections": selections,
        "share_of_value": float(np.mean(shares)),
        "least_share": float(np.min(shares)),
        "share_of_linear": float(np.mean(linear_shares)),
        "linear_selected": chosen_linear / selections,
        "name": LEARNT,
    }


def _numbers(found: list[Value]) -> np.ndarray:
    return np.array([one.value for one in found])


def _draw(path: Path, cells: Sequence[dict[str, Any]]) -> None:
    """Draws private values with their intervals beside the values without privacy."""
    trials = list(dict.fromkeys(one["trial"] for one in cells))
    with panels(path, (5.2, 4.2), columns=len(trials)) as axes:
        for plot, trial in zip(axes, trials, strict=True):
            own = [one for one in cells if one["trial"] == trial]
            names = [one["action"] for one in own[0]["policies"]]
            for place, name in enumerate(names):
                color = COLOURS[place]
                for column, cell in enumerate(own):
                    one = cell["policies"][place]
                    x = column + 0.16 * (place - (len(names) - 1) / 2)
                    plot.plot(
                        [x, x], [one["low"], one["high"]], color=color, linewidth=2.2, alpha=0.8
                    )
                    plot.plot(
                        x, one["value"], "o", color=color, label=name if column == 0 else None
                    )
                truth = own[0]["policies"][place]
                plot.axhline(truth["without_privacy"], color=color, linewidth=1, linestyle=":")
            plot.set_xticks(range(len(own)), [f"{one['epsilon']:g}" for one in own])
            plot.set_xlabel("epsilon")
            plot.set_ylabel(own[0]["unit"])
            title(plot, own[0]["title"], "dotted: value without privacy")
            plot.legend(
                fontsize=8, labelcolor=GREY, loc="center left", bbox_to_anchor=(0, -0.24), ncols=3
            )
        headline(axes[0], "Private values of policies, with joint intervals of 95% (public data)")
