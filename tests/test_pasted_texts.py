"""What people paste of PyTorch, its launchers and engines: what it says is told, and no more than it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding
from ncclforensics.views.text_screen import screen
from tests.budget import IS_FULL

WIDE = 200
CALL = "WorkNCCL(SeqNum=57, OpType=BROADCAST, Timeout(ms)=600000) ran for 600032 milliseconds before timing out"
RATE = (
    "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {rate} tokens/s, Running: "
    "{running} reqs, Waiting: 0"
)
BARRIER = (
    "store based barrier {start}on rank: {rank}, for key: store_based_barrier_key:1 "
    "(world_size={size}, worker_count={came}, "
)
WAIT = (
    "INFO:root:Waiting in store based barrier to initialize process group for rank: {rank}, key: "
    "store_based_barrier_key:1 (world_size=4, worker_count={came}, timeout=0:30:00)"
)
SIGNALLED = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 61 got signal: 2"
STATUS = (
    "[rank3]:[E813 12:25:30.948355712 ProcessGroupNCCL.cpp:2271] [PG ID 1 PG GUID 1 Rank 3]  failure "
    "detected by watchdog "
    "at work sequence id: 57 PG status: last enqueued work: 60, last completed work: 56"
)


def _report(folder: Path, *lines: str) -> Report:
    (folder / "paste.txt").write_text("\n".join(lines) + "\n")
    return analyze([str(folder / "paste.txt")])


def _titles(report: Report) -> dict[str, str]:
    return {finding.rule: finding.title for finding in reversed(report.findings)}


def _found(report: Report, rule: str) -> Finding:
    return next(finding for finding in report.findings if finding.rule == rule)


@pytest.mark.parametrize(
    "line",
    [
        (
            f"**RuntimeError: NCCL communicator was aborted on rank 2. Original reason for failure was: "
            f"[Rank 2] Watchdog caught collective operation timeout: {CALL}.**"
        ),
        (
            f"RuntimeError: : NCCL communicator was aborted on rank 2.  Original reason for failure was: "
            f"[Rank 2] Watchdog caught collective operation timeout: {CALL}."
        ),
        f"  what():  [Rank 2] Watchdog caught collective operation timeout: {CALL.removesuffix(' out')}",
    ],
    ids=["emphasis", "torch-1.10", "cut"],
)
def test_a_time_out_is_read_however_it_is_pasted_and_accuses_no_rank(line: str, tmp_path: Path) -> None:
    report = _report(tmp_path, "terminate called after throwing an instance of 'std::runtime_error'", line)

    assert _titles(report)["torch-watchdog-timeout"] == "the watchdog of rank 2 timed out at work 57"
    assert [list(answer.culprits) for answer in report.verdicts] == [[]]


@pytest.mark.parametrize("head", ["[rank2]:[E813 12:25:30.9 ProcessGroupNCCL.cpp:1895] ", "  what():  "])
def test_a_time_out_is_one_wherever_its_line_is_cut(head: str, tmp_path: Path) -> None:
    thrown = f"{head}[Rank 2] NCCL watchdog thread terminated with exception: [Rank 2] Watchdog caught collective "
    line = f"{thrown}operation timeout: {CALL.replace('Timeout', 'NumelIn=1, NumelOut=1, Timeout')}."
    for length in range(line.index("caught") + 3, len(line), 7 if IS_FULL else 37):
        title = _titles(_report(tmp_path, line[:length]))["torch-watchdog-timeout"]
        work = " at work 57" * ("BROADCAST," in line[:length])
        assert title == f"the watchdog of rank 2 timed out{work}", line[:length]


def test_an_error_of_nccl_is_told_where_its_version_is_cut(tmp_path: Path) -> None:
    error = "torch.distributed.DistBackendError: NCCL error in: /c10d/NCCLUtils.hpp:275, unhandled system error, NCCL"
    reason = "Last error:\n[Proxy Service 2] Failed to execute operation Connect from rank 2, retcode 3"
    report = _report(tmp_path, f"{error} version 2.21.5", reason, f"{error} versi")

    assert report.findings[0].title == "a call of NCCL returned an error: unhandled system error"


def test_a_test_of_nccl_whose_line_is_cut_failed_in_nccl(tmp_path: Path) -> None:
    report = _report(tmp_path, "gpu-a012: Test NCCL failure common.cu:775 'unhandled cuda error (run with NCCL_")

    assert _titles(report)["bench-call-failed"] == "a test failed in a call of NCCL on gpu-a012: unhandled cuda error"


def test_a_status_line_that_is_cut_on_the_screen_still_tells_how_far_a_rank_came(tmp_path: Path) -> None:
    line = "[rank1]:[E307 05:29:18.161079108 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received"
    line += " a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug"
    report = _report(tmp_path, f"{line} info. Last enqueued NCCL work: 855, last completed NCCL work: 12.This is most")

    assert report.verdicts[0].reason.endswith("; rank 1 had completed work 12 of 855")


def test_all_ranks_of_a_stated_size_are_counted_among_those_that_print_nothing(tmp_path: Path) -> None:
    aborted = "gpu-a012:{0}:447 [{0}] NCCL INFO comm 0xc32022{0} rank {0} nranks 4 cudaDev {0} busId {0}000 - Abort"
    report = _report(
        tmp_path,
        f"[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: {CALL}.",
        "gpu-a012:7:494 [3] NCCL INFO [Service thread] Connection closed by localRank 3",
        f"{aborted.format(1)} COMPLETE",
    )

    assert "no time-out of ranks 0, 1, 3 was read" in report.verdicts[0].reason


def test_a_sentence_behind_last_error_is_quoted_and_a_lost_connection_names_its_host(tmp_path: Path) -> None:
    quoted = ["ncclInvalidArgument: Invalid value for an argument.", "Last error:", "Invalid config blocking value -1"]
    assert _report(tmp_path, *quoted).findings[0].title == "NCCL WARN: Invalid config blocking value -1"

    lost = "gpu-a012:83:2526 [0] misc/socket.cc:503 NCCL WARN Net : Call to recv from 10.0.4.13<41468> failed : "
    reason = _report(tmp_path, f"{lost}Connection timed out").verdicts[0].reason
    assert reason.startswith("communication of gpu-a012 with 10.0.4.13<41468> failed; ")


def test_an_attempt_to_connect_gives_the_address_of_a_store_and_alone_is_no_failure(tmp_path: Path) -> None:
    attempt = "[W socket.cpp:601] [c10d] The client socket has failed to connect to [gpu-a011]:29500 (errno: 110 - "
    error = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
    title = _titles(_report(tmp_path, f"{attempt}Connection timed out).", f"{error}failed."))["torch-store-failed"]
    assert title == "the store of the rendezvous at gpu-a011:29500 could not be reached: Connection timed out"

    assert "torch-store-failed" not in _titles(_report(tmp_path, f"{attempt}Connection timed out)."))

    endpoint = "I0618 15:59:02.634000 4711 torch/distributed/launcher/api.py:188]   rdzv_endpoint    : gpu-a011:29400"
    title = _titles(_report(tmp_path, endpoint, f"{error}failed."))["torch-store-failed"]
    assert title == "the store of the rendezvous at gpu-a011:29400 could not be reached"


def test_an_early_torchrun_names_the_process_that_ended(tmp_path: Path) -> None:
    report = _report(tmp_path, "Child process 41887 (local_rank 3) FAILED (exitcode -9)")

    assert _titles(report)["app-process-died"] == "local rank 3 was killed by SIGKILL"


def test_a_status_line_that_stands_for_an_error_too_is_no_hang(tmp_path: Path) -> None:
    report = _report(tmp_path, STATUS)

    expected = "the watchdog of rank 3 found an error or a time-out at work 57 of process group 1"
    assert _titles(report)["torch-watchdog-timeout"] == expected
    assert "the job hung" not in screen(report, width=WIDE)


def test_a_second_rank_whose_lines_are_cut_is_not_denied(tmp_path: Path) -> None:
    record = (
        "[rank{}]:[E813 12:25:30.9 ProcessGroupNCCL.cpp:607] [Rank {}] Watchdog caught collective "
        "operation timeout: {}."
    )
    status = "[rank0]:[E813 12:25:30.9 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) "
    status += "detected by watchdog at work: 57, last enqueued NCCL work: 57, last completed NCCL work: 56."
    report = _report(
        tmp_path, record.format(0, 0, CALL), status, record.format(1, 1, CALL.replace("SeqNum=57", "SeqNum=58"))
    )

    expected = "rank 0 waited in work 57, and rank 1 in work 58 of a group whose name was not read"
    assert report.verdicts[0].reason == expected


def test_a_group_is_known_from_a_status_line_that_is_cut_behind_the_work(tmp_path: Path) -> None:
    record = (
        "[rank{0}]:[E813 12:25:30.9 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective "
        "operation timeout: {1}."
    )
    status = (
        "[rank{0}]:[E813 12:25:30.9 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 9 Rank {0}] Exception (either an error "
    )
    status += "or timeout) detected by watchdog at work: 57, last enq"
    report = _report(tmp_path, *(line.format(rank, CALL) for rank in (1, 7) for line in (record, status)))

    expected = "the watchdogs of ranks 1, 7 timed out at work 57 of process group 9"
    assert _titles(report)["torch-watchdog-timeout"] == expected


def test_a_desync_report_names_a_rank_that_printed_nothing(tmp_path: Path) -> None:
    report = _report(
        tmp_path,
        f"[Rank 0] Watchdog caught collective operation timeout: {CALL}.",
        "[1] finished collective #56, but didn't join collective #57",
    )

    (answer,) = report.verdicts
    assert (answer.verdict, list(answer.missing)) == ("lagging-ranks", [1])
    assert answer.reason == "did not join collective 57, as PyTorch's desync report says"


def test_tasks_that_jax_waited_for_at_a_barrier_sent_no_word_of_heartbeats(tmp_path: Path) -> None:
    report = _report(
        tmp_path,
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: Start. "
        "Timed out task names:",
        "/job:jax_worker/replica:0/task:2",
        "/job:jax_worker/replica:0/task:1",
    )

    finding = _found(report, "jax-tasks-without-heartbeat")
    assert finding.title.startswith("tasks 1, 2 of JAX did not come to a barrier in time")
    assert "num_processes" in finding.remedy
    assert "heartbeat" not in finding.remedy


def test_horovod_ranks_that_submit_different_tensors_are_told_apart(tmp_path: Path) -> None:
    start = (
        "Epoch 3: 82% 1025/1252 [35:04<13:48]WARNING: One or more tensors were submitted to be reduced, "
        "gathered or broadcasted by subset of "
        "ranks and are waiting for remainder of ranks for more than 60 seconds. This may indicate that "
        "different ranks are "
        "trying to submit different tensors or that only subset of ranks is submitting tensors, which "
        "will cause deadlock. "
    )
    other = _report(
        tmp_path, start + "Stalled ops: allreduce.loss [ready ranks: 3], allreduce.fc [ready ranks: 0, 1, 2]"
    )
    stalled = "Stalled ops: allreduce.fc [ready ranks: 0, 1], allreduce.fd [ready ranks: 0, 1]"
    same = _report(tmp_path, start + stalled)

    expected = "ranks submitted different tensors to Horovod: ranks 0-2 allreduce.fc; rank 3 allreduce.loss"
    assert _titles(other)["horovod-waits-for-ranks"] == expected
    assert _titles(same)["horovod-waits-for-ranks"] == "only ranks 0, 1 submitted a tensor that Horovod waits for"


def test_more_processes_than_the_group_has_are_not_too_few(tmp_path: Path) -> None:
    raised = "RuntimeError: Timed out initializing process group in " + BARRIER.format(start="", rank=2, size=2, came=4)
    many = _report(tmp_path, raised + "timeout=0:30:00)")
    few = _report(tmp_path, raised.replace("size=2", "size=8") + "timeout=0:30:00)")

    assert _titles(many)["torch-store-failed"] == "4 processes came to the store of a process group of 2"
    assert "earlier run" in _found(many, "torch-store-failed").remedy
    assert _titles(few)["torch-store-failed"] == "4 of 8 processes came to the store of the process group"


def test_the_rank_that_all_others_wait_for_at_the_store_is_named(tmp_path: Path) -> None:
    waits = [WAIT.format(rank=rank, came=3) for rank in (0, 1, 3, 0, 1, 3)]
    completed = "INFO:root:Rank 0: Completed store-based barrier for 4 nodes."

    rule = "torch-ranks-wait-at-store"
    expected = "3 of 4 processes came to the store of the process group: rank 2 did not"
    assert _titles(_report(tmp_path, *waits))[rule] == expected
    assert rule not in _titles(_report(tmp_path, *waits, completed))
    once = _found(_report(tmp_path, *waits[:3]), rule)  # they may have come a moment later
    assert once.certainty == "possible"


def test_an_id_that_the_store_did_not_give_names_both_ranks(tmp_path: Path) -> None:
    text = (
        "RuntimeError: [11] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
        "c10d key-value store"
    )
    report = _report(tmp_path, f"{text} by key '0', but store->get('0') got error: Connection reset by peer")

    finding = _found(report, "torch-store-failed")
    expected = "rank 11 of a process group did not get the id of its communicator from rank 0: Connection reset by peer"
    assert finding.title == expected
    assert "ended" in finding.detail


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (("it printed slurmstepd: error: Detected 1 oom_kill event in StepId=47.0. Some of the step tasks "
          "have been OOM Killed."),
         "a process killed: the memory of the host, the container or the job ran out"),
        ("CUDA error: uncorrectable ECC error encountered Search for `cudaErrorECCUncorrectable' in the manual.",
         "GPU fault: uncorrectable ECC error encountered"),
        (("I get DDP expects same model across all ranks, but Rank 0 has 161 params, while rank 1 has "
          "inconsistent 0 params."),
         "the models of ranks of a process group differ"),
        (" ORTE has lost communication with its daemon located on node:\n\n   hostname:  gpu-a012",
         "mpirun lost its daemon on gpu-a012"),
        (("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n       "
          " pid: 41887\n        ip: 10.0.4.13"),
         "process 41887 on 10.0.4.13: an actor died unexpectedly"),
        (("[rank3]: RuntimeError: Expected to have finished reduction in the prior iteration before "
          "starting a new one. This"),
         "rank 3: parameters of the model got no gradient in a step"),
        ("gpu-a012:7:9 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out",
         "gpu-a012 could not connect to a peer: Connection timed out"),
    ],
)  # fmt: skip
def test_lines_inside_sentences_and_of_old_versions_are_told(line: str, title: str, tmp_path: Path) -> None:
    assert any(finding.title.startswith(title) for finding in _report(tmp_path, line).findings)


def test_an_engine_that_generates_nothing_stands_still_only_if_its_last_reports_say_so(tmp_path: Path) -> None:
    still = [RATE.format(rate="0.0", running=2)] * 3
    rule = "engine-generates-nothing"

    assert _titles(_report(tmp_path, *still))[rule] == "the engine generates no token, and 2 requests run"
    assert rule not in _titles(_report(tmp_path, *still, RATE.format(rate="14.2", running=2)))
    assert rule not in _titles(_report(tmp_path, *[RATE.format(rate="0.0", running=0)] * 3))


def test_a_traceback_that_is_cut_before_its_error_names_the_worker_and_the_last_call(tmp_path: Path) -> None:
    lines = [
        "[2026-03-02 11:04:57 TP2] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/srv/engine/scheduler.py", line 218, in start',
        '  File "/srv/engine/worker.py", line 63, in load',
    ]
    rule = "app-traceback-cut"
    finding = _found(_report(tmp_path, *lines), rule)

    assert finding.title == "TP2 raised an exception in load (worker.py:63), and no line that was read names it"
    assert finding.detail == "the last call that is shown: load (worker.py:63)"
    assert rule not in _titles(_report(tmp_path, *lines, "ValueError: no such layer"))
    assert rule not in _titles(_report(tmp_path, *lines, SIGNALLED))


def test_a_worker_that_saw_others_fail_is_not_the_cause(tmp_path: Path) -> None:
    text = "ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading."
    finding = _found(_report(tmp_path, "Traceback (most recent call last):", text), "app-exception")

    assert (finding.severity, finding.role) == ("warning", "consequence")


def test_an_address_of_no_family_points_at_the_interface_first(tmp_path: Path) -> None:
    line = (
        "gpu-a012:7:7 [3] misc/socket.cc:550 NCCL WARN ncclSocketInit: connecting to address  with "
        "family 59936 is neither "
    )
    report = _report(tmp_path, line + "AF_INET(2) nor AF_INET6(10)")

    finding = next(found for found in report.findings if "address of another rank" in found.title)
    assert "NCCL_SOCKET_IFNAME" in finding.remedy


def test_a_warning_that_xla_quotes_may_be_the_reason_of_a_failed_init(tmp_path: Path) -> None:
    quoting = (
        "INTERNAL: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled system error. Last NCCL "
    )
    quoting += "warning(error) log entry (may be unrelated) 'socketTryAccept: Accept failed: Bad file descriptor'."
    returned = [
        f"gpu-a012:7:9 [4] NCCL INFO {place} -> 2" for place in ("bootstrap.cc:280", "init.cc:1388", "init.cc:1641")
    ]
    report = _report(tmp_path, *returned, quoting)

    finding = _found(report, "boot-init-refused")
    assert finding.detail == "NCCL's last warning, which the application quotes, may be the reason: Bad file descriptor"
    assert any("Accept failed: Bad file descriptor" in found.title for found in report.findings)


def test_an_exception_that_a_logger_reports_as_a_warning_is_none_of_the_program(tmp_path: Path) -> None:
    record = "(APIServer pid=61) [WARNING] loader.py:71: no hook {name}: HookNotFoundError: no file {name}.py"
    report = _report(tmp_path, *(record.format(name=name) for name in ("start", "stop")), "(APIServer pid=61) ready")

    assert "app-exception" not in _titles(report)


def test_what_stands_behind_a_progress_bar_without_a_total_is_read(tmp_path: Path) -> None:
    bar = "1041it [34:58,  5.31s/it] 1042it [35:00,  4.31s/it]"
    report = _report(tmp_path, f"{bar}slurmstepd: error: *** JOB 4711 ON gpu-a012 CANCELLED AT 2026-03-02T11:04:57 ***")

    assert _titles(report)["stated-failure"].startswith("gpu-a012: Slurm ended the job")


def test_a_server_that_sigterm_ends_while_it_starts_was_told_to_end(tmp_path: Path) -> None:
    call = '  File "/opt/venv/site-packages/vllm/entrypoints/openai/api_server.py", line 1307, in handler'
    code = '    raise KeyboardInterrupt("terminated")'
    report = _report(tmp_path, "Traceback (most recent call last):", call, code, "KeyboardInterrupt: terminated")

    assert _titles(report) == {"app-told-to-end": "told to end by SIGTERM: a process"}


def test_memory_of_a_gpu_that_ran_out_is_told_where_the_program_goes_on(tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 24 GiB"
    report = _report(tmp_path, "Traceback (most recent call last):", error, *(f"model {n}" for n in range(500)))

    assert "the log goes on after it" in _found(report, "oom-gpu").detail


def test_an_exception_above_the_one_process_that_ended_is_of_that_process(tmp_path: Path) -> None:
    raised = (
        "Traceback (most recent call last):",
        '  File "/mnt/train.py", line 3, in load',
        "ValueError: no data here",
    )
    ended = "srun: error: gpu-a012: task {task}: Exited with exit code 1"

    report = _report(tmp_path, *raised, ended.format(task=3), "srun: error: gpu-a012: tasks 0-2: Terminated")
    assert _titles(report)["app-exception"] == "task 3 of srun, gpu-a012 raised ValueError: no data here"

    report = _report(tmp_path, *raised, ended.format(task=3), ended.format(task=2))
    assert _titles(report)["app-exception"] == "a process raised ValueError: no data here"


def test_the_reason_that_stands_below_an_exception_is_the_cause(tmp_path: Path) -> None:
    report = _report(
        tmp_path, "Traceback (most recent call last):", '  File "/opt/ray/manager.py", line 608, in load',
        "RuntimeError: the actor failed to import on the worker. A library may be missing there:", "",
        "Traceback (most recent call last):", '  File "/mnt/worker.py", line 3, in <module>',
        "ImportError: kernels.so: undefined symbol: _ZNK3c10",
    )  # fmt: skip

    assert _titles(report)["app-exception"].startswith("a process raised ImportError: kernels.so")


def test_an_exception_of_an_engine_core_that_ended_is_no_caught_one(tmp_path: Path) -> None:
    core = "(EngineCore_DP0 pid=61) ERROR 07-31 16:03:52 [core.py:710] "
    lines = (
        f"{core}EngineCore encountered a fatal error.", f"{core}Traceback (most recent call last):",
        f'{core}  File "/opt/vllm/core.py", line 701, in run', f"{core}RuntimeError: PassManager::run failed",
    )  # fmt: skip
    report = _report(tmp_path, *lines, *(f"(APIServer pid=60) model part {n}" for n in range(500)))

    assert "may have caught it" not in _found(report, "app-exception").detail
