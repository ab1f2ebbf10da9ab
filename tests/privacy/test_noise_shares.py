"""The door in two halves: devices' integers, the server's sums, drop-outs, and what is refused."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from jaxtyping import Array
from scipy import stats
from stored_files import changed

from sotto.privacy.certificates.check import check
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.lone import verify_file
from sotto.privacy.errors import (
    BudgetExceeded,
    LedgerMismatch,
    ParticipationViolation,
    PrivacyError,
    TooFewDevices,
)
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.discrete_gaussian import SMOOTHING, shares_delta
from sotto.privacy.release.factored import Factored
from sotto.privacy.release.noise_shares import Promise, SharedRelease, SharedStream
from sotto.privacy.release.purity import ImpureFunction
from sotto.privacy.statements import Correlation, Gap, Part, Returning, StreamStatement

MakeLedgers = Callable[..., list[Ledger]]
SLOTS, HORIZON, D = 12, 3, 6
PROMISE = Promise(promised=8, colluding=2)
KEY = jax.random.key(0, impl="threefry2x32")


def own_data(state: Any, unit: Array, key: Array) -> Any:
    return {"u": unit[:D], "v": unit[D:]}, {}


def add(state: Any, released: Any) -> Any:
    return state + released["u"], released


release = partial(
    small.release,
    local=own_data,
    server=add,
    parts={
        "u": Part(clip_norm=2.0, noise_multiplier=3.0),
        "v": Part(clip_norm=0.5, noise_multiplier=5.0),
    },
    slots=SLOTS,
    divisor=float(SLOTS),
    horizon=HORIZON,
)


def shared(promise: Promise = PROMISE, seed: int | None = None, **changes: Any) -> SharedRelease:
    return SharedRelease(release(**changes), promise, jnp.zeros(D), jnp.zeros(2 * D), seed)


def total_of(made: SharedRelease, units: np.ndarray) -> np.ndarray:
    """Returns the sum that the protocol would open."""
    vectors = [made.contribution(jnp.zeros(D), jnp.asarray(unit), KEY) for unit in units]
    return (np.sum(vectors, axis=0, dtype=np.uint64) % 2**made.bits).astype(np.uint32)


def opened(make_ledgers: MakeLedgers, made: SharedRelease, epsilon: float = 10.0) -> SharedStream:
    return made.open(make_ledgers(1, epsilon=epsilon)[0], jnp.zeros(D))


def units_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 2 * D)).astype(np.float32)


def clipped(units: np.ndarray) -> np.ndarray:
    """Returns the clipped contributions in float64, by other code than that of the door."""
    u, v = units[:, :D].astype(float), units[:, D:].astype(float)
    u = u * np.minimum(1, 2.0 / np.linalg.norm(u, axis=1, keepdims=True))
    v = v * np.minimum(1, 0.5 / np.linalg.norm(v, axis=1, keepdims=True))
    return np.concatenate([u, v], axis=1)


# --- what is released ----------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [14, 16, 24])
def test_a_release_is_the_sum_of_clipped_contributions_plus_the_stated_noise(bits: int) -> None:
    made = shared(Promise(8, 2, bits), seed=1)
    units = units_of(8)
    errors: dict[str, list[np.ndarray]] = {"u": [], "v": []}
    for _ in range(60):
        _, log = made.published(jnp.zeros(D), total_of(made, units))
        for name, columns in (("u", slice(0, D)), ("v", slice(D, 2 * D))):
            truth = clipped(units)[:, columns].sum(axis=0)
            errors[name].append(np.asarray(log[name]) * SLOTS - truth)
    for name, part in made.release.parts.items():
        # Eight devices came, and the noise is that of six.
        deviation = part.noise_multiplier * part.clip_norm * math.sqrt(8 / 6)
        sample = np.concatenate(errors[name]) / deviation
        assert stats.kstest(sample, "norm").pvalue > 1e-4
        spread = stats.chi2(sample.size)
        assert 1e-4 < spread.cdf((sample**2).sum()) < 1 - 1e-4
        assert spread.sf(1.15**2 * (sample**2).sum()) < 1e-2


def test_one_device_sends_its_clipped_integers_and_its_share_only() -> None:
    made = shared(seed=2)
    unit = units_of(1)[0] * 100
    signed = np.array(
        [made.contribution(jnp.zeros(D), jnp.asarray(unit), KEY) for _ in range(400)]
    ).astype(np.int64)
    signed = (signed + 2**15) % 2**16 - 2**15
    own = made.shares.parts["u"]
    mean = signed[:, :D].mean(axis=0) * own.grid
    assert mean == pytest.approx(
        clipped(unit[None])[0, :D], abs=5 * math.sqrt(own.variance / 400) * own.grid
    )
    assert signed[:, :D].var() == pytest.approx(own.variance, rel=0.5)


def test_integers_are_never_longer_than_the_clip_norm() -> None:
    made = shared(promise=Promise(8, 2, 14))
    own = made.shares.parts
    for unit in [*units_of(50) * 1e4, np.full(2 * D, 1e30, np.float32)]:
        bounded = np.asarray(
            made._bounded(made._computed((jnp.zeros(D),), (jnp.asarray(unit),), KEY)), np.float64
        )
        assert np.linalg.norm(bounded[:D] * own["u"].grid) <= 2.0
        assert np.linalg.norm(bounded[D:] * own["v"].grid) <= 0.5


def test_what_is_not_a_number_becomes_zero() -> None:
    made = shared()
    unit = jnp.full(2 * D, jnp.nan)
    assert not np.asarray(made._bounded(made._computed((jnp.zeros(D),), (unit,), KEY))).any()


def test_sums_wrap_around_without_an_error() -> None:
    made = shared(seed=3)
    half = 2 ** (made.bits - 1)
    _, log = made.published(jnp.zeros(D), np.full(made.size, half, np.uint32))
    grid = made.shares.parts["u"].grid
    assert np.asarray(log["u"]) == pytest.approx(-half * grid / SLOTS)


# --- the noise that is promised ------------------------------------------------------------------


def test_each_share_is_scaled_for_the_devices_that_are_promised_and_do_not_collude() -> None:
    made = shared()
    for name, part in made.release.parts.items():
        own = made.shares.parts[name]
        steps = part.clip_norm / own.grid
        variance = (part.noise_multiplier * steps) ** 2 + SMOOTHING
        assert own.variance == pytest.approx(variance / (8 - 2), rel=1e-9)
        assert own.variance * 6 >= variance


def test_a_statement_with_less_noise_than_it_says_is_refused() -> None:
    statement = shared().statement
    contents = statement.model_dump()
    for change in (
        {"promised": 7},
        {"colluding": 3},
        {"parts": contents["shares"]["parts"] | {"u": {"grid": 1e-3, "variance": 100.0}}},
    ):
        broken = contents | {"shares": contents["shares"] | change}
        with pytest.raises(ValueError, match=r"less than the [35] that is stated"):
            StreamStatement.model_validate(broken)
    assert StreamStatement.model_validate(contents) == statement


@pytest.mark.parametrize(
    "change",
    [
        {"promised": 13},
        {"colluding": 8},
        {"bits": 7},
        {"parts": {}},
    ],
)
def test_terms_that_contradict_themselves_are_refused(change: dict[str, Any]) -> None:
    contents = shared().statement.model_dump()
    with pytest.raises(ValueError, match=r"promised|greater than|same parts"):
        StreamStatement.model_validate(contents | {"shares": contents["shares"] | change})


@pytest.mark.parametrize(("promised", "colluding"), [(13, 0), (8, 8), (1, 0)])
def test_promises_that_no_release_can_keep_are_refused(promised: int, colluding: int) -> None:
    with pytest.raises(ValueError, match="promised"):
        shared(Promise(promised, colluding))


def test_too_few_bits_for_the_clip_norm_are_refused() -> None:
    loud = {name: Part(clip_norm=1.0, noise_multiplier=30.0) for name in "uv"}
    with pytest.raises(ValueError, match=r"8 bits leave 0 steps for the clip norm of 'u'"):
        shared(Promise(8, 2, bits=8), parts=loud)


# --- charges -------------------------------------------------------------------------------------


def test_a_sum_with_fewer_devices_than_promised_is_neither_charged_nor_opened(
    make_ledgers: MakeLedgers,
) -> None:
    made = shared()
    stream = opened(make_ledgers, made)
    with pytest.raises(TooFewDevices, match="7 devices are left of the 8 that a sum needs"):
        stream.charge(np.arange(7))
    assert stream.releases == 0
    with pytest.raises(ValueError, match="charge the release before"):
        stream.release(total_of(made, units_of(7)))
    stream.charge(np.arange(8))  # the same people may take part again
    state, _ = stream.release(total_of(made, units_of(8)))
    assert stream.releases == 1
    assert (np.asarray(state) == np.asarray(stream.state)).all()
    with pytest.raises(ValueError, match="charge the release before"):
        stream.release(total_of(made, units_of(8)))


def test_a_charge_is_for_one_sum(make_ledgers: MakeLedgers) -> None:
    """The charge of a sum that was lost does not open a smaller one."""
    made = shared()
    stream = opened(make_ledgers, made)
    stream.charge(np.arange(8))
    with pytest.raises(TooFewDevices):
        stream.charge(np.arange(8, 12))
    with pytest.raises(ValueError, match="charge the release before"):
        stream.release(total_of(made, units_of(4)))


def test_nobody_takes_part_twice(make_ledgers: MakeLedgers) -> None:
    stream = opened(make_ledgers, shared())
    stream.charge(np.arange(8))
    with pytest.raises(ParticipationViolation, match="person 7 took part before"):
        stream.charge(np.arange(7, 15))
    assert stream.releases == 1


def test_a_stream_goes_on_after_a_release_was_charged_and_lost(make_ledgers: MakeLedgers) -> None:
    made, (ledger,) = shared(), make_ledgers(1, epsilon=10.0)
    made.open(ledger, jnp.zeros(D)).charge(np.arange(8))
    again = Ledger.open(ledger._engine.url.database or "", ledger.run_id)
    stream = made.open(again, jnp.zeros(D), resume=True)
    assert stream.releases == 1
    stream.charge(np.arange(8, 20))
    stream.release(total_of(made, units_of(12)))
    assert stream.releases == 2


def test_a_ledger_has_one_maker_of_the_noise(make_ledgers: MakeLedgers) -> None:
    """Otherwise its certificate would say that the server sees sums only."""
    made, (ledger,) = shared(), make_ledgers(1, epsilon=100.0)
    made.open(ledger, jnp.zeros(D))
    central = release().statement({"u": D, "v": D}, "operating-system")
    with pytest.raises(LedgerMismatch, match="either devices make the noise of all streams or"):
        ledger.open_stream(central)


def test_a_budget_beyond_the_proof_is_refused(make_ledgers: MakeLedgers) -> None:
    with pytest.raises(BudgetExceeded, match="accounted up to epsilon 100"):
        opened(make_ledgers, shared(), epsilon=101.0)


@pytest.mark.parametrize("devices", [1, 7, 13])
def test_a_ledger_charges_no_sum_of_too_few_or_too_many_devices(
    make_ledgers: MakeLedgers, devices: int
) -> None:
    """Also where it is charged without the stream that opens sums."""
    (ledger,) = make_ledgers(1, epsilon=10.0)
    stream = ledger.open_stream(shared().statement)
    with pytest.raises((TooFewDevices, ParticipationViolation)):
        stream.charge(0, 1, [np.arange(devices)])
    assert ledger.persons == 0


def test_a_certificate_of_fewer_devices_than_promised_is_false(
    make_ledgers: MakeLedgers, tmp_path: Path
) -> None:
    (ledger,) = make_ledgers(1, epsilon=10.0)
    shared().open(ledger, jnp.zeros(D)).charge(np.arange(8))
    path = tmp_path / "certificate.json"
    path.write_text(derive(ledger).text())
    assert verify_file(path).status == "true"
    for persons in (1, 7, 13):

        def change(c: Any, persons: int = persons) -> None:
            c["persons"] = c["streams"][0]["persons"] = persons

        assert verify_file(changed(path, change)).status == "false"


def test_sums_of_another_size_are_refused(make_ledgers: MakeLedgers) -> None:
    stream = opened(make_ledgers, shared())
    with pytest.raises(ParticipationViolation, match="at most 12 devices, not 13"):
        stream.charge(np.arange(13))
    stream.charge(np.arange(8))
    with pytest.raises(ValueError, match="numbers, not"):
        stream.release(np.zeros(3, np.uint32))


# --- what cannot be made in shares ---------------------------------------------------------------


def factored(state: Any, unit: Array, key: Array) -> Any:
    return {"u": Factored(unit[:2], unit[:3]), "v": unit[D:]}, {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"participation": Returning(max_participations=2, min_separation=1)}, "take part once"),
        ({"correlation": Correlation(kind="prefix-sum")}, "use independent noise"),
        ({"gaps": (Gap(name="a", why="b"),)}, "clipped and has noise"),
        ({"unprotected": {"w": Gap(name="a", why="b")}}, "clipped and has noise"),
        (
            {"local": factored, "server": lambda s, r: (s, {})},
            "return them, not their factors",
        ),
    ],
)
def test_releases_that_shares_cannot_make_are_refused(changes: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        shared(**changes)


def test_a_device_runs_only_what_the_door_understands() -> None:
    kept: list[Any] = []

    def leaks(state: Any, unit: Array, key: Array) -> Any:
        jax.debug.callback(kept.append, unit)
        return own_data(state, unit, key)

    with pytest.raises(ImpureFunction):
        shared(local=leaks)


# --- the certificate -----------------------------------------------------------------------------


def test_the_certificate_states_both_observers_and_verifies(
    make_ledgers: MakeLedgers, tmp_path: Path
) -> None:
    made, (ledger,) = shared(), make_ledgers(1, epsilon=10.0)
    made.open(ledger, jnp.zeros(D)).charge(np.arange(8))
    certificate = derive(ledger)
    certificate.write(tmp_path / "certificate.json")
    assert check(tmp_path / "certificate.json", ledger, derive).status == "verified"
    central = Ledger.create(
        f"{ledger._engine.url.database}2", unit=small.UNIT, budget=Budget(epsilon=10.0, delta=1e-6)
    )
    central.open_stream(release().statement({"u": D, "v": D}, "operating-system")).charge(
        0, 1, [np.arange(8)]
    )
    assert certificate.epsilon == pytest.approx(derive(central).epsilon, rel=1e-6)
    words = certificate.model_dump_json()
    assert "shares.server" in words
    assert "shares.everybody" in words
    gained = math.sqrt(8 / 6) / math.sqrt(1 / 3**2 + 1 / 5**2)
    assert f'"multiplier":"{math.floor(1000 * gained) / 1000:g}"' in words


def test_noise_from_a_seed_certifies_nothing(make_ledgers: MakeLedgers) -> None:
    made, (ledger,) = shared(seed=1), make_ledgers(1)
    made.open(ledger, jnp.zeros(D)).charge(np.arange(8))
    assert derive(ledger).status == "none"


def test_delta_counts_the_noise_of_every_slot_number_and_release() -> None:
    draws = SLOTS * HORIZON * 2 * D
    assert shared().statement.sampler_delta == pytest.approx(draws * shares_delta(1, 1), rel=1e-9)


def test_each_part_has_the_noise_of_its_own_variance() -> None:
    """The variances are far apart, so that one part's noise in the other is noticed."""
    parts = {
        "u": Part(clip_norm=2.0, noise_multiplier=0.3),
        "v": Part(clip_norm=0.5, noise_multiplier=30.0),
    }
    made = shared(seed=4, parts=parts)
    nothing = jnp.zeros(2 * D)
    drawn = np.array([made.contribution(jnp.zeros(D), nothing, KEY) for _ in range(150)])
    signed = (drawn.astype(np.int64) + 2**15) % 2**16 - 2**15
    own = made.shares.parts
    assert own["v"].variance > 5 * own["u"].variance
    assert signed[:, :D].var() == pytest.approx(own["u"].variance, rel=0.25)
    assert signed[:, D:].var() == pytest.approx(own["v"].variance, rel=0.25)


def test_a_device_contributes_nothing_under_settings_not_reviewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = shared()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    with pytest.raises(PrivacyError, match="XLA_FLAGS has --xla_cpu_enable_fast_math"):
        made.contribution(jnp.zeros(D), jnp.asarray(units_of(1)[0]), KEY)
