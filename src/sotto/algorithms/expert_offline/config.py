"""Settings of learning from private experts: the dataclass is the command line.

What is left out is filled in by `expert_offline_presets.filled`, once it is known who the experts
are and what they acted in; everything that trains reads filled settings.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

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

Method = Literal["votes", "stable-prefix", "dp-sgd", "prefix-only", "cql", "bc"]
States = Literal["rollouts", "students", "box"]
Learner = Literal["distillation", "cql", "bc"]
PrefixRule = Literal["floor", "random-stop", "consensus"]

NO_ENVIRONMENT = "none"
"""The name of the environment where there is none: a dataset is all there is."""

LEARNING_PARTS = 10
"""Parts in which a network learns, each followed by a checkpoint."""

PRIVATE: tuple[Method, ...] = ("votes", "stable-prefix", "dp-sgd", "prefix-only")
"""Methods that keep a ledger; the others protect nobody."""


@dataclass(frozen=True)
class ExpertOfflineConfig(Settings):
    """Offline learning from experts, each of whom is protected (after Sharma et al. 2024)."""

    method: Method = "votes"
    """votes: noisy votes of experts, or of their clones, at chosen states. stable-prefix: the
    paper's, prefixes on which many experts agree, then DP-SGD over their logs. prefix-only and
    dp-sgd: one half of that. cql and bc: without privacy, from the log, for comparison."""
    dataset: str | None = None
    """Log of the experts: folder or name of a Minari dataset with a column of expert ids."""
    id_column: str = "expert_id"
    """Where the metadata of an episode says whose it is."""
    experts: str | None = None
    """The experts themselves: file or folder of `sotto experts train`."""
    env_id: str | None = None
    """The environment. None: that of the experts or of the dataset. `none`: there is none, and the
    dataset is all there is."""
    seed: Seed = 0
    """Seed of rollouts, networks and minibatches. Never of the noise."""
    population: Literal["simulated", "real"] = "simulated"
    """Whether the experts are simulated, as those of `sotto experts train` are, or real."""
    expert_count: AtLeastTwo | None = None
    """How many experts there are, which is public. None: as many as the data have."""

    target_epsilon: Epsilon | None = None
    """Epsilon the certificate must not exceed; noise is calibrated to it. All of it is spent."""
    delta: Fraction | None = None
    """Delta of the guarantee, below one over the number of experts. None: a tenth of that."""

    voters: Voters | None = None
    """votes: who is asked. None: clones where only a dataset is given, else experts."""
    least_return: Signed | None = None
    """votes: an expert whose own logged episodes return less than this public number on average
    abstains, which costs nothing: the ballot and its weight are one contribution. None: the
    environment's, where there is a log and epsilon is not too small; mostly, everybody votes."""
    states: States | None = None
    """votes: where they are asked. rollouts: along rollouts that the votes themselves play.
    students: where students of earlier rounds go (DAgger). box: anywhere in a public box, without
    an environment. None: the environment's."""
    learner: Learner | None = None
    """What learns from votes (distillation, or cql on vote rollouts), from prefixes and from the
    log (cql or bc). None: distillation of votes, else cql."""
    queries: Count | None = None
    """votes: states in each round; rollouts: how many are played side by side."""
    rounds: Count | None = None
    """votes: rounds; rollouts: steps. The noise of a vote grows with sqrt(queries * rounds)."""
    lanes: Count = 32
    """votes at states of students: rollouts in which a student meets states before each round."""
    exploration: Probability = 0.1
    """votes at states of students: probability of a uniform action."""
    choice_episodes: CountOrZero = 32
    """votes at states of students: greedy episodes of every student in the simulator, by whose
    rewards the best student is chosen, at no cost in privacy. 0 keeps the last student: where the
    simulator's rewards are not what counts."""

    releases: Count = 25
    """Prefixes that are released."""
    prefix_rule: PrefixRule = "floor"
    """What hides whose prefix it is: a floor under all action probabilities (the paper's), a secret
    random stop, or rollouts of the experts' consensus."""
    floor: Annotated[float, Field(gt=0, le=0.5)] = 0.01
    """prefix-rule floor: least probability of any action of the experts who are rolled out."""
    hazard: Fraction = 0.02
    """prefix-rule random-stop: probability of stopping, at every step."""
    prefix_share: Fraction = 0.5
    """stable-prefix: share of epsilon and of delta for prefixes; the joint account then gives
    DP-SGD all that is left."""
    public_share: Fraction = 0.5
    """stable-prefix: share of steps that are made on released prefixes, without noise."""
    noisy_steps: Count = 1_000
    """DP-SGD: steps on the experts' logs."""
    batch: Count = 256
    """DP-SGD: experts drawn at a step, on average, one transition of each."""
    clip_norm: Positive = 1.0
    """DP-SGD: norm to which one expert's gradient is clipped."""

    gradient_steps: Count | None = None
    """Steps without noise, on votes or prefixes, or on the log. None: the environment's."""
    minibatch: Count = 256
    """Transitions in each of them."""
    hidden: tuple[Count, ...] = (256, 256)
    """Hidden layers of a network of action values."""
    student_hidden: tuple[Count, ...] = (64, 64)
    """Hidden layers of a student of votes."""
    learning_rate: Positive = 1e-3
    """Adam's."""
    alpha: NotNegative | None = None
    """cql: weight of the conservative term. None: the environment's."""
    reward_scale: Positive | None = None
    """cql: factor of rewards, which brings values to order one. None: the environment's."""
    discount: Discount | None = None
    """cql: gamma. None: the environment's."""

    rollout_cap: Count | None = None
    """Longest rollout and prefix. None: the environment's."""
    evaluation_cap: Count | None = None
    """Longest episode that is evaluated. None: the environment's."""
    evaluation_episodes: Count = 50
    """Greedy episodes at each point of the learning curve, which are for the experimenter."""
    observation_scale: tuple[Positive, ...] | None = None
    """Public factors that bring observations to order one. None: the environment's."""
    box_low: tuple[Signed, ...] | None = None
    """votes at states box: lower corner, a public choice. None: the environment's."""
    box_high: tuple[Signed, ...] | None = None
    """votes at states box: upper corner."""
    actions: AtLeastTwo | None = None
    """How many actions there are. None: as many as the environment or the dataset has."""

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
        """Whether there is something to play in."""
        return self.env_id != NO_ENVIRONMENT

    @property
    def uses_votes(self) -> bool:
        """Whether noisy votes are asked."""
        return self.method == "votes"

    @property
    def uses_prefixes(self) -> bool:
        """Whether stable prefixes are released."""
        return self.method in ("stable-prefix", "prefix-only")

    @property
    def uses_dp_sgd(self) -> bool:
        """Whether the log is learned from with noise."""
        return self.method in ("stable-prefix", "dp-sgd")

    @property
    def needs_experts(self) -> bool:
        """Whether experts act or answer; their log is not enough."""
        return self.uses_prefixes or (self.uses_votes and self.voters == "experts")

    @property
    def needs_log(self) -> bool:
        """Whether the log is learned from."""
        return not (self.needs_experts and self.method in ("votes", "prefix-only"))

    @property
    def plays(self) -> bool:
        """Whether learning needs an environment, not only its evaluation."""
        return self.uses_prefixes or (self.uses_votes and self.states != "box")

    @property
    def num_updates(self) -> int:
        """Parts of a training: one that gathers, where something is released at once, and those
        that learn.
        """
        if self.learner == "distillation":
            return 1
        return int(self.uses_votes or self.uses_prefixes) + LEARNING_PARTS

    @property
    def public_steps(self) -> int:
        """DP-SGD: steps without noise that come in between, on released prefixes."""
        if self.method != "stable-prefix":
            return 0
        return round(self.noisy_steps * self.public_share / (1 - self.public_share))

    @property
    def offline(self) -> OfflineConfig:
        """The network that learns from transitions, and its optimiser."""
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
        """Its loss."""
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
            f"--method {config.method} rolls experts out, and a fixed log cannot take their place; "
            "give --experts, or use --method votes, which clones the log"
        )
    if config.voters is not None and not config.uses_votes:
        raise ValueError(f"--voters belongs to --method votes, not to {config.method}")
    if config.voters == "experts" and config.experts is None:
        raise ValueError("--voters experts needs --experts")
    if config.voters == "clones" and config.dataset is None:
        raise ValueError("--voters clones needs --dataset, which they are made of")


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
        if config.states is not None:
            raise ValueError(f"--states belongs to --method votes, not to {config.method}")
        if config.learner == "distillation":
            raise ValueError("--learner distillation is of votes; choose cql or bc")
        return
    if config.least_return is not None and config.dataset is None:
        raise ValueError("--least-return is about the experts' log; give --dataset")
    if config.learner == "bc":
        raise ValueError("--learner bc is of logs; votes are learned by distillation")
    if config.learner == "cql" and config.states not in (None, "rollouts"):
        raise ValueError("--learner cql needs whole transitions; give --states rollouts")
    if config.states == "box" and config.learner == "cql":
        raise ValueError("votes in a box have no transitions; use --learner distillation")
