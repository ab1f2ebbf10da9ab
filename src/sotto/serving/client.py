"""The student's side of the service: a teacher at a URL, used like one in the same process.

Every batch has an idempotency key. If a request fails, the same batch is sent again with the same
key. It is then charged only once and gets the stored answer.
"""

import logging
import os
import uuid
from typing import Annotated, TypeVar

import httpx
import numpy as np
from jaxtyping import Float, Float64
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sotto.algorithms.kickstarting.teachers import Answers, silent_answers
from sotto.privacy.answers.observations import checked
from sotto.privacy.answers.statement import MOST_LEVELS, AnswerStatement
from sotto.serving.patient import PATIENCE_SECONDS, PatientHttp, fields_of, message_of

TOKEN_VARIABLE = "SOTTO_TEACHER_TOKEN"

_SUM_TOLERANCE = 1e-6
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
    max_rows: int = Field(ge=1)
    remaining: int = Field(ge=0)


class _Batch(BaseModel):
    """The response of POST v1/answers."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    policies: list[list[float]]
    levels: list[Annotated[int, Field(ge=0, lt=MOST_LEVELS)]]
    remaining: int = Field(ge=0)


def token_from_environment() -> str:
    """Returns the student's token from the environment.

    There is no flag for the token, because it would appear in the shell history, the process list
    and config.json.

    Raises:
        ValueError: there is no token.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise ValueError(
            f"a teacher at a URL needs your token, but {TOKEN_VARIABLE} is not set; the operator "
            "of the teacher issues one with: sotto students issue DIR NAME"
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
        patience_seconds: float = PATIENCE_SECONDS,
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
        self._url = url
        self._said_so = False
        self._http = PatientHttp(
            "teacher", url, token, TeacherUnavailable, patience_seconds, transport
        )
        try:
            about = self._understood(_About, self._http.request("GET", "v1/teacher"))
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
        response = self._http.request(
            "POST",
            "v1/answers",
            json={"observations": rows.tolist()},
            headers={"Idempotency-Key": uuid.uuid4().hex},
        )
        if response.status_code == 403:
            refusal = fields_of(response)
            if refusal.get("error") == "budget-spent":
                left = refusal.get("remaining")
                self._remaining = left if type(left) is int and left > 0 else 0
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
        return silent_answers(rows, self.actions)

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
            raise TeacherRefused(f"the teacher at {self._url} refuses: {message_of(response)}")
        try:
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise TeacherRefused(
                f"{self._url} does not answer as a teacher of this version of sotto does"
            ) from error
