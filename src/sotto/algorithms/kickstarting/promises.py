"""From a student's settings to what its teacher promises: the statement and its budget.

The noise is what the settings say, or the least under which the planned answers cost no more than
target_epsilon.
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

_PAPER_CONCENTRATION = 5.0
CONCENTRATIONS = (1e-2, 1e4)
"""What a calibrated concentration lies between."""

STDDEVS = (1e-4, 1e3)
"""What a calibrated standard deviation lies between."""

_PRECISION = 1e-3  # of the noise; calibration ends on the private side


def promise(
    config: KickstartConfig, teacher: TeacherFacts, *, one_student: bool = True
) -> tuple[AnswerStatement, Budget]:
    """What a teacher promises, and what its answers may cost.

    Args:
        config: settings whose mechanism and protection are named.
        teacher: whose rows are asked for.
        one_student: whether nobody but the student of these settings will ask.

    Raises:
        ValueError: the settings contradict each other, or no noise meets target_epsilon.
    """
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
            population="simulated",
            accounting=2,
        )

    gaussian = config.teacher_mechanism == "gaussian-policy"
    given = config.noise_stddev if gaussian else config.concentration
    if given is None and config.target_epsilon is None:
        given = _PAPER_CONCENTRATION
    if given is not None:
        return stated(given), budget
    # The larger the standard deviation, and the smaller the concentration, the less is given away.
    noisiest, least_noisy = (STDDEVS if gaussian else CONCENTRATIONS)[:: -1 if gaussian else 1]
    return stated(_calibrated(stated, noisiest, least_noisy, budget)), budget


def _calibrated(
    stated: Callable[[float], AnswerStatement],
    noisiest: float,
    least_noisy: float,
    budget: Budget,
) -> float:
    """The least noise under which the planned answers cost no more than the budget."""

    def covered(noise: float) -> bool:
        return stated(noise).planned_epsilon(budget.delta) <= budget.epsilon

    if not covered(noisiest):
        cost = stated(noisiest).planned_epsilon(budget.delta)
        raise ValueError(
            f"no noise brings {stated(noisiest).queries} answers to epsilon {budget.epsilon:g}: "
            f"the most there is leaves {cost:.4g}; ask fewer --queries, train more teachers, raise "
            "--floor, or use --teacher-mechanism gaussian-policy"
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
            raise ValueError(f"{other} answers have no statement")


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
            raise ValueError(f"nothing is said about what the answers protect (protect: {other})")
