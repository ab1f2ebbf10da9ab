"""Commands about a run that exists: eval, certificate, report."""

import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tyro

from sotto.cli.parsing import parse, print_json
from sotto.privacy.keys import new_key
from sotto.runs.directory import Experiment, Run, RunError, open_experiment
from sotto.serving.directory import Service, is_service, open_service

RunPath = tyro.conf.Positional[Path]


def evaluate(args: list[str]) -> int:
    """Runs `sotto eval`."""

    def run(
        path: RunPath,
        /,
        episodes: int = 100,
        policy: Literal["ema", "tail", "last"] | None = None,
        sampled: bool = False,
        seed: int = 12345,
        json: bool = False,
    ) -> None:
        """Returns of a trained policy over whole episodes with fresh simulated people.

        A DPPG run offers three policies, all equally private: the last one released, and two
        averages of released ones. Takes a few seconds.

        Examples:
          sotto eval runs/x --episodes 100 --json
          sotto eval runs/x --policy last --sampled

        Args:
            path: run directory, or that of several seeds.
            episodes: episodes per seed.
            policy: moving average, tail average or last (default: ema; ppo has only last).
            sampled: draw actions from the policy instead of taking its most likely one.
            seed: of the episodes.
            json: print one JSON object.
        """
        if episodes < 1:
            raise ValueError(f"--episodes must be at least 1, got {episodes}")
        experiment = open_experiment(path)
        answer = _evaluate(experiment, episodes, policy, not sampled, seed)
        if json:
            print_json(answer)
            return
        print(
            f"{answer['policy']} policy, {'sampled' if sampled else 'greedy'}, {episodes} episodes"
            f" per seed: mean {answer['mean']:.1f}, std {answer['std']:.1f} over "
            f"{'episodes' if len(experiment.runs) == 1 else 'all episodes'}, "
            f"min {answer['min']:.1f}, max {answer['max']:.1f}"
        )
        if len(experiment.runs) > 1:
            for name, one in answer["seeds"].items():
                print(f"  seed {name}: mean {one['mean']:.1f}, std {one['std']:.1f}")
            print(f"  std of the means over seeds: {answer['std_over_seeds']:.1f}")

    parse(run, args, "eval")
    return 0


def _evaluate(
    experiment: Experiment, episodes: int, policy: str | None, greedy: bool, seed: int
) -> dict[str, Any]:
    import numpy as np

    from sotto.runs.algorithms import ALGORITHMS, config_from_json
    from sotto.runs.states import last_checkpoint
    from sotto.runs.training import load_states

    settings = experiment.settings
    algorithm = ALGORITHMS[settings.algorithm]
    config = config_from_json(settings.algorithm, settings.config)
    updates = last_checkpoint(experiment)
    policies = algorithm.policies(load_states(experiment, updates))
    name = policy or algorithm.default_policy
    if name not in policies:
        raise RunError(f"a run of {settings.algorithm} has no policy {name!r}; leave out --policy")
    returns = algorithm.evaluate(config, policies[name], new_key(seed), episodes, greedy)

    def statistics(values: np.ndarray) -> dict[str, float]:
        return {
            "mean": float(values.mean()),
            "std": float(values.std()),
            "min": float(values.min()),
            "max": float(values.max()),
        }

    return {
        "policy": name,
        "greedy": greedy,
        "episodes": episodes,
        "updates": updates,
        "total_updates": algorithm.updates(config),
        **statistics(returns),
        "std_over_seeds": float(returns.mean(axis=1).std()),
        "seeds": {
            str(one): statistics(row) for one, row in zip(settings.seeds, returns, strict=True)
        },
    }


def certificate(args: list[str]) -> int:
    """Runs `sotto certificate`."""

    def run(path: RunPath, /, verify: bool = False, json: bool = False) -> int:
        """What is proved about a run, or about a teacher's service, in plain words.

        It is derived from the run's ledger, every entry of which is checked. --verify compares
        certificate.json with that, and fails if it says anything else.

        A service goes on answering, so this writes its certificate.json anew each time.

        Examples:
          sotto certificate runs/x
          sotto certificate runs/x --verify

        Args:
            path: run directory, or that of several seeds, each of which has its own certificate
                (and, where they share a teacher, experts or a reward function, a cost together),
                or directory of a service.
            verify: check certificate.json against the ledger.
            json: print JSON: the certificate, or what --verify found; of several seeds
                `certificates`, and `epsilon_of_all_seeds` where they are about the same people.
        """
        experiment = None if is_service(path) else open_experiment(path)
        certified = (open_service(path),) if experiment is None else experiment.runs
        return _verify(certified, json) if verify else _show(certified, experiment, json)

    return parse(run, args, "certificate")


def _show(runs: Sequence[Run | Service], experiment: Experiment | None, json: bool) -> int:
    from rich.console import Console

    from sotto.privacy.certificate import derive, render
    from sotto.runs.seeds import sharing

    console = Console(soft_wrap=False)
    ledgers = [run.open_ledger() for run in runs]
    found = [derive(ledger) for ledger in ledgers]
    for run, one in zip(runs, found, strict=True):
        if isinstance(run, Service) or not run.certificate.exists():
            one.write(run.certificate)
    shared = None
    if experiment is not None and len(ledgers) > 1:
        shared = sharing(experiment.settings, ledgers)
    if json:
        plain = [json_module.loads(one.model_dump_json()) for one in found]
        if shared is None:
            print_json(plain[0])
        else:
            together = {"epsilon_of_all_seeds": shared.epsilon, "words": shared.words}
            print_json({"certificates": plain, **together})
        return 0
    for one in found:
        console.print(render(one))
    if shared is not None:
        console.print(f"\n{shared.words}")
    return 0


def _verify(runs: Sequence[Run | Service], json: bool) -> int:
    from sotto.privacy.certificate import verify

    mismatches = {str(run.path): verify(run.certificate, run.open_ledger()) for run in runs}
    wrong = [f"{path}: {one}" for path, found in mismatches.items() for one in found]
    if json:
        print_json({"verified": not wrong, "mismatches": wrong})
    elif not wrong:
        for run in runs:
            print(f"{run.certificate} is what the ledger gives: verified.")
    if not wrong:
        return 0
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    if isinstance(runs[0], Service):
        more += f"; if it has answered since, first write it anew: sotto certificate {runs[0].path}"
    print(f"sotto: the certificate is not true: {wrong[0]}{more}", file=sys.stderr)
    return 2


def report(args: list[str]) -> int:
    """Runs `sotto report`."""

    def run(path: RunPath, /, json: bool = False) -> None:
        """Figures (figures/*.png) and a page that holds everything (report.html).

        The page needs no other file and no network. Takes a few seconds.

        Example:
          sotto report runs/x

        Args:
            path: run directory, or that of several seeds.
            json: print one JSON object that says where they are.
        """
        from sotto.runs.report import write_reports

        pages = write_reports(open_experiment(path))
        if json:
            print_json({"report": str(pages[0]), "reports": [str(page) for page in pages]})
        else:
            print("\n".join(f"wrote {page}" for page in pages))

    parse(run, args, "report")
    return 0
