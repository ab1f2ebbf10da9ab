"""Settings of private policy gradient: the dataclass is the command line; presets fill it."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from jaxtyping import Int
from pydantic import Field

from sotto.algorithms.dppg import checks
from sotto.algorithms.dppg.presets import PAPER, PAPER_CHANGES, SOTTO, SOTTO_SMALL_EPSILON
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
from sotto.privacy.accounting.composition import (
    Event,
    Gaussian,
    SampledGaussian,
    calibrate_noise_multiplier,
    compose,
)
from sotto.privacy.mechanisms.noise import calibrate_with_sampler, sampler_delta
from sotto.privacy.statements import Once, Participation, Poisson, Returning
from sotto.privacy.units import Adjacency, Unit

Critic = Literal["none", "private", "local", "public", "paper"]
PresetName = Literal["sotto", "paper"]

_LEAST_BUDGET = 1e-9


Divisor = Annotated[float, Field(ge=1)]
Return = Annotated[float, Field(ge=-1e30, le=1e30)]
"""Sums and averages of released returns stay numbers in float32."""


@dataclass(frozen=True)
class DPPGConfig(Settings):
    """Private policy gradient (Rio et al. 2025): settings, with defaults for CartPole-v1."""

    former_names: ClassVar[Mapping[str, str]] = {"ratio_clip": "clip_ratio"}

    env_id: str = "CartPole-v1"
    """Environment: CartPole-v1 or Acrobot-v1 in JAX, or any Gymnasium id with Box observations."""
    seed: Seed = 0
    """Seed of networks, simulated people and their actions. Noise never comes from it."""
    total_steps: Count = 500_000
    """Most environment steps of the training, over all users (a user whose episode ends early
    uses fewer; with population_size, those of the expected number of users)."""
    population: Literal["simulated", "real"] = "simulated"
    """Real: they are met in an environment of yours (--env-id module:Name-v0), and neither what it
    says nor anything un-noised about them is shown, logged or saved."""

    target_epsilon: Epsilon | None = None
    """Epsilon the certificate must not exceed; the noise multiplier is calibrated to it."""
    noise_multiplier: NoiseMultiplier | None = None
    """Noise standard deviation over clip norm (z), instead of target_epsilon."""
    delta: Fraction = 1e-5
    """Delta of the guarantee; below 1 / users."""
    adjacency: Adjacency = Adjacency.ZERO_OUT
    """Neighbouring inputs: a user contributes zero, or is replaced by another."""
    unit: Literal["trajectory", "segment"] = "trajectory"
    """Trajectory: each user starts from reset and takes part once. Segment: the paper's continuing
    segments, of which a person spans several; certificate `paper-claim`."""

    users_per_update: Count = 64
    """Users averaged in one release (K); with population_size, expected ones."""
    participations: Count = 1
    """Releases in which one user takes part, at most (k); users then come back in a public order
    and the noise covers all their participations together."""
    min_separation: Count | None = None
    """Releases from one participation of a user to the next (b), so that users_per_update * b
    users come in turn; None: as many as lets participations fill the training."""
    population_size: Count | None = None
    """Draw each release's users from so many, in secret, each with probability users_per_update /
    population_size, instead of in a public order; needs independent noise."""
    steps_per_user: Count = 128
    """Steps of one user (T)."""
    one_episode: bool = False
    """A user's data ends with their first episode; otherwise episodes follow one another up to
    steps_per_user."""
    action_repeat: Count = 1
    """Each action is applied this many times during training (public)."""
    clip_norm: Positive = 0.03
    """L2 bound on one user's policy update (S)."""
    clip_norm_from: TrustRegion | None = None
    """Compute clip_norm from a trust region instead (Props 4.4, 4.5, 4.7; the KL forms use the
    Fisher matrix of the first policy in the public simulator)."""
    trust_region_radius: Positive = 0.01
    """Size of that trust region (alpha)."""
    trust_region_confidence: Fraction = 0.9
    """Probability of staying inside it (1 - beta)."""
    adaptive_clip: Fraction | None = None
    """Let clip_norm follow this quantile of users' update norms, released privately (Andrew et al.
    2021); clip_norm is then the first."""
    adaptive_clip_rate: Annotated[float, Field(gt=0, le=10)] = 0.2
    """Step of log clip_norm per unit of difference from the quantile."""
    adaptive_clip_noise_ratio: NoiseMultiplier = 4.0
    """Noise multiplier of that part over the policy's."""
    correlated_noise: bool = True
    """Noise matched to the prefix-sum workload (decayed with parameter_decay), else independent."""
    server_learning_rate: Positive = 1.0
    """Factor on each released update."""
    parameter_decay: Share = 1.0
    """Factor on the parameters at each update; below 1 the noise is matched to decayed sums."""

    local_update: Literal["one-step", "adam", "visit-average", "parameter-exploration"] = "one-step"
    """One gradient step that saturates the clip; Algorithm 3: epochs of local Adam; averages over
    the visits to each state, for a linear policy on finitely many; or two greedy episodes of at
    most steps_per_user / 2, with the policy moved along a random direction by parameter_noise in
    each parameter, and against it."""
    learning_rate: Positive = 0.5
    """Local learning rate."""
    learning_rate_schedule: tuple[Divisor, Count, Positive] | None = None
    """Public schedule (one-step): divide learning_rate by the first every so many releases, down to
    the last."""
    local_epochs: Count = 1
    """Passes over the user's own steps (adam)."""
    local_minibatches: Count = 1
    """Minibatches per pass (adam)."""
    clip_ratio: Positive | None = None
    """PPO's clip on the probability ratio; the paper finds it unnecessary."""
    entropy_coefficient: Signed = 0.2
    """Weight of the entropy bonus."""
    discount: Discount = 0.99
    """Gamma, per environment step."""
    gae_lambda: Probability = 0.95
    """Lambda of the advantage estimates."""
    advantage_scale: Positive | None = None
    """Divide advantages, or the difference of the returns of two episodes, by this public constant;
    None normalises them within each user."""
    parameter_noise: NotNegative = 0.0
    """Standard deviation of each user's own random perturbation of the policy (exploration)."""

    critic: Critic = "none"
    """none: a public constant. private: through the door, jointly accounted. local: from the
    user's own steps only. public: from the public simulator. paper: un-noised; `paper-claim`."""
    baseline: Signed | None = None
    """The public constant; None takes reward per step / (1 - discount)."""
    critic_hidden: tuple[Count, ...] = (16,)
    """Hidden layers of the critic."""
    critic_scale: Positive = 50.0
    """Public scale of returns."""
    critic_clip_norm: Positive = 0.2
    """L2 bound on one user's critic update."""
    critic_noise_ratio: NoiseMultiplier = 1.0
    """Critic's noise multiplier over the policy's; both follow from the total."""
    critic_learning_rate: Positive = 1e-2
    """Learning rate of the critic's Adam."""
    critic_steps: Count = 8
    """Full-batch Adam steps of each critic update."""
    joint_clip: bool = False
    """Clip policy and critic updates together, under one noise multiplier."""

    observation_statistics: bool = False
    """Standardise the policy's inputs by released means and variances of observations."""
    observation_range: Positive = 5.0
    """Public range of observations times the environment's public scale; beyond it they count as
    its end."""
    observation_noise_ratio: NoiseMultiplier = 4.0
    """Noise multiplier of that part over the policy's."""
    private_return: tuple[Return, Return] | None = None
    """Release users' mean return too, each clipped to this public range: a learning curve that real
    users may have."""
    private_return_noise_ratio: NoiseMultiplier = 4.0
    """Noise multiplier of that part over the policy's."""
    stop_at_return: Return | None = None
    """Stop once the moving average (ema_decay) of released returns reaches this."""

    hidden: tuple[Count, ...] = (16,)
    """Hidden layers of the policy; none makes it linear."""
    ema_decay: Discount = 0.98
    """Decay of the moving average of released policies (free post-processing)."""
    tail_fraction: Share = 0.5
    """The tail average is over this last share of released policies."""
    evaluation_episodes: CountOrZero = 16
    """Fresh simulated episodes for each point of the learning curve; 0 draws none, and none are
    played where real people are met through Gymnasium."""

    def check(self) -> None:
        """Refuses what cannot run, or cannot be certified."""
        checks.check(self)

    @property
    def steps_per_update(self) -> int:
        """Most environment steps behind one release, a public number."""
        return self.users_per_update * self.steps_per_user * self.action_repeat

    @property
    def num_updates(self) -> int:
        """Releases of the whole training: its horizon, fixed in advance."""
        return self.total_steps // self.steps_per_update

    @property
    def users(self) -> int:
        """Different users of the whole training."""
        if self.population_size is not None:
            return self.population_size
        return len(set(self.groups(np.arange(self.num_updates)).tolist())) * self.users_per_update

    def groups(self, releases: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Which group of users_per_update users each release is of, in the public order.

        A cohort of `separation` groups goes round as often as its members take part, and then gives
        way to the next cohort.
        """
        cohorts = releases // (self.separation * self.participations)
        groups: np.ndarray = cohorts * self.separation + releases % self.separation
        return groups

    @property
    def separation(self) -> int:
        """Releases from one participation of a user to the next."""
        if self.min_separation is not None:
            return self.min_separation
        return max(1, -(-self.num_updates // max(1, self.participations)))

    @property
    def participation(self) -> Participation:
        """Who takes part, as the door is told."""
        if self.population_size is not None:
            rate = self.users_per_update / self.population_size
            return Poisson(sampling_rate=rate, population=self.population_size)
        if self.participations == 1:
            return Once()
        return Returning(
            max_participations=self.participations, min_separation=self.separation, exclusive=True
        )

    @property
    def decision_discount(self) -> float:
        """Discount per decision."""
        return float(self.discount**self.action_repeat)

    @property
    def privacy_unit(self) -> Unit:
        """The unit of the certificate."""
        return Unit(kind=self.unit, adjacency=self.adjacency)

    @property
    def is_proved(self) -> bool:
        """Whether the settings have a proof (otherwise: paper-claim, epsilon infinity)."""
        return self.unit == "trajectory" and self.critic != "paper"

    def event(self, noise_multiplier: float) -> Event:
        """What the whole training costs one user.

        Args:
            noise_multiplier: of a whole release, in zero-out terms.
        """
        multiplier = noise_multiplier / self.adjacency.sensitivity_factor
        if isinstance(drawn := self.participation, Poisson):
            return SampledGaussian(
                noise_multiplier=multiplier,
                sampling_rate=drawn.sampling_rate,
                count=self.num_updates,
            )
        return Gaussian(noise_multiplier=multiplier)

    def total_noise_multiplier(self, dimension: int) -> float:
        """Noise multiplier of a whole release, in zero-out terms: given, or calibrated.

        Args:
            dimension: how many numbers a release has, for the sampler's own delta.
        """
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.target_epsilon is not None
        target = self.target_epsilon
        # Users who are drawn may meet the draws of every release.
        releases = self.num_updates if self.population_size is not None else 1

        def least(delta: float) -> float:
            return calibrate_noise_multiplier(lambda z: [self.event(z)], target, delta)

        def sampler(noise_multiplier: float) -> float:
            multiplier = noise_multiplier / self.adjacency.sensitivity_factor
            return releases * sampler_delta(multiplier, dimension * self.num_updates)

        return calibrate_with_sampler(least, sampler, self.delta)

    @property
    def noise_ratios(self) -> dict[str, float]:
        """Noise multiplier of each part of a release over the policy's."""
        extras = {
            "critic": (self.critic == "private", self.critic_noise_ratio),
            "clip": (self.adaptive_clip is not None, self.adaptive_clip_noise_ratio),
            "observations": (self.observation_statistics, self.observation_noise_ratio),
            "return": (self.private_return is not None, self.private_return_noise_ratio),
        }
        return {"policy": 1.0} | {name: ratio for name, (wanted, ratio) in extras.items() if wanted}

    def part_multipliers(self, total: float) -> dict[str, float]:
        """Noise multipliers of the parts of a release, from the total: 1/z^2 = sum 1/z_p^2."""
        if self.joint_clip:
            return {"policy": total, "critic": total}
        ratios = self.noise_ratios
        policy = total * math.sqrt(sum(ratio**-2 for ratio in ratios.values()))
        return {name: ratio * policy for name, ratio in ratios.items()}

    @property
    def budget_epsilon(self) -> float:
        """Epsilon the ledger must not exceed: the target, or what the given noise costs.

        That is 0 where delta alone covers so much noise; a budget is positive, so it is then the
        least one, and the certificate says 0.
        """
        if not self.is_proved:
            return math.inf
        if self.target_epsilon is not None:
            return self.target_epsilon
        assert self.noise_multiplier is not None
        cost = compose([self.event(self.noise_multiplier)]).epsilon(self.delta * 0.99)
        return max(cost, _LEAST_BUDGET)


def preset(
    name: PresetName, env_id: str, *, target_epsilon: float | None = 1.3, **changes: object
) -> DPPGConfig:
    """Named settings: `sotto` (our recipe) or `paper` (Algorithms 2-3, table 3 of the paper).

    Args:
        name: the preset.
        env_id: the environment, for which the preset is adapted where it is known.
        target_epsilon: where neither this nor noise_multiplier is given, 1.3.
        changes: fields that differ from the preset.
    """
    if changes.get("noise_multiplier") is not None:
        target_epsilon = None
    if name == "paper":
        values = PAPER | PAPER_CHANGES.get(env_id, {})
    else:
        below, more_people = SOTTO_SMALL_EPSILON.get(env_id, (0.0, {}))
        small = target_epsilon is not None and target_epsilon < below
        values = SOTTO.get(env_id, {}) | (more_people if small else {})
    values |= changes
    if "adjacency" in values:
        values["adjacency"] = Adjacency(str(values["adjacency"]))
    known = {field.name for field in dataclasses.fields(DPPGConfig)}
    if unknown := set(values) - known:
        raise ValueError(f"DPPG has no setting {sorted(unknown)[0]!r}")
    return DPPGConfig(env_id=env_id, target_epsilon=target_epsilon, **values)  # type: ignore[arg-type]
