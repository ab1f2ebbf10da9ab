"""Trains students, several seeds side by side, each with a teacher of its own to ask.

One compiled program collects for all of them, their teachers answer one after the other, and
another program learns. Iterating over a `Training` yields what may be logged after each chunk.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from sotto.algorithms.base import Progress
from sotto.algorithms.baselines.ppo import Collected, PPOConfig
from sotto.algorithms.kickstarting import student
from sotto.algorithms.kickstarting.config import KickstartConfig, RadiusName
from sotto.algorithms.kickstarting.student import KickstartMetrics, KickstartState, Rows
from sotto.algorithms.kickstarting.teachers import Answers, Teacher, silence
from sotto.keys import keys_of
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.mechanisms.dirichlet.radius import estimated_radius, radii, valid_radius
from sotto.privacy.mechanisms.dirichlet.simplex import project
from sotto.privacy.mechanisms.policies import PolicyMechanism, TruncatedDirichlet

_PROGRESS_POINTS = 25
_MOST_SAMPLES, _FEWEST_SAMPLES, _RADIUS_DRAWS = 20_000, 2_000, 2**21  # of a radius


Collect = Callable[
    [PPOConfig, int, KickstartState, PRNGKeyArray],
    tuple[Collected, Float[Array, "runs queries obs"]],
]
"""Makes one update's steps of several runs, and draws states to ask about."""


def initial_states(config: KickstartConfig, seeds: Sequence[int]) -> KickstartState:
    """Students that have asked nothing, leaves of shape [runs, ...]."""
    rows = config.queries_per_update * config.remember_updates
    states: KickstartState = student.init(config.ppo, rows, keys_of(seeds, 0))
    return states


class Training:
    """Students and their teachers.

    Args:
        config: settings.
        seeds: one per run.
        teachers: one per run.
        states: where to go on from; None starts afresh.
        done: updates already made on the way to `states`. Answers received after it are asked for
            again, and charged again.
        collect: makes the steps; another one where the environment does not run in JAX.

    Raises:
        ValueError: a teacher for another environment.
    """

    def __init__(
        self,
        config: KickstartConfig,
        seeds: Sequence[int],
        teachers: Sequence[Teacher],
        states: KickstartState | None = None,
        done: int = 0,
        collect: Collect = student.collect,
    ) -> None:
        self.config, self.done = config, done
        self.states = initial_states(config, seeds) if states is None else states
        self.chunk_updates = math.ceil(config.num_updates / _PROGRESS_POINTS)
        self._keys = keys_of(seeds, 1)
        self._teachers = teachers
        self._collect = collect
        self._silent = [False] * len(teachers)
        for teacher in teachers:
            check_teacher(
                config,
                teacher.observation_size,
                teacher.actions,
                teacher.statement,
                (self.states.rows.observations.shape[-1], self.states.rows.answers.shape[-1]),
            )

    def __iter__(self) -> Iterator[Progress]:
        """Makes the remaining updates, a chunk at a time."""
        while self.done < self.config.num_updates:
            count = min(self.chunk_updates, self.config.num_updates - self.done)
            metrics = [self._update() for _ in range(count)]
            series = jax.tree.map(lambda *values: np.stack(values, axis=1), *metrics)
            named = _named(series)
            released = {"answered": named.pop("answered")}
            yield Progress(self.done, self.states, released, simulated=named)

    def _update(self) -> KickstartMetrics:
        config = self.config
        collected, asked = self._collect(
            config.ppo, config.queries_per_update, self.states, self._keys
        )
        answered = self._ask(np.asarray(asked, np.float64))
        metrics: KickstartMetrics
        self.states, metrics = student.optimise(
            config.ppo,
            self.states,
            collected,
            answered,
            jnp.float32(config.weight(self.done)),
            self._keys,
        )
        self.done += 1
        return metrics

    def _ask(self, observations: Float[np.ndarray, "runs queries obs"]) -> Rows:
        """Every run's answers, as rows to learn from."""
        answers = [self._answers(run, asked) for run, asked in enumerate(observations)]
        pairs = list(zip(answers, self._teachers, strict=True))
        columns = (
            observations,
            np.stack([self._targets(one, teacher) for one, teacher in pairs]),
            np.stack([self._thresholds(one, teacher) for one, teacher in pairs]),
            np.stack([self._weights(one) for one in answers]),
            np.stack([np.full(len(one.policies), one.released) for one in answers]),
        )
        return Rows(*(jnp.asarray(column, jnp.float32) for column in columns))

    def _targets(self, answers: Answers, teacher: Teacher) -> Float[np.ndarray, "queries actions"]:
        """The rows to be near to: the answers, or what they say of the row before the floor.

        The row and the answer are mapped alike, and projecting onto the simplex, which holds the
        row, brings them no further apart.
        """
        share = self._share(teacher)
        if share == 1 or not answers.released:
            return answers.policies
        uniform = 1 / teacher.actions
        return project(uniform + (answers.policies - uniform) / share)

    def _share(self, teacher: Teacher) -> float:
        """1 - m floor: the share of the teacher's own row, where the floor is to be undone."""
        if teacher.statement is None or self.config.keep_floor:
            return 1.0
        share = 1 - teacher.actions * teacher.statement.mechanism.floor
        return share if share > 0 else 1.0

    def _thresholds(self, answers: Answers, teacher: Teacher) -> Float[np.ndarray, " queries"]:
        """Alpha_lambda of each answer (equation 15): 0 where there is no noise."""
        config, statement = self.config, teacher.statement
        levels = answers.levels
        if statement is None or config.radius_factor == 0 or not answers.released:
            return np.zeros(len(levels))
        radii = {
            level: radius(statement.mechanism_at(level), config.radius, config.beta)
            for level in np.unique(levels).tolist()
        }
        factor = config.radius_factor / self._share(teacher)
        return factor * np.array([radii[level] for level in levels.tolist()])

    def _weights(self, answers: Answers) -> Float[np.ndarray, " queries"]:
        """Which rows the hinge is about: answers, and for a heedless student silence as well."""
        asking = self.done < self.config.asking_updates
        heard = answers.released or (asking and self.config.heedless)
        return np.full(len(answers.policies), float(heard))

    def _answers(self, run: int, observations: Float[np.ndarray, "queries obs"]) -> Answers:
        teacher = self._teachers[run]
        if self._silent[run] or self.done >= self.config.asking_updates:
            return silence(len(observations), teacher.actions)
        answers = teacher.answer(observations)
        self._silent[run] = not answers.released
        return answers


@lru_cache(maxsize=4096)
def radius(mechanism: PolicyMechanism, name: RadiusName, beta: float) -> float:
    """How far an answer is from the teacher's restricted row, but for a probability of beta.

    Raises:
        ValueError: there is no such radius for this mechanism, or none at this beta.
    """
    if name == "monte-carlo":
        # Of public parameters alone, so that the same draws serve as well, and always.
        draws = np.random.default_rng(0)
        proposals = mechanism.proposals if isinstance(mechanism, TruncatedDirichlet) else 1
        samples = max(_RADIUS_DRAWS // proposals, _FEWEST_SAMPLES)
        samples = min(samples, _MOST_SAMPLES)
        return estimated_radius(mechanism, beta, draws, samples=samples).value
    if name == "valid":
        return valid_radius(mechanism, beta)
    method = {"chi-square": "chi-square", "markov": "Markov", "paper": "the paper's Lemma 1"}[name]
    found = [one.value for one in radii(mechanism, beta) if one.method.startswith(method)]
    if not found:
        raise ValueError(
            f"there is no {name} radius for {mechanism.kind} answers at beta {beta:g}; "
            "use --radius valid or monte-carlo"
        )
    return found[0]


def check_teacher(
    config: KickstartConfig,
    observation_size: int,
    actions: int,
    statement: AnswerStatement | None,
    sizes: tuple[int, int] | None = None,
) -> None:
    """Refuses a teacher that this student cannot learn from, before anything is asked.

    Args:
        config: the student's settings.
        observation_size: the teacher's.
        actions: the teacher's.
        statement: the teacher's.
        sizes: the student's, as `kickstarting.sizes`; None looks the environment up.

    Raises:
        ValueError: it is one for another environment, or its answers have no such radius.
    """
    sizes = sizes or student.sizes(config.env_id)
    if (observation_size, actions) != sizes:
        raise ValueError(
            f"the teacher takes {observation_size} numbers and has {actions} actions, where "
            f"{config.env_id} has {sizes[0]} and {sizes[1]}; give the --env-id of the teacher"
        )
    if statement is not None and config.radius_factor > 0:
        for level in (0, statement.schedule.levels - 1):
            radius(statement.mechanism_at(level), config.radius, config.beta)


def _named(metrics: KickstartMetrics) -> dict[str, np.ndarray]:
    named = {**metrics._asdict(), **metrics.ppo._asdict()}
    del named["ppo"]
    return named
