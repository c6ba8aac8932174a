"""The last lines of `hang` and `check` on a small terminal say what happened, and what to run now."""

from __future__ import annotations

import pytest

from ncclforensics.report.build import Report
from ncclforensics.views.text_screen import HEIGHT, screen
from tests.incidents import ALL, INCIDENTS, Incident, answer, checked

WIDTH = 80


def squeezed(text: str) -> str:
    return "".join(text.split())


def last_lines(report: Report, *, everything: bool = False) -> str:
    lines = screen(report, width=WIDTH, everything=everything).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert everything or len(lines) < HEIGHT
    return squeezed("".join(lines[1 - HEIGHT :]))


@pytest.mark.parametrize("incident", ALL, ids=lambda incident: incident.name)
def test_the_last_screen_shows_the_verdict_and_what_to_run_now(incident: Incident) -> None:
    reports = [(checked(incident).report, True)] + [(answer(incident).report, False)] * incident.is_hang
    for report, everything in reports:
        shown = last_lines(report, everything=everything)
        for row in report.verdicts[:1]:
            finding = report.finding_of(row)
            assert row["verdict"].upper() in shown
            assert squeezed(finding.title if finding else row["reason"]) in shown
            assert all(squeezed(command.line) in shown for command in report.run_now(row)[:1])


def of(name: str) -> Report:
    return answer(Incident(INCIDENTS / name)).report


def test_a_sure_cause_stands_above_what_is_not_decided() -> None:
    shown = last_lines(of("two-ranks-disagree-on-a-size"))

    assert shown.index("ERROR(certain)") < shown.index("UNDECIDABLE")


def test_both_values_and_ranks_of_the_job_are_shown() -> None:
    shown = screen(of("another-broadcast-root"), width=WIDTH)

    assert "root rank 4 instead of rank 3" in shown
    assert "on all 8" in shown


def test_no_stack_is_asked_of_a_process_that_has_ended() -> None:
    for incident in ALL:
        if incident.is_hang and incident.case["truth"].get("verdict") == "rank-died":
            report = answer(incident).report
            assert all("py-spy" not in command.line for command in report.run_now(report.verdicts[0]))
