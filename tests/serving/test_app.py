"""The service over real HTTP: answers, and everything that gets none."""

import asyncio
import json
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI
from small_teacher import ACTIONS, OBSERVATION_SIZE, SECRET, secret_rows, teacher
from uvicorn.lifespan.on import LifespanOn

from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.errors import LedgerCorrupt, LedgerUnavailable
from sotto.privacy.mechanisms.noise import GeneratorSource
from sotto.serving.app import create_app
from sotto.serving.traffic import outages
from sotto.serving.traffic.limits import Limits
from sotto.serving.traffic.logs import SafeFormatter
from sotto.serving.traffic.refusals import Guard

OPERATOR = "operator-token"


def test_an_answer_is_charged(serve):
    service = serve(queries=10)
    ann = service.student()
    answer = service.ask(ann, rows=4)
    assert answer.status_code == 200
    body = answer.json()
    policies = np.array(body["policies"])
    assert policies.shape == (4, ACTIONS)
    assert (policies >= 0).all()
    assert policies.sum(axis=1) == pytest.approx(np.ones(4))
    assert body["levels"] == [0] * 4
    assert (body["remaining"], body["replayed"]) == (6, False)
    assert service.ledger.spent().answered == 4


def test_answers_have_the_law_that_is_promised(serve):
    """Means of many draws are the restricted rows; one draw is far from them."""
    service = serve(queries=1000)
    ann = service.student()
    batches = [service.ask(ann, rows=250).json()["policies"] for _ in range(4)]
    policies = np.concatenate([np.array(batch) for batch in batches])
    mean = 0.7 * SECRET + 0.1
    stderr = np.sqrt(mean * (1 - mean) / (5 + 1) / 1000)
    assert np.abs(policies.mean(axis=0) - mean).max() < 5 * stderr.max()
    assert policies.std(axis=0) == pytest.approx(stderr * math.sqrt(1000), rel=0.15)


def test_a_retry_gets_the_same_bytes_and_is_charged_once(serve):
    service = serve()
    ann = service.student()
    first, again = (service.ask(ann, rows=3, key="k") for _ in range(2))
    assert again.json() == first.json() | {"replayed": True}
    same = [text.split('"remaining"')[0] for text in (first.text, again.text)]
    assert same[0] == same[1]
    assert service.ledger.spent().answered == 3


def test_a_key_belongs_to_one_question_of_one_student(serve):
    service = serve()
    ann, bob = service.student("ann"), service.student("bob")
    service.ask(ann, rows=3, key="k")
    refused = service.ask(ann, rows=4, key="k")
    assert (refused.status_code, refused.json()["error"]) == (409, "idempotency-key-reused")
    assert service.ask(bob, rows=4, key="k").status_code == 200
    assert service.ledger.spent().answered == 7


def test_the_same_numbers_written_differently_are_the_same_question(serve):
    service = serve()
    ann = service.student() | {"Idempotency-Key": "k", "Content-Type": "application/json"}
    texts = (
        '{"observations": [[1, 2, 3, 4]]}',
        '{"observations":[[1.0,2.0,30e-1,4]]}',
    )
    answers = [service.http.post("/v1/answers", headers=ann, content=text).json() for text in texts]
    assert answers[1]["replayed"]
    assert answers[1]["policies"] == answers[0]["policies"]


ROW = "[1, 2, 3, 4]"


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        ("", 400, "not-json", "not JSON"),
        ('{"observations": [[1, 2', 400, "not-json", "not JSON"),
        ("[" * 2000, 400, "not-json", "not JSON"),
        ("\xff", 400, "not-json", "not JSON"),
        ("[1, 2]", 422, "bad-observations", "the body must be an object"),
        ("{}", 422, "bad-observations", "observations"),
        ('{"observations": null}', 422, "bad-observations", "observations"),
        ('{"observations": []}', 422, "bad-observations", "at least one"),
        ('{"observations": [1, 2, 3, 4]}', 422, "bad-observations", "observations[0]"),
        ('{"observations": [[[1, 2, 3, 4]]]}', 422, "bad-observations", "observations[0][0]"),
        (f'{{"observations": [{ROW}, [1, 2, 3]]}}', 422, "bad-observations", "row 1 has 3"),
        (f'{{"observations": [{ROW}], "temperature": 0}}', 422, "bad-observations", "temperature"),
        ('{"observations": [[1, 2, 3, NaN]]}', 422, "bad-observations", "finite"),
        ('{"observations": [[1, 2, 3, -Infinity]]}', 422, "bad-observations", "finite"),
        ('{"observations": [[1, 2, 3, 1e999]]}', 422, "bad-observations", "finite"),
        ('{"observations": [[1, 2, 3, 1e7]]}', 422, "bad-observations", "1000000"),
        ('{"observations": [[1, 2, 3, "4"]]}', 422, "bad-observations", "number"),
        ('{"observations": [[1, 2, 3, true]]}', 422, "bad-observations", "number"),
        ('{"observations": [[1, 2, 3, null]]}', 422, "bad-observations", "number"),
        (f'{{"observations": [{", ".join([ROW] * 9)}]}}', 413, "too-many-rows", "at most 8"),
        (f'{{"observations": [{ROW}{" " * 5000}]}}', 413, "body-too-large", "bytes"),
    ],
)
def test_what_is_no_question_is_refused_and_costs_nothing(serve, body, status, code, says):
    service = serve(limits=Limits(max_rows=8))
    headers = service.student() | {"Content-Type": "application/json"}
    for content in (body.encode("latin-1"), iter([body.encode("latin-1")])):  # whole, and chunked
        refused = service.http.post("/v1/answers", headers=headers, content=content)
        assert (refused.status_code, refused.json()["error"]) == (status, code)
        assert says in refused.json()["message"]
    assert service.ledger.spent().answered == 0


def test_another_media_type_is_refused(serve):
    service = serve()
    ann = service.student()
    for kind in ({}, {"Content-Type": "text/plain"}):
        refused = service.http.post("/v1/answers", headers=ann | kind, content=b"{}")
        assert (refused.status_code, refused.json()["error"]) == (415, "unsupported-media-type")


@pytest.mark.parametrize("key", ["", "k" * 129, "a b", "naïve".encode()])
def test_a_bad_idempotency_key_is_refused(serve, key):
    service = serve()
    refused = service.http.post(
        "/v1/answers",
        headers=service.student() | {"Idempotency-Key": key},
        json={"observations": [[1, 2, 3, 4]]},
    )
    assert (refused.status_code, refused.json()["error"]) == (400, "bad-idempotency-key")
    assert service.ledger.spent().answered == 0


def test_a_body_that_does_not_arrive_is_not_waited_for(serve):
    service = serve(limits=Limits(body_seconds=0.2))
    token = service.student()["Authorization"]
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(
            f"POST /v1/answers HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
        )
        assert b"408" in connection.recv(4096).splitlines()[0]
    assert service.http.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer nobody"},
        {"Authorization": "Bearer ' OR 1=1 --"},
        {"Authorization": b"Bearer \xff"},
        {"Authorization": "Basic abc"},
        {"Authorization": "Bearer " + "x" * 5000},
    ],
)
def test_strangers_get_nothing(serve, header):
    service = serve()
    service.student()
    for method, path in (
        ("POST", "/v1/answers"),
        ("GET", "/v1/teacher"),
        ("GET", "/v1/budget"),
    ):
        refused = service.http.request(method, path, headers=header)
        assert (refused.status_code, refused.json()["error"]) == (401, "unknown-token")
        assert refused.headers["www-authenticate"] == "Bearer"


def test_a_revoked_token_opens_nothing(serve):
    service = serve()
    ann = service.student()
    assert service.ask(ann, key="k").status_code == 200
    service.ledger.revoke("ann")
    assert service.ask(ann, key="k").status_code == 401
    assert service.ask(ann).status_code == 401
    assert service.ledger.spent().answered == 2


def test_a_spent_budget_answers_no_more(serve):
    service = serve(queries=10)
    ann, bob = service.student("ann", queries=6), service.student("bob")
    assert service.ask(ann, rows=4, key="k").json()["remaining"] == 2
    refused = service.ask(ann, rows=3)
    assert (refused.status_code, refused.json()["error"]) == (403, "budget-spent")
    assert refused.json()["remaining"] == 2
    assert service.ask(bob, rows=6).json()["remaining"] == 0
    assert service.ask(ann, rows=1).json()["remaining"] == 0  # all students together
    assert service.ask(ann, rows=4, key="k").json()["replayed"]  # was paid for
    assert service.ledger.spent().answered == 10


def test_many_at_once_never_overspend(serve):
    service = serve(queries=100, limits=Limits(burst=1000))
    students = [service.student(f"s{i}") for i in range(4)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: service.ask(students[i % 4], rows=3), range(60)))
    codes = [answer.status_code for answer in answers]
    assert codes.count(200) == 33
    assert codes.count(403) == 27
    assert service.ledger.spent().answered == 99


def test_each_student_has_a_rate(serve):
    service = serve(limits=Limits(requests_per_second=0.5, burst=3))
    ann, bob = service.student("ann"), service.student("bob")
    answers = [service.ask(ann) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].json()["error"] == "too-many-requests"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 2
    assert service.ask(bob).status_code == 200
    assert service.ledger.spent().answered == 8


def test_a_student_sees_their_own_budget_and_the_operator_everybodys(serve):
    service = serve(queries=100, is_operator=lambda token: token == OPERATOR)
    ann, bob = service.student("ann", queries=30), service.student("bob")
    service.ask(ann, rows=10)
    service.ask(bob, rows=5)
    service.ledger.revoke("bob")
    mine = service.http.get("/v1/budget", headers=ann).json()
    assert [one["name"] for one in mine["students"]] == ["ann"]
    assert mine["total"] is None
    operator = {"Authorization": f"Bearer {OPERATOR}"}
    everybody = service.http.get("/v1/budget", headers=operator).json()
    expected = {"name": "ann", "queries": 30, "answered": 10, "remaining": 20, "revoked": False}
    assert expected.items() <= everybody["students"][0].items()
    expected = {"name": "bob", "queries": 100, "answered": 5, "remaining": 0, "revoked": True}
    assert expected.items() <= everybody["students"][1].items()
    total = everybody["total"]
    assert (total["queries"], total["answered"], total["remaining"]) == (100, 15, 85)
    assert 0 < everybody["students"][0]["epsilon"] < total["epsilon"] < 8
    assert everybody["budget"] == {"epsilon": 8.0, "delta": 1e-5}
    for answer in (
        service.ask(operator),
        service.http.get("/v1/teacher", headers=operator),
    ):
        assert (answer.status_code, answer.json()["error"]) == (403, "not-a-student")


def test_the_teacher_says_what_it_promises(serve):
    service = serve(queries=50)
    about = service.http.get("/v1/teacher", headers=service.student("ann", 20)).json()
    assert about["statement"] == json.loads(service.ledger.statement.model_dump_json())
    assert (about["env_id"], about["actions"]) == ("Fake-v0", ACTIONS)
    assert (about["observation_size"], about["remaining"]) == (OBSERVATION_SIZE, 20)
    assert about["max_rows"] == Limits().max_rows


def test_what_is_not_there_is_refused_in_json(serve):
    service = serve()
    for method, path, status in (
        ("GET", "/v1/weights", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/page.html", 404),
        ("GET", "/healthz/", 404),  # a redirection would go to the host that the request names
        ("GET", "/v1/answers", 405),
        ("DELETE", "/v1/budget", 405),
    ):
        refused = service.http.request(method, path)
        assert refused.status_code == status
        assert refused.json()["error"] == HTTPStatus(status).phrase.lower().replace(" ", "-")


def test_an_unavailable_ledger_is_worth_another_try(serve, monkeypatch, caplog):
    service = serve()
    ann = service.student()

    def fails(*_, **__):
        raise LedgerUnavailable("the ledger at /srv/secret-place cannot be used (disk I/O error)")

    monkeypatch.setattr(service.ledger, "answer", fails)
    refused = service.ask(ann)
    assert (refused.status_code, refused.json()["error"]) == (503, "ledger-unavailable")
    assert refused.headers["retry-after"] == "1"
    assert "secret-place" not in refused.text
    assert "disk I/O error" in caplog.text
    monkeypatch.setattr(service.ledger, "authenticate", fails)
    assert service.http.get("/healthz").status_code == 503


def test_an_outage_is_in_the_log_when_it_begins_and_when_it_ends(serve, monkeypatch, caplog):
    service = serve()
    ann = service.student()

    def fails(*_, **__):
        raise LedgerUnavailable("the ledger at PLACE cannot be used (connection refused)")

    with monkeypatch.context() as patched:
        patched.setattr(service.ledger, "answer", fails)
        for _ in range(3):  # each request's token is read before, which works
            assert service.ask(ann).status_code == 503
    (line,) = caplog.messages
    assert line.startswith("LedgerUnavailable: the ledger at PLACE cannot be used (connection re")
    assert service.ask(ann).status_code == 200
    assert len(caplog.messages) == 1  # a success at once does not end it
    monkeypatch.setattr(outages, "_QUIET_SECONDS", 0)
    assert service.ask(ann).status_code == 200
    assert caplog.messages[1:] == ["the database works again; 3 requests failed"]
    monkeypatch.setattr(service.ledger, "answer", fails)
    assert service.ask(ann).status_code == 503
    assert len(caplog.messages) == 3  # a second outage is told, too


def test_another_kind_of_failure_is_in_the_log(caplog):
    outage = outages.Outage()
    for error in (LedgerUnavailable("away"), LedgerUnavailable("away"), LedgerCorrupt("changed")):
        outage.failed(error)
    assert [one.split(";")[0] for one in caplog.messages] == [
        "LedgerUnavailable: away",
        "LedgerCorrupt: changed",
    ]


def test_health_and_page_do_not_wait_for_an_answer(serve):
    began, go_on = threading.Event(), threading.Event()

    def slow_rows(observations):
        if len(observations) == 2:
            began.set()
            assert go_on.wait(10)
        return secret_rows(observations)

    service = serve(rows=slow_rows)
    ann = service.student()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(service.ask, ann)
        assert began.wait(10)
        start = time.monotonic()
        for path in ("/healthz", "/", "/metrics"):
            assert service.http.get(path).status_code == 200
        assert time.monotonic() - start < 1
        go_on.set()
        assert answer.result().status_code == 200


def traces_of_the_secret() -> list[str]:
    """How a planted policy could be recognised in any text."""
    restricted = 0.7 * SECRET + 0.1
    numbers = [*SECRET, *restricted, *(5.0 * restricted), *np.log(SECRET)]
    return [repr(float(number))[:9] for number in numbers] + ["private-weight"]


def test_nothing_that_is_seen_carries_the_policy(serve, caplog, capfd, monkeypatch):
    """Planted in the rows and in the messages of chained exceptions; looked for everywhere.

    A failure is answered and charged as anything is: an error would tell it for nothing.
    """
    caplog.set_level(logging.DEBUG)
    failing = False

    def fail(*_arguments, **_named):
        try:
            raise KeyError(f"private-weight {SECRET.tolist()}")
        except KeyError as error:
            raise RuntimeError(f"layer holds {SECRET.tolist()}") from error

    service = serve(rows=lambda asked: fail() if failing else secret_rows(asked))
    ann = service.student()
    seen = [service.ask(ann, rows=50), service.http.get("/v1/teacher", headers=ann)]
    charged = service.ledger.spent().answered
    failing = True
    seen += [service.ask(ann, key="k"), service.ask(ann)]
    assert [one.status_code for one in seen[2:]] == [200, 200]
    assert service.ledger.spent().answered == charged + 4
    failing = False
    assert service.ask(ann, key="k").json()["policies"] == seen[2].json()["policies"]
    assert "Error" not in caplog.text
    with monkeypatch.context() as patch:  # a failure of anything else
        patch.setattr(AnswerLedger, "answer", fail)
        seen.append(service.ask(ann))
    incident = seen[-1]
    assert incident.status_code == 500
    paths = ("/", "/page.js", "/metrics", "/healthz", "/v1/budget", "/nothing")
    seen += [service.http.get(path, headers=ann) for path in paths]
    output = capfd.readouterr()
    texts = [one.text + str(one.headers) for one in seen] + [caplog.text, output.out, output.err]
    for text in texts:
        assert [trace for trace in traces_of_the_secret() if trace in text] == []
    assert "RuntimeError" in caplog.text  # the log does say what happened, and where
    assert "test_app.py" in caplog.text
    assert incident.json()["message"].split()[-1] in caplog.text  # the incident's number


def test_a_planted_secret_would_be_found(caplog):
    """The search above can fail."""
    logging.getLogger("x").warning("row %s", secret_rows(np.ones((1, 4))).tolist())
    assert any(trace in caplog.text for trace in traces_of_the_secret())


def test_whatever_is_logged_loses_its_messages():
    """The server's formatter, for exceptions that others log: uvicorn, asyncio."""
    formatter = SafeFormatter("%(message)s")
    try:
        try:
            raise KeyError("private-weight 1")
        except KeyError as error:
            raise RuntimeError("private-weight 2") from error
    except RuntimeError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "it failed", (), sys.exc_info())
    text = formatter.format(record)
    assert text.startswith("it failed\nRuntimeError < ")
    assert "test_app.py" in text
    assert "private-weight" not in text


def _starting_and_stopping(error: BaseException) -> None:
    """Starts a service and stops it, where its end meets an exception."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        raise error

    app = FastAPI(lifespan=lifespan)
    app.add_middleware(Guard, refused=lambda _code: None)

    async def both() -> None:
        server = LifespanOn(uvicorn.Config(app, log_config=None, ws="none"))
        await server.startup()
        await server.shutdown()

    asyncio.run(both())


def test_an_end_that_fails_is_logged_without_its_message(caplog):
    _starting_and_stopping(KeyError("private-weight"))
    assert "failed to start or to stop: KeyError < " in caplog.text
    assert "private-weight" not in caplog.text


def test_an_end_that_is_cut_short_shows_no_traceback(caplog):
    """A second Ctrl-C cancels it."""
    _starting_and_stopping(asyncio.CancelledError())
    assert "Traceback" not in caplog.text


def test_counts_for_prometheus(serve):
    service = serve(queries=10)
    ann = service.student("ann")
    service.ask(ann, rows=4, key="k")
    service.ask(ann, rows=4, key="k")
    service.ask(ann, rows=9)
    answer = service.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
    assert values["sotto_answered_rows_total"] == 8
    assert values["sotto_charges_total"] == values["sotto_replays_total"] == 1
    assert values['sotto_refusals_total{code="budget-spent"}'] == 1
    buckets = [value for name, value in values.items() if "_bucket" in name]
    assert buckets == sorted(buckets)
    assert buckets[-1] == values["sotto_answer_seconds_count"] == 2
    assert 0 < values["sotto_answer_seconds_sum"] < 60
    assert "ann" not in answer.text


def test_every_response_has_its_guards(serve):
    service = serve()
    for path in ("/", "/page.js", "/healthz", "/nothing", "/v1/budget"):
        headers = service.http.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_noise_is_of_the_promised_kind(make_ledger):
    with pytest.raises(ValueError, match="operating-system entropy"):
        create_app(
            *(teacher(), make_ledger(), DigestKey(bytes(32))),
            env_id="Fake-v0",
            noise=GeneratorSource(seed=1),
        )
