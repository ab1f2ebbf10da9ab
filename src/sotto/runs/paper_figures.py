"""Figures that reproduce papers, in sotto's style."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from sotto.papers.rio2025 import EpsilonPoint, UtilityPoint
from sotto.runs.figures import BLUE, GREEN, GREY, ORANGE, STYLE, figure


def epsilon_formulas(path: Path, points: Sequence[EpsilonPoint], delta: float) -> None:
    """Figure 3 of Rio et al. 2025: epsilon against the noise multiplier, by each formula."""
    z = [point.noise_multiplier for point in points]
    classical = np.asarray([point.classical for point in points])
    with figure(path, height=4.0) as axes:
        axes.plot(z, [point.zhao for point in points], color=ORANGE, label="Zhao et al.: loose")
        axes.plot(
            z,
            np.where(classical < 1, classical, np.nan),
            color=GREY,
            label="C1 / z: valid below epsilon 1",
        )
        axes.plot(
            z,
            np.where(classical >= 1, classical, np.nan),
            color=GREY,
            linestyle=":",
            label="C1 / z: no guarantee here",
        )
        axes.plot(
            z, [point.tight for point in points], color=BLUE, label="analytic Gaussian: tight"
        )
        axes.plot(
            z,
            [point.tight_replace_one for point in points],
            color=GREEN,
            linestyle="--",
            label="tight, replace-one adjacency",
        )
        axes.set(xscale="log", yscale="log", xlabel="noise multiplier z", ylabel="epsilon")
        axes.set_title(f"Privacy of one pass of DPPG, delta = {delta:g}")
        axes.legend(fontsize=9)


def privacy_utility(path: Path, points: Sequence[UtilityPoint], delta: float) -> None:
    """Figures 2 and 6: return of the averaged policy against epsilon, a panel per environment."""
    environments = sorted({point.env_id for point in points}, reverse=True)
    with mpl.rc_context(STYLE):
        drawing = Figure(figsize=(5.2 * len(environments), 3.9))
        panels = drawing.subplots(1, len(environments), squeeze=False)[0]
        for axes, env_id in zip(panels, environments, strict=True):
            for name, colour, label in (
                ("sotto", BLUE, "sotto: certificate proved"),
                ("paper", ORANGE, "paper's settings: noise as claimed, not proved"),
            ):
                chosen = sorted(
                    (p for p in points if p.env_id == env_id and p.preset == name),
                    key=lambda point: point.epsilon,
                )
                if not chosen:
                    continue
                epsilon = [point.epsilon for point in chosen]
                returns = np.asarray([point.returns["ema greedy"] for point in chosen])
                mean, spread = returns.mean(axis=1), returns.std(axis=1)
                axes.plot(epsilon, mean, color=colour, marker="o", markersize=4, label=label)
                axes.fill_between(
                    epsilon, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0
                )
            axes.set(xscale="log", xlabel=f"epsilon at delta = {delta:g}", ylabel="greedy return")
            axes.set_title(env_id)
        panels[0].legend(fontsize=9, loc="upper left", bbox_to_anchor=(0.0, -0.18))
        drawing.savefig(path, dpi=160)
