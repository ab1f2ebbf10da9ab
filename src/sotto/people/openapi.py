"""The description of a campaign's HTTP interface (OpenAPI 3.1)."""

from typing import Any

_NUMBERS = {"type": "array", "items": {"type": "number"}}
_PLACE = {"type": "string", "description": "name of the place, from POST /v1/places"}
_REFUSAL = {
    "description": "A refusal; `error` is its kind, and `message` says what to do.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
            }
        }
    },
}


def description(name: str) -> dict[str, Any]:
    """Returns the description.

    Args:
        name: name of the campaign.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Campaign {name}", "version": "1"},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
        "paths": {
            "/v1/campaign": {"get": _operation("Public facts and terms")},
            "/v1/policy": {"get": _operation("The current policy; its ETag is the version")},
            "/v1/state": {"get": _operation("The public state of the current version, as bytes")},
            "/v1/result": {
                "get": _operation("The moving average of the released policies: the result")
            },
            "/v1/places": {"post": _operation("Take a place in the open release", {})},
            "/v1/actions": {
                "post": _operation(
                    "Action for an observation, if the service chooses actions",
                    {"place": _PLACE, "step": {"type": "integer"}, "observation": _NUMBERS},
                )
            },
            "/v1/contributions": {
                "post": _operation(
                    "Give a trajectory (T + 1 observations, T actions, T rewards) or an update. "
                    "The same request may be sent again.",
                    {
                        "place": _PLACE,
                        "observations": {"type": "array", "items": _NUMBERS},
                        "actions": {"type": "array"},
                        "rewards": _NUMBERS,
                        "terminated": {"type": "boolean"},
                        "update": {"type": "string", "contentEncoding": "base64"},
                    },
                )
            },
            "/v1/withdrawals": {"post": _operation("Withdraw from the campaign", {})},
            "/v1/me": {"get": _operation("What was collected about the caller, and its cost")},
            "/v1/certificate": {"get": _operation("The certificate as of the last release")},
            "/v1/operator": {"get": _operation("Counts and budget, for the operator")},
            "/v1/people": {
                "post": _operation(
                    "New tokens, for the operator", {"count": {"type": "integer", "minimum": 1}}
                )
            },
        },
    }


def _operation(summary: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns an operation whose body is a JSON object with these fields."""
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {
                "description": "An answer",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "4XX": _REFUSAL,
            "5XX": _REFUSAL,
        },
    }
    if fields is not None:
        schema = {"type": "object", "properties": fields}
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return found
