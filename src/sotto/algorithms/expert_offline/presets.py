"""Public facts about environments, and settings with which learning from experts works there.

The settings were tuned on experts of other seeds than those of the results. So they do not depend
on the experts of a run.
"""

from dataclasses import dataclass, replace

from sotto.algorithms.expert_offline.config import NO_ENVIRONMENT, ExpertOfflineConfig, States
from sotto.algorithms.settings import known
from sotto.rl.envs.registry import from_data, is_native, make


@dataclass(frozen=True)
class _Task:
    """Public facts about an environment, and settings for it."""

    rollout_cap: int = 200
    evaluation_cap: int = 1000
    box: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    scale: tuple[float, ...] | None = None
    states: States = "students"
    students: int = 5
    least_return: float | None = None
    least_return_epsilon: float = 1.0  # below it all experts vote, since noise hides a few votes
    # With noise, or with little data, the conservative term must be larger than for a whole log.
    alpha: float = 1.0
    log_alpha: float = 0.03
    reward_scale: float = 0.01
    discount: float = 0.99
    gradient_steps: int = 8_000


_VOTES = 1_000
"""Number of votes from which a student learns. The noise grows with its square root."""

_TASKS = {
    "CartPole-v1": _Task(
        box=((-2.4, -3.0, -0.21, -3.0), (2.4, 3.0, 0.21, 3.0)),
        states="rollouts",
        log_alpha=1.0,  # for 3,000 experts; 0.03 is better for 200 experts and far worse here
        gradient_steps=5_000,
    ),
    "Acrobot-v1": _Task(
        evaluation_cap=200,
        box=((-1.0,) * 4 + (-12.6, -28.3), (1.0,) * 4 + (12.6, 28.3)),
        alpha=0.1,
        reward_scale=1.0,
    ),
    "HIV-v0": _Task(
        rollout_cap=50,
        evaluation_cap=50,
        box=((-5.0,) * 6, (8.0,) * 6),
        # Treatments that end the infection return ten times as much as those that only contain it,
        # and fewer experts use them.
        least_return=3e8,
        least_return_epsilon=0.5,
        students=10,  # the same number of votes with more students to choose from
        alpha=0.1,
        log_alpha=1.0,
        reward_scale=1e-7,
        discount=0.98,
    ),
    # Only experts that land should vote. Most experts land, so many votes remain.
    "LunarLander-v3": _Task(rollout_cap=400, scale=(1.0,) * 8, least_return=100.0),
}


@dataclass(frozen=True)
class DataFacts:
    """Public facts about the experts and their log.

    Attributes:
        env_id: environment of the experts; None if the data do not state it.
        experts: number of experts.
        observation_size: length of an observation.
        actions: number of actions; None if the data do not state it.
    """

    env_id: str | None
    experts: int
    observation_size: int
    actions: int | None = None


def filled(config: ExpertOfflineConfig, facts: DataFacts) -> ExpertOfflineConfig:
    """Returns the settings with all values filled in; a second call changes nothing.

    Raises:
        ValueError: the settings do not fit the data or the environment, or a value is unknown.
    """
    env_id = config.env_id or from_data(facts.env_id or NO_ENVIRONMENT, "the dataset")
    task = _TASKS.get(env_id, _Task())
    box = task.box or (None, None)
    known_scale = make(env_id).observation_scale if is_native(env_id) else task.scale
    if known_scale is not None and len(known_scale) != facts.observation_size:
        raise ValueError(
            f"an observation has {len(known_scale)} numbers in {env_id} and "
            f"{facts.observation_size} in the data; give --env-id the experts' environment"
        )
    scale = config.observation_scale or known_scale or (1.0,) * facts.observation_size
    voters = config.voters or ("experts" if config.experts else "clones")
    states = config.states or ("box" if env_id == NO_ENVIRONMENT else task.states)
    learner = config.learner or ("distillation" if config.method == "votes" else "cql")
    alpha = task.alpha if config.is_private else task.log_alpha
    cap = config.rollout_cap or task.rollout_cap
    # Rollouts have a round for each step, students one for each student, and a box has one.
    rounds = config.rounds or {"rollouts": cap, "students": task.students, "box": 1}[states]
    config = replace(
        config,
        env_id=env_id,
        expert_count=config.expert_count or facts.experts,
        voters=voters if config.method == "votes" else None,
        states=states if config.method == "votes" else None,
        least_return=_least_return(config, task),
        learner="bc" if config.method == "bc" else learner,
        queries=config.queries or max(1, _VOTES // rounds),
        rounds=rounds,
        gradient_steps=config.gradient_steps or task.gradient_steps,
        alpha=alpha if config.alpha is None else config.alpha,
        reward_scale=config.reward_scale or task.reward_scale,
        discount=task.discount if config.discount is None else config.discount,
        rollout_cap=cap,
        evaluation_cap=config.evaluation_cap or task.evaluation_cap,
        observation_scale=scale,
        box_low=config.box_low or box[0],
        box_high=config.box_high or box[1],
        actions=config.actions or facts.actions,
    )
    if config.delta is None and config.is_private:
        config = replace(config, delta=1 / (10 * known(config.expert_count)))
    _check_filled(config, facts)
    return config


def _least_return(config: ExpertOfflineConfig, task: _Task) -> float | None:
    """Returns the least return of a voter: the setting, or the environment's if there is a log.

    With much noise a few good voters have no effect, so all experts vote.
    """
    if config.method != "votes" or config.dataset is None or config.least_return is not None:
        return config.least_return
    heard = (config.target_epsilon or 0.0) >= task.least_return_epsilon
    return task.least_return if heard else None


def _check_filled(config: ExpertOfflineConfig, facts: DataFacts) -> None:
    """Refuses completed settings that do not fit the data or the environment."""
    count = known(config.expert_count)
    if count != facts.experts:
        raise ValueError(
            f"the data are of {facts.experts} experts, not of {count}; leave out --expert-count, "
            "or give the data of all experts"
        )
    if config.is_private and known(config.delta) * count >= 1:
        raise ValueError(
            f"delta {config.delta:g} is vacuous for {count} experts, since publishing one of them "
            f"at random would meet it; give --delta below {1 / count:g}"
        )
    if config.uses_dp_sgd and config.batch >= count:
        raise ValueError(f"batch must be below the {count} experts, got {config.batch}")
    if config.plays and not config.has_environment:
        raise ValueError(
            f"--method {config.method} needs an environment; give --env-id, or --states box with "
            "--method votes"
        )
    for name in ("observation_scale", *(("box_low", "box_high") if config.states == "box" else ())):
        corner = getattr(config, name)
        flag = f"--{name.replace('_', '-')}"
        if corner is None:
            raise ValueError(f"the public range of the states is unknown; give {flag}")
        if len(corner) != facts.observation_size:
            raise ValueError(
                f"{flag} has {len(corner)} numbers, but an observation has "
                f"{facts.observation_size}; give one number for each"
            )
    if config.actions is None:
        raise ValueError("the data do not state the number of actions; give --actions")
