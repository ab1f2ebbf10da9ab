"""The algorithm `functional-q` of `sotto train`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from jaxtyping import PyTree

from sotto.algorithms.base import Algorithm, Progress
from sotto.algorithms.baselines.q_learning import EpsilonGreedy, greedy_runs
from sotto.algorithms.functional_q import training
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.functions import planned_epsilon
from sotto.algorithms.functional_q.states import action_values, initial_states
from sotto.privacy.ledger.ledger import Ledger


class FunctionalQ(Algorithm[FunctionalQConfig]):
    """Trains Q-learning that protects rewards (after Wang and Hegde 2019).

    The agent first acts without seeing rewards. The rewards are then added up at nodes, which are
    the points of a grid over the states, and released once, with noise. Everything that is learned
    from the noisy rewards may be published. States and actions are public; only rewards are
    protected. Mode policy-choice releases no rewards: only which of many public policies is best.

    Give --target-epsilon to calibrate the noise to it, or --sigma to choose the noise. Training
    on Line-v0 takes about half a minute on two cores, also with --seeds 10.

    Examples:
        sotto train functional-q --env-id Line-v0 --mode reward-release --unit transition \\
          --target-epsilon 0.9 --delta 1e-4 --out runs/q
        sotto train functional-q --env-id CartPoleCentred-v0 --samples 100000 --rounds 20 \\
          --exploration 0.1 --discount 0.95 --gradient-steps 80000 --target-epsilon 1 \\
          --delta 1e-6 --out runs/cartpole
        sotto train functional-q --unit reward-function --reward-radius 0.01 --noise process \\
          --target-epsilon 0.9 --delta 1e-4 --out runs/function
        sotto train functional-q --mode policy-choice --unit reward-function \\
          --reward-radius 0.05 --target-epsilon 0.9 --delta 1e-4 --out runs/choice
        sotto train functional-q --mode output-release --learner network --noise process \\
          --hidden 256 --iterations 1 --gradient-steps 100 --target-epsilon 0.9 --delta 1e-4 \\
          --out runs/network
        sotto train functional-q --mode paper --unit reward-function --reward-radius 1 \\
          --noise process --sigma 0.2 --learning-rate 0.1 --out runs/paper
    """

    name, summary = "functional-q", "Q-learning that protects rewards"
    config_type = FunctionalQConfig
    units = "transitions"
    charged = True

    def steps_per_update(self, config: FunctionalQConfig) -> int:
        """Returns the environment steps of one update, rounded up."""
        return -(-config.samples // config.num_updates)

    def resolved(self, config: FunctionalQConfig) -> FunctionalQConfig:
        """Returns the settings unchanged; raises where they do not fit the environment."""
        self.initial_states(config, [config.seed])
        training.check(config)
        return config

    def notes(self, config: FunctionalQConfig) -> tuple[str, ...]:
        """Returns sentences about the protection that the settings give."""
        return tuple(config.notes(planned_epsilon(config)))

    def create_ledger(self, config: FunctionalQConfig, where: Path | str, run_id: str) -> Ledger:
        """Creates the ledger of a new run, with the budget and the unit of these settings."""
        return training.create_ledger(config, where, run_id)

    def shared(self, config: FunctionalQConfig) -> str | None:
        """Returns what all seeds share: the reward function, if that is the protected unit."""
        if config.unit == "reward-function":
            return "released something of the same reward function"
        return None

    def initial_states(self, config: FunctionalQConfig, seeds: Sequence[int]) -> PyTree:
        """Returns the public state of every run before the first release."""
        return initial_states(config, seeds)

    def train(
        self,
        config: FunctionalQConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Releases rewards, keeps them in each run's folder, and learns from them."""
        for progress in training.train(config, seeds, ledgers, states, done, folders):
            if not progress.learned:
                yield progress
                continue
            episodes = config.evaluation_episodes
            returns = self.mean_return(config, progress.states, progress.updates, episodes)
            yield replace(progress, evaluation={"last": returns})

    def policies(self, states: PyTree) -> dict[str, EpsilonGreedy]:
        """Returns the greedy policy of the last action values."""
        return {"last": greedy_runs(action_values(states))}
