"""The JSON Schema of a certificate, made from the model and from the sentences of `claims`."""

import re
from string import Formatter
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from sotto.privacy.certificates.model import Certificate, DescribedCertificate
from sotto.privacy.claims import by_name
from sotto.privacy.claims.claim import Claim

_ATTRIBUTE = re.compile(r"^    (\w+): ", re.MULTILINE)


class _Schema(GenerateJsonSchema):
    """The generator of pydantic, with infinities as certificates write them, and descriptions."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Returns False: a title would only repeat the name."""
        del schema
        return False

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """Returns the schema of a number; "Infinity" stands for the one that JSON lacks."""
        number = super().float_schema(schema)
        bounded = schema.get("allow_inf_nan") is False or "le" in schema or "lt" in schema
        return number if bounded else {"anyOf": [number, {"const": "Infinity"}]}


def schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of certificates of schema version 2.

    Each sentence that a certificate may name is there in words, so that the file explains itself.
    A text that validates may still be no certificate: the schema does not know which values belong
    together, and sees neither two equal names nor the layout of the text.
    """
    kinds = TypeAdapter(Certificate | DescribedCertificate)
    made = kinds.json_schema(schema_generator=_Schema)
    definitions = made["$defs"]
    definitions["Reference"] = {
        "description": definitions["Reference"]["description"],
        "oneOf": [_sentence(claim) for claim in by_name().values()],
    }
    for one in definitions.values():
        _describe(one)
    for kind in (Certificate, DescribedCertificate):
        definitions[kind.__name__]["required"].insert(0, "schema_version")
    definitions["DescribedCertificate"]["required"].append("status")
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": "urn:sotto:certificate:2",
        "title": "Privacy certificate of sotto, schema version 2",
        **made,
    }


def _sentence(claim: Claim) -> dict[str, Any]:
    """Returns the schema of a reference to one sentence, whose words are the description."""
    names = sorted({name for _, name, _, _ in Formatter().parse(claim.sentence) if name})
    properties: dict[str, Any] = {
        "claim": {"const": claim.identifier},
        "version": {"const": claim.version},
    }
    if names:
        properties["numbers"] = {
            "type": "object",
            "properties": {name: {"type": "string"} for name in names},
            "required": names,
        }
    how = f" ({claim.how})" if claim.how else ""
    return {
        "description": f"{claim.section}: {claim.sentence}{how}",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _describe(one: dict[str, Any]) -> None:
    """Moves the attributes in a class's docstring to the properties that they describe."""
    text, _, attributes = one.get("description", "").partition("\n\nAttributes:\n")
    if text:
        one["description"] = text
    _, *found = _ATTRIBUTE.split(attributes)
    for name, words in zip(found[::2], found[1::2], strict=True):
        one["properties"][name]["description"] = " ".join(words.split())
