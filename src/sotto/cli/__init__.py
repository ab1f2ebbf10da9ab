"""The command line: `sotto COMMAND --help` teaches each command.

Commands are looked up in a table, those of `sotto train` in the registry of algorithms, and are
imported when they run, so that asking for help or for an epsilon does not wait for JAX. An
expected error is one sentence on stderr and exit code 2.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sotto import __version__
from sotto.extras import EXTRAS, missing
from sotto.runs.registry import entries

_COMMANDS = {
    "tune dppg": ("sotto.cli.tune:dppg", "settings chosen privately, on the same people"),
    "serve teacher": ("sotto.cli.serve:serve_teacher", "a teacher that students ask over HTTP"),
    "students issue": ("sotto.cli.students:issue", "a token for a student of a served teacher"),
    "students list": ("sotto.cli.students:listed", "who may ask it, and what they were answered"),
    "students revoke": ("sotto.cli.students:revoke", "a token that opens nothing any longer"),
    "students operator": ("sotto.cli.students:operator", "your own token, to see every budget"),
    "experts train": ("sotto.cli.experts:train", "thousands of experts on variants of a task"),
    "experts collect": ("sotto.cli.experts:collect", "their episodes, as a Minari dataset"),
    "experts histogram": ("sotto.cli.experts:histogram", "their returns, as a figure"),
    "eval": ("sotto.cli.runs:evaluate", "returns of a trained policy"),
    "certificate": ("sotto.cli.runs:certificate", "what is proved about a run; --verify checks it"),
    "report": ("sotto.cli.runs:report", "figures and report.html of a run"),
    "account gaussian": (
        "sotto.cli.account.gaussian:account_gaussian",
        "epsilon of Gaussian releases",
    ),
    "account dpsgd": ("sotto.cli.account.gaussian:account_dpsgd", "epsilon of DP-SGD"),
    "account select": (
        "sotto.cli.account.gaussian:account_select",
        "epsilon of the best of several tries",
    ),
    "account dirichlet": (
        "sotto.cli.account.dirichlet:account_dirichlet",
        "epsilon of a teacher's answers",
    ),
    "account dirichlet-radius": (
        "sotto.cli.account.dirichlet:account_dirichlet_radius",
        "how far an answer is from the teacher's row",
    ),
    "account gaussian-policy": (
        "sotto.cli.account.dirichlet:account_gaussian_policy",
        "epsilon of answers with Gaussian noise",
    ),
    "account functional-noise": (
        "sotto.cli.account.functional:account_functional_noise",
        "noise that hides rewards",
    ),
    "account stable-prefix": (
        "sotto.cli.account.stable_prefix:account_stable_prefix",
        "how many experts must agree on a released prefix",
    ),
    "calibrate gaussian": (
        "sotto.cli.account.gaussian:calibrate_gaussian",
        "noise for a target epsilon",
    ),
    "calibrate dpsgd": ("sotto.cli.account.gaussian:calibrate_dpsgd", "noise for a target epsilon"),
    "calibrate dirichlet": (
        "sotto.cli.account.dirichlet:calibrate_dirichlet",
        "concentration for a target epsilon",
    ),
    "reproduce rio2025": ("sotto.cli.reproduce.rio2025:rio", "figures of the DPPG paper"),
    "reproduce gohari2021": (
        "sotto.cli.reproduce.gohari2021:gohari",
        "figures of the kickstarting paper",
    ),
    "reproduce wang2019": (
        "sotto.cli.reproduce.wang2019:wang",
        "figures of the paper on functional noise",
    ),
    "reproduce sharma2024": (
        "sotto.cli.reproduce.sharma2024:sharma",
        "figures of the paper on private experts",
    ),
    "audit": ("sotto.cli.audit:audit", "attack known leaks and their sound counterparts"),
    "completion": ("sotto.cli.completion:completion", "a script with which bash or zsh completes"),
}

_NO_MEMORY = "this needs more memory than there is; choose smaller settings"

_EXAMPLES = """\
A private agent and its certificate, from nothing:
  sotto train dppg --env-id CartPole-v1 --target-epsilon 1.3 --delta 1e-5 --out runs/x
  sotto certificate runs/x --verify
  sotto report runs/x
  sotto eval runs/x --episodes 100 --json

How much noise, how much privacy:
  sotto calibrate gaussian --target-epsilon 1.0 --delta 1e-5
  sotto account dpsgd --noise-multiplier 1.0 --sampling-rate 0.01 --steps 1000 --delta 1e-5

Every command has --help and --json. SOTTO_DEBUG=1 shows where an error comes from.
An environment of your own is --env-id my_module:Env-v0, with wrappers after it as in
CartPole-v1+my_module:Wrapper. A module that only a run directory or a dataset names is not
imported: name it again with --env-id."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    0; 2 for an error; 3 for a stale certificate; 130 after Ctrl-C.
    """
    # XLA once hung for good on two cores with threads of its own; small networks are faster so.
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's: its threads wait for each other
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except SystemExit as error:  # argument parsing has said what is wrong
        return error.code if isinstance(error.code, int) else 2
    except KeyboardInterrupt:
        print("sotto: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in EXTRAS:
            raise
        print(f"sotto: {missing(package)}", file=sys.stderr)
        return 2
    except MemoryError:
        if os.environ.get("SOTTO_DEBUG"):
            raise
        print(f"sotto: {_NO_MEMORY}", file=sys.stderr)
        return 2
    except (ValueError, OSError, OverflowError) as error:
        if os.environ.get("SOTTO_DEBUG"):
            raise
        from sotto.cli.parsing import printable

        print(f"sotto: {printable(_sentence(error))}", file=sys.stderr)
        return 2
    except RuntimeError as error:  # XLA's own, which is imported by now if it was raised
        if os.environ.get("SOTTO_DEBUG") or "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(f"sotto: {_NO_MEMORY}", file=sys.stderr)
        return 2


def summaries() -> dict[str, str]:
    """Every command, of one word or two, and what it is for."""
    algorithms = {f"train {name}": entry.summary for name, entry in entries().items()}
    return algorithms | {name: summary for name, (_, summary) in _COMMANDS.items()}


def _dispatch(words: list[str]) -> int:
    if words in (["--version"], ["-V"]):
        print(f"sotto {__version__}")
        return 0
    known = summaries()
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in known and name not in _COMMANDS:
            train = importlib.import_module("sotto.cli.train")
            code: int = train.run(words[1], words[2:])
            return code
        if name in _COMMANDS:
            module, function = _COMMANDS[name][0].split(":")
            command: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
            return command(words[length:])
    asked = [word for word in words if not word.startswith("-")]
    group = asked[0] if asked else ""
    listed = {name: one for name, one in known.items() if name.split()[0] == group}
    _print_help(listed or known, group if listed else "")
    if (asked and not listed) or len(asked) > 1:
        raise ValueError(f"there is no command {' '.join(asked)!r}; see the list above")
    return 0


def _print_help(summaries: Mapping[str, str], group: str) -> None:
    print("usage: sotto COMMAND [OPTIONS]\n")
    if not group:
        print("Reinforcement learning under differential privacy, with certificates that are true.")
    print("\ncommands:")
    for name, summary in summaries.items():
        print(f"  {name:<25}{summary}")
    print(f"\n{_EXAMPLES}" if not group else f"\nsotto {next(iter(summaries))} --help says more.")


def _sentence(error: Exception) -> str:
    """The error in one line."""
    problems = getattr(error, "errors", None)  # pydantic's ValidationError
    if callable(problems):
        return _problem(problems()[0])
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    if isinstance(error, OverflowError):
        return f"a number is too large or too small to compute with ({error}); choose another"
    return " ".join(str(error).split())


def _problem(found: dict[str, Any]) -> str:
    """One of pydantic's problems: our own sentence, or pydantic's with the name of the field."""
    said = str(found["msg"])
    if said.startswith("Value error, "):
        return said.removeprefix("Value error, ")
    name = ".".join(map(str, found["loc"]))
    return f"{name}: {said[:1].lower()}{said[1:]}, got {found['input']!r}"
