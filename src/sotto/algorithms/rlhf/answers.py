"""Answers of a tuned language model, and their divergence from what the base model says.

With `reranked` above one, the model samples several completions for each answer, and the released
reward model chooses one of them (best-of-n sampling; Stiennon et al. 2020, Nakano et al. 2021). At
the same KL divergence from the base model, answers get larger rewards than by a change of the model
alone. They cost more time, and no privacy: the reward model is released already.
"""

from functools import partial
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from sotto.algorithms.rlhf.config import RLHFConfig, kl_of_choice
from sotto.algorithms.rlhf.features import RewardModel
from sotto.algorithms.rlhf.people import People, complete, divergences_of_tokens, log_ratios
from sotto.rl.language import Adapter
from sotto.rl.language.batches import BATCH, in_batches
from sotto.rl.language.sampling import best_of


class TunedModel(eqx.Module):
    """A change of a language model, and the released reward model that may choose its answers.

    It takes prompts, and no observations.
    """

    adapter: Adapter
    reward: RewardModel | None

    def __call__(self, observation: Any) -> Any:
        """Raises ValueError: a language model has no observations."""
        del observation
        raise ValueError("a language model continues prompts: use `sotto generate RUN`")

    def noise(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Any:
        """Raises ValueError, as `__call__` does."""
        del key, shape
        return self(None)


def answers(
    config: RLHFConfig,
    people: People,
    model: TunedModel,
    prompts: Int[np.ndarray, "rows tokens"],
    mask: np.ndarray,
    key: PRNGKeyArray,
) -> tuple[Int[np.ndarray, "rows new"], np.ndarray]:
    """Returns an answer to each prompt and its mask, sampled at temperature 1."""
    count, language = config.reranked, people.language
    rows, masks = (np.repeat(one, count, axis=0) for one in (prompts, mask))
    tokens, real = complete(language, model.adapter, rows, masks, config.new_tokens, key)
    if count == 1:
        return tokens, real
    assert model.reward is not None
    rate = partial(model.reward.rewards, language.decoder)
    chosen = best_of(in_batches(rate, BATCH, rows, masks, tokens, real), count)
    return tokens[chosen], real[chosen]


def divergences(
    config: RLHFConfig,
    people: People,
    model: TunedModel,
    prompts: Int[np.ndarray, "rows tokens"],
    mask: np.ndarray,
    said: tuple[np.ndarray, np.ndarray],
) -> Float[np.ndarray, " rows"]:
    """Returns numbers whose mean estimates the KL divergence of answers from the base model.

    They are the divergences of the tuned model's tokens. With `reranked` above one, the answers are
    not samples of the tuned model. There they are log-ratios of the tuned model to the base model,
    and the divergence of the choice. Their mean estimates an upper bound then.
    """
    given = people.language, model.adapter, prompts, mask, said
    if config.reranked == 1:
        return divergences_of_tokens(*given)
    return log_ratios(*given) + kl_of_choice(config.reranked)
