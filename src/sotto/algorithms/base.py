"""Interface of an algorithm: it turns settings into policies, and a run does everything else.

The command `sotto train NAME`, the run directory, checkpoints, resuming, metrics, evaluation, the
report, several seeds and the certificate all come from a subclass of `Algorithm`.
`sotto.algorithms.private.PrivateAlgorithm` needs less: a `Release`, an initial state and a policy.
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
from sotto.privacy.release.release import Release
from sotto.privacy.units import PopulationKind
from sotto.rl.evaluation import returns_of
from sotto.rl.rollout import Actor
from sotto.trees import at

Config = TypeVar("Config")
AnyLedger = Ledger | AnswerLedger
"""Ledger of a run: of releases about people, or of a teacher's answers."""

NOT_PRIVATE = "not private"
"""Status of a run without a ledger whose algorithm protects nobody."""

_EVALUATION = 20260
"""Seed of the evaluation episodes after each chunk, the same for every run."""


@dataclass(frozen=True)
class NoOptions:
    """Options of an algorithm that has none."""


@dataclass(frozen=True)
class Words:
    """Names of the quantities that an algorithm measures, for commands and reports.

    Attributes:
        measure: what `Algorithm.evaluate` measures.
        over: what it measures one by one.
        decimals: number of decimals of a measurement.
        steps: what `steps_per_update` counts.
        quantities: name and axis label of each value of `Progress.evaluation`. If it is empty, each
            value is the mean return of the policy of its name.
        meaning: what the quantities are, in sentences.
    """

    measure: str = "return"
    over: str = "episodes"
    decimals: int = 1
    steps: str = "environment steps"
    quantities: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    meaning: str = ""


@dataclass(frozen=True)
class Progress:
    """State and metrics after a chunk of training. The first axis of every array is runs.

    Attributes:
        updates: number of updates so far.
        states: everything that the next chunk needs, leaves of shape [runs, ...]. Checkpoints hold
            it, so it must be public: free of data, or a function of releases.
        released: functions of releases, [runs, updates of the chunk] each.
        evaluation: mean return of each released policy on fresh simulated episodes, or other
            quantities that `Algorithm.words` names, [runs] each.
        simulated: metrics about simulated people, [runs, updates of the chunk] each. It must hold
            nothing about real people.
        env_steps: number of environment steps so far. None: `steps_per_update` for each update.
        learned: whether the policies have changed.
        samples: prompts and completions of simulated people, as the first run's model writes them.
        before, samples_before: evaluation and samples of the model before training, in the first
            chunk of an algorithm that begins with a public model.
    """

    updates: int
    states: PyTree
    released: dict[str, np.ndarray] = field(default_factory=dict)
    evaluation: dict[str, np.ndarray] = field(default_factory=dict)
    simulated: dict[str, np.ndarray] = field(default_factory=dict)
    env_steps: int | None = None
    learned: bool = True
    samples: tuple[tuple[str, str], ...] = ()
    before: dict[str, np.ndarray] = field(default_factory=dict)
    samples_before: tuple[tuple[str, str], ...] = ()


class Algorithm(ABC, Generic[Config]):
    """Algorithm that `sotto train` can run. Its docstring is the help of its command.

    Attributes:
        name: name in `sotto train NAME` and in config.json.
        summary: a few words for the list of commands.
        config_type: dataclass of the settings. Each field is a flag. It has a `seed`; and
            `num_updates` and `steps_per_update`, unless the algorithm has methods for them.
        default_policy: name of the policy that is meant to be used.
        charged: whether every run has a ledger, see `has_ledger`.
        teaches: whether runs of this algorithm can be teachers of students.
        acts: whether policies choose actions from observations. Otherwise they are language models.
        evaluates_greedily: whether policies are evaluated by their most likely actions by default.
        units: word for the individuals that a run is about.
        words: names of the measured quantities.
        options_type: dataclass of further flags, which are not settings and are not stored.
        presets: names of settings that `--preset` offers. The first one is the default.
        files: settings that name files, which must be given again to resume, each with the setting
            that holds the file's identity. A file that has moved is known by it. None: the file
            must stay where it was.
        one_seed: why seeds never train side by side, in a sentence; empty if they may.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    config_type: type[Config]
    default_policy: ClassVar[str] = "last"
    charged: ClassVar[bool] = False
    teaches: ClassVar[bool] = False
    acts: ClassVar[bool] = True
    evaluates_greedily: ClassVar[bool] = True
    units: ClassVar[str] = "people"
    words: ClassVar[Words] = Words()
    options_type: ClassVar[type[Any]] = NoOptions
    presets: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[Mapping[str, str | None]] = {}
    one_seed: ClassVar[str] = ""

    def defaults(self, flags: Mapping[str, str]) -> dict[str, Any]:
        """Returns settings that differ from the defaults of `config_type`, which `--help` shows.

        Args:
            flags: the flags of the command line, as text, such as `{"env_id": "..."}`.
        """
        del flags
        return {}

    def num_updates(self, config: Config) -> int:
        """Returns the number of updates in the whole training, which its settings have."""
        wanted: Any = config
        return int(wanted.num_updates)

    def steps_per_update(self, config: Config) -> int:
        """Returns the largest number of environment steps behind one update, a public number."""
        wanted: Any = config
        return int(wanted.steps_per_update)

    def most_steps(self, config: Config) -> int:
        """Returns the largest number of environment steps of the whole training."""
        steps = self.num_updates(config) * self.steps_per_update(config)
        return int(getattr(config, "samples", steps))

    def use(self, options: Any, config: Config, named: Mapping[str, str]) -> None:
        """Reads this command's own options before a training starts or resumes.

        Args:
            options: the options, of type `options_type`.
            config: settings. On resuming, they come from a file.
            named: the flags that the user gave, as text.

        Raises:
            ValueError: a file names something that the user must name.
        """

    def resolved(self, config: Config) -> Config:
        """Returns the settings with everything filled in, as they are stored.

        Raises:
            ValueError: the settings cannot be run. No file has been written.
        """
        return config

    def notes(self, config: Config) -> tuple[str, ...]:
        """Returns sentences that the user should read before a training starts."""
        del config
        return ()

    def has_ledger(self, config: Config) -> bool:
        """Returns whether a run with these settings has a ledger, to which it is charged."""
        del config
        return self.charged

    def population(self, config: Config) -> PopulationKind:
        """Returns whether people are simulated or real, which decides what a run may write.

        It is the `population` of the settings. Without one, the people of a ledger count as real.
        """
        said: PopulationKind | None = getattr(config, "population", None)
        return said or ("real" if self.has_ledger(config) else "simulated")

    def on_devices(self, config: Config, horizon: int) -> tuple[Release, Any]:
        """Returns the release of one update and one person's data, for people's own devices.

        Args:
            config: settings.
            horizon: number of releases.

        Returns:
            The release, and data of the right shapes; () where `local` simulates its person.

        Raises:
            ValueError: an update of this algorithm is not one release about people.
        """
        del config, horizon
        raise ValueError(
            f"people's devices cannot take part in {self.name}, since its updates are not single "
            "releases; use dppg, or a PrivateAlgorithm"
        )

    def check_numbered(self, config: Config) -> None:
        """Refuses settings under which nobody can say which enrolment number a person has.

        A shared budget charges people by the operator's numbers, so it needs to know.

        Raises:
            ValueError: nobody can.
        """
        del config

    def has_sums(self, config: Config) -> bool:
        """Returns whether releases are sums over people, whom several devices can share."""
        return self.has_ledger(config)

    def has_tasks(self, config: Config) -> bool:
        """Returns whether parts of a training with these settings can be tasks of a cluster."""
        del config
        return False

    def create_ledger(self, config: Config, where: Path | str, run_id: str) -> AnyLedger:
        """Creates the ledger of a new run. It is called only if `has_ledger`."""
        del config, where, run_id
        raise ValueError(f"a run of {self.name} has no ledger: it protects nobody")

    def without_ledger(self, config: Config) -> tuple[str, str]:
        """Returns the status of a run without a ledger, in a few words, and its reason."""
        del config
        return NOT_PRIVATE, f"It is a {self.name.upper()} run, which protects nobody."

    def open_ledger(self, where: Path | str, run_id: str) -> AnyLedger:
        """Opens the ledger of an earlier run."""
        return Ledger.open(where, run_id)

    def shared(self, config: Config) -> str | None:
        """Returns why the costs of several seeds add up.

        Returns:
            The end of the sentence "These 3 seeds ..."; None if every seed has its own people.
        """
        del config
        return None

    def check_seeds(self, config: Config, seeds: Sequence[int]) -> None:
        """Refuses several seeds where the settings do not allow them.

        Raises:
            ValueError: the seeds are refused; the message says why, and what to do.
        """
        del config
        if self.one_seed and len(seeds) > 1:
            raise ValueError(self.one_seed)

    @abstractmethod
    def initial_states(self, config: Config, seeds: Sequence[int]) -> PyTree:
        """Returns the states before training, leaves of shape [runs, ...], free of data."""

    def one_state(self, config: Config, seed: int) -> PyTree:
        """Returns one run's state, or arrays of its shapes, by which a checkpoint is read."""
        return at(self.initial_states(config, [seed]), 0)

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
        """Trains from `states` to the end, and yields after each chunk of updates.

        Args:
            config: settings, as `resolved` returned them.
            seeds: one for each run. The runs are trained side by side.
            ledgers: one for each run. It is empty for an algorithm without privacy.
            states: `initial_states`, or those of a checkpoint.
            done: number of updates behind `states`.
            folders: one for each run, for released files that must outlive the process.
        """

    @abstractmethod
    def policies(self, states: PyTree) -> Mapping[str, Actor]:
        """Returns the policies that may be used, by name, with a leading axis of runs."""

    def to_evaluate(self, config: Config, model: str | None) -> Config:
        """Returns the settings with which policies of a run are evaluated.

        Args:
            config: settings of the run, from a file.
            model: the language model that the user named.

        Raises:
            ValueError: nothing can be evaluated, or the user must name a file.
        """
        if model is not None:
            raise ValueError(f"a run of {self.name} has no language model; leave out --model")
        return config

    def unevaluated(self, config: Config) -> str:
        """Returns a sentence that says why a training has no evaluations."""
        del config
        return (
            "The policies were not evaluated: there is no simulator, or the settings turn "
            "evaluations off."
        )

    def evaluate(
        self, config: Config, policy: Any, key: PRNGKeyArray, episodes: int, greedy: bool
    ) -> Float[np.ndarray, "runs episodes"]:
        """Returns the returns of whole episodes with fresh simulated people."""
        wanted: Any = config
        return returns_of(wanted.env_id, policy, key, episodes, greedy)

    def mean_return(
        self, config: Config, states: PyTree, updates: int, episodes: int
    ) -> Float[np.ndarray, " runs"]:
        """Returns the mean return of the default policy after `updates` updates."""
        key = jax.random.fold_in(new_key(_EVALUATION), updates)
        policy = self.policies(states)[self.default_policy]
        return np.asarray(
            self.evaluate(config, policy, key, episodes, self.evaluates_greedily).mean(axis=1)
        )
