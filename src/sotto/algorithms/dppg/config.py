"""Settings of DPPG, the private policy gradient (presets: `sotto.algorithms.dppg.presets`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from pydantic import Field

from sotto.algorithms.dppg.trust_region import TrustRegion
from sotto.algorithms.settings import (
    Count,
    CountOrZero,
    Discount,
    Epsilon,
    Fraction,
    NoiseMultiplier,
    NotNegative,
    Positive,
    Probability,
    Seed,
    Settings,
    Share,
    Signed,
)
from sotto.privacy.statements import Once, Participation, Poisson, Returning
from sotto.privacy.units import Adjacency, PopulationKind, Unit

Divisor = Annotated[float, Field(ge=1)]
Return = Annotated[float, Field(ge=-1e30, le=1e30)]
"""A return, bounded such that sums and averages of released returns are finite in float32."""


@dataclass(frozen=True)
class DPPGConfig(Settings):
    """Settings of DPPG (Rio et al. 2025). Without a preset, the defaults are for CartPole-v1."""

    former_names: ClassVar[Mapping[str, str]] = {"ratio_clip": "clip_ratio"}
    later_names: ClassVar[frozenset[str]] = frozenset(
        {"action_repeat_half_life", "carry_moments", "first_policy", "survival_bonus"}
        | {"observation_centre", "observation_scale"}
    )

    env_id: str = "CartPole-v1"
    """Environment: one written in JAX, such as CartPole-v1, Acrobot-v1 or your own my_module:Class,
    or any Gymnasium id with Box observations."""
    seed: Seed = 0
    """Seed of networks, simulated users and their actions. Noise never comes from it."""
    total_steps: Count = 500_000
    """Number of environment steps in the whole training, over all users. It is an upper bound: a
    user whose episode ends early takes fewer. With population_size, it counts the steps of the
    expected number of users."""
    population: PopulationKind | None = None
    """simulated: the users are simulated. real: people are met in an environment of your own
    (--env-id module:Name-v0). Nothing about them is then shown, logged or saved without noise.
    None: simulated, if the environment and its wrappers come with sotto or Gymnasium."""

    target_epsilon: Epsilon | None = None
    """Epsilon that the certificate must not exceed. The noise multiplier is calibrated to it."""
    noise_multiplier: NoiseMultiplier | None = None
    """Noise standard deviation divided by the clip norm (z). Give this or target_epsilon."""
    delta: Fraction = 1e-5
    """Delta of the guarantee. It must be below 1 / users."""
    adjacency: Adjacency = Adjacency.ZERO_OUT
    """Difference between neighbouring inputs: one user contributes zero (zero-out), or is replaced
    by another user (replace-one)."""
    unit: Literal["trajectory", "segment"] = "trajectory"
    """trajectory: the certificate protects everything that one user contributes; users start from a
    reset. segment: the paper's continuing segments. One person spans several of them, so the
    certificate only states the paper's claim (status `paper-claim`)."""

    users_per_update: Count = 64
    """Number of users averaged in one release (K). With population_size, it is the expected
    number."""
    participations: Count = 1
    """Largest number of releases in which one user takes part (k). Above 1, users come back in a
    public order, and the noise covers all participations of a user together."""
    min_separation: Count | None = None
    """Number of releases from one participation of a user to the next (b): users_per_update * b
    users take turns. None: b is so large that the same users fill the whole training."""
    population_size: Count | None = None
    """Number of users from whom each release draws its own in secret. Each takes part with
    probability users_per_update / population_size, and the noise must be independent
    (--no-correlated-noise). None: users come in a public order."""
    steps_per_user: Count = 128
    """Number of steps of one user (T)."""
    one_episode: bool = False
    """Whether a user's data end with their first episode. Otherwise episodes follow one another, up
    to steps_per_user."""
    action_repeat: Count = 1
    """Number of times that each action is applied during training. It is public."""
    action_repeat_half_life: Count | None = None
    """Number of releases after which action_repeat is halved, again and again, down to 1. Repeated
    actions explore more, and single ones control better. None: it stays."""
    clip_norm: Positive = 0.03
    """L2 bound on one user's policy update (S)."""
    clip_norm_from: TrustRegion | None = None
    """Trust region from which clip_norm is computed (Propositions 4.4, 4.5 and 4.7 of the paper).
    The KL forms use the Fisher matrix of the first policy in the public simulator. None: clip_norm
    is used as given."""
    trust_region_radius: Positive = 0.01
    """Size of that trust region (alpha)."""
    trust_region_confidence: Fraction = 0.9
    """Probability that an update stays inside that trust region (1 - beta)."""
    adaptive_clip: Fraction | None = None
    """Quantile of the norms of users' updates that clip_norm follows, from a share that is
    released with noise (Andrew et al. 2021). clip_norm is then the first value. None: clip_norm
    is constant."""
    adaptive_clip_rate: Annotated[float, Field(gt=0, le=10)] = 0.2
    """Change of log clip_norm in an update, for each unit by which the quantile is missed."""
    adaptive_clip_noise_ratio: NoiseMultiplier = 4.0
    """Noise multiplier of the share for adaptive_clip, divided by the policy's."""
    correlated_noise: bool = True
    """Whether noise is correlated over time, which makes sums of releases more accurate (sums
    decayed with parameter_decay). Otherwise the noise of each release is independent."""
    server_learning_rate: Positive = 1.0
    """Factor on each released update."""
    parameter_decay: Share = 1.0
    """Factor on the policy's parameters at each update. Below 1, earlier releases count less and
    less, and correlated noise is chosen for sums with these weights."""

    local_update: Literal["one-step", "adam", "visit-average", "parameter-exploration"] = "one-step"
    """Method by which a user computes an update. one-step: one gradient step, mostly as long as
    clipping allows. adam: epochs of local Adam (Algorithm 3 of the paper). visit-average: averages
    over the visits to each state, for a linear policy on finitely many states.
    parameter-exploration: two greedy episodes of at most steps_per_user / 2 steps, with a random
    vector (parameter_noise in each parameter) added to the policy, and taken from it."""
    learning_rate: Positive = 0.5
    """Learning rate of a user's update."""
    learning_rate_schedule: tuple[Divisor, Count, Positive] | None = None
    """Public schedule of learning_rate for one-step: a divisor, a period in releases, and a
    minimum. The rate is divided once in every period, down to the minimum. None: it is constant."""
    local_epochs: Count = 1
    """Number of passes over the user's own steps (adam)."""
    local_minibatches: Count = 1
    """Number of minibatches in each pass (adam)."""
    carry_moments: bool = True
    """Whether Adam's moments start from the previous release, as the paper says, and not from zero
    (adam)."""
    clip_ratio: Positive | None = None
    """Distance from 1 beyond which a change of PPO's probability ratio gains nothing. None: no such
    clipping, which the paper finds unnecessary."""
    entropy_coefficient: Signed = 0.2
    """Weight of the entropy bonus."""
    discount: Discount = 0.99
    """Discount factor (gamma) for each environment step."""
    gae_lambda: Probability = 0.95
    """Lambda of the generalised advantage estimates, for each decision. After action_repeat fell
    from a to b it is lambda^(b / a), so that credit goes back equally far in time."""
    advantage_scale: Positive | None = None
    """Public constant that divides advantages, or the difference of two returns in
    parameter-exploration. None: advantages are normalised within each user, and only the sign of
    that difference counts."""
    parameter_noise: NotNegative = 0.0
    """Standard deviation of the random change of the policy with which each user explores."""
    survival_bonus: NotNegative = 0.0
    """Reward for each step survived that a user leaves out when they compare their two episodes
    (parameter-exploration), so that surviving is not an end in itself. 0: none."""

    critic: Literal["none", "private", "local", "public", "paper"] = "none"
    """Critic that estimates the value of a state. none: a public constant. private: a network that
    is released with noise and accounted with the policy. local: fitted to the user's own steps
    only. public: fitted in the public simulator. paper: fitted without noise, so the certificate
    only states the paper's claim (status `paper-claim`)."""
    baseline: Signed | None = None
    """Public constant for the value of every state, which critics start from. None: reward per step
    / (1 - discount), and 0 for critic private."""
    critic_hidden: tuple[Count, ...] = (16,)
    """Hidden layers of the critic."""
    critic_scale: Positive = 50.0
    """Public scale of returns."""
    critic_clip_norm: Positive = 0.2
    """L2 bound on one user's critic update."""
    critic_noise_ratio: NoiseMultiplier = 1.0
    """Noise multiplier of the critic, divided by the policy's. Both follow from the total."""
    critic_learning_rate: Positive = 1e-2
    """Learning rate of the critic's Adam optimiser."""
    critic_steps: Count | None = 8
    """Full-batch steps of Adam in an update. None: the policy's minibatches, as in CleanRL."""
    joint_clip: bool = False
    """Whether policy and critic updates are clipped together, under one noise multiplier."""

    observation_centre: tuple[Signed, ...] | None = None
    """Public typical observation, which the policy subtracts. None: the environment's own."""
    observation_scale: tuple[Positive, ...] | None = None
    """Public factors that bring observations to order one. None: the environment's own."""
    observation_statistics: bool = False
    """Whether the policy's inputs are standardised by means and variances of observations that are
    released with noise."""
    observation_range: Positive = 5.0
    """Public range of observations, after the environment's public scale. Values outside count as
    its nearest end."""
    observation_noise_ratio: NoiseMultiplier = 4.0
    """Noise multiplier of the observation statistics, divided by the policy's."""
    private_return: tuple[Return, Return] | None = None
    """Public range of returns, lower end first. With it, users' mean return is released too, each
    return clipped to the range: a learning curve that is allowed for real users. None: no returns
    are released."""
    private_return_noise_ratio: NoiseMultiplier = 4.0
    """Noise multiplier of the mean return, divided by the policy's."""
    stop_at_return: Return | None = None
    """Value at which the training stops: the moving average (ema_decay) of released returns has
    reached it. None: the training does not stop early."""

    hidden: tuple[Count, ...] = (16,)
    """Hidden layers of the policy. Without any, it is linear."""
    first_policy: str | None = None
    """Public policy from which training starts: a file of `sotto.Agent.export` (.npz) whose layers
    are those of `hidden`. It was made without the people. None: random weights."""
    ema_decay: Discount = 0.98
    """Decay of the moving average of released policies, which costs no privacy."""
    tail_fraction: Share = 0.5
    """Share of the released policies, the last ones, over which the tail average is taken."""
    evaluation_episodes: CountOrZero = 16
    """Number of fresh simulated episodes for each point of the learning curve. 0: no curve. None
    are played where real people are met through Gymnasium."""

    @property
    def steps_per_update(self) -> int:
        """Largest number of environment steps behind one release, a public number."""
        return self.users_per_update * self.steps_per_user * self.action_repeat

    @property
    def num_updates(self) -> int:
        """Number of releases in the whole training, which is fixed in advance: the horizon."""
        return self.total_steps // self.steps_per_update

    @property
    def users(self) -> int:
        """Number of different users in the whole training."""
        if self.population_size is not None:
            return self.population_size
        return len(set(self.groups(np.arange(self.num_updates)).tolist())) * self.users_per_update

    def groups(self, releases: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Returns which group of users_per_update users takes part in each release.

        The order is public. A cohort of `separation` groups takes turns until each of its members
        has taken part `participations` times. Then the next cohort begins.
        """
        cohorts = releases // (self.separation * self.participations)
        groups: np.ndarray = cohorts * self.separation + releases % self.separation
        return groups

    @property
    def separation(self) -> int:
        """Number of releases from one participation of a user to the next."""
        if self.min_separation is not None:
            return self.min_separation
        return max(1, -(-self.num_updates // max(1, self.participations)))

    @property
    def participation(self) -> Participation:
        """Participation of users in releases, as the statement of the stream has it."""
        if self.population_size is not None:
            rate = self.users_per_update / self.population_size
            return Poisson(sampling_rate=rate, population=self.population_size)
        if self.participations == 1:
            return Once()
        return Returning(
            max_participations=self.participations, min_separation=self.separation, exclusive=True
        )

    @property
    def action_repeats(self) -> tuple[int, ...]:
        """All values of action_repeat in a long training, the first one first."""
        if self.action_repeat_half_life is None:
            return (self.action_repeat,)
        return tuple(self.action_repeat >> i for i in range(self.action_repeat.bit_length()))

    def action_repeat_after(self, updates: Int[Array, ""]) -> int | Int[Array, ""]:
        """Returns how many times each action is applied after `updates` updates."""
        if self.action_repeat_half_life is None:
            return self.action_repeat
        halvings = updates // self.action_repeat_half_life
        return jnp.right_shift(
            self.action_repeat, jnp.minimum(halvings, len(self.action_repeats) - 1)
        )

    @property
    def privacy_unit(self) -> Unit:
        """Unit of the certificate."""
        return Unit(kind=self.unit, adjacency=self.adjacency)

    @property
    def is_proved(self) -> bool:
        """Whether there is a proof for these settings. Otherwise epsilon is infinite."""
        return self.unit == "trajectory" and self.critic != "paper"

    @property
    def noise_ratios(self) -> dict[str, float]:
        """Noise multiplier of each part of a release, divided by the policy's."""
        extras = {
            "critic": (self.critic == "private", self.critic_noise_ratio),
            "clip": (self.adaptive_clip is not None, self.adaptive_clip_noise_ratio),
            "observations": (self.observation_statistics, self.observation_noise_ratio),
            "return": (self.private_return is not None, self.private_return_noise_ratio),
        }
        return {"policy": 1.0} | {name: ratio for name, (wanted, ratio) in extras.items() if wanted}

    def check(self) -> None:
        """Refuses settings that contradict each other, cannot run, or cannot be certified."""
        self._check_people()
        self._check_privacy()
        self._check_parts()
        self._check_learning()

    def _check_privacy(self) -> None:
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either target_epsilon or noise_multiplier, and not both")
        if self.num_updates >= 1 and self.delta * self.users >= 1:
            raise ValueError(
                f"delta {self.delta:g} is not below 1 / users = {1 / self.users:.3g}, so it would "
                "allow one user's data to be published outright; choose a smaller delta"
            )
        if self.unit == "segment" and self.one_episode:
            raise ValueError("segments go on after an episode; one_episode needs unit trajectory")
        if self.adjacency is Adjacency.WITHIN_RADIUS:
            raise ValueError("a user's data have no radius; use adjacency zero-out or replace-one")

    def _check_people(self) -> None:
        if self.population == "real" and self.critic == "paper":
            raise ValueError("real people need noise: choose critic none, private or local")
        returning, drawn = self.participations > 1, self.population_size is not None
        if self.min_separation is not None and not returning:
            raise ValueError("min_separation is for users who come back; set participations too")
        if self.unit == "segment" and (returning or drawn):
            raise ValueError("users who come back or are drawn need unit trajectory")
        if not drawn:
            return
        if returning:
            raise ValueError("give one of participations and population_size, and not both")
        if self.users_per_update >= (self.population_size or 0):
            raise ValueError("population_size must be larger than users_per_update")
        if self.correlated_noise:
            raise ValueError(
                "noise that is correlated over time has no accountant for users who are drawn in "
                "secret; turn correlated_noise off, or leave population_size out"
            )
        if self.adjacency is not Adjacency.ZERO_OUT:
            raise ValueError("users who are drawn are accounted for under zero-out adjacency only")

    def _check_parts(self) -> None:
        if self.joint_clip and len(self.noise_ratios) > 2:
            raise ValueError("joint_clip is of policy and critic; others are clipped separately")
        if self.adaptive_clip is not None:
            if self.clip_norm_from is not None:
                raise ValueError("adaptive_clip starts from clip_norm; leave clip_norm_from out")
            if self.local_update == "adam":
                raise ValueError("adaptive_clip is not for Adam; use local_update one-step")
        if self.observation_statistics and self.unit == "segment":
            raise ValueError("observation_statistics needs users who start from a reset")
        if self.private_return is not None:
            low, high = self.private_return
            if not low < high:
                raise ValueError("private_return is a range: its lower end, then its upper end")
        elif self.stop_at_return is not None:
            raise ValueError("stop_at_return reads released returns; give private_return a range")

    def _check_learning(self) -> None:
        if self.num_updates < 1:
            raise ValueError(
                f"total_steps {self.total_steps} is less than one update of users_per_update * "
                f"steps_per_user * action_repeat = {self.steps_per_update} steps"
            )
        if self.action_repeat_half_life is not None:
            if self.action_repeat == 1:
                raise ValueError("action_repeat_half_life halves action_repeat; set it above 1")
            if self.local_update == "parameter-exploration" or self.critic == "public":
                raise ValueError(
                    "action_repeat_half_life is not for parameter-exploration or critic public"
                )
            if self.unit == "segment":
                raise ValueError("action_repeat_half_life needs unit trajectory")
        if self.steps_per_user % self.local_minibatches:
            raise ValueError("local_minibatches must divide steps_per_user")
        if self.joint_clip and self.critic != "private":
            raise ValueError("joint_clip is for a private critic; set critic to private")
        if self.critic_steps is None and self.critic not in ("private", "paper"):
            raise ValueError("give critic_steps, unless critic is private or paper")
        if self.local_update == "visit-average" and self.hidden:
            raise ValueError("visit-average is for a linear policy; set hidden to ()")
        exploring = self.local_update == "parameter-exploration"
        if self.survival_bonus and (not exploring or self.action_repeat > 1):
            raise ValueError(
                "survival_bonus needs parameter-exploration and action_repeat 1; set it to 0"
            )
        if not exploring:
            return
        if self.parameter_noise == 0:
            raise ValueError("parameter-exploration needs parameter_noise, how far users explore")
        if self.steps_per_user % 2:
            raise ValueError("parameter-exploration plays two episodes; make steps_per_user even")
        if self.critic != "none" or len(self.noise_ratios) > 1 or self.unit != "trajectory":
            raise ValueError(
                "parameter-exploration releases only the policy's update; it needs critic none, "
                "unit trajectory, and no further parts of a release"
            )
