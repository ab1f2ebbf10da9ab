"""Learning curves as Parquet files, one for each arm, so that a stopped experiment goes on."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sotto.errors import RunError
from sotto.experiments.learning_curves import Cost, Curve

_ABOUT = b"sotto.curve"
_RETURN = "_return"


def table(curve: Curve) -> pa.Table:
    """A row for each seed and point: arm, seed, env_steps, answered, and a column a kind of return.

    What is no column (label, cost) is in the schema's metadata.
    """
    seeds, points = curve.answered.shape
    columns = {
        "arm": pa.array([curve.arm] * (seeds * points)),
        "seed": pa.array(np.repeat(np.asarray(curve.seeds, np.int64), points)),
        "env_steps": pa.array(np.tile(curve.steps, seeds)),
        "answered": pa.array(curve.answered.ravel()),
    }
    for kind, values in curve.returns.items():
        columns[kind + _RETURN] = pa.array(values.ravel(), from_pandas=True)  # NaN is null
    about = {
        "label": curve.label,
        "cost": None if curve.cost is None else dataclasses.asdict(curve.cost),
    }
    return pa.table(columns).replace_schema_metadata({_ABOUT: json.dumps(about)})


def write(path: Path, curves: Sequence[Curve]) -> None:
    """Replaces the file at once, so that a stopped command leaves whole data."""
    tables = [table(curve) for curve in curves]
    whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")
    partial = path.with_suffix(".partial")
    pq.write_table(whole, partial)
    partial.replace(path)


def read(path: Path) -> Curve:
    """A curve that `write` wrote alone.

    Raises:
        RunError: the file is no such curve.
    """
    try:
        data = pq.read_table(path)
        about = json.loads(data.schema.metadata[_ABOUT])
        seeds = data["seed"].to_numpy()
        first = np.flatnonzero(np.r_[True, seeds[1:] != seeds[:-1]])
        shape = (len(first), len(seeds) // len(first))
        return Curve(
            arm=data["arm"][0].as_py(),
            label=about["label"],
            seeds=tuple(seeds[first].tolist()),
            steps=data["env_steps"].to_numpy()[: shape[1]],
            returns={
                name.removesuffix(_RETURN): np.array(data[name].to_numpy()).reshape(shape)
                for name in data.column_names
                if name.endswith(_RETURN)
            },
            answered=data["answered"].to_numpy().reshape(shape),
            cost=None if about["cost"] is None else Cost(**about["cost"]),
        )
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{path} is not a learning curve; delete it, and it is made again"
        ) from error
