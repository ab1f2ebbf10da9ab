"""What the rebuilt house could be made to state: each of these was found by attacking it."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sotto.experiments.certified import certificates
from sotto.experiments.engine import Arm, Result, joined
from sotto.privacy.certificates.derive import derive
from sotto.privacy.claims.rewards import LOGGED_FUNCTION
from sotto.privacy.errors import LedgerCorrupt
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.databases import database
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.functions.rkhs import Sensitivity
from sotto.privacy.release.functions import FunctionRelease, kept_files
from sotto.privacy.release.released import ReleasedFunction
from sotto.privacy.statements import Part, Returning, StreamStatement
from sotto.privacy.units import REWARD_FUNCTION, Unit

UNIT = Unit(kind="trajectory", adjacency="zero-out")
DELTA = 1e-3
EVERYBODY = [PersonBlock(0, 5)]


def statement(name: str, noise_multiplier: float = 3.0, **changes: Any) -> StreamStatement:
    return StreamStatement(
        name=name,
        participation=Returning(max_participations=1, min_separation=1),
        parts={"policy": Part(clip_norm=1.0, noise_multiplier=noise_multiplier)},
        dimensions={"policy": 1},
        divisor=1.0,
        horizon=1,
        population="simulated",
        sampler_delta=1e-30,
        noise_law="on-grid",
        **{"unit": UNIT} | changes,
    )


def ledger(folder: Path, epsilon: float, **options: Any) -> Ledger:
    budget = Budget(epsilon=epsilon, delta=DELTA)
    return Ledger.create(folder / "ledger", "run", unit=UNIT, budget=budget, **options)


def write_open(one: Ledger, said: StreamStatement) -> None:
    """Writes an entry that `open_stream` would refuse, with a true hash."""
    one._write("open", {"statement": entries.json_values(said), "versions": {}, "settings": {}})


# --- the ledger ----------------------------------------------------------------------------------


def test_an_adaptive_ledger_with_streams_beyond_its_filter_is_found(tmp_path: Path) -> None:
    """Its certificate states the budget, whatever is in it: 0.5 here, for a cost above 3."""
    one = ledger(tmp_path, 0.5, adaptive=True)
    write_open(one, statement("too little noise", 1.0))
    entry = {"stream": 0, "persons": [[EVERYBODY[0]]], "first_release": 0, "count": 1}
    one._write("charge", entry)
    with pytest.raises(LedgerCorrupt, match="more than its filter allows"):
        Ledger.open(tmp_path / "ledger")


def test_a_stream_of_another_adjacency_is_found(tmp_path: Path) -> None:
    """A stream of zeroing out, in a ledger of replacing, is stated at half of its shift."""
    budget = Budget(epsilon=10.0, delta=DELTA)
    replacing = Unit(kind="trajectory", adjacency="replace-one")
    one = Ledger.create(tmp_path / "ledger", "run", unit=replacing, budget=budget)
    write_open(one, statement("zeroed"))
    with pytest.raises(LedgerCorrupt, match="under replace-one adjacency"):
        Ledger.open(tmp_path / "ledger")


def test_no_certificate_says_that_a_late_stream_was_planned(tmp_path: Path) -> None:
    """A stream of which nothing is proved may be opened late."""
    one = ledger(tmp_path, float("inf"))
    one.open_stream(statement("first")).charge(0, 1, EVERYBODY)
    before = derive(one)
    assert "ledger.planned" in {said.claim for said in before.claims}
    one.open_stream(statement("late", entropy="fixed-seed")).charge(0, 1, EVERYBODY)
    for opened in (one, Ledger.open(tmp_path / "ledger")):
        found = derive(opened)
        assert found.epsilon == float("inf")
        assert "ledger.planned" not in {said.claim for said in found.claims}
    then = one.at(before.head_hash)
    assert then is not None
    assert derive(then) == before


def test_streams_about_rewards_in_an_earlier_ledger_need_an_assumption(tmp_path: Path) -> None:
    """Each may have been opened by looking at those before; that of people always said so."""
    said = statement("values", unit=REWARD_FUNCTION)
    contents = {
        "format": 1,
        "created": "2025-01-01T00:00:00+00:00",
        "unit": entries.json_values(REWARD_FUNCTION),
        "budget": {"epsilon": 10.0, "delta": DELTA},
        "versions": {},
    }
    entry = entries.Entry("run", 0, "create", entries.canonical(contents), entries.GENESIS)
    entries.create(database(tmp_path / "ledger"), entry)
    one = Ledger.open(tmp_path / "ledger")
    assumed = []
    for _ in range(2):
        one.open_stream(said).charge(0, 1, [PersonBlock(0, 1)])
        assumed.append("rewards.streams" in {claim.claim for claim in derive(one).claims})
    assert one.sharing == "assumed"
    assert assumed == [False, True]


# --- functions -----------------------------------------------------------------------------------


def test_equal_functions_of_an_interrupted_plan_have_files_of_their_own(tmp_path: Path) -> None:
    """In one file, a second secret would be released with the first one's noise, which is known."""
    release = FunctionRelease(
        "values",
        REWARD_FUNCTION,
        Sensitivity(1.0, 1.0, "it is bounded", 1.0),
        5.0,
        "simulated",
        protects=(LOGGED_FUNCTION(radius="1"),),
    )
    budget = Budget(epsilon=10.0, delta=DELTA)
    first = Ledger.create(tmp_path / "ledger", "run", unit=REWARD_FUNCTION, budget=budget)
    for _ in range(2):
        release.open(first, tmp_path)
    again = Ledger.open(tmp_path / "ledger")
    opened = [release.open(again, tmp_path) for _ in range(2)]
    assert len(again.streams) == 2
    secrets = [lambda x, c=c: np.full((len(x), 1), c) for c in (0.0, 1.0)]
    point = np.array([[0.5]])
    answers = [
        one.release_function(secret, 1)(point) for one, secret in zip(opened, secrets, strict=True)
    ]
    files = kept_files(again, tmp_path)
    assert None not in files
    for file, answer in zip(files, answers, strict=True):
        assert file is not None
        assert ReleasedFunction.open(file)(point) == answer


# --- experiments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
def test_no_epsilon_stands_beside_a_status_that_is_not_proved(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """One seed has released nothing: there is nothing to prove, and its epsilon is 0."""
    ledgers, folders = [], []
    for name in ("charged", "empty"):
        folder = tmp_path / name
        folder.mkdir()
        one = ledger(folder, 10.0)
        if name == "charged":
            one.open_stream(statement("first")).charge(0, 1, EVERYBODY)
        ledgers.append(one)
        folders.append(folder)
    said = certificates([ledgers[i] for i in order], [folders[i] for i in order])
    assert said == {"status": "none", "epsilon": None}
    assert certificates(ledgers[:1], folders[:1])["epsilon"] > 0
    assert json.loads((folders[1] / "certificate.json").read_text())["status"] == "none"


def test_joined_seeds_state_no_epsilon_unless_all_are_proved() -> None:
    arm = Arm("a", "A", None, (1, 2), "a", lambda *_: (), 1.0)
    parts = [
        Result(arm, (seed,), np.zeros(1), {"return": np.zeros((1, 1))}, status=status, epsilon=1.0)
        for seed, status in enumerate(("proved", "paper-claim"))
    ]
    assert joined(parts).epsilon is None
    assert joined(parts[:1]).epsilon == 1.0


def test_copies_of_a_ledger_are_a_duty_that_their_certificates_name(tmp_path: Path) -> None:
    """Nobody can notice a copy of a run's folder with which somebody goes on: the same people are
    then in both. Certificates said that no person takes part more often than is allowed."""
    ledger(tmp_path, 2.0).open_stream(statement("sums"))
    shutil.copy(tmp_path / "ledger", tmp_path / "copy")
    for name in ("ledger", "copy"):
        one = Ledger.open(tmp_path / name)
        one.resume_stream(statement("sums")).charge(0, 1, EVERYBODY)
        certificate = derive(one)
        assert (certificate.status, certificate.persons) == ("proved", 5)
        said = [assumption.statement for assumption in certificate.assumptions]
        assert any(line.startswith("In this ledger, no person takes part more") for line in said)
        assert any("Nobody goes on with a copy of this ledger" in line for line in said)
