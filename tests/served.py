"""A server in a thread of the test, for apps of the teacher and of campaigns."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sotto.serving.server import Address, listening, url_of, uvicorn_server


@contextmanager
def running(app, address: Address | None = None) -> Iterator[str]:
    """Serves the app while the block runs; gives its URL."""
    address = address or Address("127.0.0.1", 0)
    server = uvicorn_server(app, address)
    with listening(address.host, address.port) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url_of(listener, address)
        finally:
            server.should_exit = True
            thread.join()
