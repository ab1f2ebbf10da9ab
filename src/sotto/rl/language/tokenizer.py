"""Text to tokens and back, through the `tokenizers` package."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int

if TYPE_CHECKING:
    import tokenizers

CONTROL = 3
"""Type of a token that is not text, in GGUF files."""


def in_utf8(text: str) -> bool:
    """Returns whether a text can be written in UTF-8: Python's texts may hold halves of characters.

    Bytes that are not UTF-8 become such halves in arguments, on standard input and in JSON.
    """
    return not any("\ud800" <= one <= "\udfff" for one in text)


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer, without padding or truncation."""

    inner: "tokenizers.Tokenizer"

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        """Returns the tokens of a text.

        The special tokens that the model wants around a text are added if it is whole, and not if
        it continues another text.
        """
        ids: list[int] = self.inner.encode(text, add_special_tokens=whole).ids
        return ids

    def decode(self, tokens: Sequence[int] | Int[np.ndarray, " tokens"]) -> str:
        """Returns the text of tokens; special tokens are left out."""
        text: str = self.inner.decode([int(token) for token in tokens], skip_special_tokens=True)
        return text

    def texts(
        self, tokens: Int[np.ndarray, "batch time"], mask: Bool[np.ndarray, "batch time"]
    ) -> list[str]:
        """Returns the text of each row's tokens that are real."""
        return [self.decode(row[real]) for row, real in zip(tokens, mask, strict=True)]

    def check(self, vocabulary: int) -> None:
        """Raises ValueError if a token has no row in a model's embedding."""
        largest = max(self.inner.get_vocab(with_added_tokens=True).values(), default=-1)
        if not 0 <= largest < vocabulary:
            raise ValueError(
                f"the tokenizer's largest token is {largest} and the model has {vocabulary} "
                "embeddings; take the tokenizer that belongs to the model"
            )


def padded(
    rows: Sequence[Sequence[int]],
) -> tuple[Int[np.ndarray, "batch time"], Bool[np.ndarray, "batch time"]]:
    """Returns rows of tokens as one array, as long as the longest, and which of them are real.

    Padding stands before the tokens.

    Raises:
        ValueError: there is no row, or a row has no token.
    """
    if not rows or not all(len(row) for row in rows):
        raise ValueError("every prompt needs at least one token; leave out empty prompts")
    length = max(len(row) for row in rows)
    tokens, mask = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), bool)
    for index, row in enumerate(rows):
        tokens[index, -len(row) :], mask[index, -len(row) :] = row, True
    return tokens, mask


def read_tokenizer(folder: Path) -> Tokenizer:
    """Reads the tokenizer.json of a folder.

    Raises:
        ValueError: the folder has none, or it cannot be read.
    """
    from tokenizers import Tokenizer as Inner

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} has no tokenizer.json; save the model's fast tokenizer into it "
            "(transformers: tokenizer.save_pretrained)"
        )
    try:
        inner = Inner.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{path} is not a tokenizer: {error}") from error
    inner.no_padding()
    inner.no_truncation()
    return Tokenizer(inner)


def gguf_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """Returns the byte-level BPE tokenizer that a GGUF file's fields describe.

    Raises:
        ValueError: they describe another kind of tokenizer, or the file lacks a field.
    """
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Inner

    kind, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in ("smollm", "gpt-2"):
        raise ValueError(
            f"the GGUF file has a tokenizer of kind {kind!r}, {split!r}; sotto reads 'gpt2' with "
            "'smollm' or 'gpt-2'"
        )
    if fields.get("tokenizer.ggml.add_bos_token"):
        raise ValueError(
            "the GGUF file asks for a token before each text, which sotto does not add; take a "
            "model without tokenizer.ggml.add_bos_token"
        )
    try:
        tokens = fields["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
        types = fields["tokenizer.ggml.token_type"]
        inner = Inner(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        special = [t for t, k in zip(tokens, types, strict=True) if k == CONTROL]
    except KeyError as error:
        raise ValueError(f"the GGUF file lacks the field {error}; convert it again") from error
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(
            "the GGUF file has tokens, merges and types of tokens that do not fit each other; "
            "convert it again"
        ) from error
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)  # each digit is a token
    smollm = split == "smollm"
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, by_bytes] if smollm else [by_bytes])
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(t, special=True) for t in special])
    return Tokenizer(inner)
