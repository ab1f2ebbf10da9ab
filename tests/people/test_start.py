"""`sotto campaign start`: its flags, and what it makes of them."""

import re
from pathlib import Path

import pytest
from commands import printed, refused

from sotto.algorithms.dppg.config import DPPGConfig
from sotto.cli import main
from sotto.cli.live.campaign import _HIDDEN
from sotto.people.campaign import FIXED, open_campaign


@pytest.fixture
def spaces(tmp_path: Path) -> str:
    file = tmp_path / "spaces.json"
    file.write_text('{"observations": 2, "actions": 2}')
    return str(file)


def test_help_lists_no_flag_that_is_refused(capsys):
    said = printed(capsys, "campaign", "start", "--help")
    listed = set(re.findall(r"^[│ ] --(?:no-)?([a-z-]+)", said, re.MULTILINE))
    shown = {name.replace("_", "-") for name in vars(DPPGConfig(target_epsilon=1.0))}
    hidden = {name.replace("_", "-") for name in _HIDDEN}
    assert shown - listed == hidden
    assert {"spaces", "fixed-times", "target-epsilon"} <= listed
    assert not hidden & listed


@pytest.mark.parametrize("name", _HIDDEN)
def test_hidden_flags_are_refused_in_a_sentence(tmp_path, spaces, capsys, name):
    path, flag = tmp_path / "campaign", f"--{name.replace('_', '-')}"
    error = refused(capsys, "campaign", "start", str(path), "--spaces", spaces, flag, "2")
    assert error.startswith(f"sotto: {flag} is not a setting of a campaign: ")
    assert not path.exists()


@pytest.mark.parametrize("flag", ["--updates", "--users-per-update", "--steps-per-user"])
def test_nothing_of_a_number_is_refused_by_its_name(tmp_path, spaces, capsys, flag):
    path = tmp_path / "campaign"
    error = refused(capsys, "campaign", "start", path, "--spaces", spaces, flag, "0")
    error = error.replace("_", "-")
    assert f"{flag.removeprefix('--')} must be at least 1" in error
    assert not path.exists()


def test_what_is_started_is_what_was_asked_for(tmp_path, spaces, capsys):
    path = tmp_path / "campaign"
    terms = ["--release-minutes", "60", "--fixed-times", "--place-minutes", "5"]
    learning = ["--users-per-update", "2", "--steps-per-user", "3", "--delta", "1e-3"]
    call = ["campaign", "start", str(path), "--spaces", spaces, "--updates", "4"]
    assert main([*call, *terms, *learning]) == 0
    campaign = open_campaign(path)
    assert {name: getattr(campaign.config, name) for name in FIXED} == {
        name: value for name, (value, _) in FIXED.items()
    }
    assert (campaign.config.num_updates, campaign.config.total_steps) == (4, 24)
    rules = campaign.open_store().rules
    assert (rules.release_seconds, rules.place_seconds, rules.fixed_times) == (3600, 300, True)


def test_simulated_people_do_not_wait_for_a_campaign_that_is_not_there(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("sotto.cli.live.simulate._FIRST_SECONDS", 0.1)
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("a b c")
    error = refused(capsys, "simulate", "people", "http://127.0.0.1:1", "--tokens", str(tokens))
    assert "http://127.0.0.1:1" in error
