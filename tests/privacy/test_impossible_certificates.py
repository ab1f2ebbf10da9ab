"""Certificates that no ledger gives: both verifiers refuse them without the ledger.

Each is a true certificate with numbers changed so that they still follow from each other.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask
from dp_accounting import get_epsilon_gaussian
from kinds_of_statements import stream as of_any_kind
from stored_files import changed
from test_lone_certificates import CHECKER, loaded

from sotto.cli import main
from sotto.privacy.answers.account import AnswerAccount
from sotto.privacy.answers.distances import Distance, PolicyDistance, TrainingShards
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.certificates import possible
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.lone import verify_file
from sotto.privacy.claims import rewards
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.functions.rkhs import vector_sensitivity
from sotto.privacy.mechanisms.policies import GaussianPolicy
from sotto.privacy.release.choices import ChoiceRelease
from sotto.privacy.release.functions import FunctionRelease
from sotto.privacy.statements import Once, Part, Participation, Poisson, Returning, StreamStatement
from sotto.privacy.units import EXPERT, REWARD_FUNCTION

BACK = Returning(max_participations=3, min_separation=1)
KINDS = {
    "once": ([Once()], 20.0, False),
    "planned": ([BACK, BACK], 20.0, False),
    "sampled": ([Poisson(sampling_rate=0.01, population=1000)], 20.0, False),
    "adaptive": ([BACK, BACK], 3.0, True),
}
"""Participation in each stream, epsilon of the budget, and whether it is spent adaptively."""


def stream(name: str, rule: Participation) -> StreamStatement:
    return of_any_kind(
        name=name,
        unit=EXPERT,
        participation=rule,
        parts={"p": Part(clip_norm=1.0, noise_multiplier=5.0)},
        horizon=10,
        population="simulated",
        sampler_delta=1e-20,
        noise_law="on-grid",
    )


def true_certificate(kind: str, where: Path) -> str:
    """The text of a true certificate; the streams of several have the same five people."""
    if kind == "function":
        return function(where)
    if kind == "choice":
        return choice(where)
    if kind == "teacher":
        return derive(teacher(where)).text()
    rules, epsilon, adaptive = KINDS[kind]
    budget = Budget(epsilon=epsilon, delta=1e-5)
    ledger = Ledger.create(where, unit=EXPERT, budget=budget, adaptive=adaptive)
    opened = [
        ledger.open_stream(stream(name, rule)) for name, rule in zip("ab", rules, strict=False)
    ]
    for one, rule in zip(opened, rules, strict=True):
        one.charge(0, 1, None if isinstance(rule, Poisson) else [PersonBlock(0, 5)])
    return derive(ledger).text()


def noise(multiplier: float, *streams: int) -> Callable[[Any], None]:
    """States another noise multiplier of streams, also in their costs."""

    def change(c: Any) -> None:
        for one in (c["streams"][index] for index in streams):
            one["statement"]["parts"]["p"]["noise_multiplier"] = multiplier
            one["event"]["noise_multiplier"] = multiplier

    return change


def function(where: Path) -> str:
    """The text of a true certificate of a function that was released twice."""
    ledger = Ledger.create(where, unit=REWARD_FUNCTION, budget=Budget(epsilon=20.0, delta=1e-5))
    released = FunctionRelease(
        name="the reward's values",
        unit=REWARD_FUNCTION,
        sensitivity=vector_sensitivity(3, 2, 0.1),
        noise_multiplier=2.0,
        population="simulated",
        size=6,
        horizon=2,
        protects=(rewards.LOGGED_FUNCTION(radius="0.1"),),
    ).open(ledger)
    for _ in range(2):
        released.release(np.zeros((3, 2)))
    return derive(ledger).text()


NEAR = PolicyDistance(l2=0.1)


def teacher(where: Path, distance: Distance = NEAR, delta: float = 1e-5) -> AnswerLedger:
    """A ledger of answers to two students."""
    statement = AnswerStatement(
        name="t",
        mechanism=GaussianPolicy(actions=3, noise_stddev=1.0),
        distance=distance,
        queries=100,
        queries_per_student=60,
        observation_size=2,
        population="simulated",
    )
    budget = Budget(epsilon=50.0, delta=delta)
    ledger = AnswerLedger.create(where, statement=statement, budget=budget)
    for name, allowed in (("bob", 40), ("eve", 10)):
        ledger.add_student(name, allowed)
        ask(ledger, name, 5)
    return ledger


def choice(where: Path) -> str:
    """The text of a true certificate of a choice."""
    ledger = Ledger.create(where, unit=REWARD_FUNCTION, budget=Budget(epsilon=0.9, delta=1e-5))
    tables, bounds, says = np.eye(2), (0.0, 0.5), (rewards.LOGGED_FUNCTION(radius="0.05"),)
    plan = ChoiceRelease(
        "policy", REWARD_FUNCTION, tables, tables, bounds, 0.05, 0.9, "simulated", says
    )
    plan.open(ledger).release(np.zeros(2))
    return derive(ledger).text()


def sensitivity(**numbers: str) -> Callable[[Any], None]:
    """Says other numbers about the sensitivity, in the statement too; none: does not say it."""

    def change(c: Any) -> None:
        place = [one["claim"] for one in c["claims"]].index("functions.sensitivity")
        c["streams"][0]["statement"]["assumptions"] = []
        if not numbers:
            c["claims"].pop(place)
            return
        c["claims"][place]["numbers"].update(numbers)
        words = rewards.SENSITIVITY.assumption(**c["claims"][place]["numbers"])
        c["streams"][0]["statement"]["assumptions"].append(json.loads(words.model_dump_json()))

    return change


def of_experts(c: Any) -> None:
    c["unit"] = c["streams"][0]["statement"]["unit"] = json.loads(EXPERT.model_dump_json())
    c["unit_sentence"] = EXPERT.sentence()


def in_one_release(c: Any) -> None:
    c["streams"][0]["statement"]["participation"]["max_participations"] = 1


def negative_delta(c: Any) -> None:
    c["streams"][0]["statement"]["sampler_delta"] = -0.01
    c["worst_person"]["sampler_delta"] = -0.01
    c["epsilon"] = get_epsilon_gaussian(5.0, 1e-5 + 0.01)
    c["curve"] = [[get_epsilon_gaussian(5.0, delta + 0.01), delta] for _, delta in c["curve"]]


def samplers(c: Any) -> None:
    for one in c["streams"]:
        one["statement"]["sampler_delta"] = 9e-6


def unplanned(c: Any) -> None:
    c["claims"] = [one for one in c["claims"] if one["claim"] != "ledger.planned"]


def shared_budget(epsilon: str, delta: str) -> Callable[[Any], None]:
    def change(c: Any) -> None:
        place = [one["claim"] for one in c["claims"]].index("ledger.planned") + 1
        numbers = {"epsilon": epsilon, "delta": delta}
        said = {"claim": "ledger.shared-budget", "version": 1, "numbers": numbers}
        c["claims"].insert(place, said)

    return change


def too_many_answers(c: Any) -> None:
    """Answers beyond the allowance, at their true cost."""
    a = c["answers"]
    events = c["worst_person"]["events"]
    whole = events[0]["noise_multiplier"] * 100**0.5  # of one answer
    a["students"][0]["answered"], a["answered"] = 55, 60
    for holder, count in ((a["students"][0], 55), (a, 60)):
        holder["spent_epsilon"] = get_epsilon_gaussian(whole / count**0.5, 1e-5)


def a_stream_beside_answers(c: Any) -> None:
    said = json.loads(stream("a", Once()).model_dump_json()) | {"unit": c["unit"]}
    said["parts"]["p"]["noise_multiplier"] = 0.01
    event = {"kind": "gaussian", "noise_multiplier": 0.01}
    one = {"statement": said, "releases": 1, "persons": 5, "event": event, "versions": {}}
    c["streams"].append(one)


def people(total: int, *each: int) -> Callable[[Any], None]:
    def change(c: Any) -> None:
        c["persons"] = total
        for one, count in zip(c["streams"], each, strict=True):
            one["persons"] = count

    return change


IMPOSSIBLE: dict[str, tuple[str, Callable[[Any], None]]] = {
    "a stream beyond the filter": ("adaptive", noise(0.5, 0)),
    "streams beyond the filter together": ("adaptive", noise(1.7, 0, 1)),
    "samplers beyond the filter's reserve": ("adaptive", samplers),
    "a negative delta of the sampler": ("once", negative_delta),
    "a teacher with streams": ("teacher", a_stream_beside_answers),
    "no sentence on shared people": ("planned", unplanned),
    "the same of sampled people": ("sampled", unplanned),
    "a shared budget below the cost": ("planned", shared_budget("0.001", "1e-05")),
    "a shared budget of nothing": ("planned", shared_budget("-3", "1e-05")),
    "a shared budget that is no number": ("planned", shared_budget("nan", "1e-05")),
    "more answers than allowed": ("teacher", too_many_answers),
    "two students of a teacher for one": (
        "teacher",
        lambda c: c["answers"]["statement"].update(one_student=True),
    ),
    "a floor above the rows": (
        "teacher",
        lambda c: c["answers"]["statement"]["mechanism"].update(floor=0.4),
    ),
    "a rounding of zero": (
        "teacher",
        lambda c: c["answers"]["statement"]["distance"].update(rounding=0.0),
    ),
    "a budget below epsilon": ("once", lambda c: c["budget"].update(epsilon=0.01)),
    "fewer releases than none": ("once", lambda c: c["streams"][0].update(releases=-1)),
    "fewer people than none": ("once", people(-7, -7)),
    "more people in a stream than in all": ("once", people(4, 5)),
    "more people in all than in streams": ("once", people(6, 5)),
    "more people than delta is for": ("once", people(10**7, 10**7)),
    "a population that not all pay for": ("sampled", people(900, 900)),
    "a smaller bound of a function": ("function", sensitivity(bound="0.0001")),
    "a larger bound of a function": ("function", sensitivity(bound="0.245")),
    "a bound of another function": ("function", sensitivity(name="'another'")),
    "no bound of a function": ("function", sensitivity()),
    "a function of experts": ("function", of_experts),
    "a choice among experts": ("choice", of_experts),
    "a function that is in one of two releases": ("function", in_one_release),
}


@pytest.mark.parametrize("kind", [*KINDS, "teacher", "function", "choice"])
def test_the_certificates_that_are_changed_are_true(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(true_certificate(kind, tmp_path / "ledger"))
    assert verify_file(path).status == "true"
    assert loaded(CHECKER).main(path) == 0


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_numbers_that_no_ledger_has_are_false(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, change = IMPOSSIBLE[name]
    path = tmp_path / "certificate.json"
    path.write_text(true_certificate(kind, tmp_path / "ledger"))
    changed(path, change)
    assert verify_file(path).status == "false"
    assert loaded(CHECKER).main(path) == 1
    assert capsys.readouterr().out.startswith("false: ")


@pytest.mark.parametrize(
    ("distance", "delta", "says"),
    [
        (TrainingShards(teachers=50), 0.03, "vacuous for 50 shards"),
        (NEAR, 1e-30, "finer than the noise sampler"),
    ],
)
def test_a_delta_that_a_ledger_refuses_is_false(
    distance: Distance, delta: float, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "certificate.json"
    with monkeypatch.context() as unchecked:
        unchecked.setattr(AnswerAccount, "check_create", lambda self: None)
        path.write_text(derive(teacher(tmp_path / "ledger", distance, delta)).text())
    found = verify_file(path)
    assert found.status == "false"
    assert says in found.reasons[0]
    assert loaded(CHECKER).main(path) == 1


def test_a_student_has_a_name_that_ledgers_allow(tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(true_certificate("teacher", tmp_path / "ledger"))
    changed(path, lambda c: c["answers"]["students"][0].update(name="a: 1 of 50\n\nProtected"))
    found = verify_file(path)
    assert found.status == "false"
    assert "a student's name has 1 to 64 letters" in found.reasons[0]


def test_a_student_who_was_added_again_with_fewer_queries_is_possible(tmp_path: Path) -> None:
    ledger = teacher(tmp_path / "ledger")
    ledger.revoke("bob")
    ledger.add_student("bob", 2)
    ledger.revoke("eve")
    path = tmp_path / "certificate.json"
    path.write_text(derive(ledger).text())
    assert verify_file(path).status == "true"
    assert loaded(CHECKER).main(path) == 0


def sampled(c: Any) -> None:
    """One stream of an adaptive budget becomes a sampled one, whose cost no filter adds up."""
    one = c["streams"][0]
    rule = {"kind": "poisson", "sampling_rate": 0.1, "population": one["persons"]}
    one["statement"]["participation"] = rule
    one["event"] = {"kind": "sampled-gaussian", **one["event"], "sampling_rate": 0.1, "count": 10}


def test_a_filter_adds_up_gaussian_streams_only(tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(true_certificate("adaptive", tmp_path / "ledger"))
    changed(path, sampled)
    assert verify_file(path).status != "true"
    assert loaded(CHECKER).main(path) == 1


def test_an_infinite_epsilon_may_stand_beside_a_finite_budget() -> None:
    """As where an earlier version released what is not proved any more: it claims nothing."""
    possible.check_budget(math.inf, Budget(epsilon=0.9, delta=1e-4))
    with pytest.raises(PrivacyError, match="exceeds the budget"):
        possible.check_budget(0.91, Budget(epsilon=0.9, delta=1e-4))


@pytest.mark.parametrize("multiplier", [1e-300, 1e300])
def test_numbers_beyond_arithmetic_have_no_answer(
    multiplier: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(true_certificate("once", tmp_path / "ledger"))

    def change(c: Any) -> None:
        noise(multiplier, 0)(c)
        c["worst_person"]["events"][0]["noise_multiplier"] = multiplier

    changed(path, change)
    assert main(["verify", str(path)]) == 4
    assert "too large or too small to compute with" in capsys.readouterr().err
    assert loaded(CHECKER).main(path) == 2


WORDS: dict[str, Callable[[Any], None]] = {
    "adjacency": lambda c: c["streams"][0]["statement"]["unit"].update(adjacency="replace one"),
    "participation": lambda c: c["streams"][0]["statement"]["participation"].update(kind="Poisson"),
    "clipping": lambda c: c["streams"][0]["statement"].update(clipping="x"),
    "a flag in place of a number": lambda c: c.update(epsilon=True),
    "a field": lambda c: c.update(note="epsilon is really 0"),
    "nobody who pays": lambda c: c["worst_person"].update(streams=[], events=[]),
}


@pytest.mark.parametrize("name", WORDS)
def test_the_checker_knows_every_word_that_it_passes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    contents = json.loads(true_certificate("once", tmp_path / "ledger"))
    WORDS[name](contents)
    path.write_text(json.dumps(contents))
    assert loaded(CHECKER).main(path) in (1, 2)
    assert verify_file(path).status == "false"
