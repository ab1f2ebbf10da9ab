"""Descriptions of other people's DP-SGD: bounds against simulation, named findings, refusals."""

import functools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import integrate, stats

from sotto.cli import main
from sotto.privacy.accounting.gaussian import gaussian_epsilon
from sotto.privacy.described.bounds import accounted, least, proved
from sotto.privacy.described.description import Description, read
from sotto.privacy.described.findings import FINDINGS, analyse, is_range_too_short
from sotto.privacy.errors import PrivacyError

CLAIM = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "zero-out", "accountant": "RDP"}
PLAIN: dict[str, Any] = {
    "name": "a training",
    "source": "nowhere",
    "records": 1000,
    "batch_size": 100,
    "sampling": "poisson",
    "last_batch": "none",
    "steps": 10,
    "noise_multiplier": 1.0,
    "clip_norm": 1.0,
    "noise_scaled_to": "sum",
    "noise_secret": True,
    "noise_secure": True,
    "claimed": CLAIM,
}


def described(**changes: Any) -> Description:
    claim = {name: changes.pop(name) for name in (*CLAIM, "orders") if name in changes}
    if "epochs" in changes:
        changes["steps"] = None
    return Description.model_validate(PLAIN | {"claimed": CLAIM | claim} | changes)


def hockey_stick(z: float, rate: float, epsilon: float) -> float:
    """The larger divergence of one Poisson-sampled step, by quadrature."""

    def mixed(x: float) -> float:
        return float((1 - rate) * stats.norm.pdf(x, 0, z) + rate * stats.norm.pdf(x, 1, z))

    def one(x: float) -> float:
        return max(0.0, mixed(x) - math.exp(epsilon) * float(stats.norm.pdf(x, 0, z)))

    return float(integrate.quad(one, -10 * z, 12 * z, limit=500)[0])


def test_one_poisson_step_has_the_exact_divergence() -> None:
    d = described(steps=1)
    for epsilon in (accounted(d), proved(d)):
        assert hockey_stick(1.0, 0.1, epsilon) == pytest.approx(1e-5, rel=0.02)
    assert 0.98 * accounted(d) < least(d) <= accounted(d)
    assert hockey_stick(1.0, 0.1, least(d)) > 1e-5


def test_a_wrong_noise_multiplier_is_noticed() -> None:
    right = described()
    assert analyse(right).verdict == "false"
    enough = described(epsilon=1.0001 * proved(right))
    assert analyse(enough).verdict == "holds"
    wrong = enough.model_copy(update={"noise_multiplier": 0.9})
    assert analyse(wrong).verdict == "false"


@pytest.mark.parametrize(("adjacency", "shift"), [("zero-out", 1), ("replace", 2)])
def test_fixed_batches_are_gaussian_releases(adjacency: str, shift: int) -> None:
    d = described(sampling="fixed", steps=40, runs=3, adjacency=adjacency)  # 12 epochs in all
    mu = shift * math.sqrt(12)
    epsilon = proved(d)
    x, y = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    delta = stats.norm.cdf(x) - math.exp(epsilon) * stats.norm.cdf(y)
    assert delta == pytest.approx(1e-5, rel=1e-5)
    assert least(d) == pytest.approx(epsilon, rel=1e-6)


def test_shuffling_costs_more_than_poisson_by_an_attack_that_is_simulated() -> None:
    d = described(sampling="shuffle", delta=0.05, noise_multiplier=0.5)
    epsilon, draw = least(d), np.random.default_rng(0)
    noise = 0.5 * draw.standard_normal((2, 100_000, 10))
    noise[0, :, 0] += 2
    noise[1, :, 0] += 1
    highest = noise.max(axis=2)
    gaps = [
        (highest[0] > c).mean() - math.exp(epsilon) * (highest[1] > c).mean()
        for c in np.linspace(0, 4, 60)
    ]
    assert max(gaps) == pytest.approx(0.05, abs=0.01)
    assert accounted(d) < least(d) <= proved(d)


def test_lower_bounds_stay_below_upper_bounds() -> None:
    draw = np.random.default_rng(1)
    for _ in range(40):
        kind = ("shuffle", "fixed")[int(draw.integers(2))]
        d = described(
            sampling=kind,
            records=int(draw.integers(200, 5000)),
            last_batch=("dropped", "kept", "unknown")[int(draw.integers(3))],
            noise_scaled_to=("sum", "mean")[int(draw.integers(2))],
            adjacency=("zero-out", "replace")[int(draw.integers(2))],
            steps=int(draw.integers(1, 200)),
            runs=int(draw.integers(1, 4)),
            noise_multiplier=float(np.exp(draw.uniform(-1, 2))),
        )
        assert least(d) <= proved(d)


@pytest.mark.parametrize("delta", [1e-5, 1e-10])
def test_dropped_batches_of_little_noise_are_not_called_false(delta: float) -> None:
    """The chance that a record is dropped leaves no digits where batches stand out clearly."""
    for z in np.linspace(0.18, 0.5, 33):
        d = described(
            sampling="shuffle",
            records=1001,
            batch_size=10,
            last_batch="dropped",
            epochs=1,
            noise_multiplier=float(z),
            delta=delta,
        )
        above = proved(d)
        assert 0.3 * above < least(d) <= above


def test_a_record_that_is_added_to_fixed_batches_costs_more() -> None:
    """All other records move by one place, so sums of opposite gradients change signs."""
    fixed: dict[str, Any] = {"sampling": "fixed", "batch_size": 10, "noise_multiplier": 10.0}
    d = described(**fixed, steps=100, adjacency="add-remove", epsilon=0.5)
    truth = gaussian_epsilon(10 / (2 * math.sqrt(99)), 1e-5)
    assert proved(d) < 0.5 < truth
    assert analyse(d).verdict == "undecided"
    assert "adjacency-differs" in analyse(d).findings
    alone = described(**fixed, steps=100, adjacency="zero-out", epsilon=0.5)
    assert analyse(alone).verdict == "holds"


WRONG: dict[str, dict[str, Any]] = {
    "shuffled-accounted-as-poisson": {"sampling": "shuffle"},
    "fixed-accounted-as-poisson": {"sampling": "fixed"},
    "sampling-unknown": {"sampling": "unknown"},
    "last-batch-dropped": {"sampling": "shuffle", "records": 1050, "last_batch": "dropped"},
    "last-batch-kept-smaller": {
        "sampling": "shuffle",
        "records": 1050,
        "last_batch": "kept",
        "noise_scaled_to": "mean",
    },
    "noise-on-mean": {"noise_scaled_to": "mean"},
    "several-runs": {"runs": 2},
    "seed-published": {"noise_secret": False},
    "insecure-noise": {"noise_secure": False},
    "delta-vacuous": {"delta": 1e-3},
    "adjacency-differs": {"adjacency": "replace"},
    "unit-is-record": {"records_per_person": 5},
    "epsilon-not-stated": {"epsilon": None},
    "epsilon-below-accounted": {"epsilon": 0.1},
    "accountant-order-range": {"orders": (1.1, 3.0)},
    "epsilon-refuted": {"epsilon": 0.1},
}


@functools.cache
def right_findings() -> tuple[str, ...]:
    """The findings on a right claim."""
    return analyse(described(epsilon=3.0, orders=(1.1, 63.0))).findings


@pytest.mark.parametrize("name", FINDINGS)
def test_wrong_claims_get_their_names(name: str) -> None:
    assert name in analyse(described(**WRONG[name])).findings
    assert name not in right_findings()


def test_verdicts() -> None:
    assert analyse(described(noise_secret=False, epsilon=100.0)).verdict == "false"
    assert analyse(described(delta=1e-3, epsilon=100.0)).verdict == "vacuous"
    assert analyse(described(sampling="unknown", epsilon=100.0)).verdict == "undecided"
    assert proved(described(noise_secret=False)) == math.inf


def test_a_range_of_orders_is_too_short_only_if_the_best_order_is_beyond_it() -> None:
    z, delta = 4.0, 1e-5  # one Gaussian step: the best order is near 1 + z sqrt(2 log(1/delta))
    for orders, short in (((1.1, 63.0), False), ((1.1, 8.0), True), ((40.0, 90.0), True)):
        d = described(records=100, steps=1, noise_multiplier=z, delta=delta, orders=orders)
        assert is_range_too_short(d) == short
    assert not is_range_too_short(described(records=100, steps=1, noise_multiplier=z))


def test_epochs_stand_for_steps() -> None:
    for last, steps in (("kept", 33), ("dropped", 30), ("unknown", 33)):
        d = described(records=1050, sampling="shuffle", last_batch=last, epochs=3)
        assert (d.total_steps, d.begun, d.finished) == (steps, 3, 3)
        assert proved(d) == proved(described(sampling="shuffle", steps=30))
    assert proved(described(epochs=1)) == proved(described(steps=10))


def test_a_person_costs_group_privacy() -> None:
    """Recomputed: g records cost g times epsilon, at delta (1 + e^epsilon + ...)."""
    for records, adjacency, apart in ((3, "zero-out", 3), (1, "replace", 2)):
        d = described(steps=1, noise_multiplier=3.0, adjacency=adjacency)
        each = proved(d, records) / apart
        delta = hockey_stick(3.0, 0.1, each) * sum(math.exp(i * each) for i in range(apart))
        assert 0.85e-5 < delta < 1.01e-5
    fixed = described(sampling="fixed", steps=10, noise_multiplier=6.0)
    assert proved(fixed, 3) == proved(described(sampling="fixed", steps=10, noise_multiplier=2.0))
    found = analyse(described(sampling="fixed", records_per_person=3))
    assert found.proved_for_person == proved(described(sampling="fixed"), 3)


def test_many_steps_are_quick_and_cost_more() -> None:
    start = time.process_time()
    many = described(records=10**6, steps=10**9)
    assert proved(described(records=10**6, steps=10**7)) < proved(many) < math.inf
    whole = described(sampling="fixed", epochs=many.total_steps, records=10**6, batch_size=10**6)
    assert proved(many) < proved(whole)
    assert "epsilon-below-accounted" not in analyse(many).findings  # its accountant is coarse
    assert time.process_time() - start < 10
    with pytest.raises(ValidationError, match="more than"):
        described(records=10**6, epochs=10**6)


HOSTILE = {
    "a name twice": lambda text: text.replace("{", '{"steps": 1, ', 1),
    "unknown": lambda text: text.replace("{", '{"secret": 1, ', 1),
    "a text for a number": lambda text: text.replace('"steps": 10', '"steps": "10"'),
    "infinite": lambda text: text.replace('"noise_multiplier": 1.0', '"noise_multiplier": 1e999'),
    "not finite": lambda text: text.replace('"noise_multiplier": 1.0', '"noise_multiplier": NaN'),
    "nested": lambda text: "[" * 100_000,
    "larger batches": lambda text: text.replace('"batch_size": 100', '"batch_size": 2000'),
    "steps and epochs": lambda text: text.replace('"steps"', '"epochs": 1, "steps"'),
    "huge": lambda text: text.replace('"steps": 10', f'"steps": {10**400}'),
    "more records of one person": lambda text: text.replace("{", '{"records_per_person": 1001,', 1),
    "orders": lambda text: text.replace('"delta"', '"orders": [63, 1.1], "delta"'),
    "a rest": lambda text: text.replace('"poisson"', '"fixed"').replace("1000", "1001"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_descriptions_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(PLAIN))
    assert read(path) == described()
    path.write_text(HOSTILE[name](path.read_text()))
    with pytest.raises(PrivacyError, match="cannot be read"):
        read(path)


@pytest.mark.parametrize(
    ("changed", "to", "said"),
    [
        ('"records"', '"record"', "there is no field 'record'; did you mean records?"),
        ('"records": 1000, ', "", "records is missing"),
        ('"batch_size": 100', '"batch_size": 2000', "batch_size is larger than records"),
        ('"noise_multiplier": 1.0', '"noise_multiplier": 0', "noise_multiplier must be at least "),
        ('"delta": 1e-05', '"delt": 1e-05', "claimed has no field 'delt'; did you mean delta?"),
    ],
)
def test_refusals_name_the_field_in_plain_words(changed, to, said, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    text = json.dumps(PLAIN)
    assert changed in text
    path.write_text(text.replace(changed, to))
    with pytest.raises(PrivacyError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path} cannot be read: {said}")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(PLAIN | {"sampling": "fixed"}))
    assert main(["certify", "dpsgd", "--from", str(path), "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "false"
    assert "fixed-accounted-as-poisson" in said["findings"]
    assert main(["certify", "dpsgd", "--from", str(path)]) == 2
    said = capsys.readouterr().out
    assert "The facts are somebody's words" in said
    assert "the claim is false at delta" in said
    path.write_text(json.dumps(PLAIN | {"claimed": CLAIM | {"epsilon": 3.0}}))
    assert main(["certify", "dpsgd", "--from", str(path)]) == 0
    assert "the claim holds at delta" in capsys.readouterr().out
