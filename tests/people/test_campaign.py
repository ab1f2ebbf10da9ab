"""A campaign from its first person to its certificate, over HTTP."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from live import SLOTS, STEPS, UPDATES, Live, World, config, refused, started

from sotto.cli import main
from sotto.people import campaign as campaigns
from sotto.people import start
from sotto.people.campaign import Terms
from sotto.people.client import CampaignRefused, Person
from sotto.people.database.store import CampaignDatabase
from sotto.people.plan import CampaignPlan
from sotto.people.units import written_update
from sotto.people.updater import Updater
from sotto.privacy.audits.audit import ReleaseTrials, audit_mechanism
from sotto.privacy.certificates.derive import derive, verify
from sotto.privacy.certificates.model import Certificate
from sotto.privacy.ledger.ledger import Ledger
from sotto.privacy.statements import Part
from sotto.runs import marks


def ledger_of(live: Live) -> Ledger:
    return Ledger.open(live.campaign.ledger_place, live.campaign.settings.campaign_id)


def charged(live: Live) -> list[int]:
    """Numbers of the people who were charged, in increasing order for each stream."""
    found = []
    for stream in ledger_of(live).streams:
        for block in stream.persons.blocks:
            found += range(block.start, block.stop)
    return found


def parameters(live: Live) -> np.ndarray:
    policy = live.get(0, "/v1/policy").json()
    return np.concatenate([np.ravel(layer["weights"]) for layer in policy["layers"]])


def test_nobody_is_sent_to_another_address(live):
    for path in ("/me/", "/v1/contributions/"):
        refused(live.post(0, path, {}), 404, "not-found")


# --- the whole campaign --------------------------------------------------------------------------


def test_a_campaign_from_start_to_certificate(live):
    before = parameters(live)
    for update in range(UPDATES):
        first = update * SLOTS
        live.live(first)
        assert not live.updater.step()  # a place is free
        live.live(first + 1)
        assert live.updater.step()
        assert live.get(0, "/v1/campaign").json()["version"] == update + 1
    assert np.abs(parameters(live) - before).max() > 0
    assert charged(live) == list(range(SLOTS * UPDATES))
    found = derive(ledger_of(live))
    assert (found.status, found.delta) == ("proved", 1e-3)
    assert 1.9 < found.epsilon <= 2
    assert verify(live.campaign.certificate, ledger_of(live)).status == "verified"
    refused(live.post(11, "/v1/places", {}), 410, "finished")
    assert live.get(0, "/v1/campaign").json()["state"] == "finished"
    said = json.dumps(live.get(0, "/v1/certificate").json())
    for claim in ("joint", "sees-trajectories", "participation", "own-world", "one-token"):
        assert f"people.{claim}" in said
    me = live.get(0, "/v1/me").json()
    assert me["places"] == [{"release": 0, "state": "released"}]
    assert me["cost"]["epsilon"] == 2
    assert live.get(11, "/v1/me").json()["cost"] is None


@pytest.mark.parametrize("left", ["nothing", "the one before"])
def test_a_certificate_that_is_missing_is_written_again(live, left):
    """As where the version was published on another machine."""
    live.live(0, 1)
    live.updater.step()
    before = live.campaign.certificate.read_bytes()
    live.live(2, 3)
    live.updater.step()
    live.campaign.certificate.write_bytes(before)
    if left == "nothing":
        live.campaign.certificate.unlink()
    updater = live.new_updater()
    live.now += 31  # the lease of the first updater ends
    assert not updater.step()
    assert verify(live.campaign.certificate, ledger_of(live)).status == "verified"


def test_a_certificate_is_on_disk_before_its_version_is_published(live, monkeypatch):
    """Otherwise a kill between both leaves nothing that reveals an older ledger."""
    finish, seen = CampaignDatabase.finish, []

    def noted(store, release, *more, **how):
        seen.append((release, marks.of_certificate(live.campaign.certificate).charges))
        return finish(store, release, *more, **how)

    monkeypatch.setattr(CampaignDatabase, "finish", noted)
    for release in range(2):
        live.live(2 * release, 2 * release + 1)
        live.updater.step()
    assert seen == [(0, 1), (1, 2)]


def test_a_full_disk_delays_the_publication(live, monkeypatch):
    live.live(0, 1)

    def full(*_args, **_how):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Certificate, "write", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                live.updater.step()
        assert live.store.version() == 0
    assert live.updater.step()
    assert live.store.version() == 1
    assert live.store.counts().made == 1  # it was not lost
    assert verify(live.campaign.certificate, ledger_of(live)).status == "verified"


def test_the_command_verifies_the_certificate(live, capsys):
    live.live(0, 1)
    assert live.updater.step()
    assert main(["certificate", str(live.campaign.path), "--verify"]) == 0
    assert "is verified" in capsys.readouterr().out
    text = live.campaign.certificate.read_text()
    live.campaign.certificate.write_text(text.replace('"persons": 2', '"persons": 1'))
    assert main(["certificate", str(live.campaign.path), "--verify"]) == 2


def test_empty_slots_and_stragglers(live):
    live.live(0)
    live.person(1).take_place()
    live.now = 59 * 60
    assert not live.updater.step()
    live.now = 61 * 60  # the second place has expired, and is free for others
    assert not live.updater.step()
    refused(live.post(1, "/v1/places", {}), 409, "no-place")
    live.now = 24 * 3600 + 1  # the release closes although a place is free
    assert live.updater.step()
    assert charged(live) == [0]
    place = live.post(1, "/v1/places", {}).json()
    assert place["release"] == 1  # an expired place is not a participation
    live.now += 24 * 3600 + 1
    assert not live.updater.step()  # nobody gave, and nothing is released
    assert charged(live) == [0]
    assert live.get(0, "/v1/campaign").json()["version"] == 1


# --- once, in time, and not after withdrawing ----------------------------------------------------


def test_a_contribution_is_used_once(live):
    with live.person(0) as one:
        one.live(World())
        assert one.give_again() == {"kept": True, "repeated": True}
        with pytest.raises(CampaignRefused, match="taken part") as error:
            one.take_place()
    assert error.value.code == "took-part"
    live.live(1)
    assert live.updater.step()
    assert charged(live) == [0, 1]
    with live.person(0) as one, pytest.raises(CampaignRefused):
        one.take_place()


def test_another_contribution_for_the_same_place_is_refused(live):
    place = live.post(0, "/v1/places", {}).json()["place"]
    trajectory = {
        "place": place,
        "observations": [[0, 0]] * 2,
        "actions": [1],
        "rewards": [1],
        "terminated": False,
    }
    assert live.post(0, "/v1/contributions", trajectory).json()["repeated"] is False
    refused(
        live.post(0, "/v1/contributions", trajectory | {"rewards": [0]}),
        409,
        "contribution-conflict",
    )
    refused(live.post(1, "/v1/contributions", trajectory), 404, "unknown-place")


def test_after_withdrawing_nothing_is_used(live):
    live.live(0, 1)
    receipt = live.post(0, "/v1/withdrawals", {}).json()["receipt"]
    assert receipt == {"person": 0, "deleted_from_releases": [0], "part_of_releases": []}
    assert not live.updater.step()  # the place is free for another person
    live.now += 24 * 3600
    assert live.updater.step()
    assert charged(live) == [1]
    late = live.post(1, "/v1/withdrawals", {}).json()
    assert late["receipt"]["part_of_releases"] == [0]
    assert "not refunded" in late["meaning"]
    for number in (0, 1):
        refused(live.post(number, "/v1/places", {}), 403, "withdrew")
    assert live.get(0, "/v1/me").json()["withdrew"] is True


def test_what_comes_for_an_old_version_is_dropped(live):
    place = live.post(0, "/v1/places", {}).json()["place"]
    live.live(1)
    live.now = 2 * 24 * 3600
    assert live.updater.step()
    trajectory = {
        "place": place,
        "observations": [[0, 0]] * 2,
        "actions": [1],
        "rewards": [1],
        "terminated": False,
    }
    refused(live.post(0, "/v1/contributions", trajectory), 409, "place-closed")
    assert charged(live) == [1]


# --- death of the updater ------------------------------------------------------------------------


def test_a_release_that_was_charged_and_lost_is_not_made_again(live, monkeypatch):
    live.live(0, 1)
    monkeypatch.setattr(live.updater._store, "finish", lambda *_a, **_k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        live.updater.step()
    before = parameters(live)
    assert charged(live) == [0, 1]
    live.now += 31  # the lease of the dead process ends
    again = live.new_updater()
    assert again.step()
    assert live.store.counts().lost == 1
    np.testing.assert_array_equal(parameters(live), before)
    assert live.get(0, "/v1/me").json()["places"] == [{"release": 0, "state": "lost"}]
    refused(live.post(0, "/v1/places", {}), 403, "took-part")
    live.live(2, 3)
    assert again.step()
    assert charged(live) == [0, 1, 2, 3]
    assert np.abs(parameters(live) - before).max() > 0
    assert verify(live.campaign.certificate, ledger_of(live)).status == "verified"


def test_one_updater_at_a_time(live):
    live.live(0, 1)
    other = live.new_updater()
    assert live.updater.step()
    live.live(2, 3)
    assert not other.step()  # the first one has the lease
    live.now += 31
    assert other.step()  # and lost it
    assert charged(live) == [0, 1, 2, 3]


def test_people_who_come_back_are_priced_by_the_rule(tmp_path):
    changes = {"participations": 2, "min_separation": 2, "correlated_noise": False}
    with started(tmp_path, **changes) as live:
        live.live(0, 1)
        live.updater.step()
        refused(live.post(0, "/v1/places", {}), 403, "took-part")  # too early
        live.live(2, 3)
        live.updater.step()
        live.now += 31
        updater = live.new_updater()  # goes on in the same stream
        live.live(0, 4)
        assert updater.step()
        refused(live.post(0, "/v1/places", {}), 403, "took-part")
        assert len(ledger_of(live).streams) == 1
        assert derive(ledger_of(live)).epsilon <= 2


# --- where actions are chosen, and what is given -------------------------------------------------


def test_the_service_chooses_actions_and_recomputes_them(tmp_path):
    with started(tmp_path, Terms(acts="server")) as live:
        place = live.post(0, "/v1/places", {}).json()["place"]
        asked = {"place": place, "step": 0, "observation": [0.3, -0.2]}
        action = live.post(0, "/v1/actions", asked).json()["action"]
        again = [live.post(0, "/v1/actions", asked).json()["action"] for _ in range(5)]
        assert again == [action] * 5
        refused(live.post(1, "/v1/actions", asked), 404, "unknown-place")
        refused(live.post(0, "/v1/actions", asked | {"step": STEPS}), 422, "bad-contribution")
        refused(live.post(0, "/v1/actions", asked | {"observation": [1]}), 422, "bad-contribution")
        given = {
            "place": place,
            "observations": [[0.3, -0.2], [0, 0]],
            "rewards": [1],
            "terminated": True,
        }
        lies = given | {"actions": [1 - action]}
        refused(live.post(0, "/v1/contributions", lies), 422, "bad-contribution")
        assert live.post(0, "/v1/contributions", given).json()["kept"]
        live.live(1)
        assert live.updater.step()


@pytest.mark.parametrize("acts", ["device", "server"])
def test_people_are_told_who_reads_the_observations_that_ask_for_actions(tmp_path, acts):
    with started(tmp_path, Terms(acts=acts)) as live:
        place = live.post(5, "/v1/places", {}).json()["place"]
        if acts == "server":
            asked = {"place": place, "step": 0, "observation": [0.3, -0.2]}
            assert live.post(5, "/v1/actions", asked).status_code == 200
        live.now += 1e5  # this person gives nothing
        live.updater.step()
        collected = live.get(5, "/v1/me").json()["collected"]
        adversary = live.get(5, "/v1/campaign").json()["privacy"]["adversary"]
        assert ("each observation, also if you then give nothing" in collected) == (
            acts == "server"
        )
        assert ("as it comes and later from a copy" in adversary) == (acts == "server")
        live.live(0, 1)
        assert live.updater.step()
        said = [one["claim"] for one in live.get(0, "/v1/certificate").json()["claims"]]
        assert ("people.sees-observations" in said) == (acts == "server")
        assert verify(live.campaign.certificate, ledger_of(live)).status == "verified"


def test_a_campaign_goes_on_whose_certificate_did_not_say_who_reads_observations(
    tmp_path, monkeypatch
):
    today = CampaignPlan.release

    def earlier(plan, horizon):
        made = today(plan, horizon)
        said = [one for one in made.does_not_protect if "as it comes" not in one]
        return replace(made, does_not_protect=tuple(said))

    monkeypatch.setattr(CampaignPlan, "release", earlier)
    with started(tmp_path, Terms(acts="server"), correlated_noise=False) as live:
        live.live(0, 1)
        assert live.updater.step()
        monkeypatch.setattr(CampaignPlan, "release", today)
        live.now += 31
        updater = live.new_updater()
        live.live(2, 3)
        assert updater.step()
        found = ledger_of(live)
        assert [one.releases for one in found.streams] == [2]
        assert derive(found).status == "proved"
        assert verify(live.campaign.certificate, ledger_of(live)).status == "verified"


def test_a_device_may_give_updates(tmp_path):
    with started(tmp_path, Terms(gives="update")) as live:
        plan = CampaignPlan(live.campaign)
        size = sum(leaf.size for leaf in jax.tree.leaves(plan.first.policy))
        for number in range(SLOTS):
            with live.person(number) as one:
                place = one.take_place()["place"]
                update = written_update(np.full(size, 1e5))  # far beyond the clip norm
                one._ask("POST", "v1/contributions", {"place": place, "update": update})
        assert live.updater.step()
        said = json.dumps(live.get(0, "/v1/certificate").json())
        assert "people.sees-updates" in said
        assert "people.sees-trajectories" not in said


# --- who may do what -----------------------------------------------------------------------------


def test_tokens_decide(live):
    token = live.campaign.operator.renew()
    operator = {"Authorization": f"Bearer {token}"}
    refused(live.http.get("/v1/me"), 401, "unknown-token")
    refused(live.http.get("/v1/me", headers=operator), 403, "not-a-person")
    refused(live.get(0, "/v1/operator"), 403, "not-the-operator")
    refused(live.post(0, "/v1/people", {"count": 1}), 403, "not-the-operator")
    live.live(0)
    found = live.http.get("/v1/operator", headers=operator).json()
    assert found["people"] == {"enrolled": 12, "took_part": 0, "withdrew": 0}
    assert found["release"]["given"] == 1
    assert (found["budget"]["spent"], found["budget"]["planned"]) == (0, 2)
    assert found["health"]["updater"] == "absent"
    live.updater.step()
    found = live.http.get("/v1/operator", headers=operator).json()
    assert found["health"] == {"updater": "working", "last_update_seconds": None}
    live.live(1)
    live.updater.step()
    live.now += 5
    found = live.http.get("/v1/operator", headers=operator).json()
    assert found["health"]["last_update_seconds"] == 5
    new = live.http.post("/v1/people", json={"count": 2}, headers=operator).json()["tokens"]
    with Person(live.url, new[1]) as one:
        assert one.me()["person"] == 13


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "not-json"),
        (b"[]", 400, "not-json"),
        (b'{"place": NaN}', 400, "not-json"),
        (b'{"place": 3}', 422, "bad-contribution"),
        (b"{}", 422, "bad-contribution"),
        (b'{"place": "' + b"x" * 200_000 + b'"}', 413, "body-too-large"),
    ],
)
def test_wrong_bodies_are_one_sentence(live, body, status, code):
    headers = live.headers(0) | {"Content-Type": "application/json"}
    answer = live.http.post("/v1/contributions", content=body, headers=headers)
    refused(answer, status, code)
    assert "\n" not in answer.json()["message"]


def test_pages_and_description_need_no_token_and_load_nothing_from_elsewhere(live):
    for path in ("/", "/me", "/play", "/client.js", "/style.css"):
        answer = live.http.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    paths = live.http.get("/openapi.json").json()["paths"]
    assert {"/v1/places", "/v1/contributions", "/v1/withdrawals"} <= set(paths)
    assert live.http.get("/healthz").json() == {"status": "ok"}


# --- the release ---------------------------------------------------------------------------------


def test_an_audit_of_the_release_stays_below_its_certificate(tmp_path):
    """The worst person gives the largest update; the door clips it."""
    settings = campaigns.new_settings(
        "test", _spaces(), config(total_steps=SLOTS * STEPS), Terms(gives="update"), None
    )
    campaign = start.create(tmp_path / "campaign", settings)
    plan = CampaignPlan(campaign)

    def inputs(present: bool):
        worst = jax.tree.map(lambda x: np.full(x.shape, 1e5, np.float32), plan.unit)
        units = jax.tree.map(lambda a, b: np.stack([a, b])[None], worst, plan.unit)
        return np.array([[0 if present else -1, 1]]), units

    def observe(log) -> np.ndarray:
        return np.asarray(log["update_norm"], float).reshape(-1, 1)

    release = plan.release(1)
    trials = ReleaseTrials(release, plan.first, inputs, observe)
    certified = trials.certified_epsilon(1e-3)
    assert certified == pytest.approx(2.0, rel=0.05)
    assert not audit_mechanism(trials, 300, 0, 1e-3, certified_epsilon=certified).refuted

    def seen(noise_multiplier: float) -> ReleaseTrials:
        """The same release with another noise multiplier, and a server that shows its sum."""
        part = Part(clip_norm=release.parts["policy"].clip_norm, noise_multiplier=noise_multiplier)

        def server(state, released):
            after, _ = release.server(state, released)
            return after, sum(jnp.sum(leaf) for leaf in jax.tree.leaves(released))

        changed = replace(release, parts={"policy": part}, server=server)
        along_the_worst = lambda log: np.asarray(log, float).reshape(-1, 1)  # noqa: E731
        return ReleaseTrials(changed, plan.first, inputs, along_the_worst)

    stated = release.parts["policy"].noise_multiplier
    for multiplier, is_too_small in ((stated, False), (stated / 6, True)):
        found = audit_mechanism(seen(multiplier), 400, 0, 1e-3, certified_epsilon=certified)
        assert found.refuted == is_too_small


def _spaces():
    from live import SPACES

    return SPACES


def test_the_answer_to_a_contribution_does_not_depend_on_it(live):
    """Acknowledgements are equal for the dullest and the most unusual trajectory."""
    said = []
    for number, (seen, reward) in enumerate([(0.0, 0.0), (1e6, -1e6)]):
        place = live.post(number, "/v1/places", {}).json()["place"]
        count = 1 if number == 0 else STEPS
        given = {
            "place": place,
            "observations": [[seen, seen]] * (count + 1),
            "actions": [number] * count,
            "rewards": [reward] * count,
            "terminated": bool(number),
        }
        answer = live.post(number, "/v1/contributions", given)
        said.append((answer.status_code, answer.content))
    assert said[0] == said[1]
    assert jnp.isfinite(jnp.asarray(parameters(live))).all()
    assert isinstance(live.updater, Updater)
