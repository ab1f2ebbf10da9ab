"""Printed pages of certificates: what they say, that they print, and hostile files."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sotto.cli import main
from sotto.privacy.certificates.check import read
from sotto.privacy.certificates.lone import FileVerification, verify_file
from sotto.privacy.claims import by_name
from sotto.runs.printed.files import html, writer
from sotto.runs.printed.page import Page, left_to_right, page_of_certificate, page_of_verification

pytest.importorskip("fpdf")
from sotto.runs.printed.pdf import pdf

STORED = Path(__file__).parents[1] / "attacks" / "certificate_of_schema_2.json"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.json"
    path.write_text(json.loads(STORED.read_text())["text"])
    return path


class Elements(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def pages(drawn: bytes) -> int:
    """The number of pages of a PDF file."""
    return len(re.findall(rb"/Type /Page\b", drawn))


def test_a_proved_certificate_says_everything_that_a_reader_needs(file: Path) -> None:
    page = page_of_certificate(read(file), file)
    assert (page.verdict, page.good) == ("PROVED", True)
    facts = dict(page.facts)
    assert facts["Epsilon"] == "1.3"
    assert facts["Delta"].startswith(
        "1e-05: epsilon may fail with probability at most 1 in 100,000"
    )
    assert facts["Delta"].endswith("1 in 100,000, for each person")
    assert "zero-out adjacency" in facts["Unit"]
    assert len(facts["Its SHA-256"]) == 64
    titles = [title for title, _ in page.sections]
    assert {"Protected", "Released", "Duties of whoever runs this", "How to check it"} <= {*titles}
    assert pages(pdf(page)) == 1


@pytest.mark.parametrize(("epsilon", "said"), [(1.23401, "1.235"), (1.234, "1.234"), (4.0, "4")])
def test_epsilon_is_never_rounded_down(file: Path, epsilon: float, said: str) -> None:
    stored = read(file).model_copy(update={"epsilon": epsilon})
    assert dict(page_of_certificate(stored, file).facts)["Epsilon"] == said


def test_a_paper_claim_states_no_delta(file: Path) -> None:
    claim = {"epsilon": float("inf"), "status": "paper-claim"}
    stored = read(file).model_copy(update=claim)
    page = page_of_certificate(stored, file)
    assert (page.verdict, page.good) == ("NOT PROVED", False)
    facts = dict(page.facts)
    assert facts["Epsilon"] == "infinite"
    assert facts["Delta"] == "1e-05"
    assert "In words" not in facts
    found = page_of_verification(FileVerification("true", certificate=stored), file)
    assert (found.verdict, found.good) == ("TRUE: NOT PROVED", False)


def test_verdicts_on_files(file: Path) -> None:
    true = page_of_verification(verify_file(file), file)
    assert (true.verdict, true.good) == ("TRUE: PROVED", True)
    stale = page_of_verification(FileVerification("stale", certificate=read(file)), file)
    assert (stale.verdict, stale.good) == ("STALE: PROVED", False)
    assert "Ask for the current certificate" in stale.reasons[0]
    changed = re.sub(r'"epsilon": 1\.[^,]+,', '"epsilon": 0.9,', file.read_text(), count=1)
    file.write_text(changed)
    false = page_of_verification(verify_file(file), file)
    assert (false.verdict, false.good) == ("FALSE", False)
    assert "Do not rely on it" in false.reasons[-1]
    assert [name for name, _ in false.facts] == ["File", "Its SHA-256"]


@pytest.mark.parametrize("kind", ["pdf", "html"])
def test_the_command_writes_the_same_bytes_each_time(
    file: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (file.with_name(f"{name}.{kind}") for name in "ab")
    assert main(["verify", str(file), "--page", str(one)]) == 0
    assert capsys.readouterr().out.startswith(f"wrote {one}\n")
    assert main(["verify", str(file), "--page", str(two)]) == 0
    assert one.read_bytes() == two.read_bytes()
    file.write_text("{}")
    assert main(["verify", str(file), "--page", str(two)]) == 2
    assert one.read_bytes() != two.read_bytes()


MARKUP = '<script>alert(1)</script><img src="https://example.org/x" onerror=x>&amp;\n\x1b[2J'


def hostile(length: int = 1) -> Page:
    """A page with markup, controls and letters that fonts lack in every text."""
    text = left_to_right(MARKUP + "\u202e\u05d0\u4e2d\U0001f600 ε ≤ δ" + "x" * length)
    return Page(text, text, True, (text,) * 3, ((text, text),) * 3, ((text, (text,) * 3),) * 3)


def test_markup_in_a_certificate_stays_text() -> None:
    page = html(hostile())
    found = Elements(page)
    assert not {"script", "img", "a", "link", "iframe"} & {*found.names}
    assert not {"src", "href", "onerror", "style"} & {*found.attributes}
    assert found.text.count("<script>alert(1)</script>") == 24
    assert "default-src 'none'" in page.decode()
    for text in (hostile().title, found.text):
        assert "\\x1b[2J\\u202e\\u05d0" in text
        assert not {"\x1b", "\u202e", "\u05d0"} & {*text}


def test_a_pdf_draws_what_its_font_lacks_as_an_escape() -> None:
    drawn = pdf(hostile())
    assert drawn.startswith(b"%PDF")
    assert b"/JavaScript" not in drawn
    assert b"/URI" not in drawn


def test_long_files_take_few_pages(file: Path) -> None:
    stored = read(file)
    streams = stored.streams * 500
    named = stored.model_copy(update={"streams": streams, "run_id": "long name " * 2000})
    page = page_of_certificate(named, file)
    assert pages(pdf(page)) <= 2
    releases = dict(page.sections)["Released"]
    assert releases[-1] == "... and 460 more, which the file lists"
    assert page.title.endswith("... (cut)")
    assert page_of_certificate(stored, file).title.endswith(stored.run_id)


def test_no_sentence_of_the_catalogue_is_cut() -> None:
    """A duty was cut after 600 characters, so whoever signed the page had not read its end."""
    for claim in by_name().values():
        line = f"{claim.sentence} ({claim.how})"
        assert left_to_right(line) == line


def test_a_page_that_cannot_be_written_is_noticed_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"writes a \.pdf or an \.html file, got 'x.txt'"):
        writer(tmp_path / "x.txt")
    with pytest.raises(ValueError, match="there is no folder"):
        writer(tmp_path / "missing" / "x.pdf")
    monkeypatch.setattr("sotto.extras.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'sotto\[pdf\]'"):
        writer(tmp_path / "x.pdf")
