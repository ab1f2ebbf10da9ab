"""The mechanisms that make a teacher's rows private: a union that pydantic tells apart by kind."""

from typing import Annotated

from pydantic import Field

from sotto.privacy.mechanisms.dirichlet.mechanism import Dirichlet, TruncatedDirichlet
from sotto.privacy.mechanisms.gaussian_policy import GaussianPolicy

__all__ = ["Dirichlet", "GaussianPolicy", "PolicyMechanism", "TruncatedDirichlet"]

PolicyMechanism = Annotated[
    Dirichlet | TruncatedDirichlet | GaussianPolicy, Field(discriminator="kind")
]
"""How a row becomes an answer. All of them have:

* `actions`, `floor`: public.
* `restrict(policies)`: (1 - m floor) pi + floor.
* `answer(policies, generator)`: private rows, from the teacher's own rows (it restricts them).
* `events(distance, count)`: what `count` answers cost; `distance` as `Distance.between` gives it.
"""
