"""`sotto audit`: attacks on your own code, on a training, or on a catalogue of known leaks."""

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from sotto import modules
from sotto.cli.terminal.options import Json, Ledger
from sotto.cli.terminal.output import print_json, print_table
from sotto.cli.terminal.parsing import command
from sotto.keys import seed_range
from sotto.privacy.bounds import at_least, at_most, guarantee

if TYPE_CHECKING:
    from sotto.privacy.audits.leaks import Leak
    from sotto.privacy.audits.own import Verdict
    from sotto.runs.directory import Named

REFUTED = 3
_SAMPLES, _CATALOGUE_SAMPLES = 16_000, 100_000


@command("audit")
def audit(
    target: Positional[str] = "",
    /,
    leaks: tuple[str, ...] = (),
    samples: int | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    people: int = 16,
    explain: bool = False,
    ledger: Ledger = None,
    env_id: str | None = None,
    json: Json = False,
) -> int:
    """Attacks your own code, a training, or known leaks.

    With MODULE:NAME, which names a sotto.Auditable in a module of yours, it repeats the release
    without one person, makes many runs with and without, and one run with many canaries. It states
    lower bounds on epsilon beside your claim. A claim that is not refuted is not proved.

    With RUN, a training of dppg or of your own algorithm, it trains once more with the same
    settings. Each person is a canary who is in or out by a coin. Lower bounds stand beside the
    certificate. It takes about as long as the training.

      exit code 0: nothing refutes the claim
      exit code 2: the audit could not be made
      exit code 3: a lower bound on epsilon is larger than the claim

    Without MODULE:NAME it attacks known leaks, each in a leaky variant and in a sound variant. For
    a leaky variant the bound is larger than the epsilon that was claimed. For a sound variant it
    stays below the certificate. All bounds of the catalogue hold together with confidence 0.999.
    It takes a few minutes.

    Examples:
      sotto audit my_release:audited
      sotto audit my_release:audited --samples 100000 --json
      sotto audit runs/x
      sotto audit
      sotto audit --explain
      sotto audit --leaks non-private-critic --samples 20000

    Args:
        target: Your code, as MODULE:NAME, or the directory of a training. The module may lie in
            the working directory.
        leaks: Names of leaks; all of them by default. `--explain` lists them.
        samples: Number of runs on each of the two inputs; 16,000 for your code and 100,000 for
            each leak by default.
        seed: Seed of the runs.
        confidence: Probability with which all bounds about your code or training hold together.
        people: Number of people who are left out of your code or training, one after the other.
        env_id: Environment of the training. It is needed if its name has a module in it, because
            sotto never imports a module on the word of a file.
        explain: Print the name of every leak, its false claim, what leaks, and what to do instead.
            Nothing is attacked.
    """
    from sotto.privacy.audits.own import check

    check(confidence, people)
    seed_range(seed)
    if target and (leaks or explain):
        raise ValueError("--leaks and --explain are about the catalogue; leave out the module")
    if target and Path(target).is_dir():
        if samples is not None:
            raise ValueError("a training is made once; leave out --samples")
        from sotto.runs.directory import Named

        return _training(Path(target), Named(ledger, env_id), seed, confidence, people, json)
    if ledger is not None or env_id is not None:
        flag = "--env-id" if ledger is None else "--ledger"
        raise ValueError(f"{flag} is about the directory of a training; leave it out")
    if target:
        if ":" not in target:
            raise ValueError(
                f"{target!r} must be MODULE:NAME, such as my_release:audited, or the directory of "
                "a training"
            )
        samples = _SAMPLES if samples is None else samples
        check(confidence, people, samples)
        return _own(target, samples, seed, confidence, people, json)
    from sotto.privacy.audits.leaks import check_samples, named, run_catalogue

    if explain:
        _explain(named(leaks or None), json)
        return 0
    samples = _CATALOGUE_SAMPLES if samples is None else samples
    check_samples(leaks or None, samples)
    if not json:
        print(f"Each variant runs {samples:,} times on each input. All leaks take a few minutes.")
    reports = run_catalogue(leaks or None, samples, seed)
    if json:
        print_json({"samples": samples, "leaks": [asdict(one) for one in reports]})
    else:
        print(f"{'leak':<34}{'claimed':>9}{'audited':>9}{'sound':>9}{'certified':>11}  verdict")
        for one in reports:
            print(
                f"{one.name:<34}{at_most(one.claimed_epsilon):>9}"
                f"{at_least(one.leaky_lower_bound):>9}{at_least(one.sound_lower_bound):>9}"
                f"{at_most(one.sound_certified_epsilon):>11}"
                f"  {one.verdict}"
            )
        if any(one.verdict == "not shown" for one in reports):
            print("Too few samples to show a leak, or to see a false certificate: give more.")
    return REFUTED if any(one.verdict == "certificate refuted" for one in reports) else 0


def _own(target: str, samples: int, seed: int, confidence: float, people: int, json: bool) -> int:
    """Audits a user's code and prints the verdict."""
    from sotto.privacy.audits.auditable import Auditable
    from sotto.privacy.audits.own import audit_own

    auditable = modules.named(target, Auditable, "a sotto.Auditable")
    verdict = audit_own(auditable, samples, seed, confidence, _note, people)
    return _said(target, verdict, json)


def _training(
    path: Path, named: "Named", seed: int, confidence: float, people: int, json: bool
) -> int:
    """Audits a training and prints the verdict beside its certificate."""
    from sotto.algorithms.audits import auditable
    from sotto.privacy.audits.own import audit_training
    from sotto.privacy.certificates.derive import derive
    from sotto.runs.directory import open_experiment
    from sotto.runs.metrics import read
    from sotto.runs.registry import algorithm_named
    from sotto.runs.start import config_of

    experiment = open_experiment(path, named)
    if len(experiment.runs) > 1:
        raise ValueError(f"an audit is about one training; give one seed, as in {path}/seed-0")
    (run,) = experiment.runs
    algorithm, config = algorithm_named(run.settings.algorithm), config_of(experiment)
    claim = derive(run.open_ledger())
    audited = auditable(algorithm, config, run.seed, claim.epsilon, claim.delta)
    took = sum(line.seconds for line in read(run.metrics)[-1:])
    _note(
        f"{algorithm.num_updates(config):,} releases of {algorithm.name} are made again. It takes "
        f"about as long as the training, whose last session took {took:.0f} s."
    )
    return _said(str(path), audit_training(audited, seed, confidence, _note, people), json)


def _note(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _said(target: str, verdict: "Verdict", json: bool) -> int:
    if json:
        print_json({"refuted": verdict.refuted, **asdict(verdict)})
    else:
        _print_verdict(target, verdict)
    return REFUTED if verdict.refuted else 0


def _print_verdict(target: str, verdict: "Verdict") -> None:
    print(f"{target} claims {guarantee(verdict.epsilon, verdict.delta)}.")
    table = []
    for one in verdict.findings:
        mark = "REFUTES THE CLAIM: " if one.refuted else ""
        table.append((one.check, one.presumes, at_least(one.epsilon_lower), f"{mark}{one.says}"))
    print_table(("check", "presumes", "epsilon at least", "seen"), table)
    for sentence in verdict.left_out:
        print(f"Left out: {sentence}")
    result = "refuted" if verdict.refuted else "not refuted, which does not prove it"
    print(f"The claim is {result} (all bounds together with confidence {verdict.confidence:g}).")
    if verdict.refuted:
        chance = f"{100 * (1 - verdict.confidence):.3g} of 100"
        print(
            f"Up to {chance} audits refute a true claim: repeat with another --seed, or with "
            "--confidence 0.9999. A claim that is false is usually refuted again."
        )


def _explain(leaks: "Sequence[Leak]", json: bool) -> None:
    """Prints the name of each leak, its false claim, what leaks, and what to do instead."""
    if json:
        fields = ("name", "claim", "why", "remedy")
        print_json({"leaks": [{name: getattr(one, name) for name in fields} for one in leaks]})
        return
    for number, one in enumerate(leaks):
        print(f"\n{one.name}" if number else one.name)
        said = {"false claim": one.claim, "what leaks": one.why, "instead": one.remedy}
        for title, text in said.items():
            start = f"  {title:<13}"
            print(textwrap.fill(text, 80, initial_indent=start, subsequent_indent=" " * 15))
