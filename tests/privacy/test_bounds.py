"""Numbers in words are never below the bounds that they stand for."""

import math
import random

import pytest

from sotto.privacy.bounds import at_least, at_most, guarantee, percent


@pytest.mark.parametrize(
    ("bound", "digits", "words"),
    [
        (1.2710878, 4, "1.272"),
        (1.3, 4, "1.3"),
        (0.9999999945, 4, "1"),
        (1e-5, 3, "1e-05"),
        (12345.6, 4, "1.235e+04"),
        (2.3331212, 6, "2.33313"),
        (0.1 * 3, 4, "0.3"),
        (0.0, 4, "0"),
        (math.inf, 4, "infinite"),
    ],
)
def test_a_bound_is_rounded_up(bound: float, digits: int, words: str) -> None:
    assert at_most(bound, digits) == words


def test_no_bound_is_stated_below_itself_or_far_above() -> None:
    draws = random.Random(0)
    for _ in range(2000):
        bound = math.exp(draws.uniform(-40, 40))
        assert bound * (1 - 2e-12) <= float(at_most(bound)) <= bound * 1.0011


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (1.2719, "1.271"),
        (1.3, "1.3"),
        (0.3, "0.3"),
        (0.1 * 3, "0.3"),
        (0.0, "0"),
        (math.inf, "infinite"),
    ],
)
def test_a_lower_bound_is_rounded_down(bound: float, words: str) -> None:
    assert at_least(bound) == words


@pytest.mark.parametrize(
    ("share", "words"), [(0.500255, "50.1%"), (0.5, "50.0%"), (0.73106, "73.2%"), (1.0, "100.0%")]
)
def test_a_share_is_rounded_up(share: float, words: str) -> None:
    assert percent(share) == words


def test_a_guarantee_in_words() -> None:
    assert guarantee(1.2710878, 1.0001e-5) == "epsilon 1.272 at delta 1.01e-05"
