"""The last lines of `hang` and `check` on a small terminal say what happened, and what to run now."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import polars as pl
import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.report.next_steps import split_step
from ncclforensics.report.without_job import steps_without_job
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Plan
from ncclforensics.views import json_report
from ncclforensics.views.text_coverage import coverage
from ncclforensics.views.text_layout import place_of
from ncclforensics.views.text_report import HEIGHT, height_of_terminal
from ncclforensics.views.text_screen import screen
from tests.budget import drawn
from tests.incidents import ALL, HANGS, INCIDENTS, Incident, answer, checked

WIDTH = 80


def squeezed(text: str) -> str:
    return "".join(text.split())


def steps_of(report: Report) -> list[str]:
    jobs = report.verdicts[:1]
    return report.other_steps(jobs[0]) if jobs else steps_without_job(report.run, report.findings)


OPENINGS = (
    "collect ",
    "take ",
    "set ",
    "set, ",
    "run ",
    "read ",
    "print ",
    "list ",
    "give ",
    "look ",
    "compare ",
    "or take ",
)
CONDITIONS = ("on the next run, ", "while it stands still, ", "now or on the next run, ")


def is_advice(step: str) -> bool:
    """Whether a step is a verb and its object, with a command at most at its end."""
    text, command = split_step(step)
    for condition in CONDITIONS:
        text = text.removeprefix(condition)
    return text.startswith(OPENINGS) and "`" not in text + command


def shown_lines(report: Report, *, everything: bool = False) -> str:
    commands = {command.line for row in report.verdicts[:1] for command in report.run_now(row)}
    commands |= {split_step(step)[1] for step in steps_of(report)}
    lines = screen(report, width=WIDTH, height=HEIGHT, everything=everything).splitlines()
    assert all(len(line) <= WIDTH or line.strip() in commands for line in lines)
    rows = [line[start : start + WIDTH] for line in lines for start in range(0, max(len(line), 1), WIDTH)]
    assert len(rows) < HEIGHT
    return squeezed("".join(rows))


@pytest.mark.parametrize("incident", ALL, ids=lambda incident: incident.name)
def test_the_last_screen_shows_the_verdict_and_what_to_run_now(incident: Incident) -> None:
    reports = [(checked(incident).report, True)] + [(answer(incident).report, False)] * incident.is_hang
    for report, everything in reports:
        shown = shown_lines(report, everything=everything)
        assert all(map(is_advice, steps_of(report)))
        for row in report.verdicts[:1]:
            finding = report.finding_of(row)
            reason = squeezed((finding.detail if finding else "") or row.reason)
            if "UNDECIDABLE" not in shown and row.verdict == "undecidable":
                assert reason[1:] in shown  # below a finding that is sure, which the verdict would seem to contradict
                continue
            assert row.verdict.upper() in shown
            assert squeezed(finding.title if finding else row.reason) in shown
            assert all(squeezed(command.line) in shown for command in report.run_now(row)[:1])


def of(name: str) -> Report:
    return answer(Incident(INCIDENTS / name)).report


def test_a_sure_cause_stands_above_what_is_not_decided() -> None:
    shown = shown_lines(of("two-ranks-disagree-on-a-size"))

    assert shown.index("ERROR(certain)") < shown.index("nolineofNCCLshowsthecall")
    assert "UNDECIDABLE" not in shown


TIMED_OUT = (
    "[rank2]:[E723 01:58:45.510486595 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
)


def test_a_certain_consequence_stands_above_what_is_not_decided(tmp_path: Path) -> None:
    (tmp_path / "post.txt").write_text(TIMED_OUT)

    shown = screen(analyze([tmp_path]), width=WIDTH)

    assert shown.index("ERROR  (certain)") < shown.index("Known: that the job hung, and the error above.")
    assert "reported it. Latest report with a time: 01:58:45." in " ".join(shown.split())
    assert shown.count("post.txt:1") == 1


def test_a_time_out_is_not_shown_as_verdict_and_as_finding(tmp_path: Path) -> None:
    status = "[rank{}]:[E723 01:58:45.51 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {}] Exception"
    status += " (either an error or timeout) detected by watchdog at work: 7, last enqueued NCCL work: 9, last"
    status += " completed NCCL work: 6.\n"
    timed_out = TIMED_OUT.replace("ank2", "ank{}").replace("ank 2", "ank {}")
    texts = [timed_out.format(n, n) + status.format(n, n) for n in (0, 1, 2)]
    (tmp_path / "post.txt").write_text("".join(texts))

    shown = screen(analyze([tmp_path]), width=WIDTH)

    assert "STUCK-TOGETHER" in shown
    assert "torch-watchdog-timeout" not in shown


def test_both_values_and_ranks_of_the_job_are_shown() -> None:
    shown = screen(of("another-broadcast-root"), width=WIDTH)

    assert "root rank 4 instead of rank 3" in shown
    assert "on all 8" in shown


def test_no_stack_is_asked_of_a_process_that_has_ended() -> None:
    died = [incident for incident in HANGS if incident.case["truth"].get("verdict") == "rank-died"]
    for incident in drawn(died, 12):
        report = answer(incident).report
        assert all("py-spy" not in command.line for command in report.run_now(report.verdicts[0]))


def test_the_ranks_of_one_host_are_looked_at_by_one_command(tmp_path: Path) -> None:
    culprits = tuple(range(8, 16))
    plan = Plan(nodes=4, gpus_per_node=8, tp=8, version="2.27.7", fault=Fault(FaultKind.LAGGING, culprits))
    generate(plan, tmp_path)
    report = analyze(tmp_path)
    shown = shown_lines(report)

    of_processes, of_machine = report.run_now(report.verdicts[0])
    pids = report.run["rank"].filter(pl.col("rank").is_in(culprits)).sort("rank")["pid"]
    assert of_processes.line == f"for p in {' '.join(map(str, pids))}; do py-spy dump --native --pid $p; done"
    assert of_machine.where == of_processes.where
    assert shown.index("culprits:ranks8-15ongpu-d001") < shown.index("waiting:ranks0-7,16-31(24of32)")


def test_a_second_rank_behind_and_a_rank_without_log_stand_beside_a_mismatch(tmp_path: Path) -> None:
    plan = Plan(nodes=3, tp=8, fault=Fault(FaultKind.OTHER_COUNT, (19,), "tp"))
    generate(plan, tmp_path)
    (tmp_path / "nccl_rank12.log").unlink()
    log = tmp_path / "nccl_rank5.log"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-9]))

    report = analyze(str(tmp_path))
    text = squeezed(shown_lines(report))

    assert squeezed("rank 19 on gpu-d002 differs") in text
    assert squeezed("waiting: ranks 0-4, 6-11, 13-18, 20-23 (21 of 23)") in text
    assert squeezed("also behind: rank 5 at AllGather") in text
    assert 5 not in json_report.as_object(report)["hang"]["victims"]
    assert squeezed("no log of rank 12") in text


def test_stacks_that_are_there_are_not_asked_for() -> None:
    report = of("stacks-that-do-not-show-their-ranks")

    assert all("py-spy" not in command.line for command in report.run_now(report.verdicts[0]))


def test_evidence_names_the_rank_and_shows_the_arguments_that_differ() -> None:
    shown = screen(of("another-broadcast-root"), width=WIDTH)

    assert "rank 4 #6: … Broadcast: … count 65536 datatype 6 … root 4" in shown


def test_hosts_with_another_version_of_nccl_are_listed(tmp_path: Path) -> None:
    for rank, version in enumerate(["2.21.5", "2.25.1", "2.25.1"]):
        prefix = f"gpu-{rank}:10{rank}:10{rank} [0] NCCL INFO"
        place = f"comm 0xc{rank} rank {rank} nranks 3 cudaDev 0 nvmlDev 0 busId 10 commId 0x1111 - Init START"
        lines = [f"{prefix} NCCL version {version}+cuda12.4", f"{prefix} ncclCommInitRank {place}"]
        (tmp_path / f"rank{rank}.log").write_text("".join(f"{line}\n" for line in lines))

    shown = screen(analyze([str(tmp_path)]), width=WIDTH, everything=False)

    assert "NCCL VERSIONS DIFFER" in shown
    assert "gpu-1, gpu-2" in shown


def test_a_comparison_that_failed_leads_to_the_traceback_and_nobody_waits() -> None:
    report = of("pytorch-compares-calls-and-they-differ")
    shown = screen(report, width=WIDTH)

    assert "Failed: yes; PyTorch compared the calls and raised an error." in shown
    assert "stopped with an error: ranks 0, 1, 3 (3 of 4)" in shown
    assert "waiting" not in shown
    assert "py-spy" not in shown
    assert "    sed -n 1," in shown


def test_the_only_silent_rank_is_the_suspect_in_the_headline() -> None:
    report = of("three-ranks-time-out-and-one-is-silent")

    (headline,) = (line for line in screen(report, width=200).splitlines() if line.startswith("ERROR"))
    assert headline.endswith("; suspect rank 2")
    assert json_report.as_object(report)["hang"]["suspects"] == [2]
    assert "UNDECIDABLE" not in screen(report, width=WIDTH)


def test_what_shows_the_hang_and_its_time_stand_on_one_line(tmp_path: Path) -> None:
    assert "Assumed, since you ask about a hang: the job stands still." in screen(
        of("one-rank-stops-before-an-allreduce"), width=120
    )
    assert "Hung: yes; a call of PyTorch timed out." in screen(
        of("three-ranks-time-out-and-one-is-silent"), width=WIDTH
    )


def test_a_number_of_a_call_is_never_contradicted_by_the_opcount_of_nccl() -> None:
    shown = screen(of("another-broadcast-root"), width=WIDTH, height=40)

    assert "#6: its position among a rank's calls" in shown
    assert shown.count("opCount") == 1  # which says that it is another count


def test_the_header_says_of_how_many_ranks_these_are(tmp_path: Path) -> None:
    (tmp_path / "post.txt").write_text(TIMED_OUT)

    assert screen(of("the-culprits-log-is-absent"), width=WIDTH).startswith("15 of 16 ranks")
    assert screen(analyze([tmp_path]), width=WIDTH).startswith("1 of at least 3 ranks")


def test_ranks_without_a_number_are_counted(tmp_path: Path) -> None:
    """Two of four processes crashed, and no line says which ranks they are."""
    channel = "NCCL INFO Channel 21/0 : 1[101d0] -> 0[101c0] via P2P/IPC/read"
    crash = "[node1:{0} :0:57{0}] Caught signal 7 (Bus error: nonexistent physical address)\n"
    lines = [f"node1:{pid}:{pid} [{pid - 10}] {channel}\n" for pid in range(10, 14)]
    (tmp_path / "job.log").write_text("".join([*lines, crash.format(10), crash.format(11)]))

    shown = shown_lines(analyze([tmp_path]))

    assert squeezed("waiting: 2 of 4") in squeezed(shown)


def test_the_middle_of_a_long_line_is_left_out_and_what_failed_stays(tmp_path: Path) -> None:
    generate(Plan(nodes=2, gpus_per_node=4, fault=Fault(FaultKind.NETWORK_LOST, (3,)), finish="aborted"), tmp_path)
    shown = screen(analyze(tmp_path), width=WIDTH)

    assert "Got completion" in shown
    assert "status=" in shown


def test_where_stacks_show_the_rank_its_stack_is_taken_again() -> None:
    report = of("a-rank-waits-for-its-data-loader")
    steps = report.other_steps(report.verdicts[0])

    assert report.verdicts[0].basis == "stacks"
    assert any("take its stack again" in step for step in steps)
    assert not any("if no log has grown" in step for step in steps)


def test_what_a_launcher_says_stands_above_what_is_not_known(tmp_path: Path) -> None:
    line = "W1122 09:38:00.412000 9125 torch/distributed/elastic/agent/server/api.py:740] Received 15 death signal, "
    (tmp_path / "job.log").write_text(line + "shutting down workers\n")

    shown = screen(analyze([tmp_path]), width=WIDTH)

    assert shown.index("torchrun was told to end by SIGTERM") < shown.index("Not known: whether a job hangs.")
    assert "UNDECIDABLE" not in shown


def test_the_header_is_broken_between_two_items_and_never_cut() -> None:
    report = of("two-jobs-in-one-folder")
    header = coverage(report).plain

    assert len(header) > WIDTH
    rows = screen(report, width=WIDTH).split("\n\n")[0].splitlines()
    assert " ".join(rows) == header
    assert rows[0].endswith(" ·")


@pytest.mark.parametrize("incident", HANGS, ids=lambda incident: incident.name)
def test_what_a_number_counts_is_said_only_below_lines_that_show_it(incident: Incident) -> None:
    report = answer(incident).report
    shown = screen(report, width=WIDTH)
    if "its position among a rank's calls" in shown:
        finding = report.finding_of(report.verdicts[0])
        cited = [report.cited(line.source, line.line) for line in finding.evidence] if finding else []
        assert any(place_of(report, line) in shown for line in cited)


def test_a_silent_rank_is_asked_for_where_the_others_lost_it(tmp_path: Path) -> None:
    """A rank that leaves its loop early ends without an error, and the others report closed connections."""
    closed = "[rank{0}]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:57231."
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.log").write_text(f"step 0\n{closed.format(rank)} This is typical.\n")
    (tmp_path / "rank2.log").write_text("step 0\n")

    report = analyze([tmp_path])
    shown = screen(report, width=WIDTH)

    assert report.verdicts[0].verdict == "undecidable"
    assert steps_of(report)[0] == "collect the exit code and the end of the output of rank 2"
    assert "suspect rank 2" in shown
    assert "rank 0: RuntimeError: … Connection closed by peer …" in shown


def test_the_label_of_a_launcher_is_not_repeated_behind_the_rank() -> None:
    shown = screen(of("a-task-crashes-under-srun"), width=WIDTH)

    assert "[rank" not in shown


def test_no_stack_is_taken_of_processes_that_ended_with_an_error(tmp_path: Path) -> None:
    line = "gpu-a012:{0}:{0} [0] include/alloc.h:317 NCCL WARN Cuda failure 'out of memory'\n"
    (tmp_path / "job.log").write_text(line.format(4100) + line.format(4101))

    report = analyze([tmp_path])

    assert all("py-spy" not in command.line for row in report.verdicts for command in report.run_now(row))


def test_a_verdict_names_its_ranks_where_its_rule_is_not_selected() -> None:
    folder = INCIDENTS / "one-rank-stops-before-an-allreduce"
    report = analyze([folder], everything=True, select=["gdr-missing"])

    assert "LAGGING-RANKS  (likely)  rank 11 did not make the call" in screen(report, width=WIDTH, everything=True)


def test_a_rank_with_an_empty_log_is_asked_for_and_not_suspected(tmp_path: Path) -> None:
    for log in (INCIDENTS / "the-culprits-log-is-absent").glob("*.log"):
        (tmp_path / log.name).write_bytes(log.read_bytes())
    (tmp_path / "nccl_rank11.log").write_text("")

    shown = screen(analyze([tmp_path]), width=WIDTH)

    assert "not decidable without the log of rank 11" in shown
    assert "suspect" not in shown


SEVERAL = Plan(nodes=4, gpus_per_node=8, tp=8, version="2.27.7", fault=Fault(FaultKind.LAGGING, tuple(range(8, 16))))


def jobs_in(folder: Path, *plans: Plan) -> Report:
    for number, plan in enumerate(plans):
        generate(plan, folder / f"job-{number}")
    return analyze(folder)


def small(seed: int, fault: Fault | None = None) -> Plan:
    return Plan(nodes=1, gpus_per_node=2, tp=2, seed=seed, fault=fault)


def test_without_a_terminal_nothing_is_left_out_for_lack_of_height() -> None:
    report = of("another-broadcast-root")
    full, short = screen(report, width=WIDTH), screen(report, width=WIDTH, height=HEIGHT)

    assert len(full.splitlines()) > HEIGHT
    assert "THE CALL" in full
    assert "THE CALL" not in short


@pytest.mark.parametrize(("lines", "height"), [(0, math.inf), (12, HEIGHT), (50, 50)])
def test_a_terminal_that_tells_no_height_sets_no_limit(
    lines: int, height: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda: os.terminal_size((WIDTH, lines)))

    assert height_of_terminal() == height


def test_the_variable_lines_is_no_height_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", fail)
    monkeypatch.setenv("LINES", "24")

    assert height_of_terminal() == math.inf


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("width", [40, WIDTH])
def test_the_verdict_of_every_job_is_shown_at_any_height(width: int, everything: bool) -> None:
    shown = screen(of("two-jobs-in-one-folder"), width=width, height=HEIGHT, everything=everything)

    assert shown.count("COLLECTIVE-MISMATCH  (certain)") == 1
    (line,) = (line for line in shown.splitlines() if line.startswith("job 2 of 2: LAGGING-RANKS  (likely)"))
    assert len(line) <= width
    assert re.search(rf"\n\n{re.escape(line)}\n(  job-4711/nccl_rank5[^\n]*\n+ *[^\n]*\n|\n)", shown)
    assert "\n\n\n" not in shown
    assert shown.index("COLLECTIVE-MISMATCH") < shown.index(line) < shown.index("RUN NOW on gpu-node-00")
    assert all(squeezed(words) in squeezed(shown) for words in ("nccl_rank6.log:28  rank 6 #6:", "datatype 7"))


def test_the_worst_of_many_jobs_are_listed_and_the_others_counted_by_verdict(tmp_path: Path) -> None:
    lagging = [small(seed, Fault(FaultKind.LAGGING, (1,))) for seed in range(3)]
    report = jobs_in(tmp_path, *lagging, *(small(seed) for seed in range(3, 9)))
    verdicts = [row.verdict for row in report.verdicts]
    assert verdicts == ["lagging-ranks"] * 3 + ["no-hang"] * 6

    short, full = (screen(report, width=100, height=height) for height in (HEIGHT, math.inf))

    listed = [line.split()[4] for line in short.splitlines() if line.startswith("job ")]
    assert listed == ["LAGGING-RANKS", "LAGGING-RANKS", "NO-HANG", "NO-HANG"]
    assert "\n4 more jobs: 4 no-hang (certain)\n" in short
    assert sum(line.startswith("job ") for line in full.splitlines()) == 8
    assert "more jobs" not in full


def test_a_single_job_beyond_the_list_is_named_and_not_counted(tmp_path: Path) -> None:
    report = jobs_in(tmp_path, *(small(seed) for seed in range(6)))

    shown = screen(report, width=100, height=HEIGHT)

    assert sum(line.startswith("job ") for line in shown.splitlines()) == 5
    assert "more jobs" not in shown


@pytest.mark.parametrize("height", [HEIGHT, math.inf])
def test_each_of_the_first_culprits_has_a_line_of_evidence(tmp_path: Path, height: float) -> None:
    generate(SEVERAL, tmp_path)

    shown = screen(analyze(tmp_path), width=WIDTH, height=height)

    assert [f"nccl_rank{rank}.log" in shown.partition("waiting:")[2] for rank in (8, 9, 10)] == [True] * 3
    assert "RUN NOW on gpu-d001" in shown


@pytest.mark.parametrize("incident", HANGS, ids=lambda incident: incident.name)
def test_a_verdict_is_never_without_evidence_on_a_small_terminal(incident: Incident) -> None:
    report = answer(incident).report
    full, short = (screen(report, width=WIDTH, height=height) for height in (math.inf, HEIGHT))
    for row in report.verdicts[:1]:
        finding = report.finding_of(row)
        places = (
            [place_of(report, report.cited(line.source, line.line)) for line in finding.evidence] if finding else []
        )
        if rows := [f"\n  {place} " for place in places if f"\n  {place} " in full]:
            assert any(row in short for row in rows)


def test_the_reason_of_a_verdict_is_not_repeated_by_its_cause() -> None:
    shown = screen(of("a-rehearsed-crash"), width=WIDTH)

    assert "Cause: rank 2 on vm was killed by SIGKILL." in shown
    assert "Rank 2 ended by SIGKILL" not in shown
    assert "never called AllReduce" in screen(of("one-rank-stops-before-an-allreduce"), width=WIDTH)
    assert "did not make the call" in screen(of("one-rank-stops-before-an-allreduce"), width=WIDTH)


def test_more_ranks_than_the_largest_communicator_has_are_only_counted(tmp_path: Path) -> None:
    generate(small(1), tmp_path)
    extra = "gpu-x:9:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    (tmp_path / "other.log").write_text(extra)

    assert screen(analyze(tmp_path), width=WIDTH).startswith("3 ranks on ")


def test_a_call_without_root_or_reduction_shows_none() -> None:
    shown = screen(of("two-jobs-in-one-folder"), width=WIDTH).partition("THE CALL")[2]

    assert "≠ datatype" in shown
    assert "root" not in shown
    assert " op " not in shown


def test_check_shows_findings_before_tables_and_names_the_tables_that_do_not_fit() -> None:
    report = checked(Incident(INCIDENTS / "a-cable-goes-bad-under-a-job")).report

    full, small = (screen(report, width=WIDTH, height=height, everything=True) for height in (math.inf, HEIGHT))

    assert full.index("FINDINGS (ncclforensics explain RULE)") < full.index("\nRUN\n") < full.index("NOT IN THESE LOGS")
    assert "\nRUN\n" not in small
    assert "the run, what is not in these logs" in " ".join(small.split())


def test_a_benchmark_is_judged_by_its_best_size_beside_what_such_hosts_reach() -> None:
    shown = screen(checked(Incident(INCIDENTS / "a-healthy-benchmark")).report, width=120, everything=True)

    assert "such hosts reach" in shown.partition("\nBENCHMARKS")[0]
    assert "average" not in shown


def test_a_cause_shows_how_sure_it_is_only_where_it_is_less_sure_than_the_verdict() -> None:
    shown = screen(of("a-rehearsed-crash"), width=WIDTH)

    assert "RANK-DIED  (certain)" in shown
    assert "  Cause: " in shown


def test_the_culprit_of_a_mismatch_is_shown_with_its_differing_call_not_with_a_later_one() -> None:
    report = Incident(INCIDENTS / "another-broadcast-root").answer().report

    table = screen(report, width=100).partition("CULPRIT\n")[2].partition("waiting:")[0]

    assert "differing call" in table
    assert "Broadcast #6 (65,536 x float16, root rank 4)" in table
    assert "AllReduce #7" not in table
