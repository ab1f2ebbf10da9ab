"""Settings of private policy gradient: the dataclass is the command line; presets fill it."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from sotto.algorithms.dppg_presets import PAPER, SOTTO
from sotto.algorithms.trust_region import TrustRegion
from sotto.privacy.accounting import Gaussian, calibrate_noise_multiplier, gaussian_epsilon
from sotto.privacy.noise import sampler_delta
from sotto.privacy.units import Adjacency, Unit

Critic = Literal["none", "private", "local", "public", "paper"]
PresetName = Literal["sotto", "paper"]


@dataclass(frozen=True)
class DPPGConfig:
    """Private policy gradient (Rio et al. 2025): settings, with defaults for CartPole-v1."""

    env_id: str = "CartPole-v1"
    """Environment: CartPole-v1 or Acrobot-v1 in JAX, or any Gymnasium id with Box observations."""
    seed: int = 0
    """Seed of networks, simulated people and their actions. Noise never comes from it."""
    total_steps: int = 500_000
    """Most environment steps of the training, over all users (a user whose episode ends early
    uses fewer)."""
    population: Literal["simulated", "real"] = "simulated"
    """Real: nothing un-noised about the people is shown, logged or saved."""

    target_epsilon: float | None = None
    """Epsilon the certificate must not exceed; the noise multiplier is calibrated to it."""
    noise_multiplier: float | None = None
    """Noise standard deviation over clip norm (z), instead of target_epsilon."""
    delta: float = 1e-5
    """Delta of the guarantee; below 1 / users."""
    adjacency: Adjacency = Adjacency.ZERO_OUT
    """Neighbouring inputs: a user contributes zero, or is replaced by another."""
    unit: Literal["trajectory", "segment"] = "trajectory"
    """Trajectory: each user starts from reset and takes part once. Segment: the paper's continuing
    segments, of which a person spans several; certificate `paper-claim`."""

    users_per_update: int = 64
    """Users averaged in one release (K)."""
    steps_per_user: int = 128
    """Steps of one user (T)."""
    one_episode: bool = False
    """A user's data ends with their first episode; otherwise episodes follow one another up to
    steps_per_user."""
    action_repeat: int = 1
    """Each action is applied this many times during training (public)."""
    clip_norm: float = 0.03
    """L2 bound on one user's policy update (S)."""
    clip_norm_from: TrustRegion | None = None
    """Compute clip_norm from a trust region instead (Props 4.4, 4.5, 4.7; the KL forms use the
    Fisher matrix of the first policy in the public simulator)."""
    trust_region_radius: float = 0.01
    """Size of that trust region (alpha)."""
    trust_region_confidence: float = 0.9
    """Probability of staying inside it (1 - beta)."""
    correlated_noise: bool = True
    """Noise matched to the prefix-sum workload (decayed with parameter_decay), else independent."""
    server_learning_rate: float = 1.0
    """Factor on each released update."""
    parameter_decay: float = 1.0
    """Factor on the parameters at each update; below 1 the noise is matched to decayed sums."""

    local_update: Literal["one-step", "adam"] = "one-step"
    """One gradient step that saturates the clip, or Algorithm 3: epochs of local Adam."""
    learning_rate: float = 0.5
    """Local learning rate."""
    local_epochs: int = 1
    """Passes over the user's own steps (adam)."""
    local_minibatches: int = 1
    """Minibatches per pass (adam)."""
    ratio_clip: float | None = None
    """PPO's clip on the probability ratio; the paper finds it unnecessary."""
    entropy_coefficient: float = 0.2
    """Weight of the entropy bonus."""
    discount: float = 0.99
    """Gamma, per environment step."""
    gae_lambda: float = 0.95
    """Lambda of the advantage estimates."""
    advantage_scale: float | None = None
    """Divide advantages by this public constant; None normalises them within each user."""
    parameter_noise: float = 0.0
    """Standard deviation of each user's own random perturbation of the policy (exploration)."""

    critic: Critic = "none"
    """none: a public constant. private: through the door, jointly accounted. local: from the
    user's own steps only. public: from the public simulator. paper: un-noised; `paper-claim`."""
    baseline: float | None = None
    """The public constant; None takes reward per step / (1 - discount)."""
    critic_hidden: tuple[int, ...] = (16,)
    """Hidden layers of the critic."""
    critic_scale: float = 50.0
    """Public scale of returns."""
    critic_clip_norm: float = 0.2
    """L2 bound on one user's critic update."""
    critic_noise_ratio: float = 1.0
    """Critic's noise multiplier over the policy's; both follow from the total."""
    critic_learning_rate: float = 1e-2
    """Learning rate of the critic's Adam."""
    critic_steps: int = 8
    """Full-batch Adam steps of each critic update."""
    joint_clip: bool = False
    """Clip policy and critic updates together, under one noise multiplier."""

    hidden: tuple[int, ...] = (16,)
    """Hidden layers of the policy; none makes it linear."""
    ema_decay: float = 0.98
    """Decay of the moving average of released policies (free post-processing)."""
    tail_fraction: float = 0.5
    """The tail average is over this last share of released policies."""
    evaluation_episodes: int = 16
    """Fresh simulated episodes for each point of the learning curve; 0 draws none."""

    def __post_init__(self) -> None:
        """Refuses what cannot run, or cannot be certified."""
        _check_privacy(self)
        _check_learning(self)

    @property
    def steps_per_update(self) -> int:
        """Most environment steps behind one release, a public number."""
        return self.users_per_update * self.steps_per_user * self.action_repeat

    @property
    def updates(self) -> int:
        """Releases of the whole training: its horizon, fixed in advance."""
        return self.total_steps // self.steps_per_update

    @property
    def users(self) -> int:
        """Users of the whole training."""
        return self.updates * self.users_per_update

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

    def total_noise_multiplier(self, dimension: int) -> float:
        """Noise multiplier of a whole release, in zero-out terms: given, or calibrated.

        Args:
            dimension: how many numbers a release has, for the sampler's own delta.
        """
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.target_epsilon is not None
        factor = self.adjacency.sensitivity_factor
        draws = dimension * self.updates

        def calibrated(delta: float) -> float:
            return calibrate_noise_multiplier(
                lambda z: [Gaussian(noise_multiplier=z / factor)], self.target_epsilon or 0.0, delta
            )

        # The sampler's delta falls as the noise grows, so one correction is on the safe side.
        first = calibrated(self.delta)
        tail = sampler_delta(first / factor, draws)
        if tail > self.delta / 100:
            raise ValueError(
                f"epsilon {self.target_epsilon:g} needs so little noise (multiplier {first:.3g}) "
                "that the finite tails of any sampler would show; choose a smaller epsilon"
            )
        return calibrated(self.delta - tail)

    def part_multipliers(self, total: float) -> dict[str, float]:
        """Noise multipliers of the policy's and the private critic's part, from the total."""
        if self.critic != "private":
            return {"policy": total}
        if self.joint_clip:
            return {"policy": total, "critic": total}
        policy = total * math.sqrt(1 + self.critic_noise_ratio**-2)
        return {"policy": policy, "critic": self.critic_noise_ratio * policy}

    def budget_epsilon(self) -> float:
        """Epsilon the ledger must not exceed: the target, or what the given noise costs."""
        if not self.is_proved:
            return math.inf
        if self.target_epsilon is not None:
            return self.target_epsilon
        assert self.noise_multiplier is not None
        multiplier = self.noise_multiplier / self.adjacency.sensitivity_factor
        return gaussian_epsilon(multiplier, self.delta * 0.99)


def _check_privacy(config: DPPGConfig) -> None:
    if (config.target_epsilon is None) == (config.noise_multiplier is None):
        raise ValueError("give either target_epsilon or noise_multiplier, and not both")
    for name in ("target_epsilon", "noise_multiplier"):
        value = getattr(config, name)
        if value is not None and not (0 < value < math.inf):
            raise ValueError(f"{name} must be a positive number; {value} is not")
    if not 0 < config.delta < 1:
        raise ValueError(f"delta must lie between 0 and 1; {config.delta} does not")
    if config.updates >= 1 and config.delta * config.users >= 1:
        raise ValueError(
            f"delta {config.delta:g} is not below 1 / users = {1 / config.users:.3g}, so it would "
            "allow one user's data to be published outright; choose a smaller delta"
        )
    if not (config.clip_norm > 0 and config.critic_clip_norm > 0 and config.critic_noise_ratio > 0):
        raise ValueError("clip norms and critic_noise_ratio must be positive")
    if config.unit == "segment" and config.one_episode:
        raise ValueError("segments continue from one another; one_episode goes with trajectories")


def _check_learning(config: DPPGConfig) -> None:
    sizes = ("users_per_update", "steps_per_user", "action_repeat", "local_epochs")
    for name in (*sizes, "local_minibatches", "critic_steps"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1")
    if config.updates < 1:
        raise ValueError(
            f"total_steps {config.total_steps} is less than one update of users_per_update * "
            f"steps_per_user * action_repeat = {config.steps_per_update} steps"
        )
    if config.steps_per_user % config.local_minibatches:
        raise ValueError("local_minibatches must divide steps_per_user")
    if not (0 <= config.discount < 1 and 0 <= config.gae_lambda <= 1):
        raise ValueError("discount must be in [0, 1) and gae_lambda in [0, 1]")
    if not (0 < config.parameter_decay <= 1 and 0 <= config.ema_decay < 1):
        raise ValueError("parameter_decay must be in (0, 1] and ema_decay in [0, 1)")
    if not 0 < config.tail_fraction <= 1:
        raise ValueError("tail_fraction must be in (0, 1]")
    if config.joint_clip and config.critic != "private":
        raise ValueError("joint_clip clips the policy with a private critic; set critic to private")


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
    values: dict[str, object] = dict(PAPER if name == "paper" else SOTTO.get(env_id, {}))
    values |= changes
    if "adjacency" in values:
        values["adjacency"] = Adjacency(str(values["adjacency"]))
    if values.get("noise_multiplier") is not None:
        target_epsilon = None
    known = {field.name for field in dataclasses.fields(DPPGConfig)}
    if unknown := set(values) - known:
        raise ValueError(f"DPPG has no setting {sorted(unknown)[0]!r}")
    return DPPGConfig(env_id=env_id, target_epsilon=target_epsilon, **values)  # type: ignore[arg-type]
