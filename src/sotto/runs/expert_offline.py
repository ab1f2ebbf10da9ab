"""Learning from private experts as a run: where it reads experts and logs, and what it keeps."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from sotto.algorithms.expert_offline import training
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.presets import filled
from sotto.algorithms.expert_offline.states import Sources
from sotto.data import minari_files
from sotto.privacy.errors import PrivacyError
from sotto.privacy.keys import new_key
from sotto.privacy.ledger.ledger import Ledger
from sotto.rl.networks import Policy
from sotto.runs import experts
from sotto.runs.adapters import Algorithm, Chunk
from sotto.runs.directory import RunError, open_experiment
from sotto.runs.files import silence

_RELEASED = "released"  # folder of a run, with what votes and prefixes have released


def expert_offline(out: Path | None = None) -> Algorithm:
    """Learning from private experts as an algorithm of runs.

    Args:
        out: the experiment to train, whose run directories keep what is released; needed to
            train, and for nothing else.
    """
    return _ExpertOffline(out)


def read_sources(
    experts_path: str | None,
    dataset: str | None,
    id_column: str = minari_files.ID_COLUMN,
    count: int | None = None,
) -> Sources:
    """Experts and their log, from files.

    Args:
        experts_path: folder of `sotto experts train`, or the file in it; None: there is none.
        dataset: folder or name of a Minari dataset; None: there is none.
        id_column: where the metadata of an episode says whose it is.
        count: how many experts there are, a public number; None: what the experts or the dataset
            say.

    Raises:
        RunError, ValueError: they cannot be read, or are not of the same experts.
    """
    env_id, actions, policies, log = None, None, None, None
    if experts_path is not None:
        population = experts.load(_folder(experts_path))
        env_id, policies = population.settings.env_id, population.policies
        count = population.settings.experts  # so that an id in the log is an expert's number here
    if dataset is not None:
        log = minari_files.load(dataset, id_column, count)
        said = minari_files.described(dataset)
        env_id, actions = env_id or said.env_id, said.actions
    return Sources(policies, log, env_id, actions)


def _folder(experts_path: str) -> Path:
    path = Path(experts_path)
    return path.parent if path.is_file() else path


class _ExpertOffline:
    config_type = ExpertOfflineConfig
    default_policy = "ema"

    def __init__(self, out: Path | None) -> None:
        self._out = out
        self._read: tuple[tuple[object, ...], Sources] | None = None

    def resolved(self, config: ExpertOfflineConfig) -> ExpertOfflineConfig:
        if config.dataset is not None:  # a wrong name is refused, also where votes read no log
            said = minari_files.described(config.dataset, config.id_column)
            _require_count(config, said.experts)
        config = filled(config, self._sources(config).facts)
        training.check(config)
        return replace(config, experts=_absolute(config.experts), dataset=_absolute(config.dataset))

    def has_ledger(self, config: ExpertOfflineConfig) -> bool:
        return config.is_private

    def updates(self, config: ExpertOfflineConfig) -> int:
        return training.num_updates(config)

    def steps_per_update(self, config: ExpertOfflineConfig) -> int:
        return math.ceil(training.env_steps(config) / training.num_updates(config))

    def create_ledger(self, config: ExpertOfflineConfig, where: Path | str, run_id: str) -> Ledger:
        return training.create_ledger(config, where, run_id)

    def initial_states(self, config: ExpertOfflineConfig, seeds: Sequence[int]) -> PyTree:
        return training.initial_states(config, seeds)

    def chunks(
        self,
        config: ExpertOfflineConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
    ) -> Iterator[Chunk]:
        if self._out is None:
            raise RunError(
                "say which experiment is trained: expert_offline(out) keeps its releases"
            )
        folders = [run.path / _RELEASED for run in open_experiment(self._out).runs]
        sources = self._sources(config)
        parts = training.train(config, seeds, ledgers, sources, states, done, folders)
        while (progress := _of_real(config, lambda: next(parts, None))) is not None:
            yield Chunk(
                progress.updates,
                progress.states,
                progress.released,
                _evaluation(config, progress) if progress.learned else {},
                progress.simulated if config.population == "simulated" else {},
                env_steps=training.env_steps(config),
            )

    def policies(self, states: PyTree) -> dict[str, Policy]:
        return training.policies(states)

    def evaluate(
        self,
        config: ExpertOfflineConfig,
        policy: Policy,
        key: PRNGKeyArray,
        episodes: int,
        greedy: bool,
    ) -> Float[np.ndarray, "runs episodes"]:
        return training.evaluate(config, policy, key, episodes, greedy)

    def _sources(self, config: ExpertOfflineConfig) -> Sources:
        """What the method reads, read once."""
        # A log is large, and votes of experts have no use for it where everybody votes.
        wanted, votes_of_experts = config.dataset, config.experts and config.voters != "clones"
        if config.uses_votes and votes_of_experts and config.least_return is None:
            wanted = None
        which = (_absolute(config.experts), _absolute(wanted), config.id_column)
        count = None if config.experts else config.expert_count
        if (
            self._read is None
            or self._read[0] != which
            or count not in (None, self._read[1].facts.experts)
        ):
            _require_real(config)
            sources = _of_real(
                config, lambda: read_sources(config.experts, wanted, config.id_column, count)
            )
            self._read = (which, sources)
        return self._read[1]


_T = TypeVar("_T")


def _of_real(config: ExpertOfflineConfig, work: Callable[[], _T]) -> _T:
    """Does what touches the experts' data; of real ones no error, warning or output is shown.

    Raises:
        PrivacyError: what the ledger says, which knows no data.
        RunError: anything else that failed where the experts are real, in the same words always.
    """
    if config.population == "simulated":
        return work()
    refused: PrivacyError | None = None
    with silence(), warnings.catch_warnings(), np.errstate(all="ignore"), suppress(Exception):
        warnings.simplefilter("ignore")
        try:
            return work()
        except PrivacyError as error:
            refused = error.with_traceback(None)
            refused.__cause__ = refused.__context__ = None
    if refused is not None:
        raise refused
    raise RunError(
        f"learning from {config.dataset} failed; what went wrong is not shown, since it may be "
        "about the real experts there: each episode needs whole observations, actions and rewards, "
        f"and {config.id_column!r} in its metadata, a number below the number of experts"
    )


def _require_real(config: ExpertOfflineConfig) -> None:
    """Nobody real is among experts that we have trained, nor in their logs."""
    if config.population == "simulated":
        return
    simulated = [config.experts] if config.experts is not None else []
    if config.dataset is not None and minari_files.described(config.dataset).simulated:
        simulated.append(config.dataset)
    if simulated:
        raise RunError(
            f"the experts of {simulated[0]} are simulated, by sotto experts train; leave out "
            "--population real, or give --dataset with the log of real ones"
        )


def _require_count(config: ExpertOfflineConfig, stated: int | None) -> None:
    """How many real people there are is a public number, not one that is read off their data."""
    if config.population != "real" or config.experts is not None:
        return
    if config.expert_count is None and stated is None:
        raise ValueError(
            f"{config.dataset} does not say how many experts there are, which is public and must "
            "not depend on who has episodes in it; give --expert-count"
        )


def _evaluation(
    config: ExpertOfflineConfig, progress: training.Progress
) -> dict[str, Float[np.ndarray, " runs"]]:
    """Mean greedy returns, for the experimenter; nothing without an environment."""
    if not config.has_environment:
        return {}
    key = jax.random.fold_in(new_key(20260), progress.updates)
    episodes = config.evaluation_episodes
    return {
        name: training.evaluate(config, policy, key, episodes, True).mean(axis=1)
        for name, policy in training.policies(progress.states).items()
    }


def _absolute(path: str | None) -> str | None:
    """A path that holds wherever the run is resumed; the name of a dataset stays a name."""
    return str(Path(path).absolute()) if path is not None and Path(path).exists() else path
