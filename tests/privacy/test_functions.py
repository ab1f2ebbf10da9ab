"""The door for functions: charged first, noisy by the right amount, and audited."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import Float
from kinds_of_statements import stream
from norms import norm_at_points

from sotto.privacy.audits.audit import audit_mechanism
from sotto.privacy.audits.function_trials import FunctionTrials
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.lone import verify_file
from sotto.privacy.claims.rewards import LOGGED_FUNCTION, ONE_REWARD, WHOLE_FUNCTION
from sotto.privacy.errors import (
    BudgetExceeded,
    HorizonExceeded,
    LedgerMismatch,
    LedgerUnavailable,
    PrivacyError,
)
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.functions.calibration import averager_factor, multiplier_for
from sotto.privacy.mechanisms.functions.rkhs import (
    Sensitivity,
    hat_basis_sensitivity,
    vector_sensitivity,
)
from sotto.privacy.release.functions import FunctionRelease, OpenFunctionRelease, kept_files
from sotto.privacy.release.release import Release
from sotto.privacy.release.released import ReleasedFunction, ReleasedValues
from sotto.privacy.statements import Gap, Part
from sotto.privacy.units import EXPERT, REWARD_FUNCTION, TRANSITION, Adjacency, Unit

EPSILON, DELTA = 0.9, 1e-4
Z = multiplier_for(EPSILON, DELTA)
NODES = np.linspace(0, 1, 11)
REWARDS = np.repeat(0.5 - np.abs(NODES[:, None] - 0.5), 2, axis=1)


IN_RANGE = (ONE_REWARD(low="0", high="1"),)


def vector_release(**changes: object) -> FunctionRelease:
    one = FunctionRelease(
        "rewards",
        REWARD_FUNCTION,
        replace(vector_sensitivity(11, 2, 1.0), size=None, actions=None),  # for several shapes
        Z,
        "simulated",
        size=22,
        protects=(LOGGED_FUNCTION(radius="1"),),
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def path_release(**changes: object) -> FunctionRelease:
    hats = replace(hat_basis_sensitivity(11, 2, 1.0), size=None, actions=None, nodes=None)
    return vector_release(**{"sensitivity": hats} | changes)


def new_ledger(
    folder: Path, epsilon: float = EPSILON, unit: Unit = REWARD_FUNCTION, name: str = "ledger"
) -> Ledger:
    return Ledger.create(folder / name, unit=unit, budget=Budget(epsilon=epsilon, delta=DELTA))


# --- what is charged -----------------------------------------------------------------------------


def test_a_release_costs_what_it_was_calibrated_for(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    folder = tmp_path / "kept" / "here"
    stream = vector_release().open(ledger, folder)
    assert ledger.spent().epsilon == 0
    released = stream.release(REWARDS, [NODES])
    assert 0.999 * EPSILON < ledger.spent().epsilon <= EPSILON
    assert stream.released == 1
    assert np.array_equal(
        ReleasedValues.open(next(folder.glob("*.values"))).values, released.values
    )
    with pytest.raises(HorizonExceeded):
        stream.release(REWARDS, [NODES])
    with pytest.raises(BudgetExceeded):
        vector_release().open(ledger)
    certificate = derive(Ledger.open(tmp_path / "ledger"))
    assert certificate.status == "proved"
    assert "within the stated radius" in certificate.unit_sentence
    said = " ".join(one.statement for one in certificate.assumptions)
    assert "differ by at most 4.69042 in the Euclidean norm" in said
    assert "enrolment" not in said  # nothing about persons
    assert not any("people" in line for line in certificate.does_not_protect)


def test_noise_of_a_horizon_is_shared(tmp_path: Path) -> None:
    release = path_release(horizon=4)
    assert release.sigma == pytest.approx(2 * path_release().sigma, rel=1e-5)  # and rounding
    ledger = new_ledger(tmp_path)
    stream = release.open(ledger)
    for _ in range(4):
        stream.release(REWARDS, [NODES])
    assert 0.999 * EPSILON < ledger.spent().epsilon <= EPSILON


def test_nothing_is_released_that_could_not_be_charged(tmp_path: Path, monkeypatch) -> None:
    ledger = new_ledger(tmp_path)
    stream = path_release(size=None).open(ledger, tmp_path)

    def unavailable(*_: object) -> None:
        raise LedgerUnavailable("gone")

    def own(points: np.ndarray) -> np.ndarray:
        asked.extend(points.tolist())
        return np.zeros((len(points), 2))

    asked: list[list[float]] = []
    monkeypatch.setattr(stream._stream, "charge", unavailable)
    with pytest.raises(LedgerUnavailable):
        stream.release_function(own, 2)
    assert asked == [[0.0], [0.0]]  # for its shape, and whether it has one value
    assert not list(tmp_path.glob("*.values"))


def test_a_mistake_of_a_function_is_noticed_before_the_charge(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    stream = path_release(size=None).open(ledger)
    with pytest.raises(ValueError, match=r"must return numbers of shape \(1, 2\) at zero"):
        stream.release_function(lambda points: np.ones((len(points), 7)), 2)
    with pytest.raises(ZeroDivisionError):
        stream.release_function(lambda points: 1 / 0, 2)
    numbers = np.random.default_rng(0)
    with pytest.raises(ValueError, match="two different rows at zero"):
        stream.release_function(lambda points: numbers.normal(size=(len(points), 2)), 2)
    assert ledger.streams[0].releases == 0


def test_another_unit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerMismatch, match="one reward-function"):
        vector_release(unit=TRANSITION, units=9, protects=IN_RANGE).open(new_ledger(tmp_path))


def test_transitions_are_units_of_their_own(tmp_path: Path) -> None:
    """Stated directly: replacing one reward moves a vector by 1/118; 500 of them take part."""
    release = vector_release(
        unit=TRANSITION,
        sensitivity=Sensitivity(1 / 118, None, "averages", 1.0),
        units=500,
        protects=IN_RANGE,
    )
    assert release.sigma == pytest.approx(0.0296, abs=1e-4)
    ledger = new_ledger(tmp_path, unit=TRANSITION)
    release.open(ledger).release(REWARDS)
    assert 0.999 * EPSILON < ledger.spent().epsilon <= EPSILON
    assert ledger.persons == 500


def test_a_gap_makes_it_a_paper_claim(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, epsilon=math.inf)
    vector_release(gaps=(Gap(name="Q", why="it is returned"),)).open(ledger).release(REWARDS)
    certificate = derive(ledger)
    assert (certificate.status, certificate.epsilon) == ("paper-claim", math.inf)
    seeded = new_ledger(tmp_path, math.inf, name="seeded")
    vector_release().open(seeded, noise_seed=3).release(REWARDS)
    assert derive(seeded).status == "none"


def contributions(unit: Unit, part: str = "x") -> Release:
    return Release(
        name="x",
        local=lambda *_: ({}, ()),
        server=lambda s, _: (s, ()),
        unit=unit,
        parts={part: Part(clip_norm=1.0, noise_multiplier=1.0)},
        slots=1,
        divisor=1.0,
        horizon=1,
        population="real",
    )


def test_the_door_for_people_refuses_a_radius() -> None:
    with pytest.raises(ValueError, match="use a FunctionRelease"):
        contributions(REWARD_FUNCTION)


def test_a_sensitivity_is_that_of_the_released_shape(tmp_path: Path) -> None:
    vector, hats = vector_sensitivity(11, 2, 1.0), hat_basis_sensitivity(11, 2, 1.0)
    with pytest.raises(ValueError, match="that of 22 values, and not of 2200"):
        vector_release(sensitivity=vector, size=2200)
    ledger = new_ledger(tmp_path, epsilon=math.inf)
    with pytest.raises(ValueError, match="that of 2 actions, and not of 1"):
        vector_release(sensitivity=hats).open(ledger).release(np.zeros((22, 1)), (NODES,))
    anywhere = replace(hats, size=None, nodes=None)
    asked = vector_release(sensitivity=anywhere, size=None).open(ledger)
    with pytest.raises(ValueError, match="that of 2 actions, and not of 100"):
        asked.release_function(lambda points: np.zeros((len(points), 100)), 100)
    assert ledger.spent().epsilon == 0


def test_a_radius_is_said_and_is_one_in_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="within which radius epsilon holds"):
        vector_release(protects=())
    ledger = new_ledger(tmp_path, epsilon=math.inf)
    vector_release().open(ledger)
    with pytest.raises(LedgerMismatch, match=r"these streams say \['0.5', '1'\]"):
        vector_release(protects=(LOGGED_FUNCTION(radius="0.5"),)).open(ledger)


def test_no_sentence_promises_to_hide_more_than_the_noise_does() -> None:
    """It said a radius of 1 where the noise was made for 0.1: epsilon 14 under a proved 0.9."""
    small = vector_sensitivity(11, 2, 0.1)
    with pytest.raises(ValueError, match="promises to hide a change of 1 of a reward, and the noi"):
        vector_release(sensitivity=small)
    vector_release(sensitivity=replace(small, change=1.0))  # the author says so
    whole = WHOLE_FUNCTION(radius="3", share="1", low="0", high="1")  # as far as the range goes
    vector_release(protects=(whole,))
    narrow = WHOLE_FUNCTION(radius="1", share="1", low="0", high="0.1")
    vector_release(protects=(narrow,), sensitivity=small)
    with pytest.raises(ValueError, match="promises to hide a change of 1 of a reward"):
        vector_release(protects=(narrow, LOGGED_FUNCTION(radius="1")), sensitivity=small)
    for other in ((narrow, *IN_RANGE), (LOGGED_FUNCTION(radius="1"), *IN_RANGE)):
        with pytest.raises(ValueError, match="none of the other kind"):
            vector_release(protects=other)

    def one_reward(low: str, high: str, **changes: object) -> FunctionRelease:
        said = {"unit": TRANSITION, "units": 9, "protects": (ONE_REWARD(low=low, high=high),)}
        return vector_release(**said | changes)

    one_reward("-1000.5", "-999.5")
    with pytest.raises(ValueError, match="promises to hide a change of 1 of a reward"):
        one_reward("100000", "100001", sensitivity=small)
    with pytest.raises(ValueError, match="promises to hide a change of 10 of a reward"):
        one_reward("0", "10")
    zeroed = Unit(kind="transition", adjacency=Adjacency.ZERO_OUT)
    with pytest.raises(ValueError, match="promises to hide a change of 6 of a reward"):
        one_reward("5", "6", unit=zeroed)
    for protects in (
        (),
        (LOGGED_FUNCTION(radius="1"),),
        (*IN_RANGE, ONE_REWARD(low="1", high="2")),
    ):
        with pytest.raises(ValueError, match="or in which range one reward"):
            one_reward("0", "1", protects=protects)


def test_a_release_goes_on_whose_reason_was_worded_otherwise(tmp_path: Path) -> None:
    """The reason names the change of rewards since 0.2; the bound is a number of its own."""
    ledger, release = new_ledger(tmp_path), vector_release(horizon=2)
    release.open(ledger).release(REWARDS)
    ledger = Ledger.open(tmp_path / "ledger")
    worded = replace(release.sensitivity, because="each of 22 values moves by at most 1")
    replace(release, sensitivity=worded).resume(ledger).release(REWARDS)
    assert ledger.streams[0].releases == 2
    other = replace(release.sensitivity, value=2 * release.sensitivity.value)
    with pytest.raises(LedgerMismatch, match="no interrupted stream"):
        replace(release, sensitivity=other).resume(ledger)


def test_rewards_have_one_range_in_a_ledger(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, epsilon=math.inf, unit=TRANSITION)
    vector_release(unit=TRANSITION, units=9, protects=IN_RANGE).open(ledger)
    other = vector_release(
        name="again", unit=TRANSITION, units=9, protects=(ONE_REWARD(low="0", high="0.5"),)
    )
    with pytest.raises(LedgerMismatch, match=r"these streams say \[0, 0.5\] and \[0, 1\]"):
        other.open(ledger)


@pytest.mark.parametrize(
    "nodes", [np.linspace(0, 0.5, 11), np.linspace(0, 1, 11) ** 2, np.linspace(0, 1, 101)]
)
def test_a_sensitivity_between_even_nodes_is_of_no_others(
    nodes: np.ndarray, tmp_path: Path
) -> None:
    """Nodes on [0, 0.1] had a true epsilon of 2.57 at least under a proved 0.9, and 101 had 10."""
    hats = replace(hat_basis_sensitivity(11, 2, 1.0), size=None)
    stream = vector_release(sensitivity=hats, size=2 * len(nodes)).open(new_ledger(tmp_path))
    with pytest.raises(ValueError, match=r"that of 11 even nodes on \[0, 1\]"):
        stream.release(np.zeros((len(nodes), 2)), (nodes,))
    with pytest.raises(ValueError, match="that of 22 values, and not of 202"):
        vector_release(sensitivity=hat_basis_sensitivity(11, 2, 1.0), size=202)
    for anywhere in (hats, hat_basis_sensitivity(11, 2, 1.0)):  # between the nodes nothing is known
        with pytest.raises(ValueError, match="of values with a public size"):
            vector_release(sensitivity=anywhere, size=None)
    assert stream.released == 0
    if len(nodes) == 11:
        stream.release(np.zeros((11, 2)), (NODES + 1e-16,))


def test_transitions_are_counted_and_have_one_numbering_in_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="say how many transitions there are"):
        vector_release(unit=TRANSITION, protects=IN_RANGE)
    with pytest.raises(ValueError, match="there is one reward function"):
        vector_release(units=2)
    ledger = new_ledger(tmp_path, epsilon=math.inf, unit=TRANSITION)
    vector_release(unit=TRANSITION, units=9, protects=IN_RANGE).open(ledger)
    sums = stream(unit=TRANSITION, population="simulated", noise_law="on-grid")
    with pytest.raises(LedgerMismatch, match="number rewards from 0"):
        ledger.open_stream(sums)


def test_a_function_is_not_released_of_people(tmp_path: Path) -> None:
    every = Unit(kind="reward-function", adjacency="replace-one")
    for unit in (EXPERT, every):
        with pytest.raises(ValueError, match="for data of people use a Release"):
            vector_release(unit=unit)
    for unit in (every, Unit(kind="observation", adjacency="zero-out")):
        with pytest.raises(ValueError, match=f"kind '{unit.kind}' has no place of its own"):
            contributions(unit)
    with pytest.raises(ValueError, match="only a FunctionRelease names its part"):
        contributions(TRANSITION, "values")


# --- the noise -----------------------------------------------------------------------------------


def opened(release: FunctionRelease, folder: Path) -> OpenFunctionRelease:
    return release.open(new_ledger(folder, epsilon=math.inf, unit=release.unit))


def test_a_vector_has_the_stated_noise_on_a_public_grid(tmp_path: Path) -> None:
    size = 200_000
    release = vector_release(size=size)
    secret = np.linspace(-3, 3, size)
    released = opened(release, tmp_path).release(secret).values
    noise = released - secret
    spread = 6 / math.sqrt(2 * size)
    assert abs(noise.std() / release.sigma - 1) < spread
    assert abs(0.97 * noise.std() / release.sigma - 1) > spread
    assert abs(noise.mean()) < 6 * release.sigma / math.sqrt(size)
    grid = 2.0 ** (math.floor(math.log2(release.sensitivity.value)) - 34)
    assert release.grid == grid
    assert np.all(np.remainder(released, grid) == 0)


def test_paths_have_the_stated_law(tmp_path: Path) -> None:
    copies = 20_000
    release = path_release(size=11 * copies)
    noise = opened(release, tmp_path).release(np.zeros((11, copies)), [NODES]).values
    beta = release.sensitivity.beta
    assert beta is not None
    expected = release.sigma**2 * np.exp(-beta * np.abs(NODES[:, None] - NODES))
    limit = 6 * release.sigma**2 * math.sqrt(2 / copies)
    assert np.abs(noise @ noise.T / copies - expected).max() < limit
    wrong = 0.9 * release.sigma**2 * np.eye(11)
    assert np.abs(noise @ noise.T / copies - wrong).max() > limit


def test_a_function_gets_its_own_path_in_every_release(tmp_path: Path) -> None:
    stream = opened(path_release(size=None, horizon=2), tmp_path)
    points = np.linspace(0, 1, 50)
    one, other = (stream.release_function(lambda x: np.hstack([x, -x]), 2) for _ in range(2))
    assert isinstance(one, ReleasedFunction)
    assert one.kernel.sigma == path_release(horizon=2).sigma
    assert not np.any(one(points) == other(points))
    assert np.array_equal(one(points), one(points))


def test_functions_of_two_dimensions_have_a_sensitivity_of_their_own(tmp_path: Path) -> None:
    square = Sensitivity(2.0, 1.0, "all mixed derivatives are at most 1", 1.0, dimensions=2)
    stream = opened(path_release(size=None, sensitivity=square), tmp_path)
    released = stream.release_function(lambda x: x.prod(axis=1, keepdims=True), 1)
    assert released(np.array([[0.5, 0.5], [1.0, 0.0]])).shape == (2, 1)
    with pytest.raises(ValueError, match=r"shape \[q, 2\]"):
        released(np.array([0.5]))


def test_extreme_values_stay_on_the_grid(tmp_path: Path) -> None:
    values = np.array([math.nan, math.inf, 1e300, -1e300, 5.0])
    released = opened(vector_release(size=5), tmp_path).release(values).values
    assert np.isfinite(released).all()
    assert released[2] > 1e6
    assert released[3] < -1e6
    assert abs(released[4]) < 15 * vector_release().sigma


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: vector_release(size=None), "public size"),
        (lambda: vector_release(size=0), "size must be"),
        (lambda: vector_release(noise_multiplier=0.0), "noise_multiplier"),
        (lambda: vector_release(noise_multiplier=1e6), "public grid"),
        (lambda: vector_release(horizon=0), "at least one"),
    ],
)
def test_nonsense_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_what_the_grid_cannot_resolve_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    """Rounding moves neighbours apart; the surplus of noise has to pay for it (theory 13)."""
    with pytest.raises(PrivacyError, match="too many, or too close"):
        vector_release(noise_multiplier=2.0**15, size=2**28)
    ledger = new_ledger(tmp_path)
    stream = path_release(size=6).open(ledger)
    with pytest.raises(PrivacyError, match="too many, or too close"):
        stream.release(np.zeros((3, 2)), [np.array([0.0, 2.0**-52, 1.0])])
    square = Sensitivity(1.0, 1.0, "so it was chosen", 1.0, dimensions=2)
    plane = path_release(size=4, sensitivity=square).open(new_ledger(tmp_path, name="plane"))
    with pytest.raises(PrivacyError, match="too many, or too close"):
        plane.release(np.zeros((2, 2, 1)), [np.array([0.0, 2.0**-44])] * 2)
    assert (ledger.spent().epsilon, plane.released) == (0, 0)
    stream.release(np.zeros((3, 2)), [np.array([0.0, 2.0**-30, 1.0])])


def test_releases_of_another_shape_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    stream = path_release().open(ledger)
    for values, axes, says in (
        (np.zeros(3), None, "22 were stated"),
        (REWARDS, None, "give axes"),
        (REWARDS, [NODES[:5]], "the axes"),
        (REWARDS, [NODES[::-1]], "increase strictly"),
        (REWARDS, [2 * NODES], r"\[0, 1\]"),
        (REWARDS[:, None], [NODES, np.zeros(1)], "in 1 dimensions, not 2"),
    ):
        with pytest.raises(ValueError, match=says):
            stream.release(values, axes)
    with pytest.raises(ValueError, match="without a stated size"):
        stream.release_function(lambda x: x, 1)
    assert ledger.spent().epsilon == 0


def test_messages_name_the_unit(tmp_path: Path) -> None:
    release = vector_release(noise_multiplier=Z / 2)
    with pytest.raises(BudgetExceeded, match="bring the worst reward function to epsilon"):
        release.open(new_ledger(tmp_path))
    many = vector_release(unit=TRANSITION, units=20_000, protects=IN_RANGE)
    with pytest.raises(BudgetExceeded, match=r"vacuous for 20000 transitions.* below 1/20000"):
        many.open(new_ledger(tmp_path, unit=TRANSITION, name="more")).release(REWARDS)


def test_files_of_charged_releases_are_found(tmp_path: Path) -> None:
    ledger, folder = new_ledger(tmp_path), tmp_path / "kept"
    assert kept_files(ledger, folder) == ()
    stream = vector_release(horizon=3).open(ledger, folder)
    values = [stream.release(REWARDS).values for _ in range(3)]
    files = kept_files(ledger, folder)
    for file, one in zip(files, values, strict=True):
        assert file is not None
        assert np.array_equal(ReleasedValues.open(file).values, one)
    assert files[1] is not None
    files[1].write_bytes(b"")  # as if killed before its only transaction was committed
    (tmp_path / "kept" / "elsewhere-0-0.values").write_bytes(b"")
    assert kept_files(ledger, folder) == (files[0], None, files[2])


def test_an_interrupted_stream_goes_on_to_its_horizon_and_no_further(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    release = vector_release(horizon=3)
    first = release.open(ledger).release(REWARDS).values
    spent = ledger.spent().epsilon
    ledger = Ledger.open(tmp_path / "ledger")
    stream = release.resume(ledger)
    assert stream.released == 1
    values = [first, *(stream.release(REWARDS).values for _ in range(2))]
    assert not np.array_equal(values[0], values[1])  # fresh noise
    with pytest.raises(HorizonExceeded):
        stream.release(REWARDS)
    assert ledger.spent().epsilon == spent
    with pytest.raises(LedgerMismatch, match="open a new one"):
        replace(release, horizon=4).resume(ledger)
    with pytest.raises(LedgerMismatch):
        release.resume(new_ledger(tmp_path, name="empty"))


# --- audits: rewards r against r + 1, and against their mirror image ----------------------------


PAIRS = {"shifted": REWARDS + 1.0, "mirrored": 0.5 - REWARDS}
DISCOUNT, ITERATIONS = 0.9, 10


def backup(values: Float[np.ndarray, "11 2 *samples"]) -> np.ndarray:
    """The discounted best value after each action, which moves up or down by .1: an averager."""
    best = values.max(axis=1)
    up = np.concatenate([best[1:], best[-1:]])
    down = np.concatenate([best[:1], best[:-1]])
    return DISCOUNT * np.stack([up, down], axis=1)


def iterated(rewards: np.ndarray) -> np.ndarray:
    values = np.zeros_like(rewards)
    for _ in range(ITERATIONS):
        values = rewards + backup(values)
    return values


def mode(name: str, pair: str, release: FunctionRelease) -> FunctionTrials:
    def rewards(present: bool) -> np.ndarray:
        return REWARDS if present else PAIRS[pair]

    axes = (NODES,)
    if name == "reward-release":
        return FunctionTrials(release, (11, 2), lambda p, _: rewards(p), axes)
    if name == "output-release":
        moved = averager_factor(DISCOUNT, ITERATIONS)
        one = release.sensitivity
        wider = replace(release, sensitivity=replace(one, value=moved * one.value))
        return FunctionTrials(wider, (11, 2), lambda p, _: iterated(rewards(p)), axes)

    def following(present: bool, released: list[np.ndarray]) -> np.ndarray:
        here = rewards(present)
        return here[..., None] + backup(released[-1]) if released else here

    return FunctionTrials(replace(release, horizon=ITERATIONS), (11, 2), following, axes)


@pytest.mark.parametrize("pair", list(PAIRS))
@pytest.mark.parametrize("name", ["reward-release", "output-release", "per-iteration"])
@pytest.mark.parametrize("make", [vector_release, path_release])
def test_modes_stay_below_their_certificate(
    name: str, pair: str, make: Callable[[], FunctionRelease]
) -> None:
    trials = mode(name, pair, make())
    certified = trials.certified_epsilon(DELTA)
    assert certified == pytest.approx(EPSILON, rel=1e-6)
    found = audit_mechanism(trials, 6000, 1, DELTA, certified_epsilon=certified)
    assert not found.refuted


@pytest.mark.parametrize("name", ["reward-release", "output-release", "per-iteration"])
def test_a_wrong_sensitivity_is_caught(name: str) -> None:
    """An audit of the same modes, with noise for a radius five times too small, refutes them."""
    too_small = replace(vector_sensitivity(11, 2, 0.2), change=1.0)
    trials = mode(name, "shifted", vector_release(sensitivity=too_small))
    found = audit_mechanism(trials, 6000, 1, DELTA, certified_epsilon=EPSILON)
    assert found.refuted


def test_shifts_of_neighbours_in_noise_never_exceed_the_multiplier() -> None:
    """The exact check behind the audits: no pair is further apart than 1/z, and r + 1 is there."""
    vector, paths = vector_release(), path_release()
    for pair in PAIRS.values():
        difference = pair - REWARDS
        assert np.linalg.norm(difference) / vector.sigma <= 1 / Z
        assert paths.sensitivity.beta is not None
        norms = [norm_at_points(NODES, one, paths.sensitivity.beta) for one in difference.T]
        assert math.hypot(*norms) / paths.sigma <= 1 / Z
    assert np.linalg.norm(PAIRS["shifted"] - REWARDS) / vector.sigma == pytest.approx(
        1 / Z, rel=1e-4
    )


def test_the_certificate_of_transitions_verifies_alone(tmp_path: Path) -> None:
    """Its sentence and its statement bound the same distance: that of a replacement."""
    sensitivity, says = Sensitivity(1 / 118, None, "averages", 1.0), ONE_REWARD(low="0", high="1")
    made = vector_release(unit=TRANSITION, sensitivity=sensitivity, units=500, protects=(says,))
    ledger = new_ledger(tmp_path, unit=TRANSITION)
    made.open(ledger).release(REWARDS)
    derive(ledger).write(tmp_path / "certificate.json")
    found = verify_file(tmp_path / "certificate.json")
    assert (found.status, found.reasons) == ("true", ())


def test_the_paths_of_all_actions_count_for_rounding(tmp_path: Path) -> None:
    """Each action has separate values, which are rounded like those of the others."""
    axes = [np.array([0.0, 2.0**-27, 1.0])]
    many = 3 * 2**17
    stream = path_release(size=many).open(new_ledger(tmp_path))
    with pytest.raises(PrivacyError, match="too many, or too close"):
        stream.release(np.zeros((3, many // 3)), axes)
    one = path_release(size=3).open(new_ledger(tmp_path, name="one"))
    one.release(np.zeros((3, 1)), axes)
