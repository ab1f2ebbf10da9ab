"""The server waits for people's devices that connect late, or miss a message."""

import time

import pytest
from local_grid import LocalGrid, persons
from test_training_on_devices import PROMISE, SLOTS, begun, installed, trained

from sotto.federated import messages, runs
from sotto.federated.client import client_app
from sotto.federated.network import Network

__all__ = ["installed"]  # the fixture that installs the algorithms


class Late(LocalGrid):
    """Nodes from `first` on connect some time after the server has looked for the first time."""

    def __init__(self, people: int, first: int, seconds: float) -> None:
        super().__init__(client_app(), persons(people))
        self._first, self._seconds, self._begun = 1000 + first, seconds, 0.0

    def get_node_ids(self) -> list[int]:
        self._begun = self._begun or time.monotonic()
        late = time.monotonic() - self._begun > self._seconds
        return [node for node in self.contexts if late or node < self._first]


def test_a_release_waits_for_people_who_can_still_be_charged(tmp_path):
    """All who were there at first are charged for the first release."""
    experiment, _ = begun(tmp_path, num_updates=2)
    reports: list = []
    network = Network(Late(2 * SLOTS, SLOTS, 1.5), 20.0)
    runs.train(experiment, PROMISE, network, reports.append)
    assert [one.updates for one in reports] == [1, 2]


def test_a_round_with_enough_people_waits_a_while_for_all_of_its_slots(tmp_path):
    experiment, _ = begun(tmp_path, num_updates=1)
    grid = Late(SLOTS, PROMISE.promised, 1.5)
    runs.train(experiment, PROMISE, Network(grid, 20.0), lambda _: None)
    assert experiment.runs[0].open_ledger().persons == SLOTS


def test_nobody_waits_longer_than_a_stage(tmp_path):
    experiment, _ = begun(tmp_path, num_updates=1)
    begin = time.monotonic()
    with pytest.raises(ValueError, match="3 people's devices are connected"):
        trained(experiment, LocalGrid(client_app(), persons(3)))
    assert time.monotonic() - begin < 10


def test_who_has_left_is_not_asked_until_they_are_there_again():
    grid = LocalGrid(client_app(), persons(3))
    network = Network(grid, 0.1)
    assert network.people() == [0, 1, 2]
    left = grid.contexts.pop(1001)
    assert network.people() == [0, 2]
    grid.contexts[1001] = left
    assert network.people() == [0, 1, 2]


def enrolments(grid: LocalGrid, node: int) -> int:
    stage = f"query.{messages.ENROL}"
    sent = [one.metadata for one in grid.sent]
    return sum(one.dst_node_id == node and one.message_type == stage for one in sent)


def test_a_node_that_missed_the_question_is_asked_again_and_then_no_more():
    grid = LocalGrid(client_app(), persons(4), lambda node, _kind: not enrolments(grid, node) - 1)
    network = Network(grid, 0.1)
    assert network.people() == []
    for _ in range(3):
        assert network.people() == [0, 1, 2, 3]
    assert {enrolments(grid, node) for node in grid.contexts} == {2}
    silent = LocalGrid(client_app(), persons(1), lambda _node, _kind: True)
    network = Network(silent, 0.1)
    for _ in range(5):
        assert network.people() == []
    assert enrolments(silent, 1000) == 3
