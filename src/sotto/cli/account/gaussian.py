"""`sotto account` and `sotto calibrate`: what noise costs, and what noise a target needs."""

from typing import Any, Literal

from sotto.cli.parsing import parse, print_json
from sotto.privacy.accounting.composition import (
    Event,
    Gaussian,
    RepeatAndSelect,
    SampledGaussian,
    calibrate_noise_multiplier,
    compose,
)


def account_gaussian(args: list[str]) -> int:
    """Runs `sotto account gaussian`."""

    def run(noise_multiplier: float, delta: float, releases: int = 1, json: bool = False) -> None:
        """Epsilon of Gaussian releases, by the analytic Gaussian mechanism (tight).

        n releases that the same person takes part in cost what one costs whose noise multiplier
        is smaller by the square root of n: noise_multiplier / sqrt(n). Releases over different
        people cost each person one release.

        Example:
          sotto account gaussian --noise-multiplier 1.0 --delta 1e-5 --releases 1 --json

        Args:
            noise_multiplier: standard deviation of the noise / L2 sensitivity (clip norm).
            delta: probability scale of failure; below 1 / people.
            releases: how many releases the same person takes part in.
            json: print one JSON object.
        """
        effective = _gaussian(noise_multiplier, releases)
        curve = compose([effective])
        answer: dict[str, Any] = {
            "mechanism": "gaussian",
            "epsilon": curve.epsilon(delta),
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "releases": releases,
            "effective_noise_multiplier": effective.noise_multiplier,
            "method": curve.method,
        }
        _print(answer, json)

    parse(run, args, "account gaussian")
    return 0


def account_dpsgd(args: list[str]) -> int:
    """Runs `sotto account dpsgd`."""

    def run(
        noise_multiplier: float, sampling_rate: float, steps: int, delta: float, json: bool = False
    ) -> None:
        """Epsilon of DP-SGD: the Poisson-subsampled Gaussian mechanism, by privacy loss
        distributions (takes a second or two).

        Every person enters each batch independently, in secret, at the sampling rate. Shuffled
        batches, or batches of fixed size, are not covered. Zero-out adjacency.

        Example:
          sotto account dpsgd --noise-multiplier 1 --sampling-rate 0.01 --steps 1000 --delta 1e-5

        Args:
            noise_multiplier: standard deviation of the noise / clip norm.
            sampling_rate: probability that a person is in a batch.
            steps: noisy steps.
            delta: probability scale of failure; below 1 / people.
            json: print one JSON object.
        """
        event = SampledGaussian(
            noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, count=steps
        )
        curve = compose([event])
        answer: dict[str, Any] = {
            "mechanism": "dpsgd",
            "epsilon": curve.epsilon(delta),
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "sampling_rate": sampling_rate,
            "steps": steps,
            "method": curve.method,
        }
        _print(answer, json)

    parse(run, args, "account dpsgd")
    return 0


def account_select(args: list[str]) -> int:
    """Runs `sotto account select`."""

    def run(
        noise_multiplier: float,
        mean_tries: float,
        delta: float,
        law: Literal["geometric", "poisson"] = "geometric",
        json: bool = False,
    ) -> None:
        """Epsilon of the best of a secret number of tries on the same people, each of which is a
        Gaussian release, its score included (docs/privacy.md, section 17).

        Only the best try may leave. Whoever learns how many there were, or what became of the
        others, learns more than this says.

        Example:
          sotto account select --noise-multiplier 5 --mean-tries 10 --delta 1e-5

        Args:
            noise_multiplier: of one try: standard deviation of the noise / clip norm.
            mean_tries: mean of the number of tries, which is drawn at random.
            delta: probability scale of failure; below 1 / people.
            law: how the number is drawn; poisson may draw none at all.
            json: print one JSON object.
        """
        one = Gaussian(noise_multiplier=noise_multiplier)
        curve = compose([RepeatAndSelect(run=one, tries=law, mean=mean_tries, accounting=2)])
        answer: dict[str, Any] = {
            "mechanism": "repeat-and-select",
            "epsilon": curve.epsilon(delta),
            "epsilon_of_one_try": compose([one]).epsilon(delta),
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "mean_tries": mean_tries,
            "law": law,
            "method": curve.method,
        }
        _print(answer, json)

    parse(run, args, "account select")
    return 0


def calibrate_gaussian(args: list[str]) -> int:
    """Runs `sotto calibrate gaussian`."""

    def run(target_epsilon: float, delta: float, releases: int = 1, json: bool = False) -> None:
        """The smallest noise multiplier whose epsilon does not exceed the target.

        The result is accounted again: "epsilon" is what it really costs.

        Example:
          sotto calibrate gaussian --target-epsilon 1.0 --delta 1e-5 --json

        Args:
            target_epsilon: epsilon that must not be exceeded.
            delta: probability scale of failure; below 1 / people.
            releases: how many releases the same person takes part in.
            json: print one JSON object.
        """
        _gaussian(1.0, releases)
        found = calibrate_noise_multiplier(
            lambda z: [_gaussian(z, releases)], target_epsilon, delta
        )
        curve = compose([_gaussian(found, releases)])
        answer: dict[str, Any] = {
            "mechanism": "gaussian",
            "noise_multiplier": found,
            "epsilon": curve.epsilon(delta),
            "target_epsilon": target_epsilon,
            "delta": delta,
            "releases": releases,
            "method": curve.method,
        }
        _print(answer, json)

    parse(run, args, "calibrate gaussian")
    return 0


def calibrate_dpsgd(args: list[str]) -> int:
    """Runs `sotto calibrate dpsgd`."""

    def run(
        target_epsilon: float, sampling_rate: float, steps: int, delta: float, json: bool = False
    ) -> None:
        """The smallest noise multiplier of DP-SGD whose epsilon does not exceed the target
        (takes ten seconds or so).

        Example:
          sotto calibrate dpsgd --target-epsilon 2 --sampling-rate 0.01 --steps 1000 --delta 1e-5

        Args:
            target_epsilon: epsilon that must not be exceeded.
            sampling_rate: probability that a person is in a batch.
            steps: noisy steps.
            delta: probability scale of failure; below 1 / people.
            json: print one JSON object.
        """

        def events(noise_multiplier: float) -> list[Event]:
            return [
                SampledGaussian(
                    noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, count=steps
                )
            ]

        found = calibrate_noise_multiplier(events, target_epsilon, delta)
        curve = compose(events(found))
        answer: dict[str, Any] = {
            "mechanism": "dpsgd",
            "noise_multiplier": found,
            "epsilon": curve.epsilon(delta),
            "target_epsilon": target_epsilon,
            "delta": delta,
            "sampling_rate": sampling_rate,
            "steps": steps,
            "method": curve.method,
        }
        _print(answer, json)

    parse(run, args, "calibrate dpsgd")
    return 0


def _gaussian(noise_multiplier: float, releases: int) -> Gaussian:
    """Releases to the same person as one: 1/z^2 adds up."""
    if releases < 1:
        raise ValueError(f"releases must be at least 1, got {releases}")
    Gaussian(noise_multiplier=noise_multiplier)
    return Gaussian(noise_multiplier=noise_multiplier / releases**0.5)


def _print(answer: dict[str, Any], json: bool) -> None:
    if json:
        print_json(answer)
        return
    noise, epsilon = answer["noise_multiplier"], answer["epsilon"]
    print(f"epsilon {epsilon:.4g} at delta {answer['delta']:.3g} (noise multiplier {noise:.6g})")
    if answer.get("releases", 1) > 1:
        print(
            f"{answer['releases']} releases to the same person cost what one costs "
            "with the noise divided by the square root of their number."
        )
    print(f"Computed by: {answer['method']}.")
