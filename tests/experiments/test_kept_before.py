"""What was kept before there was one engine is found again; the code of then made `kept`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sotto.algorithms.expert_offline.config import ExpertOfflineConfig
from sotto.algorithms.expert_offline.presets import DataFacts
from sotto.errors import RunError
from sotto.experiments import engine, kept_before
from sotto.experiments.engine import Store
from sotto.experiments.gohari2021 import figures as gohari
from sotto.experiments.gohari2021 import training
from sotto.experiments.gohari2021.arms import TEACHER
from sotto.experiments.rio2025 import cells, regret, trainings
from sotto.experiments.sharma2024 import arms as sharma_arms
from sotto.experiments.sharma2024 import figures as sharma
from sotto.experiments.wang2019 import arms as wang_arms
from sotto.experiments.wang2019 import figures as wang
from sotto.privacy.certificates.derive import verify
from sotto.privacy.ledger.ledger import Ledger

KEPT = Path(__file__).parent / "kept"
FACTS = {
    "CartPole-v1": DataFacts("CartPole-v1", 3000, 4, 2),
    "Acrobot-v1": DataFacts("Acrobot-v1", 3000, 6, 3),
    "HIV-v0": DataFacts("HIV-v0", 3000, 6, 4),
    "LunarLander-v3": DataFacts("LunarLander-v3", 300, 8, 4),
}


@pytest.fixture
def kept(tmp_path):
    """A copy of what was kept."""
    shutil.copytree(KEPT, tmp_path / "kept")
    return tmp_path / "kept"


@pytest.fixture(autouse=True)
def nothing_is_trained(monkeypatch):
    def refuses(*_args):
        raise AssertionError("an arm that was kept is trained again")

    monkeypatch.setattr(engine, "_train", refuses)


# --- results -------------------------------------------------------------------------------------


def test_a_figure_of_kept_curves_says_the_same(kept):
    experiment = gohari.Reproduction("CartPole-v1", 0.02, (0, 1), kept / "gohari2021")
    before = json.loads((kept / "gohari2021" / "fig2b-CartPole-v1.json").read_text())
    gohari.make_figure(experiment, "fig2b", 1, lambda _: None)
    assert json.loads((kept / "gohari2021" / "fig2b-CartPole-v1.json").read_text()) == before
    policies = training.policies_of(experiment.arms(TEACHER), kept / "gohari2021" / "arms")
    assert policies.network.weights[0].shape == (2, 4, 64)
    assert np.ptp(policies.network.weights[0]) > 0


def test_seeds_of_a_cell_have_their_certificates(kept):
    cell = cells.Cell("CartPole-v1", "dppg", "sotto", 3.0, total_steps=16384)
    store = Store(kept / "rio2025" / "trainings")
    kept_before.outcomes_by_seed(store)
    (result,) = engine.run(trainings.arms(cell, (0, 1)), store, 1, lambda _: None)
    for row, seed in enumerate((0, 1)):
        place = store.place(result.arm.file, seed)
        old = json.loads((place / "outcome.json").read_text())
        assert result.steps[row].tolist() == old["steps"]
        assert result.curves["return"][row].tolist() == old["curve"]
        assert {kind: values[row] for kind, values in result.returns.items()} == old["returns"]
        assert result.more == {"noise_multiplier": old["noise_multiplier"]}
        ledger = Ledger.open(place / "ledger.sqlite")
        assert verify(place / "certificate.json", ledger).status == "verified"
    assert (result.status, result.epsilon) == ("proved", old["epsilon"])


def test_regret_that_was_kept(kept):
    path = kept / "rio2025" / "fig5-8-episodes-curves.json"
    store = Store(kept / "rio2025" / "trainings")
    kept_before.rows(path, store, "regret", values="regret", steps="episodes")
    old = {row["arm"]: row for row in json.loads(path.read_text())}
    chosen = [
        a for a in regret.arms("RiverSwim90-v0", (0, 1), 8, 1e-3) if a.name in old and a.x == 5.0
    ]
    for result in engine.run(chosen, store, 1, lambda _: None):
        row = old[result.arm.name]
        assert result.curves["regret"].T.tolist() == row["regret"]
        assert result.points.tolist() == row["episodes"]
        assert (result.status, result.epsilon) == (row["status"], row["epsilon"])


def test_arms_of_experts_that_were_kept(kept):
    store = Store(kept / "sharma2024" / "arms")
    kept_before.outcomes(store)
    tiny = {
        **{"experts": "x", "dataset": "y", "population": "simulated"},
        **{"env_id": "CartPole-v1", "evaluation_cap": 40},
        **{"gradient_steps": 20, "hidden": (8,), "minibatch": 16, "evaluation_episodes": 2},
        **{"batch": 10, "noisy_steps": 20, "rollout_cap": 20},
    }
    votes = {"method": "votes", "target_epsilon": 10.0, "queries": 8, "rounds": 3, "lanes": 2}
    for settings, seeds in ((votes, (3,)), ({"method": "cql"}, (3, 4))):
        does = ExpertOfflineConfig(**(tiny | settings))
        method = sharma_arms.Method("new name", "new label", does, 1.0)
        arm = sharma.arm(method, "CartPole-v1", seeds, None, "data", quick=True)
        (result,) = engine.run([arm], store, 1, lambda _: None)
        old = json.loads((store.folder / f"{arm.file}.json").read_text())
        assert result.returns["return"].tolist() == old["returns"]
        assert result.arm.label == "new label"
        for name in ("status", "epsilon", "delta", "seconds"):
            assert getattr(result, name) == old[name]
        assert result.more["empty"] == old["empty"]
    place = store.place(next(store.folder.glob("*/seed-3")).parent.name, 3)
    ledger = Ledger.open(place / "ledger.sqlite")
    assert verify(place / "certificate.json", ledger).status == "verified"


def test_rows_of_wang_and_hegde(kept):
    path, store = kept / "wang2019" / "fig2a-quick.json", Store(kept / "wang2019" / "arms")
    wang.bring_in(path, store)
    old = json.loads(path.read_text())
    methods = {one.name: one for one in wang_arms.methods("fig2a", quick=True)}
    arms = [wang.arm(methods[row["arm"]], [100]) for row in old]
    results = engine.run(arms, store, 1, lambda _: None)
    # What the output release was certified for then is not proved by now.
    (output,) = [row for row in old if row["arm"] == "output-release"]
    assert (output["status"], round(output["epsilon"], 3)) == ("proved", 0.9)
    output |= {"status": "none", "epsilon": None}
    assert [wang._about(result, "fig2a") for result in results] == old


@pytest.mark.parametrize(
    ("name", "figure", "holds"),
    [
        ("reward-release", "fig2a", True),
        ("dp-sgd", "fig2a", True),
        ("input", "fig2a", True),
        ("paper", "fig2a", True),  # a claim then and now
        ("dqn", "fig2a", True),
        ("output-release", "fig2a", False),
        ("per-iteration", "fig2a", False),
        ("radius-input-0.01", "tradeoff", False),
    ],
)
def test_which_certificates_of_before_still_hold(tmp_path, name, figure, holds):
    (method,) = [one for one in wang_arms.methods(figure) if one.name == name]
    unproved = {"paper": "paper-claim", "dqn": "not private"}
    row = {
        **{"arm": name, "settings": method.settings, "seeds": [1], "unit": method.task.unit},
        **{"status": unproved.get(name, "proved"), "epsilon": 0.9, "delta": 1e-4, "seconds": 1.0},
        **{"samples": [10], "returns": [[3.0]]},
    }
    path, store = tmp_path / "figure.json", Store(tmp_path / "arms")
    path.write_text(json.dumps([row]))
    wang.bring_in(path, store)
    result = store.read(wang.arm(method, [1]))
    assert result.status == (row["status"] if holds else "none")
    assert result.epsilon == (0.9 if holds else None)


@pytest.mark.parametrize(
    ("file", "bring"),
    [
        (
            "sharma2024/arms/x.json",
            lambda kept: kept_before.outcomes(Store(kept / "sharma2024/arms")),
        ),
        (
            "rio2025/trainings/x/seed-1/outcome.json",
            lambda kept: kept_before.outcomes_by_seed(Store(kept / "rio2025/trainings")),
        ),
        (
            "gohari2021/arms/x.parquet",
            lambda kept: kept_before.curve_tables(Store(kept / "gohari2021/arms")),
        ),
        (
            "wang2019/fig1.json",
            lambda kept: kept_before.rows(kept / "wang2019/fig1.json", Store(kept), "", "a", "b"),
        ),
    ],
)
def test_a_file_that_is_something_else_is_named(kept, file, bring):
    (kept / file).parent.mkdir(parents=True, exist_ok=True)
    (kept / file).write_text('[{"nothing": 1}]')
    with pytest.raises(RunError, match=f"{Path(file).name} is not a result of an earlier version"):
        bring(kept)


def test_what_is_in_the_store_is_not_replaced(kept):
    store = Store(kept / "sharma2024" / "arms")
    kept_before.outcomes(store)
    path = next(store.folder.glob("*/result.json"))
    path.write_text("{}")
    kept_before.outcomes(store)
    assert path.read_text() == "{}"
