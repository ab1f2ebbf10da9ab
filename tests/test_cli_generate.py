"""`sotto generate`, `sotto chat` and `sotto.load_language`, with a tiny model."""

import io
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import refused
from tiny_language import MODEL, TINY, write_feedback

import sotto
from sotto.cli import main
from sotto.rl.language import generate as draw
from sotto.rl.language import padded
from sotto.rl.language.agent import LanguageAgent

NAMED = ("--model", str(MODEL))
POSITIONS = 64  # of the model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate")
    given = [*TINY, *write_feedback(folder), "--json", "--out", str(folder / "run")]
    assert main(["train", "rlhf", *given]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def agent(run: Path) -> LanguageAgent:
    return sotto.load_language(run, model=MODEL, seed=1)


def printed(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    capsys.readouterr()
    assert main(given) == 0
    return capsys.readouterr().out


def test_completions_are_printed_with_those_of_the_base_model(capsys, run):
    given = ("generate", str(run), "--prompt", "the film", "--samples", "3", "--seed", "5", *NAMED)
    said = printed(capsys, *given, "--base", "--new-tokens", "4")
    tuned, base = said.split("base model:\n")
    assert tuned.startswith("tuned model, last policy, after 2 updates:\n")
    assert tuned.count("\n  the film") == 3
    assert f"\n{base}".count("\n  the film") == 3
    found = json.loads(printed(capsys, *given, "--base", "--new-tokens", "4", "--json"))
    assert {name: len(found[name]) for name in ("tuned", "base")} == {"tuned": 3, "base": 3}
    assert (found["policy"], found["updates"], found["prompt"]) == ("last", 2, "the film")
    again = json.loads(printed(capsys, *given, "--new-tokens", "4", "--json"))
    assert again["tuned"] == found["tuned"]
    assert "base" not in again


def test_characters_that_would_move_the_cursor_are_spelled_out(capsys, run, monkeypatch):
    monkeypatch.setattr(LanguageAgent, "generate", lambda *_, **__: ["a\x1b[2Jb\nc"])
    said = printed(capsys, "generate", str(run), "--prompt", "\x1b[2J", *NAMED)
    assert "\x1b" not in said
    assert "\n  \\x1b[2Ja\\x1b[2Jb\nc\n" in said


def test_chat_continues_each_line(capsys, run, monkeypatch):
    lines = f"the film\n\n{'the film ' * POSITIONS}\nis good\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    capsys.readouterr()
    said = []
    monkeypatch.setattr(
        LanguageAgent, "_sampled", lambda _self, tokens, *_: said.append(tokens) or ["ok"]
    )
    assert main(["chat", str(run), "--new-tokens", "3", *NAMED]) == 0
    out, err = capsys.readouterr()
    assert out == "ok\nok\n"
    assert len(said) == 2
    empty, long = err.splitlines()
    assert "the prompt is empty" in empty
    assert "exceed the model's 64 positions" in long


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # the terminal's choice
def test_bytes_that_are_no_text_do_not_end_a_chat(capsys, run, monkeypatch, errors):
    typed = io.TextIOWrapper(io.BytesIO(b"the \xff\nthe film\n"), "utf-8", errors)
    monkeypatch.setattr("sys.stdin", typed)
    monkeypatch.setattr(LanguageAgent, "_sampled", lambda *_: ["ok"])
    capsys.readouterr()
    assert main(["chat", str(run), "--new-tokens", "3", *NAMED]) == 0
    out, err = capsys.readouterr()
    assert out == "ok\n"
    (sentence,) = err.splitlines()
    assert "the prompt is not a text in UTF-8" in sentence


def test_each_model_writes_its_likeliest_tokens_at_a_tiny_temperature(agent):
    """The padding in front of the prompt changes nothing. The adapter is random and large, so that
    the models' texts differ: that of the run is noise, of which no size is certain."""
    language, texts = agent.language, []
    keys = iter(jax.random.split(jax.random.key(0), 100))
    large = jax.tree.map(
        lambda leaf: 5 * jax.random.normal(next(keys), leaf.shape, leaf.dtype), agent.adapter
    )
    changed = LanguageAgent(language, large, agent.name, agent.updates, seed=1)
    rows, mask = padded([language.tokenizer.encode("the film is good")])
    likeliest = jax.jit(draw, static_argnames=("new_tokens", "end"))
    for adapter in (large, None):
        said = likeliest(language.decoder, rows, mask, 6, None, end=language.end, adapter=adapter)
        texts.append(language.tokenizer.decode(np.asarray(said.tokens[said.mask])))
        options = {"new_tokens": 6, "temperature": 1e-6, "base": adapter is None}
        assert changed.generate("the film is good", **options) == [texts[-1]]
    assert texts[0] != texts[1]


def test_answers_are_chosen_by_the_released_reward_model(agent):
    said = []

    def reward(decoder, prompts, mask, tokens, real):
        assert len(prompts) == len(mask) == len(tokens)
        said.append((tokens, real))
        return (tokens * real).sum(axis=1)

    chooser = LanguageAgent(
        agent.language, agent.adapter, "last", 2, seed=3, reranked=4, reward=reward
    )
    found = chooser.generate("the film", samples=5, new_tokens=6)
    ((tokens, real),) = said
    best = (tokens * real).sum(axis=1).reshape(5, 4).argmax(axis=1) + 4 * np.arange(5)
    assert found == agent.language.tokenizer.texts(tokens[best], real[best])
    assert len(chooser.generate("the film", samples=2, new_tokens=6, base=True)) == 2
    assert len(said) == 1  # the base model's completions are not chosen


def test_many_answers_come_in_batches_of_one_size_and_are_the_same(agent, monkeypatch):
    """300 answers, each the best of 4, were one batch of 1,200 rows."""
    rows = []

    def reward(_decoder, prompts, _mask, tokens, real):
        rows.append(len(prompts))
        return (tokens * real).sum(axis=1)

    def answers() -> list[str]:
        rows.clear()
        one = LanguageAgent(
            agent.language, agent.adapter, "last", 2, seed=3, reranked=4, reward=reward
        )
        return one.generate("the film", samples=7, new_tokens=5)

    whole = answers()
    assert rows == [28]
    monkeypatch.setattr("sotto.rl.language.agent.BATCH", 8)
    assert answers() == whole
    assert rows == [8] * 4


def test_a_run_that_reranks_is_trained_and_loaded(tmp_path):
    given = [*TINY, *write_feedback(tmp_path), "--reranked", "3", "--kl-target", "2"]
    assert main(["train", "rlhf", *given, "--out", str(tmp_path / "run"), "--json"]) == 0
    found = sotto.load_language(tmp_path / "run", model=MODEL, seed=1)
    assert found.reranked == 3
    assert len(found.generate("the film", samples=2, new_tokens=4)) == 2


def test_samples_differ_and_a_seed_repeats_them(run):
    first, again, other = (
        sotto.load_language(run, model=MODEL, seed=seed).generate("a", samples=4, new_tokens=6)
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(set(first)) > 1


def test_a_prompt_may_fill_the_positions(agent):
    tokens = len(agent.language.tokenizer.encode("film " * 5))
    assert len(agent.generate("film " * 5, new_tokens=POSITIONS - tokens)) == 1
    with pytest.raises(ValueError, match=r"65 tokens exceed the model's 64 positions"):
        agent.generate("film " * 5, new_tokens=POSITIONS - tokens + 1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--prompt", ""), "the prompt is empty"),
        (("--prompt", " \n"), "the prompt is empty"),
        (("--prompt", "the \udcff"), "the prompt is not a text in UTF-8; correct it"),
        (("--prompt", "a", "--samples", "0"), "the number of samples must be at least 1, got 0"),
        (("--prompt", "a", "--new-tokens", "-1"), "the number of new tokens must be at least 1"),
        (("--prompt", "a", "--new-tokens", "99"), "exceed the model's 64 positions"),
        (("--prompt", "a", "--temperature", "0"), "the temperature must be positive, got 0"),
        (("--prompt", "a", "--temperature", "nan"), "the temperature must be positive, got nan"),
        (("--prompt", "a", "--policy", "ema"), "invalid choice 'ema'"),
        ((), "give --prompt"),
    ],
)
def test_wrong_input_is_refused(capsys, run, given, says):
    assert says in refused(capsys, "generate", str(run), *NAMED, *given)


def test_the_model_of_a_file_must_be_named(capsys, run, tmp_path):
    assert f"give --model {MODEL} again" in refused(capsys, "generate", str(run), "--prompt", "a")
    assert "give --model" in refused(capsys, "chat", str(run))
    nowhere = ("--model", str(tmp_path / "nowhere"))
    assert "there is no model at" in refused(
        capsys, "generate", str(run), "--prompt", "a", *nowhere
    )
    other = ("--model", str(MODEL.parent / "gpt2"))
    said = refused(capsys, "generate", str(run), "--prompt", "a", *other)
    assert "is not the model of this run, whose files had another SHA-256" in said
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    settings = json.loads((copy / "config.json").read_text())
    settings["config"]["blocks"] = [0]  # as if another model had been trained
    (copy / "config.json").write_text(json.dumps(settings))
    said = refused(capsys, "generate", str(copy), "--prompt", "a", *NAMED)
    assert said.endswith(f"or {MODEL} is not the model of this run")


def test_a_run_without_a_checkpoint_is_refused(capsys, run, tmp_path):
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    shutil.rmtree(copy / "checkpoints")
    said = refused(capsys, "generate", str(copy), "--prompt", "a", *NAMED)
    assert "has no checkpoint yet; continue the training with: sotto train rlhf" in said


def test_it_does_not_act(run):
    with pytest.raises(ValueError, match=r"use sotto\.load_language"):
        sotto.load(run)
