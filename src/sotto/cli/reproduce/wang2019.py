"""`sotto reproduce wang2019`: the figures of Wang and Hegde 2019."""

from pathlib import Path
from typing import Literal

from sotto.cli.reproduce import answer
from sotto.cli.terminal.options import FirstSeed, Json, Ray, Seeds
from sotto.cli.terminal.output import say
from sotto.cli.terminal.parsing import command
from sotto.cluster import on_cluster
from sotto.extras import require
from sotto.keys import seed_range


@command("reproduce wang2019")
def wang(
    figure: Literal["fig1", "fig2a", "fig2b", "tradeoff", "cartpole"],
    /,
    seeds: Seeds = 10,
    first_seed: FirstSeed = 100,
    out: Path = Path("runs/wang2019"),
    quick: bool = False,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Reproduces figures of Wang and Hegde 2019, "Privacy-preserving Q-learning
    with functional noise in continuous spaces".

    Figures:
      fig1          Algorithm 1 as printed, which protects nobody, by noise level and reset factor
      fig2a, fig2b  proved modes, baselines and the paper's claim at epsilon 0.9 and 0.45; the
                    reward of one transition is protected
      tradeoff      return against epsilon, and against the radius of reward functions
      cartpole      a task of four dimensions, compared with DQN

    The command first prints how long it will take. Every arm is kept in OUT/arms with its ledger
    and certificate as soon as it ends. If the command is stopped, the same command continues. OUT
    receives FIGURE.png, FIGURE.parquet and FIGURE.json.

    Examples:
      sotto reproduce wang2019 fig2a --seeds 10 --out runs/wang2019
      sotto reproduce wang2019 tradeoff --quick

    Args:
        figure: fig1, fig2a, fig2b, tradeoff or cartpole.
        out: Folder for figures and data.
        quick: Use a tenth of the samples and few methods, to try the command.
    """
    from sotto.experiments.wang2019.figures import make_figure

    chosen = seed_range(first_seed, seeds)
    require("pyarrow")
    with on_cluster(ray):
        summary = make_figure(figure, chosen, out, say, quick)
    answer(summary, json, out / f"{figure}{'-quick' if quick else ''}")
