"""What a statement accepts, and what a stream that follows from it costs."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from kinds_of_statements import PERSON, PREFIXES, stream
from pydantic import BaseModel, ValidationError

from sotto.privacy.accounting.events import (
    ApproximateDP,
    Gaussian,
    NoGuarantee,
    RepeatAndSelect,
    SampledGaussian,
)
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.noisy_max import NoisyMax
from sotto.privacy.statements import (
    Assumption,
    Correlation,
    Gap,
    Once,
    Part,
    Participation,
    Poisson,
    Returning,
    Selection,
    StreamStatement,
)
from sotto.privacy.units import TRANSITION, Unit

PART = Part(clip_norm=1.0, noise_multiplier=3.0)
BINARY_TREE = Correlation(kind="binary-tree")
PREFIX_SUM = Correlation(kind="prefix-sum")
POISSON = Poisson(sampling_rate=0.1, population=100)
RETURNING = Returning(max_participations=3, min_separation=2)

ACCEPTED: list[Callable[[], object]] = [
    lambda: Returning(max_participations=1, min_separation=1),
    lambda: Poisson(sampling_rate=0.5, population=1),
    lambda: Poisson(sampling_rate=math.nextafter(1.0, 0.0), population=2),
    lambda: Correlation(kind="binary-tree", workload_decay=1.0),
    lambda: Correlation(kind="prefix-sum", workload_decay=0.5),
    lambda: Correlation(workload_decay=0.5),
    lambda: Selection(mean=1, candidates=1),
    lambda: Budget(epsilon=math.inf, delta=1e-5),
    lambda: stream(horizon=1),
    lambda: stream(sampler_delta=0.0),
    lambda: stream(participation=RETURNING, correlation=PREFIX_SUM),
    lambda: stream(correlation=BINARY_TREE),
    lambda: stream(sum_rounding=0.0, noise_rounding=0.0),
    lambda: stream(parts={"a": PART, "b": PART}, clipping="joint"),
    lambda: stream(parts={"a": PART, "b": Part(clip_norm=1, noise_multiplier=4)}),
]

REFUSED: list[Callable[[], object]] = [
    lambda: Returning(max_participations=0, min_separation=1),
    lambda: Returning(max_participations=1, min_separation=0),
    lambda: Poisson(sampling_rate=0.0, population=1),
    lambda: Poisson(sampling_rate=1.0, population=1),
    lambda: Poisson(sampling_rate=0.5, population=0),
    lambda: Correlation(kind="binary-tree", workload_decay=0.5),
    lambda: Correlation(kind="prefix-sum", workload_decay=0.0),
    lambda: Correlation(kind="prefix-sum", workload_decay=1.5),
    lambda: Selection(mean=0.5, candidates=1),
    lambda: Selection(mean=math.inf, candidates=1),
    lambda: Selection(mean=2, candidates=0),
    *(lambda value=value: Part(clip_norm=value, noise_multiplier=1) for value in (0, -1, math.inf)),
    *(lambda value=value: Part(clip_norm=1, noise_multiplier=value) for value in (0, -1, math.inf)),
    *(lambda value=value: stream(divisor=value) for value in (0.0, -1.0, math.inf, math.nan)),
    lambda: stream(horizon=0),
    lambda: stream(sampler_delta=-1e-30),
    lambda: stream(sum_rounding=-1e-3),
    lambda: stream(sum_rounding=1.0),
    lambda: stream(noise_rounding=-1e-3),
    lambda: stream(noise_rounding=1.0),
    lambda: stream(parts={}),
    lambda: stream(dimensions={"another": 10}),
    lambda: stream(parts={"a": PART, "b": Part(clip_norm=1, noise_multiplier=4)}, clipping="joint"),
    lambda: stream(participation=POISSON, correlation=PREFIX_SUM),
    lambda: stream(participation=RETURNING, correlation=BINARY_TREE),
    lambda: stream(participation=POISSON, unit=Unit(kind="trajectory", adjacency="replace-one")),
]


@pytest.mark.parametrize("make", ACCEPTED)
def test_what_the_proofs_cover_is_accepted(make: Callable[[], object]) -> None:
    """Each value on the permitted side of a bound makes a statement."""
    make()


@pytest.mark.parametrize("make", REFUSED)
def test_what_no_proof_covers_is_refused(make: Callable[[], object]) -> None:
    """Each value on the other side of a bound is refused."""
    with pytest.raises(ValidationError):
        make()


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (Once(), "kind"),
        (RETURNING, "max_participations"),
        (POISSON, "sampling_rate"),
        (PART, "noise_multiplier"),
        (Correlation(), "workload_decay"),
        (Gap(name="a", why="b"), "name"),
        (Assumption(statement="a", enforced_by="code", how="b"), "statement"),
        (Selection(mean=2, candidates=2), "mean"),
        (Budget(epsilon=1, delta=1e-5), "epsilon"),
        (stream(), "horizon"),
    ],
)
def test_a_statement_cannot_be_changed_or_extended(model: BaseModel, field: str) -> None:
    """What was fixed before the first release stays fixed, and has no field nobody knows."""
    with pytest.raises(ValidationError):
        setattr(model, field, getattr(model, field))
    with pytest.raises(ValidationError):
        type(model).model_validate(model.model_dump() | {"unknown": 1})


@pytest.mark.parametrize(
    ("participation", "exclusive"),
    [
        (Once(), True),
        (RETURNING, False),
        (Returning(max_participations=3, min_separation=2, exclusive=True), True),
        (POISSON, False),
    ],
)
def test_who_takes_part_in_no_other_stream(participation: Participation, exclusive: bool) -> None:
    """Taking part once is exclusive, and so are returning people where the stream says it."""
    assert stream(participation=participation).is_shared is not exclusive


@pytest.mark.parametrize(
    ("changes", "releases_values"),
    [
        ({"unit": Unit(kind="reward-function", adjacency="within-radius")}, True),
        ({"unit": TRANSITION, "participation": RETURNING, "parts": {"values": PART}}, True),
        ({"unit": TRANSITION, "participation": RETURNING, "parts": {"policy": PART}}, False),
        ({"unit": TRANSITION, "participation": Once(), "parts": {"values": PART}}, False),
        ({"unit": PERSON, "participation": RETURNING, "parts": {"values": PART}}, False),
    ],
)
def test_which_streams_release_values(changes: dict[str, Any], releases_values: bool) -> None:
    """Functions, and transitions' values about everybody, as the two doors for them state them."""
    assert stream(**changes).releases_values is releases_values


def test_stable_prefixes_are_neither_parts_nor_among_settings() -> None:
    """Their statement holds a mechanism, and no selection has an accounting for it."""
    fields = PREFIXES.model_dump()
    assert StreamStatement.model_validate(fields) == PREFIXES
    assert PREFIXES.event == PREFIXES.prefixes.event(PREFIXES.horizon)
    selection = Selection(mean=2, candidates=2).model_dump()
    with pytest.raises(ValidationError, match="among streams of parts"):
        StreamStatement.model_validate(fields | {"selection": selection})
    parts = {"parts": {"policy": PART.model_dump()}, "dimensions": {"policy": 1}}
    with pytest.raises(ValidationError, match="at least one, or stable prefixes"):
        StreamStatement.model_validate(fields | parts)


def test_choices_are_neither_parts_nor_among_settings() -> None:
    chosen = {"parts": {}, "choice": NoisyMax(candidates=3, sensitivity=0.1, rate=0.5)}
    event = stream(**chosen, horizon=2).event
    assert isinstance(event, ApproximateDP)
    assert (event.count, event.delta) == (2, 0)
    for changes, says in (
        ({"selection": Selection(mean=2, candidates=2)}, "among streams of parts"),
        ({"parts": {"policy": PART}}, "prefixes or choices"),
        ({"prefixes": PREFIXES.prefixes}, "prefixes or choices"),
    ):
        with pytest.raises(ValidationError, match=says):
            stream(**chosen | changes)


def test_parts_clipped_apart_add_up() -> None:
    """1 / z^2 is the sum of the parts' 1 / z_p^2; joint parts carry the one multiplier."""
    three, four = PART, Part(clip_norm=2.0, noise_multiplier=4.0)
    assert stream(parts={"a": three, "b": four}).noise_multiplier == pytest.approx(2.4)
    assert stream(parts={"a": three, "b": three}, clipping="joint").noise_multiplier == 3.0
    assert stream(parts={"a": three}, clipping="joint").noise_multiplier == 3.0
    replace_one = Unit(kind="trajectory", adjacency="replace-one")
    assert stream(unit=replace_one).noise_multiplier == 1.5


def test_the_cost_of_a_stream() -> None:
    """Each kind of stream costs the event that its proof names, over its whole horizon."""
    assert stream().event == Gaussian(noise_multiplier=3.0)
    assert stream(participation=POISSON).event == SampledGaussian(
        noise_multiplier=3.0, sampling_rate=0.1, count=4
    )
    selection = Selection(tries="poisson", mean=5, candidates=2, accounting=2)
    assert stream(selection=selection).event == RepeatAndSelect(
        run=Gaussian(noise_multiplier=3.0), tries="poisson", mean=5, accounting=2
    )
    assert stream(gaps=(Gap(name="critic", why=""),)).event == NoGuarantee(reason="critic")
    assert isinstance(stream(entropy="fixed-seed").event, NoGuarantee)
    values = {"unit": TRANSITION, "participation": RETURNING, "parts": {"values": PART}}
    assert isinstance(stream(**values).event, NoGuarantee)
    assert stream(**values, noise_law="on-grid").event == Gaussian(noise_multiplier=1.5)


def test_what_earlier_versions_did_not_state_is_written_only_where_it_says_something() -> None:
    """The statements in their ledgers, and so their hashes, stay as they were written."""
    silent = json.loads(stream(selection=Selection(mean=2, candidates=2)).model_dump_json())
    assert "accounting" not in silent["selection"]
    later = {"sum_rounding", "noise_rounding", "noise_law", "prefixes"}
    assert later.isdisjoint(silent)
    assert "selection" not in stream().model_dump()
    assert "exclusive" not in stream(participation=RETURNING).model_dump()["participation"]
    told = stream(
        participation=RETURNING.model_copy(update={"exclusive": True}),
        selection=Selection(mean=2, candidates=2, accounting=2),
        sum_rounding=0.01,
        noise_rounding=0.02,
        noise_law="on-grid",
    )
    written = json.loads(told.model_dump_json())
    assert written["selection"]["accounting"] == 2
    assert written["participation"]["exclusive"] is True
    assert [written[name] for name in sorted(later - {"prefixes"})] == ["on-grid", 0.02, 0.01]
    assert type(told).model_validate_json(told.model_dump_json()) == told
