"""`sotto reproduce sharma2024`: the figures of Sharma et al. 2024, as data and as pictures."""

import json as json_module
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sotto.cli.parsing import parse, print_json
from sotto.keys import seed_range

if TYPE_CHECKING:
    from sotto.experiments.sharma2024.arms import EnvName
    from sotto.experiments.sharma2024.figures import Job, Outcome

_EXPERTS = {"LunarLander-v3": 300}
"""How many --make trains where it is not the paper's 3,000: Box2D is slow."""

_FLOOR, _TRAJECTORIES = 0.01, 20
"""Of the log: the paper's floor is missing."""

_WORST = {"Acrobot-v1": -200.0}
"""Where bars begin if not at zero."""


def sharma(args: list[str]) -> int:
    """Runs `sotto reproduce sharma2024`."""

    def run(
        figure: Literal["fig2", "fig3", "fig4", "table1"],
        /,
        experts: Path,
        dataset: Path | None = None,
        env_id: Literal["CartPole-v1", "Acrobot-v1", "HIV-v0", "LunarLander-v3"] = "CartPole-v1",
        seeds: int = 10,
        first_seed: int = 100,
        out: Path = Path("runs/sharma2024"),
        make: bool = False,
        quick: bool = False,
        json: bool = False,
    ) -> None:
        """Figures of Sharma et al. 2024, "Preserving Expert-Level Privacy in Offline RL".

        fig2: returns of the experts. fig3: every method at epsilon 10 beside what is not private,
        with the exact majority of all experts as the reference. fig4: return over epsilon, from 10
        down to 0.1. table1: the paper's pipeline by the share of its steps that are made on stable
        prefixes. delta is 1/(10 m) for m experts: the paper's 1/m would be met by publishing one of
        them.

        Every epsilon is a certificate's, with status proved. Choosing the best of several arms, as
        table1 does, is not accounted for.

        It says first how long it takes. Every arm is kept in OUT/arms as it finishes, with ledgers
        and certificates; figures share arms, and a stopped command goes on where it was. OUT gets
        FIGURE-ENV.png, .parquet and .json.

        Examples:
          sotto reproduce sharma2024 fig3 --env-id CartPole-v1 --experts runs/experts/cartpole \
            --dataset runs/experts/cartpole-v0 --seeds 10 --out runs/sharma2024
          sotto reproduce sharma2024 fig4 --env-id Acrobot-v1 --experts runs/experts/acrobot \
            --dataset runs/experts/acrobot-v0 --make
          sotto reproduce sharma2024 fig2 --experts runs/experts/cartpole

        Args:
            figure: fig2, fig3, fig4 or table1.
            experts: folder of `sotto experts train`.
            dataset: folder of `sotto experts collect`; fig2 needs none.
            env_id: what the experts act in.
            seeds: trainings of each method.
            first_seed: the seeds are first_seed, first_seed + 1, ...
            out: folder for figures, data and what is kept.
            make: make what is missing: 3,000 experts (LunarLander-v3: 300) with 20 episodes each,
                about ten minutes for CartPole-v1 and Acrobot-v1, half an hour for the others.
            quick: few steps, epsilons and episodes, to see that it works.
            json: print the data as one JSON object, and progress on stderr.
        """
        chosen = seed_range(first_seed, seeds)

        def say(sentence: str) -> None:
            print(sentence, file=sys.stderr if json else sys.stdout, flush=True)

        if figure != "fig2" and dataset is None:
            raise ValueError(
                f"{figure} learns from the experts' log; give --dataset with the folder of "
                "`sotto experts collect`"
            )
        _provide(env_id, experts, dataset, make, say)
        out.mkdir(parents=True, exist_ok=True)
        stem = out / f"{figure}-{env_id}{'-quick' if quick else ''}"
        if figure == "fig2":
            answer = _histogram(stem, experts)
        else:
            outcomes = _outcomes(figure, env_id, experts, str(dataset), chosen, out, quick, say)
            answer = _save(stem, figure, env_id, outcomes)
        _write(stem.with_suffix(".json"), answer)
        if json:
            print_json(answer)
            return
        if figure == "table1":
            _print_table(out, "-quick" if quick else "")
        print(f"Figure and data: {stem}.png, .parquet, .json")

    parse(run, args, "reproduce sharma2024")
    return 0


# --- experts and their log -----------------------------------------------------------------------


def _provide(env_id: "EnvName", experts: Path, dataset: Path | None, make: bool, say: Any) -> None:
    """Sees to it that there are experts of this environment and a log, or says how to make them."""
    from sotto.algorithms.experts import population as populations
    from sotto.data import minari_files
    from sotto.extras import require

    if dataset is not None:
        require("minari", "h5py")
    count = _EXPERTS.get(env_id, 3_000)
    if not (experts / "experts.npz").exists():
        if not make:
            raise ValueError(
                f"{experts} has no experts: make them with `sotto experts train --env-id {env_id} "
                f"--experts {count} --out {experts}`, or give --make"
            )
        settings = populations.ExpertSettings(env_id=env_id, experts=count)
        populations.train(experts, settings, os.cpu_count() or 1, say)
    found = populations.load(experts).settings
    if found.env_id != env_id:
        raise ValueError(f"{experts} holds experts of {found.env_id}; give --env-id {found.env_id}")
    if dataset is None or dataset.exists():
        return
    if not make:
        raise ValueError(
            f"there is no log {dataset}: make it with `sotto experts collect {experts} --floor "
            f"{_FLOOR} --trajectories {_TRAJECTORIES} --out {dataset}`, or give --make"
        )
    say("Logging the experts, which takes some minutes.")
    population = populations.load(experts)
    log = populations.collect(population, _FLOOR, _TRAJECTORIES, 1, say)
    minari_files.save(
        log,
        dataset,
        env_id=env_id,
        actions=populations.actions(env_id),
        floor=_FLOOR,
        policies=f"{log.experts} experts of {experts.name}, floored",
    )


def _histogram(stem: Path, experts: Path) -> dict[str, Any]:
    from sotto.algorithms.experts import population as populations
    from sotto.experiments.sharma2024 import populations as expert_figures

    population = populations.load(experts)
    expert_figures.histogram(stem.with_suffix(".png"), population)
    expert_figures.write_table(stem.with_suffix(".parquet"), population)
    return expert_figures.summary(population)


# --- arms ----------------------------------------------------------------------------------------


def _outcomes(
    figure: Literal["fig3", "fig4", "table1"],
    env_id: "EnvName",
    experts: Path,
    dataset: str,
    seeds: range,
    out: Path,
    quick: bool,
    say: Any,
) -> "list[Outcome]":
    from sotto.algorithms.expert_offline.sources import read_sources
    from sotto.experiments.sharma2024 import figures

    say("Reading the experts and their log.")
    sources = read_sources(str(experts), dataset)
    jobs = figures.jobs(figure, env_id, seeds, sources, out / "arms", quick)
    return figures.run(jobs, sources, _Progress(jobs, say))


class _Progress:
    """Says before how long everything takes, and after each arm how much is left."""

    def __init__(self, jobs: "Sequence[Job]", say: Any) -> None:
        # Arms of equal settings are one training.
        missing = {job.path: job for job in jobs if not job.path.exists()}
        self._left = dict(missing)
        self._total, self._say = len(missing), say
        self._started, self._planned_done = time.monotonic(), 0.0
        if not missing:
            say("Every arm is kept from before.")
            return
        kept = len({job.path for job in jobs}) - len(missing)
        had = f" ({kept} kept from before)" if kept else ""
        count = len(jobs[0].seeds)
        share = 0.05 if jobs[0].quick else 1.0
        # Compiling and making clones take as long for any number of seeds.
        planned = sum(30 + share * job.arm.seconds * count / 10 for job in missing.values())
        say(
            f"{self._total} arms to train{had}, for each of {count} seeds: about "
            f"{_duration(planned)} on two cores; stop any time, the same command goes on."
        )

    def __call__(self, job: "Job", outcome: "Outcome") -> None:
        del self._left[job.path]
        self._planned_done += job.arm.seconds
        pace = (time.monotonic() - self._started) / self._planned_done
        left = pace * sum(one.arm.seconds for one in self._left.values())
        said = f"epsilon {outcome.epsilon:.4g}" if outcome.epsilon is not None else "not private"
        half = "" if math.isnan(outcome.half_width) else f" ± {outcome.half_width:.3g}"
        self._say(
            f"{self._total - len(self._left):>3}/{self._total} {outcome.label:<38} {said:<14} "
            f"return {outcome.mean:.4g}{half}   {outcome.seconds:.0f} s   "
            + (f"{_duration(left)} left" if self._left else "done")
        )
        if outcome.note:
            self._say(f"        {outcome.note}")
        if outcome.empty:
            self._say(f"        {outcome.empty} seeds released nothing, and have not learned")


def _save(
    stem: Path,
    figure: Literal["fig3", "fig4", "table1"],
    env_id: "EnvName",
    outcomes: "Sequence[Outcome]",
) -> dict[str, Any]:
    """Draws, writes the table, and returns the figure's data."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sotto.experiments.sharma2024 import figures, plots
    from sotto.experiments.sharma2024.arms import PAPER

    pq.write_table(pa.Table.from_pylist(figures.rows(outcomes)), stem.with_suffix(".parquet"))
    picture, first = stem.with_suffix(".png"), outcomes[0]
    where = f"{env_id}, {first.experts:,} experts"
    answer: dict[str, Any] = {"figure": figure, "env_id": env_id, "experts": first.experts}
    if figure == "table1":
        # The paper's table and its text disagree; a share of 1 is the same in both.
        printed = PAPER[env_id].printed
        papers = PAPER[env_id].stages[10.0][1]
        best = max(outcomes, key=lambda one: one.mean)
        answer |= {"paper_table": printed, "paper_text": papers, "best": best.x}
        answer["note"] = "choosing among these arms is not accounted for"
        plots.shares(picture, outcomes, papers, f"The paper's pipeline at epsilon 10: {where}")
    elif figure == "fig3":
        title = f"{where}; private ones (in colour) at epsilon 10, proved"
        plots.bars(picture, outcomes, _WORST.get(env_id, 0.0), title)
    else:
        title = f"{where}; all certificates proved; hollow: no prefix, so DP-SGD"
        plots.tradeoff(picture, outcomes, title)
    majority = next((one.mean for one in outcomes if one.arm == "majority"), None)
    answer["arms"] = [figures.summary(one, majority) for one in outcomes]
    return answer


def _print_table(out: Path, suffix: str) -> None:
    """Table 1 of the paper beside ours, for the environments that are kept in OUT."""
    from sotto.experiments.sharma2024.arms import PAPER

    print(f"{'share of stable steps':<24}{'printed':>9}{'in text':>9}{'ours':>7}{'return':>12}")
    for env_id, paper in PAPER.items():
        path = out / f"table1-{env_id}{suffix}.json"
        ours, mean = "-", "-"
        if path.exists():
            kept = json_module.loads(path.read_text())
            ours = f"{kept['best']:g}"
            mean = f"{max(arm['mean'] for arm in kept['arms']):.4g}"
        said = paper.stages[10.0][1]
        print(f"{env_id:<24}{paper.printed:>9g}{said:>9g}{ours:>7}{mean:>12}")
    print("Ours is the best of its arms in the mean over seeds; choosing it is not accounted for.")


def _write(path: Path, values: dict[str, Any]) -> None:
    """Replaces the file at once, so that a stopped command leaves whole data."""
    partial = path.with_suffix(".partial")
    partial.write_text(json_module.dumps(values, indent=1, allow_nan=False) + "\n")
    partial.replace(path)


def _duration(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 100 else f"{math.ceil(seconds / 60)} min"
