"""Coverage, width and error of marginalised values beside per-decision and doubly-robust ones.

People are drawn from chains whose values are known: `two` with two states, as in the tests, and
`four` with four states that mostly stay where they are. In `changing` the moves of `four` are
others at every second step. In `hidden` two states of `four` look the same, so the cells are not
Markov, as marginalised values assume. In `once` the first of 50 steps moves people and the others
do not, although they assume that steps are alike. Everything but the draw of people and of the
noise is the code of `sotto evaluate`: contributions, bounds, noise scales, tables and intervals.
Noise is drawn by numpy in place of the door's sampler. The doubly-robust estimator gets the true
returns as its public model (for `hidden` their mean over the states that look the same), which
nobody has in practice. Marginalised gets nothing.

The clip of the weights is 3 for all of them. Coverage is of 95% intervals for the policy's value.
The bias from clipping is printed and is not in an interval. Widths and errors are shares of the
range of returns.

Run: python benchmarks/marginalised.py [--resamples 300] [--steps 2 5 20] [--people 1000 10000]
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sotto.algorithms.evaluation import chains, release, tables
from sotto.algorithms.evaluation.analysis import Asked, settings_of
from sotto.algorithms.evaluation.cells import Cells, probabilities
from sotto.algorithms.evaluation.intervals import Value, values
from sotto.algorithms.evaluation.models import ReturnModel
from sotto.algorithms.evaluation.persons import Bounds, Evaluation, PersonLog, Public, contribution
from sotto.data.imports.declaration import Declaration
from sotto.keys import new_key

CLIP, DELTA = 3.0, 1e-5


class World(NamedTuple):
    """A chain of people, the behaviour in the log, and the policy that is evaluated."""

    name: str
    starts: np.ndarray
    seen: np.ndarray  # what is seen of each state
    moves: np.ndarray  # step, from the first again after the last; state, action, next state
    rewards: np.ndarray  # chance of reward 1 for a state and an action
    behaviour: np.ndarray  # state, action
    target: np.ndarray


def worlds() -> dict[str, World]:
    """Returns the chains by name."""
    two = np.array([[0.8, 0.2], [0.3, 0.7]])
    rng = np.random.default_rng(3)
    moves = 0.5 * rng.dirichlet(np.full(4, 0.5), (4, 2)) + 0.5 * np.eye(4)[:, None]
    best = np.array([[0.1, 0.9], [0.9, 0.1]])
    four = World(
        "four",
        np.full(4, 0.25),
        np.arange(4),
        moves[None],
        rng.random((4, 2)),
        np.array([[0.5, 0.5], [0.3, 0.7], [0.6, 0.4], [0.4, 0.6]]),
        best[[0, 1, 1, 0]],
    )
    pairs = np.array([0, 0, 1, 1])
    stay = np.tile(np.eye(2)[:, None], (50, 1, 2, 1))
    stay[0] = np.eye(2)[[1, 0]]  # action 0 leads to the second state, action 1 to the first
    return {
        "two": World(
            "two",
            np.array([1.0, 0.0]),
            np.arange(2),
            np.stack([two, two])[None],
            np.stack([two[:, 1], two[:, 1]]),
            np.array([[0.4, 0.6], [0.4, 0.6]]),
            best[[0, 0]],
        ),
        "four": four,
        "changing": four._replace(name="changing", moves=np.stack([moves, moves[:, ::-1]])),
        "hidden": four._replace(
            name="hidden", seen=pairs, behaviour=four.behaviour[pairs], target=best[pairs]
        ),
        "once": World(
            "once",
            np.full(2, 0.5),
            np.arange(2),
            stay,
            np.array([[0.0, 0.0], [1.0, 1.0]]),
            np.full((2, 2), 0.5),
            np.array([[0.7, 0.3], [0.7, 0.3]]),
        ),
    }


class InStates(eqx.Module):
    """A policy with probabilities of actions for each state, which is a category."""

    table: jax.Array

    def __call__(self, observations: jax.Array) -> jax.Array:
        """Returns the probabilities at each step."""
        return observations @ self.table


def declared(world: World, people: int, steps: int) -> Declaration:
    """Returns the declaration of a log of this chain; a state is a category."""
    return Declaration.of(
        {
            "person": "who",
            "observation": [{"column": "s", "categories": list(range(world.seen.max() + 1))}],
            "action": {"column": "a", "categories": ["no", "yes"]},
            "reward": {"column": "r", "low": 0, "high": 1},
            "propensity": {"column": "p", "low": float(world.behaviour.min())},
            "people": people,
            "horizon": steps,
        }
    )


def logs(world: World, rng: np.random.Generator, people: int, steps: int) -> PersonLog:
    """Returns the logs of new people."""

    def drawn(chances: np.ndarray) -> np.ndarray:
        below = rng.random((people, 1)) > np.cumsum(chances, axis=1)[:, :-1]
        return np.asarray(below.sum(axis=1))

    states, actions = np.zeros((2, people, steps), int)
    now = drawn(np.tile(world.starts, (people, 1)))
    for step in range(steps):
        states[:, step] = now
        actions[:, step] = drawn(world.behaviour[now])
        now = drawn(world.moves[step % len(world.moves)][now, actions[:, step]])
    rewards = rng.random((people, steps)) < world.rewards[states, actions]
    return PersonLog(
        jnp.asarray(np.eye(world.seen.max() + 1)[world.seen[states]], jnp.float32),
        jnp.asarray(actions, jnp.int32),
        jnp.asarray(rewards, jnp.float32),
        jnp.asarray(world.behaviour[states, actions], jnp.float32),
        jnp.ones((people, steps), bool),
    )


def true_returns(world: World, steps: int) -> tuple[np.ndarray, float]:
    """Returns Q [T, S, A] of the target policy for what is seen, and its value."""
    found, later = [], np.zeros(len(world.starts))
    looks = np.eye(world.seen.max() + 1)[world.seen]
    for step in reversed(range(steps)):
        returns = world.rewards + world.moves[step % len(world.moves)] @ later
        later = np.sum(world.target * returns, axis=1)
        found.append(looks.T @ returns / looks.sum(axis=0)[:, None])
    return np.array(found[::-1]), float(world.starts @ later)


def noisy(
    rng: np.random.Generator, parts: dict[str, jax.Array], stddevs: dict[str, float]
) -> dict[str, np.ndarray]:
    """Returns the sums over people with the noise of a release."""
    sums = {name: np.asarray(part, np.float64).sum(axis=0) for name, part in parts.items()}
    return {name: one + rng.normal(0, stddevs[name], one.shape) for name, one in sums.items()}


def everybody(function: Callable[..., Any], public: Any, people: PersonLog) -> dict[str, jax.Array]:
    """Returns the parts of every person."""
    found: dict[str, jax.Array]
    found, _ = jax.vmap(lambda person: function(public, person, new_key(0)))(people)
    return found


class Study:
    """One chain, number of steps and target of privacy."""

    def __init__(self, world: World, people: int, steps: int, epsilon: float) -> None:
        """Prepares what all resamples share."""
        self.world, self.people, self.steps = world, people, steps
        self.declaration = declared(world, people, steps)
        self.spending = release.Spending(epsilon, DELTA)
        first = np.unique(world.seen, return_index=True)[1]
        self.policy = InStates(jnp.asarray(world.target[first], jnp.float32))
        self.returns, self.truth = true_returns(world, steps)
        states = len(first)
        weights = np.concatenate(
            [np.zeros((steps, 2, 1)), np.swapaxes(self.returns, 1, 2)], axis=-1
        )
        self.model = ReturnModel(
            jnp.asarray(weights, jnp.float32), jnp.zeros(states), jnp.ones(states)
        )
        self.cells = Cells.of(self.declaration, ())
        self.jitted: dict[str, Any] = {}

    def settings(self, estimator: Any, public: Public) -> tuple[Evaluation, Bounds]:
        """Returns the settings of an estimator and its bounds."""
        asked = Asked(estimator, largest_weights=(CLIP,))
        evaluation, least, actions = settings_of(self.declaration, asked, 1)
        return evaluation, Bounds.of(evaluation, public, least, actions)

    def value(
        self,
        rng: np.random.Generator,
        estimator: Any,
        public: Public,
        people: PersonLog,
        errors: list[float],
    ) -> Value:
        """Returns the value that one release about these people gives."""
        evaluation, bounds = self.settings(estimator, public)

        def local(public: Public, person: PersonLog, key: Any) -> Any:
            return contribution(evaluation, bounds, public, person, key)

        if estimator != "marginalised":  # whose bounds depend on the tables
            local = self.jitted.setdefault(estimator, jax.jit(local))
        made = release.made(
            evaluation,
            bounds,
            self.declaration,
            len(people.present),
            release.multipliers(self.spending, 6),
        )
        stddevs = release.stddevs(made)
        sums = noisy(rng, everybody(local, public, people), stddevs)
        (found,) = values(evaluation, bounds, sums["sums"], sums["squares"], stddevs, 0.95, errors)
        return found

    def resample(self, rng: np.random.Generator) -> dict[str, Value]:
        """Returns the values of new people by each estimator."""
        everyone = logs(self.world, rng, self.people, self.steps)
        half = self.people // 2
        first = jax.tree.map(lambda x: x[:half], everyone)
        second = jax.tree.map(lambda x: x[half:], everyone)
        noise = tables.multipliers(self.declaration, self.cells, self.spending)
        made = tables.made(self.declaration, self.cells, half, noise)
        local = self.jitted.setdefault("tables", jax.jit(made.local))
        stddevs = release.stddevs(made)
        table = chains.Tables(**noisy(rng, everybody(local, self.cells, first), stddevs))
        facts = chains.TableFacts(stddevs, self.declaration.reward_bounds, 1.0)
        taken = [probabilities(self.policy, self.cells)]
        corrections = chains.corrections(self.cells, table, facts, taken)
        errors = chains.errors_of_tables(table, facts, taken)
        plain, robust = Public((self.policy,)), Public((self.policy,), (self.model,))
        return {
            "marginalised": self.value(
                rng, "marginalised", Public((self.policy,), corrections), second, errors
            ),
            "doubly-robust": self.value(rng, "doubly-robust", robust, everyone, []),
            "per-decision": self.value(rng, "per-decision", plain, everyone, []),
        }


def main() -> None:
    """Prints a row for each chain, number of steps and people, epsilon and estimator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resamples", type=int, default=300)
    parser.add_argument("--steps", type=int, nargs="+", default=[2, 5, 20])
    parser.add_argument("--people", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--chains", nargs="+", default=list(worlds()))
    given = parser.parse_args()
    print(
        "| chain | steps | people | epsilon | estimator | coverage | width | error | bias at most |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in given.chains:
        for steps in given.steps:
            for people in given.people:
                for epsilon in (0.5, 1.0):
                    study = Study(worlds()[name], people, steps, epsilon)
                    rng = np.random.default_rng(1)
                    found = [study.resample(rng) for _ in range(given.resamples)]
                    for estimator in found[0]:
                        told = [one[estimator] for one in found]
                        held = np.mean([v.low <= study.truth <= v.high for v in told])
                        width = np.mean([v.high - v.low for v in told]) / steps
                        error = np.sqrt(np.mean([(v.value - study.truth) ** 2 for v in told]))
                        bias = np.mean([v.bias for v in told]) / steps
                        print(
                            f"| {name} | {steps} | {people:,} | {epsilon:g} | {estimator} | "
                            f"{100 * held:.1f}% | {width:.4f} | {error / steps:.4f} | {bias:.3f} |",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
