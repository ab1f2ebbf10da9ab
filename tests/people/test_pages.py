"""The pages of a campaign in a real browser, used by the keyboard, against a campaign in memory."""

import json
import re
import tomllib
from importlib import resources
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from fake_campaign import BALANCING, OPERATOR, STATE, FakeCampaign, Refused, served

FOLDER = resources.files("sotto").joinpath("people", "pages")
GIVEN = "document.getElementById('message').textContent.includes('is stored')"
SAYS = "document.getElementById('message').textContent"


def posts(campaign: FakeCampaign, path: str) -> list[dict]:
    return [body for method, asked, body in campaign.asked if (method, asked) == ("POST", path)]


# --- the game ------------------------------------------------------------------------------------


def as_gymnasium_would(given: dict) -> None:
    """Every transition, reward and end of a trajectory is that of CartPole-v1."""
    env = gymnasium.make("CartPole-v1").unwrapped
    seen = np.array(given["observations"])
    assert seen.shape == (len(given["actions"]) + 1, 4)
    assert np.abs(seen[0]).max() <= 0.05
    assert len(set(np.abs(seen[0]))) == 4
    for t, action in enumerate(given["actions"]):
        env.reset()
        env.state = seen[t]
        after, reward, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(after, seen[t + 1], atol=1e-5)
        assert (reward, terminated) == (
            given["rewards"][t],
            given["terminated"] and t == len(given["actions"]) - 1,
        )


@pytest.mark.parametrize("still", [True, False], ids=["still", "animated"])
def test_a_visitor_plays_and_gives_what_happened(visit, still):
    page, campaign = visit("/play", still=still)
    page.press("play")
    page.until(GIVEN)
    (given,) = posts(campaign, "contributions")
    as_gymnasium_would(given)
    assert len(given["actions"]) == 60  # the campaign's most steps: the policy balances
    assert given["terminated"] is False
    page.run("document.getElementById('sent').open = true")
    assert "61 observations of 4 numbers, 60 actions" in page.text("sent-what")
    shown = json.loads(page.text("sent-text"))
    assert shown | {"place": "place-0"} == given
    assert page.text("play") == "Play again"
    assert page.text("version") == "Policy version 3"


DOSING = {"spaces": {"observations": 9, "actions": {"low": [0.0], "high": [10.0]}}, "steps": 200}
STEADY = {
    **{"version": 3, "activation": "tanh", "distribution": "gaussian"},
    "layers": [{"weights": [[0.0]] * 9, "bias": [0.0]}],
    **{"observation_scale": [1.0] * 9, "observation_centre": None},
    **{"log_std": [-1.0], "action_scale": [2.0], "action_centre": [3.0]},
}


def test_the_spaces_of_dosing_are_played_as_dosing(visit):
    page, campaign = visit("/play", facts=DOSING, policy=STEADY)
    assert "chooses insulin for a simulated person" in page.text("about")
    page.press("play")
    page.until(GIVEN)
    (given,) = posts(campaign, "contributions")
    seen, doses = np.array(given["observations"]), np.array(given["actions"])
    assert (seen.shape, doses.shape, given["terminated"]) == ((144, 9), (143, 1), False)
    assert 2.6 < doses.mean() < 3.4
    assert 0.4 < doses.std() < 1.1  # 2 exp(-1) = 0.74
    np.testing.assert_array_equal(seen[1:, 7], seen[:-1, 0])  # the glucose before
    near = 1 - np.tanh(0.1 * np.abs(seen[1:, 0] - 80) / 0.7) ** 2
    outside = (seen[1:, 0] < 65) | (seen[1:, 0] > 105)
    np.testing.assert_allclose(given["rewards"], np.where(outside, -1, near), atol=1e-4)
    page.run("document.getElementById('sent').open = true")
    assert "144 observations of 9 numbers, 143 actions" in page.text("sent-what")
    drawn = page.run("document.getElementById('picture').getContext('2d')"
                     ".getImageData(0, 0, 400, 200).data.some((v) => v > 0)")  # fmt: skip
    assert drawn is True


def test_a_pole_that_falls_ends_the_trajectory(visit):
    layers = [{"weights": [[0, 0]] * 4, "bias": [0, 50]}]  # always to the right
    page, campaign = visit("/play", policy=BALANCING | {"layers": layers})
    page.press("play")
    page.until(GIVEN)
    (given,) = posts(campaign, "contributions")
    as_gymnasium_would(given)
    assert given["terminated"] is True
    assert set(given["actions"]) == {1}
    assert 7 < len(given["actions"]) < 13


def test_another_trajectory_takes_another_place_until_there_is_none(visit):
    page, campaign = visit("/play")
    for number in (1, 2):
        page.press("play")
        page.until(f"{GIVEN} && document.getElementById('steps').textContent === '60 steps'")
        page.until("!document.getElementById('play').disabled")
        assert len(campaign.kept) == number
        page.run(f"{SAYS} = ''")
    page.press("play")
    page.until(f"{SAYS}.includes('You took part as often as anybody may; thank you.')")
    first, second = posts(campaign, "contributions")
    assert first["observations"][0] != second["observations"][0]
    assert campaign.unchanged == 1  # the same policy is not sent twice


def test_the_service_may_choose_the_actions(visit):
    page, campaign = visit("/play", facts={"acts": "server", "steps": 9})
    page.press("play")
    page.until(GIVEN)
    (given,) = posts(campaign, "contributions")
    as_gymnasium_would(given)
    asked = posts(campaign, "actions")
    assert [one["step"] for one in asked] == [*range(9)]
    assert [one["observation"] for one in asked] == given["observations"][:-1]
    assert {one["place"] for one in asked} == {"place-0"}
    assert "policy" not in [path for _, path, _ in campaign.asked]


@pytest.mark.parametrize("path", ["places", "policy", "contributions"])
@pytest.mark.parametrize("fault", ["lost", "away"])
def test_a_request_without_a_response_is_sent_again_as_it_was(visit, path, fault):
    page, campaign = visit("/play", faults={path: [fault, fault]})
    page.press("play")
    page.until(GIVEN)
    sent = [body for _, asked, body in campaign.asked if asked == path]
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]
    assert len(campaign.kept) == len(campaign.places) == 1


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("away", "The store is away; try again later."),
        ("lost", "The service cannot be reached; check the connection, and try again."),
    ],
)
def test_a_trajectory_that_cannot_be_sent_waits_for_the_visitor(visit, fault, why):
    page, campaign = visit("/play", faults={"contributions": [fault] * 4})
    page.press("play")
    page.until("document.getElementById('play').textContent === 'Send again'")
    assert page.text("message") == why
    page.press("play")
    page.until(GIVEN)
    sent = posts(campaign, "contributions")
    assert len(sent) == 5
    assert all(body == sent[0] for body in sent)
    assert len(posts(campaign, "places")) == 1


def test_a_refused_trajectory_is_dropped(visit):
    closed = Refused(409, "place-closed", "this place is closed; take another one")
    page, campaign = visit("/play", faults={"contributions": [closed]})
    page.press("play")
    page.until(f"{SAYS}.includes('This place is closed')")
    assert page.text("play") == "Play again"
    page.press("play")
    page.until(GIVEN)
    assert len(posts(campaign, "places")) == 2


def test_a_place_is_not_played_with_another_version(visit):
    page, campaign = visit("/play", policy=BALANCING | {"version": 4})
    page.press("play")
    page.until(f"{SAYS} === 'A new policy came out in this moment; press Play again.'")
    assert posts(campaign, "contributions") == []


def test_it_says_when_to_come_back(visit):
    full = Refused(409, "no-place", "all places are taken", retry_after="300")
    page, campaign = visit("/play", faults={"places": [full]})
    page.press("play")
    page.until(f"{SAYS} === 'All places are taken. Try again in 5 minutes.'")
    assert len(posts(campaign, "places")) == 1


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"spaces": {"observations": 3, "actions": 2}}, "nor those of Dosing"),
        ({"spaces": {"observations": 4, "actions": 3}}, "nor those of Dosing"),
        ({"spaces": {"observations": 9, "actions": {"low": [0], "high": [9]}}}, "nor those of"),
        ({"gives": "update"}, "give updates"),
        ({"state": "finished"}, "is finished"),
    ],
)
def test_what_cannot_be_played_is_said(visit, facts, why):
    page, _ = visit("/play", facts=facts)
    assert why in page.text("message")
    assert page.run("document.getElementById('play').offsetParent") is None


# --- a person's own page -------------------------------------------------------------------------


def test_a_person_sees_their_part_and_withdraws(visit):
    places = [{"id": "a", "release": 1, "state": "released"}]
    places += [{"id": "b", "release": 4, "state": "given"}]
    page, campaign = visit("/me", places=places)
    assert "person 12 of the campaign “balance”" in page.text("who")
    assert page.text("collected") == "The campaign collects one trajectory for each place you take."
    assert "epsilon 1.25 at delta 1e-5" in page.text("cost")
    assert "Epsilon 4 at delta 1e-5" in page.text("promise")
    assert re.findall(r"(\d)\s+(released|given)", page.text("places")) == [
        ("1", "released"),
        ("4", "given"),
    ]
    page.press("withdraw")
    page.press("stay")
    page.press("withdraw")
    page.key("Escape")
    assert posts(campaign, "withdrawals") == []
    page.press("withdraw")
    page.press("leave")
    page.until("!document.getElementById('receipt').hidden")
    page.until("document.getElementById('places').innerText.includes('withdrawn')")
    assert page.text("meaning") == "The contribution of release 4 was deleted."
    assert json.loads(page.text("receipt-text"))["deleted_from_releases"] == [4]
    assert page.text("withdraw") == "Show my receipt"
    page.until("!document.getElementById('withdraw').disabled")
    page.press("withdraw")
    page.until("!document.getElementById('withdraw').disabled")
    assert len(posts(campaign, "withdrawals")) == 2


# --- the operator's page -------------------------------------------------------------------------


def test_the_operator_sees_the_campaign(visit):
    page, campaign = visit("/", OPERATOR)
    said = page.text("state")
    for fact in ("9 of 40 releases made", "1 release lost; 23 places stayed empty",
                 "2.312 of epsilon 8 spent", "epsilon 6.912, at delta 1e-5", "1,280 enrolled",
                 "402 took part, 7 withdrew", "working", "37 seconds ago", "31 of 64 places given",
                 "12 taken, 2 expired, 1 withdrawn", "At most 7 minutes left"):  # fmt: skip
        assert fact in said
    page.until("document.querySelectorAll('#chart .dot').length === 9")
    assert page.run("document.querySelectorAll('#chart .error').length") == 9
    heights = page.run("[...document.querySelectorAll('#chart .dot')].map((d) => +d.attributes"
                       ".cy.value)")  # fmt: skip
    steps = np.diff(heights)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-6)  # returns rise by 9 each
    assert steps[0] < 0
    bars = page.run(
        "[...document.querySelectorAll('#chart .error')].map((b) => b.getBBox().height)"
    )
    np.testing.assert_allclose(bars, -steps[0] * 5 / 9, rtol=1e-4)  # ± 2.5

    campaign.state = STATE | {"version": 10}
    page.until("document.getElementById('version').textContent === '10'")


def test_the_first_minutes_of_a_campaign_can_be_shown(visit):
    young = {
        **{"version": 0, "returns": [], "empty_slots": 0},
        "budget": {"epsilon": "infinity", "delta": 1e-5, "spent": 0, "planned": None},
        "release": STATE["release"] | {"seconds_left": None},
        "health": {"updater": "absent", "last_update_seconds": None},
    }
    page, campaign = visit("/", OPERATOR, state=STATE | young)
    assert "No version was evaluated yet." in page.text("state")
    assert "It has made no update yet." in page.text("state")
    assert page.run("document.querySelector('#chart svg')") is None
    assert page.run("document.getElementById('spent-bar').hidden") is True
    campaign.state = STATE | {"returns": [{"version": 0, "return": 21, "error": None}]}
    page.until("document.querySelectorAll('#chart .dot').length === 1")
    assert page.run("document.querySelector('#chart .error')") is None


def test_the_operator_enrols_people_once(visit):
    page, campaign = visit("/", OPERATOR, faults={"people": ["lost"]})
    page.run("document.getElementById('count').value = ''")
    page.type("count", "3")
    page.until("document.getElementById('enrolled-message').textContent.includes('reached')")
    assert posts(campaign, "people") == [{"count": 3}]  # a second try would have enrolled more
    page.press("enrol-button")
    page.until("!document.getElementById('tokens-card').hidden")
    assert page.run("document.getElementById('tokens').value") == "new-0\nnew-1\nnew-2"


# --- what holds for all pages --------------------------------------------------------------------

PAGES = [("/", OPERATOR, "state"), ("/me", "ann-token", "facts"), ("/play", "ann-token", "game")]


@pytest.mark.parametrize(("path", "token", "section"), PAGES)
def test_a_token_is_in_memory_only(visit, path, token, section):
    page, _ = visit(path, token)
    stored = "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
    assert token not in page.run(stored)
    assert token not in page.run("document.documentElement.outerHTML")
    assert page.run("[...document.querySelectorAll('input')].map((i) => i.value)")[0] == ""
    page.press("forget")
    page.until(f"document.getElementById('{section}')?.hidden")


@pytest.mark.parametrize(("path", "token", "section"), PAGES)
def test_a_wrong_token_is_refused_in_words(visit, path, token, section):
    page, campaign = visit(path, None)
    page.type("token", "wrong-token")
    page.until(f"{SAYS} === 'The token is unknown; check it for missing signs.'")
    asked = len(campaign.asked)
    page.type("token", "with blanks")
    page.until(f"{SAYS}.startsWith('This is not a token')")
    assert len(campaign.asked) == asked
    page.type("token", token)
    page.until(f"!document.getElementById('{section}').hidden")


LUMINANCE = """
(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parts(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const shown = [...document.querySelectorAll("body *")].filter((node) =>
    node.offsetParent && [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim()));
  return shown.map((node) => {
    const pair = [light(parts(getComputedStyle(node).color)), light(behind(node))].sort();
    return [(Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05), node.textContent.trim()];
  });
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("path", "token", "section"), PAGES)
def test_it_fits_a_phone_and_can_be_read_and_operated(visit, path, token, section, dark):
    page, _ = visit(path, token, width=360, dark=dark)
    assert page.run("document.documentElement.scrollWidth") == 360
    contrasts = page.run(LUMINANCE)
    assert len(contrasts) > 8
    assert [(ratio, text) for ratio, text in contrasts if ratio < 4.5] == []
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "spinbutton", "link", "progressbar", "image", "table", "dialog"}
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in roles
    ]
    assert len(named) > 4
    assert [role for role, name in named if not name] == []
    sizes = page.run("[...document.querySelectorAll('button, input')].filter((n) => n.offsetParent)"
                     ".map((n) => n.getBoundingClientRect().height)")  # fmt: skip
    assert min(sizes) >= 44
    assert page.run(f"document.activeElement.id === '{section}'")


def test_what_the_service_says_goes_in_as_text(visit):
    evil = "<img src=x onerror=alert(1)>"
    page, _ = visit("/", OPERATOR, state=STATE | {"name": evil})
    assert page.text("name") == evil
    assert page.run("document.images.length") == 0


def test_the_browser_would_report_a_problem(visit, browser):
    campaign = FakeCampaign()
    with served(campaign) as url, browser.page() as page:
        page.open(url + "/me")
        page.run("document.body.append(Object.assign(document.createElement('script'), "
                 "{ textContent: 'window.ran = 1' }))")  # fmt: skip
        assert page.run("window.ran") is None
        assert any("Content Security Policy" in problem for problem in page.problems)


def test_the_files_are_packaged_and_load_nothing_from_elsewhere():
    files = {file.name: file.read_text() for file in FOLDER.iterdir()}
    assert {name.rpartition(".")[2] for name in files} == {"html", "js", "css"}
    for text in files.values():
        loaded = text.replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|//cdn|@import|url\(|innerHTML|outerHTML|eval\(", loaded) == []
        assert re.findall(r"<script(?![^>]*src=)|<style|\bstyle=|\son\w+=", loaded) == []
        assert max(map(len, text.splitlines())) <= 100
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "people/pages/*" in project["tool"]["setuptools"]["package-data"]["sotto"]
