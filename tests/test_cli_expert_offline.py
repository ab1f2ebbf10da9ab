"""`sotto train expert-offline`: what its help says, and experts that were trained for it."""

from dataclasses import replace
from pathlib import Path

import pytest
from commands import printed, refused, run_json

from sotto.algorithms.experts import population as experts
from sotto.algorithms.experts.recipes import recipe
from sotto.cli import main
from sotto.privacy.ledger.ledger import Ledger

TINY = (
    *("--queries", "4", "--rounds", "2", "--lanes", "2", "--rollout-cap", "10"),
    *("--gradient-steps", "10", "--hidden", "8", "--student-hidden", "8", "--minibatch", "8"),
    *("--evaluation-cap", "20", "--evaluation-episodes", "2"),
)


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve experts, hardly trained."""

    def short(env_id, hidden):
        how = recipe(env_id, hidden)
        return replace(how, ppo=replace(how.ppo, num_epochs=1), stops=(1,), cap=10)

    out = tmp_path_factory.mktemp("experts") / "cartpole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts, "recipe", short)
        given = ("--experts", "12", "--hidden", "8", "--workers", "1", "--out", str(out), "--json")
        assert main(["experts", "train", *given]) == 0
    return out


def test_help_names_methods_and_says_what_is_protected(capsys) -> None:
    said = " ".join(printed(capsys, "train", "expert-offline", "--help").split())
    for word in ("--target-epsilon", "--voters", "stable-prefix", "clones", "--public-share"):
        assert word in said


@pytest.mark.parametrize("given", ["folder", "file"])
def test_votes_of_trained_experts_read_no_log(
    capsys, population: Path, tmp_path: Path, given: str
) -> None:
    out = tmp_path / "run"
    where = population if given == "folder" else population / "experts.npz"
    arguments = ("--experts", str(where), "--target-epsilon", "8", "--out", str(out), "--json")
    assert main(["train", "expert-offline", *arguments, *TINY]) == 0
    certificate = run_json(capsys, "certificate", str(out))
    assert certificate["status"] == "proved"
    assert any("logged returns" in line for line in certificate["protects"])
    assert any("noisy votes of experts" in line for line in certificate["does_not_protect"])


def test_a_dataset_that_is_not_there_is_refused_even_where_it_is_not_read(
    capsys, population: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    given = ("--experts", str(population), "--dataset", "nowhere", "--target-epsilon", "8")
    said = refused(capsys, "train", "expert-offline", *given, "--out", str(out), *TINY)
    assert "There is no Minari dataset 'nowhere'" in said
    assert "which `sotto import` makes from a log" in said
    assert not out.exists()


def test_stable_prefixes_say_what_is_in_the_clear(capsys, population: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    common = ("--experts", str(population), "--method", "prefix-only", "--prefix-rule", "consensus")
    given = ("--releases", "1", "--target-epsilon", "60", "--out", str(out), "--json")
    assert main(["train", "expert-offline", *common, *given, *TINY]) == 0
    assert [one.releases for one in Ledger.open(out / "ledger.sqlite").streams] == [1]
    said = " ".join(printed(capsys, "certificate", str(out)).split()).lower()
    assert (
        "states, rewards and dynamics in released prefixes. they are released without noise" in said
    )
    assert "all experts act in the same mdp" in said


def test_another_kind_of_run_is_not_resumed(capsys, population: Path, tmp_path: Path) -> None:
    arguments = ["train", "expert-offline", "--out", str(tmp_path / "nothing"), "--resume"]
    assert "there is no run" in refused(capsys, *arguments)
