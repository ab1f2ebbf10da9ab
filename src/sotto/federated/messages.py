"""Flower's messages: a stage of a round, for one or more devices of a node.

```
plan       settings of the training and id of the round     to the devices
state      the public state, as arrays                      to the devices, in one stage
person-7   record for person 7, or from person 7             both ways
```

Records hold numbers, bytes and arrays, and nothing that is executed. A record of another form is
refused, and its sender has dropped out. This module and `device` do not import JAX, because Flower
starts a process for each message to a device.
"""

import json
import re
from collections.abc import Mapping, Sequence

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from sotto.federated.device import PROTOCOL, RoundTerms
from sotto.federated.errors import ProtocolError
from sotto.federated.round import Question, Seat

ENROL, KEYS, SHARES, VECTORS, OPEN = "enrol", "keys", "shares", "vectors", "open"
"""Stages, in their order. Flower knows them as queries."""

_PERSON = re.compile(r"person-(\d{1,10})")


def content(
    people: Mapping[int, ConfigRecord],
    settings: str | None = None,
    round_id: bytes = b"",
    state: ArrayRecord | None = None,
) -> RecordDict:
    """Returns the content of a message.

    Args:
        people: record for each person, or from each person.
        settings: settings of the training (`Plan.to_json`); None: an answer.
        round_id: id of the round.
        state: the public state (`Plan.of_state`); None: it is not sent.
    """
    found = RecordDict({f"person-{person}": one for person, one in people.items()})
    if settings is not None:
        found["plan"] = ConfigRecord({"settings": settings, "round": round_id})
    if state is not None:
        found["state"] = state
    return found


def people_in(found: RecordDict) -> dict[int, ConfigRecord]:
    """Returns the records of people by their numbers."""
    named = {name: _PERSON.fullmatch(name) for name in found.config_records}
    return {int(one[1]): found.config_records[name] for name, one in named.items() if one}


def settings_in(found: RecordDict) -> str:
    """Returns the settings of the training.

    Raises:
        ProtocolError: the message has none.
    """
    settings = found.config_records.get("plan", ConfigRecord()).get("settings")
    if not isinstance(settings, str):
        raise ProtocolError("a message to a device has the settings of the training")
    return settings


def terms_in(found: RecordDict) -> RoundTerms:
    """Returns the terms of the round.

    Raises:
        ProtocolError: the message has none.
    """
    round_id = found.config_records.get("plan", ConfigRecord()).get("round")
    try:
        values = json.loads(settings_in(found))
        bits, promised, colluding = (values[name] for name in ("bits", "promised", "colluding"))
        protocol = values.get("protocol")
    except (ValueError, TypeError, LookupError) as error:
        raise ProtocolError("the settings have no terms of rounds") from error
    if protocol != PROTOCOL:
        raise ProtocolError(
            f"the server's protocol has version {protocol or 1}, and this device's {PROTOCOL}; "
            "install the server's version of sotto on the device"
        )
    whole = all(type(one) is int for one in (bits, promised, colluding))
    if not isinstance(round_id, bytes) or not whole:
        raise ProtocolError("a message to a device has the terms of the round")
    return RoundTerms(round_id, bits, promised, colluding)


def of_bytes(value: bytes) -> ConfigRecord:
    """Returns a record of some bytes, such as two public keys."""
    return ConfigRecord({"value": value})


def bytes_in(record: ConfigRecord) -> bytes:
    """Returns the bytes of `of_bytes`.

    Raises:
        ProtocolError: the record has another form.
    """
    value = record.get("value")
    if not isinstance(value, bytes):
        raise ProtocolError("the record has no bytes")
    return value


def of_vector(vector: bytes, unread: Sequence[int]) -> ConfigRecord:
    """Returns a record of a masked vector, and of the places whose shares cannot be read."""
    return ConfigRecord({"value": vector, "unread": list(unread)})


def vector_in(record: ConfigRecord) -> tuple[bytes, list[int]]:
    """Returns the masked vector and the places of `of_vector`.

    Raises:
        ProtocolError: the record has another form.
    """
    return bytes_in(record), _whole_numbers(record, "unread")


def of_places(values: Mapping[int, bytes]) -> ConfigRecord:
    """Returns a record of some bytes for each place."""
    return ConfigRecord({"places": list(values), "values": list(values.values())})


def places_in(record: ConfigRecord) -> dict[int, bytes]:
    """Returns the bytes of `of_places`.

    Raises:
        ProtocolError: the record has another form.
    """
    places, values = _whole_numbers(record, "places"), record.get("values")
    fits = isinstance(values, list) and all(isinstance(one, bytes) for one in values)
    if not fits or len(values) != len(places) or len(set(places)) != len(places):  # type: ignore[arg-type]
        raise ProtocolError("the record does not have some bytes for each place")
    return dict(zip(places, values, strict=True))  # type: ignore[arg-type]


def of_seat(seat: Seat) -> ConfigRecord:
    """Returns a record of a seat."""
    record = of_places(seat.keys)
    record["place"], record["people"] = seat.place, seat.people
    return record


def seat_in(record: ConfigRecord) -> Seat:
    """Returns the seat of `of_seat`.

    Raises:
        ProtocolError: the record has another form.
    """
    return Seat(_whole(record, "place"), _whole(record, "people"), places_in(record))


def of_question(question: Question) -> ConfigRecord:
    """Returns a record of a question."""
    return ConfigRecord(
        {"active": question.active, "dropped": question.dropped, "count": question.count}
    )


def question_in(record: ConfigRecord) -> Question:
    """Returns the question of `of_question`.

    Raises:
        ProtocolError: the record has another form.
    """
    active, dropped = (_whole_numbers(record, name) for name in ("active", "dropped"))
    return Question(active, dropped, _whole(record, "count"))


def _whole(record: ConfigRecord, name: str) -> int:
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProtocolError(f"the record has no whole number {name!r}")
    return value


def _whole_numbers(record: ConfigRecord, name: str) -> list[int]:
    values = record.get(name)
    if not isinstance(values, list) or any(type(one) is not int for one in values):
        raise ProtocolError(f"the record has no whole numbers {name!r}")
    return list(values)  # type: ignore[arg-type]
