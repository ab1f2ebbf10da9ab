"""Simulated people who rate texts, and a judge of another kind that they never see.

A `Rater` gives the feedback that training learns from. A `Judge` measures how good the trained
model's texts are. It reads other features and was trained on other texts, so that a model which
only exploits the raters' mistakes does not please it.
"""

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.special import expit

from sotto.data.films import Corpora, Split
from sotto.data.packages import data_folder
from sotto.errors import RunError
from sotto.extras import require
from sotto.files import replacing
from sotto.rl.language import LanguageModel, block_features

INVERSE_PENALTY = 4.0
"""scikit-learn's C in the logistic regression of a `Rater`."""

PENALTY = 0.03
"""Factor of the squared weights in the loss of a `Judge`, beside the mean logistic loss."""

MOST_TOKENS = 64
"""Number of tokens of a text that a `Judge` is trained on; later ones are left out."""

BATCH, MULTIPLE = 64, 8
"""Texts in a batch of a `Judge`; their length in tokens is padded to a multiple of the second."""


@dataclass(frozen=True)
class Rater:
    """People who rate a text by its words: a logistic regression on words and pairs of words.

    The features are scaled frequencies (TF-IDF), and the regression was trained on the signs of
    human ratings of film sentences.
    """

    words: Any
    """The features: a TfidfVectorizer of scikit-learn."""
    regression: Any
    """The model: a LogisticRegression of scikit-learn."""

    @staticmethod
    def fit(films: Split) -> "Rater":
        """Returns the rater of a split; the texts of its protected people are not read.

        On the films of `sotto install films` it is right about 77 per cent of other signs.

        Raises:
            ValueError: the extra `language` is not installed.
        """
        require("sklearn")
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression

        words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
        regression = LogisticRegression(C=INVERSE_PENALTY, max_iter=1_000)
        regression.fit(words.fit_transform(films.raters.texts), films.raters.ratings > 0)
        return Rater(words, regression)

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, " texts"]:
        """Returns the rating of each text in [0, 1]: the probability that it is positive."""
        margins = self.regression.decision_function(self.words.transform(texts))
        return np.asarray(expit(margins), np.float64)


@dataclass(frozen=True)
class Judge:
    """A judge that reads the frozen language model's residual stream at a text's last token.

    It is a logistic regression on the standardised stream after three quarters of the blocks (22 of
    30), trained on the signs of the ratings of product reviews and editorials, and on no film.
    """

    language: LanguageModel
    weights: Float[np.ndarray, " width"]
    """Weight of each number of the stream."""
    bias: float

    @staticmethod
    def fit(language: LanguageModel, corpora: Corpora) -> "Judge":
        """Returns the judge of a language model.

        The features of 8,898 texts take minutes on a CPU, so the weights are kept in the data
        folder (`sotto.data.packages.data_folder`). The name of their file is a digest of
        the model's weights, the texts' tokens, the ratings and the constants of this module.

        Raises:
            ValueError: the extra `language` is not installed.
            RunError: the kept weights cannot be read.
            OSError: the data folder cannot be written.
        """
        require("sklearn")
        texts = (*corpora.amazon.texts, *corpora.nyt.texts)
        rows = [language.tokenizer.encode(text)[:MOST_TOKENS] for text in texts]
        ratings = np.concatenate([corpora.amazon.ratings, corpora.nyt.ratings])
        path = data_folder() / "judges" / f"{_digest(language, rows, ratings)}.npz"
        if path.exists():
            return Judge(language, *_read(path, language.decoder.architecture.width))
        weights, bias = _regression(_last_features(language, rows), ratings > 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.savez(file, weights=weights, bias=bias)
        return Judge(language, weights, bias)

    def __call__(self, rows: Sequence[Sequence[int]]) -> Float[np.ndarray, " texts"]:
        """Returns the probability that each text is positive.

        Args:
            rows: tokens of each text, prompt and completion together; at least one each.

        Raises:
            ValueError: a text has no token, or more than the model's positions.
        """
        margins = _last_features(self.language, rows) @ self.weights + self.bias
        return np.asarray(expit(margins), np.float64)


def _regression(
    features: Float[np.ndarray, "texts width"], positive: np.ndarray
) -> tuple[Float[np.ndarray, " width"], float]:
    """Returns weights and bias of a logistic regression, for features that are not standardised."""
    from sklearn.linear_model import LogisticRegression

    mean, scale = features.mean(0), features.std(0) + 1e-6
    # scikit-learn minimises the sum of the losses plus |weights|^2 / (2 C).
    regression = LogisticRegression(C=1 / (2 * PENALTY * len(features)), max_iter=1_000)
    regression.fit((features - mean) / scale, positive)
    weights = regression.coef_[0] / scale
    return weights, float(regression.intercept_[0] - weights @ mean)


_block_features = partial(jax.jit, static_argnames="block")(block_features)


def _last_features(
    language: LanguageModel, rows: Sequence[Sequence[int]]
) -> Float[np.ndarray, "texts width"]:
    """Returns the residual stream at the last token of each text, in float64.

    Texts of similar length share a batch, and few shapes are compiled.
    """
    if not all(len(row) for row in rows):
        raise ValueError("a judge needs at least one token of each text; leave out empty texts")
    block = max(1, 3 * len(language.decoder.blocks) // 4)
    features = np.zeros((len(rows), language.decoder.architecture.width))
    order = np.argsort([len(row) for row in rows], kind="stable")
    for start in range(0, len(rows), BATCH):
        chosen = order[start : start + BATCH]
        tokens, mask = _batch([rows[index] for index in chosen])
        found = _block_features(language.decoder, tokens, mask, block)
        features[chosen] = np.asarray(found)[: len(chosen), 1]
    return features


def _batch(
    rows: Sequence[Sequence[int]],
) -> tuple[Int[np.ndarray, "64 time"], np.ndarray]:
    """Returns rows padded on the right, with rows of one token in place of those that lack."""
    length = -(-max(len(row) for row in rows) // MULTIPLE) * MULTIPLE
    tokens, mask = np.zeros((BATCH, length), np.int32), np.zeros((BATCH, length), bool)
    mask[:, 0] = True
    for index, row in enumerate(rows):
        tokens[index, : len(row)], mask[index, : len(row)] = row, True
    return tokens, mask


def _digest(
    language: LanguageModel, rows: Sequence[Sequence[int]], ratings: Float[np.ndarray, " texts"]
) -> str:
    """Returns a digest of everything that the weights of a `Judge` depend on."""
    settings = (PENALTY, MOST_TOKENS, BATCH, MULTIPLE, language.decoder.architecture)
    digest = hashlib.sha256(repr(settings).encode())
    for leaf in jax.tree.leaves(language.decoder):
        digest.update(f"{leaf.shape} {leaf.dtype}".encode())
        digest.update(np.asarray(leaf).tobytes())
    digest.update(repr([list(row) for row in rows]).encode())
    digest.update((ratings > 0).tobytes())
    return digest.hexdigest()


def _read(path: Path, width: int) -> tuple[Float[np.ndarray, " width"], float]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            weights, bias = stored["weights"], stored["bias"]
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise RunError(f"{path} cannot be read; remove it, and it is made again") from error
    numbers = weights.dtype == bias.dtype == np.float64
    whole = numbers and weights.shape == (width,) and bias.shape == ()
    if not whole or not (np.isfinite(weights).all() and np.isfinite(bias)):
        raise RunError(f"{path} does not hold a judge's weights; remove it, and it is made again")
    return weights, float(bias)
