"""Measures a tuned language model on prompts of simulated people who never take part."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from sotto.algorithms.rlhf.answers import TunedModel, answers, divergences
from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.people import People

REAL = (
    "nothing is evaluated, because the people are real and nobody else rates texts like them; read "
    "samples with: sotto generate RUN --prompt TEXT"
)
"""Reason why a training on real people's feedback has no evaluations."""


class Measured(NamedTuple):
    """Measurements of a tuned model, one per prompt, and the texts that it wrote."""

    rating: Float[np.ndarray, " prompts"]
    """Rating by simulated people."""
    judge: Float[np.ndarray, " prompts"] | None
    """Probability that the text is positive, by a judge that no training sees."""
    divergence: Float[np.ndarray, " prompts"]
    """Numbers whose mean estimates the KL divergence from the base model."""
    prompts: list[str]
    completions: list[str]

    def means(self) -> dict[str, float]:
        """Returns the means, and the share of different pairs of words among all pairs."""
        found = {
            "rating": float(self.rating.mean()),
            "kl": float(self.divergence.mean()),
            "distinct_2": distinct(self.completions, 2),
        }
        return found if self.judge is None else found | {"judge": float(self.judge.mean())}


def measure(
    config: RLHFConfig, people: People, model: TunedModel, key: PRNGKeyArray, count: int
) -> Measured:
    """Returns measurements of one answer for each of `count` held-out prompts.

    Raises:
        ValueError: the people are real, so their ratings must not be shown without noise.
    """
    if people.held_out is None or people.rater is None:
        raise ValueError(REAL)
    prompts = people.held_out[np.arange(count) % len(people.held_out)]
    mask = np.ones(prompts.shape, bool)
    language = people.language
    said = answers(config, people, model, prompts, mask, key)
    written = language.tokenizer.texts(*said)
    judged = None
    if people.judge is not None:
        rows = [[*p, *t[real]] for p, t, real in zip(prompts, *said, strict=True)]
        judged = people.judge(rows)
    return Measured(
        people.rater(written),
        judged,
        divergences(config, people, model, prompts, mask, said),
        [language.tokenizer.decode(prompt) for prompt in prompts],
        written,
    )


def distinct(texts: list[str], size: int) -> float:
    """Returns the share of different runs of `size` words among all runs (Li et al. 2016)."""
    runs = [
        tuple(words[start : start + size])
        for words in map(str.split, texts)
        for start in range(len(words) - size + 1)
    ]
    return len(set(runs)) / max(1, len(runs))
