"""What whoever runs a teacher decides before it answers anybody; the dataclass is the command line.

The flags are those of `sotto train kickstart`, and so is what becomes of them: a teacher behind a
service promises what the same teacher would promise in the student's own process.
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


@dataclass(frozen=True)
class Promise:
    """What the answers cost and protect: fixed at the first start, for good."""

    queries: int
    """Answers to all students together, a public stop: they may collude."""
    target_epsilon: float
    """The budget: what all these answers together must not exceed. Leave out --concentration or
    --noise-stddev, and the noise is calibrated to it."""
    delta: float = 1e-5
    """Delta of the budget; below 1 / (number of people the teacher was trained on)."""
    queries_per_student: int | None = None
    """Answers to one student at most. None: as many as there are."""
    teacher_mechanism: Annotated[
        Literal["dirichlet", "truncated-dirichlet", "gaussian-policy"],
        tyro.conf.arg(aliases=["--mechanism"]),
    ] = "dirichlet"
    """How the teacher's row becomes an answer."""
    concentration: float | None = None
    """Dirichlet's k. None: calibrated to target_epsilon."""
    noise_stddev: float | None = None
    """Noise of gaussian-policy in each probability. None: calibrated to target_epsilon."""
    floor: float = 0.05
    """Eta: the teacher's row is mixed with the uniform one until no probability is below it."""
    threshold: float = 0.01
    """Tau of truncated-dirichlet: no probability of an answer is below it; less than the floor."""
    protect: Literal["observation", "policy", "any-two-teachers", "training-shards"] | None = None
    """What the answers protect: observation (within observation_radius), policy (within
    policy_distance), any-two-teachers, or training-shards (every person in the training of several
    seeds). None: training-shards for several seeds, else any-two-teachers."""
    observation_radius: float | None = None
    """B: L2 distance of neighbouring observations, in the environment's units."""
    policy_distance: float | None = None
    """L2 distance of neighbouring teachers' rows."""
    schedule: Literal["constant", "vanishing"] = "constant"
    """Constant noise, or the paper's: concentration * vanishing_coefficient after each roll-out."""
    vanishing_coefficient: float = 0.3
    """Factor on the concentration after each roll-out."""
    queries_per_rollout: int | None = None
    """Answers to one student at one concentration, under --schedule vanishing."""
    rollouts: int | None = None
    """Roll-outs after which a student gets no answer, under --schedule vanishing."""


_SHARED = {one.name for one in fields(Promise)} & {one.name for one in fields(KickstartConfig)}


def promised(settings: Promise, teacher: TeacherRun) -> tuple[AnswerStatement, Budget]:
    """The statement and the budget that follow from the settings for this teacher.

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
    shared = {name: value for name, value in vars(settings).items() if name in _SHARED}
    config = KickstartConfig(
        teacher=str(teacher.path), env_id=teacher.env_id, **(shared | {"protect": protect})
    )
    statement, budget = promise(config, teacher, one_student=False)
    if settings.queries_per_student is None:
        return statement, budget
    limit = {"queries_per_student": settings.queries_per_student}
    return AnswerStatement(**(dict(statement) | limit)), budget


def check_teacher(teacher: TeacherRun, statement: AnswerStatement, env_id: str) -> None:
    """Refuses a teacher that another promise was made for.

    Raises:
        ValueError: the run is not what it was when the service was first started.
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
            "bring that one back, or start a new service with another --out"
        )
