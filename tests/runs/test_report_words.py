"""The page of a run says all that the text of its certificate says."""

import json
import math
from html import escape
from pathlib import Path
from typing import Any

import pytest
from asking import ask
from commands import text_of
from small_teacher import statement

from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.claims import Quoted
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import Gap
from sotto.runs.report.pages import certificate_in_words

STORED = Path(__file__).parents[1] / "attacks" / "certificate_of_schema_2.json"
PAPER = {"status": "paper-claim", "epsilon": math.inf, "gaps": (Gap(name="critic", why="bare"),)}


def stored(**changes: Any) -> Certificate:
    """A kept certificate with a sentence of an algorithm's author."""
    one = Certificate.model_validate_json(json.loads(STORED.read_text())["text"])
    own = Quoted(section="user", sentence="Nobody <asks> twice.", how="they promise")
    return one.model_copy(update={"claims": (*one.claims, own)} | changes)


def of_answers(folder: Path) -> Certificate:
    """The certificate of a teacher who has answered a student."""
    budget = Budget(epsilon=math.inf, delta=1e-5)
    ledger = AnswerLedger.create(folder / "ledger", statement=statement(8), budget=budget)
    ledger.add_student("ann")
    ask(ledger, "ann", 2)
    return derive(ledger)


@pytest.mark.parametrize("kind", ["proved", "paper", "answers"])
def test_the_page_has_every_line_of_the_text(kind: str, tmp_path: Path) -> None:
    made = {"proved": stored, "paper": lambda: stored(**PAPER)}
    certificate = made[kind]() if kind in made else of_answers(tmp_path)
    _, *lines = filter(None, (line.strip() for line in text_of(certificate).splitlines()))
    page = "".join(certificate_in_words(certificate, 1))
    small = ("JAX settings: ", "Computed by: ", "Ledger ")  # the page has them elsewhere
    lines = [line.removeprefix("- ") for line in lines if not line.startswith(small)]
    page = page.replace(' <span class="how">', "<span>")  # how an assumption is ensured
    assert [line for line in lines if f">{escape(line)}<" not in page] == []
    titles = {"proved": "In the words", "paper": "Steps that", "answers": "What each student"}
    assert any(line.startswith(titles[kind]) for line in lines)
    assert "Released" in lines


def test_of_several_seeds_the_page_says_whose_certificate_it_is() -> None:
    page = "".join(certificate_in_words(stored(), 2))
    assert "the weakest one, alone" in page
    assert "An observer who sees" not in page
