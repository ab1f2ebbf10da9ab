"""`sotto reproduce sharma2024`: table 1 and the figures of Sharma et al. 2024."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sotto.cli.reproduce import answer
from sotto.cli.terminal.options import FirstSeed, Json, Ray, Seeds
from sotto.cli.terminal.output import say
from sotto.cli.terminal.parsing import command
from sotto.cluster import on_cluster
from sotto.extras import require
from sotto.keys import seed_range

if TYPE_CHECKING:
    from sotto.experiments.sharma2024.arms import EnvName

_EXPERTS = {"LunarLander-v3": 300}
"""Number of experts that --make trains, if not the paper's 3,000, since Box2D is slow."""

_FLOOR, _TRAJECTORIES = 0.01, 20
"""Floor and episodes per expert of the log. The paper does not state its floor."""


@command("reproduce sharma2024")
def sharma(
    figure: Literal["fig2", "fig3", "fig4", "table1"],
    /,
    experts: Path,
    dataset: Path | None = None,
    env_id: Literal["CartPole-v1", "Acrobot-v1", "HIV-v0", "LunarLander-v3"] = "CartPole-v1",
    seeds: Seeds = 10,
    first_seed: FirstSeed = 100,
    out: Path = Path("runs/sharma2024"),
    make: bool = False,
    quick: bool = False,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Reproduces figures of Sharma et al. 2024, "Preserving Expert-Level Privacy in Offline RL".

    Figures:
      fig2    returns of the experts
      fig3    every method at epsilon 10, and methods without privacy; the reference is the exact
              majority vote of all experts
      fig4    return against epsilon, from 10 down to 0.1
      table1  the paper's pipeline, by the share of its steps on stable prefixes

    Delta is 1/(10 m) for m experts. The paper's 1/m would allow publishing one expert's data. Every
    epsilon is certified with status "proved". table1 chooses the best of several arms, and the
    certificates do not cover this choice.

    The command first prints how long it will take. Every arm is kept in OUT/arms with its ledgers
    and certificates as soon as it ends, and figures share arms. If the command is stopped, the same
    command continues. OUT receives FIGURE-ENV.png, .parquet and .json.

    Examples:
      sotto reproduce sharma2024 fig3 --env-id CartPole-v1 --experts runs/experts/cartpole \\
        --dataset runs/experts/cartpole-v0 --seeds 10 --out runs/sharma2024
      sotto reproduce sharma2024 fig4 --env-id Acrobot-v1 --experts runs/experts/acrobot \\
        --dataset runs/experts/acrobot-v0 --make
      sotto reproduce sharma2024 fig2 --experts runs/experts/cartpole

    Args:
        figure: fig2, fig3, fig4 or table1.
        experts: Folder of `sotto experts train`.
        dataset: Folder of `sotto experts collect`. fig2 needs none.
        env_id: Environment of the experts.
        out: Folder for figures, data and kept arms.
        make: Make missing experts and logs: 3,000 experts (LunarLander-v3: 300) with 20 episodes
            each. This takes about ten minutes for CartPole-v1 and Acrobot-v1, half an hour for the
            others.
        quick: Use few steps, epsilons and episodes, to try the command.
    """
    chosen = seed_range(first_seed, seeds)
    if figure != "fig2" and dataset is None:
        raise ValueError(
            f"{figure} learns from the experts' log; give --dataset with the folder of "
            "`sotto experts collect`"
        )
    require("pyarrow")
    with on_cluster(ray):
        _provide(env_id, experts, dataset, make, say)
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{figure}-{env_id}{'-quick' if quick else ''}"
    if figure == "fig2":
        from sotto.algorithms.experts.population import load
        from sotto.experiments.sharma2024.populations import make_histogram

        summary = make_histogram(stem, load(experts))
    else:
        from sotto.algorithms.expert_offline.sources import read_sources
        from sotto.experiments.sharma2024.figures import choices, make_figure

        say("Reading the experts and their log.")
        sources = read_sources(str(experts), str(dataset))
        with on_cluster(ray):
            summary = make_figure(figure, env_id, chosen, sources, out, say, quick)
    if figure == "table1" and not json:
        print(choices(out, quick))
    answer(summary, json, stem)


def _provide(env_id: "EnvName", experts: Path, dataset: Path | None, make: bool, say: Any) -> None:
    """Makes missing experts and a missing log if `make` is set.

    Raises:
        ValueError: they are missing and `make` is not set, or are of another environment.
    """
    from sotto.algorithms.experts import population as populations

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
    populations.write_log(experts, dataset, floor=_FLOOR, episodes=_TRAJECTORIES, seed=1, say=say)
