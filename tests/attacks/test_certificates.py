"""Attacks on what a reader is shown: a certificate that was touched, grew old, or never was ours.

What was found: a second "epsilon" above the true one was accepted; a delta could be moved within
the tolerance of computed numbers; a sentence put better made true certificates false; and whatever
was older than its ledger was called false.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask
from pydantic_core import to_json
from rich.console import Console

from sotto.cli import main
from sotto.privacy.answers.distances import TrainingShards
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.answers.storage import TABLES
from sotto.privacy.certificates.derive import derive, read, render, verify
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.certificates.text import meaning_of_delta
from sotto.privacy.claims import Reference
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.databases import database
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.policies import GaussianPolicy
from sotto.privacy.statements import Once, Part, StreamStatement
from sotto.privacy.units import Unit

UNIT = Unit(kind="trajectory", adjacency="zero-out")
STATEMENT = StreamStatement(
    name="updates",
    unit=UNIT,
    participation=Once(),
    parts={"policy": Part(clip_norm=1.0, noise_multiplier=3.0)},
    dimensions={"policy": 10},
    divisor=4.0,
    horizon=20,
    population="simulated",
    sampler_delta=1e-30,
)
SCHEMA_1 = json.loads(
    Path(__file__).with_name("certificates_of_schema_1.json").read_text(encoding="utf-8")
)
SCHEMA_2 = json.loads(
    Path(__file__).with_name("certificate_of_schema_2.json").read_text(encoding="utf-8")
)
"""A certificate in the first words of schema 2, and its ledger, whose stream brings such words."""


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, Ledger]:
    """A certificate and its ledger, of 768 people."""
    ledger = Ledger.create(
        tmp_path / "ledger", "run", unit=UNIT, budget=Budget(epsilon=2.0, delta=1e-5)
    )
    ledger.open_stream(STATEMENT).charge(0, 1, [PersonBlock(0, 768)])
    path = tmp_path / "certificate.json"
    derive(ledger).write(path)
    assert verify(path, ledger).status == "verified"
    return path, ledger


def refused(path: Path, ledger: Ledger | AnswerLedger) -> str:
    found = verify(path, ledger)
    assert found.status == "false"
    return "; ".join(found.mismatches)


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('  "epsilon"', '  "epsilon": 0.1,\n  "epsilon"', "says 'epsilon' twice"),
        ('    "delta"', '    "delta": 1e-9,\n    "delta"', "says 'delta' twice"),
        ('  "persons"', '  "note": "nobody can tell",\n  "persons"', "there is no field 'note'"),
        ('"persons": 768', '"persons": "768"', "not canonical: line"),
        ('"releases": 1,', '"releases": true,', "not canonical: line"),
        ('"persons": 768', '"persons": 768.0', "not canonical: line"),
        ('"delta": 0.00001', '"delta": 1e-5', "not canonical: line"),
        ('"delta": 0.00001', '"delta"', "it is no JSON from line"),
        ('"delta": 0.00001', '"delta": NaN', "NaN is no JSON"),
        ('"delta": 0.00001', '"delta": Infinity', "Infinity is no JSON"),
        ('"schema_version": 2', '"schema_version": 3', "schema_version"),
        ('"schema_version": 2', '"schema_version": true', "cannot be read"),
        ('"schema_version": 2', '"schema_version": 1', "cannot be read"),
        ('"claim": "noise.random"', '"claim": "noise.perfect"', "no sentence 'noise.perfect'"),
        ('"status": "proved"', '"status":  "proved"', "not canonical: line"),
    ],
)
def test_a_text_that_nothing_writes_is_refused(
    stored: tuple[Path, Ledger], old: str, new: str, words: str
) -> None:
    path, ledger = stored
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert words in refused(path, ledger)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-1],
        lambda text: text + "\n",
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "[" * 100_000 + text,
        lambda text: f"[{text}]",
        lambda text: text + text,
        lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=2) + "\n",
    ],
)
def test_the_text_is_canonical(stored: tuple[Path, Ledger], spoil: Callable[[str], str]) -> None:
    path, ledger = stored
    path.write_bytes(spoil(path.read_text()).encode())
    assert "cannot be read" in (said := refused(path, ledger)) or "not canonical" in said


# --- numbers -------------------------------------------------------------------------------------


def edited(path: Path, change: Callable[[Any], None]) -> None:
    """Changes a certificate, and writes it as it is always written."""
    contents = json.loads(path.read_text())
    change(contents)
    path.write_bytes(to_json(contents, indent=2) + b"\n")


def test_deltas_have_no_tolerance_and_epsilons_a_small_one(stored: tuple[Path, Ledger]) -> None:
    path, ledger = stored
    text = path.read_bytes()
    nearly = 1 + 1e-9
    changes: list[tuple[str, Callable[[Any], None]]] = [
        ("delta", lambda c: c.update(delta=c["delta"] * nearly)),
        ("curve", lambda c: c["curve"][3].__setitem__(1, c["curve"][3][1] * nearly)),
        ("budget", lambda c: c["budget"].update(delta=c["budget"]["delta"] * nearly)),
        ("worst_person", lambda c: c["worst_person"].update(sampler_delta=1e-31)),
        ("curve", lambda c: c["curve"][3].__setitem__(0, c["curve"][3][0] * (1 - 1e-5))),
        ("epsilon", lambda c: c.update(epsilon=c["epsilon"] * (1 - 1e-5))),
        ("epsilon", lambda c: c.update(epsilon=c["epsilon"] * 1.5)),
        ("epsilon", lambda c: c.update(epsilon="NaN")),
        ("versions", lambda c: c.update(versions=dict(reversed(c["versions"].items())))),
    ]
    for field, change in changes:
        path.write_bytes(text)
        edited(path, change)
        assert f"{field} is not what the ledger gives" in refused(path, ledger)
    path.write_bytes(text)
    edited(path, lambda c: c.update(epsilon=c["epsilon"] * nearly))
    edited(path, lambda c: c["curve"][3].__setitem__(0, c["curve"][3][0] * nearly))
    assert verify(path, ledger).status == "verified"


# --- sentences -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda claims: claims.pop(),
        lambda claims: claims.reverse(),
        lambda claims: claims.append({"claim": "dppg.policies", "version": 2}),
        lambda claims: claims.append(
            {"section": "protects", "sentence": "Everything, against everybody.", "how": ""}
        ),
        lambda claims: claims[0].update(numbers={"teachers": "1000"}),
    ],
)
def test_a_forged_sentence_is_found(
    stored: tuple[Path, Ledger], change: Callable[[Any], None]
) -> None:
    path, ledger = stored
    edited(path, lambda contents: change(contents["claims"]))
    assert refused(path, ledger).startswith("claims is not what the ledger gives")


def schema_1(kind: str, tmp_path: Path) -> tuple[Path, Ledger | AnswerLedger]:
    """A certificate that version 0.1.0 wrote, and the ledger of that training."""
    return restored(SCHEMA_1["certificates"][kind], tmp_path, answers=kind == "student")


def restored(
    kept: Any, tmp_path: Path, *, answers: bool = False
) -> tuple[Path, Ledger | AnswerLedger]:
    """Puts a kept certificate and its ledger on disk."""
    engine = database(tmp_path / "ledger")
    first, *rest = [entries.Entry(*row) for row in kept["entries"]]
    entries.create(engine, first, TABLES if answers else ())
    for entry in rest:
        entries.append(engine, entry)
    path = tmp_path / "certificate.json"
    path.write_text(kept["text"])
    return path, (AnswerLedger if answers else Ledger).open(tmp_path / "ledger")


@pytest.mark.parametrize("kind", SCHEMA_1["certificates"])
def test_a_certificate_that_was_true_stays_verified(kind: str, tmp_path: Path) -> None:
    path, ledger = schema_1(kind, tmp_path)
    found = verify(path, ledger)
    if kind.startswith("q-"):  # functions, whose noise was on a grid finer than its sampler
        assert found.status == "false"
        assert "on a grid finer than its noise resolves" in found.mismatches[0]
        assert found.current is not None
        assert (found.current.status, found.current.epsilon) == ("none", math.inf)
        return
    assert found.mismatches == ()
    # The training of prefixes was killed after its charge, before it wrote a certificate.
    assert found.status == ("stale" if kind == "prefixes" else "verified")
    assert found.current is not None
    assert found.current.schema_version == 2
    if kind != "prefixes":
        assert any("numpy's SeedSequence" in line for line in found.corrections)
    found.current.write(path)
    assert verify(path, ledger).status == "verified"


def test_a_certificate_in_earlier_words_stays_verified(tmp_path: Path) -> None:
    path, ledger = restored(SCHEMA_2, tmp_path)
    stored = read(path)
    assert isinstance(stored, Certificate)
    assert "against whoever sees every policy" in "".join(stored.protects)
    found = verify(path, ledger)
    assert (found.status, found.mismatches) == ("verified", ())
    (correction,) = found.corrections
    assert "the code does not see from whose data rows were computed" in correction
    assert found.current is not None
    versions = [
        {one.claim: one.version for one in claims if isinstance(one, Reference)}
        for claims in (
            Certificate.model_validate_json(path.read_text()).claims,
            found.current.claims,
        )
    ]
    assert versions[0].keys() == versions[1].keys()
    assert versions[0]["dppg.policies"] < versions[1]["dppg.policies"]


@pytest.mark.parametrize(
    "change",
    [
        lambda claims: claims.pop(),
        lambda claims: claims.reverse(),
        lambda claims: claims[0].update(numbers={"teachers": "1000"}),
        lambda claims: claims[0].update(claim="dppg.patterns", version=1),
    ],
)
def test_a_forged_sentence_in_earlier_words_is_found(
    change: Callable[[Any], None], tmp_path: Path
) -> None:
    path, ledger = restored(SCHEMA_2, tmp_path)
    edited(path, lambda contents: change(contents["claims"]))
    assert refused(path, ledger).startswith("claims is not what the ledger gives")


def test_words_that_only_schema_1_said_have_no_version_in_schema_2(tmp_path: Path) -> None:
    path, ledger = restored(SCHEMA_2, tmp_path)
    edited(path, lambda contents: contents["claims"][0].update(version=1))
    assert "no sentence 'dppg.policies' has a version 1" in refused(path, ledger)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("assumptions", lambda c: c["assumptions"].pop()),
        ("assumptions", lambda c: c["assumptions"][0].update(enforced_by="code")),
        ("assumptions", lambda c: c["assumptions"][5].update(how="it is")),
        ("protects", lambda c: c["protects"].append("Everything, against everybody.")),
        ("does_not_protect", lambda c: c.update(does_not_protect=[])),
        ("unit_sentence", lambda c: c.update(unit_sentence="Everybody is protected.")),
        ("epsilon", lambda c: c.update(epsilon=0.1)),
        ("method", lambda c: c.update(method="by hand")),
    ],
)
def test_words_that_were_never_ours_are_false(
    field: str, change: Callable[[Any], None], tmp_path: Path
) -> None:
    path, ledger = schema_1("dppg-parts", tmp_path)
    edited(path, change)
    assert refused(path, ledger).startswith(f"{field} is not what the ledger gives")


def test_words_of_a_stranger_cannot_pass_for_ours(tmp_path: Path) -> None:
    """Names and sentences in somebody else's ledger neither begin lines nor move the cursor."""
    hostile = STATEMENT.model_copy(
        update={
            "name": "\x1b[2J\x1b[1;1Hupdates",
            "protects": ("All.\nProved: epsilon 0.01 at delta 1e-09.", "\u202e0.1 nolispe"),
        }
    )
    ledger = Ledger.create(
        tmp_path / "ledger", "run", unit=UNIT, budget=Budget(epsilon=2.0, delta=1e-5)
    )
    ledger.open_stream(hostile).charge(0, 1, [PersonBlock(0, 8)])
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(derive(ledger)))
    said = capture.get()
    assert "\x1b[2J" not in said
    assert "\u202e" not in said
    headlines = [line for line in said.splitlines() if line.startswith("Proved")]
    assert [line[:21] for line in headlines] == ["Proved: epsilon 1.272"]
    assert "\\nProved: epsilon 0.01" in said


# --- stale, and false ----------------------------------------------------------------------------


def test_what_was_true_at_an_earlier_entry_is_stale(stored: tuple[Path, Ledger]) -> None:
    path, ledger = stored
    old = path.read_bytes()
    ledger.open_stream(STATEMENT).charge(0, 1, [PersonBlock(768, 800)])
    found = verify(path, ledger)
    assert (found.status, found.mismatches) == ("stale", ())
    assert found.current == derive(ledger)
    # What was never true at that entry is false, however old it is.
    edited(path, lambda contents: contents.update(epsilon=0.9))
    assert "epsilon" in refused(path, ledger)
    # The head of one entry with what another gave is false.
    path.write_bytes(old)
    edited(path, lambda contents: contents.update(head_hash=ledger.head_hash))
    assert "persons" in refused(path, ledger)
    derive(ledger).write(path)
    edited(path, lambda contents: contents.update(head_hash=json.loads(old)["head_hash"]))
    assert "persons" in refused(path, ledger)


def test_a_ledger_that_was_rolled_back_makes_its_certificate_false(
    stored: tuple[Path, Ledger], tmp_path: Path
) -> None:
    path, ledger = stored
    (tmp_path / "copy").write_bytes((tmp_path / "ledger").read_bytes())
    ledger.open_stream(STATEMENT).charge(0, 1, [PersonBlock(768, 800)])
    derive(ledger).write(path)
    older = Ledger.open(tmp_path / "copy")
    assert older.at(ledger.head_hash) is None
    assert "head_hash" in refused(path, older)


def test_a_ledger_of_the_past_writes_nothing(stored: tuple[Path, Ledger]) -> None:
    _, ledger = stored
    head = ledger.head_hash
    ledger.open_stream(STATEMENT)
    past = ledger.at(head)
    assert past is not None
    assert (past.head_hash, len(past.streams)) == (head, 1)
    with pytest.raises(ValueError, match="another process has written"):
        past.open_stream(STATEMENT)


def test_a_service_that_answered_since_has_a_stale_certificate(tmp_path: Path) -> None:
    statement = AnswerStatement(
        name="kartini",
        mechanism=GaussianPolicy(actions=3, noise_stddev=0.5),
        distance=TrainingShards(teachers=100),
        queries=100,
        queries_per_student=60,
        observation_size=4,
        population="simulated",
    )
    budget = Budget(epsilon=10.0, delta=1e-5)
    ledger = AnswerLedger.create(tmp_path / "ledger", statement=statement, budget=budget)
    ledger.add_student("ann")
    ask(ledger, "ann", 3)
    path = tmp_path / "certificate.json"
    derive(ledger).write(path)
    assert verify(path, ledger).status == "verified"
    ask(ledger, "ann", 2)
    found = verify(path, ledger)
    assert (found.status, found.mismatches) == ("stale", ())
    assert found.current is not None
    assert found.current.answers is not None
    assert found.current.answers.answered == 5
    edited(path, lambda contents: contents["answers"].update(answered=4))
    assert "answers" in refused(path, ledger)


def test_the_command_tells_stale_from_false(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    out.mkdir()
    path, ledger = schema_1("dppg-parts", out)
    (out / "ledger").rename(out / "ledger.sqlite")
    settings = {
        "format": 1,
        "run_id": ledger.run_id,
        "algorithm": "dppg",
        "preset": None,
        "seeds": [0],
        "population": "simulated",
        "ledger": "ledger.sqlite",
        "config": {},
        "versions": {},
        "command": "",
        "created": "",
    }
    (out / "config.json").write_text(json.dumps(settings))

    def command(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main(["certificate", str(out), *words, "--json"])
        return code, json.loads(capsys.readouterr().out or "null")

    code, found = command("--verify")
    assert (code, found["status"], found["verified"]) == (0, "verified", True)
    assert found["corrections"]
    opened = Ledger.open(out / "ledger.sqlite")
    opened.open_stream(opened.streams[0].statement)  # killed before it wrote its certificate
    code, found = command("--verify")
    assert (code, found["status"], found["verified"]) == (3, "stale", False)
    assert found["epsilon"] == pytest.approx(derive(opened).epsilon)
    assert command()[0] == 0  # showing it changes nothing
    assert command("--verify")[0] == 3
    code, shown = command("--write")
    assert (code, shown["schema_version"]) == (0, 2)
    assert shown["protects"][0].startswith("Each user's contribution")
    assert command("--verify")[0] == 0
    edited(path, lambda contents: contents.update(epsilon=0.1))
    assert command("--verify")[0] == 2
    assert main(["certificate", str(out)]) == 0  # the ledger's, beside a file that says otherwise
    assert f"{path} is false" in capsys.readouterr().err.replace("\n", " ")
    assert command("--write")[0] == 2  # what is false is not written over
    assert json.loads(path.read_text())["epsilon"] == 0.1


# --- delta ---------------------------------------------------------------------------------------


def test_delta_is_told_with_the_numbers_of_the_run(stored: tuple[Path, Ledger]) -> None:
    _, ledger = stored
    said = meaning_of_delta(derive(ledger))
    assert "for each person, epsilon 1.272 holds without exception outside an event" in said
    assert "probability at most 1e-05 (about 1 in 100,000)" in said
    assert said.endswith("Over the 768 persons here, at most 0.0077 such events are expected.")


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_what_is_told_of_delta_follows_from_the_hockey_stick(epsilon: float) -> None:
    """The events that Vadhan's Lemma 1.5 promises, built for random pairs of discrete laws."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        p, q = generator.dirichlet(np.full(6, 0.3), 2)
        factor = np.exp(epsilon)
        delta = max(np.maximum(p - factor * q, 0).sum(), np.maximum(q - factor * p, 0).sum())
        low, other = np.minimum(p, factor * q), np.minimum(q, factor * p)
        if low.sum() > other.sum():  # the larger one shrinks, towards the least that is allowed
            share = (low.sum() - other.sum()) / (low.sum() - other.sum() / factor)
            low = (1 - share) * low + share * other / factor
        else:
            share = (other.sum() - low.sum()) / (other.sum() - low.sum() / factor)
            other = (1 - share) * other + share * low / factor
        assert low.sum() == pytest.approx(other.sum())
        assert min(low.sum(), other.sum()) >= 1 - delta - 1e-12
        assert np.all(low <= p + 1e-12)
        assert np.all(other <= q + 1e-12)
        assert np.all(low <= factor * other * (1 + 1e-9))
        assert np.all(other <= factor * low * (1 + 1e-9))
