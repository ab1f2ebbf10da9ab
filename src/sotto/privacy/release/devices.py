"""The devices over which a stream maps people.

```
with over_devices(4):
    stream = release.open(...)     # every device computes a quarter of the people
```

Each device clips, rounds and sums its own people. The sums of the devices are added as integers,
and noise is drawn, added and charged once.

Guarantee:
    No equation of the proof has the number of devices: a person is on one device, and the total
    is the exact sum over all devices. With the same noise, releases on another number of devices
    differ only where the compiler rounds what `local` computes otherwise in a program for them.
    With `microbatch` this is rare, since each device then maps `local` over as many people at once.
    It is small unless large numbers cancel in `local`. Contributions that are exact in float32,
    such as votes, are the same bit for bit. A `world` and `unprotected` parts, which are sums of
    floats, may differ by more.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from sotto.trees import at, flattened

_AXIS = "people"
_chosen: ContextVar[int] = ContextVar("devices", default=1)

_LONGEST_SECONDS = 30 * 86_400
"""Longest time that processors wait for each other; XLA's own is 40 seconds, after which it ends
the process. Devices that share a core wait for longer than that."""


@contextmanager
def over_devices(count: int) -> Iterator[None]:
    """Maps people over this many devices in every stream that this thread opens in the context.

    On a machine without accelerators, each processor core can be a device.

    Raises:
        ValueError: JAX has fewer devices.
    """
    if count < 1:
        raise ValueError(f"the number of devices must be at least 1, got {count}")
    if count > 1:
        _require(count)
    token = _chosen.set(count)
    try:
        yield
    finally:
        _chosen.reset(token)


class Devices:
    """The devices of a stream.

    Attributes:
        count: number of devices.
        compiler_options: options of XLA that programs on several devices need.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._mesh = Mesh(np.array(jax.devices()[:count]), (_AXIS,)) if count > 1 else None
        self.compiler_options: dict[str, int] = {}
        if count > 1 and jax.default_backend() == "cpu":
            name = "xla_cpu_collective_call_terminate_timeout_seconds"
            self.compiler_options = {name: _LONGEST_SECONDS}

    @staticmethod
    def chosen() -> "Devices":
        """Returns the devices of the present context (`over_devices`)."""
        return Devices(_chosen.get())

    def sum(
        self,
        total: Callable[[Any, Any, Any, Any], tuple[PyTree, PyTree]],
        batch: int | None,
        state: PyTree,
        key: Any,
        persons: Any,
        units: PyTree,
    ) -> tuple[PyTree, PyTree]:
        """Sums over people, who are spread over the devices.

        Args:
            total: `(state, key, persons, units) -> (totals, diagnostics)` for any number of people
                that is a multiple of `batch`. A person of number -1 must count as zero.
            batch: number of people in each call of `total`, which does not depend on the devices;
                or None for all that a device has.
            state, key: the same for everybody.
            persons, units: leaves of shape [people, ...].

        Returns:
            The totals, and the diagnostics of all people, leaves of shape [people, ...].
        """
        people = persons.shape[0]
        each = math.ceil(people / self.count)
        batch = batch or each
        padding = math.ceil(each / batch) * batch * self.count - people
        if padding:
            persons = jnp.pad(persons, (0, padding), constant_values=-1)
            units = jax.tree.map(
                lambda x: jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)), units
            )

        def share(state: Any, key: Any, persons: Any, units: Any) -> tuple[Any, Any]:
            totals, diagnostics = _in_batches(total, batch, state, key, persons, units)
            return jax.lax.psum(totals, _AXIS), diagnostics

        if self._mesh is None:
            totals, diagnostics = _in_batches(total, batch, state, key, persons, units)
        else:
            one, spread = PartitionSpec(), PartitionSpec(_AXIS)
            totals, diagnostics = jax.shard_map(
                share,
                mesh=self._mesh,
                in_specs=(one, one, spread, spread),
                out_specs=(one, spread),
                check_vma=False,  # it refuses loops whose first value is the same for everybody
            )(state, key, persons, units)
        if padding:
            diagnostics = jax.tree.map(lambda x: x[:people], diagnostics)
        return totals, diagnostics

    def spread(self, tree: PyTree, axis: int | None = None) -> PyTree:
        """Returns arrays on all devices.

        Args:
            tree: arrays of one device, or of the host.
            axis: axis of people, of which each device gets its share where it can be divided. None:
                each device gets everything.
        """
        mesh = self._mesh
        if mesh is None:
            return tree

        def place(x: Any) -> Any:
            shared = axis is not None and x.shape[axis] % self.count == 0
            spec = PartitionSpec(*[None] * (axis or 0), _AXIS) if shared else PartitionSpec()
            return jax.device_put(x, NamedSharding(mesh, spec))

        return jax.tree.map(place, tree)

    def gathered(self, tree: PyTree) -> PyTree:
        """Returns arrays on the first device."""
        return tree if self._mesh is None else jax.device_put(tree, jax.devices()[0])


def _in_batches(
    total: Callable[..., tuple[Any, Any]],
    batch: int,
    state: Any,
    key: Any,
    persons: Any,
    units: Any,
) -> tuple[Any, Any]:
    """Sums over all people of one device, `batch` of them at a time."""
    if persons.shape[0] == batch:
        return total(state, key, persons, units)
    batches = jax.tree.map(lambda x: x.reshape(-1, batch, *x.shape[1:]), (persons, units))
    first = at(batches, 0)
    shapes, _ = jax.eval_shape(total, state, key, *first)

    def add(totals: Any, one: Any) -> tuple[Any, Any]:
        of_batch, diagnostics = total(state, key, *one)
        return jax.tree.map(jnp.add, totals, of_batch), diagnostics

    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    totals, diagnostics = jax.lax.scan(add, start, batches)
    return totals, flattened(diagnostics)


def _require(count: int) -> None:
    """Makes processor cores devices if there is no accelerator, and counts the devices."""
    if count <= (os.cpu_count() or 1):
        with suppress(RuntimeError):  # JAX has counted its devices before
            jax.config.update("jax_num_cpu_devices", count)
    if (found := len(jax.devices())) < count:
        raise ValueError(
            f"{count} devices were asked for, and JAX has {found} ({jax.default_backend()}); ask "
            "for fewer"
        )
