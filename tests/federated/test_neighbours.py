"""The circle of a round: sizes, and the three bounds against exact and simulated probabilities."""

import math
from fractions import Fraction

import numpy as np
import pytest

from sotto.federated.neighbours import FAILURE, Neighbourhood, failure_bounds, neighbourhood


def tail(total, special, drawn, at_least):
    """Exact probability that a draw without replacement has so many special ones."""
    ways = sum(
        math.comb(special, i) * math.comb(total - special, drawn - i)
        for i in range(at_least, min(special, drawn) + 1)
    )
    return Fraction(ways, math.comb(total, drawn))


@pytest.mark.parametrize(
    ("people", "promised", "colluding"), [(60, 40, 0), (100, 70, 9), (430, 290, 30)]
)
def test_bounds_are_the_exact_tails(people, promised, colluding):
    circle = neighbourhood(people, promised, colluding)
    found = failure_bounds(circle, promised, colluding)
    k, t = circle.neighbours, circle.threshold
    gone = people - promised
    unrecoverable = people * tail(people - 1, gone, k, k - t + 1)
    revealed = people * tail(people - 1, colluding, k, t)
    apart = math.comb(people, 2) * tail(people, gone + colluding, k, k)
    assert found == pytest.approx(tuple(map(float, (unrecoverable, revealed, apart))), rel=1e-6)
    assert max(unrecoverable, revealed, apart) <= Fraction(FAILURE)


@pytest.mark.parametrize("people", [49, 60, 100, 430, 2000])
def test_the_circle_is_the_smallest_safe_one(people):
    promised, colluding = round(0.65 * people), people // 20
    circle = neighbourhood(people, promised, colluding)
    assert circle.threshold <= circle.neighbours // 2 + 1
    if circle.neighbours == people - 1:
        return
    smaller = [
        max(failure_bounds(Neighbourhood(people, circle.neighbours - 2, t), promised, colluding))
        for t in range(1, circle.neighbours - 1)
    ]
    assert min(smaller) > FAILURE


@pytest.mark.parametrize("people", [20, 100, 430])
def test_more_than_half_of_the_neighbours_open_a_secret_where_so_many_remain(people):
    """Else a server could tell half of them that a device is in the sum, and the others not."""
    circle = neighbourhood(people, round(0.97 * people), people // 20)
    assert circle.threshold == circle.neighbours // 2 + 1


def test_one_in_twenty_may_show_everything_also_if_nobody_is_said_to():
    assert neighbourhood(400, 260, 0) == neighbourhood(400, 260, 20)
    assert max(failure_bounds(neighbourhood(400, 260, 0), 260, 20)) <= FAILURE


@pytest.mark.parametrize("people", [3, 20, 48])
def test_few_people_are_all_neighbours(people):
    promised = max(3, round(0.7 * people))
    circle = neighbourhood(people, promised, 0)
    assert circle.neighbours == people - 1
    assert circle.threshold <= promised - 1
    assert circle.of(1) == tuple(p for p in range(people) if p != 1)


def test_neighbours_are_mutual_and_as_many_as_stated():
    circle = neighbourhood(101, 70, 0)
    of = [circle.of(place) for place in range(101)]
    assert all(len(set(one)) == circle.neighbours for one in of)
    assert all(place in of[other] for place in range(101) for other in of[place])
    assert all(place not in of[place] for place in range(101))


@pytest.mark.parametrize(
    ("people", "promised", "colluding", "text"),
    [(10, 2, 0, "at least 3"), (10, 11, 0, "at most all"), (10, 6, 5, "too many to collude")],
)
def test_circles_that_cannot_be_safe(people, promised, colluding, text):
    with pytest.raises(ValueError, match=text):
        neighbourhood(people, promised, colluding)


def falls_apart(circle, left):
    """Whether these places are not all connected by neighbours."""
    left = set(left)
    reached, waiting = set(), [min(left)]
    while waiting:
        place = waiting.pop()
        if place not in reached:
            reached.add(place)
            waiting += [other for other in circle.of(place) if other in left]
    return reached != left


def test_the_bound_on_falling_apart_holds_in_simulation():
    """With few neighbours it is common, and the bound is near the share of simulated circles."""
    circle, gone, rng = Neighbourhood(40, 4, 1), 14, np.random.default_rng(0)
    trials = 4000
    apart = sum(falls_apart(circle, rng.permutation(40)[gone:].tolist()) for _ in range(trials))
    bound = failure_bounds(circle, 40 - gone, 0).apart
    assert 0.2 * bound < apart / trials <= bound + 6 * math.sqrt(bound / trials)


def test_the_bounds_on_shares_hold_in_simulation():
    """Circles with a threshold in the middle fail in a share of draws that the bounds cover."""
    circle, promised, colluding = Neighbourhood(60, 12, 6), 36, 15
    rng, trials = np.random.default_rng(1), 3000
    few = many = 0
    for _ in range(trials):
        order = rng.permutation(60)
        staying, showing = (
            set(order[:promised].tolist()),
            set(rng.permutation(60)[:colluding].tolist()),
        )
        few += any(len(staying.intersection(circle.of(p))) < 6 for p in (0, 30))
        many += any(len(showing.intersection(circle.of(p))) >= 6 for p in (0, 30))
    found = failure_bounds(circle, promised, colluding)
    for count, bound in ((few, found.unrecoverable), (many, found.revealed)):
        share = 2 * min(bound, 1.0) / 60 if bound < 1 else 1.0
        assert count / trials <= share + 6 * math.sqrt(share / trials)
