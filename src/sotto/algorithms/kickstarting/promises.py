"""Statement and budget of a teacher, from the settings of its student.

The settings either give the noise, or it is calibrated: the smallest noise with which all planned
answers together cost at most target_epsilon.
"""

import math
from collections.abc import Callable

from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.algorithms.kickstarting.teachers import TeacherFacts
from sotto.privacy.answers.distances import (
    AnyTwoTeachers,
    Distance,
    ObservationDistance,
    PolicyDistance,
    TrainingShards,
)
from sotto.privacy.answers.statement import AnswerStatement, Schedule
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.mechanisms.policies import (
    Dirichlet,
    GaussianPolicy,
    PolicyMechanism,
    TruncatedDirichlet,
)
from sotto.privacy.units import whose_people
from sotto.rl.envs.registry import is_native

_PAPER_CONCENTRATION = 5.0
CONCENTRATIONS = (1e-2, 1e4)
"""Smallest and largest calibrated concentration."""

STDDEVS = (1e-4, 1e3)
"""Smallest and largest calibrated standard deviation."""

_PRECISION = 1e-3  # relative, of the noise; calibration ends on the private side


def promise(
    config: KickstartConfig, teacher: TeacherFacts, *, one_student: bool = True
) -> tuple[AnswerStatement, Budget]:
    """Returns the statement of a teacher, and the budget of its answers.

    Args:
        config: settings with a mechanism and a protection.
        teacher: public facts about the teacher.
        one_student: whether only the student of these settings will ask.

    Raises:
        ValueError: the settings contradict each other, or no noise meets target_epsilon.
    """
    population = whose_people(
        f"in {config.env_id}",
        "simulated" if is_native(config.env_id) else None,
        config.population,
    )
    epsilon = math.inf if config.target_epsilon is None else config.target_epsilon
    budget = Budget(epsilon=epsilon, delta=config.delta)
    distance = _distance(config, teacher)
    schedule = _schedule(config)

    def stated(noise: float) -> AnswerStatement:
        return AnswerStatement(
            name=f"teacher of {config.env_id}",
            mechanism=_mechanism(config, teacher.actions, noise),
            distance=distance,
            schedule=schedule,
            queries=config.total_queries,
            queries_per_student=int(min(config.total_queries, schedule.queries)),
            observation_size=teacher.observation_size,
            one_student=one_student,
            population=population,
            accounting=2,
        )

    gaussian = config.teacher_mechanism == "gaussian-policy"
    given = config.noise_stddev if gaussian else config.concentration
    if given is None and config.target_epsilon is None:
        given = _PAPER_CONCENTRATION
    if given is not None:
        return stated(given), budget
    # A larger standard deviation and a smaller concentration both mean more noise.
    noisiest, least_noisy = (STDDEVS if gaussian else CONCENTRATIONS)[:: -1 if gaussian else 1]
    return stated(_calibrated(stated, noisiest, least_noisy, budget)), budget


def _calibrated(
    stated: Callable[[float], AnswerStatement],
    noisiest: float,
    least_noisy: float,
    budget: Budget,
) -> float:
    """Returns the smallest noise with which the planned answers cost at most the budget."""

    def covered(noise: float) -> bool:
        return stated(noise).planned_epsilon(budget.delta) <= budget.epsilon

    if not covered(noisiest):
        cost = stated(noisiest).planned_epsilon(budget.delta)
        raise ValueError(
            f"no noise brings {stated(noisiest).queries} answers to epsilon {budget.epsilon:g}: "
            f"the most noise still costs {cost:.4g}; ask fewer --queries, train more teachers, "
            "raise --floor, or use --teacher-mechanism gaussian-policy"
        )
    if covered(least_noisy):
        return least_noisy
    while abs(math.log(least_noisy / noisiest)) > _PRECISION:
        middle = math.sqrt(noisiest * least_noisy)
        if covered(middle):
            noisiest = middle
        else:
            least_noisy = middle
    return noisiest


def _mechanism(config: KickstartConfig, actions: int, noise: float) -> PolicyMechanism:
    match config.teacher_mechanism:
        case "dirichlet":
            return Dirichlet(actions=actions, concentration=noise, floor=config.floor)
        case "truncated-dirichlet":
            return TruncatedDirichlet.sized(
                actions=actions,
                concentration=noise,
                floor=config.floor,
                threshold=config.threshold,
            )
        case "gaussian-policy":
            return GaussianPolicy(actions=actions, noise_stddev=noise, floor=config.floor)
        case other:
            raise ValueError(f"{other} answers have no statement; choose another mechanism")


def _schedule(config: KickstartConfig) -> Schedule:
    if config.schedule == "constant":
        return Schedule()
    return Schedule(
        kind="vanishing",
        coefficient=config.vanishing_coefficient,
        queries_per_rollout=config.rows_per_rollout,
        rollouts=config.rollout_stop,
    )


def _distance(config: KickstartConfig, teacher: TeacherFacts) -> Distance:
    match config.protect:
        case "observation":
            assert config.observation_radius is not None
            return ObservationDistance(
                radius=config.observation_radius,
                lipschitz=teacher.lipschitz,
                rounding=teacher.rounding,
            )
        case "policy":
            assert config.policy_distance is not None
            return PolicyDistance(l2=config.policy_distance)
        case "any-two-teachers":
            return AnyTwoTeachers()
        case "training-shards":
            return TrainingShards(teachers=teacher.teachers)
        case other:
            raise ValueError(f"answers cannot protect {other}; choose another --protect")
