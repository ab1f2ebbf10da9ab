"""DP-SGD on digits: examples per second at equal noise, and accuracy at equal epsilon."""

import time
from typing import Any

from against.digits import Door, least_noise, plain
from against.digits_peers import JaxPrivacy, Torch, noise_by_dp_accounting, noise_by_opacus
from against.kept import Row, alternated, rate

STEPS = 168
"""Thirty passes over the pictures."""


def speed(quick: bool) -> list[Row]:
    """Returns a row for each library, private and not; noise multiplier 2."""
    repeats, chunk = (3, 20) if quick else (9, 100)
    noise, most = 2.0, chunk * (repeats + 2)
    cases: dict[str, Any] = {
        "sotto": Door(noise, most, 1, chunk).steps,
        "JAX, not private": plain(chunk),
        "jax_privacy": JaxPrivacy(noise, most, 0, chunk).steps,
        "PyTorch, not private": Torch(noise, 0, chunk, None).steps,
        "Opacus, ghost clipping": Torch(noise, 0, chunk, "ghost").steps,
        "Opacus, hooks": Torch(noise, 0, chunk, "hooks").steps,
    }
    for case in cases.values():
        case()
    rates = alternated({name: rate(case) for name, case in cases.items()}, repeats)
    return [{"name": name, "rates": found} for name, found in rates.items()]


def accuracy(quick: bool) -> list[Row]:
    """Returns a row for each library and epsilon. Each calibrates its noise by its accountant."""
    seeds, steps = (2, 20) if quick else (5, STEPS)
    rows: list[Row] = []

    def add(name: str, epsilon: float, noise: float, found: list[float], began: float) -> None:
        rows.append(
            {
                "name": name,
                "epsilon": epsilon,
                "noise_multiplier": noise,
                "accuracies": found,
                "seconds": time.perf_counter() - began,
            }
        )
        print(f"  epsilon {epsilon:g}, {name}: {found}, noise {noise:.4f}", flush=True)

    for epsilon in (1.0, 3.0, 8.0):
        began = time.perf_counter()
        noise = least_noise(epsilon, steps)
        door = Door(noise, steps, seeds, steps)
        door.steps()
        assert all(one.spent().epsilon <= epsilon for one in door.ledgers)
        add("sotto", epsilon, noise, door.accuracies(), began)
        began = time.perf_counter()
        noise, found = noise_by_dp_accounting(epsilon, steps), []
        for seed in range(seeds):
            peer = JaxPrivacy(noise, steps, seed, steps)
            peer.steps()
            found.append(peer.accuracy())
        add("jax_privacy", epsilon, noise, found, began)
        began = time.perf_counter()
        noise, found = noise_by_opacus(epsilon, steps), []
        for seed in range(seeds):
            torch = Torch(noise, seed, steps, "ghost")
            torch.steps()
            found.append(torch.accuracy())
        add("Opacus", epsilon, noise, found, began)
    return rows
