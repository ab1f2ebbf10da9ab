"""Gohari et al. 2021, "Privacy-Preserving Kickstarting Deep RL": who learns in its figures.

Figure 2 and the supplement compare learning curves. The paper plays AirRaid; CartPole and Acrobot
show the same in minutes.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.rl.envs.gymnasium.air_raid import AIR_RAID

EnvName = Literal["CartPole-v1", "Acrobot-v1", "AirRaid"]
FigureName = Literal["fig2a", "fig2b", "fig2c", "fig2d", "supp-lambda", "supp-vanishing"]

PAPER_EPSILON, PAPER_DELTA = 4.46, 0.05
"""What the paper says of one answer at concentration 5 (section 5; docs/papers.md)."""

DELTA = 1e-5
"""Delta of the certificates."""

EPSILONS, TEACHERS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 200
"""Of the trade-off: what certificates are calibrated to, and the number of small teachers."""


@dataclass(frozen=True)
class Learner:
    """Who learns, and how: one learning curve.

    Attributes:
        name: of files.
        label: in figures.
        role: a teacher or a student that learns alone, or a student that asks.
        changes: settings of kickstarting that differ from `student_config`.
    """

    name: str
    label: str
    role: Literal["teacher", "student", "kickstart"] = "kickstart"
    changes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure: its title and its learners."""

    title: str
    learners: tuple[Learner, ...]


TEACHER = Learner("teacher", "teacher (64, 64) alone", "teacher")
STUDENT = Learner("student", "student (32, 32) alone", "student")
EXACT = Learner(
    "exact",
    "kickstarted, exact answers",
    changes=(("teacher_mechanism", "exact"), ("radius_factor", 0.0)),
)
CONSTANT = Learner("aware-constant", "aware, constant concentration")


def vanishing(coefficient: float, radius_factor: float = 0.5, heedless: bool = False) -> Learner:
    """A student under the paper's schedule: k <- k * coefficient after each roll-out.

    Args:
        coefficient: rho.
        radius_factor: lambda; 0 knows nothing of the noise.
        heedless: takes the uniform rows of a silent teacher for answers.
    """
    kind = "unaware" if heedless else "aware"
    return Learner(
        f"{kind}-vanishing-{coefficient:g}-lambda-{radius_factor:g}",
        f"{kind}, coefficient {coefficient:g}",
        changes=(
            ("schedule", "vanishing"),
            ("vanishing_coefficient", coefficient),
            ("radius_factor", radius_factor),
            ("heedless", heedless),
        ),
    )


def _with_lambda(radius_factor: float) -> Learner:
    return replace(vanishing(0.3, radius_factor), label=f"lambda {radius_factor:g}")


_COEFFICIENTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

FIGURES: dict[FigureName, Figure] = {
    "fig2a": Figure("Teacher and student alone", (TEACHER, STUDENT)),
    "fig2b": Figure("Kickstarting without privacy", (STUDENT, EXACT)),
    "fig2c": Figure(
        "Private kickstarting, aware students", (vanishing(0.1), vanishing(0.3), CONSTANT)
    ),
    "fig2d": Figure(
        "Private kickstarting, unaware students",
        (STUDENT, *(vanishing(one, 0.0, heedless=True) for one in (0.1, 0.3, 0.9))),
    ),
    "supp-lambda": Figure(
        "Lambda, at vanishing coefficient 0.3",
        tuple(_with_lambda(one) for one in (0.0, 0.1, 0.5, 1.0, 2.0)),
    ),
    "supp-vanishing": Figure(
        "Vanishing coefficients, aware students", tuple(vanishing(one) for one in _COEFFICIENTS)
    ),
}
"""The paper's figure 2 and its supplement. Every figure also has the teacher's return as a line."""


# --- settings ------------------------------------------------------------------------------------

_STEPS: dict[EnvName, int] = {"CartPole-v1": 50_000, "Acrobot-v1": 50_000, "AirRaid": 4_000_000}
_ROLLOUTS, _ASKING_SHARE = 5, 0.025


def ppo_config(env_id: EnvName, scale: float = 1.0) -> PPOConfig:
    """PPO of a teacher; a student has smaller networks.

    On AirRaid an update's 1,024 steps are the paper's epoch of 1,000; discount, clip and lambda are
    Spinning Up's. Its 80 full-batch steps with early stopping are not: ours are 40 on minibatches,
    for policy and critic at once, at its critic's learning rate and with a little entropy bonus (at
    its policy's rate, 3e-4, and without, a seed was still no better than random after 400k steps).
    CartPole and Acrobot take updates of 512 steps, so that curves which rise within a few thousand
    steps have points there.

    Args:
        env_id: the environment.
        scale: of the number of environment steps.
    """
    config = PPOConfig(env_id=env_id, num_envs=8, num_steps=64, num_epochs=10)
    if env_id == AIR_RAID:
        config = replace(config, num_steps=128, gae_lambda=0.97, entropy_coefficient=0.01)
    steps = max(config.steps_per_update, round(_STEPS[env_id] * scale))
    return replace(config, total_steps=steps)


def student_config(env_id: EnvName, learner: Learner, scale: float = 1.0) -> KickstartConfig:
    """A student that asks: about every state, at concentration 5 in the beginning.

    An update is a roll-out. The teacher falls silent, in public, after five of them (after a
    fortieth of the training where that is more), whether its noise is constant or grows; exact
    answers never end. The hinge is weighted (the paper's additional hyper-parameter), and answers
    are remembered for twenty updates.
    """
    base = ppo_config(env_id, scale)
    rollouts = max(_ROLLOUTS, round(_ASKING_SHARE * base.num_updates))
    chosen: dict[str, Any] = {
        "teacher_mechanism": "dirichlet",
        "queries_per_update": base.steps_per_update,
        "kickstart_weight": 5.0,
    } | dict(learner.changes)
    if chosen["teacher_mechanism"] != "exact":
        chosen |= {"concentration": 5.0, "protect": "any-two-teachers"}
    if chosen.get("schedule") == "vanishing":
        chosen |= {"rollouts": rollouts}
    elif chosen["teacher_mechanism"] != "exact":
        chosen |= {"queries": base.steps_per_update * rollouts}
    ppo = asdict(base) | {"hidden": (32, 32)}
    return KickstartConfig(**ppo, teacher="the arm's own", **chosen)


def settings(env_id: EnvName, learner: Learner, scale: float = 1.0) -> PPOConfig:
    """A learner's settings. Teachers have the larger networks."""
    if learner.role == "kickstart":
        return student_config(env_id, learner, scale)
    hidden = (64, 64) if learner.role == "teacher" else (32, 32)
    return replace(ppo_config(env_id, scale), hidden=hidden)
