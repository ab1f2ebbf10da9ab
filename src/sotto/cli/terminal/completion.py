"""`sotto completion bash|zsh`: a script that completes commands, flags and file names.

The script is made from the table of commands and from the flags that tyro parses. It includes the
algorithms of installed packages.
"""

import ast
import contextlib
import io
import re
from collections.abc import Iterable

from sotto.cli import main, summaries

_HELP = """\
Prints a script that makes the shell complete commands, flags and file names.

  sotto completion bash > ~/.sotto-completion     # or zsh
  echo 'source ~/.sotto-completion' >> ~/.bashrc  # or ~/.zshrc

Repeat this after you have installed a package that adds an algorithm."""

_SCRIPT = """\
_sotto() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" first="${{COMP_WORDS[1]}}" found=""
  local both="$first ${{COMP_WORDS[2]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    found="{first}"
  elif [ "$COMP_CWORD" -eq 2 ]; then
    case "$first" in
{second}
    esac
  fi
  case "$word" in
    -*)
      case "$first" in
{short}
      esac
      case "$both" in
{long}
      esac ;;
  esac
  COMPREPLY=( $(compgen -W "$found" -- "$word") )
}}
complete -o default -F _sotto sotto
"""

_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"


def completion(args: list[str]) -> int:
    """Runs `sotto completion`."""
    if args in (["--help"], ["-h"]):
        print(f"usage: sotto completion bash|zsh\n\n{_HELP}")
        return 0
    if args not in (["bash"], ["zsh"]):
        raise ValueError("give the shell, as in: sotto completion bash")
    groups: dict[str, list[str]] = {}
    flags = {}
    for name in summaries():
        first, _, second = name.partition(" ")
        groups.setdefault(first, []).extend([second] if second else [])
        flags[name] = ["--help"] if name == "completion" else _flags(name)
    groups["completion"] = ["bash", "zsh"]
    script = _SCRIPT.format(
        first=" ".join(groups),
        second=_cases((first, seconds) for first, seconds in groups.items() if seconds),
        short=_cases((name, found) for name, found in flags.items() if " " not in name),
        long=_cases((name, found) for name, found in flags.items() if " " in name),
    )
    print((_ZSH if args == ["zsh"] else "") + script, end="")
    return 0


def _cases(words: Iterable[tuple[str, list[str]]]) -> str:
    return "\n".join(f'      "{name}") found="{" ".join(found)}" ;;' for name, found in words)


def _flags(name: str) -> list[str]:
    """Returns the flags of a command, taken from the completion script that tyro writes."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main([*name.split(), "--tyro-print-completion", "bash"])
    found = re.search(r"^COMPLETION_SPEC = (.*)$", printed.getvalue(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"tyro does not say which flags sotto {name} has")
    options = ast.literal_eval(found[1])["options"]
    return [flag for one in options for flag in one["flags"] if flag.startswith("--")]
