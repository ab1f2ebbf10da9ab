"""`sotto reproduce wang2019`: the figures of Wang and Hegde 2019, as data and as pictures."""

from pathlib import Path
from typing import Literal

from sotto.cli.parsing import parse, print_json
from sotto.cli.reproduce import speaker
from sotto.keys import seed_range


def wang(args: list[str]) -> int:
    """Runs `sotto reproduce wang2019`."""

    def run(
        figure: Literal["fig1", "fig2a", "fig2b", "tradeoff", "cartpole"],
        /,
        seeds: int = 10,
        first_seed: int = 100,
        out: Path = Path("runs/wang2019"),
        quick: bool = False,
        json: bool = False,
    ) -> None:
        """Figures of Wang and Hegde 2019, "Privacy-preserving Q-learning with functional noise".

        fig1: Algorithm 1 as printed, by noise level and reset factor; it protects nobody. fig2a
        and fig2b: our proved modes and the baselines at epsilon 0.9 and 0.45 for the reward of one
        transition, and the paper's claim. tradeoff: return over epsilon, and over the radius of
        neighbouring reward functions. cartpole: a task of four dimensions against DQN.

        It says first how long it takes. Every arm is kept in OUT/arms as it finishes, with ledgers
        and certificates, and a stopped command goes on where it was. OUT gets FIGURE.png,
        FIGURE.parquet and FIGURE.json.

        Examples:
          sotto reproduce wang2019 fig2a --seeds 10 --out runs/wang2019
          sotto reproduce wang2019 tradeoff --quick

        Args:
            figure: fig1, fig2a, fig2b, tradeoff or cartpole.
            seeds: trainings of each method, side by side.
            first_seed: the seeds are first_seed, first_seed + 1, ...
            out: folder for figures and data.
            quick: a tenth of the samples and few methods, to see that it works.
            json: print the data as one JSON object, and progress on stderr.
        """
        from sotto.experiments.wang2019.figures import make_figure

        chosen = seed_range(first_seed, seeds)
        summary = make_figure(figure, chosen, out, speaker(json), quick)
        data = out / f"{figure}{'-quick' if quick else ''}.json"
        if json:
            print_json(summary)
        else:
            print(f"Data: {data}, {data.with_suffix('.parquet')}; {data.with_suffix('.png')}")

    parse(run, args, "reproduce wang2019")
    return 0
