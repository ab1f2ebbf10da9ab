"""The door for stable prefixes: what it releases has the law that is certified, and is paid for."""

import math
import time
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_stable_prefixes import DEPTH, Group, Law, Prefix, Run, runs, scattered, tree, votes

from sotto.privacy.accounting.composition import compose
from sotto.privacy.bounds import at_most
from sotto.privacy.certificates.derive import derive, render, verify
from sotto.privacy.errors import (
    BudgetExceeded,
    HorizonExceeded,
    LedgerMismatch,
    LedgerUnavailable,
    PrivacyError,
)
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.mechanisms.prefix_calibration import (
    Target,
    calibrate_floor,
    calibrate_random_stop,
)
from sotto.privacy.mechanisms.sparse_vector import UNIT, NoiseName, named
from sotto.privacy.mechanisms.stable_prefixes import (
    Consensus,
    Floor,
    RandomStop,
    Rule,
    StablePrefixMechanism,
)
from sotto.privacy.release.prefixes import (
    PrefixRelease,
    Rollouts,
    StablePrefixes,
    _Draws,
    _follower,
    _weights,
)
from sotto.privacy.release.purity import ImpureFunction
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part, Poisson
from sotto.privacy.units import EXPERT, Adjacency, Unit

SLOTS = 30
DRAWS = 20_000
STATES = 2 ** (2 * DEPTH + 1)  # a state is its history: every action, and a bit of the world


class TreeWorld:
    """Observations are the history so far, as a number; a bit of the world's own after actions."""

    def __init__(self, seed: int = 1, bits: bool = False, ends_after: int | None = None) -> None:
        self._random = np.random.default_rng(seed)
        self._bits = bits
        self._ends_after = ends_after
        self.calls: list[str] = []

    def reset(self, count: int) -> np.ndarray:
        self.calls.append("reset")
        self._state = np.ones(count, np.int64)
        self._steps = 0
        return self._state[:, None].astype(np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.calls.append("step")
        self._steps += 1
        self._state = 2 * self._state + actions
        if self._bits:
            self._state = 2 * self._state + self._random.integers(2, size=len(actions))
        ended = np.full(len(actions), self._steps == self._ends_after)
        return self._state[:, None].astype(np.float32), actions + 1.0, ended


def prefixes_of(states: int) -> list[Prefix]:
    """The history that every state stands for; state 1 is the empty one."""
    return [() if state < 1 else tuple(map(int, f"{state:b}"[1:])) for state in range(states)]


def experts_and_groups(
    floor: float, sizes: tuple[int, ...] = (3, 3, 3, SLOTS - 9)
) -> tuple[jax.Array, list[Group]]:
    """Tables of greedy actions by state, and the same experts as the test of trees has them."""
    greedy = [scattered(1), scattered(2), scattered(3), lambda prefix: 0]
    tables = [[g(prefix) for prefix in prefixes_of(STATES)] for g in greedy]
    stacked = np.repeat(np.array(tables, np.int32), sizes, axis=0)
    groups = [Group(n, g, floor) for n, g in zip(sizes, greedy, strict=True)]
    return jnp.asarray(stacked), groups


def look_up(table: jax.Array, observations: jax.Array) -> jax.Array:
    return table[observations[:, 0].astype(jnp.int32)]


def new_ledger(
    folder: Path, epsilon: float = math.inf, delta: float = 1e-3, name: str = "ledger"
) -> Ledger:
    return Ledger.create(folder / name, unit=EXPERT, budget=Budget(epsilon=epsilon, delta=delta))


def planned(
    mechanism: StablePrefixMechanism, releases: int, horizon: int = DEPTH, actions: int = 2
) -> PrefixRelease:
    return PrefixRelease("prefixes", mechanism, releases, horizon, actions, "simulated")


def small(rule: Rule, noise: NoiseName = "exponential", experts: int = 20) -> StablePrefixMechanism:
    return StablePrefixMechanism(
        experts=experts, rule=rule, noise=named(noise, 2.0, 0.6), failure=0.05
    )


FLOOR = Floor(floor=0.2, ratio=2.0)
STOP = RandomStop(hazard=0.2, ratio=2.0)


def histories(released: StablePrefixes) -> Law:
    """Counts how often each history was released, from the states alone."""
    last = released.observations[np.arange(len(released.lengths)), released.lengths, 0]
    states, counts = np.unique(last.astype(int), return_counts=True)
    prefixes = prefixes_of(STATES)
    return {prefixes[s]: n / len(last) for s, n in zip(states, counts, strict=True)}


def farthest(found: Law, law: Law) -> float:
    """Largest distance of a frequency from its probability, in standard deviations."""
    worst = 0.0
    for key in {*found, *law}:
        p = law.get(key, 0.0)
        spread = math.sqrt(max(p * (1 - p), 1e-7) / DRAWS)
        worst = max(worst, abs(found.get(key, 0.0) - p) / spread)
    return worst


# --- the law -------------------------------------------------------------------------------------

LAWS = [
    *(small(FLOOR, name, experts=SLOTS) for name in get_args(NoiseName)),
    small(RandomStop(hazard=0.2, floor=0.1, ratio=2.0), experts=SLOTS),
]


@pytest.mark.parametrize("mechanism", LAWS, ids=lambda m: f"{m.rule.kind}-{m.noise.law}")
def test_what_is_released_has_the_law_of_the_tree(
    tmp_path: Path, mechanism: StablePrefixMechanism
) -> None:
    """Rule, coin, slips, drawn expert, masses and noise at once, against whole-tree quadrature."""
    tables, groups = experts_and_groups(mechanism.rule.floor)
    opened = planned(mechanism, DRAWS).open(new_ledger(tmp_path), noise_seed=11)
    found = histories(opened.release(tables, look_up, TreeWorld()))
    run = runs(mechanism)
    assert farthest(found, tree(groups, run)) < 6
    # The check sees noise of another scale, another threshold, and another floor.
    louder = Run(run.threshold, named("paper-laplace", 0.9), run.hazard)
    assert farthest(found, tree(groups, louder)) > 12
    assert farthest(found, tree(groups, Run(run.threshold + 1, run.noise, run.hazard))) > 8
    slipped = [Group(g.size, g.greedy, g.floor + 0.04) for g in groups]
    assert farthest(found, tree(slipped, run)) > 8


def test_votes_have_the_law_of_the_tree(tmp_path: Path) -> None:
    mechanism = small(Consensus(), "monotone-laplace", experts=SLOTS)
    tables, groups = experts_and_groups(0.0, (4, 5, 6, 15))  # leads of 0 to 30
    opened = planned(mechanism, DRAWS).open(new_ledger(tmp_path), noise_seed=12)
    found = histories(opened.release(tables, look_up, TreeWorld(bits=True)))
    assert farthest(found, votes(groups, runs(mechanism))) < 6
    off = Run(mechanism.threshold + 1, mechanism.noise)
    assert farthest(found, votes(groups, off)) > 8


def test_an_absent_expert_counts_for_nothing_and_is_not_drawn(tmp_path: Path) -> None:
    mechanism = small(FLOOR)
    tables, groups = experts_and_groups(FLOOR.floor)
    present = np.arange(SLOTS) >= 6  # the first two groups stay away
    opened = planned(mechanism, DRAWS).open(new_ledger(tmp_path), noise_seed=13)
    found = histories(opened.release(tables, look_up, TreeWorld(), present))
    assert farthest(found, tree(groups[2:], runs(mechanism))) < 6
    assert farthest(found, tree(groups, runs(mechanism))) > 12


def test_no_rollout_decides_another_ones_action(tmp_path: Path) -> None:
    """A function that reads all observations at once sees one at a time."""
    tables, _ = experts_and_groups(FLOOR.floor)

    def mixing(table: Any, seen: Any) -> Any:
        return look_up(table, jnp.broadcast_to(seen.max(axis=0), seen.shape))

    released = []
    for number, greedy in enumerate((look_up, mixing)):
        (tmp_path / str(number)).mkdir()
        opened = planned(small(FLOOR), 100).open(new_ledger(tmp_path / str(number)), noise_seed=14)
        released.append(opened.release(tables, greedy, TreeWorld()))
    assert released[0].lengths.max() > 1
    for one, other in zip(*released, strict=True):
        assert np.array_equal(one, other)


def test_prefixes_are_cut_where_they_end(tmp_path: Path) -> None:
    tables, _ = experts_and_groups(FLOOR.floor)
    opened = planned(small(FLOOR), 500).open(new_ledger(tmp_path))
    released = opened.release(tables, look_up, TreeWorld())
    assert released.observations.shape == (500, DEPTH + 1, 1)
    assert released._fields == ("observations", "actions", "rewards", "lengths", "terminated")
    steps = np.arange(DEPTH)
    inside = steps < released.lengths[:, None]
    assert len(np.unique(released.lengths)) > 2
    assert not released.actions[~inside].any()
    assert not released.rewards[~inside].any()
    assert not released.observations[:, 1:, 0][~inside].any()
    assert np.array_equal(released.rewards, np.where(inside, released.actions + 1.0, 0))
    for row in range(500):
        state = 1
        for number in range(released.lengths[row]):
            assert released.observations[row, number, 0] == state
            state = 2 * state + released.actions[row, number]
        assert released.observations[row, released.lengths[row], 0] == state
    assert not released.terminated.any()  # a cut is no termination


def test_a_terminal_state_ends_a_prefix_and_is_released(tmp_path: Path) -> None:
    agreeing = jnp.zeros((201, STATES), jnp.int32)
    mechanism = small(Consensus(), experts=200)
    opened = planned(mechanism, 20).open(new_ledger(tmp_path))
    released = opened.release(agreeing, look_up, TreeWorld(ends_after=2))
    assert (released.lengths == 2).all()  # a lead of 200 fails with probability e^-50
    assert released.terminated.all()
    assert (released.observations[:, 2, 0] == 4).all()


# --- the ledger and the certificate --------------------------------------------------------------


def test_charged_in_full_before_any_expert_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, _ = experts_and_groups(FLOOR.floor)
    ledger, world = new_ledger(tmp_path), TreeWorld()
    opened = planned(small(FLOOR), 7).open(ledger)
    charged = []

    def refuse(stream: LedgerStream, first: int, count: int, persons: object) -> None:
        charged.append((first, count, persons))
        raise LedgerUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(LedgerStream, "charge", refuse)
        with pytest.raises(LedgerUnavailable):
            opened.release(tables, look_up, world)
    assert charged == [(0, 7, [(0, SLOTS)] * 7)]
    assert "step" not in world.calls
    assert ledger.spent().epsilon == 0

    class Killed(TreeWorld):
        def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened.release(tables, look_up, Killed())
    assert Ledger.open(tmp_path / "ledger").streams[0].releases == 7  # paid all the same
    with pytest.raises(HorizonExceeded):
        opened.release(tables, look_up, world)


def test_a_release_is_certified_for_what_it_was_calibrated(tmp_path: Path) -> None:
    target = Target(200, 5, 4.0, 1 / 2000, horizon=DEPTH)
    mechanism = calibrate_random_stop(target, 0.2)
    ledger = new_ledger(tmp_path, epsilon=4.0, delta=1 / 2000)
    opened = planned(mechanism, 5).open(ledger)
    opened.release(jnp.zeros((201, STATES), jnp.int32), look_up, TreeWorld())
    again = Ledger.open(tmp_path / "ledger")
    certificate = derive(again)
    certificate.write(tmp_path / "certificate.json")
    assert verify(tmp_path / "certificate.json", again).status == "verified"
    assert certificate.status == "proved"
    assert 3.5 < certificate.epsilon <= 4.0
    assert certificate.persons == 201
    assert certificate.unit == EXPERT
    assert any("released without noise" in said for said in certificate.does_not_protect)
    shared = [one for one in certificate.assumptions if "the same MDP" in one.statement]
    assert [one.enforced_by for one in shared] == ["user"]
    assert not any("clipped contributions" in one.how for one in certificate.assumptions)
    said = "".join(str(part) for part in _texts(render(certificate)))
    assert f"threshold {at_most(mechanism.threshold, 6)} of 200" in said
    assert "201 experts" in said
    with pytest.raises(BudgetExceeded):
        planned(mechanism, 1).open(again)


def _texts(rendered: object) -> list[object]:
    parts = getattr(rendered, "renderables", [])
    return [getattr(part, "renderable", part) for part in parts]


def test_with_noisy_steps_on_the_same_experts_the_cost_is_joint(tmp_path: Path) -> None:
    mechanism = calibrate_floor(Target(200, 5, 4.0, 1 / 2000, horizon=DEPTH), 0.2)
    steps = Release(
        name="steps", unit=EXPERT, slots=200, divisor=20.0, horizon=3, population="simulated",
        parts={"gradient": Part(clip_norm=1.0, noise_multiplier=2.0)},
        participation=Poisson(sampling_rate=0.1, population=200),
        local=lambda state, unit, key: ({"gradient": state[0] + unit}, ()),
        server=lambda state, released: (state, released["gradient"]),
    )  # fmt: skip
    ledger = new_ledger(tmp_path, epsilon=5.0, delta=1 / 2000)
    alone = compose([mechanism.event(5)]).epsilon(1 / 2000)
    state, data = jnp.zeros((1, 1)), jnp.ones((200, 1))
    prefixes, stream = planned(mechanism, 5).open(ledger), steps.open([ledger], state, data)
    prefixes.release(jnp.zeros((201, STATES), jnp.int32), look_up, TreeWorld())
    assert ledger.spent().epsilon > alone  # of all that is planned, from the first charge on
    stream.run(state, jax.random.key(0)[None], units=data[None])
    joint = ledger.spent()
    assert {event.kind for event in joint.worst.events} == {"stable-prefixes", "sampled-gaussian"}
    assert alone < joint.epsilon <= 5.0
    said = [one.statement for one in derive(ledger).assumptions]
    assert any("the same MDP" in one for one in said)
    assert any("Poisson" in one for one in said)


def test_a_fixed_seed_voids_the_certificate(tmp_path: Path) -> None:
    tables, _ = experts_and_groups(FLOOR.floor)
    ledger = new_ledger(tmp_path)
    planned(small(FLOOR), 3).open(ledger, noise_seed=1).release(tables, look_up, TreeWorld())
    assert derive(ledger).status == "none"
    assert derive(ledger).epsilon == math.inf


# --- what is refused -----------------------------------------------------------------------------


class Log(NamedTuple):
    observations: np.ndarray
    actions: np.ndarray


@pytest.mark.unchecked_types
def test_a_fixed_log_is_refused_with_the_reason(tmp_path: Path) -> None:
    tables, _ = experts_and_groups(FLOOR.floor)
    ledger = new_ledger(tmp_path)
    opened = planned(small(FLOOR, experts=SLOTS), 25).open(ledger)
    log = Log(np.zeros((SLOTS, 5, 1)), np.zeros((SLOTS, 4)))
    assert not isinstance(log, Rollouts)
    reach = 1 - (1 - 1 / SLOTS) ** 25
    with pytest.raises(PrivacyError, match=f"not a fixed log.*{reach:.3g}.*delta at any epsilon"):
        opened.release(tables, look_up, log)  # type: ignore[arg-type]
    assert ledger.spent().epsilon == 0


def test_what_does_not_fit_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    tables, _ = experts_and_groups(FLOOR.floor)
    ledger = new_ledger(tmp_path)
    opened = planned(small(FLOOR), 3).open(ledger)
    with pytest.raises(PrivacyError, match="fewer than the 20 experts"):
        opened.release(tables, look_up, TreeWorld(), np.arange(SLOTS) < 18)
    with pytest.raises(ValueError, match="one entry for each"):
        opened.release(tables, look_up, TreeWorld(), np.ones(3, bool))
    with pytest.raises(ValueError, match="leading axis"):
        opened.release((tables, tables[:5]), look_up, TreeWorld())
    with pytest.raises(ImpureFunction):
        opened.release(tables, lambda table, seen: look_up(tables[0], seen), TreeWorld())
    with pytest.raises(ValueError, match="must return one integer for each"):
        opened.release(tables, lambda table, seen: seen[:, 0], TreeWorld())
    with pytest.raises(PrivacyError, match="fewer than the 20 experts"):
        opened.release(tables, look_up, TreeWorld(), np.arange(SLOTS) < 19)
    assert ledger.streams[0].releases == 0
    # One less than stated is what a neighbour has: an audit, which has a fixed seed, plays it.
    audited = planned(small(FLOOR), 3).open(new_ledger(tmp_path, name="audit"), noise_seed=0)
    audited.release(tables, look_up, TreeWorld(), np.arange(SLOTS) < 19)


def test_plans_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot all have probability"):
        planned(small(FLOOR), 3, actions=6)
    for wrong in ({"releases": 0}, {"horizon": 0}, {"actions": 1}):
        with pytest.raises(ValueError, match="at least one release"):
            planned(small(FLOOR), **({"releases": 1} | wrong))
    with pytest.raises(BudgetExceeded, match="vacuous for 20 experts"):
        planned(small(FLOOR), 3).open(new_ledger(tmp_path, delta=0.05))
    with pytest.raises(BudgetExceeded, match="over the budget"):
        planned(small(FLOOR), 3).open(new_ledger(tmp_path, epsilon=0.5, name="little"))
    people = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
    other = Ledger.create(tmp_path / "o", unit=people, budget=Budget(epsilon=9, delta=1e-3))
    with pytest.raises(LedgerMismatch):
        planned(small(FLOOR), 3).open(other)


# --- arithmetic of masses ------------------------------------------------------------------------


def test_weights_are_rounded_down_and_one_expert_moves_a_mass_by_at_most_one() -> None:
    for floor, actions in ((0.0, 2), (0.01, 2), (0.2, 4), (0.5, 2)):
        for length in (1, 2, 200):
            weights = _weights(length, floor, actions)
            others = np.arange(length + 1)
            true = (1 - (actions - 1) * floor) ** (length - others) * floor**others
            assert (weights <= true * UNIT).all()
            assert (weights > true * UNIT - 1.001).all()
            assert 0 <= weights.min() <= weights.max() < UNIT


def test_masses_of_3000_experts_take_well_under_a_second() -> None:
    plan = PrefixRelease("fast", calibrate_floor(Target(3000, 100, 5, 1 / 6000), 0.01), 100, 200,
                         2, "simulated")  # fmt: skip
    rng = np.random.default_rng(0)
    here = np.ones(3000, bool)
    step = _follower(plan, here, _Draws.of(plan, 3000, rng))
    answers = rng.integers(2, size=(3000, 100))
    start = time.process_time()
    for number in range(200):
        step(number, answers, here, 2)
    assert time.process_time() - start < 3  # measured: well below 1; slow machines get slack
