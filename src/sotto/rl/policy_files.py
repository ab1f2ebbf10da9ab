"""Policies as numpy arrays in a file, which can be read and written without sotto and JAX.

A policy is (observation - centre) * scale, followed by a tanh network. Its outputs are either a
number for each action, and the greedy action has the largest number, or the mean of an action in a
box. Read a file with numpy alone:

```
import json
import numpy as np

def act(file, observation):
    policy = np.load(file)
    header = json.loads(str(policy["header"]))
    x = np.asarray(observation, np.float32)
    if x.shape[-1:] != policy["centre"].shape:
        raise ValueError(f"an observation must have {len(policy['centre'])} numbers")
    if not np.isfinite(x).all():
        raise ValueError("an observation must be finite")
    x = (x - policy["centre"]) * policy["scale"]
    for layer in range(header["layers"]):
        x = x @ policy[f"weights_{layer}"] + policy[f"biases_{layer}"]
        if layer < header["layers"] - 1:
            x = np.tanh(x)
    return x.argmax(axis=-1) if header["actions"] == "discrete" else x
```

Sample an action in a box as mean + exp(log_std) * a standard normal; `log_std` is in the file.
Sample a discrete action from the softmax of the outputs, if the header calls them logits.

An ONNX file takes `observation` [batch, obs], and gives `outputs` [batch, n] and `action`. It fails
for another length. For an observation that is not finite the outputs are NaN, and the action is -1,
or NaN in a box: check it before you act.

`sotto.Agent.export` writes these facts about the run into the header, or into the metadata of ONNX:

- `run_id`, `algorithm`, `policy` and `updates`;
- `status`, as in `sotto runs`, and `why`, its reason where nothing is proved;
- `epsilon`, `delta`, `unit`, `adjacency` and `distance` of the certificate of this run alone, null
  where nothing is proved;
- `ledger_head`, the hash of the ledger's last entry, and `certificate_sha256`, the SHA-256 of the
  certificate.json that follows from it.

They prove nothing by themselves: verify the certificate.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sotto.files import replacing, strict_json
from sotto.rl.networks import MLP, Policy

FORMAT = "sotto policy 1"


@dataclass(frozen=True)
class Flat:
    """A policy as arrays.

    Attributes:
        centre, scale: constants of the observations.
        weights, biases: arrays of each layer; the last layer includes the scale of the outputs.
        log_std: log standard deviation of an action in a box; None for discrete actions.
        outputs: "logits" or "values" of actions, or the "mean" of an action.
    """

    centre: Float[np.ndarray, " obs"]
    scale: Float[np.ndarray, " obs"]
    weights: tuple[Float[np.ndarray, "_ _"], ...]
    biases: tuple[Float[np.ndarray, " _"], ...]
    log_std: Float[np.ndarray, " a"] | None
    outputs: str

    @property
    def discrete(self) -> bool:
        """Whether the greedy action is the index of the largest output."""
        return self.log_std is None

    @property
    def header(self) -> dict[str, Any]:
        """Facts about the arrays, for the file."""
        return {
            "format": FORMAT,
            "layers": len(self.weights),
            "activation": "tanh",
            "actions": "discrete" if self.discrete else "box",
            "outputs": self.outputs,
            "observation_size": len(self.centre),
        }


def flat_policy(policy: Policy) -> Flat:
    """Returns the arrays of a policy."""
    size = len(policy.observation_scale)
    centre = policy.observation_centre or (0.0,) * size
    if policy.log_std is None:
        return flat_network(policy.network, centre, policy.observation_scale, 1.0, 0.0, "logits")
    actions = policy.log_std.shape[0]
    units = policy.action_scale or (1.0,) * actions
    middle = policy.action_centre or (0.0,) * actions
    log_std = policy.log_std + np.array([math.log(unit) for unit in units])
    return flat_network(
        policy.network, centre, policy.observation_scale, units, middle, "mean", np.asarray(log_std)
    )


def flat_network(
    network: MLP,
    centre: Any,
    scale: Any,
    factor: Any,
    offset: Any,
    outputs: str,
    log_std: np.ndarray | None = None,
) -> Flat:
    """Returns the arrays of `offset + factor * network(...)`; the last layer includes both.

    Args:
        network: layers of the policy, or of the values of actions.
        centre, scale: constants of the observations.
        factor, offset: constants of the outputs.
        outputs: kind of the outputs, as in `Flat`.
        log_std: as in `Flat`.
    """
    weights = [np.asarray(one, np.float32) for one in network.weights]
    biases = [np.asarray(one, np.float32) for one in network.biases]
    weights[-1] = (weights[-1] * np.asarray(factor)).astype(np.float32)
    biases[-1] = (biases[-1] * np.asarray(factor) + np.asarray(offset)).astype(np.float32)
    spread = None if log_std is None else log_std.astype(np.float32)
    about, units = np.asarray(centre, np.float32), np.asarray(scale, np.float32)
    return Flat(about, units, tuple(weights), tuple(biases), spread, outputs)


def write(found: Flat, file: Path, about: Mapping[str, Any]) -> None:
    """Writes a policy into an .npz file atomically. An earlier file is replaced.

    Args:
        found: the policy.
        file: the file.
        about: JSON values for the header, beside those of `Flat.header`.

    Raises:
        OSError: it cannot be written; an earlier file is unchanged.
    """
    arrays: dict[str, Any] = {f"weights_{i}": one for i, one in enumerate(found.weights)}
    arrays |= {f"biases_{i}": one for i, one in enumerate(found.biases)}
    arrays |= {} if found.log_std is None else {"log_std": found.log_std}
    with replacing(file) as opened:
        text = np.array(strict_json({**about, **found.header}))
        np.savez(opened, header=text, centre=found.centre, scale=found.scale, **arrays)


def read(file: Path) -> Flat:
    """Reads a policy from an .npz file. Nothing in it is executed.

    Raises:
        ValueError: the file cannot be read, or is not a policy; the sentence says why.
    """
    if not file.is_file():
        raise ValueError(f"{file} is not a policy: there is no such file")
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: np.asarray(stored[name]) for name in stored.files}
    except Exception as error:  # damaged archives raise many kinds
        raise ValueError(f"{file} is not a policy: it is not an .npz archive of numbers") from error
    try:
        header = json.loads(str(arrays.get("header")))
    except (ValueError, RecursionError):
        header = None
    if why := _fault(header, arrays):
        raise ValueError(f"{file} is not a policy: {why}")
    layers = range(header["layers"])
    return Flat(
        arrays["centre"].astype(np.float32),
        arrays["scale"].astype(np.float32),
        tuple(arrays[f"weights_{i}"].astype(np.float32) for i in layers),
        tuple(arrays[f"biases_{i}"].astype(np.float32) for i in layers),
        arrays["log_std"].astype(np.float32) if "log_std" in arrays else None,
        header["outputs"],
    )


def _fault(header: Any, arrays: Mapping[str, np.ndarray]) -> str:
    """Says in which way a header and arrays are no policy; empty if they are one."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        return f"it has no header of the format {FORMAT!r}"
    layers, box = header.get("layers"), "log_std" in arrays
    if type(layers) is not int or not 1 <= layers < len(arrays):
        return "its number of layers does not fit its arrays"
    if header.get("activation") != "tanh":
        return "its activation is not tanh"
    kinds = ("mean",) if box else ("logits", "values")
    actions = "box" if box else "discrete"
    if header.get("actions") != actions or header.get("outputs") not in kinds:
        return "its header and its arrays are about different kinds of actions"
    vectors = ["centre", "scale", *(f"biases_{i}" for i in range(layers)), *["log_std"] * box]
    dimensions = dict.fromkeys(vectors, 1) | {f"weights_{i}": 2 for i in range(layers)}
    for name, wanted in dimensions.items():
        if name not in arrays:
            return f"it has no {name}"
        if arrays[name].ndim != wanted or not np.issubdtype(arrays[name].dtype, np.floating):
            return f"{name} has not {wanted} dimensions of floating-point numbers"
    return ""


def as_policy(found: Flat, like: Policy, name: str, setting: str = "hidden") -> Policy:
    """Returns a policy that acts as the file's, with the constants and shapes of another one.

    Args:
        found: the file's policy.
        like: policy whose constants of observations and actions, and whose shapes, are kept.
        name: name of the file, for errors.
        setting: name of the setting of the inner layers, for errors.

    Raises:
        ValueError: the shapes or the kind of actions differ, or a number is not finite.
    """
    if found.discrete != (like.log_std is None) or found.outputs == "values":
        kinds = "logits" if like.log_std is None else "the mean of an action in a box"
        raise ValueError(f"{name} has {found.outputs} as outputs, and training needs {kinds}")
    size = len(like.observation_scale)
    actions = like.network.biases[-1].shape[0]
    units = np.array(like.action_scale or (1.0,) * actions)
    middle = np.array(like.action_centre or (0.0,) * actions)
    weights = [one.astype(np.float64) for one in found.weights]
    biases = [one.astype(np.float64) for one in found.biases]
    shapes = [one.shape for one in (*weights, *biases, found.centre, found.scale)]
    wanted = [one.shape for one in (*like.network.weights, *like.network.biases)]
    spread_fits = found.log_std is None or found.log_std.shape == (actions,)
    if shapes != [*wanted, (size,), (size,)] or not spread_fits:
        layers = [len(found.centre), *(len(one) for one in biases)]
        ours = [size, *(one.shape[0] for one in like.network.biases)]
        raise ValueError(
            f"{name} has layers of {layers} numbers, and training has {ours}, with constants and "
            f"log_std to match; the inner ones are those of {setting}"
        )
    # The file's inputs are a linear function of ours, and its outputs one of ours.
    scale = np.array(like.observation_scale)
    shift = np.array(like.observation_centre or (0.0,) * size) - found.centre
    biases[0] = biases[0] + (shift * found.scale) @ weights[0]
    weights[0] = weights[0] * (found.scale / scale)[:, None]
    weights[-1], biases[-1] = weights[-1] / units, (biases[-1] - middle) / units
    arrays = [*weights, *biases]
    if found.log_std is not None:
        arrays.append(found.log_std - np.log(units))
    with np.errstate(over="ignore"):
        leaves = [one.astype(np.float32) for one in arrays]
        spreads = [] if found.log_std is None else [np.exp(leaves[-1])]
    if not all(np.isfinite(one).all() for one in (*leaves, *spreads)):
        raise ValueError(f"{name} has numbers that are not finite")

    def of(policy: Policy) -> list[Any]:
        network = policy.network
        spread = [] if policy.log_std is None else [policy.log_std]
        return [*network.weights, *network.biases, *spread]

    changed: Policy = eqx.tree_at(of, like, [jnp.asarray(one) for one in leaves])
    return changed
