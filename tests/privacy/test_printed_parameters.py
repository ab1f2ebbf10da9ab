"""A mechanism whose parameters are copied from what is printed meets the epsilon beside them."""

import re

import pytest
from commands import printed
from kinds_of_statements import stream

from sotto.algorithms.calibration import all_releases
from sotto.privacy.accounting.composition import Gaussian, compose
from sotto.privacy.accounting.gaussian import gaussian_epsilon
from sotto.privacy.certificates.model import CertifiedStream
from sotto.privacy.certificates.text import _stream_line
from sotto.privacy.mechanisms.dirichlet.mechanism import Dirichlet
from sotto.privacy.mechanisms.functions.rkhs import vector_sensitivity


def number(pattern: str, text: str) -> float:
    found = re.search(pattern + r" ([0-9.e+-]+[0-9])", text)
    assert found is not None, text
    return float(found[1])


@pytest.mark.parametrize(
    ("target", "delta", "releases"), [(1, 1e-5, 1), (3, 1e-6, 1), (1.3, 1e-5, 7), (0.1, 1e-9, 50)]
)
def test_printed_noise_meets_its_target(target, delta, releases, capsys) -> None:
    said = printed(
        capsys,
        *f"calibrate gaussian --target-epsilon {target} --delta {delta}".split(),
        "--releases",
        str(releases),
    )
    noise = number("noise multiplier", said)
    assert 0.99 * target < compose([all_releases(noise, releases)]).epsilon(delta) <= target


@pytest.mark.parametrize("target", [0.3, 0.9, 5.0])
@pytest.mark.parametrize("iterations", [None, 7])
def test_printed_noise_of_functions_meets_its_target(target, iterations, capsys) -> None:
    mode = "reward-release" if iterations is None else f"per-iteration --iterations {iterations}"
    said = printed(
        capsys,
        *f"account functional-noise --mode {mode} --nodes 11 --actions 2 --reward-radius 1".split(),
        *f"--target-epsilon {target} --delta 1e-4".split(),
    )
    alone, process = (number("^sigma", said), number("paths: sigma", said))
    beta, sensitivity = number("beta", said), number("sensitivity", said)
    exact = vector_sensitivity(11, 2, 1.0).value
    assert exact <= sensitivity < 1.001 * exact
    root = (iterations or 1) ** 0.5
    assert 0.99 * target < gaussian_epsilon(alone / exact / root, 1e-4) <= target
    step = beta / 10
    of_process = (2 * (1 + 10 * max(step / 2, 2 / step + step / 6))) ** 0.5
    assert 0.99 * target < gaussian_epsilon(process / of_process / root, 1e-4) <= target


@pytest.mark.parametrize("target", [1.1, 1.7, 2.3])
def test_a_printed_concentration_meets_its_target(target, capsys) -> None:
    said = printed(
        capsys,
        *f"calibrate dirichlet --target-epsilon {target} --actions 6 --floor 0.1".split(),
        *["--distance", "0.002", "--queries", "100", "--delta", "1e-5"],
    )
    printed_one = number("Concentration:", said)
    exact = Dirichlet(actions=6, concentration=printed_one, floor=0.1)
    assert compose(exact.events(0.002, 100)).epsilon(1e-5) <= target


@pytest.mark.parametrize("noise", [2.9394676164090936, 3.73063123, 0.7])
def test_noise_in_a_certificate_meets_its_epsilon(noise) -> None:
    event, statement = Gaussian(noise_multiplier=noise), stream()
    line = _stream_line(
        CertifiedStream(statement=statement, event=event, releases=4, persons=9, versions={})
    )
    assert noise <= number("multiplier", line) < noise * (1 + 1e-5)
