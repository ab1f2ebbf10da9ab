"""Settings of private kickstarting: the dataclass is the command line."""

from dataclasses import dataclass, fields
from typing import Literal

from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.settings import (
    Count,
    Epsilon,
    Fraction,
    NotNegative,
    Positive,
    Probability,
    Share,
)

MechanismName = Literal["dirichlet", "truncated-dirichlet", "gaussian-policy", "exact"]
ProtectName = Literal["observation", "policy", "any-two-teachers", "training-shards", "dppg"]
RadiusName = Literal["valid", "chi-square", "markov", "monte-carlo", "paper"]

_PROMISES = (
    *("teacher_mechanism", "concentration", "noise_stddev", "protect", "observation_radius"),
    *("policy_distance", "queries", "rollouts", "queries_per_rollout", "target_epsilon"),
)
"""Settings that are the teacher's to choose, which a service chooses itself."""


@dataclass(frozen=True)
class KickstartConfig(PPOConfig):
    """Private kickstarting (Gohari et al. 2021): PPO that also listens to a teacher's answers."""

    teacher: str = ""
    """The teacher: a run of ppo (several seeds are an ensemble of shards) or of dppg, or the URL
    of a teacher's service (token in SOTTO_TEACHER_TOKEN), which sets all that is private itself."""
    teacher_mechanism: MechanismName | None = None
    """How the teacher's row becomes an answer; exact protects nobody, unless the teacher is a run
    of dppg. None: dirichlet, and exact for a run of dppg."""
    concentration: Positive | None = None
    """Dirichlet's k. None: calibrated to target_epsilon, or 5 without one (the paper's)."""
    noise_stddev: Positive | None = None
    """Noise of gaussian-policy in each probability. None: calibrated to target_epsilon."""
    floor: Probability = 0.05
    """Eta: the teacher's row is mixed with the uniform one until no probability is below it."""
    threshold: Probability = 0.01
    """Tau of truncated-dirichlet: no probability of an answer is below it; less than the floor."""

    protect: ProtectName | None = None
    """What the answers protect: observation (within observation_radius), policy (within
    policy_distance), any-two-teachers, training-shards (every person in the training of several
    seeds), or dppg (the people of a dppg run, whose answers are free). None: training-shards for
    several seeds, dppg for dppg, else any-two-teachers."""
    observation_radius: Positive | None = None
    """B: L2 distance of neighbouring observations, in the environment's units."""
    policy_distance: Positive | None = None
    """L2 distance of neighbouring teachers' rows."""
    queries: Count | None = None
    """Answers the teacher gives at most, a public stop. None: as many as the student may ask."""
    schedule: Literal["constant", "vanishing"] = "constant"
    """Constant noise, or the paper's: concentration * vanishing_coefficient after each roll-out."""
    vanishing_coefficient: Share = 0.3
    """Factor on the concentration after each roll-out."""
    queries_per_rollout: Count | None = None
    """Answers at one concentration. None: queries_per_update."""
    rollouts: Count | None = None
    """Roll-outs after which the teacher is silent, a public stop. None: 5."""
    target_epsilon: Epsilon | None = None
    """Epsilon the certificate must not exceed."""
    delta: Fraction = 1e-5
    """Delta of the guarantee."""

    queries_per_update: Count = 256
    """States of each update that the teacher is asked about, a public number."""
    stop_after: Count | None = None
    """Updates after which the student asks no more."""
    heedless: bool = False
    """Take the uniform rows of a silent teacher for answers, as a student does that knows nothing
    of the budget; otherwise the hinge is left out."""
    remember_updates: Count = 20
    """The hinge is averaged over the answers of so many last updates, at no further cost; 1 is the
    paper's student, which forgets an answer with the steps it was about."""
    radius_factor: NotNegative = 0.5
    """Lambda: the hinge is inactive within lambda * radius of an answer. 0 is a student that knows
    nothing of the noise, and non-private kickstarting."""
    keep_floor: bool = False
    """Follow answers as they are, about the row mixed with the uniform one (the paper's);
    otherwise the mixing is undone, and the radius grows by as much."""
    radius: RadiusName = "monte-carlo"
    """How far answers are from rows: chi-square, markov or the least of them (valid), which are
    proved; monte-carlo, which is estimated; or paper, its Lemma 1, which does not hold."""
    beta: Fraction = 0.05
    """The radius holds with probability 1 - beta."""
    kickstart_weight: NotNegative = 1.0
    """Weight of the hinge beside PPO's loss."""
    anneal_kickstart: Count | None = None
    """Updates over which the weight goes linearly to zero; None: it stays."""
    total_steps: Count = 50_000
    """Environment steps over the whole training, summed over environments."""
    hidden: tuple[Count, ...] = (32, 32)
    """Hidden layers of the student's policy and critic."""

    def check(self) -> None:
        """Refuses settings that contradict each other."""
        super().check()
        _check_student(self)
        _check_teacher(self)

    @property
    def remote(self) -> bool:
        """Whether the teacher is a service."""
        return "://" in self.teacher

    @property
    def ppo(self) -> PPOConfig:
        """The settings that PPO knows."""
        return PPOConfig(**{one.name: getattr(self, one.name) for one in fields(PPOConfig)})

    @property
    def asking_updates(self) -> int:
        """Updates in which the teacher is asked."""
        return min(self.num_updates, self.stop_after or self.num_updates)

    @property
    def rows_per_rollout(self) -> int:
        """Answers at one concentration, under the vanishing schedule."""
        return self.queries_per_rollout or self.queries_per_update

    @property
    def rollout_stop(self) -> int:
        """Roll-outs that the teacher answers, under the vanishing schedule."""
        return self.rollouts or 5

    @property
    def total_queries(self) -> int:
        """Answers the teacher gives at most."""
        if self.queries is not None:
            return self.queries
        asked = self.asking_updates * self.queries_per_update
        if self.schedule == "vanishing":
            return min(asked, self.rows_per_rollout * self.rollout_stop)
        return asked

    def weight(self, updates: int) -> float:
        """Weight of the hinge after `updates` updates."""
        if self.anneal_kickstart is None:
            return self.kickstart_weight
        return self.kickstart_weight * max(0.0, 1.0 - updates / self.anneal_kickstart)


def _check_student(config: KickstartConfig) -> None:
    if config.queries_per_update > config.steps_per_update:
        raise ValueError(
            f"queries_per_update must be at most num_envs * num_steps = {config.steps_per_update}, "
            f"got {config.queries_per_update}"
        )
    if config.queries_per_update % config.num_minibatches:
        raise ValueError(
            f"num_minibatches must divide queries_per_update = {config.queries_per_update}; "
            f"{config.num_minibatches} does not"
        )
    if config.heedless and config.radius_factor > 0:
        raise ValueError("a heedless student knows nothing of noise; give it --radius-factor 0")


def _check_teacher(config: KickstartConfig) -> None:
    if not config.teacher:
        raise ValueError("give --teacher: the directory of a run, or the URL of a teacher")
    if config.remote:
        given = [name for name in _PROMISES if getattr(config, name) is not None]
        if given or config.schedule != "constant":
            name = (given or ["schedule"])[0].replace("_", "-")
            raise ValueError(f"a teacher's service sets --{name} itself; leave it out")
    _check_mechanism(config)
    _check_protection(config)


def _check_mechanism(config: KickstartConfig) -> None:
    mechanism = config.teacher_mechanism
    if config.noise_stddev is not None and mechanism != "gaussian-policy":
        raise ValueError("noise_stddev belongs to --teacher-mechanism gaussian-policy")
    if config.concentration is not None and mechanism in ("gaussian-policy", "exact"):
        raise ValueError(f"{mechanism} answers have no concentration; leave out --concentration")
    if mechanism == "gaussian-policy":
        if config.noise_stddev is None and config.target_epsilon is None:
            raise ValueError("gaussian-policy needs --noise-stddev or --target-epsilon")
        if config.schedule == "vanishing":
            raise ValueError("the vanishing schedule is one of Dirichlet's concentration")
    elif config.schedule == "vanishing" and mechanism == "exact":
        raise ValueError("exact answers have no noise to schedule; leave out --schedule")
    if config.schedule == "constant" and (config.rollouts or config.queries_per_rollout):
        raise ValueError("rollouts and queries_per_rollout belong to --schedule vanishing")


def _check_protection(config: KickstartConfig) -> None:
    if config.teacher_mechanism == "exact" and config.protect not in (None, "dppg"):
        raise ValueError(
            f"exact answers do not protect {config.protect}; choose another --teacher-mechanism"
        )
    if config.protect == "dppg" and config.teacher_mechanism not in (None, "exact"):
        raise ValueError("answers of a dppg teacher are free, so need no --teacher-mechanism")
    for name, kind in (("observation_radius", "observation"), ("policy_distance", "policy")):
        value = getattr(config, name)
        if (value is None) == (config.protect == kind):
            flag = name.replace("_", "-")
            raise ValueError(
                f"--protect {kind} needs --{flag}"
                if value is None
                else f"--{flag} belongs to --protect {kind}"
            )
