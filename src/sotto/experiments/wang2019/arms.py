"""The methods in the figures of Wang and Hegde 2019, with their settings."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from sotto.algorithms.functional_q.config import FunctionalQConfig

FigureName = Literal["fig1", "fig2a", "fig2b", "tradeoff", "cartpole"]
Kind = Literal["functional", "input", "policy-evaluation", "dp-sgd", "dqn"]

DELTA = 1e-4
"""Delta of the paper's figure 2."""

PAPER_SIGMAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Values of sigma in figure 1."""

TRADEOFF_EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.45, 0.9, 2.0)
TRADEOFF_RADII = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)

OPTIMUM, RANDOM = 20.71, 10.94
"""Expected returns on Line-v0 of walking to the centre, and of uniform actions."""

_NO_NOISE = 1e-9  # stands for sigma 0 in figure 1


@dataclass(frozen=True)
class Method:
    """One method with its settings.

    Attributes:
        name: name in data files, unique within a figure.
        label: name in figures.
        panel: panel of the figure in which it is drawn.
        method: kind of training.
        task: settings that all methods share.
        seconds: approximate duration of ten seeds on two cores.
        x: position on the x axis, an epsilon or a radius; None for a learning curve.
        options: further settings of this kind of training.
    """

    name: str
    label: str
    panel: str
    method: Kind
    task: FunctionalQConfig
    seconds: float
    x: float | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def settings(self) -> str:
        """All settings that its results depend on, under the class name of earlier versions."""
        named = repr(replace(self, seconds=0.0)).replace("Method", "Arm", 1)
        return named.replace(repr(self.task), self.task.first_repr())


_LINE = FunctionalQConfig(env_id="Line-v0", delta=DELTA, target_epsilon=0.9)
"""Task of the paper: 5,000 steps on the line."""


def methods(figure: FigureName, quick: bool = False) -> list[Method]:
    """Returns the methods of a figure.

    Args:
        figure: name of the figure.
        quick: whether to take few samples and few methods, for a quick test.
    """
    made = {
        "fig1": _figure1,
        "fig2a": lambda: _figure2(0.9),
        "fig2b": lambda: _figure2(0.45),
        "tradeoff": _tradeoff,
        "cartpole": _cartpole,
    }[figure]()
    return [_small(arm) for arm in made if _is_typical(arm)] if quick else made


def _figure1() -> list[Method]:
    """Returns Algorithm 1 as printed, with sigma set by hand as in the authors' experiments."""
    batch, samples = 16, 5_000
    found = []
    for panel, resets in (("J = T/B", None), ("J = 31", 31), ("J = 1", 1)):
        for sigma in PAPER_SIGMAS:
            task = replace(
                _LINE,
                mode="paper",
                unit="reward-function",
                reward_radius=1.0,
                noise="process",
                target_epsilon=None,
                sigma=sigma or _NO_NOISE,
                batch=batch,
                samples=samples,
                resets=resets,
                learning_rate=0.3,
                hidden=(16, 16),
            )
            name = f"{panel.replace(' ', '').replace('/', '-')}-sigma-{sigma:g}"
            found.append(Method(name, f"sigma {sigma:g}", panel, "functional", task, 40))
    return found


def _figure2(epsilon: float) -> list[Method]:
    """Returns all methods at one epsilon for one transition's reward, and the paper's claim."""
    whole = replace(_LINE, target_epsilon=epsilon)
    rounds = replace(whole, rounds=10)
    episodes = replace(whole, rounds=5, exploration=0.5)
    claim = replace(
        whole,
        mode="paper",
        unit="reward-function",
        reward_radius=1.0,
        noise="process",
        learning_rate=0.01,
        hidden=(16, 16),
    )
    return [
        Method("reward-release", "reward release", "ours", "functional", rounds, 35),
        Method(
            "output-release",
            "output release",
            "ours",
            "functional",
            replace(whole, mode="output-release"),
            6,
        ),
        Method(
            "per-iteration",
            "release of every iteration",
            "ours",
            "functional",
            replace(whole, mode="per-iteration"),
            7,
        ),
        _dqn(whole, "ours"),
        Method("input", "input perturbation", "baselines", "input", rounds, 18),
        Method(
            "dp-lsl",
            "policy evaluation, DP-LSL",
            "baselines",
            "policy-evaluation",
            episodes,
            7,
            options=(("ridge", 20.0),),
        ),
        Method(
            "dp-lsw",
            "policy evaluation, DP-LSW",
            "baselines",
            "policy-evaluation",
            episodes,
            7,
            options=(("features", 3),),
        ),
        Method("dp-sgd", "DP-SGD", "baselines", "dp-sgd", replace(whole, hidden=(16, 16)), 12),
        Method("paper", "the paper's, at sigma of Theorem 5", "baselines", "functional", claim, 15),
    ]


def _dqn(task: FunctionalQConfig, panel: str, **changes: Any) -> Method:
    settings = {
        "total_steps": task.samples,
        "num_envs": 10,
        "num_steps": 10,
        "gradient_steps": 80,
        "learning_starts": 200,
        "discount": task.discount,
    }
    return Method(
        "dqn",
        "DQN, not private",
        panel,
        "dqn",
        task,
        20,
        options=tuple(sorted((settings | changes).items())),
    )


def _tradeoff() -> list[Method]:
    """Returns methods over epsilon (unit: one transition), and over the radius at epsilon 0.9."""
    found = []
    for epsilon in TRADEOFF_EPSILONS:
        shared = {arm.name: arm for arm in _figure2(epsilon)}
        for name in ("reward-release", "output-release", "input", "dp-lsl", "dp-sgd"):
            arm = shared[name]
            task = replace(arm.task, rounds=1) if name == "reward-release" else arm.task
            found.append(
                replace(arm, name=f"{name}-{epsilon:g}", panel="epsilon", task=task, x=epsilon)
            )
    for radius in TRADEOFF_RADII:
        whole = replace(_LINE, target_epsilon=0.9, unit="reward-function", reward_radius=radius)
        named = {
            "reward-release": ("reward release", whole),
            "paths": ("reward release, as paths", replace(whole, noise="process")),
            "output-release": ("output release", replace(whole, mode="output-release")),
            "per-iteration": ("release of every iteration", replace(whole, mode="per-iteration")),
            "policy-choice": ("choice of a policy", replace(whole, mode="policy-choice")),
            "input": ("input perturbation", whole),
        }
        for name, (label, task) in named.items():
            method: Kind = "input" if name == "input" else "functional"
            seconds = 18 if method == "input" or task.mode == "reward-release" else 7
            found.append(
                Method(
                    f"radius-{name}-{radius:g}", label, "radius", method, task, seconds, x=radius
                )
            )
    return found


def _cartpole() -> list[Method]:
    """Returns methods on CartPole with a reward of its four-dimensional state."""
    found = []
    for epsilon in (0.1, 0.3, 1.0):
        task = FunctionalQConfig(
            env_id="CartPoleCentred-v0",
            target_epsilon=epsilon,
            delta=1e-6,
            samples=100_000,
            num_envs=50,
            rounds=20,
            gradient_steps=40_000,
            discount=0.95,
        )
        label = f"reward release, epsilon {epsilon:g}"
        found.append(Method(f"reward-release-{epsilon:g}", label, "ours", "functional", task, 240))
    learner = {
        "num_envs": 8,
        "num_steps": 16,
        "gradient_steps": 64,
        "learning_starts": 1024,
        "total_steps": 102_400,
    }
    return [*found, replace(_dqn(task, "ours", **learner), seconds=240)]


def _is_typical(arm: Method) -> bool:
    if arm.task.mode == "paper" and arm.task.sigma is not None:
        return arm.task.sigma == 0.4
    return arm.x in (None, 0.9, 0.01)


def _small(arm: Method) -> Method:
    """Returns the method with a tenth of the samples and fewer gradient steps."""
    task = arm.task
    small = replace(
        task,
        samples=task.samples // 10,
        gradient_steps=task.gradient_steps // 20,
        iterations=min(task.iterations, 10),
        resets=task.resets and min(task.resets, 10),
    )
    if arm.method == "policy-evaluation":
        small = replace(small, rounds=1)
    changes: dict[str, Any] = {}
    if arm.method == "dqn":
        changes = {"total_steps": small.samples, "gradient_steps": 8, "learning_starts": 100}
    if arm.method == "dp-sgd":
        changes = {"steps": 30, "batch": 50}
    options = tuple((dict(arm.options) | changes).items())
    return replace(arm, task=small, options=options, seconds=20)
