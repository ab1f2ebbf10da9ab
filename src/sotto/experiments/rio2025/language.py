"""Figure 7 of Rio et al. 2025: a language model tuned to people's ratings of film reviews.

The paper tunes GPT-2 with noise that is worth epsilon 5426 at delta 1e-5. Here SmolLM2-135M is
tuned, and each person is protected. Every arm's change of the model is scaled to the same KL
divergence from the base model. The gain over the base model is measured twice: in people's ratings,
and in those of a judge of another kind whom no training sees.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from matplotlib.axes import Axes

from sotto.algorithms.rlhf import improvement, training
from sotto.algorithms.rlhf.algorithm import RLHF
from sotto.algorithms.rlhf.answers import TunedModel
from sotto.algorithms.rlhf.config import PAPER, RLHFConfig
from sotto.algorithms.rlhf.directions import first_adapter
from sotto.algorithms.rlhf.evaluation import Measured, measure
from sotto.algorithms.rlhf.keys import Use, key_for
from sotto.algorithms.rlhf.people import People, check_installed, meet, read_language_model
from sotto.experiments import plots
from sotto.experiments.certified import certificates
from sotto.experiments.engine import Arm, Report, Result, ResultFolder, Say, digest, run
from sotto.experiments.figure_files import seed_rows, write_data
from sotto.experiments.rio2025 import preferences
from sotto.experiments.rio2025.cells import LanguageArm
from sotto.experiments.statistics import over_seeds
from sotto.rl.language import Adapter
from sotto.trees import at

KLS = (1.0, 3.0)
"""Divergences from the base model, in nats a completion, at which arms are compared."""
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)
RERANKED = 4
"""Number of completions from which the reward model chooses an answer."""
NO_NOISE = 0.1
"""Noise multiplier of arms that stand for no noise: it changes a release by about a thousandth.

The sampler's precision does not allow much less.
"""
SECONDS = 2100.0
"""Approximate duration of one arm and seed on one core."""
BASE_ANSWERS = 6
"""Number of the base model's answers to each held-out prompt.

All arms are compared with their means. One answer each would be off by as much as a tenth of the
judge's gain, for every arm and seed alike.
"""
BASE_SECONDS = 1200.0
"""Approximate duration of measuring the base model on one core."""
KINDS = ("rating", "judge")
"""Kinds of gains: those in people's ratings, and the judge's."""
_SAMPLES, _CURVE_PROMPTS = 6, 64

BASELINE_EPSILONS = (1.0, 8.0)
"""Epsilons at which other private methods are trained, for comparison."""
MANY_FEATURES = 192
"""Number of features of a reward model that is only useful without noise."""
_MIDDLE = 15
"""Block after which updates of other methods steer. SmolLM2 has 30 blocks."""

_Direct = Callable[[RLHFConfig, People], Adapter]


def arms(
    seeds: Sequence[int],
    epsilons: Sequence[float],
    delta: float,
    people: int,
    names: Sequence[LanguageArm] = (),
) -> list[Arm]:
    """Returns the arms, seed by seed, because the arms of one seed share their people.

    All of them need the base model's measurements, which are kept once for all seeds.

    Args:
        seeds: seeds of people's completions, adapters and candidates.
        epsilons: target epsilons of the private arms.
        delta: delta of the guarantees.
        people: number of people.
        names: names of the arms, empty for all.
    """
    common = RLHFConfig(
        people=people,
        delta=delta,
        kl_target=max(KLS),
        evaluation_prompts=_CURVE_PROMPTS,
    )
    plain = RLHFConfig()
    measured = f"base-model-{digest(plain.first_repr() + str(BASE_ANSWERS))}"
    base = Arm("base-model", "base model", plain, (0,), measured, measure_base, BASE_SECONDS)

    def arm(name: str, label: str, epsilon: float | None, config: RLHFConfig, seed: int) -> Arm:
        if name != "paper":  # whose noise is a setting of the paper
            noise = None if epsilon is not None else NO_NOISE
            config = replace(config, target_epsilon=epsilon, noise_multiplier=noise)
        file = f"{name}-{digest(config.first_repr() + name + measured)}"
        return Arm(name, label, config, (seed,), file, train, SECONDS, (base,), True, epsilon)

    gradient = replace(common, method="policy-gradient", blocks=(_MIDDLE,), clip_norm=0.1)
    imitation = replace(gradient, method="best-of-n", clip_norm=1.0)
    features = replace(common, features=MANY_FEATURES)
    low_rank = replace(gradient, adapter="lora", blocks=())
    best = replace(common, reranked=RERANKED)
    batches = next(n for n in range(max(1, people // 128), 0, -1) if people % n == 0)
    paper = replace(common, **PAPER | {"releases": batches})  # of at least 128 people, if there are
    private = (None, *epsilons)
    few = [epsilon for epsilon in epsilons if epsilon in BASELINE_EPSILONS]
    chosen = [
        *(("reranked", "reward model that also chooses (sotto)", one, best) for one in private),
        *(("reward-model", "reward model (sotto)", one, common) for one in private),
        ("many-features", f"reward model, {MANY_FEATURES} features", None, features),
        ("ratings", "people's own ratings, regressed", None, common),
        ("preferences", "people's own preferences, optimised", None, low_rank),
        *(("policy-gradient", "policy gradient", one, gradient) for one in (None, *few)),
        *(("best-of-n", "imitation of the best", one, imitation) for one in (None, *few)),
        ("paper", "settings of the paper, which protect nobody", None, paper),
    ]
    wanted = [one for one in chosen if not names or one[0] in names]
    return [arm(*one, seed) for seed in seeds for one in wanted]


@lru_cache(maxsize=1)
def _met(config: RLHFConfig) -> People:
    """Returns people who have rated completions of the base model, which all arms share."""
    found = meet(config, read_language_model(config.model))
    return replace(
        found,
        log=found.rated(config, first_adapter(config, found.language.decoder.architecture), 0),
    )


def _people(config: RLHFConfig) -> People:
    shared = {name: getattr(config, name) for name in ("people", "completions", "seed")}
    return _met(RLHFConfig(**shared))


def measure_base(arm: Arm, seeds: Sequence[int], folder: Path, report: Report) -> list[Result]:
    """Measures several answers of the base model to each held-out prompt; the seed is of no use."""
    del folder
    config: RLHFConfig = arm.settings
    people = meet(config, read_language_model(config.model))
    unchanged = TunedModel(first_adapter(config, people.language.decoder.architecture), None)
    found = []
    for answer in range(BASE_ANSWERS):
        key = jax.random.fold_in(key_for(config.seed, Use.EVALUATION), answer)
        found.append(_measured(config, people, unchanged, key))
        report((answer + 1) / BASE_ANSWERS)
    means = {kind: np.mean([getattr(one, kind) for one in found], axis=0) for kind in KINDS}
    returns = {kind: np.array([one.mean()]) for kind, one in means.items()}
    more = {kind: one.tolist() for kind, one in means.items()}
    return [Result(arm, tuple(seeds), np.zeros(0), {}, returns, more=more)]


def _measured(config: RLHFConfig, people: People, model: TunedModel, key: PRNGKeyArray) -> Measured:
    assert people.held_out is not None
    return measure(config, people, model, key, len(people.held_out))


def train(arm: Arm, seeds: Sequence[int], folder: Path, report: Report) -> list[Result]:
    """Trains one seed and compares it with the base model at every KL divergence."""
    (seed,) = seeds
    config: RLHFConfig = replace(arm.settings, seed=seed)
    people, place = _people(config), folder / f"seed-{seed}"
    said: dict[str, Any] = {}
    points: list[int] = []
    curve: list[float] = []
    if arm.name in _DIRECT:
        model = TunedModel(_DIRECT[arm.name](config, people), None)
    else:
        algorithm = RLHF()
        if config.releases > 1:  # later releases are about completions of the model by then
            people = replace(people, log=None)
        ledger = algorithm.create_ledger(config, place / "ledger.sqlite", arm.name)
        state = training.initial_state(config, people)
        states = jax.tree.map(lambda x: np.asarray(x)[None], state)
        for progress in training.RLHFTraining(config, people, ledger, states, 0, place).run():
            states = progress.states
            report(progress.updates / (config.num_updates + len(KLS)))
            if progress.evaluation:
                points.append(progress.updates)
                curve.append(float(progress.evaluation["last"][0]))
        model = at(algorithm.policies(states)["last"], 0)
        said = certificates([ledger], [place])
    base = ResultFolder(folder.parent).read(arm.needs[0]).more
    returns, samples = _at_each_kl(config, people, model, base)
    curves = {"rating": np.array([curve])} if curve else {}
    more = {"samples": samples}
    return [Result(arm, (seed,), np.array(points), curves, returns, more=more, **said)]


def _regressed(config: RLHFConfig, people: People) -> Adapter:
    """Returns the regression of people's own ratings on scores, without privacy."""
    assert people.log is not None
    adapter = first_adapter(config, people.language.decoder.architecture)
    scores = improvement.scores(people, adapter, people.log)
    return improvement.tuned(adapter, scores, people.log.ratings, config.kl_target)


def _optimised(config: RLHFConfig, people: People) -> Adapter:
    """Returns low-rank changes that people's own preferences taught, without privacy."""
    assert people.log is not None
    return preferences.optimised(config, people.language.decoder, people.log)


_DIRECT: dict[str, _Direct] = {"ratings": _regressed, "preferences": _optimised}
"""Arms that learn from people's own completions and ratings, without a reward model."""


def _at_each_kl(
    config: RLHFConfig, people: People, model: TunedModel, base: Mapping[str, list[float]]
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Returns gains over the base model and other measurements, by KL divergence, and samples.

    The random keys depend on the seed only, so arms of one seed can be compared.

    Args:
        config: settings of the arm, with its seed.
        people: simulated people.
        model: the tuned model.
        base: the base model's means at each held-out prompt, by kind.
    """
    found: dict[str, np.ndarray] = {}
    samples = {}
    for kl in KLS:
        wanted, key = replace(config, kl_target=kl), key_for(config.seed, Use.KL)
        scaled, _ = improvement.scaled_to_target(wanted, people, model, key)
        measured = _measured(wanted, people, scaled, key_for(config.seed, Use.EVALUATION))
        for kind in KINDS:
            gains = getattr(measured, kind) - np.array(base[kind])
            found[f"{kind} gain at KL {kl:g}"] = np.array([gains.mean()])
            error = gains.std() / len(gains) ** 0.5
            found[f"{kind} standard error at KL {kl:g}"] = np.array([error])
        means = measured.means()
        for kind in ("kl", "distinct_2"):
            found[f"{kind} at KL {kl:g}"] = np.array([means[kind]])
        pairs = zip(measured.prompts, measured.completions, strict=True)
        samples[f"{kl:g}"] = [f"{prompt} |{said}" for prompt, said in pairs][:_SAMPLES]
    return found, samples


# --- the figure ----------------------------------------------------------------------------------


def make_language(
    seeds: Sequence[int],
    epsilons: Sequence[float],
    delta: float,
    people: int,
    names: Sequence[LanguageArm],
    out: Path,
    say: Say,
) -> dict[str, Any]:
    """Trains the missing arms, writes picture, table and summary, and returns the summary.

    Args:
        seeds: seeds of every arm.
        epsilons: target epsilons.
        delta: delta of the guarantees.
        people: number of people.
        names: names of the arms, empty for all.
        out: folder of the results.
        say: shows the progress.

    Raises:
        RunError: the model or the films are not installed, or a kept training is damaged.
    """
    planned, store = arms(seeds, epsilons, delta, people, names), ResultFolder(out / "trainings")
    if any(map(store.missing, planned)):
        check_installed(RLHFConfig().model)
    out.mkdir(parents=True, exist_ok=True)
    results = run(planned, store, 1, say)
    stem = out / "fig7"
    draw(stem.with_suffix(".png"), results, f"delta = {delta:g}, {plots.in_seeds(len(seeds))}")
    summary = {"name": "fig7", "delta": delta, "people": people, "seeds": list(seeds)}
    summary |= {"arms": [_about(one, results) for one in results]}
    rows = []
    for one in results:
        rows += seed_rows(one, arm=one.arm.name, epsilon=one.epsilon, status=one.status)
    write_data(stem, rows, summary)
    return summary


def best_without_privacy(results: Sequence[Result], kind: str) -> float:
    """Returns the largest mean gain among the arms without noise."""
    noiseless = (one for one in results if one.arm.x is None and one.arm.name != "paper")
    return max((float(one.returns[kind].mean()) for one in noiseless), default=math.nan)


def _about(result: Result, results: Sequence[Result]) -> dict[str, Any]:
    kinds = {kind: over_seeds(values) for kind, values in result.returns.items()}
    shares = {
        kind: float(values.mean()) / best_without_privacy(results, kind)
        for kind, values in result.returns.items()
        if "gain" in kind
    }
    return {
        "arm": result.arm.name,
        "label": result.arm.label,
        "target_epsilon": result.arm.x,
        "status": result.status,
        "certified_epsilon": result.epsilon,
        "measured": kinds,
        "share_of_best": shares,
    }


def draw(path: Path, results: Sequence[Result], title: str) -> None:
    """Draws the judge's and the people's gain against epsilon, at each KL divergence.

    Args:
        path: file of the PNG.
        results: results of all arms; dotted lines are arms without noise.
        title: title of the whole figure.

    Shaded intervals are about seeds, or with one seed about the prompts that measure.
    """
    kinds = [f"{kind} gain at KL {kl:g}" for kl in KLS for kind in reversed(KINDS)]
    with plots.panels(path, (4.6, 3.8), columns=2, rows=2) as panels:
        for axes, kind in zip(panels, kinds, strict=True):
            _panel(axes, results, kind)
        plots.legend_below(panels[2], left=True, ncol=1)
        plots.headline(panels[0], f"SmolLM2-135M tuned to people's ratings, {title}")


def _half_width(result: Result, kind: str) -> float:
    """Returns half of a 95 per cent interval: over seeds, or over the prompts of one seed."""
    over = over_seeds(result.returns[kind])["half_width"]
    if over is not None:
        return float(over)
    return 1.96 * float(result.returns[kind.replace("gain", "standard error")].mean())


def _panel(axes: Axes, results: Sequence[Result], kind: str) -> None:
    names = list(dict.fromkeys(one.arm.name for one in results))
    for name, colour, marker in zip(names, plots.COLOURS, plots.MARKERS, strict=False):
        ours = [one for one in results if one.arm.name == name]
        points = [one for one in ours if one.arm.x is not None]
        if points:
            x = [one.arm.x for one in points]
            middle = np.array([one.returns[kind].mean() for one in points])
            spread = np.array([_half_width(one, kind) for one in points])
            plots.line(
                axes, x, middle, spread, color=colour, marker=marker, label=ours[0].arm.label
            )
        for one in ours:
            if one.arm.x is None:
                noise = "" if one.arm.name == "paper" else ", without noise"
                height, label = one.returns[kind].mean(), one.arm.label + noise
                axes.axhline(height, color=colour, linestyle=":", linewidth=1.2, label=label)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))  # zero is the base model
    plots.log_ticks(axes, sorted({one.arm.x for one in results if one.arm.x is not None}))
    axes.set_xlabel("epsilon")
    axes.set_title(kind.replace("judge", "judge's"))
