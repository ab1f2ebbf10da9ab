"""`sotto audit`: attacks on a catalogue of known leaks."""

from dataclasses import asdict

from sotto.cli.options import Json
from sotto.cli.parsing import command, print_json
from sotto.keys import seed_range


@command("audit")
def audit(
    leaks: tuple[str, ...] = (), samples: int = 100_000, seed: int = 0, json: Json = False
) -> int:
    """Attacks known leaks, each in a leaky variant and in a sound variant.

    Each variant runs many times on two neighbouring inputs. The better an attack tells the inputs
    apart, the larger is the lower bound on epsilon that it proves. For a leaky variant the bound is
    larger than the epsilon that was claimed. For a sound variant it stays below the certificate.
    The whole catalogue takes a few minutes.

    Examples:
      sotto audit
      sotto audit --leaks non-private-critic --samples 20000

    Args:
        leaks: Names of leaks; all of them by default. A wrong name prints the list.
        samples: Number of runs of each variant on each of the two inputs.
        seed: Seed of the runs.
    """
    from sotto.privacy.audits.leaks import run_catalogue

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
