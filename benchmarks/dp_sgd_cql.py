"""Speed of DP-SGD over experts on a Q-network, against no privacy and against Opacus.

    python benchmarks/dp_sgd_cql.py            all of it, about ten minutes on two cores
    python benchmarks/dp_sgd_cql.py --quick    fewer and shorter repeats
    python benchmarks/dp_sgd_cql.py --json results.json

3,000 experts, 256 of them drawn at a step on average, one transition of each; CQL with a double
target on a network of two hidden layers of 256. A private step of sotto is everything that the door
does: secret draws, gathering, clipping, noise, and the ledger. Peers get their batches ready-made.
Every figure is the median of several interleaved repeats on one machine; what counts are the
ratios. Time on the clock is what a user waits: sotto draws its noise on a second core. Processor
time counts that too, and is what can be compared where other programs run beside.
Opacus needs the extra `benchmarks`; without it, its rows are left out, which is said.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np

from sotto.algorithms.expert_offline import dp_sgd
from sotto.algorithms.expert_offline.dp_sgd import DPSGDExpertsConfig, LogPool
from sotto.algorithms.offline import learner
from sotto.algorithms.offline.cql import CQL
from sotto.data.trajectories import ExpertLog, Transitions
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.privacy.units import EXPERT

EXPERTS, BATCH, OBSERVATION, ACTIONS, HIDDEN = 3_000, 256, 4, 2, 256
CHUNK, CHUNKS = 100, 4
OFFLINE = learner.OfflineConfig(OBSERVATION, ACTIONS, (1.0,) * OBSERVATION, (HIDDEN, HIDDEN))
LEARNER = CQL()

Case = Callable[[], int]
"""Makes some steps and returns how many."""


def experts_log() -> ExpertLog:
    """Five episodes of 200 steps for everybody, as large as matters for speed."""
    rng = np.random.default_rng(0)
    episodes, length = 5, 200
    steps = EXPERTS * episodes * length
    transitions = Transitions(
        rng.standard_normal((steps, OBSERVATION)).astype(np.float32),
        rng.integers(0, ACTIONS, steps).astype(np.int32),
        np.ones(steps, np.float32),
        rng.standard_normal((steps, OBSERVATION)).astype(np.float32),
        np.zeros(steps, bool),
    )
    lasts = np.arange(steps) % length == length - 1
    return ExpertLog(transitions, lasts, np.full(EXPERTS, episodes * length))


def private(log: ExpertLog, folder: Path) -> Case:
    """Through the door, with a ledger that is synced to disk, every `CHUNK` steps."""
    config = DPSGDExpertsConfig(EXPERTS, 10.0, 1 / (10 * EXPERTS), steps=20_000, batch=BATCH)
    budget = Budget(epsilon=float("inf"), delta=config.delta)
    ledger = Ledger.create(folder / "ledger.sqlite", unit=EXPERT, budget=budget)
    keys = jax.random.split(jax.random.key(0), 1)
    states = jax.tree.map(lambda x: x[None], dp_sgd.initial_state(config, OFFLINE, keys[0]))
    pool = LogPool(log)
    stream, states = dp_sgd.open_gradients(
        config, OFFLINE, LEARNER, [ledger], states, pool, multiplier=2.0, chunk=CHUNK
    )

    def steps() -> int:
        nonlocal states
        for _ in range(CHUNKS):
            states = dp_sgd.advance(config, stream, states, keys, pool, CHUNK)
        jax.block_until_ready(states)
        return CHUNKS * CHUNK

    return steps


def plain(log: ExpertLog) -> Case:
    """The same learner without privacy, 256 transitions in each step, as `--method cql` trains."""
    data = jax.tree.map(jnp.asarray, log.transitions)
    state, key = learner.initial_state(OFFLINE, jax.random.key(0)), jax.random.key(1)
    average = state.network

    def steps() -> int:
        nonlocal state, average
        for _ in range(CHUNKS):
            state, average, _ = learner.train_chunk(
                OFFLINE, LEARNER, state, average, data, key, CHUNK
            )
        jax.block_until_ready(state)
        return CHUNKS * CHUNK

    return steps


def opacus(log: ExpertLog, mode: str | None, steps_at_once: int) -> Case:
    """PyTorch: `mode` hooks or ghost of Opacus, or None without privacy."""
    import torch
    from opacus import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from torch import nn

    torch.set_num_threads(1)
    data = [torch.from_numpy(np.array(x)) for x in log.transitions]

    def layers() -> Any:
        return nn.Sequential(
            nn.Linear(OBSERVATION, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, ACTIONS),
        )

    network, target, chooser = layers(), layers(), layers()
    target.load_state_dict(network.state_dict())
    adam = torch.optim.Adam(network.parameters(), lr=1e-3)
    noise = {"noise_multiplier": 2.0, "max_grad_norm": 1.0, "expected_batch_size": BATCH}
    model: Any = network
    optimizer: Any = adam
    if mode == "hooks":
        model = GradSampleModule(network)
        optimizer = DPOptimizer(adam, **noise)
    elif mode == "ghost":
        model = GradSampleModuleFastGradientClipping(
            network, max_grad_norm=1.0, use_ghost_clipping=True
        )
        optimizer = DPOptimizerFastGradientClipping(adam, **noise)

    class Loss(nn.Module):  # type: ignore[misc]
        """CQL of each transition, given outputs and (goals, actions)."""

        reduction = "mean"

        def forward(self, outputs: Any, goal: Any, actions: Any) -> Any:
            value = outputs.gather(1, actions[:, None])[:, 0]
            gap = torch.logsumexp(outputs, dim=1) - value
            loss = nn.functional.huber_loss(value, goal, reduction="none") + LEARNER.alpha * gap
            return loss.mean() if self.reduction == "mean" else loss

    class Target(nn.Module):  # type: ignore[misc]
        """Goals and actions as the one argument that Opacus's wrapper of losses passes on."""

        def __init__(self, reduction: str = "mean"):
            super().__init__()
            self.reduction = reduction
            self.loss = Loss()

        def forward(self, outputs: Any, packed: Any) -> Any:
            self.loss.reduction = self.reduction
            return self.loss(outputs, packed[:, 0], packed[:, 1].long())

    criterion: Any = Target()
    if mode == "ghost":
        criterion = DPLossFastGradientClipping(model, optimizer, criterion)

    def step() -> None:
        rows = torch.randint(len(data[1]), (BATCH,))
        observations, actions, rewards, following, terminated = (x[rows] for x in data)
        with torch.no_grad():
            best = network_values(following).argmax(dim=1)
            later = target(following).gather(1, best[:, None])[:, 0] * ~terminated
            goal = LEARNER.reward_scale * rewards + LEARNER.discount * later
        optimizer.zero_grad()
        loss = criterion(model(observations), torch.stack([goal, actions.float()], dim=1))
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            pairs = zip(target.parameters(), network.parameters(), strict=True)
            for old, new in pairs:
                old.lerp_(new, LEARNER.target_rate)

    def network_values(observations: Any) -> Any:
        # Without the hooks, which would record activations: the same weights.
        return torch.func.functional_call(chooser, dict(network.named_parameters()), observations)

    def steps() -> int:
        for _ in range(steps_at_once):
            step()
        return steps_at_once

    return steps


def seconds_of_a_step(case: Case) -> tuple[float, float]:
    """On the clock, and of processors."""
    begin, used = time.perf_counter(), time.process_time()
    made = case()
    seconds = time.perf_counter() - begin
    time.sleep(0.5)  # noise of a next chunk is drawn while no other case is measured
    return seconds / made, (time.process_time() - used) / made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    repeats = 5 if arguments.quick else arguments.repeats
    log = experts_log()
    with tempfile.TemporaryDirectory() as folder:
        cases = {"sotto, private": private(log, Path(folder)), "sotto, not private": plain(log)}
        if find_spec("opacus") is None:
            print("Opacus is not installed: its rows are left out (pip install sotto[benchmarks])")
        else:
            cases |= {
                "PyTorch, not private": opacus(log, None, CHUNK),
                "Opacus, ghost clipping": opacus(log, "ghost", CHUNK // 5),
                "Opacus, hooks": opacus(log, "hooks", CHUNK // 20),
            }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for case in cases.values():
            for _ in range(2):  # compiles, and draws the first noise
                case()
        for repeat in range(repeats):
            for name, case in cases.items():
                found[name].append(seconds_of_a_step(case))
            row = ", ".join(f"{name} {1e3 * found[name][-1][0]:.2f}" for name in cases)
            print(f"repeat {repeat + 1}/{repeats}, ms: {row}", flush=True)
    clock, processor = (
        {name: statistics.median(one[i] for one in some) for name, some in found.items()}
        for i in (0, 1)
    )
    print(f"\n{'':26}{'ms/step':>9}{'steps/s':>9}{'/ private':>11}{'CPU ms':>9}{'/ private':>11}")
    for name in cases:
        times, cpu = (some[name] / some["sotto, private"] for some in (clock, processor))
        print(
            f"{name:26}{1e3 * clock[name]:9.2f}{1 / clock[name]:9.0f}{times:11.2f}"
            f"{1e3 * processor[name]:9.2f}{cpu:11.2f}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of the process: {peak:.2f} GiB")
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                {"seconds": clock, "processor_seconds": processor, "all": found, "peak_gib": peak},
                indent=2,
            )
        )


if __name__ == "__main__":
    main()
