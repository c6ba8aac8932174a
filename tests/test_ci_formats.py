"""Reports for acceptance gates: valid, complete, and in agreement with the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from ncclforensics import analyze
from ncclforensics.analyses.slow.answer import SlowKind
from ncclforensics.cli import main
from ncclforensics.errors import UsageError
from ncclforensics.frames.protocol import has_rows
from ncclforensics.inputs import lines
from ncclforensics.report.slow import slow_answer
from ncclforensics.report.without_job import verdict_without_job
from ncclforensics.rules.finding import Severity
from ncclforensics.rules.registry import all_rules
from ncclforensics.simulate.slow import SlowFault, SlowPlan, generate_slow
from ncclforensics.views import ci_formats
from tests.incidents import ALL, INCIDENTS, Incident, checked

pytestmark = pytest.mark.usefixtures("shared_analyses")
SERIOUS = ("error", "warning")
PORT = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n"
KILLED = str(INCIDENTS / "a-rank-is-killed" / "*.log")


@cache
def junit_schema() -> Any:
    import xmlschema

    return xmlschema.XMLSchema(Path(__file__).parent / "schemas" / "junit.xsd")


@cache
def sarif_model() -> Any:
    from sarif_pydantic import Sarif

    return Sarif


some_incidents = pytest.mark.parametrize("incident", ALL[::12], ids=lambda incident: incident.name)


@some_incidents
def test_junit_is_valid_and_fails_for_what_is_serious(incident: Incident) -> None:
    report = checked(incident).report

    document = ET.fromstring(ci_formats.junit(report, SERIOUS))

    junit_schema().validate(document)
    serious = {finding.rule for finding in report.findings if finding.severity in SERIOUS}
    slow = slow_answer(report)
    if slow is not None and slow.is_actionable:
        serious.add(ci_formats.SPEED)
    assert {case.get("name") for case in document.iter("testcase") if case.find("failure") is not None} == serious
    assert document.get("failures") == str(len(serious))
    undecided = [str(answer.verdict) for answer in report.verdicts] or [str(verdict_without_job(report.run))]
    undecided = [verdict for verdict in undecided if verdict == "undecidable"]
    idle = [rule for rule in all_rules() if not has_rows(report.run, rule)]
    assert document.get("tests") == str(len(all_rules()) + len(undecided) + (slow is not None))
    skipped = [case for case in document.iter("testcase") if case.find("skipped") is not None]
    is_open = slow is not None and slow.verdict is SlowKind.UNDECIDABLE
    errors = document.findall(".//error[@type='undecidable']")
    assert len(skipped) + len(errors) == len(undecided) + len(idle) + is_open
    assert not report.verdicts or len(errors) == len(undecided)


@pytest.mark.parametrize(
    ("absent", "outcome", "results"), [(None, "failure", ["slow-rank"]), (0, "error", [])], ids=["slow", "undecided"]
)
def test_what_makes_a_job_slow_is_a_test_case_that_passes_only_if_it_was_judged(
    tmp_path: Path, absent: int | None, outcome: str, results: list[str]
) -> None:
    generate_slow(SlowPlan(SlowFault.RANK, gpus_per_node=4, tp=2), tmp_path)
    if absent is not None:
        (tmp_path / f"rank{absent}.pt.trace.json").unlink()
    report = replace(analyze([str(tmp_path)], full=True), is_about_slow=True)

    document = ET.fromstring(ci_formats.junit(report, SERIOUS))
    (run,) = json.loads(ci_formats.sarif(report))["runs"]

    junit_schema().validate(document)
    sarif_model().model_validate_json(ci_formats.sarif(report))
    (case,) = (case for case in document.iter("testcase") if case.get("name") == ci_formats.SPEED)
    assert [part.tag for part in case] == [outcome]
    assert int(document.get("tests") or 0) == len(list(document.iter("testcase")))
    assert [result["ruleId"] for result in run["results"] if "ruleIndex" not in result] == results
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [note["level"] for note in notes] == ["warning"] * (outcome == "error")


@pytest.mark.parametrize(
    ("text", "rule", "is_skipped"),
    [
        (PORT, "ctr-port-below-siblings", False),
        (PORT, "boot-connect-failed", True),
        ("loss 2.1\n", "nic-firmware-differs", True),
    ],
)
def test_a_rule_without_data_and_a_verdict_without_a_job_are_no_pass(
    text: str, rule: str, is_skipped: bool, tmp_path: Path
) -> None:
    (tmp_path / "input.txt").write_text(text)

    document = ET.fromstring(ci_formats.junit(analyze(str(tmp_path), everything=True), SERIOUS))

    junit_schema().validate(document)
    skipped = {case.get("name") for case in document.iter("testcase") if case.find("skipped") is not None}
    open_cases = {case.get("name") for case in document.iterfind(".//error[@type='undecidable']/..")}
    assert (rule in skipped) == is_skipped
    assert ("verdict on a job" in skipped) == (text == PORT)
    assert open_cases == (set() if text == PORT else {"verdict on a job"})
    assert document.get("errors") == str(len(open_cases))


def test_fail_on_decides_which_testcases_fail() -> None:
    report = analyze([KILLED], everything=True)

    assert ET.fromstring(ci_formats.junit(report, ())).get("failures") == "0"
    assert ET.fromstring(ci_formats.junit(report, ("error",))).get("failures") != "0"


@some_incidents
def test_sarif_is_valid_and_holds_every_finding_with_its_lines(incident: Incident) -> None:
    report = checked(incident).report

    text = ci_formats.sarif(report)

    sarif_model().model_validate_json(text)
    (run,) = json.loads(text)["runs"]
    of_rules = [result for result in run["results"] if "ruleIndex" in result]
    assert [result["ruleId"] for result in of_rules] == [finding.rule for finding in report.findings]
    for result in of_rules:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        for place in (location["physicalLocation"] for location in result["locations"]):
            path = incident.folder / place["artifactLocation"]["uri"]
            line = path.read_bytes().split(b"\n")[place["region"]["startLine"] - 1]
            quoted = place["region"]["snippet"]["text"]
            # A document has its records on one line, of which the beginning is quoted; that of a pickle is no text.
            if not line.startswith(b"\x80"):
                is_document = path.suffix == ".json"
                assert lines.shown(line).startswith(quoted) if is_document else quoted == lines.shown(line)


def test_characters_that_xml_forbids_are_removed_and_markup_is_escaped(tmp_path: Path) -> None:
    warning = "\x07<b>&amp; ]]> Error: could not open \ufffe"
    (tmp_path / "a b.log").write_text(f"node1:77:77 [0] init.cc:1 NCCL WARN {warning}\n", encoding="utf-8")

    report = analyze([str(tmp_path)], everything=True)

    ET.fromstring(ci_formats.junit(report, SERIOUS))
    json.loads(ci_formats.sarif(report))


def test_select_and_ignore_choose_the_rules() -> None:
    whole = {finding.rule for finding in analyze([KILLED], everything=True).findings}
    assert "remote-closed-follow-the-pointer" in whole

    by_rule = analyze([KILLED], everything=True, select=["remote-closed-follow-the-pointer"])
    by_category = analyze([KILLED], everything=True, select=["peer-lost"])
    without = analyze([KILLED], everything=True, ignore=["peer-lost"])

    assert [one.name for one in by_rule.rules] == ["remote-closed-follow-the-pointer"]
    assert {one.category for one in by_category.rules} == {"peer-lost"}
    assert {finding.rule for finding in without.findings}.isdisjoint(one.name for one in by_category.rules)


@pytest.mark.parametrize("option", ["select", "ignore"])
def test_a_rule_that_does_not_exist_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match="no-such-rule"):
        analyze([KILLED], **{option: ["no-such-rule"]})  # type: ignore[arg-type]  # one name of two


def test_every_severity_has_a_level() -> None:
    assert set(ci_formats.LEVELS) == set(Severity)


def test_json_lines_hold_what_the_json_report_holds(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    path = str(INCIDENTS / "a-benchmark-times-out")
    main(["check", "-q", "--format", "json", path])
    whole = json.loads(capfdbinary.readouterr().out)
    main(["check", "-q", "--format", "jsonl", path])
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]

    findings = [{**line, "type": None} for line in lines if line["type"] == "finding"]
    assert findings == [{**finding, "type": None} for finding in whole.pop("findings")]
    assert len(findings) > 0
    assert lines[len(findings) :] == [{"type": "report", **whole}]
