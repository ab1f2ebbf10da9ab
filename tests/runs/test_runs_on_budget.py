"""Trainings and campaigns on one budget, by the commands and from Python."""

import shutil
from pathlib import Path

import pytest
from commands import printed, refused, run_json
from products import charge, product, statement
from rated_logs import write_ratings

import sotto
from sotto.cli import main
from sotto.privacy.certificates.derive import derive, verify
from sotto.privacy.errors import BudgetExceeded
from sotto.privacy.ledger.joining import Joining
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.standing import person_standing, standing
from sotto.runs.registry import algorithm_named
from sotto.runs.start import begin

SETTINGS = {
    "env_id": "clinics:TestClinic-v0",
    "population": "real",
    "users_per_update": 2,
    "steps_per_user": 4,
    "total_steps": 32,
    "target_epsilon": 1.2,
    "delta": 1e-6,
    "hidden": (2,),
    "critic": "none",
}
"""Four updates with two people each."""


def words(out: Path, **changes: object) -> list[str]:
    """The command of a training."""
    given = SETTINGS | {"hidden": 2} | changes
    flags = [
        word
        for name, value in given.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    return ["train", "dppg", "--out", str(out), *flags]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a budget, and with a finished training of people 10 to 17."""
    folder = tmp_path_factory.mktemp("shared")
    create = [
        "budget",
        "create",
        str(folder / "people.budget"),
        "--epsilon",
        "2",
        "--delta",
        "1e-6",
    ]
    assert main(create) == 0
    (folder / "numbers.txt").write_text("\n".join(map(str, range(10, 18))) + "\n")
    given = {"budget": folder / "people.budget", "numbers": folder / "numbers.txt"}
    assert main(words(folder / "run", **given)) == 0
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "shared"))


def test_a_training_charges_people_by_their_numbers(folder):
    budget = SharedBudget.open(folder / "people.budget")
    assert sorted(budget.account().people.tolist()) == list(range(10, 18))
    assert person_standing(budget, 12).epsilon == pytest.approx(1.2, rel=1e-6)
    assert person_standing(budget, 2).epsilon == 0
    assert main(["certificate", str(folder / "run"), "--verify"]) == 0


def test_a_certificate_states_the_limits_of_the_shared_budget(folder, capsys):
    said = " ".join(printed(capsys, "certificate", str(folder / "run")).split())
    assert (
        "Nobody who has one number in all of them pays more than epsilon 2 at delta 1e-06" in said
    )
    assert "as long as nobody goes on with a copy of the budget" in said
    alone = folder / "alone"
    assert main(words(alone)) == 0
    assert "in all of them" not in printed(capsys, "certificate", str(alone))


def test_a_ledger_that_does_not_say_the_limits_keeps_its_certificate(folder, monkeypatch):
    """As earlier versions wrote it."""
    earlier = property(lambda self: {"budget": self.budget.budget_id, "numbers": None})
    budget = SharedBudget.open(folder / "people.budget")
    with monkeypatch.context() as patched:
        patched.setattr(Joining, "said", earlier)
        ledger = product(budget, folder / "earlier", "earlier")
        charge(ledger.open_stream(statement(9.0)), 3)
    again = Ledger.open(folder / "earlier", "earlier")
    again.join(budget)
    derive(again).write(folder / "certificate.json")
    assert verify(folder / "certificate.json", again).status == "verified"
    assert "shared-budget" not in (folder / "certificate.json").read_text()


def test_a_second_training_is_refused_when_it_would_overspend(folder, capsys):
    given = {"budget": folder / "people.budget", "numbers": folder / "numbers.txt"}
    assert main(words(folder / "second", **given, target_epsilon=0.9)) == 0
    error = refused(capsys, *words(folder / "third", **given))
    assert "would bring 2 people over the shared budget (10, 11)" in error
    (folder / "more.txt").write_text("\n".join(map(str, range(16, 24))) + "\n")
    error = refused(capsys, *words(folder / "fourth", **given | {"numbers": folder / "more.txt"}))
    assert "(16, 17)" in error
    spent = person_standing(SharedBudget.open(folder / "people.budget"), 10)
    assert spent.epsilon < 2
    assert len(spent.streams) == 2


@pytest.mark.parametrize("algorithm", ["bandit", "offline"])
def test_an_import_is_refused_before_anybody_writes_its_numbers(folder, capsys, algorithm):
    dataset = str(write_ratings(folder, 20))
    place = ["--out", str(folder / algorithm), "--budget", str(folder / "people.budget")]
    error = refused(capsys, "train", algorithm, "--on", dataset, *place)
    assert "a shared budget cannot know them; leave out --budget" in error
    assert not (folder / algorithm).exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"numbers": None}, "--numbers FILE"),
        ({"budget": None}, "numbers are for a shared budget"),
        ({"seeds": 2}, "several seeds each number their people from 0"),
        ({"budget": "postgresql://ann:secret@host/x"}, "would reveal the password"),
        ({"budget": "postgresql:///x?host=h&password=secret"}, "would reveal the password"),
        ({"budget": "postgresql:///x?sslpassword=secret"}, "would reveal the password"),
        (
            {"budget": "nowhere.budget"},
            "nowhere.budget; create one with: sotto budget create ",
        ),
        ({"env_id": "CartPole-v1", "population": "simulated"}, "nobody to protect"),
        ({"target_epsilon": 3.0}, "alone costs each person epsilon 3"),
    ],
)
def test_trainings_that_cannot_share_a_budget(folder, capsys, changes, why):
    given = {"budget": folder / "people.budget", "numbers": folder / "numbers.txt"} | changes
    given = {name: value for name, value in given.items() if value is not None}
    assert why in refused(capsys, *words(folder / "other", **given))
    assert not (folder / "other").exists()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("ppo", "protects nobody; leave out --budget"),
        (
            "functional-q --env-id Line-v0 --mode reward-release --unit transition "
            "--target-epsilon 0.9 --delta 1e-4",
            "protects one transition",
        ),
    ],
)
def test_algorithms_that_protect_no_people_are_refused(folder, capsys, command, why):
    given = ["--budget", str(folder / "people.budget"), "--numbers", str(folder / "numbers.txt")]
    out = ["--out", str(folder / "other")]
    assert why in refused(capsys, "train", *command.split(), *out, *given)
    assert not (folder / "other").exists()


def test_resuming_needs_the_budget_and_the_same_numbers(folder, capsys):
    longer = [*words(folder / "run", total_steps=64), "--resume"]
    assert "--budget PLACE --numbers FILE" in refused(capsys, *longer)
    both = ["--budget", str(folder / "people.budget"), "--numbers"]
    (folder / "others.txt").write_text("\n".join(map(str, range(20, 36))) + "\n")
    assert "other numbers" in refused(capsys, *longer, *both, str(folder / "others.txt"))
    error = refused(capsys, *longer, *both, str(folder / "numbers.txt"))
    assert "8 numbers of people are listed, and enrolment number 9 takes part" in error
    assert Ledger.open(folder / "run" / "ledger.sqlite").persons == 8


def test_a_run_that_has_charged_nobody_is_started_anew(folder, capsys):
    """A file of people may have got new ones in front since then; its numbers have not."""
    shared = {"budget": str(folder / "people.budget"), "numbers": folder / "numbers.txt"}
    config = sotto.DPPG(**SETTINGS | {"target_epsilon": 0.1})
    begin(algorithm_named("dppg"), config, folder / "begun", command="x", **shared)
    flags = words(folder / "begun", target_epsilon=0.1, **shared)
    assert "was charged, so nobody knows" in refused(capsys, *flags, "--resume")


def test_from_python(folder):
    given = {"budget": str(folder / "people.budget"), "numbers": folder / "numbers.txt"}
    settings = sotto.DPPG(**SETTINGS | {"target_epsilon": 0.5})
    run = sotto.train(settings, out=folder / "python", **given)
    assert run.certificate.epsilon == pytest.approx(0.5, rel=1e-3)
    with pytest.raises(BudgetExceeded):
        sotto.train(sotto.DPPG(**SETTINGS | {"target_epsilon": 1.6}), out=folder / "again", **given)


def test_commands_show_who_is_how_near(folder, capsys):
    place = folder / "people.budget"
    budget = SharedBudget.open(place)
    charge(product(budget, folder / "campaign").open_stream(statement(3.3)), 12, 99)
    shown = run_json(capsys, "budget", "show", str(place), "--most", "1")
    (nearest,) = shown["nearest"]
    assert (nearest["person"], nearest["streams"]) == (12, [0, 1])
    assert [one["refused"] for one in shown["streams"]] == [0, 0]
    assert (shown["people"], shown["head_hash"]) == (9, budget.head_hash)
    said = printed(capsys, "budget", "show", str(place))
    assert "(epsilon 2, delta 1e-06)-differentially private" in said
    assert "9 people took part" in said
    assert printed(capsys, "budget", "show", str(place), "--person", "99").startswith(
        "Person 99: epsilon 1.306"
    )
    assert run_json(capsys, "budget", "show", str(place), "--person", "99")["streams"] == [1]


def test_the_page_needs_nothing_else(folder, capsys):
    place, page = folder / "people.budget", folder / "page.html"
    assert main(["budget", "page", str(place), "--out", str(page)]) == 0
    assert page.stat().st_mode & 0o777 == 0o600  # it lists people's numbers
    text = page.read_text()
    found = standing(SharedBudget.open(place))
    assert found.head_hash in text
    assert all(f"<td>{one.person}</td>" in text for one in found.nearest)
    assert '<td>30 to 40%</td><td class="number">8</td>' in text
    assert not any(word in text for word in ("<script", "http:", "https:", "src=", "@import"))


def test_a_page_of_a_budget_that_nobody_shares_yet(tmp_path, capsys):
    place, page = tmp_path / "people.budget", tmp_path / "page.html"
    both = ["--other-epsilon", "0.5", "--other-delta", "1e-7"]
    assert main(["budget", "create", str(place), "--epsilon", "2", "--delta", "1e-6", *both]) == 0
    assert main(["budget", "page", str(place), "--out", str(page), "--json"]) == 0
    assert "No product shares this budget yet." in page.read_text()
    error = refused(capsys, "budget", "create", str(place), "--epsilon", "2", "--delta", "1e-6")
    assert "already" in error
