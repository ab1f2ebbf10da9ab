"""The account rule by rule: the streams that each group pays for, and every refusal at its edge."""

import math
from typing import Any

import pytest
from kinds_of_statements import PERSON, stream

from sotto.privacy.accounting.composition import compose
from sotto.privacy.accounting.events import Gaussian
from sotto.privacy.accounting.gaussian import epsilon_of_shift
from sotto.privacy.errors import BudgetExceeded, LedgerCorrupt, ParticipationViolation
from sotto.privacy.ledger.costs import SAMPLER_RESERVE, filter_bound
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Account, Budget
from sotto.privacy.mechanisms.noise import SAMPLER_SHARE
from sotto.privacy.statements import (
    Once,
    Part,
    Poisson,
    Returning,
    Selection,
    Sharing,
    StreamStatement,
)

DELTA = 1e-5
Z = 3.0
ONE, TWO = epsilon_of_shift(1 / Z, DELTA), epsilon_of_shift(2**0.5 / Z, DELTA)
"""Epsilon of one stream of this noise multiplier, and of two of them together."""

AGAIN = Returning(max_participations=2, min_separation=1)
EXCLUSIVE = Returning(max_participations=2, min_separation=1, exclusive=True)


def account(
    *statements: StreamStatement, sharing: Sharing = "planned", epsilon: float = math.inf
) -> Account:
    made = Account(PERSON, Budget(epsilon=epsilon, delta=DELTA), sharing=sharing)
    for one in statements:
        made.apply_open(one)
    return made


def charge(made: Account, index: int, *releases: tuple[int, int]) -> None:
    blocks = [(PersonBlock(*release),) for release in releases]
    made.check_charge(index, made.streams[index].releases, blocks)
    made.apply_charge(index, blocks)


def shared(noise_multiplier: float = Z, **changes: Any) -> StreamStatement:
    part = Part(clip_norm=1.0, noise_multiplier=noise_multiplier)
    return stream(**{"participation": AGAIN, "parts": {"policy": part}} | changes)


# --- what an account says ------------------------------------------------------------------------


def test_a_new_account_holds_nobody_and_nothing_unplanned() -> None:
    new = account()
    assert (new.next_person, len(new.everyone), new.unplanned) == (0, 0, False)


def test_whoever_may_be_drawn_has_a_number_before_the_first_charge() -> None:
    drawn = stream(participation=Poisson(sampling_rate=0.1, population=50), horizon=9)
    assert account(drawn).next_person == 50


@pytest.mark.parametrize(
    ("first", "charged", "second", "unplanned"),
    [
        (AGAIN, True, AGAIN, True),
        (AGAIN, False, AGAIN, False),
        (AGAIN, True, Once(), False),
        (Once(), True, AGAIN, False),
    ],
)
def test_what_is_unplanned_is_a_shared_stream_after_a_charge_of_another(
    first: Any, charged: bool, second: Any, unplanned: bool
) -> None:
    made = account(stream(participation=first))
    if charged:
        charge(made, 0, (0, 3))
    made.apply_open(stream(participation=second))
    assert made.unplanned is unplanned
    made.apply_open(stream())  # and it stays so
    assert made.unplanned is unplanned


def test_each_group_pays_and_a_smaller_one_is_not_listed_again() -> None:
    """People of one of two streams pay no more than people of both; other people pay apart."""
    made = account(shared(), shared(), stream(), sharing="assumed")
    charge(made, 0, (0, 10))
    charge(made, 1, (5, 8))
    charge(made, 2, (20, 30))
    spent = made.spent()
    assert sorted(one.streams for one in spent.compositions) == [(0, 1), (2,)]
    assert spent.epsilon == pytest.approx(TWO, rel=1e-6)


def test_people_of_a_once_only_stream_do_not_pay_for_a_plan_of_others() -> None:
    made = account(shared(), shared(), stream())
    charge(made, 2, (0, 5))
    assert made.spent().epsilon == pytest.approx(ONE, rel=1e-6)
    assert [one.streams for one in made.spent().compositions] == [(2,)]


def test_under_a_filter_shared_people_cost_the_budget_and_others_what_they_cost() -> None:
    made = account(shared(), stream(), sharing="adaptive", epsilon=1.3)
    charge(made, 1, (0, 5))
    assert made.spent().epsilon == pytest.approx(ONE, rel=1e-6)  # the shared one is not charged
    charge(made, 0, (5, 9))
    spent = made.spent()
    assert sorted(one.streams for one in spent.compositions) == [(0,), (1,)]
    assert spent.worst.streams == (0,)
    assert spent.epsilon == pytest.approx(1.3, rel=1e-9)


def test_delta_that_the_samplers_have_used_up_proves_nothing() -> None:
    made = account(stream(sampler_delta=1e-7))
    charge(made, 0, (0, 1))
    assert made.spent().epsilon_at(1e-7) == math.inf
    assert made.spent().epsilon_at(1.1e-7) < math.inf


def test_a_filter_and_the_reserve_of_its_samplers_are_within_delta() -> None:
    """The reserve is a billionth of delta: it is taken off, neither added nor forgotten."""
    for epsilon in (0.1, 1.0, 8.0):
        bound = compose([filter_bound(epsilon, DELTA)])
        assert bound.epsilon(DELTA * (1 - SAMPLER_RESERVE)) <= epsilon
        assert bound.epsilon(DELTA * (1 - 1e-8)) > epsilon
    with pytest.raises(ValueError, match="finite"):
        filter_bound(math.inf, DELTA)


# --- what may be opened --------------------------------------------------------------------------


def test_a_sampler_may_take_a_hundredth_of_delta_and_no_more() -> None:
    hundredth = DELTA / SAMPLER_SHARE
    account().check_open(stream(sampler_delta=hundredth), [])
    with pytest.raises(BudgetExceeded, match="noise sampler alone"):
        account().check_open(stream(sampler_delta=math.nextafter(hundredth, 1.0)), [])


def test_what_is_not_proved_needs_no_quiet_sampler() -> None:
    account().check_open(stream(entropy="fixed-seed", sampler_delta=1.0), [])


def test_a_filter_is_filled_to_its_bound_and_not_beyond() -> None:
    bound = filter_bound(1.0, DELTA).noise_multiplier
    reserve = SAMPLER_RESERVE * DELTA
    made = account(sharing="adaptive", epsilon=1.0)
    made.check_open(shared(bound, sampler_delta=reserve), [])
    with pytest.raises(BudgetExceeded, match="over the budget"):
        made.check_open(shared(bound * (1 - 1e-12)), [])
    with pytest.raises(BudgetExceeded, match="set aside"):
        made.check_open(shared(bound, sampler_delta=math.nextafter(reserve, 1.0)), [])


def test_an_adaptive_ledger_takes_exclusive_streams_of_every_kind() -> None:
    """Their people pay for nothing else, so the filter has nothing to do with them."""
    selected = stream(selection=Selection(mean=2, candidates=2))
    assert not isinstance(selected.event, Gaussian)
    made = account(sharing="adaptive", epsilon=9.0)
    made.check_open(selected, [])
    with pytest.raises(BudgetExceeded, match="Gaussian releases only"):
        made.check_open(selected.model_copy(update={"participation": AGAIN}), [])


def test_where_nothing_is_proved_any_more_streams_may_follow_late() -> None:
    """One stream without a proof voids the certificate, whatever comes after it."""
    made = account(shared())
    charge(made, 0, (0, 3))
    with pytest.raises(BudgetExceeded, match="charged before"):
        made.check_order(shared())
    made.check_order(shared(entropy="fixed-seed"))
    made.apply_open(shared(entropy="fixed-seed"))
    made.check_order(shared())


def test_only_an_equal_stream_that_was_never_charged_is_taken_up() -> None:
    made = account(shared(), shared(4.0), stream())
    assert made.unused(shared(4.0), []) == 1
    assert made.unused(shared(5.0), []) is None
    assert made.unused(stream(), []) is None  # its people are its own, and it may be opened again
    charge(made, 1, (0, 3))
    assert made.unused(shared(4.0), []) is None
    assert made.unused(shared(), [1]) == 0
    assert account(shared(), sharing="adaptive", epsilon=9.0).unused(shared(), []) is None


@pytest.mark.parametrize("sharing", ["assumed", "adaptive"])
def test_whoever_goes_on_with_a_stream_may_take_part_in_those_that_are_live(
    sharing: Sharing,
) -> None:
    made = account(shared(), shared(), sharing=sharing, epsilon=(ONE + TWO) / 2)
    made.check_resume(0, [])
    with pytest.raises(BudgetExceeded, match="over the budget"):
        made.check_resume(0, [1])


def test_a_filter_needs_a_budget() -> None:
    with pytest.raises(ValueError, match="give it a finite epsilon"):
        account(sharing="adaptive", epsilon=math.inf)
    for sharing in ("planned", "assumed"):
        assert account(sharing=sharing).spent().epsilon == 0


def test_a_filter_that_was_exceeded_is_found_in_every_group() -> None:
    """The error names the stream that was opened last."""
    made = account(shared(), shared(name="second"), sharing="adaptive", epsilon=1.3)
    charge(made, 0, (0, 5))
    made.check_people()
    charge(made, 1, (4, 9))
    with pytest.raises(LedgerCorrupt, match="'second' with its 4 releases"):
        made.check_people()
    account(shared(), shared(), sharing="planned", epsilon=1.3).check_people()


def test_people_of_one_stream_are_refused_in_another_only_where_one_is_exclusive() -> None:
    everybody = Poisson(sampling_rate=0.1, population=5)
    made = account(shared(), stream(participation=everybody), stream(participation=EXCLUSIVE))
    charge(made, 0, (0, 3))
    charge(made, 1, (0, 5))
    with pytest.raises(ParticipationViolation, match="person 0 took part before"):
        charge(made, 2, (0, 1))
    charge(made, 2, (5, 6), (5, 6))
    with pytest.raises(ParticipationViolation, match="person 5 took part before"):
        charge(made, 0, (5, 6))


def test_who_returns_too_soon_is_refused_before_the_charge_is_written() -> None:
    made = account(shared())
    charge(made, 0, (0, 3), (0, 3))
    with pytest.raises(ParticipationViolation, match="person 1 has taken part 2 times"):
        made.check_charge(0, 2, [(PersonBlock(1, 2),)])
    assert made.streams[0].releases == 2


def test_people_who_come_again_are_counted_once() -> None:
    """Delta must stay below 1 / 15: ten people are few enough, however often they return."""
    made = Account(PERSON, Budget(epsilon=math.inf, delta=1 / 15))
    made.apply_open(shared())
    charge(made, 0, (0, 10))
    charge(made, 0, (4, 14))
    assert len(made.everyone) == 14
    with pytest.raises(BudgetExceeded, match="vacuous for 15 persons"):
        charge(made, 0, (14, 15))


def test_under_poisson_sampling_everybody_of_the_population_pays() -> None:
    made = account(stream(participation=Poisson(sampling_rate=0.1, population=5)))
    assert made.taking_part(0, 2, None) == [(PersonBlock(0, 5),)] * 2


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 0.5), (0.5, 1e-9), (math.inf, 0.999)])
def test_every_budget_that_means_something_is_accepted(epsilon: float, delta: float) -> None:
    budget = Budget(epsilon=epsilon, delta=delta)
    assert Budget.model_validate_json(budget.model_dump_json()) == budget
