"""The commands `sotto eval` and `sotto certificate`."""

import json as json_module
import shlex
import sys
from collections.abc import Callable, Sequence
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sotto.cli.terminal.options import Json, Ledger, Page, Ray, RunPath
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.cluster import on_cluster
from sotto.errors import RunError, visible
from sotto.keys import new_key, seed_range
from sotto.privacy.bounds import guarantee
from sotto.runs.directory import Experiment, Named, Run, open_experiment
from sotto.serving.directory import Service, is_service, open_service
from sotto.trees import at

if TYPE_CHECKING:
    from sotto.algorithms.base import Algorithm
    from sotto.people.campaign import Campaign
    from sotto.privacy.certificates.check import AnyLedger
    from sotto.privacy.certificates.derive import Certificate
    from sotto.runs.evaluations import EvaluationRun
    from sotto.runs.printed.page import Page as PrintedPage

    Certified: TypeAlias = Run | Service | Campaign | EvaluationRun


@command("eval")
def evaluate(
    path: RunPath,
    /,
    episodes: int = 100,
    policy: str | None = None,
    sampled: bool = False,
    seed: int = 12345,
    env_id: str | None = None,
    video: Path | None = None,
    model: str | None = None,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Prints the returns of a trained policy over whole episodes with fresh simulated people.

    For a log of real people, without a simulator, use sotto evaluate.

    A language model (rlhf) is evaluated by simulated people's ratings of sampled completions.

    A DPPG run offers three policies, which are equally private: the last one released ("last") and
    two averages of released policies ("ema", a moving average, and "tail"). This takes a few
    seconds.

    Examples:
      sotto eval runs/x --episodes 100 --json
      sotto eval runs/x --policy last --sampled
      sotto eval runs/x --video runs/x.gif

    Args:
        path: Run directory, or directory of several seeds.
        episodes: Number of episodes per seed.
        policy: Name of the policy (default: ema; ppo, a2c and dqn have only last).
        sampled: Draw actions from the policy instead of taking its most likely action.
        seed: Seed of the episodes.
        env_id: Environment of the run. It is needed if its name has a module in it
            ("module:Name"), because sotto never imports a module on the word of a file.
        video: Write one more episode of the first seed as a film into this .gif file.
        model: Language model of the run (rlhf). It is needed if it is not smollm2, because a file
            that only config.json names is not read.
    """
    if episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {episodes}")
    seed_range(seed)
    experiment = open_experiment(path, Named(env_id=env_id))
    trained_on = str(experiment.settings.config.get("env_id", "no environment"))
    # A run that names a module is refused where it would be imported, which says what to give.
    if env_id not in (None, trained_on) and ":" not in trained_on:
        raise RunError(f"{path} was trained on {trained_on}, not on {env_id}; leave out --env-id")
    from sotto.rl.envs.registry import is_native
    from sotto.runs.registry import algorithm_named

    algorithm = algorithm_named(experiment.settings.algorithm)
    if ray is not None and ("env_id" not in experiment.settings.config or is_native(trained_on)):
        raise RunError(
            f"a cluster plays episodes of Gymnasium environments, and {path} has {trained_on}; "
            "leave out --ray"
        )
    with on_cluster(ray):
        answer = _evaluate(algorithm, experiment, episodes, policy, sampled, seed, video, model)
    if json:
        print_json(answer)
        return
    words = algorithm.words
    over = words.over if len(experiment.runs) == 1 else f"all {words.over}"
    mean, std, least, most = (
        f"{answer[name]:.{words.decimals}f}" for name in ("mean", "std", "min", "max")
    )
    print(
        f"{answer['policy']} policy, {'greedy' if answer['greedy'] else 'sampled'}, {episodes} "
        f"{words.over} per seed: mean {mean}, std {std} over {over}, min {least}, max {most}"
    )
    if len(experiment.runs) > 1:
        for name, one in answer["seeds"].items():
            print(f"  seed {name}: mean {one['mean']:.1f}, std {one['std']:.1f}")
        print(f"  std of the means over seeds: {answer['std_over_seeds']:.1f}")
    if video is not None:
        print(f"wrote {video}: one episode, with a return of {answer['video_return']:.1f}")


def _evaluate(
    algorithm: "Algorithm[Any]",
    experiment: Experiment,
    episodes: int,
    policy: str | None,
    sampled: bool,
    seed: int,
    video: Path | None,
    model: str | None,
) -> dict[str, Any]:
    import numpy as np

    from sotto.runs.checkpoints import last_checkpoint
    from sotto.runs.start import config_of
    from sotto.runs.training import load_states

    settings = experiment.settings
    config = algorithm.to_evaluate(config_of(experiment), model)
    greedy = algorithm.evaluates_greedily and not sampled
    updates = last_checkpoint(experiment)
    policies = algorithm.policies(load_states(experiment, updates, algorithm, config))
    name = policy or algorithm.default_policy
    if name not in policies:
        names = ", ".join(policies)
        raise RunError(f"a run of {settings.algorithm} has no policy {name!r}; it has {names}")
    filmed: dict[str, Any] = {}
    if video is not None:  # first, since a package may be missing for it
        from sotto.runs.agents.video import record

        one = at(policies[name], 0)
        filmed["video_return"] = record(settings, one, seed, greedy, video)
    returns = algorithm.evaluate(config, policies[name], new_key(seed), episodes, greedy)

    def statistics(values: np.ndarray) -> dict[str, float]:
        with np.errstate(invalid="ignore"):  # the deviation of infinite returns is NaN
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
        "total_updates": algorithm.num_updates(config),
        **statistics(returns),
        "std_over_seeds": statistics(returns.mean(axis=1))["std"],
        "seeds": {
            str(one): statistics(row) for one, row in zip(settings.seeds, returns, strict=True)
        },
        **filmed,
    }


@command("certificate")
def certificate(
    path: RunPath,
    /,
    verify: bool = False,
    write: bool = False,
    sign: Path | None = None,
    page: Page = None,
    ledger: Ledger = None,
    json: bool = False,
) -> int:
    """Prints the certificate of a run, of a campaign or of a teacher's service, in plain words.

    The certificate is derived from the run's ledger, and every entry of the ledger is checked. With
    --verify, the command compares certificate.json with the ledger. The exit code is 0 if they
    agree, 3 if the certificate is stale (it agrees with an earlier entry), and 2 if it is false.

    A run that was killed leaves a stale certificate, and so does a service that has answered since.
    --write replaces a stale certificate by a current one. It never replaces a false one.

    Examples:
      sotto certificate runs/x
      sotto certificate runs/x --verify
      sotto certificate runs/x --write
      sotto certificate runs/x --sign operator.pem
      sotto certificate runs/x --page certificate.pdf

    Args:
        path: Run directory, or directory of a service, of a campaign, or of several seeds. Each
            seed has a certificate. Seeds that share a teacher, experts or a reward function also
            have a common cost, which is printed.
        verify: Compare certificate.json with the ledger, and change nothing.
        write: Write certificate.json as it follows from the ledger now.
        sign: Private Ed25519 key in PEM. The command verifies certificate.json and writes its
            signature to certificate.json.sig. sotto verify --signed-by checks it.
        json: Print JSON: the certificate and its sentences, or the findings of --verify. For
            several seeds: `certificates`, and `epsilon_of_all_seeds` if they are about the same
            people.
    """
    from sotto.runs.printed.files import writer

    if verify and write:
        raise ValueError("--verify changes nothing; give either --verify or --write")
    if sign is not None and (verify or write):
        raise ValueError("--sign verifies the certificate, and writes none; give it alone")
    if page is not None and (verify or sign is not None):
        raise ValueError("--page prints the certificate; give it without --verify and --sign")
    write_page = None if page is None else writer(page)
    certified, experiment = _certified(path, ledger)
    if write_page is not None and len(certified) > 1:
        raise ValueError(f"a page is about one certificate; give one seed, as in {path}/seed-0")
    if sign is not None:
        return _sign(certified, sign, json)
    if verify:
        return _verify(certified, json)
    found = _show(certified, experiment, write, json, write_page)
    if page is not None and not json:
        print(visible(f"wrote {page}"))
    return found


def _certified(path: Path, ledger: str | None) -> tuple[Sequence["Certified"], Experiment | None]:
    """Returns everything in a directory that has a certificate, and the experiment if any."""
    from sotto.people.campaign import is_campaign, open_campaign
    from sotto.runs.evaluations import is_evaluation, open_evaluation

    if is_service(path):
        return (open_service(path, ledger),), None
    if is_campaign(path):
        return (open_campaign(path, ledger),), None
    if is_evaluation(path):
        return (open_evaluation(path),), None
    experiment = open_experiment(path, Named(ledger))
    return experiment.runs, experiment


def _show(
    runs: Sequence["Certified"],
    experiment: Experiment | None,
    write: bool,
    json: bool,
    write_page: Callable[["PrintedPage"], None] | None = None,
) -> int:
    from rich.console import Console

    from sotto.people.campaign import Campaign
    from sotto.privacy.certificates.derive import derive, render, why_false
    from sotto.runs.seeds import sharing

    console = Console(soft_wrap=False)
    ledgers = [run.open_ledger() for run in runs]
    found = [derive(ledger) for ledger in ledgers]
    for run, ledger, one in zip(runs, ledgers, found, strict=True):
        missing = not run.certificate.exists()
        if reason := why_false(run.certificate, ledger):
            if write:
                raise RunError(f"{run.certificate} is false and is not replaced: {reason}")
            print(f"warning: {run.certificate} is false: {reason}", file=sys.stderr)
        if write or missing:
            one.write(run.certificate, 0o600 if isinstance(run, Service | Campaign) else 0o644)
        if write_page is not None:
            _write_page(run, ledger, write_page)
    shared = None
    if experiment is not None and len(ledgers) > 1:
        shared = sharing(experiment.settings, ledgers)
    if json:
        plain = [json_module.loads(one.model_dump_json()) | _in_words(one) for one in found]
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


def _write_page(
    run: "Certified", ledger: "AnyLedger", write_page: Callable[["PrintedPage"], None]
) -> None:
    """Writes the page of the certificate in the run's file, if its ledger gives the same."""
    from sotto.privacy.certificates.derive import read, verify
    from sotto.runs.printed.page import page_of_certificate

    found = verify(run.certificate, ledger)
    if found.status != "verified":
        reason = found.mismatches[0] if found.mismatches else "write the current one with --write"
        raise RunError(f"{run.certificate} is {found.status} and is not printed: {reason}")
    write_page(page_of_certificate(read(run.certificate), run.certificate))


def _in_words(certificate: "Certificate") -> dict[str, Any]:
    """Returns the sentences of a certificate, which stores only their identifiers."""
    from sotto.privacy.certificates.text import unit_sentence

    return {
        "unit_sentence": unit_sentence(certificate),
        "protects": certificate.protects if certificate.status == "proved" else (),
        "does_not_protect": certificate.does_not_protect,
        "assumptions": [one.model_dump() for one in certificate.assumptions],
        "quoted": certificate.quoted,
    }


def _sign(runs: Sequence["Certified"], key: Path, json: bool) -> int:
    """Signs the certificates, if every one of them agrees with its ledger."""
    from sotto.privacy.certificates.derive import verify
    from sotto.privacy.certificates.signature import Signer

    signer = Signer(key, lambda: getpass(f"Passphrase of {key}: "))
    for run in runs:
        found = verify(run.certificate, run.open_ledger())
        if found.status != "verified":
            reason = found.mismatches[0] if found.mismatches else "the ledger has gone on since"
            raise RunError(
                f"{run.certificate} is {found.status} and nothing is signed: {reason}; see sotto "
                f"certificate {run.path} --verify"
            )
    written = [str(signer.sign(run.certificate)) for run in runs]
    if json:
        print_json({"signatures": written})
    else:
        print("\n".join(f"wrote {one}" for one in written))
    return 0


_EXIT_CODES = {"verified": 0, "stale": 3, "false": 2}


def _verify(runs: Sequence["Certified"], json: bool) -> int:
    from sotto.privacy.certificates.derive import verify

    found = [(run, verify(run.certificate, run.open_ledger())) for run in runs]
    statuses = [one.status for _, one in found]
    status = next(one for one in ("false", "stale", "verified") if one in statuses)
    wrong = [f"{run.path}: {line}" for run, one in found for line in one.mismatches]
    corrections = dict.fromkeys(line for _, one in found for line in one.corrections)
    epsilons = [one.current.epsilon for _, one in found if one.current is not None]
    if json:
        now = {"epsilon": max(epsilons)} if len(epsilons) == len(found) else {}
        lists = {"mismatches": wrong, "corrections": list(corrections)}
        print_json({"verified": status == "verified", "status": status, **now, **lists})
    else:
        for run, one in found:
            if one.status == "verified":
                print(f"{run.certificate} is verified: it agrees with the ledger.")
            elif one.status == "stale" and one.current is not None:
                print(
                    f"{run.certificate} is stale: it agrees with an earlier entry of the ledger. "
                    f"Now the ledger gives {one.current.status}, "
                    f"{guarantee(one.current.epsilon, one.current.delta)}. "
                    "Write the current certificate with: sotto certificate "
                    f"{shlex.quote(str(run.path))} --write"
                )
        for line in corrections:
            print(f"Corrected words of an earlier version: {line}.")
    if status == "false":
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        exist = all(run.certificate.exists() for run in runs)
        opening = "the certificate is not true: " if exist else ""
        print(f"sotto: {opening}{wrong[0]}{more}", file=sys.stderr)
    return _EXIT_CODES[status]
