"""`sotto train`: the algorithm's settings are the flags; everything lands in --out."""

import itertools
import math
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sotto.algorithms.baselines.a2c import A2CConfig
from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.baselines.presets import a2c_preset, ppo_preset
from sotto.algorithms.dppg.config import DPPGConfig, PresetName, preset
from sotto.cli.parsing import flag, parse, print_json, seed_range, unvalidated
from sotto.cli.progress import Display
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates.derive import derive
from sotto.privacy.errors import PrivacyError
from sotto.runs.adapters import Algorithm
from sotto.runs.directory import (
    AlgorithmName,
    Experiment,
    Named,
    Run,
    RunError,
    create_experiment,
    ledger_place,
    new_settings,
    open_experiment,
)
from sotto.runs.registry import ALGORITHMS, config_to_json
from sotto.runs.registry import stored_config as stored
from sotto.runs.seeds import sharing
from sotto.runs.states import last_common_checkpoint
from sotto.runs.training import Update, train

if TYPE_CHECKING:
    from sotto.algorithms.baselines.a2c import A2CConfig as A2CFlags
    from sotto.algorithms.baselines.ppo import PPOConfig as PPOFlags
    from sotto.algorithms.dppg.config import DPPGConfig as DPPGFlags
else:
    DPPGFlags, PPOFlags, A2CFlags = map(unvalidated, (DPPGConfig, PPOConfig, A2CConfig))


def next_run() -> Path:
    """The first of runs/run-1, runs/run-2, ... that there is not yet."""
    paths = (Path("runs") / f"run-{number}" for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


@dataclass(frozen=True)
class PlainOptions:
    """Where a training goes."""

    out: Path = field(default_factory=next_run)
    """Run directory; it must not exist, except to --resume."""
    seeds: int = 1
    """So many seeds side by side, from --seed on, each a run of its own, in OUT/seed-K. Where they
    learn from the same teacher, experts or reward function, what they cost adds up."""
    resume: bool = False
    """Go on with the interrupted training in --out, with the settings it was started with."""
    json: bool = False
    """Print nothing but one JSON object at the end."""


@dataclass(frozen=True)
class LedgerOptions(PlainOptions):
    """Where a training goes that has a ledger."""

    ledger: str | None = None
    """SQLAlchemy URL or file of the ledger, instead of ledger.sqlite in the run directory; to
    --resume it is given again, for a ledger that only config.json names is not opened."""


@dataclass(frozen=True)
class Options(LedgerOptions):
    """Where a private training goes."""

    preset: PresetName = "sotto"
    """Named settings that the other flags change: our recipe, or the paper's (not proved)."""


def dppg(args: list[str]) -> int:
    """Runs `sotto train dppg`."""
    default = DPPGFlags(**vars(stored_config("dppg", args) or preset_config(args)))

    def run(where: Options, settings: DPPGFlags = default) -> int:
        """Trains a private agent: DPPG (Rio et al. 2025), a policy gradient in which every user's
        update is clipped, averaged with others' and noised before anything is made of it.

        Give --target-epsilon and the noise is calibrated to it, or give --noise-multiplier.
        CartPole-v1 takes about a minute on two cores, and --seeds 10 a few minutes.

        Examples:
          sotto train dppg --env-id CartPole-v1 --target-epsilon 1.3 --delta 1e-5 --out runs/x
          sotto train dppg --env-id Acrobot-v1 --target-epsilon 0.1 --seeds 10 --out runs/acrobot
          sotto train dppg --env-id HalfCheetah-v5 --target-epsilon 10 --out runs/cheetah
          sotto train dppg --preset paper --noise-multiplier 1 --out runs/paper
          sotto train dppg --out runs/x --resume
        """
        return train_algorithm("dppg", where, DPPGConfig(**vars(settings)), args)

    return parse(run, args, "train dppg")


def ppo(args: list[str]) -> int:
    """Runs `sotto train ppo`."""
    default = PPOFlags(**vars(stored_config("ppo", args) or ppo_preset(_env_id(args))))

    def run(where: PlainOptions, settings: PPOFlags = default) -> int:
        """Trains PPO, the baseline without privacy. It protects nobody and has no certificate.

        Examples:
          sotto train ppo --env-id CartPole-v1 --out runs/ppo
          sotto train ppo --env-id Acrobot-v1 --total-steps 300000 --seeds 5 --out runs/ppo5
          sotto train ppo --env-id HalfCheetah-v5 --out runs/cheetah
        """
        return train_algorithm("ppo", where, PPOConfig(**vars(settings)), args)

    return parse(run, args, "train ppo")


def a2c(args: list[str]) -> int:
    """Runs `sotto train a2c`."""
    default = A2CFlags(**vars(stored_config("a2c", args) or a2c_preset(_env_id(args))))

    def run(where: PlainOptions, settings: A2CFlags = default) -> int:
        """Trains A2C, a simpler baseline without privacy: PPO with one pass over short rollouts and
        RMSprop. It protects nobody and has no certificate.

        Examples:
          sotto train a2c --env-id CartPole-v1 --out runs/a2c
          sotto train a2c --env-id HalfCheetah-v5 --total-steps 1000000 --out runs/cheetah
        """
        return train_algorithm("a2c", where, A2CConfig(**vars(settings)), args)

    return parse(run, args, "train a2c")


# --- settings ------------------------------------------------------------------------------------


def _env_id(args: Sequence[str]) -> str:
    return flag(args, "--env-id") or "CartPole-v1"


def preset_config(args: Sequence[str]) -> DPPGConfig:
    """The preset the flags ask for, so that --help shows the values that will be used."""
    name = flag(args, "--preset") or "sotto"
    env_id = _env_id(args)
    if name not in ("sotto", "paper"):
        raise ValueError(f"there is no preset {name!r}; use sotto or paper")
    changes: dict[str, float] = {}
    target = flag(args, "--target-epsilon")
    if flag(args, "--noise-multiplier") and not target:
        changes["noise_multiplier"] = 1.0  # stands in for the flag, in place of the target
    elif target is not None and (epsilon := _number(target)) is not None:
        changes["target_epsilon"] = epsilon  # a preset may depend on it
    return preset(cast(PresetName, name), env_id, **changes)


def _number(text: str) -> float | None:
    """A positive number; None for what the parser will refuse."""
    try:
        return found if 0 < (found := float(text)) < math.inf else None
    except ValueError:
        return None


def stored_config(name: AlgorithmName, args: Sequence[str]) -> Any:
    """The settings of the run to be resumed, which are then the flags' defaults."""
    out = flag(args, "--out")
    if "--resume" not in args:
        return None
    if out is None:
        raise ValueError("--resume goes on with an interrupted run; say which with --out")
    experiment = open_experiment(Path(out), Named(env_id=flag(args, "--env-id")))
    if experiment.settings.algorithm != name:
        raise RunError(f"{out} is a run of {experiment.settings.algorithm}; resume it with that")
    return stored(experiment)


def _create(
    name: AlgorithmName,
    options: PlainOptions,
    algorithm: Algorithm,
    config: Any,
    args: Sequence[str],
) -> Experiment:
    seeds = tuple(seed_range(config.seed, options.seeds))
    config_to_json(name, config)  # refuses what is too large before anything is made of it
    config = algorithm.resolved(config)
    place = options.ledger if isinstance(options, LedgerOptions) else None
    if place is not None and not algorithm.has_ledger(config):
        raise ValueError("a run of these settings keeps no ledger; leave out --ledger")
    settings = new_settings(
        algorithm=name,
        config=config_to_json(name, config),
        preset=options.preset if isinstance(options, Options) else None,
        seeds=seeds,
        population=getattr(config, "population", "simulated"),
        ledger=ledger_place(place) if algorithm.has_ledger(config) else None,
        command=shlex.join(["sotto", "train", name, *args]),
    )

    def create_ledger(run: Run) -> None:
        algorithm.create_ledger(config, run.ledger_location, run.settings.run_id)

    return create_experiment(options.out, settings, create_ledger)


def _resume(options: PlainOptions, config: Any, args: Sequence[str]) -> Experiment:
    """The stored experiment; other settings than it was started with are refused."""
    place = options.ledger if isinstance(options, LedgerOptions) else None
    experiment = open_experiment(options.out, Named(place, flag(args, "--env-id")))
    settings = experiment.settings
    asked = config_to_json(settings.algorithm, config)
    changed = [key for key, value in asked.items() if value != settings.config.get(key)]
    if options.seeds not in (1, len(settings.seeds)):
        changed.append("seeds")
    if isinstance(options, Options) and options.preset not in ("sotto", settings.preset):
        changed.append("preset")
    if place is not None and ledger_place(place) != settings.ledger:
        changed.append("ledger")
    if changed:
        raise RunError(
            f"a run is resumed with the settings it was started with; leave out "
            f"--{changed[0].replace('_', '-')}, or start a new run"
        )
    return experiment


# --- training ------------------------------------------------------------------------------------


def train_algorithm(
    name: AlgorithmName,
    options: PlainOptions,
    config: Any,
    args: Sequence[str],
    algorithm: Algorithm | None = None,
) -> int:
    """Trains a new or an interrupted run, and shows how it goes.

    Args:
        name: the algorithm's.
        options: where it goes.
        config: its settings.
        args: the command line, which the run directory keeps.
        algorithm: where it needs more to train than its settings say.

    Returns:
        The exit code.
    """
    algorithm = algorithm or ALGORITHMS[name]
    experiment = (
        _resume(options, config, args)
        if options.resume
        else _create(name, options, algorithm, config, args)
    )
    last: Update | None = None
    started = time.monotonic()
    try:
        if not options.json:
            _announce(experiment, config)
        with Display(algorithm.updates(config), algorithm.default_policy, options.json) as display:

            def show(update: Update) -> None:
                nonlocal last
                last = update
                display(update)

            finished = train(experiment, show, algorithm)
    except BaseException:  # a bug or Ctrl-C too: half a run would only be in the way
        if not options.resume and _nothing_made(experiment):  # we made all that is there
            shutil.rmtree(experiment.path, ignore_errors=True)
        raise
    assert last is not None
    seconds = time.monotonic() - started
    if options.json:
        print_json(_summary(experiment, last, seconds))
    else:
        _conclude(experiment, last, seconds)
    if finished:
        return 0
    print(
        f"sotto: stopped after {last.updates} of {last.total_updates} updates, all saved; "
        f"go on with: sotto train {name} --out {experiment.path} --resume",
        file=sys.stderr,
    )
    return 130


def _nothing_made(experiment: Experiment) -> bool:
    """Whether a new training was refused before it charged or, without a ledger, saved anything."""
    if experiment.settings.ledger is None:
        return last_common_checkpoint(experiment.runs) == 0
    try:
        ledgers = [run.open_ledger() for run in experiment.runs]
    except (PrivacyError, RunError):  # what cannot be read may have been charged
        return False
    return not any(
        one.spent().answered if isinstance(one, AnswerLedger) else one.streams for one in ledgers
    )


def _announce(experiment: Experiment, config: Any) -> None:
    settings = experiment.settings
    algorithm = ALGORITHMS[settings.algorithm]
    updates = algorithm.updates(config)
    steps = getattr(config, "samples", updates * algorithm.steps_per_update(config))
    count = len(experiment.runs)
    print(
        f"{settings.algorithm} on {config.env_id}: {updates} updates, at most {steps:,} "
        "environment steps"
        + (f" for each of {count} seeds" if count > 1 else "")
        + f", into {experiment.path}"
    )
    print("Compiling first, which takes 10 to 30 seconds. Ctrl-C stops after a chunk, resumably.")


def _summary(experiment: Experiment, last: Update, seconds: float) -> dict[str, Any]:
    lines = last.lines
    summary: dict[str, Any] = {
        "out": str(experiment.path),
        "algorithm": experiment.settings.algorithm,
        "seeds": list(experiment.settings.seeds),
        "updates": last.updates,
        "total_updates": last.total_updates,
        "env_steps": lines[0].env_steps,
        "seconds": round(seconds, 1),
        "return": {
            name: float(np.mean([line.evaluation[name] for line in lines]))
            for name in lines[0].evaluation
        },
    }
    if experiment.settings.ledger is None:
        return summary
    ledgers = [run.open_ledger() for run in experiment.runs]
    worst = max((derive(ledger) for ledger in ledgers), key=lambda one: one.epsilon)
    summary |= {"epsilon": worst.epsilon, "delta": worst.delta, "status": worst.status}
    if len(ledgers) > 1:
        together = sharing(experiment.settings, ledgers).epsilon
        summary |= {} if together is None else {"epsilon_of_all_seeds": together}
    if experiment.settings.algorithm == "kickstart":
        return summary | {"answered": int(max(line.released["answered"][-1] for line in lines))}
    return summary | {"persons": worst.persons}


def _conclude(experiment: Experiment, last: Update, seconds: float) -> None:
    summary = _summary(experiment, last, seconds)
    returns = ", ".join(f"{value:.1f} ({name})" for name, value in summary["return"].items())
    print(f"{last.updates} updates in {seconds:.0f} s. Mean greedy return: {returns or 'unknown'}.")
    if "epsilon" in summary:
        count, together = len(experiment.runs), summary.get("epsilon_of_all_seeds")
        print(
            f"Certificate: {summary['status']}, epsilon {summary['epsilon']:.4g} at delta "
            f"{summary['delta']:.3g}"
            + (f" for each of {count} seeds" if count > 1 else "")
            + (f", and {together:.4g} for all of them together" if together is not None else "")
            + f". Read it with: sotto certificate {experiment.path}"
        )
    print(f"Figures and a page: sotto report {experiment.path}")
