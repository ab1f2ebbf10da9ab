"""A2C, a baseline without privacy (Mnih et al. 2016, arXiv:1602.01783, run synchronously).

A2C is PPO with one pass over one batch. The probability ratio is then 1 at every step, so the
gradient of the clipped surrogate is the policy gradient (Huang et al. 2022, arXiv:2205.09123). A2C
also has short rollouts, advantages that are not normalised, and RMSprop. This file therefore only
has the settings; `sotto.algorithms.baselines.ppo` has the algorithm.
"""

from dataclasses import asdict, dataclass

from sotto.algorithms.baselines.common import (
    AnnealLearningRate,
    BaselineSettings,
    DiscountFactor,
    EntropyCoefficient,
    LearningRate,
    MaxGradNorm,
    NormaliseAdvantages,
    NumEnvs,
    NumSteps,
    TotalSteps,
    ValueCoefficient,
)
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.settings import Count, Probability


@dataclass(frozen=True)
class A2CConfig(BaselineSettings):
    """Settings of A2C. The defaults are those of Stable-Baselines3, with more environments."""

    total_steps: TotalSteps = 500_000
    num_envs: NumEnvs = 16
    num_steps: NumSteps = 5
    learning_rate: LearningRate = 7e-4
    anneal_learning_rate: AnnealLearningRate = True
    discount: DiscountFactor = 0.99
    gae_lambda: Probability = 1.0
    """Lambda of the generalised advantage estimates. 1 uses all rewards of the rollout."""
    entropy_coefficient: EntropyCoefficient = 0.0
    value_coefficient: ValueCoefficient = 0.5
    max_grad_norm: MaxGradNorm = 0.5
    hidden: tuple[Count, ...] = (64, 64)
    """Hidden layers of the policy and of the critic."""
    normalise_advantages: NormaliseAdvantages = False

    @property
    def ppo(self) -> PPOConfig:
        """Settings of PPO that train the same."""
        return PPOConfig(**asdict(self), num_epochs=1, num_minibatches=1, optimizer="rmsprop")
