"""Policies as files that need neither sotto nor JAX: numpy arrays, or ONNX.

The arrays, and how to read them with numpy alone, are in `sotto.rl.policy_files`.

Exporting a released policy costs no privacy, since the file is a function of the policy.
"""

from pathlib import Path
from typing import Any

import numpy as np

from sotto.algorithms.baselines.q_learning import EpsilonGreedy, QNetwork
from sotto.algorithms.dppg.parts import StandardisedPolicy
from sotto.files import replacing, strict_json
from sotto.rl.networks import MLP, Policy
from sotto.rl.policy_files import Flat, flat_network, flat_policy, write

_OPSET, _IR = 17, 8  # versions of ONNX that common runtimes support


def flat(policy: Any) -> Flat:
    """Returns the arrays of a policy.

    Raises:
        ValueError: the policy is not one network on scaled observations.
    """
    kind = type(policy)
    if kind is StandardisedPolicy:
        return _standardised(policy)
    if kind is Policy:
        return flat_policy(policy)
    if kind is EpsilonGreedy and type(policy.values) is QNetwork:
        values = policy.values
        zeros = np.zeros(len(values.observation_scale))
        return flat_network(
            values.network, zeros, values.observation_scale, values.scale, 0.0, "values"
        )
    if kind is EpsilonGreedy and type(policy.values) is MLP:
        size = len(policy.values.weights[0])
        return flat_network(policy.values, np.zeros(size), np.ones(size), 1.0, 0.0, "values")
    what = type(policy.values) if kind is EpsilonGreedy else kind
    raise ValueError(
        f"a policy of type {what.__name__} cannot be exported; only networks on scaled "
        "observations can"
    )


def export(policy: Any, file: Path, about: dict[str, Any]) -> None:
    """Writes a policy into a file, as `sotto.Agent.export` says.

    Args:
        policy: policy of one run.
        file: file that ends in .npz or .onnx; it is replaced if it exists.
        about: JSON values for the header.

    Raises:
        ValueError: the file has another ending, or the policy cannot be exported.
        ModuleNotFoundError: ONNX is not installed.
    """
    if file.suffix not in (".npz", ".onnx"):
        raise ValueError(f"give a file that ends in .npz or .onnx, not {file.name}")
    found = flat(policy)
    if file.suffix == ".onnx":
        _write_onnx(found, file, about | found.header)
    else:
        write(found, file, about)


def _standardised(policy: StandardisedPolicy) -> Flat:
    """Folds the released means and deviations into the constants of the observations."""
    found, moments = flat_policy(policy.policy), policy.moments
    mean, deviation = (np.asarray(one, np.float64) for one in moments.mean_and_deviation())
    scale = np.array(moments.scale)
    centre = np.zeros(len(scale)) if moments.centre is None else np.array(moments.centre)
    shift = centre + mean / scale - (centre - found.centre) * deviation
    return Flat(
        shift.astype(np.float32),
        (found.scale / deviation).astype(np.float32),
        found.weights,
        found.biases,
        found.log_std,
        found.outputs,
    )


def _text(value: Any) -> str:
    """Returns a value of the header as text, which is JSON for all but text."""
    return value if isinstance(value, str) else strict_json(value)


def _write_onnx(found: Flat, file: Path, header: dict[str, Any]) -> None:
    """Writes a graph from `observation` [batch, obs] to `outputs` [batch, n] and `action`."""
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "ONNX files need the package onnx: pip install 'sotto[onnx]'", name="onnx"
        ) from error
    # The difference of an observation from itself is NaN where it is not finite, and 0 elsewhere.
    # Multiplied by ones, it makes the whole row NaN, and it has no product of another length.
    actions = found.weights[-1].shape[1]
    ones = np.ones((len(found.centre), actions), np.float32)
    constants = {"centre": found.centre, "scale": found.scale, "ones": ones}
    nodes = [
        helper.make_node("Sub", ["observation", "observation"], ["finite"]),
        helper.make_node("Sub", ["observation", "centre"], ["centred"]),
        helper.make_node("Mul", ["centred", "scale"], ["layer_0"]),
    ]
    last = len(found.weights) - 1
    for i, (weights, biases) in enumerate(zip(found.weights, found.biases, strict=True)):
        constants |= {f"weights_{i}": weights, f"biases_{i}": biases}
        made = f"sum_{i}"
        inputs = [f"layer_{i}", f"weights_{i}", f"biases_{i}"]
        nodes.append(helper.make_node("Gemm", inputs, [made]))
        if i < last:
            nodes.append(helper.make_node("Tanh", [made], [f"layer_{i + 1}"]))
    nodes.append(helper.make_node("Gemm", ["finite", "ones", f"sum_{last}"], ["outputs"]))
    number = onnx.TensorProto.FLOAT
    outputs = [helper.make_tensor_value_info("outputs", number, ["batch", actions])]
    if found.discrete:
        constants |= {"none": np.array(-1), "first": np.array(0)}
        nodes += [
            helper.make_node("Gather", ["outputs", "first"], ["one"], axis=1),
            helper.make_node("IsNaN", ["one"], ["refused"]),
            helper.make_node("ArgMax", ["outputs"], ["best"], axis=1, keepdims=0),
            helper.make_node("Where", ["refused", "none", "best"], ["action"]),
        ]
        kind, shape = onnx.TensorProto.INT64, ["batch"]
    else:
        nodes.append(helper.make_node("Identity", ["outputs"], ["action"]))
        kind, shape = number, ["batch", actions]
    outputs.append(helper.make_tensor_value_info("action", kind, shape))
    seen = helper.make_tensor_value_info("observation", number, ["batch", len(found.centre)])
    arrays = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "policy", [seen], outputs, arrays)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
        producer_name="sotto",
    )
    helper.set_model_props(model, {name: _text(value) for name, value in header.items()})
    onnx.checker.check_model(model)
    with replacing(file) as opened:
        opened.write(model.SerializeToString())
