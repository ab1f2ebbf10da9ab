"""`sotto account` and `sotto calibrate` for Gaussian noise."""

from typing import Annotated, Any, Literal

import tyro

from sotto.algorithms.calibration import all_releases, calibrate
from sotto.cli.terminal.options import (
    Delta,
    Json,
    NoiseMultiplier,
    Releases,
    SamplingRate,
    Steps,
    TargetEpsilon,
)
from sotto.cli.terminal.output import print_json
from sotto.cli.terminal.parsing import command
from sotto.privacy.accounting.composition import (
    Event,
    Gaussian,
    RepeatAndSelect,
    compose,
)
from sotto.privacy.bounds import at_most, guarantee


@command("account gaussian")
def account_gaussian(
    noise_multiplier: NoiseMultiplier, delta: Delta, releases: Releases = 1, json: Json = False
) -> None:
    """Prints the epsilon of Gaussian releases (analytic Gaussian mechanism, which is tight).

    If a person takes part in n releases, these cost as much as one release whose noise multiplier
    is noise_multiplier / sqrt(n). If each release has other people, set --releases to 1.

    Example:
      sotto account gaussian --noise-multiplier 1.0 --delta 1e-5 --releases 1 --json
    """
    event = all_releases(noise_multiplier, releases)
    about = {
        "noise_multiplier": noise_multiplier,
        "releases": releases,
        "effective_noise_multiplier": event.noise_multiplier,
    }
    _answer("gaussian", event, delta, about, json)


@command("account dpsgd")
def account_dpsgd(
    noise_multiplier: NoiseMultiplier,
    sampling_rate: SamplingRate,
    steps: Steps,
    delta: Delta,
    json: Json = False,
) -> None:
    """Prints the epsilon of DP-SGD: the Poisson-subsampled Gaussian mechanism.

    Every person enters each batch independently with the sampling rate, and nobody sees who is in
    a batch. Shuffled batches and batches of fixed size are not covered. Adjacency is zero-out. The
    account uses privacy loss distributions and takes a second or two.

    Example:
      sotto account dpsgd --noise-multiplier 1 --sampling-rate 0.01 --steps 1000 --delta 1e-5
    """
    event = all_releases(noise_multiplier, steps, sampling_rate)
    about = {"noise_multiplier": noise_multiplier, "sampling_rate": sampling_rate, "steps": steps}
    _answer("dpsgd", event, delta, about, json)


@command("account select")
def account_select(
    noise_multiplier: NoiseMultiplier,
    mean_tries: Annotated[float, tyro.conf.arg(help="Mean of the random number of tries.")],
    delta: Delta,
    law: Annotated[
        Literal["geometric", "poisson"],
        tyro.conf.arg(help="Distribution of the number of tries. With poisson it can be zero."),
    ] = "geometric",
    json: Json = False,
) -> None:
    """Prints the epsilon of publishing the best of several tries on the same people.

    Each try is a Gaussian release that includes its score. The number of tries is random and
    secret, and only the best try is published. The guarantee does not hold against someone who
    learns the number of tries or sees another try (docs/privacy.md, section 17).

    Example:
      sotto account select --noise-multiplier 5 --mean-tries 10 --delta 1e-5
    """
    one = Gaussian(noise_multiplier=noise_multiplier)
    event = RepeatAndSelect(run=one, tries=law, mean=mean_tries, accounting=2)
    about = {
        "epsilon_of_one_try": compose([one]).epsilon(delta),
        "noise_multiplier": noise_multiplier,
        "mean_tries": mean_tries,
        "law": law,
    }
    _answer("repeat-and-select", event, delta, about, json)


@command("calibrate gaussian")
def calibrate_gaussian(
    target_epsilon: TargetEpsilon, delta: Delta, releases: Releases = 1, json: Json = False
) -> None:
    """Prints the smallest noise multiplier whose epsilon does not exceed the target.

    The delta that the sampler of the noise may cost is taken off delta first. The "epsilon" in the
    answer is that of this noise multiplier, computed again.

    Example:
      sotto calibrate gaussian --target-epsilon 1.0 --delta 1e-5 --json
    """
    found = calibrate(target_epsilon=target_epsilon, delta=delta, releases=releases)
    about = {"noise_multiplier": found, "target_epsilon": target_epsilon, "releases": releases}
    _answer("gaussian", all_releases(found, releases), delta, about, json)


@command("calibrate dpsgd")
def calibrate_dpsgd(
    target_epsilon: TargetEpsilon,
    sampling_rate: SamplingRate,
    steps: Steps,
    delta: Delta,
    json: Json = False,
) -> None:
    """Prints the smallest noise multiplier of DP-SGD whose epsilon does not exceed the target.

    The delta that the sampler of the noise may cost is taken off delta first. The "epsilon" in the
    answer is that of this noise multiplier, computed again. This takes about ten seconds.

    Example:
      sotto calibrate dpsgd --target-epsilon 2 --sampling-rate 0.01 --steps 1000 --delta 1e-5
    """
    found = calibrate(
        target_epsilon=target_epsilon, delta=delta, releases=steps, sampling_rate=sampling_rate
    )
    about = {
        "noise_multiplier": found,
        "target_epsilon": target_epsilon,
        "sampling_rate": sampling_rate,
        "steps": steps,
    }
    _answer("dpsgd", all_releases(found, steps, sampling_rate), delta, about, json)


def _answer(mechanism: str, event: Event, delta: float, about: dict[str, Any], json: bool) -> None:
    """Prints the cost of an event and the settings that it follows from."""
    curve = compose([event])
    epsilon = curve.epsilon(delta)
    answer = {"mechanism": mechanism, "epsilon": epsilon, "delta": delta}
    answer |= about | {"method": curve.method}
    if json:
        print_json(answer)
        return
    noise = at_most(about["noise_multiplier"], 6)
    print(f"{guarantee(epsilon, delta)} (noise multiplier {noise})")
    if about.get("releases", 1) > 1:
        print(
            f"{about['releases']} releases to the same person cost as much as one whose noise is "
            "smaller by the square root of their number."
        )
    print(f"Computed by: {curve.method}.")
