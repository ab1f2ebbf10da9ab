"""Shell completion: every command and every flag, as bash sees it."""

import re
import shutil
import subprocess
from contextlib import redirect_stdout

import pytest
from commands import printed

from sotto.cli import main, summaries


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("completion") / "sotto.bash"
    with file.open("w") as opened, redirect_stdout(opened):
        assert main(["completion", "bash"]) == 0
    return file


def completed(script, *words: str) -> set[str]:
    """What bash offers for the last of the words of a command line."""
    typed = " ".join(f"'{word}'" for word in ("sotto", *words))
    code = (
        f"source '{script}'; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _sotto; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    bash = shutil.which("bash")
    assert bash is not None
    run = [bash, "--norc", "-c", code]
    said = subprocess.run(run, capture_output=True, text=True, check=True)
    assert said.stderr == ""
    return set(said.stdout.split())


def test_every_command_is_completed(script):
    firsts = {name.split()[0] for name in summaries()}
    assert completed(script, "") == firsts
    for first in firsts - {"completion"}:
        seconds = {name.split()[1] for name in summaries() if name.startswith(f"{first} ")}
        assert completed(script, first, "") == seconds
    assert completed(script, "tr") == {"train"}
    assert completed(script, "train", "dq") == {"dqn"}
    assert completed(script, "completion", "") == {"bash", "zsh"}


@pytest.mark.parametrize("name", sorted(summaries()))
def test_every_flag_of_its_help_is_completed(script, name, capsys):
    shown = printed(capsys, *name.split(), "--help")
    # In tyro's boxes a flag begins its line, after the side of the box.
    helped = set(re.findall(r"^\W (?:-h, )?(--[a-z][\w-]+)", shown, re.MULTILINE))
    offered = completed(script, *name.split(), "--")
    assert helped <= offered
    assert helped or name == "completion"
    assert "--help" in offered
    if "--json" in offered:
        assert completed(script, *name.split(), "--js") == {"--json"}


def test_what_is_no_flag_is_left_to_file_names(script):
    assert completed(script, "eval", "runs/") == set()
    assert "complete -o default -F _sotto sotto" in script.read_text()


def test_zsh_reads_the_same_script(script, capsys):
    said = printed(capsys, "completion", "zsh")
    assert "bashcompinit" in said.splitlines()[0]
    assert said.endswith(script.read_text())


def test_another_shell_is_refused(capsys):
    assert main(["completion", "fish"]) == 2
    assert capsys.readouterr().err == "sotto: give the shell, as in: sotto completion bash\n"
