"""Flower without its processes: messages go straight to the app of a device."""

from collections.abc import Callable, Iterable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid:
    """A grid of nodes in this process, as far as `sotto.federated.network` uses one.

    Args:
        app: app of every node.
        configs: configuration of each node, by its id.
        lost: whether a message to a node, of this type, gets no answer.
    """

    def __init__(
        self,
        app: ClientApp,
        configs: dict[int, dict],
        lost: Callable[[int, str], bool] = lambda _node, _kind: False,
    ) -> None:
        self._app, self._lost = app, lost
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as Flower does
        self.seen: list[Message] = []  # all that the server sees
        self.sent: list[Message] = []
        self.contexts = {
            node: Context(
                run_id=1, node_id=node, node_config=one, state=RecordDict(), run_config={}
            )
            for node, one in configs.items()
        }

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        answers = []
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            self.sent.append(message)
            if not self._lost(node, kind):
                answer = self._app(message, self.contexts[node])
                answer.metadata.__dict__["_src_node_id"] = node
                answers.append(answer)
        self.seen += answers
        return answers


def persons(count: int) -> dict[int, dict]:
    """One node for each person."""
    return {1000 + person: {"person": person} for person in range(count)}


def hosts(nodes: int) -> dict[int, dict]:
    """Nodes of a simulation."""
    return {
        1000 + index: {"partition-id": index, "num-partitions": nodes} for index in range(nodes)
    }
