"""Devices that give wrong shares: who is proved wrong, and what that costs the others."""

import json
import os
from collections.abc import Collection, Mapping

import numpy as np
import pytest
from flwr.app import Context, Message
from local_grid import LocalGrid, persons
from masked_sums import plain, random_vectors, terms
from test_training_on_devices import SLOTS, asked, begun, charged, installed, plan, trained

from sotto.federated import messages, secrets
from sotto.federated.client import client_app
from sotto.federated.device import RoundDevice
from sotto.federated.errors import RoundGivenUp, RoundLost
from sotto.federated.network import Network
from sotto.federated.round import Round

__all__ = ["installed"]  # the fixture that installs the algorithms

PEOPLE, SIZE, LIAR = 12, 3, 0

Bytes = dict[int, bytes]


class Twelve:
    """Twelve devices that have given their shares, at least six of which are promised."""

    def __init__(self) -> None:
        self.terms = terms(6)
        self.threshold = self.terms.circle(PEOPLE).threshold
        self.server = Round(self.terms, SIZE)
        self.devices = {p: RoundDevice(self.terms) for p in range(PEOPLE)}
        self.seats = self.server.begin({p: d.announce() for p, d in self.devices.items()})
        self.given = {
            p: d.share(self.seats[p].place, PEOPLE, self.seats[p].keys)
            for p, d in self.devices.items()
        }
        self.vectors = random_vectors(PEOPLE, SIZE, self.terms.bits)

    def answers(
        self, silent: Collection[int] = (), unread: Mapping[int, list[int]] | None = None
    ) -> dict[int, Bytes]:
        """What those answer who are not silent from their vectors on."""
        passed = self.server.pass_on(self.given)
        masked = {p: d.mask(passed[p], self.vectors[p]) for p, d in self.devices.items()}
        sent = {p: y.tobytes() for p, y in masked.items() if p not in silent}
        said = {p: self.devices[p].unread for p in sent} | dict(unread or {})
        found = self.server.collect(sent, said)
        return {p: self.devices[p].unmask(q.active, q.dropped, q.count) for p, q in found.items()}

    def opens(self, answers: Mapping[int, Bytes]) -> bool:
        """Whether the server opens the right sum."""
        right = plain(self.vectors, self.server.active, self.terms.bits)
        return np.array_equal(self.server.open(answers), right)


def wrong(answer: Bytes) -> Bytes:
    return {place: os.urandom(len(share)) for place, share in answer.items()}


def unfitting(_secret: bytes, _threshold: int, points: Collection[int]) -> Bytes:
    """Shares that have no secret, in the place of `secrets.split`."""
    return {point: bytes(1) + os.urandom(secrets.SHARE_BYTES - 1) for point in points}


# --- who opens wrong shares ----------------------------------------------------------------------


def test_who_opens_wrong_shares_is_left_out_and_proved_wrong():
    """It made the secrets of all its neighbours unknown, and each of them was blamed."""
    one = Twelve()
    answers = one.answers(silent=(10, 11))  # honest devices that have lost their connection
    answers[LIAR] = wrong(answers[LIAR])
    assert one.opens(answers)
    assert one.server.wrong == {LIAR}


def test_many_liars_lose_a_sum_and_nobody_else_is_blamed():
    one = Twelve()
    answers = one.answers(silent=(10, 11))
    liars = set(range(10 - one.threshold + 1))
    answers |= {p: wrong(answers[p]) for p in liars}
    with pytest.raises(RoundLost, match="too few devices gave right shares"):
        one.server.open(answers)
    assert one.server.wrong == liars


def test_who_stays_silent_is_not_proved_wrong():
    one = Twelve()
    answers = one.answers(silent=(10, 11))
    with pytest.raises(RoundLost, match="too few devices gave right shares"):
        one.server.open({p: answers[p] for p in range(one.threshold - 1)})
    assert one.server.wrong == set()


def test_a_share_of_the_other_secret_is_wrong():
    """Both have hashes, and each is hashed with what it is for."""
    one = Twelve()
    passed = one.server.pass_on(one.given)
    masked = {p: d.mask(passed[p], one.vectors[p]).tobytes() for p, d in one.devices.items()}
    held = json.loads(one.devices[LIAR].to_bytes())["held"]
    found = one.server.collect(masked)
    answers = {p: one.devices[p].unmask(q.active, q.dropped, q.count) for p, q in found.items()}
    answers[LIAR] = {int(place): bytes.fromhex(both)[33:] for place, both in held.items()}
    assert one.opens(answers)
    assert one.server.wrong == {LIAR}


def test_an_answer_about_others_counts_as_missing():
    """A place that nobody has must not stop the server after the charge."""
    one = Twelve()
    answers = one.answers(silent=(10, 11))
    answers[LIAR] |= {len(one.seats): bytes(33)}
    assert one.opens(answers)
    assert one.server.wrong == set()


# --- who gives shares that cannot be opened ------------------------------------------------------


@pytest.mark.parametrize("silent", [(), (LIAR,)])
@pytest.mark.parametrize("part", [slice(0, 64), slice(64, None)])
def test_shares_that_nobody_can_read_end_a_round_before_it_is_charged(silent, part):
    """With wrong hashes, the server could not know who of two devices is wrong."""
    one = Twelve()
    for place, data in one.given[LIAR].items():
        changed = bytearray(data)
        changed[part] = os.urandom(len(data[part]))
        one.given[LIAR][place] = bytes(changed)
    with pytest.raises(RoundGivenUp, match="0 devices can read some device's shares"):
        one.answers(silent)
    assert one.server.wrong == {LIAR}


def test_shares_that_few_cannot_read_cost_nothing_and_prove_nothing():
    one = Twelve()
    for place in list(one.given[LIAR])[: one.threshold - 1]:
        one.given[LIAR][place] = b"short"
    assert one.opens(one.answers())
    assert one.server.wrong == set()


def test_who_says_that_it_can_read_nothing_blames_nobody():
    one = Twelve()
    answers = one.answers((10, 11), {LIAR: [seat.place for seat in one.seats.values()]})
    assert one.opens(answers)
    assert one.server.wrong == set()


def test_shares_without_a_secret_prove_their_giver_wrong(monkeypatch):
    """It sends no vector, so that it is not charged."""
    one = Twelve.__new__(Twelve)
    share = RoundDevice.share

    def liars_share(device, place, people, keys):
        with monkeypatch.context() as patch:
            if device is one.devices[LIAR]:
                patch.setattr(secrets, "split", unfitting)
            return share(device, place, people, keys)

    monkeypatch.setattr(RoundDevice, "share", liars_share)
    one.__init__()
    answers = one.answers(silent=(LIAR, 10, 11))
    with pytest.raises(RoundLost, match="do not fit each other"):
        one.server.open(answers)
    assert one.server.wrong == {LIAR}


def test_shares_of_another_key_prove_their_giver_wrong():
    one = Twelve.__new__(Twelve)
    announce = RoundDevice.announce
    with pytest.MonkeyPatch.context() as patch:

        def liars_announce(device):
            keys = announce(device)
            if device is one.devices[LIAR]:
                device._mask_key = secrets.new_secret()
            return keys

        patch.setattr(RoundDevice, "announce", liars_announce)
        one.__init__()
    answers = one.answers(silent=(LIAR, 10, 11))
    with pytest.raises(RoundLost, match="another key than its own"):
        one.server.open(answers)
    assert one.server.wrong == {LIAR}


# --- trainings -----------------------------------------------------------------------------------


def people_asked(grid: LocalGrid) -> list[int]:
    sent = [one.metadata for one in grid.sent]
    return [m.dst_node_id - 1000 for m in sent if m.message_type == f"query.{messages.KEYS}"]


def test_who_has_lost_its_connection_in_a_lost_round_is_asked_again(tmp_path):
    """Nobody opened shares of its key, which is not its fault."""
    experiment, _ = begun(tmp_path, num_updates=1)
    silent: list[int] = []

    def lost(node: int, kind: str) -> bool:
        """The first who is asked for a vector is silent then, and all are at the round's end."""
        if kind == f"query.{messages.VECTORS}" and not silent:
            silent.append(node)
            return True
        return kind == f"query.{messages.OPEN}" and charged(tmp_path) == 1

    grid = LocalGrid(client_app(), persons(SLOTS + 3), lost)
    assert [one.updates for one in trained(experiment, grid)] == [1]
    assert people_asked(grid).count(silent[0] - 1000) == 2


def test_a_training_whose_releases_are_lost_stops(tmp_path):
    """Somebody in no sum is silent in each round, and was taken for the one to blame."""
    experiment, _ = begun(tmp_path)
    silent: list[int] = []

    def lost(node: int, kind: str) -> bool:
        if kind == f"query.{messages.VECTORS}" and len(silent) == charged(tmp_path):
            silent.append(node)
            return True
        return kind == f"query.{messages.OPEN}"

    with pytest.raises(RoundLost, match="too few devices gave right shares"):
        trained(experiment, LocalGrid(client_app(), persons(60), lost))
    assert charged(tmp_path) == len(silent) == 3


def test_a_training_outlives_releases_that_are_lost_now_and_then(tmp_path):
    """Three of them are lost here, and never two in a row."""
    experiment, _ = begun(tmp_path, num_updates=3)

    def lost(_node: int, kind: str) -> bool:
        return kind == f"query.{messages.OPEN}" and charged(tmp_path) % 2 == 1

    grid = LocalGrid(client_app(), persons(6 * SLOTS), lost)
    assert [one.updates for one in trained(experiment, grid)] == [1, 2, 3]
    assert charged(tmp_path) == 6


class Lying(LocalGrid):
    """The devices of some give shares that fit their hashes, and each other not."""

    liars = frozenset({1000})

    def send_and_receive(self, messages, *, timeout):
        app, split = self._app, secrets.split

        def acting(message: Message, context: Context) -> Message:
            with pytest.MonkeyPatch.context() as patch:
                liar = message.metadata.dst_node_id in self.liars
                patch.setattr(secrets, "split", unfitting if liar else split)
                return app(message, context)

        self._app = acting  # type: ignore[assignment]
        try:
            return super().send_and_receive(messages, timeout=timeout)
        finally:
            self._app = app


def test_a_device_that_loses_a_release_without_being_charged_costs_one(tmp_path):
    experiment, _ = begun(tmp_path, num_updates=3)

    def lost(node: int, kind: str) -> bool:
        return node == 1000 and kind == f"query.{messages.VECTORS}"

    grid = Lying(client_app(), persons(4 * SLOTS), lost)
    assert [one.updates for one in trained(experiment, grid)] == [1, 2, 3]
    assert people_asked(grid).count(0) <= 1
    assert charged(tmp_path) <= 4


def test_a_training_outlives_many_devices_that_lose_one_release_each(tmp_path, monkeypatch):
    """Each of them is not asked again, and the next six people come with another one."""
    experiment, _ = begun(tmp_path, num_updates=1)
    liars = frozenset(1000 + wave * SLOTS for wave in range(3))

    def lost(node: int, kind: str) -> bool:
        return node in liars and kind == f"query.{messages.VECTORS}"

    grid = Lying(client_app(), persons(4 * SLOTS), lost)
    grid.liars = liars
    nodes = list(grid.contexts)
    monkeypatch.setattr(grid, "get_node_ids", lambda: nodes[: SLOTS * (charged(tmp_path) + 1)])
    assert [one.updates for one in trained(experiment, grid)] == [1]
    assert charged(tmp_path) == 4


# --- versions ------------------------------------------------------------------------------------


def test_a_device_of_another_version_is_left_out(caplog, monkeypatch):
    grid = LocalGrid(client_app(), persons(3))

    def enrolled(sent, *, timeout):
        answers = LocalGrid.send_and_receive(grid, sent, timeout=timeout)
        for answer in answers:
            if answer.metadata.__dict__["_src_node_id"] == 1001:  # as the first version answers
                del answer.content.config_records["enrolled"]["protocol"]
        return answers

    monkeypatch.setattr(grid, "send_and_receive", enrolled)
    assert Network(grid, 0.1).people() == [0, 2]
    assert caplog.text.count("another version of the protocol") == 1


def test_a_server_of_another_version_gets_no_answer(caplog):
    grid = LocalGrid(client_app(), persons(1))
    first = {0: messages.of_bytes(b"")}
    settings = json.loads(plan().to_json())
    for version in (None, 1, 3):
        older = json.dumps({**settings, "protocol": version})
        with pytest.raises(Exception, match="install the server's version of sotto"):
            asked(grid, messages.KEYS, messages.content(first, older, bytes(16)))
