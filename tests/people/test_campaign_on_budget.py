"""Campaigns that share a budget with other products."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import printed, refused
from live import Live, started
from products import charge as charged
from products import product, statement
from small_campaign import MASTER, serve

from sotto.cli import main
from sotto.errors import RunError
from sotto.people import start
from sotto.people.campaign import open_campaign
from sotto.people.database.store import CampaignDatabase
from sotto.people.updater import Updater
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.certificates.derive import verify
from sotto.privacy.errors import BudgetExceeded, LedgerMismatch
from sotto.privacy.ledger.allowances import Allowance
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.ledger.shared import SharedBudget
from sotto.privacy.ledger.standing import person_standing
from sotto.runs.budgets import give_budget


@pytest.fixture
def budget(tmp_path: Path) -> SharedBudget:
    return SharedBudget.create(tmp_path / "people.budget", Allowance(epsilon=2.5, delta=1e-3))


@pytest.fixture
def live(tmp_path: Path, budget: SharedBudget):
    with started(tmp_path, budget=budget) as found:
        yield found


def test_a_budget_whose_delta_is_for_fewer_people_is_refused(tmp_path: Path) -> None:
    """Otherwise the campaign would stand still when so many people have come."""
    large = SharedBudget.create(tmp_path / "people.budget", Allowance(epsilon=2.5, delta=0.2))
    with (
        pytest.raises(RunError, match=r"needs .* or more, .* too many for the delta of 0\.2"),
        started(tmp_path, budget=large),
    ):
        pass


def people_of(live: Live) -> list[int]:
    """The people whom the campaign's ledger has charged."""
    blocks = [block for one in live.campaign.open_ledger().streams for block in one.persons.blocks]
    return [person for block in blocks for person in range(*block)]


def test_who_has_spent_the_budget_elsewhere_is_left_out_and_others_go_on(
    live, budget, tmp_path, caplog
):
    charged(product(budget, tmp_path / "training").open_stream(statement(2.0)), 0, 7)
    live.live(0, 1)
    assert live.updater.step()
    assert people_of(live) == [1]
    assert "1 contributions to release 0 were dropped: their people have spent" in caplog.text
    me = live.get(0, "/v1/me").json()
    assert (me["places"], me["cost"]) == ([{"release": 0, "state": "refused"}], None)
    assert live.post(0, "/v1/withdrawals", {}).json()["receipt"]["part_of_releases"] == []
    live.live(2, 3)
    assert live.updater.step()
    assert people_of(live) == [1, 2, 3]
    assert person_standing(budget, 0).streams == (1,)
    assert person_standing(budget, 2).epsilon == pytest.approx(2.0, rel=1e-4)
    assert verify(live.campaign.certificate, live.campaign.open_ledger()).status == "verified"
    other = product(budget, tmp_path / "later").open_stream(statement(2.0))
    with pytest.raises(BudgetExceeded, match=r"3 people over the shared budget \(1, 2, 3\)"):
        charged(other, 1, 2, 3, 4)


def test_a_person_whom_another_product_takes_at_the_last_moment(live, budget, tmp_path):
    """The campaign charges the shared budget before it begins, so nothing stops it later."""
    other = product(budget, tmp_path / "training").open_stream(statement(2.0))
    begin = live.store.__class__.begin

    def take(store, *arguments):
        with pytest.raises(BudgetExceeded):
            charged(other, 0)
        return begin(store, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(live.store.__class__, "begin", take)
        live.live(0, 1)
        assert live.updater.step()
    assert people_of(live) == [0, 1]


def test_a_release_of_people_who_are_all_refused_stays_open(live, budget, tmp_path):
    charged(product(budget, tmp_path / "training").open_stream(statement(2.0)), 0, 1)
    live.live(0, 1)
    live.updater.step()
    assert people_of(live) == []
    live.live(2, 3)
    assert live.updater.step()
    assert people_of(live) == [2, 3]


def test_an_updater_without_the_budget_releases_nothing(live, tmp_path, capsys):
    path = live.campaign.path
    live.live(0, 1)
    live.now += 31
    with pytest.raises(LedgerMismatch, match="give its place again: --budget PLACE"):
        Updater(open_campaign(path), lambda: live.now).step()
    assert people_of(live) == []
    assert "--budget PLACE" in refused(capsys, "campaign", "serve", str(path), "--port", "0")
    place = str(tmp_path / "people.budget")
    live.now += 31
    assert Updater(open_campaign(path, None, place), lambda: live.now).step()
    assert people_of(live) == [0, 1]


def test_settings_and_budget_belong_together(live, budget, tmp_path):
    settings = live.campaign.settings.model_copy(update={"campaign_id": "another"})
    with pytest.raises(RunError, match="name another shared budget"):
        start.create(tmp_path / "second", settings)
    assert not (tmp_path / "second").exists()
    alone = settings.model_copy(update={"shared_budget": None})
    assert alone.fingerprint != settings.fingerprint
    with pytest.raises(RunError, match="name another shared budget"):
        start.create(tmp_path / "second", alone, named_budget=str(tmp_path / "people.budget"))
    forged = replace(
        live.campaign, settings=live.campaign.settings.model_copy(update={"shared_budget": None})
    )
    with pytest.raises(ValueError, match="were changed after the campaign began"):
        Updater(forged)


def test_a_teachers_ledger_cannot_share_a_budget(tmp_path):
    with pytest.raises(ValueError, match="cannot share a budget of people"):
        give_budget(AnswerLedger.__new__(AnswerLedger), str(tmp_path / "people.budget"))


# --- people under the operator's numbers ---------------------------------------------------------


def test_people_enrol_under_given_numbers_in_any_order(make, where):
    store = make()
    other = CampaignDatabase.open(where, "campaign", MASTER)
    first = store.enrol_numbers([40, 7])
    known = other.known_tokens()
    assert [known.holder(token) for token in first] == ["40", "7"]
    (late,) = store.enrol_numbers([3])
    (new,) = [store.replace_token(40)]
    known = other.known_tokens()
    assert [known.holder(token) for token in (*first, late, new)] == [None, "7", "3", "40"]
    assert store.enrolled == {3, 7, 40}
    for wrong in ([3], [5, 5], [-1], [2**31], []):
        with pytest.raises(ValueError, match=r"enrol people under|list each new person once"):
            store.enrol_numbers(wrong)
    assert serve(store, 7).slot == 0
    other.close()


def test_commands_enrol_people_by_number(live, tmp_path, capsys):
    path = str(live.campaign.path)
    (numbers := tmp_path / "numbers.txt").write_text("70\n60\n")
    tokens = printed(capsys, "campaign", "invite", path, "--numbers", str(numbers)).split()
    assert [live.store.authenticate(token) for token in tokens] == ["70", "60"]
    for wrong in (["invite", path, "3"], ["withdraw", path, "59"], ["replace-token", path, "59"]):
        error = refused(capsys, "campaign", *wrong)
        assert "--numbers FILE" in error or "has no person 59" in error
    assert main(["campaign", "withdraw", path, "60"]) == 0


def test_the_dashboard_enrols_nobody_without_a_number(live):
    token = live.campaign.operator.renew()
    said = live.http.post(
        "/v1/people", json={"count": 1}, headers={"Authorization": f"Bearer {token}"}
    )
    assert said.status_code == 422, said.text
    assert "invite --numbers" in said.text


def test_a_campaign_of_its_own_takes_no_budget(tmp_path, budget):
    with started(tmp_path) as alone:
        numbers = str(tmp_path / "numbers.txt")
        Path(numbers).write_text("1\n")
        assert main(["campaign", "invite", str(alone.campaign.path), "--numbers", numbers]) == 2
        ledger = Ledger.open(alone.campaign.ledger_place)
        with pytest.raises(LedgerMismatch, match="began without a shared budget"):
            give_budget(ledger, str(tmp_path / "people.budget"))
        assert np.array(budget.account().people).size == 0
