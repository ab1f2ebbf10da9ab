"""A killed training finds its releases again, and reports those that were lost."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from killed import Killed

from sotto.algorithms.functional_q import training
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.functions import Averager
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.release.released import ReleasedValues

SMALL = FunctionalQConfig(
    target_epsilon=0.9,
    delta=1e-4,
    samples=400,
    num_envs=4,
    gradient_steps=50,
    hidden=(8,),
    iterations=5,
    learner="averager",
)
WHOLE = replace(SMALL, unit="reward-function", reward_radius=0.1)
KINDS = {
    "rounds": replace(SMALL, rounds=2),
    "rewards": WHOLE,
    "output": replace(SMALL, mode="output-release"),
    "network": replace(
        SMALL, mode="output-release", learner="network", noise="process", iterations=1
    ),
    "per-iteration": replace(WHOLE, mode="per-iteration"),
    "choice": replace(WHOLE, mode="policy-choice"),
}


@pytest.mark.parametrize("name", list(KINDS))
def test_killed_before_its_checkpoint_it_finds_what_was_released(tmp_path, name: str) -> None:
    """Values are on disk before they are used, so a resumed training reads them at no cost."""
    config, folders = KINDS[name], [tmp_path / "a", tmp_path / "b"]
    ledgers = [training.create_ledger(config, tmp_path / f"{run}.sqlite") for run in range(2)]
    first = next(training.train(config, [0, 1], ledgers, folders=folders))
    spent = [ledger.spent().epsilon for ledger in ledgers]
    again = [Ledger.open(tmp_path / f"{run}.sqlite") for run in range(2)]
    found = next(training.train(config, [0, 1], again, folders=folders))
    for one, other in zip(*map(jax.tree.leaves, (first.states, found.states)), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert [ledger.spent().epsilon for ledger in again] == spent
    assert [len(ledger.streams) for ledger in again] == [1, 1]
    if name == "rounds":  # and it goes on with the next release
        *_, last = training.train(config, [0, 1], again, found.states, found.updates, folders)
        assert last.updates == config.num_updates
        assert [ledger.persons for ledger in again] == [400, 400]
        assert max(ledger.spent().epsilon for ledger in again) <= 0.9


def test_of_two_runs_only_the_one_that_lacks_its_release_makes_it(tmp_path) -> None:
    ledgers = [training.create_ledger(SMALL, tmp_path / f"{run}.sqlite") for run in range(2)]
    folders = [tmp_path / "a", tmp_path / "b"]
    alone = next(training.train(SMALL, [1], ledgers[1:], folders=folders[1:]))
    both = next(training.train(SMALL, [0, 1], ledgers, folders=folders))
    np.testing.assert_array_equal(both.states.sums[1], alone.states.sums[0])
    assert [[one.releases for one in ledger.streams] for ledger in ledgers] == [[1], [1]]
    assert [ledger.persons for ledger in ledgers] == [400, 400]


def test_iterations_go_on_where_they_were_killed(tmp_path, monkeypatch) -> None:
    """After a kill in release 3 of 5, two are found, the third is lost, and two remain."""
    config = KINDS["per-iteration"]
    ledger = training.create_ledger(config, tmp_path / "l.sqlite")
    save, saved = ReleasedValues.save, []

    def killed(self, path) -> None:
        if len(saved) == 2:
            raise Killed
        saved.append(self.values)
        save(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(ReleasedValues, "save", killed)
        with pytest.raises(Killed):
            next(training.train(config, [0], [ledger], folders=[tmp_path]))
    ledger = Ledger.open(tmp_path / "l.sqlite")
    read = []
    iterate = Averager.iterate
    monkeypatch.setattr(
        Averager, "iterate", lambda self, v, r: read.append(v) or iterate(self, v, r)
    )
    next(training.train(config, [0], [ledger], folders=[tmp_path]))
    assert [stream.releases for stream in ledger.streams] == [5]
    assert len(read) == 2
    np.testing.assert_allclose(read[0], np.clip(saved[1], 0.0, 5.0))
    certificate = derive(ledger)
    assert certificate.epsilon <= 0.9
    assert certificate.epsilon == pytest.approx(0.9, rel=1e-6)


@pytest.mark.parametrize("name", ["rewards", "output", "per-iteration", "choice"])
def test_what_was_charged_and_never_written_is_said_in_a_sentence(
    tmp_path, monkeypatch, name: str
) -> None:
    config = replace(KINDS[name], iterations=1)
    ledger = training.create_ledger(config, tmp_path / "l.sqlite")

    def killed(self, path) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ReleasedValues, "save", killed)
        with pytest.raises(Killed):
            next(training.train(config, [0], [ledger], folders=[tmp_path]))
    ledger = Ledger.open(tmp_path / "l.sqlite")
    with pytest.raises(BudgetExceeded, match=r"nothing was released.*start a new run"):
        next(training.train(config, [0], [ledger], folders=[tmp_path]))
    assert [stream.releases for stream in ledger.streams] == [1]


def test_new_transitions_stand_in_for_lost_ones_while_delta_allows(tmp_path) -> None:
    config = replace(SMALL, delta=1 / 700)
    ledger = training.create_ledger(config, tmp_path / "l.sqlite")
    next(training.train(config, [0], [ledger]))  # forgotten
    with pytest.raises(BudgetExceeded, match="nothing was released"):  # 800 transitions
        next(training.train(config, [0], [ledger], folders=[tmp_path]))
