"""Certificates of described trainings: true epsilons, strict reading, and the second checker."""

import ast
import importlib
import importlib.util
import json
import math
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import printed, run_json
from stored_files import changed

from sotto.cli import main
from sotto.privacy import claims
from sotto.privacy.accounting.gaussian import gaussian_epsilon
from sotto.privacy.certificates.check import read, read_stored
from sotto.privacy.certificates.described import certified
from sotto.privacy.certificates.lone import verify_file
from sotto.privacy.claims import by_name
from sotto.privacy.described import findings
from sotto.privacy.described.bounds import proved
from sotto.privacy.described.description import Description
from sotto.privacy.errors import PrivacyError
from sotto.runs.printed.files import html
from sotto.runs.printed.page import page_of_verification

ROOT = Path(__file__).parents[2]
PLAIN: dict[str, Any] = {
    "name": "a training",
    "source": "nowhere",
    "records": 1000,
    "batch_size": 100,
    "sampling": "fixed",
    "last_batch": "none",
    "epochs": 4,
    "noise_multiplier": 2.0,
    "clip_norm": 1.0,
    "noise_scaled_to": "sum",
    "noise_secret": True,
    "noise_secure": True,
    "claimed": {"epsilon": 0.5, "delta": 1e-5, "adjacency": "zero-out", "accountant": "RDP"},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the number that no certificate states, which takes a moment for each description."""
    monkeypatch.setattr(findings, "accounted", lambda _: 0.0)


def write_described(path: Path, **changes: Any) -> Path:
    """Writes a description, and returns its file."""
    path.write_text(json.dumps(PLAIN | changes))
    return path


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    out = tmp_path / "certificate.json"
    given = write_described(tmp_path / "given.json", records_per_person=3)
    assert main(["certify", "dpsgd", "--from", str(given), "--out", str(out)]) == 2
    return out


# --- writing -------------------------------------------------------------------------------------


def test_a_false_claim_gets_the_true_epsilon(certificate: Path) -> None:
    """Fixed batches accounted as Poisson: four Gaussian releases, that is z = 1."""
    c = json.loads(certificate.read_text())
    mu, epsilon = 1.0, c["epsilon"]

    def tail(x: float) -> float:
        return math.erfc(x / math.sqrt(2)) / 2

    delta = tail(epsilon / mu - mu / 2) - math.exp(epsilon) * tail(epsilon / mu + mu / 2)
    assert delta == pytest.approx(1e-5, rel=1e-6)
    assert c["status"] == "described"
    assert c["verdict"] == "false"
    assert {"fixed-accounted-as-poisson", "epsilon-refuted"} <= {*c["findings"]}
    assert c["person"]["epsilon"] > 3 * epsilon
    assert {"claim": "described.asserted", "version": 1} in c["claims"]
    assert not {"created", "head_hash", "streams", "budget", "persons"} & {*c}


@pytest.mark.parametrize(
    ("changes", "name", "code"),
    [
        ({"noise_secret": False}, "seed-published", 2),
        ({"sampling": "unknown"}, "sampling-unknown", 4),
        ({"claimed": PLAIN["claimed"] | {"delta": 1e-3, "epsilon": 50.0}}, "delta-vacuous", 2),
    ],
)
def test_nothing_is_written_where_nothing_is_proved(
    changes: dict[str, Any], name: str, code: int, tmp_path: Path, capsys: Any
) -> None:
    given, out = write_described(tmp_path / "given.json", **changes), tmp_path / "out.json"
    assert main(["certify", "dpsgd", "--from", str(given), "--out", str(out)]) == code
    assert f"no certificate was written: {name}" in capsys.readouterr().err
    assert not out.exists()


def test_files_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = write_described(tmp_path / "given.json")
    text = given.read_text()
    assert main(["certify", "dpsgd", "--from", str(given), "--out", str(given)]) != 0
    assert "is there and is not replaced" in capsys.readouterr().err
    assert given.read_text() == text
    assert main(["certify", "dpsgd", "--from", str(given), "--out", str(tmp_path / "a/b")]) != 0
    assert "there is no folder" in capsys.readouterr().err


# --- verifying -----------------------------------------------------------------------------------


def test_it_is_verified_from_its_words(
    certificate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no ledger recorded the training" in printed(capsys, "verify", str(certificate))
    said = run_json(capsys, "verify", str(certificate))
    assert (said["status"], said["proof"]) == ("true", "described")
    assert verify_file(certificate, "ledger.sqlite").status == "unverifiable"
    with pytest.raises(PrivacyError, match="no ledger recorded it"):
        read(certificate)  # in a run directory, where a ledger must give it


WRONG: dict[str, Any] = {
    "epsilon": lambda c: c.update(epsilon=0.99 * c["epsilon"]),
    "delta": lambda c: c.update(delta=1e-4),
    "curve": lambda c: c["curve"][0].__setitem__(0, 0.5),
    "person": lambda c: c["person"].update(epsilon=1.0),
    "no person": lambda c: c.pop("person"),
    "noise": lambda c: c["description"].update(noise_multiplier=2.1),
    "noise and its event": lambda c: (
        c["description"].update(noise_multiplier=1.0),
        c["events"][0].update(noise_multiplier=0.5),
    ),
    "batches": lambda c: c["description"].update(sampling="poisson"),
    "runs": lambda c: c["description"].update(runs=2),
    "seed": lambda c: c["description"].update(noise_secret=False),
    "unit": lambda c: c["unit"].update(kind="trajectory"),
    "adjacency": lambda c: c["unit"].update(adjacency="replace-one"),
    "verdict": lambda c: c.update(verdict="holds"),
    "finding": lambda c: c["findings"].pop(),
    "sentence": lambda c: c["claims"].pop(),
    "name": lambda c: c.update(run_id="another training"),
    "proved": lambda c: c.update(status="proved"),
    "a ledger's hash": lambda c: c.update(head_hash="0" * 64),
    "a ledger's streams": lambda c: c.update(streams=[]),
    "unknown word": lambda c: c["description"].update(secret=1),
    "text": lambda c: c["description"].update(records="1000"),
    "infinite": lambda c: c.update(epsilon="Infinity"),
    "huge": lambda c: c["description"].update(epochs=10**400),
    "part of an epoch": lambda c: c["description"].update(epochs=0.01),
    "true for 1": lambda c: c["description"].update(runs=True),
    "a word for false": lambda c: c["description"].update(noise_secret="false"),
    "another scale": lambda c: c["description"].update(noise_scaled_to="Mean"),
}
HOSTILE: dict[str, Any] = {
    "twice": lambda text: text.replace("{", '{"epsilon": 0.1, ', 1),
    "not finite": lambda text: text.replace('"epsilon": ', '"epsilon": NaN, "x": ', 1),
    "spaces": lambda text: text + " ",
}


@pytest.mark.parametrize("name", [*WRONG, *HOSTILE])
def test_changed_files_are_false(name: str, certificate: Path) -> None:
    if name in WRONG:
        changed(certificate, WRONG[name])
    else:
        certificate.write_text(HOSTILE[name](certificate.read_text()))
    assert verify_file(certificate).status == "false"


def test_a_claim_of_the_proved_number_holds_on_machines_that_round_otherwise(
    tmp_path: Path,
) -> None:
    d = Description.model_validate(PLAIN)
    exact = d.model_copy(update={"claimed": d.claimed.model_copy(update={"epsilon": proved(d)})})
    stored = certified(exact, findings.analyse(exact))
    assert stored.verdict == "holds"
    above = stored.epsilon * (1 + 1e-12)  # as another machine computes it
    elsewhere = certified(exact, findings.analyse(exact, above))
    elsewhere.write(path := tmp_path / "certificate.json")
    assert elsewhere.verdict == "undecided"
    assert verify_file(path).status == "true"


def test_a_later_sentence_is_unverifiable(certificate: Path) -> None:
    found = verify_file(changed(certificate, lambda c: c["claims"][0].update(version=999)))
    assert found.status == "unverifiable"


def test_words_that_turned_out_to_be_untrue_are_corrected(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = by_name()
    untrue = replace(known["described.asserted", 1], untrue="somebody has seen its code")
    monkeypatch.setattr(claims, "by_name", lambda: known | {("described.asserted", 1): untrue})
    found = verify_file(certificate)
    assert found.status == "true"
    (correction,) = found.corrections
    assert correction.endswith("somebody has seen its code")


def test_a_person_without_poisson_sampling_has_no_group_privacy(
    certificate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three records in one step of each of four epochs: z = 2 / (3 sqrt(4)), printed as such."""
    c = json.loads(certificate.read_text())
    assert c["person"]["epsilon"] == pytest.approx(gaussian_epsilon(1 / 3, 1e-5), rel=1e-9)
    words = by_name()["described.person", 2].words({"records": "3"})
    assert "All of these records may be in one step, so its noise counts 3 times less." in words
    assert {"claim": "described.person", "version": 2, "numbers": {"records": "3"}} in c["claims"]
    assert verify_file(certificate).corrections == ()
    page = html(page_of_verification(verify_file(certificate), certificate)).decode()
    assert "for up to 3 records<" in page
    given = certificate.with_name("given.json")
    capsys.readouterr()
    main(["certify", "dpsgd", "--from", str(given)])
    assert "by group privacy" not in capsys.readouterr().out


def test_earlier_words_on_a_person_are_corrected(certificate: Path, checker: Any) -> None:
    def earlier(c: dict[str, Any]) -> None:
        (one,) = (one for one in c["claims"] if one["claim"] == "described.person")
        one["version"] = 1

    found = verify_file(changed(certificate, earlier))
    assert found.status == "true"
    (correction,) = found.corrections
    assert answer(checker, certificate) == "0"
    assert "this epsilon holds, but group privacy gives it only with Poisson sampling" in correction


def test_a_signature_is_written_and_checked(tmp_path: Path) -> None:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, pem = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    private, public = tmp_path / "key.pem", tmp_path / "key.pub.pem"
    private.touch(mode=0o600)
    secret = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, secret))
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(pem, kind))
    given, out = write_described(tmp_path / "given.json"), tmp_path / "out.json"
    words = ["certify", "dpsgd", "--from", str(given), "--out", str(out), "--sign", str(private)]
    assert main(words) == 2
    assert verify_file(out, signed_by=public).status == "true"
    out.write_bytes(out.read_bytes().replace(b"nowhere", b"nowhen!", 1))
    assert verify_file(out, signed_by=public).status == "false"


def test_the_page_says_in_large_that_it_was_described(certificate: Path) -> None:
    page = page_of_verification(verify_file(certificate), certificate)
    assert page.verdict == "TRUE: DESCRIBED, NOT RECORDED"
    assert not page.good
    assert any("No ledger recorded this training" in one for one in page.reasons)
    assert '<p class="verdict">TRUE: DESCRIBED, NOT RECORDED</p>' in html(page).decode()
    if importlib.util.find_spec("fpdf"):
        out = certificate.with_name("page.pdf")
        assert main(["verify", str(certificate), "--page", str(out)]) == 0
        assert out.read_bytes().startswith(b"%PDF")
    false = page_of_verification(verify_file(changed(certificate, WRONG["epsilon"])), certificate)
    assert false.verdict == "FALSE"


def test_the_schema_accepts_it(certificate: Path) -> None:
    kinds = json.loads((ROOT / "docs/certificate.schema.json").read_text())
    validator = pytest.importorskip("jsonschema").Draft202012Validator(kinds)
    contents = json.loads(certificate.read_text())
    assert validator.is_valid(contents)
    for name in ("proved", "a ledger's hash", "unknown word", "text"):
        wrong = json.loads(certificate.read_text())
        WRONG[name](wrong)
        assert not validator.is_valid(wrong)


# --- the independent checker ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def checker() -> Any:
    """The checker, with the file beside it that it imports."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("check_described")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def answer(checker: Any, path: Path) -> str:
    return str(checker.checker.main(str(path), checker.check))


def drawn(draw: random.Random, poisson: bool) -> Description:
    """A random description of which something is proved."""
    records = draw.choice([500, 1000, 60_000])
    claimed = {
        "epsilon": draw.choice([None, math.exp(draw.uniform(-2, 5))]),
        "delta": draw.choice([1e-5, 1e-6]),
        "adjacency": draw.choice(["zero-out", "add-remove", "replace"]),
        "accountant": "",
    }
    words: dict[str, Any] = PLAIN | {
        "records": records,
        "batch_size": draw.choice([10, 70, records // 2]),
        "sampling": "poisson" if poisson else draw.choice(["shuffle", "fixed"]),
        "last_batch": draw.choice(["dropped", "kept", "unknown"]),
        "noise_multiplier": math.exp(draw.uniform(0, 2.5)),
        "noise_scaled_to": "sum" if poisson else draw.choice(["sum", "mean"]),
        "runs": draw.choice([1, 1, 4]),
        "records_per_person": draw.choice([1, 1, 5]),
        "noise_secure": draw.random() < 0.5,
        "claimed": claimed,
    }
    if not poisson and draw.random() < 0.5:
        del words["epochs"]
        words["steps"] = draw.choice([1, 30, 200])
    if poisson:  # a distribution that is quick to compute
        del words["epochs"]
        words |= {"steps": 20, "records": 1000, "batch_size": 70, "last_batch": "none"}
    return Description.model_validate(words)


@pytest.mark.parametrize(("poisson", "count"), [(False, 200), (True, 2)])
def test_the_checker_agrees_on_random_descriptions(
    poisson: bool, count: int, checker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """True certificates are never false, and those that state less or hide noise never true."""
    monkeypatch.setattr(findings, "least", lambda _: 0.0)  # it does not compute attacks
    path, answers = tmp_path / "certificate.json", Counter[str]()
    for seed in range(count):
        d = drawn(random.Random(seed), poisson)
        certified(d, findings.analyse(d)).write(path)
        changed(path, lambda c: c.update(curve=c["curve"][-1:]))  # to be quick
        answers[f"true: {answer(checker, path)}"] += 1
        changed(path, list(LESS.values())[seed % len(LESS)])
        answers[f"less: {answer(checker, path)}"] += 1
    assert answers == {"true: 0": count, "less: 1": count}


LESS: dict[str, Any] = {
    "epsilon": lambda c: c.update(epsilon=0.9 * c["epsilon"]),
    "noise": lambda c: c["description"].update(
        noise_multiplier=0.9 * c["description"]["noise_multiplier"]
    ),
    "curve": lambda c: c["curve"][-1].__setitem__(0, 0.9 * c["curve"][-1][0]),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_checker_calls_wrong_files_false(
    name: str, checker: Any, certificate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(checker, certificate) == "0"
    assert answer(checker, changed(certificate, WRONG[name])) != "0"
    assert "true:" in capsys.readouterr().out


def test_each_checker_names_the_other(checker: Any, certificate: Path, capsys: Any) -> None:
    assert checker.checker.main(str(certificate)) == 2
    assert "check_described.py" in capsys.readouterr().out
    changed(certificate, WRONG["proved"])
    assert answer(checker, certificate) == "1"
    assert "check_certificate.py" in capsys.readouterr().out


def test_the_checker_imports_only_the_other_checker() -> None:
    text = (ROOT / "tools/check_described.py").read_text()
    assert len(text.splitlines()) <= 200
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    assert found - {*sys.stdlib_module_names} == {"check_certificate"}


def test_the_stored_text_comes_back(certificate: Path) -> None:
    stored = read_stored(certificate)
    assert stored.text() == certificate.read_text()
