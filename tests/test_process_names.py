"""Lines without host and pid belong to the only process of their input, or to a process that is made up for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report

INCIDENTS = Path(__file__).parent.parent / "fixtures/incidents"
WARNING = "ibvwrap.cc:205 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory"


def _report(folder: Path, **texts: str) -> Report:
    for name, text in texts.items():
        (folder / f"{name}.log").write_text(text)
    return analyze([str(folder)], everything=True)


def _owners(report: Report) -> list[tuple[str | None, int | None]]:
    return report.run["failure"].select("host", "pid").cast({"host": str}).rows()


@pytest.mark.parametrize("prefix", ["[5] ", "rank 1: ", "- ", "> ", "", "it fails with "])
def test_a_warning_without_process_is_found(tmp_path: Path, prefix: str) -> None:
    report = _report(tmp_path, job=f"{prefix}{WARNING}\n")
    assert _owners(report) == [("unnamed-1", 5 if prefix == "[5] " else 0)]


NAMED = "node1:77:78 [0] NCCL INFO Using network IB\n"


def test_a_line_without_process_belongs_to_the_only_process(tmp_path: Path) -> None:
    assert _owners(_report(tmp_path, job=f"{3 * NAMED}{WARNING}\n")) == [("node1", 77)]


def test_one_line_of_a_process_in_an_excerpt_does_not_make_it_the_owner_of_others(tmp_path: Path) -> None:
    assert _owners(_report(tmp_path, job=f"{WARNING}\n{NAMED}")) == [(None, None)]


def test_the_rank_before_the_quoted_error_is_that_of_the_process(tmp_path: Path) -> None:
    quoted = "[rank{0}]: Last error:\n[rank{0}]: Cuda failure 802 'system not yet initialized'\n"
    report = _report(tmp_path, job=quoted.format(3) + quoted.format(5))
    assert report.run["failure"]["pid"].to_list() == [3, 5]
    assert sorted(report.run["rank"]["rank"]) == [3, 5]


def test_a_line_that_several_processes_may_have_printed_has_no_process(tmp_path: Path) -> None:
    lines = [f"node1:{pid}:{pid} [0] NCCL INFO Using network IB\n" for pid in (77, 78)]
    assert _owners(_report(tmp_path, job="".join([*lines, WARNING, "\n"]))) == [(None, None)]


def test_logs_without_any_host_are_analysed(tmp_path: Path) -> None:
    for log in (INCIDENTS / "one-rank-stops-before-an-allreduce").glob("*.log"):
        text = re.sub(r"(?m)^\S+:\d+:\d+ \[\d+\] (?=NCCL )", "", log.read_text())
        (tmp_path / log.name).write_text(text)
    verdict = analyze([str(tmp_path)], everything=True).verdicts[0]
    assert verdict.verdict in ("lagging-ranks", "undecidable")


def test_lines_without_process_are_told_apart_by_the_rank_in_front_of_them(tmp_path: Path) -> None:
    text = "".join(f"rank {rank}: {WARNING}\n" for rank in (2, 0, 1))
    assert _owners(_report(tmp_path, job=text)) == [("unnamed-1", 2), ("unnamed-1", 0), ("unnamed-1", 1)]


def test_the_lines_of_two_ranks_without_process_are_no_restart(tmp_path: Path) -> None:
    first = "NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
    init = "NCCL INFO comm 0x7fac840181a0 rank 1 nranks 2 cudaDev 0 busId 89000 - Init COMPLETE\n"
    channel = "NCCL INFO Channel 00 : 0[3d000] -> 1[89000] via direct shared memory\n"

    report = _report(tmp_path, job=first + init + first + channel)

    assert "init completed" in report.verdicts[0].reason


def test_a_copy_that_begins_inside_of_a_line_shows_no_further_host(tmp_path: Path) -> None:
    begun = "".join(NAMED.replace("77:78", f"{pid}:{pid}") for pid in (76, 77))
    report = _report(tmp_path, job=f"de1:77:77 [0] NCCL INFO Using network IB\n{begun}")

    processes = report.run["process"].select("host", "pid").cast({"host": str}).rows()
    assert sorted(processes) == [("node1", 76), ("node1", 77)]


def test_a_container_of_another_name_in_the_first_line_is_a_host(tmp_path: Path) -> None:
    report = _report(tmp_path, job=NAMED.replace("node1", "node2") + NAMED)

    assert set(report.run["process"]["host"].cast(str)) == {"node1", "node2"}
