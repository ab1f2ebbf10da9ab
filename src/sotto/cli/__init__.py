"""The command line; `sotto COMMAND --help` explains each command.

Commands are in a table, and those of `sotto train` in the registry of algorithms. A command's
module is imported when it runs, so that help and simple commands do not wait for JAX. An expected
error is one sentence on stderr with exit code 2.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from sotto import __version__
from sotto.errors import CodeFailed, visible
from sotto.extras import EXTRAS, missing
from sotto.runs.registry import entries

_COMMANDS = {
    "tune dppg": ("sotto.cli.tune:dppg", "choose settings on simulated people, within a budget"),
    "serve teacher": (
        "sotto.cli.live.serve:serve_teacher",
        "answer students over HTTP with a private teacher",
    ),
    "campaign start": (
        "sotto.cli.live.campaign:start",
        "start private learning from people who come one after the other",
    ),
    "campaign invite": ("sotto.cli.live.campaign_people:invite", "make tokens for people"),
    "campaign operator": (
        "sotto.cli.live.campaign_people:operator",
        "issue your own token of a campaign",
    ),
    "campaign replace-token": (
        "sotto.cli.live.campaign_people:replace_token",
        "make a new token for a person who lost theirs",
    ),
    "campaign withdraw": (
        "sotto.cli.live.campaign_people:withdraw",
        "withdraw people from a campaign",
    ),
    "campaign serve": ("sotto.cli.live.campaign:serve", "serve a campaign over HTTP"),
    "campaign update": ("sotto.cli.live.campaign:update", "make the releases of a campaign"),
    "campaign status": ("sotto.cli.live.campaign:status", "print how far a campaign is"),
    "budget create": (
        "sotto.cli.budget:create",
        "create a budget that campaigns and trainings share",
    ),
    "budget show": ("sotto.cli.budget:show", "print who is how near to a shared budget"),
    "budget page": ("sotto.cli.budget:page", "write a page about a shared budget"),
    "simulate people": ("sotto.cli.live.simulate:people", "let simulated people take part"),
    "simulate devices": (
        "sotto.cli.live.simulate_devices:devices",
        "train on simulated people's devices, which mask what they send",
    ),
    "students issue": (
        "sotto.cli.live.students:issue",
        "issue a token to a student of a served teacher",
    ),
    "students list": (
        "sotto.cli.live.students:listed",
        "list students, their answers and their epsilon",
    ),
    "students revoke": ("sotto.cli.live.students:revoke", "revoke a student's token"),
    "students operator": (
        "sotto.cli.live.students:operator",
        "issue your own token, which shows every budget",
    ),
    "import": (
        "sotto.cli.import_:import_",
        "import a log of people as a dataset with people as units",
    ),
    "experts train": ("sotto.cli.experts:train", "train a population of simulated experts"),
    "experts collect": (
        "sotto.cli.experts:collect",
        "write the experts' episodes as a Minari dataset",
    ),
    "experts histogram": ("sotto.cli.experts:histogram", "plot the experts' returns"),
    "generate": ("sotto.cli.generate:generate", "continue a prompt with a tuned language model"),
    "chat": ("sotto.cli.generate:chat", "continue each line that you type"),
    "eval": ("sotto.cli.runs:evaluate", "print the returns of a trained policy in a simulator"),
    "evaluate": (
        "sotto.cli.evaluate:evaluate",
        "estimate values of policies from a log of real people, without a simulator",
    ),
    "certificate": ("sotto.cli.runs:certificate", "print or verify what is proved about a run"),
    "runs": ("sotto.cli.overviews:runs", "list the runs in a folder"),
    "compare": ("sotto.cli.overviews:compare", "compare runs: results, guarantees, settings"),
    "verify": ("sotto.cli.verify:verify", "verify a certificate without its run"),
    "certify dpsgd": (
        "sotto.cli.certify:dpsgd",
        "check the claimed epsilon of a DP-SGD training made elsewhere",
    ),
    "schema": ("sotto.cli.verify:schema", "print the JSON Schema of certificates"),
    "report": ("sotto.cli.overviews:report", "write figures and report.html of a run"),
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
        "epsilon of a teacher's Dirichlet answers",
    ),
    "account dirichlet-radius": (
        "sotto.cli.account.dirichlet:account_dirichlet_radius",
        "distance of a Dirichlet answer from the teacher's policy",
    ),
    "account gaussian-policy": (
        "sotto.cli.account.dirichlet:account_gaussian_policy",
        "epsilon of a teacher's answers with Gaussian noise",
    ),
    "account functional-noise": (
        "sotto.cli.account.functional:account_functional_noise",
        "noise that hides rewards in learnt values",
    ),
    "account stable-prefix": (
        "sotto.cli.account.stable_prefix:account_stable_prefix",
        "number of experts that must agree on a prefix",
    ),
    "calibrate gaussian": (
        "sotto.cli.account.gaussian:calibrate_gaussian",
        "noise multiplier of Gaussian releases for a target epsilon",
    ),
    "calibrate dpsgd": (
        "sotto.cli.account.gaussian:calibrate_dpsgd",
        "noise multiplier of DP-SGD for a target epsilon",
    ),
    "calibrate dirichlet": (
        "sotto.cli.account.dirichlet:calibrate_dirichlet",
        "concentration of Dirichlet answers for a target epsilon",
    ),
    "reproduce rio2025": (
        "sotto.cli.reproduce.rio2025:rio",
        "figures of the paper on private policy gradient (DPPG)",
    ),
    "reproduce gohari2021": (
        "sotto.cli.reproduce.gohari2021:gohari",
        "figures of the paper on kickstarting",
    ),
    "reproduce wang2019": (
        "sotto.cli.reproduce.wang2019:wang",
        "figures of the paper on functional noise",
    ),
    "reproduce sharma2024": (
        "sotto.cli.reproduce.sharma2024:sharma",
        "figures of the paper on expert-level privacy",
    ),
    "reproduce trials": (
        "sotto.cli.reproduce.trials:trials",
        "private values of policies in three randomised trials",
    ),
    "reproduce bandits": (
        "sotto.cli.reproduce.bandits:bandits",
        "private bandits on real people's ratings",
    ),
    "install": (
        "sotto.cli.install:install",
        "install a small language model, or texts that people rated",
    ),
    "audit": ("sotto.cli.audit:audit", "attack your own code, or known leaks"),
    "completion": (
        "sotto.cli.terminal.completion:completion",
        "print a script for completion in bash or zsh",
    ),
}

_NO_MEMORY = "this needs more memory than the machine has; choose smaller settings"

_EXAMPLES = """\
Train a private agent, verify its certificate, write a report, evaluate it:
  sotto train dppg --env-id CartPole-v1 --target-epsilon 1.3 --delta 1e-5 --out runs/x
  sotto certificate runs/x --verify
  sotto report runs/x
  sotto eval runs/x --episodes 100 --json

Compute noise and privacy:
  sotto calibrate gaussian --target-epsilon 1.0 --delta 1e-5
  sotto account dpsgd --noise-multiplier 1.0 --sampling-rate 0.01 --steps 1000 --delta 1e-5

Every command has --help, and all but chat and completion have --json. With SOTTO_DEBUG=1 an error
shows where it comes from. Use your own environment with --env-id my_module:Env-v0 (Gymnasium) or
my_module:Class (JAX), and add wrappers as in CartPole-v1+my_module:Wrapper. sotto imports a module
only if you name it with --env-id, not because a run directory or a dataset names it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code.

    The code is 0 for success, 2 for an error, 3 for a stale certificate, 4 for one that cannot be
    verified, 130 after Ctrl-C.
    """
    # XLA once hung for ever with its own threads on two cores; small networks are faster so, too.
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the threads of numpy wait for each other
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except SystemExit as error:  # after --help
        return error.code if isinstance(error.code, int) else 2
    except KeyboardInterrupt:
        print("sotto: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has closed it
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
    except (ValueError, OSError, OverflowError, CodeFailed) as error:
        if os.environ.get("SOTTO_DEBUG"):
            raise
        print(f"sotto: {visible(_sentence(error))}", file=sys.stderr)
        return 2
    except RuntimeError as error:  # XLA raises it if memory is short
        if os.environ.get("SOTTO_DEBUG") or "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(f"sotto: {_NO_MEMORY}", file=sys.stderr)
        return 2


def summaries() -> dict[str, str]:
    """Returns every command, of one word or two, with its purpose."""
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
    unknown = (asked and not listed) or len(asked) > 1
    problem = f"there is no command {' '.join(asked[:2])!r}"
    if unknown and (alike := _alike(asked, list(known))):
        raise ValueError(f"{problem}; did you mean sotto {alike}?")
    _print_help(listed or known, group if listed else "")
    if unknown:
        raise ValueError(f"{problem}; see the list above")
    return 0


def _alike(asked: Sequence[str], known: Sequence[str]) -> str:
    """Returns the command whose name is most like an unknown one, or nothing."""
    for written in (" ".join(asked[:2]), asked[0]):  # a second word is perhaps an argument
        if found := difflib.get_close_matches(written, known, 1, 0.75):
            return found[0]
    return ""


def _print_help(summaries: Mapping[str, str], group: str) -> None:
    print(f"usage: sotto {f'{group} ' if group else ''}COMMAND [OPTIONS]\n")
    if not group:
        print("Trains reinforcement-learning agents on people's data under differential privacy.\n")
    print("commands:")
    for name, summary in summaries.items():
        print(f"  {name:<25}{summary}")
    print(f"\n{_EXAMPLES}" if not group else f"\nsotto {next(iter(summaries))} --help says more.")


def _sentence(error: Exception) -> str:
    """Returns the error in one line."""
    problems = getattr(error, "errors", None)  # pydantic's ValidationError
    if callable(problems):
        from sotto.problems import first_problem

        return first_problem(error)  # type: ignore[arg-type]
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    if isinstance(error, OverflowError):
        return f"a number is too large or too small to compute with ({error}); choose another"
    return " ".join(str(error).split())
