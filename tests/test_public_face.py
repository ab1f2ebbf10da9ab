"""`import sotto`: fast, complete, and its examples run."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sotto
from sotto.runs import api

INIT = Path(sotto.__file__)
SHORT = "users_per_update=16, steps_per_user=16, total_steps=512, evaluation_episodes=1)"


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def names_for_type_checkers() -> dict[str, tuple[str, str]]:
    """Under TYPE_CHECKING: each public name, its module, and its name there."""
    (block,) = (one for one in ast.parse(INIT.read_text()).body if isinstance(one, ast.If))
    return {
        alias.asname or alias.name: (one.module, alias.name)
        for one in block.body
        for alias in one.names
    }


def test_importing_it_waits_for_nothing_heavy():
    heavy = "jax", "numpy", "equinox", "gymnasium", "pydantic", "matplotlib"
    loaded = run_python("import sys, sotto; print(*(one.partition('.')[0] for one in sys.modules))")
    assert not {*heavy} & {*loaded.split()}
    used = run_python("import sys, sotto; sotto.Unit; print('sotto.privacy.units' in sys.modules)")
    assert used == "True\n"


def test_what_it_offers_is_what_type_checkers_see():
    declared = names_for_type_checkers()
    assert {*sotto.__all__} == {*declared, "__version__"}
    for name, (module, there) in declared.items():
        target = sotto._PUBLIC[name]
        assert target in (module, f"{module}:{there}")
        assert (":" in target) == (name != there)
        found = getattr(sotto, name)
        assert found is getattr(sys.modules[module], there)
        assert inspect.getdoc(found), f"sotto.{name} has no docstring"
    assert {*sotto.__all__} <= {*dir(sotto)}


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        sotto.nothing  # noqa: B018


def shortened(code: str) -> str:
    """The example with a training of two updates."""
    code, count = re.subn(r"(sotto\.DPPG\([^()]*)\)", rf"\1, {SHORT}", code)
    assert count == 1
    return code


def test_the_example_of_the_package_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```\n(.*?)```", sotto.__doc__, re.DOTALL)
    names = {"sotto": sotto, "observation": np.zeros((3, 4))}
    exec(shortened(code), names)
    assert names["action"].shape == (3,)
    run = names["run"]
    assert run.finished
    assert 0.99 < run.certificate.epsilon <= 1.0
    assert run.returns["ema"].shape == (1,)
    assert {one.status for one in sotto.verify("runs/x").values()} == {"verified"}


def test_the_example_of_train_is_a_call_with_valid_settings():
    """That such a training runs is seen above."""
    (code,) = re.findall(r"Example:\n\s+(.*)\n", api.train.__doc__)
    taken = inspect.signature(api.train).bind
    names = {"sotto": SimpleNamespace(train=taken, DPPG=sotto.DPPG)}
    exec(code, names)
    given = names["run"].arguments
    assert given["out"] == "runs/x"
    assert isinstance(given["settings"], sotto.DPPG)
    assert shortened(code) != code  # it is in the form that the example above is in


@pytest.mark.parametrize("function", [sotto.calibrate, sotto.account])
def test_examples_of_figures_say_what_they_give(function):
    ((code, value),) = re.findall(r"Example:\n\s+(.*?)\s+# ([\d.]+)\n", function.__doc__)
    assert round(eval(code, {"sotto": sotto}), 2) == float(value)


def test_python_m_sotto_is_sotto():
    run = [sys.executable, "-m", "sotto", "--version"]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert said == f"sotto {sotto.__version__}\n"


@pytest.mark.parametrize("wrong", ["1", None, True, [1.0], 1j])
@pytest.mark.parametrize("sampling_rate", [None, 0.1])
def test_figures_take_numbers_only(sampling_rate, wrong):
    """With sampling, a word was read as a number."""
    good = {"delta": 1e-5, "releases": 2, "sampling_rate": sampling_rate}
    first = {sotto.account: "noise_multiplier", sotto.calibrate: "target_epsilon"}
    for function, name in first.items():
        for argument in (name, *good):
            if (argument, wrong) == ("sampling_rate", None):
                continue
            given = {name: 1.0, **good, argument: wrong}
            told = re.escape(repr(wrong))
            says = rf"^{argument} must be of type (int|float|float \| None), not {told}$"
            with pytest.raises(ValueError, match=says):
                function(**given)


@pytest.mark.parametrize("function", [sotto.account, sotto.calibrate])
def test_figures_take_numbers_of_numpy_and_refuse_what_is_out_of_range(function):
    name = "noise_multiplier" if function is sotto.account else "target_epsilon"
    plain = function(**{name: 1.0}, delta=1e-5, releases=2)
    one = {"delta": np.float64(1e-5), "releases": np.int64(2)}
    assert function(**{name: np.float32(1.0)}, **one) == plain
    assert function(**{name: 1}, delta=1e-5, releases=2.0) == plain
    for wrong in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(
            ValueError, match=f"^{name} must be finite and above 0; {wrong} is not$"
        ):
            function(**{name: wrong}, delta=1e-5)
    for other in ("delta", "sampling_rate"):
        with pytest.raises(ValueError, match=rf"^{other} must be in \(0, 1\); 1 is not$"):
            function(**{name: 1.0, "delta": 1e-5, other: 1})


def test_arguments_of_another_type_are_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = sotto.PPO(env_id="CartPole-v1")
    wrong = {
        "seeds": ("2", 1.5, 0),
        "devices": ("2", 0),
        "resume": ("yes",),
        "ledger": (3, Path("ledger")),
        "budget": (3,),
        "numbers": (3,),
        "callbacks": (3, [3], [print, 3]),
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=f"^{name} must be ") as refusal:
                sotto.train(settings, "run", **{name: value})
            assert "\n" not in str(refusal.value)
    for out in (None, 3):
        with pytest.raises(ValueError, match=rf"^out must be of type Path \| str, not {out}$"):
            sotto.train(settings, out)
        for function in (sotto.load, sotto.verify, sotto.load_language):
            with pytest.raises(ValueError, match=rf"^path must be of type Path \| str, not {out}$"):
                function(out)
    for name, value in {"policy": 3, "seed": "x", "env_id": 3}.items():
        with pytest.raises(ValueError, match=f"^{name} must be of type .* None, not {value!r}$"):
            sotto.load("run", **{name: value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sampling_rate", [None, 0.1])
def test_an_account_of_no_releases_is_refused_in_one_sentence(sampling_rate):
    with pytest.raises(ValueError, match=r"^releases must be at least 1, got 0$"):
        sotto.account(noise_multiplier=1.0, delta=1e-5, releases=0, sampling_rate=sampling_rate)


def test_settings_of_no_installed_algorithm_are_told_of_the_entry_point(tmp_path):
    with pytest.raises(ValueError, match="install the package whose entry point names"):
        sotto.train(SimpleNamespace(seed=0), tmp_path / "run")


def test_a_policy_that_is_no_function_is_refused_in_one_sentence():
    with pytest.raises(TypeError, match=r"^the policy 'table' is no function of an observation"):
        sotto.Agent(np.zeros(3), "table", 1).act(np.zeros(3))
