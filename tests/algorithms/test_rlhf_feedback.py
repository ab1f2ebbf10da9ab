"""Logs of people's feedback: the arrays, and errors that quote nobody."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import processors

from sotto.algorithms.rlhf import feedback
from sotto.errors import RunError
from sotto.rl.language import Tokenizer
from sotto.rl.language.tokenizer import read_tokenizer

FIXTURE = Path(__file__).parents[1] / "rl" / "language" / "fixtures" / "llama"
TOKENIZER = read_tokenizer(FIXTURE)
SIZES = {"rows": 2, "prompt_tokens": 6, "new_tokens": 4}
SECRET = "zebra"


def rating(person="ann", prompt="the film", completion=" was good", rating=0.5):
    return {"person": person, "prompt": prompt, "completion": completion, "rating": rating}


@pytest.fixture
def log(tmp_path):
    """Writes a log and returns its path; a line that is no text is written as JSON."""

    def write(*lines):
        path = tmp_path / "log.jsonl"
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("".join(f"{text}\n" for text in texts))
        return path

    return write


def read(path, tokenizer=TOKENIZER, **sizes):
    return feedback.read(path, tokenizer, **(SIZES | sizes))


def tokens(text):
    return TOKENIZER.inner.encode(text).ids


def test_people_stand_in_the_order_of_the_file_and_rows_are_padded(log):
    rated = read(
        log(
            rating("zoe", "the film", " was", 1),
            rating("ann", "a story", " good", 0.25),
            "",
            rating("zoe", "film", " bad", 0),
        )
    )
    np.testing.assert_array_equal(rated.present, [[True, True], [True, False]])
    np.testing.assert_array_equal(rated.ratings, np.array([[1, 0], [0.25, 0]], np.float32))
    assert [array.shape for array in rated] == [
        *[(2, 2, 6)] * 2,
        *[(2, 2, 4)] * 2,
        *[(2, 2)] * 2,
    ]
    assert [array.dtype for array in rated[:5]] == ["int32", "bool", "int32", "bool", "float32"]
    texts = {(0, 0): ("the film", " was"), (0, 1): ("film", " bad")}
    texts[1, 0] = ("a story", " good")
    for place, (prompt, completion) in texts.items():
        prompt, completion = tokens(prompt), tokens(completion)
        assert len(prompt) < 6
        assert len(completion) < 4
        before, after = 6 - len(prompt), 4 - len(completion)
        assert rated.prompts[place].tolist() == [0] * before + prompt
        assert rated.prompt_mask[place].tolist() == [False] * before + [True] * len(prompt)
        assert rated.completions[place].tolist() == completion + [0] * after
        assert rated.completion_mask[place].tolist() == [True] * len(completion) + [False] * after
    assert not any(np.any(array[1, 1]) for array in rated)


def test_further_rows_of_a_person_are_dropped_in_the_order_of_the_file(log):
    lines = [rating("ann", rating=value / 10) for value in range(5)]
    found = read(log(*lines, rating("bob")))
    np.testing.assert_allclose(found.ratings, [[0, 0.1], [0.5, 0]])


def test_a_person_changes_only_their_own_row(log):
    lines = [rating("ann"), rating("bob", "in 1984 the story of the film " * 9), rating("cid")]
    whole, without = read(log(*lines)), read(log(lines[0], lines[2]))
    for all_rows, fewer in zip(whole, without, strict=True):
        np.testing.assert_array_equal(all_rows[[0, 2]], fewer)


def test_a_number_and_its_digits_are_one_person(log):
    found = read(log(rating(7), rating("7"), rating("8")))
    np.testing.assert_array_equal(found.present, [[True, True], [True, False]])


def test_long_texts_keep_the_tokens_at_their_seam(log):
    prompt, completion = "in the city by the sea the film", " was better than the story"
    assert len(tokens(prompt)) > 6
    assert len(tokens(completion)) > 4
    found = read(log(rating(prompt=prompt, completion=completion)))
    assert found.prompts[0, 0].tolist() == tokens(prompt)[-6:]
    assert found.completions[0, 0].tolist() == tokens(completion)[:4]
    assert found.prompt_mask[0, 0].all()
    assert found.completion_mask[0, 0].all()


def test_a_completion_gets_no_token_that_begins_a_text(log):
    beginning = read_tokenizer(FIXTURE)
    beginning.inner.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    found = read(log(rating()), Tokenizer(beginning.inner), prompt_tokens=20, new_tokens=20)
    assert found.prompts[0, 0][found.prompt_mask[0, 0]].tolist() == [0, *tokens("the film")]
    assert found.completions[0, 0][found.completion_mask[0, 0]].tolist() == tokens(" was good")


NAMED = [
    {"person": "bob"},
    rating("bob") | {"more": 1},
    rating("bob", rating=1.5),
    rating("bob", rating="good"),
    rating("bob", rating=[[1]]),
    rating("bob", prompt=""),
    rating("bob", completion=7),
    rating("bob", prompt="\ud800"),
    json.dumps(rating("bob"))[:-1] + ', "rating": 1}',
    json.dumps(rating("bob", rating=0))[:-2] + "1" * 5000 + "}",
]


@pytest.mark.parametrize("line", NAMED, ids=range(len(NAMED)))
def test_whoever_a_line_names_keeps_their_place_whatever_else_it_says(log, line):
    """Else what one person wrote moved the others to other releases, and to other numbers."""
    usable, lost = (read(log(rating("ann"), one, rating("cid"))) for one in (rating("bob"), line))
    np.testing.assert_array_equal(lost.present[:, 0], [True, False, True])
    for array, other in zip(usable, lost, strict=True):
        np.testing.assert_array_equal(array[[0, 2]], other[[0, 2]])
        assert not np.any(other[1])


def test_bytes_that_are_no_text_lose_their_row_only(log):
    path = log(rating("ann"), rating("bob", "caf"), rating("cid"))
    path.write_bytes(path.read_bytes().replace(b"caf", b"caf\xe9"))
    np.testing.assert_array_equal(read(path).present[:, 0], [True, False, True])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f'{{"person": "{SECRET}", ', "is not a JSON object"),
        (f'["{SECRET}"]', "is not a JSON object"),
        ("[" * 100_000, "is not a JSON object"),
        ({"person": SECRET, "prompt": SECRET, "rating": 0.77}, "has no completion"),
        (rating(SECRET, SECRET) | {SECRET: SECRET}, "has more fields than person, prompt, "),
        (json.dumps(rating())[:-1] + f', "person": "{SECRET}"}}', "has a field twice; write each"),
        (json.dumps(rating(SECRET))[:-1] + ', "rating": 0.77}', "has a field twice"),
        (rating(SECRET, SECRET, SECRET, 1.77), r"has a rating that is not a number in \[0, 1\]"),
        (rating(SECRET, SECRET, SECRET, -0.77), "has a rating that is not a number"),
        (rating(SECRET, SECRET, SECRET, "0.77"), "has a rating that is not a number"),
        (rating(SECRET, SECRET, SECRET, True), "has a rating that is not a number"),
        (rating(SECRET, SECRET, SECRET, float("nan")), "has a rating that is not a number"),
        (rating(SECRET, ""), "has an empty prompt"),
        (rating(SECRET, SECRET, ""), "has an empty completion"),
        (rating(SECRET, [SECRET]), "has a prompt that is not a text"),
        (rating(SECRET, SECRET, f"{SECRET}\ud800"), "has a completion that is not a text"),
        (rating(None, SECRET), "has a person who is not a name or a whole number"),
        (rating(0.77, SECRET), "has a person who is not"),
        (rating(True, SECRET), "has a person who is not"),
        (rating("", SECRET), "has a person who is not"),
    ],
)
def test_a_line_that_cannot_be_used_is_left_out_and_errors_quote_nobody(log, line, says):
    whole = read(log(rating(), line, rating(SECRET)))
    for one, other in zip(whole, read(log(rating(), rating(SECRET))), strict=True):
        np.testing.assert_array_equal(one, other)  # nobody's line stops anybody else
    path = log("", line, line)
    with pytest.raises(RunError, match=rf"^line 2 of .*log\.jsonl {says}") as refusal:
        read(path)
    assert SECRET not in str(refusal.value)
    assert ".77" not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__context__ is None
    assert "\n" not in str(refusal.value)


def test_bytes_that_are_no_text_are_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"person": "\xe9", "prompt": "\xe9", "completion": "a", "rating": 1}\n')
    with pytest.raises(RunError, match=r"line 1 of .* has a prompt that is not a text in UTF-8"):
        read(path)
    path.write_bytes(path.read_bytes() + json.dumps(rating()).encode())
    np.testing.assert_array_equal(read(path).present[:, 0], [False, True])


def test_logs_without_people_are_refused(log, tmp_path):
    with pytest.raises(RunError, match="has no ratings in it"):
        read(log("", " "))
    with pytest.raises(RunError, match="there is no log at"):
        read(tmp_path / "absent")
    with pytest.raises(RunError, match="there is no log at"):
        read(tmp_path)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_positive(log, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        read(log(rating()), **{name: 0})
