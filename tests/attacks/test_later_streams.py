"""Streams about the same people, each opened by looking at the releases of those before.

Every stream is Gaussian with multiplier 3. After each of them the attacker knows L, the log
likelihood ratio of two neighbours, and decides whether to open another one. The certificate then
states some epsilon. The attacker knows 1 - exp(epsilon - L) beyond it, where that is positive. The
best rule is found by dynamic programming. Its value is the delta that is attained at the
certificate's own epsilon, and a true certificate attains at most its own delta.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sotto.privacy.accounting.gaussian import delta_of_shift, epsilon_of_shift
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.joint import together
from sotto.privacy.errors import BudgetExceeded, LedgerCorrupt, LedgerMismatch
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.costs import SAMPLER_RESERVE, filter_bound
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Account, Budget
from sotto.privacy.statements import (
    Once,
    Part,
    Participation,
    Poisson,
    Returning,
    Sharing,
    StreamStatement,
)
from sotto.privacy.units import Unit

UNIT = Unit(kind="trajectory", adjacency="zero-out")
Z, STREAMS, DELTA = 3.0, 60, 1e-3
EVERYBODY = [PersonBlock(0, 5)]
AGAIN = Returning(max_participations=1, min_separation=1)
WHOLE = epsilon_of_shift(STREAMS**0.5 / Z, DELTA * (1 - SAMPLER_RESERVE)) * (1 + 1e-9)
"""Epsilon of all streams together."""


def statement(
    name: str = "update", participation: Participation = AGAIN, noise_multiplier: float = Z
) -> StreamStatement:
    return StreamStatement(
        name=name,
        unit=UNIT,
        participation=participation,
        parts={"policy": Part(clip_norm=1.0, noise_multiplier=noise_multiplier)},
        dimensions={"policy": 1},
        divisor=1.0,
        horizon=1,
        population="simulated",
        sampler_delta=1e-30,
        noise_law="on-grid",
    )


def account(sharing: Sharing) -> Account:
    return Account(UNIT, Budget(epsilon=WHOLE, delta=DELTA), sharing=sharing)


def charge(one: Account, index: int) -> float:
    """Charges a stream, and returns the epsilon that is certified afterwards."""
    one.check_charge(index, 0, [tuple(EVERYBODY)])
    one.apply_charge(index, [tuple(EVERYBODY)])
    return one.spent().epsilon


def one_after_another(one: Account) -> Iterator[float]:
    """Opens and charges stream after stream, and yields the epsilon after each."""
    for index in range(STREAMS):
        one.check_open(statement(), [])
        one.apply_open(statement())
        yield charge(one, index)


def attained(shown: list[float]) -> float:
    """Delta of the best stopping rule against a certificate that shows these epsilons."""
    mu = 1 / Z
    grid = np.linspace(-6.0, 16.0, 2201)
    # In the world that is to be recognised a stream adds N(mu^2 / 2, mu^2) to L.
    moves = grid[None, :] - grid[:, None] - mu**2 / 2
    kernel = stats.norm.pdf(moves / mu)
    kernel /= kernel.sum(axis=1, keepdims=True)
    value = np.zeros_like(grid)
    for epsilon in reversed(shown):
        value = kernel @ np.maximum(np.maximum(0.0, 1 - np.exp(epsilon - grid)), value)
    return float(np.interp(0.0, grid, value))


# --- what is attained ----------------------------------------------------------------------------


def test_the_cost_of_what_was_opened_is_no_guarantee() -> None:
    """The rule of earlier versions, whose certificates carry an assumption instead."""
    shown = list(one_after_another(account("assumed")))
    assert shown == sorted(shown)
    assert 0.0066 < attained(shown) < 0.0070  # almost seven times what is stated


def test_nor_is_a_headline_that_becomes_the_budget_with_the_second_stream() -> None:
    """Stopping after one stream beats the first headline, and all others beat the second."""
    first = epsilon_of_shift(1 / Z, DELTA)
    assert attained([first] + [WHOLE] * (STREAMS - 1)) > 1.9 * DELTA


def test_a_plan_costs_what_all_of_it_costs_from_the_first_charge_on() -> None:
    """All streams are open; which of them are charged is decided by looking."""
    one = account("planned")
    for _ in range(STREAMS):
        one.check_open(statement(), range(len(one.streams)))
        one.apply_open(statement())
    shown = [charge(one, index) for index in range(STREAMS)]
    assert shown == pytest.approx([WHOLE] * STREAMS)
    assert attained(shown) == pytest.approx(DELTA, rel=0.02)  # tight: all streams attain it


def test_an_adaptive_ledger_states_its_budget_from_the_first_charge_on() -> None:
    one = account("adaptive")
    shown = list(one_after_another(one))
    assert shown == pytest.approx([WHOLE] * STREAMS, rel=1e-9)
    assert attained(shown) == pytest.approx(DELTA, rel=0.02)
    with pytest.raises(BudgetExceeded, match="over the budget"):
        one.check_open(statement(), [])


def test_the_bound_of_the_filter_is_the_budget() -> None:
    for epsilon, delta in itertools.product((0.01, 1.0, 12.0), (1e-3, 1e-9)):
        mu = 1 / filter_bound(epsilon, delta).noise_multiplier
        assert delta_of_shift(mu, epsilon) <= delta * (1 - SAMPLER_RESERVE)
        assert delta_of_shift(mu * (1 + 1e-8), epsilon) > delta * (1 - SAMPLER_RESERVE)


@pytest.mark.parametrize("chosen", [0.5, 1.0, 2.0])
def test_noise_chosen_by_what_was_released_is_within_the_budget(chosen: float) -> None:
    """The second stream has as much noise as is left where L is large, and twice that elsewhere."""
    bound = 1 / filter_bound(1.0, DELTA).noise_multiplier
    first = bound * 0.6
    left = (bound**2 - first**2) ** 0.5
    rng = np.random.default_rng(3)
    ratio = first**2 / 2 + first * rng.standard_normal(2_000_000)
    second = np.where(ratio > chosen, left, left / 2)
    ratio += second**2 / 2 + second * rng.standard_normal(ratio.size)
    known = np.maximum(0.0, 1 - np.exp(1.0 - ratio))
    assert known.mean() < DELTA + 4 * known.std() / ratio.size**0.5


# --- what the ledger refuses ---------------------------------------------------------------------


def ledger(tmp_path: Path, *, adaptive: bool = False, epsilon: float = WHOLE) -> Ledger:
    budget = Budget(epsilon=epsilon, delta=DELTA)
    return Ledger.create(tmp_path / "ledger", "run", unit=UNIT, budget=budget, adaptive=adaptive)


@pytest.mark.parametrize("late", [AGAIN, Poisson(sampling_rate=0.1, population=5)])
def test_a_stream_about_the_same_people_is_refused_after_a_charge(
    tmp_path: Path, late: Participation
) -> None:
    one = ledger(tmp_path)
    one.open_stream(statement("first")).charge(0, 1, EVERYBODY)
    head = one.head_hash
    for opened in (one, Ledger.open(tmp_path / "ledger")):
        with pytest.raises(BudgetExceeded, match="'first' was charged before 'late' is opened"):
            opened.open_stream(statement("late", late))
    assert one.head_hash == head
    one.open_stream(statement("others", Once())).charge(0, 1, [PersonBlock(5, 9)])
    certificate = derive(Ledger.open(tmp_path / "ledger"))
    assert certificate.epsilon == pytest.approx(epsilon_of_shift(1 / Z, DELTA))
    said = {one.claim for one in certificate.claims}
    assert {"ledger.planned", "stream.settings"} <= said
    assert not any(
        "decided before the first release" in a.statement for a in certificate.assumptions
    )


def test_an_entry_that_opens_a_stream_too_late_is_found(tmp_path: Path) -> None:
    one = ledger(tmp_path)
    one.open_stream(statement("first")).charge(0, 1, EVERYBODY)
    contents = {"statement": entries.json_values(statement("late")), "versions": {}, "settings": {}}
    one._write("open", contents)
    with pytest.raises(LedgerCorrupt, match="charged before 'late' is opened"):
        Ledger.open(tmp_path / "ledger")


def test_a_plan_that_was_interrupted_before_its_first_charge_is_taken_up(tmp_path: Path) -> None:
    one = ledger(tmp_path, epsilon=epsilon_of_shift(2**0.5 / Z, DELTA) * 1.001)
    for name in ("first", "second"):
        one.open_stream(statement(name))
    again = Ledger.open(tmp_path / "ledger")
    second = again.open_stream(statement("second"))
    again.open_stream(statement("first")).charge(0, 1, EVERYBODY)
    second.charge(0, 1, EVERYBODY)
    assert len(again.streams) == 2
    assert again.spent().epsilon == pytest.approx(epsilon_of_shift(2**0.5 / Z, DELTA))
    with pytest.raises(BudgetExceeded, match="'first' was charged before"):
        Ledger.open(tmp_path / "ledger").open_stream(statement("second"))


def test_people_of_one_stream_of_a_plan_pay_for_all_of_them(tmp_path: Path) -> None:
    """The result of the first may decide who takes part in the second."""
    one = ledger(tmp_path)
    first, second = one.open_stream(statement("first")), one.open_stream(statement("second"))
    first.charge(0, 1, EVERYBODY)
    both = epsilon_of_shift(2**0.5 / Z, DELTA)
    assert one.spent().epsilon == pytest.approx(both)
    second.charge(0, 1, [PersonBlock(5, 9)])
    assert one.spent().epsilon == pytest.approx(both)


def test_an_adaptive_ledger_takes_gaussian_streams_within_its_budget(tmp_path: Path) -> None:
    budget = epsilon_of_shift(2**0.5 / Z, DELTA) * 1.001
    one = ledger(tmp_path, adaptive=True, epsilon=budget)
    one.open_stream(statement("first")).charge(0, 1, EVERYBODY)
    with pytest.raises(BudgetExceeded, match="Gaussian releases only"):
        one.open_stream(statement("drawn", Poisson(sampling_rate=0.1, population=5)))
    one.open_stream(statement("others", Once(), 2.9)).charge(0, 1, [PersonBlock(5, 9)])
    one = Ledger.open(tmp_path / "ledger")
    certificate = derive(one)
    assert certificate.epsilon == pytest.approx(budget, rel=1e-9)
    assert certificate.epsilon <= budget
    assert "privacy filter" in certificate.method
    assert "ledger.filtered" in {one.claim for one in certificate.claims}
    one.open_stream(statement("second")).charge(0, 1, EVERYBODY)
    with pytest.raises(BudgetExceeded, match="over the budget"):
        one.open_stream(statement("third", AGAIN, 10.0))
    assert derive(one).epsilon == certificate.epsilon


def test_samplers_of_later_streams_cost_no_more_than_is_set_aside(tmp_path: Path) -> None:
    one = ledger(tmp_path, adaptive=True)
    costly = statement().model_copy(update={"sampler_delta": 0.6 * SAMPLER_RESERVE * DELTA})
    one.open_stream(costly).charge(0, 1, EVERYBODY)
    with pytest.raises(BudgetExceeded, match="set aside"):
        one.open_stream(costly)


def test_an_adaptive_ledger_has_a_budget_and_no_joint_cost(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="finite epsilon"):
        ledger(tmp_path, adaptive=True, epsilon=float("inf"))
    with pytest.raises(LedgerMismatch, match="certifies its own budget"):
        together([ledger(tmp_path, adaptive=True)])
