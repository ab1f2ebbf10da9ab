"""An HTTP client that sends a request again until the service answers or patience ends."""

import logging
import os
import random
import re
import ssl
import time
from functools import cache
from typing import Any

import httpx

from sotto.errors import visible

PATIENCE_SECONDS = 60.0
"""Time during which a failed request is repeated, unless the caller gives another."""
_TIMEOUT_SECONDS = 30.0
_FIRST_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 5.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_log = logging.getLogger(__name__)


class PatientHttp:
    """A connection to one service, with a token.

    Only requests that may be repeated safely should be sent with it.

    Args:
        what: word for the service, for errors.
        url: address of the service.
        token: token that is sent with every request.
        unavailable: type of the error when there is no response.
        patience_seconds: time during which a failed request is repeated.
        transport: transport of httpx, for tests.

    Raises:
        ValueError: the URL is not valid.
    """

    def __init__(
        self,
        what: str,
        url: str,
        token: str,
        unavailable: type[OSError],
        patience_seconds: float = PATIENCE_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._what, self._unavailable = what, unavailable
        self._url = _checked_url(url, what)
        self._patience = patience_seconds
        self._http = httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT_SECONDS,
            transport=transport,
            verify=_trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
        )

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def request(self, method: str, path: str, **what: Any) -> httpx.Response:
        """Sends a request, repeatedly if it fails, and returns the response.

        Raises:
            OSError: there is no response within the patience, or the certificate is not trusted.
        """
        deadline = time.monotonic() + self._patience
        wait = _FIRST_WAIT_SECONDS
        while True:
            asked_to_wait = 0.0
            try:
                response = self._http.request(method, path, **what)
                if response.status_code != 429 and response.status_code < 500:
                    return response
                problem = message_of(response)
                asked_to_wait = _seconds(response.headers.get("retry-after", ""))
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
                if "CERTIFICATE_VERIFY_FAILED" in problem:
                    raise self._unavailable(
                        f"the certificate of {self._url} is not trusted; name the authority that "
                        "issued it in SSL_CERT_FILE"
                    ) from error
            pause = max(asked_to_wait, wait * random.uniform(0.5, 1.0))
            if time.monotonic() + pause > deadline:
                raise self._unavailable(
                    f"the {self._what} at {self._url} does not answer: {problem}"
                )
            time.sleep(pause)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


@cache
def _trusted(*_named: str | None) -> ssl.SSLContext:
    """Returns the authorities that these environment variables name, or the usual ones.

    Reading them takes longer than a request, and many clients may be in one process.
    """
    return httpx.create_ssl_context()


def _checked_url(url: str, what: str) -> str:
    """Returns the URL if it is one of HTTP; warns if the token would be sent in clear text.

    Settings of a run hold the URL, and httpx would send a password in place of the token.

    Raises:
        ValueError: it is not a URL of HTTP, or it holds a name or a password.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is no URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is no address of a {what}; give one with https:// or http://")
    if parsed.userinfo:
        raise ValueError(f"the URL of the {what} holds a name or a password; leave both out of it")
    if parsed.scheme == "http" and parsed.host not in _LOOPBACK:
        _log.warning(
            "the token is sent to %s in clear text; use https outside a trusted network", url
        )
    return url


def fields_of(response: httpx.Response) -> dict[str, Any]:
    """Returns the JSON object of a refusal; empty if it has none."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def message_of(response: httpx.Response) -> str:
    """Returns the message of a refusal, safe to print on a terminal."""
    text = str(fields_of(response).get("message", f"HTTP status {response.status_code}"))
    return visible(text)[:300]


def _seconds(text: str) -> float:
    """Returns a Retry-After header in seconds; 0 if it holds no number."""
    return float(text) if re.fullmatch(r"\d{1,6}(\.\d+)?", text) else 0.0
