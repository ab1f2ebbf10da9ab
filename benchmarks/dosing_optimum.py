"""The best returns of Dosing: of doses for a known day, of any control, and of controllers.

    python benchmarks/dosing_optimum.py                    both, half an hour on a quiet core
    python benchmarks/dosing_optimum.py --env-id Dosing-1 --no-training
    python benchmarks/dosing_optimum.py --json results.json

It prints, as means over the same random days with 95 per cent intervals:

- the best doses that gradient ascent finds if the whole day is known in advance, which is a lower
  bound of the optimum of such days (`insulin.control`);
- a bound that no control exceeds, whatever it knows (`insulin.bound` has the proof), on the first
  `--bounded` of the days, and the gap to the doses above on these;
- controllers that do not know the next meal: feedback by the model's constants, without training,
  and networks trained by differentiating through the simulator, without privacy
  (`insulin.policies`). "Observation" has what sotto's agents have; "memory" has, in addition, the
  time of the day, the smallest meal so far and the time since the last larger one.

In Dosing-0 everybody eats the same, and the body at the beginning is random. In Dosing-1 meals are
random, too. Returns are those of the simulator itself; 143 is the largest imaginable one.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np
from insulin.bound import upper_bound
from insulin.control import best_doses, first_states, replay
from insulin.model import require_enclosed, simulate, tube
from insulin.policies import ModelController, returns, trained
from jaxtyping import Float

from sotto.rl.envs.dosing import MOST_INSULIN, Dosing

ENVIRONMENTS = {"Dosing-0": Dosing(), "Dosing-1": Dosing.with_random_meals()}
TRAINING_KEY = 10_000
"""Added to the seed, so that no day of a training is one of the days of the table."""


def mean_of(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """The mean, and half of the width of its 95 per cent interval."""
    error = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else np.nan
    return float(values.mean()), float(1.96 * error)


def bounds_of(
    env: Dosing, key: jax.Array, days: int, bounded: int
) -> dict[str, Float[np.ndarray, " n"]]:
    """Returns of the best known doses, bounds of some of the days, and the gaps."""
    states = first_states(env, key, days)
    doses = best_doses(states)
    best = np.asarray(replay(env, states, doses)[1].sum(axis=1))
    bodies, meals, given = (np.asarray(x, float) for x in (states.body, states.meals[:, 2:], doses))
    bounds = []
    for body, eaten, day in zip(bodies[:bounded], meals, given, strict=False):
        low, high = tube(body, eaten)
        any_dose = np.random.default_rng(0).uniform(0, MOST_INSULIN, (20, eaten.size))
        tried = np.concatenate([any_dose, day[None]])
        require_enclosed(
            low, high, simulate(np.tile(body, (21, 1)), tried, np.tile(eaten, (21, 1)))
        )
        bounds.append(upper_bound(body, eaten, day))
    return {
        "known day, best doses": best,
        "bound of any control": np.array(bounds),
        "gap to the bound": np.array(bounds) - best[:bounded],
    }


def main() -> None:
    """Computes and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", nargs="+", choices=ENVIRONMENTS, default=[*ENVIRONMENTS])
    parser.add_argument("--days", type=int, default=200)
    parser.add_argument("--bounded", type=int, default=10, help="days that get a bound")
    parser.add_argument("--updates", type=int, default=3000, help="of the training of a network")
    parser.add_argument("--rate", type=float, default=3e-3, help="of the same training")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for name in arguments.env_id:
        env, key = ENVIRONMENTS[name], jax.random.key(arguments.seed)
        states = first_states(env, key, arguments.days)
        found[name] = {}
        begin = time.perf_counter()

        def add(row: str, values: Float[np.ndarray, " n"], name: str = name) -> None:
            found[name][row] = mean_of(values)
            mean, error = found[name][row]
            seconds = time.perf_counter() - begin  # noqa: B023
            print(
                f"{name}  {row:34}{mean:9.3f} ± {error:.3f}  {values.size} days, least "
                f"{values.min():.2f}, largest {values.max():.2f}; {seconds:.0f} s",
                flush=True,
            )

        for row, values in bounds_of(env, key, arguments.days, arguments.bounded).items():
            add(row, values)
        add("feedback by the model", np.asarray(returns(env, ModelController(), states)))
        if arguments.no_training:
            continue
        train_key = jax.random.key(arguments.seed + TRAINING_KEY)
        for memory in (False, True):
            network = trained(env, train_key, memory, arguments.updates, rate=arguments.rate)
            row = "network, " + ("with memory" if memory else "the observation")
            add(row, np.asarray(returns(env, network, states)))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
