"""Table 1 and figures 2, 3, 6 and 8 of Rio et al. 2025: trainings, pictures and numbers.

Each function writes NAME.png, NAME.parquet and NAME.json, and returns the contents of the JSON.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sotto.algorithms.dppg.presets import PresetName
from sotto.experiments.engine import Result, ResultFolder, Say, run
from sotto.experiments.figure_files import point_rows, write_data
from sotto.experiments.rio2025 import cells as rio2025
from sotto.experiments.rio2025 import plots, trainings
from sotto.experiments.rio2025.cells import Cell
from sotto.experiments.rio2025.trainings import judged
from sotto.experiments.statistics import over_seeds


@dataclass(frozen=True)
class Reproduction:
    """Settings that the table and the figures share.

    Attributes:
        env_ids: names of the environments.
        presets: presets of DPPG's settings.
        seeds: seeds of every cell.
        delta: delta of the guarantees.
        total_steps: environment steps of every training; None takes the presets' numbers.
        out: folder of the results; trainings are kept in out/trainings.
        workers: number of processes.
        say: shows the progress.
    """

    env_ids: tuple[str, ...]
    presets: tuple[PresetName, ...]
    seeds: tuple[int, ...]
    delta: float
    total_steps: int | None
    out: Path
    workers: int
    say: Say

    def stem(self, name: str) -> Path:
        """Returns the path of a table or figure without suffix; it names shortened trainings."""
        steps = "" if self.total_steps is None else f"-{self.total_steps}-steps"
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / f"{name}{steps}"

    def train(self, cells: Sequence[Cell]) -> list[Result]:
        """Returns the results of all cells; kept ones are not trained again."""
        store = ResultFolder(self.out / "trainings")
        planned = [arm for cell in cells for arm in trainings.arms(cell, self.seeds)]
        return run(planned, store, self.workers, self.say)


def make_table1(what: Reproduction) -> dict[str, Any]:
    """Makes table 1: returns of PPO, A2C and DPPG beside the paper's, with proved epsilons."""
    cells = rio2025.table1(what.env_ids, what.presets, what.delta, what.total_steps)
    results = what.train(cells)
    plots.table1(what.stem("table1").with_suffix(".png"), results, what.delta)
    return _finish(what, "table1", *_returns(results))


def make_tradeoff(
    what: Reproduction, name: str, epsilons: Sequence[float], noise_multipliers: Sequence[float]
) -> dict[str, Any]:
    """Makes figures 2 and 6: return against epsilon, or against the paper's noise multipliers.

    Args:
        what: common settings.
        name: name of the files.
        epsilons: target epsilons; empty if noise multipliers are given.
        noise_multipliers: noise multipliers; empty if epsilons are given.
    """
    noises = [(None, epsilon) for epsilon in epsilons] + [(z, None) for z in noise_multipliers]
    cells = [
        Cell(env_id, "dppg", preset, z, epsilon, what.delta, what.total_steps)
        for env_id in what.env_ids
        for preset in what.presets
        for z, epsilon in noises
    ]
    results = what.train(cells)
    plots.tradeoff(what.stem(name).with_suffix(".png"), results, what.delta, by_noise=not epsilons)
    return _finish(what, name, *_returns(results))


def make_figure8(what: Reproduction) -> dict[str, Any]:
    """Makes figure 8: learning curves of the cells of table 1, with a picture for each preset."""
    cells = rio2025.table1(what.env_ids, what.presets, what.delta, what.total_steps)
    results = what.train(cells)
    for preset in what.presets:
        chosen = [one for one in results if one.arm.settings.preset in (None, preset)]
        path = what.stem(f"fig8-{preset}").with_suffix(".png")
        plots.learning_curves(path, chosen, preset)
    rows = []
    for one in results:
        cell: Cell = one.arm.settings
        rows += point_rows(one, "env_steps", **_about(cell), policy=judged(cell))
    return _finish(what, "fig8", rows, [summary(one) for one in results])


def make_figure3(what: Reproduction) -> dict[str, Any]:
    """Makes figure 3: epsilon against the noise multiplier, by each formula; nothing is trained."""
    points = rio2025.figure3(delta=what.delta)
    plots.epsilon_formulas(what.stem("fig3").with_suffix(".png"), points, what.delta)
    rows = [asdict(point) | {"delta": what.delta} for point in points]
    return _finish(what, "fig3", rows, rows)


def summary(result: Result) -> dict[str, Any]:
    """Summarises a cell in numbers, beside the paper's."""
    cell: Cell = result.arm.settings
    paper = rio2025.reported(cell)
    return _about(cell) | {
        "noise_multiplier": result.more["noise_multiplier"],
        "claimed_epsilon": cell.claimed_epsilon,
        "noise_epsilon": cell.noise_epsilon,
        "status": result.status,
        "certified_epsilon": result.epsilon,
        "judged": judged(cell),
        **over_seeds(result.returns[judged(cell)]),
        "paper_mean": None if paper is None else paper.mean,
        "paper_half_width": None if paper is None else paper.half_width,
        "env_steps": float(result.points[-1]),
        "returns": {kind: over_seeds(values) for kind, values in result.returns.items()},
        "seconds": round(result.seconds, 1),
    }


# --- files ---------------------------------------------------------------------------------------


def _about(cell: Cell) -> dict[str, Any]:
    names = ("env_id", "label", "method", "preset", "noise_multiplier", "target_epsilon", "delta")
    return {name: getattr(cell, name) for name in names}


_Rows = list[dict[str, Any]]


def _returns(results: Sequence[Result]) -> tuple[_Rows, _Rows]:
    """Returns a row for each seed's return of each policy, and a row for each cell."""
    rows = [
        _about(result.arm.settings)
        | {
            "status": result.status,
            "certified_epsilon": result.epsilon,
            "noise_epsilon": result.arm.settings.noise_epsilon,
            "seed": seed,
            "policy": kind,
            "return": float(values[row]),
            "judged": kind == judged(result.arm.settings),
        }
        for result in results
        for row, seed in enumerate(result.seeds)
        for kind, values in result.returns.items()
    ]
    return rows, [summary(one) for one in results]


def _finish(what: Reproduction, name: str, rows: _Rows, cells: _Rows) -> dict[str, Any]:
    """Writes NAME.parquet and NAME.json; returns the contents of the JSON."""
    stem = what.stem(name)
    found = {"name": stem.name, "figure": name, "delta": what.delta}
    if name != "fig3":
        found |= {"seeds": list(what.seeds), "total_steps": what.total_steps}
    found["cells" if name != "fig3" else "points"] = cells
    write_data(stem, rows, found)
    return found
