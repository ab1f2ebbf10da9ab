"""`sotto simulate people`: simulated people take part in a campaign over HTTP."""

from pathlib import Path

import tyro

from sotto.cli.terminal.options import Json
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.extras import require

_FIRST_SECONDS = 10.0
"""Time in which the service must answer for the first time."""


@command("simulate people")
def people(
    url: tyro.conf.Positional[str],
    /,
    tokens: Path,
    env_id: str = "CartPole-v1",
    drop_out: float = 0.0,
    straggle: float = 0.0,
    repeat: float = 0.0,
    withdraw: float = 0.0,
    at_once: int = 8,
    episodes: int = 20,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Lets simulated people take part in a campaign, and prints the return of the result.

    Example:
      sotto simulate people https://study.example.org --tokens tokens.txt --drop-out 0.05

    Args:
        url: Address of the service.
        tokens: File with one token on each line, from `sotto campaign invite`.
        env_id: Environment in which each person lives. It is one of those written in JAX, and
            actions are repeated as in its recipe.
        drop_out: Probability that a person takes a place and gives nothing.
        straggle: Probability that a person gives after the place has expired.
        repeat: Probability that a person gives the same trajectory twice.
        withdraw: Probability that a person withdraws after giving.
        at_once: Number of people who are active at once.
        episodes: Number of episodes in which the result is evaluated: the average of policies.
        seed: Seed of the people.
    """
    require("httpx")
    from sotto.keys import seed_range
    from sotto.people.client import Person
    from sotto.people.simulate import Habits, drive, mean_return

    seed_range(seed)
    held = tokens.read_text().split()
    if not held:
        raise ValueError(f"{tokens} has no token; make some with: sotto campaign invite")
    with Person(url, held[0], patience_seconds=_FIRST_SECONDS):
        pass  # an error now, and not after the patience of every simulated person
    habits = Habits(drop_out, straggle, repeat, withdraw)
    say = (lambda _text: None) if json else print
    counts = drive(url, held, env_id, habits=habits, at_once=at_once, seed=seed, say=say)
    with Person(url, held[0]) as one:
        policy = one.result()
    found = {
        **counts,
        "version": policy.version,
        "return": mean_return(policy, env_id, episodes, seed),
    }
    if json:
        print_json(found)
        return
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    print(f"Result after {policy.version} updates: mean return {found['return']:.1f}")
