"""`sotto reproduce rio2025`: table 1 and the figures of the DPPG paper, as data and as pictures."""

import os
from pathlib import Path
from typing import Any, Literal

from sotto.algorithms.dppg.config import PresetName
from sotto.cli.parsing import parse
from sotto.cli.reproduce import answer, check_workers, speaker
from sotto.experiments.rio2025 import cells
from sotto.keys import seed_range

_CURVES = ("CartPole-v1", "Acrobot-v1")
_ROWS = tuple(row.env_id for row in cells.TABLE1)


def rio(args: list[str]) -> int:
    """Runs `sotto reproduce rio2025`."""

    def run(
        figure: Literal["table1", "fig1", "fig2", "fig3", "fig5", "fig6", "fig8"],
        /,
        preset: tuple[PresetName, ...] = ("sotto", "paper"),
        env_id: tuple[str, ...] = (),
        epsilons: tuple[float, ...] = cells.EPSILONS,
        noise_multipliers: tuple[float, ...] = cells.NOISE_MULTIPLIERS,
        episodes: int = 2000,
        seeds: int = 10,
        first_seed: int = 100,
        total_steps: int | None = None,
        delta: float = cells.DELTA,
        out: Path = Path("runs/rio2025"),
        workers: int | None = None,
        json: bool = False,
    ) -> None:
        """Table 1 and figures of Rio et al. 2025, "Differentially Private Policy Gradient".

        table1: PPO, A2C and DPPG at the paper's noise multipliers, the paper's returns beside ours,
        with the true epsilon of the noise and what the certificate says; preset sotto also at an
        epsilon of its own. fig1 and fig5: cumulative regret of DPPG, UCB-VI and UCB-PO on RiverSwim
        over 2,000 users; the probability of staying at the good end is 0.6, or 0.9. fig2: return
        against epsilon. fig3: epsilon against the noise multiplier by the invalid, the loose and
        the tight formula, in a second. fig6: return against the paper's noise multipliers. fig8:
        learning curves of the trainings of table1.

        Preset paper (Algorithms 2-3 with the paper's settings) is judged by its last policy with
        sampled actions, as the paper reports episodes of training, and preset sotto by the average
        of released policies, greedy; all are in the data. Noise below z = 0.086 has no certificate,
        so preset sotto leaves it out.

        It says first how long it takes. Every seed is kept in OUT/trainings as it finishes, with
        ledger and certificate; table and figures share them, and a stopped command goes on where it
        was. OUT gets FIGURE.png, FIGURE.parquet and FIGURE.json.

        Examples:
          sotto reproduce rio2025 table1 --seeds 10 --out runs/rio2025
          sotto reproduce rio2025 table1 --env-id Acrobot-v1 --preset paper
          sotto reproduce rio2025 fig1 --seeds 60
          sotto reproduce rio2025 fig2 --env-id CartPole-v1 --preset sotto
          sotto reproduce rio2025 fig8 --env-id CartPole-v1 --seeds 2 --total-steps 100000

        Args:
            figure: table1, fig1, fig2, fig3, fig5, fig6 or fig8.
            preset: whose settings DPPG has; fig1 and fig5 show both.
            env_id: on which environments; all of the table's or figure's unless given.
            epsilons: targets of the certificates, for fig2.
            noise_multipliers: for fig6.
            episodes: users of each training, for fig1 and fig5.
            seeds: trainings of each method.
            first_seed: the seeds are first_seed, first_seed + 1, ...
            total_steps: environment steps of every training, instead of the presets' own.
            delta: delta of the guarantee.
            out: folder for figures, data and what is kept.
            workers: processes; as many as there are cores unless given.
            json: print the summary as one JSON object, and progress on stderr.
        """
        numbers, say = tuple(seed_range(first_seed, seeds)), speaker(json)
        _check(figure, env_id)
        check_workers(workers)
        if figure in ("fig1", "fig5"):
            from sotto.experiments.rio2025.regret import make_regret

            summary = make_regret(figure, numbers, episodes, delta, out, say)
            answer(summary, json, out / summary["name"], _print_regret)
            return
        from sotto.experiments.rio2025 import figures as reproduction

        what = reproduction.Reproduction(
            env_ids=env_id or (_CURVES if figure in ("fig2", "fig6") else _ROWS),
            presets=preset,
            seeds=numbers,
            delta=delta,
            total_steps=total_steps,
            out=out,
            workers=workers or os.cpu_count() or 1,
            say=say,
        )
        match figure:
            case "table1":
                summary = reproduction.make_table1(what)
            case "fig2":
                summary = reproduction.make_tradeoff(what, figure, epsilons, ())
            case "fig3":
                summary = reproduction.make_figure3(what)
            case "fig6":
                summary = reproduction.make_tradeoff(what, figure, (), noise_multipliers)
            case "fig8":
                summary = reproduction.make_figure8(what)
        pictures = "-*" if figure == "fig8" else ""
        show = None if figure == "fig3" else _print_cells
        answer(summary, json, out / f"{summary['name']}{pictures}", show)

    parse(run, args, "reproduce rio2025")
    return 0


def _print_regret(summary: dict[str, Any]) -> None:
    print(
        f"\n{'':<24}{'epsilon':>9}{'certified':>14}{'regret after ' + str(summary['episodes']):>22}"
    )
    for curve in summary["curves"]:
        certified = _certified(curve["status"], curve["certified_epsilon"])
        print(
            f"{curve['label']:<24}{_number(curve['nominal_epsilon']):>9}{certified:>14}"
            f"{_return(curve['mean'], curve['half_width']):>22}"
        )
    print(
        f"{'uniform actions':<24}{'-':>9}{'-':>14}{summary['uniform_regret']:>22.1f}\n"
        f"Regret with 95% confidence intervals over {len(summary['seeds'])} seeds.\n"
    )


def _check(figure: str, env_ids: tuple[str, ...]) -> None:
    if figure in ("table1", "fig8"):
        for env_id in env_ids:
            if env_id not in _ROWS:
                raise ValueError(
                    f"{figure} has no {env_id}; --env-id takes any of {', '.join(_ROWS)}"
                )


def _print_cells(summary: dict[str, Any]) -> None:
    """The text table: the paper's epsilon and return, the true epsilon, and ours."""
    print(
        f"\n{'':<50}{'epsilon at delta ' + format(summary['delta'], 'g'):^33}\n"
        f"{'':<50}{'formula':>9}{'of noise':>10}{'certified':>14}"
        f"{'paper':>18}{'here, greedy':>18}{'here, sampled':>18}"
    )
    for cell in summary["cells"]:
        certified = _certified(cell["status"], cell["certified_epsilon"])
        policy = cell["judged"].split()[0]
        greedy, sampled = (cell["returns"][f"{policy} {mode}"] for mode in ("greedy", "sampled"))
        print(
            f"{cell['env_id']:<16}{cell['label']:<34}{_number(cell['claimed_epsilon']):>9}"
            f"{_number(cell['noise_epsilon']):>10}{certified:>14}"
            f"{_return(cell['paper_mean'], cell['paper_half_width']):>18}"
            f"{_return(greedy['mean'], greedy['half_width']):>18}"
            f"{_return(sampled['mean'], sampled['half_width']):>18}"
        )
    print(
        "formula: the paper's; of noise: what it is worth if nothing else leaks; certified:\n"
        "proved by the run's own ledger. Returns of the average of released policies (sotto) or\n"
        f"of the last one, with 95% confidence intervals over {len(summary['seeds'])} seeds.\n"
    )


def _certified(status: str, epsilon: float | None) -> str:
    if status == "proved":
        return _number(epsilon)
    return "none (claim)" if status == "paper-claim" else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _return(mean: float | None, half_width: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.1f}" if half_width is None else f"{mean:.1f} ± {half_width:.1f}"
