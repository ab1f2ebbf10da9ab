"""What is public about environments, and settings that learn from experts there.

Settings were tuned on experts of other seeds than those that results are about; nothing is looked
up in the experts that are trained.
"""

from dataclasses import dataclass, replace

from sotto.algorithms.expert_offline.config import NO_ENVIRONMENT, ExpertOfflineConfig, States
from sotto.algorithms.settings import known
from sotto.rl.envs.registry import from_data, is_native, make


@dataclass(frozen=True)
class _Task:
    """What is public about an environment, and settings that learn there."""

    rollout_cap: int = 200
    evaluation_cap: int = 1000
    box: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    scale: tuple[float, ...] | None = None
    states: States = "students"
    students: int = 5
    least_return: float | None = None
    least_return_epsilon: float = 1.0  # below it everybody votes: a few are not heard in noise
    # Noise, or little data, wants more of the conservative term than a whole log without noise.
    alpha: float = 1.0
    log_alpha: float = 0.03
    reward_scale: float = 0.01
    discount: float = 0.99
    gradient_steps: int = 8_000


_VOTES = 1_000
"""Votes on which a student learns; noise grows with the square root of it."""

_TASKS = {
    "CartPole-v1": _Task(
        box=((-2.4, -3.0, -0.21, -3.0), (2.4, 3.0, 0.21, 3.0)),
        states="rollouts",
        log_alpha=1.0,  # of 3,000 experts; 0.03 is better on 200 experts, and far worse on these
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
        # Treatments that end the infection return ten times as much as those that contain it, and
        # fewer experts know them.
        least_return=3e8,
        least_return_epsilon=0.5,
        students=10,  # the same votes, and more students to choose from
        alpha=0.1,
        log_alpha=1.0,
        reward_scale=1e-7,
        discount=0.98,
    ),
    # Who hovers or crashes is outvoted by who lands; most experts land, so that many are left.
    "LunarLander-v3": _Task(rollout_cap=400, scale=(1.0,) * 8, least_return=100.0),
}


@dataclass(frozen=True)
class DataFacts:
    """What is known of the experts and their log before anything is learned.

    Attributes:
        env_id: what they acted in; None where the data do not say.
        experts: how many there are.
        observation_size: numbers in an observation.
        actions: how many; None where the data do not say.
    """

    env_id: str | None
    experts: int
    observation_size: int
    actions: int | None = None


def filled(config: ExpertOfflineConfig, facts: DataFacts) -> ExpertOfflineConfig:
    """The settings with everything filled in; filling them again changes nothing.

    Raises:
        ValueError: they do not fit the data or the environment, or something is not known.
    """
    env_id = config.env_id or from_data(facts.env_id or NO_ENVIRONMENT, "the dataset")
    task = _TASKS.get(env_id, _Task())
    box = task.box or (None, None)
    native = is_native(env_id)
    scale = config.observation_scale or task.scale
    if scale is None:
        scale = make(env_id).observation_scale if native else (1.0,) * facts.observation_size
    voters = config.voters or ("experts" if config.experts else "clones")
    states = config.states or ("box" if env_id == NO_ENVIRONMENT else task.states)
    learner = config.learner or ("distillation" if config.method == "votes" else "cql")
    alpha = task.alpha if config.is_private else task.log_alpha
    cap = config.rollout_cap or task.rollout_cap
    # Rollouts have a round for every step, students one for each student, a box needs but one.
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
    """Whose votes count: the setting, or the environment's where there is a log to tell.

    Under much noise a few good voters are not heard, and everybody votes.
    """
    if config.method != "votes" or config.dataset is None or config.least_return is not None:
        return config.least_return
    heard = (config.target_epsilon or 0.0) >= task.least_return_epsilon
    return task.least_return if heard else None


def _check_filled(config: ExpertOfflineConfig, facts: DataFacts) -> None:
    """What can only be said once the data are known."""
    count = known(config.expert_count)
    if count != facts.experts:
        raise ValueError(
            f"the data are of {facts.experts} experts, not of {count}; leave out --expert-count, "
            "or bring the data of all of them"
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
            f"--method {config.method} needs an environment to play in; give --env-id, or for "
            "votes --states box"
        )
    for name in ("observation_scale", *(("box_low", "box_high") if config.states == "box" else ())):
        corner = getattr(config, name)
        flag = f"--{name.replace('_', '-')}"
        if corner is None:
            raise ValueError(f"nothing public is known of the states' range: give {flag}")
        if len(corner) != facts.observation_size:
            raise ValueError(
                f"{flag} has {len(corner)} numbers, and an observation {facts.observation_size}"
            )
    if config.actions is None:
        raise ValueError("the data do not say how many actions there are; give --actions")
