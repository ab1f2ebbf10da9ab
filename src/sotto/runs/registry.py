"""All algorithms by name, and their settings as JSON.

A package adds one with an entry point in the group `sotto.algorithms`:

```
[project.entry-points."sotto.algorithms"]
offers = "sotto_bandit:Bandit"
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
from sotto.problems import first_problem

if TYPE_CHECKING:  # listing commands does not import JAX
    from sotto.algorithms.base import Algorithm

GROUP = "sotto.algorithms"


class Entry(NamedTuple):
    """Location of an algorithm, which is imported only when it is needed."""

    target: str
    """Module and class, as `module:Class`."""
    summary: str
    """Description in a few words for the list of commands."""


# These are names of modules, so that listing commands does not import JAX.
_BUILT_IN: dict[str, Entry] = {
    "dppg": Entry("sotto.algorithms.dppg.algorithm:DPPG", "private policy gradient"),
    "ppo": Entry("sotto.algorithms.baselines.algorithm:PPO", "the baseline without privacy"),
    "a2c": Entry("sotto.algorithms.baselines.algorithm:A2C", "a simpler baseline"),
    "kickstart": Entry("sotto.serving.kickstart:Kickstart", "a student of a private teacher"),
    "dqn": Entry("sotto.algorithms.baselines.algorithm:DQN", "Q-learning without privacy"),
    "functional-q": Entry(
        "sotto.algorithms.functional_q.algorithm:FunctionalQ", "Q-learning that protects rewards"
    ),
    "rlhf": Entry(
        "sotto.algorithms.rlhf.algorithm:RLHF", "a language model tuned to people's ratings"
    ),
    "offline": Entry(
        "sotto.algorithms.offline_people.algorithm:Offline",
        "offline learning from people's logs, each person protected",
    ),
    "bandit": Entry(
        "sotto.algorithms.bandit.algorithm:Bandit",
        "a contextual bandit for people who rated items, each person protected",
    ),
    "expert-offline": Entry(
        "sotto.algorithms.expert_offline.algorithm:ExpertOffline",
        "offline learning from experts, each protected",
    ),
}


_LARGEST = 2**53
_LONGEST = 256  # items of a list
_PATH = 4096
_LAYERS, _WIDEST, _MOST_WEIGHTS = 32, 2**16, 2**28


@cache
def entries() -> Mapping[str, Entry]:
    """Returns every algorithm by name: those of sotto, and those of installed packages."""
    others = {
        point.name: Entry(point.value, f"from the package {point.dist.name}" if point.dist else "")
        for point in entry_points(group=GROUP)
    }
    return others | _BUILT_IN  # other packages cannot replace sotto's algorithms


def algorithm_named(name: str) -> Algorithm[Any]:
    """Returns a new object of the algorithm of this name; it may cache files that it reads.

    Raises:
        RunError: there is no such algorithm.
    """
    if name not in entries():
        known = ", ".join(sorted(entries()))
        raise RunError(f"no algorithm {name!r} is installed; choose one of {known}")
    module, _, attribute = entries()[name].target.partition(":")
    algorithm: Algorithm[Any] = getattr(importlib.import_module(module), attribute)()
    return algorithm


def algorithm_of(config: Any) -> Algorithm[Any]:
    """Returns the algorithm to which these settings belong.

    Raises:
        ValueError: they do not belong to any algorithm.
    """
    for name in entries():
        algorithm = algorithm_named(name)
        if type(config) is algorithm.config_type:
            return algorithm
    raise ValueError(
        f"{type(config).__name__} is not the settings of an algorithm; give settings such as "
        "sotto.DPPG(...), or install the package whose entry point names their algorithm "
        "(docs/own_algorithm.md)"
    )


def config_to_json(algorithm: Algorithm[Any], config: Any) -> dict[str, Any]:
    """Returns the settings as JSON values.

    Raises:
        RunError: a value is outside the limits of `_require_bounded`.
    """
    values: dict[str, Any] = TypeAdapter(algorithm.config_type).dump_python(config, mode="json")
    _require_bounded(algorithm.name, values)
    return values


def _require_bounded(name_of: str, values: dict[str, Any]) -> None:
    """Refuses settings that would need unlimited memory, before anything is built from them."""
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
                f"{name} = {repr(value)[:60]} is not possible for a run of {name_of}; give finite "
                "numbers up to 2^53, flat lists, and networks of at most "
                f"{_LAYERS} layers of {_WIDEST} units and {_MOST_WEIGHTS} weights"
            )


def former_names(algorithm: Algorithm[Any]) -> Mapping[str, str]:
    """Returns the present name of each setting that earlier versions stored under another one."""
    found: Mapping[str, str] = getattr(algorithm.config_type, "former_names", {})
    return found


def config_from_json(
    algorithm: Algorithm[Any], values: dict[str, Any], source: str = "config.json"
) -> Any:
    """Reads settings that `config_to_json` of this version or an earlier one wrote.

    Args:
        algorithm: the algorithm.
        values: its settings.
        source: where they are from, as the subject of a sentence that refuses them.

    Raises:
        RunError: they are not settings of this algorithm, or outside the limits of a run.
    """
    former = former_names(algorithm)
    named = {former.get(name, name): value for name, value in values.items()}
    if len(named) < len(values):
        raise RunError(
            f"{source} has a setting under both its former and its present name; remove one"
        )
    known = {field.name for field in fields(algorithm.config_type)}
    if strange := sorted(named.keys() - known):
        name = strange[0][:60]
        raise RunError(f"{source} has {name}, which is not a setting of {algorithm.name}")
    _require_bounded(algorithm.name, named)
    try:
        kind = TypeAdapter(algorithm.config_type)
        return kind.validate_json(json.dumps(named), strict=True)
    except ValidationError as error:
        raise RunError(
            f"{source} does not have valid settings of {algorithm.name}: {first_problem(error)}"
        ) from error
