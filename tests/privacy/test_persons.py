"""Sets of persons do what Python's sets do, in any order and across pages."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sotto.privacy.ledger.costs import groups
from sotto.privacy.ledger.persons import LARGEST_PERSON, PersonBlock, PersonSet

# Numbers near the borders of pages, and where there is none.
EDGES = st.sampled_from([0, 1, 63, 64, 4095, 4096, 4097, 8191, 8192, 12288, 20480, 2**20])
STARTS = st.builds(lambda edge, near: max(0, edge + near), EDGES, st.integers(-3, 3))
BLOCKS = st.builds(
    lambda start, size: PersonBlock(start, start + size),
    STARTS,
    st.one_of(st.integers(1, 5), st.sampled_from([4096, 4097, 9000])),
)


@given(st.lists(BLOCKS, max_size=12), BLOCKS)
def test_it_is_a_set(added: list[PersonBlock], asked: PersonBlock) -> None:
    people, plain = PersonSet(), set()
    for block in added:
        people.add(block)
        plain |= set(range(*block))
        assert len(people) == len(plain)
    for some in ([asked], [*added[:3], asked]):
        wanted = {one for block in some for one in range(*block)}
        assert people.count_new(some) == len(wanted - plain)
    common = plain & set(range(*asked))
    assert people.count_common(asked) == len(common)
    assert people.first_common(asked) == min(common, default=None)
    assert people.next_person == max(plain, default=-1) + 1
    blocks = people.blocks
    assert {one for block in blocks for one in range(*block)} == plain
    assert all(one.stop < other.start for one, other in itertools.pairwise(blocks))
    assert sum(block.stop - block.start for block in blocks) == len(plain)


def test_the_largest_numbers_and_many_people() -> None:
    people = PersonSet()
    everybody = PersonBlock(0, 10**7)
    for _ in range(1000):  # as under Poisson sampling
        people.add(everybody)
    people.add(PersonBlock(LARGEST_PERSON, LARGEST_PERSON + 1))
    assert people.blocks == [everybody, (LARGEST_PERSON, LARGEST_PERSON + 1)]
    assert people.next_person == LARGEST_PERSON + 1
    assert people.count_common(PersonBlock(0, LARGEST_PERSON + 1)) == len(people) == 10**7 + 1


@given(st.lists(st.lists(BLOCKS, max_size=4), max_size=5))
def test_groups_are_the_memberships_of_some_person(streams: list[list[PersonBlock]]) -> None:
    sets, plain = [], []
    for blocks in streams:
        people = PersonSet()
        for block in blocks:
            people.add(block)
        sets.append(people)
        plain.append({one for block in blocks for one in range(*block)})
    everybody = set[int]().union(*plain)
    oracle = {frozenset(i for i, some in enumerate(plain) if one in some) for one in everybody}
    assert groups(sets) == oracle
