"""sotto trains reinforcement-learning agents on people's data under differential privacy.

```
run = sotto.train(sotto.DPPG(env_id="CartPole-v1", target_epsilon=1.0, delta=1e-5), out="runs/x")
agent = sotto.load("runs/x")
action = agent.act(observation)                     # numpy in, numpy out
run.certificate.epsilon, run.returns, sotto.verify("runs/x")
```

A language model that was tuned by `sotto.RLHF` continues prompts:
`sotto.load_language("runs/rlhf").generate("The film is", samples=3)`.

Names are imported when they are used, so `import sotto` does not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from sotto.algorithms.bandit.config import BanditConfig as Bandit
    from sotto.algorithms.base import Algorithm, Progress
    from sotto.algorithms.baselines.a2c import A2CConfig as A2C
    from sotto.algorithms.baselines.dqn import DQNConfig as DQN
    from sotto.algorithms.baselines.ppo import PPOConfig as PPO
    from sotto.algorithms.baselines.q_learning import EpsilonGreedy
    from sotto.algorithms.calibration import account, calibrate
    from sotto.algorithms.dppg.config import DPPGConfig as DPPG
    from sotto.algorithms.expert_offline.config import ExpertOfflineConfig as ExpertOffline
    from sotto.algorithms.functional_q.config import FunctionalQConfig as FunctionalQ
    from sotto.algorithms.kickstarting.config import KickstartConfig as Kickstart
    from sotto.algorithms.offline_people.config import OfflinePeopleConfig as Offline
    from sotto.algorithms.private import PrivateAlgorithm
    from sotto.algorithms.rlhf.config import RLHFConfig as RLHF
    from sotto.algorithms.settings import Settings
    from sotto.privacy.audits.auditable import Auditable
    from sotto.privacy.certificates.model import Certificate
    from sotto.privacy.ledger.ledger import Ledger
    from sotto.privacy.ledger.spending import Budget
    from sotto.privacy.release.release import Release
    from sotto.privacy.statements import Assumption, Correlation, Once, Part, Poisson, Returning
    from sotto.privacy.units import Adjacency, Unit
    from sotto.rl.envs.base import Box, Discrete, Environment, flip, toss
    from sotto.rl.language.agent import LanguageAgent
    from sotto.rl.networks import MLP, Policy
    from sotto.runs.agents.agent import Agent, load, load_language
    from sotto.runs.api import TrainedRun, train, verify

_PUBLIC = {
    # Training and its results.
    **dict.fromkeys(("train", "verify", "TrainedRun"), "sotto.runs.api"),
    **dict.fromkeys(("calibrate", "account"), "sotto.algorithms.calibration"),
    **dict.fromkeys(("load", "load_language", "Agent"), "sotto.runs.agents.agent"),
    "LanguageAgent": "sotto.rl.language.agent",
    "Certificate": "sotto.privacy.certificates.model",
    # Settings of the algorithms.
    "DPPG": "sotto.algorithms.dppg.config:DPPGConfig",
    "PPO": "sotto.algorithms.baselines.ppo:PPOConfig",
    "A2C": "sotto.algorithms.baselines.a2c:A2CConfig",
    "DQN": "sotto.algorithms.baselines.dqn:DQNConfig",
    "Kickstart": "sotto.algorithms.kickstarting.config:KickstartConfig",
    "FunctionalQ": "sotto.algorithms.functional_q.config:FunctionalQConfig",
    "RLHF": "sotto.algorithms.rlhf.config:RLHFConfig",
    "Offline": "sotto.algorithms.offline_people.config:OfflinePeopleConfig",
    "Bandit": "sotto.algorithms.bandit.config:BanditConfig",
    "ExpertOffline": "sotto.algorithms.expert_offline.config:ExpertOfflineConfig",
    # For algorithms in other packages.
    **dict.fromkeys(("Algorithm", "Progress"), "sotto.algorithms.base"),
    "PrivateAlgorithm": "sotto.algorithms.private",
    "Settings": "sotto.algorithms.settings",
    **dict.fromkeys(("MLP", "Policy"), "sotto.rl.networks"),
    "EpsilonGreedy": "sotto.algorithms.baselines.q_learning",
    # For environments in JAX in other packages.
    **dict.fromkeys(("Environment", "Discrete", "Box", "toss", "flip"), "sotto.rl.envs.base"),
    # The door: releases, budgets and ledgers.
    "Release": "sotto.privacy.release.release",
    **dict.fromkeys(
        ("Part", "Correlation", "Once", "Returning", "Poisson", "Assumption"),
        "sotto.privacy.statements",
    ),
    **dict.fromkeys(("Unit", "Adjacency"), "sotto.privacy.units"),
    "Ledger": "sotto.privacy.ledger.ledger",
    "Budget": "sotto.privacy.ledger.spending",
    # What `sotto audit MODULE:NAME` audits.
    "Auditable": "sotto.privacy.audits.auditable",
}
"""Module of each public name, with the name in that module if it differs."""

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sotto' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    found = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
