"""The report in formats for CI: JUnit XML and SARIF 2.1.0."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from ncclforensics import __version__
from ncclforensics.analyses.slow.answer import SlowAnswer, SlowKind
from ncclforensics.data.names import printable
from ncclforensics.frames.protocol import has_rows
from ncclforensics.report.build import Report
from ncclforensics.report.slow import slow_answer
from ncclforensics.report.without_job import reason_without_job, verdict_without_job
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import Rule
from ncclforensics.views.json_report import dump_json

NAME = "ncclforensics"
SPEED = "verdict on the speed of the job"  # the name of its test case
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
UNDECIDED = "undecidable"  # the type of an error of JUnit
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def junit(report: Report, failing: Collection[str]) -> bytes:
    """Return a test case for each rule and one for what makes a job slow; what has a failing severity is a failure.

    A part of the program that failed is a test case with an error of the type `defect`, and a run that the files do not
    decide one of the type UNDECIDED. A rule for which they hold no data was skipped, and so was the verdict on a job
    where they show none but machines that were judged: none of these is a pass.
    """
    findings_of = {
        rule.name: [finding for finding in report.findings if finding.rule == rule.name] for rule in report.rules
    }
    failed = {
        name for name, findings in findings_of.items() if any(finding.severity in failing for finding in findings)
    }
    idle = {rule.name: rule.of for rule in report.rules if not has_rows(report.run, rule)}
    undecided = {
        f"verdict on job {answer.job}": answer.reason for answer in report.verdicts if answer.verdict == "undecidable"
    }
    if not report.verdicts and verdict_without_job(report.run) == "undecidable":
        undecided["verdict on a job"] = reason_without_job(report.run, report.findings)
    slow = slow_answer(report)
    is_slow = slow is not None and slow.is_actionable and Severity.WARNING in failing
    is_open = slow is not None and slow.verdict is SlowKind.UNDECIDABLE
    judging = [rule for rule in report.rules if rule.of and rule.category is not Category.INCOMPLETE_EVIDENCE]
    has_data = any(rule.name not in idle for rule in judging)
    is_judged = report.is_about_slow or (not report.verdicts and has_data)
    errors = len(report.defects) + len(undecided) * (not is_judged) + (is_open and report.is_about_slow)
    tests = len(findings_of) + len(report.defects) + len(undecided) + (slow is not None)
    counts = {"tests": str(tests), "failures": str(len(failed) + is_slow), "errors": str(errors)}
    suites = ET.Element("testsuites", {"name": NAME, **counts})
    skipped = str(len(undecided) * is_judged + len(idle) + (is_open and not report.is_about_slow))
    suite = ET.SubElement(suites, "testsuite", {"name": NAME, "skipped": skipped, **counts})
    for rule in report.rules:
        case = ET.SubElement(suite, "testcase", {"classname": str(rule.category), "name": rule.name})
        text = {True: "", False: ""}
        for finding in findings_of[rule.name]:
            text[finding.severity in failing] += _finding_text(report, finding)
        if rule.name in failed:
            failures = [finding for finding in findings_of[rule.name] if finding.severity in failing]
            titles = printable("; ".join(finding.title for finding in failures))
            failure = ET.SubElement(case, "failure", {"message": titles, "type": str(failures[0].severity)})
            failure.text = text[True]
        if rule.name in idle:
            message = f"not judged: these files have no rows for {', '.join(idle[rule.name])}"
            ET.SubElement(case, "skipped", {"message": message})
        if text[False]:
            ET.SubElement(case, "system-out").text = text[False]
    for defect in report.defects:
        case = ET.SubElement(suite, "testcase", {"classname": NAME, "name": printable(defect.part)})
        ET.SubElement(case, "error", {"message": printable(str(defect)), "type": "defect"})
    for name, reason in undecided.items():
        case = ET.SubElement(suite, "testcase", {"classname": NAME, "name": name})
        _leave_open(case, f"undecidable: {reason}", is_error=not is_judged)
    if slow is not None:
        case = ET.SubElement(suite, "testcase", {"classname": NAME, "name": SPEED})
        stated = {"message": printable(_verdict_text(slow))}
        if is_open:
            _leave_open(case, stated["message"], is_error=report.is_about_slow)
        elif is_slow:
            ET.SubElement(case, "failure", {**stated, "type": str(Severity.WARNING)})
        else:
            ET.SubElement(case, "system-out").text = stated["message"]
    ET.indent(suites)
    data: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _leave_open(case: ET.Element, reason: str, *, is_error: bool) -> None:
    """Mark a test case that was not decided: as an error if it was asked for, or as skipped."""
    message = {"message": printable(reason)}
    if is_error:
        ET.SubElement(case, "error", {**message, "type": UNDECIDED})
    else:
        ET.SubElement(case, "skipped", message)


def _verdict_text(slow: SlowAnswer) -> str:
    return f"{slow.verdict} ({slow.certainty}): {slow.claim}"


def _finding_text(report: Report, finding: Finding) -> str:
    """Return a finding as lines of text without characters that XML forbids."""
    lines = [f"{finding.title} ({finding.certainty})", finding.detail, finding.remedy]
    lines += [f"{line['path']}:{line['line']}: {line['text']}" for line in report.evidence(finding)]
    return "".join(f"{printable(text)}\n" for text in lines if text)


def sarif(report: Report) -> bytes:
    """Return a SARIF result for each finding at its cited lines, with the rule pages as help.

    What makes a job slow is one more result, without a rule; that the files do not decide it, a notification.
    """
    index = {rule.name: number for number, rule in enumerate(report.rules)}
    driver = {
        "name": NAME,
        "version": __version__,
        "rules": [_rule(rule) for rule in report.rules],
    }
    results = [_result(report, finding, index[finding.rule]) for finding in report.findings]
    notes = [{"level": "error", "message": {"text": printable(str(defect))}} for defect in report.defects]
    invocation = {"executionSuccessful": not notes, "toolExecutionNotifications": notes}
    slow = slow_answer(report)
    if slow is not None and slow.is_actionable:
        results.append(_slow_result(report, slow))
    elif slow is not None and slow.verdict is SlowKind.UNDECIDABLE:
        notes.append({"level": "warning", "message": {"text": printable(_verdict_text(slow))}})
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return dump_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.page.splitlines()[0]},
        "fullDescription": {"text": rule.section("Means")},
        "help": {"text": f"{rule.section('Do')}\nNot when: {rule.section('Not when')}"},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {"category": str(rule.category)},
    }


def _result(report: Report, finding: Finding, number: int) -> dict[str, Any]:
    return {
        "ruleId": finding.rule,
        "ruleIndex": number,
        "level": LEVELS[finding.severity or Severity.INFO],
        "message": {"text": printable(f"{finding.title}. {finding.detail}")},
        "locations": [_location(line) for line in report.evidence(finding)],
        "properties": {
            "category": str(finding.category),
            "certainty": finding.certainty,
            "role": str(finding.role),
            "ranks": finding.ranks,
            "hosts": finding.hosts,
        },
    }


def _slow_result(report: Report, slow: SlowAnswer) -> dict[str, Any]:
    return {
        "ruleId": str(slow.verdict),
        "level": LEVELS[Severity.WARNING],
        "message": {"text": printable(_verdict_text(slow))},
        "locations": [_location(report.cited(source, line)) for source, line in slow.evidence],
        "properties": {"certainty": slow.certainty, "ranks": list(slow.ranks), "hosts": list(slow.hosts)},
    }


def _location(line: dict[str, Any]) -> dict[str, Any]:
    path = Path(line["path"])
    region = {"startLine": line["line"], "snippet": {"text": line["text"]}}
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, **({"region": region} if line["line"] else {})}}
