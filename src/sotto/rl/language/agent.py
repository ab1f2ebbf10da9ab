"""Language models that continue prompts, with texts as inputs and outputs."""

import os
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Key

from sotto.keys import new_key
from sotto.rl.language.adapters import Adapter
from sotto.rl.language.batches import BATCH, in_batches
from sotto.rl.language.generation import Completions, generate
from sotto.rl.language.loading import LanguageModel
from sotto.rl.language.model import check_length
from sotto.rl.language.sampling import best_of
from sotto.rl.language.tokenizer import in_utf8, padded

_MULTIPLE = 16
"""Prompts are padded to a multiple of so many tokens, so that few programs are compiled."""

_generate = jax.jit(generate, static_argnames=("new_tokens", "end", "temperature"))


class LanguageAgent:
    """The tuned language model of a run. Make one with `sotto.load_language`.

    Attributes:
        language: the base model.
        adapter: the released change of it.
        name: name of the policy in the run.
        updates: number of updates before it.
        reranked: number of completions from which each answer is chosen.
        reward: function of base model, prompts, completions and their masks that rates completions.
            It chooses the answers where `reranked` is above one.
    """

    def __init__(
        self,
        language: LanguageModel,
        adapter: Adapter,
        name: str,
        updates: int,
        seed: int | None = None,
        *,
        reranked: int = 1,
        reward: Callable[..., Array] | None = None,
    ) -> None:
        self.language, self.adapter = language, adapter
        self.name, self.updates = name, updates
        self.reranked, self.reward = reranked, reward
        self._key = new_key(int.from_bytes(os.urandom(4)) if seed is None else seed)

    def generate(
        self,
        prompt: str,
        *,
        samples: int = 1,
        new_tokens: int = 32,
        temperature: float = 1.0,
        base: bool = False,
    ) -> list[str]:
        """Returns sampled completions of a prompt, without the prompt.

        A run with `reranked` above one samples so many for each, and returns the best of them.

        Example:
            sotto.load_language("runs/rlhf").generate("The film is", samples=3)

        Args:
            prompt: the text to continue.
            samples: number of completions.
            new_tokens: largest number of tokens of a completion. The model may end it earlier.
            temperature: divisor of the logits. At 1 tokens come from the model's distribution; the
                smaller it is, the more likely tokens are chosen.
            base: whether the base model continues the prompt, instead of the tuned one.

        Raises:
            ValueError: the prompt is empty or not in UTF-8, a number is out of range, or the
                prompt and the new tokens exceed the model's positions.
        """
        if not prompt.strip():
            raise ValueError("the prompt is empty; give a text to continue")
        if not in_utf8(prompt):
            raise ValueError("the prompt is not a text in UTF-8; correct it")
        for what, number in (("samples", samples), ("new tokens", new_tokens)):
            if number < 1:
                raise ValueError(f"the number of {what} must be at least 1, got {number}")
        if not 0 < temperature < np.inf:
            raise ValueError(f"the temperature must be positive, got {temperature:g}")
        tokens = self.language.tokenizer.encode(prompt)
        check_length(self.language.decoder, len(tokens) + new_tokens)
        adapter = None if base else self.adapter
        return self._sampled(tokens, samples, new_tokens, temperature, adapter)

    def _sampled(
        self,
        tokens: list[int],
        samples: int,
        new_tokens: int,
        temperature: float,
        adapter: Adapter | None,
    ) -> list[str]:
        decoder = self.language.decoder
        room = decoder.architecture.positions - new_tokens - len(tokens)
        padding = (0, 0), (min(-len(tokens) % _MULTIPLE, room), 0)
        reward = None if adapter is None else self.reward
        count = self.reranked if reward else 1
        rows, mask = padded([tokens] * samples * count)
        prompts = np.pad(rows, padding), np.pad(mask, padding)
        self._key, key = jax.random.split(self._key)

        def batch(rows: Array, mask: Array, keys: Key[Array, " batch"]) -> Completions:
            written: Completions = _generate(
                decoder,
                rows,
                mask,
                new_tokens,
                keys,
                end=self.language.end,
                temperature=temperature,
                adapter=adapter,
            )
            return written

        keys = jax.random.split(key, samples * count)
        found = in_batches(batch, BATCH, *prompts, keys, what="completions")
        said = found.tokens, found.mask
        if reward and count > 1:
            rate = partial(reward, decoder)
            chosen = best_of(in_batches(rate, BATCH, *prompts, *said), count)
            said = said[0][chosen], said[1][chosen]
        return self.language.tokenizer.texts(*said)
