"""Masked sums: every pattern of drop-outs, every refusal, and nothing in a masked vector."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_sums import Drops, plain, random_vectors, summed, terms

from sotto.federated import secrets
from sotto.federated.device import RoundDevice, RoundTerms, pair_mask
from sotto.federated.errors import ProtocolError, RoundGivenUp, RoundLost
from sotto.federated.round import Round

PEOPLE, PROMISED = 9, 5


@settings(max_examples=40, deadline=None)
@given(
    silent=st.lists(
        st.sampled_from(["", "keys", "shares", "vectors", "opened"]), min_size=9, max_size=9
    ),
    bits=st.sampled_from([8, 16, 17, 32]),
    seed=st.integers(0, 2**31),
)
def test_the_sum_is_that_of_the_active_or_the_round_ends(silent, bits, seed):
    vectors = random_vectors(PEOPLE, 5, bits, seed)
    at = {name: [p for p, one in enumerate(silent) if one == name] for name in silent if name}
    active = [p for p, one in enumerate(silent) if one in ("", "opened")]
    answering = [p for p, one in enumerate(silent) if not one]
    drops = Drops(**at)
    if len(active) < PROMISED:
        with pytest.raises(RoundGivenUp):
            summed(terms(PROMISED, bits), vectors, drops)
        return
    circle = terms(PROMISED).circle(PEOPLE - len(drops.keys))
    # A person has shares from everybody else who answers; the dropped ones from all who answer.
    if len(answering) - 1 < circle.threshold and len(answering) < PROMISED:
        with pytest.raises(RoundLost):
            summed(terms(PROMISED, bits), vectors, drops)
        return
    total, persons = summed(terms(PROMISED, bits), vectors, drops)
    assert sorted(persons) == active
    assert np.array_equal(total, plain(vectors, active, bits))


def test_the_sum_of_a_large_circle_with_drop_outs_at_every_stage():
    vectors = random_vectors(120, 7, 16)
    drops = Drops(range(8), range(8, 16), range(16, 24), range(24, 30))
    total, active = summed(terms(80), vectors, drops)
    assert sorted(active) == list(range(24, 120))
    assert np.array_equal(total, plain(vectors, active, 16))
    assert terms(80).circle(112).neighbours < 111  # not everybody is a neighbour


def test_a_round_below_the_promise_is_given_up_although_its_masks_could_be_opened():
    """Ten neighbours could open them, and thirteen devices add too little noise."""
    with pytest.raises(RoundGivenUp, match="13 devices sent vectors, and 14 are promised"):
        summed(terms(14), random_vectors(20, 3, 16), Drops(vectors=range(7)))


def test_who_colludes_less_than_allowed_is_no_obstacle():
    vectors = random_vectors(20, 3, 16)
    total, active = summed(terms(14, colluding=5), vectors, Drops(vectors=[1, 2]))
    assert np.array_equal(total, plain(vectors, active, 16))


@pytest.mark.parametrize(("silent", "read"), [(5, True), (4, False)])
def test_devices_in_no_sum_hold_shares_and_count_as_colluding(silent, read):
    """Twelve are asked, and all seven in the sum are honest: the others alone read a vector."""
    agreed, size, people = terms(6, colluding=4), 3, 12
    devices, server = {p: RoundDevice(agreed) for p in range(people)}, Round(agreed, size)
    seats = server.begin({p: one.announce() for p, one in devices.items()})
    place = {p: seat.place for p, seat in seats.items()}
    passed = server.pass_on(
        {p: d.share(place[p], people, seats[p].keys) for p, d in devices.items()}
    )
    vectors = random_vectors(people, size, agreed.bits)
    masked = {p: one.mask(passed[p], vectors[p]) for p, one in devices.items()}
    told = {place[p] + 1: devices[p]._held[place[0]] for p in range(people - silent, people)}
    active = {p: y.tobytes() for p, y in masked.items() if p < people - silent}
    questions = server.collect(active)
    answers = {
        p: devices[p].unmask(one.active, one.dropped, one.count) for p, one in questions.items()
    }
    threshold = agreed.circle(people).threshold
    seeds = [(place[p] + 1, one[place[0]]) for p, one in answers.items() if p][:threshold]
    keys = {at: both[secrets.SHARE_BYTES :] for at, both in told.items()}
    own = masked[0] - secrets.mask(secrets.joined(dict(seeds), threshold), size, agreed.bits)
    try:
        key = secrets.joined(keys, len(keys))
        for other, public in seats[0].keys.items():
            own = own - pair_mask(agreed, key, public, place[0], other, size)
    except ProtocolError:
        pass
    assert np.array_equal(own % 2**agreed.bits, vectors[0]) == read


# --- one masked vector ---------------------------------------------------------------------------


def masked_vectors(value: int, rounds: int, size: int) -> np.ndarray:
    """The vector of person 0, full of one number, as the server sees it in many rounds."""
    seen = []
    for _ in range(rounds):
        agreed = terms(3)
        devices = [RoundDevice(agreed) for _ in range(3)]
        server = Round(agreed, size)
        seats = server.begin({p: one.announce() for p, one in enumerate(devices)})
        passed = server.pass_on(
            {p: d.share(seats[p].place, 3, seats[p].keys) for p, d in enumerate(devices)}
        )
        seen.append(devices[0].mask(passed[0], np.full(size, value, np.uint32)))
    return np.concatenate(seen)


def statistic(numbers: np.ndarray, bits: int) -> float:
    """Standardised chi-square of numbers modulo 2^bits against the uniform law."""
    cells = 2**bits
    counts = np.bincount(numbers, minlength=cells)
    expected = len(numbers) / cells
    chi = float(((counts - expected) ** 2 / expected).sum())
    return (chi - (cells - 1)) / np.sqrt(2 * (cells - 1))


def test_a_masked_vector_is_uniform_whatever_it_hides():
    for value in (0, 1, 2**16 - 1):
        numbers = masked_vectors(value, rounds=4, size=2**18)
        assert abs(statistic(numbers, 16)) < 6
        assert (numbers == 2**16 - 1).any()


def test_masks_that_are_not_uniform_are_noticed():
    """Too large a range, reduced; and Flower's own masks, which never have the largest number."""
    rng = np.random.default_rng(0)
    assert abs(statistic(rng.integers(0, 2**16 + 2**13, 2**20) % 2**16, 16)) > 6
    assert not (rng.integers(0, 2**16 - 1, 2**20) == 2**16 - 1).any()


def test_the_parts_of_a_masked_vector_are_the_stated_ones(monkeypatch):
    """Without masks, the vector itself would be sent: the masks are all that hides it."""
    monkeypatch.setattr(secrets, "mask", lambda _seed, size, bits: np.zeros(size, np.uint16))
    assert (masked_vectors(7, rounds=1, size=4) == 7).all()


# --- what a device refuses -----------------------------------------------------------------------


class Trio:
    """Five devices that have shared, one of which is `device`."""

    def __init__(self, promised: int = 4) -> None:
        self.terms, self.size = terms(promised), 3
        self.server, self.devices = (
            Round(self.terms, self.size),
            [RoundDevice(self.terms) for _ in range(5)],
        )
        self.seats = self.server.begin({p: d.announce() for p, d in enumerate(self.devices)})
        self.device, self.seat = self.devices[0], self.seats[0]
        self.vector = np.arange(3, dtype=np.uint32)

    def share(self) -> dict[int, dict[int, bytes]]:
        every = {
            p: d.share(self.seats[p].place, 5, self.seats[p].keys)
            for p, d in enumerate(self.devices)
        }
        return self.server.pass_on(every)

    def masked(self) -> "Trio":
        passed = self.share()
        masked = {p: d.mask(passed[p], self.vector) for p, d in enumerate(self.devices)}
        self.questions = self.server.collect({p: v.tobytes() for p, v in masked.items()})
        return self


def test_stages_come_once_and_in_order():
    one = Trio()
    with pytest.raises(ProtocolError, match="next one"):
        one.device.announce()
    passed = one.share()[0]
    with pytest.raises(ProtocolError, match="next one"):
        one.device.share(one.seat.place, 5, one.seat.keys)
    one.device.mask(passed, one.vector)
    with pytest.raises(ProtocolError, match="next one"):
        one.device.mask(passed, one.vector)  # a second vector under the same masks
    others = sorted(one.seat.keys)
    one.device.unmask(others, [], 5)
    with pytest.raises(ProtocolError, match="next one"):
        one.device.unmask([], others, 5)  # the other secret of everybody


@pytest.mark.parametrize("missing", [0, 1])
def test_the_neighbours_are_those_of_the_place(missing):
    one = Trio()
    keys = dict(list(one.seat.keys.items())[missing:])
    if not missing:
        keys[one.seat.place] = next(iter(keys.values()))
    with pytest.raises(ProtocolError, match="4 neighbours"):
        one.device.share(one.seat.place, 5, keys)


def test_keys_are_all_different_and_keys():
    places = sorted(Trio().seat.keys)
    for wrong in ({places[0]: None}, {places[0]: bytes(10)}, {places[0]: bytes(64)}):
        one = Trio()
        keys = dict(one.seat.keys)
        place = sorted(keys)[0]
        value = next(iter(wrong.values()))
        keys[place] = keys[sorted(keys)[1]] if value is None else value
        with pytest.raises(ProtocolError, match=r"keys of a round|X25519"):
            one.device.share(one.seat.place, 5, keys)


def test_a_circle_that_is_not_safe_is_refused():
    with pytest.raises(ProtocolError, match="not safe"):
        Trio().device.share(0, 3, {1: bytes(64), 2: bytes(64)})  # fewer than promised


def test_fewer_neighbours_than_the_threshold_are_refused_before_the_vector_leaves():
    one = Trio()
    passed = one.share()[0]
    few = dict(list(passed.items())[: one.terms.circle(5).threshold - 1])
    with pytest.raises(ProtocolError, match="at least 3 neighbours"):
        one.device.mask(few, one.vector)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("both", "nobody is both"),
        ("missing", "either active or dropped"),
        ("stranger", "either active or dropped"),
        ("few", "are active"),
        ("promise", "too little noise"),
    ],
)
def test_questions_that_ask_for_too_much(case, text):
    one = Trio().masked()
    others = sorted(one.seat.keys)
    active, dropped, count = {
        "both": (others, others[:1], 5),
        "missing": (others[1:], [], 5),
        "stranger": (others, [77], 5),
        "few": (others[:2], others[2:], 5),
        "promise": (others, [], 3),
    }[case]
    with pytest.raises(ProtocolError, match=text):
        one.device.unmask(active, dropped, count)
    with pytest.raises(ProtocolError, match="next one"):
        one.device.unmask(others, [], 5)  # a refusal ends the device's part


def test_a_device_gives_one_of_the_two_shares_of_each_neighbour():
    one = Trio().masked()
    *active, dropped = sorted(one.seat.keys)
    held = json.loads(one.device.to_bytes())["held"]
    answer = one.device.unmask(active, [dropped], 4)
    assert all(answer[p].hex() + held[str(p)][66:] == held[str(p)] for p in active)
    assert held[str(dropped)] == held[str(dropped)][:66] + answer[dropped].hex()
    after = json.loads(one.device.to_bytes())
    assert after["held"] == {}
    assert set(after["secrets"]) == {""}


def test_vectors_and_terms_of_another_form():
    one = Trio()
    passed = one.share()[0]
    with pytest.raises(ValueError, match="16 bits"):
        one.device.mask(passed, np.full(3, 2**16, np.uint32))
    with pytest.raises(ProtocolError, match="1 to 32 bits"):
        RoundTerms(bytes(16), 33, 3, 0)
    with pytest.raises(ProtocolError, match="16 bytes"):
        RoundTerms(bytes(3), 16, 3, 0)


def test_nothing_secret_is_printed():
    device = Trio().device
    assert repr(device) == str(device) == "RoundDevice(stage=1)"


# --- what the server makes of answers ------------------------------------------------------------


def test_answers_of_another_form_count_as_missing():
    vectors = random_vectors(6, 4, 16)
    agreed = terms(4)
    server, devices = Round(agreed, 4), [RoundDevice(agreed) for _ in range(6)]
    keys = {p: d.announce() for p, d in enumerate(devices)} | {6: b"short"}
    seats = server.begin(keys)
    assert 6 not in seats
    sealed = {p: d.share(seats[p].place, 6, seats[p].keys) for p, d in enumerate(devices)}
    sealed[5] = {0: b"only one"}
    passed = server.pass_on(sealed)
    assert 5 not in passed
    masked = {p: devices[p].mask(passed[p], vectors[p]).tobytes() for p in range(5)}
    masked[4] = masked[4][:-1]
    questions = server.collect(masked)
    assert sorted(questions) == sorted(server.active) == [0, 1, 2, 3]
    answers = {p: devices[p].unmask(q.active, q.dropped, q.count) for p, q in questions.items()}
    assert np.array_equal(server.open(answers), plain(vectors, range(4), 16))


LOW_ORDER = (1).to_bytes(32, "little")


@pytest.mark.parametrize(
    ("case", "left"),
    [("zero", 5), ("twice", 5), ("same", 4), ("half", 4), ("first", 5), ("second", 5)],
)
def test_keys_that_devices_refuse_count_as_missing(case, left):
    """Else one device would stop the round of everybody."""
    agreed, vectors = terms(3), random_vectors(6, 4, 16)
    devices = {p: RoundDevice(agreed) for p in range(6)}
    keys = {p: one.announce() for p, one in devices.items()}
    own, other = keys[5], keys[0]
    keys[5] = {
        "zero": bytes(64),
        "twice": own[:32] + own[:32],
        "same": other,
        "half": own[:32] + other[:32],
        "first": LOW_ORDER + own[32:],
        "second": own[:32] + LOW_ORDER,
    }[case]
    server = Round(agreed, 4)
    seats = server.begin(keys)
    assert len(seats) == left
    passed = server.pass_on({p: devices[p].share(s.place, left, s.keys) for p, s in seats.items()})
    masked = {p: devices[p].mask(passed[p], vectors[p]).tobytes() for p in seats}
    questions = server.collect(masked)
    answers = {p: devices[p].unmask(q.active, q.dropped, q.count) for p, q in questions.items()}
    assert np.array_equal(server.open(answers), plain(vectors, seats, 16))


def test_numbers_above_the_modulus_count_as_missing():
    agreed = terms(3, bits=12)
    vectors = random_vectors(4, 2, 12)
    server, devices = Round(agreed, 2), [RoundDevice(agreed) for _ in range(4)]
    seats = server.begin({p: d.announce() for p, d in enumerate(devices)})
    passed = server.pass_on(
        {p: d.share(seats[p].place, 4, seats[p].keys) for p, d in enumerate(devices)}
    )
    masked = {p: d.mask(passed[p], vectors[p]).tobytes() for p, d in enumerate(devices)}
    masked[0] = np.full(2, 2**12, "<u2").tobytes()
    server.collect(masked)
    assert sorted(server.active) == [1, 2, 3]


def test_a_share_that_cannot_be_read_harms_its_maker_only():
    """Its neighbours go on; only their share of this maker's secrets is missing."""
    agreed = terms(4)
    vectors = random_vectors(6, 2, 16)
    server, devices = Round(agreed, 2), [RoundDevice(agreed) for _ in range(6)]
    seats = server.begin({p: d.announce() for p, d in enumerate(devices)})
    sealed = {p: d.share(seats[p].place, 6, seats[p].keys) for p, d in enumerate(devices)}
    first = next(iter(sealed[5]))
    sealed[5][first] = bytes(len(sealed[5][first]))
    passed = server.pass_on(sealed)
    masked = {p: d.mask(passed[p], vectors[p]).tobytes() for p, d in enumerate(devices)}
    questions = server.collect(masked)
    answers = {p: devices[p].unmask(q.active, q.dropped, q.count) for p, q in questions.items()}
    assert np.array_equal(server.open(answers), plain(vectors, range(6), 16))


def test_a_wrong_share_of_a_seed_is_left_out_whoever_gives_it():
    agreed, people = terms(7), 20
    vectors = random_vectors(people, 2, 16)
    server, devices = Round(agreed, 2), [RoundDevice(agreed) for _ in range(people)]
    seats = server.begin({p: d.announce() for p, d in enumerate(devices)})
    passed = server.pass_on(
        {p: d.share(seats[p].place, people, seats[p].keys) for p, d in enumerate(devices)}
    )
    masked = {p: devices[p].mask(passed[p], vectors[p]).tobytes() for p in range(people)}
    questions = server.collect(masked)
    answers = {p: devices[p].unmask(q.active, q.dropped, q.count) for p, q in questions.items()}
    assert np.array_equal(server.open(answers), plain(vectors, range(people), 16))
    for liar, answer in answers.items():
        for other in answer:
            server.wrong.clear()
            changed = answers | {liar: answer | {other: bytes(32) + b"\x05"}}
            assert np.array_equal(server.open(changed), plain(vectors, range(people), 16))
            assert server.wrong == {liar}


def test_every_round_purpose_and_pair_has_its_own_secrets():
    one, other = terms(3), terms(3)
    said = {
        agreed.of_pair(purpose, *pair)
        for agreed in (one, other)
        for purpose in ("mask", "seal", "share")
        for pair in ((0, 1), (1, 0), (1, 2))
    }
    assert len(said) == 2 * 3 * 3
    key, public = secrets.new_secret(), secrets.public_key(secrets.new_secret())
    masks = [pair_mask(agreed, key, public, 0, 1, 8) for agreed in (one, other)]
    assert not np.array_equal(*masks)


def test_places_in_the_circle_are_drawn():
    """Nobody can choose to be a neighbour of somebody."""
    agreed, people = terms(40), range(60)
    keys = {person: RoundDevice(agreed).announce() for person in people}
    drawn = []
    for _ in range(2):
        seats = Round(agreed, 1).begin(keys)
        drawn.append([seats[person].place for person in people])
    assert sorted(drawn[0]) == list(people)
    assert drawn[0] != drawn[1]
