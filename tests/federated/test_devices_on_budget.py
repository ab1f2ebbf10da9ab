"""Trainings on people's devices that share a budget with other products."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
from local_grid import LocalGrid, persons
from products import charge, product, statement
from test_training_on_devices import PROMISE, SLOTS, Given, MeanConfig, charged, installed, trained

import sotto
from sotto.errors import RunError
from sotto.federated import messages, runs
from sotto.federated.client import client_app
from sotto.privacy.errors import BudgetExceeded, LedgerMismatch
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.allowances import Allowance
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.standing import person_standing
from sotto.privacy.release.noise_shares import SharedStream

__all__ = ["installed"]  # the fixture that installs the algorithms

ALLOWANCE = Allowance(epsilon=5.0, delta=1e-3)


@pytest.fixture
def budget(tmp_path: Path) -> SharedBudget:
    return SharedBudget.create(tmp_path / "people.budget", ALLOWANCE)


def begun(folder: Path, **settings):
    place = str(folder / "people.budget")
    return runs.begin(Given(), MeanConfig(**settings), PROMISE, folder / "run", "test", place)


def devices(count: int, lost=lambda _node, _kind: False) -> LocalGrid:
    app = client_app(lambda _plan, _state: np.full(3, 0.1, np.float32))
    return LocalGrid(app, persons(count), lost)


def people_of(experiment) -> list[int]:
    """The people whom the ledger of a run has charged."""
    streams = experiment.runs[0].open_ledger().streams
    return [p for one in streams for block in one.persons.blocks for p in range(*block)]


def epsilon_of(shifts: list[float], delta: float) -> float:
    """Epsilon of Gaussian releases with these shifts, to thirty digits, by bisection."""
    with mpmath.workdps(30):
        mu = mpmath.sqrt(sum(mpmath.mpf(shift) ** 2 for shift in shifts))

        def delta_of(epsilon):
            x, y = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
            return mpmath.ncdf(x) - mpmath.exp(epsilon) * mpmath.ncdf(y)

        low, high = mpmath.mpf(0), mpmath.mpf(100)
        for _ in range(90):
            middle = (low + high) / 2
            low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
        return float(high)


def test_a_training_on_devices_and_an_ordinary_one_add_up(budget, tmp_path):
    experiment = begun(tmp_path)
    trained(experiment, devices(18))
    ordinary = product(budget, tmp_path / "ordinary").open_stream(statement(2.0))
    charge(ordinary, 3, 40)
    (stream,) = experiment.runs[0].open_ledger().streams
    # The noise of `promised` shares, in units of what the devices' grid leaves of the clip norm.
    part, shares = stream.statement.parts["vector"], stream.statement.shares
    one = shares.parts["vector"]
    deviation = (shares.promised * one.variance - 8) ** 0.5
    shift = part.clip_norm / one.grid / deviation
    expected = {7: [shift], 40: [1 / 2.0], 3: [shift, 1 / 2.0]}
    for person, shifts in expected.items():
        spent = person_standing(budget, person).epsilon
        assert spent == pytest.approx(epsilon_of(shifts, ALLOWANCE.delta), rel=2e-3)
        wrong = epsilon_of([1.02 * one for one in shifts], ALLOWANCE.delta)
        assert spent != pytest.approx(wrong, rel=2e-3)  # 2% less noise
    assert person_standing(budget, 3).streams == (0, 1)
    assert {one.status for one in sotto.verify(tmp_path / "run").values()} == {"verified"}


def test_a_budget_that_does_not_cover_the_training_refuses_before_anybody_is_asked(
    budget, tmp_path
):
    grid = devices(18)
    with pytest.raises(BudgetExceeded, match="alone costs each person epsilon"):
        trained(begun(tmp_path, target_epsilon=9.0), grid)
    assert not grid.sent
    assert not (tmp_path / "run").exists()
    assert not budget.account().people.size


def test_who_has_spent_the_budget_is_never_asked(budget, tmp_path):
    spent = product(budget, tmp_path / "other").open_stream(statement(0.75))
    charge(spent, *range(5))
    experiment = begun(tmp_path, num_updates=2)
    grid = devices(17)
    trained(experiment, grid)
    assert set(people_of(experiment)) == set(range(5, 17))
    asked = {m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "query.keys"}
    assert asked == {1000 + person for person in range(5, 17)}


def test_nothing_is_opened_if_another_product_was_faster(budget, tmp_path):
    """It takes the budget of a person whose masked vector is on its way."""
    other = product(budget, tmp_path / "other").open_stream(statement(0.75))
    taken: list[int] = []

    def lost(node: int, kind: str) -> bool:
        if kind == f"query.{messages.VECTORS}" and not taken:
            taken.append(node - 1000)
            charge(other, node - 1000)
        return False

    experiment = begun(tmp_path, num_updates=1)
    grid = devices(13, lost)
    trained(experiment, grid)
    sent = [(m.metadata.message_type, m.metadata.dst_node_id) for m in grid.sent]
    assert len([kind for kind, _ in sent if kind == f"query.{messages.VECTORS}"]) == 2 * SLOTS
    opened = {node - 1000 for kind, node in sent if kind == f"query.{messages.OPEN}"}
    assert len(opened) == SLOTS
    assert not opened & set(taken)
    assert set(people_of(experiment)) == opened
    assert set(budget.account().people.tolist()) == opened | set(taken)


def test_a_product_that_is_faster_at_the_last_moment_ends_a_round_and_no_run(
    budget, tmp_path, monkeypatch
):
    """It takes somebody's budget just before the charge."""
    other = product(budget, tmp_path / "other").open_stream(statement(0.75))
    taken: list[int] = []
    charged_before = SharedStream.charge

    def later(stream, people):
        if not taken:
            taken.append(int(people[0]))
            charge(other, taken[0])
        charged_before(stream, people)

    monkeypatch.setattr(SharedStream, "charge", later)
    experiment = begun(tmp_path, num_updates=1)
    trained(experiment, devices(13))
    took_part = set(people_of(experiment))
    assert len(took_part) == SLOTS
    assert not took_part & set(taken)
    assert set(budget.account().people.tolist()) == took_part | set(taken)


def test_a_budget_that_too_many_people_share_ends_the_run(tmp_path):
    """Nobody is charged of whom its delta could not be kept."""
    SharedBudget.create(tmp_path / "people.budget", ALLOWANCE.model_copy(update={"delta": 0.1}))
    experiment = begun(tmp_path, num_updates=2)
    with pytest.raises(RunError, match=r"3 of 13 .* have spent the shared budget or are too many"):
        trained(experiment, devices(13))


def test_a_drop_out_costs_nothing(budget, tmp_path):
    """Somebody whose vector never came is in no sum."""
    experiment = begun(tmp_path, num_updates=1)

    def lost(node: int, kind: str) -> bool:
        return kind == f"query.{messages.VECTORS}" and node == 1002

    trained(experiment, devices(SLOTS, lost))
    assert set(people_of(experiment)) == set(range(SLOTS)) - {2}
    assert person_standing(budget, 2).epsilon == 0


def test_too_few_people_with_room_are_said_plainly(budget, tmp_path):
    charge(product(budget, tmp_path / "other").open_stream(statement(0.75)), 0, 1)
    with pytest.raises(RunError, match=r"3 of 5 .* \(others took part, have spent the shared"):
        trained(begun(tmp_path), devices(5))


def test_continuing_needs_the_budget(budget, tmp_path):
    with pytest.raises(RunError, match="0 of 6 connected people can be charged"):
        trained(begun(tmp_path, num_updates=2), devices(SLOTS))
    experiment, promise = runs.go_on(tmp_path / "run")
    with pytest.raises(LedgerMismatch, match="give its place again: --budget PLACE"):
        trained(experiment, devices(18), promise)
    experiment, promise = runs.go_on(tmp_path / "run", budget=str(tmp_path / "people.budget"))
    trained(experiment, devices(18), promise)
    assert charged(tmp_path) == 2


def test_simulated_people_share_no_budget(budget, tmp_path):
    from test_training_on_devices import Mean

    place = str(tmp_path / "people.budget")
    experiment = runs.begin(Mean(), MeanConfig(), PROMISE, tmp_path / "run", "test", place)
    with pytest.raises(LedgerMismatch, match="nobody to protect"):
        trained(experiment, LocalGrid(client_app(), persons(18)))
    assert not (tmp_path / "run").exists()


def test_a_budget_beyond_the_proof_of_shares_is_refused(tmp_path):
    SharedBudget.create(tmp_path / "people.budget", Allowance(epsilon=101.0, delta=1e-3))
    with pytest.raises(BudgetExceeded, match="in shares, which is accounted up to epsilon 100"):
        trained(begun(tmp_path), devices(18))


def test_a_kill_between_the_two_charges_counts_too_much_and_never_too_little(budget, tmp_path):
    code = (
        "import sys, pathlib; sys.path[:0] = sys.argv[2:]\n"
        "import test_devices_on_budget as t\n"
        "t.killed_between_the_charges(pathlib.Path(sys.argv[1]))\n"
    )
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "privacy")]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), *folders], capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert charged(tmp_path) == 1  # the second one is in the shared budget only
    assert len(budget.account().people) == 2 * SLOTS
    experiment, promise = runs.go_on(tmp_path / "run", budget=str(tmp_path / "people.budget"))
    trained(experiment, devices(40), promise)
    account, people = budget.account(), set(people_of(experiment))
    assert people <= set(account.people.tolist())
    streams = experiment.runs[0].open_ledger().streams
    for ours, theirs in zip(streams, account.streams, strict=True):
        assert theirs.size >= len(ours.persons)


def killed_between_the_charges(folder: Path) -> None:
    """Dies when the ledger of the run would write its second charge."""
    from test_training_on_devices import registry

    known = registry.entries()
    known[Given.name] = registry.Entry("test_training_on_devices:Given", "a mean of given vectors")
    registry.entries = lambda: known  # type: ignore[assignment]
    append, left = entries.append, [1]

    def killed(engine, entry) -> None:
        if entry.kind == "charge":
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        append(engine, entry)

    entries.append = killed
    trained(begun(folder, num_updates=3), devices(40))
