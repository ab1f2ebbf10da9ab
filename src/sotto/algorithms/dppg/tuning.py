"""Private selection of DPPG's settings, on the same people from whom DPPG learns.

The number of tries is random and secret, and all tries are on the same people. Each try draws one
of the candidate settings at random, trains, and is scored by its released returns. Only the best
try is returned, with all its releases. The other tries, and their number, are discarded.

Guarantee:
    The result is private as `sotto.privacy.accounting.selection` states (docs/privacy.md, section
    17), given the event of one try. That event comes from the statement of a try's stream, which
    must be the same for all candidates except for clip norms and sizes. The ledger is charged for
    the selection, for all people and releases, before the first try. Its budget is the target,
    whichever settings are tried.
"""

import dataclasses
import itertools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.noise import event
from sotto.algorithms.dppg.release import DPPGState
from sotto.algorithms.dppg.training import DPPGTraining, create_ledger
from sotto.errors import RunError
from sotto.privacy.accounting.composition import (
    Gaussian,
    RepeatAndSelect,
    SampledGaussian,
    calibrate_noise_multiplier,
    compose,
)
from sotto.privacy.accounting.selection import draw_tries, selection_sampler_delta
from sotto.privacy.ledger.ledger import NO_TIME, Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.statements import Part, Poisson, Selection, StreamStatement

_GUARANTEE = {"target_epsilon", "noise_multiplier", "delta", "adjacency", "unit"}
_PEOPLE = {"env_id", "seed", "population", "population_size", "users_per_update", "total_steps"}
_SHARED = {*_GUARANTEE, *_PEOPLE, "participations", "min_separation"}
"""Settings of the guarantee and of participation, which must be the same in all tries."""


@dataclass(frozen=True)
class Selected:
    """Result of the best try.

    Attributes:
        config: its settings.
        updates: number of its releases.
        states: its public states, leaves of shape [1, ...].
        log: functions of its releases, [1, updates] each.
        score: mean released return over its last releases (`tail_fraction`). A mean that is not
            finite counts as minus infinity, so that any two scores compare.
    """

    config: DPPGConfig
    updates: int
    states: DPPGState
    log: dict[str, np.ndarray]
    score: float


def candidates(
    config: DPPGConfig, settings: Mapping[str, Sequence[Any]], mean_tries: float
) -> tuple[DPPGConfig, ...]:
    """Returns every combination of the settings, with the noise that all tries together need.

    Args:
        config: the common settings. Their noise or target is that of the whole selection.
        settings: the values of each setting that is tried.
        mean_tries: mean number of tries, which is geometrically distributed.

    Raises:
        ValueError: settings may not be tried or contradict each other, a try is not proved,
            returns are not released, or people are real. Everybody takes part in all tries, so real
            people would learn their number, which must stay secret.
    """
    if unknown := sorted(set(settings) - {field.name for field in dataclasses.fields(config)}):
        raise ValueError(f"DPPG has no setting {unknown[0]!r}")
    if shared := sorted(_SHARED & set(settings)):
        raise ValueError(
            f"{shared[0]} is part of the guarantee or of who takes part, and must be the same in "
            "all tries; give it one value"
        )
    _check(config)
    noise = _noise_multiplier(config, mean_tries)
    common = dataclasses.replace(
        config, target_epsilon=None, noise_multiplier=noise, evaluation_episodes=0
    )
    combinations = itertools.product(*settings.values())
    tried = tuple(
        dataclasses.replace(common, **dict(zip(settings, one, strict=True))) for one in combinations
    )
    for one in tried:
        _check(one)
    return tried


def create_selection_ledger(
    config: DPPGConfig, mean_tries: float, where: Path | str, run_id: str | None = None
) -> Ledger:
    """Creates a ledger whose budget is the target, or the cost of a selection with the given noise.

    Args:
        config: the common settings of the candidates, as for `candidates`.
        mean_tries: mean number of tries, which is geometrically distributed.
        where: as for `Ledger.create`.
        run_id: name of the run.
    """
    epsilon = config.target_epsilon
    if epsilon is None:
        assert config.noise_multiplier is not None
        curve = compose([_selection_event(config, config.noise_multiplier, mean_tries)])
        epsilon = curve.epsilon(config.delta * 0.99)
    budget = Budget(epsilon=epsilon, delta=config.delta)
    # The time of creation and a later time together would tell how many tries there were.
    return Ledger.create(where, run_id, unit=config.privacy_unit, budget=budget, created=NO_TIME)


def select(tried: Sequence[DPPGConfig], mean_tries: float, ledger: Ledger, seed: int) -> Selected:
    """Charges the ledger, makes a secret number of tries, and returns the best.

    Args:
        tried: the candidates, from `candidates`.
        mean_tries: mean number of tries, which is geometrically distributed.
        ledger: a ledger without charges, from `create_selection_ledger`.
        seed: seed of networks and simulated people, who are the same in every try.

    Raises:
        ValueError: candidates have different statements, or the ledger is not new.
        PrivacyError: the budget does not cover the selection.
        RunError: every try failed. One that fails beside others is discarded like them.
    """
    if ledger.streams:
        raise ValueError("a selection needs a ledger of its own; this one has streams already")
    statement = _statement(tried, mean_tries, seed)
    stream = ledger.open_stream(statement)
    stream.charge(0, statement.horizon, _everybody(tried[0]))
    event = statement.event
    assert isinstance(event, RepeatAndSelect)
    # The number of tries and the draws are secret: neither is returned, logged or stored.
    generator = GeneratorSource().next()
    drawn = generator.integers(len(tried), size=draw_tries(event, generator))
    best: Selected | None = None
    for index in drawn:
        try:
            one = _try(tried[int(index)], seed)
        except Exception:  # that one of all tries failed would tell of more than the best
            continue
        if best is None or one.score > best.score:
            best = one
    if best is None:  # a failure is the worst result, and so it is the best of these tries
        raise RunError(
            "every try of the selection failed, and no try may say why; train once with these "
            "settings on simulated people: sotto train dppg"
        )
    return best


def _try(config: DPPGConfig, seed: int) -> Selected:
    """Trains once, with a temporary ledger that enforces the rules of a stream."""
    with tempfile.TemporaryDirectory() as folder:
        training = DPPGTraining(config, [seed], [create_ledger(config, Path(folder) / "ledger")])
        logs = [progress.released for progress in training]
        log = {name: np.concatenate([one[name] for one in logs], axis=1) for name in logs[0]}
        score = _score(log["private_return"][0], config.tail_fraction)
        return Selected(config, training.done, training.states, log, score)


def _score(released: Float[np.ndarray, " updates"], tail_fraction: float) -> float:
    """Returns the mean of the last releases. The guarantee needs scores with a total order."""
    tail = max(1, round(tail_fraction * released.size))
    score = float(np.mean(released[-tail:], dtype=np.float64))
    return score if math.isfinite(score) else -math.inf


def _check(config: DPPGConfig) -> None:
    """Refuses a try without a score or without a proof."""
    if config.private_return is None:
        raise ValueError("tries are scored by released returns; give private_return their range")
    if config.population == "real":
        raise ValueError(
            "real people would take part in every try and learn the number of tries, which must "
            "stay secret; choose settings on simulated people"
        )
    if not config.is_proved:
        raise ValueError("a selection needs tries that are proved; leave out the paper's settings")


def _noise_multiplier(config: DPPGConfig, mean_tries: float) -> float:
    if config.noise_multiplier is not None:
        return config.noise_multiplier
    assert config.target_epsilon is not None
    return calibrate_noise_multiplier(
        lambda z: [_selection_event(config, z, mean_tries)],
        config.target_epsilon,
        config.delta * 0.98,
    )


def _selection_event(config: DPPGConfig, noise: float, mean_tries: float) -> RepeatAndSelect:
    one = event(config, noise)
    assert isinstance(one, Gaussian | SampledGaussian)
    return RepeatAndSelect(run=one, tries="geometric", mean=mean_tries, accounting=2)


def _statement(tried: Sequence[DPPGConfig], mean_tries: float, seed: int) -> StreamStatement:
    """Returns the statement of a selection, from the statement that all candidates share."""
    with tempfile.TemporaryDirectory() as folder:
        stated = [
            DPPGTraining(one, [seed], [create_ledger(one, Path(folder) / f"{number}")]).statement
            for number, one in enumerate(tried)
        ]
    common = [_without_sizes(one) for one in stated]
    if different := next((one for one in common if one != common[0]), None):
        names = [
            name
            for name in StreamStatement.model_fields
            if getattr(different, name) != getattr(common[0], name)
        ]
        raise ValueError(
            f"candidates differ in what the cost depends on ({', '.join(names)}); try only "
            "settings that change what is learnt"
        )
    selection: StreamStatement = stated[0].model_copy(
        update={
            "name": "DPPG policy update, the best of several tries",
            "noise_rounding": max(one.noise_rounding for one in stated),
            "selection": Selection(mean=mean_tries, candidates=len(tried), accounting=2),
            "sampler_delta": selection_sampler_delta(
                mean_tries, max(one.sampler_delta for one in stated)
            ),
        }
    )
    return selection


def _without_sizes(statement: StreamStatement) -> StreamStatement:
    """Returns a statement without the fields that may differ between candidates.

    They are clip norms, sizes, the sampler's delta, and the factor by which the noise is larger for
    rounding. Noise multipliers are as stated for any such factor.
    """
    parts = {
        name: Part(clip_norm=1.0, noise_multiplier=part.noise_multiplier)
        for name, part in statement.parts.items()
    }
    sizes = dict.fromkeys(parts, 1)
    follows = {"sampler_delta": 0.0, "noise_rounding": 0.0}
    return statement.model_copy(update={"parts": parts, "dimensions": sizes} | follows)


def _everybody(config: DPPGConfig) -> list[PersonBlock] | None:
    """Returns the people in each release, who are the same in every try. None: they are drawn."""
    if isinstance(config.participation, Poisson):
        return None
    size = config.users_per_update
    groups = config.groups(np.arange(config.num_updates)).tolist()
    return [PersonBlock(group * size, (group + 1) * size) for group in groups]
