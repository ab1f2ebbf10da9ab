"""The people of a campaign and their secret tokens, of which the database holds hashes."""

import threading
from collections.abc import Sequence

import sqlalchemy as sa

from sotto.people.database.tables import people, reading, writing
from sotto.people.errors import UnknownPerson
from sotto.privacy.answers.storage import KnownTokens
from sotto.privacy.ledger.persons import LARGEST_PERSON
from sotto.tokens import new_token, token_hash

WITHDREW = sa.select(people.c.withdrew).where(people.c.person == sa.bindparam("who"))
"""Whether the person `who` has withdrawn; no row for an unknown person."""


class Tokens:
    """The part of a `CampaignDatabase` that makes tokens and knows whose they are."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._known, self._reading_tokens = KnownTokens(()), threading.Lock()
        self._numbered, self._replacements = 0, 0  # tokens up to these numbers are known

    @property
    def enrolled(self) -> frozenset[int]:
        """Numbers of all people."""
        with reading(self._engine) as connection:
            return frozenset(connection.scalars(sa.select(people.c.person)))

    def enrol(self, count: int) -> list[str]:
        """Adds people, numbered on from those there are, and returns a secret token for each.

        Only hashes of the tokens are stored.
        """
        with writing(self._engine) as (connection, _):
            last = connection.scalar(sa.select(sa.func.max(people.c.person)))
            first = 0 if last is None else last + 1
            if not 1 <= count <= LARGEST_PERSON + 1 - first:
                raise ValueError("enrol at least one person, and no more than there are numbers")
            return _add(connection, range(first, first + count))

    def enrol_numbers(self, numbers: Sequence[int]) -> list[str]:
        """Adds people under given numbers, and returns a secret token for each.

        Raises:
            ValueError: a number is out of range, twice in the list, or somebody has it already.
        """
        if not numbers or min(numbers) < 0 or max(numbers) > LARGEST_PERSON:
            raise ValueError(f"enrol people under numbers from 0 to {LARGEST_PERSON}")
        with writing(self._engine) as (connection, _):
            there = frozenset(connection.scalars(sa.select(people.c.person)))
            if len(set(numbers)) < len(numbers) or not there.isdisjoint(numbers):
                raise ValueError(
                    "a person is listed twice or is enrolled already; list each new person once"
                )
            # Numbers may come in any order, so other processes find the tokens by `replaced`.
            last = connection.scalar(sa.select(sa.func.max(people.c.replaced))) or 0
            return _add(connection, numbers, last + 1)

    def replace_token(self, person: int) -> str:
        """Returns a new secret token of a person. The one before is worth nothing from now on.

        Other processes know it as soon as they call `known_tokens`.

        Raises:
            UnknownPerson: there is no such person.
        """
        token = new_token()
        with writing(self._engine) as (connection, _):
            has_withdrawn(connection, person)  # refuses an unknown person
            last = connection.scalar(sa.select(sa.func.max(people.c.replaced))) or 0
            change = sa.update(people).where(people.c.person == person)
            connection.execute(change.values(token_hash=token_hash(token), replaced=last + 1))
        with self._reading_tokens:
            self._known.add([(str(person), token_hash(token))])
        return token

    def authenticate(self, token: str) -> str | None:
        """Returns the number of the person who has the token, as text; None if nobody has it.

        People who have withdrawn keep their token.
        """
        query = sa.select(people.c.person).where(people.c.token_hash == token_hash(token))
        with reading(self._engine) as connection:
            person = connection.scalar(query)
        return None if person is None else str(person)

    def known_tokens(self) -> KnownTokens:
        """Returns the tokens known now, for comparisons without reading the database again.

        People are never removed, so only new people and replaced tokens are read. Strangers cause
        this reading.
        """
        columns = (people.c.person, people.c.token_hash, people.c.replaced)
        with self._reading_tokens:
            new = people.c.person >= self._numbered
            query = sa.select(*columns).where(new | (people.c.replaced > self._replacements))
            with reading(self._engine) as connection:
                rows = connection.execute(query).all()
            self._known.add((str(person), token_hash) for person, token_hash, _ in rows)
            self._numbered = max([self._numbered, *(row.person + 1 for row in rows)])
            self._replacements = max([self._replacements, *(row.replaced or 0 for row in rows)])
        return self._known


def _add(
    connection: sa.Connection, numbers: Sequence[int], replaced: int | None = None
) -> list[str]:
    """Adds people under these numbers; `replaced` is that of the first one, if others need it."""
    tokens = [new_token() for _ in numbers]
    rows = [
        {
            "person": person,
            "token_hash": token_hash(token),
            "withdrew": False,
            "replaced": None if replaced is None else replaced + place,
        }
        for place, (person, token) in enumerate(zip(numbers, tokens, strict=True))
    ]
    connection.execute(sa.insert(people), rows)
    return tokens


def has_withdrawn(connection: sa.Connection, person: int) -> bool:
    """Returns whether a person has withdrawn; refuses unknown people."""
    found: bool | None = connection.scalar(WITHDREW, {"who": person})
    if found is None:
        raise UnknownPerson("the campaign has no such person; enrol them first")
    return found
