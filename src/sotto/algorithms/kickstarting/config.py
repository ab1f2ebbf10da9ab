"""Settings of private kickstarting. Each field is a flag of `sotto train kickstart`."""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from sotto.algorithms.baselines.common import TotalSteps
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
from sotto.privacy.units import PopulationKind

MechanismName = Literal["dirichlet", "truncated-dirichlet", "gaussian-policy", "exact"]
ProtectName = Literal["observation", "policy", "any-two-teachers", "training-shards", "dppg"]
RadiusName = Literal["valid", "chi-square", "markov", "monte-carlo", "paper"]

_PROMISES = (
    *("teacher_mechanism", "concentration", "noise_stddev", "protect", "observation_radius"),
    *("policy_distance", "queries", "rollouts", "queries_per_rollout", "target_epsilon"),
)
"""Settings of the teacher, which a service chooses itself."""


@dataclass(frozen=True)
class KickstartConfig(PPOConfig):
    """Settings of private kickstarting (Gohari et al. 2021). The student learns by PPO."""

    later_names: ClassVar[frozenset[str]] = frozenset({"population"})

    teacher: str = ""
    """Teacher: a run of ppo (several seeds are an ensemble of shards), a run of dppg, or the URL of
    a teacher's service. A service chooses all settings about privacy itself. The token for it is
    read from SOTTO_TEACHER_TOKEN."""
    teacher_mechanism: MechanismName | None = None
    """Mechanism that turns the teacher's row of probabilities into an answer. exact adds no noise;
    it protects nobody, unless the teacher is a run of dppg. None: exact for a run of dppg, and
    otherwise dirichlet."""
    concentration: Positive | None = None
    """Concentration of the Dirichlet answers (k). None: it is calibrated to target_epsilon, or the
    paper's 5 without a target."""
    noise_stddev: Positive | None = None
    """Standard deviation of the noise of gaussian-policy in each probability. None: it is
    calibrated to target_epsilon."""
    floor: Probability = 0.05
    """Smallest probability in the teacher's row before noise (eta). The row is mixed with the
    uniform row until it has no smaller one."""
    threshold: Probability = 0.01
    """Smallest probability in an answer of truncated-dirichlet (tau). It must be below the
    floor."""

    population: PopulationKind | None = None
    """Whether the people in env_id are simulated or real. Students meet no real ones. None: as is
    known of env_id and of its teacher. It must be given for an environment, or a wrapper, that
    comes neither with sotto nor with Gymnasium, unless the teacher is a run of dppg. A service says
    itself whose people are behind its teacher, and the run's settings keep what it says."""
    protect: ProtectName | None = None
    """Unit that the answers protect. observation: each observation, within observation_radius.
    policy: the teacher's policy, within policy_distance. any-two-teachers: the whole teacher.
    training-shards: every person in the training of several seeds. dppg: the people of a run of
    dppg, whose answers cost nothing more. None: training-shards for several seeds, dppg for a run
    of dppg, and otherwise any-two-teachers."""
    observation_radius: Positive | None = None
    """L2 distance of neighbouring observations (B), in the environment's units."""
    policy_distance: Positive | None = None
    """L2 distance of the rows of neighbouring teachers."""
    queries: Count | None = None
    """Largest number of answers that the teacher gives, a public number. None: all that the student
    may ask for."""
    schedule: Literal["constant", "vanishing"] = "constant"
    """Schedule of the noise. constant: the same noise in all answers. vanishing: the paper's, where
    vanishing_coefficient multiplies the concentration after each rollout."""
    vanishing_coefficient: Share = 0.3
    """Factor on the concentration after each rollout."""
    queries_per_rollout: Count | None = None
    """Number of answers at one concentration. None: queries_per_update."""
    rollouts: Count | None = None
    """Number of rollouts after which the teacher gives no more answers, a public number. None:
    5."""
    target_epsilon: Epsilon | None = None
    """Epsilon that the certificate must not exceed."""
    delta: Fraction = 1e-5
    """Delta of the guarantee."""

    queries_per_update: Count = 256
    """Number of states in each update about which the student asks the teacher, a public number."""
    stop_after: Count | None = None
    """Number of updates after which the student asks no more. None: it asks until the end."""
    heedless: bool = False
    """Whether the student follows the uniform rows of a silent teacher as if they were answers,
    like a student that does not know the budget. Otherwise it leaves them out of the hinge."""
    remember_updates: Count = 20
    """Number of last updates whose answers the hinge is averaged over, at no further cost. 1 is the
    paper's student, which uses each answer once."""
    radius_factor: NotNegative = 0.5
    """Factor on the radius within which the hinge ignores an answer (lambda). 0 is a student that
    does not know of the noise, which is non-private kickstarting."""
    keep_floor: bool = False
    """Whether the student follows answers as they are, about the row mixed with the uniform row (as
    in the paper). Otherwise the mixing is undone, and the radius grows by the same factor."""
    radius: RadiusName = "monte-carlo"
    """Radius around an answer in which the teacher's row probably lies. chi-square and markov are
    proved. valid is the smallest proved one. monte-carlo is an estimate. paper is the paper's
    Lemma 1, which does not hold."""
    beta: Fraction = 0.05
    """Probability that the teacher's row lies outside the radius."""
    kickstart_weight: NotNegative = 1.0
    """Weight of the hinge in the loss, next to PPO's."""
    anneal_kickstart: Count | None = None
    """Number of updates over which that weight falls linearly to zero. None: it is constant."""
    total_steps: TotalSteps = 50_000
    hidden: tuple[Count, ...] = (32, 32)
    """Hidden layers of the student's policy and critic."""

    def check(self) -> None:
        """Refuses settings that contradict each other."""
        super().check()
        _check_student(self)
        _check_teacher(self)

    @property
    def remote(self) -> bool:
        """Whether the teacher is a service at a URL."""
        return "://" in self.teacher

    @property
    def ppo(self) -> PPOConfig:
        """Settings of PPO among these settings."""
        return PPOConfig(**{one.name: getattr(self, one.name) for one in fields(PPOConfig)})

    @property
    def asking_updates(self) -> int:
        """Number of updates in which the teacher is asked."""
        return min(self.num_updates, self.stop_after or self.num_updates)

    @property
    def rows_per_rollout(self) -> int:
        """Number of answers at one concentration, under the vanishing schedule."""
        return self.queries_per_rollout or self.queries_per_update

    @property
    def rollout_stop(self) -> int:
        """Number of rollouts that the teacher answers, under the vanishing schedule."""
        return self.rollouts or 5

    @property
    def total_queries(self) -> int:
        """Largest number of answers that the teacher gives."""
        if self.queries is not None:
            return self.queries
        asked = self.asking_updates * self.queries_per_update
        if self.schedule == "vanishing":
            return min(asked, self.rows_per_rollout * self.rollout_stop)
        return asked

    def weight(self, updates: int) -> float:
        """Returns the weight of the hinge after `updates` updates."""
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
        raise ValueError("a heedless student does not know of the noise; give --radius-factor 0")


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
            raise ValueError("--schedule vanishing changes Dirichlet's concentration; leave it out")
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
        raise ValueError("answers of a dppg teacher are free; leave out --teacher-mechanism")
    for name, kind in (("observation_radius", "observation"), ("policy_distance", "policy")):
        value = getattr(config, name)
        if (value is None) == (config.protect == kind):
            flag = name.replace("_", "-")
            raise ValueError(
                f"--protect {kind} needs --{flag}"
                if value is None
                else f"--{flag} belongs to --protect {kind}"
            )
