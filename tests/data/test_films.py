"""Rated texts: reading them, the split of the films, and the beginnings of texts."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from sotto.data import films
from sotto.data.films import Texts
from sotto.errors import RunError
from sotto.rl.language.tokenizer import read_tokenizer

TOKENIZER = Path(__file__).parents[1] / "rl" / "language" / "fixtures" / "llama"
LINES = {kind: f"1\t0.5\tfirst of {kind}\r\n2_1\t-3\tclichés “2”\x85 \r\n" for kind in films.FILES}


def archive(folder: Path, lines: dict[str, str | bytes]) -> Path:
    path = folder / "films.tar.gz"
    with tarfile.open(path, "w:gz") as opened:
        for kind, text in lines.items():
            content = text if isinstance(text, bytes) else text.encode()
            member = tarfile.TarInfo(films.FILES[kind])
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return path


def test_every_kind_of_text_is_read(tmp_path):
    found = films.read(archive(tmp_path, LINES))
    for kind in ("films", "amazon", "nyt"):
        texts = getattr(found, kind)
        assert texts.texts == (f"first of {kind}", "clichés “2”")
        np.testing.assert_array_equal(texts.ratings, [0.5, -3.0])
        assert len(texts) == 2


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("1\t0.5", "line 2 of the nyt is not an identifier, a rating and a text"),
        ("1\tgood\ta text", "line 2 of the nyt is not"),
        ("1\t0.5\ta\ttext", "line 2 of the nyt is not"),
        (b"1\t0.5\tclich\xe9", "line 2 of the nyt is not"),
        ("1\t4.1\ta text", r"line 2 of the nyt has a rating outside \[-4, 4\]"),
        ("1\tnan\ta text", "line 2 of the nyt has a rating outside"),
    ],
)
def test_damaged_lines_are_refused(tmp_path, line, found):
    line = line if isinstance(line, bytes) else line.encode()
    path = archive(tmp_path, LINES | {"nyt": b"1\t1\tgood\n" + line + b"\n"})
    with pytest.raises(RunError, match=found + r".*; remove it and run `sotto install films`"):
        films.read(path)


def test_damaged_archives_are_refused(tmp_path):
    with pytest.raises(RunError, match=r"has no file .*nytEditorialSnippets_GroundTruth\.txt"):
        films.read(archive(tmp_path, {kind: LINES[kind] for kind in ("films", "amazon")}))
    path = archive(tmp_path, LINES)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match="is damaged: it cannot be read"):
        films.read(path)


def test_the_split_takes_every_film_once_and_a_seed_fixes_it():
    count = 6_010
    texts = Texts(tuple(f"film {i}" for i in range(count)), np.arange(count) / count)
    found = films.split(texts, seed=0)
    assert [len(part) for part in found] == [5_000, 1_000, 10]
    assert sorted(text for part in found for text in part.texts) == sorted(texts.texts)
    for part in found:
        assert part.texts == tuple(f"film {round(rating * count)}" for rating in part.ratings)
    again, other = films.split(texts, seed=0), films.split(texts, seed=1)
    assert again.people.texts == found.people.texts != other.people.texts
    with pytest.raises(RunError, match="the films are 6,000 texts"):
        films.split(texts.at(np.arange(6_000)), seed=0)


def test_beginnings_are_of_texts_that_go_on():
    tokenizer = read_tokenizer(TOKENIZER)
    whole = "the film was good, and the 12 actors were better than the story"
    rows = tokenizer.inner.encode(whole).ids
    lengths = (3, 7, 8, len(rows))
    texts = tuple(tokenizer.decode(rows[:length]) for length in lengths)
    assert [len(tokenizer.encode(text)) for text in texts] == list(lengths)
    texts = Texts(texts, np.zeros(4))
    found = texts.beginnings(tokenizer, 3)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, [rows[:3], rows[:3]])
    assert texts.beginnings(tokenizer, 100).shape == (0, 100)
