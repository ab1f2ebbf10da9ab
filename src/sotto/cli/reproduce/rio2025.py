"""`sotto reproduce rio2025`: table 1 and the figures of Rio et al. 2025 (DPPG)."""

import os
from pathlib import Path
from typing import Any, Literal

from sotto.algorithms.dppg.presets import PresetName
from sotto.cli.reproduce import answer, check_used, check_workers
from sotto.cli.terminal.options import Delta, FirstSeed, Json, Ray, Seeds, Workers
from sotto.cli.terminal.output import print_table, say
from sotto.cli.terminal.parsing import command
from sotto.cluster import on_cluster
from sotto.experiments.rio2025 import cells
from sotto.extras import require
from sotto.keys import seed_range

_PRESETS: tuple[PresetName, ...] = ("sotto", "paper")
_EPISODES, _PEOPLE = 2000, 3840
_TRAINED = ("table1", "fig2", "fig6", "fig8")
_REGRETS = ("fig1", "fig5")
_CURVES = ("CartPole-v1", "Acrobot-v1")
_ROWS = tuple(row.env_id for row in cells.TABLE1)


@command("reproduce rio2025")
def rio(
    figure: Literal["table1", "fig1", "fig2", "fig3", "fig5", "fig6", "fig7", "fig8"],
    /,
    preset: tuple[PresetName, ...] = _PRESETS,
    env_id: tuple[str, ...] = (),
    epsilons: tuple[float, ...] = (),
    noise_multipliers: tuple[float, ...] = cells.NOISE_MULTIPLIERS,
    episodes: int = _EPISODES,
    people: int = _PEOPLE,
    arms: tuple[cells.LanguageArm, ...] = (),
    seeds: Seeds = 10,
    first_seed: FirstSeed = 100,
    total_steps: int | None = None,
    delta: Delta = cells.DELTA,
    out: Path = Path("runs/rio2025"),
    workers: Workers = None,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Reproduces table 1 and figures of Rio et al. 2025, "Differentially Private Policy Gradient".

    Figures:
      table1      returns of PPO, A2C and DPPG at the paper's noise multipliers, with the paper's
                  returns, the true epsilon of the noise and the certified epsilon
      fig1, fig5  cumulative regret of DPPG, R-MAX, UCB-VI and UCB-PO on RiverSwim over 2,000 users;
                  the probability of staying at the good end is 0.6 (fig1) or 0.9 (fig5)
      fig2        return against epsilon
      fig3        epsilon against the noise multiplier by an invalid, a loose and a tight formula
      fig6        return against the paper's noise multipliers
      fig7        ratings and judge of a language model tuned to people's ratings, against epsilon
                  (sotto install smollm2 and sotto install films come first)
      fig8        learning curves of the trainings of table1

    Arms of fig7 (a core needs about 25 minutes for the first arm of a seed, 5 to 20 for others):
      reward-model     the default of sotto train rlhf; reranked: with --reranked 4
      policy-gradient  each person's own update, averaged; best-of-n: imitation of what each person
                       rates best
      many-features, ratings, preferences
                       without privacy: a larger reward model, people's ratings regressed, and
                       low-rank updates by pairs of each person's completions
      paper            the paper's settings, which protect nobody

    The command first prints how long it will take. Every training is kept in OUT with its ledger
    and certificate as soon as it ends. Table and figures share these trainings. If the command is
    stopped, the same command continues. OUT receives FIGURE.png, FIGURE.parquet and FIGURE.json.

    Examples:
      sotto reproduce rio2025 table1 --seeds 10 --out runs/rio2025
      sotto reproduce rio2025 fig2 --env-id CartPole-v1 --preset sotto
      sotto reproduce rio2025 fig1 --env-id RiverSwimExchanged-v0
      sotto reproduce rio2025 fig7 --arms reward-model --people 512 --seeds 1

    Args:
        figure: table1, fig1, fig2, fig3, fig5, fig6, fig7 or fig8.
        preset: Settings of DPPG: sotto, paper or both, for table1, fig2, fig6 and fig8. fig1 and
            fig5 always show both.
        env_id: Environments; by default all of the table or figure. fig3 and fig7 have none.
        epsilons: Target epsilons, for fig2 and fig7; by default those of the figure.
        noise_multipliers: Noise multipliers, for fig6.
        episodes: Number of users of each training, for fig1 and fig5.
        people: Number of people who rate, for fig7.
        arms: Kinds of training, for fig7; by default all. Private ones are trained without noise,
            too, and the base model is measured once.
        total_steps: Environment steps of every training, in place of the preset's, for table1,
            fig2, fig6 and fig8.
        out: Folder for figures, data and kept trainings.
    """
    numbers = tuple(seed_range(first_seed, seeds))
    check_used(
        figure,
        {
            "--preset": (preset != _PRESETS, _TRAINED),
            "--env-id": (env_id != (), (*_TRAINED, *_REGRETS)),
            "--epsilons": (epsilons != (), ("fig2", "fig7")),
            "--noise-multipliers": (noise_multipliers != cells.NOISE_MULTIPLIERS, ("fig6",)),
            "--episodes": (episodes != _EPISODES, _REGRETS),
            "--people": (people != _PEOPLE, ("fig7",)),
            "--arms": (arms != (), ("fig7",)),
            "--total-steps": (total_steps is not None, _TRAINED),
        },
    )
    _check(figure, env_id)
    if episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {episodes}")
    check_workers(workers)
    require("pyarrow")
    if figure in ("fig1", "fig5"):
        from sotto.experiments.rio2025.regret import ENVIRONMENTS, EXCHANGED, make_regret

        possible = (ENVIRONMENTS[figure], EXCHANGED[figure])
        if env_id not in ((), *((one,) for one in possible)):
            raise ValueError(f"{figure} takes one --env-id, {' or '.join(possible)}")
        place = env_id[0] if env_id else possible[0]
        summary = make_regret(figure, place, numbers, episodes, delta, out, say)
        answer(summary, json, out / summary["name"], _print_regret)
        return
    if figure == "fig7":
        from sotto.experiments.rio2025 import language

        wanted = epsilons or language.EPSILONS
        with on_cluster(ray):
            summary = language.make_language(numbers, wanted, delta, people, arms, out, say)
        answer(summary, json, out / summary["name"], _print_language)
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
    with on_cluster(ray):
        match figure:
            case "table1":
                summary = reproduction.make_table1(what)
            case "fig2":
                summary = reproduction.make_tradeoff(what, figure, epsilons or cells.EPSILONS, ())
            case "fig3":
                summary = reproduction.make_figure3(what)
            case "fig6":
                summary = reproduction.make_tradeoff(what, figure, (), noise_multipliers)
            case "fig8":
                summary = reproduction.make_figure8(what)
    pictures = "-*" if figure == "fig8" else ""
    show = None if figure == "fig3" else _print_cells
    answer(summary, json, out / f"{summary['name']}{pictures}", show)


def _print_regret(summary: dict[str, Any]) -> None:
    table = []
    for curve in summary["curves"]:
        certified = _certified(curve["status"], curve["certified_epsilon"])
        regret = _return(curve["mean"], curve["half_width"])
        table.append((curve["label"], _number(curve["nominal_epsilon"]), certified, regret))
    table.append(("uniform actions", "-", "-", f"{summary['uniform_regret']:.1f}"))
    print_table(("", "epsilon", "certified", f"regret after {summary['episodes']}"), table)
    print(f"Regret {_spread(summary)}.\n")


def _print_language(summary: dict[str, Any]) -> None:
    """Prints the gains of each arm over the base model, and its share of the best without noise."""
    print(
        f"\n{'':<34}{'epsilon':>8}{'certified':>14}{'KL':>6}{'rating':>18}{'judge':>18}{'share':>7}"
    )
    for arm in summary["arms"]:
        certified = _certified(arm["status"], arm["certified_epsilon"])
        for kind, share in arm["share_of_best"].items():
            which, _, at = kind.partition(" gain at ")
            if which != "judge":
                continue
            found = [arm["measured"][f"{one} gain at {at}"] for one in ("rating", "judge")]
            gains = [_gain(one["mean"], one["half_width"]) for one in found]
            print(
                f"{arm['label']:<34}{_number(arm['target_epsilon']):>8}{certified:>14}"
                f"{at.removeprefix('KL '):>6}{gains[0]:>18}{gains[1]:>18}{share:>7.0%}"
            )
    print(
        "Gains over the base model. share: of the judge's largest gain among arms without noise.\n"
    )


def _gain(mean: float, half_width: float | None) -> str:
    return f"{mean:.3f}" if half_width is None else f"{mean:.3f} ± {half_width:.3f}"


def _check(figure: str, env_ids: tuple[str, ...]) -> None:
    if figure in ("table1", "fig8"):
        for env_id in env_ids:
            if env_id not in _ROWS:
                raise ValueError(
                    f"{figure} has no {env_id}; --env-id takes any of {', '.join(_ROWS)}"
                )


def _print_cells(summary: dict[str, Any]) -> None:
    """Prints a table of epsilons and returns, the paper's and those that were measured here."""
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
        "formula: epsilon by the paper's formula. of noise: epsilon if nothing but the noisy\n"
        "releases leaks. certified: epsilon that the run's ledger proves. Returns are those of\n"
        "the average of released policies (preset sotto) or of the last policy (others),\n"
        f"{_spread(summary)}.\n"
    )


def _spread(summary: dict[str, Any]) -> str:
    """Returns in words what follows a mean; one seed has no interval."""
    seeds = len(summary["seeds"])
    return "of one seed" if seeds == 1 else f"with 95% confidence intervals over {seeds} seeds"


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
