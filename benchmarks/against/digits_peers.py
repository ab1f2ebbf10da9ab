"""The same DP-SGD on digits by jax_privacy and by Opacus, as their guides show it."""

import itertools
from functools import cache
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from dp_accounting.pld import PLDAccountant
from jax_privacy.batch_selection import CyclicPoissonSampling, pad_to_multiple_of
from jax_privacy.noise_addition import gaussian_privatizer

from against import digits
from against.digits import BATCH, CLASSES, CLIP, DELTA, HIDDEN, OPTIMIZER, PIXELS, RATE, TRAINED

LARGEST = 384
"""Padded batch of jax_privacy: 8 standard deviations above the mean, so nobody is left out."""


def noise_by_dp_accounting(epsilon: float, steps: int) -> float:
    """Returns the noise multiplier that dp_accounting's PLD accountant needs."""
    return float(
        dp_accounting.calibrate_dp_mechanism(
            PLDAccountant,
            lambda z: dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(z)), steps
            ),
            epsilon,
            DELTA,
        )
    )


def noise_by_opacus(epsilon: float, steps: int) -> float:
    """Returns the noise multiplier that Opacus' default accountant (PRV) needs."""
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=DELTA,
            sample_rate=RATE,
            steps=steps,
            accountant="prv",
        )
    )


@cache
def private_step(noise: float) -> tuple[Any, Any]:
    """Returns jax_privacy's privatizer and a compiled step, which all seeds share."""
    gradient = jax_privacy.clipped_grad(
        digits.loss, batch_argnums=(1, 2), keep_batch_dim=False, l2_clip_norm=CLIP
    )
    privatizer = gaussian_privatizer(stddev=noise * CLIP, prng_key=jax.random.key(0))

    @jax.jit
    def step(state: Any, pictures: Any, labels: Any, padding: Any) -> Any:
        now, optimizer_state, noise_state = state
        total = gradient(now, pictures, labels, is_padding_example=padding)
        noisy, noise_state = privatizer.update(total, noise_state)
        mean = jax.tree.map(lambda x: x / BATCH, noisy)
        updates, optimizer_state = OPTIMIZER.update(mean, optimizer_state)
        return optax.apply_updates(now, updates), optimizer_state, noise_state

    return privatizer, step


class JaxPrivacy:
    """Training by jax_privacy: clipped_grad, gaussian_privatizer, Poisson batches with padding."""

    def __init__(self, noise: float, steps: int, seed: int, chunk: int) -> None:
        self.chunk, given = chunk, digits.task()
        self._pictures, self._digits = given.pictures, given.digits
        privatizer, self._step = private_step(noise)
        first = digits.network(seed)
        _, noise_state = privatizer.init(first)
        own = (jax.random.key(seed), noise_state)
        self.state: Any = (first, OPTIMIZER.init(first), own)
        self._batches = CyclicPoissonSampling(RATE, steps).batch_iterator(TRAINED, rng=seed)

    def steps(self) -> int:
        """Makes a chunk of steps and returns the mean number of pictures in them."""
        for _ in range(self.chunk):
            rows = pad_to_multiple_of(next(self._batches), LARGEST)
            assert len(rows) == LARGEST
            self.state = self._step(
                self.state, self._pictures[rows], self._digits[rows], jnp.asarray(rows < 0)
            )
        jax.block_until_ready(self.state)
        return self.chunk * BATCH

    def accuracy(self) -> float:
        return digits.accuracy(self.state[0])


class Torch:
    """Training by PyTorch: Opacus with `mode` "hooks" or "ghost", or None without privacy."""

    def __init__(self, noise: float, seed: int, chunk: int, mode: str | None) -> None:
        import torch
        from opacus import PrivacyEngine
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.chunk, self._torch = chunk, torch
        given = digits.task()
        sizes = (PIXELS, *HIDDEN, CLASSES)
        layers: list[Any] = []
        for left, right in itertools.pairwise(sizes):
            layers += [nn.Linear(left, right), nn.Tanh()]
        model: Any = nn.Sequential(*layers[:-1])
        for layer, weight in zip(layers[::2], digits.network(seed).weights, strict=True):
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(np.array(weight.T)))
                layer.bias.zero_()
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=digits.LEARNING_RATE)
        criterion: Any = nn.CrossEntropyLoss()
        data = TensorDataset(
            torch.from_numpy(given.pictures), torch.from_numpy(given.digits.astype(np.int64))
        )
        if mode is None:
            self._pictures, self._labels = data.tensors
        else:
            ghost = {"grad_sample_mode": "ghost", "criterion": criterion} if mode == "ghost" else {}
            made = PrivacyEngine(accountant="prv").make_private(
                module=model,
                optimizer=optimizer,
                data_loader=DataLoader(data, batch_size=BATCH),
                noise_multiplier=noise,
                max_grad_norm=CLIP,
                poisson_sampling=False,
                **ghost,
            )
            model, optimizer = made[0], made[1]
            criterion = made[2] if mode == "ghost" else criterion
            # Opacus' loader copies picture by picture, which would count against it: the same
            # Poisson batches are taken from the tensors at once.
            optimizer.expected_batch_size = BATCH
            self._pictures, self._labels = data.tensors
        self._model, self._optimizer, self._criterion = model, optimizer, criterion
        self._private, self._generator = mode is not None, torch.Generator().manual_seed(seed)

    def steps(self) -> int:
        """Makes a chunk of steps and returns the mean number of pictures in them."""
        torch = self._torch
        for _ in range(self.chunk):
            if self._private:
                coins = torch.rand(TRAINED, generator=self._generator) < RATE
                rows = coins.nonzero().squeeze(1)
            else:
                rows = torch.randint(TRAINED, (BATCH,), generator=self._generator)
            self._optimizer.zero_grad()
            self._criterion(self._model(self._pictures[rows]), self._labels[rows]).backward()
            self._optimizer.step()
        return self.chunk * BATCH

    def accuracy(self) -> float:
        given, torch = digits.task(), self._torch
        with torch.no_grad():
            seen = self._model(torch.from_numpy(given.test_pictures)).argmax(1).numpy()
        return float(np.mean(seen == given.test_digits))
