"""A condition of a machine explains a failure at its own end and time alone; all views state the same cause."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.report.chain import chain
from ncclforensics.rules.finding import Role
from ncclforensics.simulate.generate import Fault, FaultKind, Finish
from ncclforensics.tui.content.evidence import Citer
from ncclforensics.tui.content.incident import build_incident
from ncclforensics.views import card, json_report, markdown, postmortem, text_report, text_screen
from ncclforensics.views.author_note import Cover
from ncclforensics.views.headline import cause, headline
from tests.incidents import INCIDENTS
from tests.test_kernel_times import DURING, FELL_OFF, KILLED, LAGGING, LINK_DOWN, write_job

pytestmark = pytest.mark.usefixtures("shared_analyses")
DAY = timedelta(days=1)
LOST = Fault(FaultKind.NETWORK_LOST, (5,))
COVER = Cover("A run failed", "", "ncclforensics check run")


def of(name: str, *, everything: bool = False) -> Report:
    return analyze([str(INCIDENTS / name)], everything=everything)


def cause_of_job(report: Report, job: int = 0) -> tuple[str, str] | None:
    """Certainty and title of the cause of the verdict at this place in the report."""
    found = report.cause_of(report.verdicts[job])
    return (found.certainty, found.title) if found else None


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("name", ["the-kernel-sees-a-link-go-down", "the-link-of-the-peer-goes-down"])
def test_the_end_whose_link_failed_is_looked_at_first(name: str, everything: bool) -> None:
    report = of(name, everything=everything)
    (row,) = report.verdicts

    assert cause_of_job(report) == ("likely", "the link of ens1np0 went down on node-b")
    assert headline(report).startswith("the link of ens1np0 went down on node-b: all ranks are in the same call")
    assert [step.where for step in report.run_now(row)] == ["node-b", "node-a"]
    if links := chain(report, row):
        assert [link.text for link in links if link.role is Role.CAUSE] == ["the link of ens1np0 went down on node-b"]


@pytest.mark.parametrize("everything", [False, True])
def test_links_of_other_hosts_are_no_cause(everything: bool) -> None:
    report = of("links-of-other-hosts-go-down", everything=everything)

    assert cause_of_job(report) is None
    assert cause(report) is None
    titles = {finding.title for finding in report.elsewhere}
    assert "the link of node-y mlx5_0 port 1 went down (to leaf-1 port 2)" in titles
    found = json_report.as_object(report)["findings"]
    assert {finding["role"] for finding in found if finding["title"] in titles} == {"context"}
    assert all(step.where == "node-b" for step in report.run_now(report.verdicts[0]))


def test_all_views_list_what_was_found_elsewhere_below_the_verdict() -> None:
    report = of("links-of-other-hosts-go-down", everything=True)
    title = report.elsewhere[0].title

    shown = text_report.text(report)
    assert shown.index("never called AllReduce") < shown.index("ELSEWHERE") < shown.index(title)
    assert title in text_screen.screen(report, width=200, everything=True).partition("ELSEWHERE")[2]
    assert title in markdown.markdown(report).partition("### Elsewhere")[2]
    assert title in postmortem.html(report, COVER).decode().partition("<h3>Elsewhere")[2]
    *_, last = build_incident(report, Citer(report)).nodes
    assert title in {node.title for node in last.children}
    assert title not in text_report.text(report).partition("ELSEWHERE")[0]


def test_all_views_state_one_cause() -> None:
    report = of("the-link-of-the-peer-goes-down")
    stated = "Cause: the link of ens1np0 went down on node-b"

    assert stated in text_report.text(report)
    assert stated in text_screen.screen(report, width=120)
    assert "**Cause**: The link of ens1np0 went down on node-b" in markdown.markdown(report)
    assert "<dt>Cause</dt><dd>The link of ens1np0 went down on node-b" in postmortem.html(report, COVER).decode()
    assert stated in card.svg(report, COVER).decode()
    first = build_incident(report, Citer(report)).nodes[0].sections[0]
    assert (first.title, first.lines) == ("Cause", ["The link of ens1np0 went down on node-b."])


@pytest.mark.parametrize("everything", [False, True])
def test_full_shared_memory_of_another_job_is_no_cause(everything: bool) -> None:
    report = of("the-shared-memory-of-another-job-is-full", everything=everything)

    assert cause_of_job(report, 0) == ("certain", "/dev/shm is too small on ranks 1, 2 on gpu-a012")
    assert cause_of_job(report, 1) is None


@pytest.mark.parametrize(
    ("at", "certainty"),
    [(DURING, "likely"), (DURING - DAY, None), (DURING + DAY, None), (timedelta(hours=3), None)],
)
def test_a_link_that_went_down_at_another_time_is_no_cause(
    at: timedelta, certainty: str | None, tmp_path: Path
) -> None:
    write_job(tmp_path, LINK_DOWN, at, of=5, fault=LOST, finish=Finish.CLEAN)

    report = analyze([str(tmp_path)])

    found = cause_of_job(report)
    conditions = [row for row in report.causes_of(report.verdicts[0]) if row.is_condition]
    assert [condition.certainty for condition in conditions] == ([certainty] if certainty else [])
    assert (found is not None and "link of ens1np0" in found[1]) is bool(certainty)


@pytest.mark.parametrize(("of", "is_cause"), [(5, True), (1, False)])
def test_a_gpu_that_failed_under_a_waiting_rank_is_no_cause(of: int, is_cause: bool, tmp_path: Path) -> None:
    write_job(tmp_path, FELL_OFF, DURING, of=of, fault=LAGGING, finish=Finish.KILLED)

    report = analyze([str(tmp_path)])

    found = cause_of_job(report)
    assert (found is not None and found[0] == "certain" and found[1].startswith("GPU fault")) is is_cause


@pytest.mark.parametrize(("of", "is_cause"), [(5, True), (4, False)])
def test_the_kill_of_a_rank_that_is_not_at_fault_is_no_cause(of: int, is_cause: bool, tmp_path: Path) -> None:
    killed = Fault(FaultKind.KILLED, (5,))
    write_job(tmp_path, KILLED, DURING, of=of, fault=killed, finish=Finish.ABORTED)

    report = analyze([str(tmp_path)])

    (row,) = report.verdicts
    assert [report.run["rank"].row(rank_id, named=True)["rank"] for rank_id in row.culprits] == [5]
    assert (cause_of_job(report) is not None) is is_cause


def test_a_fault_without_a_process_is_of_the_gpu_at_the_failing_end(tmp_path: Path) -> None:
    fell_off = FELL_OFF.replace("{pid}", "'<unknown>'").replace("python3", "<unknown>")
    write_job(tmp_path, fell_off, DURING, of=7, fault=LOST, finish=Finish.ABORTED)

    conditions = analyze([str(tmp_path)]).run["condition_of_job"].select("shared", "is_at_end")

    assert conditions.rows() == [("gpu", True)]  # not the host alone, which is also the peer of a transfer


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (KILLED, "the host ran out of memory"),
        (KILLED.replace("Out of memory", "Memory cgroup out of memory"), "its container or job reached its memory"),
    ],
)
def test_the_limit_of_a_container_is_not_the_memory_of_the_host(line: str, words: str, tmp_path: Path) -> None:
    write_job(tmp_path, line, DURING, of=5, fault=LAGGING, finish=Finish.KILLED)

    report = analyze([str(tmp_path)])

    (row,) = report.verdicts
    assert (row.verdict, words in row.reason) == ("rank-died", True)
    found = cause_of_job(report)
    assert found is not None
    assert (found[0], words in found[1]) == ("certain", True)
