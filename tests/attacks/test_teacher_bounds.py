"""Observations made to move a teacher's rows by rounding: refused, or paid for.

The reference is the same network in 60-digit arithmetic (mpmath).
"""

import asyncio
import math

import httpx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.promises import promise
from sotto.algorithms.kickstarting.teachers import Ensemble, ExactTeacher, LocalTeacher
from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.distances import ObservationDistance, TrainingShards
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.answers.observations import LARGEST, checked
from sotto.privacy.answers.rows import RowsOf
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.claims import LedgerFacts, said
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.dirichlet.simplex import as_policies
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy
from sotto.serving.app import create_app

SIZE, ACTIONS = 4, 3
BEYOND = (1e13, -1e13, 1e6 * (1 + 2.0**-52), 3.4e38, 1e308, math.inf, -math.inf, math.nan)
WITHIN = (0.0, -0.0, 5e-324, -1e-310, 1.2e-38, 1e6, -1e6)


def teacher(
    weight_scale: float = 1.0, count: int = 2, hidden: tuple[int, ...] = (8, 8), seed: int = 0
) -> Ensemble:
    def one(key: jax.Array) -> Policy:
        scale = (1.0, 0.5, 2.0, 1e-3)
        return Policy(SIZE, Discrete(ACTIONS), hidden, key, observation_scale=scale, last_gain=2.0)

    many = jax.vmap(one)(jax.random.split(jax.random.key(seed), count))
    return Ensemble(jax.tree.map(lambda x: x * weight_scale if x.ndim > 1 else x, many))


def observation_statement(ensemble: Ensemble, radius: float = 0.01) -> AnswerStatement:
    config = KickstartConfig(
        teacher="x",
        total_steps=4096,
        teacher_mechanism="gaussian-policy",
        protect="observation",
        observation_radius=radius,
        noise_stddev=1.0,
    )
    statement, _ = promise(config, ensemble, one_student=False)
    return statement


def ledger(path: object, statement: AnswerStatement) -> AnswerLedger:
    return AnswerLedger.create(
        path / "ledger.sqlite",  # type: ignore[operator]
        "r",
        statement=statement,
        budget=Budget(epsilon=math.inf, delta=1e-5),
    )


def exact_rows(ensemble: Ensemble, observation: np.ndarray) -> mpmath.matrix:
    """The mean row, 60 digits."""
    mean = [mpmath.mpf(0)] * ensemble.actions
    for i in range(ensemble.teachers):
        values = [
            (mpmath.mpf(x) - mpmath.mpf(c)) * mpmath.mpf(s)
            for x, c, s in zip(
                observation.tolist(),
                ensemble._centre.tolist(),
                ensemble._scale.tolist(),
                strict=True,
            )
        ]
        for layer, (weight, bias) in enumerate(
            zip(ensemble._weights, ensemble._biases, strict=True)
        ):
            sums = [
                mpmath.fdot(values, column) + mpmath.mpf(b)
                for column, b in zip(weight[i].T.tolist(), bias[i, 0].tolist(), strict=True)
            ]
            values = sums if layer == len(ensemble._weights) - 1 else [mpmath.tanh(x) for x in sums]
        top = max(values)
        row = [mpmath.exp(x - top) for x in values]
        mean = [
            m + x / mpmath.fsum(row) / ensemble.teachers for m, x in zip(mean, row, strict=True)
        ]
    return mean


@pytest.mark.parametrize("entry", BEYOND)
def test_beyond_the_bound_every_teacher_refuses_and_charges_nothing(tmp_path, entry: float) -> None:
    ensemble = teacher()
    account = ledger(tmp_path, observation_statement(ensemble))
    account.add_student("student")
    rows = np.zeros((3, SIZE))
    rows[1, 2] = entry
    local = LocalTeacher(ensemble, account, "student")
    for ask in (local.answer, ExactTeacher(ensemble).answer, ensemble):
        with pytest.raises(ValueError, match="every entry a number between -1e\\+06 and 1e\\+06"):
            ask(rows)
    assert account.spent().answered == 0
    token = account.add_student("remote")
    text = str(rows.tolist()).replace("nan", "NaN").replace("inf", "Infinity")
    bodies = [f'{{"observations": {one}}}' for one in (text, [list(WITHIN[:SIZE])])]
    refused, answered = asyncio.run(_posted(ensemble, account, token, bodies))
    assert refused.status_code == 422
    assert "observations[1][2]" in refused.text
    assert answered.status_code == 200
    assert account.spent().answered == 1


async def _posted(
    ensemble: Ensemble, account: AnswerLedger, token: str, bodies: list[str]
) -> list[httpx.Response]:
    transport = httpx.ASGITransport(
        create_app(ensemble, account, DigestKey(b"0" * 32), env_id="Fake-v0")
    )
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(transport=transport, base_url="http://teacher") as client:
        return [await client.post("/v1/answers", content=x, headers=headers) for x in bodies]


@pytest.mark.parametrize("entry", WITHIN)
def test_within_the_bound_denormal_numbers_too_are_answered(tmp_path, entry: float) -> None:
    ensemble = teacher()
    account = ledger(tmp_path, observation_statement(ensemble))
    account.add_student("student")
    answers = LocalTeacher(ensemble, account, "student").answer(np.full((1, SIZE), entry))
    assert np.isfinite(answers.policies).all()


@pytest.mark.parametrize("shape", [(3,), (2, SIZE + 1), (1, 1, SIZE)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be \[rows, 4\]"):
        checked(np.zeros(shape), SIZE)


def _asked(generator: np.random.Generator, rows: int) -> np.ndarray:
    """Observations of every magnitude up to the bound, and at it."""
    sizes = 10.0 ** generator.uniform(-3, 6, (rows, 1))
    asked = np.clip(generator.normal(size=(rows, SIZE)) * sizes, -LARGEST, LARGEST)
    asked[0] = LARGEST * generator.choice([-1.0, 1.0], SIZE)
    return asked


@pytest.mark.parametrize("weight_scale", [1e-3, 1.0, 30.0, 1e3, 1e12, 1e30])
def test_rows_are_within_the_stated_rounding_of_exact_ones(weight_scale: float) -> None:
    """Random networks with small and large weights; the bound is not vacuous for ordinary ones."""
    generator = np.random.default_rng(0)
    with mpmath.workdps(60):
        for seed, hidden in enumerate(((), (8,), (16, 8), (4, 4, 4))):
            ensemble = teacher(weight_scale, 2, hidden, seed)
            observations = _asked(generator, 12)
            rows = ensemble(observations)
            for row, observation in zip(rows.tolist(), observations, strict=True):
                exact = exact_rows(ensemble, observation)
                off = mpmath.sqrt(sum((a - b) ** 2 for a, b in zip(row, exact, strict=True)))
                assert off <= ensemble.rounding
            assert weight_scale > 1 or ensemble.rounding < 1e-6
            assert ensemble.rounding <= 1.5


def test_no_movement_is_larger_than_what_is_charged() -> None:
    """Neighbours towards whom the row moves most, near decision borders, with large weights."""
    generator = np.random.default_rng(1)
    steepest = 0.0
    for seed, weight_scale in enumerate((0.3, 1.0, 10.0, 300.0)):
        for radius in (1e-9, 1e-3, 0.1):
            ensemble = teacher(weight_scale, 1, (8,), seed)
            distance = observation_statement(ensemble, radius).distance
            assert isinstance(distance, ObservationDistance)
            one = _asked(generator, 400)
            direction = generator.normal(size=one.shape)
            direction *= radius / np.linalg.norm(direction, axis=1, keepdims=True)
            other = np.clip(one + direction, -LARGEST, LARGEST)
            moved = np.linalg.norm(ensemble(one) - ensemble(other), axis=1)
            # Sums at magnitude 1e6 are rounded: what is really between them, not what was meant.
            apart = np.linalg.norm(one - other, axis=1)
            charged = distance.lipschitz * np.maximum(apart, radius) + 2 * distance.off
            assert (moved <= charged).all()
            steepest = max(steepest, float((moved / charged).max()))
    assert steepest > 0.01


def test_at_ten_million_million_the_old_charge_is_exceeded_by_half() -> None:
    """5e-10 was charged for rounding, whatever the network and the question."""
    ensemble = teacher(1.0, 1, (), 3)
    generator = np.random.default_rng(2)
    weight, radius, worst = ensemble._weights[0][0] * ensemble._scale[:, None], 1e-3, 0.0
    across = weight[:, 0] - weight[:, 1]
    for _ in range(2000):  # on the border between actions, where the row is steepest
        along = generator.normal(size=SIZE)
        along -= across * (along @ across) / (across @ across)
        one = 1e13 * along / np.linalg.norm(along)
        other = one + radius * across / np.linalg.norm(across)
        if np.linalg.norm(one - other) <= radius:
            rows = as_policies(ensemble.each(np.array([one, other]))[0])  # behind the check
            worst = max(worst, float(np.linalg.norm(rows[0] - rows[1])))
    assert worst > 1.3 * (ensemble.lipschitz * radius + 1e-9)
    with pytest.raises(ValueError, match="between"):
        ensemble(one[None])


def test_a_statement_of_another_network_or_without_its_rounding_is_refused(tmp_path) -> None:
    ensemble = teacher()
    statement = observation_statement(ensemble)
    distance = statement.distance
    assert isinstance(distance, ObservationDistance)
    assert distance.rounding == ensemble.rounding > 1e-9
    for number, change in enumerate(
        ({"rounding": None}, {"rounding": ensemble.rounding / 2}, {"lipschitz": 0.1})
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        wrong = distance.model_copy(update=change)
        account = ledger(folder, statement.model_copy(update={"distance": wrong}))
        with pytest.raises(ValueError, match="not proved of this teacher's network"):
            LocalTeacher(ensemble, account, "student")
    account = ledger(tmp_path, statement)
    with pytest.raises(ValueError, match="not proved of this teacher's network"):
        LocalTeacher(RowsOf(ensemble, ACTIONS, SIZE), account, "student")


def _rounding_said(distance: ObservationDistance) -> list[str]:
    """The sentences of a certificate about rounding, and about what is refused for its sake."""
    statement = observation_statement(teacher()).model_copy(update={"distance": distance})
    sentences = [one.sentence for one in said(LedgerFacts(answers=statement))]
    return [one for one in sentences if "rounding moves" in one or "refused" in one]


def test_statements_of_earlier_versions_are_read_and_written_as_they_were() -> None:
    old = {"kind": "observation", "radius": 0.1, "lipschitz": 0.4}
    distance = ObservationDistance.model_validate(old)
    assert distance.model_dump() == old
    assert distance.between(3, 0.0) == 0.1 * 0.4 + 1e-9
    assert _rounding_said(distance) == ["rounding moves a row by less than 5e-10"]
    stated = distance.model_copy(update={"rounding": 3e-8})
    assert stated.between(3, 0.0) == pytest.approx(0.04 + 6e-8, abs=1e-15)
    assert _rounding_said(stated) == [
        "The fact that an observation has an entry beyond 1e+06. Such an observation is refused.",
        "rounding moves a row by at most 3e-08",
    ]
    assert TrainingShards(teachers=4).between(3, 0.0) == math.sqrt(2) / 4 + 1e-9


def test_a_network_that_overflows_has_a_row_and_a_vacuous_rounding() -> None:
    huge = teacher(3e38, 1, (4,))
    rows = huge(np.full((2, SIZE), 1e6))
    assert np.allclose(rows.sum(axis=1), 1)
    assert 1.4 < huge.rounding < 1.6
    assert jnp.isfinite(huge.rounding)
