"""`sotto reproduce gohari2021`: figure 2, the supplement, and what privacy costs the student."""

import os
from pathlib import Path
from typing import Any, Literal

from sotto.cli.parsing import parse
from sotto.cli.reproduce import answer, check_workers, speaker
from sotto.experiments.gohari2021.arms import EPSILONS, TEACHERS, EnvName, FigureName


def gohari(args: list[str]) -> int:
    """Runs `sotto reproduce gohari2021`."""

    def run(
        figure: Literal[FigureName, "tradeoff"],
        /,
        env_id: EnvName = "CartPole-v1",
        seeds: int = 30,
        scale: float = 1.0,
        teachers: int = TEACHERS,
        epsilons: tuple[float, ...] = EPSILONS,
        out: Path = Path("runs/gohari2021"),
        workers: int | None = None,
        json: bool = False,
    ) -> None:
        """Figures of Gohari et al. 2021, "Privacy-Preserving Kickstarting Deep RL".

        Figure 2: (a) teacher and student alone, (b) exact answers, (c) private answers and students
        aware of the noise, (d) unaware ones. The supplement varies lambda and the vanishing
        coefficient. tradeoff is ours: how much faster than alone a student learns from the mean of
        many small teachers, whose answers are certified about training data, against epsilon.

        Each is a PNG, a Parquet file with every point of every seed, and a JSON summary: steps to
        reach the teacher's return, returns in the end, and what the answers cost, certified and as
        the paper claims. It says first how long it takes: minutes a figure for CartPole-v1 and
        Acrobot-v1, about 15 minutes a seed and curve for AirRaid at full length. Every curve is
        kept as it finishes, figures share them, and a stopped command goes on where it was.

        Examples:
          sotto reproduce gohari2021 fig2c --env-id Acrobot-v1 --seeds 30
          sotto reproduce gohari2021 fig2c --env-id AirRaid --seeds 1 --scale 0.1
          sotto reproduce gohari2021 tradeoff --env-id CartPole-v1

        Args:
            figure: fig2a to fig2d, supp-lambda, supp-vanishing or tradeoff.
            env_id: the paper's AirRaid (pip install 'sotto[atari]'), or one in JAX.
            seeds: runs of each curve, with seeds 0, 1, 2, ...
            scale: share of the environment steps: of 4M for AirRaid, else of 50k.
            teachers: how many small ones, for tradeoff.
            epsilons: what certificates are calibrated to, for tradeoff.
            out: folder for figures, data and what is kept.
            workers: processes; as many as there are cores unless given.
            json: print the summary as one JSON object.
        """
        if seeds < 1:
            raise ValueError("--seeds must be at least 1")
        if not scale > 0:
            raise ValueError("--scale must be positive")
        check_workers(workers)
        processes, say = workers or os.cpu_count() or 1, speaker(True)
        chosen = tuple(range(seeds))
        if figure == "tradeoff":
            if env_id == "AirRaid":
                raise ValueError(
                    "tradeoff trains hundreds of teachers, for CartPole-v1 or Acrobot-v1; "
                    "give --env-id"
                )
            if teachers < 2:
                raise ValueError("--teachers must be at least 2: one person changes one of them")
            if not epsilons or min(epsilons) <= 0:
                raise ValueError("--epsilons must be positive")
            from sotto.experiments.gohari2021.tradeoff import Tradeoff, make_tradeoff

            what = Tradeoff(env_id, scale, chosen, teachers, epsilons, out)
            summary, show = make_tradeoff(what, processes, say), _print_tradeoff
        else:
            from sotto.experiments.gohari2021.figures import Reproduction, make_figure

            experiment = Reproduction(env_id, scale, chosen, out)
            summary, show = make_figure(experiment, figure, processes, say), _print_figure
        answer(summary, json, out / summary["name"], show)

    parse(run, args, "reproduce gohari2021")
    return 0


def _print_figure(summary: dict[str, Any]) -> None:
    kind = summary["kind"]
    print(f"{'':<36}{'in the end':>12}{'steps to reach':>16}{'answers':>9}{'epsilon':>10}")
    for arm in summary["arms"]:
        measured, cost = arm["returns"][kind], arm["cost"]
        epsilon = f"{cost['epsilon']:.3g}" if cost else "inf" if arm["answered"] else "-"
        print(
            f"{arm['label']:<36}{measured['final_median']:>12.4g}"
            f"{measured['steps_to_reach']:>16.6g}{arm['answered']:>9.0f}{epsilon:>10}"
        )


def _print_tradeoff(summary: dict[str, Any]) -> None:
    print(f"{'':<20}{'epsilon':>9}{'answers':>9}{'times faster, greedy':>22}{'sampled':>9}")
    for row in summary["points"]:
        greedy, sampled = (row[kind]["speed_up"] for kind in ("greedy", "sampled"))
        print(
            f"{row['mechanism']:<20}{row['epsilon']:>9.4g}{row['answered']:>9}"
            f"{greedy:>22.3g}{sampled:>9.3g}"
        )
