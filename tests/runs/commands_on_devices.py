"""A program for `test_commands_on_devices`: a command on one and on two devices, with equal noise.

It prints a JSON object about the runs on two devices: how many devices each stream used, and how
far the states that were stored are from those of one device (largest difference of a number, as a
share of the largest number beside it). In the second of them the second device is left out.
"""

import json
import sys

import jax
import numpy as np

from sotto.algorithms.expert_offline import config as expert_offline_config
from sotto.cli import main
from sotto.privacy.mechanisms.noise import AESCounter, GeneratorSource
from sotto.privacy.release.devices import Devices
from sotto.runs import checkpoints


def equal_noise(source: GeneratorSource) -> np.random.Generator:
    """Stands in for `GeneratorSource.next`: every run draws the same noise."""
    source._used += 1
    return np.random.Generator(AESCounter(np.random.SeedSequence([7, source._used], pool_size=8)))


def made(words: list[str]) -> tuple[list[int], list[dict[str, np.ndarray]]]:
    """Runs a command and verifies its certificate; returns the devices and the states stored."""
    devices, states = [], []
    chosen, save = Devices.chosen, checkpoints.save

    def note_devices():
        devices.append(chosen().count)
        return chosen()

    def note_state(directory, updates, state, made=None):
        states.append({name: np.array(x) for name, x in checkpoints._named(state).items()})
        save(directory, updates, state, made)

    Devices.chosen, checkpoints.save = note_devices, note_state
    assert main([*words, "--json"]) == 0
    Devices.chosen, checkpoints.save = chosen, save
    assert main(["certificate", words[-1], "--verify", "--json"]) == 0
    return devices, states


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Largest difference of a number, as a share of the largest number of its array."""
    assert one.keys() == other.keys()
    return max(
        float(np.abs(x.astype(float) - other[name]).max(initial=0))
        / max(float(np.abs(x.astype(float)).max(initial=0)), 1e-30)
        for name, x in one.items()
    )


if __name__ == "__main__":
    GeneratorSource.next = equal_noise
    expert_offline_config.LEARNING_PARTS = 1
    folder, *words = sys.argv[1:]
    _, alone = made([*words, "--out", f"{folder}/one"])
    found = {}
    for name in ("two", "mistake"):
        if name == "mistake":
            jax.lax.psum = lambda total, axis: total
        devices, states = made([*words, "--devices", "2", "--out", f"{folder}/{name}"])
        far = max(distance(x, y) for x, y in zip(alone, states, strict=True))
        found[name] = {"devices": devices, "distance": far}
    print(json.dumps(found))
