"""The student's side: the same answers whatever goes wrong, and nothing taken on trust."""

import json
import logging
import socket

import httpx
import numpy as np
import pytest
from small_teacher import ACTIONS, OBSERVATION_SIZE, statement

from sotto.serving import patient
from sotto.serving.client import (
    TOKEN_VARIABLE,
    RemoteTeacher,
    TeacherRefused,
    TeacherUnavailable,
    token_from_environment,
)
from sotto.serving.traffic.limits import Limits


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    """Nothing here leaves the machine, whatever proxy the environment names."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(patient, "_FIRST_WAIT_SECONDS", 0.001)


def observations(rows: int) -> np.ndarray:
    return np.linspace(-1, 1, rows * OBSERVATION_SIZE).reshape(rows, OBSERVATION_SIZE)


def token_of(headers: dict[str, str]) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


class Unreliable(httpx.BaseTransport):
    """Passes requests on, and spoils every second time what comes back, or never passes it on."""

    def __init__(self, spoil) -> None:
        self._inner = httpx.HTTPTransport()
        self._spoil = spoil
        self._count = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._count += 1
        if self._count % 2:
            return self._spoil(self._inner, request)
        return self._inner.handle_request(request)


def lost_on_the_way(_inner, request):
    raise httpx.ConnectError("no route", request=request)


def answer_lost(inner, request):
    inner.handle_request(request).read()
    raise httpx.ReadError("connection reset", request=request)


def gateway_timed_out(inner, request):
    inner.handle_request(request).read()
    return httpx.Response(504, text="<html>gateway</html>")


def test_it_is_a_teacher(serve):
    service = serve(queries=100, limits=Limits(max_rows=8))
    token = token_of(service.student())
    with RemoteTeacher(service.url, token) as teacher:
        assert teacher.statement == service.ledger.statement
        assert (teacher.actions, teacher.observation_size) == (ACTIONS, OBSERVATION_SIZE)
        assert teacher.env_id == "Fake-v0"
        answers = teacher.answer(observations(20))  # three batches
        assert answers.released
        assert answers.policies.shape == (20, ACTIONS)
        assert answers.policies.sum(axis=1) == pytest.approx(np.ones(20))
        assert answers.levels.tolist() == [0] * 20
        assert teacher.remaining == 80
    assert service.ledger.spent().answered == 20


@pytest.mark.parametrize("spoil", [lost_on_the_way, answer_lost, gateway_timed_out])
def test_what_goes_wrong_on_the_way_costs_nothing_twice(serve, spoil):
    service = serve(queries=100, limits=Limits(max_rows=8))
    token = token_of(service.student())
    with RemoteTeacher(service.url, token, transport=Unreliable(spoil)) as teacher:
        for _ in range(3):
            assert teacher.answer(observations(10)).released
        assert teacher.remaining == 70
    assert service.ledger.spent().answered == 30


def test_a_lost_answer_is_given_again(serve):
    """What the student gets in the end is what was drawn, and charged, the first time."""
    service = serve()
    seen = []

    def keeps(inner, request):
        response = inner.handle_request(request)
        seen.append(json.loads(response.read()))
        raise httpx.ReadTimeout("too slow", request=request)

    with RemoteTeacher(service.url, token_of(service.student()), transport=Unreliable(keeps)) as t:
        answers = t.answer(observations(4))
    assert answers.policies.tolist() == seen[-1]["policies"]


def test_it_waits_where_it_is_asked_to(serve):
    service = serve(limits=Limits(requests_per_second=20, burst=1))
    with RemoteTeacher(service.url, token_of(service.student())) as teacher:
        for _ in range(3):
            assert teacher.answer(observations(2)).released
    assert service.ledger.spent().answered == 6


def test_a_spent_teacher_is_silent_and_says_so(serve, caplog):
    service = serve(queries=10)
    ann, bob = service.student("ann"), service.student("bob")
    with RemoteTeacher(service.url, token_of(ann)) as teacher:
        assert teacher.answer(observations(6)).released
        service.ask(bob, rows=2)  # another student takes what is left
        for rows in (4, 100):
            silent = teacher.answer(observations(rows))
            assert not silent.released
            assert (silent.policies == 1 / ACTIONS).all()
            assert silent.policies.shape == (rows, ACTIONS)
        assert teacher.answer(observations(2)).released
        assert teacher.remaining == 0
    silent_lines = [line for line in caplog.messages if "silent" in line]
    assert len(silent_lines) == 1
    assert service.ledger.spent().answered == 10


def test_a_question_too_large_for_the_budget_is_not_begun(serve):
    service = serve(queries=10, limits=Limits(max_rows=4))
    with RemoteTeacher(service.url, token_of(service.student())) as teacher:
        assert not teacher.answer(observations(12)).released
    assert service.ledger.spent().answered == 0


def test_a_refused_token_is_one_sentence(serve):
    service = serve()
    with pytest.raises(TeacherRefused, match="token in SOTTO_TEACHER_TOKEN, or it was revoked"):
        RemoteTeacher(service.url, "nobody")
    headers = service.student()
    with RemoteTeacher(service.url, token_of(headers)) as teacher:
        service.ledger.revoke("ann")
        with pytest.raises(TeacherRefused, match="token in SOTTO_TEACHER_TOKEN, or it was revoked"):
            teacher.answer(observations(2))


def test_nobody_there_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(TeacherUnavailable, match="does not answer"):
        RemoteTeacher(f"http://127.0.0.1:{port}", "token", patience_seconds=0.05)


@pytest.mark.parametrize(
    "url", ["teacher.example", "ftp://teacher.example", "http://", "https:///x"]
)
def test_no_url_is_refused(url):
    with pytest.raises(ValueError, match=r"address of a teacher|no URL"):
        RemoteTeacher(url, "token")


@pytest.mark.parametrize("user", ["me:secret@", "me@", ":secret@"])
def test_a_url_with_a_password_is_refused_without_showing_it(user):
    with pytest.raises(ValueError, match="name or a password") as caught:
        RemoteTeacher(f"https://{user}teacher.example", "token")
    assert "secret" not in str(caught.value)


def test_clear_text_is_warned_about(caplog):
    def nobody(request):
        raise httpx.ConnectError("no route", request=request)

    for url, warned in (("http://teacher.example", True), ("https://teacher.example", False)):
        caplog.clear()
        with pytest.raises(TeacherUnavailable):
            RemoteTeacher(url, "token", patience_seconds=0, transport=httpx.MockTransport(nobody))
        assert ("clear text" in caplog.text) == warned


def imposter(answer: dict, about: dict | None = None) -> httpx.MockTransport:
    """A server that says whatever it likes."""
    honest = {
        "statement": json.loads(statement().model_dump_json()),
        "env_id": "Fake-v0",
        "max_rows": 8,
        "remaining": 100,
    }

    def handle(request: httpx.Request) -> httpx.Response:
        says = (about or honest) if request.method == "GET" else answer
        return httpx.Response(200, content=json.dumps(says))

    return httpx.MockTransport(handle)


GOOD = {"policies": [[0.5, 0.25, 0.25]] * 2, "levels": [0, 0], "remaining": 98}


@pytest.mark.parametrize(
    "changes",
    [
        {"policies": [[0.5, 0.25, 0.25]]},
        {"policies": [[0.5, 0.5]] * 2},
        {"policies": [[0.5, 0.25, 0.25], [1.0]]},
        {"policies": [[0.5, 0.25, 0.3]] * 2},
        {"policies": [[1.5, -0.25, -0.25]] * 2},
        {"policies": [[float("nan")] * 3] * 2},
        {"policies": "none"},
        {"levels": [0]},
        {"levels": [0, -1]},
        {"levels": [0, 10**23]},
        {"remaining": "many"},
        {"remaining": -1},
    ],
)
def test_what_is_no_answer_is_not_taken_for_one(changes):
    with RemoteTeacher("https://x.example", "t", transport=imposter(GOOD)) as teacher:
        assert teacher.answer(observations(2)).released
    bad = imposter(GOOD | changes)
    with (
        RemoteTeacher("https://x.example", "t", transport=bad) as teacher,
        pytest.raises(TeacherRefused, match=r"no policy|does not answer as a teacher"),
    ):
        teacher.answer(observations(2))


@pytest.mark.parametrize("about", [{"hello": "world"}, {"max_rows": 0}, {"remaining": -1}])
def test_another_kind_of_server_is_told_apart(about):
    said = {"statement": json.loads(statement().model_dump_json()), "env_id": "Fake-v0"}
    said |= {"max_rows": 8, "remaining": 100}
    said = about if "hello" in about else said | about
    with pytest.raises(TeacherRefused, match="does not answer as a teacher"):
        RemoteTeacher("https://x.example", "t", transport=imposter({}, said))


def test_a_spent_budget_needs_no_number():
    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return honest.handle_request(request)
        return httpx.Response(403, json={"error": "budget-spent", "remaining": "x"})

    honest = imposter(GOOD)
    transport = httpx.MockTransport(handle)
    with RemoteTeacher("https://x.example", "t", transport=transport) as teacher:
        assert not teacher.answer(observations(2)).released
        assert teacher.remaining == 0


def test_what_a_server_says_cannot_write_to_the_terminal():
    def handle(_request):
        return httpx.Response(418, json={"message": "\x1b[2J" + "x" * 1000})

    with pytest.raises(TeacherRefused) as refused:
        RemoteTeacher("https://x.example", "t", transport=httpx.MockTransport(handle))
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("bad", [np.full((2, 4), np.nan), np.full((2, 4), 1e13), np.ones(4)])
def test_bad_observations_are_not_sent(bad):
    with (
        RemoteTeacher("https://x.example", "t", transport=imposter(GOOD)) as teacher,
        pytest.raises(ValueError, match="every entry a number between"),
    ):
        teacher.answer(bad)


def test_the_token_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="SOTTO_TEACHER_TOKEN is not set"):
        token_from_environment()
    monkeypatch.setenv(TOKEN_VARIABLE, " from-environment\n")
    assert token_from_environment() == "from-environment"


def test_the_token_is_not_logged(serve, caplog):
    caplog.set_level(logging.DEBUG)
    service = serve(queries=4)
    token = token_of(service.student())
    with RemoteTeacher(service.url, token) as teacher:
        teacher.answer(observations(2))
        teacher.answer(observations(9))
    assert caplog.text
    assert token not in caplog.text
