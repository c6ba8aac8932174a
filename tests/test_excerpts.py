"""Excerpts and logs from any container: no warning is lost, and messages without a prefix are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.cli.options import FailOn
from ncclforensics.cli.output import Exit, exit_code_of
from tests.incidents import INCIDENTS

SENTENCE = "Something terrible happened to the widget 7"
LINES = [
    "node1:77:310 [3] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    f"node1:77:310 [3] misc/frobnicate.cc:205 NCCL WARN {SENTENCE}",
    "node1:77:310 [3] NCCL INFO misc/frobnicate.cc:206 -> 3",
    "node1:77:310 [3] NCCL INFO init.cc:1263 -> 3",
]
TIME = "2026-03-02T11:04:57.123456789Z"
CONTAINERS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "docker": lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": TIME}),
    "cri": lambda line: f"{TIME} stdout F {line}",
    "json-lines": lambda line: json.dumps({"message": line, "@timestamp": TIME, "kubernetes": {"pod_name": "w-3"}}),
    "cloudwatch": lambda line: json.dumps({"logStreamName": "w", "timestamp": 1772449497000, "message": line}),
    "mpirun": lambda line: f"[1,3]<stderr>:{line}",
    "srun": lambda line: f"3: {line}",
    "torchrun": lambda line: f"[default3]:{line}",
    "ray": lambda line: f"(RayWorker pid=77, ip=10.0.0.1) {line}",
    "kubectl": lambda line: f"[pod/train-worker-3/pytorch] {TIME} {line}",
    "compose": lambda line: f"worker-3  | {line}",
    "syslog": lambda line: f"Mar  2 11:04:57 node1 train[77]: {line}",
    "quoted": lambda line: f"> {line}",
    "grep": lambda line: f"job.log:12:{line}",
    "page": lambda line: f"<p>{line.replace('->', '-&gt;')}</p>",
    "code-of-markdown": lambda line: f"`{line}`",
    "version-2.2": lambda line: line.replace(" NCCL ", " "),
    "without-process": lambda line: line.split("] ", 1)[1],
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_warning_that_no_rule_knows_is_reported_with_its_chain(container: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("".join(CONTAINERS[container](line) + "\n" for line in LINES), encoding="utf-8")

    report = analyze([str(log)])

    found = next(finding for finding in report.findings if SENTENCE in finding.title)
    assert found.title.endswith(SENTENCE)
    chain = "returned 3 (internal error: a check inside NCCL failed) from misc/frobnicate.cc:206, init.cc:1263"
    assert chain in found.detail
    assert (found.severity, found.certainty) == ("error", "likely")
    assert exit_code_of(report, FailOn.WARNING) == Exit.FINDINGS


def test_the_last_error_that_pytorch_prints_is_a_warning_of_nccl(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "[rank3]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/NCCLUtils.cpp:94"
        ", internal error - please report this issue to the NCCL developers, NCCL version 2.26.2\n"
        f"[rank3]: ncclInternalError: Internal check failed.\n[rank3]: Last error:\n[rank3]: {SENTENCE}\n",
        encoding="utf-8",
    )

    assert any(finding.title.endswith(SENTENCE) for finding in analyze([str(log)]).findings)


def test_the_time_on_a_line_of_its_own_is_not_the_last_error(tmp_path: Path) -> None:
    texts = ["ncclInternalError: Internal check failed.", "Last error:", SENTENCE]
    (tmp_path / "export.txt").write_text("".join(f"2024-11-15T06:01:13.171Z\n{text}\n" for text in texts))

    assert any(finding.title.endswith(SENTENCE) for finding in analyze([tmp_path]).findings)


def test_two_records_of_pytorch_in_one_line_are_both_read(tmp_path: Path) -> None:
    record = "[rank{}]:[E723 01:58:45.510486595 ProcessGroupNCCL.cpp:632] [Rank {}] Watchdog caught collective "
    record += "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600061 milliseconds"
    record += " before timing out."
    (tmp_path / "post.txt").write_text("12%|[45:39]" + "     ".join(record.format(n, n) for n in (2, 5)) + "\n")

    assert analyze([tmp_path]).run["work"]["rank"].to_list() == [2, 5]


def test_the_table_of_torchrun_is_read_where_its_lines_were_joined(tmp_path: Path) -> None:
    table = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ==== train.py FAILED ---- Failures: [1]:",
        "time : 2026-03-02_11:04:58 host : gpu-a012 rank : 5 (local_rank: 5) exitcode : -15 (pid: 41889)",
        "error_file: <N/A> traceback : Signal 15 (SIGTERM) received by PID 41889",
        "---- Root Cause (first observed failure): [0]:",
        "time : 2026-03-02_11:04:57 host : gpu-a012 rank : 3 (local_rank: 3) exitcode : -9 (pid: 41887)",
        "error_file: <N/A> traceback : Signal 9 (SIGKILL) received by PID 41887 =====",
    ]
    (tmp_path / "post.txt").write_text(" ".join(table) + "\n")

    found = {finding.rule: finding for finding in analyze([tmp_path]).findings}

    assert found["app-process-died"].title == "rank 3 on gpu-a012 (pid 41887) was killed by SIGKILL"


def test_messages_of_plugins_without_prefix_are_read_where_no_line_has_one(tmp_path: Path) -> None:
    log = tmp_path / "excerpt.txt"
    log.write_text(
        "step 10 loss 2.3\nNET/OFI Selected Provider is efa (found 4 nics)\nUsing network AWS Libfabric\n",
        encoding="utf-8",
    )

    run = analyze([str(log)]).run

    assert run["libfabric"]["provider"].to_list() == ["efa"]
    assert run["milestone"]["network"].to_list() == ["AWS Libfabric"]


def test_a_log_in_one_line_of_a_collector_is_read(tmp_path: Path) -> None:
    """Some collectors put all that a container printed into one record, far longer than any line of NCCL."""
    texts = [path.read_text() for path in sorted((INCIDENTS / "one-rank-stops-before-an-allreduce").glob("*.log"))]
    log = tmp_path / "job.json"
    log.write_text(json.dumps({"log": "".join(texts), "stream": "stdout", "time": TIME}) + "\n", encoding="utf-8")

    assert analyze([str(log)]).verdicts[0].verdict == "lagging-ranks"


@pytest.mark.parametrize(
    ("front", "message", "rule", "rank"),
    [
        (
            "3%|▏| 96/3200 [01:02<1:21:36] [rank1]:[E1029 17:25:15.355741990 ProcessGroupNCCL.cpp:1515] [PG 3 Rank 1] ",
            "Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure",
            "cuda-sticky-error",
            1,
        ),
        (
            "``` rank0]:[E416 04:50:37.808620443 ProcessGroupNCCL.cpp:1484] [PG ID 2 PG GUID 3 Rank 0] ",
            "ProcessGroupNCCL's watchdog got stuck for 300 seconds without making progress in monitoring collectives.",
            "torch-heartbeat-stuck",
            None,
        ),
    ],
)
def test_a_record_of_pytorch_counts_behind_other_text(
    tmp_path: Path, front: str, message: str, rule: str, rank: int | None
) -> None:
    (tmp_path / "post.txt").write_text(f"{front}{message}\n")

    found = {finding.rule: finding for finding in analyze([tmp_path]).findings}

    assert rule in found, list(found)
    assert found[rule].ranks == ([] if rank is None else [rank])


NO_ID = "is setting up NCCL communicator and retreiving"
NO_ANSWER = "but store->get('0') got error: Socket Timeout"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            '{"level": "ERROR", "raw": "RendezvousConnectionError: The connection to the C10d store has failed."}',
            "torch-store-failed",
        ),
        (
            f"it is [1] {NO_ID} ncclUniqueId from [0] via c10d key-value store by key '0', {NO_ANSWER}",
            "torch-store-failed",
        ),
        ("the worker said WorkerProc failed. NCCL error: unhandled cuda error", "error-returned-to-application"),
        (
            "H100: Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'not now'.",
            "nvls-multicast-bind-failed",
        ),
        (
            "With P2P off: Cuda failure 217 'peer access is not supported between these two devices'",
            "p2p-access-refused",
        ),
        ("we see\n`[WARNING] it stops\nRuntimeError: CUDA error: unspecified launch failure`", "cuda-sticky-error"),
        ("After a NCCL error: reading the manual, the connection to the store came back.", None),
    ],
)
def test_a_message_counts_inside_a_sentence(tmp_path: Path, text: str, rule: str | None) -> None:
    (tmp_path / "post.txt").write_text(text + "\n")

    found = {finding.rule for finding in analyze([tmp_path]).findings if finding.severity != "info"}

    assert found == ({rule} if rule else set())


def test_a_warning_of_a_shape_of_its_own_is_reported_by_hang(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("node1:77:310 [3] graph/xml.h:60 NCCL WARN Attribute busid of node pci not found\n")

    assert [finding.rule for finding in analyze([str(log)]).findings if finding.severity == "error"] == [
        "topo-file-bad"
    ]


@pytest.mark.parametrize(
    ("quoted", "severity"), [("Attribute busid of node nic not found", "error"), (SENTENCE, "warning")]
)
def test_what_xla_quotes_of_nccl_is_a_warning(quoted: str, severity: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "INTERNAL: xla/service/gpu/nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: "
        f"internal error. Last NCCL warning(error) log entry (may be unrelated) '{quoted}'.\n"
    )

    findings = analyze([str(log)]).findings

    assert severity in {finding.severity for finding in findings if finding.rule != "init-call-failed"}
    assert all("is not here" not in finding.detail for finding in findings)


def test_two_members_of_a_group_do_not_show_that_all_made_the_call(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "".join(
            f"[rank{rank}]:[E916 08:53:53.87{rank} ProcessGroupNCCL.cpp:633] [Rank {rank}] Watchdog caught collective "
            "operation timeout: WorkNCCL(SeqNum=1, OpType=ALLGATHER, NumelIn=1, NumelOut=16, Timeout(ms)=600000) ran "
            "for 600077 milliseconds before timing out.\n"
            f"[rank{rank}]:[E916 08:53:53.88{rank} ProcessGroupNCCL.cpp:2289] [PG ID 1 PG GUID 1 Rank {rank}]  failure "
            "detected by watchdog at work sequence id: 1 PG status: last enqueued work: 1, last completed work: -1\n"
            for rank in (2, 6)
        )
    )

    screen = " ".join(str(analyze([str(log)])).split())

    assert (
        "reports of 14 of the 16 members of this process group were not read; one of them may not have called it"
        in screen
    )
    assert "STUCK-TOGETHER" not in screen


@pytest.mark.parametrize(("numel", "is_alike"), [(16, True), (32, False)])
def test_a_time_out_without_its_status_line_counts_beside_those_of_an_equal_work(
    numel: int, *, is_alike: bool, tmp_path: Path
) -> None:
    def time_out(rank: int, numel: int) -> str:
        return (
            f"[rank{rank}]:[E916 08:53:53.87{rank} ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
            f"operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn={numel}, NumelOut={numel}, "
            "Timeout(ms)=600000) ran for 600077 milliseconds before timing out.\n"
        )

    def status(rank: int) -> str:
        return (
            f"[rank{rank}]:[E916 08:53:53.88{rank} ProcessGroupNCCL.cpp:1664] [PG 3 Rank {rank}] Exception (either an "
            "error or timeout) detected by watchdog at work: 9, last enqueued NCCL work: 9, last completed NCCL work: "
            "8.\n"
        )

    (tmp_path / "post.txt").write_text("".join(time_out(r, 16) + status(r) for r in (0, 1)) + time_out(2, numel))

    (verdict,) = analyze([tmp_path]).verdicts

    assert verdict.verdict == "stuck-together"
    assert ("rank 2 timed out at work 9, too" in verdict.reason) is is_alike


@pytest.mark.parametrize(("thread", "is_failed_init"), [(" [Progress Thread]", False), (" [Async thread]", True)])
def test_an_error_of_a_process_that_moved_data_is_no_failed_init(
    thread: str, is_failed_init: bool, tmp_path: Path
) -> None:
    log = tmp_path / "job.log"
    prefix = "node1:77:310 [0] "
    log.write_text(
        f"{prefix}NCCL INFO transport/net.cc:389 -> 2\n{prefix}NCCL INFO proxy.cc:452 -> 2{thread}\n"
        f"{prefix}init.cc:204 NCCL WARN Cuda failure 'an illegal memory access was encountered'\n"
        f"{prefix}NCCL INFO init.cc:990 -> 1\n"
    )

    report = analyze([str(log)])

    assert ("INIT-FAILED" in str(report)) == is_failed_init
    assert any("illegal memory access" in finding.title for finding in report.findings)


def test_a_quote_that_repeats_the_error_does_not_replace_it(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    error = "Unable to load NCCL library. Multi-GPU collectives will not work."
    log.write_text(
        f"INTERNAL: xla/service/gpu/nccl_utils.cc:134: NCCL operation ncclGetUniqueId(&id) failed: {error}. "
        f"Last NCCL warning(error) log entry (may be unrelated) '{error}'.\n"
    )

    found = [finding for finding in analyze([str(log)]).findings if finding.severity == "error"]

    assert [finding.rule for finding in found] == ["init-call-failed"]


@pytest.mark.parametrize("place", ["transport/nvls.cc:156", "misc/shmutils.cc:117", "enqueue.cc:1402"])
def test_an_error_of_an_earlier_kernel_is_not_that_of_the_call_that_reports_it(place: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        f"node1:77:310 [0] {place} NCCL WARN Cuda failure 'an illegal memory access was encountered'\n"
    )

    found = [finding for finding in analyze([tmp_path]).findings if finding.severity == "error"]

    assert [(finding.rule, finding.title) for finding in found] == [
        ("cuda-sticky-error", "CUDA error in process 77 on node1: an illegal memory access was encountered")
    ]


def test_an_error_copied_without_its_place_has_that_of_the_same_error_elsewhere(tmp_path: Path) -> None:
    error = "NCCL WARN Cuda failure 'invalid argument'\n"
    (tmp_path / "post.txt").write_text(f"{error}[1] misc/shmutils.cc:103 {error}")

    found = [finding for finding in analyze([tmp_path]).findings if finding.severity == "error"]

    assert [(finding.rule, finding.title, finding.certainty) for finding in found] == [
        ("shm-cuda-invalid-argument", "shared memory could not be registered with CUDA", "likely")
    ]


def torchrun_table(*failures: tuple[int, str, int, str]) -> str:
    """torchrun's table of failures, the root cause last: the rank, its host, its exit code, and the time."""
    blocks = [
        f"  time      : 2026-09-07_{time}\n  host      : {host}\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {14690 + rank})\n  error_file: <N/A>\n  traceback : "
        + (f"Signal {-code} received by PID {14690 + rank}\n" if code < 0 else "To enable traceback see: …\n")
        for rank, host, code, time in failures
    ]
    head = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + "=" * 60 + "\ntrain.py FAILED\n"
    others = "".join(f"[{number}]:\n{block}" for number, block in enumerate(blocks[:-1], 1))
    root = "-" * 60 + f"\nRoot Cause (first observed failure):\n[0]:\n{blocks[-1]}" + "=" * 60 + "\n"
    return head + "-" * 60 + f"\nFailures:\n{others}" + root


@pytest.mark.parametrize(
    ("host", "killed", "verdict"),
    [
        ("a", "13:03:28", "undecidable"),  # 30 s after SIGTERM, which it did not heed
        ("a", "13:02:58", "rank-died"),  # found ended together with the first one
        ("b", "13:03:28", "undecidable"),
        ("b", "13:03:10", "rank-died"),  # may have ended before, and been found later
    ],
)
def test_torchrun_kills_a_process_that_does_not_heed_sigterm(
    host: str, killed: str, verdict: str, tmp_path: Path
) -> None:
    (tmp_path / "stderr.txt").write_text(torchrun_table((0, host, -9, killed), (1, "a", 1, "13:02:58")))

    (row,) = analyze([tmp_path]).verdicts

    assert row.verdict == verdict
    assert "rank 1" in row.reason.lower() or verdict == "rank-died"


def test_the_warning_after_a_failed_socket_is_not_the_cause(tmp_path: Path) -> None:
    prefix = "worker-2:83:2526 [0]"
    (tmp_path / "job.log").write_text(
        f"{prefix} misc/socket.cc:503 NCCL WARN Net : Call to recv from 10.0.0.9<41468> failed : Connection timed out\n"
        f"{prefix} NCCL INFO misc/socket.cc:520 -> 2\n"
        f"{prefix} transport/net_socket.cc:219 NCCL WARN NET/Socket : socket progress error\n"
        f"{prefix} NCCL INFO transport/net.cc:870 -> 2\n{prefix} NCCL INFO proxy.cc:494 -> 2\n"
    )
    report = analyze([tmp_path])

    assert "communication of worker-2 with 10.0.0.9<41468> failed" in report.verdicts[0].reason
    assert not [finding for finding in report.findings if finding.severity == "error" and finding.role == "cause"]


def test_the_command_that_deepspeed_prints_names_no_process(tmp_path: Path) -> None:
    """It is that of the process that the launcher started last, whichever failed."""
    (tmp_path / "post.txt").write_text(
        "[2024-01-30 21:38:11,090] [ERROR] [launch.py:321:sigkill_handler] ['python', '--local_rank=2', 'train.py'] "
        "exits with return code = -9\n"
    )

    found = {finding.rule: finding for finding in analyze([tmp_path]).findings}

    assert found["app-process-died"].title == "a process was killed by SIGKILL"


def test_a_line_of_a_traceback_behind_an_empty_last_error_is_no_warning(tmp_path: Path) -> None:
    """Several processes write at once; the text of the last error was empty."""
    (tmp_path / "job.log").write_text(
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "Last error:\n\n    return pg.recv([tensor], group_src_rank, tag)\n    return pg.recv([tensor], rank, tag)\n"
    )

    assert analyze(tmp_path / "job.log").run["nccl_warning"].is_empty()
