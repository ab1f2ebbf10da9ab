"""A budget that several products share: nobody pays more in all of them together."""

import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import sqlalchemy as sa
from products import BUDGET, OFTEN, UNIT, charge, product, statement

from sotto.privacy.accounting.composition import SampledGaussian, compose
from sotto.privacy.errors import BudgetExceeded, LedgerMismatch, ParticipationViolation
from sotto.privacy.ledger.allowances import WHOLE, Allowance
from sotto.privacy.ledger.joining import Numbers
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import LARGEST_PERSON, PersonBlock
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.standing import person_standing, standing
from sotto.privacy.statements import Gap, Poisson, Selection
from sotto.privacy.units import Adjacency

ALLOWANCE = Allowance(epsilon=2.0, delta=1e-5)
OTHERS = Allowance(epsilon=3.0, delta=1e-5, other_epsilon=1.0, other_delta=4e-6)


@pytest.fixture
def budget(tmp_path: Path) -> SharedBudget:
    return SharedBudget.create(tmp_path / "people.budget", ALLOWANCE)


def delta_of(mu: float, epsilon: float) -> float:
    """The hockey-stick divergence of N(mu, 1) and N(0, 1), to fifty digits."""
    with mpmath.workdps(50):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        x, y = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(mpmath.ncdf(x) - mpmath.exp(epsilon) * mpmath.ncdf(y))


# --- numbers -------------------------------------------------------------------------------------


def test_streams_of_several_products_add_up_for_each_person(budget, tmp_path):
    streams = [
        product(budget, tmp_path / f"product-{n}").open_stream(statement(z))
        for n, z in enumerate((5.0, 6.0, 7.0))
    ]
    charge(streams[0], 3, 1)
    charge(streams[1], 1, 9)
    charge(streams[2], 1)
    expected = {3: [5.0], 9: [6.0], 1: [5.0, 6.0, 7.0], 4: []}
    for person, noises in expected.items():
        spent = person_standing(budget, person).epsilon
        mu = math.sqrt(sum(z**-2 for z in noises))
        if noises:
            assert delta_of(mu, spent) == pytest.approx(1e-5, rel=1e-6)
        else:
            assert spent == 0


@pytest.mark.parametrize("allowance", [ALLOWANCE, OTHERS])
def test_the_largest_shift_costs_what_is_left_for_gaussian_streams(allowance):
    mu = math.sqrt(allowance.squared_shift)
    epsilon = allowance.epsilon - allowance.other_epsilon
    delta = allowance.delta - allowance.other_delta
    assert delta_of(mu, epsilon) <= delta
    assert delta_of(1.0001 * mu, epsilon) > delta


@pytest.mark.parametrize("wrong", [0.5, 0.9, 0.99])
def test_a_wrong_noise_scale_is_noticed(budget, tmp_path, wrong):
    """Releases with less noise than stated break the budget for the person who spent all of it."""
    z = math.sqrt(2 / budget.allowance.squared_shift) * (1 + 1e-12)
    for n in range(2):
        charge(product(budget, tmp_path / f"product-{n}").open_stream(statement(z)), 1)
    assert person_standing(budget, 1).epsilon == pytest.approx(2.0, rel=1e-6)
    assert delta_of(math.sqrt(2) / z, 2.0) <= 1e-5
    assert delta_of(math.sqrt(2) / (wrong * z), 2.0) > 1e-5


def test_the_parts_hold_for_the_worst_mechanisms_together():
    """Randomised response that may fail, beside a Gaussian release, both as large as allowed.

    Forgetting the delta of other streams would claim less than is true.
    """
    mu, e = math.sqrt(OTHERS.squared_shift), OTHERS.other_epsilon
    honest = math.exp(e) / (1 + math.exp(e))
    truth = OTHERS.other_delta + (1 - OTHERS.other_delta) * (
        honest * delta_of(mu, OTHERS.epsilon - e) + (1 - honest) * delta_of(mu, OTHERS.epsilon + e)
    )
    assert OTHERS.delta - OTHERS.other_delta < truth <= OTHERS.delta


def test_streams_that_are_not_gaussian_take_from_their_own_part(tmp_path):
    allowance = Allowance(epsilon=3.0, delta=1e-5, other_epsilon=1.0, other_delta=2.5e-6)
    budget = SharedBudget.create(tmp_path / "budget", allowance)
    rule = Poisson(sampling_rate=0.01, population=5)
    drawn = statement(2.0, participation=rule, horizon=60)
    for n in range(2):
        stream = product(budget, tmp_path / f"drawn-{n}").open_stream(drawn)
        stream.charge(0, 1)
    third = product(budget, tmp_path / "drawn-2").open_stream(drawn)
    with pytest.raises(BudgetExceeded, match="would bring 5 people over the shared budget"):
        third.charge(0, 1)
    charge(product(budget, tmp_path / "other").open_stream(statement(4.0)), 2)
    event = SampledGaussian(noise_multiplier=2.0, sampling_rate=0.01, count=60)
    each = compose([event]).epsilon(BUDGET.delta - 1e-30)
    left = 1e-5 - 2 * BUDGET.delta
    spent = person_standing(budget, 2)
    assert delta_of(1 / 4, spent.epsilon - 2 * each) == pytest.approx(left, rel=1e-6)
    assert person_standing(budget, 4).epsilon == pytest.approx(2 * each, rel=1e-9)
    assert spent.share == pytest.approx(max(2 * each, 2 * BUDGET.delta / 2.5e-6), rel=1e-9)
    for person in (4, 9):  # one whose other part is spent, and one who took part in nothing
        assert person_standing(budget, person).room == pytest.approx(2.0, rel=1e-6)


def test_a_sampler_leaves_less_delta_for_the_epsilon_of_its_stream():
    rule = Poisson(sampling_rate=0.01, population=5)
    event = SampledGaussian(noise_multiplier=2.0, sampling_rate=0.01, count=60)
    drawn = statement(2.0, participation=rule, horizon=60, sampler_delta=5e-7)
    *gaussian, epsilon, delta = OTHERS.cost(drawn, 1e-6)
    assert gaussian == [0, 0]
    assert epsilon / WHOLE == pytest.approx(compose([event]).epsilon(5e-7) / OTHERS.other_epsilon)
    assert delta / WHOLE == pytest.approx(1e-6 / OTHERS.other_delta)


def test_samplers_take_their_part_of_delta():
    whole = np.array([[WHOLE // 2, 0, 0, 0], [WHOLE // 2, WHOLE, 0, 0]])
    without, spent = OTHERS.epsilon_of(whole)
    mu = math.sqrt(OTHERS.squared_shift / 2)
    assert delta_of(mu, without) == pytest.approx(OTHERS.delta, rel=1e-10)
    assert spent > without  # the samplers' part is a billionth, too little to be seen in delta


# --- the edge of the budget ----------------------------------------------------------------------


def test_a_person_at_the_edge_is_refused_and_others_go_on(budget, tmp_path):
    z = math.sqrt(2.5 / budget.allowance.squared_shift)  # twice fits, and three times does not
    first, second, third = (
        product(budget, tmp_path / f"product-{n}").open_stream(statement(z)) for n in range(3)
    )
    charge(first, *range(10))
    charge(second, *range(5))
    head = budget.head_hash
    with pytest.raises(BudgetExceeded, match=r"5 people over .* \(0, 1, 2, 3, 4\), so nobody"):
        charge(third, *range(10))
    assert SharedBudget.open(tmp_path / "people.budget").head_hash == head
    assert third.releases == 0
    assert third.hold(list(range(3, 8))) == [3, 4]
    charge(third, 5, 6, 7)
    assert [person_standing(budget, one).streams for one in (4, 5, 8)] == [(0, 1), (0, 2), (0,)]
    assert [one.refused for one in standing(budget).streams] == [0, 3, 5]


def kinds(place: Path) -> list[str]:
    """The kinds of all entries of a database."""
    with sa.create_engine(f"sqlite:///{place}").connect() as connection:
        return list(connection.scalars(sa.text("SELECT kind FROM entries")))


def test_a_stream_costs_its_people_once(budget, tmp_path):
    often = statement(3.0, participation=OFTEN)
    stream = product(budget, tmp_path / "product").open_stream(often)
    charge(stream, 1, 2)
    spent, charges = person_standing(budget, 1), kinds(tmp_path / "people.budget").count("charge")
    for _ in range(3):
        charge(stream, 2, 1)
        stream.charge(stream.releases, 2, [PersonBlock(1, 3)] * 2)
    assert person_standing(budget, 1) == spent
    assert kinds(tmp_path / "people.budget").count("charge") == charges
    assert standing(budget).people == 2
    charge(stream, 1, 3)
    assert kinds(tmp_path / "people.budget").count("charge") == charges + 1
    assert standing(budget).people == 3
    assert person_standing(budget, 3).epsilon == spent.epsilon


def test_what_is_held_is_charged_before_the_release(budget, tmp_path):
    z = math.sqrt(1.5 / budget.allowance.squared_shift)
    one, two = (
        product(budget, tmp_path / f"product-{n}").open_stream(statement(z)) for n in range(2)
    )
    assert one.hold([1]) == []
    assert two.hold([1, 2]) == [1]
    charge(one, 1)


def test_room_is_the_largest_stream_that_is_not_refused(budget, tmp_path):
    charge(product(budget, tmp_path / "first").open_stream(statement(4.0)), 1)
    left = budget.allowance.squared_shift - 1 / 16
    assert delta_of(math.sqrt(left), person_standing(budget, 1).room) == pytest.approx(1e-5)
    fits, over = (statement(left**-0.5 * one) for one in (1.0001, 0.9999))
    for number, one in enumerate((over, fits)):
        stream = product(budget, tmp_path / f"next-{number}").open_stream(one)
        assert stream.hold([1]) == ([1] if one is over else [])


def test_whoever_has_spent_all_has_no_room_and_is_in_the_last_bin(budget, tmp_path):
    z = math.nextafter(budget.allowance.squared_shift**-0.5, math.inf)
    stream = product(budget, tmp_path / "product").open_stream(statement(z))
    charge(stream, 1)
    found = standing(budget)
    assert (found.nearest[0].share, found.nearest[0].room) == (1.0, 0.0)
    assert found.histogram == (0,) * 9 + (1,)


def test_the_standing_says_who_has_spent_most_and_what_each_stream_costs(budget, tmp_path):
    for n, (z, people) in enumerate(((4.0, (1, 2, 3)), (5.0, (2,)))):
        charge(product(budget, tmp_path / f"product-{n}").open_stream(statement(z)), *people)
    found = standing(budget)
    assert [one.person for one in found.nearest] == [2, 1, 3]
    assert found.largest == found.nearest[0].epsilon
    for z, stream in zip((4.0, 5.0), found.streams, strict=True):
        assert delta_of(1 / z, stream.epsilon) == pytest.approx(1e-5, rel=1e-6)


def test_too_many_people_make_delta_vacuous(tmp_path):
    budget = SharedBudget.create(tmp_path / "budget", Allowance(epsilon=1.0, delta=0.01))
    stream = product(budget, tmp_path / "product").open_stream(statement(9.0))
    charge(stream, *range(99))
    with pytest.raises(BudgetExceeded, match="vacuous for 100 people"):
        charge(stream, 99)


def test_who_would_be_too_many_is_left_out_and_the_others_go_on(tmp_path):
    budget = SharedBudget.create(tmp_path / "budget", Allowance(epsilon=1.0, delta=0.01))
    stream = product(budget, tmp_path / "product").open_stream(statement(9.0))
    charge(stream, *range(97))
    assert stream.refused([96, 97, 98, 99, 100]) == [96, 99, 100]
    assert stream.hold([97, 98, 99, 100]) == [99, 100]
    charge(stream, 97, 98)
    later = product(budget, tmp_path / "later").open_stream(statement(9.0))
    assert later.hold([5, 99, 6, 98]) == [99]  # people who took part in anything are not new
    charge(later, 5, 6, 98)


# --- streams and ledgers that are refused --------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"population": "simulated"}, LedgerMismatch, "nobody to protect"),
        ({"unit": UNIT.model_copy(update={"kind": "segment"})}, LedgerMismatch, "one segment"),
        (
            {"unit": UNIT.model_copy(update={"kind": "observation"})},
            LedgerMismatch,
            "one observation",
        ),
        (
            {"unit": UNIT.model_copy(update={"adjacency": Adjacency.REPLACE_ONE})},
            LedgerMismatch,
            "has replace-one adjacency",
        ),
        ({"gaps": (Gap(name="critic", why="leaks"),)}, BudgetExceeded, "nothing can be proved"),
        ({"entropy": "fixed-seed"}, BudgetExceeded, "fixed seed"),
        ({"selection": Selection(mean=3.0, candidates=4)}, BudgetExceeded, "chooses among"),
        (
            {"participation": Poisson(sampling_rate=0.1, population=9)},
            BudgetExceeded,
            "is not Gaussian",
        ),
        ({"sampler_delta": 1e-12}, BudgetExceeded, "noise sampler of 'update' costs"),
        (
            {"parts": {"policy": {"clip_norm": 1.0, "noise_multiplier": 1.0}}},
            BudgetExceeded,
            "alone costs each person epsilon 4.3",
        ),
    ],
)
def test_streams_that_a_shared_budget_cannot_cover(budget, tmp_path, changes, error, why):
    wrong = statement(**changes)
    ledger = Ledger.create(tmp_path / "product", unit=wrong.unit, budget=BUDGET)
    ledger.join(budget)
    with pytest.raises(error, match=why):
        ledger.open_stream(wrong)
    assert ledger.streams == ()
    assert budget.account().streams == []


@pytest.mark.parametrize("kind", ["trajectory", "feedback", "expert"])
def test_people_of_every_kind_of_product_are_counted_together(budget, tmp_path, kind):
    unit = UNIT.model_copy(update={"kind": kind})
    ledger = Ledger.create(tmp_path / "product", unit=unit, budget=BUDGET)
    ledger.join(budget)
    charge(ledger.open_stream(statement(unit=unit)), 1)
    charge(product(budget, tmp_path / "other").open_stream(statement()), 1)
    assert person_standing(budget, 1).streams == (0, 1)


def test_a_joined_ledger_makes_no_release_without_the_budget(budget, tmp_path):
    ledger = product(budget, tmp_path / "product", numbers=[7, 5])
    charge(ledger.open_stream(statement()), 0)
    alone = Ledger.open(tmp_path / "product")
    assert alone.spent().epsilon == ledger.spent().epsilon  # reading is free
    for attempt in (alone.open_stream, alone.resume_stream):
        with pytest.raises(LedgerMismatch, match="--budget PLACE --numbers FILE"):
            attempt(statement())
    for wrong in (None, Numbers([5, 7])):
        with pytest.raises(LedgerMismatch, match="had other numbers"):
            alone.join(budget, wrong)
    other = SharedBudget.create(tmp_path / "other.budget", ALLOWANCE)
    with pytest.raises(LedgerMismatch, match="shares another budget"):
        alone.join(other, Numbers([7, 5]))
    alone.join(budget, Numbers([7, 5]))
    charge(alone.resume_stream(statement()), 1)
    assert person_standing(budget, 5).streams == person_standing(budget, 7).streams == (0,)
    assert len(budget.account().streams) == 1


def test_a_ledger_that_began_alone_joins_no_more(budget, tmp_path):
    ledger = Ledger.create(tmp_path / "product", unit=UNIT, budget=BUDGET)
    ledger.open_stream(statement())
    with pytest.raises(LedgerMismatch, match="began without a shared budget"):
        ledger.join(budget)


def test_budgets_that_make_no_sense(tmp_path):
    with pytest.raises(ValueError, match="give both parts, or neither"):
        Allowance(epsilon=1, delta=1e-5, other_epsilon=0.5)
    with pytest.raises(ValueError, match="smaller than the whole"):
        Allowance(epsilon=1, delta=1e-5, other_epsilon=1, other_delta=1e-6)
    with pytest.raises(ValueError, match="smaller than the whole"):
        Allowance(epsilon=1, delta=1e-5, other_epsilon=0.5, other_delta=1e-5)
    with pytest.raises(ValueError, match="finite"):
        Allowance(epsilon=math.inf, delta=1e-5)
    SharedBudget.create(tmp_path / "budget", ALLOWANCE)
    with pytest.raises(LedgerMismatch, match=r"there is a shared budget at .* already"):
        SharedBudget.create(tmp_path / "budget", ALLOWANCE)
    Ledger.create(tmp_path / "ledger", unit=UNIT, budget=BUDGET)
    with pytest.raises(LedgerMismatch, match="sotto budget create"):
        SharedBudget.open(tmp_path / "ledger")


# --- the operator's numbers ----------------------------------------------------------------------


def test_people_are_counted_by_the_operators_numbers(budget, tmp_path):
    first = product(budget, tmp_path / "first", numbers=[40, 9, 7]).open_stream(statement())
    second = product(budget, tmp_path / "second", numbers=[7, 8]).open_stream(statement())
    charge(first, 0, 1, 2)
    charge(second, 0)
    assert sorted(budget.account().people.tolist()) == [7, 9, 40]
    assert person_standing(budget, 7).streams == (0, 1)
    with pytest.raises(ParticipationViolation, match="2 numbers of people are listed"):
        charge(second, 2)
    assert second.hold([1]) == []
    assert person_standing(budget, 8).streams == (1,)


def test_everybody_in_several_releases_at_once_is_charged(budget, tmp_path):
    stream = product(budget, tmp_path / "product", numbers=[40, 9, 7]).open_stream(statement())
    stream.charge(0, 2, [np.array([0]), np.array([2, 1])])
    assert sorted(budget.account().people.tolist()) == [7, 9, 40]


def test_whom_the_budget_refuses_is_said_by_enrolment_number(budget, tmp_path):
    z = math.sqrt(1.5 / budget.allowance.squared_shift)
    charge(product(budget, tmp_path / "first").open_stream(statement(z)), 7)
    stream = product(budget, tmp_path / "next", numbers=[40, 7, 9]).open_stream(statement(z))
    assert stream.refused([0, 1, 2]) == stream.hold([0, 1, 2]) == [1]
    assert sorted(budget.account().people.tolist()) == [7, 9, 40]


def test_runs_of_one_name_are_different_products(budget, tmp_path):
    """A budget that knew them by name would charge their people once for both."""
    for place in ("one", "other"):
        charge(product(budget, tmp_path / place, "run").open_stream(statement()), 0)
    assert len(person_standing(budget, 0).streams) == 2
    assert len(budget.account().streams) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1\n2\nx\n", "line 3 of .* is not a whole number"),
        ("1\n\n3\n", "line 2 of .* for an empty place a number that nobody has"),
        ("\n1\n", "line 1 of .* is not a whole number"),
        ("1\n2 3\n", "line 2 of .* is not a whole number"),
        ("1\n2\n1\n", "person 1 is listed twice"),
        (f"{LARGEST_PERSON + 1}\n", "numbers from 0 to"),
        ("-1\n", "line 1 of .* is not a whole number"),
        ("", "has no numbers"),
        ("9" * 40, "too large"),
    ],
)
def test_lists_that_are_refused(tmp_path, text, why):
    (file := tmp_path / "numbers.txt").write_text(text)
    with pytest.raises(ValueError, match=why):
        Numbers.read(file)


def test_many_people_are_charged_in_linear_time(budget, tmp_path):
    stream = product(budget, tmp_path / "product").open_stream(statement())
    order = np.random.default_rng(0).permutation(40_000)
    for release in range(8):
        charge(stream, *order[release * 5000 : (release + 1) * 5000])
    found = standing(SharedBudget.open(tmp_path / "people.budget"))
    assert found.people == found.streams[0].people == sum(found.histogram) == 40_000
