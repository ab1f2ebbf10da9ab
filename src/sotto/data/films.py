"""Short texts with mean human ratings (Hutto and Gilbert 2014, the data of VADER).

`sotto install films` installs them. Each text was rated by at least 15 people from -4 (very
negative) to 4 (very positive); a rating here is their mean.
"""

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from sotto.data.packages import regular_file
from sotto.errors import RunError
from sotto.rl.language.tokenizer import Tokenizer

RATERS, HELD_OUT = 5_000, 1_000
"""Numbers of film sentences for the model of the raters, and for evaluations."""

LONGER = 4
"""Number of tokens that a text must have beyond its beginning."""


@dataclass(frozen=True)
class Texts:
    """Texts and their ratings."""

    texts: tuple[str, ...]
    ratings: Float[np.ndarray, " texts"]
    """Mean rating of each text, in [-4, 4]."""

    def __len__(self) -> int:
        return len(self.texts)

    def at(self, indices: Int[np.ndarray, " chosen"]) -> "Texts":
        """Returns the texts with the given numbers, in their order."""
        return Texts(tuple(self.texts[index] for index in indices), self.ratings[indices])

    def beginnings(self, tokenizer: Tokenizer, tokens: int) -> Int[np.ndarray, "chosen tokens"]:
        """Returns the first tokens of each text that has at least 5 more; others are left out."""
        rows = (tokenizer.encode(text) for text in self.texts)
        kept = [row[:tokens] for row in rows if len(row) > tokens + LONGER]
        return np.array(kept, np.int32).reshape(len(kept), tokens)


@dataclass(frozen=True)
class Corpora:
    """Texts of three kinds."""

    films: Texts
    """Sentences of film reviews."""
    amazon: Texts
    """Sentences of product reviews."""
    nyt: Texts
    """Sentences of editorials of the New York Times."""


FILES = {
    "films": "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
    "amazon": "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt",
    "nyt": "hutto_ICWSM_2014/nytEditorialSnippets_GroundTruth.txt",
}
"""File of each kind of text in the archive."""


def read(archive: Path) -> Corpora:
    """Reads the texts from the archive that `packages.find("films")` returns.

    Raises:
        RunError: the archive is damaged, or a line of it is not an identifier, a rating in
            [-4, 4] and a text.
    """
    try:
        with tarfile.open(archive, "r:gz") as opened:
            files = {kind: regular_file(opened, name).read() for kind, name in FILES.items()}
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _damaged(f"it cannot be read ({error})", archive) from error
    return Corpora(**{kind: _texts(archive, kind, content) for kind, content in files.items()})


def _damaged(found: str, archive: Path) -> RunError:
    return RunError(f"{archive} is damaged: {found}; remove it and run `sotto install films`")


def _texts(archive: Path, kind: str, content: bytes) -> Texts:
    texts, ratings = [], []
    for number, line in enumerate(content.rstrip().split(b"\n"), 1):
        try:
            _, rating, text = line.decode().split("\t")
            ratings.append(float(rating))
        except ValueError as error:
            found = f"line {number} of the {kind} is not an identifier, a rating and a text"
            raise _damaged(found, archive) from error
        if not -4 <= ratings[-1] <= 4:
            raise _damaged(f"line {number} of the {kind} has a rating outside [-4, 4]", archive)
        texts.append(text.strip())
    return Texts(tuple(texts), np.array(ratings))


class Split(NamedTuple):
    """The film sentences in three parts."""

    raters: Texts
    """Texts of public people, on which the model of the raters is trained."""
    held_out: Texts
    """Texts of public people, whose beginnings are the prompts of evaluations."""
    people: Texts
    """Texts of the protected people, one each."""


def split(films: Texts, seed: int) -> Split:
    """Returns 5,000, 1,000 and all other film sentences; the seed alone decides which.

    Raises:
        RunError: there are too few.
    """
    if len(films) <= RATERS + HELD_OUT:
        raise RunError(
            f"the films are {len(films):,} texts, and {RATERS + HELD_OUT:,} of them belong to "
            "public people; run `sotto install films`"
        )
    order = np.random.default_rng(seed).permutation(len(films))
    parts = np.split(order, [RATERS, RATERS + HELD_OUT])
    return Split(*(films.at(part) for part in parts))
