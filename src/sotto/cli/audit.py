"""`sotto audit`: attacks on a catalogue of known leaks."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sotto.cli.options import Json
from sotto.cli.parsing import command, print_json
from sotto.keys import seed_range

if TYPE_CHECKING:
    from sotto.privacy.audits.leaks import Leak


@command("audit")
def audit(
    leaks: tuple[str, ...] = (),
    samples: int = 100_000,
    seed: int = 0,
    explain: bool = False,
    json: Json = False,
) -> int:
    """Attacks known leaks, each in a leaky variant and in a sound variant.

    Each variant runs many times on two neighbouring inputs. The better an attack tells the inputs
    apart, the larger is the lower bound on epsilon that it proves. For a leaky variant the bound is
    larger than the epsilon that was claimed. For a sound variant it stays below the certificate.
    All bounds of a run hold together with confidence 0.999.
    The whole catalogue takes a few minutes.

    Examples:
      sotto audit
      sotto audit --explain
      sotto audit --leaks non-private-critic --samples 20000

    Args:
        leaks: Names of leaks; all of them by default. `--explain` lists them.
        samples: Number of runs of each variant on each of the two inputs.
        seed: Seed of the runs.
        explain: Print the name and the false claim of every leak, and attack none.
    """
    from sotto.privacy.audits.leaks import named, run_catalogue

    if explain:
        _explain(named(leaks or None), json)
        return 0
    seed_range(seed)
    if samples < 4:
        raise ValueError(f"--samples must be at least 4, got {samples}")
    if not json:
        print(f"Each variant runs {samples:,} times on each input. All leaks take a few minutes.")
    reports = run_catalogue(leaks or None, samples, seed)
    if json:
        print_json({"samples": samples, "leaks": [asdict(one) for one in reports]})
    else:
        print(f"{'leak':<34}{'claimed':>9}{'audited':>9}{'sound':>9}{'certified':>11}  verdict")
        for one in reports:
            print(
                f"{one.name:<34}{one.claimed_epsilon:>9.3f}{one.leaky_lower_bound:>9.3f}"
                f"{one.sound_lower_bound:>9.3f}{one.sound_certified_epsilon:>11.3f}"
                f"  {one.verdict}"
            )
    return 2 if any(one.verdict == "certificate refuted" for one in reports) else 0


def _explain(leaks: "Sequence[Leak]", json: bool) -> None:
    """Prints the name and the false claim of each leak."""
    if json:
        print_json({"leaks": [{"name": one.name, "claim": one.claim} for one in leaks]})
        return
    print(f"{'leak':<34}false claim")
    for one in leaks:
        print(f"{one.name:<34}{one.claim}")
