"""What certificates say about devices that make the noise, today and in earlier words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_noise_shares import D, shared, units_of

from sotto.privacy.certificates.check import check
from sotto.privacy.certificates.derive import derive
from sotto.privacy.certificates.lone import verify_file
from sotto.privacy.claims import Reference
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger

MakeLedgers = Callable[..., list[Ledger]]
OF_DEVICES = ("shares.server", "shares.everybody", "shares.honest-devices", "shares.masks")


def test_those_who_collude_are_counted_among_all_who_are_asked(make_ledgers: MakeLedgers) -> None:
    """A device that is asked and sends no vector holds shares of its neighbours' secrets."""
    made, (ledger,) = shared(), make_ledgers(1, epsilon=10.0)
    made.open(ledger, jnp.zeros(D)).charge(np.arange(8))
    told = {one.claim: one.sentence for one in derive(ledger).claims if isinstance(one, Reference)}
    for name in ("shares.server", "shares.honest-devices", "shares.masks"):
        assert "devices that are asked in" in told[name]
        assert "in the sum or not" in told[name]
        assert " 2 " in told[name]
    # Devices that collude may add no noise, so only the stated multiplier is left then.
    assert "if every device in the sum adds its share" in told["shares.everybody"]


def test_earlier_words_about_devices_stay_verified_and_are_corrected(
    make_ledgers: MakeLedgers, tmp_path: Path
) -> None:
    made, (ledger,) = shared(), make_ledgers(1, epsilon=10.0)
    made.open(ledger, jnp.zeros(D)).charge(np.arange(8))
    path, today = tmp_path / "certificate.json", derive(ledger)
    numbers = {
        "shares.honest-devices": {"promised": "8", "secret": "6"},
        "shares.masks": {},
    }

    def in_earlier_words(changed: dict[str, dict[str, str]]) -> Any:
        return [
            Reference(claim=one.claim, version=1, numbers=changed.get(one.claim, one.numbers))
            if isinstance(one, Reference) and one.claim in OF_DEVICES
            else one
            for one in today.claims
        ]

    earlier = today.model_copy(update={"claims": tuple(in_earlier_words(numbers))})
    earlier.write(path)
    for found in (check(path, ledger, derive), verify_file(path)):
        assert found.status in ("verified", "true")
        assert len(found.corrections) == 3
        assert any("meets noise multiplier" in line for line in found.corrections)
        assert any("show nothing but their sum" in line for line in found.corrections)
    forged = numbers | {"shares.honest-devices": {"promised": "8", "secret": "3"}}
    today.model_copy(update={"claims": tuple(in_earlier_words(forged))}).write(path)
    assert check(path, ledger, derive).status == "false"


def test_a_device_computes_under_reviewed_settings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made = shared()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    with pytest.raises(PrivacyError, match="xla_cpu_enable_fast_math"):
        made.contribution(jnp.zeros(D), units_of(1)[0], jax.random.key(0, impl="threefry2x32"))
