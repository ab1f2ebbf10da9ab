"""The promise that the operator of a teacher makes before the first answer, as flags.

The flags are those of `sotto train kickstart` and lead to the same statement. A teacher behind a
service promises what the same teacher would promise in the student's process.
"""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

import tyro

from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.promises import promise
from sotto.algorithms.kickstarting.teacher_run import TeacherRun
from sotto.privacy.answers.distances import ObservationDistance, TrainingShards
from sotto.privacy.answers.statement import AnswerStatement
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.units import PopulationKind, whose_people


@dataclass(frozen=True)
class Promise:
    """Cost and protection of the answers. They are fixed at the first start."""

    queries: int
    """Number of answers to all students together, who may collude. The number is public."""
    target_epsilon: float
    """Largest epsilon of all these answers together. Without --concentration or --noise-stddev, the
    noise is calibrated to it."""
    delta: float = 1e-5
    """Delta of the budget; below 1 / (number of people in the teacher's training)."""
    queries_per_student: int | None = None
    """Largest number of answers to one student. None: all of them."""
    teacher_mechanism: Annotated[
        Literal["dirichlet", "truncated-dirichlet", "gaussian-policy"],
        tyro.conf.arg(aliases=["--mechanism"]),
    ] = "dirichlet"
    """Mechanism that makes an answer of the teacher's policy row."""
    concentration: float | None = None
    """Concentration k of the Dirichlet mechanism. None: calibrated to target_epsilon."""
    noise_stddev: float | None = None
    """Standard deviation of gaussian-policy's noise. None: calibrated to target_epsilon."""
    floor: float = 0.05
    """Least probability eta of an action after mixing the teacher's row with the uniform row."""
    threshold: float = 0.01
    """Least probability tau in an answer of truncated-dirichlet; smaller than the floor."""
    population: PopulationKind | None = None
    """Whether the people behind the teacher are simulated or real. It must be given for an
    environment, or a wrapper, that comes neither with sotto nor with Gymnasium."""
    protect: Literal["observation", "policy", "any-two-teachers", "training-shards"] | None = None
    """Protected input: observation (within observation_radius), policy (within
    policy_distance), any-two-teachers, or training-shards (each person in the training of several
    seeds). None: training-shards for several seeds, else any-two-teachers."""
    observation_radius: float | None = None
    """L2 distance B of neighbouring observations, in the units of the environment."""
    policy_distance: float | None = None
    """L2 distance of neighbouring teachers' rows."""
    schedule: Literal["constant", "vanishing"] = "constant"
    """constant, or vanishing as in the paper: concentration * vanishing_coefficient per rollout."""
    vanishing_coefficient: float = 0.3
    """Factor on the concentration after each rollout."""
    queries_per_rollout: int | None = None
    """Number of answers to one student per rollout, with --schedule vanishing."""
    rollouts: int | None = None
    """Number of rollouts after which a student gets no answer, with --schedule vanishing."""


_SHARED = {one.name for one in fields(Promise)} & {one.name for one in fields(KickstartConfig)}


def promised(settings: Promise, teacher: TeacherRun) -> tuple[AnswerStatement, Budget]:
    """Returns the statement and the budget that follow from the settings for this teacher.

    Raises:
        ValueError: the settings contradict each other or the teacher, or no noise meets the target.
    """
    if teacher.private_training:
        raise ValueError(
            f"{teacher.path} is a run of dppg: its policy is private already, and a service would "
            "only add noise; give students the run itself, for sotto train kickstart --teacher"
        )
    if settings.schedule == "vanishing" and None in (
        settings.queries_per_rollout,
        settings.rollouts,
    ):
        raise ValueError("--schedule vanishing needs --queries-per-rollout and --rollouts")
    protect = settings.protect or ("training-shards" if teacher.shards else "any-two-teachers")
    if protect == "training-shards" and not teacher.shards:
        raise ValueError(
            f"{teacher.path} is one training, so --protect training-shards would not be true; it "
            "needs several seeds: sotto train ppo --seeds N"
        )
    place = f"in {teacher.env_id}"
    population = whose_people(place, teacher.population, settings.population)
    shared = {name: value for name, value in vars(settings).items() if name in _SHARED}
    config = KickstartConfig(
        teacher=str(teacher.path),
        env_id=teacher.env_id,
        **(shared | {"protect": protect, "population": population}),
    )
    statement, budget = promise(config, teacher, one_student=False)
    if settings.queries_per_student is None:
        return statement, budget
    limit = {"queries_per_student": settings.queries_per_student}
    return AnswerStatement(**(dict(statement) | limit)), budget


def check_teacher(teacher: TeacherRun, statement: AnswerStatement, env_id: str) -> None:
    """Checks that the promise was made for this teacher.

    Raises:
        ValueError: the run has changed since the first start of the service.
    """
    shape = (teacher.env_id, teacher.actions, teacher.observation_size)
    fits = shape == (env_id, statement.mechanism.actions, statement.observation_size)
    match statement.distance:
        case TrainingShards(teachers=teachers):
            fits = fits and teacher.shards and teacher.teachers == teachers
        case ObservationDistance(rounding=None) as old if not teacher.moves_within(old):
            raise ValueError(
                "this service was started by an earlier version, which did not count how far "
                "rounding moves answers of this network; start a new service with another --out"
            )
        case distance:
            fits = fits and teacher.moves_within(distance)
    if not fits:
        raise ValueError(
            f"the run at {teacher.path} is not the one that this service promised answers of; "
            "restore that run, or start a new service with another --out"
        )
