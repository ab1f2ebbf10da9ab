"""`sotto train NAME`: trains an algorithm and writes a run directory.

The command is made from the interface `sotto.algorithms.base.Algorithm`. The algorithm's docstring
is the help, and the fields of its settings are the flags.
"""

import itertools
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sotto.algorithms.base import Algorithm
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import flags_given, parse
from sotto.cli.terminal.progress import Display
from sotto.cli.terminal.settings import flags_of
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.bounds import at_most, guarantee
from sotto.privacy.certificates.derive import derive
from sotto.privacy.units import Unit
from sotto.runs import start
from sotto.runs.directory import Experiment, resume_command
from sotto.runs.guarantees import ANSWERS_ALONE, status_of
from sotto.runs.registry import algorithm_named, config_from_json, former_names
from sotto.runs.seeds import sharing, weakest
from sotto.runs.summaries import task
from sotto.runs.trackers import TrackerName, tracker
from sotto.runs.training import Update, begun, train


def next_run() -> Path:
    """Returns the first of runs/run-1, runs/run-2, ... that does not exist."""
    paths = (Path("runs") / f"run-{number}" for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


@dataclass(frozen=True)
class Options:
    """Options of every training."""

    out: Path = field(default_factory=next_run)
    """Directory of the run. It must not exist, except with --resume."""
    seeds: int = 1
    """Number of seeds that train side by side, starting with --seed. Each is a separate run in
    OUT/seed-K. If they learn from the same teacher, experts or reward function, what they cost adds
    up."""
    resume: bool = False
    """Continue the interrupted training in --out with its stored settings. A finished training
    continues if --total-steps is larger than before and the budget allows it."""
    json: bool = False
    """Print only one JSON object, at the end."""
    devices: int = 1
    """Number of accelerators that share the people of a private training. Without an accelerator,
    processor cores take their place. People's own devices have a command: sotto simulate
    devices."""
    ray: str | None = None
    """Ray cluster that collects users of a Gymnasium environment: HOST:PORT, auto for the one that
    this machine belongs to, or local for a new one on this machine."""
    tracker: TrackerName | None = None
    """Send the metrics to a tracker, too. Its package must be installed. Where people are real, it
    is told when the command ends; what a killed command has made is in metrics.jsonl alone."""
    ledger: str | None = None
    """SQLAlchemy URL or file of the ledger (default: ledger.sqlite in the run directory). Give it
    again with --resume, because a ledger that only config.json names is not opened."""
    budget: str | None = None
    """File or SQLAlchemy URL of a budget that this run shares with other products (sotto budget
    create): nobody pays more in all of them. People must be real. Give it again with --resume."""
    numbers: Path | None = None
    """File with your number of each person, one on each line in the order of enrolment. A person
    has the same number in all products of --budget, and an empty place one that nobody has."""


def run(name: str, args: list[str]) -> int:
    """Runs `sotto train NAME`; returns the exit code."""
    algorithm = algorithm_named(name)
    given = flags_given(args)
    for former, present in former_names(algorithm).items():
        if former in given:
            flags = [f"--{one.replace('_', '-')}" for one in (former, present)]
            raise ValueError(f"{flags[0]} is now {flags[1]}")
    if "--resume" in args:
        if "out" not in given:
            raise ValueError("--resume continues an interrupted run; say which with --out")
        stored = start.stored_config(algorithm, Path(given["out"]), given.get("env_id"))
        default = vars(stored)
    else:
        default = algorithm.defaults(given)
    if algorithm.one_seed and "seeds" in given:
        raise ValueError(algorithm.one_seed)
    options = flags_of(_options(algorithm), hidden=("seeds",) if algorithm.one_seed else ())
    settings = flags_of(algorithm.config_type, default)

    def command(run: Any, training: Any) -> int:
        config = algorithm.config_type(**vars(training))
        return _train(algorithm, run, config, args, given)

    command.__doc__ = algorithm.__doc__
    command.__annotations__ = {"run": options, "training": settings, "return": int}
    command.__defaults__ = (settings(**default),)
    return parse(command, args, f"train {name}")


def _options(algorithm: Algorithm[Any]) -> type[Options]:
    """Returns the options, those of the algorithm, and `--preset` if it has presets."""
    bases = (Options, algorithm.options_type)
    if not algorithm.presets:
        return make_dataclass("Options", [], bases=bases, frozen=True)
    preset: Any = field(default=algorithm.presets[0])
    chosen = Literal[algorithm.presets]
    made = make_dataclass("Options", [("preset", chosen, preset)], bases=bases, frozen=True)
    made.__doc__ = "Options of every training, and the preset that the other flags change."
    return made


def _train(
    algorithm: Algorithm[Any],
    options: Any,
    config: Any,
    args: Sequence[str],
    given: dict[str, str],
) -> int:
    """Trains with the machines and the tracker that the options name; returns the exit code."""
    with start.on_machines(algorithm, config, options.devices, options.ray):
        if options.tracker is None:
            return _show(algorithm, options, config, args, given, lambda _update: None)
        # Open settings say nothing yet, and the release of an own algorithm may say it alone.
        said = {getattr(config, "population", "simulated"), algorithm.population(config)}
        # The service of a teacher says later whose people are behind it.
        maybe_real = said != {"simulated"} or getattr(config, "remote", False)
        with tracker(options.tracker, options.out.name, maybe_real=maybe_real) as tell:
            return _show(algorithm, options, config, args, given, tell)


def _show(
    algorithm: Algorithm[Any],
    options: Any,
    config: Any,
    args: Sequence[str],
    given: dict[str, str],
    tell: Callable[[Update], None],
) -> int:
    """Trains a new or an interrupted run and shows its progress; returns the exit code."""
    for note in () if options.resume else algorithm.notes(config):
        print(note, file=sys.stderr if options.json else sys.stdout)
    algorithm.use(options, config, given)
    last: Update | None = None
    with start.opened(
        algorithm,
        config,
        options.out,
        resume=options.resume,
        command=shlex.join(["sotto", "train", algorithm.name, *args]),
        env_id=given.get("env_id"),
        teacher=given.get("teacher"),
        seeds=options.seeds,
        ledger=options.ledger,
        budget=options.budget,
        numbers=options.numbers,
        preset=given.get("preset") if options.resume else getattr(options, "preset", None),
    ) as experiment:
        config = config_from_json(algorithm, experiment.settings.config)
        if options.resume:  # refuses a finished run before work is said to begin
            begun(experiment, algorithm.num_updates(config))
        started = time.monotonic()
        if not options.json:
            _announce(algorithm, experiment, config)
        with Display(
            algorithm.num_updates(config), algorithm.default_policy, algorithm.words, options.json
        ) as display:

            def show(update: Update) -> None:
                nonlocal last
                last = update
                display(update)
                tell(update)

            finished = train(experiment, show, algorithm)
    assert last is not None
    if not all(map(math.isfinite, (x for one in last.lines for x in one.evaluation.values()))):
        print(
            "warning: what was measured is not finite; test whether all observations and rewards "
            f"of {task(experiment.settings.config) or 'the environment'} are",
            file=sys.stderr,
        )
    seconds = time.monotonic() - started
    if options.json:
        print_json(_summary(algorithm, experiment, last, seconds))
    else:
        _conclude(algorithm, experiment, config, last, seconds)
    if finished:
        return 0
    print(
        f"sotto: stopped after {last.updates} of {last.total_updates} updates, all saved; continue "
        f"with: {resume_command(experiment)}",
        file=sys.stderr,
    )
    return 130


def _announce(algorithm: Algorithm[Any], experiment: Experiment, config: Any) -> None:
    updates = algorithm.num_updates(config)
    steps, unit = algorithm.most_steps(config), algorithm.words.steps
    count, where = len(experiment.runs), task(experiment.settings.config)
    print(
        f"{algorithm.name}{f' on {where}' if where else ''}: {_counted(updates)}, at most "
        f"{steps:,} {unit}"
        + (f" for each of {count} seeds" if count > 1 else "")
        + f", into {experiment.path}"
    )
    print("Compiling takes 10 to 30 seconds. Ctrl-C stops the training; --resume continues it.")


def _summary(
    algorithm: Algorithm[Any], experiment: Experiment, last: Update, seconds: float
) -> dict[str, Any]:
    lines = last.lines
    measured = "evaluation" if algorithm.words.quantities else algorithm.words.measure
    summary: dict[str, Any] = {
        "out": str(experiment.path),
        "algorithm": experiment.settings.algorithm,
        "seeds": list(experiment.settings.seeds),
        "updates": last.updates,
        "total_updates": last.total_updates,
        "env_steps": lines[0].env_steps,
        "seconds": round(seconds, 1),
        measured: {
            name: float(np.mean([line.evaluation[name] for line in lines]))
            for name in lines[0].evaluation
        },
    }
    if experiment.settings.ledger is None:
        return summary
    ledgers = [run.open_ledger() for run in experiment.runs]
    worst = weakest(map(derive, ledgers))
    summary |= {"epsilon": worst.epsilon, "delta": worst.delta, "status": status_of(worst)}
    summary |= {"unit": worst.unit.kind, "adjacency": worst.unit.adjacency}
    if len(ledgers) > 1:
        together = sharing(experiment.settings, ledgers).epsilon
        summary |= {} if together is None else {"epsilon_of_all_seeds": together}
    if isinstance(ledgers[0], AnswerLedger):
        return summary | {"answered": int(max(line.released["answered"][-1] for line in lines))}
    return summary | {"persons": worst.persons}


def _conclude(
    algorithm: Algorithm[Any], experiment: Experiment, config: Any, last: Update, seconds: float
) -> None:
    summary = _summary(algorithm, experiment, last, seconds)
    place = shlex.quote(str(experiment.path))
    print(f"{_counted(last.updates)} in {seconds:.0f} s. {_measured(algorithm, config, summary)}")
    if "epsilon" in summary:
        count, together = len(experiment.runs), summary.get("epsilon_of_all_seeds")
        alone = summary["status"] == ANSWERS_ALONE
        said = "proved of the teacher's answers alone" if alone else summary["status"]
        print(
            f"Certificate: {said}, {guarantee(summary['epsilon'], summary['delta'])}"
            + (f" for each of {count} seeds" if count > 1 else "")
            + ("" if together is None else f", and {at_most(together)} for all of them together")
            + f" ({Unit(kind=summary['unit'], adjacency=summary['adjacency']).brief})"
            + f". Read it with: sotto certificate {place}"
        )
    print(f"Write figures and a page with: sotto report {place}")


def _counted(updates: int) -> str:
    return f"{updates} update{'' if updates == 1 else 's'}"


def _measured(algorithm: Algorithm[Any], config: Any, summary: Mapping[str, Any]) -> str:
    """Returns a sentence with the evaluation after the last chunk."""
    words = algorithm.words
    if words.quantities:
        named = [
            f"{words.quantities[name][0]} {value:.{words.decimals}f}"
            for name, value in summary["evaluation"].items()
        ]
        return f"Measured: {', '.join(named)}." if named else algorithm.unevaluated(config)
    returns = ", ".join(f"{value:.1f} ({name})" for name, value in summary["return"].items())
    return f"Mean greedy return: {returns or 'unknown'}."
