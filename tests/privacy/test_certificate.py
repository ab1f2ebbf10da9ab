"""The certificate says what the ledger proves, and a changed one is found out."""

import json
import math
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import small
from commands import text_of
from pydantic_core import to_json
from scipy import stats

from sotto.privacy.certificates.derive import derive, verify
from sotto.privacy.certificates.text import QUOTED, sections
from sotto.privacy.claims import DEFINED, streams
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import NO_TIME, Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.statements import (
    Assumption,
    Gap,
    NoiseShares,
    Poisson,
    Returning,
    ShareOfNoise,
    StreamStatement,
)
from sotto.privacy.units import Unit

NO_TARGET = Budget(epsilon=math.inf, delta=1e-5)


statement = partial(
    small.statement,
    name="policy update",
    protects=("Every state, action and reward.",),
    assumptions=(Assumption(statement="A.", enforced_by="user", how="B."),),
)


def ledger_of(path: Path, *statements: StreamStatement, run_id: str = "run-a") -> Ledger:
    unit = statements[0].unit if statements else small.UNIT
    ledger = Ledger.create(path, run_id, unit=unit, budget=NO_TARGET)
    for one in statements:
        start = ledger.next_person
        ledger.open_stream(one).charge(0, 1, [PersonBlock(start, start + 8)])
    return ledger


def test_a_ledger_has_no_certificate_with_texts_of_another_form(tmp_path: Path) -> None:
    """A ledger comes from others, too, and a reader takes its texts for words of sotto."""
    budget = {"unit": small.UNIT, "budget": NO_TARGET}
    for wrong in ("2026-01-01", "1970-01-01T00:00:00+00:00\n"):
        with pytest.raises(ValueError, match="created is a time in UTC to the second"):
            Ledger.create(tmp_path / "new", "run", **budget, created=wrong)
    ledger = ledger_of(tmp_path / "ledger", statement())
    ledger.versions["sotto"] = "1.0\nVerified by the operator"
    with pytest.raises(PrivacyError, match=r"where versions must match the pattern .*; restore"):
        derive(ledger)


def test_a_certificate_says_what_the_ledger_holds(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path / "ledger", statement())
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert certificate.epsilon == pytest.approx(1.27, abs=0.005)  # docs/privacy.md, section 1
    assert certificate.unit_sentence == small.UNIT.sentence()
    assert certificate.persons == 8
    assert certificate.head_hash == ledger.head_hash
    (stream,) = certificate.streams
    assert (stream.releases, stream.persons, stream.statement) == (1, 8, statement())
    assert certificate.worst_person.streams == ("policy update",)
    assert set(certificate.versions) >= {"sotto", "jax", "dp-accounting", "jax-privacy", "python"}
    for epsilon, delta in certificate.curve:  # the hockey-stick divergence at z = 3, exactly
        a, b = 1 / 6 - 3 * epsilon, -1 / 6 - 3 * epsilon
        truth = stats.norm.cdf(a) - math.exp(epsilon + stats.norm.logcdf(b))
        assert truth == pytest.approx(delta, rel=1e-6)
    assert len(certificate.curve) > 10


def test_words_that_sotto_does_not_know_stand_apart(tmp_path: Path) -> None:
    """An author's own "enforced by the code" stood among those that sotto's code enforces."""
    known = streams.UNSEEN
    own = Assumption(statement="No person has two numbers.", enforced_by="code", how="passports")
    one = statement(protects=("Everybody, for ever.",), assumptions=(known.assumption(), own))
    certificate = derive(ledger_of(tmp_path / "ledger", one))
    found = dict(sections(certificate))
    assert certificate.status == "proved"
    assert [words for words, _ in found[QUOTED]] == [
        "Protected: Everybody, for ever.",
        "Enforced by its code: No person has two numbers. (passports)",
    ]
    assert known.words({}) in str(found["Enforced by the code"])
    others = [lines for title, lines in found.items() if title != QUOTED]
    assert not any("for ever" in str(lines) or "passports" in str(lines) for lines in others)
    assert QUOTED in text_of(certificate)


def test_duties_stand_apart_from_what_is_taken_for_granted_and_terms_are_explained(
    tmp_path: Path,
) -> None:
    found = dict(sections(derive(ledger_of(tmp_path / "ledger", statement()))))
    duties, granted = found["Duties of whoever runs this"], found["Taken for granted"]
    assert (streams.RANDOM.words({}), streams.RANDOM.how) in granted
    assert (streams.UNCHANGED.words({}), streams.UNCHANGED.how) in duties
    assert not set(duties) & set(granted)
    # Whatever tells somebody to act is a duty.
    assert {one.identifier for one in DEFINED if one.granted} == {"noise.random", "runs.failure"}
    order = list(found)
    assert order.index("Duties of whoever runs this") < order.index("Enforced by the code")
    terms = [words for words, _ in found["Terms"]]
    assert [one.split(":")[0] for one in terms] == ["Release", "Stream", "Slot", "Ledger"]


def test_a_withheld_time_is_not_printed_as_a_date(tmp_path: Path) -> None:
    def made(name: str, created: str | None) -> str:
        ledger = Ledger.create(
            tmp_path / name, "run-a", unit=small.UNIT, budget=NO_TARGET, created=created
        )
        return text_of(derive(ledger))

    assert "Ledger, time withheld, head" in made("withheld", NO_TIME)
    assert "1970" not in made("withheld again", NO_TIME)
    assert "Ledger of 2026-01-02T03:04:05+00:00, head" in made("told", "2026-01-02T03:04:05+00:00")


def test_the_settings_of_jax_are_in_the_certificate(tmp_path: Path) -> None:
    certificate = derive(ledger_of(tmp_path / "ledger", statement(), statement()))
    (line,) = [x for x in text_of(certificate).splitlines() if x.startswith("JAX settings: ")]
    assert "xla_cpu_enable_fast_math=False" in line
    other = certificate.streams[0].model_copy(update={"settings": {"XLA_FLAGS": "--other=1"}})
    forged = certificate.model_copy(update={"streams": (other, *certificate.streams[1:])})
    assert "JAX settings: XLA_FLAGS --other=1" in text_of(forged)
    path = tmp_path / "certificate.json"
    forged.write(path)
    assert verify(path, Ledger.open(tmp_path / "ledger")).status == "false"


def test_what_always_is_assumed_is_listed_once(tmp_path: Path) -> None:
    certificate = derive(ledger_of(tmp_path / "ledger", statement(), statement()))
    statements = [assumption.statement for assumption in certificate.assumptions]
    assert len(statements) == len(set(statements))
    text = "\n".join(f"{a.statement} {a.how} [{a.enforced_by}]" for a in certificate.assumptions)
    for topic in (
        "trying several settings",
        "enrolment number",
        "traces both functions",
        "AES-128 in counter mode",
        "key from the operating system's entropy",
    ):
        assert topic in text
    for topic in ("Timing", "integers on a public grid", "simulated"):
        assert topic in text
    own = ("Protected: Every state, action and reward.", "Up to whoever runs it: A. (B.)")
    assert certificate.quoted == own
    assert any("other runs" in line for line in certificate.does_not_protect)
    real = derive(ledger_of(tmp_path / "real", statement(population="real")))
    assert not any("simulated" in assumption.statement for assumption in real.assumptions)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({}, "proved", "Proved: epsilon 1.272 at delta 1e-05"),
        ({"gaps": (Gap(name="critic", why="no noise"),)}, "paper-claim", "critic: no noise"),
        ({"entropy": "fixed-seed"}, "none", "No guarantee: the noise came from a fixed seed"),
        (
            {"entropy": "fixed-seed", "gaps": (Gap(name="critic", why="no noise"),)},
            "none",
            "No guarantee",
        ),
    ],
)
def test_status(tmp_path: Path, changes: dict[str, Any], status: str, words: str) -> None:
    certificate = derive(ledger_of(tmp_path / "ledger", statement(), statement(**changes)))
    assert certificate.status == status
    assert words in text_of(certificate)
    assert math.isfinite(certificate.epsilon) == (status == "proved")
    certificate.write(tmp_path / "certificate.json")
    stored = json.loads((tmp_path / "certificate.json").read_text())
    assert stored["epsilon"] == (certificate.epsilon if status == "proved" else "Infinity")
    assert (
        verify(tmp_path / "certificate.json", Ledger.open(tmp_path / "ledger")).status == "verified"
    )


def test_nothing_released_is_no_guarantee(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", unit=small.UNIT, budget=NO_TARGET)
    ledger.open_stream(statement(gaps=(Gap(name="critic", why="no noise"),)))
    certificate = derive(ledger)
    assert certificate.status == "none"
    assert "nothing has been released" in text_of(certificate)


@pytest.mark.parametrize(
    ("sampler_delta", "words"),
    [
        (1e-4, "the samplers of the noise cost delta 0.0001, and delta is 1e-05"),
        (0.0, "epsilon of what was released is infinite at delta 1e-05"),
    ],
)
def test_releases_with_an_infinite_epsilon_are_not_called_nothing(
    tmp_path: Path, sampler_delta: float, words: str
) -> None:
    certificate = derive(ledger_of(tmp_path / "ledger", statement()))
    worst = certificate.worst_person.model_copy(update={"sampler_delta": sampler_delta})
    changes = {"status": "none", "epsilon": math.inf, "worst_person": worst}
    text = text_of(certificate.model_copy(update=changes))
    assert words in text
    assert "nothing has been released" not in text


def test_the_accuracy_in_words_is_an_upper_bound(tmp_path: Path) -> None:
    """The best test between N(0, z^2) and N(1, z^2) is right Phi(1/(2z)) of the time."""
    for z in (0.5, 1.0, 3.0, 30.0):
        certificate = derive(ledger_of(tmp_path / f"ledger{z}", statement(z)))
        words = text_of(certificate)
        claimed = float(words.split("correctly at most ")[1].split("%")[0])
        assert 100 * stats.norm.cdf(1 / (2 * z)) <= claimed
        assert 50 <= claimed <= 100


def test_less_noise_is_a_larger_epsilon(tmp_path: Path) -> None:
    weak = derive(ledger_of(tmp_path / "weak", statement(2.7)))
    strong = derive(ledger_of(tmp_path / "strong", statement(3.0)))
    assert weak.epsilon > 1.1 * strong.epsilon
    assert all(w > s for (w, _), (s, _) in zip(weak.curve, strong.curve, strict=True))


def test_replace_one_costs_what_half_the_noise_costs(tmp_path: Path) -> None:
    unit = Unit(kind="trajectory", adjacency="replace-one")
    certificate = derive(ledger_of(tmp_path / "ledger", statement(3.0, unit=unit)))
    assert certificate.epsilon == pytest.approx(2.75, abs=0.005)  # docs/privacy.md, section 1
    assert "any other data in its place" in certificate.unit_sentence


def test_several_streams_of_several_kinds(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", unit=small.UNIT, budget=NO_TARGET)
    sampled = Poisson(sampling_rate=0.01, population=100)
    first = ledger.open_stream(statement(1.0, participation=sampled))
    returning = Returning(max_participations=2, min_separation=1)
    stream = ledger.open_stream(statement(2.0, participation=returning, name="again"))
    first.charge(0, 10)
    stream.charge(0, 2, [PersonBlock(50, 60), PersonBlock(50, 120)])
    ledger.open_stream(statement(name="planned"))
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert [(s.releases, s.persons) for s in certificate.streams] == [(10, 100), (2, 70), (0, 0)]
    assert certificate.worst_person.streams == ("policy update", "again")
    assert certificate.persons == 120
    assert any("Poisson" in assumption.statement for assumption in certificate.assumptions)
    words = text_of(certificate)
    assert "people sampled at rate 0.01" in words
    assert "70 persons, each in at most 2 of them, 1 or more apart, Gaussian noise" in words
    assert "planned: 0 of 20 releases, 0 persons, no cost yet" in words
    certificate.write(tmp_path / "certificate.json")
    assert verify(tmp_path / "certificate.json", ledger).status == "verified"


# --- verification --------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    ledger = ledger_of(tmp_path / "ledger", statement())
    derive(ledger).write(tmp_path / "certificate.json")
    return tmp_path / "certificate.json", tmp_path / "ledger"


def edits() -> list[tuple[str, Any]]:
    return [
        ("epsilon", lambda c: c["epsilon"] * 0.999),
        ("epsilon", lambda c: "Infinity"),
        ("delta", lambda c: 1e-6),
        ("status", lambda c: "paper-claim"),
        ("curve", lambda c: [[c["curve"][0][0] * 0.99, c["curve"][0][1]], *c["curve"][1:]]),
        ("curve", lambda c: c["curve"][1:]),
        ("unit", lambda c: {**c["unit"], "adjacency": "replace-one"}),
        ("budget", lambda c: {"epsilon": 1.3, "delta": 1e-5}),
        ("persons", lambda c: 9),
        ("claims", lambda c: c["claims"][1:]),
        ("claims", lambda c: c["claims"][::-1]),
        ("claims", lambda c: [one for one in c["claims"] if "claim" not in one]),
        ("claims", lambda c: [*c["claims"], {"claim": "dppg.policies", "version": 2}]),
        ("claims", lambda c: [{"section": "protects", "sentence": "All.", "how": ""}]),
        ("streams", lambda c: [{**c["streams"][0], "releases": 2}]),
        (
            "streams",
            lambda c: [{**c["streams"][0], "event": {"kind": "gaussian", "noise_multiplier": 3.3}}],
        ),
        ("worst_person", lambda c: {**c["worst_person"], "sampler_delta": 0.0}),
        ("head_hash", lambda c: "0" * 64),
        ("run_id", lambda c: "run-b"),
        ("method", lambda c: "by hand"),
    ]


@pytest.mark.parametrize(("field", "edit"), edits())
def test_an_edited_certificate_fails(run: tuple[Path, Path], field: str, edit: Any) -> None:
    path, ledger_path = run
    stored = json.loads(path.read_text())
    stored[field] = edit(stored)
    path.write_bytes(to_json(stored, indent=2) + b"\n")
    found = verify(path, Ledger.open(ledger_path))
    assert found.status == "false"
    (mismatch,) = found.mismatches
    assert mismatch.startswith(f"{field} is not what the ledger gives")


@pytest.mark.parametrize("text", ["", "{}", '{"schema_version": 1, "surprise": true}'])
def test_an_unreadable_certificate_fails(run: tuple[Path, Path], text: str) -> None:
    path, ledger_path = run
    path.write_text(text)
    (mismatch,) = verify(path, Ledger.open(ledger_path)).mismatches
    assert "cannot be read" in mismatch
    path.unlink()
    (mismatch,) = verify(path, Ledger.open(ledger_path)).mismatches
    assert "cannot be read" in mismatch


def test_a_ledger_that_lost_or_gained_entries_fails(run: tuple[Path, Path]) -> None:
    path, ledger_path = run
    longer = ledger_path.with_name("longer")
    shutil.copy(ledger_path, longer)
    Ledger.open(longer).open_stream(statement(3.0)).charge(0, 1, [PersonBlock(8, 16)])
    found = verify(path, Ledger.open(longer))
    assert (found.status, found.mismatches) == ("stale", ())
    assert found.current is not None
    assert found.current.persons == 16
    whole = Ledger.open(ledger_path)
    connection = sqlite3.connect(ledger_path)
    connection.execute("DROP TRIGGER no_delete")
    connection.execute("DELETE FROM entries WHERE sequence = 2")
    connection.commit()
    assert any("last entries are gone" in line for line in verify(path, whole).mismatches)
    lost = verify(path, Ledger.open(ledger_path))
    assert lost.status == "false"
    assert {"status", "epsilon", "head_hash"} <= {line.split()[0] for line in lost.mismatches}


def test_another_runs_certificate_fails(run: tuple[Path, Path], tmp_path: Path) -> None:
    other = ledger_of(tmp_path / "other", statement(), run_id="run-b")
    found = {line.split()[0] for line in verify(run[0], other).mismatches}
    assert {"run_id", "head_hash"} <= found


def test_writing_fails_without_harm(run: tuple[Path, Path], monkeypatch: Any) -> None:
    path, ledger_path = run
    before = path.read_text()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        derive(Ledger.open(ledger_path)).write(path)
    assert path.read_text() == before
    assert not any(p.name.startswith(".certificate") for p in path.parent.iterdir())


def test_what_is_said_of_a_claim_without_a_proof_protects_nobody(tmp_path: Path) -> None:
    unproved = statement(gaps=(Gap(name="critic", why="it has no noise"),))
    text = text_of(derive(ledger_of(tmp_path / "ledger", unproved)))
    assert "It protects nobody" in text
    assert "The claim is about everything one person contributed" in text
    assert "Protected" not in text
    assert "Every state, action and reward." not in text


def test_an_observer_of_devices_does_not_know_their_noise(tmp_path: Path) -> None:
    """The proof of noise in shares does not hold against whoever knows what others added."""
    certificate = derive(ledger_of(tmp_path / "ledger", statement()))
    shares = NoiseShares(
        bits=32,
        slots=20,
        promised=16,
        colluding=3,
        parts={"policy": ShareOfNoise(grid=0.01, variance=100.0)},
    )
    (stream,) = certificate.streams
    said = stream.statement.model_copy(update={"shares": shares})
    of_devices = stream.model_copy(update={"statement": said})
    text = text_of(certificate.model_copy(update={"streams": (of_devices,)}))
    assert "to whom at most 3 of all devices that are asked in a round tell their noise" in text
    assert "who knows everything about everybody else" not in text
