"""Certificates without their runs: `sotto verify`, the schema, and the independent checker."""

import ast
import copy
import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import printed, refused, run_json
from products import BUDGET, UNIT, statement
from pydantic_core import to_json
from stored_files import changed

from sotto.cli import main
from sotto.privacy.certificates.check import LARGEST
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.lone import verify_file
from sotto.privacy.certificates.schema import schema
from sotto.privacy.certificates.text import sections
from sotto.privacy.claims.rewards import LOGGED_FUNCTION
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.release.choices import ChoiceRelease
from sotto.privacy.units import REWARD_FUNCTION

ROOT = Path(__file__).parents[2]
OLD = json.loads((ROOT / "tests/attacks/certificates_of_schema_1.json").read_text())["certificates"]


def loaded(path: Path) -> Any:
    """The module of a file that no package holds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


RANDOM = loaded(ROOT / "benchmarks/check_certificates.py")
CHECKER = ROOT / "tools/check_certificate.py"


def is_once(stream: Any) -> bool:
    """Whether new people can take part in one more release of this stream."""
    statement = stream.statement
    more = stream.releases < statement.horizon
    return statement.participation.kind == "once" and bool(stream.releases) and more


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger with one release that costs a finite epsilon."""
    for seed in range(100):
        found = RANDOM.training(random.Random(seed), tmp_path / f"{seed}.sqlite")
        finite = derive(found).status == "proved"
        if finite and any(map(is_once, found.streams)):
            return found
    raise AssertionError("no random ledger has such a stream")


@pytest.fixture
def certificate(ledger: Ledger, tmp_path: Path) -> Path:
    path = tmp_path / "certificate.json"
    path.write_text(derive(ledger).text())
    return path


# --- sotto verify --------------------------------------------------------------------------------


def test_random_certificates_follow_from_their_statements(tmp_path: Path) -> None:
    verdicts = []
    for seed in range(40):
        draw = random.Random(seed)
        make = RANDOM.teacher if seed % 5 == 0 else RANDOM.training
        path = tmp_path / "certificate.json"
        path.write_text(derive(make(draw, tmp_path / f"{seed}.sqlite")).text())
        verdicts.append(verify_file(path).status)
    assert set(verdicts) <= {"true", "unverifiable"}
    assert verdicts.count("true") >= 36


def test_a_choice_is_verified_with_sotto_and_without(tmp_path: Path) -> None:
    budget = Budget(epsilon=0.9, delta=1e-4)
    ledger = Ledger.create(tmp_path / "l", unit=REWARD_FUNCTION, budget=budget)
    ChoiceRelease(
        "policy",
        REWARD_FUNCTION,
        np.eye(2),
        np.eye(2),
        (0.0, 0.5),
        0.05,
        0.9,
        "simulated",
        (LOGGED_FUNCTION(radius="0.05"),),
    ).open(ledger).release(np.zeros(2))
    path, check = tmp_path / "certificate.json", loaded(CHECKER).main
    path.write_text(derive(ledger).text())
    assert (verify_file(path).status, check(path)) == ("true", 0)

    def doubled(contents: Any) -> None:
        contents["streams"][0]["statement"]["choice"]["rate"] *= 2

    def both(contents: Any) -> None:
        part = {"clip_norm": 1.0, "noise_multiplier": 0.001}
        contents["streams"][0]["statement"]["parts"] = {"values": part}

    def alone(contents: Any) -> None:
        contents["streams"][0]["statement"]["choice"]["candidates"] = 1

    for change in (doubled, both, alone, WRONG["epsilon"]):
        path.write_text(derive(ledger).text())
        wrong = changed(path, change)
        assert (verify_file(wrong).status, check(wrong)) == ("false", 1)
    released = dict(sections(derive(ledger)))["Released"]
    assert "of 2 candidates, sensitivity 0.100001, epsilon 0.9 with" in released[0][0]


def test_the_checker_says_that_an_authors_sentences_are_not_checked(tmp_path: Path, capsys) -> None:
    for number, protects in enumerate(((), ("Everybody, for ever.",))):
        ledger = Ledger.create(tmp_path / f"{number}", unit=UNIT, budget=BUDGET)
        ledger.open_stream(statement(protects=protects)).charge(0, 1, [PersonBlock(0, 4)])
        (path := tmp_path / "certificate.json").write_text(derive(ledger).text())
        assert loaded(CHECKER).main(path) == 0
        assert ("author wrote are not checked" in capsys.readouterr().out) == bool(protects)


def charged(contents: Any) -> Any:
    """The first stream that cost something."""
    return next(one for one in contents["streams"] if one["releases"])


WRONG = {
    "epsilon": lambda c: c.update(epsilon=0.9 * c["epsilon"]),
    "delta": lambda c: c.update(delta=c["delta"] / 2),
    "releases": lambda c: charged(c).update(releases=charged(c)["statement"]["horizon"] + 1),
    "noise": lambda c: next(iter(charged(c)["statement"]["parts"].values())).update(
        noise_multiplier=50.0
    ),
    "status": lambda c: c.update(status="none"),
    "sentence left out": lambda c: c["claims"].pop(),
    "curve": lambda c: c["curve"][0].__setitem__(0, 0.5 * c["curve"][0][0]),
}


TEXTS = {
    "run_id": lambda c: c.update(run_id="y\nVerified by the operator"),
    "run_id that turns": lambda c: c.update(run_id="y\u202e"),
    "run_id that is long": lambda c: c.update(run_id="y" * 65),
    "created": lambda c: c.update(created="2026-01-01T00:00:00+00:00, verified"),
    "head_hash": lambda c: c.update(head_hash=c["head_hash"].upper() + "x"),
    "versions": lambda c: c["versions"].update(sotto="1.0 (verified)"),
    "names of versions": lambda c: c["versions"].update({"verified by": "1.0"}),
    "versions of a stream": lambda c: charged(c)["versions"].update(sotto="1\n"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_no_code_compares_has_one_form(name: str, certificate: Path) -> None:
    """A reader takes any words in a certificate for the words of sotto."""
    found = verify_file(changed(certificate, TEXTS[name]))
    assert found.status == "false"
    assert "must " in found.reasons[0]


@pytest.mark.parametrize("name", WRONG)
def test_a_changed_number_is_false(name: str, certificate: Path) -> None:
    assert verify_file(certificate).status == "true"
    found = verify_file(changed(certificate, WRONG[name]))
    assert found.status == "false"
    assert found.reasons


def test_a_ledger_tells_stale_from_true_and_from_false(
    ledger: Ledger, certificate: Path, tmp_path: Path
) -> None:
    (where,) = (str(tmp_path / f"{seed}.sqlite") for seed in range(100) if _last(tmp_path, seed))
    assert verify_file(certificate, where).status == "true"
    record = next(one for one in ledger.streams if is_once(one))
    start = ledger.next_person
    stream = ledger.open_stream(record.statement)
    stream.charge(0, 1, [PersonBlock(start, start + 100)])
    assert verify_file(certificate, where).status == "stale"
    changed(certificate, WRONG["epsilon"])
    assert verify_file(certificate, where).status == "false"


def test_only_the_ledger_knows_how_many_people_took_part(certificate: Path, tmp_path: Path) -> None:
    (where,) = (str(tmp_path / f"{seed}.sqlite") for seed in range(100) if _last(tmp_path, seed))

    def one_less(contents: Any) -> None:
        streams = (one for one in contents["streams"] if one["releases"])
        once = next(one for one in streams if one["statement"]["participation"]["kind"] == "once")
        once["persons"] -= 1
        contents["persons"] -= 1

    changed(certificate, one_less)
    assert verify_file(certificate).status == "true"
    assert verify_file(certificate, where).status == "false"


def _last(folder: Path, seed: int) -> bool:
    """Whether the ledger of this seed is the last one that was made."""
    here, after = folder / f"{seed}.sqlite", folder / f"{seed + 1}.sqlite"
    return here.exists() and not after.exists()


@pytest.mark.parametrize("name", OLD)
def test_certificates_of_version_1_are_verified(name: str, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(OLD[name]["text"])
    found = verify_file(path)
    if name.startswith("q-"):  # functions, whose noise was on a grid finer than its sampler
        assert found.status == "false"
        return
    assert found.status == "true"
    path.write_text(OLD[name]["text"].replace('"epsilon":', '"epsilon":0.0', 1))
    assert verify_file(path).status == "false"


def test_a_later_version_and_a_later_sentence_are_unverifiable(certificate: Path) -> None:
    text = certificate.read_text()
    found = verify_file(changed(certificate, lambda c: c.update(schema_version=3)))
    assert found.status == "unverifiable"
    assert "later version of sotto" in found.reasons[0]
    certificate.write_text(text)
    found = verify_file(changed(certificate, lambda c: c["claims"][0].update(version=999)))
    assert found.status == "unverifiable"


HOSTILE = {
    "empty": lambda text: "",
    "a list": lambda text: "[]",
    "nested": lambda text: "[" * 100_000,
    "cut off": lambda text: text[: len(text) // 2],
    "a name twice": lambda text: text.replace("{", '{"epsilon": 0.1, ', 1),
    "not a number": lambda text: text.replace('"epsilon": ', '"epsilon": NaN, "x": ', 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_false_in_one_sentence(name: str, certificate: Path) -> None:
    certificate.write_text(HOSTILE[name](certificate.read_text()))
    assert verify_file(certificate).status == "false"


def test_the_command_has_an_exit_code_for_each_status(
    certificate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is true: proved, epsilon" in printed(capsys, "verify", str(certificate))
    assert run_json(capsys, "verify", str(certificate))["status"] == "true"
    text = certificate.read_text()
    assert "is false" in refused(capsys, "verify", str(changed(certificate, WRONG["epsilon"])))
    certificate.write_text(text)
    assert main(["verify", str(changed(certificate, lambda c: c.update(schema_version=9)))]) == 4
    certificate.write_text('{"person": "who"}')
    said = "(it has no schema_version, so it is no certificate; name another file)"
    assert said in refused(capsys, "verify", str(certificate))
    assert "there is no file" in refused(capsys, "verify", str(certificate.parent / "missing.json"))
    assert "is a folder; give the file" in refused(capsys, "verify", str(certificate.parent))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    found = verify_file(path)
    assert found.status == "false"
    assert "larger than 64 MiB" in found.reasons[0]


# --- the schema ----------------------------------------------------------------------------------


def test_the_published_schema_is_that_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "schema")
    assert json.loads(shown) == json.loads((ROOT / "docs/certificate.schema.json").read_text())


def test_the_schema_is_printed_with_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "schema") == schema()


def test_the_schema_accepts_certificates_and_rejects_wrong_ones(certificate: Path) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator(schema())
    contents = json.loads(certificate.read_text())
    assert validator.is_valid(contents)
    for change in (
        lambda c: c.update(epsilon="small"),
        lambda c: c.update(another=1),
        lambda c: c.pop("unit"),
        lambda c: c["claims"][0].update(claim="invented"),
    ):
        wrong = copy.deepcopy(contents)
        change(wrong)
        assert not validator.is_valid(wrong)


# --- the independent checker ---------------------------------------------------------------------


def test_the_checker_is_short_and_imports_nothing_of_ours() -> None:
    text = CHECKER.read_text()
    assert len(text.splitlines()) <= 395
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [one.name for one in node.names]
        )
    }
    assert imported - set(sys.stdlib_module_names) == {"dp_accounting"}


def test_the_checker_agrees_with_the_accounting(tmp_path: Path) -> None:
    """A true certificate is never called false, and a wrong one is never called true."""
    checker, verdicts = RANDOM.checker(), set()
    for seed in range(30):
        found, disagree = RANDOM.compared(seed, checker, tmp_path)
        assert not disagree
        verdicts |= set(found)
    assert "as it is: true" in verdicts
    assert {"less_noise: false", "smaller_epsilon: false", "more_releases: false"} <= verdicts


def test_the_checker_rejects_a_wrong_noise_scale_that_its_costs_repeat(certificate: Path) -> None:
    checker = RANDOM.checker()
    assert RANDOM.verdict(checker, certificate)[0] == "true"
    contents = json.loads(certificate.read_text())
    assert RANDOM.less_noise(contents, checker)
    certificate.write_bytes(to_json(contents))
    assert RANDOM.verdict(checker, certificate)[0] == "false"
