"""A few people who rate completions of a tiny language model, for tests of private RLHF."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tiny_models import model, path

from sotto.algorithms.rlhf.config import RLHFConfig
from sotto.algorithms.rlhf.people import People
from sotto.algorithms.rlhf.raters import Rater

MODEL = path("llama")
PEOPLE, PROMPT, NEW = 12, 4, 5
_WORDS = ("the", "film", "is", "good", "bad", "a", "story", "of", "great", "boring")


def config(**changes: Any) -> RLHFConfig:
    """Settings with which everything is small."""
    fields: dict[str, Any] = {
        "model": str(MODEL),
        "people": PEOPLE,
        "completions": 3,
        "prompt_tokens": PROMPT,
        "new_tokens": NEW,
        "target_epsilon": None,
        "noise_multiplier": 4.0,
        "delta": 1e-3,
        "microbatch": 4,
        "rank": 2,
        "targets": ("q_proj",),
        "directions": 4,
        "features": 4,
        "improvement_prompts": 16,
        "candidates": 3,
        "evaluation_prompts": 8,
        "judge": False,
    }
    return RLHFConfig(**(fields | changes))


def _tokens(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, (rows, PROMPT)).astype(np.int32)


class _Texts:
    """Stands in for the features of a rater."""

    def transform(self, texts: list[str]) -> list[str]:
        return texts


class _Opinions:
    """Stands in for a rater's regression: an opinion of every text, from its digest."""

    def decision_function(self, texts: list[str]) -> np.ndarray:
        return np.array([hashlib.sha256(one.encode()).digest()[0] / 64 - 2 for one in texts])


@cache
def simulated(seed: int = 0) -> People:
    """Returns simulated people. Another seed has other people, and the same public prompts."""
    language = model("llama")
    return People(
        language,
        _tokens(1000, 32),
        np.ones((32, PROMPT), bool),
        prompts=_tokens(seed, PEOPLE),
        held_out=_tokens(seed + 1, 8),
        rater=Rater(_Texts(), _Opinions()),
    )


def write_log(folder: Path, people: int = PEOPLE, seed: int = 0) -> tuple[Path, Path]:
    """Writes a log of people's ratings and a file of public prompts, and returns their paths.

    The first people are the same whatever the number.
    """
    log, public = folder / "feedback.jsonl", folder / "public.txt"
    lines = []
    for person in range(people):
        rng = np.random.default_rng([seed, person])
        for _ in range(3):
            prompt, completion = (" ".join(rng.choice(_WORDS, 3)) for _ in range(2))
            rating = {"person": f"p{person}", "prompt": prompt, "completion": f" {completion}"}
            lines.append(json.dumps(rating | {"rating": float(rng.random())}))
    log.write_text("\n".join(lines))
    rng = np.random.default_rng(7)
    public.write_text("\n".join(" ".join(rng.choice(_WORDS, 3)) for _ in range(20)))
    return log, public
