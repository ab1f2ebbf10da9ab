"""People of a training: their prompts, the completions that they are shown, and their ratings.

Simulated people are authors of film sentences (`sotto.data.films`). A person has the beginning of
one sentence as the prompt, and rates completions of it like the `Rater`, which was trained on other
people's sentences. Real people come from a file of ratings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sotto.algorithms.rlhf import feedback
from sotto.algorithms.rlhf.config import SMOLLM2, RLHFConfig
from sotto.algorithms.rlhf.feedback import Rated
from sotto.algorithms.rlhf.keys import Use, key_for
from sotto.algorithms.rlhf.raters import Judge, Rater
from sotto.data import films
from sotto.data.packages import find
from sotto.errors import RunError
from sotto.extras import require
from sotto.rl.language import (
    Adapter,
    Completions,
    Decoder,
    LanguageModel,
    generate,
    load,
    log_probabilities,
    padded,
    token_divergences,
)
from sotto.rl.language.batches import BATCH, in_batches
from sotto.rl.language.loading import identity

_AT_ONCE = 64
"""Number of rows that it reads at once; more do not fit the caches of a CPU."""
SPLIT_SEED = 0
"""Seed that divides the film sentences among raters, held-out texts and people."""


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
        key = jax.random.fold_in(key_for(config.seed, Use.COMPLETIONS), update)
        found = complete(self.language, adapter, prompts, mask, config.new_tokens, key)
        ratings = self.rater(self.language.tokenizer.texts(*found)).astype(np.float32)
        flat = Rated(prompts, mask, *found, ratings, np.ones(len(prompts), bool))
        return Rated(*(leaf.reshape(size, config.completions, *leaf.shape[1:]) for leaf in flat))


def check_installed(model: str) -> None:
    """Checks that simulated people can be met: the model, the films, and what reads them.

    Raises:
        RunError: the model or the films are not installed.
        ValueError: a package is missing.
    """
    require("gguf", "safetensors", "tokenizers", "sklearn")
    place_of(model)
    find("films")


def read_language_model(model: str) -> LanguageModel:
    """Reads the language model of this name or place.

    Raises:
        RunError: it is not installed.
        ValueError: it cannot be read.
    """
    require("gguf", "safetensors", "tokenizers")
    return load(place_of(model))


def place_of(model: str) -> Path:
    """Returns the file or folder of the language model of this name or place.

    Raises:
        RunError: it is not installed.
    """
    return find(SMOLLM2) if model == SMOLLM2 else Path(model)


def prompts_identity(config: RLHFConfig) -> str | None:
    """Returns the SHA-256 of the file of public prompts; None for those that are installed.

    Raises:
        RunError: there is no such file, or it has other prompts than the settings say.
    """
    found = None
    if config.public_prompts is not None:
        if not (path := Path(config.public_prompts)).is_file():
            raise RunError(f"there are no public prompts at {path}; name a text file")
        found = identity(path)
    if config.prompts_identity not in (None, found):
        where = config.public_prompts or "the set of installed prompts"
        raise RunError(
            f"{where} does not have the public prompts of this run, "
            "whose file had another SHA-256; name that file with --public-prompts"
        )
    return found


def require_prompts(config: RLHFConfig) -> None:
    """Refuses too few public prompts for the features; it reads them without the model.

    Raises:
        RunError: there are too few, or they are no text in UTF-8.
    """
    if config.public_prompts is None or not config.improves:
        return
    found, least = len(_lines(Path(config.public_prompts))), config.least_prompts
    if found < least:
        raise RunError(
            f"{found} public prompts are too few for {config.features} features; give at least "
            f"{least} in --public-prompts, or fewer --features"
        )


def meet(config: RLHFConfig, language: LanguageModel) -> People:
    """Reads the prompts and the people of these settings.

    Raises:
        RunError: something is not installed, a file cannot be read, or the prompts are not those
            with which the run began.
        ValueError: there are too few people or prompts.
    """
    prompts_identity(config)
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
        return People(language, public, mask, log=_real_ratings(config, language))
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


def _real_ratings(config: RLHFConfig, language: LanguageModel) -> Rated:
    """Returns the log of real people. Places that are left are empty, and are charged as well."""
    assert config.feedback is not None
    found = feedback.read(
        Path(config.feedback),
        language.tokenizer,
        rows=config.completions,
        prompt_tokens=config.prompt_tokens,
        new_tokens=config.new_tokens,
    )
    empty = config.people - len(found.present)
    if empty < 0:
        # With a place for everybody, nobody's absence lets another person in.
        raise RunError(
            f"{config.feedback} has more than {config.people} people; choose --people at or above "
            "the number of people in it"
        )
    return Rated(*(np.pad(x, [(0, empty), *[(0, 0)] * (x.ndim - 1)]) for x in found))


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # "sig": editors may mark it
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is not a text in UTF-8; save it as UTF-8") from error
    return [line for line in lines if line.strip()]


def _prompts(path: Path, language: LanguageModel, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    rows = [language.tokenizer.encode(line)[-tokens:] for line in _lines(path)]
    if len(rows) < 2:
        raise RunError(f"{path} needs at least two prompts, one on each line")
    found, mask = padded(rows)
    return np.asarray(found), np.asarray(mask)


_generate = jax.jit(generate, static_argnames=("new_tokens", "end"))


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

    def batch(prompts: Array, mask: Array, keys: PRNGKeyArray) -> Completions:
        found: Completions = _generate(
            language.decoder, prompts, mask, new_tokens, keys, end=language.end, adapter=adapter
        )
        return found

    keys = jax.random.split(key, len(prompts))
    found: Completions = in_batches(batch, BATCH, prompts, mask, keys, what="completions")
    return np.asarray(found.tokens), np.asarray(found.mask)


def log_ratios(
    language: LanguageModel,
    adapter: Adapter,
    prompts: Int[np.ndarray, "rows tokens"],
    mask: np.ndarray,
    completions: tuple[np.ndarray, np.ndarray],
) -> Float[np.ndarray, " rows"]:
    """Returns log p(completion) - log p0(completion), where p0 is the base model."""
    return _compared(_log_ratio, language, adapter, prompts, mask, *completions)


def divergences_of_tokens(
    language: LanguageModel,
    adapter: Adapter,
    prompts: Int[np.ndarray, "rows tokens"],
    mask: np.ndarray,
    completions: tuple[np.ndarray, np.ndarray],
) -> Float[np.ndarray, " rows"]:
    """Returns the sum over each completion's tokens of their divergence from the base model.

    Its mean over completions that `adapter` sampled estimates the KL divergence from the base
    model, in nats a completion.
    """
    return _compared(_divergence, language, adapter, prompts, mask, *completions)


def _compared(
    compare: Callable[..., Array], language: LanguageModel, adapter: Adapter, *rows: np.ndarray
) -> Float[np.ndarray, " rows"]:
    """Returns the sum over each completion's tokens of what `compare` returns for them."""

    def batch(prompts: Array, mask: Array, tokens: Array, real: Array) -> Array:
        said = Completions(tokens, real)
        return compare(language.decoder, prompts, mask, said, adapter).sum(axis=1)

    found: np.ndarray = in_batches(batch, _AT_ONCE, *rows)
    return found


@jax.jit
def _log_ratio(
    base: Decoder, prompts: Array, mask: Array, said: Completions, adapter: Adapter
) -> Float[Array, "rows new"]:
    given = base, prompts, mask, said
    return log_probabilities(*given, adapter) - log_probabilities(*given)


_divergence = jax.jit(token_divergences)
