"""Learning curves: what is measured of them, against values worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from sotto.experiments.engine import Arm, Result, joined
from sotto.experiments.gohari2021.figures import about, silent_after
from sotto.experiments.statistics import (
    band,
    half_width,
    median_steps,
    over_seeds,
    speed_up,
    steps_to_reach,
    threshold,
    without_gaps,
)

GREEDY = "greedy"
NAN = math.nan


def curve(rows, answered=None, arm="a", seeds=None, **more):
    values = np.array(rows, float)
    answered = np.zeros(values.shape, int) if answered is None else np.array(answered)
    seeds = tuple(range(len(values))) if seeds is None else seeds
    steps = 10 * np.arange(values.shape[1])
    of = Arm(arm, arm.upper(), None, seeds, arm, lambda *_: [], 1.0)
    return Result(of, seeds, steps, {GREEDY: values, "answered": answered}, more=more)


def test_the_threshold_is_most_of_the_way_to_the_teachers_final_return():
    rising = [0, 50, 90, 100, 100, 100, 100, 100]
    teacher = curve([rising, rising, [20] * 8])
    assert threshold(teacher, GREEDY) == pytest.approx(95)
    falling = curve([[-500, -100, -80, -80, -80, -80, -80]])
    assert threshold(falling, GREEDY) == pytest.approx(-101)


def test_a_return_counts_as_reached_where_it_is_kept_on_average():
    steady = [0, 0, 100, 100, 100, 100, 100, 100]
    blip = [0, 100, 0, 0, 0, 100, 100, 100]
    dip = [0, 100, 60, 100, 120, 120, 100, 100]
    never = [0] * 8
    found = steps_to_reach(curve([steady, blip, dip, never]), 95, GREEDY)
    np.testing.assert_array_equal(found, [20, math.inf, 10, math.inf])


def test_medians_know_infinity():
    reached, never = [100] * 8, [0] * 8
    assert median_steps(curve([reached, never, reached]), 95, GREEDY) == 0
    assert median_steps(curve([reached, never, never]), 95, GREEDY) == math.inf
    assert median_steps(curve([reached, never]), 95, GREEDY) == math.inf


def test_speed_up_is_a_ratio_of_medians():
    slow = curve([[0] * 4 + [100] * 6])
    fast = curve([[0] + [100] * 9])
    never = curve([[0] * 10])
    assert speed_up(slow, fast, 95, GREEDY) == 4
    assert speed_up(slow, never, 95, GREEDY) == 0
    assert speed_up(never, fast, 95, GREEDY) == math.inf
    assert math.isnan(speed_up(never, never, 95, GREEDY))


def test_gaps_take_what_came_before():
    one = curve([[NAN, NAN, 3, NAN, 5, NAN]])
    np.testing.assert_array_equal(without_gaps(one, GREEDY), [[3, 3, 3, 3, 5, 5]])
    with pytest.raises(ValueError, match="no episode ended"):
        without_gaps(curve([[NAN, NAN]]), GREEDY)


def test_the_band_is_between_percentiles():
    rows = np.arange(101.0)[:, None] * np.ones(3)
    low, median, high = band(curve(rows), GREEDY)
    np.testing.assert_allclose([low[0], median[0], high[0]], [15, 50, 85])


def test_silence_is_after_the_last_answer():
    flat = [[0.0] * 5]
    assert silent_after(curve(flat, [[0, 4, 8, 8, 8]])) == 20
    assert silent_after(curve(flat, [[0, 4, 8, 12, 16]])) is None
    assert silent_after(curve(flat, [[0] * 5])) is None


def test_summary_compares_with_teacher_and_student():
    teacher = curve([[0] * 4 + [100] * 8], arm="teacher")
    student = curve([[0] * 8 + [100] * 4 + [100] * 4], arm="student")
    kick = curve([[0, 0] + [100] * 10], [[0, 5] + [9] * 10], cost={"epsilon": 2.0})
    said = about(kick, teacher, student)
    assert said["answered"] == 9
    assert said["silent_after_steps"] == 20
    assert said["cost"]["epsilon"] == 2.0
    greedy = said["returns"]["greedy"]
    assert greedy["steps_to_reach"] == 20
    assert greedy["median_stays_from"] == 20
    assert greedy["faster_than_teacher"] == 2
    assert greedy["faster_than_student"] == 4
    assert greedy["final_median"] == 100
    assert about(kick, teacher, None)["returns"]["greedy"]["faster_than_student"] is None
    lost = curve([[0, 100, 100, 100, 100, 100, 100, 0]])
    assert about(lost, teacher, None)["returns"]["greedy"]["median_stays_from"] == math.inf


def test_seeds_trained_apart_are_one_curve():
    first, second = curve([[1, 2]]), curve([[3, 4]], seeds=(7,))
    whole = joined([first, second])
    assert whole.seeds == (0, 7)
    np.testing.assert_array_equal(without_gaps(whole, GREEDY), [[1, 2], [3, 4]])


def test_confidence_is_students():
    returns = np.array([1.0, 5.0, 6.0, 2.0, 9.0])
    low, high = stats.t.interval(0.95, 4, returns.mean(), stats.sem(returns))
    assert returns.mean() - half_width(returns) == pytest.approx(low)
    assert returns.mean() + half_width(returns) == pytest.approx(high)
    assert np.isnan(half_width(np.array([1.0])))
    assert over_seeds(returns)["half_width"] == pytest.approx((high - low) / 2)
    assert over_seeds(np.array([1.0]))["half_width"] is None
