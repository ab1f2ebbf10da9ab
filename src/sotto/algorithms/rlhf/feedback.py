"""A company's log of people's feedback, as padded arrays; the first axis is the person.

A person is the unit of privacy. Everything that one person contributed is one row of every array.
Without a person the rows of the others are the same and stand closer together. The other sizes of
the arrays are arguments and not taken from the log, so that they do not depend on anybody's data.
"""

import codecs
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from sotto.errors import RunError
from sotto.rl.language import Tokenizer
from sotto.rl.language.tokenizer import in_utf8

if TYPE_CHECKING:
    Arrays: TypeAlias = Any
else:
    Arrays = Array | np.ndarray
"""Type of the arrays: numpy's in a log, and JAX's in a compiled program."""

FIELDS = ("person", "prompt", "completion", "rating")
"""Fields of every line of a log."""


class Rated(NamedTuple):
    """Ratings of one person; with an axis of people in front, those of many. Padding is zero."""

    prompts: Int[Arrays, "*people rows prompt_tokens"]
    """Tokens of each prompt as int32, padded on the left."""
    prompt_mask: Bool[Arrays, "*people rows prompt_tokens"]
    """Whether each token of a prompt is real."""
    completions: Int[Arrays, "*people rows new_tokens"]
    """Tokens of each completion as int32, padded on the right."""
    completion_mask: Bool[Arrays, "*people rows new_tokens"]
    """Whether each token of a completion is real."""
    ratings: Float[Arrays, "*people rows"]
    """Ratings in [0, 1] as float32."""
    present: Bool[Arrays, "*people rows"]
    """Whether the row holds a rating; a row without one has no real token."""


class _Line(NamedTuple):
    """One rating of a log."""

    prompt: list[int]
    completion: list[int]
    rating: float


def read(
    path: Path, tokenizer: Tokenizer, *, rows: int, prompt_tokens: int, new_tokens: int
) -> Rated:
    """Reads a log: a JSON Lines file of objects with person, prompt, completion and rating.

    A person is a name or a whole number; 7 and "7" are the same person. A rating is in [0, 1].
    A line that is not such an object is left out, so that nobody's line stops the training for
    everybody, or tells by an error. Whoever it names keeps their place, so that what they wrote
    moves nobody else. Blank lines, and lines that name nobody, are skipped. The names of people
    and the texts are not kept, and no message quotes them. Nothing says how many lines, ratings and
    tokens are left out: it would be a count without noise, and whatever a training prints may be
    kept or uploaded.

    Args:
        path: the log.
        tokenizer: the tokenizer of the language model.
        rows: number of ratings per person. The first ones of the file are kept.
        prompt_tokens: length of a prompt. Of a longer one the last tokens are kept.
        new_tokens: length of a completion. Of a longer one the first tokens are kept.

    Returns:
        Numpy arrays whose first axis is the person, in the order of first appearance. A person
        whose lines are all left out has no row that is present.

    Raises:
        ValueError: a size is below 1.
        RunError: no line is such an object, or the log is empty or cannot be read.
    """
    sizes = {"rows": rows, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    by_person: dict[str, list[_Line]] = {}
    unusable: RunError | None = None
    for where, text in _lines(path):
        try:
            fields = _fields(where, text)
            kept = by_person.setdefault(_person(where, fields), [])
            if len(kept) < rows:
                kept.append(_line(where, fields, tokenizer))
        except RunError as error:
            unusable = unusable or error
    if not any(by_person.values()) and unusable is not None:
        raise unusable
    if not by_person:
        raise RunError(f"{path} has no ratings in it; name a log with at least one person")
    shape = (len(by_person), rows)
    prompts, prompt_mask = _blank(*shape, prompt_tokens)
    completions, completion_mask = _blank(*shape, new_tokens)
    ratings, present = np.zeros(shape, np.float32), np.zeros(shape, bool)
    for person, lines in enumerate(by_person.values()):
        for row, line in enumerate(lines):
            place = person, row
            prompt, completion = line.prompt[-prompt_tokens:], line.completion[:new_tokens]
            prompts[place][-len(prompt) :] = prompt
            prompt_mask[place][-len(prompt) :] = True
            completions[place][: len(completion)] = completion
            completion_mask[place][: len(completion)] = True
            ratings[place], present[place] = line.rating, True
    return Rated(prompts, prompt_mask, completions, completion_mask, ratings, present)


def _blank(*shape: int) -> tuple[Int[np.ndarray, "..."], Bool[np.ndarray, "..."]]:
    """Returns tokens and a mask without any token."""
    return np.zeros(shape, np.int32), np.zeros(shape, bool)


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the place and the bytes of each line that is not blank."""
    if not path.is_file():
        raise RunError(f"there is no log at {path}; name a JSON Lines file")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)  # editors on Windows write it
            if line.strip():
                yield f"line {number} of {path}", line


_Fields: TypeAlias = tuple[tuple[str, Any], ...]
"""The fields of a line and their values, in the order of the line; a name may come twice."""


def _fields(where: str, line: bytes) -> _Fields:
    """Returns the fields of a line; errors name the line and the field, and quote nothing.

    Bytes that are not UTF-8, and numbers with too many digits, spoil only the values they are in.
    """
    try:
        pairs = json.loads(
            line.decode(errors="surrogateescape"),
            object_pairs_hook=tuple,  # arrays are lists
            parse_int=_whole,
        )
    except (ValueError, RecursionError):  # whose messages and attributes hold the text
        pairs = None
    if not isinstance(pairs, tuple):
        raise RunError(
            f"{where} is not a JSON object; write one object with {', '.join(FIELDS)} on each line"
        )
    return pairs


def _whole(digits: str) -> int | float:
    """Returns a whole number, or NaN for more digits than Python reads."""
    try:
        return int(digits)
    except ValueError:
        return math.nan


def _person(where: str, fields: _Fields) -> str:
    """Returns whom a line names."""
    named = [value for name, value in fields if name == "person"]
    if len(named) > 1:
        raise _twice(where)
    if not named:
        raise _without(where, "person")
    if isinstance(named[0], bool) or not isinstance(named[0], str | int) or named[0] == "":
        raise RunError(f"{where} has a person who is not a name or a whole number; correct it")
    return str(named[0])


def _line(where: str, fields: _Fields, tokenizer: Tokenizer) -> _Line:
    """Returns the rating of a line."""
    found = dict(fields)
    if len(found) < len(fields):
        raise _twice(where)
    for field in FIELDS:
        if field not in found:
            raise _without(where, field)
    if len(found) > len(FIELDS):
        raise RunError(f"{where} has more fields than {', '.join(FIELDS)}; leave out the others")
    rating = found["rating"]
    number = isinstance(rating, int | float) and not isinstance(rating, bool)
    if not number or not 0 <= rating <= 1:
        raise RunError(
            f"{where} has a rating that is not a number in [0, 1]; divide by the "
            "largest rating that people can give, and not by the largest one in the file"
        )
    return _Line(
        prompt=_tokens(where, "prompt", found["prompt"], tokenizer),
        completion=_tokens(where, "completion", found["completion"], tokenizer),
        rating=float(rating),
    )


def _twice(where: str) -> RunError:
    return RunError(f"{where} has a field twice; write each field once")


def _without(where: str, field: str) -> RunError:
    return RunError(f"{where} has no {field}; give {', '.join(FIELDS)} on each line")


def _tokens(where: str, field: str, text: Any, tokenizer: Tokenizer) -> list[int]:
    if not isinstance(text, str) or not in_utf8(text):
        raise RunError(f"{where} has a {field} that is not a text in UTF-8; correct it")
    tokens = tokenizer.encode(text, whole=field == "prompt") if text else []
    if not tokens:
        raise RunError(f"{where} has an empty {field}; leave the line out")
    return tokens
