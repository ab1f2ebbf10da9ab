"""Settings of Q-learning that protects rewards: the dataclass is the command line."""

import math
from dataclasses import dataclass
from typing import Literal

from sotto.algorithms.baselines.q_learning import LearnerSettings
from sotto.algorithms.functional_q.nodes import Grid
from sotto.algorithms.functional_q.presets import TASKS
from sotto.algorithms.settings import (
    Count,
    Discount,
    Epsilon,
    Fraction,
    Positive,
    Probability,
    Seed,
    Settings,
    Signed,
)
from sotto.privacy.mechanisms.functions.calibration import impossibility
from sotto.privacy.units import Adjacency, Unit
from sotto.rl.envs.base import AnyEnvironment, Discrete
from sotto.rl.envs.registry import make

Mode = Literal["reward-release", "output-release", "per-iteration", "paper"]
ProtectedUnit = Literal["transition", "reward-function"]


@dataclass(frozen=True)
class FunctionalQConfig(Settings):
    """Q-learning that protects rewards (after Wang and Hegde 2019); defaults for Line-v0."""

    env_id: str = "Line-v0"
    """The environment (one of those written in JAX, with discrete actions). Its states, and what
    actions were taken, are public; its rewards are not."""
    mode: Mode = "reward-release"
    """What is released. reward-release: rewards at nodes, once; learning then costs nothing more.
    output-release: the action values at the end. per-iteration: those of every iteration. paper:
    Algorithm 1 as printed, which protects nobody (epsilon is infinite)."""
    unit: ProtectedUnit = "transition"
    """What is protected: the reward of one transition, or the whole reward function within
    reward_radius of it (the paper's)."""
    seed: Seed = 0
    """Seed of the environments, the actions and the first network. Never of the noise."""
    samples: Count = 5_000
    """Environment steps, which are all collected without looking at rewards."""
    num_envs: Count = 10
    """Environments that run side by side."""
    rounds: Count = 1
    """reward-release of transitions: samples come in so many parts. The first acts uniformly, later
    ones on what was learned from releases so far; every transition takes part once."""
    exploration: Probability = 0.2
    """Probability of a uniform action in rounds after the first."""

    reward_low: Signed | None = None
    """Smallest possible reward, a public number. None: the environment's."""
    reward_high: Signed | None = None
    """Largest possible reward. Rewards outside are clipped."""
    reward_radius: Positive | None = None
    """Neighbouring reward functions differ by at most this anywhere (unit reward-function)."""
    target_epsilon: Epsilon | None = None
    """Epsilon the certificate must not exceed; the noise is calibrated to it."""
    delta: Fraction = 1e-5
    """Delta of the guarantee; below 1 / samples where transitions are protected."""
    sigma: Positive | None = None
    """Instead of target_epsilon: standard deviation of the noise of each released number."""
    noise: Literal["vector", "process"] = "vector"
    """Independent noise at nodes, or sample paths of the Gaussian process (one dimension)."""

    nodes: tuple[Count, ...] | None = None
    """Nodes along each dimension of a state; 1 ignores the dimension. None: the environment's."""
    node_low: tuple[Signed, ...] | None = None
    """Lower corner of the box that the nodes are in, a public choice."""
    node_high: tuple[Signed, ...] | None = None
    """Its upper corner; states outside count as the nearest one in it."""
    node_variable: Literal["next-state", "state-action"] = "next-state"
    """What the released reward is a function of: the state that a step leads to, or the state and
    the action. A reward that is a function of something else is learned less well, not less
    privately."""

    learner: Literal["dqn", "averager", "network"] = "dqn"
    """reward-release: what learns from the released rewards, a network (dqn) or a table at nodes
    (averager). output-release and per-iteration learn a table, but output-release also a network of
    one hidden layer, in one dimension and with --noise process: its steps are bounded, and every
    one of --iterations multiplies the noise."""
    discount: Discount = 0.9
    """Gamma."""
    iterations: Count = 50
    """Of fitted Q-iteration: output-release, per-iteration and the averager. The noise of
    per-iteration grows with its root."""
    gradient_steps: Count = 4_000
    """dqn and network: gradient steps in all."""
    minibatch: Count = 64
    """dqn: transitions per gradient step."""
    learning_rate: Positive = 1e-3
    """dqn: Adam's learning rate, which goes linearly to zero. paper: alpha."""
    target_period: Count = 128
    """dqn: gradient steps between copies to the target network."""
    double: bool = True
    """dqn: double Q-learning."""
    huber: bool = True
    """dqn: Huber's loss instead of the square."""
    hidden: tuple[Count, ...] = (64, 64)
    """Hidden layers of the network."""

    batch: Count = 128
    """paper: B, samples per update."""
    resets: Count | None = None
    """paper: J, how often the noise is drawn anew. None: at every update."""
    lipschitz: Positive = 1.0
    """paper: L of Theorem 5, from which sigma follows for target_epsilon; nothing enforces it."""
    evaluation_episodes: Count = 64
    """Whole greedy episodes at each point of the learning curve, which are for the experimenter."""

    def check(self) -> None:
        """Refuses settings that contradict each other."""
        _check_unit(self)
        _check_schedule(self)
        _check_network(self)

    # --- public facts ---

    @property
    def population(self) -> Literal["simulated"]:
        """Whose rewards they are: a simulator's."""
        return "simulated"

    @property
    def environment(self) -> AnyEnvironment:
        """The environment.

        Raises:
            ValueError: it is not one of those written in JAX, or its actions are not discrete.
        """
        env = make(self.env_id)
        if not isinstance(env.action, Discrete):
            raise ValueError(f"Q-learning needs discrete actions, which {env.id} has not")
        return env

    @property
    def actions(self) -> int:
        """How many actions there are."""
        action = self.environment.action
        assert isinstance(action, Discrete)
        return action.n

    @property
    def rewards(self) -> tuple[float, float]:
        """The public range of rewards."""
        task = TASKS.get(self.env_id)
        known: tuple[float | None, float | None] = task.rewards if task else (None, None)
        low = known[0] if self.reward_low is None else self.reward_low
        high = known[1] if self.reward_high is None else self.reward_high
        if low is None or high is None:
            raise ValueError(
                f"nothing is known of {self.env_id}'s rewards: give --reward-low and --reward-high"
            )
        if not low < high:
            raise ValueError(f"reward_low {low:g} must be below reward_high {high:g}")
        return low, high

    @property
    def reward_range(self) -> float:
        """Largest minus smallest reward."""
        low, high = self.rewards
        return high - low

    @property
    def middle(self) -> float:
        """The middle of the range, which stands for rewards that nothing is known of."""
        return sum(self.rewards) / 2

    @property
    def grid(self) -> Grid:
        """The nodes.

        Raises:
            ValueError: they do not fit the environment.
        """
        task = TASKS.get(self.env_id)
        size = self.environment.observation_size
        found = (
            self.node_low or (task and task.low),
            self.node_high or (task and task.high),
            self.nodes or (task and task.nodes),
        )
        if any(one is None for one in found):
            raise ValueError(
                f"nothing is known of {self.env_id}'s states: give --nodes, --node-low, --node-high"
            )
        grid = Grid(*found)  # type: ignore[arg-type]
        if len(grid.nodes) != size:
            raise ValueError(f"{self.env_id} has {size} dimensions, and nodes {len(grid.nodes)}")
        return grid

    @property
    def features(self) -> int:
        """How many numbers a release of rewards holds."""
        return self.grid.size * (self.actions if self.node_variable == "state-action" else 1)

    # --- privacy ---

    @property
    def privacy_unit(self) -> Unit:
        """The unit of the ledger."""
        if self.unit == "transition":
            return Unit(kind="transition", adjacency=Adjacency.REPLACE_ONE)
        return Unit(kind="reward-function", adjacency=Adjacency.WITHIN_RADIUS)

    @property
    def is_proved(self) -> bool:
        """Whether anything can be proved of these settings."""
        return self.mode != "paper"

    @property
    def budget_epsilon(self) -> float:
        """Epsilon the ledger must not exceed: the target, or none where the noise is given."""
        if self.is_proved and self.target_epsilon is not None:
            return self.target_epsilon
        return math.inf

    def notes(self, epsilon: float) -> tuple[str, ...]:
        """What a person must know beside epsilon, in sentences.

        Args:
            epsilon: of the whole training.
        """
        low, high = self.rewards
        if self.unit == "transition":
            return (
                f"Protected is the reward of one transition, anywhere in the public range "
                f"[{low:g}, {high:g}]; states and actions are public.",
            )
        assert self.reward_radius is not None
        ratio = self.reward_radius / self.reward_range
        found = [
            f"Protected is the reward function, within a radius of {self.reward_radius:g}: "
            f"{ratio:.3g} times the public range [{low:g}, {high:g}]. What differs by more than "
            "the radius is protected less.",
        ]
        if self.is_proved and math.isfinite(epsilon):
            warning = impossibility(epsilon, self.delta, self.reward_radius, self.reward_range)
            if warning is not None:
                found.append(f"Impossible: {warning}.")
        return tuple(found)

    # --- schedule ---

    @property
    def round_samples(self) -> int:
        """Environment steps of one round."""
        return self.samples // self.rounds

    @property
    def lane_steps(self) -> int:
        """Steps of each environment in one round."""
        return self.round_samples // self.num_envs

    @property
    def chunks_per_round(self) -> int:
        """Parts in which a round learns, after its release."""
        return max(1, math.ceil(10 / self.rounds))

    @property
    def chunk_gradient_steps(self) -> int:
        """Gradient steps of one part."""
        return math.ceil(self.gradient_steps / (self.rounds * self.chunks_per_round))

    @property
    def chunk_iterations(self) -> int:
        """Iterations of the averager in one part."""
        return math.ceil(self.iterations / self.chunks_per_round)

    @property
    def num_updates(self) -> int:
        """What a training is counted in: releases and parts of learning."""
        if self.mode == "reward-release":
            return self.rounds * (1 + self.chunks_per_round)
        return self.samples // self.batch if self.mode == "paper" else 1

    @property
    def learner_settings(self) -> LearnerSettings:
        """How gradient steps are made."""
        return LearnerSettings(
            learning_rate=self.learning_rate,
            anneal_steps=self.chunk_gradient_steps * self.rounds * self.chunks_per_round,
            minibatch=self.minibatch,
            discount=self.discount,
            target_period=self.target_period,
            double=self.double,
            huber=self.huber,
            max_grad_norm=10.0,
        )


def _check_unit(config: FunctionalQConfig) -> None:
    if (config.target_epsilon is None) == (config.sigma is None):
        raise ValueError("give either --target-epsilon or --sigma")
    whole = config.unit == "reward-function"
    if whole and config.reward_radius is None:
        raise ValueError("--unit reward-function needs --reward-radius")
    if not whole and config.reward_radius is not None:
        raise ValueError("--reward-radius belongs to --unit reward-function")
    if config.mode == "paper" and not whole:
        raise ValueError("--mode paper is about --unit reward-function with --reward-radius 1")
    if config.mode == "paper" and config.reward_radius != 1:
        raise ValueError("the paper's reward radius is 1; give --reward-radius 1")
    if config.mode == "paper" and config.noise != "process":
        raise ValueError("--mode paper adds sample paths; give --noise process")
    if config.noise == "process" and config.mode == "reward-release" and not whole:
        raise ValueError(
            "reward-release of transitions adds independent noise to sums, which is less noise "
            "than paths would be; leave out --noise"
        )


def _check_schedule(config: FunctionalQConfig) -> None:
    if config.samples % (config.rounds * config.num_envs) and config.mode != "paper":
        raise ValueError(
            f"samples must be a multiple of rounds * num_envs = "
            f"{config.rounds * config.num_envs}, got {config.samples}"
        )
    if config.rounds > 1 and (config.mode != "reward-release" or config.unit != "transition"):
        raise ValueError(
            "several rounds are for reward-release of transitions, each of which takes part in "
            "one of them; a reward function takes part in all"
        )
    if config.mode == "paper" and config.samples < config.batch:
        raise ValueError(f"samples must be at least batch = {config.batch}")
    if config.resets is not None and not 1 <= config.resets <= config.samples // config.batch:
        raise ValueError("resets must be between 1 and samples / batch, the number of updates")


def _check_network(config: FunctionalQConfig) -> None:
    if config.learner != "network":
        return
    if config.mode != "output-release":
        raise ValueError("--learner network is trained in secret; give --mode output-release")
    if config.noise != "process":
        raise ValueError("a network is released as a function, with a path; give --noise process")
    if len(config.hidden) != 1:
        raise ValueError("the bounds are those of one hidden layer; give --hidden 256")
    if config.gradient_steps < config.iterations:
        raise ValueError(
            f"gradient_steps must be at least iterations = {config.iterations}, got "
            f"{config.gradient_steps}"
        )
