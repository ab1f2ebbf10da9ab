"""Table 1 and figures 2, 3, 6 and 8 of Rio et al. 2025: trained, drawn, and put into numbers.

Each leaves NAME.png, NAME.parquet and NAME.json in a folder, and returns what is in the JSON.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sotto.algorithms.dppg.config import PresetName
from sotto.experiments import kept_before
from sotto.experiments.engine import Result, Say, Store, run, write_json, write_table
from sotto.experiments.rio2025 import cells as rio2025
from sotto.experiments.rio2025 import plots, trainings
from sotto.experiments.rio2025.cells import Cell
from sotto.experiments.rio2025.trainings import judged
from sotto.experiments.statistics import over_seeds


@dataclass(frozen=True)
class Reproduction:
    """What the table and the figures share.

    Attributes:
        env_ids: environments.
        presets: whose settings DPPG has.
        seeds: of every cell.
        delta: of the guarantees.
        total_steps: environment steps of every training; None for the presets' own.
        out: folder of the results; trainings are kept in out/trainings.
        workers: processes.
        say: told in words what happens.
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
        """Files of a table or figure; shortened trainings have files of their own."""
        steps = "" if self.total_steps is None else f"-{self.total_steps}-steps"
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / f"{name}{steps}"

    def train(self, cells: Sequence[Cell]) -> list[Result]:
        """The results of all cells; those that are kept are not trained again."""
        store = Store(self.out / "trainings")
        kept_before.outcomes_by_seed(store)
        planned = [arm for cell in cells for arm in trainings.arms(cell, self.seeds)]
        return run(planned, store, self.workers, self.say)


def make_table1(what: Reproduction) -> dict[str, Any]:
    """Returns of PPO, A2C and DPPG beside the paper's, with what is true of their privacy."""
    cells = rio2025.table1(what.env_ids, what.presets, what.delta, what.total_steps)
    results = what.train(cells)
    plots.table1(what.stem("table1").with_suffix(".png"), results, what.delta)
    return _finish(what, "table1", results)


def make_tradeoff(
    what: Reproduction, name: str, epsilons: Sequence[float], noise_multipliers: Sequence[float]
) -> dict[str, Any]:
    """Figures 2 and 6: return against epsilon, or against the paper's noise multipliers.

    Args:
        what: to reproduce.
        name: of the files.
        epsilons: targets that noise is calibrated to.
        noise_multipliers: given instead; one of the two is empty.
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
    return _finish(what, name, results)


def make_figure8(what: Reproduction) -> dict[str, Any]:
    """Figure 8: learning curves of the cells of table 1, a picture for each preset."""
    cells = rio2025.table1(what.env_ids, what.presets, what.delta, what.total_steps)
    results = what.train(cells)
    for preset in what.presets:
        chosen = [one for one in results if one.arm.settings.preset in (None, preset)]
        path = what.stem(f"fig8-{preset}").with_suffix(".png")
        plots.learning_curves(path, chosen, preset)
    stem = what.stem("fig8")
    write_table(stem.with_suffix(".parquet"), [row for one in results for row in _points(one)])
    return _write_summary(what, "fig8", [summary(one) for one in results])


def make_figure3(what: Reproduction) -> dict[str, Any]:
    """Figure 3: epsilon against the noise multiplier by the invalid, the loose and the tight form.

    Nothing is trained.
    """
    points = rio2025.figure3(delta=what.delta)
    stem = what.stem("fig3")
    plots.epsilon_formulas(stem.with_suffix(".png"), points, what.delta)
    rows = [asdict(point) | {"delta": what.delta} for point in points]
    write_table(stem.with_suffix(".parquet"), rows)
    return _write_summary(what, "fig3", rows)


def summary(result: Result) -> dict[str, Any]:
    """One cell in numbers, beside the paper's."""
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


def _finish(what: Reproduction, name: str, results: Sequence[Result]) -> dict[str, Any]:
    """Writes the table of final returns and the summary."""
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
    write_table(what.stem(name).with_suffix(".parquet"), rows)
    return _write_summary(what, name, [summary(one) for one in results])


def _points(result: Result) -> list[dict[str, Any]]:
    """One row for each seed and point of the learning curve."""
    cell: Cell = result.arm.settings
    return [
        _about(cell) | {"seed": seed, "env_steps": steps, "policy": judged(cell), "return": value}
        for row, seed in enumerate(result.seeds)
        for steps, value in zip(
            result.steps[row].tolist(), result.curves["return"][row].tolist(), strict=True
        )
    ]


def _write_summary(what: Reproduction, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = {"name": what.stem(name).name, "figure": name, "delta": what.delta}
    if name != "fig3":
        found |= {"seeds": list(what.seeds), "total_steps": what.total_steps}
    found["cells" if name != "fig3" else "points"] = rows
    write_json(what.stem(name).with_suffix(".json"), found)
    return found
