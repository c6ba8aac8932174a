"""The JSON report agrees with its published schema, and holds no key that the schema does not name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.incidents import ALL, ROOT, Incident, checked

SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))


def closed(schema: Any) -> Any:
    """Return the schema with every object closed whose properties it lists."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return inner | {"additionalProperties": False} if "properties" in inner and inner.get("type") == "object" else inner


VALIDATOR = Draft202012Validator(closed(SCHEMA))


def test_the_schema_itself_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("incident", ALL[::12], ids=lambda incident: incident.name)
def test_reports_agree_with_the_schema(incident: Incident) -> None:
    report = checked(incident).json

    assert [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(report)] == []


@pytest.mark.parametrize(
    "broken",
    [{"findings": [{}]}, {"hang": {"verdict": "no-such-verdict"}}, {"schema_version": 2}, {"surplus": 1}],
    ids=["finding", "verdict", "version", "surplus"],
)
def test_a_report_of_another_form_is_refused(broken: dict[str, Any]) -> None:
    report = checked(ALL[0]).json

    assert not VALIDATOR.is_valid(report | broken)
