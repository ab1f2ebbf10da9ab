"""Exported policies are the policies: in plain numpy, and as ONNX."""

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from small_runs import SMALL_PPO

from sotto.algorithms.baselines.q_learning import EpsilonGreedy, QNetwork
from sotto.algorithms.dppg.parts import ObservationMoments, StandardisedPolicy
from sotto.cli import main
from sotto.rl import policy_files
from sotto.rl.envs.base import Box, Discrete
from sotto.rl.envs.registry import make
from sotto.rl.networks import MLP, Policy
from sotto.runs.agents import export
from sotto.runs.agents.agent import Agent, load

SIZE = 3
KEY = jax.random.key(3)
BOX = Box((-1.0, 0.0), (1.0, 9.0), centre=(0.0, 4.0), scale=(0.5, 2.0))


def policy(action, **options) -> Policy:
    made = Policy(
        SIZE, action, (8, 5), KEY, observation_scale=(0.5, 2.0, 0.1), last_gain=1.0, **options
    )
    return jax.tree.map(lambda x: x + 0.1, made)  # no bias is zero


def standardised(action) -> StandardisedPolicy:
    inner = policy(action, observation_centre=(1.0, -1.0, 5.0))
    sums = jnp.array([0.5, -1.0, 2.0, -0.2, 0.3, 0.9])
    scale, centre = inner.observation_scale, inner.observation_centre
    return StandardisedPolicy(inner, ObservationMoments(sums, jnp.float32(7.0), scale, centre, 5.0))


POLICIES = {
    "discrete": lambda: policy(Discrete(4)),
    "centred": lambda: policy(Discrete(4), observation_centre=(1.0, -1.0, 5.0)),
    "box": lambda: policy(BOX),
    "plain box": lambda: policy(Box((-1.0,), (1.0,)), initial_log_std=-1.0),
    "standardised": lambda: standardised(Discrete(4)),
    "standardised box": lambda: standardised(BOX),
    "values": lambda: EpsilonGreedy(QNetwork(make("Acrobot-v1"), (6,), KEY, 20.0), 0.1),
    "linear values": lambda: EpsilonGreedy(MLP(SIZE, 4, (), KEY), 0.0),
}


def documented_act():
    """The function that the docstring gives to people without sotto."""
    (code,) = re.findall(r"```\n(.*?)```", policy_files.__doc__, re.DOTALL)
    assert len(code.splitlines()) <= 20
    assert "jax" not in code
    names: dict = {}
    exec(code, names)
    return names["act"]


def outputs_of(made, seen):
    """What the network says, and what is done greedily, in JAX."""
    found = made(seen)
    if isinstance(made, EpsilonGreedy):
        return made.values(seen), found.mode()
    return (found.logits if hasattr(found, "logits") else found.mean), found.mode()


@pytest.fixture(params=POLICIES)
def made(request):
    return POLICIES[request.param]()


def observations(made) -> np.ndarray:
    size = 6 if type(getattr(made, "values", None)) is QNetwork else SIZE
    return np.random.default_rng(0).normal(0, 2, (200, size)).astype(np.float32)


def test_numpy_acts_as_jax_does(made, tmp_path):
    seen, file = observations(made), tmp_path / "policy.npz"
    Agent(made, "last", 7).export(file)
    outputs, greedy = outputs_of(made, jnp.asarray(seen))
    act = documented_act()
    if jnp.issubdtype(greedy.dtype, jnp.integer):
        np.testing.assert_array_equal(act(file, seen), greedy)
        assert act(file, seen[0]) == greedy[0]
    else:
        np.testing.assert_allclose(act(file, seen), greedy, rtol=1e-6, atol=1e-6)
    flat = export.flat(made)
    x = (seen.astype(np.float64) - flat.centre) * flat.scale
    for weights, biases in zip(flat.weights[:-1], flat.biases[:-1], strict=True):
        x = np.tanh(x @ weights + biases)
    last = x @ flat.weights[-1] + flat.biases[-1]
    np.testing.assert_allclose(last, outputs, rtol=1e-6, atol=1e-6 * np.abs(outputs).max())
    header = json.loads(str(np.load(file)["header"]))
    assert header["format"] == policy_files.FORMAT
    assert (header["policy"], header["updates"]) == ("last", 7)


def test_onnx_acts_as_jax_does(made, tmp_path):
    seen, file = observations(made), tmp_path / "policy.onnx"
    Agent(made, "last", 7).export(file)
    model = onnx.load(file)
    assert {one.key: one.value for one in model.metadata_props}["format"] == policy_files.FORMAT
    outputs, action = ReferenceEvaluator(model).run(None, {"observation": seen})
    expected, greedy = outputs_of(made, jnp.asarray(seen))
    size = float(jnp.abs(expected).max())
    np.testing.assert_allclose(outputs, expected, rtol=1e-6, atol=1e-6 * max(1.0, size))
    np.testing.assert_allclose(action, greedy, rtol=1e-6, atol=1e-6)


def test_observations_of_another_length_are_refused(made, tmp_path):
    """By the agent, by the code of the docstring, and by the types of ONNX."""
    size = observations(made).shape[1]
    agent, act = Agent(made, "last", 7), documented_act()
    agent.export(tmp_path / "policy.npz")
    for wrong in (1, size - 1, size + 1, 2 * size):
        for seen in (np.ones(wrong), np.ones((3, wrong))):
            for greedy in (True, False):
                with pytest.raises(ValueError, match=rf"must have {size} numbers, got {wrong}\b"):
                    agent.act(seen, greedy=greedy)
            with pytest.raises(ValueError, match=f"must have {size} numbers"):
                act(tmp_path / "policy.npz", seen)
    agent.export(tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    (seen,) = model.graph.input
    assert seen.type.tensor_type.shape.dim[1].dim_value == size
    evaluator = ReferenceEvaluator(model)  # it does not look at the declared shape
    assert evaluator.run(None, {"observation": np.ones((3, size), np.float32)})[0].shape[0] == 3
    for wrong in (0, 1, size - 1, size + 1, 2 * size):
        for rows in (1, 3, size):
            with pytest.raises((TypeError, ValueError, RuntimeError)):
                evaluator.run(None, {"observation": np.ones((rows, wrong), np.float32)})


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_observations_that_are_not_finite_have_no_action(made, bad, tmp_path):
    """In every place of an observation; the other rows of the batch are answered."""
    seen = observations(made)[:5]
    agent, act = Agent(made, "last", 7), documented_act()
    agent.export(tmp_path / "policy.npz")
    agent.export(tmp_path / "policy.onnx")
    evaluator = ReferenceEvaluator(onnx.load(tmp_path / "policy.onnx"))
    outputs, actions = evaluator.run(None, {"observation": seen})
    for place in range(seen.shape[1]):
        wrong = seen.copy()
        wrong[2, place] = bad
        with pytest.raises(ValueError, match="must be a finite vector"):
            agent.act(wrong)
        with pytest.raises(ValueError, match="must be finite"):
            act(tmp_path / "policy.npz", wrong)
        with np.errstate(invalid="ignore"):
            found, chosen = evaluator.run(None, {"observation": wrong})
        assert np.isnan(found[2]).all()
        assert np.isnan(chosen[2]).all() if chosen.ndim > 1 else chosen[2] == -1
        others = [0, 1, 3, 4]
        np.testing.assert_array_equal(found[others], outputs[others])
        np.testing.assert_array_equal(chosen[others], actions[others])


def header_of(file: Path) -> dict[str, Any]:
    """The header of a file, as JSON values."""
    if file.suffix == ".npz":
        return json.loads(str(np.load(file)["header"]))
    texts = {one.key: one.value for one in onnx.load(file).metadata_props}
    plain = ("policy", "run_id", "algorithm", "status", "why", "unit", "adjacency", "ledger_head")
    quoted = {*plain, "certificate_sha256", "format", "activation", "actions", "outputs"}
    return {
        name: text if name in quoted and text != "null" else json.loads(text)
        for name, text in texts.items()
    }


@pytest.mark.parametrize("name", ["policy.npz", "policy.onnx"])
def test_a_file_says_its_run_and_what_is_certified(trained_pair: Path, name, tmp_path):
    run = trained_pair / "seed-1"
    load(run).export(tmp_path / name)
    found, certificate = header_of(tmp_path / name), (run / "certificate.json").read_bytes()
    stored = json.loads(certificate)
    for same in ("run_id", "status", "epsilon", "delta"):
        assert found[same] == stored[same]
    assert (found["unit"], found["adjacency"]) == ("trajectory", "zero-out")
    assert (found["algorithm"], found["policy"], found["updates"]) == ("dppg", "ema", 10)
    assert found["ledger_head"] == stored["head_hash"]
    assert found["certificate_sha256"] == hashlib.sha256(certificate).hexdigest()
    if name == "policy.npz":
        policy_files.read(tmp_path / name)


@pytest.mark.parametrize("name", ["policy.npz", "policy.onnx"])
def test_a_file_says_that_nobody_is_protected(name, tmp_path):
    run = tmp_path / "run"
    assert main(["train", "ppo", "--out", str(run), *SMALL_PPO, "--json"]) == 0
    load(run).export(tmp_path / name)
    found = header_of(tmp_path / name)
    assert (found["algorithm"], found["status"]) == ("ppo", "not private")
    assert "protects nobody" in found["why"]
    for none in ("epsilon", "delta", "unit", "adjacency", "ledger_head", "certificate_sha256"):
        assert found[none] is None


def test_a_file_of_a_run_whose_ledger_is_lost_says_so(trained_pair: Path, tmp_path):
    run = Path(shutil.copytree(trained_pair / "seed-0", tmp_path / "run"))
    agent = load(run)
    (run / "ledger.sqlite").unlink()
    agent.export(tmp_path / "policy.npz")
    found = header_of(tmp_path / "policy.npz")
    assert (found["status"], found["epsilon"]) == ("unknown", None)
    assert "is missing" in found["why"]


@pytest.mark.parametrize("seed", [-1, 2**31, 2**32])
def test_a_seed_that_would_wrap_is_refused(trained_pair: Path, seed):
    with pytest.raises(ValueError, match="seed must be in"):
        load(trained_pair / "seed-0", seed=seed)


@pytest.mark.parametrize(
    "seen", [None, "x", 1.0, [1.0, [2.0]], {"a": 1.0}, [1j] * SIZE, [np.nan] * SIZE]
)
def test_what_is_no_observation_is_refused_in_one_sentence(seen):
    with pytest.raises(ValueError, match=r"^an observation must be a finite vector, or a batch"):
        Agent(POLICIES["discrete"](), "last", 7).act(seen)


@pytest.mark.parametrize("name", ["box", "standardised box"])
def test_spread_of_actions_is_in_the_file(name, tmp_path):
    made = POLICIES[name]()
    Agent(made, "last", 7).export(tmp_path / "policy.npz")
    expected = made(jnp.zeros(SIZE)).log_std
    np.testing.assert_allclose(np.load(tmp_path / "policy.npz")["log_std"], expected, rtol=1e-6)


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    class Other(Policy):
        pass

    other = Other(SIZE, Discrete(2), (), KEY)
    with pytest.raises(ValueError, match="a policy of type Other cannot be exported"):
        Agent(other, "last", 1).export(tmp_path / "policy.npz")
    table = EpsilonGreedy(lambda seen: seen, 0.0)
    with pytest.raises(ValueError, match="cannot be exported"):
        Agent(table, "last", 1).export(tmp_path / "policy.npz")
    good = Agent(POLICIES["discrete"](), "last", 1)
    with pytest.raises(ValueError, match=r"\.npz or \.onnx, not policy\.pkl"):
        good.export(tmp_path / "policy.pkl")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError, match=r"sotto\[onnx\]"):
        good.export(tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []
