"""The student's side of the service: a teacher at a URL, used like one in the same process.

Every batch has an idempotency key. If a request fails, the same batch is sent again with the same
key. It is then charged only once and gets the stored answer.
"""

import logging
import os
import random
import re
import time
import uuid
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
from jaxtyping import Float, Float64
from pydantic import BaseModel, ConfigDict, ValidationError

from sotto.algorithms.kickstarting.teachers import Answers, silence
from sotto.errors import visible
from sotto.privacy.answers.observations import checked
from sotto.privacy.answers.statement import AnswerStatement

TOKEN_VARIABLE = "SOTTO_TEACHER_TOKEN"

_TIMEOUT_SECONDS = 30.0
_PATIENCE_SECONDS = 60.0
_FIRST_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 5.0
_SUM_TOLERANCE = 1e-6
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_log = logging.getLogger(__name__)
_M = TypeVar("_M", bound=BaseModel)


class TeacherUnavailable(OSError):
    """The teacher could not be reached within the patience of the client."""


class TeacherRefused(ValueError):
    """The teacher refuses this student or this question."""


class _About(BaseModel):
    """The response of GET v1/teacher; later versions may add fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    statement: AnswerStatement
    env_id: str
    max_rows: int
    remaining: int


class _Batch(BaseModel):
    """The response of POST v1/answers."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    policies: list[list[float]]
    levels: list[int]
    remaining: int


def token_from(file: Path | None) -> str:
    """Returns the student's token from a file if one is named, else from the environment.

    There is no flag for the token, because it would appear in the shell history, the process list
    and config.json.

    Raises:
        ValueError: there is no token.
    """
    token = (file.read_text() if file else os.environ.get(TOKEN_VARIABLE, "")).strip()
    if not token:
        where = f"the file {file} is empty" if file else f"{TOKEN_VARIABLE} is not set"
        raise ValueError(
            f"a teacher at a URL needs your token, but {where}; the operator of the teacher issues "
            "one with: sotto students issue DIR NAME"
        )
    return token


class RemoteTeacher:
    """A teacher behind `sotto serve teacher`. Close it after use, or use it in a `with` block.

    Attributes:
        statement: cost and protection of its answers, as the service states them.
        actions: number of entries of an answer.
        observation_size: number of entries of an observation.
        env_id: environment in which it was trained.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Connects to the service and asks for its statement.

        Args:
            url: address of the service.
            token: token of this student.
            patience_seconds: time during which a failed request is repeated.
            transport: transport of httpx, for tests.

        Raises:
            TeacherUnavailable: no service answers at the URL.
            TeacherRefused: the token is not accepted, or the service is no teacher.
            ValueError: the URL is not valid.
        """
        self._url = _checked_url(url)
        self._patience = patience_seconds
        self._said_so = False
        self._http = httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=_TIMEOUT_SECONDS,
            transport=transport,
        )
        try:
            about = self._understood(_About, self._request("GET", "v1/teacher"))
        except BaseException:
            self.close()
            raise
        self.statement = about.statement
        self.actions = about.statement.mechanism.actions
        self.observation_size = about.statement.observation_size
        self.env_id = about.env_id
        self._max_rows = about.max_rows
        self._remaining = about.remaining

    def __enter__(self) -> "RemoteTeacher":
        """Returns this teacher."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the connection."""
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    @property
    def remaining(self) -> int:
        """Number of rows that may still be asked, according to the last answer."""
        return self._remaining

    def answer(self, observations: Float[np.ndarray, "rows obs"]) -> Answers:
        """Returns the teacher's private answers, or uniform rows once the budget is spent.

        Args:
            observations: in the units of the environment, within `observations.LARGEST`.

        Raises:
            TeacherUnavailable: the service did not answer within the patience.
            TeacherRefused: the token or the question is not accepted.
            ValueError: the observations have a wrong shape or are out of range.
        """
        rows = checked(observations, self.observation_size)
        policies: list[Float64[np.ndarray, "rows actions"]] = []
        levels: list[int] = []
        for start in range(0, len(rows), self._max_rows):
            # Another student may spend the common budget between two batches of one question.
            batch = self._batch(rows[start : start + self._max_rows], len(rows) - start)
            if batch is None:
                return self._silent(len(rows))
            policies.append(self._checked(batch, len(rows[start : start + self._max_rows])))
            levels += batch.levels
        return Answers(np.concatenate(policies), np.array(levels), True)

    def _batch(self, rows: Float64[np.ndarray, "rows obs"], still_to_ask: int) -> _Batch | None:
        """Returns the answer of a batch, or None if the budget does not cover all rows to ask."""
        if still_to_ask > self._remaining:
            return None
        response = self._request(
            "POST",
            "v1/answers",
            json={"observations": rows.tolist()},
            headers={"Idempotency-Key": uuid.uuid4().hex},
        )
        if response.status_code == 403:
            refusal = _fields(response)
            if refusal.get("error") == "budget-spent":
                self._remaining = int(refusal.get("remaining", 0))
                return None
        batch = self._understood(_Batch, response)
        self._remaining = batch.remaining
        return batch

    def _checked(self, batch: _Batch, rows: int) -> Float64[np.ndarray, "rows actions"]:
        """Returns the rows of a batch after checking them, since the service is another party.

        Raises:
            TeacherRefused: the rows are not probabilities, or of another shape.
        """
        try:
            policies = np.array(batch.policies, dtype=np.float64)
        except ValueError:  # rows of different lengths
            policies = np.empty((0, 0))
        sound = (
            policies.shape == (rows, self.actions)
            and len(batch.levels) == rows
            and min(batch.levels) >= 0
            and bool((policies >= 0).all())
            and bool((np.abs(policies.sum(axis=1) - 1) <= _SUM_TOLERANCE).all())
        )
        if not sound:
            raise TeacherRefused(f"the answer of the teacher at {self._url} is no policy")
        return policies

    def _silent(self, rows: int) -> Answers:
        if not self._said_so:
            _log.warning("the teacher at %s is silent now: its budget is spent", self._url)
            self._said_so = True
        return silence(rows, self.actions)

    def _request(self, method: str, path: str, **what: Any) -> httpx.Response:
        """Sends a request, repeatedly if it fails, and returns the response.

        Raises:
            TeacherUnavailable: there is no response within the patience.
        """
        deadline = time.monotonic() + self._patience
        wait = _FIRST_WAIT_SECONDS
        while True:
            asked_to_wait = 0.0
            try:
                response = self._http.request(method, path, **what)
                if response.status_code != 429 and response.status_code < 500:
                    return response
                problem = _message(response)
                asked_to_wait = _seconds(response.headers.get("retry-after", ""))
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
                if "CERTIFICATE_VERIFY_FAILED" in problem:
                    raise TeacherUnavailable(
                        f"the certificate of {self._url} is not trusted; name the authority that "
                        "issued it in SSL_CERT_FILE"
                    ) from error
            pause = max(asked_to_wait, wait * random.uniform(0.5, 1.0))
            if time.monotonic() + pause > deadline:
                raise TeacherUnavailable(f"the teacher at {self._url} does not answer: {problem}")
            time.sleep(pause)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    def _understood(self, model: type[_M], response: httpx.Response) -> _M:
        """Returns the response as a model.

        Raises:
            TeacherRefused: the response is a refusal or is not understood.
        """
        if response.status_code == 401:
            raise TeacherRefused(
                f"the teacher at {self._url} does not know the token in {TOKEN_VARIABLE}, or it "
                "was revoked; put yours there, or ask the operator of the teacher for one: "
                "sotto students issue DIR NAME"
            )
        if response.status_code != 200:
            raise TeacherRefused(f"the teacher at {self._url} refuses: {_message(response)}")
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise TeacherRefused(
                f"{self._url} does not answer as a teacher of this version of sotto does"
            ) from error


def _checked_url(url: str) -> str:
    """Returns the URL if it is one of HTTP; warns if the token would be sent in clear text.

    Raises:
        ValueError: it is not a URL of HTTP.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is no URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is no address of a teacher; give one with https:// or http://")
    if parsed.scheme == "http" and parsed.host not in _LOOPBACK:
        _log.warning(
            "the token is sent to %s in clear text; use https outside a trusted network", url
        )
    return url


def _fields(response: httpx.Response) -> dict[str, Any]:
    """Returns the JSON object of a refusal; empty if it has none."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _message(response: httpx.Response) -> str:
    """Returns the message of a refusal, safe to print on a terminal."""
    text = str(_fields(response).get("message", f"HTTP status {response.status_code}"))
    return visible(text)[:300]


def _seconds(text: str) -> float:
    """Returns a Retry-After header in seconds; 0 if it holds no number."""
    return float(text) if re.fullmatch(r"\d{1,6}(\.\d+)?", text) else 0.0
