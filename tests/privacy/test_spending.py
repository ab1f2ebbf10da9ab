"""Sets of persons, groups, participation rules, and the worst person's epsilon."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from small import UNIT, statement

from sotto.privacy.errors import (
    BudgetExceeded,
    HorizonExceeded,
    LedgerMismatch,
    ParticipationViolation,
)
from sotto.privacy.ledger.costs import groups
from sotto.privacy.ledger.persons import PersonBlock, PersonSet, as_blocks
from sotto.privacy.ledger.spending import Account, Budget
from sotto.privacy.statements import (
    Gap,
    Poisson,
    Returning,
    Sharing,
    StreamStatement,
)
from sotto.privacy.units import Unit

DELTA = 1e-5
NO_TARGET = Budget(epsilon=math.inf, delta=DELTA)


def gaussian_epsilon(z: float, delta: float = DELTA) -> float:
    """Hockey-stick divergence of N(1, z^2) from N(0, z^2), solved for epsilon."""

    def excess(epsilon: float) -> float:
        a, b = 1 / (2 * z) - epsilon * z, -1 / (2 * z) - epsilon * z
        return float(stats.norm.cdf(a) - math.exp(epsilon + stats.norm.logcdf(b)) - delta)

    return float(optimize.brentq(excess, 0, 300, xtol=1e-10))


def account(
    *statements: StreamStatement, budget: Budget = NO_TARGET, sharing: Sharing = "planned"
) -> Account:
    made = Account(UNIT, budget, sharing=sharing)
    for one in statements:
        made.apply_open(one)
    return made


def charge(acc: Account, index: int, *releases: Any) -> None:
    blocks = [as_blocks(r if isinstance(r, PersonBlock) else np.array(r, int)) for r in releases]
    acc.check_charge(index, acc.streams[index].releases, blocks)
    acc.apply_charge(index, blocks)


# --- people --------------------------------------------------------------------------------------

blocks_strategy = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 10)).map(lambda t: PersonBlock(t[0], sum(t))),
    max_size=8,
)


@given(blocks_strategy, st.integers(0, 45), st.integers(1, 20))
def test_person_set_is_a_set(blocks: list[PersonBlock], start: int, size: int) -> None:
    people, oracle = PersonSet(), set[int]()
    for block in blocks:
        people.add(block)
        oracle |= set(range(*block))
    asked = PersonBlock(start, start + size)
    common = oracle & set(range(*asked))
    assert len(people) == len(oracle)
    assert {p for b in people.blocks for p in range(*b)} == oracle
    assert all(a.stop < b.start for a, b in pairwise(people.blocks))
    assert people.next_person == max(oracle, default=-1) + 1
    assert people.first_common(asked) == min(common, default=None)
    assert people.count_common(asked) == len(common)


@given(st.sets(st.integers(0, 60)))
def test_blocks_hold_the_same_people(people: set[int]) -> None:
    shuffled = np.random.default_rng(0).permutation(np.array(sorted(people), dtype=np.int32))
    blocks = as_blocks(shuffled)
    assert {p for b in blocks for p in range(*b)} == people
    assert all(a.stop < b.start for a, b in pairwise(blocks))


def test_a_million_people_in_order_are_one_block() -> None:
    people = PersonSet()
    for start in range(0, 10**6, 1000):
        people.add(PersonBlock(start, start + 1000))
    assert people.blocks == [PersonBlock(0, 10**6)]


@pytest.mark.parametrize(
    ("persons", "message"),
    [
        (np.array([3, 5, 3]), "person 3 is twice"),
        (np.array([-1, 2]), "enrolment numbers"),
        (np.array([2**31]), "enrolment numbers"),
        (PersonBlock(-2, 4), "enrolment numbers"),
        (np.array([1.0, 2.0]), "integers"),
        (np.array([True, False]), "integers"),
    ],
)
def test_people_who_are_not_are_refused(persons: Any, message: str) -> None:
    with pytest.raises(ParticipationViolation, match=message):
        as_blocks(persons)


def test_the_largest_person_does_not_overflow() -> None:
    assert as_blocks(np.array([2**31 - 1], dtype=np.int32)) == (PersonBlock(2**31 - 1, 2**31),)


@given(st.lists(blocks_strategy, max_size=4))
def test_groups_are_what_each_person_says(streams: list[list[PersonBlock]]) -> None:
    sets = []
    for blocks in streams:
        people = PersonSet()
        for block in blocks:
            people.add(block)
        sets.append(people)
    oracle = {
        frozenset(i for i, blocks in enumerate(streams) if any(b[0] <= p < b[1] for b in blocks))
        for p in range(60)
    }
    assert groups(sets) == oracle - {frozenset()}


# --- cost ----------------------------------------------------------------------------------------


def test_nothing_charged_costs_nothing() -> None:
    spent = account(statement()).spent()
    assert spent.epsilon == 0
    assert spent.persons == 0


def test_disjoint_people_pay_for_themselves_and_shared_ones_for_both() -> None:
    many = Returning(max_participations=3, min_separation=1)
    streams = statement(3.0, participation=many), statement(4.0, participation=many)
    acc = account(*streams, sharing="assumed")
    charge(acc, 0, PersonBlock(0, 10), PersonBlock(5, 15))
    charge(acc, 1, PersonBlock(15, 30))
    assert acc.spent().epsilon == pytest.approx(gaussian_epsilon(3.0), rel=1e-6)
    charge(acc, 1, PersonBlock(14, 16))  # person 14 is in both: 1/z^2 = 1/9 + 1/16
    spent = acc.spent()
    assert spent.epsilon == pytest.approx(gaussian_epsilon(2.4), rel=1e-6)
    assert spent.worst.streams == (0, 1)
    assert spent.persons == 30
    assert spent.epsilon_at(1e-7) == pytest.approx(gaussian_epsilon(2.4, 1e-7), rel=1e-6)
    ahead = account(*streams)  # now people of one pay for both, whoever comes
    charge(ahead, 0, PersonBlock(0, 10))
    assert ahead.spent().epsilon == pytest.approx(gaussian_epsilon(2.4), rel=1e-6)
    assert ahead.spent().worst.streams == (0, 1)


def test_the_worst_group_differs_between_deltas() -> None:
    """Crossing curves: the answer is the maximum at each delta, not one group's curve."""
    acc = account(
        statement(1.0, participation=Poisson(sampling_rate=0.01, population=10), horizon=100),
        statement(6.0),
    )
    charge(acc, 0, *[PersonBlock(0, 10)] * 100)
    charge(acc, 1, PersonBlock(10, 20))
    spent = acc.spent()
    assert spent.worst.streams == (0,)
    assert spent.epsilon == spent.epsilon_at(DELTA) > 1.1 * gaussian_epsilon(6.0)
    assert spent.epsilon_at(1e-2) == pytest.approx(gaussian_epsilon(6.0, 1e-2), rel=1e-6)


def test_poisson_sampling_costs_everybody() -> None:
    sampled = Poisson(sampling_rate=0.01, population=50)
    acc = account(statement(1.0, participation=sampled, horizon=500))
    charge(acc, 0, *[PersonBlock(0, 50)] * 200)
    oracle = PLDAccountant()
    oracle.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 500)
    assert acc.spent().epsilon == pytest.approx(oracle.get_epsilon(DELTA), rel=2e-3)
    assert acc.spent().persons == 50
    assert acc.next_person == 50


def test_stopping_where_releases_tell_most_is_covered() -> None:
    """The cost of tau releases is no guarantee if tau looks at them; that of the horizon is.

    In the world with the person, every 40 of 400 releases it stops if the privacy loss is above
    what would be certified; delta is the mean of max(0, 1 - exp(epsilon - loss)) where it stops.
    """
    q, z, horizon, chunk, delta, samples = 0.05, 1.0, 400, 40, 1e-3, 20_000
    sampled = Poisson(sampling_rate=q, population=50)

    def certified(planned: int) -> float:
        acc = account(statement(z, participation=sampled, horizon=planned))
        charge(acc, 0, PersonBlock(0, 50))
        return acc.spent().epsilon_at(delta)

    # As if a stream cost what was released: the streams whose horizons are as short.
    odometer = np.array([certified(n) for n in range(chunk, horizon + 1, chunk)])
    rng = np.random.default_rng(0)
    found = {}
    for name, claimed in (("odometer", odometer), ("whole", np.full(len(odometer), odometer[-1]))):
        loss, stopped, excess = np.zeros(samples), np.zeros(samples, bool), np.zeros(samples)
        for epsilon in claimed:
            x = z * rng.normal(size=(samples, chunk)) + (rng.random((samples, chunk)) < q)
            loss += np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z))).sum(axis=1)
            now = ~stopped & (loss > epsilon + 0.5)
            excess[now] = -np.expm1(epsilon - loss[now])
            stopped |= now
        left = np.maximum(0, -np.expm1(claimed[-1] - loss))
        found[name] = float(np.mean(np.where(stopped, excess, left)))
    assert found["odometer"] > 2 * delta
    assert found["whole"] < 1.5 * delta  # Monte Carlo: 20 of 20,000


def test_the_sampler_takes_its_share_of_delta_first() -> None:
    acc = account(statement(3.0, sampler_delta=9e-6))
    charge(acc, 0, [0])
    assert acc.spent().epsilon == pytest.approx(gaussian_epsilon(3.0, 1e-6), rel=1e-6)
    assert acc.spent().epsilon_at(9e-6) == math.inf


@pytest.mark.parametrize(
    "change", [{"entropy": "fixed-seed"}, {"gaps": (Gap(name="critic", why="no noise"),)}]
)
def test_what_is_not_proved_costs_infinity(change: dict[str, Any]) -> None:
    acc = account(statement(**change))
    charge(acc, 0, [0])
    assert acc.spent().epsilon == math.inf
    with pytest.raises(BudgetExceeded, match="only a budget of epsilon infinity"):
        account(budget=Budget(epsilon=1e6, delta=DELTA)).check_open(statement(**change), [])


def test_a_release_with_nobody_costs() -> None:
    acc = account(statement(3.0))
    charge(acc, 0, [])
    assert acc.spent().epsilon == pytest.approx(gaussian_epsilon(3.0), rel=1e-6)


@pytest.mark.parametrize("scale", [0.9, 0.99])
def test_less_noise_costs_more(scale: float) -> None:
    epsilons = []
    for z in (3.0, 3.0 * scale):
        acc = account(statement(z))
        charge(acc, 0, [0])
        epsilons.append(acc.spent().epsilon)
    assert epsilons[1] / epsilons[0] == pytest.approx(
        gaussian_epsilon(3.0 * scale) / gaussian_epsilon(3.0), rel=1e-6
    )
    assert epsilons[1] > 1.005 * epsilons[0]


# --- opening -------------------------------------------------------------------------------------


def test_the_budget_holds_to_the_last_digit() -> None:
    exact = gaussian_epsilon(3.0)
    account(budget=Budget(epsilon=exact * (1 + 1e-7), delta=DELTA)).check_open(statement(3.0), [])
    with pytest.raises(BudgetExceeded, match=r"epsilon 1\.271 .* over the budget"):
        account(budget=Budget(epsilon=exact * (1 - 1e-7), delta=DELTA)).check_open(
            statement(3.0), []
        )


@pytest.mark.parametrize("sharing", ["assumed", "planned", "adaptive"])
def test_once_only_streams_follow_each_other_at_no_cost_and_returning_ones_add_up(
    sharing: Sharing,
) -> None:
    budget = Budget(epsilon=1.3, delta=DELTA)
    acc = account(statement(3.0), budget=budget, sharing=sharing)
    charge(acc, 0, PersonBlock(0, 10))
    acc.check_open(statement(3.0), [])
    acc.check_open(statement(3.0), [0])
    again = statement(3.0, participation=Returning(max_participations=2, min_separation=1))
    acc.check_open(again, [0])
    acc.apply_open(again)
    with pytest.raises(BudgetExceeded):  # the first is live: the same person may join both
        acc.check_open(again, [0, 1])
    if sharing == "planned":  # it counts, for it may be gone on with
        with pytest.raises(BudgetExceeded, match="over the budget"):
            acc.check_open(again, [])
        assert acc.unused(again, []) == 1
        assert acc.unused(again, [1]) is None
    else:
        acc.check_open(again, [])  # the first is over, and nobody was charged for it
    charge(acc, 1, [20])
    with pytest.raises(BudgetExceeded):
        acc.check_open(again, [])


def test_people_of_an_exclusive_stream_pay_for_it_alone_and_are_refused_elsewhere() -> None:
    rule = Returning(max_participations=3, min_separation=2, exclusive=True)
    exclusive = statement(3.0, participation=rule)
    returning = statement(3.0, participation=Returning(max_participations=9, min_separation=1))
    acc = account(exclusive, budget=Budget(epsilon=1.3, delta=DELTA))
    charge(acc, 0, PersonBlock(0, 10), [20], PersonBlock(0, 10))
    acc.check_open(exclusive, [0])  # of other people, though the first stream is live
    acc.apply_open(exclusive)
    acc.check_open(returning, [0, 1])
    acc.apply_open(returning)
    for index in (1, 2):
        with pytest.raises(ParticipationViolation, match="person 20 took part before"):
            charge(acc, index, [15, 20])
    charge(acc, 1, [30])
    charge(acc, 2, [40], [40])
    for index in (0, 1):  # whoever is in the other stream first is refused as well
        with pytest.raises(ParticipationViolation, match="person 40 took part before"):
            charge(acc, index, [40])
    with pytest.raises(ParticipationViolation, match="person 5 may take part again"):
        charge(acc, 0, [5])
    assert acc.spent().epsilon == pytest.approx(gaussian_epsilon(3.0), rel=1e-6)
    assert StreamStatement.model_validate_json(exclusive.model_dump_json()) == exclusive
    assert "exclusive" not in returning.model_dump_json()  # as older ledgers have it


def test_a_sampled_stream_is_counted_to_its_horizon() -> None:
    sampled = Poisson(sampling_rate=0.05, population=50)
    oracle = PLDAccountant()
    oracle.compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.0)), 100)
    acc = account(budget=Budget(epsilon=oracle.get_epsilon(DELTA) * 0.98, delta=DELTA))
    acc.check_open(statement(1.0, participation=sampled, horizon=90), [])
    with pytest.raises(BudgetExceeded):
        acc.check_open(statement(1.0, participation=sampled, horizon=100), [])


@pytest.mark.parametrize(
    "unit",
    [
        Unit(kind="expert", adjacency="zero-out"),
        Unit(kind="trajectory", adjacency="replace-one"),
    ],
)
def test_another_unit_is_refused(unit: Unit) -> None:
    with pytest.raises(LedgerMismatch, match="ledger of its own"):
        account().check_open(statement(unit=unit), [])


def test_too_much_sampler_delta_is_refused() -> None:
    account().check_open(statement(sampler_delta=0.99e-7), [])
    with pytest.raises(BudgetExceeded, match="noise sampler"):
        account().check_open(statement(sampler_delta=1.01e-7), [])


def test_a_vacuous_delta_is_refused() -> None:
    acc = account(statement(), budget=Budget(epsilon=math.inf, delta=0.01))
    charge(acc, 0, PersonBlock(0, 60))
    charge(acc, 0, PersonBlock(60, 99))
    with pytest.raises(BudgetExceeded, match="vacuous for 100 persons"):
        charge(acc, 0, [99])
    with pytest.raises(BudgetExceeded, match="vacuous"):
        acc.check_open(statement(participation=Poisson(sampling_rate=0.5, population=100)), [])


@pytest.mark.parametrize(
    "fields",
    [
        {"epsilon": 0.0, "delta": DELTA},
        {"epsilon": math.nan, "delta": DELTA},
        {"epsilon": 1.0, "delta": 0.0},
        {"epsilon": 1.0, "delta": 1.0},
        {"epsilon": 1.0, "delta": math.nan},
    ],
)
def test_bad_budgets_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="budget's"):
        Budget(**fields)


# --- taking part ---------------------------------------------------------------------------------


def test_once_is_once_over_all_streams() -> None:
    returning = statement(participation=Returning(max_participations=5, min_separation=1))
    sampled = statement(participation=Poisson(sampling_rate=0.1, population=5))
    acc = account(statement(), statement(), returning, sampled)
    charge(acc, 0, PersonBlock(0, 10), PersonBlock(20, 30))
    for index in (0, 1, 2):
        with pytest.raises(ParticipationViolation, match="person 25 took part before"):
            charge(acc, index, [40, 25])
    with pytest.raises(ParticipationViolation, match="person 41 "):
        charge(acc, 1, [40, 41], [41, 42])  # twice within one charge
    with pytest.raises(ParticipationViolation, match="person 0 "):
        charge(acc, 3, PersonBlock(0, 5))
    charge(acc, 2, [50])
    with pytest.raises(ParticipationViolation, match="person 50 "):
        charge(acc, 0, [50])
    assert acc.next_person == 51


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=10),
    st.integers(1, 4),
)
def test_returning_people_are_counted_and_kept_apart(
    limit: int, separation: int, releases: list[set[int]], size: int
) -> None:
    """Charged in pieces of any size, the first violation is the brute-force one's."""
    rule = Returning(max_participations=limit, min_separation=separation)
    acc = account(statement(participation=rule))
    when: dict[int, list[int]] = {}
    for first in range(0, len(releases), size):
        piece = releases[first : first + size]
        allowed = True
        trial = {person: list(times) for person, times in when.items()}
        for number, people in enumerate(piece, first):
            for person in people:
                times = trial.setdefault(person, [])
                allowed &= len(times) < limit
                allowed &= all(number - time >= separation for time in times)
                times.append(number)
        if not allowed:
            with pytest.raises(ParticipationViolation):
                charge(acc, 0, *map(sorted, piece))
            assert acc.streams[0].releases == first
            return
        charge(acc, 0, *map(sorted, piece))
        when = trial


def test_horizon_and_order() -> None:
    acc = account(statement(horizon=3))
    charge(acc, 0, [0], [1])
    with pytest.raises(HorizonExceeded, match="opened for 3 releases and 2 are made"):
        charge(acc, 0, [2], [3])
    for wrong in (0, 1, 3):
        with pytest.raises(LedgerMismatch, match="next release of 'update' is number 2"):
            acc.check_charge(0, wrong, [as_blocks(np.array([9]))])
    charge(acc, 0, [2])
    with pytest.raises(HorizonExceeded):
        charge(acc, 0, [])
    with pytest.raises(ValueError, match="at least one"):
        acc.check_charge(0, 3, [])
