"""What earlier versions kept, brought into the store, so that it is not trained again.

Each function leaves the old files as they are, and does nothing for results that are in the store.
Names are made in the same way as before, so that a result is found under its arm's.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sotto.errors import RunError
from sotto.experiments.engine import Store, digest, write_result

_Found = Iterator[tuple[Path, dict[str, Any]]]  # the folder of a result, and its data


def row_file(arm: str, settings: str, seeds: Sequence[int]) -> str:
    """The name of a result that was a row of a list: it told rows apart by settings and seeds."""
    return f"{arm}-{digest(repr((settings, tuple(seeds))))}"


def curve_tables(store: Store) -> None:
    """FILE.parquet and FILE.eqx of `sotto reproduce gohari2021`."""
    import pyarrow.parquet as pq

    def found(path: Path) -> _Found:
        place, policies = store.place(path.stem), path.with_suffix(".eqx")
        data = pq.read_table(path)
        cost = json.loads(data.schema.metadata[b"sotto.curve"])["cost"]
        seeds = list(dict.fromkeys(data["seed"].to_pylist()))
        columns = {
            name.removesuffix("_return"): np.array(data[name].to_numpy(), float)
            .reshape(len(seeds), -1)
            .tolist()
            for name in data.column_names
            if name not in ("arm", "seed")
        }
        # The answers' ledgers were not kept: what they cost is in `cost`, without a certificate.
        more = {} if cost is None else {"cost": cost}
        steps = columns.pop("env_steps")
        yield place, {"seeds": seeds, "steps": steps, "curves": columns, "more": more}
        if policies.exists() and not (place / "policies.eqx").exists():
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(policies, place / "policies.eqx")

    _adopt(store.folder.glob("*.parquet"), found)


def outcomes_by_seed(store: Store) -> None:
    """FILE/seed-K/outcome.json of `sotto reproduce rio2025`."""

    def found(path: Path) -> _Found:
        old = json.loads(path.read_text())
        data = {
            "seeds": [old["seed"]],
            "steps": [old["steps"]],
            "curves": {"return": [old["curve"]]},
            "returns": {kind: [value] for kind, value in old["returns"].items()},
            "more": {"noise_multiplier": old["noise_multiplier"]},
        }
        yield path.parent, data | _certified(old)

    _adopt(store.folder.glob("*/seed-*/outcome.json"), found)


def outcomes(store: Store) -> None:
    """FILE.json of `sotto reproduce sharma2024`."""

    def found(path: Path) -> _Found:
        old = json.loads(path.read_text())
        data = {
            "seeds": old["seeds"],
            "steps": [],
            "curves": {},
            "returns": {"return": old["returns"]},
            "more": {name: old[name] for name in ("experts", "empty", "curve")},
        }
        yield path.with_suffix(""), data | _certified(old)

    _adopt(store.folder.glob("*.json"), found)


def _holds(_old: Mapping[str, Any]) -> bool:
    return True


def rows(
    path: Path,
    store: Store,
    kind: str,
    values: str,
    steps: str,
    holds: Callable[[Mapping[str, Any]], bool] = _holds,
) -> None:
    """A list of curves: of `sotto reproduce wang2019`, and figures 1 and 5 of rio2025.

    Args:
        path: the list; nothing happens where it is missing.
        store: takes them.
        kind: what was measured.
        values: name of the measured values, [points][seeds].
        steps: name of the steps behind each point.
        holds: whether what was certified of a row is still proved. If not, its status is "none".
    """

    def found(path: Path) -> _Found:
        for old in json.loads(path.read_text()):
            file = row_file(old["arm"], old["settings"], old["seeds"])
            data = {
                "seeds": old["seeds"],
                "steps": [old[steps]] * len(old["seeds"]),
                "curves": {kind: np.transpose(old[values]).tolist()},
            }
            lapsed = {} if holds(old) else {"status": "none", "epsilon": None}
            yield store.place(file), data | _certified(old) | lapsed

    _adopt([path] if path.exists() else [], found)


def _adopt(paths: Iterable[Path], found: Callable[[Path], _Found]) -> None:
    """Writes the results that are found in old files and not yet in the store."""
    for path in paths:
        try:
            results = list(found(path))
        except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
            raise RunError(f"{path} is not what an earlier version kept; move it away") from error
        for place, data in results:
            if not (place / "result.json").exists():
                write_result(place / "result.json", data)


def _certified(old: Mapping[str, Any]) -> dict[str, Any]:
    names = ("status", "epsilon", "delta", "seconds")
    return {name: old[name] for name in names if name in old}
