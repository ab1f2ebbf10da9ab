"""The plan of a training on devices: public settings, from which both halves make the same release.

The server sends the settings and the noise of its certificate as JSON. A device computes that noise
from the settings by itself, and takes no part if it finds another one, as another version of sotto
may. It imports nothing that a message names: an algorithm must be installed, and an environment
must be one of sotto's.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import jax
import numpy as np
from flwr.app import ArrayRecord, RecordDict
from jaxtyping import PyTree

from sotto.algorithms.base import Algorithm
from sotto.federated.device import PROTOCOL, RoundTerms
from sotto.federated.errors import ProtocolError
from sotto.privacy.release.noise_shares import Promise, SharedRelease
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part, ShareOfNoise
from sotto.rl.envs.registry import from_data
from sotto.runs.registry import algorithm_named, config_from_json, config_to_json

_NUMBERS = ("protocol", "promised", "colluding", "bits", "horizon")
_FIELDS = {"algorithm", "config", "parts", "shares", *_NUMBERS}

_ROUNDING = 1e-6
"""Relative difference of two machines' calibrations, whose roots are found up to a tolerance."""


@dataclass(frozen=True)
class Plan:
    """Public settings of a training on devices.

    Attributes:
        algorithm, config: the algorithm and its settings.
        promise: how many devices are in every sum.
        horizon: number of releases of the stream.
        parts, shares: clip norms and noise that the server states; None where they are computed.
    """

    algorithm: Algorithm[Any]
    config: Any
    promise: Promise
    horizon: int
    parts: Mapping[str, Part] | None = None
    shares: Mapping[str, ShareOfNoise] | None = None

    @cached_property
    def shared(self) -> SharedRelease:
        """The release, whose noise the devices make in shares: exactly as the server states it.

        Raises:
            ProtocolError: the server states another noise than follows from the settings here.
        """
        release, unit = self._release_and_unit
        if self.parts is not None:
            _require_stated(release.parts, self.parts, _ROUNDING)
            release = replace(release, parts=self.parts)
        made = SharedRelease(release, self.promise, self.first, unit)
        if self.shares is not None:
            _require_stated(made.shares.parts, self.shares, 0.0)
        return made

    def require_people(self) -> None:
        """Refuses simulated people whom no device can simulate.

        Raises:
            ValueError: they are simulated, and `local` needs data that only an owner's device has.
        """
        release, unit = self._release_and_unit
        if release.population == "simulated" and jax.tree.leaves(unit):
            raise ValueError(
                "devices do not simulate people of this environment; name one that is written in "
                "JAX, or give the settings population: real and the devices their owners' data"
            )

    @cached_property
    def _release_and_unit(self) -> tuple[Release, PyTree[Any]]:
        return self.algorithm.on_devices(self.config, self.horizon)

    @cached_property
    def first(self) -> PyTree[Any]:
        """The public state before the first release, without an axis of runs."""
        return self.algorithm.one_state(self.config, self.config.seed)

    def terms(self, round_id: bytes) -> RoundTerms:
        """Returns the terms of one round."""
        promise = self.promise
        return RoundTerms(round_id, promise.bits, promise.promised, promise.colluding)

    def of_state(self, state: PyTree[Any]) -> ArrayRecord:
        """Returns the public state, without an axis of runs, for a message."""
        return ArrayRecord([np.asarray(leaf) for leaf in jax.tree.leaves(state)])

    def state_in(self, found: RecordDict) -> PyTree[Any]:
        """Returns the public state in a message.

        Raises:
            ProtocolError: it is not a state of this training.
        """
        leaves, structure = jax.tree.flatten(self.first)
        try:
            arrays = found.array_records["state"].to_numpy_ndarrays()  # never unpickles
        except (KeyError, ValueError, TypeError) as error:
            raise ProtocolError("the message has no public state") from error
        if [(x.shape, x.dtype) for x in arrays] != [(x.shape, x.dtype) for x in leaves]:
            raise ProtocolError("the public state is not one of this training")
        return jax.tree.unflatten(structure, arrays)

    def to_json(self) -> str:
        """Returns the settings as JSON."""
        return json.dumps(
            {
                "protocol": PROTOCOL,
                "algorithm": self.algorithm.name,
                "config": config_to_json(self.algorithm, self.config),
                **asdict(self.promise),
                "horizon": self.horizon,
                "parts": _as_dicts(self.shared.release.parts),
                "shares": _as_dicts(self.shared.shares.parts),
            }
        )

    @classmethod
    @lru_cache(maxsize=2)  # a device compiles the release once for each training
    def from_json(cls, text: str, named: str | None = None) -> "Plan":
        """Returns the plan of `to_json`.

        Args:
            text: the settings.
            named: environment that the device's owner has named; the module of another one is not
                imported.

        Raises:
            ProtocolError: they are not settings of an installed algorithm.
        """
        try:
            values = json.loads(text)
            if set(values) != _FIELDS or any(type(values[name]) is not int for name in _NUMBERS):
                raise ProtocolError(
                    f"a plan has the fields {', '.join(sorted(_FIELDS))}; install the server's "
                    "version of sotto on the device"
                )
            algorithm = algorithm_named(values["algorithm"])
            env_id = values["config"].get("env_id")
            if env_id is not None:
                _require_named(str(env_id), named)
            config = config_from_json(algorithm, values["config"])
            parts = {name: Part(**one) for name, one in values["parts"].items()}
            shares = {name: ShareOfNoise(**one) for name, one in values["shares"].items()}
        except ProtocolError:
            raise
        except (ValueError, TypeError, AttributeError) as error:  # also RunError
            raise ProtocolError(f"the plan has no valid settings: {error}") from error
        promise = Promise(values["promised"], values["colluding"], values["bits"])
        return cls(algorithm, config, promise, values["horizon"], parts, shares)


def _as_dicts(
    parts: Mapping[str, Part] | Mapping[str, ShareOfNoise],
) -> dict[str, dict[str, float]]:
    return {name: one.model_dump() for name, one in parts.items()}


def _require_stated(
    own: Mapping[str, Part] | Mapping[str, ShareOfNoise],
    stated: Mapping[str, Part] | Mapping[str, ShareOfNoise],
    tolerance: float,
) -> None:
    """Refuses numbers of the server that this device does not find, too."""
    here, there = _as_dicts(own), _as_dicts(stated)
    close = here.keys() == there.keys() and all(
        math.isclose(value, there[name][field], rel_tol=tolerance)
        for name, values in here.items()
        for field, value in values.items()
    )
    if not close:
        raise ProtocolError(
            f"the server states the noise {there}, and this device computes {here} from the same "
            "settings; install the server's version of sotto on the device"
        )


def _require_named(env_id: str, named: str | None) -> None:
    """Refuses an environment whose module would be imported, unless the device's owner named it."""
    try:
        from_data(env_id, "the plan", named)
    except ValueError:
        raise ProtocolError(
            f"the plan names the environment {env_id!r}, and making it would run code of a module; "
            f"if you trust it, add env-id={env_id!r} to the device's --node-config"
        ) from None
