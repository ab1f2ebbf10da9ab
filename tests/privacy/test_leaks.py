"""Every leak of the catalogue shows itself, and every remedy stays below its certificate."""

import dataclasses
import itertools
import json
import math
import re

import jax
import numpy as np
import pytest
from commands import printed, refused, run_json
from scipy import stats

from sotto.privacy.audits import leaks
from sotto.privacy.audits.audit import AuditResult, audit
from sotto.privacy.audits.canaries import reach
from sotto.privacy.audits.leaks import CATALOGUE, DELTA, Leak, LeakReport, functional, run_catalogue
from sotto.privacy.audits.leaks.critic import _TRAINING as CRITIC_TRAINING
from sotto.privacy.audits.leaks.noise import float32_normal_values

SAMPLES = 16_000
MORE = {"uncentred-clipping-bit": 32_000}
"""With 16,000 its bound is above the claim in three runs of five."""
FROM_FEEDBACK = {
    "shared-value-head",
    "advantage-normalisation",
    "adaptive-kl-coefficient",
    "reward-normaliser",
    "best-of-n-across-people",
    "early-stopping-on-rewards",
}
"""What trainings from human feedback leak beside the gradient: at least twice the claim."""
NAMES = [leak.name for leak in CATALOGUE]


@pytest.mark.parametrize("name", NAMES)
def test_leak_is_shown_and_remedy_holds(name: str, monkeypatch) -> None:
    # 500 trainings still show epsilon 3.4 where 0.9 is claimed; all 2000 take a minute.
    monkeypatch.setattr(functional, "_RUNS", 500)
    (report,) = run_catalogue([name], MORE.get(name, SAMPLES), seed=1)
    assert report.verdict == "leak shown"
    factor = 2 if name in FROM_FEEDBACK else 1
    assert report.leaky_lower_bound > factor * report.claimed_epsilon
    assert report.sound_lower_bound <= report.sound_certified_epsilon
    # Neither a cheaper claim nor a remedy at a higher price: the same epsilon on both sides.
    assert report.sound_certified_epsilon == pytest.approx(report.claimed_epsilon, rel=1e-6)
    assert report.confidence == 0.9995  # its two bounds hold together with 0.999
    assert report == LeakReport(**json.loads(json.dumps(dataclasses.asdict(report))))


def test_claims_are_those_of_the_theory_notes() -> None:
    claims = {leak.name: leak.claimed_epsilon for leak in CATALOGUE}
    assert claims["non-private-critic"] == pytest.approx(0.726, abs=1e-3)
    assert claims["segments-as-people"] == pytest.approx(1.27, abs=5e-3)
    assert claims["float32-tails"] == pytest.approx(4.38, abs=5e-3)


def test_door_does_not_certify_the_non_private_critic() -> None:
    assert CRITIC_TRAINING.trials(private=False).certified_epsilon(DELTA) == math.inf


def test_unknown_leak_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"no leak is called oops; choose from .*reused-noise"):
        run_catalogue(["oops"])


def test_too_few_samples_are_refused_with_the_number_that_could_show_the_leak(capsys) -> None:
    words = ("audit", "--leaks", "close-points", "--samples")
    said = refused(capsys, *words, "4")
    assert "to show close-points, got 4" in said
    least = int(re.findall(r"at least (\d+)", said)[0])
    assert f"at least {least} " in refused(capsys, *words, str(least - 1))
    leaks.check_samples(["close-points"], least)
    with pytest.raises(ValueError, match=r"at least .* to show close-points, got 100"):
        run_catalogue(None, 100)


def test_the_least_samples_are_those_of_the_runs_that_an_audit_makes() -> None:
    computed = [leak for leak in CATALOGUE if leak.runs == 0]
    assert len(computed) == 5
    assert {leak.leaky(4, 0, 0.9).confidence for leak in computed} == {1.0}
    (several,) = (leak for leak in CATALOGUE if leak.runs > 1)
    assert several.leaky(4, 0, 0.9).samples * 2 == several.runs * 4
    for leak in CATALOGUE:
        least = leak.least_samples(0.999)
        assert (least == 4) == (leak.runs == 0)
        if leak.runs:
            most = [reach(leak.runs * n, DELTA, 0.999) for n in (least - 1, least)]
            assert most[0] <= leak.claimed_epsilon < most[1]


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert set(NAMES) >= FROM_FEEDBACK


def test_explain_says_of_each_leak_what_leaks_and_what_to_do_instead(capsys) -> None:
    said = printed(capsys, "audit", "--explain")
    assert max(map(len, said.splitlines())) <= 80
    blocks = said.strip().split("\n\n")
    assert [block.split()[0] for block in blocks] == NAMES
    for block, leak in zip(blocks, CATALOGUE, strict=True):
        sentences = f"false claim {leak.claim} what leaks {leak.why} instead {leak.remedy}"
        assert " ".join(block.split()) == f"{leak.name} {sentences}"
    (one,) = run_json(capsys, "audit", "--explain", "--leaks", "reused-noise")["leaks"]
    assert list(one) == ["name", "claim", "why", "remedy"]
    assert one["name"] == "reused-noise"
    assert one["claim"].startswith("A resumed run")
    assert one["why"] == "The difference of two releases with the same noise has no noise."
    assert one["remedy"].startswith("every draw has a fresh key")


@pytest.mark.parametrize(
    ("leaky", "sound", "verdict"),
    [
        (2.0, 0.5, "leak shown"),
        (0.9, 0.5, "not shown"),
        (2.0, 1.1, "certificate refuted"),
    ],
)
def test_verdict(leaky: float, sound: float, verdict: str) -> None:
    def finds(bound: float) -> AuditResult:
        return AuditResult(bound, 1.0, DELTA, 0.999, 0.0, 1, 10)

    leak = Leak("x", "", "", "", 1.0, lambda *_: finds(leaky), lambda *_: finds(sound))
    assert leaks._report(leak, 10, 0, 0.999).verdict == verdict


FRESH = itertools.count()


def audit_of_coins(samples: int, seed: int, confidence: float) -> AuditResult:
    """Audits coins that always fall heads, or nine times of ten: epsilon is 0 at delta 0.1."""
    present = np.ones(samples)
    absent = (np.random.default_rng(next(FRESH)).random(samples) < 0.9).astype(float)
    return audit(present, absent, 0.1, confidence=confidence, certified_epsilon=0.0)


def test_all_bounds_of_a_run_hold_together_as_often_as_stated(monkeypatch) -> None:
    """Twenty bounds a run: one above the known epsilon makes the run wrong."""
    coins = [Leak(str(i), "", "", "", 0.0, audit_of_coins, audit_of_coins) for i in range(10)]
    monkeypatch.setattr(leaks, "CATALOGUE", tuple(coins))

    def wrong(confidence: float) -> int:
        monkeypatch.setattr(leaks, "CONFIDENCE", confidence)
        runs = [run_catalogue(None, 4000, 0) for _ in range(25)]
        return sum(
            any(one.leaky_lower_bound > 0 or one.sound_lower_bound > 0 for one in run)
            for run in runs
        )

    most = stats.binom.ppf(0.9999, 25, 0.2)
    assert wrong(0.8) <= most
    # The test has teeth: with 0.8 for each bound alone (0.2 = 4 / 20), most runs are wrong.
    assert wrong(1 - 4.0) > most


def test_float32_values_are_those_that_jax_draws() -> None:
    values = float32_normal_values()
    assert values.size == 2**23
    assert values.min() == pytest.approx(-5.420, abs=1e-3)
    assert values.max() == pytest.approx(5.220, abs=1e-3)
    drawn = np.asarray(jax.random.normal(jax.random.key(0), (200_000,)))
    assert np.isin(drawn, values).all()
    assert np.mean(values + 1 > values.max()) == pytest.approx(1.2e-5, rel=0.05)
