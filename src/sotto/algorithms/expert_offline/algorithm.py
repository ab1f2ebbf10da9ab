"""The algorithm `expert-offline` of `sotto train`."""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from sotto.algorithms.base import NOT_PRIVATE, Algorithm, Progress
from sotto.algorithms.expert_offline import training
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.presets import filled
from sotto.algorithms.expert_offline.sources import read_sources
from sotto.algorithms.expert_offline.states import Sources, evaluate, initial_states, policies
from sotto.algorithms.log_facts import require_same
from sotto.data import minari_files
from sotto.data.imports.records import require_numbered
from sotto.errors import EnvironmentFailed, RunError
from sotto.files import absolute, silence
from sotto.keys import new_key
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.units import PopulationKind
from sotto.rl.envs.gymnasium.described import evaluation_notes
from sotto.rl.networks import Policy


class ExpertOffline(Algorithm[ExpertOfflineConfig]):
    """Offline learning from experts, each of whom is protected (after Sharma et al. 2024).

    By default every expert votes for an action in each of about a thousand states. The training
    adds noise to the counts of the votes and learns from the noisy counts. With --dataset alone,
    one clone of each expert is fitted to that expert's log, and the clones vote. This protects
    the logs. With --experts the experts themselves vote, and their policies are protected. Their
    log is then read only for --least-return, which HIV and LunarLander set.

    The paper's method is --method stable-prefix, and dp-sgd and prefix-only are its two halves.
    The methods cql and bc protect nobody. All seeds learn from the same experts, each with its
    own ledger, so their costs add up. With real experts, train one seed at a time.

    Examples:
        sotto experts train --env-id CartPole-v1 --experts 3000 --out runs/experts/cartpole
        sotto experts collect runs/experts/cartpole --out runs/experts/cartpole-v0
        sotto train expert-offline --dataset runs/experts/cartpole-v0 --target-epsilon 1 \\
          --out runs/clones
        sotto train expert-offline --experts runs/experts/cartpole --target-epsilon 1 \\
          --seeds 10 --out runs/votes
        sotto train expert-offline --experts runs/experts/lander --target-epsilon 0.1 \\
          --first-policy runs/experts/lander/base_policy.npz --out runs/landing
        sotto train expert-offline --method stable-prefix --experts runs/experts/cartpole \\
          --dataset runs/experts/cartpole-v0 --target-epsilon 10 --out runs/paper
        sotto train expert-offline --method cql --dataset runs/experts/cartpole-v0 --out runs/cql
        sotto train expert-offline --dataset DATASET --env-id none --box-low -1 -1 \\
          --box-high 1 1 --target-epsilon 1 --out runs/anywhere
    """

    name, summary = "expert-offline", "offline learning from experts, each protected"
    config_type = ExpertOfflineConfig
    default_policy = "ema"

    def __init__(self) -> None:
        self._read: tuple[tuple[object, ...], Sources] | None = None

    def resolved(self, config: ExpertOfflineConfig) -> ExpertOfflineConfig:
        """Returns the settings completed by the public facts of the experts and the dataset."""
        said = None
        if config.dataset is not None:  # refuses a wrong name, even if votes do not read the log
            said = minari_files.described(config.dataset, config.id_column)
            require_same(config.dataset, config.identity, said.identity)
            config = replace(config, identity=said.identity)
        config = replace(config, population=_population(config, said))
        _require_count(config, said)
        config = filled(config, self._sources(config).facts)
        training.check(config)
        return replace(
            config,
            experts=absolute(config.experts),
            dataset=absolute(config.dataset),
            first_policy=absolute(config.first_policy),
            first_policy_identity=_first_policy_identity(config),
        )

    def notes(self, config: ExpertOfflineConfig) -> tuple[str, ...]:
        """Returns what to know of an own environment in which policies are played."""
        named = config.env_id if config.has_environment else None
        return () if named is None else evaluation_notes(named)

    def has_ledger(self, config: ExpertOfflineConfig) -> bool:
        """Returns whether the method is private; cql and bc keep no ledger."""
        return config.is_private

    def check_numbered(self, config: ExpertOfflineConfig) -> None:
        """Refuses imported logs, whose people are in places that nobody knows.

        Raises:
            ValueError: the dataset was imported.
        """
        if config.dataset is not None:
            require_numbered(config.dataset)

    def create_ledger(self, config: ExpertOfflineConfig, where: Path | str, run_id: str) -> Ledger:
        """Creates the ledger of a new run, with the budget and the unit of these settings."""
        return training.create_ledger(config, where, run_id)

    def without_ledger(self, config: ExpertOfflineConfig) -> tuple[str, str]:
        """Returns the status of runs of cql and bc, and its reason."""
        return NOT_PRIVATE, f"It is a {config.method.upper()} run, which protects nobody."

    def shared(self, config: ExpertOfflineConfig) -> str | None:
        """Returns what all seeds share, which is the experts."""
        del config
        return "asked or learned from the same experts"

    def check_seeds(self, config: ExpertOfflineConfig, seeds: Sequence[int]) -> None:
        """Refuses several seeds with real experts, whose privacy cost would add up."""
        if len(seeds) > 1 and config.population == "real" and config.is_private:
            raise ValueError(
                "every seed asks the same real experts again, and their privacy costs add up; "
                "leave out --seeds, and run seeds one by one if you accept the sum"
            )

    def steps_per_update(self, config: ExpertOfflineConfig) -> int:
        """Returns a bound on the environment steps of one part."""
        return math.ceil(training.env_steps(config) / config.num_updates)

    def initial_states(self, config: ExpertOfflineConfig, seeds: Sequence[int]) -> PyTree:
        """Returns the public state of every run before the first release."""
        return initial_states(config, seeds)

    def train(
        self,
        config: ExpertOfflineConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Releases votes, prefixes or gradients, keeps them in each run's folder, and learns.

        Raises:
            ValueError: the dataset is another import than the one that the run began with, or the
                first policy is another file.
        """
        if config.dataset is not None:
            said = minari_files.described(config.dataset, config.id_column)
            require_same(config.dataset, config.identity, said.identity)
            _population(config, said)  # an earlier version took people of an import for simulated
        if done == 0:
            _first_policy_identity(config)  # public, so that its errors are shown with real experts
        sources = self._sources(config)
        steps = training.env_steps(config)
        parts = training.train(config, seeds, ledgers, sources, states, done, folders)
        while (progress := _of_real(config, lambda: next(parts, None))) is not None:
            yield replace(
                progress,
                evaluation=_evaluation(config, progress) if progress.learned else {},
                simulated=progress.simulated if config.population == "simulated" else {},
                env_steps=steps,
            )

    def policies(self, states: PyTree) -> dict[str, Policy]:
        """Returns the last policy, and the moving average of all policies."""
        return policies(states)

    def evaluate(
        self,
        config: ExpertOfflineConfig,
        policy: Any,
        key: PRNGKeyArray,
        episodes: int,
        greedy: bool,
    ) -> Float[np.ndarray, "runs episodes"]:
        """Returns the returns of a policy in the public simulator."""
        return evaluate(config, policy, key, episodes, greedy)

    def _sources(self, config: ExpertOfflineConfig) -> Sources:
        """Returns the experts and the log that the method reads; they are read from disk once."""
        # A log is large. Votes of experts need it only to find out who abstains.
        wanted, votes_of_experts = config.dataset, config.experts and config.voters != "clones"
        if config.uses_votes and votes_of_experts and config.least_return is None:
            wanted = None
        which = (absolute(config.experts), absolute(wanted), config.id_column)
        count = None if config.experts else config.expert_count
        if (
            self._read is None
            or self._read[0] != which
            or count not in (None, self._read[1].facts.experts)
        ):
            sources = _of_real(
                config, lambda: read_sources(config.experts, wanted, config.id_column, count)
            )
            self._read = (which, sources)
        return self._read[1]


_T = TypeVar("_T")


def _of_real(config: ExpertOfflineConfig, work: Callable[[], _T]) -> _T:
    """Runs a function of the experts' data, and hides its errors, warnings and output if real.

    Raises:
        PrivacyError: the error of a ledger, which does not depend on data.
        EnvironmentFailed: the public simulator failed, in which nobody real is met.
        RunError: any other error with real experts, always with the same message.
    """
    if config.population == "simulated":
        return work()
    refused: PrivacyError | EnvironmentFailed | None = None
    with silence(), warnings.catch_warnings(), np.errstate(all="ignore"), suppress(Exception):
        warnings.simplefilter("ignore")
        try:
            return work()
        except (PrivacyError, EnvironmentFailed) as error:
            refused = error.with_traceback(None)
            refused.__cause__ = refused.__context__ = None
    if refused is not None:
        raise refused
    raise RunError(
        f"learning from {config.dataset} failed; what went wrong is not shown, since it may reveal "
        "data of the real experts; check that each episode has complete observations, actions and "
        f"rewards, and in its metadata {config.id_column!r}, a number below the number of experts"
    )


def _first_policy_identity(config: ExpertOfflineConfig) -> str | None:
    """Returns the SHA-256 of the first policy's file, or None.

    Raises:
        ValueError: there is no such file, or the run began with another one.
    """
    if config.first_policy is None:
        return None
    file = Path(config.first_policy)
    if not file.is_file():
        raise ValueError(f"{file} is not a policy: there is no such file")
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if config.first_policy_identity not in (None, found):
        raise ValueError(f"{file} has changed since the run began; put the first policy back")
    return found


def _population(config: ExpertOfflineConfig, said: minari_files.Described | None) -> PopulationKind:
    """Returns whether the experts are simulated or real, as far as the data show it.

    Args:
        config: settings.
        said: statements of the dataset about itself; None without a dataset.

    Raises:
        RunError: `population` is real for experts, or a log of experts, that sotto has trained, or
            simulated for people whose records were imported.
    """
    simulated: list[str | None] = [] if config.experts is None else [config.experts]
    foreign = said is not None and not said.simulated
    if said is not None and said.simulated:
        simulated.append(config.dataset)
    if config.experts is not None and foreign and config.population != "simulated":
        raise RunError(
            f"sotto has not made the log {config.dataset}, so its people are real, and those of "
            f"{config.experts} are simulated; give one of the two"
        )
    if simulated and config.population == "real":
        raise RunError(
            f"the experts of {simulated[0]} are simulated, by sotto experts train; leave out "
            "--population real, or give --dataset with the log of real experts"
        )
    if said is not None and said.identity is not None and config.population == "simulated":
        raise RunError(
            f"{config.dataset} was imported, and its people count as real where experts are "
            "protected; start a run without --population simulated"
        )
    return config.population or ("simulated" if simulated else "real")


def _require_count(config: ExpertOfflineConfig, said: minari_files.Described | None) -> None:
    """Refuses a number of protected experts that would be counted in their private data.

    Rows of experts, keys of clones and delta would depend on who has episodes.
    """
    if said is None or not (config.is_private or config.population == "real"):
        return
    if config.experts is None and config.expert_count is None and said.experts is None:
        raise ValueError(
            f"{config.dataset} does not state the number of experts, which is public and must not "
            "depend on who has episodes in it; give --expert-count"
        )


def _evaluation(
    config: ExpertOfflineConfig, progress: Progress
) -> dict[str, Float[np.ndarray, " runs"]]:
    """Returns the mean greedy return of each policy; it is empty without an environment."""
    if not config.has_environment:
        return {}
    key = jax.random.fold_in(new_key(20260), progress.updates)
    episodes = config.evaluation_episodes
    return {
        name: evaluate(config, policy, key, episodes, True).mean(axis=1)
        for name, policy in policies(progress.states).items()
    }
