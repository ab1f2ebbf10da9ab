"""A proxy for TCP that loses, repeats and delays HTTP requests."""

import asyncio
import random
from contextlib import suppress

_SECONDS = 4.0  # after which a client without an answer is cut off
_FATES = {
    "passes": 70,
    "is dropped": 5,
    "is cut in half": 5,
    "loses its answer": 8,
    "gets half an answer": 4,
    "is sent twice at once": 5,
    "is sent again later": 3,
}
_LATER_SECONDS = 5.0


class BadNetwork:
    """A proxy that forwards each request to one of several ports, unless something happens to it.

    Attributes:
        port: port that clients use.
        counts: number of requests with each fate.
    """

    def __init__(self, ports: list[int], seed: int) -> None:
        self._ports, self._random = ports, random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts = dict.fromkeys(_FATES, 0)
        self.port = 0

    async def start(self) -> None:
        """Begins to listen."""
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends all connections."""
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles the one request of a connection."""
        try:
            async with asyncio.timeout(_SECONDS):
                request = await _request(reader)
                writer.write(await self._handle(request))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _handle(self, request: bytes) -> bytes:
        """Returns what the client gets."""
        fate = self._random.choices([*_FATES], [*_FATES.values()])[0]
        self.counts[fate] += 1
        if fate == "is dropped":
            return b""
        if fate == "is cut in half":
            await self._forward(request[: len(request) // 2], False)
            return b""
        if fate == "loses its answer":
            await self._forward(request, self._random.random() < 0.5)
            return b""
        if fate == "is sent twice at once":
            both = await asyncio.gather(
                self._forward(request), self._forward(request), return_exceptions=True
            )
            return next((one for one in both if isinstance(one, bytes)), b"")
        if fate == "is sent again later":
            task = asyncio.create_task(self._again(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        answer = await self._forward(request)
        return answer[: len(answer) // 2] if fate == "gets half an answer" else answer

    async def _again(self, request: bytes) -> None:
        await asyncio.sleep(self._random.uniform(0, _LATER_SECONDS))
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_SECONDS):
                await self._forward(request)

    async def _forward(self, request: bytes, wait: bool = True) -> bytes:
        """Sends bytes to one of the ports and returns the answer; empty if nobody waits for it."""
        port = self._random.choice(self._ports)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            await writer.drain()
            return await reader.read() if wait else b""
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Reads one request with its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            length = int(value)
    return head + await reader.readexactly(length)
