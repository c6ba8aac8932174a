"""Every case under fixtures/incidents gets exactly the answer that its case.json demands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.inputs import lines
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.rules.finding import Category
from ncclforensics.views import text_report
from ncclforensics.views.json_report import as_object
from tests.budget import sample
from tests.incidents import ALL, HANGS, INCIDENTS, Answer, Incident, Json, answer, checked

# Kinds of inputs of which records are counted, not lines.
DOCUMENTS = ("flight-recorder",)
# What a case may have without a line that shows it: it is about absence.
ABSENCE = {Category.INCOMPLETE_EVIDENCE, Category.MISSING_RANK}

every_incident = pytest.mark.parametrize("incident", ALL, ids=lambda incident: incident.name)
some_hangs = pytest.mark.parametrize("incident", sample(HANGS, 6), ids=lambda incident: incident.name)
other_hangs = pytest.mark.parametrize("incident", sample(HANGS, 5), ids=lambda incident: incident.name)


def claims(job: Json, wanted: Json) -> Json:
    """What a job's verdict says about everything that the case states."""
    said = {**job, "how": (job["mismatch"] or {}).get("how")}
    return {name: said[name] for name in wanted}


def found(answer: Answer, *severities: str) -> set[str]:
    return {f["category"] for f in answer.json["findings"] if f["severity"] in severities}


@every_incident
def test_the_verdict_is_that_of_the_case(incident: Incident) -> None:
    jobs = answer(incident).jobs

    assert [claims(job, truth) for job, truth in zip(jobs, incident.truths, strict=True)] == incident.truths


@every_incident
def test_ranks_without_a_log_are_named(incident: Incident) -> None:
    assert answer(incident).json["run"]["ranks_missing"] == incident.case["ranks_missing"]


@pytest.mark.parametrize(
    "incident", [one for one in ALL if "must_collect" in one.case], ids=lambda incident: incident.name
)
def test_a_missing_log_that_would_decide_is_requested(incident: Incident) -> None:
    wanted = answer(incident).json["hang"]["collect_next"]

    assert any(incident.case["must_collect"] in step for step in wanted), wanted


@every_incident
def test_the_findings_are_those_expected(incident: Incident) -> None:
    said = checked(incident)

    assert found(said, "error", "warning") == set(incident.case["expected_findings"])
    assert found(said, "info") == set(incident.case["expected_notes"])


@every_incident
def test_no_forbidden_category_is_reported(incident: Incident) -> None:
    assert not found(checked(incident), "error", "warning", "info") & set(incident.case["must_not_report"])


@every_incident
def test_evidence_is_quoted_from_its_file_and_line(incident: Incident) -> None:
    for finding in checked(incident).json["findings"]:
        assert finding["evidence"] or finding["category"] in ABSENCE, finding["title"]
        for evidence in finding["evidence"]:
            line = (incident.folder / evidence["path"]).read_bytes().split(b"\n")[evidence["line"] - 1]
            assert evidence["text"]
            kind = next(
                given["kind"] for given in checked(incident).json["inputs"] if given["path"] == evidence["path"]
            )
            # Of a document, all of which stands on one line, only the beginning is quoted.
            assert evidence["text"] == lines.shown(line)[: len(evidence["text"]) if kind in DOCUMENTS else None]


@every_incident
def test_every_line_is_counted(incident: Incident) -> None:
    for given in answer(incident).json["inputs"]:
        text = (incident.folder / given["path"]).read_bytes()
        if given["kind"] in DOCUMENTS:
            continue
        there = text.count(b"\n") + (not text.endswith(b"\n"))
        kinds = ("recognised", "application", "unrecognised", "damaged")
        assert given["lines"] == there == sum(given[kind] for kind in kinds)


@pytest.mark.slow
@some_hangs
def test_the_order_of_the_paths_does_not_change_the_report(incident: Incident) -> None:
    forwards, backwards = checked(incident).json, incident.answer(backwards=True, everything=True).json

    assert _without_order(backwards) == _without_order(forwards)


def _without_order(report: Json) -> Json:
    return {**report, "inputs": sorted(report["inputs"], key=lambda given: given["path"])}


@pytest.mark.slow
@other_hangs
def test_small_windows_give_the_verdict_of_a_full_read(incident: Incident) -> None:
    whole = answer(incident)

    windows = incident.answer_in_windows(ReadPolicy(window=2 << 10, small_file=4 << 10))

    assert [_gist(job) for job in windows.jobs] == [_gist(job) for job in whole.jobs]
    assert found(windows, "error", "warning") == found(whole, "error", "warning")


def _gist(job: Json) -> Json:
    return {name: job[name] for name in ("verdict", "culprits", "victims", "operation", "mismatch")}


@every_incident
def test_report_md_holds_the_printed_report(incident: Incident, golden: Callable[[Path, str], None]) -> None:
    shown = text_report.text(answer(incident).report, width=100, everything=not incident.is_hang)

    title = incident.name.replace("-", " ")
    rules = sorted({f"`{finding['rule']}`" for finding in checked(incident).json["findings"]})
    speaking = f"Rules that speak: {', '.join(rules) or 'none'}."
    page = f"# {title[0].upper()}{title[1:]}\n\n{incident.case['what_happened']}\n\n```text\n{shown}```\n\n{speaking}\n"
    golden(incident.folder / "report.md", page)


@every_incident
def test_a_case_is_small_and_names_its_origin(incident: Incident) -> None:
    case = incident.case

    assert sum((incident.folder / log).stat().st_size for log in incident.logs) < 200 << 10
    assert case["origin"]
    assert case["what_happened"].endswith(".")
    assert isinstance(case["synthetic"], bool)
    named = {*case["expected_findings"], *case["expected_notes"], *case["must_not_report"]}
    assert named <= set(Category)
    assert not {*case["expected_findings"], *case["expected_notes"]} & set(case["must_not_report"])


def test_a_rank_without_a_log_is_no_culprit_of_two_ranks_on_one_gpu() -> None:
    logs = [str(INCIDENTS / "two-ranks-on-one-gpu" / f"nccl_rank{rank}.log") for rank in range(6)]

    out = as_object(analyze(logs))

    assert out["hang"]["verdict"] == "init-failed"
    assert out["hang"]["culprits"] == [4, 5]
    assert out["run"]["ranks_missing"] == [6, 7]
