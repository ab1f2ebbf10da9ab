"""`sotto tune`: chooses settings on the simulated people that are learnt from, within a budget."""

import ast
import dataclasses
import math
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from sotto.algorithms.dppg.algorithm import DPPG
from sotto.algorithms.dppg.config import DPPGConfig
from sotto.algorithms.dppg.tuning import Selected, candidates, create_selection_ledger, select
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import flags_given, parse
from sotto.cli.terminal.settings import flags_of
from sotto.cli.train import next_run
from sotto.files import forget_times, silence, write_model
from sotto.privacy.bounds import guarantee
from sotto.privacy.certificates.derive import derive
from sotto.privacy.ledger.ledger import NO_TIME, Ledger
from sotto.runs import checkpoints, metrics
from sotto.runs.directory import Run, create_experiment, ledger_place, new_settings
from sotto.runs.marks import mark
from sotto.runs.metrics import Line
from sotto.runs.registry import config_to_json
from sotto.trees import at


@dataclass(frozen=True)
class Options:
    """Options of the search."""

    settings: tuple[str, ...]
    """Settings to try, as NAME=VALUE,VALUE,... Every combination is a candidate."""
    mean_tries: float = 10.0
    """Mean of the number of tries, which is geometric and secret. Each try draws one candidate."""
    out: Path = field(default_factory=next_run)
    """Run directory of the selected training. It must not exist."""
    json: bool = False
    """Print only one JSON object, at the end."""


def dppg(args: list[str]) -> int:
    """Runs `sotto tune dppg`."""
    default = DPPG().defaults(flags_given(args))
    options, settings = flags_of(Options), flags_of(DPPGConfig, default)

    def run(search: Any, training: Any) -> int:
        """Chooses settings of `sotto train dppg` on the simulated people it learns from.

        The command makes a secret number of trainings on the same people. Each has random
        candidate settings and is scored by the returns it released (--private-return LOW HIGH).
        Only the best is kept. --target-epsilon covers all of the tries (Papernot and Steinke 2022).

        The number of tries must stay secret, so nothing is shown until the end. How long the
        command runs tells how many tries there were: hide its run time and the resources that it
        uses. No file in --out holds a time, and there are no TensorBoard events. Publish a copy of
        the result that you make at a time fixed in advance. Keep compilation caches private. Real
        people are refused, because everybody who takes part learns the number of tries.

        Examples:
          sotto tune dppg --settings clip_norm=.02,.05 learning_rate=.2,.5 \\
            --private-return 0 500 --mean-tries 10 --target-epsilon 1.7 --out runs/tuned
          sotto certificate runs/tuned --verify
        """
        command = shlex.join(["sotto", "tune", "dppg", *args])
        return _tune(search, DPPG().resolved(DPPGConfig(**vars(training))), command)

    run.__annotations__ = {"search": options, "training": settings, "return": int}
    run.__defaults__ = (settings(**default),)
    return parse(run, args, "tune dppg")


def _tune(options: Options, config: DPPGConfig, command: str) -> int:
    tried = candidates(config, _values(options.settings), options.mean_tries)
    if not options.json:
        print(
            f"Choosing among {len(tried)} candidates on {config.env_id}, {config.num_updates} "
            f"updates each. The result goes to {options.out}. Nothing is shown until the end."
        )
    settings = new_settings(
        algorithm="dppg",
        config=config_to_json(DPPG(), tried[0]),
        preset=None,
        seeds=(config.seed,),
        population=DPPG().population(config),
        ledger=ledger_place(None),
        command=command,
        created=NO_TIME,
    )

    def create_ledger(run: Run) -> Ledger:
        return create_selection_ledger(
            config, options.mean_tries, run.ledger_location, run.settings.run_id
        )

    (run,) = create_experiment(options.out, settings, create_ledger).runs
    ledger = Ledger.open(run.ledger_location, settings.run_id)
    try:
        with silence():  # the output of the tries would tell their number
            best = select(tried, options.mean_tries, ledger, config.seed)
    except (ValueError, OSError):
        if not ledger.streams:  # refused before anything was charged
            shutil.rmtree(options.out)
        raise
    chosen = dataclasses.replace(best.config, evaluation_episodes=config.evaluation_episodes)
    write_model(
        run.path / "config.json",
        settings.model_copy(update={"config": config_to_json(DPPG(), chosen)}),
    )
    _save(run, best, ledger)
    certificate = derive(ledger)
    forget_times(run.path)
    names = _named(options.settings)
    summary = {
        "out": str(options.out),
        "selected": {name: getattr(best.config, name) for name in names},
        "score": best.score,
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "status": certificate.status,
        "persons": certificate.persons,
    }
    if options.json:
        print_json(summary)
        return 0
    selected = ", ".join(f"{name} {getattr(best.config, name)}" for name in names)
    print(f"Selected: {selected}; mean released return {best.score:.1f}.")
    print(
        f"Certificate: {certificate.status}, {guarantee(certificate.epsilon, certificate.delta)}. "
        f"Read it with: sotto certificate {shlex.quote(str(options.out))}"
    )
    return 0


def _save(run: Run, best: Selected, ledger: Ledger) -> None:
    """Completes the run directory with the selected training."""
    state = at(best.states, 0)
    checkpoints.save(run.checkpoints, best.updates, state, mark(ledger))
    certificate = derive(ledger)
    certificate.write(run.certificate)
    line = Line(
        updates=best.updates,
        first_update=0,
        env_steps=best.updates * best.config.steps_per_update,
        seconds=0.0,  # the duration would tell the number of tries
        epsilon=certificate.epsilon if math.isfinite(certificate.epsilon) else None,
        released={name: x[0].astype(float).tolist() for name, x in best.log.items()},
        **mark(ledger).model_dump(),
    )
    metrics.write(run.metrics, line)


def _named(settings: tuple[str, ...]) -> list[str]:
    return [one.partition("=")[0].replace("-", "_") for one in settings]


def _values(settings: tuple[str, ...]) -> dict[str, list[Any]]:
    """Returns the values to try of each setting, converted to its type."""
    types, found = get_type_hints(DPPGConfig), {}
    for name, one in zip(_named(settings), settings, strict=True):
        if name not in types:
            raise ValueError(f"DPPG has no setting {name!r}; see sotto train dppg --help")
        values = [_literal(value) for value in one.partition("=")[2].split(",") if value]
        if not values:
            raise ValueError(f"--settings {one} names no values; write {name}=VALUE,VALUE")
        found[name] = [TypeAdapter(types[name]).validate_python(value) for value in values]
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
