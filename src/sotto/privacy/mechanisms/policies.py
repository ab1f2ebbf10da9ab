"""The mechanisms that make a teacher's rows private: a union that pydantic tells apart by kind."""

from typing import Annotated

from pydantic import Field

from sotto.privacy.mechanisms.dirichlet.mechanism import Dirichlet, TruncatedDirichlet
from sotto.privacy.mechanisms.gaussian_policy import GaussianPolicy

__all__ = ["Dirichlet", "GaussianPolicy", "PolicyMechanism", "TruncatedDirichlet"]

PolicyMechanism = Annotated[
    Dirichlet | TruncatedDirichlet | GaussianPolicy, Field(discriminator="kind")
]
"""Mechanisms that turn a row into an answer. Each of them has

* `actions`, `floor`: public numbers.
* `restrict(policies)`: returns (1 - m floor) pi + floor.
* `answer(policies, generator)`: returns private rows; it restricts the teacher's rows itself.
* `events(distance, count)`: returns the cost of `count` answers, given `Distance.between`.
"""
