"""The server's way to the devices, through Flower: it asks a stage of many people at once."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from sotto.federated import messages
from sotto.federated.device import PROTOCOL
from sotto.federated.errors import ProtocolError
from sotto.privacy.ledger.persons import LARGEST_PERSON

_Answer = TypeVar("_Answer")
_LOOK_SECONDS = 1.0
_ENROLMENT_TRIES = 3
"""Most times that a node is asked who it is. Each time that it is silent, everybody waits."""

_log = logging.getLogger(__name__)


class Network:
    """The devices that are connected now.

    Args:
        grid: Flower's connection to its nodes.
        time_limit: seconds that a stage waits for answers; who answers later has dropped out.
        simulated: whether one node has the devices of many people. Otherwise it has one.
    """

    def __init__(self, grid: Grid, time_limit: float, simulated: bool = False) -> None:
        self._grid, self._time_limit, self._simulated = grid, time_limit, simulated
        self._nodes: dict[int, int] = {}  # node of each person
        self._known: set[int] = set()  # nodes that have said who they are
        self._tries: dict[int, int] = {}  # how often each connected node was asked

    def people(self) -> list[int]:
        """Returns the numbers of all people whose devices are connected now."""
        online = set(self._grid.get_node_ids())
        self._enrol(online)
        return sorted(person for person, node in self._nodes.items() if node in online)

    def wait_for(
        self, choose: Callable[[list[int]], list[int]], count: int, longest: float = math.inf
    ) -> list[int]:
        """Returns whom `choose` chooses, once they are enough or the time is over.

        Args:
            choose: function that chooses among the connected people.
            count: number of people that is enough.
            longest: seconds to wait for them, at most as long as one stage.
        """
        end = time.monotonic() + min(longest, self._time_limit)
        while len(found := choose(self.people())) < count and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        return found

    def _enrol(self, online: set[int]) -> None:
        """Asks nodes that have not said it who they are.

        A node that does not answer is asked a few times more. A person whom two nodes claim keeps
        the first one.
        """
        self._tries = {node: tries for node, tries in self._tries.items() if node in online}
        new = [node for node in online - self._known if self._tries.get(node, 0) < _ENROLMENT_TRIES]
        self._tries |= {node: self._tries.get(node, 0) + 1 for node in new}
        asked = [Message(messages.content({}), node, f"query.{messages.ENROL}") for node in new]
        for answer in self._grid.send_and_receive(asked, timeout=self._time_limit):
            if not answer.has_content():
                continue
            self._known.add(answer.metadata.src_node_id)
            record = answer.content.config_records.get("enrolled", ConfigRecord())
            if record.get("protocol") != PROTOCOL:
                _log.warning(
                    "a device of another version of the protocol is left out; install the "
                    "server's version of sotto on it"
                )
                continue
            persons = record.get("persons")
            if not isinstance(persons, list) or (len(persons) > 1 and not self._simulated):
                _log.warning("a node that is not the device of one person is left out")
                continue
            for person in persons:
                if type(person) is int and 0 <= person <= LARGEST_PERSON:
                    self._nodes.setdefault(person, answer.metadata.src_node_id)

    def ask(
        self,
        stage: str,
        requests: Mapping[int, ConfigRecord],
        settings: str,
        round_id: bytes,
        read: Callable[[ConfigRecord], _Answer],
        state: ArrayRecord | None = None,
    ) -> dict[int, _Answer]:
        """Asks one stage of people's devices, and returns the answers that came in time.

        Args:
            stage: the stage.
            requests: record for each person.
            settings: settings of the training.
            round_id: id of the round.
            read: reads an answer; an answer that it refuses counts as missing.
            state: the public state, if the stage needs it.
        """
        by_node: dict[int, dict[int, ConfigRecord]] = {}
        for person, request in requests.items():
            by_node.setdefault(self._nodes[person], {})[person] = request
        asked = [
            Message(
                messages.content(people, settings, round_id, state),
                node,
                f"query.{stage}",
                ttl=self._time_limit,
            )
            for node, people in by_node.items()
        ]
        found: dict[int, _Answer] = {}
        for answer in self._grid.send_and_receive(asked, timeout=self._time_limit):
            if not answer.has_content():
                _log.warning("a device failed in the stage %s", stage)
                continue
            mine = by_node.get(answer.metadata.src_node_id, {})
            for person, record in messages.people_in(answer.content).items():
                if person not in mine:
                    continue  # nobody answers for somebody else
                try:
                    found[person] = read(record)
                except ProtocolError as error:
                    _log.warning("an answer in the stage %s is refused: %s", stage, error)
        return found
