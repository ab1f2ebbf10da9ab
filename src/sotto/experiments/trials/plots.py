"""The figure of the trials."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sotto.experiments.plots import COLOURS, GREY, headline, panels, title


def draw(path: Path, cells: Sequence[dict[str, Any]]) -> None:
    """Draws private values with their intervals beside the values without privacy.

    Args:
        path: file of the PNG.
        cells: one for each trial and epsilon.
    """
    trials = list(dict.fromkeys(one["trial"] for one in cells))
    with panels(path, (5.2, 4.2), columns=len(trials)) as axes:
        for plot, trial in zip(axes, trials, strict=True):
            own = [one for one in cells if one["trial"] == trial]
            names = [one["action"] for one in own[0]["policies"]]
            for place, name in enumerate(names):
                color = COLOURS[place]
                for column, cell in enumerate(own):
                    one = cell["policies"][place]
                    x = column + 0.16 * (place - (len(names) - 1) / 2)
                    plot.plot(
                        [x, x], [one["low"], one["high"]], color=color, linewidth=2.2, alpha=0.8
                    )
                    plot.plot(
                        x, one["value"], "o", color=color, label=name if column == 0 else None
                    )
                truth = own[0]["policies"][place]
                plot.axhline(truth["without_privacy"], color=color, linewidth=1, linestyle=":")
            plot.set_xticks(range(len(own)), [f"{one['epsilon']:g}" for one in own])
            plot.set_xlabel("epsilon")
            plot.set_ylabel(own[0]["unit"])
            title(plot, own[0]["title"], "dotted: value without privacy")
            plot.legend(
                fontsize=8, labelcolor=GREY, loc="center left", bbox_to_anchor=(0, -0.24), ncols=3
            )
        headline(axes[0], "Private values of policies, with joint intervals of 95% (public data)")
