"""Stable prefixes of one expert fewer than stated: what was certified is about a larger world.

Theorems 7 to 9 need that many experts in the larger of two neighbours. Of 4 experts where 5 are
stated that is nobody's world: an epsilon of 2.56 was certified, and only 3.21 is proved.

A mechanism for all experts there are refuses the neighbouring world, and so tells it apart. A
mechanism that is calibrated for one fewer runs in both worlds.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from sotto.privacy.accounting.composition import compose
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.prefix_calibration import (
    Target,
    calibrate_consensus,
    calibrate_floor,
)
from sotto.privacy.mechanisms.sparse_vector import named
from sotto.privacy.mechanisms.stable_prefixes import Consensus, StablePrefixMechanism
from sotto.privacy.release.prefixes import PrefixRelease, Rollouts
from sotto.privacy.units import EXPERT

EXPERTS = 20


class Line(Rollouts):
    """One state, for ever."""

    def reset(self, n: int) -> np.ndarray:
        return np.zeros((n, 1), np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n = len(actions)
        return np.zeros((n, 1), np.float32), np.zeros(n, np.float32), np.zeros(n, bool)


def always_zero(expert: Any, seen: Any) -> Any:
    return jnp.zeros(seen.shape[0], jnp.int32) + (0 * expert).astype(jnp.int32)


@pytest.mark.parametrize("noise_seed", [None, 1])
def test_one_expert_fewer_than_stated_is_for_audits(tmp_path: Path, noise_seed: int | None) -> None:
    mechanism = StablePrefixMechanism(
        experts=EXPERTS, rule=Consensus(), noise=named("monotone-laplace", 2.0, 0.6), failure=0.05
    )
    release = PrefixRelease("prefixes", mechanism, 2, 3, 2, "simulated")
    ledger = Ledger.create(
        tmp_path / "ledger.sqlite", unit=EXPERT, budget=Budget(epsilon=np.inf, delta=1e-3)
    )
    opened = release.open(ledger, noise_seed=noise_seed)
    present = np.arange(EXPERTS) > 0
    if noise_seed is None:
        with pytest.raises(PrivacyError, match="fewer than the 20 experts"):
            opened.release(jnp.zeros(EXPERTS), always_zero, Line(), present)
        with pytest.raises(PrivacyError, match="or no slot besides theirs"):  # tells nothing
            opened.release(jnp.zeros(EXPERTS), always_zero, Line())
        assert ledger.streams[0].releases == 0
        opened.release(jnp.zeros(EXPERTS + 1), always_zero, Line())
    else:
        opened.release(jnp.zeros(EXPERTS), always_zero, Line(), present)
    assert ledger.streams[0].releases == 2


@pytest.mark.parametrize("calibrate", [calibrate_consensus, partial(calibrate_floor, floor=0.2)])
def test_a_mechanism_for_one_expert_fewer_runs_in_both_worlds(
    tmp_path: Path, calibrate: Callable[..., StablePrefixMechanism]
) -> None:
    there, delta = 200, 1e-3
    mechanism = calibrate(Target(there - 1, 2, 4.0, delta, horizon=3))
    events = [mechanism.model_copy(update={"experts": m}).event(2) for m in (there - 1, there)]
    fewer, all_of_them = (compose([event]).epsilon(delta) for event in events)
    assert all_of_them <= fewer <= 4.0
    release = PrefixRelease("prefixes", mechanism, 2, 3, 2, "simulated")
    for absent in (0, 1):
        ledger = Ledger.create(
            tmp_path / f"{absent}", unit=EXPERT, budget=Budget(epsilon=4.0, delta=delta)
        )
        present = np.arange(there) >= absent
        release.open(ledger).release(jnp.zeros(there), always_zero, Line(), present)
        assert ledger.spent().epsilon == pytest.approx(fewer)
