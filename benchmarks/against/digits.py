"""DP-SGD on scikit-learn's digits: the task, sotto's door, and plain JAX.

1,437 pictures of 64 pixels are learned from and 360 are kept for the test. Everybody has the same
network (two hidden layers of 128, tanh), Poisson sampling of 256 pictures on average, clip norm
and optimiser (Adam).
"""

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from sotto.algorithms.calibration import calibrated_multiplier
from sotto.privacy.accounting.composition import SampledGaussian
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.release.factored import Factored
from sotto.privacy.release.release import Release
from sotto.privacy.statements import Part, Poisson
from sotto.privacy.units import Adjacency, Unit
from sotto.rl.networks import MLP

HIDDEN, CLASSES, PIXELS = (128, 128), 10, 64
TRAINED, BATCH, CLIP, LEARNING_RATE = 1437, 256, 1.0, 2e-3
RATE, DELTA = BATCH / TRAINED, 1e-5
UNIT = Unit(kind="transition", adjacency=Adjacency.ZERO_OUT)
OPTIMIZER = optax.adam(LEARNING_RATE)


@dataclass(frozen=True)
class Task:
    """Pictures [n, 64] between 0 and 1, and their digits."""

    pictures: np.ndarray
    digits: np.ndarray
    test_pictures: np.ndarray
    test_digits: np.ndarray


@cache
def task() -> Task:
    """Returns the pictures in a public random order."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    pictures = (bunch.data[order] / 16).astype(np.float32)
    digits = bunch.target[order].astype(np.int32)
    return Task(pictures[:TRAINED], digits[:TRAINED], pictures[TRAINED:], digits[TRAINED:])


def network(seed: int) -> MLP:
    """Returns the network before training."""
    return MLP(PIXELS, CLASSES, HIDDEN, jax.random.key(seed))


def loss(network: MLP, picture: Any, digit: Any) -> Any:
    """Returns the cross entropy of one picture."""
    return -jax.nn.log_softmax(network(picture))[digit]


def accuracy(network: MLP) -> float:
    """Returns the share of test pictures that are recognised."""
    given = task()
    answers = network(jnp.asarray(given.test_pictures)).argmax(-1)
    return float(jnp.mean(answers == given.test_digits))


def factored(network: MLP, picture: Any, digit: Any) -> MLP:
    """Returns the gradient of `loss`, with weight matrices as outer products."""
    inputs = [picture]
    *hidden, last = zip(network.weights, network.biases, strict=True)
    for weight, bias in hidden:
        inputs.append(jnp.tanh(inputs[-1] @ weight + bias))
    probabilities = jax.nn.softmax(inputs[-1] @ last[0] + last[1])
    back = [probabilities - jax.nn.one_hot(digit, CLASSES)]
    for weight, output in zip(reversed(network.weights[1:]), reversed(inputs[1:]), strict=True):
        back.append((back[-1] @ weight.T) * (1 - jnp.square(output)))
    back.reverse()
    leaves = [*itertools.starmap(Factored, zip(inputs, back, strict=True)), *back]
    gradient: MLP = jax.tree.unflatten(jax.tree.structure(network), leaves)
    return gradient


def least_noise(epsilon: float, steps: int) -> float:
    """Returns the noise multiplier that sotto's accountant needs for this epsilon."""
    size = sum(leaf.size for leaf in jax.tree.leaves(network(0)))
    return calibrated_multiplier(
        lambda z: [SampledGaussian(noise_multiplier=z, sampling_rate=RATE, count=steps)],
        epsilon,
        DELTA,
        draws=steps * size,
        met=steps,
    )


class Door:
    """Training through sotto's door: draws, clipping, noise and ledger included."""

    def __init__(self, noise: float, steps: int, seeds: int, chunk: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.chunk = chunk
        budget = Budget(epsilon=float("inf"), delta=DELTA)
        where = Path(self._folder.name)
        ledgers = [
            Ledger.create(where / f"{seed}.sqlite", unit=UNIT, budget=budget)
            for seed in range(seeds)
        ]

        def local(state: Any, unit: Any, key: Any) -> tuple[dict[str, Any], tuple[()]]:
            del key
            return {"gradient": factored(state[0], *unit)}, ()

        def server(state: Any, released: Any) -> tuple[Any, tuple[()]]:
            updates, optimizer_state = OPTIMIZER.update(released["gradient"], state[1])
            return (optax.apply_updates(state[0], updates), optimizer_state), ()

        release = Release(
            name="gradients",
            local=local,
            server=server,
            unit=UNIT,
            parts={"gradient": Part(clip_norm=CLIP, noise_multiplier=noise)},
            slots=TRAINED,
            divisor=float(BATCH),
            horizon=steps,
            population="real",
            participation=Poisson(sampling_rate=RATE, population=TRAINED),
        )
        each = [network(seed) for seed in range(seeds)]
        states = [(one, OPTIMIZER.init(one)) for one in each]
        self._states: Any = jax.tree.map(lambda *x: jnp.stack(x), *states)
        self._keys = jax.random.split(jax.random.key(0), seeds)
        units = (jnp.asarray(task().pictures), jnp.asarray(task().digits))
        self._units = jax.tree.map(lambda x: jnp.broadcast_to(x, (seeds, *x.shape)), units)
        self._stream = release.open(ledgers, self._states, units, chunk=chunk)
        self.ledgers = ledgers

    def steps(self) -> int:
        """Makes a chunk of steps and returns the mean number of pictures in them."""
        self._states, _, _ = self._stream.run(self._states, self._keys, units=self._units)
        jax.block_until_ready(self._states)
        return self.chunk * BATCH

    def accuracies(self) -> list[float]:
        """Returns the accuracy of each seed."""
        seeds = len(self.ledgers)
        return [accuracy(jax.tree.map(lambda x, i=i: x[i], self._states[0])) for i in range(seeds)]


def plain(chunk: int) -> Callable[[], int]:
    """Returns steps of Adam in JAX without privacy, on fixed batches that are drawn inside."""
    pictures, digits = jnp.asarray(task().pictures), jnp.asarray(task().digits)

    def step(state: Any, key: Any) -> tuple[Any, None]:
        now, optimizer_state = state
        rows = jax.random.randint(key, (BATCH,), 0, TRAINED)

        def mean_loss(now: MLP) -> Any:
            return jnp.mean(jax.vmap(loss, (None, 0, 0))(now, pictures[rows], digits[rows]))

        updates, optimizer_state = OPTIMIZER.update(jax.grad(mean_loss)(now), optimizer_state)
        return (optax.apply_updates(now, updates), optimizer_state), None

    program = jax.jit(lambda s, k: jax.lax.scan(step, s, jax.random.split(k, chunk))[0])
    state: Any = (network(0), OPTIMIZER.init(network(0)))

    def steps() -> int:
        nonlocal state
        state = jax.block_until_ready(program(state, jax.random.key(0)))
        return chunk * BATCH

    return steps
