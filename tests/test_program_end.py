"""What ranks warn of after their program came to its end is no failure; what they warn of before is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.cli.options import FailOn
from ncclforensics.cli.output import exit_code_of
from ncclforensics.views import json_report

RANKS = range(4)
DONE = (
    ' 0: :::MLLOG {"namespace": "", "time_ms": 1728602167490, "event_type": "INTERVAL_END", "key": "run_stop", '
    '"value": 0.92, "metadata": {"file": "/w/fit.py", "lineno": 321, "samples_count": 3840, "status": "success"}}'
)
GIVEN_UP = DONE.replace("success", "aborted")
SPEED = (
    ' 0: :::MLLOG {"namespace": "", "time_ms": 1728602167501, "event_type": "POINT_IN_TIME", "key": "tracked_stats", '
    '"value": {"throughput": 311.3}, "metadata": {"file": "/w/fit.py", "lineno": 334, "step": 5}}'
)


def ended(rank: int) -> str:
    return (
        f" {rank}: [rank{rank}]:[W1010 23:16:11.146369013 ProcessGroupNCCL.cpp:1218] Warning: WARNING: "
        "process group has NOT been destroyed before we destruct ProcessGroupNCCL."
    )


def lost(rank: int, other: int) -> str:
    return (
        f" {rank}: gpu-a:{100 + rank}:{200 + rank} [{rank}] proxy.cc:1497 NCCL WARN [Service thread] Could not receive "
        f"type from localRank {other}, res=3, closed=0"
    )


EVERY_END, EVERY_LOSS = [ended(rank) for rank in RANKS], [lost(rank, rank ^ 1) for rank in RANKS]


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (EVERY_END + EVERY_LOSS, "no-hang"),
        (EVERY_LOSS + EVERY_END, "undecidable"),  # connections were lost before the programs ended
        (EVERY_END[:3] + EVERY_LOSS, "undecidable"),  # rank 3 lost its connection while its program ran
        ([DONE, *EVERY_LOSS], "no-hang"),
        ([SPEED, DONE, SPEED, *EVERY_LOSS], "no-hang"),  # the speed of the last part of the run
        ([DONE, *3 * [SPEED], *EVERY_LOSS], "undecidable"),  # another part of the job goes on
        ([GIVEN_UP, *EVERY_LOSS], "undecidable"),
        ([*EVERY_LOSS, DONE], "undecidable"),
        ([*EVERY_END, " 2: Traceback (most recent call last):", ' 2:   File "/w/train.py", line 9, in <module>',
          " 2: RuntimeError: no space left on device", *EVERY_LOSS], "rank-died"),
    ],
)  # fmt: skip
def test_connections_lost_around_the_end_of_the_program(tmp_path: Path, lines: list[str], verdict: str) -> None:
    (tmp_path / "slurm-1.out").write_text("\n".join(["srun: job 1", *lines, ""]))

    hang = json_report.as_object(analyze([str(tmp_path)]))["hang"]

    assert hang["verdict"] == verdict
    if verdict == "no-hang":
        assert (hang["certainty"], hang["culprits"]) == ("likely", [])


BENCHMARK = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 \
validation: 1 graph: 0
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    64.83   16.17   28.31      0    64.32   16.30   28.53      0
     2097152        524288     float     sum      -1    78.53   26.70   46.73      0    78.09   26.86   47.00      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 37.6
"""


@pytest.mark.parametrize(
    ("lines", "verdict", "reason", "code"),
    [
        (6, "no-hang", "the output of nccl-tests is complete", 0),
        (4, "undecidable", "has no footer, and ends behind the row of 2 MiB", 3),
    ],
)
def test_a_benchmark_alone_tells_how_far_it_came(
    lines: int, verdict: str, reason: str, code: int, tmp_path: Path
) -> None:
    log = tmp_path / "bench.log"
    log.write_text("".join(BENCHMARK.splitlines(keepends=True)[:lines]))

    hang = json_report.as_object(analyze(str(log)))["hang"]

    assert hang["verdict"] == verdict
    assert reason in hang["reason"]
    assert exit_code_of(analyze(str(log)), FailOn.WARNING, asks_for_hang=True) == code


@pytest.mark.parametrize(
    "end",
    [
        "Training time 1:52:40",
        "2026-03-02 11:40:08,225 fit INFO: Total training time: 2 days, 2:49:33.357978 (0.5087s / it)",
        "============ Serving Benchmark Result ============",
        "***** predict metrics *****",
    ],
)
def test_the_time_of_the_whole_training_and_a_result_are_ends(end: str, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(f"step 7 loss 2.5\n{end}\n")

    assert analyze([str(tmp_path)]).run["stated_end"].height == 1


@pytest.mark.parametrize(
    ("step", "end"),
    [
        ("srun: error: gpu-a: task 0: Exited with exit code 1", "Training completed successfully."),
        ("srun: error: gpu-a: tasks 0-1: Killed", "✓ Sweep completed successfully"),
    ],
)
def test_a_step_that_failed_before_the_program_came_to_its_end_is_no_failure(
    step: str, end: str, tmp_path: Path
) -> None:
    rules = []
    for lines in ([step, end], [end, step]):
        (tmp_path / "slurm-1.out").write_text("\n".join([*lines, ""]))
        report = analyze([str(tmp_path)], everything=True)
        rules.append({finding.rule for finding in report.findings if finding.severity != "info"})

    assert rules == [set(), {"app-process-died"}]


def test_a_warning_before_the_program_reports_its_end_is_none(tmp_path: Path) -> None:
    warning = (
        "libfabric:2143216:1761843156::cxi:av:cxip_av_open_validate_args():839<warn> gpu-a: Shared AVs not supported"
    )
    rules = []
    for lines in ([warning], [warning, "✓ Test completed successfully"]):
        (tmp_path / "job.log").write_text("\n".join([*lines, ""]), encoding="utf-8")
        rules.append({finding.rule for finding in analyze([str(tmp_path)], everything=True).findings})

    assert ["stated-failure" in found for found in rules] == [True, False]


def test_errors_that_an_abort_returns_are_no_failure(tmp_path: Path) -> None:
    aborted = [
        f" {rank}: gpu-a:{100 + rank}:{300 + rank} [{rank}] NCCL INFO {text}"
        for rank in RANKS
        for text in ("socketProgressOpt: abort called", "misc/socket.cc:64 -> 3", "misc/socket.cc:828 -> 3")
    ]
    (tmp_path / "slurm-1.out").write_text("\n".join(["srun: job 1", *EVERY_END, *aborted, ""]))

    report = analyze([str(tmp_path)], everything=True)

    assert [row.verdict for row in report.verdicts] == ["no-hang"]
    assert "error-returned-without-warning" not in {finding.rule for finding in report.findings}


def test_an_error_after_which_its_thread_chooses_the_network_is_no_failure(tmp_path: Path) -> None:
    steps = ("transport/net_ib.cc:652 -> 2", "Using non-device net plugin version 0", "Using network IB")
    lines = [f"gpu-a:7100:7210 [0] NCCL INFO {step}" for step in steps]
    rules = []
    for last in (1, 3):
        (tmp_path / "train.log").write_text("\n".join([*lines[:last], ""]))
        report = analyze([str(tmp_path)], everything=True)
        rules.append({finding.rule for finding in report.findings})

    assert "error-returned-without-warning" in rules[0]  # where the log ends at the error
    assert "error-returned-without-warning" not in rules[1]


TRAINED = "{'train_runtime': '0.2', 'train_samples_per_second': '193.3', 'train_steps_per_second': '4', 'epoch': '0.7'}"


@pytest.mark.parametrize(
    ("end", "is_end"),
    [
        (["Training complete. best loss 0.05"], True),
        (["Training done in 1104.74 seconds."], True),
        ([f"  100%|██████████| 12/12 [00:00<00:00, 44.30it/s]   {TRAINED}"], True),
        (["Training complete", "step 3 loss -0.2"], False),  # of its first stage
        (["Training complete", "train.py: error: unrecognized arguments: --lr2"], False),  # of a later launch
        (["Training completes when the loss is flat"], False),
    ],
)
def test_a_program_that_says_it_trained_to_its_end_did_not_hang(tmp_path: Path, end: list[str], is_end: bool) -> None:
    (tmp_path / "train.log").write_text("\n".join(["step 1 loss 0.5", "step 2 loss -0.1", *end, ""]))

    hang = json_report.as_object(analyze([str(tmp_path)]))["hang"]

    assert ("came to its end" in hang["reason"]) is is_end


def test_of_programs_that_refused_their_arguments_one_after_the_other_the_last_is_told(tmp_path: Path) -> None:
    refused = [f"train.py: error: unrecognized arguments: --{name}" for name in ("lr2", "batch", "batch")]
    (tmp_path / "nohup.out").write_text("\n".join([*refused, ""]))

    (found,) = (finding for finding in analyze([tmp_path]).findings if finding.rule == "app-not-started")

    assert found.title == "a program refused its arguments: unrecognized arguments: --batch"
    assert found.detail == "printed 2 times"


BOX = f"{74 * '-'}\nA module of the runtime is not used:\n\n  Host: gpu-a\n{74 * '-'}\n"


@pytest.mark.parametrize(
    ("behind", "found"),
    [
        ("", ["open-mpi-says-more"]),
        ("step 1 loss 2.5\nstep 2 loss 2.4\n", []),
        ("Training completed successfully.\n", []),
    ],
)
def test_a_box_of_mpi_that_a_job_goes_on_from_is_no_warning(behind: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(BOX + behind)

    assert [finding.rule for finding in analyze([str(tmp_path)]).findings if finding.severity != "info"] == found


VIRTUAL = (
    " 1: gpu-a:101:201 [1] net_ib.cc:1 NCCL WARN NET/IB : "
    "Requested properties for vNic 4, only 4 vNics have been created"
)
THROWN = (
    " 1:   what():  NCCL error in: /w/NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), "
    "NCCL version 2.25.1"
)


@pytest.mark.parametrize(("thrown", "severity"), [([], "info"), ([THROWN], "warning")])
def test_an_error_that_the_program_gets_behind_its_end_is_a_failure(
    thrown: list[str], severity: str, tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text("\n".join([DONE, VIRTUAL, *thrown, ""]))

    found = analyze([str(tmp_path)], everything=True).findings

    assert {finding.severity for finding in found if finding.rule == "warn-explained"} == {severity}
