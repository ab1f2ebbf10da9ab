"""A released policy as JSON, and the same policy in numpy, for devices and for the service.

The JSON form has "layers" (weights [inputs, outputs] and bias), "observation_scale",
"observation_centre" and "distribution". An input is (observation - centre) * scale. Each layer but
the last is followed by tanh. For "softmax" the last outputs are logits of the actions. For
"gaussian" the action's mean is action_centre + action_scale * outputs, and its standard deviation
is action_scale * exp(log_std).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri, softmax

from sotto.rl.networks import Policy, require_length


def as_json(policy: Policy, version: int) -> dict[str, Any]:
    """Returns the JSON form of a policy."""
    found: dict[str, Any] = {
        "version": version,
        "layers": [
            {"weights": np.asarray(weights).tolist(), "bias": np.asarray(bias).tolist()}
            for weights, bias in zip(policy.network.weights, policy.network.biases, strict=True)
        ],
        "activation": "tanh",
        "observation_scale": list(policy.observation_scale),
        "observation_centre": None
        if policy.observation_centre is None
        else list(policy.observation_centre),
        "distribution": "softmax" if policy.log_std is None else "gaussian",
    }
    if policy.log_std is not None:
        size = len(policy.log_std)
        found["log_std"] = np.asarray(policy.log_std).tolist()
        found["action_scale"] = list(policy.action_scale or (1.0,) * size)
        found["action_centre"] = list(policy.action_centre or (0.0,) * size)
    return found


class NumpyPolicy:
    """A released policy that chooses actions without JAX.

    Args:
        found: the JSON form.

    Raises:
        KeyError, ValueError: it is not the JSON form of a policy.
    """

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.version = int(found["version"])
        self._layers = [
            (np.asarray(layer["weights"], np.float64), np.asarray(layer["bias"], np.float64))
            for layer in found["layers"]
        ]
        self._scale = np.asarray(found["observation_scale"], np.float64)
        centre = found["observation_centre"]
        self._centre = np.zeros_like(self._scale) if centre is None else np.asarray(centre)
        self.discrete = found["distribution"] == "softmax"
        if not self.discrete:
            self._std = np.exp(found["log_std"]) * np.asarray(found["action_scale"])
            self._action_scale = np.asarray(found["action_scale"])
            self._action_centre = np.asarray(found["action_centre"])

    @property
    def observations(self) -> int:
        """Number of entries of an observation."""
        return len(self._scale)

    @property
    def draws(self) -> int:
        """Number of uniform numbers that decide an action."""
        return 1 if self.discrete else len(self._std)

    def outputs(self, observations: Float[np.ndarray, "*n obs"]) -> Float[np.ndarray, "*n outputs"]:
        """Returns the last layer's outputs, which do not depend on how many rows there are.

        Raises:
            ValueError: the observations have another length.
        """
        require_length(observations, self.observations)
        # A product of matrices may round each row otherwise than a product with this row alone.
        hidden = ((observations - self._centre) * self._scale)[..., None, :]
        for weights, bias in self._layers[:-1]:
            hidden = np.tanh(hidden @ weights + bias)
        weights, bias = self._layers[-1]
        found: np.ndarray = (hidden @ weights + bias)[..., 0, :]
        return found

    def most_likely(self, observation: Float[np.ndarray, " obs"]) -> int | list[float]:
        """Returns the most likely action."""
        outputs = self.outputs(observation)
        if self.discrete:
            return int(outputs.argmax())
        mean: list[float] = (self._action_centre + self._action_scale * outputs).tolist()
        return mean

    def actions(
        self, observations: Float[np.ndarray, "n obs"], uniform: Float[np.ndarray, "n draws"]
    ) -> list[Any]:
        """Returns the actions that uniform numbers in [0, 1) select: int or list[float] each."""
        outputs = self.outputs(observations)
        if self.discrete:
            steps = np.cumsum(softmax(outputs, axis=-1), axis=-1)
            below = np.sum(steps <= uniform, axis=-1)
            found: list[Any] = np.minimum(below, steps.shape[-1] - 1).tolist()
        else:
            normal = ndtri(np.maximum(uniform, 2.0**-54))  # 0 would be infinitely far away
            mean = self._action_centre + self._action_scale * outputs
            found = (mean + self._std * normal).tolist()
        return found

    def action(
        self, observation: Float[np.ndarray, " obs"], rng: np.random.Generator
    ) -> int | list[float]:
        """Returns a sampled action."""
        found: int | list[float] = self.actions(observation[None], rng.random((1, self.draws)))[0]
        return found
