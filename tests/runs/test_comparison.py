"""The page about several runs: what it compares, and what its figure says."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from sotto.privacy.units import TRANSITION, Adjacency, Unit
from sotto.runs import api, guarantees
from sotto.runs.guarantees import Guarantee
from sotto.runs.report import figures
from sotto.runs.report.comparison import (
    ADD_UP,
    names,
    note,
    rows,
    shared_measure,
    write_comparison,
    write_gallery,
)
from sotto.runs.seeds import Sharing
from sotto.runs.summaries import Summary, summarise

PERSON = Unit(kind="trajectory", adjacency=Adjacency.ZERO_OUT)
FUNCTION = Unit(kind="reward-function", adjacency=Adjacency.WITHIN_RADIUS)


def proved(epsilon: float, delta: float, unit: Unit, distance: float | None = None) -> Guarantee:
    return Guarantee("proved", "", epsilon, delta, unit, distance)


@pytest.fixture
def one(trained_pair: Path) -> Summary:
    return replace(summarise(trained_pair), guarantee=proved(0.9, 1e-4, PERSON))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    found: list[Figure] = []
    save = figures._save
    monkeypatch.setattr(
        figures, "_save", lambda drawing, path: (found.append(drawing), save(drawing, path))
    )
    return found


def test_a_statement_is_whole() -> None:
    assert proved(0.9, 1e-4, TRANSITION).statement == (
        "epsilon 0.9 at delta 0.0001 for one transition's reward, replace-one"
    )
    assert proved(1, 0, FUNCTION, 0.25).statement == (
        "epsilon 1 at delta 0 for the whole reward function, within-radius, within 0.25"
    )
    assert Guarantee("none", "nothing").statement == "none"


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        (proved(5, 1e-4, PERSON), ""),
        (proved(0.9, 1e-5, PERSON), "deltas"),
        (proved(0.9, 1e-5, TRANSITION), "units of privacy and adjacencies and deltas"),
        (
            proved(0.9, 1e-4, Unit(kind="trajectory", adjacency=Adjacency.REPLACE_ONE)),
            "adjacencies",
        ),
        (Guarantee("not private", "It protects nobody."), ""),
    ],
)
def test_epsilons_of_other_quantities_are_said_not_to_be_comparable(
    one: Summary, other: Guarantee, differ: str, tmp_path: Path
) -> None:
    two = replace(one, path=one.path.with_name("two"), guarantee=other)
    said = f"These epsilons cannot be compared: their {differ} differ. {ADD_UP}"
    assert note([one, two]) == (said if differ else ADD_UP)
    page = tmp_path / "page.html"
    for write in (
        lambda: write_comparison([one, two], page),
        lambda: write_gallery([one, two], one.path.parent, page),
    ):
        write()
        assert ("cannot be compared" in page.read_text()) == bool(differ)
        assert ("It protects nobody." in page.read_text()) == (not other.proved)


def test_functions_within_other_radii_are_other_quantities(one: Summary) -> None:
    near, far = (replace(one, guarantee=proved(1, 0, FUNCTION, x)) for x in (0.1, 0.2))
    assert note([near, near]) == ADD_UP
    assert note([near, far]).startswith(
        "These epsilons cannot be compared: their distances differ."
    )


def test_ratings_and_returns_are_in_no_common_figure(one: Summary, tmp_path: Path) -> None:
    """Both call their last measurement `last`, and one of them is between 0 and 1."""
    ratings = replace(one, path=one.path.with_name("two"), algorithm="rlhf", task="")
    assert "last" in one.evaluation
    assert shared_measure([one, ratings]) is None
    write_comparison([one, ratings], tmp_path / "page.html")
    assert "nothing in common" in (tmp_path / "page.html").read_text()


def test_returns_of_other_environments_are_in_no_common_figure_or_row(one: Summary) -> None:
    other = replace(one, path=one.path.with_name("two"), task="Acrobot-v1")
    assert shared_measure([one, replace(other, task=one.task)]) is not None
    assert shared_measure([one, other]) is None
    header, body = rows([one, other])
    own = header.index("return, last policy on CartPole-v1")
    theirs = header.index("return, last policy on Acrobot-v1")
    assert [bool(row[own]) for row in body] == [True, False]
    assert [bool(row[theirs]) for row in body] == [False, True]
    assert "return, last policy" in rows([one, one])[0]


def test_steps_have_the_name_that_the_algorithm_gives_them(
    one: Summary, drawn: list[Figure], tmp_path: Path
) -> None:
    assert rows([one])[1][0][4] == f"{one.env_steps:,} environment steps"
    logged = replace(one, algorithm="offline")
    assert rows([logged])[1][0][4] == f"{one.env_steps:,} logged rows"
    write_comparison([logged, logged], tmp_path / "page.html")
    figures.learning_curve(tmp_path / "learning.png", one.lines, "logged rows")
    assert [drawing.axes[0].get_xlabel() for drawing in drawn] == ["logged rows"] * 2
    write_comparison([one, logged], tmp_path / "page.html")
    assert drawn[-1].axes[0].get_xlabel() == "updates"


def test_every_run_has_its_name_and_guarantee_in_the_legend(
    one: Summary, drawn: list[Figure], tmp_path: Path
) -> None:
    said = ["_x", "$\\frac$", "$a$", "a\\x1b[2J", "plain"]
    paths = [tmp_path / name for name in ["_x", "$\\frac$", "$a$", "a\x1b[2J", "plain"]]
    found = [replace(one, path=path) for path in paths]
    found[-1] = replace(found[-1], guarantee=Guarantee("not private", "why"))
    assert names(found) == said
    write_comparison(found, tmp_path / "page.html")
    (legend,) = drawn[0].legends
    texts = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
    assert texts == [
        f"{name}: {each.guarantee.statement}" for name, each in zip(said, found, strict=True)
    ]
    assert len(legend.legend_handles) == len(found)
    assert not any(text.get_parse_math() for text in legend.get_texts())


def test_seeds_that_have_no_joint_epsilon_are_not_proved(
    trained_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarantees, "sharing", lambda *_: Sharing("", math.inf))
    found = summarise(trained_pair).guarantee
    assert (found.status, found.epsilon) == ("none", None)
    assert "all seeds together" in found.why


def test_the_weakest_of_several_seeds_counts(
    trained_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is proved of the first one, whose epsilon is smaller."""
    for module in (api, guarantees):
        seeds = iter([{"status": "paper-claim", "epsilon": 0.5}, {"epsilon": 9.0}])
        derive = module.derive
        monkeypatch.setattr(
            module,
            "derive",
            lambda ledger, one=derive, seeds=seeds: one(ledger).model_copy(update=next(seeds)),
        )
    found = summarise(trained_pair).guarantee
    assert (found.status, found.epsilon) == ("paper-claim", None)
    assert api.TrainedRun(trained_pair, finished=True).certificate.status == "paper-claim"
