"""Algorithm `rlhf` of `sotto train`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from sotto.algorithms.base import Algorithm, Progress, Words
from sotto.algorithms.rlhf import evaluation, training
from sotto.algorithms.rlhf.answers import TunedModel
from sotto.algorithms.rlhf.config import PAPER, SMOLLM2, RLHFConfig
from sotto.algorithms.rlhf.evaluation import REAL
from sotto.algorithms.rlhf.features import RewardModel
from sotto.algorithms.rlhf.people import (
    People,
    meet,
    place_of,
    prompts_identity,
    read_language_model,
    require_prompts,
)
from sotto.algorithms.rlhf.release import RLHFState
from sotto.files import absolute
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.spending import Budget
from sotto.rl.language import LanguageModel
from sotto.rl.language.loading import identity
from sotto.trees import at


class RLHF(Algorithm[RLHFConfig]):
    """Private RLHF: tunes a language model to people's ratings (Rio et al. 2025, section 6). It
    protects each person with all of their prompts, completions and ratings.

    By default the noisy release is a small linear model of people's ratings. The language model is
    then tuned against it on public prompts, which costs no more privacy, and its change is scaled
    to --kl-target. --method policy-gradient releases clipped policy gradients (DPPG), and
    --method best-of-n gradients that imitate each person's favourite completion.

    Without --feedback people are simulated: they rate completions of film reviews like a model that
    was trained on other people's ratings. `sotto install smollm2` and `sotto install films` fetch
    the language model (93 MB) and the texts (3 MB).

    Examples:
        sotto install smollm2
        sotto install films
        sotto train rlhf --target-epsilon 1 --out runs/rlhf
        sotto generate runs/rlhf --prompt "The film is"
        sotto train rlhf --method policy-gradient --releases 8 --out runs/steps
        sotto train rlhf --preset paper --out runs/paper
        sotto train rlhf --feedback ratings.jsonl --public-prompts prompts.txt --people 500 \\
          --out runs/real
    """

    name, summary = "rlhf", "a language model tuned to people's ratings"
    config_type = RLHFConfig
    presets = ("sotto", "paper")
    files: ClassVar[Mapping[str, str | None]] = {
        "model": "model_identity",
        "public_prompts": "prompts_identity",
        "feedback": None,
    }
    one_seed = (  # each would need its own language model
        "seeds of rlhf do not train side by side: one fills the memory; train them one after the "
        "other with --seed"
    )
    charged = True
    acts = False
    evaluates_greedily = False
    words = Words(
        measure="rating",
        over="completions",
        decimals=3,
        steps="rated tokens",
        quantities={
            "last": ("rating", "mean rating"),
            "judge": ("judge", "mean probability"),
            "kl": ("KL", "nats a completion"),
            "distinct_2": ("distinct-2", "share"),
        },
        meaning=(
            "Rating: by simulated people who never take part, from 0 to 1. Judge: probability that "
            "a text is positive, by a judge whom no training sees. KL: divergence from the base "
            "model, with --reranked a bound on it. Distinct-2: share of different pairs of words "
            "among all pairs."
        ),
    )

    def __init__(self) -> None:
        self._read: tuple[str, LanguageModel, str] | None = None
        self._met: tuple[RLHFConfig, People] | None = None

    def defaults(self, flags: Mapping[str, str]) -> dict[str, Any]:
        """Returns the preset's settings, with a target epsilon or a noise multiplier."""
        name = flags.get("preset", self.presets[0])
        if name not in self.presets:
            raise ValueError(f"there is no preset {name!r}; use {' or '.join(self.presets)}")
        values = PAPER if name == "paper" else {}
        if "target_epsilon" in flags:
            return values | {"target_epsilon": 1.0, "noise_multiplier": None}  # the flag replaces 1
        if "noise_multiplier" in flags:
            return values | {"target_epsilon": None, "noise_multiplier": 1.0}
        return values

    def use(self, options: Any, config: RLHFConfig, named: Mapping[str, str]) -> None:
        """Refuses files that only config.json names."""
        del options
        for name in self.files:
            if getattr(config, name) != getattr(RLHFConfig, name) and name not in named:
                raise _unnamed(name, getattr(config, name))

    def resolved(self, config: RLHFConfig) -> RLHFConfig:
        """Returns the settings with the identities of their files, if all of them can be read."""
        if config.model_identity is None:  # a new run
            _require_effect(config)
        prompts = prompts_identity(config)
        require_prompts(config)
        self.language(config)
        assert self._read is not None
        config = replace(
            config,
            model=config.model if config.model == SMOLLM2 else str(Path(config.model).absolute()),
            model_identity=self._read[2],
            public_prompts=absolute(config.public_prompts),
            prompts_identity=prompts,
            feedback=absolute(config.feedback),
        )
        self._people(config)
        return config

    def most_steps(self, config: RLHFConfig) -> int:
        """Returns the number of tokens that people rate, at most: all of them in releases."""
        return config.releases * config.steps_per_update

    def create_ledger(self, config: RLHFConfig, where: Path | str, run_id: str) -> Ledger:
        """Creates the ledger of a new run."""
        epsilon = math.inf if config.target_epsilon is None else config.target_epsilon
        budget = Budget(epsilon=epsilon, delta=config.delta)
        return Ledger.create(where, run_id, unit=config.privacy_unit, budget=budget)

    def initial_states(self, config: RLHFConfig, seeds: Sequence[int]) -> PyTree:
        """Returns the public state before the first release, leaves of shape [1, ...]."""
        del seeds
        state = training.initial_state(config, self._people(config))
        return jax.tree.map(lambda x: np.asarray(x)[None], state)

    def one_state(self, config: RLHFConfig, seed: int) -> PyTree:
        """Returns arrays with the shapes of one run's state. Only the model is read for it."""
        del seed
        return training.blank_state(config, self.language(config).decoder.architecture)

    def train(
        self,
        config: RLHFConfig,
        seeds: Sequence[int],
        ledgers: Sequence[Ledger],
        states: PyTree,
        done: int,
        folders: Sequence[Path],
    ) -> Iterator[Progress]:
        """Makes the remaining releases and updates."""
        del seeds
        (ledger,), (folder,) = ledgers, folders
        people = self._people(config)
        yield from training.RLHFTraining(config, people, ledger, states, done, folder).run()

    def policies(self, states: RLHFState) -> dict[str, TunedModel]:
        """Returns the last change of the model, and the average of the last released ones."""
        reward = RewardModel(states.whitening, states.weights)
        return {
            "last": TunedModel(states.adapter, reward),
            "average": TunedModel(states.average, reward),
        }

    def to_evaluate(self, config: RLHFConfig, model: str | None) -> RLHFConfig:
        """Returns the settings with a model that the user named, and with installed prompts.

        Raises:
            ValueError: the people are real, or the model is another one and the user did not name
                it.
        """
        if config.population == "real":
            raise ValueError(REAL)
        generating = self.to_generate(config, model)
        return replace(generating, public_prompts=None, prompts_identity=None)

    def to_generate(self, config: RLHFConfig, model: str | None) -> RLHFConfig:
        """Returns the settings with a model that the user named.

        Args:
            config: settings of a run, from a file.
            model: the language model that the user named; None stands for an installed one.

        Raises:
            ValueError: the model is another one, and the user did not name it.
        """
        if model is None and config.model != SMOLLM2:
            raise _unnamed("model", config.model)
        return replace(config, model=model or config.model)

    def unevaluated(self, config: RLHFConfig) -> str:
        """Returns a sentence that says why a training has no evaluations."""
        del config  # simulated people evaluate every chunk
        return f"{REAL[0].upper()}{REAL[1:]}."

    def evaluate(
        self, config: RLHFConfig, policy: TunedModel, key: PRNGKeyArray, episodes: int, greedy: bool
    ) -> Float[np.ndarray, "runs episodes"]:
        """Returns ratings of sampled completions by simulated people who never took part."""
        if greedy:
            raise ValueError("completions are sampled; evaluate with greedy=False")
        one = at(policy, 0)
        found = evaluation.measure(config, self._people(config), one, key, episodes)
        return found.rating[None]

    def language(self, config: RLHFConfig) -> LanguageModel:
        """Returns the base model of these settings, which is read once.

        Raises:
            ValueError: it is another model than the one that the run began with.
        """
        if self._read is None or self._read[0] != config.model:
            language = read_language_model(config.model)
            self._read = config.model, language, identity(place_of(config.model))
        if config.model_identity not in (None, self._read[2]):
            raise ValueError(
                f"{config.model} is not the model of this run, whose files had another SHA-256; "
                "name that model with --model"
            )
        return self._read[1]

    def _people(self, config: RLHFConfig) -> People:
        """Returns the model and the people of these settings, who are read once."""
        if self._met is None or self._met[0] != config:
            self._met = config, meet(config, self.language(config))
        return self._met[1]


def _require_effect(config: RLHFConfig) -> None:
    """Refuses settings that the method does not read, which runs of earlier versions may have.

    Raises:
        ValueError: a setting differs from its default and has no effect.
    """
    unread = ["kl_coefficient"] if config.method != "policy-gradient" else []
    unread += ["directions"] if config.improves else []
    for name in unread:
        if getattr(config, name) != (default := getattr(RLHFConfig, name)):
            raise ValueError(f"{name} has no effect with {config.method}; leave it at {default:g}")


def _unnamed(name: str, file: str) -> ValueError:
    """Returns the refusal of a file that only config.json names."""
    flag = name.replace("_", "-")
    return ValueError(
        f"only config.json names the file {file}; give --{flag} {file} again if you trust it"
    )
