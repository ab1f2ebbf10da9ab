"""`sotto budget`: a budget that several campaigns and trainings share, person by person."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from sotto.cli.terminal.options import Json
from sotto.cli.terminal.output import print_json, print_table
from sotto.cli.terminal.parsing import command
from sotto.privacy.bounds import at_least, at_most, guarantee
from sotto.privacy.ledger.allowances import Allowance
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.standing import PersonStanding, Standing, person_standing, standing
from sotto.runs.report.shared import CAVEAT, sentence, write_page

Place = Annotated[str, tyro.conf.Positional]


@command("budget create")
def create(
    place: Place,
    /,
    epsilon: float,
    delta: float,
    other_epsilon: float = 0.0,
    other_delta: float = 0.0,
    json: Json = False,
) -> None:
    """Creates a budget that campaigns and trainings share: no person pays more in all of them.

    People have your numbers, from 0 on, which are the same in all products. Products whose noise
    is Gaussian and whose people are not drawn in secret add up tightly. Others take from a part
    that is set aside for them.

    Examples:
      sotto budget create people.budget --epsilon 2 --delta 1e-6
      sotto campaign start study --budget people.budget --recipe CartPole-v1 --target-epsilon 1
      sotto train rlhf --budget people.budget --numbers numbers.txt --feedback ratings.jsonl
      sotto budget show people.budget

    Args:
        place: New file, or SQLAlchemy URL of an SQLite or PostgreSQL database.
        epsilon: Largest epsilon of a person in all products together.
        delta: Delta of all products together. Choose it below 1 / (number of people).
        other_epsilon: Part of epsilon for products with other noise, or with people drawn in
            secret. Their epsilons are added.
        other_delta: Part of delta for them. Their deltas are added.
    """
    allowance = Allowance(
        epsilon=epsilon, delta=delta, other_epsilon=other_epsilon, other_delta=other_delta
    )
    made = SharedBudget.create(place, allowance)
    if json:
        print_json({"budget": made.budget_id, "place": place, **allowance.model_dump()})
        return
    print(f"A new budget in {place}: {guarantee(epsilon, delta)} for each person.")
    least = allowance.squared_shift**-0.5
    print(f"One Gaussian product that uses all of it has noise multiplier {at_most(least, 6)}.")
    print(f"Share it:             sotto campaign start DIR --budget {place} ...")
    print(f"Look at it:           sotto budget show {place}")


@command("budget show")
def show(place: Place, /, person: int | None = None, most: int = 10, json: Json = False) -> None:
    """Prints the products that share a budget, and the people who have the least left.

    Examples:
      sotto budget show people.budget
      sotto budget show people.budget --person 17

    Args:
        place: File or SQLAlchemy URL of the budget.
        person: Number of one person to show alone.
        most: Largest number of people to show.
    """
    budget = SharedBudget.open(place)
    if person is not None:
        _show_person(person_standing(budget, person), json)
        return
    found = standing(budget, most)
    if json:
        print_json(asdict(found) | {"allowance": found.allowance.model_dump()})
    else:
        _show(found)


@command("budget page")
def page(place: Place, /, out: Path, most: int = 20, json: Json = False) -> None:
    """Writes a page about a shared budget: products, and how many people are how near.

    Example:
      sotto budget page people.budget --out budget.html

    Args:
        place: File or SQLAlchemy URL of the budget.
        out: File of the page. It shows numbers of people, so keep it to yourself.
        most: Largest number of people to show.
    """
    write_page(standing(SharedBudget.open(place), most), out)
    if json:
        print_json({"page": str(out)})
    else:
        print(f"The page: {out}")


def _show(found: Standing) -> None:
    print(sentence(found))
    print(f"Head of the ledger: {found.head_hash}\n")
    streams = []
    for number, one in enumerate(found.streams):
        named = (str(number), f"{one.name} ({one.product[:8]})", f"{one.people:,}")
        share = f"{at_most(100 * one.share, 3)}%"
        streams.append((*named, at_most(one.epsilon), share, f"{one.refused:,}"))
    print_table(("stream", "product", "people", "epsilon of each", "share", "refused now"), streams)
    people = []
    for near in found.nearest:
        numbers = (str(near.person), at_most(near.epsilon), f"{at_most(100 * near.share, 3)}%")
        people.append((*numbers, at_least(near.room), ", ".join(map(str, near.streams))))
    print_table(("person", "spent epsilon", "used share", "room for epsilon", "streams"), people)
    print(
        f"{found.people:,} people took part. The one who spent most has epsilon "
        f"{at_most(found.largest)} of {at_most(found.allowance.epsilon)}. {CAVEAT}"
    )


def _show_person(found: PersonStanding, json: bool) -> None:
    if json:
        print_json(asdict(found))
        return
    streams = ", ".join(map(str, found.streams)) or "none"
    print(
        f"Person {found.person}: epsilon {at_most(found.epsilon)} spent, "
        f"{at_most(100 * found.share, 3)}% of the budget. Room for one more Gaussian stream of "
        f"epsilon {at_least(found.room)}. Streams: {streams}."
    )
