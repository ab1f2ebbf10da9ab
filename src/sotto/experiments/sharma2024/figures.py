"""Sharma et al. 2024, "Preserving Expert-Level Privacy in Offline Reinforcement Learning".

A figure is a list of arms; an arm is one method with its settings, trained with several seeds, each
under a ledger of its own. Arms are kept as they finish, with ledgers and certificates, and figures
share them. What comes out is data first (`Outcome`), drawn by `runs.sharma_figures`. Epsilon and
status are the certificates'; an arm whose certificate is not proved is an error.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sotto.algorithms.expert_offline import arms as training
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.presets import filled
from sotto.algorithms.expert_offline.states import Sources, evaluate, initial_states, policies
from sotto.experiments.sharma2024.arms import Arm, EnvName, FigureName, Reference, arms
from sotto.experiments.sharma2024.references import majority_returns, sampled_return
from sotto.experiments.statistics import half_width
from sotto.keys import new_key
from sotto.privacy.certificates import derive
from sotto.privacy.errors import NothingReleased, PrivacyError
from sotto.privacy.ledger.ledger import Ledger

_FORMAT = 4  # of what is kept: raise it when training or evaluation changes
_EPISODES, _QUICK_EPISODES = 100, 20  # of each seed's policy in the end
_MAJORITY_EPISODES = 200  # of all seeds together: each step asks every expert


@dataclass(frozen=True)
class Outcome:
    """What one arm gave.

    Attributes:
        figure, arm, label, x, note: as in `Arm`.
        env_id: where.
        experts: how many there are.
        status: of its certificates; "none" where nobody is protected.
        epsilon: certified at `delta`, of the worst seed; None where nothing is.
        delta: of `epsilon`.
        seeds: one per entry of `returns`.
        returns: mean over the episodes of each seed.
        empty: how many seeds spent their budget and got nothing; they have not learned.
        curve: mean returns while learning, [seeds][parts]; of few episodes each.
        seconds: that it took.
        settings: all that its data depend on but the noise.
    """

    figure: str
    arm: str
    label: str
    x: float | None
    note: str
    env_id: str
    experts: int
    status: str
    epsilon: float | None
    delta: float | None
    seeds: list[int]
    returns: list[float]
    empty: int
    curve: list[list[float]]
    seconds: float
    settings: str

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(self.returns))

    @property
    def half_width(self) -> float:
        """Of the 95 per cent confidence interval of the mean over seeds (Student); NaN for one."""
        return float(half_width(np.asarray(self.returns)))


@dataclass(frozen=True)
class Job:
    """An arm, with the data and seeds that it is trained on.

    Attributes:
        figure: which one it belongs to.
        arm: what to train.
        env_id: where.
        seeds: of the runs.
        data: identity of experts and log, from `identity`.
        folder: where all arms are kept.
        quick: fewer episodes.
    """

    figure: FigureName
    arm: Arm
    env_id: EnvName
    seeds: tuple[int, ...]
    data: str
    folder: Path
    quick: bool = False

    @property
    def settings(self) -> str:
        """Everything that its data depend on; figures share arms of the same settings."""
        return repr((_FORMAT, self.arm.does, self.env_id, self.seeds, self.data, self.quick))

    @property
    def path(self) -> Path:
        """Of the outcome that is kept; beside it is a folder with ledgers and certificates."""
        digest = hashlib.sha256(self.settings.encode()).hexdigest()[:12]
        return self.folder / f"{self.env_id}-{digest}.json"

    def kept(self) -> Outcome | None:
        """The outcome, if there is one."""
        if not self.path.exists():
            return None
        outcome = Outcome(**json.loads(self.path.read_text()))
        arm = self.arm
        return replace(
            outcome, figure=self.figure, arm=arm.name, label=arm.label, x=arm.x, note=arm.note
        )


def jobs(
    figure: FigureName,
    env_id: EnvName,
    seeds: Sequence[int],
    sources: Sources,
    folder: Path,
    quick: bool = False,
) -> list[Job]:
    """What a figure needs, in the order in which it is trained.

    Args:
        figure: which one.
        env_id: where.
        seeds: of every arm.
        sources: experts and their log.
        folder: where arms are kept, of all figures and environments.
        quick: as in `arms`.
    """
    data = identity(sources)
    # Filled settings name everything: an arm that is kept is told from one of another preset.
    chosen = [
        arm if isinstance(arm.does, str) else replace(arm, does=filled(arm.does, sources.facts))
        for arm in arms(figure, env_id, sources.facts, quick)
    ]
    return [Job(figure, arm, env_id, tuple(seeds), data, folder, quick) for arm in chosen]


def run(
    what: Sequence[Job], sources: Sources, report: Callable[[Job, Outcome], None] | None = None
) -> list[Outcome]:
    """The outcomes of all jobs; those that are kept are not computed again.

    Args:
        what: from `jobs`.
        sources: the same.
        report: called with each new one.

    Raises:
        PrivacyError: a certificate that is not proved.
    """
    outcomes = []
    for job in what:
        outcome = job.kept()
        if outcome is None:
            outcome = train(job, sources)
            _write(job.path, json.dumps(asdict(outcome)))
            if report is not None:
                report(job, outcome)
        outcomes.append(outcome)
    return outcomes


def identity(sources: Sources) -> str:
    """Tells experts and logs from others: a digest of what they do."""
    digest = hashlib.sha256()
    arrays = [] if sources.experts is None else jax.tree.leaves(sources.experts)
    if sources.log is not None:
        arrays += sources.log
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row for each arm and seed, for tables."""
    shared = ("figure", "env_id", "arm", "label", "x", "status", "epsilon", "delta", "experts")
    return [
        {name: getattr(outcome, name) for name in shared} | {"seed": seed, "return": value}
        for outcome in outcomes
        for seed, value in zip(outcome.seeds, outcome.returns, strict=True)
    ]


def summary(outcome: Outcome, majority: float | None) -> dict[str, Any]:
    """One arm in numbers.

    Args:
        outcome: the arm's.
        majority: return of the majority policy, where it is known.
    """
    said = {
        "arm": outcome.arm,
        "label": outcome.label,
        "x": outcome.x,
        "status": outcome.status,
        "epsilon": outcome.epsilon,
        "delta": outcome.delta,
        "seeds": outcome.seeds,
        "returns": outcome.returns,
        "mean": outcome.mean,
        "std": float(np.std(outcome.returns)),
        "half_width": outcome.half_width if len(outcome.returns) > 1 else None,
        "seconds": round(outcome.seconds, 1),
        "note": outcome.note,
        "empty": outcome.empty,
    }
    if majority is not None and majority > 0:
        said["share_of_majority"] = outcome.mean / majority
    return said


# --- one arm -------------------------------------------------------------------------------------


def train(job: Job, sources: Sources) -> Outcome:
    """Trains one arm and evaluates it.

    Args:
        job: which one.
        sources: experts and their log.

    Raises:
        PrivacyError: its certificate is not proved.
    """
    started = time.monotonic()
    arm, does = job.arm, job.arm.does
    outcome = Outcome(
        figure=job.figure,
        arm=arm.name,
        label=arm.label,
        x=arm.x,
        note=arm.note,
        env_id=job.env_id,
        experts=sources.facts.experts,
        status="none",
        epsilon=None,
        delta=None,
        seeds=list(job.seeds),
        returns=[],
        empty=0,
        curve=[],
        seconds=0.0,
        settings=job.settings,
    )
    if isinstance(does, str):
        outcome = replace(outcome, returns=_reference(does, job, sources))
    else:
        outcome = _trained(outcome, does, job, sources)
    return replace(outcome, seconds=time.monotonic() - started)


def _trained(outcome: Outcome, config: ExpertOfflineConfig, job: Job, sources: Sources) -> Outcome:
    folder = job.path.with_suffix("")
    # An attempt that was stopped is not gone on with: every attempt has noise of its own, and what
    # is said is about the one that finished. The experts are simulated.
    shutil.rmtree(folder, ignore_errors=True)
    made, empty = _parts(config, job, sources, folder)
    if config.is_private and any(part.status != "proved" for part in made):
        raise PrivacyError(
            f"{outcome.label} has a certificate that is not proved, see {folder}; figures show "
            "what is proved"
        )
    return replace(
        outcome,
        empty=empty,
        status=made[0].status,
        epsilon=max(part.epsilon for part in made) if config.is_private else None,
        delta=made[0].config.delta,
        returns=[float(row.mean()) for part in made for row in part.returns],
        curve=[row.astype(float).tolist() for part in made for row in part.curve],
    )


def _parts(
    config: ExpertOfflineConfig, job: Job, sources: Sources, folder: Path
) -> tuple[list[training.Arm], int]:
    """Runs of the arm in the order of their seeds, and how many of them released nothing."""
    episodes = _QUICK_EPISODES if job.quick else _EPISODES
    if not config.uses_prefixes:
        return [training.train_arm(config, job.seeds, sources, folder, episodes)], 0
    made, empty = [], 0
    for seed in job.seeds:  # one by one: whether there are prefixes is known once they are paid for
        try:
            made.append(training.train_arm(config, [seed], sources, folder, episodes))
        except NothingReleased:
            empty += 1
            made.append(_unlearned(config, seed, sources, folder, episodes))
    return made, empty


def _unlearned(
    config: ExpertOfflineConfig, seed: int, sources: Sources, folder: Path, episodes: int
) -> training.Arm:
    """A run that was charged and learned nothing: its first network."""
    config = filled(config, sources.facts)
    policy = policies(initial_states(config, [seed]))["ema"]
    returns = evaluate(config, policy, new_key(seed), episodes, True)
    derived = derive.derive(Ledger.open(folder / f"seed-{seed}" / "ledger.sqlite"))
    derived.write(folder / f"seed-{seed}" / "certificate.json")
    curve = returns.mean(axis=1, keepdims=True)
    return training.Arm(config, returns, curve, derived.epsilon, derived.status, 0.0)


def _reference(which: Reference, job: Job, sources: Sources) -> list[float]:
    assert sources.experts is not None
    config = ExpertOfflineConfig(method="cql", env_id=job.env_id, experts="experts", dataset="log")
    config = filled(config, sources.facts)
    if which == "majority":
        whole = _QUICK_EPISODES if job.quick else _MAJORITY_EPISODES
        each = math.ceil(whole / len(job.seeds))
        found = majority_returns(config, sources.experts, job.seeds[0], each * len(job.seeds))
        return [float(part.mean()) for part in np.split(found, len(job.seeds))]
    return [sampled_return(config, sources.experts, seed) for seed in job.seeds]


def _write(path: Path, text: str) -> None:
    """Replaces the file at once, so that a stopped command leaves whole data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)
