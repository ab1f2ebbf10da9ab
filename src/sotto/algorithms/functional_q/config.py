"""Settings of Q-learning that protects rewards; every field is an option of the command line."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from sotto.algorithms.baselines.q_learning import LearnerSettings
from sotto.algorithms.functional_q.nodes import Grid
from sotto.algorithms.settings import (
    AtLeastTwo,
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
from sotto.privacy.units import REWARD_FUNCTION, TRANSITION, Unit
from sotto.rl.envs.base import AnyEnvironment, Discrete
from sotto.rl.envs.registry import make_ours

Mode = Literal["reward-release", "output-release", "per-iteration", "policy-choice", "paper"]
ProtectedUnit = Literal["transition", "reward-function"]


class _Task(NamedTuple):
    """The public facts of an environment: a box of states, nodes in it, and a range of rewards."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    nodes: tuple[int, ...]
    rewards: tuple[float, float]


_CARTPOLE = ((-2.4, -2.5, -0.21, -3.0), (2.4, 2.5, 0.21, 3.0))
_TASKS = {
    "Line-v0": _Task((0.0,), (1.0,), (11,), (0.0, 0.5)),
    "CartPole-v1": _Task(*_CARTPOLE, (5, 3, 5, 3), (0.0, 1.0)),
    "CartPoleCentred-v0": _Task(*_CARTPOLE, (9, 1, 9, 1), (0.0, 1.0)),
}
"""The environments whose settings may be left out."""


@dataclass(frozen=True)
class FunctionalQConfig(Settings):
    """Q-learning that protects rewards (after Wang and Hegde 2019); defaults for Line-v0."""

    later_names: ClassVar[frozenset[str]] = frozenset({"candidates"})

    env_id: str = "Line-v0"
    """Environment, which must be written in JAX and have discrete actions. Its states and the
    actions taken are public. Its rewards are protected."""
    mode: Mode = "reward-release"
    """Quantity that is released with noise. reward-release: the rewards at the nodes, once;
    learning from them costs nothing. output-release: the action values at the end. per-iteration:
    the action values of every iteration. policy-choice: which of many public policies is best,
    without delta; it suits a whole reward function. paper: Algorithm 1 of the paper as printed,
    which protects nobody (its epsilon is infinite)."""
    unit: ProtectedUnit = "transition"
    """Unit that is protected. transition: the reward of one transition. reward-function: the whole
    reward function, against changes of at most reward_radius, as in the paper."""
    seed: Seed = 0
    """Seed of the environments, the actions and the initial network. The noise has no seed."""
    samples: Count = 5_000
    """Number of environment steps. All of them are taken without seeing rewards."""
    num_envs: Count = 10
    """Number of parallel environments."""
    rounds: Count = 1
    """Number of rounds into which the samples are divided, for mode reward-release of transitions.
    Actions are uniform in the first round, and follow the action values learned so far in later
    rounds. Every transition takes part in one round."""
    exploration: Probability = 0.2
    """Probability of a uniform action in rounds after the first."""

    reward_low: Signed | None = None
    """Smallest possible reward, a public number. None takes it from the environment."""
    reward_high: Signed | None = None
    """Largest possible reward, a public number. Rewards outside the range are clipped."""
    reward_radius: Positive | None = None
    """Largest difference of two neighbouring reward functions, for unit reward-function."""
    target_epsilon: Epsilon | None = None
    """Epsilon that the certificate must not exceed. The noise is calibrated to it."""
    delta: Fraction = 1e-5
    """Delta of the guarantee. For unit transition it must be below 1 / samples."""
    sigma: Positive | None = None
    """Standard deviation of the noise of each released number, instead of target_epsilon."""
    noise: Literal["vector", "process"] = "vector"
    """Kind of noise. vector: independent noise at each node. process: sample paths of a Gaussian
    process, for states of one dimension."""

    nodes: tuple[Count, ...] | None = None
    """Number of nodes along each dimension of a state. 1 ignores the dimension. None takes the
    numbers from the environment."""
    node_low: tuple[Signed, ...] | None = None
    """Lower corner of the box of nodes, a public choice."""
    node_high: tuple[Signed, ...] | None = None
    """Upper corner of the box of nodes. A state outside counts as the nearest point of the box."""
    node_variable: Literal["next-state", "state-action"] = "next-state"
    """Argument of the released reward function. next-state: the state after a step. state-action:
    the state before it and the action. If rewards depend on something else, learning is worse, but
    the guarantee holds."""

    learner: Literal["dqn", "averager", "network"] = "dqn"
    """Model of the action values. In mode reward-release it is a neural network (dqn) or a table at
    the nodes (averager). The modes output-release and per-iteration learn a table. With
    --noise process and states of one dimension, output-release may also learn a network with one
    hidden layer (network), whose noise grows by a factor with each of --iterations."""
    discount: Discount = 0.9
    """Discount factor gamma."""
    iterations: Count = 50
    """Number of iterations of fitted Q-iteration, for output-release, per-iteration, policy-choice
    and averager. The noise of per-iteration grows with its square root."""
    gradient_steps: Count = 4_000
    """Total number of gradient steps of dqn and network."""
    minibatch: Count = 64
    """Transitions of one gradient step of dqn."""
    learning_rate: Positive = 1e-3
    """Learning rate of dqn (the initial rate of Adam, which falls linearly to zero) or of mode
    paper (alpha)."""
    target_period: Count = 128
    """Gradient steps of dqn between two copies to the target network."""
    double: bool = True
    """Whether dqn uses double Q-learning."""
    huber: bool = True
    """Whether dqn uses the Huber loss instead of the squared error."""
    hidden: tuple[Count, ...] = (64, 64)
    """Sizes of the hidden layers of the network."""

    candidates: AtLeastTwo = 100
    """Number of random reward functions for which mode policy-choice plans public policies.
    Policies that are the same count once."""
    batch: Count = 128
    """Samples of one update in mode paper, B."""
    resets: Count | None = None
    """Number of times that mode paper draws the noise, J. None draws it at every update."""
    lipschitz: Positive = 1.0
    """Constant L of Theorem 5, from which mode paper computes sigma for target_epsilon. Nothing
    enforces it."""
    evaluation_episodes: Count = 64
    """Greedy episodes at each point of the learning curve. The guarantee does not cover the curve,
    which shows returns of the simulator's exact rewards."""

    def check(self) -> None:
        """Refuses settings that contradict each other."""
        _check_unit(self)
        _check_choice(self)
        _check_schedule(self)
        _check_network(self)

    # --- public facts ---

    @property
    def population(self) -> Literal["simulated"]:
        """The origin of the rewards, which is a simulator."""
        return "simulated"

    @property
    def environment(self) -> AnyEnvironment:
        """The environment in which the agent acts.

        Raises:
            ValueError: it is not written in JAX, is not sotto's, or its actions are not discrete.
        """
        env = make_ours(self.env_id, "states are public, and those of others could tell of rewards")
        if not isinstance(env.action, Discrete):
            raise ValueError(f"Q-learning needs discrete actions, and those of {env.id} are not")
        return env

    @property
    def actions(self) -> int:
        """Number of actions."""
        action = self.environment.action
        assert isinstance(action, Discrete)
        return action.n

    @property
    def rewards(self) -> tuple[float, float]:
        """The public range of rewards."""
        task = _TASKS.get(self.env_id)
        known: tuple[float | None, float | None] = task.rewards if task else (None, None)
        low = known[0] if self.reward_low is None else self.reward_low
        high = known[1] if self.reward_high is None else self.reward_high
        if low is None or high is None:
            env = self.environment  # refuses a name that no environment has
            raise ValueError(
                f"the range of {env.id}'s rewards is unknown: give --reward-low and --reward-high"
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
        """The middle of the range, which stands for unknown rewards."""
        return sum(self.rewards) / 2

    @property
    def grid(self) -> Grid:
        """The grid of nodes.

        Raises:
            ValueError: the nodes do not fit the environment.
        """
        task = _TASKS.get(self.env_id)
        size = self.environment.observation_size
        found = (
            self.node_low or (task and task.low),
            self.node_high or (task and task.high),
            self.nodes or (task and task.nodes),
        )
        if any(one is None for one in found):
            raise ValueError(
                f"the range of {self.env_id}'s states is unknown: give --nodes, --node-low and "
                "--node-high"
            )
        grid = Grid(*found)  # type: ignore[arg-type]
        if len(grid.nodes) != size:
            raise ValueError(
                f"states of {self.env_id} have {size} dimensions, but --nodes has "
                f"{len(grid.nodes)} numbers; give one for each dimension"
            )
        return grid

    @property
    def features(self) -> int:
        """Number of values in a release of rewards."""
        return self.grid.size * (self.actions if self.node_variable == "state-action" else 1)

    # --- privacy ---

    @property
    def privacy_unit(self) -> Unit:
        """The protected unit of the ledger."""
        return TRANSITION if self.unit == "transition" else REWARD_FUNCTION

    @property
    def is_proved(self) -> bool:
        """Whether a guarantee is proved for these settings."""
        return self.mode != "paper"

    @property
    def budget_epsilon(self) -> float:
        """Epsilon that the ledger must not exceed; infinite where the noise is given."""
        if self.is_proved and self.target_epsilon is not None:
            return self.target_epsilon
        return math.inf

    def notes(self, epsilon: float) -> tuple[str, ...]:
        """Returns sentences about the protection that a reader must know beside epsilon.

        Args:
            epsilon: epsilon of the whole training.
        """
        low, high = self.rewards
        if self.unit == "transition":
            return (
                f"The reward of one transition is protected, anywhere in the public range "
                f"[{low:g}, {high:g}]; states and actions are public.",
            )
        assert self.reward_radius is not None
        ratio = self.reward_radius / self.reward_range
        found = [
            f"The reward function is protected within a radius of {self.reward_radius:g}, which "
            f"is {ratio:.3g} times the public range [{low:g}, {high:g}]. Larger differences are "
            "protected less.",
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
        """Steps of each parallel environment in one round."""
        return self.round_samples // self.num_envs

    @property
    def chunks_per_round(self) -> int:
        """Number of parts into which a round's learning is divided."""
        return max(1, math.ceil(10 / self.rounds))

    @property
    def chunk_gradient_steps(self) -> int:
        """Number of gradient steps of one part."""
        return math.ceil(self.gradient_steps / (self.rounds * self.chunks_per_round))

    @property
    def chunk_iterations(self) -> int:
        """Number of iterations of the averager in one part."""
        return math.ceil(self.iterations / self.chunks_per_round)

    @property
    def num_updates(self) -> int:
        """Number of updates of a training; a release or a part of learning is one update."""
        if self.mode == "reward-release":
            return self.rounds * (1 + self.chunks_per_round)
        return self.samples // self.batch if self.mode == "paper" else 1

    @property
    def learner_settings(self) -> LearnerSettings:
        """Settings of the gradient steps of dqn."""
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
        raise ValueError("--mode paper needs --unit reward-function and --reward-radius 1")
    if config.mode == "paper" and config.reward_radius != 1:
        raise ValueError("the paper's reward radius is 1; give --reward-radius 1")
    if config.mode == "paper" and config.noise != "process":
        raise ValueError("--mode paper adds sample paths; give --noise process")
    if config.noise == "process" and config.mode == "reward-release" and not whole:
        raise ValueError(
            "reward-release of transitions adds independent noise to sums, which is less than the "
            "noise of sample paths; leave out --noise"
        )


def _check_choice(config: FunctionalQConfig) -> None:
    if config.mode != "policy-choice":
        return
    if config.target_epsilon is None:
        raise ValueError("--mode policy-choice has no sigma; give --target-epsilon instead")
    if config.noise == "process":
        raise ValueError("--mode policy-choice adds its own noise to values; leave out --noise")


def _check_schedule(config: FunctionalQConfig) -> None:
    if config.samples % (config.rounds * config.num_envs) and config.mode != "paper":
        raise ValueError(
            f"samples must be a multiple of rounds * num_envs = "
            f"{config.rounds * config.num_envs}, got {config.samples}"
        )
    if config.rounds > 1 and (config.mode != "reward-release" or config.unit != "transition"):
        raise ValueError(
            "more than one round needs --mode reward-release and --unit transition, since a reward "
            "function takes part in every round; leave out --rounds"
        )
    if config.mode == "paper" and config.samples < config.batch:
        raise ValueError(f"samples must be at least batch = {config.batch}")
    if config.resets is not None and not 1 <= config.resets <= config.samples // config.batch:
        raise ValueError("resets must be between 1 and samples / batch, the number of updates")


def _check_network(config: FunctionalQConfig) -> None:
    if config.learner != "network":
        return
    if config.mode != "output-release":
        raise ValueError(
            "--learner network is trained on the exact rewards; give --mode output-release"
        )
    if config.noise != "process":
        raise ValueError(
            "a network is released as a function, with a sample path as noise; give --noise process"
        )
    if len(config.hidden) != 1:
        raise ValueError(
            "the bounds of --learner network hold for one hidden layer; give --hidden 256"
        )
    if config.gradient_steps < config.iterations:
        raise ValueError(
            f"gradient_steps must be at least iterations = {config.iterations}, got "
            f"{config.gradient_steps}"
        )
