"""A program for `test_devices`: the same releases on 1, 2, 4 and 8 devices, as digests.

It prints a JSON object with the digests of each kind of release, one for each number of devices.
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.release.devices import over_devices
from sotto.privacy.release.factored import Factored
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part, Poisson
from sotto.privacy.units import Adjacency, Unit

UNIT = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
DEVICES = (1, 2, 4, 8)
RELEASES, SIZE = 3, 16


def walk(state: Array, unit: Array, key: Array) -> Any:
    """A person whose contribution takes many roundings, and depends on the state and the key."""

    def step(at: Array, one: Array) -> Any:
        after = jnp.tanh(state @ at + jax.random.normal(one, (SIZE,)))
        return after, after.sum()

    last, seen = jax.lax.scan(step, unit, jax.random.split(key, 20))
    return {"u": last}, seen


def gradient(state: Array, unit: Array, key: Array) -> Any:
    parts, seen = walk(state, unit, key)
    return {"u": Factored(parts["u"], jnp.sin(parts["u"]))}, seen


def add(state: Array, released: Any) -> Any:
    return state + 0.1 * released["u"].reshape(-1)[:SIZE], released


def digest(slots: int, devices: int, **changes: Any) -> str:
    """Digest of the states, the log, the diagnostics and the ledger of some releases."""
    sampled = "participation" in changes
    fields: dict[str, Any] = {
        "name": "update",
        "local": walk,
        "server": add,
        "unit": UNIT,
        "parts": {"u": Part(clip_norm=1.0, noise_multiplier=5.0)},
        "slots": slots,
        "divisor": float(slots),
        "horizon": RELEASES,
        "population": "simulated",
    }
    runs = changes.pop("runs", 1)
    chance = np.random.default_rng(slots)
    units = chance.normal(size=(runs, RELEASES, slots, SIZE)).astype(np.float32)
    persons = np.arange(RELEASES * slots).reshape(1, RELEASES, slots).repeat(runs, 0)
    persons[:, :, 1::3] = -1  # people who did not come
    states = jnp.asarray(chance.normal(size=(runs, SIZE, SIZE)), jnp.float32)
    keys = jax.random.split(jax.random.key(slots, impl="threefry2x32"), runs)
    with TemporaryDirectory() as folder, over_devices(devices):
        ledgers = [
            Ledger.create(
                Path(folder) / f"{run}.sqlite",
                "run",
                unit=UNIT,
                budget=Budget(epsilon=math.inf, delta=1e-5),
            )
            for run in range(runs)
        ]
        stream = Release(**(fields | changes)).open(
            ledgers, states, units[0, 0], chunk=2, noise_seed=1
        )
        seen = []
        for begin, count in ((0, 2), (2, 1)):  # the second chunk is padded
            if sampled:
                states, *found = stream.run(states, keys, None, units[:, 0])
            else:
                part = slice(begin, begin + count)
                states, *found = stream.run(states, keys, persons[:, part], units[:, part])
            seen.append(found)
        charges = [[one.releases for one in ledger.streams] for ledger in ledgers]
    found = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((states, seen))]
    return hashlib.sha256(b"".join(found) + json.dumps(charges).encode()).hexdigest()


KINDS: dict[str, dict[str, Any]] = {
    "64 people": {"slots": 64, "microbatch": 8},
    "13 people": {"slots": 13, "microbatch": 1},
    "29 people in batches of 3": {"slots": 29, "microbatch": 3},
    "one batch of all": {"slots": 8, "microbatch": 16},
    "fewer people than devices": {"slots": 3, "microbatch": 1},
    "two runs": {"slots": 20, "microbatch": 2, "runs": 2},
    "factored": {"slots": 24, "microbatch": 3, "local": gradient},
    "sampled": {
        "slots": 60,
        "microbatch": 4,
        "participation": Poisson(sampling_rate=0.3, population=60),
    },
    "sampled and factored": {
        "slots": 60,
        "microbatch": 4,
        "local": gradient,
        "participation": Poisson(sampling_rate=0.3, population=60),
    },
}

MISTAKES: dict[str, Callable[[Any, str], Any]] = {
    "sum-of-one-device": lambda total, axis: total,
    "noise-of-each-device": lambda total, axis: PSUM(jax.tree.map(lambda x: x + 1, total), axis),
}
PSUM = jax.lax.psum

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", max(DEVICES))
    kinds = KINDS
    if mistakes := sys.argv[1:]:
        jax.lax.psum = MISTAKES[mistakes[0]]
        kinds = {"64 people": KINDS["64 people"]}
    print(json.dumps({k: [digest(devices=d, **v) for d in DEVICES] for k, v in kinds.items()}))
