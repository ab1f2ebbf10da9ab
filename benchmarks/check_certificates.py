"""Does `tools/check_certificate.py`, which imports nothing of sotto, agree with sotto's accounting?

Random ledgers of every kind that it can derive, and some that it cannot, are charged. Their
certificates are checked as they are, and with one number made wrong in three ways. A true
certificate that is called false, or a wrong one that is called true, is a disagreement.

    python benchmarks/check_certificates.py --certificates 2000
"""

import copy
import importlib.util
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from pydantic_core import to_json

from sotto.algorithms.kickstarting.teachers import Ensemble
from sotto.privacy.answers.distances import (
    AnyTwoTeachers,
    Distance,
    ObservationDistance,
    PolicyDistance,
    TrainingShards,
)
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.privacy.mechanisms.noisy_max import NoisyMax
from sotto.privacy.mechanisms.policies import Dirichlet, GaussianPolicy
from sotto.privacy.mechanisms.sparse_vector import named, rounded_rate
from sotto.privacy.mechanisms.stable_prefixes import Consensus, StablePrefixMechanism
from sotto.privacy.statements import (
    Correlation,
    Once,
    Part,
    Participation,
    Poisson,
    Returning,
    Selection,
    StreamStatement,
)
from sotto.privacy.units import Adjacency, Unit
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy

CHECKER = Path(__file__).parents[1] / "tools" / "check_certificate.py"
PEOPLE = 500


@dataclass
class Settings:
    """What is checked."""

    certificates: int = 2000
    """Number of random certificates."""
    seed: int = 0
    """Seed of the random numbers."""
    json: bool = False
    """Print one JSON object."""


def checker() -> Any:
    """Returns the checker as a module, which no package holds."""
    spec = importlib.util.spec_from_file_location("check_certificate", CHECKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(module: Any, path: Path) -> tuple[str, str]:
    """Returns "true", "false" or "unverifiable", and the reason."""
    try:
        module.check(module.read(path))
    except module.Verdict as end:
        verdict, reason = end.args
        return verdict, reason
    return "true", ""


# --- random certificates -------------------------------------------------------------------------


def between(draw: random.Random, low: float, high: float) -> float:
    """Returns a number between two others, evenly on a logarithmic scale."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def stream(draw: random.Random, unit: Unit, number: int, rule: Participation) -> StreamStatement:
    """Returns a random stream whose people take part by this rule."""
    parts = draw.randint(1, 3)
    joint, sampled = draw.random() < 0.3, isinstance(rule, Poisson)
    least = 0.7 if sampled else 0.3
    noises = [between(draw, least * math.sqrt(parts), 20) for _ in range(parts)]
    correlated = not sampled and draw.random() < 0.3
    chosen = draw.random() < 0.08
    return StreamStatement(
        name=f"stream {number if draw.random() < 0.9 else 0}",
        unit=unit,
        participation=rule,
        parts={
            f"part {i}": Part(
                clip_norm=between(draw, 0.01, 10), noise_multiplier=noises[0 if joint else i]
            )
            for i in range(parts)
        },
        dimensions={f"part {i}": 10 for i in range(parts)},
        clipping="joint" if joint else "separate",
        divisor=4.0,
        correlation=Correlation(kind="prefix-sum") if correlated else Correlation(),
        horizon=draw.choice([1, 2, 8, 64, 400]),
        population="simulated",
        entropy="fixed-seed" if draw.random() < 0.02 else "operating-system",
        sampler_delta=draw.choice([0.0, 1e-30, 1e-12]),
        noise_law="on-grid",
        selection=Selection(
            tries=draw.choice(["geometric", "poisson"]),
            mean=between(draw, 1, 20),
            candidates=3,
            accounting=draw.choice([1, 2]),
        )
        if chosen
        else None,
    )


def of_everybody(draw: random.Random, unit: Unit) -> StreamStatement:
    """Returns a stream that draws nobody: choices for rewards, or prefixes that experts vote on."""
    prefixes = StablePrefixMechanism(
        experts=PEOPLE,
        rule=Consensus(),
        noise=named("exponential", between(draw, 0.02, 0.5)),
        failure=1e-9,
    )
    choice = NoisyMax.calibrated(18, between(draw, 1e-3, 10), between(draw, 0.02, 2))
    what: dict[str, Any] = {"choice": choice} if unit.about_rewards else {"prefixes": prefixes}
    return StreamStatement(
        name="everybody",
        unit=unit,
        participation=Returning(max_participations=4, min_separation=1),
        divisor=1.0,
        horizon=draw.choice([1, 4, 30]),
        population="simulated",
        sampler_delta=0.0,
        **what,
    )


def training(draw: random.Random, where: Path) -> Ledger:
    """Returns a ledger of random streams, of which some are charged."""
    adjacency = draw.choice([Adjacency.ZERO_OUT, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
    unit = Unit(
        kind=draw.choice(["trajectory", "expert", "feedback", "transition"]), adjacency=adjacency
    )
    adaptive = draw.random() < 0.1
    epsilon = between(draw, 0.5, 20) if adaptive else math.inf
    delta = between(draw, 1e-8, 1e-3)
    ledger = Ledger.create(
        where, unit=unit, budget=Budget(epsilon=epsilon, delta=delta), adaptive=adaptive
    )
    opened = []
    for number in range(draw.randint(1, 3)):
        rules: list[Participation] = [
            Once(),
            Returning(max_participations=2, min_separation=2),
            Returning(max_participations=2, min_separation=2, exclusive=True),
        ]
        if adjacency is Adjacency.ZERO_OUT and not adaptive:
            rate = between(draw, 1e-3, 0.5)
            rules[:1] = [Once(), Once()]
            rules.append(Poisson(sampling_rate=rate, population=PEOPLE))
        new = stream(draw, unit, number, draw.choice(rules))
        if not adaptive and draw.random() < (0.4 if unit.about_rewards else 0.06):
            new = of_everybody(draw, unit)
        try:
            opened.append(ledger.open_stream(new))
        except PrivacyError:  # over the budget, or its sampler needs more noise
            continue
    for one in opened:
        if draw.random() < 0.85:
            sampled = isinstance(one.statement.participation, Poisson)
            start = ledger.next_person
            blocks = None if sampled else [PersonBlock(start, start + 100)]
            try:
                one.charge(0, 1, blocks)
            except PrivacyError:  # people of a sampled stream are in another one
                continue
    return ledger


def uniform(statement: AnswerStatement) -> Ensemble:
    """Returns as many teachers as are stated, with the uniform row at each observation."""
    teachers = statement.distance.teachers if isinstance(statement.distance, TrainingShards) else 1
    actions = Discrete(statement.mechanism.actions)
    one = Policy(statement.observation_size, actions, (2,), jax.random.key(0))
    return Ensemble(jax.tree.map(lambda x: jnp.zeros((teachers, *x.shape)), one))


def teacher(draw: random.Random, where: Path) -> AnswerLedger:
    """Returns the ledger of a teacher who may have answered."""
    queries = draw.choice([4, 30, 200])
    noise = GaussianPolicy(
        actions=draw.choice([2, 3, 6]),
        noise_stddev=between(draw, 0.5, 20),
        floor=draw.choice([0.0, 0.05]),
    )
    distances: list[Distance] = [
        TrainingShards(teachers=100),
        PolicyDistance(l2=0.3),
        ObservationDistance(radius=0.5, lipschitz=1.0, rounding=1e-7),
        AnyTwoTeachers(),
    ]
    statement = AnswerStatement(
        name="teacher",
        mechanism=noise
        if draw.random() < 0.8
        else Dirichlet(actions=3, concentration=5, floor=0.1),
        distance=draw.choice(distances),
        queries=queries,
        queries_per_student=queries,
        observation_size=2,
        population="simulated",
        accounting=2,
    )
    budget = Budget(epsilon=math.inf, delta=between(draw, 1e-8, 1e-3))
    ledger = AnswerLedger.create(where, statement=statement, budget=budget)
    asked = np.zeros((1, statement.observation_size))
    for name in ("ann", "ben")[: draw.randint(0, 2)]:
        ledger.add_student(name, draw.randint(1, queries))
        ledger.answer(name, asked, uniform(statement), GeneratorSource())
    return ledger


# --- wrong certificates --------------------------------------------------------------------------


def smaller_epsilon(c: Any, _: Any) -> bool:
    """Makes the claimed epsilon 3% smaller, or finite."""
    infinite = c["epsilon"] == "Infinity"
    c["epsilon"] = 1.0 if infinite else 0.97 * c["epsilon"]
    c["status"] = "proved" if infinite else c["status"]
    return _counts(c) and "repeat-and-select" not in _kinds(c)  # whose bound may be loose


def smaller_delta(c: Any, _: Any) -> bool:
    """Claims the same epsilon at a tenth of delta. Prefixes and choices have none to lose."""
    c["delta"] = c["budget"]["delta"] = c["delta"] / 10
    loose = {"stable-prefixes", "approximate-dp", "repeat-and-select"}
    return _counts(c) and not loose & _kinds(c)


def more_noise(c: Any, _: Any) -> bool:
    """States more noise than the costs say."""
    return any(_scaled(one, 1.2) for one in c["streams"])


def less_noise(c: Any, module: Any) -> bool:
    """States less noise, also in the cost of every stream, and the same epsilon."""
    found = [_scaled(one, 0.9) for one in c["streams"]]
    for one in c["streams"]:
        one["event"] = module.event_of(one["statement"]) if one["releases"] else None
    filtered = any(one.get("claim") == "ledger.filtered" for one in c["claims"])
    # Some noise may be less within a budget, or where another stream costs most.
    return any(found) and _counts(c) and not filtered and "stable-prefixes" not in _kinds(c)


def _counts(c: Any) -> bool:
    """Whether epsilon is finite, and larger than rounding."""
    return c["epsilon"] != "Infinity" and bool(c["epsilon"] > 1e-3)


def _kinds(c: Any) -> set[str]:
    """Returns the kinds of the events that cost most."""
    return {one["kind"] for one in c["worst_person"]["events"]}


def _scaled(one: Any, factor: float) -> bool:
    """Changes the noise of a stream that was charged and has a finite cost."""
    changed = one["releases"] > 0 and one["event"]["kind"] != "no-guarantee"
    said = one["statement"]
    for part in said["parts"].values() if changed else ():
        part["noise_multiplier"] *= factor
    if changed and said.get("choice"):
        said["choice"]["rate"] = rounded_rate(said["choice"]["rate"] / factor)
    return changed and bool(said["parts"] or said.get("choice"))


def more_releases(c: Any, _: Any) -> bool:
    """States more releases than planned in one stream."""
    for one in c["streams"]:
        one["releases"] = one["statement"]["horizon"] + 1
    return bool(c["streams"])


def longer_horizon(c: Any, _: Any) -> bool:
    """Plans ten times as many releases of a sampled stream at the same cost."""
    found = [one for one in c["streams"] if one["statement"]["participation"]["kind"] == "poisson"]
    for one in found:
        one["statement"]["horizon"] *= 10
    return any(one["releases"] and one["event"]["kind"] != "no-guarantee" for one in found)


def student_epsilon(c: Any, _: Any) -> bool:
    """Makes the epsilon of a teacher's students smaller."""
    found = [
        one for one in c.get("answers", {}).get("students", []) if one["epsilon"] != "Infinity"
    ]
    for one in found:
        one["epsilon"] *= 0.97
    return any(one["epsilon"] > 1e-3 for one in found)


WRONG: tuple[Callable[[Any, Any], bool], ...] = (
    smaller_epsilon,
    smaller_delta,
    more_noise,
    less_noise,
    more_releases,
    longer_horizon,
    student_epsilon,
)
"""Each changes a certificate, and returns whether it is wrong now."""


# --- the comparison ------------------------------------------------------------------------------


def compared(seed: int, module: Any, where: Path) -> tuple[Counter[str], list[str]]:
    """Returns the verdicts on one random certificate and on wrong ones, and disagreements."""
    draw = random.Random(seed)
    ledger = (teacher if draw.random() < 0.15 else training)(draw, where / f"{seed}.sqlite")
    contents = json.loads(derive(ledger).text())
    path, verdicts, disagree = where / "certificate.json", Counter[str](), []

    def judged(changed: Any, name: str, wanted: tuple[str, ...]) -> None:
        path.write_bytes(to_json(changed))
        said, reason = verdict(module, path)
        verdicts[f"{name}: {said}"] += 1
        if said not in wanted:
            disagree.append(f"seed {seed}, {name}: {said} ({reason})")

    judged(contents, "as it is", ("true", "unverifiable"))
    for wrong in draw.sample(WRONG, 3):
        changed = copy.deepcopy(contents)
        if wrong(changed, module):
            judged(changed, wrong.__name__, ("false", "unverifiable"))
    return verdicts, disagree


def main(asked: Settings) -> None:
    module, verdicts, disagreements = checker(), Counter[str](), list[str]()
    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        for number in range(asked.certificates):
            found, disagree = compared(asked.seed + number, module, Path(folder))
            verdicts += found
            disagreements += disagree
            (Path(folder) / f"{asked.seed + number}.sqlite").unlink()
    seconds = time.perf_counter() - began
    answer = {
        "certificates": asked.certificates,
        "verdicts": dict(sorted(verdicts.items())),
        "disagreements": disagreements,
        "seconds": round(seconds, 1),
    }
    if asked.json:
        print(json.dumps(answer))
        return
    print(f"{asked.certificates} random certificates in {seconds:.0f} s")
    for name, count in sorted(verdicts.items()):
        print(f"  {name:<32}{count}")
    print(f"{len(disagreements)} disagreements")
    print("\n".join(disagreements))


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
