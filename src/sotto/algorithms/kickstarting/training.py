"""Training of students: several seeds side by side, each with its own teacher.

One compiled program collects the steps of all students. Their teachers answer one after the other,
and another compiled program learns. Iterating over a `StudentTraining` yields progress after each
chunk.
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
from sotto.algorithms.kickstarting.teachers import Answers, Teacher, silent_answers
from sotto.keys import keys_of
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.mechanisms.dirichlet.radius import estimated_radius, radii, valid_radius
from sotto.privacy.mechanisms.dirichlet.simplex import project
from sotto.privacy.mechanisms.policies import PolicyMechanism, TruncatedDirichlet

_PROGRESS_POINTS = 25
_MOST_SAMPLES, _FEWEST_SAMPLES, _RADIUS_DRAWS = 20_000, 2_000, 2**21  # for a radius


Collect = Callable[
    [PPOConfig, int, KickstartState, PRNGKeyArray],
    tuple[Collected, Float[Array, "runs queries obs"]],
]
"""Function that collects one update's steps of several runs, and draws states to ask about."""


def initial_states(config: KickstartConfig, seeds: Sequence[int]) -> KickstartState:
    """Returns students that have asked nothing, leaves of shape [runs, ...]."""
    rows = config.queries_per_update * config.remember_updates
    states: KickstartState = student.init(config.ppo, rows, keys_of(seeds, student.STARTING))
    return states


class StudentTraining:
    """Training of several students, each with its teacher.

    Args:
        config: settings.
        seeds: one per run.
        teachers: one per run.
        states: states to continue from. None: new students.
        done: number of updates behind `states`. Answers that were received after them are asked
            for again, and charged again.
        collect: function that collects steps. Environments outside JAX need their own.

    Raises:
        ValueError: a teacher is for another environment.
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
        self._keys = keys_of(seeds, student.TRAINING)
        self._teachers = teachers
        self._collect = collect
        self._silent = [False] * len(teachers)
        statements = [one.statement for one in teachers]
        said = {config.population, *(one.population for one in statements if one is not None)}
        self._about_real = "real" in said
        for teacher in teachers:
            check_teacher(
                config,
                teacher.observation_size,
                teacher.actions,
                teacher.statement,
                (self.states.rows.observations.shape[-1], self.states.rows.answers.shape[-1]),
            )

    def __iter__(self) -> Iterator[Progress]:
        """Makes the remaining updates, and yields after each chunk."""
        while self.done < self.config.num_updates:
            count = min(self.chunk_updates, self.config.num_updates - self.done)
            metrics = [self._update() for _ in range(count)]
            series = jax.tree.map(lambda *values: np.stack(values, axis=1), *metrics)
            named = _named(series)
            released = {"answered": named.pop("answered")}
            if self._about_real:  # all of it follows from answers, and from the student's simulator
                released, named = released | named, {}
            yield Progress(self.done, self.states, released, simulated=named)

    def _update(self) -> KickstartMetrics:
        config = self.config
        collected, asked = self._collect(
            config.ppo, config.queries_per_update, self.states, self._keys
        )
        answered = self._ask(np.asarray(asked, np.float64))
        heard = np.any(answered.weights) or np.any(self.states.rows.weights)
        metrics: KickstartMetrics
        self.states, metrics = student.optimise(
            config.ppo,
            self.states,
            collected,
            answered if heard else None,
            jnp.float32(config.weight(self.done)),
            self._keys,
        )
        self.done += 1
        return metrics

    def _ask(self, observations: Float[np.ndarray, "runs queries obs"]) -> Rows:
        """Asks the teacher of every run, and returns the answers as rows to learn from."""
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
        """Returns the rows to follow: the answers, or answers with the floor undone.

        Undoing the floor is the same affine map for the row and the answer. The row is in the
        simplex, so projecting onto the simplex brings the two no further apart.
        """
        share = self._share(teacher)
        if share == 1 or not answers.released:
            return answers.policies
        uniform = 1 / teacher.actions
        return project(uniform + (answers.policies - uniform) / share)

    def _share(self, teacher: Teacher) -> float:
        """Returns the share of the teacher's own row, 1 - m floor, or 1 if the floor is kept."""
        if teacher.statement is None or self.config.keep_floor:
            return 1.0
        share = 1 - teacher.actions * teacher.statement.mechanism.floor
        return share if share > 0 else 1.0

    def _thresholds(self, answers: Answers, teacher: Teacher) -> Float[np.ndarray, " queries"]:
        """Returns alpha_lambda of each answer (equation 15). It is 0 without noise."""
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
        """Returns 1 for rows that the hinge uses: answers, and silence for a heedless student."""
        asking = self.done < self.config.asking_updates
        heard = answers.released or (asking and self.config.heedless)
        return np.full(len(answers.policies), float(heard))

    def _answers(self, run: int, observations: Float[np.ndarray, "queries obs"]) -> Answers:
        teacher = self._teachers[run]
        if self._silent[run] or self.done >= self.config.asking_updates:
            return silent_answers(len(observations), teacher.actions)
        answers = teacher.answer(observations)
        self._silent[run] = not answers.released
        return answers


@lru_cache(maxsize=4096)
def radius(mechanism: PolicyMechanism, name: RadiusName, beta: float) -> float:
    """Returns a radius around the teacher's restricted row. Answers leave it with probability beta.

    Raises:
        ValueError: this mechanism has no such radius, or has none at this beta.
    """
    if name == "monte-carlo":
        # It only depends on public parameters, so a fixed seed is enough.
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
    """Refuses a teacher from which this student cannot learn, before the student asks.

    Args:
        config: the student's settings.
        observation_size: length of the teacher's observations.
        actions: number of the teacher's actions.
        statement: the teacher's statement. None: its answers are exact.
        sizes: the student's sizes, as from `student.sizes`. None: those of its environment.

    Raises:
        ValueError: the teacher is for another environment, or its answers have no such radius.
    """
    sizes = sizes or student.sizes(config.env_id)
    if (observation_size, actions) != sizes:
        raise ValueError(
            f"the teacher takes {observation_size} numbers and has {actions} actions, but "
            f"{config.env_id} has {sizes[0]} and {sizes[1]}; give the --env-id of the teacher"
        )
    if statement is not None and config.radius_factor > 0:
        for level in (0, statement.schedule.levels - 1):
            radius(statement.mechanism_at(level), config.radius, config.beta)


def _named(metrics: KickstartMetrics) -> dict[str, np.ndarray]:
    named = {**metrics._asdict(), **metrics.ppo._asdict()}
    del named["ppo"]
    return named
