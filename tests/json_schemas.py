"""The published schemas of JSON outputs, closed: an output must hold no key that its schema does not name."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.incidents import ROOT

NAMES = ("report.schema.json", "difference.schema.json", "history.schema.json", "simulated.schema.json")


def closed(schema: Any) -> Any:
    """Return the schema with every object closed whose properties it lists."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return inner | {"additionalProperties": False} if "properties" in inner and inner.get("type") == "object" else inner


@cache
def schemas() -> dict[str, Any]:
    return {name: json.loads((ROOT / "docs" / name).read_text(encoding="utf-8")) for name in NAMES}


@cache
def validator(name: str) -> Draft202012Validator:
    resources = [(each, Resource.from_contents(closed(schema))) for each, schema in schemas().items()]
    registry: Registry[Any] = Registry().with_resources(resources)
    return Draft202012Validator(closed(schemas()[name]), registry=registry)


def violations(name: str, output: Any) -> list[str]:
    """Where an output does not agree with its schema."""
    return [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(output)]
