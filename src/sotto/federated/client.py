"""A person's device, as an app of Flower: it masks what `local` of an algorithm contributes.

```
app = client_app()                  # simulated people, who are made from a key
app = client_app(own_data)          # the owner's data
```

A node with `person=7` in its `--node-config` is the device of person 7. All that a device remembers
between the stages of a round is in the state that Flower keeps for the node. JAX is imported only
in the stage that needs it, because Flower starts a process for each message.
"""

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from sotto.federated import messages
from sotto.federated.device import PROTOCOL, RoundDevice
from sotto.federated.errors import ProtocolError
from sotto.privacy.errors import PrivacyError

if TYPE_CHECKING:
    from sotto.federated.plan import Plan

OwnData: TypeAlias = Callable[["Plan", Any], Any]
"""The data of the device's owner, given the plan and the public state: as `local` takes it."""

Present: TypeAlias = Callable[[bytes, int, str], bool]
"""Whether a simulated person answers, given the round, the person's number and the stage."""

_log = logging.getLogger(__name__)


def simulated(plan: "Plan", state: Any) -> Any:
    """Returns no data: `local` makes a simulated person from its key.

    Raises:
        ProtocolError: the training is about real people.
    """
    del state
    if plan.shared.release.population == "real":
        raise ProtocolError("this training is about real people; start the device with its data")
    return ()


def _always(_round: bytes, _person: int, _stage: str) -> bool:
    return True


def client_app(
    own_data: OwnData = simulated, people: int | None = None, present: Present = _always
) -> ClientApp:
    """Returns the app of a device.

    Args:
        own_data: the data of the device's owner. A training about simulated people never gets them.
        people: number of simulated people, whose devices are spread over all nodes of a simulation.
            None: the node is the device of one person.
        present: which simulated people answer.
    """

    def keys(message: Message, context: Context, person: int, _request: ConfigRecord) -> _Turn:
        device = RoundDevice(messages.terms_in(message.content))
        _begin(context, person, device.terms.round)
        return device, messages.of_bytes(device.announce())

    def shares(message: Message, context: Context, person: int, request: ConfigRecord) -> _Turn:
        device, seat = _recalled(message, context, person, "share"), messages.seat_in(request)
        given = device.share(seat.place, seat.people, seat.keys)
        return device, messages.of_places(given)

    def vector(message: Message, context: Context, person: int, request: ConfigRecord) -> _Turn:
        from sotto.federated.plan import Plan

        device, sealed = _recalled(message, context, person, "mask"), messages.places_in(request)
        plan = Plan.from_json(messages.settings_in(message.content), _named(context))
        state = plan.state_in(message.content)
        if own_data is not simulated and plan.shared.release.population == "simulated":
            raise ProtocolError(
                "this training says that its people are simulated, so a device with its owner's "
                "data takes no part; the settings need population: real"
            )
        own = plan.shared.contribution(state, own_data(plan, state), _new_key())
        masked = device.mask(sealed, own).tobytes()
        return device, messages.of_vector(masked, device.unread)

    def answer(message: Message, context: Context, person: int, request: ConfigRecord) -> _Turn:
        device, asked = _recalled(message, context, person, "unmask"), messages.question_in(request)
        given = device.unmask(asked.active, asked.dropped, asked.count)
        return None, messages.of_places(given)

    def handler(stage: str, act: Callable[..., _Turn]) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            round_id = messages.terms_in(message.content).round
            mine, found = set(_persons(context, people)), {}
            for person, request in messages.people_in(message.content).items():
                if person not in mine or not present(round_id, person, stage):
                    continue
                try:
                    device, found[person] = act(message, context, person, request)
                except (ProtocolError, PrivacyError) as error:  # no text has anybody's data
                    _log.warning("the device refuses the stage %s: %s", stage, error)
                except Exception as error:  # Flower sends the text of an error to the server
                    kind = type(error).__name__
                    _log.warning("the device failed in the stage %s: %s", stage, kind)
                else:
                    _remember(context, person, round_id, device)
            return Message(messages.content(found), reply_to=message)

        return handle

    def enrol(message: Message, context: Context) -> Message:
        persons = list(_persons(context, people))
        enrolled = ConfigRecord({"persons": persons, "protocol": PROTOCOL})
        return Message(RecordDict({"enrolled": enrolled}), reply_to=message)

    made = ClientApp()
    made.query(messages.ENROL)(enrol)
    made.query(messages.KEYS)(handler(messages.KEYS, keys))
    made.query(messages.SHARES)(handler(messages.SHARES, shares))
    made.query(messages.VECTORS)(handler(messages.VECTORS, vector))
    made.query(messages.OPEN)(handler(messages.OPEN, answer))
    return made


_Turn: TypeAlias = tuple[RoundDevice | None, ConfigRecord]
"""The device after a stage, None at the end of the round, and its answer."""


def _begin(context: Context, person: int, round_id: bytes) -> None:
    """Notes that the device begins a round, which it does once."""
    begun = context.state.config_records.get(f"begun-{person}", ConfigRecord({"rounds": []}))
    rounds: Any = begun["rounds"]
    if round_id in rounds:
        raise ProtocolError("this device has begun this round before")
    context.state[f"begun-{person}"] = ConfigRecord({"rounds": [*rounds, round_id]})


def _recalled(message: Message, context: Context, person: int, stage: str) -> RoundDevice:
    """Returns the device as it was after the last stage, and forgets it until it is remembered.

    A stage that fails thus ends the device's part in the round. A message about another stage than
    the next one is refused, and the round goes on: it may have been delivered twice.
    """
    record = context.state.config_records.get(_name(person))
    terms = messages.terms_in(message.content)
    if record is None or record["round"] != terms.round:
        raise ProtocolError("this device has not begun this round, or has ended it")
    memory = record["memory"]
    assert isinstance(memory, bytes)
    device = RoundDevice.from_bytes(memory)
    device.require(stage)
    del context.state[_name(person)]
    if device.terms != terms:  # a larger promise now would mean smaller shares of noise
        raise ProtocolError("the terms of a round have changed since it began")
    return device


def _remember(context: Context, person: int, round_id: bytes, device: RoundDevice | None) -> None:
    if device is not None:
        memory = ConfigRecord({"round": round_id, "memory": device.to_bytes()})
        context.state[_name(person)] = memory


def _name(person: int) -> str:
    return f"device-{person}"


def _named(context: Context) -> str | None:
    """Returns the environment that the device's owner has named."""
    found = context.node_config.get("env-id")
    return found if isinstance(found, str) else None


def _persons(context: Context, people: int | None) -> range:
    """Returns the numbers of the people whose devices are on this node."""
    node = context.node_config
    if people is not None:
        return range(int(node["partition-id"]), people, int(node["num-partitions"]))
    person = node.get("person")
    if type(person) is not int:
        raise ProtocolError("start this node with the number of its person: person=7")
    return range(person, person + 1)


def _new_key() -> Any:
    """Returns a key for this person's own random numbers, from the operating system."""
    import numpy as np

    from sotto.keys import key_of

    return key_of(np.frombuffer(os.urandom(8), np.uint32))


app = client_app()
"""The app of a simulated person's device, for `flwr run`."""
