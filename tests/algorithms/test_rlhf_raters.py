"""Simulated raters and the judge: against regressions done anew, and what they may not read."""

from dataclasses import replace
from pathlib import Path

import equinox as eqx
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from sotto.algorithms.rlhf import raters
from sotto.algorithms.rlhf.raters import Judge, Rater
from sotto.data.films import Corpora, Split, Texts
from sotto.errors import RunError
from sotto.rl.language import block_features, load

FIXTURE = Path(__file__).parents[1] / "rl" / "language" / "fixtures" / "llama"
GOOD = ("a good film", "good actors in it", "the best story, good city", "good, nobody laughed")
BAD = ("a bad film", "bad actors in it", "the worst story, bad city", "bad, nobody laughed")


def texts(good, bad):
    return Texts((*good, *bad), np.array([2.0] * len(good) + [-1.5] * len(bad)))


FILMS = Split(
    raters=texts(GOOD, BAD),
    held_out=Texts(("good sea", "bad sea", "good year", "good prizes"), np.array([1, -1, 1, -1])),
    people=texts(GOOD[:1], BAD[:1]),
)
CORPORA = Corpora(
    films=texts(GOOD, BAD),
    amazon=texts(GOOD[:2], BAD[:3]),
    nyt=texts(GOOD[1:], BAD[2:]),
)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The data folder of the test, which does not exist yet."""
    monkeypatch.setenv("SOTTO_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture(scope="module")
def language():
    return load(FIXTURE, "float32")


def test_a_rater_gives_the_probabilities_of_the_regression():
    rater = Rater.fit(FILMS)
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    fitted = LogisticRegression(C=4, max_iter=1000)
    fitted.fit(words.fit_transform(FILMS.raters.texts), FILMS.raters.ratings > 0)
    asked = ["good film good", "a bad story", "unknown words"]
    expected = fitted.predict_proba(words.transform(asked))[:, 1]
    found = rater(asked)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[0] > 0.6
    assert found[1] < 0.4


def test_a_rater_does_not_read_protected_people():
    others = FILMS._replace(people=texts(BAD, GOOD))
    asked = [*GOOD, *BAD]
    np.testing.assert_array_equal(Rater.fit(FILMS)(asked), Rater.fit(others)(asked))


def streams(language, rows):
    """The stream at each last token after the first block of two, one text at a time."""
    one = [
        block_features(language.decoder, np.array([row]), np.ones((1, len(row)), bool), 1)[0, 1]
        for row in rows
    ]
    return np.asarray(one, np.float64)


def test_a_judge_is_a_penalised_regression_on_the_stream(language):
    """Against a minimisation of mean logistic loss plus 0.03 |w|^2 by SciPy."""
    found = Judge.fit(language, CORPORA)
    both = (*CORPORA.amazon.texts, *CORPORA.nyt.texts)
    signs = np.sign([*CORPORA.amazon.ratings, *CORPORA.nyt.ratings])
    inputs = streams(language, [language.tokenizer.encode(text) for text in both])
    mean, scale = inputs.mean(0), inputs.std(0)
    inputs = (inputs - mean) / scale

    def loss(w):
        margins = signs * (inputs @ w[:-1] + w[-1])
        slope = -signs / (1 + np.exp(margins)) / len(signs)
        penalty = np.append(0.06 * w[:-1], 0)
        total = np.logaddexp(0, -margins).mean() + 0.03 * w[:-1] @ w[:-1]
        return total, np.append(inputs.T @ slope, slope.sum()) + penalty

    w = minimize(loss, np.zeros(inputs.shape[1] + 1), jac=True, tol=1e-10).x
    rows = [language.tokenizer.encode(text) for text in ("a good city by the sea", "bad", "it")]
    margins = (streams(language, rows) - mean) / scale @ w[:-1] + w[-1]
    np.testing.assert_allclose(found(rows), 1 / (1 + np.exp(-margins)), atol=2e-3)


def test_a_judge_never_reads_films(language, data):
    first = Judge.fit(language, CORPORA)
    other = Judge.fit(language, replace(CORPORA, films=texts(BAD, GOOD)))
    np.testing.assert_array_equal(first.weights, other.weights)
    assert len([*(data / "judges").iterdir()]) == 1


def test_texts_are_judged_one_by_one_in_few_shapes(language, monkeypatch):
    judge = Judge.fit(language, CORPORA)
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 200, size).tolist() for size in rng.integers(1, 20, 70)]
    shapes = []
    compute = raters._block_features

    def noting(decoder, tokens, mask, block):
        shapes.append(tokens.shape)
        return compute(decoder, tokens, mask, block)

    monkeypatch.setattr(raters, "_block_features", noting)
    together = judge(rows)
    assert shapes == [(64, 24), (64, 24)]
    for index in (0, 33, 69):
        np.testing.assert_allclose(together[index], judge([rows[index]])[0], atol=1e-4)
    assert together.std() > 0.01


def test_a_judge_reads_block_22_of_30(language, monkeypatch):
    thirty = eqx.tree_at(lambda one: one.blocks, language.decoder, language.decoder.blocks * 15)
    blocks = []

    def fake(decoder, tokens, mask, block):
        blocks.append(block)
        return np.zeros((len(tokens), 2, 32))

    monkeypatch.setattr(raters, "_block_features", fake)
    for decoder in (thirty, language.decoder):
        Judge(replace(language, decoder=decoder), np.zeros(32), 0.0)([[1]])
    assert blocks == [22, 1]


def test_weights_are_kept_and_read_again(language, data, monkeypatch):
    first = Judge.fit(language, CORPORA)
    monkeypatch.setattr(raters, "_last_features", lambda *_: pytest.fail("computed again"))
    again = Judge.fit(language, CORPORA)
    np.testing.assert_array_equal(first.weights, again.weights)
    assert first.bias == again.bias


def test_weights_of_another_model_or_other_texts_are_not_taken(language, data):
    Judge.fit(language, CORPORA)
    changed = eqx.tree_at(
        lambda one: one.embedding, language.decoder, language.decoder.embedding.at[5, 5].add(1e-3)
    )
    Judge.fit(replace(language, decoder=changed), CORPORA)
    Judge.fit(language, replace(CORPORA, nyt=texts(GOOD[1:], ("bad", "worse"))))
    Judge.fit(language, replace(CORPORA, nyt=texts(BAD[2:], GOOD[1:])))
    assert len([*(data / "judges").iterdir()]) == 4


def test_a_judge_is_trained_on_the_first_64_tokens(language, data):
    """The model has 64 positions, and the two corpora differ after them."""
    long = [" ".join(["good film"] * 64 + [end]) for end in ("city", "sea")]
    judges = [Judge.fit(language, replace(CORPORA, nyt=texts([one], BAD))) for one in long]
    np.testing.assert_array_equal(judges[0].weights, judges[1].weights)
    assert len([*(data / "judges").iterdir()]) == 1


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:50]), "cannot be read"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: np.savez(path, weights=np.zeros(32)), "cannot be read"),
        (
            lambda path: np.savez(path, weights=np.array([{}], object), bias=np.array(0.0)),
            "cannot be read",
        ),
        (lambda path: np.savez(path, weights=np.zeros(31), bias=0.0), "does not hold"),
        (lambda path: np.savez(path, weights=np.full(32, np.nan), bias=0.0), "does not hold"),
        (lambda path: np.savez(path, weights=np.full(32, "a"), bias=0.0), "does not hold"),
    ],
)
def test_damaged_weights_are_refused(language, data, damage, says):
    Judge.fit(language, CORPORA)
    (path,) = (data / "judges").iterdir()
    damage(path)
    with pytest.raises(RunError, match=rf"{path.name} {says}.*remove it, and it is made again"):
        Judge.fit(language, CORPORA)


def test_empty_texts_are_refused(language):
    judge = Judge(language, np.zeros(32), 0.0)
    with pytest.raises(ValueError, match="at least one token of each text"):
        judge([[1], []])
