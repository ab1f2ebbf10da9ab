"""`sotto train expert-offline`: offline learning from experts, each of whom is protected."""

from typing import TYPE_CHECKING

from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.cli.parsing import parse, unvalidated
from sotto.cli.train import LedgerOptions, stored_config, train_algorithm
from sotto.runs.expert_offline import expert_offline as expert_offline_runs

if TYPE_CHECKING:
    from sotto.algorithms.expert_offline.config import ExpertOfflineConfig as ExpertOfflineFlags
else:
    ExpertOfflineFlags = unvalidated(ExpertOfflineConfig)


def expert_offline(args: list[str]) -> int:
    """Runs `sotto train expert-offline`."""
    stored = stored_config("expert-offline", args)
    default = ExpertOfflineFlags(**vars(stored)) if stored else ExpertOfflineFlags()

    def run(where: LedgerOptions, settings: ExpertOfflineFlags = default) -> int:
        """Offline learning from experts, each of whom is protected (after Sharma et al. 2024).

        By default it asks experts, or clones of each one's log, what they would do in a thousand
        states, adds noise to the counts, and learns from that. Clones protect logs as they are;
        give --dataset alone. Experts (--experts) are protected as policies; their log is read only
        where whose vote counts follows from it (--least-return, which HIV and LunarLander have).

        --method stable-prefix is the paper's; dp-sgd and prefix-only are its halves, cql and bc
        protect nobody. Seeds ask the same experts, each under a ledger of its own, so that their
        costs add up; of real experts there is one seed at a time.

        Examples:
          sotto experts train --env-id CartPole-v1 --experts 3000 --out runs/experts/cartpole
          sotto experts collect runs/experts/cartpole --out runs/experts/cartpole-v0
          sotto train expert-offline --dataset runs/experts/cartpole-v0 --target-epsilon 1 \
            --out runs/clones
          sotto train expert-offline --experts runs/experts/cartpole --target-epsilon 1 \
            --seeds 10 --out runs/votes
          sotto train expert-offline --method stable-prefix --experts runs/experts/cartpole \
            --dataset runs/experts/cartpole-v0 --target-epsilon 10 --out runs/paper
          sotto train expert-offline --method cql --dataset runs/experts/cartpole-v0 --out runs/cql
          sotto train expert-offline --dataset DATASET --env-id none --box-low -1 -1 \
            --box-high 1 1 --target-epsilon 1 --out runs/anywhere
        """
        algorithm = expert_offline_runs(where.out)
        config = ExpertOfflineConfig(**vars(settings))
        if where.seeds > 1 and config.population == "real" and config.is_private:
            raise ValueError(
                "every seed asks the same real experts again, who pay for each of them; leave out "
                "--seeds, and run seeds one by one if you mean to pay for each"
            )
        if not where.resume:
            config = algorithm.resolved(config)
        return train_algorithm("expert-offline", where, config, args, algorithm)

    return parse(run, args, "train expert-offline")
