"""The methods in the figures of Sharma et al. 2024, with their settings."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.prefixes import prefix_mechanism
from sotto.algorithms.expert_offline.presets import DataFacts, filled

FigureName = Literal["fig3", "fig4", "table1"]
EnvName = Literal["CartPole-v1", "Acrobot-v1", "HIV-v0", "LunarLander-v3"]
Reference = Literal["majority", "sampled"]

EPSILONS = (10.0, 7.5, 5.0, 2.5, 1.0, 0.5, 0.1)
"""Epsilons of figure 4; the paper has 10, 7.5 and 5."""

SHARES = (1.0, 0.9, 0.8, 0.5, 0.0)
"""Shares of steps on stable prefixes in table 1: the paper's grid, and 1 for prefixes alone. With
share 0 no prefix is released, and the method is DP-SGD."""

_QUICK_EPSILONS = (10.0, 1.0)
_RELEASES = (100, 62, 25, 10, 5, 2, 1)


@dataclass(frozen=True)
class PaperSettings:
    """Settings of the pipeline in one environment, as far as the paper states them.

    Attributes:
        printed: "sampling probability" of its table 1.
        learning_rate, hidden, minibatch: settings of CQL.
        stages: number of prefixes and share of steps on them, by epsilon. At other epsilons the
            paper releases no prefix, and its pipeline is DP-SGD.
    """

    printed: float
    learning_rate: float
    stages: dict[float, tuple[int, float]]
    hidden: tuple[int, ...] = (256, 256)
    minibatch: int = 256


PAPER: dict[EnvName, PaperSettings] = {
    "CartPole-v1": PaperSettings(0.1, 1e-3, {10.0: (25, 0.9), 7.5: (20, 0.8)}),
    "Acrobot-v1": PaperSettings(1.0, 5e-3, {10.0: (25, 1.0), 7.5: (20, 1.0), 5.0: (20, 1.0)}),
    # The number of prefixes on HIV is missing in the available text of the paper.
    "HIV-v0": PaperSettings(1.0, 1e-4, dict.fromkeys((10.0, 7.5, 5.0), (25, 1.0)), (512,), 64),
    "LunarLander-v3": PaperSettings(0.2, 5e-3, {10.0: (100, 0.8), 7.5: (62, 0.5)}),
}

_NOISY_STEPS = {"Acrobot-v1": 4_000}
"""Steps of DP-SGD, if not 1,000. The noise follows from the budget and this number. The paper fixes
the noise instead (sigma 50 to 80), which gives hundreds of thousands of steps."""


@dataclass(frozen=True)
class Method:
    """One method with its settings.

    Attributes:
        name: name in data files, unique within a figure.
        label: name in figures.
        does: settings of a training, or the name of a reference that is computed.
        seconds: approximate duration of ten seeds on two cores.
        x: position on the x axis, an epsilon or a share; None for a horizontal line.
        note: remark for the user.
    """

    name: str
    label: str
    does: ExpertOfflineConfig | Reference
    seconds: float
    x: float | None = None
    note: str = ""


def methods(
    figure: FigureName, env_id: EnvName, facts: DataFacts, quick: bool = False
) -> list[Method]:
    """Returns the methods of a figure; methods with equal settings are trained once.

    Args:
        figure: name of the figure.
        env_id: name of the environment.
        facts: facts about the experts and their log.
        quick: whether to take few steps and few methods, for a quick test.
    """
    task = _Task(env_id, facts, quick)
    return {"fig3": _figure3, "fig4": _figure4, "table1": _table1}[figure](task)


def _figure3(task: "_Task") -> list[Method]:
    """Returns all methods at the paper's epsilon."""
    epsilon = EPSILONS[0]
    return [
        *_references(task),
        Method("sampled", "an expert, drawn at random", "sampled", 10),
        task.votes(epsilon, "experts"),
        task.votes(epsilon, "clones"),
        task.pipeline(epsilon),
        task.consensus(epsilon),
        task.dp_sgd(epsilon),
        task.dp_sgd_cloning(epsilon),
        Method("bc", "behaviour cloning, not private", task.config(method="bc"), 40),
    ]


def _figure4(task: "_Task") -> list[Method]:
    """Returns the private methods over epsilon, and the references."""
    found = _references(task)
    for epsilon in _QUICK_EPSILONS if task.quick else EPSILONS:
        found += [
            task.votes(epsilon, "experts"),
            task.votes(epsilon, "clones"),
            task.pipeline(epsilon),
            task.consensus(epsilon),
            task.dp_sgd(epsilon),
            task.dp_sgd_cloning(epsilon),
        ]
    return found


def _table1(task: "_Task") -> list[Method]:
    """Returns the pipeline over the share of its steps on stable prefixes."""
    epsilon = EPSILONS[0]
    releases, _ = PAPER[task.env_id].stages[epsilon]
    return [
        replace(task.stage(epsilon, releases, share), name=f"share-{share:g}", x=share)
        for share in (SHARES[1:4:2] if task.quick else SHARES)
    ]


def _references(task: "_Task") -> list[Method]:
    return [
        Method("majority", "majority of all experts, not private", "majority", 60),
        Method("cql", "CQL, not private", task.config(method="cql"), 80),
    ]


@dataclass(frozen=True)
class _Task:
    """Makes the methods of one environment."""

    env_id: EnvName
    facts: DataFacts
    quick: bool

    def config(self, **settings: Any) -> ExpertOfflineConfig:
        """Returns settings; `experts` and `dataset` are placeholders for the data in `Sources`."""
        # These episodes are for learning curves only; the final evaluation has more.
        data = {"experts": "experts", "dataset": "log", "population": "simulated"}
        fixed = {"env_id": self.env_id, **data}
        if self.quick:
            short = {"gradient_steps": 200, "noisy_steps": 50, "releases": 10}
            settings |= {name: min(most, settings.get(name, most)) for name, most in short.items()}
        return ExpertOfflineConfig(**(fixed | {"evaluation_episodes": 10} | settings))

    def votes(self, epsilon: float, voters: Literal["experts", "clones"]) -> Method:
        """Returns noisy votes of experts, or of clones of their logs, that teach a student."""
        whose = "experts" if voters == "experts" else "clones of logs"
        config = self.config(voters=voters, target_epsilon=epsilon)
        return Method(f"votes-{voters}-{epsilon:g}", f"votes of {whose}", config, 60, epsilon)

    def pipeline(self, epsilon: float) -> Method:
        """Returns the paper's pipeline with the stages that it states for this epsilon."""
        releases, share = PAPER[self.env_id].stages.get(epsilon, (0, 0.0))
        return self.stage(epsilon, releases, share)

    def stage(self, epsilon: float, releases: int, share: float) -> Method:
        """Returns the paper's pipeline with this number of prefixes and this share of steps."""
        name, label = f"pipeline-{epsilon:g}", "the paper's pipeline"
        if releases == 0 or share == 0:
            said = "no prefix is released here, as in the paper, so this is DP-SGD"
            return replace(self.dp_sgd(epsilon), name=name, label=label, note=said)
        paper = PAPER[self.env_id]
        common: dict[str, Any] = {
            "target_epsilon": epsilon,
            "releases": releases,
            "learning_rate": paper.learning_rate,
            "hidden": paper.hidden,
            "minibatch": paper.minibatch,
        }
        if share == 1:
            config = self.config(method="prefix-only", **common)
        else:
            config = self.config(
                method="stable-prefix", public_share=share, batch=paper.minibatch, **common
            )
        needed = self._needed(config)
        if needed is None or needed > self.facts.experts:
            least = "more" if needed is None else f"{needed:.0f}"
            said = (
                f"prefixes need {least} agreeing experts and there are {self.facts.experts}, so "
                "no prefix is released and this is DP-SGD"
            )
            return replace(self.dp_sgd(epsilon), name=name, label=label, note=said)
        return Method(name, label, config, 60 if share == 1 else 60 + 15 / (1 - share), epsilon)

    def consensus(self, epsilon: float) -> Method:
        """Returns prefixes alone, released by consensus.

        Their number is the largest for which a quarter of the experts is enough, or one.
        """
        name, label = f"prefixes-{epsilon:g}", "prefixes of consensus alone"
        for releases in _RELEASES:
            config = self.config(
                method="prefix-only",
                prefix_rule="consensus",
                target_epsilon=epsilon,
                releases=releases,
            )
            needed = self._needed(config)
            if needed is not None and (needed <= self.facts.experts / 4 or releases == 1):
                return Method(name, label, config, 160, epsilon)
        raise ValueError(
            f"{self.facts.experts} experts are too few for a single prefix at epsilon {epsilon:g}; "
            "take more experts"
        )

    def dp_sgd(self, epsilon: float) -> Method:
        """Returns DP-SGD over experts with the whole budget."""
        steps = _NOISY_STEPS.get(self.env_id, 1_000)
        config = self.config(method="dp-sgd", target_epsilon=epsilon, noisy_steps=steps)
        return Method(f"dp-sgd-{epsilon:g}", "DP-SGD alone", config, 30 + 0.04 * steps, epsilon)

    def dp_sgd_cloning(self, epsilon: float) -> Method:
        """Returns DP-SGD that imitates the experts with a smaller network, its best variant."""
        config = self.config(method="dp-sgd", learner="bc", hidden=(64, 64), target_epsilon=epsilon)
        return Method(f"dp-sgd-bc-{epsilon:g}", "DP-SGD alone, imitating", config, 40, epsilon)

    def _needed(self, config: ExpertOfflineConfig) -> float | None:
        """Returns how many experts must agree on a step, a public number; None if none suffice."""
        try:
            return prefix_mechanism(filled(config, self.facts)).threshold
        except ValueError:
            return None
