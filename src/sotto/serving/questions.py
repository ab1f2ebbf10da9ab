"""A student's question: reads the body of a request and refuses anything but observations."""

import re
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Float64
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from sotto.privacy.answers.observations import LARGEST
from sotto.problems import first_problem
from sotto.serving.traffic.bodies import Bodies
from sotto.serving.traffic.limits import Limits
from sotto.serving.traffic.refusals import Refusal

_KEY = re.compile(r"[\x21-\x7e]{1,128}")
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    observations: list[list[_Number]]


class Question(NamedTuple):
    """A valid batch of observations."""

    observations: Float64[np.ndarray, "rows obs"]
    idempotency_key: str | None

    @property
    def contents(self) -> bytes:
        """Bytes of the observations, which are equal for equal observations in any notation."""
        shape = str(self.observations.shape).encode()
        return shape + self.observations.astype("<f8").tobytes()


async def read_question(
    student: str, request: Request, observation_size: int, limits: Limits, bodies: Bodies
) -> Question:
    """Reads a student's request for answers.

    Raises:
        Refusal: the request is too large, too slow, or not a batch of observations.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise Refusal(
            400,
            "bad-idempotency-key",
            "an Idempotency-Key is 1 to 128 visible ASCII characters, such as a random UUID",
        )
    body = await bodies.read(
        student,
        request,
        limits.max_body_bytes(observation_size),
        limits.body_seconds,
        "send fewer observations at once",
    )
    return Question(_observations(body, observation_size, limits.max_rows), key)


def _observations(
    body: bytes, observation_size: int, max_rows: int
) -> Float64[np.ndarray, "rows obs"]:
    try:
        rows = _Body.model_validate_json(body).observations
    except ValidationError as error:
        problem = first_problem(error, _Body, "the body")
        if error.errors()[0]["type"] == "json_invalid":
            raise Refusal(400, "not-json", problem) from None
        raise Refusal(
            422,
            "bad-observations",
            f'send {{"observations": [[...], ...]}}, a list of rows of numbers; {problem}',
        ) from None
    if not rows:
        raise Refusal(422, "bad-observations", "there is no row; send at least one observation")
    if len(rows) > max_rows:
        raise Refusal(
            413,
            "too-many-rows",
            f"{len(rows)} observations at once are too many; send at most {max_rows}",
            details={"max_rows": max_rows},
        )
    for index, row in enumerate(rows):
        if len(row) != observation_size:
            raise Refusal(
                422,
                "bad-observations",
                f"an observation has {observation_size} numbers; row {index} has {len(row)}",
            )
    return np.array(rows, dtype=np.float64)
