"""A campaign's store: places, contributions, withdrawals, releases and policies."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from small_campaign import MASTER, begun, make_release, of, serve

from sotto.people.database.records import Counts, History, Receipt
from sotto.people.database.store import CampaignDatabase
from sotto.people.errors import (
    ContributionConflict,
    Finished,
    NoPlace,
    PlaceClosed,
    StaleHolder,
    TookPart,
    UnknownPerson,
    UnknownPlace,
    UnknownVersion,
    Withdrawn,
)

Make = Callable[..., CampaignDatabase]


# --- a release from the first person to the next policy ------------------------------------------


def test_a_release(make: Make, where: str) -> None:
    store = make()
    store.enrol(3)
    assert store.policy() == (0, b"policy 0")
    places = [store.take_place(person, 5.0) for person in (2, 0, 1)]
    taken = [(one.release, one.slot, one.expires) for one in places]
    assert taken == [(0, 0, 15.0), (0, 1, 15.0), (0, 2, 15.0)]
    assert len({one.id for one in places}) == len({one.secret for one in places}) == 3
    assert {len(one.secret) for one in places} == {32}
    for place, person in zip(places, (2, 0, 1), strict=True):
        assert store.close_due(6.0) is None
        assert store.give(place.id, person, of(person), 6.0) is True
    closed = store.close_due(6.0)
    assert closed is not None
    for one in (closed, store.close_due(7.0), store.begin(0, "updater"), store.begin(0, "updater")):
        assert one is not None
        assert one.release == 0
        np.testing.assert_array_equal(one.persons, [2, 0, 1])
        assert one.contributions == [of(2), of(0), of(1)]
    store.finish(0, "updater", b"policy 1")
    assert store.close_due(8.0) is None
    for one in (store, CampaignDatabase.open(where, "campaign", MASTER)):
        assert one.version() == 1
        assert one.policy() == (1, b"policy 1")
        assert one.policy(0) == (0, b"policy 0")
        assert one.history(2) == History(True, False, ((0, "released"),))


def test_policies_that_are_not_published(make: Make) -> None:
    store = make()
    for version in (1, -1):
        with pytest.raises(UnknownVersion):
            store.policy(version)


def test_a_campaign_ends_at_its_horizon(make: Make) -> None:
    store = make(slots=1, horizon=2)
    store.enrol(3)
    for person in (0, 1):
        serve(store, person)
        make_release(store)
    assert store.version() == 2
    assert store.close_due(1e9) is None
    with pytest.raises(Finished):
        store.take_place(2, 0.0)
    with pytest.raises(StaleHolder):
        store.begin(2, "updater")
    with pytest.raises(StaleHolder):
        store.finish(2, "updater", b"policy 3")
    assert store.version() == 2


def test_counts(make: Make) -> None:
    store = make(slots=4, horizon=9)
    store.enrol(9)
    empty = Counts(9, 0, 0, 0, None, 0, 0, 0, 0, 0, 0, 0, None)
    assert store.counts() == empty
    for person, now in ((0, 0.0), (1, 0.0), (2, 5.0), (3, 9.0)):
        place = store.take_place(person, now)
        if person == 0:
            store.give(place.id, person, of(person), now)
    store.withdraw(1)
    assert store.close_due(15.0) is None
    assert store.lease("updater", 60.0, 20.0)
    expected = Counts(
        *(9, 1, 0),  # people
        *(0, 100.0, 1, 1, 1, 1),  # the open release
        *(0, 0, 0, 80.0),
    )
    assert store.counts() == expected
    make_release(store, 100.0)
    assert store.counts() == Counts(9, 1, 1, 1, None, 0, 0, 0, 0, 1, 0, 3, 80.0)
    serve(store, 4, 30.0)
    make_release(store, 130.0, lost=True)
    # A lost release is no release that anybody took part in, nor one with empty slots.
    assert store.counts() == Counts(9, 1, 1, 2, None, 0, 0, 0, 0, 1, 1, 3, 80.0)


# --- people and tokens ---------------------------------------------------------------------------


def test_people_are_numbered_on_and_known_by_their_tokens(make: Make) -> None:
    store = make()
    tokens = [*store.enrol(2), *store.enrol(3)]
    assert len(set(tokens)) == 5
    assert min(map(len, tokens)) >= 43  # 256 bits
    known = store.known_tokens()
    for person, token in enumerate(tokens):
        assert store.authenticate(token) == known.holder(token) == str(person)
    for stranger in ("", "0", tokens[0][:-1], tokens[0] + "A", "\ud800"):
        assert store.authenticate(stranger) is None
        assert known.holder(stranger) is None
    store.withdraw(1)
    assert store.authenticate(tokens[1]) == "1"
    assert store.known_tokens().holder(tokens[1]) == "1"


@pytest.mark.parametrize("count", [0, -1, 2**31 + 1])
def test_so_many_people_cannot_be_enrolled(make: Make, count: int) -> None:
    store = make()
    with pytest.raises(ValueError, match="enrol at least one person"):
        store.enrol(count)
    assert store.counts().enrolled == 0


def test_who_was_not_enrolled_is_nobody(make: Make) -> None:
    store = make()
    store.enrol(1)
    for work in (lambda: store.take_place(1, 0.0), lambda: store.withdraw(1)):
        with pytest.raises(UnknownPerson):
            work()
    assert store.history(1) == History(False, False, ())


# --- places --------------------------------------------------------------------------------------


def test_a_person_has_one_place_and_gets_it_again(make: Make, where: str) -> None:
    store = make()
    store.enrol(2)
    first = store.take_place(0, 0.0)
    other = CampaignDatabase.open(where, "campaign", MASTER)
    assert store.take_place(0, 9.9) == other.take_place(0, 9.9) == store.place(first.id, 0) == first
    assert store.take_place(1, 0.0).slot == 1
    assert store.counts().taken == 2


def test_there_are_as_many_places_as_slots(make: Make) -> None:
    store = make()
    store.enrol(5)
    for person in range(3):
        store.take_place(person, 0.0)
    with pytest.raises(NoPlace):
        store.take_place(3, 0.0)
    store.close_due(9.9)
    with pytest.raises(NoPlace):
        store.take_place(4, 9.9)


def test_an_expired_or_withdrawn_place_is_free_for_another_person(make: Make) -> None:
    """Nobody has a second place in a release, and a slot has one contribution at most."""
    store = make(slots=2)
    store.enrol(6)
    late = store.take_place(0, 0.0)
    serve(store, 1, 5.0)
    store.withdraw(1)
    next_one = store.take_place(2, 6.0)  # of the person who withdrew
    assert (next_one.release, next_one.slot) == (0, 1)
    with pytest.raises(NoPlace):
        store.take_place(3, 9.9)
    other = store.take_place(3, 10.0)  # the updater did not come in between
    assert (other.release, other.slot) == (0, 0)
    assert other.id != late.id
    assert other.secret != late.secret
    assert store.history(0).places == ((0, "expired"),)
    assert store.history(1).places == ((0, "withdrawn"),)
    for person in (0, 4):
        with pytest.raises(NoPlace):
            store.take_place(person, 10.0)
    for now in (0.0, 11.0):
        with pytest.raises(PlaceClosed):
            store.give(late.id, 0, of(0), now)
    assert store.give(other.id, 3, of(3), 11.0)
    assert store.give(next_one.id, 2, of(2), 11.0)
    closed = make_release(store, 11.0)
    np.testing.assert_array_equal(closed.persons, [3, 2])
    assert closed.contributions == [of(3), of(2)]
    assert store.withdraw(1).dropped == (0,)
    assert store.counts().empty_slots == 0


def test_slots_under_random_people(make: Make) -> None:
    """Each slot has one place that counts, whatever people do, and only they are released."""
    store, choice, now = make(slots=3, horizon=2), random.Random(3), 0.0
    store.enrol(200)
    gave: dict[int, int] = {}
    people = iter(range(200))
    while (closed := store.close_due(now)) is None:
        now += choice.uniform(0, 3)
        if choice.random() < 0.1 and gave:
            gone = choice.choice(sorted(gave))
            store.withdraw(gone)
            del gave[gone]
        try:
            place = store.take_place(person := next(people), now)
        except NoPlace:
            continue
        if choice.random() < 0.3:
            store.give(place.id, person, of(person), now)
            gave[person] = place.slot
    assert len(set(gave.values())) == len(gave) > 1
    found = {person: slot for slot, person in enumerate(closed.persons.tolist()) if person != -1}
    assert found == gave
    for person, slot in gave.items():
        assert closed.contributions[slot] == of(person)


def test_a_release_that_nobody_gave_for_is_not_made(make: Make) -> None:
    store = make()
    store.enrol(5)
    store.take_place(0, 0.0)
    assert store.close_due(100.0) is None
    assert (store.version(), store.counts().deadline) == (0, None)
    with pytest.raises(NoPlace):
        store.take_place(0, 100.0)  # one place in a release
    serve(store, 1, 500.0)
    assert store.counts().deadline == 600.0
    assert store.close_due(599.0) is None
    np.testing.assert_array_equal(make_release(store, 600.0).persons, [-1, 1, -1])


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_release_that_all_withdrew_from_is_not_made(make: Make, is_closed: bool) -> None:
    store = make(slots=2)
    store.enrol(5)
    for person in range(2):
        serve(store, person)
    if is_closed:
        assert store.close_due(0.0) is not None
    for person in range(2):
        store.withdraw(person)
    if is_closed:
        assert store.begin(0, "updater") is None
    else:
        assert store.close_due(100.0) is None
    assert store.counts().deadline is None
    for person in (2, 3):
        serve(store, person, 200.0)
    np.testing.assert_array_equal(sorted(make_release(store, 200.0).persons), [2, 3])


def test_a_closed_release_has_no_places(make: Make) -> None:
    store = make(slots=2)
    store.enrol(3)
    serve(store, 0)
    with pytest.raises(NoPlace):  # the deadline counts before the updater comes
        store.take_place(1, 100.0)
    assert store.close_due(100.0) is not None
    for now in (0.0, 100.0):
        with pytest.raises(NoPlace):
            store.take_place(1, now)


def test_places_are_their_persons_own(make: Make) -> None:
    store = make()
    store.enrol(2)
    place = store.take_place(0, 0.0)
    for name, person in ((place.id, 1), ("nothing", 0)):
        with pytest.raises(UnknownPlace):
            store.place(name, person)
        with pytest.raises(UnknownPlace):
            store.give(name, person, of(person), 0.0)
    assert store.history(0).places == ((0, "taken"),)


def test_a_place_expires_at_its_time(make: Make) -> None:
    store = make()
    store.enrol(2)
    late, early = store.take_place(0, 0.0), store.take_place(1, 0.0)
    assert store.give(early.id, 1, of(1), 9.999)
    with pytest.raises(PlaceClosed):
        store.give(late.id, 0, of(0), 10.0)
    with pytest.raises(NoPlace):  # one place in a release
        store.take_place(0, 10.0)
    store.close_due(10.0)
    assert store.history(0).places == ((0, "expired"),)
    for work in (
        lambda: store.place(late.id, 0),
        lambda: store.give(late.id, 0, of(0), 0.0),
    ):
        with pytest.raises(PlaceClosed):
            work()
    assert store.history(1).places == ((0, "given"),)


def test_a_release_closes_at_its_deadline(make: Make) -> None:
    store = make(release_seconds=12.0)
    store.enrol(3)
    assert store.close_due(1e9) is None  # it begins with its first place
    serve(store, 2, now=50.0)
    place = store.take_place(0, 55.0)
    assert place.expires == 62.0  # and not 65
    assert store.close_due(61.9) is None
    closed = store.close_due(62.0)
    assert closed is not None
    np.testing.assert_array_equal(closed.persons, [2, -1, -1])
    assert closed.contributions == [of(2), None, None]
    assert store.history(0).places == ((0, "expired"),)
    with pytest.raises(PlaceClosed):
        store.give(place.id, 0, of(0), 60.0)


@pytest.mark.parametrize(
    ("first", "deadline"),
    [(0.0, 30.0), (20.0, 30.0), (20.5, 60.0), (50.0, 60.0), (1.8e9 - 10, 1.8e9)],
)
def test_a_release_closes_at_a_fixed_time(make: Make, first: float, deadline: float) -> None:
    """The first multiple of 30 seconds that leaves 10 seconds to the first place."""
    store = make(release_seconds=30.0, fixed_times=True)
    store = CampaignDatabase.open(store._engine.url, "campaign", MASTER)
    store.enrol(2)
    serve(store, 0, now=first)
    assert store.counts().deadline == deadline
    assert store.take_place(1, deadline - 1).expires == deadline
    assert store.close_due(deadline - 0.1) is None
    assert store.close_due(deadline) is not None


def test_a_fixed_time_at_which_nobody_has_come_passes(make: Make) -> None:
    """A release without people would cost an update for nothing."""
    store = make(release_seconds=30.0, fixed_times=True)
    store.enrol(2)
    assert store.close_due(1000.0) is None
    make_release_of(store, 0, 1001.0)
    assert store.close_due(1050.0) is None
    make_release_of(store, 1, 1051.0)
    assert store.version() == 2


def make_release_of(store: CampaignDatabase, person: int, now: float) -> None:
    serve(store, person, now)
    make_release(store, store.rules.deadline(now))


def test_a_release_closes_when_every_slot_is_given_for(make: Make) -> None:
    store = make()
    store.enrol(4)
    store.take_place(0, 0.0)
    serve(store, 1, now=5.0)
    serve(store, 2, now=5.0)
    assert store.close_due(10.0) is None
    serve(store, 3, now=50.0)
    closed = store.close_due(50.0)
    assert closed is not None
    np.testing.assert_array_equal(closed.persons, [3, 1, 2])


def test_a_first_place_at_time_zero_sets_the_deadline(make: Make) -> None:
    store = make(release_seconds=5.0)
    store.enrol(2)
    store.take_place(0, -5.0)
    assert store.counts().deadline == 0.0
    with pytest.raises(NoPlace):
        store.take_place(1, 0.0)


# --- the rule of participation -------------------------------------------------------------------


def test_once_is_once(make: Make) -> None:
    store = make(slots=1)
    store.enrol(2)
    serve(store, 0)
    for _ in range(2):
        with pytest.raises(TookPart, match="as often as the campaign allows"):
            store.take_place(0, 0.0)
        if store.version() == 0:
            make_release(store)


def test_an_expired_place_is_no_participation(make: Make) -> None:
    store = make(slots=1)
    store.enrol(2)
    store.take_place(0, 0.0)
    serve(store, 1, now=10.0)
    make_release(store, 10.0)
    serve(store, 0, now=20.0)
    make_release(store, 20.0)
    with pytest.raises(TookPart):
        store.take_place(0, 30.0)
    assert store.history(0).places == ((0, "expired"), (1, "released"))


def test_a_lost_release_is_a_participation(make: Make) -> None:
    """The ledger charged it, and would refuse the person who came again."""
    store = make(slots=1)
    store.enrol(1)
    serve(store, 0)
    make_release(store, lost=True)
    with pytest.raises(TookPart):
        store.take_place(0, 0.0)
    assert store.history(0).places == ((0, "lost"),)


@pytest.mark.parametrize(("participations", "separation"), [(3, 1), (2, 3), (9, 2)])
def test_returning_people_keep_their_distance(
    make: Make, participations: int, separation: int
) -> None:
    store = make(slots=3, horizon=9, participations=participations, min_separation=separation)
    store.enrol(20)
    newcomers = 5
    choice = random.Random(participations)
    gave: dict[int, list[int]] = {person: [] for person in range(6)}
    for number in range(9):
        free = 3
        for person in choice.sample(range(6), 6):
            before = gave[person]
            allowed = len(before) < participations and all(
                number - earlier >= separation for earlier in before
            )
            if not allowed:
                with pytest.raises(TookPart):
                    store.take_place(person, 0.0)
            elif not free:
                with pytest.raises(NoPlace):
                    store.take_place(person, 0.0)
            elif choice.random() < 0.2:
                store.take_place(person, 0.0)  # and let it expire
                free -= 1
            else:
                serve(store, person)
                before.append(number)
                free -= 1
        if all(number not in one for one in gave.values()):  # such a release is not made
            serve(store, newcomers := newcomers + 1, 50.0)
        make_release(store, 150.0)
    assert sum(map(len, gave.values())) > 6
    for person, numbers in gave.items():
        places = store.history(person).places
        assert [number for number, state in places if state == "released"] == numbers


# --- contributions -------------------------------------------------------------------------------


def test_a_contribution_is_kept_once(make: Make, where: str) -> None:
    store = make(slots=1)
    store.enrol(1)
    place = serve(store, 0)

    def again() -> None:
        other = CampaignDatabase.open(where, "campaign", MASTER)
        for now in (0.0, 1e9):  # it was kept in time
            assert store.give(place.id, 0, of(0), now) is False
            assert other.give(place.id, 0, of(0), now) is False
            with pytest.raises(ContributionConflict):
                store.give(place.id, 0, of(1), now)
        assert store.place(place.id, 0) == place

    again()
    closed = store.close_due(0.0)
    assert closed is not None
    again()
    closed = store.begin(0, "updater")
    again()
    assert closed is not None
    assert closed.contributions == [of(0)]
    store.finish(0, "updater", b"policy 1")
    for work in (
        lambda: store.give(place.id, 0, of(0), 0.0),
        lambda: store.place(place.id, 0),
    ):
        with pytest.raises(PlaceClosed):
            work()


@pytest.mark.parametrize("size", [0, 7, 9])
def test_a_contribution_has_its_length(make: Make, size: int) -> None:
    store = make()
    store.enrol(1)
    place = store.take_place(0, 0.0)
    with pytest.raises(ValueError, match=f"8 bytes, not {size}"):
        store.give(place.id, 0, bytes(size), 0.0)
    assert store.history(0).places == ((0, "taken"),)


# --- withdrawing ---------------------------------------------------------------------------------


def test_withdrawing_without_a_place(make: Make) -> None:
    store = make()
    store.enrol(1)
    for _ in range(2):
        assert store.withdraw(0) == Receipt(0, (), ())
        with pytest.raises(Withdrawn):
            store.take_place(0, 0.0)
    assert store.history(0) == History(True, True, ())


def test_withdrawing_from_a_taken_place(make: Make) -> None:
    store = make()
    store.enrol(1)
    place = store.take_place(0, 0.0)
    assert store.withdraw(0) == Receipt(0, (), ())
    with pytest.raises(PlaceClosed):
        store.give(place.id, 0, of(0), 0.0)
    assert store.history(0) == History(True, True, ((0, "withdrawn"),))


@pytest.mark.parametrize("is_closed", [False, True])
def test_withdrawing_deletes_the_contribution(make: Make, is_closed: bool) -> None:
    store = make(slots=2)
    store.enrol(2)
    places = [serve(store, person) for person in range(2)]
    if is_closed:
        assert store.close_due(0.0) is not None
    for _ in range(2):
        assert store.withdraw(0) == Receipt(0, dropped=(0,), in_releases=())
    closed = begun(store, 100.0)
    np.testing.assert_array_equal(closed.persons, [-1, 1])
    assert closed.contributions == [None, of(1)]
    store.finish(0, "updater", b"policy 1")
    assert store.withdraw(0) == Receipt(0, dropped=(0,), in_releases=())
    assert store.history(0) == History(True, True, ((0, "withdrawn"),))
    assert store.history(1) == History(True, False, ((0, "released"),))
    with pytest.raises(PlaceClosed):
        store.place(places[0].id, 0)
    assert store.counts().took_part == 1


def test_withdrawing_after_the_release_has_begun(make: Make) -> None:
    store = make(slots=2)
    store.enrol(2)
    for person in range(2):
        serve(store, person)
    closed = begun(store)
    assert store.withdraw(0) == Receipt(0, (), in_releases=(0,))
    again = store.begin(0, "updater")
    assert again is not None
    np.testing.assert_array_equal(again.persons, closed.persons)
    assert again.contributions == closed.contributions == [of(0), of(1)]
    store.finish(0, "updater", b"policy 1")
    assert store.withdraw(0) == Receipt(0, (), in_releases=(0,))
    with pytest.raises(Withdrawn):
        store.take_place(0, 0.0)


def test_withdrawing_between_releases(make: Make) -> None:
    store = make(slots=1, participations=3, min_separation=1)
    store.enrol(1)
    serve(store, 0)
    make_release(store)
    serve(store, 0)
    make_release(store, lost=True)  # it is in no policy, and was not deleted by the withdrawal
    serve(store, 0)
    assert store.withdraw(0) == Receipt(0, dropped=(2,), in_releases=(0, 1))


def test_a_release_that_was_not_charged_can_lose_contributions_again(make: Make) -> None:
    store = make(slots=2)
    store.enrol(2)
    for person in range(2):
        serve(store, person)
    with pytest.raises(ValueError, match="is open"):
        store.not_charged(0, "ann")
    begun(store, holder="ann")
    with pytest.raises(StaleHolder):  # it may be charged by now
        store.drop(0, [0])
    store.withdraw(0)
    assert store.not_charged(0, "bob") == [1]
    closed = store.close_due(0.0)
    assert closed is not None
    np.testing.assert_array_equal(closed.persons, [-1, 1])
    assert closed.contributions == [None, of(1)]
    assert store.withdraw(0) == Receipt(0, dropped=(0,), in_releases=())
    with pytest.raises(StaleHolder):  # what it may have computed is never published
        store.finish(0, "ann", b"policy 1")
    assert store.lease("bob", 10.0, 0.0)
    with pytest.raises(StaleHolder):
        store.not_charged(0, "ann")
    assert store.withdraw(1).dropped == (0,)
    assert store.begin(0, "bob") is None  # nobody gives any more, so it is open again


# --- updaters ------------------------------------------------------------------------------------


def test_one_updater_has_the_lease(make: Make) -> None:
    store = make()
    assert store.lease("ann", 10.0, 0.0)
    assert not store.lease("bob", 10.0, 9.9)
    assert store.lease("ann", 10.0, 5.0)
    assert not store.lease("bob", 10.0, 14.9)
    assert store.lease("bob", 10.0, 15.0)
    assert not store.lease("ann", 10.0, 24.9)


def test_whoever_lost_the_lease_begins_nothing(make: Make) -> None:
    store = make(slots=1)
    store.enrol(1)
    serve(store, 0)
    assert store.lease("ann", 10.0, 0.0)
    assert store.close_due(0.0) is not None
    assert store.lease("bob", 10.0, 11.0)
    with pytest.raises(StaleHolder):
        store.begin(0, "ann")
    assert store.withdraw(0).dropped == (0,)  # it has not begun


def test_a_release_is_finished_by_whoever_began_it_last(make: Make) -> None:
    store = make(slots=1)
    store.enrol(1)
    serve(store, 0)
    with pytest.raises(ValueError, match="is open"):
        store.begin(0, "ann")
    begun(store, holder="ann")
    begun(store, holder="bob")
    with pytest.raises(StaleHolder):
        store.finish(0, "ann", b"policy of ann")
    store.finish(0, "bob", b"policy of bob")
    store.finish(0, "bob", b"policy of bob")
    assert store.policy() == (1, b"policy of bob")
    for work in (
        lambda: store.finish(0, "ann", b"policy of ann"),
        lambda: store.begin(0, "ann"),
        lambda: store.begin(0, "bob"),
        lambda: store.finish(1, "bob", b"policy 2"),
    ):
        with pytest.raises(StaleHolder):
            work()
    assert store.policy() == (1, b"policy of bob")


def test_what_was_not_begun_is_not_finished(make: Make) -> None:
    store = make(slots=1)
    store.enrol(1)
    serve(store, 0)
    for _ in range(2):
        with pytest.raises(StaleHolder):
            store.finish(0, "ann", b"policy 1")
        store.close_due(0.0)
    assert store.version() == 0
