"""Settings of learning from private experts; every field is an option of the command line.

`sotto.algorithms.expert_offline.presets.filled` completes settings that are None, once the experts
and their environment are known. Training reads completed settings only.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sotto.algorithms.expert_offline.voting import Voters
from sotto.algorithms.offline.behaviour_cloning import BehaviourCloning
from sotto.algorithms.offline.cql import CQL
from sotto.algorithms.offline.learner import OfflineConfig, OfflineLearner
from sotto.algorithms.settings import (
    AtLeastTwo,
    Count,
    CountOrZero,
    Discount,
    Epsilon,
    Fraction,
    NotNegative,
    Positive,
    Probability,
    Seed,
    Settings,
    Signed,
    known,
)
from sotto.privacy.units import PopulationKind

Method = Literal["votes", "stable-prefix", "dp-sgd", "prefix-only", "cql", "bc"]
States = Literal["rollouts", "students", "box"]
Learner = Literal["distillation", "cql", "bc"]
PrefixRule = Literal["floor", "random-stop", "consensus"]

NO_ENVIRONMENT = "none"
"""Name of the environment for a dataset without an environment."""

LEARNING_PARTS = 10
"""Number of parts in which a network learns. A checkpoint follows each part."""

PRIVATE: tuple[Method, ...] = ("votes", "stable-prefix", "dp-sgd", "prefix-only")
"""Methods that keep a ledger. The others protect nobody."""


@dataclass(frozen=True)
class ExpertOfflineConfig(Settings):
    """Offline learning from experts, each of whom is protected (after Sharma et al. 2024)."""

    later_names: ClassVar[frozenset[str]] = frozenset({"first_policy", "first_policy_identity"})

    method: Method = "votes"
    """Method of learning. votes: noisy votes of the experts, or of their clones, at public states.
    stable-prefix: the paper's method, which releases prefixes of episodes on which many experts
    agree and then runs DP-SGD over the experts' logs. prefix-only and dp-sgd: the two halves of
    stable-prefix. cql and bc: learning from the log without privacy, for comparison."""
    dataset: str | None = None
    """Log of the experts: folder or name of a Minari dataset whose episodes name their expert."""
    identity: str | None = field(default=None, repr=False)  # names of kept arms are made of reprs
    """Identity of the import, which puts people in places. None takes that of the dataset."""
    id_column: str = "expert_id"
    """Key of the episodes' metadata that holds the number of the expert."""
    experts: str | None = None
    """Policies of the experts: file or folder of `sotto experts train`."""
    env_id: str | None = None
    """Name of the environment. None takes that of the experts or of the dataset. `none` learns
    without an environment, from the dataset alone."""
    seed: Seed = 0
    """Seed of rollouts, networks and minibatches. The noise has no seed."""
    population: PopulationKind | None = None
    """Whether the experts are simulated or real. None takes experts of `sotto experts train`, and
    logs of them, for simulated ones, and everybody else for real ones."""
    expert_count: AtLeastTwo | None = None
    """Number of experts, which is public. None takes the number that the data state."""

    target_epsilon: Epsilon | None = None
    """Epsilon that the certificate must not exceed. The noise is calibrated to spend all of it."""
    delta: Fraction | None = None
    """Delta of the guarantee, below one over the number of experts. None takes a tenth of that."""

    voters: Voters | None = None
    """Voters of method votes. None takes clones if only a dataset is given, and experts
    otherwise."""
    least_return: Signed | None = None
    """Least mean return in an expert's own log with which the expert votes, a public number. Other
    experts abstain, at no cost in privacy. None takes the environment's value if there is a log and
    epsilon is large enough; most environments have none, and then all experts vote."""
    states: States | None = None
    """States at which experts vote. rollouts: along rollouts that take the action with most noisy
    votes. students: along rollouts of the students of earlier rounds (DAgger). box: uniformly drawn
    from a public box, without an environment. None takes the environment's value."""
    learner: Learner | None = None
    """Learner of the policy: distillation for votes (or cql, with --states rollouts), and cql or bc
    for prefixes and logs. None takes distillation for votes and cql otherwise."""
    queries: Count | None = None
    """Number of states in each round of votes. With --states rollouts it is the number of parallel
    rollouts. None divides about 1,000 votes among the rounds."""
    rounds: Count | None = None
    """Number of rounds of votes. With --states rollouts each round is one step. The noise of a vote
    grows with sqrt(queries * rounds). None takes the environment's value."""
    lanes: Count = 32
    """Number of parallel rollouts of a student before each round, for --states students."""
    exploration: Probability = 0.1
    """Probability of a uniform action in rollouts of a student, for --states students."""
    choice_episodes: CountOrZero = 32
    """Greedy episodes of every student, and of the first policy, in the simulator, for --states
    students. The one with the largest return is kept, at no cost in privacy. 0 keeps the last
    student, for simulators whose rewards do not matter."""

    releases: Count = 25
    """Number of prefixes that are released."""
    prefix_rule: PrefixRule = "floor"
    """Rule that hides whose prefix is released. floor: every action has a least probability, as in
    the paper. random-stop: prefixes also stop at a secret random step. consensus: rollouts follow
    the majority of the experts."""
    floor: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    """Least probability of any action, for --prefix-rule floor."""
    hazard: Fraction = 0.02
    """Probability of stopping at each step, for --prefix-rule random-stop."""
    prefix_share: Fraction = 0.5
    """Share of epsilon and delta for the prefixes of stable-prefix. DP-SGD gets all that remains
    under joint composition."""
    public_share: Fraction = 0.5
    """Share of the steps of stable-prefix that learn from released prefixes, without noise."""
    noisy_steps: Count = 1_000
    """Number of DP-SGD steps on the experts' logs."""
    batch: Count = 256
    """Mean number of experts that a DP-SGD step draws. It reads one transition of each."""
    clip_norm: Positive = 1.0
    """Norm to which DP-SGD clips one expert's gradient."""

    gradient_steps: Count | None = None
    """Number of steps without noise on votes, prefixes or the log. None takes the environment's
    value."""
    minibatch: Count = 256
    """Transitions of each step without noise."""
    hidden: tuple[Count, ...] = (256, 256)
    """Sizes of the hidden layers of a network of action values."""
    student_hidden: tuple[Count, ...] = (64, 64)
    """Sizes of the hidden layers of a student of votes."""
    first_policy: str | None = field(default=None, repr=False)  # no arm has one; see `identity`
    """Public policy from which students of votes start: a file of `sotto.Agent.export` (.npz), or
    base_policy.npz of `sotto experts train`. Its inner layers must be those of `student_hidden`,
    and it must have been made without the experts' data. Votes are expected to agree with it, which
    helps where there is much noise. None: random weights, and every action is expected equally."""
    first_policy_identity: str | None = field(default=None, repr=False)
    """SHA-256 of the file of `first_policy`. None computes it. A run that was interrupted goes on
    only with the same file."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    alpha: NotNegative | None = None
    """Weight of the conservative term of cql. None takes the environment's value."""
    reward_scale: Positive | None = None
    """Factor of rewards that brings the values of cql to order one. None takes the environment's
    value."""
    discount: Discount | None = None
    """Discount factor gamma of cql. None takes the environment's value."""

    rollout_cap: Count | None = None
    """Most steps of a rollout or prefix. None takes the environment's value."""
    evaluation_cap: Count | None = None
    """Most steps of an evaluated episode. None takes the environment's value."""
    evaluation_episodes: Count = 50
    """Greedy episodes in the public simulator at each point of the learning curve."""
    observation_scale: tuple[Positive, ...] | None = None
    """Public factors that bring observations to order one. None takes the environment's value."""
    box_low: tuple[Signed, ...] | None = None
    """Lower corner of the box of --states box, a public choice. None takes the environment's
    value."""
    box_high: tuple[Signed, ...] | None = None
    """Upper corner of the box of --states box, a public choice. None takes the environment's
    value."""
    actions: AtLeastTwo | None = None
    """Number of actions. None takes the number of the environment or of the dataset."""

    def check(self) -> None:
        """Refuses settings that contradict each other."""
        _check_data(self)
        _check_privacy(self)
        _check_votes(self)
        for low, high in zip(self.box_low or (), self.box_high or (), strict=False):
            if not low < high:
                raise ValueError(f"box_low must be below box_high, got {low} and {high}")

    # --- what is public ---

    @property
    def is_private(self) -> bool:
        """Whether the method keeps a ledger."""
        return self.method in PRIVATE

    @property
    def has_environment(self) -> bool:
        """Whether there is an environment."""
        return self.env_id != NO_ENVIRONMENT

    @property
    def uses_votes(self) -> bool:
        """Whether experts or clones vote."""
        return self.method == "votes"

    @property
    def uses_prefixes(self) -> bool:
        """Whether stable prefixes are released."""
        return self.method in ("stable-prefix", "prefix-only")

    @property
    def uses_dp_sgd(self) -> bool:
        """Whether DP-SGD learns from the log."""
        return self.method in ("stable-prefix", "dp-sgd")

    @property
    def plays(self) -> bool:
        """Whether learning needs an environment, not only its evaluation."""
        return self.uses_prefixes or (self.uses_votes and self.states != "box")

    @property
    def num_updates(self) -> int:
        """Number of parts of a training.

        One part releases votes or prefixes, if the method has any, and the others learn.
        """
        if self.learner == "distillation":
            return 1
        return int(self.uses_votes or self.uses_prefixes) + LEARNING_PARTS

    @property
    def public_steps(self) -> int:
        """Number of steps without noise, on released prefixes, between the DP-SGD steps."""
        if self.method != "stable-prefix":
            return 0
        return round(self.noisy_steps * self.public_share / (1 - self.public_share))

    @property
    def offline(self) -> OfflineConfig:
        """Settings of the network that learns from transitions, and of its optimiser."""
        scale = known(self.observation_scale)
        return OfflineConfig(
            observation_size=len(scale),
            actions=known(self.actions),
            observation_scale=scale,
            hidden=self.hidden,
            learning_rate=self.learning_rate,
            minibatch=self.minibatch,
        )

    @property
    def offline_learner(self) -> OfflineLearner:
        """The loss of the learner."""
        if self.learner == "bc":
            return BehaviourCloning()
        return CQL(
            alpha=known(self.alpha),
            discount=known(self.discount),
            reward_scale=known(self.reward_scale),
        )


# --- checks --------------------------------------------------------------------------------------


def _check_data(config: ExpertOfflineConfig) -> None:
    if config.dataset is None and config.experts is None:
        raise ValueError("give --dataset with the experts' log, or --experts with the experts")
    if config.uses_dp_sgd and config.dataset is None:
        raise ValueError(f"--method {config.method} learns from a log; give --dataset")
    if config.method in ("cql", "bc") and config.dataset is None:
        raise ValueError(f"--method {config.method} learns from a log; give --dataset")
    if config.uses_prefixes and config.experts is None:
        raise ValueError(
            f"--method {config.method} needs new rollouts of the experts, and a fixed log cannot "
            "take their place; give --experts, or use --method votes, which makes clones of the log"
        )
    if config.voters is not None and not config.uses_votes:
        raise ValueError(f"--voters belongs to --method votes, not to {config.method}")
    if config.voters == "experts" and config.experts is None:
        raise ValueError("--voters experts needs --experts")
    if config.voters == "clones" and config.dataset is None:
        raise ValueError("--voters clones needs --dataset, to which the clones are fitted")


def _check_privacy(config: ExpertOfflineConfig) -> None:
    if config.is_private:
        if config.target_epsilon is None:
            raise ValueError(f"--method {config.method} needs --target-epsilon")
    elif config.target_epsilon is not None or config.delta is not None:
        raise ValueError(
            f"--method {config.method} protects nobody; leave out --target-epsilon and --delta"
        )


def _check_votes(config: ExpertOfflineConfig) -> None:
    if not config.uses_votes:
        if config.least_return is not None:
            raise ValueError(f"--least-return belongs to --method votes, not to {config.method}")
        if config.first_policy is not None:
            raise ValueError(f"--first-policy belongs to --method votes, not to {config.method}")
        if config.states is not None:
            raise ValueError(f"--states belongs to --method votes, not to {config.method}")
        if config.learner == "distillation":
            raise ValueError(
                "--learner distillation learns from votes only; choose --learner cql or bc"
            )
        return
    if config.least_return is not None and config.dataset is None:
        raise ValueError("--least-return is about the experts' log; give --dataset")
    if config.first_policy is not None and config.learner not in (None, "distillation"):
        raise ValueError("--first-policy is for students of votes; give --learner distillation")
    if config.learner == "bc":
        raise ValueError(
            "--learner bc learns from logs only; choose --learner distillation for votes"
        )
    if config.learner == "cql" and config.states not in (None, "rollouts"):
        raise ValueError("--learner cql needs whole transitions; give --states rollouts")
