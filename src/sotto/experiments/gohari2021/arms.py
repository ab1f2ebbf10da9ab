"""Gohari et al. 2021, "Privacy-Preserving Kickstarting Deep RL": the learners in its figures.

Figure 2 and the supplement compare learning curves. The paper uses AirRaid; CartPole and Acrobot
show the same effects within minutes.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sotto.algorithms.baselines.ppo import PPOConfig
from sotto.algorithms.kickstarting.config import KickstartConfig
from sotto.rl.envs.gymnasium.air_raid import AIR_RAID

EnvName = Literal["CartPole-v1", "Acrobot-v1", "AirRaid"]
FigureName = Literal["fig2a", "fig2b", "fig2c", "fig2d", "supp-lambda", "supp-vanishing"]

PAPER_EPSILON, PAPER_DELTA = 4.46, 0.05
"""Epsilon and delta that the paper claims for one answer at concentration 5 (section 5;
docs/papers.md)."""

DELTA = 1e-5
"""Delta of the certificates."""

EPSILONS, TEACHERS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 200
"""Target epsilons of the trade-off, and its number of small teachers."""


@dataclass(frozen=True)
class FigureLearner:
    """A learner, which gives one learning curve.

    Attributes:
        name: name in files.
        label: name in figures.
        role: a teacher or a student that learns alone, or a student that asks a teacher.
        changes: settings of kickstarting that differ from `student_config`.
    """

    name: str
    label: str
    role: Literal["teacher", "student", "kickstart"] = "kickstart"
    changes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, with its title and its learners."""

    title: str
    learners: tuple[FigureLearner, ...]


TEACHER = FigureLearner("teacher", "teacher (64, 64) alone", "teacher")
STUDENT = FigureLearner("student", "student (32, 32) alone", "student")
EXACT = FigureLearner(
    "exact",
    "kickstarted, exact answers",
    changes=(("teacher_mechanism", "exact"), ("radius_factor", 0.0)),
)
CONSTANT = FigureLearner("aware-constant", "aware, constant concentration")


def vanishing(
    coefficient: float, radius_factor: float = 0.5, heedless: bool = False
) -> FigureLearner:
    """Returns a student with the paper's schedule: k <- k * coefficient after each rollout.

    Args:
        coefficient: rho.
        radius_factor: lambda; with 0 the student ignores the noise.
        heedless: whether the student takes the uniform rows of a silent teacher for answers.
    """
    kind = "unaware" if heedless else "aware"
    return FigureLearner(
        f"{kind}-vanishing-{coefficient:g}-lambda-{radius_factor:g}",
        f"{kind}, coefficient {coefficient:g}",
        changes=(
            ("schedule", "vanishing"),
            ("vanishing_coefficient", coefficient),
            ("radius_factor", radius_factor),
            ("heedless", heedless),
        ),
    )


def _with_lambda(radius_factor: float) -> FigureLearner:
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
"""Figure 2 of the paper and its supplement. Every figure also shows the teacher's return."""


# --- settings ------------------------------------------------------------------------------------

_STEPS: dict[EnvName, int] = {"CartPole-v1": 50_000, "Acrobot-v1": 50_000, "AirRaid": 4_000_000}
_ROLLOUTS, _ASKING_SHARE = 5, 0.025


def ppo_config(env_id: EnvName, scale: float = 1.0) -> PPOConfig:
    """Returns settings of PPO for a teacher; a student has smaller networks.

    On AirRaid an update has 1,024 steps, like the paper's epoch of 1,000. Discount, clip and lambda
    are those of Spinning Up. Spinning Up takes 80 full-batch steps with early stopping. This
    implementation takes 40 steps on minibatches instead, for policy and critic together, with
    Spinning Up's learning rate of the critic and a small entropy bonus. With the learning rate of
    its policy, 3e-4, and without the bonus, a seed was no better than random after 400k steps.
    CartPole and Acrobot have updates of 512 steps, since their curves rise within a few thousand
    steps.

    Args:
        env_id: the environment.
        scale: factor of the number of environment steps.
    """
    config = PPOConfig(env_id=env_id, num_envs=8, num_steps=64, num_epochs=10)
    if env_id == AIR_RAID:
        config = replace(config, num_steps=128, gae_lambda=0.97, entropy_coefficient=0.01)
    steps = max(config.steps_per_update, round(_STEPS[env_id] * scale))
    return replace(config, total_steps=steps)


def student_config(env_id: EnvName, learner: FigureLearner, scale: float = 1.0) -> KickstartConfig:
    """Returns settings of a student that asks about every state, with first concentration 5.

    The paper's rollout is one update. The teacher stops answering after five updates, or after a
    fortieth of the training if that is more; this number is public. It does so for constant and for
    growing noise, but exact answers never stop. The hinge loss has a weight (the paper's additional
    hyper-parameter), and answers are used for twenty updates. For students that
    know of the noise, the weight falls linearly to zero over twice as many updates as the teacher
    answers. With a constant weight they stay undecided, and fall back when the last answers leave.
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
        if not chosen.get("heedless"):
            chosen.setdefault("anneal_kickstart", 2 * rollouts)
    if chosen.get("schedule") == "vanishing":
        chosen |= {"rollouts": rollouts}
    elif chosen["teacher_mechanism"] != "exact":
        chosen |= {"queries": base.steps_per_update * rollouts}
    ppo = asdict(base) | {"hidden": (32, 32)}
    return KickstartConfig(**ppo, teacher="the arm's own", **chosen)


def settings(env_id: EnvName, learner: FigureLearner, scale: float = 1.0) -> PPOConfig:
    """Returns a learner's settings; teachers have the larger networks."""
    if learner.role == "kickstart":
        return student_config(env_id, learner, scale)
    hidden = (64, 64) if learner.role == "teacher" else (32, 32)
    return replace(ppo_config(env_id, scale), hidden=hidden)
