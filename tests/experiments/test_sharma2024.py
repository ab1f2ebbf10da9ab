"""Figures of Sharma et al. 2024: what is compared, and that it is certified, kept and drawn."""

import json
from dataclasses import replace
from functools import partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import refused

from sotto.algorithms.expert_offline import presets, states, votes
from sotto.algorithms.expert_offline import sources as expert_runs
from sotto.algorithms.expert_offline.clones import CloneConfig
from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.distillation import DistillationConfig
from sotto.algorithms.expert_offline.presets import DataFacts, filled
from sotto.algorithms.expert_offline.states import Sources
from sotto.algorithms.experts import population as populations
from sotto.algorithms.experts.training import logs
from sotto.cli.reproduce.sharma2024 import sharma
from sotto.data import minari_files
from sotto.experiments import engine
from sotto.experiments.engine import Arm, Result, ResultFolder
from sotto.experiments.sharma2024 import figures
from sotto.experiments.sharma2024.arms import (
    EPSILONS,
    PAPER,
    EnvName,
    FigureName,
    Method,
    methods,
)
from sotto.experiments.sharma2024.references import majority_returns, sampled_return
from sotto.privacy.certificates.derive import verify
from sotto.privacy.errors import PrivacyError
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.mechanisms.prefix_calibration import Target, calibrate_consensus
from sotto.rl.envs.base import Discrete
from sotto.rl.networks import Policy

FIGURES: tuple[FigureName, ...] = ("fig3", "fig4", "table1")
FACTS = {
    "CartPole-v1": DataFacts("CartPole-v1", 3000, 4, 2),
    "Acrobot-v1": DataFacts("Acrobot-v1", 3000, 6, 3),
    "HIV-v0": DataFacts("HIV-v0", 3000, 6, 4),
    "LunarLander-v3": DataFacts("LunarLander-v3", 300, 8, 4),
}
COUNT = 30


def named(found: list[Method], name: str) -> Method:
    (arm,) = [one for one in found if one.name == name]
    return arm


# --- what is compared ----------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", FACTS)
@pytest.mark.parametrize("figure", FIGURES)
def test_arms_can_run_and_have_names_of_their_own(figure, env_id: EnvName):
    facts = FACTS[env_id]
    found = methods(figure, env_id, facts)
    assert len({arm.name for arm in found}) == len(found)
    for arm in found:
        if isinstance(arm.does, str):
            continue
        config = filled(arm.does, facts)
        assert config.has_environment
        if config.is_private:
            assert config.delta == pytest.approx(1 / (10 * facts.experts))
            assert config.target_epsilon == (10 if figure != "fig4" else arm.x)
    small = methods(figure, env_id, facts, quick=True)
    assert 0 < len(small) <= len(found)
    assert all(one.does.noisy_steps <= 50 for one in small if not isinstance(one.does, str))


def test_figure_4_goes_down_to_a_tenth_for_every_private_method():
    found = methods("fig4", "CartPole-v1", FACTS["CartPole-v1"])
    for method in ("votes-experts", "votes-clones", "pipeline", "prefixes", "dp-sgd"):
        assert {named(found, f"{method}-{epsilon:g}").x for epsilon in EPSILONS} == set(EPSILONS)
    assert EPSILONS == (10, 7.5, 5, 2.5, 1, 0.5, 0.1)
    assert [arm.name for arm in found if arm.x is None] == ["majority", "cql"]


def test_the_pipeline_has_the_papers_settings_and_is_dp_sgd_where_the_paper_releases_nothing():
    found = methods("fig4", "CartPole-v1", FACTS["CartPole-v1"])
    at_ten = named(found, "pipeline-10").does
    assert isinstance(at_ten, ExpertOfflineConfig)
    assert (at_ten.releases, at_ten.learning_rate) == (25, 1e-3)
    # 9 public steps for each noisy one.
    assert (at_ten.method, at_ten.public_steps) == ("stable-prefix", 9 * at_ten.noisy_steps)
    for epsilon in EPSILONS:
        pipeline, alone = (named(found, f"{name}-{epsilon:g}") for name in ("pipeline", "dp-sgd"))
        degenerate = epsilon < 7.5
        assert (pipeline.does == alone.does) == degenerate
        assert bool(pipeline.note) == degenerate
    acrobot = named(methods("fig3", "Acrobot-v1", FACTS["Acrobot-v1"]), "pipeline-10").does
    assert isinstance(acrobot, ExpertOfflineConfig)
    assert (acrobot.method, acrobot.prefix_rule) == ("prefix-only", "floor")


def test_where_too_few_experts_could_agree_the_pipeline_is_dp_sgd_and_says_so():
    found = methods("fig3", "LunarLander-v3", FACTS["LunarLander-v3"])
    pipeline = named(found, "pipeline-10")
    assert pipeline.does == named(found, "dp-sgd-10").does
    assert "there are 300" in pipeline.note


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3"])
def test_consensus_takes_as_many_prefixes_as_a_quarter_of_the_experts_allows(env_id):
    facts = FACTS[env_id]
    for epsilon in EPSILONS:
        does = named(methods("fig4", env_id, facts), f"prefixes-{epsilon:g}").does
        delta = 1 / (10 * facts.experts)

        def threshold(releases, epsilon=epsilon, delta=delta):
            return calibrate_consensus(Target(facts.experts, releases, epsilon, delta)).threshold

        larger = [n for n in (100, 62, 25, 10, 5, 2) if n > does.releases]
        assert all(threshold(n) > facts.experts / 4 for n in larger)
        assert does.releases == 1 or threshold(does.releases) <= facts.experts / 4


# --- one arm -------------------------------------------------------------------------------------


def linear(weights: np.ndarray) -> Policy:
    """Experts with a layer each; `weights` are [experts, obs, actions]."""
    one = Policy(4, Discrete(2), (), jax.random.key(0))
    leaves, tree = jax.tree.flatten(one)
    stacked = [jnp.zeros((len(weights), *x.shape), jnp.float32) for x in leaves]
    placed = [jnp.asarray(weights, jnp.float32) if x.ndim == 3 else x for x in stacked]
    return jax.tree.unflatten(tree, placed)


BALANCING = np.array([[0, 0], [0, 0.5], [0, 10], [0, 1.5]], np.float64)
"""Pushes the cart to where the pole falls."""


@pytest.fixture(scope="module")
def sources() -> Sources:
    """Experts who balance, each with weights of their own, and their log."""
    spread = np.random.default_rng(0).normal(0, 0.3, (COUNT, 4, 2))
    experts = linear(BALANCING + spread)
    log = logs("CartPole-v1", experts, np.arange(COUNT), 0, 0.05, 20, 2)
    return Sources(experts, log, "CartPole-v1")


TINY = {
    **{"experts": "x", "dataset": "y", "population": "simulated"},
    **{"env_id": "CartPole-v1", "evaluation_cap": 40},
    **{"gradient_steps": 20, "hidden": (8,), "minibatch": 16, "evaluation_episodes": 2},
    **{"batch": 10, "noisy_steps": 20, "rollout_cap": 20},
}
VOTES = {"method": "votes", "target_epsilon": 10.0, "queries": 8, "rounds": 3, "lanes": 2}


@pytest.fixture(autouse=True)
def short_distillation(monkeypatch):
    """Students and clones of few steps."""
    short = partial(DistillationConfig, steps=100, minibatch=32)
    monkeypatch.setattr(votes, "DistillationConfig", short)
    monkeypatch.setattr(states, "_CLONES", CloneConfig(hidden=(8,), steps=50))


def tiny_arm(sources, seeds=(3, 4), *, name="tiny-10", data="data", quick=True, **settings) -> Arm:
    method = Method(name, name, ExpertOfflineConfig(**(TINY | settings)), 1.0, 10.0)
    return figures.arm(method, "CartPole-v1", seeds, sources, data, quick)


def trained(arm: Arm, folder) -> Result:
    (result,) = engine.run([arm], ResultFolder(folder), 1, lambda _: None)
    return result


def test_a_private_arm_is_certified_and_keeps_its_certificates(tmp_path, sources):
    arm = tiny_arm(sources, **VOTES)
    result = trained(arm, tmp_path)
    assert result.status == "proved"
    assert 9 < result.epsilon <= 10
    assert result.delta == pytest.approx(1 / (10 * COUNT))
    assert len(result.returns["return"]) == len(result.more["curve"]) == 2
    assert all(0 < value <= 40 for value in result.returns["return"])
    for seed in (3, 4):
        folder = tmp_path / arm.file / f"seed-{seed}"
        ledger = Ledger.open(folder / "ledger.sqlite")
        assert verify(folder / "certificate.json", ledger).status == "verified"


def test_an_arm_without_privacy_has_no_certificate(tmp_path, sources):
    result = trained(tiny_arm(sources, method="cql"), tmp_path)
    assert (result.status, result.epsilon) == ("none", None)


def test_a_result_is_kept_for_its_data_and_settings_under_any_name(sources):
    arm = tiny_arm(sources, method="cql")
    assert tiny_arm(sources, method="cql", name="other-10").file == arm.file
    for another in (
        tiny_arm(sources, method="cql", data="other"),
        tiny_arm(sources, (3, 5), method="cql"),
        tiny_arm(sources, method="cql", quick=False),
        tiny_arm(sources, method="cql", alpha=0.3),
    ):
        assert another.file != arm.file


def test_arms_of_another_preset_are_not_mistaken_for_these(sources, monkeypatch):
    asked = many(sources)

    def files() -> dict[str, str]:
        found = figures.arms("table1", "CartPole-v1", [1], asked, quick=True)
        return {arm.name: arm.file for arm in found}

    before = files()
    tasks = presets._TASKS
    other = replace(tasks["CartPole-v1"], reward_scale=0.02)
    monkeypatch.setitem(tasks, "CartPole-v1", other)
    assert not set(before.values()) & set(files().values())


def test_an_arm_that_is_not_proved_is_an_error(tmp_path, sources, monkeypatch):
    real = figures.train_arm

    def claimed(*args):
        return replace(real(*args), status="paper-claim")

    monkeypatch.setattr(figures, "train_arm", claimed)
    arm = tiny_arm(sources, (3,), **VOTES)
    with pytest.raises(PrivacyError, match="not proved"):
        trained(arm, tmp_path)
    assert ResultFolder(tmp_path).missing(arm) == (3,)


def test_a_seed_that_released_nothing_has_not_learned_and_is_counted(tmp_path):
    # Half of them go left and half right wherever they are: there is no consensus at all.
    weights = np.zeros((40, 4, 2))
    experts = linear(weights)
    sides = jnp.where(jnp.arange(40)[:, None] < 20, jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0]))
    leaves, tree = jax.tree.flatten(experts)
    experts = jax.tree.unflatten(
        tree, [sides.astype(jnp.float32) if x.shape == (40, 2) else x for x in leaves]
    )
    settings = {"prefix_rule": "consensus", "releases": 2, "target_epsilon": 10.0}
    arm = tiny_arm(Sources(experts, None, "CartPole-v1"), method="prefix-only", **settings)
    result = trained(arm, tmp_path)
    assert result.more["empty"] == 2
    assert result.status == "proved"  # the budget was spent all the same
    assert 0 < result.epsilon <= 10
    assert len(result.returns["return"]) == 2


# --- references ----------------------------------------------------------------------------------


def test_the_majority_is_what_most_experts_would_do():
    left = np.zeros((4, 2))
    config = filled(ExpertOfflineConfig(method="cql", **TINY), FACTS["CartPole-v1"])
    most_left = linear(np.stack([left, left, BALANCING]))  # ties go to the first action, left
    most_balance = linear(np.stack([BALANCING, left, BALANCING]))
    low = majority_returns(config, most_left, 0, 8)
    high = majority_returns(config, most_balance, 0, 8)
    np.testing.assert_array_equal(high, 40)
    # Gymnasium's cart falls as soon when it is always pushed to the left.
    falls = []
    env = gymnasium.make("CartPole-v1")
    for seed in range(50):
        env.reset(seed=seed)
        steps, ended = 0, False
        while not ended:
            _, _, ended, _, _ = env.step(0)
            steps += 1
        falls.append(steps)
    assert set(low) <= set(range(min(falls), max(falls) + 1))


def test_sampled_experts_are_of_the_population(sources):
    config = filled(ExpertOfflineConfig(method="cql", **TINY), sources.facts)
    best = linear(np.repeat(BALANCING[None], COUNT, axis=0))
    assert sampled_return(config, best, 0) == 40
    worst = linear(np.zeros((COUNT, 4, 2)))
    assert sampled_return(config, worst, 0) < 12


def test_data_is_told_from_other_data(sources):
    same = Sources(sources.experts, sources.log, "CartPole-v1")
    assert figures.identity(same) == figures.identity(sources)
    log, found = sources.log, sources.log.transitions
    actions = found.actions.copy()
    actions[0] = 1 - actions[0]
    other = log._replace(transitions=found._replace(actions=actions))
    changed = Sources(sources.experts, other, "CartPole-v1")
    assert figures.identity(changed) != figures.identity(sources)
    seen = found.observations.copy()
    seen[0, 0] += 1e-3
    other = log._replace(transitions=found._replace(observations=seen))
    scene = Sources(sources.experts, other, "CartPole-v1")
    assert figures.identity(scene) != figures.identity(sources)
    one = jax.tree.map(lambda x: x.at[0].add(1e-3), sources.experts)
    moved = Sources(one, sources.log, "CartPole-v1")
    assert figures.identity(moved) != figures.identity(sources)


# --- the command ---------------------------------------------------------------------------------


def fake(sources, _env_id, _quick, arm, seeds, _folder, _report):
    private = not isinstance(arm.settings, str) and arm.settings.is_private
    returns = np.random.default_rng(len(arm.name)).uniform(50, 900, len(seeds))
    return [
        Result(
            arm,
            tuple(seeds),
            np.zeros(0),
            {},
            {"return": returns},
            status="proved" if private else "none",
            epsilon=10.0 if private else None,
            delta=1 / (10 * COUNT) if private else None,
            more={"empty": 0, "experts": COUNT},
        )
    ]


def many(sources: Sources) -> Sources:
    """As many experts as the paper has, or prefixes cannot be released."""
    repeated = jax.tree.map(lambda x: jnp.tile(x, (100, *[1] * (x.ndim - 1))), sources.experts)
    return Sources(repeated, None, "CartPole-v1")


@pytest.fixture
def paths(tmp_path, sources, monkeypatch):
    """Flags of experts and a log, which are there as far as the command looks."""
    folder, log = tmp_path / "experts", tmp_path / "log"
    folder.mkdir()
    log.mkdir()
    (folder / "experts.npz").touch()
    settings = populations.ExpertSettings(env_id="CartPole-v1", experts=COUNT)
    returns = np.random.default_rng(0).uniform(10, 200, (COUNT, 20))
    population = populations.Population(settings, sources.experts, returns)
    monkeypatch.setattr(populations, "load", lambda path: population)
    read = many(sources)
    monkeypatch.setattr(expert_runs, "read_sources", lambda experts, dataset: read)
    return ["--experts", str(folder), "--dataset", str(log), "--out", str(tmp_path / "out")]


@pytest.mark.parametrize("figure", FIGURES)
def test_figures_are_drawn_and_data_kept(figure, paths, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figures, "train", fake)
    assert sharma([figure, *paths, "--seeds", "3"]) == 0
    said = capsys.readouterr().out
    assert "trainings, about" in said.splitlines()[1]
    assert "3 seeds" in said.splitlines()[2]
    stem = tmp_path / "out" / f"{figure}-CartPole-v1"
    assert stem.with_suffix(".png").stat().st_size > 20_000
    table = pq.read_table(stem.with_suffix(".parquet")).to_pylist()
    data = json.loads(stem.with_suffix(".json").read_text())
    assert (
        len(table) == 3 * len(data["arms"]) == 3 * len(methods(figure, "CartPole-v1", FACTS_HERE))
    )
    assert {row["seed"] for row in table} == {100, 101, 102}
    assert len({arm["arm"] for arm in data["arms"]}) == len(data["arms"])
    if figure != "table1":
        majority = data["arms"][0]
        assert majority["share_of_majority"] == 1.0
        assert data["arms"][3]["share_of_majority"] == pytest.approx(
            data["arms"][3]["mean"] / majority["mean"]
        )
        return
    best = max(data["arms"], key=lambda arm: arm["mean"])
    assert (data["best"], data["paper_table"], data["paper_text"]) == (best["x"], 0.1, 0.9)
    assert "not accounted for" in said
    assert len([line for line in said.splitlines() if line.split()[0] in PAPER]) == 4


FACTS_HERE = DataFacts("CartPole-v1", 100 * COUNT, 4, 2)


def test_a_stopped_command_goes_on_and_figures_share_arms(paths, monkeypatch, capsys):
    trained: list[str] = []

    def stopping(*args):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(args[3].name)
        return fake(*args)

    monkeypatch.setattr(figures, "train", stopping)
    with pytest.raises(KeyboardInterrupt):
        sharma(["fig3", *paths, "--seeds", "2"])
    monkeypatch.setattr(figures, "train", lambda *a: trained.append(a[3].name) or fake(*a))
    capsys.readouterr()
    assert sharma(["fig3", *paths, "--seeds", "2", "--json"]) == 0
    assert trained == [arm.name for arm in methods("fig3", "CartPole-v1", FACTS_HERE)]
    summary = json.loads(capsys.readouterr().out)
    assert [arm["arm"] for arm in summary["arms"]] == trained
    assert sharma(["fig4", *paths, "--seeds", "2", "--json"]) == 0
    assert len(trained) == len(set(trained))  # what figure 3 had is not trained again
    assert "pipeline-7.5" in trained
    # Where the pipeline is DP-SGD, it is one training.
    assert ("pipeline-5" in trained) != ("dp-sgd-5" in trained)
    before = len(trained)
    assert sharma(["fig4", *paths, "--seeds", "2"]) == 0
    assert len(trained) == before
    assert "nothing to train" in capsys.readouterr().out


def test_figure_2_needs_no_log(paths, tmp_path):
    assert sharma(["fig2", *paths[:2], *paths[4:]]) == 0
    stem = tmp_path / "out" / "fig2-CartPole-v1"
    assert stem.with_suffix(".png").stat().st_size > 10_000
    assert json.loads(stem.with_suffix(".json").read_text())["experts"] == COUNT
    assert pq.read_table(stem.with_suffix(".parquet")).num_rows == COUNT


def test_what_is_missing_is_said_with_the_command_that_makes_it(tmp_path, paths, capsys):
    nowhere = str(tmp_path / "nowhere")
    command = ["reproduce", "sharma2024", "fig3"]
    assert "give --dataset" in refused(capsys, *command, "--experts", nowhere)
    said = refused(capsys, *command, "--experts", nowhere, "--dataset", nowhere)
    assert "sotto experts train --env-id CartPole-v1 --experts 3000 --out" in said
    assert "sotto experts collect" in refused(capsys, *command, *paths[:2], "--dataset", nowhere)
    assert "--env-id CartPole-v1" in refused(capsys, *command, *paths, "--env-id", "Acrobot-v1")
    assert "--seeds" in refused(capsys, *command, *paths, "--seeds", "0")


def test_experts_and_log_are_made_where_they_are_wanted(tmp_path, paths, sources, monkeypatch):
    folder, log = tmp_path / "new" / "experts", tmp_path / "new" / "log-v0"
    made = []

    def trained(where, settings, workers, say):
        made.append((settings.env_id, settings.experts))
        where.mkdir(parents=True)
        (where / "experts.npz").touch()

    monkeypatch.setattr(populations, "train", trained)
    monkeypatch.setattr(populations, "collect", lambda *args: sources.log)
    monkeypatch.setattr(figures, "train", fake)
    flags = ["--experts", str(folder), "--dataset", str(log), *paths[4:], "--make"]
    assert sharma(["table1", *flags, "--seeds", "2"]) == 0
    assert made == [("CartPole-v1", 3000)]
    assert minari_files.load(log).experts == COUNT


def test_arms_of_a_figure_run_from_beginning_to_end(tmp_path, sources):
    """Nothing is faked but the size of things."""
    few = methods("fig3", "CartPole-v1", FACTS_HERE, quick=True)
    small = {"evaluation_cap": 30, "gradient_steps": 10, "hidden": (8,), "minibatch": 16}
    small |= {"queries": 10, "rollout_cap": 10}
    chosen = [named(few, name) for name in ("votes-clones-10", "bc")]
    shrunk = [replace(one, does=replace(one.does, **small)) for one in chosen]
    planned = [figures.arm(one, "CartPole-v1", (1,), sources, "data", True) for one in shrunk]
    results = engine.run(planned, ResultFolder(tmp_path), 1, lambda _: None)
    assert [one.status for one in results] == ["proved", "none"]
    assert all(1 <= one.returns["return"].mean() <= 30 for one in results)
