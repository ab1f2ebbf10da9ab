"""Messages that a device gets twice, as networks may deliver them, and those for others."""

import pytest
from flwr.app import Message
from local_grid import LocalGrid, persons
from test_training_on_devices import SLOTS, begun, charged, installed, plan, trained

from sotto.federated import messages
from sotto.federated.client import client_app
from sotto.federated.network import Network

__all__ = ["installed"]  # the fixture that installs the algorithms

STAGES = (messages.KEYS, messages.SHARES, messages.VECTORS, messages.OPEN)


class Again(LocalGrid):
    """Delivers messages of one stage a second time, and the second answers as well."""

    def __init__(self, stage: str, people: int) -> None:
        super().__init__(client_app(), persons(people))
        self.again: list[dict] = []  # what devices say the second time
        self._kind = f"query.{stage}"

    def send_and_receive(self, asked, *, timeout):
        sent = list(asked)
        answers = super().send_and_receive(sent, timeout=timeout)
        for message in sent:
            if message.metadata.message_type == self._kind:
                (second,) = super().send_and_receive([message], timeout=timeout)
                self.again.append(messages.people_in(second.content))
                answers.append(second)
        return answers


@pytest.mark.parametrize("stage", STAGES)
def test_a_message_that_comes_twice_is_answered_once_and_the_round_goes_on(tmp_path, stage):
    experiment, _ = begun(tmp_path, num_updates=2)
    grid = Again(stage, 2 * SLOTS)
    assert [one.updates for one in trained(experiment, grid)] == [1, 2]
    assert charged(tmp_path) == 2  # no release was lost
    assert grid.again == [{}] * 2 * SLOTS


@pytest.mark.parametrize("later", [False, True])
def test_a_finished_round_is_not_answered_again(tmp_path, later):
    """Also when the device has begun another round since."""
    experiment, _ = begun(tmp_path, num_updates=1)
    grid = LocalGrid(client_app(), persons(SLOTS))
    trained(experiment, grid)

    def answer(message: Message) -> dict:
        (found,) = grid.send_and_receive([message], timeout=1)
        return messages.people_in(found.content)

    whole = [m for m in grid.sent if m.metadata.message_type != f"query.{messages.ENROL}"]
    if later:
        first, node = whole[0].content, whole[0].metadata.dst_node_id
        other = messages.content(
            messages.people_in(first), messages.settings_in(first), b"another round id"
        )
        assert answer(Message(other, node, f"query.{messages.KEYS}"))
    assert [answer(message) for message in whole] == [{}] * len(STAGES) * SLOTS


def test_nobody_answers_for_somebody_else():
    """The last device that answers would put its own vector in another person's place."""
    grid = LocalGrid(client_app(), persons(3))
    network, settings = Network(grid, 0.1), plan().to_json()
    nothing = {person: messages.of_bytes(b"") for person in network.people()}
    real = grid.send_and_receive

    def forged(asked, *, timeout):
        answers = real(asked, timeout=timeout)
        answers[-1].content["person-0"] = messages.of_bytes(b"forged")
        return answers

    grid.send_and_receive = forged
    found = network.ask(messages.KEYS, nothing, settings, bytes(16), messages.bytes_in)
    assert set(found) == {0, 1, 2}
    assert b"forged" not in found.values()


def test_who_claims_to_be_somebody_later_is_not_asked_for_them():
    grid = LocalGrid(client_app(), {1000: {"person": 3}})
    network, nothing = Network(grid, 0.1), {3: messages.of_bytes(b"")}
    assert network.people() == [3]
    grid.contexts |= LocalGrid(client_app(), {1001: {"person": 3}}).contexts
    assert network.people() == [3]
    network.ask(messages.KEYS, nothing, plan().to_json(), bytes(16), messages.bytes_in)
    assert grid.sent[-1].metadata.dst_node_id == 1000
