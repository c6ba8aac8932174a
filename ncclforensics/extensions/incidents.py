"""Test rules by sample incidents: folders with logs and a `case.json` that says what must be found in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from ncclforensics import analyze
from ncclforensics.errors import ForensicsError, place_of
from ncclforensics.extensions.loading import Extension
from ncclforensics.rules.finding import Category
from ncclforensics.rules.registry import HEADINGS
from ncclforensics.views.json_report import as_object

FOLDER = "incidents"
CASE = "case.json"
NO_INPUTS = (CASE, "report.md")  # files of an incident that are no logs
REQUIRED = ("what_happened", "expected_findings", "expected_notes", "must_not_report")
OPTIONAL = ("truth", "command", "ranks_missing", "nccl", "origin", "synthetic")


@dataclass(frozen=True, slots=True)
class _Checked:
    """An incident that was analysed: what its case says, and what the report does."""

    case: dict[str, Any]
    findings: list[dict[str, Any]]

    def expects(self, category: str) -> bool:
        """Whether a finding of this category must be there."""
        return category in (*self.case["expected_findings"], *self.case["expected_notes"])


def count_incidents(extension: Extension) -> int:
    """How many incidents an extension has."""
    return len(_cases(extension))


def incident_problems(extension: Extension) -> Iterator[str]:
    """Yield what is wrong with the rules of an extension, by their pages and by the incidents in its folder."""
    checked: list[_Checked] = []
    for path in _cases(extension):
        problems, incident = _check(path)
        yield from (f"{path}: {problem}" for problem in problems)
        checked += [incident] if incident else []
    for rule in extension.rules:
        place = place_of(rule.function)
        if missing := [heading for heading in HEADINGS if not rule.section(heading)]:
            yield f"{place}: the docstring of {rule.name} lacks {', '.join(missing)}"
        if not any(rule.name in _rules(incident) and incident.expects(rule.category) for incident in checked):
            yield f"{place}: no incident that expects {rule.category} shows the rule {rule.name}"
        forbidding = [incident for incident in checked if rule.category in incident.case["must_not_report"]]
        if not any(rule.name not in _rules(incident) for incident in forbidding):
            yield f"{place}: no incident forbids {rule.category}, the category of {rule.name}, as a false alarm"


def _cases(extension: Extension) -> list[Path]:
    return sorted(extension.folder.glob(f"{FOLDER}/*/{CASE}"))


def _rules(incident: _Checked) -> set[str]:
    return {finding["rule"] for finding in incident.findings}


def _check(path: Path) -> tuple[list[str], _Checked | None]:
    """Analyse an incident, and compare the report with what its case says: the problems, and the incident."""
    try:
        case = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        return [f"line {error.lineno}: {error.msg}"], None
    if not isinstance(case, dict):
        return ["is no JSON object"], None
    problems = [f"lacks the key {key}" for key in REQUIRED if key not in case]
    problems += [f"has an unknown key {key}" for key in sorted(set(case) - {*REQUIRED, *OPTIONAL})]
    if problems:
        return problems, None
    categories = [category for key in REQUIRED[1:] for category in case[key]]
    problems += [f"there is no category {category}" for category in sorted(set(categories) - set(Category))]
    files = sorted(file for file in path.parent.rglob("*") if file.is_file() and file.name not in NO_INPUTS)
    try:
        report = analyze(files, everything=True)
        hang = report if case.get("command") == "check" or "truth" not in case else analyze(files)
    except ForensicsError as error:
        return [*problems, str(error)], None
    answer = as_object(report)
    problems += [str(defect) for defect in report.defects]
    problems += _differences("expected_findings", case, _categories(answer["findings"], "error", "warning"))
    problems += _differences("expected_notes", case, _categories(answer["findings"], "info"))
    false_alarms = set(case["must_not_report"]) & _categories(answer["findings"], "error", "warning", "info")
    problems += [f"{category} must not be reported, and is" for category in sorted(false_alarms)]
    verdict = {"ranks_missing": answer["run"]["ranks_missing"], **as_object(hang)["hang"]}
    stated = {**case.get("truth", {}), **{key: case[key] for key in ("ranks_missing",) if key in case}}
    problems += [
        f"{key} is {verdict.get(key)!r}, and {value!r} is true"
        for key, value in stated.items()
        if verdict.get(key) != value
    ]
    return problems, _Checked(case, answer["findings"])


def _categories(findings: Iterable[dict[str, Any]], *severities: str) -> set[str]:
    return {finding["category"] for finding in findings if finding["severity"] in severities}


def _differences(key: str, case: dict[str, Any], found: set[str]) -> list[str]:
    """What a case expects and the report lacks, and the reverse."""
    missing, extra = sorted(set(case[key]) - found), sorted(found - set(case[key]))
    problems = [f"{category} is expected, and not found" for category in missing]
    return problems + [f"{category} is found, and not among {key}" for category in extra]
