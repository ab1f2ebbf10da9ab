"""DPPG's users: whose they are, who comes back in a public order, who is drawn in secret."""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy import linalg, special, stats

from sotto.algorithms.dppg import noise
from sotto.algorithms.dppg.algorithm import DPPG
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.dppg.training import DPPGTraining, Progress, create_ledger, initial_states
from sotto.cli import main
from sotto.privacy.accounting.composition import Gaussian, SampledGaussian, compose
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import ParticipationViolation, PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms.correlated import sensitivity
from sotto.privacy.statements import Correlation, Once, Poisson, Returning

USERS, STEPS = 4, 8
TINY: dict[str, Any] = {
    "users_per_update": USERS,
    "steps_per_user": STEPS,
    "hidden": (32,),
    "evaluation_episodes": 0,
    "delta": 1e-3,
}
Z = 200.0
LOUD: dict[str, Any] = {"target_epsilon": None, "noise_multiplier": Z, "delta": 1e-5}
NUMBERS = 4 * 32 + 32 + 32 * 2 + 2
"""Parameters of the policy: what one release holds."""


def tiny(updates: int = 12, **changes: Any) -> DPPGConfig:
    steps = {"total_steps": USERS * STEPS * updates}
    return preset("sotto", "CartPole-v1", **(TINY | steps | changes))


def drawn(updates: int = 12, **changes: Any) -> DPPGConfig:
    return tiny(updates, **({"population_size": 40, "correlated_noise": False} | changes))


def opened(config: DPPGConfig, folder: Path) -> tuple[DPPGTraining, Ledger]:
    ledger = create_ledger(config, folder / "ledger.sqlite")
    return DPPGTraining(config, [0], [ledger]), ledger


def moved(config: DPPGConfig, progress: Progress) -> np.ndarray:
    """How far the policy is from the first one, in all its parameters."""
    first = jax.tree.leaves(initial_states(config, [0]).policy)
    last = jax.tree.leaves(progress.states.policy)
    steps = [np.ravel(b - a) for a, b in zip(first, last, strict=True)]
    return np.concatenate(steps).astype(np.float64)


# --- coming back ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("updates", "participations", "separation"),
    [(12, 1, None), (12, 3, None), (12, 3, 2), (13, 4, 3), (7, 9, 1), (5, 2, 8), (10, 3, 4)],
)
def test_everybody_comes_back_in_turn_and_never_more_often_or_sooner_than_said(
    updates: int, participations: int, separation: int | None
) -> None:
    config = tiny(updates, participations=participations, min_separation=separation)
    groups = config.groups(np.arange(updates))
    gap = config.separation
    for group in np.unique(groups):
        turns = np.flatnonzero(groups == group)
        assert turns.size <= participations
        assert np.all(np.diff(turns) == gap)
    assert config.users == np.unique(groups).size * USERS
    assert set(groups) == set(range(np.unique(groups).size))
    if separation is None:
        assert config.users == math.ceil(updates / participations) * USERS


@pytest.mark.parametrize(
    ("rule", "theory"),
    [
        (Once(), 1.27),
        (Returning(max_participations=8, min_separation=1), 11.98),
        (Returning(max_participations=8, min_separation=122), 6.48),
    ],
)
def test_noise_for_one_participation_costs_those_who_return_what_the_theory_says(
    rule: Once | Returning, theory: float
) -> None:
    """Theory notes, section 5: z |C| / sens, with C from binomials and the mechanism's formula."""
    n, z = 976, 3.0
    j = np.arange(n)
    column = np.exp(special.gammaln(2 * j + 1) - 2 * special.gammaln(j + 1) - j * math.log(4))
    # As many, as early and as close as allowed: test_correlated.py tries all patterns.
    turns = [0] if isinstance(rule, Once) else [rule.min_separation * i for i in range(8)]
    shift = sum(np.concatenate([np.zeros(t), column[: n - t]]) for t in turns)
    many, once = float(np.linalg.norm(shift)), float(np.linalg.norm(column))
    prefix = Correlation(kind="prefix-sum")
    assert sensitivity(prefix, rule, n) == pytest.approx(many, rel=1e-6)
    mu = many / (z * once)

    def delta(epsilon: float) -> float:
        above, below = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(stats.norm.cdf(above) - math.exp(epsilon) * stats.norm.cdf(below))

    assert delta(theory + 0.006) < 1e-5 < delta(theory - 0.006)
    event = noise.event(
        tiny(target_epsilon=None, noise_multiplier=z * once / many), z * once / many
    )
    assert compose([event]).epsilon(1e-5) == pytest.approx(theory, abs=0.006)


@dataclass(frozen=True)
class Finished:
    """A training with so much noise that nothing else matters, and what it left behind."""

    config: DPPGConfig
    chunks: list[Progress]
    file: Path

    def ledger(self, folder: Path) -> Ledger:
        """A copy of its ledger, to go on with."""
        return Ledger.open(shutil.copy(self.file, folder / "ledger.sqlite"))


@pytest.fixture(scope="module")
def returned(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Four participations, three releases apart."""
    folder = tmp_path_factory.mktemp("returned")
    config = tiny(participations=4, min_separation=3, **LOUD)
    training, _ = opened(config, folder)
    return Finished(config, list(training), folder / "ledger.sqlite")


def test_the_noise_covers_all_participations_of_a_user(
    returned: Finished,
) -> None:
    """The sum of all releases has the spread of the factorization; that for one is rejected."""
    config = returned.config
    n = config.num_updates
    c = linalg.sqrtm(np.tril(np.ones((n, n)))).real
    unit = Z * config.clip_norm / USERS * np.linalg.norm(c[-1])  # the last row of A C^-1 is C's

    def p_value(many: float) -> float:
        squares = np.square(moved(config, returned.chunks[-1]) / (unit * many)).sum()
        lower = stats.chi2.cdf(squares, NUMBERS)
        return float(2 * min(lower, 1 - lower))

    covered = float(np.linalg.norm(c[:, ::3].sum(axis=1)))
    assert p_value(covered) > 1e-7
    assert p_value(float(np.linalg.norm(c[:, 0]))) < 1e-9  # noise for one participation


def test_the_certificate_of_returning_users_is_per_person(
    returned: Finished, tmp_path: Path
) -> None:
    certificate = derive(returned.ledger(tmp_path))
    assert certificate.status == "proved"
    assert certificate.persons == returned.config.users == 3 * USERS
    (stream,) = certificate.streams
    assert stream.event == Gaussian(noise_multiplier=Z)
    assert stream.statement.participation == Returning(
        max_participations=4, min_separation=3, exclusive=True
    )
    alone = compose([Gaussian(noise_multiplier=Z)]).epsilon(1e-5)
    assert certificate.epsilon == pytest.approx(alone, rel=1e-6)


def test_a_resumed_training_of_returning_users_meets_new_ones_only(
    returned: Finished, tmp_path: Path
) -> None:
    """Those of lost releases stay charged, and none of them comes back."""
    ledger = returned.ledger(tmp_path)
    resumed = DPPGTraining(returned.config, [0], [ledger], states=returned.chunks[3].states, done=4)
    order = resumed._next_people(8)[0]
    assert order.min() == 3 * USERS
    assert np.array_equal(order[:3], order[3:6])
    stream = ledger.open_stream(ledger.streams[0].statement)
    with pytest.raises(ParticipationViolation, match="number new people"):
        stream.charge(0, 1, [np.arange(USERS)])
    stream.charge(0, 1, [order[0]])
    assert derive(ledger).epsilon == derive(Ledger.open(returned.file)).epsilon


# --- drawn in secret -----------------------------------------------------------------------------


def sampled_epsilon(z: float, q: float, count: int, delta: float) -> float:
    """Epsilon of the Poisson-subsampled Gaussian by a discretised loss and one FFT per direction.

    Independent of the accountant: plain rounding to a grid, no pessimism.
    """
    width, cells = 2e-5 if q < 0.01 else 1e-4, 2**21
    x = np.linspace(-14 * z, 14 * z + 1, 400_001)
    base, other = stats.norm.pdf(x / z), stats.norm.pdf((x - 1) / z)
    loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z)))  # log of mixture over base
    worst = 0.0
    for weights, losses in (((1 - q) * base + q * other, loss), (base, -loss)):
        at = np.rint(losses / width).astype(np.int64)
        inside = np.abs(at) < cells // 2
        mass = np.bincount(
            at[inside] % cells, weights=(weights / weights.sum())[inside], minlength=cells
        )
        total = np.fft.irfft(np.fft.rfft(mass) ** count, cells)
        values = np.fft.fftfreq(cells, 1 / cells) * width
        low, high = 0.0, 20.0
        for _ in range(60):  # bisection on epsilon
            middle = (low + high) / 2
            above = values > middle
            excess = float((total[above] * -np.expm1(middle - values[above])).sum())
            low, high = (middle, high) if excess > delta else (low, middle)
        worst = max(worst, high)
    return worst


@pytest.mark.parametrize(
    ("z", "count", "theory"), [(1.0, 1000, 0.149), (0.5, 1000, 3.24), (1.0, 10_000, 0.476)]
)
def test_drawn_users_cost_what_the_theory_says(z: float, count: int, theory: float) -> None:
    """Theory notes, section 6, and an accountant of our own."""
    q, population = 0.001, 64_000
    config = preset(
        "sotto",
        "CartPole-v1",
        noise_multiplier=z,
        users_per_update=64,
        population_size=population,
        correlated_noise=False,
        steps_per_user=10,
        total_steps=64 * 10 * count,
    )
    assert config.participation == Poisson(sampling_rate=q, population=population)
    event = noise.event(config, z)
    assert event == SampledGaussian(noise_multiplier=z, sampling_rate=q, count=count)
    epsilon = compose([event]).epsilon(1e-5)
    assert epsilon == pytest.approx(theory, rel=5e-3)
    assert epsilon == pytest.approx(sampled_epsilon(z, q, count, 1e-5), rel=1e-2)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Twenty of twenty-four releases."""
    folder = tmp_path_factory.mktemp("drawn")
    config = drawn(24, **LOUD)
    training, _ = opened(config, folder)
    return Finished(config, [training.advance() for _ in range(10)], folder / "ledger.sqlite")


def test_drawn_users_leave_no_trace_of_who_they_were(interrupted: Finished) -> None:
    config, chunks, ledger = interrupted.config, interrupted.chunks, Ledger.open(interrupted.file)
    assert chunks[-1].updates == 20
    assert all(chunk.diagnostics is None for chunk in chunks)
    certificate = derive(ledger)
    assert certificate.status == "proved"
    assert certificate.persons == config.users == 40
    assert any("stays secret" in one.statement for one in certificate.assumptions)
    (stream,) = certificate.streams
    assert stream.event == SampledGaussian(noise_multiplier=Z, sampling_rate=0.1, count=24)
    # The divisor is the public expectation, and nothing of the draws is in the noise's scale.
    norms = np.concatenate([chunk.released["update_norm"][0] for chunk in chunks])
    squares = float(np.square(norms / (Z * config.clip_norm / USERS)).sum())

    def p_value(scale: float) -> float:
        lower = stats.chi2.cdf(squares / scale**2, NUMBERS * 20)
        return float(2 * min(lower, 1 - lower))

    assert p_value(1.0) > 1e-7
    assert p_value(0.8) < 1e-9


def test_drawn_users_stay_the_same_population_when_a_training_is_resumed(
    interrupted: Finished, tmp_path: Path
) -> None:
    """What was lost stays charged and is not made again; the certificate covers the whole."""
    config, first = interrupted.config, interrupted.chunks[0]
    ledger = interrupted.ledger(tmp_path)
    resumed = DPPGTraining(config, [0], [ledger], states=first.states, done=first.updates)
    assert resumed.done == 20
    assert len(ledger.streams) == 1
    with pytest.raises(PrivacyError):  # the same people in a second stream are not covered
        ledger.open_stream(ledger.streams[0].statement)
    stream = resumed._stream._ledger_streams[0]
    stream.charge(20, 4)
    with pytest.raises(ValueError, match="have been charged"):
        DPPGTraining(config, [0], [Ledger.open(tmp_path / "ledger.sqlite")], first.states, 2)


def test_calibrated_noise_meets_the_target_over_all_releases() -> None:
    config = drawn(200, target_epsilon=0.8, delta=1e-5)
    z = noise.total_noise_multiplier(config, NUMBERS)
    assert 0.79 < compose([noise.event(config, z)]).epsilon(1e-5) <= 0.8
    given = drawn(200, target_epsilon=None, noise_multiplier=z, delta=1e-5)
    assert noise.budget_epsilon(given) == pytest.approx(0.8, rel=2e-2)


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (tiny, {"participations": 0}, "at least 1"),
        (tiny, {"participations": 2, "min_separation": 0}, "at least 1"),
        (tiny, {"min_separation": 2}, "set participations too"),
        (
            tiny,
            {"participations": 2, "unit": "segment", "one_episode": False},
            "need unit trajectory",
        ),
        (tiny, {"population_size": 40}, "no accountant"),
        (drawn, {"participations": 2}, "and not both"),
        (drawn, {"population_size": 4}, "larger than users_per_update"),
        (drawn, {"adjacency": "replace-one"}, "zero-out adjacency only"),
        (drawn, {"delta": 0.03}, "not below 1 / users"),
        (tiny, {"population": "real", "critic": "paper"}, "choose critic none, private or local"),
    ],
)
def test_bad_settings_are_refused(
    make: Callable[..., DPPGConfig], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_drawn_users_need_an_environment_in_jax(tmp_path: Path) -> None:
    config = preset(
        "sotto",
        "Pendulum-v1",
        population_size=40,
        correlated_noise=False,
        users_per_update=2,
        steps_per_user=5,
        total_steps=20,
        delta=1e-3,
    )
    with pytest.raises(ValueError, match="leave population_size out"):
        opened(config, tmp_path)


OWN = ("clinics:TestClinic-v0", "CartPole-v1+clinics:Bedside")


@pytest.mark.parametrize("env_id", OWN)
def test_only_the_user_can_say_whose_people_they_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, env_id: str
) -> None:
    out, flags = tmp_path / "run", ["--env-id", env_id, "--target-epsilon", "2"]
    for command in (
        ["train", "dppg"],
        ["tune", "dppg", "--settings", "seed=1", "--private-return", "0", "20"],
    ):
        assert main([*command, *flags, "--out", str(out)]) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"whether the people in {env_id} are simulated; say so with --population" in said
        assert not out.exists()
    unsaid = replace(tiny(), env_id=env_id)
    with pytest.raises(ValueError, match="only you can know"):
        opened(unsaid, tmp_path)  # also where nobody fills the settings in
    for said in ("simulated", "real"):
        config = DPPG().resolved(replace(unsaid, population=said))
        assert config.population == DPPG().population(config) == said


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0"])
def test_the_people_of_a_simulator_are_simulated(tmp_path: Path, env_id: str) -> None:
    config = replace(tiny(updates=2), env_id=env_id)
    assert config.population is None
    assert DPPG().population(config) == DPPG().resolved(config).population == "simulated"
    training, ledger = opened(config, tmp_path)
    for _ in training:
        pass
    assert {one.statement.population for one in ledger.streams} == {"simulated"}
    with pytest.raises(ValueError, match="meets no real people"):
        DPPG().resolved(replace(config, population="real"))
