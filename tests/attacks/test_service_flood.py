"""Crowds without a token at a teacher's door: a student is answered all the same.

On loopback only, and bounded: at most 300 connections, a few seconds each. The crowd is a process
of its own, so that it does not share the service's interpreter; it comes from the student's own
address, which is the worst case.
"""

import http.client
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from small_teacher import statement, teacher

from sotto.privacy.answers.digests import DigestKey
from sotto.privacy.answers.ledger import AnswerLedger
from sotto.privacy.ledger.spending import Budget
from sotto.serving.app import create_app
from sotto.serving.server import Address, listening, uvicorn_server
from sotto.serving.traffic.connections import network
from sotto.serving.traffic.limits import Limits

SLOWER = 4.0
"""A student's median may be so many times what it is without a crowd ..."""
AND_SECONDS = 0.1
"""... and so much longer, for on two cores the crowd takes some of the time itself."""

CROWD = """
import asyncio, sys
port, connections, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
REQUEST = (b"GET /v1/budget HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer %d\\r\\n\\r\\n")

async def one(number, end):
    loop = asyncio.get_running_loop()
    while loop.time() < end:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while loop.time() < end:
                writer.write(REQUEST % number)
                await asyncio.wait_for(reader.readuntil(b"\\r\\n\\r\\n"), 2)
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            await asyncio.sleep(0.01)

async def main():
    end = asyncio.get_running_loop().time() + seconds
    print("begun", flush=True)
    await asyncio.gather(*(one(number, end) for number in range(connections)))

asyncio.run(main())
"""


class Door:
    """A running service, and a student of it."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=5.0,
        )

    def ask(self) -> float:
        """Seconds until one question is answered."""
        began = time.perf_counter()
        answer = self.http.post("/v1/answers", json={"observations": [[0.0] * 4]})
        assert answer.status_code == 200, answer.text
        return time.perf_counter() - began

    def median(self, questions: int = 30) -> float:
        return statistics.median(self.ask() for _ in range(questions))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Door]]:
    """Starts services with given limits."""
    with ExitStack() as stack:

        def start(**limits: float) -> Door:
            ledger = AnswerLedger.create(
                tmp_path / "ledger.sqlite",
                statement=statement(queries=1000),
                budget=Budget(epsilon=8.0, delta=1e-5),
            )
            app = create_app(
                *(teacher(), ledger, DigestKey(bytes(32))),
                env_id="Fake-v0",
                limits=Limits(**{"requests_per_second": 1e4} | limits),
            )
            port = stack.enter_context(_running(app))
            door = Door(port, ledger.add_student("ann"))
            stack.callback(door.http.close)
            return door

        yield start


@contextmanager
def _running(app) -> Iterator[int]:
    address = Address("127.0.0.1", 0)
    server = uvicorn_server(app, address)
    with listening(address.host, address.port) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def crowd(door: Door, connections: int, seconds: float) -> Iterator[None]:
    """Somebody sends unknown tokens over so many connections, as fast as they are refused."""
    process = subprocess.Popen(
        [sys.executable, "-c", CROWD, str(door.port), str(connections), str(seconds)],
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    try:
        assert process.stdout.readline() == b"begun\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ended(connection: socket.socket, within: float) -> bool:
    """Whether the other side ends the connection in that time."""
    connection.settimeout(within)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_idle_connections_keep_nobody_out(opened):
    door = opened()
    alone = door.median()
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(door.connect())
        time.sleep(0.2)
        among = door.median()
        fresh = Door(door.port, door.http.headers["Authorization"].split()[1])
        stack.callback(fresh.http.close)
        fresh.ask()  # also over a connection that comes after all of theirs
    assert among < SLOWER * alone + AND_SECONDS


def test_unknown_tokens_keep_nobody_waiting(opened):
    door = opened()
    alone = door.median()
    with crowd(door, connections=250, seconds=8):
        time.sleep(0.5)
        among = door.median()
    print(f"median alone {1e3 * alone:.1f} ms, among the crowd {1e3 * among:.1f} ms")
    assert among < SLOWER * alone + AND_SECONDS


def test_a_student_comes_in_while_a_crowd_is_there(opened):
    """Over a new connection, from the crowd's own address."""
    door = opened()
    with crowd(door, connections=100, seconds=8):
        time.sleep(0.5)
        began = time.perf_counter()
        door.ask()
        assert time.perf_counter() - began < 4


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /v1/budget HTTP/1.1\r\nHost: x\r\n",  # headers that do not end
        b"GET /v1/budget HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nabc",  # unread body
    ],
    ids=["nothing", "headers", "body"],
)
def test_who_sends_a_byte_now_and_then_is_not_waited_for(opened, beginning):
    door = opened(header_seconds=0.6)
    with door.connect() as connection:
        connection.sendall(beginning)
        began = time.perf_counter()
        try:
            for _ in range(20):
                if beginning:
                    connection.sendall(b"x")
                time.sleep(0.1)
        except OSError:
            pass
        assert ended(connection, within=1.0)
        assert time.perf_counter() - began < 3
    door.ask()


def test_a_strangers_address_holds_so_many_connections_and_a_student_goes_first(opened):
    door = opened(strangers_per_address=8)
    door.ask()
    connections = [door.connect() for _ in range(30)]
    try:
        time.sleep(0.3)
        gone = sum(ended(one, within=0.01) for one in connections)
        assert 22 <= gone <= 23  # the oldest; a student's own new connection may count
        assert not ended(connections[-1], within=0.01)
        door.ask()
    finally:
        for one in connections:
            one.close()


def test_requests_of_strangers_are_counted_for_each_address(opened):
    door = opened(stranger_burst=5, stranger_requests_per_second=0.1, pause_seconds=0.3)
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=5)
    found = []
    for path, token in (
        ("/healthz", None), ("/metrics", None), ("/", None), ("/v1/budget", None),
        ("/v1/budget", "x"), ("/v1/budget", "y"), ("/healthz", None),
    ):  # fmt: skip
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        began = time.perf_counter()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        found.append((answer.status, answer.read(), time.perf_counter() - began))
    connection.close()
    assert [status for status, _, _ in found] == [200, 200, 200, 401, 401, 429, 429]
    assert json.loads(found[-1][1])["error"] == "too-many-requests"
    assert found[-1][2] > 0.25  # after a refusal nothing was read for a while
    door.ask()  # and a student of the same address is answered


@pytest.mark.parametrize(("method", "path"), [("GET", "/nothing"), ("DELETE", "/healthz")])
def test_who_asks_for_what_is_not_there_is_a_stranger(opened, method, path):
    door = opened(stranger_burst=5, stranger_requests_per_second=0.01)
    door.ask()  # whose new token is a stranger's until it is looked up
    with httpx.Client(base_url=f"http://127.0.0.1:{door.port}", trust_env=False) as client:
        found = [client.request(method, path).status_code for _ in range(5)]
    assert set(found[:4]) <= {404, 405}
    assert found[4] == 429
    door.ask()


def test_requests_sent_together_are_not_answered_together(opened):
    door = opened(stranger_burst=5, stranger_requests_per_second=0.1, pause_seconds=0.3)
    request = b"GET /v1/budget HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n"
    with door.connect() as connection:
        connection.sendall(40 * request)
        connection.settimeout(0.1)
        began, said = time.perf_counter(), b""
        while time.perf_counter() - began < 1.6:
            with suppress(TimeoutError):
                said += connection.recv(65536)
        assert said.count(b"HTTP/1.1 401") == 5
        assert 2 <= said.count(b"HTTP/1.1 429") <= 6  # one in each pause, and not all at once
    door.ask()


def test_a_student_who_sends_too_many_requests_is_not_read_for_a_while(opened):
    door = opened(requests_per_second=0.1, burst=3, pause_seconds=0.3)
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=5)
    found = []
    for _ in range(5):
        began = time.perf_counter()
        connection.request("GET", "/v1/budget", headers=dict(door.http.headers))
        answer = connection.getresponse()
        answer.read()
        found.append((answer.status, time.perf_counter() - began))
    connection.close()
    assert [status for status, _ in found] == [200, 200, 200, 429, 429]
    assert found[-1][1] > 0.25


def test_a_new_student_is_known_at_once_and_a_revoked_one_no_longer(opened, tmp_path):
    door = opened()
    door.ask()
    ledger = AnswerLedger.open(tmp_path / "ledger.sqlite")
    for _ in range(2):
        token = ledger.add_student("bob")
        bob = Door(door.port, token)
        bob.ask()
        ledger.revoke("bob")
        refused = bob.http.post("/v1/answers", json={"observations": [[0.0] * 4]})
        assert refused.status_code == 401
        bob.http.close()


@pytest.mark.parametrize(
    ("host", "same"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_a_client_is_its_address_or_its_network(host, same):
    assert network(host) == same
