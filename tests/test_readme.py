"""README is true: its commands run (shortened), and its excerpts are what `make demo` prints."""

import re
import shlex
from pathlib import Path

import pytest
from commands import blocks
from small_runs import SMALL_PPO
from tiny_language import MODEL, TINY, install_films, write_feedback

from sotto.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

VARIES = re.compile(r"(?<=return )\d+\.\d|\d+\.\d(?= \()|\d+(?= s\.)")
"""Returns and seconds in the output of a training, which differ from run to run."""

SHORTER = {
    "sotto train dppg --env-id": "--total-steps 2048 --users-per-update 8",
    "sotto train dppg --out": "--total-steps 4096",
    "sotto certificate": "",
    "sotto verify": "",
    "sotto runs": "",
    "sotto compare": "",
    "sotto report": "",
    "sotto eval": "--episodes 2",
    "sotto train dppg --preset": "--total-steps 1024",
    "sotto train ppo --env-id": f"--seeds 3 {' '.join(SMALL_PPO)}",
    "sotto account": "",
    "sotto calibrate": "",
    "sotto audit": "--leaks counted-divisor --samples 1000",
    "sotto train ppo --seeds 200": f"--seeds 3 {' '.join(SMALL_PPO)}",
    "sotto train kickstart": "--stop-after 1 --total-steps 1024 --target-epsilon 1000000",
    "sotto train functional-q": "--samples 400",
    "sotto experts train": "--experts 4 --hidden 8 --workers 1",
    "sotto experts collect": "--trajectories 2",
    "sotto train expert-offline": "--target-epsilon 20 --delta 0.01",
    "sotto train rlhf --target-epsilon": f"{' '.join(TINY)} --no-judge",
    "sotto generate": f"--model {MODEL}",
    "sotto train rlhf --feedback": " ".join(TINY),
}
"""Flags that shorten the commands of README that begin so, in place of the flag's value there."""


def commands() -> list[str]:
    """The commands of `sotto` in README, without their comments."""
    text = "\n".join(blocks("README.md")).replace("\\\n", " ")
    lines = [" ".join(line.split("#")[0].split()) for line in text.splitlines()]
    return [line for line in lines if line.startswith("sotto ")]


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_the_demo_prints_what_the_readme_shows(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    makefile = (ROOT / "Makefile").read_text().replace("$(DEMO)", "runs/demo")
    demo = re.findall(r"^\t\$\(BIN\)/sotto (train .*|certificate \S+)$", makefile, re.MULTILINE)
    printed = []
    for command in demo:
        assert main(shlex.split(command)) == 0
        printed.append(squeezed(VARIES.sub("*", capsys.readouterr().out)))
    shown = [one for one in blocks("README.md") if re.match(r"dppg on|Proved|  - DPPG", one)]
    assert (len(printed), len(shown)) == (2, 3)
    for excerpt, output in zip(shown, (printed[0], printed[1], printed[1]), strict=True):
        for part in excerpt.split("...\n"):
            assert squeezed(VARIES.sub("*", part)) in output


def test_the_commands_of_the_readme_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOTTO_DATA", str(tmp_path / "data"))
    install_films(tmp_path / "data")
    write_feedback(tmp_path)
    for command in commands():
        begun = [one for one in SHORTER if command.startswith(one)]
        assert len(begun) == 1, command
        words, shorter = shlex.split(command)[1:], SHORTER[begun[0]].split()
        for flag in set(shorter[::2]).intersection(words):  # each has one value, and is given once
            del words[words.index(flag) : words.index(flag) + 2]
        words += shorter
        assert main(words) == 0, (command, capsys.readouterr().err)


def test_every_shortened_form_is_of_a_command_of_the_readme() -> None:
    for begun in SHORTER:
        assert any(command.startswith(begun) for command in commands()), begun


def test_every_group_of_commands_that_the_readme_names_exists(capsys) -> None:
    named = set(re.findall(r"`(?:sotto )?((?:train|serve|tune|audit)\b[ a-z-]*)`", README))
    assert {"train dppg", "serve teacher", "tune dppg"} <= named
    for name in named:
        assert main([*name.split(), "--help"]) == 0
        assert f"sotto {name}" in capsys.readouterr().out


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_of_the_readme_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()
