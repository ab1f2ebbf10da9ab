"""What an algorithm is: settings go in, policies come out, and a run does everything else.

A subclass of `Algorithm` lives in the algorithm's own folder. From it follow the command
`sotto train NAME`, the run directory, checkpoints and resuming, metrics, evaluation, the report,
several seeds, and the certificate. `sotto.algorithms.private.PrivateAlgorithm` needs less still: a
`Release`, a first state and a policy.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from sotto.keys import new_key
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.evaluation import returns_of
from sotto.rl.rollout import Actor

Config = TypeVar("Config")
AnyLedger = Ledger | AnswerLedger
"""A run's account: of releases about people, or of a teacher's answers."""

_EVALUATION = 20260
"""Seed of the episodes that follow each chunk, the same for every run."""


@dataclass(frozen=True)
class NoOptions:
    """An algorithm without options of its own."""


@dataclass(frozen=True)
class Progress:
    """What one chunk of training leaves behind; the first axis of every array is runs.

    Attributes:
        updates: updates made so far.
        states: everything needed to go on, leaves of shape [runs, ...]. Checkpoints hold it, so it
            must be public: free of data, or a function of releases.
        released: functions of releases, [runs, updates of the chunk] each.
        evaluation: mean return of each released policy on fresh simulated episodes, [runs] each.
        simulated: about simulated people, [runs, updates of the chunk] each; nothing about real
            ones.
        env_steps: environment steps taken so far, where that is not a multiple of the updates.
        learned: whether the policies have changed.
    """

    updates: int
    states: PyTree
    released: dict[str, np.ndarray] = field(default_factory=dict)
    evaluation: dict[str, np.ndarray] = field(default_factory=dict)
    simulated: dict[str, np.ndarray] = field(default_factory=dict)
    env_steps: int | None = None
    learned: bool = True


class Algorithm(ABC, Generic[Config]):
    """An algorithm that `sotto train` can run. Its docstring is the help of its command.

    Attributes:
        name: in `sotto train NAME` and in config.json.
        summary: a few words for the list of commands.
        config_type: the dataclass of its settings; each field is a flag. It has a `seed`.
        default_policy: which of its policies is meant to be used.
        teaches: whether its runs can be teachers of students.
        units: whom a run is about, in words.
        options_type: a dataclass of further flags, which are no settings and are not stored.
        presets: names of settings that `--preset` offers; the first one is the default.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    config_type: type[Config]
    default_policy: ClassVar[str] = "last"
    teaches: ClassVar[bool] = False
    units: ClassVar[str] = "people"
    options_type: ClassVar[type[Any]] = NoOptions
    presets: ClassVar[tuple[str, ...]] = ()

    def defaults(self, flags: Mapping[str, str]) -> dict[str, Any]:
        """Settings that differ from their type's defaults, so that `--help` shows what is used.

        Args:
            flags: the flags of the command line as they are written, such as `{"env_id": "..."}`.
        """
        del flags
        return {}

    @abstractmethod
    def num_updates(self, config: Config) -> int:
        """Updates of the whole training."""

    @abstractmethod
    def steps_per_update(self, config: Config) -> int:
        """Most environment steps behind one update, a public number."""

    def use(self, options: Any, config: Config, named: Mapping[str, str]) -> None:
        """Takes note of this command's own options before a training begins or goes on.

        Args:
            options: of `options_type`.
            config: settings; of a training that goes on, those that a file holds.
            named: the flags that were given, as they are written.

        Raises:
            ValueError: a file names what the user has to name.
        """

    def resolved(self, config: Config) -> Config:
        """The settings with everything filled in; they are then stored.

        Raises:
            ValueError: settings that cannot be run. Nothing has been made.
        """
        return config

    def notes(self, config: Config) -> tuple[str, ...]:
        """What the person who starts a training should know beforehand, a sentence each."""
        del config
        return ()

    def has_ledger(self, config: Config) -> bool:
        """Whether a run of these settings is charged to a ledger of its own."""
        del config
        return False

    def create_ledger(self, config: Config, where: Path | str, run_id: str) -> AnyLedger:
        """The ledger of a new run; asked only where `has_ledger`."""
        del config, where, run_id
        raise ValueError(f"a run of {self.name} has no ledger: it protects nobody")

    def without_ledger(self, config: Config) -> tuple[str, str]:
        """What is said of a run that has no ledger: a title, and a sentence."""
        del config
        return "No privacy", f"It is a {self.name.upper()} run, which protects nobody."

    def open_ledger(self, where: Path | str, run_id: str) -> AnyLedger:
        """The ledger of an earlier run."""
        return Ledger.open(where, run_id)

    def shared(self, config: Config) -> str | None:
        """Whom several seeds have in common, whose costs then add up over the seeds.

        Returns:
            The end of the sentence "These 3 seeds ...", or None: every seed has its own people.
        """
        del config
        return None

    def check_seeds(self, config: Config, seeds: Sequence[int]) -> None:
        """Refuses several seeds where they would not be what they seem.

        Raises:
            ValueError: why, and what to do.
        """

    @abstractmethod
    def initial_states(self, config: Config, seeds: Sequence[int]) -> PyTree:
        """The states before training, leaves of shape [runs, ...], free of data."""

    @abstractmethod
    def train(
        self,
        config: Config,
        seeds: Sequence[int],
        ledgers: Sequence[Any],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Trains from `states` on to the end, a chunk at a time.

        Args:
            config: settings, as `resolved` returned them.
            seeds: one for each run; the runs are trained side by side.
            ledgers: one for each run; none without privacy.
            states: `initial_states`, or those of a checkpoint.
            done: updates behind `states`.
            folders: of each run, for what is released and has to outlive the process.
        """

    @abstractmethod
    def policies(self, states: PyTree) -> Mapping[str, Actor]:
        """The policies that may be used, by name, with a leading axis of runs."""

    def evaluate(
        self, config: Config, policy: Any, key: PRNGKeyArray, episodes: int, greedy: bool
    ) -> Float[np.ndarray, "runs episodes"]:
        """Returns of whole episodes on fresh simulated people, in the environment of `env_id`."""
        wanted: Any = config
        return returns_of(wanted.env_id, policy, key, episodes, greedy)

    def mean_return(
        self, config: Config, states: PyTree, updates: int, episodes: int
    ) -> Float[np.ndarray, " runs"]:
        """Mean greedy return of the default policy after so many updates."""
        key = jax.random.fold_in(new_key(_EVALUATION), updates)
        policy = self.policies(states)[self.default_policy]
        return np.asarray(self.evaluate(config, policy, key, episodes, True).mean(axis=1))
