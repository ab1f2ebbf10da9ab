"""`sotto campaign`: tokens of people and of the operator, and withdrawing people."""

from pathlib import Path
from typing import Any

import tyro

from sotto.cli.live.campaign import Database, open_store
from sotto.cli.terminal.options import Json, RunPath
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.people import campaign as campaigns
from sotto.privacy.ledger.joining import Numbers


@command("campaign invite")
def invite(
    path: RunPath,
    count: tyro.conf.Positional[int | None] = None,
    /,
    numbers: Path | None = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Makes tokens for new people and prints them, one on each line. Hashes of them are stored.

    Give each person one token, and nobody two. The certificate assumes it. In a campaign that
    shares a budget, people have your own numbers, the same in all products: name them with
    --numbers. The token on each line belongs to the person of the same line there.

    Examples:
      sotto campaign invite study 100 > tokens.txt
      sotto campaign invite study --numbers people.txt > tokens.txt

    Args:
        path: Directory of the campaign.
        count: Number of people.
        numbers: File with the number of each new person, one on each line.
    """
    found = campaigns.open_campaign(path, database)
    if (shared := found.settings.shared_budget is not None) == (numbers is None):
        raise ValueError(
            "this campaign shares a budget, in which people have your numbers; name them with "
            "--numbers FILE"
            if shared
            else "numbers are for campaigns that share a budget; give the number of people instead"
        )
    if numbers is not None:
        tokens = open_store(found).enrol_numbers(Numbers.read(numbers).all)
    elif count is None or count < 1:
        raise ValueError(f"the number of people must be at least 1, got {count}")
    else:
        tokens = open_store(found).enrol(count)
    if json:
        print_json({"tokens": tokens})
    else:
        print("\n".join(tokens))


@command("campaign replace-token")
def replace_token(
    path: RunPath,
    person: tyro.conf.Positional[int],
    /,
    database: Database = None,
    json: Json = False,
) -> None:
    """Makes a new token for a person who lost theirs, and prints it. It is shown only now.

    The old token is refused within a second. Person numbers begin at 0, in the order in which
    tokens were printed. Make sure that you speak with the right person.

    Example:
      sotto campaign replace-token study 17

    Args:
        path: Directory of the campaign.
        person: Number of the person.
    """
    store = open_store(campaigns.open_campaign(path, database))
    _check_people(store, person)
    token = store.replace_token(person)
    if json:
        print_json({"person": person, "token": token})
    else:
        print(token)


@command("campaign withdraw")
def withdraw(
    path: RunPath,
    people: tyro.conf.Positional[tuple[int, ...]],
    /,
    database: Database = None,
    json: Json = False,
) -> None:
    """Withdraws people for good, as if they did it themselves, and prints their receipts.

    They get no further place. What they gave for a release that has not begun is deleted.

    Example:
      sotto campaign withdraw study 17 23

    Args:
        path: Directory of the campaign.
        people: Numbers of the people.
    """
    from sotto.people.desk import WITHDRAWN

    if not people:
        raise ValueError("name at least one person")
    store = open_store(campaigns.open_campaign(path, database))
    _check_people(store, *people)
    receipts = [store.withdraw(person).as_json() for person in people]
    if json:
        print_json({"receipts": receipts, "meaning": WITHDRAWN})
        return
    for one in receipts:
        print(f"Person {one['person']} has withdrawn.")
        for said, releases in (
            ("Deleted from", one["deleted_from_releases"]),
            ("Part of", one["part_of_releases"]),
        ):
            numbers = ", ".join(map(str, releases)) or "none"
            print(f"  {said} releases: {numbers}")
    print(f"Tell them: {WITHDRAWN}")


@command("campaign operator")
def operator(path: RunPath, /, json: Json = False) -> None:
    """Issues a new token for yourself, which replaces the last one. It is shown only now.

    Example:
      sotto campaign operator study

    Args:
        path: Directory of the campaign.
    """
    token = campaigns.open_campaign(path).operator.renew()
    if json:
        print_json({"token": token})
    else:
        print(token)


def _check_people(store: Any, *people: int) -> None:
    """Refuses numbers that no person has, before anything is changed."""
    enrolled = store.enrolled
    for person in people:
        if person not in enrolled:
            raise ValueError(f"the campaign has no person {person}; it has {len(enrolled)}")
