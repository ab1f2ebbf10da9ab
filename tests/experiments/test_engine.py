"""The engine: results keep their names and are not trained again, and what was stopped goes on."""

import json
import math
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sotto.algorithms.expert_offline.presets import DataFacts, filled
from sotto.errors import RunError
from sotto.experiments import engine
from sotto.experiments.engine import Arm, Result, ResultFolder, joined
from sotto.experiments.figure_files import write_table
from sotto.experiments.gohari2021 import figures as gohari
from sotto.experiments.gohari2021 import tradeoff
from sotto.experiments.gohari2021.arms import FIGURES, TEACHER
from sotto.experiments.rio2025 import cells, regret, trainings
from sotto.experiments.sharma2024 import arms as sharma_arms
from sotto.experiments.sharma2024 import figures as sharma
from sotto.experiments.wang2019 import arms as wang_arms
from sotto.experiments.wang2019 import figures as wang

REPOSITORY = Path(__file__).parents[2]
NAMES = json.loads(Path(__file__).with_name("names_of_results.json").read_text())
FACTS = {
    "CartPole-v1": DataFacts("CartPole-v1", 3000, 4, 2),
    "Acrobot-v1": DataFacts("Acrobot-v1", 3000, 6, 3),
    "HIV-v0": DataFacts("HIV-v0", 3000, 6, 4),
    "LunarLander-v3": DataFacts("LunarLander-v3", 300, 8, 4),
}


def train(arm, seeds, folder, report):
    """Returns the seeds; leaves a file in each seed's folder."""
    report(1.0)
    for seed in seeds:
        place = folder / f"seed-{seed}"
        assert list(place.iterdir()) == []
        (place / "ledger").write_text(arm.name)
    rows = np.array([[0.0, seed] for seed in seeds])
    whole = Result(arm, tuple(seeds), np.array([0, 10]), {"return": rows}, seconds=2.0)
    if not arm.by_seed:
        return [whole]
    return [
        Result(arm, (seed,), np.array([0, 10]), {"return": rows[row : row + 1]}, seconds=2.0)
        for row, seed in enumerate(seeds)
    ]


def an_arm(name="a", seeds=(1, 2), **changes):
    settings = {"file": f"{name}-{seeds}", "train": train, "seconds": 60.0} | changes
    return Arm(name, name.upper(), None, seeds, **settings)


def run(arms, folder, workers=1):
    said = []
    return engine.run(arms, ResultFolder(folder), workers, said.append), said


def test_what_is_kept_is_not_trained_again(tmp_path):
    (first,), said = run([an_arm()], tmp_path)
    assert said[0].startswith("1 training, about 1 min with 1 process; stop at any time")
    long = run([an_arm("long", seconds=600 * 60.0)], tmp_path / "long")[1]
    assert long[0].startswith("1 training, about 10 hours with 1 process")
    (again,), said = run([replace(an_arm(), label="new")], tmp_path)
    assert said == ["nothing to train (1 kept from before)"]
    assert again.data() == first.data()
    assert again.arm.label == "new"


def test_results_are_read_as_they_were_written(tmp_path):
    arm = an_arm()
    curves = {"return": np.array([[math.nan, 1 / 3], [math.inf, -0.1]])}
    said = {"status": "proved", "epsilon": 1 / 7, "delta": 1e-5, "seconds": 0.1}
    result = Result(arm, (1, 2), np.array([[0, 5], [1, 6]]), curves, {"x": [1, 2]}, **said)
    result = replace(result, more={"list": [1, [2.5]], "none": None})
    ResultFolder(tmp_path).keep(result)
    read = ResultFolder(tmp_path).read(arm)
    np.testing.assert_array_equal(read.curves["return"], curves["return"])
    assert str(read.data()) == str(result.data())
    assert read.points.tolist() == [0.5, 5.5]
    assert not [*tmp_path.rglob("*.partial"), *tmp_path.rglob(".*")]


def test_a_result_needs_a_row_for_each_seed():
    with pytest.raises(ValueError, match="needs 2 rows"):
        Result(an_arm(), (1, 2), np.zeros(1), {"return": np.zeros((3, 1))})
    with pytest.raises(ValueError, match="needs 2 rows"):
        Result(an_arm(), (1, 2), np.zeros(0), {}, {"return": np.zeros(1)})


@pytest.mark.parametrize("by_seed", [False, True])
def test_a_stopped_run_goes_on_and_forgets_the_attempt(tmp_path, by_seed):
    def stops(arm, seeds, folder, report):
        (folder / "seed-1" / "half").write_text("of a stopped attempt")
        raise KeyboardInterrupt

    first, second = an_arm("a", by_seed=by_seed), an_arm("b", by_seed=by_seed)
    with pytest.raises(KeyboardInterrupt):
        run([first, replace(second, train=stops)], tmp_path)
    results, said = run([first, second], tmp_path)
    assert said[0].startswith("1 training (1 kept from before)")
    assert [one.arm.name for one in results] == ["a", "b"]
    left = {path.name for path in ResultFolder(tmp_path).place(second.file, 1).iterdir()}
    assert left - {"result.json"} == {"ledger"}


def killed(arm, seeds, folder, report):
    """Is killed in the middle of training, once the other arm is kept."""
    (folder / "half").write_text("of a killed attempt")
    while not (folder.parent / an_arm("a").file / "result.json").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_loses_nothing_that_is_done(tmp_path):
    first, second = an_arm("a"), an_arm("b")
    with pytest.raises(RunError, match="finished work is kept"):
        run([first, replace(second, train=killed)], tmp_path, workers=2)
    assert (ResultFolder(tmp_path).place(second.file) / "half").exists()
    results, said = run([first, second], tmp_path)
    assert said[0].startswith("1 training (1 kept from before)")
    assert [one.arm.name for one in results] == ["a", "b"]
    assert not (ResultFolder(tmp_path).place(second.file) / "half").exists()


def test_more_seeds_train_only_those_that_are_missing(tmp_path):
    def arm(*seeds):
        return an_arm("a", seeds, file="a", by_seed=True)

    run([arm(1, 2)], tmp_path)
    (result,), said = run([arm(5, 1, 2)], tmp_path)
    assert "about 1 min" in said[0]
    assert result.seeds == (5, 1, 2)
    assert result.curves["return"][:, 1].tolist() == [5, 1, 2]
    (result,), _ = run([arm(2)], tmp_path)
    assert result.seeds == (2,)


def test_what_is_needed_is_trained_before(tmp_path):
    order = []

    def notes(arm, *rest):
        order.append(arm.name)
        return train(arm, *rest)

    teacher = an_arm("teacher", train=notes)
    student = an_arm("student", train=notes, needs=(teacher,))
    (result,), said = run([student], tmp_path)
    assert order == ["teacher", "student"]
    assert result.arm.name == "student"
    assert said[0].startswith("2 trainings")


def test_what_arms_share_is_made_once_and_seeds_apart_are_joined(tmp_path):
    arms = [
        *(an_arm("apart", (seed,), file=f"apart-{seed}") for seed in (1, 2)),
        an_arm("one", file="shared"),
        an_arm("two", file="shared"),
        *(an_arm("line", file=f"line-{x}", x=x) for x in (1.0, 2.0)),
    ]
    results, said = run(arms, tmp_path)
    assert said[0].startswith("5 trainings")
    names = [(one.arm.name, one.arm.x, one.seeds) for one in results]
    both = (1, 2)
    assert names[:3] == [("apart", None, both), ("one", None, both), ("two", None, both)]
    assert names[3:] == [("line", 1.0, both), ("line", 2.0, both)]


def test_the_time_that_is_left_follows_the_pace(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(engine.time, "monotonic", lambda: now[0])

    def takes(arm, *rest):
        now[0] += arm.seconds / 2  # twice as fast as planned
        return train(arm, *rest)

    arms = [an_arm(name, train=takes, seconds=s) for name, s in (("a", 60), ("b", 300), ("c", 40))]
    _, said = run(arms, tmp_path)
    assert "3 trainings, about 7 min" in said[0]
    left = [re.search(r"so far(?:, about (.*) left)?", one).group(1) for one in said[1:]]
    assert left == ["3 min", "20 s", None]
    assert said[1].startswith("1/3 done: a, 2 seeds: return 1.5 ± 0.5, not private")


def test_one_seed_that_is_not_proved_speaks_for_all():
    parts = [
        Result(an_arm(), (seed,), np.zeros(0), {}, status=status, epsilon=epsilon, seconds=4.0)
        for seed, status, epsilon in ((1, "proved", 1.0), (2, "proved", 2.0))
    ]
    whole = joined(parts)
    assert (whole.status, whole.epsilon, whole.seconds) == ("proved", 2.0, 4.0)
    claim = replace(parts[0], status="paper-claim", epsilon=None)
    whole = joined([*parts, claim])
    assert (whole.status, whole.epsilon) == ("paper-claim", None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seeds": [1]}', '{"nothing": 1}'])
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    run([an_arm()], tmp_path)
    next(tmp_path.rglob("result.json")).write_text(text)
    with pytest.raises(RunError, match=r"result\.json is not a result; delete it"):
        run([an_arm()], tmp_path)


def test_tables_know_nan(tmp_path):
    import pyarrow.parquet as pq

    write_table(tmp_path / "x.parquet", [{"a": 1.0, "b": 1}, {"a": math.nan, "b": 2}])
    table = pq.read_table(tmp_path / "x.parquet")
    assert (table["a"].null_count, str(table["b"].type)) == (1, "int64")


# --- names of kept results -----------------------------------------------------------------------


def test_names_of_gohari_et_al(tmp_path):
    found = {}
    for env_id in ("CartPole-v1", "Acrobot-v1", "AirRaid"):
        experiment = gohari.Reproduction(env_id, 1.0, (0, 1), tmp_path)
        for figure in FIGURES.values():
            for one in (TEACHER, *figure.learners):
                found[f"{env_id} {one.name}"] = [arm.file for arm in experiment.arms(one)]
    what = tradeoff.Tradeoff("CartPole-v1", 1.0, (0, 1), 70, (1.0, 8.0), tmp_path)
    found["shards"] = [arm.file for arm in what.shards()]
    found["plain"], found["exact"] = [what.plain().file], [what.student(None).file]
    for point in tradeoff.points(what.epsilons):
        found[point.learner.name] = [what.student(point).file]
    assert found == NAMES["gohari2021"]


def test_names_of_rio_et_al():
    rows = [row.env_id for row in cells.TABLE1]
    every = cells.table1(rows, ["sotto", "paper"])
    every += cells.table1(["CartPole-v1"], ["sotto"], 1e-6, 100_000)
    found = {f"{c} {c.delta} {c.total_steps}": trainings.arms(c, (0,))[0].file for c in every}
    assert found == NAMES["rio2025"]


@pytest.mark.parametrize("figure", ["fig1", "fig5"])
def test_names_of_regret(figure):
    chosen = regret.arms(regret.ENVIRONMENTS[figure], (0,))
    assert [arm.file for arm in chosen] == NAMES["regret"][figure]


def test_names_of_sharma_et_al():
    found = {}
    for env_id, facts in FACTS.items():
        for figure in ("fig3", "fig4", "table1"):
            for one in sharma_arms.methods(figure, env_id, facts):
                does = one.does if isinstance(one.does, str) else filled(one.does, facts)
                arm = sharma.arm(replace(one, does=does), env_id, (100, 101), None, "data")
                found[f"{figure} {env_id} {arm.name}"] = arm.file
    assert found == NAMES["sharma2024"]


def test_names_of_wang_and_hegde():
    for figure, expected in NAMES["wang2019"].items():
        name, _, quick = figure.partition("-")
        made = [wang.arm(one, (0,)) for one in wang_arms.methods(name, bool(quick))]
        assert {one.name: one.file for one in made} == expected


def test_results_that_come_with_sotto_are_found(tmp_path):
    kept = ResultFolder(REPOSITORY / "docs" / "kept" / "airraid" / "arms")
    experiment = gohari.Reproduction("AirRaid", 1.0, tuple(range(5)), tmp_path)
    learners = {one for figure in FIGURES.values() for one in (TEACHER, *figure.learners)}
    every = {arm.file: arm for learner in learners for arm in experiment.arms(learner)}
    for path in kept.folder.iterdir():
        assert kept.read(every[path.name]).seeds == every[path.name].seeds
