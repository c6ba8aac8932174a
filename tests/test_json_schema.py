"""The JSON report agrees with its published schema, and holds no key that the schema does not name."""

from __future__ import annotations

import json
import re
from typing import Any

import jq
import pytest
from jsonschema import Draft202012Validator

from tests.incidents import ALL, INCIDENTS, ROOT, Incident, answer, checked
from tests.json_schemas import NAMES, schemas, validator, violations

PAGE = (ROOT / "docs" / "report-json.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_schemas_themselves_are_valid(name: str) -> None:
    Draft202012Validator.check_schema(schemas()[name])


@pytest.mark.parametrize("incident", ALL[::12], ids=lambda incident: incident.name)
def test_reports_agree_with_the_schema(incident: Incident) -> None:
    report = checked(incident).json

    assert violations("report.schema.json", report) == []


RECIPES = re.findall(r"^ +ncclforensics hang logs/ --format json \| jq (?:-r )?'(.+)'$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_documented_recipes_of_jq_give_an_answer(recipe: str) -> None:
    names = ("three-ranks-time-out-and-one-is-silent", "one-rank-stops-before-an-allreduce")
    reports = "\n".join(json.dumps(answer(Incident(INCIDENTS / name)).json) for name in names)

    answers = jq.compile(recipe).input_text(reports).all()

    assert [answer for answer in answers if answer]


def test_the_page_on_json_shows_recipes() -> None:
    assert len(RECIPES) >= 3


@pytest.mark.parametrize(
    "broken",
    [{"findings": [{}]}, {"hang": {"verdict": "no-such-verdict"}}, {"schema_version": 2}, {"surplus": 1}],
    ids=["finding", "verdict", "version", "surplus"],
)
def test_a_report_of_another_form_is_refused(broken: dict[str, Any]) -> None:
    report = checked(ALL[0]).json

    assert not validator("report.schema.json").is_valid(report | broken)
