"""Settings outside the program: nothing is released under one that is not understood."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fixed_noise import fixed_noise
from jaxtyping import Array

from sotto.algorithms.dppg.presets import preset
from sotto.algorithms.dppg.training import DPPGTraining
from sotto.privacy import settings
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger import entries
from sotto.privacy.ledger.databases import database
from sotto.privacy.ledger.entries import Entry, canonical, json_values
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part
from sotto.privacy.units import Adjacency, Unit

SRC = Path(__file__).parents[2] / "src"
SLOTS, D = 5, 17
UNIT = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
FAST_MATH = (
    "--xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false "
    "--xla_cpu_fast_math_honor_infs=false --xla_cpu_fast_math_honor_division=false"
)


def door(path: Path) -> tuple[Release, Ledger]:
    release = Release(
        name="update",
        local=lambda state, unit, key: ({"u": unit * 2.5}, ()),
        server=lambda state, released: (state, released["u"]),
        unit=UNIT,
        parts={"u": Part(clip_norm=1.0, noise_multiplier=1e-6)},
        slots=SLOTS,
        divisor=1.0,
        horizon=3,
        population="simulated",
    )
    return release, Ledger.create(path, unit=UNIT, budget=Budget(epsilon=np.inf, delta=1e-3))


def sums(path: Path, first_person: float, key: Array | None = None) -> Array:
    """What is released of people without data and one first person, with next to no noise."""
    release, ledger = door(path)
    stream = release.open([ledger], jnp.zeros(1), np.zeros((SLOTS, D), np.float32), noise_seed=0)
    data = np.zeros((1, 1, SLOTS, D), np.float32)
    data[0, 0, 0] = first_person
    keys = jax.random.key(0, impl="threefry2x32")[None] if key is None else key
    _, log, _ = stream.run(jnp.zeros(1), keys, np.arange(SLOTS)[None, None], data)
    return np.asarray(log)[0, 0]


# --- options of JAX ------------------------------------------------------------------------------

REFUSED_OPTIONS = {
    "jax_debug_nans": True,  # an error tells that somebody's numbers were not finite
    "jax_debug_infs": True,
    "jax_enable_x64": True,
    "jax_disable_jit": True,  # nothing would be compiled with the door's options
    "jax_disable_most_optimizations": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_check_tracer_leaks": True,
    "jax_random_seed_offset": 1,
    "jax_error_checking_behavior_nan": "raise",
    "jax_dump_ir_to": "somewhere",
}
HARMLESS_OPTIONS = {
    "jax_default_prng_impl": "unsafe_rbg",  # no key is made without naming its kind
    "jax_threefry_partitionable": False,
    "jax_default_matmul_precision": "highest",
    "jax_log_compiles": True,
    "jax_compilation_cache_max_size": 10**9,
}


@pytest.fixture
def options_put_back() -> Iterator[None]:
    kept = dict(jax.config.values)
    yield
    for name, value in kept.items():
        if jax.config.values[name] != value:
            jax.config.update(name, value)


def test_every_option_is_reviewed_once() -> None:
    silent, recorded = settings._NO_NUMBERS, settings._OTHER_NUMBERS
    assert not silent & recorded
    assert not settings._REVIEWED.keys() & (silent | recorded)
    assert jax.config.values.keys() == settings._REVIEWED.keys() | silent | recorded


def test_an_option_that_nobody_has_reviewed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(settings._REVIEWED, "jax_scan3")
    with pytest.raises(PrivacyError, match="jax_scan3, which this version of sotto has not"):
        settings.in_force()


@pytest.mark.usefixtures("options_put_back")
@pytest.mark.parametrize(("name", "value"), REFUSED_OPTIONS.items(), ids=REFUSED_OPTIONS.keys())
def test_a_stream_neither_opens_nor_goes_on(name: str, value: Any, tmp_path: Path) -> None:
    release, ledger = door(tmp_path / "ledger.sqlite")
    units = np.zeros((SLOTS, D), np.float32)
    before = ledger.open_stream(statement_of(tmp_path))
    jax.config.update(name, value)
    with pytest.raises(PrivacyError, match=f"the option {name} of jax is"):
        ledger.open_stream(before.statement)
    with pytest.raises(PrivacyError, match=f"the option {name} of jax is"):
        before.charge(0, 1, [np.arange(SLOTS)])
    with pytest.raises((PrivacyError, ValueError)):
        release.open([ledger], jnp.zeros(1), units, noise_seed=0)
    assert len(ledger.streams) == 1
    assert ledger.persons == 0


def statement_of(folder: Path) -> Any:
    release, ledger = door(folder / "other.sqlite")
    release.open([ledger], jnp.zeros(1), np.zeros((SLOTS, D), np.float32), noise_seed=0)
    return ledger.streams[0].statement


def test_a_change_for_one_thread_is_noticed() -> None:
    with jax.debug_nans(True), pytest.raises(PrivacyError, match="jax_debug_nans"):
        settings.in_force()
    settings.in_force()


@pytest.mark.usefixtures("options_put_back")
@pytest.mark.parametrize(("name", "value"), HARMLESS_OPTIONS.items(), ids=HARMLESS_OPTIONS.keys())
def test_what_is_harmless_passes_and_is_written_down_if_it_changes_numbers(
    name: str, value: Any, tmp_path: Path
) -> None:
    jax.config.update(name, value)
    np.testing.assert_allclose(sums(tmp_path / "a.sqlite", 0.04), 0.1, atol=1e-4)
    (written,) = Ledger.open(tmp_path / "a.sqlite").stream_settings
    assert written.get(name, str(value)) == str(value)
    assert (name in written) == (name in settings._OTHER_NUMBERS)


# --- flags of XLA --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (FAST_MATH, "--xla_cpu_enable_fast_math"),
        ("--xla_cpu_multi_thread_eigen=false --xla_gpu_enable_fast_min_max=true", "--xla_gpu_"),
        ("--xla_allow_excess_precision=false", "--xla_allow_excess_precision"),
        ('--xla_backend_extra_options="a b"', "--xla_backend_extra_options"),
        ("--xla_dump_hlo_snapshots", "--xla_dump_hlo_snapshots"),
        ("--xla_backend_optimization_level=9", "--xla_backend_optimization_level"),
        ("/etc/flags", "/etc/flags"),
        ("--xla_force_host_platform_device_count=1,--xla_cpu_enable_fast_math=1", "--xla_force"),
    ],
)
def test_a_flag_that_is_not_understood_is_refused(
    flags: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    with pytest.raises(PrivacyError, match=f"XLA_FLAGS has {re.escape(named)}"):
        settings.in_force()


@pytest.mark.parametrize("name", ["NVIDIA_TF32_OVERRIDE", "LIBTPU_INIT_ARGS"])
def test_other_variables_that_change_arithmetic_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(PrivacyError, match=f"{name} is set"):
        settings.in_force()


def test_flags_known_to_be_harmless_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags in (
        "",
        "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
    ):
        monkeypatch.setenv("XLA_FLAGS", flags)
        assert settings.in_force()["XLA_FLAGS"] == flags


_UNDER_FAST_MATH = """
import json, os, sys
from pathlib import Path
import numpy as np
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
import test_outside_settings as t
from sotto.privacy.release import stream as streams
from sotto.privacy.errors import PrivacyError

folder = Path(sys.argv[2])
try:
    t.sums(folder / "refused.sqlite", np.nan)
    refused = ""
except PrivacyError as error:
    refused = str(error)
fixed = t.settings.COMPILER_OPTIONS
t.jnp.ones(3).block_until_ready()
del os.environ["XLA_FLAGS"]  # XLA has read it: what is in force does not change
streams.COMPILER_OPTIONS = {}
before = [t.sums(folder / f"{i}.sqlite", x).tolist() for i, x in enumerate((0, np.nan))]
streams.COMPILER_OPTIONS = fixed
now = [t.sums(folder / f"now-{i}.sqlite", x).tolist() for i, x in enumerate((0, np.nan, np.inf))]
print(json.dumps([refused, before, now]))
"""


def test_fast_math_moves_a_release_no_more(tmp_path: Path) -> None:
    """One person's NaN moved every number of the sum by 16 clip norms."""
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_FAST_MATH, str(Path(__file__).parent), str(tmp_path)],
        env=os.environ | {"XLA_FLAGS": FAST_MATH, "JAX_ENABLE_COMPILATION_CACHE": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    refused, before, now = json.loads(done.stdout)
    assert "--xla_cpu_enable_fast_math" in refused
    assert np.linalg.norm(np.subtract(*before)) > 50  # the attack, where only the flags decide
    assert np.abs(np.subtract(now, now[0])).max() < 1e-3  # and with the door's own options


# --- inside a transformation ---------------------------------------------------------------------


@pytest.mark.parametrize("transform", [jax.vmap, jax.jit, lambda f: jax.jit(jax.vmap(f))])
def test_many_releases_are_not_made_for_one_charge(transform: Any, tmp_path: Path) -> None:
    """`vmap` over people's data gave 50 releases of one draw of noise, for one charge."""
    release, ledger = door(tmp_path / "ledger.sqlite")
    units = np.zeros((SLOTS, D), np.float32)
    stream = release.open([ledger], jnp.zeros(1), units, noise_seed=0, chunk=1)
    keys = jax.random.key(0, impl="threefry2x32")[None]
    persons = np.arange(SLOTS)[None, None]
    shape = (1, 1, SLOTS, D) if transform is jax.jit else (2, 1, 1, SLOTS, D)
    released = transform(lambda data: stream.run(jnp.zeros(1), keys, persons, data)[1])
    with pytest.raises(PrivacyError, match="inside jit, vmap or another transformation"):
        released(np.zeros(shape, np.float32))
    with pytest.raises(PrivacyError, match="inside jit, vmap"):
        jax.jit(lambda: ledger.open_stream(stream.statement))()
    assert [one.releases for one in ledger.streams] == [0]


# --- kinds of keys -------------------------------------------------------------------------------


def trained(folder: Path) -> str:
    """Digest of what a small DPPG learns with fixed noise."""
    tiny: dict[str, Any] = {
        "total_steps": 4 * 16,
        "users_per_update": 4,
        "steps_per_user": 16,
        "hidden": (4,),
        "critic_hidden": (4,),
        "evaluation_episodes": 1,
        "delta": 1e-3,
    }
    config = preset("sotto", "CartPole-v1", **tiny)
    budget = Budget(epsilon=np.inf, delta=config.delta)  # fixed noise proves nothing
    ledger = Ledger.create(folder / "dppg.sqlite", unit=config.privacy_unit, budget=budget)
    with fixed_noise(0):
        chunks = list(DPPGTraining(config, range(1), [ledger]))
    leaves = [np.asarray(x).tobytes() for x in jax.tree.leaves(chunks[-1].states)]
    return hashlib.sha256(b"".join(leaves)).hexdigest()


_TRAINED = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
import test_outside_settings as t
assert t.settings.in_force()["jax_default_prng_impl"] == "rbg"
print(t.trained(Path(sys.argv[2])))
"""


def test_dppg_learns_the_same_whatever_kind_of_key_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _TRAINED, str(Path(__file__).parent), str(tmp_path / "other")],
        env=os.environ | {"JAX_DEFAULT_PRNG_IMPL": "rbg"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == trained(tmp_path)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_another_kind_are_refused(impl: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keys are"):
        sums(tmp_path / "ledger.sqlite", 0.0, jax.random.key(0, impl=impl)[None])
    assert Ledger.open(tmp_path / "ledger.sqlite").streams[0].releases == 0


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda p: str(p.relative_to(SRC)))
def test_keys_are_made_in_one_place(path: Path) -> None:
    made = re.findall(r"random\.key\b|PRNGKey\(|wrap_key_data", path.read_text())
    where = path.relative_to(SRC / "sotto").as_posix()
    told = (
        "privacy/release/purity.py",
        "privacy/audits/leaks/randomness.py",
    )  # in a message, and as a leak
    assert not made or where in ("keys.py", *told)


# --- what is written down ------------------------------------------------------------------------


def test_versions_of_what_draws_noise_are_in_the_ledger_and_on_the_certificate(
    tmp_path: Path,
) -> None:
    sums(tmp_path / "ledger.sqlite", 0.0)
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    for versions in (ledger.versions, ledger.stream_versions[0], derive(ledger).versions):
        assert {"jax", "jaxlib", "numpy", "randomgen"} <= versions.keys()
    (written,) = ledger.stream_settings
    assert "xla_cpu_enable_fast_math=False" in written["compiler options"]
    assert written["XLA_FLAGS"] == os.environ["XLA_FLAGS"]


def test_a_ledger_without_settings_still_opens_and_verifies(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    _, ledger = door(path)
    versions = {"sotto": "0", "jax": "0"}
    contents = {
        "statement": json_values(statement_of(tmp_path)),
        "versions": versions,
        "writer": "old",
    }
    old = Entry(ledger.run_id, 1, "open", canonical(contents), ledger.head_hash)
    entries.append(database(path), old)
    again = Ledger.open(path)
    assert again.stream_settings == ({},)
    again.resume_stream(again.streams[0].statement).charge(0, 1, [np.arange(SLOTS)])
    again.verify()
