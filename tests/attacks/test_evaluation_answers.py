"""Every number in an answer of `sotto evaluate` has noise in it, or is public.

The usual mistakes divide by the exact number of people or the exact sum of weights, print how many
weights were clipped, or read a bound off the log. Each of them puts a number into the answer that
two evaluations of one log have in common, and evaluations of two logs have not.
"""

import numpy as np
import pytest
from evaluated import trial

from sotto.algorithms.evaluation.analysis import Asked, as_json, evaluate
from sotto.algorithms.evaluation.policies import named
from sotto.algorithms.evaluation.release import UNIT, Spending
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget

POLICIES = {word: named(word, 2, 1) for word in ("always:0", "uniform")}


def flat(value, name=""):
    """The numbers and texts of an answer, by their place in it."""
    if isinstance(value, dict):
        return {k: v for key, one in value.items() for k, v in flat(one, f"{name}.{key}").items()}
    if isinstance(value, list):
        return {
            k: v for key, one in enumerate(value) for k, v in flat(one, f"{name}.{key}").items()
        }
    return {name: value}


def cut(name, value):
    """Whether a noisy bound on the bias was cut at a public limit: 0, or the range of returns."""
    return name.endswith(".bias_from_clipping_at_most") and value in (0.0, 1.0)


def leaked(first, again, other):
    """Numbers that one log's answers have in common, and another log's answer has not."""
    same = {name for name in first if first[name] == again[name] and not cut(name, first[name])}
    return sorted(name for name in same if first[name] != other[name])


def answers(records, folder, name, estimator):
    budget = Budget(epsilon=1, delta=1e-5)
    ledger = Ledger.create(folder / f"{name}.sqlite", unit=UNIT, budget=budget)
    spending = Spending(1.0, 1e-5)
    asked = Asked(estimator, largest_weights=(2.0,))
    return flat(as_json(evaluate(records, POLICIES, asked, ledger, spending), spending, 0.95))


@pytest.mark.parametrize("estimator", ["self-normalised", "importance"])
def test_no_number_in_an_answer_is_without_noise(tmp_path, estimator):
    log, other = trial(400, seed=1), trial(400, seed=2)
    other.present[200:] = False  # half of the people, with other data
    other.rewards[:] = np.where(other.rewards > 0, 0.5, 0)
    first, again = (answers(log, tmp_path, name, estimator) for name in "ab")
    last = answers(other, tmp_path, "c", estimator)
    first, again, last = (
        {k: v for k, v in one.items() if not k.startswith((".best", ".may_be_as_good"))}
        for one in (first, again, last)
    )
    assert leaked(first, again, last) == []
    assert leaked(first | {"people": 400}, again | {"people": 400}, last | {"people": 200})
    told = [name for name in first if name.rpartition(".")[2] in ("value", "noise", "mean_weight")]
    assert len(told) == 6
    assert all(first[name] != again[name] for name in told)
