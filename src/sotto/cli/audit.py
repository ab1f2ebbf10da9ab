"""`sotto audit`: the leak catalogue, attacked here and now."""

from dataclasses import asdict

from sotto.cli.parsing import parse, print_json
from sotto.keys import seed_range


def audit(args: list[str]) -> int:
    """Runs `sotto audit`."""

    def run(
        leaks: tuple[str, ...] = (), samples: int = 100_000, seed: int = 0, json: bool = False
    ) -> int:
        """Attacks known leaks, each in a leaky and in a sound variant.

        A mechanism is run many times on two neighbouring inputs; how well they can be told apart
        is a lower bound on epsilon. Of a leaky variant it exceeds what would have been claimed; of
        a sound one it stays below the certificate. The whole catalogue takes a few minutes.

        Examples:
          sotto audit
          sotto audit --leaks non-private-critic --samples 20000

        Args:
            leaks: names of leaks (default: all of them; a wrong name lists them).
            samples: runs of each variant on each of the two inputs.
            seed: of the experiments.
            json: print one JSON object.
        """
        from sotto.privacy.audits.leaks import run_catalogue

        seed_range(seed)
        if samples < 4:
            raise ValueError(f"--samples must be at least 4, got {samples}")
        if not json:
            print(f"Auditing with {samples:,} runs of everything; a few minutes for all leaks.")
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

    return parse(run, args, "audit")
