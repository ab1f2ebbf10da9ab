"""The algorithms that a run can be of, by name, and their settings as JSON.

A package adds one with an entry point in the group `sotto.algorithms`:

```
[project.entry-points."sotto.algorithms"]
bandit = "sotto_bandit:Bandit"
```
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import entry_points
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from sotto.errors import RunError

if TYPE_CHECKING:  # listing commands does not import JAX
    from sotto.algorithms.base import Algorithm

GROUP = "sotto.algorithms"


class Entry(NamedTuple):
    """Where an algorithm is; nothing is imported before it is asked for."""

    target: str
    """`module:Class`."""
    summary: str
    """A few words for the list of commands."""


# Names of modules, so that listing commands does not import JAX. Kickstarting comes from the top
# floor, which knows how to reach a teacher's service.
_OURS: dict[str, Entry] = {
    "dppg": Entry("sotto.algorithms.dppg.algorithm:DPPG", "private policy gradient"),
    "ppo": Entry("sotto.algorithms.baselines.algorithm:PPO", "the baseline without privacy"),
    "a2c": Entry("sotto.algorithms.baselines.algorithm:A2C", "a simpler baseline"),
    "kickstart": Entry("sotto.serving.kickstart:Kickstart", "a student of a private teacher"),
    "dqn": Entry("sotto.algorithms.baselines.algorithm:DQN", "Q-learning without privacy"),
    "functional-q": Entry(
        "sotto.algorithms.functional_q.algorithm:FunctionalQ", "Q-learning that protects rewards"
    ),
    "expert-offline": Entry(
        "sotto.algorithms.expert_offline.algorithm:ExpertOffline",
        "offline learning from experts, each protected",
    ),
}


_LARGEST = 2**53
_LONGEST = 256  # of lists and texts (paths are longer)
_PATH = 4096
_LAYERS, _WIDEST, _MOST_WEIGHTS = 32, 2**16, 2**28


@cache
def entries() -> Mapping[str, Entry]:
    """Every algorithm by name: ours, and those of installed packages."""
    others = {
        point.name: Entry(point.value, f"from the package {point.dist.name}" if point.dist else "")
        for point in entry_points(group=GROUP)
    }
    return others | _OURS  # a package does not take one of our names


def algorithm_named(name: str) -> Algorithm[Any]:
    """A new object of the algorithm of this name; it may keep what it has read of files.

    Raises:
        RunError: there is none.
    """
    if name not in entries():
        known = ", ".join(sorted(entries()))
        raise RunError(f"there is no algorithm {name!r} installed here; there are {known}")
    module, _, attribute = entries()[name].target.partition(":")
    algorithm: Algorithm[Any] = getattr(importlib.import_module(module), attribute)()
    return algorithm


def algorithm_of(config: Any) -> Algorithm[Any]:
    """The algorithm whose settings these are.

    Raises:
        ValueError: they are no settings of an algorithm.
    """
    for name in entries():
        algorithm = algorithm_named(name)
        if type(config) is algorithm.config_type:
            return algorithm
    raise ValueError(f"{type(config).__name__} holds the settings of no algorithm")


def config_to_json(algorithm: Algorithm[Any], config: Any) -> dict[str, Any]:
    """The settings as JSON values.

    Raises:
        RunError: they are larger than any run's.
    """
    values: dict[str, Any] = TypeAdapter(algorithm.config_type).dump_python(config, mode="json")
    _require_bounded(algorithm.name, values)
    return values


def _require_bounded(name_of: str, values: dict[str, Any]) -> None:
    """Refuses settings that would ask for memory without end, before anything is made of them."""
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        sizes = [one for one in items if isinstance(one, int)]
        wide = name.endswith("hidden") and (
            len(items) > _LAYERS
            or any(size > _WIDEST for size in sizes)
            or sum(a * b for a, b in pairwise(sizes)) > _MOST_WEIGHTS
        )
        if (
            wide
            or len(items) > _LONGEST
            or any(isinstance(one, list | dict) for one in items)
            or any(abs(size) > _LARGEST for size in sizes)
            or any(isinstance(one, float) and not math.isfinite(one) for one in items)
            or any(isinstance(one, str) and len(one) > _PATH for one in items)
        ):
            raise RunError(
                f"{name} = {repr(value)[:60]} is no setting that a run of {name_of} can have; "
                "numbers are finite and at most 2^53, lists are flat, and a network has at most "
                f"{_LAYERS} layers of {_WIDEST} units and {_MOST_WEIGHTS} weights"
            )


def former_names(algorithm: Algorithm[Any]) -> Mapping[str, str]:
    """Names of settings that earlier versions stored, and their present names."""
    found: Mapping[str, str] = getattr(algorithm.config_type, "former_names", {})
    return found


def under_first_names(algorithm: Algorithm[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON under the names that they had at first, for digests that must not change."""
    first = {present: former for former, present in former_names(algorithm).items()}
    return {first.get(name, name): value for name, value in values.items()}


def config_from_json(algorithm: Algorithm[Any], values: dict[str, Any]) -> Any:
    """The settings that `config_to_json` wrote, in this version or an earlier one.

    Raises:
        RunError: they are not settings of this algorithm, or larger than any run's.
    """
    former = former_names(algorithm)
    named = {former.get(name, name): value for name, value in values.items()}
    if len(named) < len(values):
        raise RunError("config.json holds a setting under its former name and its present one")
    known = {field.name for field in fields(algorithm.config_type)}
    if strange := sorted(named.keys() - known):
        name = strange[0][:60]
        raise RunError(f"config.json holds {name}, which is no setting of {algorithm.name}")
    _require_bounded(algorithm.name, named)
    try:
        kind = TypeAdapter(algorithm.config_type)
        return kind.validate_json(json.dumps(named), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise RunError(
            f"config.json holds no settings of {algorithm.name}: {where} {problem['msg']}"
        ) from error
