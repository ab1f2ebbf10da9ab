"""The door for functions: values or whole functions go in, and leave with fresh noise.

A `FunctionRelease` states the released values, the distance of neighbours (`Sensitivity`) and the
noise. `open` writes this into the ledger. Each release then charges the ledger durably, draws fresh
noise from the operating system, writes the noisy values to disk and returns them. Post-processing
of them costs nothing more.

```
radius = claims.rewards.LOGGED_FUNCTION(radius="1")
release = FunctionRelease(
    "rewards", unit, vector_sensitivity(11, 2, 1.0), z, "real", size=22, protects=(radius,)
)
values = release.open(ledger, folder).release(averages).values          # [11, 2], noisy
```

Guarantee:
    All `horizon` releases together are a Gaussian mechanism with multiplier `noise_multiplier` for
    each unit. This holds also where later releases, and the points at which a function is asked,
    depend on earlier releases (docs/privacy.md, section 13).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from sotto.frozen import Declared
from sotto.privacy.bounds import at_most
from sotto.privacy.claims.rewards import SENSITIVITY, require_hidden
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.persons import PersonBlock
from sotto.privacy.ledger.streams import LedgerStream
from sotto.privacy.mechanisms import noise
from sotto.privacy.mechanisms.functions.gaussian_process import Kernel
from sotto.privacy.mechanisms.functions.grid import grid_rounding, sample_grid
from sotto.privacy.mechanisms.functions.rkhs import Sensitivity, is_even
from sotto.privacy.mechanisms.functions.values import to_grid
from sotto.privacy.mechanisms.secret_functions import SecretFunction, require_rows
from sotto.privacy.release.released import (
    SURPLUS,
    ReleasedFunction,
    ReleasedValues,
    require_resolved,
    values_grid,
)
from sotto.privacy.release.storage import ReleaseFile
from sotto.privacy.statements import (
    UNBOUNDED_DRAWS,
    Assumption,
    Gap,
    Part,
    Returning,
    StreamStatement,
)
from sotto.privacy.units import Adjacency, PopulationKind, Unit

_LARGEST_ARRAY = 2**28
_LARGEST_NOISE = 2.0**16  # in sensitivities


@dataclass(frozen=True)
class FunctionRelease(Declared):
    """One kind of release of a function, or of its values.

    Attributes:
        name: name of the released values, for the certificate.
        unit: the unit of privacy: a reward function within a radius, or one transition's reward.
        sensitivity: largest distance of neighbours, in the norm of a vector or of a kernel. It
            follows from public numbers alone.
        noise_multiplier: of all releases together; `calibration.multiplier_for` gives the one
            for an epsilon.
        population: "simulated" or "real".
        size: how many numbers one release holds; None for functions that are asked as needed.
        horizon: most releases. The noise of each grows with the square root of it.
        units: how many transitions there are, for that unit. They have the numbers 0, 1, ... and
            take part in every release.
        protects, does_not_protect: sentences for the certificate. One says the radius or the range
            of a reward, such as `claims.rewards.LOGGED_FUNCTION` or `ONE_REWARD`.
        assumptions: what the proof needs beyond what every release needs.
        gaps: steps that are not private, named.
    """

    name: str
    unit: Unit
    sensitivity: Sensitivity
    noise_multiplier: float
    population: PopulationKind
    size: int | None = None
    horizon: int = 1
    units: int | None = None
    protects: tuple[str, ...] = ()
    does_not_protect: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    gaps: tuple[Gap, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.noise_multiplier < math.inf:
            raise ValueError(
                f"noise_multiplier must be a positive finite number, got {self.noise_multiplier}"
            )
        if not self.unit.for_functions:
            raise ValueError(
                "a released function is not clipped, so its unit is a reward function within a "
                "radius, or one transition; for data of people use a Release"
            )
        if self.horizon < 1:
            raise ValueError("a release needs a horizon of at least one")
        if self.unit.adjacency is Adjacency.WITHIN_RADIUS:
            if self.units not in (None, 1):
                raise ValueError("there is one reward function; leave out units")
        elif self.units is None or self.units < 1:
            raise ValueError("say how many transitions there are: units")
        require_hidden(self.sensitivity.change, self.unit.adjacency, self.protects)
        if None not in (self.size, self.sensitivity.size) and self.size != self.sensitivity.size:
            raise ValueError(
                f"the sensitivity is that of {self.sensitivity.size} values, and not of {self.size}"
            )
        if self.size is not None and not 1 <= self.size <= _LARGEST_ARRAY:
            raise ValueError(f"size must be between 1 and {_LARGEST_ARRAY}, got {self.size}")
        at_nodes = self.sensitivity.beta is None or self.sensitivity.size or self.sensitivity.nodes
        if self.size is None and at_nodes:
            raise ValueError("this sensitivity is of values with a public size; state it")
        if self.noise_multiplier * math.sqrt(self.horizon) > _LARGEST_NOISE:
            raise ValueError(
                f"noise of more than {_LARGEST_NOISE:g} sensitivities is beyond the public grid"
            )
        if self.size is not None and self.sensitivity.beta is None:
            self.require_resolved(self.size * (self.grid / self.sigma) ** 2)

    def require_resolved(self, rounding: float) -> None:
        """Refuses values that rounding moves further apart than the noise has surplus for."""
        require_resolved(rounding, self.sensitivity.value, self.sigma)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise of every released value."""
        ratio = self.noise_multiplier * math.sqrt(self.horizon)
        return self.sensitivity.value * ratio * (1 + SURPLUS)

    @property
    def grid(self) -> float:
        """Spacing of the public grid of released values."""
        return values_grid(self.sensitivity.value, self.sigma)

    def open(
        self, ledger: Ledger, folder: Path | None = None, *, noise_seed: int | None = None
    ) -> "OpenFunctionRelease":
        """Writes the statement into the ledger, if the budget covers all releases.

        Args:
            ledger: of this unit.
            folder: where noisy values are kept, one file for each release, synced before they
                leave. None keeps them in memory only; forgotten values stay charged.
            noise_seed: for tests and audits only; voids the certificate.

        Raises:
            PrivacyError: the budget does not cover it, or the ledger is another one's.
        """
        generators = noise.GeneratorSource(noise_seed)
        stream = ledger.open_stream(self._statement(generators.entropy))
        return self._opened(ledger, stream, generators, folder)

    def resume(self, ledger: Ledger, folder: Path | None = None) -> "OpenFunctionRelease":
        """Goes on with the stream that an earlier process opened for this release.

        Every release has fresh noise, so nothing that the guarantee needs was lost with that
        process. What it charged stays charged.

        Raises:
            LedgerMismatch: there is no such stream.
            BudgetExceeded: streams opened since have taken what it would need.
        """
        generators = noise.GeneratorSource()
        stream = ledger.resume_stream(self._statement(generators.entropy))
        return self._opened(ledger, stream, generators, folder)

    def _opened(
        self,
        ledger: Ledger,
        stream: LedgerStream,
        generators: noise.GeneratorSource,
        folder: Path | None,
    ) -> "OpenFunctionRelease":
        if folder is None:
            return OpenFunctionRelease(self, stream, generators, None)
        folder.mkdir(parents=True, exist_ok=True)
        file = partial(release_file, folder, ledger.run_id, stream.index)
        return OpenFunctionRelease(self, stream, generators, file)

    def _statement(self, entropy: Literal["operating-system", "fixed-seed"]) -> StreamStatement:
        factor = self.unit.adjacency.sensitivity_factor
        part = Part(
            clip_norm=self.sensitivity.value / factor,
            noise_multiplier=self.noise_multiplier * factor,
        )
        size = self.size or UNBOUNDED_DRAWS
        return StreamStatement(
            name=self.name,
            unit=self.unit,
            participation=Returning(max_participations=self.horizon, min_separation=1),
            parts={"values": part},
            dimensions={"values": size},
            divisor=1.0,
            horizon=self.horizon,
            population=self.population,
            entropy=entropy,
            sampler_delta=noise.sampler_delta(self.noise_multiplier, self.horizon * size),
            noise_law="on-grid",
            protects=self.protects,
            does_not_protect=self.does_not_protect,
            assumptions=(*self.assumptions, *self._assumptions()),
            gaps=self.gaps,
        )

    def _assumptions(self) -> tuple[Assumption, ...]:
        norm = (
            "Euclidean norm"
            if self.sensitivity.beta is None
            else (f"norm of the kernel exp(-{self.sensitivity.beta:.6g} |x - y|)")
        )
        stated = SENSITIVITY.assumption(
            name=repr(self.name),
            bound=at_most(self.sensitivity.value, 6),
            norm=norm,
            because=f"{self.sensitivity.because} (if rewards change by at most "
            f"{at_most(self.sensitivity.change, 6)})",
        )
        return (stated,)


class OpenFunctionRelease:
    """An opened release of functions. Only `release` and `release_function` release anything.

    Attributes:
        statement: as the ledger holds it.
    """

    def __init__(
        self,
        release: FunctionRelease,
        stream: LedgerStream,
        generators: noise.GeneratorSource,
        file: Callable[[int], Path] | None,
    ) -> None:
        self.statement = stream.statement
        self._release = release
        self._stream = stream
        self._generators = generators
        self._file = file

    @property
    def released(self) -> int:
        """Number of releases charged."""
        return self._stream.releases

    def release(
        self,
        values: Float[np.ndarray, "*nodes actions"],
        axes: Sequence[Float[np.ndarray, " _"]] | None = None,
    ) -> ReleasedValues:
        """Charges one release, and adds fresh noise to these values.

        Under a kernel the noise is an exact sample of its process at the nodes, one path for each
        action. Otherwise every value has independent noise.

        Args:
            values: the secret values, of the stated size. Values that are not finite count as 0.
            axes: positions of the nodes along each dimension, within [0, 1], strictly increasing.
                Needed under a kernel; otherwise they serve to interpolate between nodes.

        Raises:
            HorizonExceeded, LedgerUnavailable: nothing was released.
        """
        values = np.asarray(values, dtype=np.float64)
        release = self._release
        if values.size != release.size:
            raise ValueError(f"{values.size} values were given, and {release.size} were stated")
        self._require_actions(values.shape[-1])
        kept = None if axes is None else tuple(np.asarray(a, dtype=np.float64) for a in axes)
        self._check_axes(values.shape, kept)
        path = self._charge()
        noisy = self._noisy(np.where(np.isfinite(values), values, 0.0), kept)
        released = ReleasedValues(noisy, kept)
        if path is not None:
            released.save(path)
        return released

    def release_function(self, secret: SecretFunction, actions: int) -> ReleasedFunction:
        """Charges one release of a whole function, which is then asked wherever it is needed.

        Args:
            secret: the function on [0, 1]^d, which the owner keeps; it must never change. It is
                asked at 0 before anything is charged, then about one point at a time, each twice.
                The sensitivity is that of its values, where those that are not finite count as 0.
                It must have a value everywhere. Where it raises an error, or has two values at a
                new point or the first one, is not protected, so it then answers no new point any
                more, unless its file is opened again. d is the sensitivity's; a point costs
                O(log n) in one dimension, and O(n^2) in more.
            actions: number of functions; each has its own path.

        Raises:
            HorizonExceeded, LedgerUnavailable: nothing was released.
            ValueError: the function returns another shape at 0, or two values there; or the
                release is none of functions.
        """
        beta = self._release.sensitivity.beta
        if beta is None or self._release.size is not None:
            raise ValueError("functions are released under a kernel, and without a stated size")
        self._require_actions(actions)
        kernel = Kernel(beta=beta, sigma=self._release.sigma)
        dimensions = self._release.sensitivity.dimensions
        require_rows(secret, dimensions, actions)
        path = self._charge()
        return ReleasedFunction.create(
            kernel,
            self._release.sensitivity.value,
            actions,
            dimensions,
            secret,
            self._generators,
            path,
        )

    def _require_actions(self, actions: int) -> None:
        stated = self._release.sensitivity.actions
        if stated not in (None, actions):
            raise ValueError(f"the sensitivity is that of {stated} actions, and not of {actions}")

    def _check_axes(self, shape: tuple[int, ...], axes: tuple[np.ndarray, ...] | None) -> None:
        sensitivity = self._release.sensitivity
        under_kernel, dimensions = sensitivity.beta is not None, sensitivity.dimensions
        if axes is None:
            if under_kernel:
                raise ValueError("under a kernel the noise depends on where nodes are: give axes")
            return
        if shape[:-1] != tuple(map(len, axes)):
            raise ValueError(f"values have shape {shape}, and the axes {[len(a) for a in axes]}")
        if not all(np.isfinite(axis).all() and np.all(np.diff(axis) > 0) for axis in axes):
            raise ValueError("the positions along an axis must increase strictly")
        if (n := sensitivity.nodes) and not all(is_even(axis, n) for axis in axes):
            raise ValueError(f"the sensitivity is that of {n} even nodes on [0, 1]; give them")
        if under_kernel and len(axes) != dimensions:
            raise ValueError(
                f"the sensitivity is of functions in {dimensions} dimensions, not {len(axes)}"
            )
        if under_kernel and not all(axis[0] >= 0 and axis[-1] <= 1 for axis in axes):
            raise ValueError("functions under a kernel live on [0, 1]; scale the axes")
        if sensitivity.beta is not None:
            release = self._release
            one = grid_rounding(axes, sensitivity.beta, release.sigma, release.grid)
            release.require_resolved(shape[-1] * one)

    def _charge(self) -> Path | None:
        """Charges the next release, and returns the file for its values."""
        number = self._stream.releases
        self._stream.charge(number, 1, [PersonBlock(0, self._release.units or 1)])
        return self._file and self._file(number)

    def _noisy(
        self, values: Float[np.ndarray, "*nodes actions"], axes: tuple[np.ndarray, ...] | None
    ) -> Float[np.ndarray, "*nodes actions"]:
        sigma, beta = self._release.sigma, self._release.sensitivity.beta
        grid = self._release.grid
        generator = self._generators.next()
        if beta is not None and axes is not None:
            drawn = sample_grid(axes, beta, sigma, generator, values.shape[-1], grid).whole
        else:
            drawn = noise.rounded_normal(generator, values.shape, sigma / grid)
        # Integers on a public grid, added exactly: no low-order bits (section 2).
        return np.asarray((to_grid(values, grid) + drawn) * grid)


def release_file(folder: Path, run_id: str, stream: int, number: int) -> Path:
    """Returns the file that holds the values of a stream's release."""
    return folder / f"{run_id}-{stream}-{number}.values"


def kept_files(ledger: Ledger, folder: Path) -> tuple[Path | None, ...]:
    """Returns the file of every charged release, in order; None where nothing was written.

    The values in a file may be used for ever, at no further cost. A release without a file was
    killed between its charge and its file. Nothing of it was shown, and it stays charged.

    Args:
        ledger: of the run.
        folder: that its releases were opened with.
    """
    files = [
        release_file(folder, ledger.run_id, stream, number)
        for stream, record in enumerate(ledger.streams)
        for number in range(record.releases)
    ]
    return tuple(file if ReleaseFile.exists(file) else None for file in files)
