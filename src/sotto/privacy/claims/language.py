"""Sentences of certificates about language models that are tuned to people's ratings."""

from sotto.privacy.claims.claim import Claim

TUNED = Claim(
    "language.tuned",
    "protects",
    "Each person's prompts, completions and ratings, against an observer who sees every released "
    "update, every tuned model, every text that these models write, and everything computed from "
    "them.",
)
PATTERNS = Claim(
    "language.patterns",
    "does-not-protect",
    "Patterns that many people share. The training learns such patterns, and the model's texts "
    "show them.",
)
WHILE_ASKED = Claim(
    "language.while-asked",
    "does-not-protect",
    "A person, against an observer who sees that person's own prompts, completions or ratings "
    "while they are collected.",
)
PUBLIC_MODEL = Claim(
    "language.public-model",
    "user",
    "The base model, its tokenizer and the public prompts were made without data of the protected "
    "people.",
    "whoever chooses the files knows where they come from",
    version=2,
)
OWN_COMPLETIONS = Claim(
    "language.own-completions",
    "user",
    "What a person rates depends on that person's prompts, on random numbers, and on earlier "
    "releases. All ratings of one person are under one name.",
    "simulated people rate completions that sotto generates, each from its own prompt and random "
    "key; whoever makes a file of ratings knows how its completions were made and whose they are",
    version=2,
)
