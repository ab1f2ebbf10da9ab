"""`sotto reproduce`: a paper's figure, as data and as a picture."""

import json as json_module
import math
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from sotto.algorithms.dppg_config import PresetName
from sotto.cli.parsing import parse, print_json
from sotto.papers import rio2025

_ENVIRONMENTS = ("CartPole-v1", "Acrobot-v1")


def rio(args: list[str]) -> int:
    """Runs `sotto reproduce rio2025`."""

    def run(
        figure: Literal["fig2", "fig3", "fig6"],
        /,
        preset: tuple[PresetName, ...] = ("sotto", "paper"),
        env_id: tuple[str, ...] = _ENVIRONMENTS,
        epsilons: tuple[float, ...] = rio2025.CURVE_EPSILONS,
        seeds: int = 10,
        delta: float = 1e-5,
        out: Path = Path("runs/rio2025"),
        json: bool = False,
    ) -> None:
        """Figures of Rio et al. 2025, "Differentially Private Policy Gradient".

        fig3 draws epsilon against the noise multiplier by three formulas, in a second. fig2 and
        fig6 are the same curve, return against epsilon: they train both presets at every epsilon,
        about an hour on two cores for everything (CartPole with preset sotto: two minutes). Points
        are kept in OUT as they come, and a stopped command goes on where it was.

        Examples:
          sotto reproduce rio2025 fig3
          sotto reproduce rio2025 fig2 --env-id CartPole-v1 --preset sotto --seeds 10

        Args:
            figure: fig2, fig3 or fig6.
            preset: which settings to train.
            env_id: on which environments.
            epsilons: targets of the certificates.
            seeds: trainings of each point, side by side.
            delta: delta of the guarantee.
            out: folder for figure and data.
            json: print the data as one JSON object.
        """
        from sotto.runs import paper_figures

        out.mkdir(parents=True, exist_ok=True)
        if figure == "fig3":
            points = rio2025.figure3(delta=delta)
            paper_figures.epsilon_formulas(out / "fig3.png", points, delta)
            _finish(out / "fig3.json", [asdict(point) for point in points], json)
            return
        data = out / "fig2.json"
        done = _kept(data)
        for environment in env_id:
            for name in preset:

                def keep(point: rio2025.UtilityPoint) -> None:
                    done.append(point)
                    _write(data, [asdict(one) for one in done])
                    if not json:
                        print(_line(point), flush=True)

                rio2025.figure2(
                    environment, name, epsilons, seeds=seeds, delta=delta, done=done, report=keep
                )
        wanted = [
            point
            for point in done
            if point.env_id in env_id and point.preset in preset and point.epsilon in epsilons
        ]
        paper_figures.privacy_utility(out / "fig2.png", wanted, delta)
        _finish(data, [asdict(point) for point in wanted], json, write=False)

    parse(run, args, "reproduce rio2025")
    return 0


def _line(point: rio2025.UtilityPoint) -> str:
    returns = point.returns["ema greedy"]
    mean = math.fsum(returns) / len(returns)
    spread = math.sqrt(math.fsum((r - mean) ** 2 for r in returns) / len(returns))
    return (
        f"{point.env_id:<12} {point.preset:<6} epsilon {point.epsilon:<6g} "
        f"noise multiplier {point.noise_multiplier:<8.3g} return {mean:.1f} ± {spread:.1f}"
    )


def _kept(path: Path) -> list[rio2025.UtilityPoint]:
    if not path.exists():
        return []
    rows = json_module.loads(path.read_text())
    return [rio2025.UtilityPoint(**row) for row in rows]


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    """Replaces the file at once, so that a stopped command leaves whole data."""
    partial = path.with_suffix(".partial")
    partial.write_text(json_module.dumps(rows, indent=1))
    partial.replace(path)


def _finish(path: Path, rows: list[dict[str, object]], json: bool, write: bool = True) -> None:
    if write:
        _write(path, rows)
    if json:
        print_json({"points": rows})
    else:
        print(f"Data: {path}; picture: {path.with_suffix('.png')}")
