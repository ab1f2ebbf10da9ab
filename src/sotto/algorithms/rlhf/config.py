"""Settings of private RLHF."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sotto.algorithms.settings import (
    AtLeastTwo,
    Count,
    CountOrZero,
    Epsilon,
    Fraction,
    NoiseMultiplier,
    NotNegative,
    Positive,
    Seed,
    Settings,
    Share,
)
from sotto.privacy.units import Adjacency, PopulationKind, Unit

Method = Literal["reward-model", "policy-gradient", "best-of-n"]
SMOLLM2: Final = "smollm2"
"""Name of the model that `sotto install smollm2` installs."""

HUGGING_FACE: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Name at Hugging Face of the same model. The installed one keeps its weights in fewer bits."""


def kl_of_choice(count: int) -> float:
    """Returns a bound on the KL divergence of the best of `count` samples from one sample, in nats.

    Source: Beirami et al. 2024, Theorem 3.1.
    """
    return math.log(count) - (count - 1) / count


PAPER: Final[dict[str, Any]] = {
    "method": "policy-gradient",
    "adapter": "lora",
    "critic": "paper",
    "target_epsilon": None,
    "noise_multiplier": 0.01,
    "clip_norm": 1.0,
    "releases": 30,  # batches of 128 people, as in TRL's example, from which the paper starts
    "correlated_noise": False,
    "directions": 0,
    "kl_coefficient": 0.05,
    "tail_fraction": 0.01,  # the last adapter alone
}
"""Settings of preset `paper`: Rio et al. 2025, section 6. SmolLM2 and LoRA take the place of GPT-2
and all of its parameters. A person's update is one clipped gradient."""


@dataclass(frozen=True)
class RLHFConfig(Settings):
    """Settings of private RLHF. The defaults tune SmolLM2-135M towards what simulated people like.

    The people are simulated unless `feedback` names a file of real ratings.
    """

    model: str = SMOLLM2
    """Language model: smollm2, a folder in Hugging Face's layout (GPT-2 or Llama), or a GGUF file
    (Llama)."""
    model_identity: str | None = None
    """SHA-256 of the model's files. None takes that of the model. A run goes on, and is tried, with
    this model only."""
    feedback: str | None = None
    """JSON Lines file of real people's ratings: objects with person, prompt, completion and rating
    in [0, 1]. With reward-model and policy-gradient a person contributes only with two ratings or
    more that differ. Of each person the first --completions ratings count. Longer completions keep
    their first --new-tokens tokens, and longer prompts their last --prompt-tokens tokens. Nothing
    about these people is shown without noise. None: people are simulated. --resume needs
    the same file; its ratings change nothing once the release is made."""
    public_prompts: str | None = None
    """Text file with one public prompt per line, about nobody who is protected. None: beginnings of
    film reviews, which `sotto install films` installs."""
    prompts_identity: str | None = None
    """SHA-256 of the file of public prompts. None takes that of the file. A run goes on with these
    prompts only."""
    method: Method = "reward-model"
    """Kind of the release about people. reward-model: a linear model of their ratings, in one
    release; the language model is then tuned against it, which costs nothing more.
    policy-gradient: clipped policy gradients of their own completions (DPPG). best-of-n: clipped
    gradients that imitate each person's best-rated completion."""
    seed: Seed = 0
    """Seed of adapters, simulated people and completions. Noise never comes from it."""

    people: Count = 3840
    """Number of people. With feedback, the number of places, which divides their sum. The file has
    at most so many people, and empty places count as zero."""
    completions: AtLeastTwo = 4
    """Number of completions that a person rates."""
    prompt_tokens: Count = 8
    """Number of tokens of a prompt. Longer prompts of a file keep their last tokens."""
    new_tokens: AtLeastTwo = 16
    """Number of tokens of a completion."""

    target_epsilon: Epsilon | None = 1.0
    """Epsilon that the certificate must not exceed. The noise multiplier is calibrated to it."""
    noise_multiplier: NoiseMultiplier | None = None
    """Noise standard deviation divided by the clip norm. Give this or target_epsilon."""
    delta: Fraction = 1e-5
    """Delta of the guarantee. It must be below 1 / people."""
    clip_norm: Positive = 0.5
    """L2 bound on what one person contributes to a release."""
    releases: Count = 1
    """Number of noisy releases. Each person takes part in one of them. reward-model makes one."""
    correlated_noise: bool = True
    """Whether noise is correlated over releases, which makes their sums more accurate. Otherwise
    the noise of each release is independent."""
    microbatch: Count = 64
    """Number of people whose contributions are computed at once."""

    adapter: Literal["steering", "lora"] = "steering"
    """Kind of the trained parameters. steering: vectors that are added to the residual stream.
    lora: low-rank changes of linear maps, for policy-gradient and best-of-n."""
    rank: Count = 8
    """Rank of the low-rank changes."""
    targets: tuple[str, ...] = ("q_proj", "v_proj", "o_proj", "down_proj")
    """Linear maps with low-rank changes."""
    blocks: tuple[CountOrZero, ...] = ()
    """Numbers of the blocks that are changed. Empty: all for lora, and three late ones for
    steering, the last block among them."""
    directions: CountOrZero = 16
    """Number of public directions in which people's updates may point: the leading eigenvectors of
    the covariance of the base model's own gradients on public prompts. 0: all parameters. It is for
    policy-gradient and best-of-n."""
    server_learning_rate: Positive = 1.0
    """Factor on each released update."""
    kl_coefficient: NotNegative = 0.0
    """Weight of the KL penalty to the base model in a person's own update (policy-gradient)."""
    critic: Literal["none", "paper"] = "none"
    """Baseline of policy-gradient. none: the mean of a person's other ratings. paper: a learnt
    value of each prompt, fitted without noise, so the certificate only states the paper's claim
    (status `paper-claim`)."""
    tail_fraction: Share = 0.5
    """Share of the released adapters, the last ones, whose average is the policy `average`."""

    features: Count = 64
    """Number of public features of a completion that the released reward model weighs. More weights
    describe the ratings better, and have more noise."""
    improvement_prompts: Count = 1024
    """Number of public prompts on which the language model is tuned against the released reward
    model."""
    candidates: AtLeastTwo = 8
    """Number of completions of each of these prompts, which the released reward model rates."""
    kl_target: Annotated[float, Field(gt=0, le=100)] = 1.0
    """KL divergence from the base model, in nats a completion on public prompts. The last update
    scales the whole change such that it is about met."""
    reranked: Count = 1
    """Number of completions that the tuned model samples for each answer, of which the released
    reward model chooses one. With more of them people rate answers higher at the same kl_target,
    the judge shows no clear difference, and answers take longer. It is for reward-model. Other
    tools that load the adapter do not choose."""
    evaluation_prompts: Count = 256
    """Number of fresh simulated people's prompts with which released adapters are evaluated."""
    judge: bool = True
    """Whether a judge of another kind, whom no training sees, measures the result as well. Fitting
    it takes minutes the first time. It is for simulated people."""

    @property
    def population(self) -> PopulationKind:
        """Whether the people are simulated or real."""
        return "simulated" if self.feedback is None else "real"

    @property
    def people_per_release(self) -> int:
        """Number of people in one release."""
        return self.people // self.releases

    @property
    def improves(self) -> bool:
        """Whether the language model is tuned against the released reward model."""
        return self.method == "reward-model"

    @property
    def least_prompts(self) -> int:
        """Least number of public prompts whose completions can differ in as many ways as features.

        The candidates of one prompt differ from their mean in one direction less than they are.
        """
        return -(-self.features // (self.candidates - 1))

    @property
    def num_updates(self) -> int:
        """Number of updates: the releases, and the last one, which tunes and scales."""
        return self.releases + 1

    @property
    def steps_per_update(self) -> int:
        """Number of tokens that people rate, per update."""
        return self.people_per_release * self.completions * self.new_tokens

    @property
    def privacy_unit(self) -> Unit:
        """Everything that one person contributes: prompts, completions and ratings."""
        return Unit(kind="feedback", adjacency=Adjacency.ZERO_OUT)

    def check(self) -> None:
        """Refuses settings that contradict each other."""
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give either target_epsilon or noise_multiplier")
        if self.delta * self.people >= 1:
            raise ValueError(
                f"delta {self.delta:g} is vacuous for {self.people} people; "
                f"use a delta below 1/{self.people}"
            )
        if self.releases > self.people:
            raise ValueError(
                f"{self.releases} releases need as many people; there are {self.people}"
            )
        if self.people % self.releases:
            raise ValueError(
                f"{self.people} people cannot be divided among {self.releases} releases; "
                "choose a number of releases that divides the number of people"
            )
        if self.reranked > 1 and not self.improves:
            raise ValueError(f"{self.method} has no reward model that chooses; leave out reranked")
        if kl_of_choice(self.reranked) >= self.kl_target:
            raise ValueError(
                f"a choice among {self.reranked} completions may differ from the base model by "
                f"{kl_of_choice(self.reranked):.2f} nats, which is not below the kl_target "
                f"{self.kl_target:g}; use fewer, or a larger target"
            )
        if self.improves and self.improvement_prompts < self.least_prompts:
            raise ValueError(
                f"improvement_prompts {self.improvement_prompts} are too few for {self.features} "
                f"features; use at least {self.least_prompts}, or fewer features"
            )
        if self.improves and self.adapter != "steering":
            raise ValueError("reward-model tunes steering vectors; leave out adapter")
        if self.improves and self.releases > 1:
            raise ValueError("reward-model makes one release with everybody; leave out releases")
        if self.feedback is not None and self.releases > 1:
            raise ValueError(
                "ratings of a file are of completions of the base model; use one release"
            )
        if self.critic == "paper" and self.method != "policy-gradient":
            raise ValueError("the paper's critic is for policy-gradient; leave out critic")
        if self.critic == "paper" and self.feedback is not None:
            raise ValueError(
                "the paper's critic would write what it learns from ratings into checkpoints "
                "without noise; it is for simulated people"
            )
        if self.feedback is not None and self.public_prompts is None:
            raise ValueError("real people's feedback needs --public-prompts of your own domain")
