"""Copies results of earlier versions into the store, so that they are not trained again.

Each function leaves the old files as they are and skips results that are in the store. File names
are computed as in those versions, so that an arm finds its old result.
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
    """Returns the file name of a result that earlier versions kept as a row of a list."""
    return f"{arm}-{digest(repr((settings, tuple(seeds))))}"


def curve_tables(store: Store) -> None:
    """Copies FILE.parquet and FILE.eqx of `sotto reproduce gohari2021`."""
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
        # The ledgers of the answers were not kept: `cost` has their epsilon without a certificate.
        more = {} if cost is None else {"cost": cost}
        steps = columns.pop("env_steps")
        yield place, {"seeds": seeds, "steps": steps, "curves": columns, "more": more}
        if policies.exists() and not (place / "policies.eqx").exists():
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(policies, place / "policies.eqx")

    _adopt(store.folder.glob("*.parquet"), found)


def outcomes_by_seed(store: Store) -> None:
    """Copies FILE/seed-K/outcome.json of `sotto reproduce rio2025`."""

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
    """Copies FILE.json of `sotto reproduce sharma2024`."""

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
    """Copies a list of curves of `sotto reproduce wang2019`, or of figure 1 or 5 of rio2025.

    Args:
        path: file of the list; nothing happens if it is missing.
        store: destination.
        kind: kind of the measured values.
        values: key of the measured values, [points][seeds].
        steps: key of the steps at each point.
        holds: whether the certificate of a row is still proved. If not, its status becomes "none".
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
    """Writes the results of old files that are not yet in the store."""
    for path in paths:
        try:
            results = list(found(path))
        except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
            raise RunError(
                f"{path} is not a result of an earlier version; move it to another folder"
            ) from error
        for place, data in results:
            if not (place / "result.json").exists():
                write_result(place / "result.json", data)


def _certified(old: Mapping[str, Any]) -> dict[str, Any]:
    names = ("status", "epsilon", "delta", "seconds")
    return {name: old[name] for name in names if name in old}
