"""Exported policies are the policies: in plain numpy, and as ONNX."""

import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sotto.algorithms.baselines.q_learning import EpsilonGreedy, QNetwork
from sotto.algorithms.dppg.parts import ObservationMoments, StandardisedPolicy
from sotto.rl import policy_files
from sotto.rl.envs.base import Box, Discrete
from sotto.rl.envs.registry import make
from sotto.rl.networks import MLP, Policy
from sotto.runs.agents import export
from sotto.runs.agents.agent import Agent

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
    (seen,) = onnx.load(tmp_path / "policy.onnx").graph.input
    assert seen.type.tensor_type.shape.dim[1].dim_value == size


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
