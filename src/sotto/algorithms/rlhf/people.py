"""People of a training: their prompts, the completions that they are shown, and their ratings.

Simulated people are authors of film sentences (`sotto.data.films`). A person has the beginning of
one sentence as the prompt, and rates completions of it like the `Rater`, which was trained on other
people's sentences. Real people come from a file of ratings.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from sotto.algorithms.rlhf import feedback
from sotto.algorithms.rlhf.config import SMOLLM2, RLHFConfig
from sotto.algorithms.rlhf.feedback import Rated
from sotto.algorithms.rlhf.raters import Judge, Rater
from sotto.data import films
from sotto.data.packages import find
from sotto.errors import RunError
from sotto.extras import require
from sotto.keys import new_key
from sotto.rl.language import (
    Adapter,
    Completions,
    LanguageModel,
    generate,
    load,
    log_probabilities,
    padded,
)

BATCH = 256
"""Number of rows that the language model completes at once."""
SPLIT_SEED = 0
"""Seed that divides the film sentences among raters, held-out texts and people."""
_COMPLETIONS = 1


@dataclass(frozen=True, eq=False)
class People:
    """A language model and the people whose feedback it learns from.

    Attributes:
        language: the frozen base model.
        public_prompts: prompts about nobody who is protected.
        log: ratings that people have given already, or None if they are asked now.
        prompts: prompts of simulated people, or None.
        held_out: prompts of simulated people who never take part, or None.
        rater: ratings of simulated people, or None.
        judge: a judge of another kind, or None.
    """

    language: LanguageModel
    public_prompts: Int[np.ndarray, "prompts tokens"]
    public_mask: np.ndarray
    log: Rated | None = None
    prompts: Int[np.ndarray, "people tokens"] | None = None
    held_out: Int[np.ndarray, "people tokens"] | None = None
    rater: Rater | None = None
    judge: Judge | None = None

    def rated(self, config: RLHFConfig, adapter: Adapter, update: int) -> Rated:
        """Returns the data of the people of one release, leaves of shape [people, rows, ...].

        Args:
            config: settings.
            adapter: the released change whose completions simulated people rate.
            update: number of the release.
        """
        size = config.people_per_release
        whose = slice(update * size, (update + 1) * size)
        if self.log is not None:
            return Rated(*(leaf[whose] for leaf in self.log))
        assert self.prompts is not None
        assert self.rater is not None
        prompts = np.repeat(self.prompts[whose], config.completions, axis=0)
        mask = np.ones(prompts.shape, bool)
        key = jax.random.fold_in(jax.random.fold_in(new_key(config.seed), _COMPLETIONS), update)
        found = complete(self.language, adapter, prompts, mask, config.new_tokens, key)
        ratings = self.rater(texts(self.language, found)).astype(np.float32)
        flat = Rated(prompts, mask, *found, ratings, np.ones(len(prompts), bool))
        return Rated(*(leaf.reshape(size, config.completions, *leaf.shape[1:]) for leaf in flat))


def read_model(model: str) -> LanguageModel:
    """Reads the language model of this name or place.

    Raises:
        RunError: it is not installed.
        ValueError: it cannot be read.
    """
    require("gguf", "safetensors", "tokenizers")
    return load(find(SMOLLM2) if model == SMOLLM2 else model)


def meet(config: RLHFConfig, language: LanguageModel) -> People:
    """Reads the prompts and the people of these settings.

    Raises:
        RunError: something is not installed, or a file cannot be read.
        ValueError: there are too few people or prompts.
    """
    require("sklearn")
    corpora = None
    if config.feedback is None or config.public_prompts is None:
        corpora = films.read(find("films"))
    sentences = None if corpora is None else films.split(corpora.films, SPLIT_SEED)
    if config.public_prompts is None:
        assert sentences is not None
        public = sentences.raters.beginnings(language.tokenizer, config.prompt_tokens)
        mask = np.ones(public.shape, bool)
    else:
        public, mask = _prompts(Path(config.public_prompts), language, config.prompt_tokens)
    if config.feedback is not None:
        return People(language, public, mask, log=_log(config, language))
    assert corpora is not None
    assert sentences is not None
    prompts = sentences.people.beginnings(language.tokenizer, config.prompt_tokens)
    held_out = sentences.held_out.beginnings(language.tokenizer, config.prompt_tokens)
    if len(prompts) < config.people:
        raise ValueError(
            f"there are {len(prompts)} simulated people with prompts of {config.prompt_tokens} "
            f"tokens, not {config.people}; choose fewer people or shorter prompts"
        )
    judge = Judge.fit(language, corpora) if config.judge else None
    return People(
        language,
        public,
        mask,
        prompts=prompts,
        held_out=held_out,
        rater=Rater.fit(sentences),
        judge=judge,
    )


def _log(config: RLHFConfig, language: LanguageModel) -> Rated:
    """Returns the log of real people. Places that are left are empty, and are charged as well."""
    assert config.feedback is not None
    found = feedback.read(
        Path(config.feedback),
        language.tokenizer,
        rows=config.completions,
        prompt_tokens=config.prompt_tokens,
        new_tokens=config.new_tokens,
    )
    if found.people > config.people:
        # With a place for everybody, nobody's absence lets another person in.
        raise RunError(
            f"{config.feedback} has more than {config.people} people; choose --people at or above "
            "the number of people in it"
        )
    empty = config.people - found.people
    return Rated(*(np.pad(x, [(0, empty), *[(0, 0)] * (x.ndim - 1)]) for x in found.rated))


def _prompts(path: Path, language: LanguageModel, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    if not path.is_file():
        raise RunError(f"there are no public prompts at {path}; name a text file")
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [language.tokenizer.encode(line)[-tokens:] for line in lines if line.strip()]
    if len(rows) < 2:
        raise RunError(f"{path} needs at least two prompts, one on each line")
    found, mask = padded(rows)
    return np.asarray(found), np.asarray(mask)


_generate = jax.jit(generate, static_argnames=("new_tokens", "end"))
_log_probabilities = jax.jit(log_probabilities)


def complete(
    language: LanguageModel,
    adapter: Adapter | None,
    prompts: Int[np.ndarray, "rows tokens"],
    mask: np.ndarray,
    new_tokens: int,
    key: PRNGKeyArray,
) -> tuple[Int[np.ndarray, "rows new"], np.ndarray]:
    """Returns a completion of each prompt and its mask, sampled at temperature 1.

    Rows are completed in batches of one size, so that one program serves all of them.
    """
    size = min(BATCH, len(prompts))
    keys = jax.random.split(key, len(prompts))
    make = partial(_generate, new_tokens=new_tokens, end=language.end, adapter=adapter)
    found = [
        make(
            language.decoder,
            _rows(prompts, s, size),
            _rows(mask, s, size),
            keys=_rows(keys, s, size),
        )
        for s in range(0, len(prompts), size)
    ]
    tokens = np.concatenate([np.asarray(one.tokens) for one in found])[: len(prompts)]
    real = np.concatenate([np.asarray(one.mask) for one in found])[: len(prompts)]
    return tokens, real


def log_ratios(
    language: LanguageModel,
    adapter: Adapter,
    prompts: Int[np.ndarray, "rows tokens"],
    mask: np.ndarray,
    completions: tuple[np.ndarray, np.ndarray],
) -> Float[np.ndarray, " rows"]:
    """Returns log p(completion) - log p0(completion), where p0 is the base model.

    Its mean over completions that `adapter` sampled estimates the KL divergence from the base
    model, in nats a completion.
    """
    size = min(BATCH, len(prompts))
    found = []
    for start in range(0, len(prompts), size):
        rows = [_rows(one, start, size) for one in (prompts, mask)]
        said = Completions(*(jnp.asarray(_rows(one, start, size)) for one in completions))
        changed = _log_probabilities(language.decoder, *rows, said, adapter)
        base = _log_probabilities(language.decoder, *rows, said)
        found.append(np.asarray((changed - base).sum(axis=1)))
    return np.concatenate(found)[: len(prompts)]


def _rows(array: Any, start: int, size: int) -> Any:
    """Returns rows from `start` on; the first rows fill up the last batch."""
    return array[np.arange(start, start + size) % len(array)]


def texts(language: LanguageModel, completions: tuple[np.ndarray, np.ndarray]) -> list[str]:
    """Returns completions as texts."""
    tokens, mask = completions
    return [
        language.tokenizer.decode(row[real].tolist())
        for row, real in zip(tokens, mask, strict=True)
    ]
