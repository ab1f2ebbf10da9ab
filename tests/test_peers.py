"""The comparison with other libraries: kept results, ratios, the page, and missing peers."""

import json

import pytest
from against import kept, page, pictures


def room(rows, quick=False):
    facts = {"machine": "2 cores", "commit": "abc", "seconds": 3.2, "load": 0.1}
    return {"rows": rows, "quick": quick, "versions": {"jax": "0.10.2"}} | facts


SPEED = [
    {"name": "sotto", "rates": [300.0, 100.0, 200.0]},
    {"name": "JAX, not private", "rates": [450.0, 120.0, 300.0]},
    {"name": "PyTorch, not private", "rates": [100.0, 100.0, 100.0]},
    {"name": "Opacus, hooks", "rates": [10.0, 10.0, 10.0]},
]


def test_ratios_are_of_each_turn():
    """Medians of 300 100 200 and 10 50 100 would give 4; the turns' ratios are 30, 2, 2."""
    assert kept.ratio([300, 100, 200], [10, 50, 100]) == (2, 2, 30)


def test_the_page_has_ratios_both_ways(tmp_path):
    text = page.page({"speed": room(SPEED)}, ["speed"])
    assert "| Opacus, hooks | 10 | 20 (10 to 30) | 10 (10 to 10) |" in text
    assert "| sotto | 200 | 1.00 (1.00 to 1.00) | 1.50 (1.20 to 1.50) |" in text
    assert "mean nothing" not in text
    assert "mean nothing" in page.page({"speed": room(SPEED, quick=True)}, [])


def test_an_epsilon_below_the_true_one_is_named():
    row = {"name": "x", "case": [0.1, 1, 10], "epsilon": 0.9, "true": [1.0, 1.1], "milliseconds": 1}
    assert "too small" in page.page({"accounting": room([row])}, [])
    assert "too small" not in page.page({"accounting": room([row | {"epsilon": 1.0}])}, [])


def test_an_interrupted_run_keeps_finished_rooms(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "version", lambda _: "1")
    path = tmp_path / "docs" / "benchmarks.json"
    kept.keep(path, "speed", SPEED, quick=False, seconds=1)
    kept.keep(path, "ppo", [], quick=False, seconds=1)
    kept.keep(path, "ppo", [{"name": "again"}], quick=False, seconds=1)
    found = json.loads(path.read_text())
    assert found["speed"]["rows"] == SPEED
    assert found["ppo"]["rows"] == [{"name": "again"}]


def test_missing_peers_are_named():
    kept.require("json")
    with pytest.raises(SystemExit, match="no_such_peer, which is not installed: run `make bench`"):
        kept.require("json", "no_such_peer")


def test_pictures_are_drawn(tmp_path):
    rows = [
        {"name": name, "epsilon": epsilon, "accuracies": [0.8, 0.9]}
        for name in ("sotto", "Opacus")
        for epsilon in (1.0, 3.0)
    ]
    drawn = pictures.draw(
        {"speed": room(SPEED), "accuracy": room(rows), "accounting": {}}, tmp_path
    )
    assert drawn == ["speed", "accuracy"]
    assert {one.name for one in tmp_path.iterdir()} == {
        "benchmarks_speed.png",
        "benchmarks_accuracy.png",
    }
