"""Noise from a fixed seed, for tests of code that opens its releases itself."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sotto.privacy.release.release import Release


@contextmanager
def fixed_noise(seed: int) -> Iterator[None]:
    """Opens releases with noise from this seed, which voids their certificates."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Release, "open", functools.partialmethod(Release.open, noise_seed=seed))
        yield
