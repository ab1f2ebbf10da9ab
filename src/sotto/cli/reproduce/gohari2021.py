"""`sotto reproduce gohari2021`: figures of Gohari et al. 2021, and return against epsilon."""

import os
from pathlib import Path
from typing import Any, Literal

from sotto.cli.reproduce import answer, check_used, check_workers
from sotto.cli.terminal.options import Json, Ray, Workers
from sotto.cli.terminal.output import print_table, say
from sotto.cli.terminal.parsing import command
from sotto.cluster import on_cluster
from sotto.experiments.gohari2021.arms import EPSILONS, TEACHERS, EnvName, FigureName
from sotto.extras import require
from sotto.keys import seed_range


@command("reproduce gohari2021")
def gohari(
    figure: Literal[FigureName, "tradeoff"],
    /,
    env_id: EnvName = "CartPole-v1",
    seeds: int = 30,
    scale: float = 1.0,
    teachers: int = TEACHERS,
    epsilons: tuple[float, ...] = EPSILONS,
    out: Path = Path("runs/gohari2021"),
    workers: Workers = None,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Reproduces figures of Gohari et al. 2021, "Privacy-Preserving Kickstarting Deep RL".

    Figures:
      fig2a           teacher and student, each alone
      fig2b           students with exact answers
      fig2c           students with private answers that account for the noise
      fig2d           students with private answers that ignore the noise
      supp-lambda     the same for several values of lambda
      supp-vanishing  the same for several vanishing coefficients
      tradeoff        not in the paper: a student asks the mean of many small teachers, whose
                      answers are certified about training data; it shows how much faster than
                      alone the student learns, against epsilon

    OUT receives a PNG, a Parquet file with every point of every seed, and a JSON summary. The
    summary has the steps to reach the teacher's return, the final returns, and the epsilon of the
    answers, both certified and as the paper claims.

    The command first prints how long it will take: minutes per figure for CartPole-v1 and
    Acrobot-v1, about 15 minutes per seed and curve for AirRaid at full length, and twice that for
    exact answers and unaware students. Every curve is kept as soon as it ends. If the command is
    stopped, the same command continues.

    Examples:
      sotto reproduce gohari2021 fig2c --env-id Acrobot-v1 --seeds 30
      sotto reproduce gohari2021 fig2c --env-id AirRaid --seeds 1 --scale 0.1
      sotto reproduce gohari2021 tradeoff --env-id CartPole-v1

    Args:
        figure: fig2a, fig2b, fig2c, fig2d, supp-lambda, supp-vanishing or tradeoff.
        env_id: AirRaid as in the paper (pip install 'sotto[atari]'), or an environment in JAX.
        seeds: Number of trainings of each curve, with seeds 0, 1, 2, ...
        scale: Share of the environment steps (AirRaid: of 4 million; others: of 50,000). Another
            number of steps than the whole is in the names of the files.
        teachers: Number of small teachers, for tradeoff.
        epsilons: Target epsilons, for tradeoff.
        out: Folder for figures, data and kept trainings.
    """
    chosen = tuple(seed_range(0, seeds))
    if not scale > 0:
        raise ValueError("--scale must be positive")
    check_workers(workers)
    check_used(
        figure,
        {
            "--teachers": (teachers != TEACHERS, ("tradeoff",)),
            "--epsilons": (epsilons != EPSILONS, ("tradeoff",)),
        },
    )
    require("pyarrow")
    processes = workers or os.cpu_count() or 1
    if figure == "tradeoff":
        if env_id == "AirRaid":
            raise ValueError(
                "tradeoff trains hundreds of teachers, for CartPole-v1 or Acrobot-v1; give --env-id"
            )
        if teachers < 2:
            raise ValueError("--teachers must be at least 2: one person changes one of them")
        if not epsilons or min(epsilons) <= 0:
            raise ValueError("--epsilons must be positive")
        from sotto.experiments.gohari2021.tradeoff import Tradeoff, make_tradeoff

        what = Tradeoff(env_id, scale, chosen, teachers, epsilons, out)
        with on_cluster(ray):
            summary, show = make_tradeoff(what, processes, say), _print_tradeoff
    else:
        from sotto.experiments.gohari2021.figures import Reproduction, make_figure

        experiment = Reproduction(env_id, scale, chosen, out)
        with on_cluster(ray):
            summary, show = make_figure(experiment, figure, processes, say), _print_figure
    answer(summary, json, out / summary["name"], show)


def _print_figure(summary: dict[str, Any]) -> None:
    kind = summary["kind"]
    table = []
    for arm in summary["arms"]:
        measured, cost = arm["returns"][kind], arm["cost"]
        epsilon = f"{cost['epsilon']:.3g}" if cost else "inf" if arm["answered"] else "-"
        returns = f"{measured['final_median']:.4g}", f"{measured['steps_to_reach']:.6g}"
        table.append((arm["label"], *returns, f"{arm['answered']:.0f}", epsilon))
    print_table(("", "in the end", "steps to reach", "answers", "epsilon"), table)


def _print_tradeoff(summary: dict[str, Any]) -> None:
    table = []
    for row in summary["points"]:
        faster = (f"{row[kind]['speed_up']:.3g}" for kind in ("greedy", "sampled"))
        table.append((row["mechanism"], f"{row['epsilon']:.4g}", str(row["answered"]), *faster))
    print_table(("", "epsilon", "answers", "times faster, greedy", "sampled"), table)
