"""The base class of what sotto writes as JSON and reads again: certificates, statements, settings.

Such a model never changes, and it refuses what it does not know, so that a file of another version
or a misspelt field is an error and never half understood.
"""

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """An immutable pydantic model that refuses unknown fields.

    Infinite numbers are written as strings, because JSON has none.

    Raises:
        pydantic.ValidationError: a field is missing, unknown or wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
