"""Settings of learning from people's logs; every field is an option of the command line."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from sotto.algorithms.log_facts import with_facts
from sotto.algorithms.settings import (
    AtLeastTwo,
    Count,
    Epsilon,
    Fraction,
    Seed,
    Settings,
    Signed,
    known,
)
from sotto.data.imports.records import Records
from sotto.privacy.units import PopulationKind
from sotto.rl.envs.base import ActionSpace, Box, Discrete

NO_ENVIRONMENT = "none"
"""Name of the environment for logs of people whom nobody simulates."""

Method = Literal["model", "advantage", "cql", "cloning"]
People = Annotated[int, Field(ge=20, le=10**7)]
Bounds = tuple[Signed, ...]


@dataclass(frozen=True)
class OfflinePeopleConfig(Settings):
    """Learning from people's logs, each person protected with everything they logged."""

    on: str | None = None
    """Log of the people: folder or name of a dataset that `sotto import` wrote."""
    method: Method = "model"
    """Method that makes the policy. model: reinforcement learning in a model of the people, for at
    most a few observations. advantage: imitation of people's better actions, in noisy gradient
    steps. cql: conservative Q-learning in such steps, for categories of actions. cloning: imitation
    of all actions. All cost the same privacy."""
    env_id: str = NO_ENVIRONMENT
    """Public simulator in which released policies are evaluated, or `none`. Nothing is learned from
    it."""
    seed: Seed = 0
    """Seed of the model's start states, of networks and of rollouts in the model. The noise has no
    seed."""
    population: PopulationKind = "real"
    """Whether the people of the log are simulated or real."""
    target_epsilon: Epsilon = 1.0
    """Epsilon that the certificate must not exceed. The noise is calibrated to spend all of it."""
    steps: Count = 400
    """Number of noisy steps of all methods but model."""
    sampling_rate: Fraction = 0.1
    """Probability with which a step draws a person, for all methods but model."""
    delta: Fraction | None = None
    """Delta of the guarantee, below one over the number of people. None takes a tenth of that."""

    identity: str | None = None
    """Identity of the import, which puts people in places. None takes that of the dataset."""
    source: str | None = None
    """Declared origin of the log. None takes that of the dataset."""
    licence: str | None = None
    """Declared terms of the log. None takes those of the dataset."""
    already_public: bool | None = None
    """Whether the log is public already. None takes what the dataset says."""
    people: People | None = None
    """Number of places in the log. None takes that of the dataset."""
    horizon: AtLeastTwo | None = None
    """Most rows of a person. None takes that of the dataset."""
    low: Bounds | None = None
    """Lower bounds of the observation. None takes those of the dataset."""
    high: Bounds | None = None
    """Upper bounds of the observation. None takes those of the dataset."""
    actions: Count | None = None
    """Number of categories of actions. None takes that of the dataset, which has none for real
    actions."""
    action_low: Bounds | None = None
    """Lower bounds of real actions. None takes those of the dataset."""
    action_high: Bounds | None = None
    """Upper bounds of real actions. None takes those of the dataset."""
    reward_bounds: tuple[Signed, Signed] | None = None
    """Lower and upper bound of a reward. None takes those of the dataset."""

    def check(self) -> None:
        """Refuses a log that is not named, real actions for cql, and a delta that is vacuous."""
        if self.on is None:
            raise ValueError("give --on with the dataset that sotto import wrote")
        if self.method == "cql" and self.action_low is not None:
            raise ValueError(
                "--method cql needs categories of actions, and this log has real ones; use "
                "--method advantage"
            )
        if self.people is not None and self.delta is not None and self.delta * self.people >= 1:
            raise ValueError(
                f"delta {self.delta:g} is vacuous for {self.people} people; give one below "
                f"1/{self.people}"
            )

    @property
    def num_updates(self) -> int:
        """Number of updates. The model needs the release of scales, three rounds, and learning."""
        return 5 if self.method == "model" else self.steps

    @property
    def steps_per_update(self) -> int:
        """Bound on the logged rows behind an update."""
        return known(self.people) * known(self.horizon)

    @property
    def action(self) -> ActionSpace:
        """Space of actions. Outputs of policies for real actions are in units of half the range."""
        if self.actions is not None:
            return Discrete(self.actions)
        low, high = known(self.action_low), known(self.action_high)
        return Box(low, high, _middle(low, high), _half(low, high))

    @property
    def centre(self) -> Bounds:
        """Middle of the bounds of the observation."""
        return _middle(known(self.low), known(self.high))

    @property
    def scale(self) -> Bounds:
        """Factors that bring a centred observation to [-1, 1]."""
        return tuple(1 / half for half in _half(known(self.low), known(self.high)))


def filled(config: OfflinePeopleConfig, records: Records) -> OfflinePeopleConfig:
    """Returns the settings with the public facts of the dataset.

    Raises:
        ValueError: a setting contradicts the dataset.
    """
    declaration = records.declaration
    if declaration.horizon < 2:
        raise ValueError(
            f"people have at most one step in {config.on}, and learning from logs needs two; "
            "import it with --horizon 2 or more"
        )
    seen, acts = declaration.observation_space, declaration.action_space
    facts = {
        "low": tuple(seen.low.tolist()),
        "high": tuple(seen.high.tolist()),
        "actions": int(acts.n) if declaration.discrete else None,
        "action_low": None if declaration.discrete else tuple(acts.low.tolist()),
        "action_high": None if declaration.discrete else tuple(acts.high.tolist()),
    }
    return with_facts(config, records, facts)


def _middle(low: Bounds, high: Bounds) -> Bounds:
    return tuple((a + b) / 2 for a, b in zip(low, high, strict=True))


def _half(low: Bounds, high: Bounds) -> Bounds:
    return tuple((b - a) / 2 for a, b in zip(low, high, strict=True))
