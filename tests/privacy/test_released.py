"""What was released stays: the same answers for ever, without the secret, after any crash."""

import math
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from released_replica import secret

from sotto.privacy.errors import (
    LedgerCorrupt,
    LedgerMismatch,
    LedgerUnavailable,
    PrivacyError,
)
from sotto.privacy.ledger import databases
from sotto.privacy.mechanisms.functions import scattered
from sotto.privacy.mechanisms.functions.gaussian_process import Kernel
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.release.released import ReleasedFunction, ReleasedValues
from sotto.privacy.release.storage import ReleaseFile

KERNEL = Kernel(beta=3.0, sigma=0.5)
SENSITIVITY = 0.25


def released(
    path: Path | None, dimensions: int = 1, function: object = secret, actions: int = 2
) -> ReleasedFunction:
    return ReleasedFunction.create(
        KERNEL,
        SENSITIVITY,
        actions,
        dimensions,
        function,  # type: ignore[arg-type]
        GeneratorSource(),
        path,
    )


def over_two(points: np.ndarray) -> np.ndarray:
    return np.tanh(points.sum(axis=1, keepdims=True))


def test_a_point_has_one_answer_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "f.values"
    function = released(path)
    points = np.array([0.3, 0.1, 0.3, 0.9, 0.0, 1.0])
    answers = function(points)
    assert np.array_equal(answers[0], answers[2])
    assert np.array_equal(function(points[::-1])[::-1], answers)
    again = ReleasedFunction.open(path, secret)
    assert np.array_equal(again(points), answers)
    more = again(np.array([0.2, 0.3]))
    assert np.array_equal(more[1], answers[0])
    assert np.array_equal(ReleasedFunction.open(path)(np.array([0.2])), more[:1])
    assert len(again) == 6


def test_an_older_copy_of_the_file_is_refused(tmp_path: Path) -> None:
    """It would answer anew where it has answered, and the mean of such answers tells the secret."""
    path = tmp_path / "f.values"
    released(path)
    copy = path.read_bytes()
    ReleasedFunction.open(path, secret)(np.array([0.5]))
    path.write_bytes(copy)
    with pytest.raises(LedgerCorrupt, match=r"lacks the entry that is written in .*values\.head"):
        ReleasedFunction.open(path, secret)


def test_an_answer_whose_hash_could_not_be_written_is_not_drawn_again(
    tmp_path: Path, monkeypatch
) -> None:
    path = tmp_path / "f.values"
    function = released(path)
    copy = path.read_bytes()

    def full(*_: object) -> None:
        raise LedgerUnavailable("no space is left")

    with monkeypatch.context() as without_space:
        without_space.setattr(databases, "write_head", full)
        for error in (LedgerUnavailable, LedgerMismatch):
            with pytest.raises(error):
                function(np.array([0.5]))
    again = ReleasedFunction.open(path, secret)
    assert len(again) == 1
    again(np.array([0.5]))  # the stored answer leaves
    path.write_bytes(copy)
    with pytest.raises(LedgerCorrupt, match="as an older copy does"):
        ReleasedFunction.open(path, secret)


def test_without_the_secret_only_what_was_asked_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "f.values"
    released(path)(np.array([0.5]))
    function = ReleasedFunction.open(path)
    assert function(np.array([0.5])).shape == (1, 2)
    with pytest.raises(PrivacyError, match="secret function is needed"):
        function(np.array([0.5, 0.25]))


@pytest.mark.parametrize("dimensions", [1, 2])
def test_closed_to_a_grid_it_needs_no_secret(tmp_path: Path, dimensions: int) -> None:
    path = tmp_path / "f.values"
    calls = []

    def counted(points: np.ndarray) -> np.ndarray:
        calls.append(len(points))
        return points.sum(axis=1, keepdims=True)

    function = released(path, dimensions, counted, actions=1)
    asked = np.full((1, dimensions), 0.4321)
    first = function(asked)
    axes = [np.linspace(0, 1, 5)] * dimensions
    nodes = function.close(axes)
    seen = sum(calls)
    assert function.closed
    between = np.full((3, dimensions), 0.125)
    between[:, 0] = (0.0, 0.125, 1.0)
    for one in (function, ReleasedFunction.open(path)):
        assert np.array_equal(one(asked), first)
        assert np.array_equal(one(between), nodes(between))
        mixed = one(np.concatenate([between, asked]))
        assert np.array_equal(mixed[3:], first)
    assert sum(calls) == seen
    with pytest.raises(PrivacyError, match="closed already"):
        function.close(axes)


def test_the_file_holds_nothing_but_noise_and_points(tmp_path: Path) -> None:
    """A tiny secret under large noise: no number of the file is near it; nor is the noise there."""
    path = tmp_path / "f.values"
    function = released(path, function=lambda points: np.full((len(points), 2), math.pi))
    answers = function(np.linspace(0, 1, 200))
    held = path.read_bytes()
    assert answers[0].tobytes() in held
    assert np.float64(math.pi).tobytes() not in held
    assert all((row - math.pi).tobytes() not in held for row in answers)


def test_rounded_answers_have_the_joint_law_over_restarts(tmp_path: Path) -> None:
    """Whitened answers are standard normal, wherever a restart came; and a wrong scale is not."""
    actions = 400
    zero = lambda points: np.zeros((len(points), actions))  # noqa: E731
    points = np.random.default_rng(0).random(24)
    for dimensions, shaped in ((1, points[:, None]), (2, points.reshape(12, 2))):
        path = tmp_path / f"{dimensions}.values"
        released(path, dimensions, zero, actions)(shaped[:3])
        ReleasedFunction.open(path, zero)(shaped[3:4])
        answers = ReleasedFunction.open(path, zero)(shaped)
        distance = np.abs(shaped[:, None] - shaped[None]).sum(-1)
        factor = np.linalg.cholesky(KERNEL.sigma**2 * np.exp(-KERNEL.beta * distance))
        white = np.linalg.solve(factor, answers)
        mean_square, spread = float(np.mean(white**2)), math.sqrt(2 / white.size)
        assert abs(mean_square - 1) < 6 * spread
        assert abs(mean_square * 0.9**2 - 1) > 6 * spread
        correlation = white @ white.T / actions - np.eye(len(shaped))
        assert np.abs(correlation).max() < 6 * math.sqrt(2 / actions)


@pytest.mark.parametrize(("dimensions", "ratio"), [(1, 2.0**9), (2, 2.0**11)])
def test_too_many_close_points_are_refused(tmp_path: Path, dimensions: int, ratio: float) -> None:
    """What the grid cannot resolve; the count goes on after a restart.

    A point in a crowd costs 5 grid steps over its noise, which is 2^-12 of sigma on a line and
    falls to 2^-10 of it in a plane. Squares add up to what is paid after 41 of them, and some more
    of the first in a plane, where sigma is 2^9 or 2^11 sensitivities; after 655 on a line at one.
    """
    path = tmp_path / "f.values"
    base = np.full((1, dimensions), 0.5)
    function = ReleasedFunction.create(
        KERNEL, KERNEL.sigma / ratio, 1, dimensions, over_two, GeneratorSource(), path
    )
    function(base)
    step = 2.0**-34 if dimensions == 1 else 2.0**-30
    near = [base + k * step * (np.arange(dimensions) == 0) for k in range(1, 400)]

    def asked(points: list[np.ndarray]) -> None:
        for point in points:
            function(point)

    with pytest.raises(PrivacyError, match="too close"):
        asked(near)
    assert 41 <= len(function) <= 47
    again = ReleasedFunction.open(path, over_two)
    with pytest.raises(PrivacyError, match="too close"):
        again(near[len(function) - 1])
    assert again(base + 0.25).shape == (1, 1)


def test_a_function_of_an_earlier_noise_law_answers_what_it_answered(tmp_path: Path) -> None:
    path = tmp_path / "f.values"
    header = {
        "kind": "function",
        "kernel": KERNEL.model_dump(),
        "actions": 2,
        "dimensions": 1,
        "entropy": "operating-system",
    }
    ReleaseFile.create(path, header).append(np.array([0.5]), np.array([[1.0, 2.0]]))
    with pytest.raises(PrivacyError, match="by another law"):
        ReleasedFunction.open(path, secret)
    assert ReleasedFunction.open(path)(np.array([0.5])).tolist() == [[1.0, 2.0]]


def test_another_writer_is_refused_and_nothing_leaves(tmp_path: Path) -> None:
    path = tmp_path / "f.values"
    one = released(path)
    other = ReleasedFunction.open(path, secret)
    kept = other(np.array([0.5]))
    with pytest.raises(LedgerMismatch, match="another process"):
        one(np.array([0.25]))
    assert np.array_equal(ReleasedFunction.open(path, secret)(np.array([0.5])), kept)


def test_nothing_leaves_that_could_not_be_stored(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "f.values"
    function = released(path)
    function(np.array([0.5]))
    append = function._store.append  # type: ignore[union-attr]

    def full(*_: object) -> None:
        raise LedgerUnavailable("no space")

    monkeypatch.setattr(function._store, "append", full)
    with pytest.raises(LedgerUnavailable):
        function(np.array([0.25]))
    monkeypatch.setattr(function._store, "append", append)
    assert len(function) == 1
    answer = function(np.array([0.25]))
    assert np.array_equal(ReleasedFunction.open(path)(np.array([0.25])), answer)


def test_a_fork_does_not_answer_with_the_same_noise(monkeypatch) -> None:
    function = released(None)
    kept = function(np.array([0.5]))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(PrivacyError, match="another process released this function"):
        function(np.array([0.25]))
    assert np.array_equal(function(np.array([0.5])), kept)


@pytest.mark.parametrize("stored", [True, False])
def test_an_interrupted_answer_is_not_drawn_again(
    stored: bool, tmp_path: Path, monkeypatch
) -> None:
    path = tmp_path / "f.values" if stored else None
    function = released(path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(function, "_remember", interrupted)
    with pytest.raises(KeyboardInterrupt):
        function(np.array([0.25]))
    monkeypatch.undo()
    with pytest.raises(PrivacyError, match="an answer was interrupted"):
        function(np.array([0.25]))
    if path is not None:
        assert ReleasedFunction.open(path)(np.array([0.25])).shape == (1, 2)


def test_points_without_room_are_refused_before_an_answer_is_drawn(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(scattered, "_LARGEST_SCATTER", 70)
    path = tmp_path / "f.values"
    function = released(path, dimensions=2, function=over_two, actions=1)
    points = np.random.default_rng(0).random((70, 2))
    function(points)
    for _ in range(2):
        with pytest.raises(ValueError, match="71 scattered points are more than 70"):
            function(np.array([[0.5, 0.25]]))
    assert np.array_equal(ReleasedFunction.open(path)(points), function(points))
    assert len(ReleasedFunction.open(path)) == 70


def test_killed_at_any_moment_every_answer_that_left_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "f.values"
    released(path)
    told: dict[float, list[float]] = {}
    replica = Path(__file__).with_name("released_replica.py")
    for life in range(3):
        process = subprocess.Popen(
            [sys.executable, str(replica), str(path), str(life)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        time.sleep(0.2 + 0.137 * life)
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait()
        for line in lines:
            if line.endswith("\n") and line.count(" ") == 2:
                point, *answer = map(float.fromhex, line.split())
                assert told.setdefault(point, answer) == answer
    assert len(told) > 10
    points = np.array(list(told))
    assert np.array_equal(ReleasedFunction.open(path)(points), np.array(list(told.values())))


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "f.values"
    function = released(path)
    function(np.array([0.5]))
    function(np.array([0.25]))
    with databases.database(path).begin() as connection:
        with pytest.raises(Exception, match="append-only"):
            connection.exec_driver_sql("DELETE FROM released WHERE sequence = 2")
        connection.exec_driver_sql("DROP TRIGGER no_update")
        connection.exec_driver_sql(
            "UPDATE released SET noisy = ? WHERE sequence = 1", (np.zeros(2).tobytes(),)
        )
    with pytest.raises(LedgerCorrupt, match="not what was written"):
        ReleasedFunction.open(path, secret)
    with pytest.raises(LedgerUnavailable, match="no release at"):
        ReleasedFunction.open(tmp_path / "nothing")
    with pytest.raises(LedgerMismatch, match="already"):
        released(path)


def test_values_come_back_and_interpolate(tmp_path: Path) -> None:
    axes = (np.array([0.0, 0.5, 1.0]), np.array([0.25]), np.array([0.0, 1.0]))
    values = ReleasedValues(np.arange(12.0).reshape(3, 1, 2, 2), axes)
    values.save(tmp_path / "v")
    again = ReleasedValues.open(tmp_path / "v")
    assert np.array_equal(again.values, values.values)
    points = np.array([[0.25, 9.0, 0.5], [-1.0, 0.0, 2.0]])
    assert again(points).tolist() == [[3.0, 4.0], [2.0, 3.0]]
    line = ReleasedValues(np.array([[0.0, 1.0], [2.0, 5.0]]), (np.array([0.0, 1.0]),))
    assert line(np.array([0.5, 3.0])).tolist() == [[1.0, 3.0], [2.0, 5.0]]
    bare = ReleasedValues(np.zeros(3))
    bare.save(tmp_path / "bare")
    assert ReleasedValues.open(tmp_path / "bare").axes is None
    with pytest.raises(ValueError, match="no places"):
        bare(np.zeros(1))
    with pytest.raises(ValueError, match="read-only"):
        bare.values[0] = 1.0
    with pytest.raises(PrivacyError, match="no released function"):
        ReleasedFunction.open(tmp_path / "v")
    released(tmp_path / "f")
    with pytest.raises(PrivacyError, match="no released values"):
        ReleasedValues.open(tmp_path / "f")


def test_points_are_rounded_and_live_in_the_unit_cube() -> None:
    function = released(None, 2, over_two, 1)
    here = function(np.array([[0.1, 0.2]]))
    assert np.array_equal(function(np.array([[0.1 + 1e-14, 0.2]])), here)
    for bad in ([[1.1, 0.0]], [[-0.1, 0.0]], [[math.nan, 0.0]]):
        with pytest.raises(ValueError, match=r"lives on \[0, 1\]"):
            function(np.array(bad))
    with pytest.raises(ValueError, match=r"shape \[q, 2\]"):
        function(np.array([0.5]))
    assert function(np.empty((0, 2))).shape == (0, 1)


def seeded(function: object) -> ReleasedFunction:
    noise = GeneratorSource(1)
    return ReleasedFunction.create(KERNEL, SENSITIVITY, 1, 1, function, noise, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "not_numbers",
    [lambda points: np.full((len(points), 1), math.nan), lambda points: np.log(points - 2)],
)
def test_what_is_no_number_counts_as_zero(not_numbers: object) -> None:
    points = np.linspace(0, 1, 9)
    with np.errstate(all="raise"):
        seen = seeded(not_numbers)(points)
    zero = seeded(lambda points: np.zeros((len(points), 1)))(points)
    np.testing.assert_array_equal(seen, zero)


@pytest.mark.parametrize("failure", [KeyError, MemoryError, SystemExit])
def test_a_secret_that_fails_answers_for_the_last_time(failure: type[BaseException]) -> None:
    """Each error would tell more, and a number in its place beside a near answer would tell all."""
    failing = False

    def secret(points: np.ndarray) -> np.ndarray:
        if failing:
            raise failure("the secret")
        return np.zeros((len(points), 1))

    function = seeded(secret)
    before, failing = function(np.array([0.5])), True
    with pytest.raises(PrivacyError, match="failed, or has changed, and answers") as told:
        function(np.array([0.25]))
    assert told.value.__cause__ is None
    assert "the secret'" not in str(told.value)
    failing = False
    with pytest.raises(PrivacyError, match="the secret function is needed"):
        function(np.array([0.75]))
    np.testing.assert_array_equal(function(np.array([0.5])), before)


@pytest.mark.parametrize("kind", [complex, str, object])
def test_rows_that_are_no_real_numbers_are_refused_as_errors_are(kind: type) -> None:
    """Complex ones were made real, with a warning."""
    function = seeded(lambda points: np.zeros((len(points), 1), kind))
    with pytest.raises(PrivacyError, match="failed, or has changed, and answers"):
        function(np.array([0.25]))


def test_no_warning_of_a_secret_is_shown_and_the_caller_keeps_its_own() -> None:
    def secret(points: np.ndarray) -> np.ndarray:
        warnings.warn("the secret", stacklevel=1)
        return np.full((len(points), 1), np.longdouble("1e4000"))

    function = seeded(secret)
    with warnings.catch_warnings(record=True) as shown, np.errstate(all="warn"):
        warnings.simplefilter("always")
        function(np.array([0.25]))
        assert not shown
        warnings.warn("the caller", stacklevel=1)
    assert len(shown) == 1


def test_ctrl_c_ends_no_function() -> None:
    asked = []

    def secret(points: np.ndarray) -> np.ndarray:
        asked.append(len(points))
        if len(asked) == 1:
            raise KeyboardInterrupt
        return np.zeros((len(points), 1))

    function = seeded(secret)
    with pytest.raises(KeyboardInterrupt):
        function(np.array([0.5]))
    assert np.isfinite(function(np.array([0.5]))).all()


def test_noise_from_a_seed_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "f"
    seeded = ReleasedFunction.create(KERNEL, SENSITIVITY, 2, 1, secret, GeneratorSource(1), path)
    seeded(np.array([0.5]))
    with pytest.raises(PrivacyError, match="fixed seed"):
        ReleasedFunction.open(path, secret)


def test_the_name_of_a_new_file_of_values_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a sync of the folder, a power failure could leave no file of released values."""
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}"))
    )
    ReleaseFile.create(tmp_path / "values", {"kind": "values"})
    database = synced.index(str(tmp_path.resolve()))
    assert not any(".values.head" in one for one in synced[:database])


def test_a_function_that_changes_while_it_is_asked_answers_no_more() -> None:
    """Noise near an old point is nearly known, so a network in training mode told its changes."""
    drift = 0.0

    def secret(points: np.ndarray) -> np.ndarray:
        return np.full((len(points), 1), drift)

    function = seeded(secret)
    before, drift = function(np.array([0.5])), 1e-9
    with pytest.raises(PrivacyError, match="has changed, and answers at no new point"):
        function(np.array([0.5 + 1e-9]))
    np.testing.assert_array_equal(function(np.array([0.5])), before)


def test_a_function_with_two_values_at_a_new_point_answers_no_more() -> None:
    """Dropout changes nothing at 0, where it was asked twice, and where each grid begins."""
    numbers = np.random.default_rng(0)

    def dropout(points: np.ndarray) -> np.ndarray:
        return points * numbers.integers(0, 2, points.shape) / 0.5

    function = seeded(dropout)
    with pytest.raises(PrivacyError, match="has changed, and answers at no new point"):
        function(np.linspace(0, 1, 20))


def test_a_value_depends_on_no_other_point_that_is_asked_with_it() -> None:
    """A network that normalises over its batch gave a point other values beside other points."""

    def batch_mean(points: np.ndarray) -> np.ndarray:
        return points - points.mean(axis=0)

    points = np.array([0.2, 0.9])
    zero = seeded(lambda points: np.zeros((len(points), 1)))(points)
    np.testing.assert_array_equal(seeded(batch_mean)(points), zero)


def test_a_secret_that_asks_its_own_released_function_fails_and_does_not_wait_for_itself() -> None:
    def secret(points: np.ndarray) -> np.ndarray:
        return function(np.array([0.75]))

    function = seeded(secret)
    with pytest.raises(PrivacyError, match="failed, or has changed, and answers"):
        function(np.array([0.25]))
