"""The report for acceptance gates: JUnit XML, which every CI server shows, and SARIF 2.1.0, which code hosts show."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import orjson

from ncclforensics import __version__
from ncclforensics.data.names import printable
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding, Severity
from ncclforensics.rules.registry import Rule

NAME = "ncclforensics"
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def junit(report: Report, serious: Collection[str]) -> bytes:
    """One test case for each rule that was asked; findings of a serious severity are its failures."""
    said = {one.name: [finding for finding in report.findings if finding.rule == one.name] for one in report.rules}
    failed = {name for name, findings in said.items() if any(finding.severity in serious for finding in findings)}
    counts = {"tests": str(len(said)), "failures": str(len(failed)), "errors": "0"}
    suites = ET.Element("testsuites", {"name": NAME, **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": NAME, "skipped": "0", **counts})
    for one in report.rules:
        case = ET.SubElement(suite, "testcase", {"classname": str(one.category), "name": one.name})
        told = {True: "", False: ""}
        for finding in said[one.name]:
            told[finding.severity in serious] += _told(report, finding)
        if one.name in failed:
            failures = [each for each in said[one.name] if each.severity in serious]
            titles = printable("; ".join(each.title for each in failures))
            failure = ET.SubElement(case, "failure", {"message": titles, "type": str(failures[0].severity)})
            failure.text = told[True]
        if told[False]:
            ET.SubElement(case, "system-out").text = told[False]
    ET.indent(suites)
    data: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _told(report: Report, finding: Finding) -> str:
    """A finding as lines of text; what XML does not allow is left out."""
    lines = [f"{finding.title} ({finding.certainty})", finding.detail, finding.remedy]
    lines += [f"{place['path']}:{place['line']}: {place['text']}" for place in report.evidence(finding)]
    return "".join(f"{printable(line)}\n" for line in lines if line)


def sarif(report: Report) -> bytes:
    """One result for each finding, at the lines that show it; the rules' pages as help."""
    place = {one.name: number for number, one in enumerate(report.rules)}
    driver = {
        "name": NAME,
        "version": __version__,
        "rules": [_rule(one) for one in report.rules],
    }
    results = [_result(report, finding, place[finding.rule]) for finding in report.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return orjson.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, option=orjson.OPT_INDENT_2) + b"\n"


def _rule(one: Rule) -> dict[str, Any]:
    return {
        "id": one.name,
        "shortDescription": {"text": one.page.splitlines()[0]},
        "fullDescription": {"text": one.section("Means")},
        "help": {"text": f"{one.section('Do')}\nNot when: {one.section('Not when')}"},
        "defaultConfiguration": {"level": LEVELS[one.severity]},
        "properties": {"category": str(one.category)},
    }


def _result(report: Report, finding: Finding, number: int) -> dict[str, Any]:
    return {
        "ruleId": finding.rule,
        "ruleIndex": number,
        "level": LEVELS[finding.severity or Severity.INFO],
        "message": {"text": printable(f"{finding.title}. {finding.detail}")},
        "locations": [_location(each) for each in report.evidence(finding)],
        "properties": {
            "category": str(finding.category),
            "certainty": finding.certainty,
            "role": str(finding.role),
            "ranks": finding.ranks,
            "hosts": finding.hosts,
        },
    }


def _location(place: dict[str, Any]) -> dict[str, Any]:
    path = Path(place["path"])
    region = {"startLine": place["line"], "snippet": {"text": place["text"]}}
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, **({"region": region} if place["line"] else {})}}
