"""`sotto train dqn` and `sotto train functional-q`: Q-learning, plain and with private rewards."""

import sys
from typing import TYPE_CHECKING

from sotto.algorithms.baselines.dqn import DQNConfig
from sotto.algorithms.functional_q.config import FunctionalQConfig
from sotto.algorithms.functional_q.functions import planned_epsilon
from sotto.cli.parsing import parse, unvalidated
from sotto.cli.train import LedgerOptions, PlainOptions, stored_config, train_algorithm
from sotto.runs.functional_q import functional_q as keeping_releases

if TYPE_CHECKING:
    from sotto.algorithms.baselines.dqn import DQNConfig as DQNFlags
    from sotto.algorithms.functional_q.config import FunctionalQConfig as FunctionalQFlags
else:
    DQNFlags, FunctionalQFlags = unvalidated(DQNConfig), unvalidated(FunctionalQConfig)


def dqn(args: list[str]) -> int:
    """Runs `sotto train dqn`."""
    default = DQNFlags(**vars(stored_config("dqn", args) or DQNConfig()))

    def run(where: PlainOptions, settings: DQNFlags = default) -> int:
        """Trains DQN, the baseline without privacy. It protects nobody and has no certificate.

        Examples:
          sotto train dqn --env-id CartPole-v1 --out runs/dqn
          sotto train dqn --env-id Line-v0 --discount 0.9 --total-steps 20480 --out runs/line
        """
        return train_algorithm("dqn", where, DQNConfig(**vars(settings)), args)

    return parse(run, args, "train dqn")


def functional_q(args: list[str]) -> int:
    """Runs `sotto train functional-q`."""
    stored = stored_config("functional-q", args)
    default = FunctionalQFlags(**vars(stored)) if stored else FunctionalQFlags()

    def run(where: LedgerOptions, settings: FunctionalQFlags = default) -> int:
        """Trains Q-learning that protects rewards (after Wang and Hegde 2019).

        Steps are collected without looking at rewards; rewards are released once, with noise, and
        whatever is learned from that may be published. States and actions are public.

        Give --target-epsilon and the noise is calibrated to it, or give --sigma. Line-v0 takes
        about half a minute on two cores, also with --seeds 10.

        Examples:
          sotto train functional-q --env-id Line-v0 --mode reward-release --unit transition \
            --target-epsilon 0.9 --delta 1e-4 --out runs/q
          sotto train functional-q --env-id CartPoleCentred-v0 --samples 100000 --rounds 20 \
            --exploration 0.1 --discount 0.95 --gradient-steps 80000 --target-epsilon 1 \
            --delta 1e-6 --out runs/cartpole
          sotto train functional-q --unit reward-function --reward-radius 0.01 --noise process \
            --target-epsilon 0.9 --delta 1e-4 --out runs/function
          sotto train functional-q --mode output-release --learner network --noise process \
            --hidden 256 --iterations 1 --gradient-steps 100 --target-epsilon 0.9 --delta 1e-4 \
            --out runs/network
          sotto train functional-q --mode paper --unit reward-function --reward-radius 1 \
            --noise process --sigma 0.2 --learning-rate 0.1 --out runs/paper
        """
        config = FunctionalQConfig(**vars(settings))
        for note in config.notes(planned_epsilon(config)):
            print(note, file=sys.stderr if where.json else sys.stdout)
        return train_algorithm("functional-q", where, config, args, keeping_releases(where.out))

    return parse(run, args, "train functional-q")
