"""How workers of Ray and engines ended, by what their own handlers, the heap and the driver print of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.report.without_job import health

WORKER = "(RayWorkerWrapper pid=41887, ip=10.0.4.13) "
SEGV = "*** SIGSEGV received at time=1772449497 on cpu 19 ***"
CRASH = [
    SEGV,
    "PC: @     0x7f2a44005014  (unknown)  addProxyOpIfNeeded()",
    f"[2026-03-02 11:04:57,123 E 41887 41887] logging.cc:484: {SEGV}",
    "Fatal Python error: Segmentation fault",
    "",
    "Stack (most recent call first):",
    '  File "/opt/venv/lib/python3.12/site-packages/vllm/pynccl_wrapper.py", line 290 in ncclAllReduce',
]
READY = "INFO:     Application startup complete."
STOPPED = "INFO:     Application shutdown complete."
TOLD = "INFO 03-02 11:04:57 [core.py:1214] [shutdown] EngineCore: trigger received signal=SIGTERM"
TERM = f"(EngineCore pid=41887) {TOLD}"
TERM_OF_SGLANG = "[2026-03-02 11:04:57] SIGTERM received. signum=None frame=None. Draining requests and shutting down"
KILLED_BELOW = "[2026-03-02 11:04:57] SIGQUIT received. signum=None, frame=None. It usually means one child failed."
DIED = "Engine core proc EngineCore died unexpectedly, shutting down client."
ROOM = "rid='8f3b' decode_req.req.bootstrap_room=4711"
TRANSFER = f"Decode transfer failed for request rank=0 decode_req.req.{ROOM} with exception "
BETWEEN = "from the prefill to the decode server"
CORRUPTED = "RuntimeError: CUDA error: an illegal memory access was encountered"
UNUSABLE = "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"


def reported(folder: Path, *lines: str) -> Report:
    (folder / "paste.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return analyze([folder])


def titles(report: Report) -> list[str]:
    return [finding.title for finding in report.findings if finding.evidence]


def test_a_crash_of_a_worker_is_told_once_with_its_host_and_the_call(tmp_path: Path) -> None:
    first, *others = reported(tmp_path, *(WORKER + line for line in CRASH)).findings

    assert first.title == "process 41887 on 10.0.4.13 crashed with SIGSEGV in addProxyOpIfNeeded"
    assert first.detail.startswith("in ncclAllReduce (pynccl_wrapper.py:290)")
    assert not [finding for finding in others if "SIGSEGV" in finding.title]


def test_what_python_prints_below_the_handler_of_ucx_is_the_same_crash(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        "[gpu-a012:41887  :0:42107] Caught signal 11 (Segmentation fault: address not mapped to object)",
        "==== backtrace (tid:  42107) ====",
        " 1 0x00000000000494f4 uploadProxyOps()  /build/nccl/src/enqueue.cc:1131",
        "Fatal Python error: Segmentation fault",
    )
    assert titles(report) == ["process 41887 on gpu-a012 crashed with SIGSEGV inside libnccl (uploadProxyOps)"]


@pytest.mark.parametrize("message", ["free(): double free detected in tcache 2", "munmap_chunk(): invalid pointer"])
def test_what_the_heap_found_broken_is_a_crash(message: str, tmp_path: Path) -> None:
    assert titles(reported(tmp_path, WORKER + message)) == ["process 41887 on 10.0.4.13 crashed with SIGABRT"]


def test_an_actor_whose_node_died_says_so(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
        "\tclass_name: RayTrainWorker",
        "\tpid: 6420",
        "\tip: 10.0.4.13",
        "The actor is dead because its node has died. Node Id: 677df2a9",
    )
    assert titles(report)[0] == "process 6420 on 10.0.4.13: an actor died because its node did"


def test_a_step_that_the_workers_of_a_compiled_graph_did_not_end_stands_before_the_engine_that_ended(
    tmp_path: Path,
) -> None:
    report = reported(
        tmp_path,
        "ERROR 06-12 10:46:34 [core.py:517] EngineCore encountered a fatal error.",
        "ERROR 06-12 10:46:34 [core.py:517] ray.exceptions.RayChannelTimeoutError: System error: If the execution is "
        "expected to take a long time, increase RAY_CGRAPH_get_timeout which is currently 10 seconds.",
    )
    assert [title.partition(" of Ray ")[0] for title in titles(report)] == ["the workers of a compiled graph"]


@pytest.mark.parametrize(
    ("reason", "title"),
    [
        (
            "KVTransferError(bootstrap_room=4711): the other end left",
            f"TP0: SGLang could not move the cache of a request {BETWEEN}: the other end left",
        ),
        (
            "KVTransferError(bootstrap_room=4711): Aborted by AbortReq.",
            "TP0: a request was aborted before SGLang had moved its cache from the prefill to the decode server",
        ),
    ],
)
def test_an_engine_that_failed_after_it_was_ready_is_not_called_well(reason: str, title: str, tmp_path: Path) -> None:
    report = reported(tmp_path, READY, f"[2026-02-27 11:31:26 TP0] {TRANSFER}{reason}")

    assert titles(report) == [title]
    assert not health(report.run, report.findings)


def test_an_engine_that_is_ready_is_called_well(tmp_path: Path) -> None:
    report = reported(tmp_path, READY)
    assert "no failure after that was read" in health(report.run, report.findings)


def test_a_run_that_was_recorded_to_its_exit_without_a_failure_is_called_well(tmp_path: Path) -> None:
    end = "wandb: Find logs at: wandb/run-20261122_184021-lqx4zdjx/logs"

    well, failed = (reported(tmp_path, *lines) for lines in ([end], ["ValueError: no batch", end]))

    assert "came to its exit, and no failure" in health(well.run, well.findings)
    assert not health(failed.run, failed.findings)


def test_an_error_that_quotes_an_interruption_is_none(tmp_path: Path) -> None:
    quoting = "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CpuCallback error: Traceback (most recent call last):"
    frame = '  File "train.py", line 281, in <module>'

    interrupted = reported(tmp_path, "Traceback (most recent call last):", frame, quoting, frame, "KeyboardInterrupt:")
    failed = reported(tmp_path, "Traceback (most recent call last):", frame, quoting, frame, "ValueError: no batch")

    assert [str(finding.severity) for finding in interrupted.findings] == ["info"]
    assert "ValueError: no batch" in " ".join(titles(failed))


@pytest.mark.parametrize("field", [[], ["max_model_len"]], ids=["of the whole", "of a field"])
def test_the_reason_of_a_refused_value_stands_in_the_title(field: list[str], tmp_path: Path) -> None:
    reason = "  Value error, 512 is smaller than 4096 [type=value_error, input_value={'a': 4096}, input_type=dict]"

    report = reported(tmp_path, "pydantic_core.ValidationError: 1 validation error for Config", *field, reason)

    assert titles(report)[0].endswith("1 validation error for Config: Value error, 512 is smaller than 4096")


def test_the_first_error_of_a_text_is_told_before_those_of_lower_ranks(tmp_path: Path) -> None:
    report = reported(tmp_path, "[rank1]: LookupError: no rows for bucket 17", "[rank0]: RuntimeError: ")

    assert [title for title in titles(report) if "raised" in title] == [
        "rank 1 raised LookupError: no rows for bucket 17",
        "rank 0 raised RuntimeError",
    ]


def test_what_differs_in_a_checkpoint_stands_in_the_title(tmp_path: Path) -> None:
    lines = ["RuntimeError: Error(s) in loading state_dict for Net:", '\tMissing key(s) in state_dict: "norm.bias". ']

    report = reported(tmp_path, *(f"[rank3]: {line}" for line in lines))

    assert titles(report)[0].endswith('loading state_dict for Net: Missing key(s) in state_dict: "norm.bias".')


def test_an_error_before_the_last_answer_was_one_of_a_request(tmp_path: Path) -> None:
    answer = 'INFO:     10.0.4.12:40102 - "POST /v1/completions HTTP/1.1" 200 OK'
    refused = ["ERROR:    Exception in ASGI application", "Traceback (most recent call last):", "ValueError: too long"]

    failed, answered = (reported(tmp_path, READY, *lines) for lines in ([answer, *refused], [*refused, answer]))

    assert not health(failed.run, failed.findings)
    assert "answered requests, and no failure" in health(answered.run, answered.findings)


@pytest.mark.parametrize(
    "lines", [[STOPPED], [TERM, TERM, STOPPED], [TERM_OF_SGLANG, KILLED_BELOW]], ids=["in order", "vllm", "sglang"]
)
def test_that_a_server_was_told_to_end_is_no_failure(lines: list[str], tmp_path: Path) -> None:
    report = reported(tmp_path, READY, *lines)
    assert "then shut down or was told to end" in health(report.run, report.findings)
    assert {str(finding.severity) for finding in report.findings} <= {"info"}


@pytest.mark.parametrize("lines", [[DIED, STOPPED], [DIED, TERM], [KILLED_BELOW, STOPPED]])
def test_a_server_that_shut_down_because_a_process_died_is_not_called_well(lines: list[str], tmp_path: Path) -> None:
    report = reported(tmp_path, READY, *lines)
    assert not health(report.run, report.findings)
    assert str(report.findings[0].severity) == "warning"


def test_an_error_that_other_processes_print_until_the_end_was_not_caught(tmp_path: Path) -> None:
    full = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.28 GiB. GPU {} has a total capacity of 80 GiB"
    )
    between = ["reading the next batch"] * 150

    caught = reported(tmp_path, full.format(0), *between)
    lasting = reported(tmp_path, full.format(0), *between, full.format(1))

    assert [str(finding.severity) for finding in caught.findings] == ["info"]
    assert [str(finding.severity) for finding in lasting.findings] == ["error"]


def test_errors_of_a_gpu_behind_one_that_corrupted_its_context_are_left_out(tmp_path: Path) -> None:
    lines = [f"[rank2]: {line}" for line in ("Traceback (most recent call last):", CORRUPTED, UNUSABLE)]
    found = titles(reported(tmp_path, *lines))
    assert found[0] == "CUDA error on rank 2: an illegal memory access was encountered"
    assert not [title for title in found if "cannot be used" in title]


def test_a_check_that_failed_on_an_amd_gpu_explains_its_exception(tmp_path: Path) -> None:
    worker = "(RayWorkerVllm pid=41887) "
    first, *_ = reported(
        tmp_path,
        f"{worker}/src/native/hip/Indexing.hip:1294: indexSelect: Device-side assertion `index < size' failed.",
        f"{worker}:0:rocdevice.cpp :2788: 12345678901 us: [pid:41887 tid:0x7f2a]  Callback: Queue 0x7f2a aborting "
        "with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016",
        f"{worker}Fatal Python error: Aborted",
    ).findings
    assert first.rule == "rocm-gpu-exception"
    assert "the check `index < size` failed in the kernel indexSelect (Indexing.hip:1294)" in first.detail


def test_gloo_on_the_loopback_address_is_told_beside_the_mesh_that_failed(tmp_path: Path) -> None:
    first, *_ = reported(
        tmp_path,
        f"{WORKER}[rank9]:[W ProcessGroupGloo.cpp:721] Warning: Unable to resolve hostname to a (local) address. "
        "Using the loopback address as fallback. Manually set the interface with GLOO_SOCKET_IFNAME.",
        f"{WORKER}[rank8]:[E ProcessGroupGloo.cpp:144] Gloo connectFullMesh failed with [pair.cc:144] no error",
    ).findings
    assert (first.rule, first.ranks) == ("torch-mesh-not-connected", [8])
    assert "gloo took the loopback address" in first.detail


def test_an_error_of_nccl_is_of_the_worker_that_heads_its_traceback(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        "[2026-02-27 11:31:26 TP2] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/opt/sglang/pynccl_wrapper.py", line 350, in ncclCommInitRank',
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    )
    assert titles(report)[0] == "TP2: ncclCommInitRank failed: unhandled system error"


LATER = [f"sglang step note {number}" for number in range(120)]  # more lines than a traceback has
HEADING = "[2026-03-02 11:04:57 {worker}] Scheduler hit an exception: Traceback (most recent call last):"
EVENT_LOOP = '  File "/opt/sglang/srt/managers/scheduler.py", line 636, in event_loop_normal'
KILLED_ALL = '  File "/opt/sglang/srt/utils.py", line 727, in kill_process_tree'


def of_scheduler(worker: str, *lines: str) -> list[str]:
    return [HEADING.format(worker=worker), EVENT_LOOP, *lines]


def test_an_exception_that_ends_a_scheduler_of_sglang_is_the_cause_whatever_follows(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        *of_scheduler("TP1", "TypeError: expected Tensor as element 1, but got NoneType"),
        "[2026-03-02 11:04:57] Received sigquit from a child process. It usually means the child failed.",
        *of_scheduler("TP0", "TypeError: expected Tensor as element 1, but got NoneType"),
        *LATER,
        "[2026-03-02 11:04:58] ERROR:    Traceback (most recent call last):",
        KILLED_ALL,
        "SystemExit: 0",
    )
    assert titles(report) == ["TP0, TP1 raised TypeError: expected Tensor as element 1, but got NoneType"]


def test_the_last_exception_of_a_chain_below_such_a_heading_is_of_that_scheduler(tmp_path: Path) -> None:
    chained = [
        "KeyError: 'layer'",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        EVENT_LOOP,
        "ValueError: no such layer",
    ]
    found = titles(reported(tmp_path, *of_scheduler("TP3", *chained), *LATER))

    assert "TP3 raised ValueError: no such layer" in found


def test_workers_that_print_the_same_error_ended_with_it_as_the_last_one_did(tmp_path: Path) -> None:
    raised = ["Traceback (most recent call last):", EVENT_LOOP, "AttributeError: no attribute 'bfloat16'"]
    report = reported(
        tmp_path,
        *(f"(EngineActor pid=41887) {line}" for line in raised),
        *LATER,
        *(f"(EngineActor pid=41888) {line}" for line in raised),
    )
    assert titles(report) == ["2 processes raised AttributeError: no attribute 'bfloat16'"]


def test_a_server_that_an_engine_kills_is_not_the_first_to_end(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        "Traceback (most recent call last):",
        EVENT_LOOP,
        "ValueError: the object cannot be read",
        "CRITICAL 03-02 11:04:57 [core_client.py:269] Got fatal signal from worker processes, shutting down. See stack "
        "trace above for root cause issue.",
        "/mnt/job/serve.sh: line 104:   599 Killed                  vllm serve /models/llama",
    )
    assert titles(report)[0] == "a process raised ValueError: the object cannot be read"
    assert not [title for title in titles(report) if "SIGKILL" in title]


def test_a_rank_of_the_driver_is_not_placed_on_the_host_of_rays_workers(tmp_path: Path) -> None:
    raised = ["Traceback (most recent call last):", EVENT_LOOP, "RuntimeError: Error Internal"]
    report = reported(
        tmp_path,
        *(f"(RayWorkerWrapper pid={pid}, ip=10.0.4.13) {line}" for pid in (41887, 41888) for line in raised),
        *(f"[rank0]: {line}" for line in raised),
    )
    assert any("rank 0 and 2 processes on 10.0.4.13 raised RuntimeError" in title for title in titles(report))


def test_a_launcher_that_knows_only_the_pid_of_a_crash_does_not_tell_it_again(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        "[gpu-a012:41887:0:42107] Caught signal 11 (Segmentation fault: address not mapped to object)",
        "==== backtrace (tid:  42107) ====",
        " 1 0x00000000000494f4 uploadProxyOps()  /build/nccl/src/enqueue.cc:1131",
        "Fatal Python error: Segmentation fault",
        "[2026-03-02 11:04:59] Child process unexpectedly failed with an exit code 139. pid=41887",
    )
    assert titles(report) == ["process 41887 on gpu-a012 crashed with SIGSEGV inside libnccl (uploadProxyOps)"]


def test_a_worker_that_loads_weights_has_ended_the_start_of_torch_distributed(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        "[2026-03-02 11:04:57 TP0] Init torch distributed begin.",
        "[2026-03-02 11:04:57 TP1] Init torch distributed begin.",
        "[2026-03-02 11:05:00 TP0] Load weight begin. avail mem=184.31 GB",
        "[2026-03-02 11:05:00 TP1] Load weight begin. avail mem=184.31 GB",
    )
    assert not [finding for finding in report.findings if "no end of it was read" in finding.title]


def test_a_queue_of_an_amd_gpu_that_aborts_is_read_as_rocm_printed_it_before_6(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        WORKER + ":0:rocdevice.cpp            :2778: 12345678901 us: 41887: [tid:0x7f2a] Callback: Queue 0x7f2a4400000 "
        "aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception.",
        WORKER + "Fatal Python error: Aborted",
    )
    assert titles(report)[0].startswith("an AMD GPU reported an error in process 41887")
    assert not [title for title in titles(report) if "SIGABRT" in title]


def test_a_worker_of_vllm_is_named_with_its_number_in_the_engine(tmp_path: Path) -> None:
    report = reported(tmp_path, f"(VllmWorker rank=7 pid=41887) {CORRUPTED}")

    assert titles(report)[0].startswith("CUDA error in process 41887 (VllmWorker rank=7)")


def test_a_stack_that_a_process_prints_as_it_aborts_shows_none_that_stands_still(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED",
        'Using host libthread_db library "/lib/x86_64-linux-gnu/libthread_db.so.1".',
        "#0  0x00007a9f1d8ea42f in __GI___wait4 (pid=41888, options=0) at ../sysdeps/unix/sysv/linux/wait4.c:30",
        "#1  0x00007a9f1e071053 in ggml_print_backtrace () at /src/ggml.c:229",
        "#2  0x00007a9f1e0711a6 in ggml_abort (line=102) at /src/ggml.c:256",
        "#3  0x000061bafadf507b in main (argc=5) at /src/rpc-server.cpp:142",
        "[Inferior 1 (process 41887) detached]",
    )
    assert titles(report)[0].endswith("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED")
    assert not any("stands in" in verdict.reason for verdict in report.verdicts)


KILLED_SERVER = "./serve.sh: line 1: 23287 Killed                  python -m sglang.launch_server --tp-size=4"
CRASHED = "Caught signal 11 (Segmentation fault: address not mapped to object at address 0x3)"
OF_CRASH = " 2 0x0000000000049b8a addProxyOpIfNeeded()  /build/nccl/src/enqueue.cc:180"


def test_a_server_that_the_shell_names_as_killed_ended_with_what_failed_closely_above(tmp_path: Path) -> None:
    raised = ["Traceback (most recent call last):", EVENT_LOOP, "TypeError: begin_forward() misses an argument"]
    assert titles(reported(tmp_path, *raised, KILLED_SERVER)) == [
        "a process raised TypeError: begin_forward() misses an argument"
    ]
    far = [f"line {number} of something else" for number in range(40)]
    assert any("SIGKILL" in title for title in titles(reported(tmp_path, *raised, *far, KILLED_SERVER)))


def test_a_kill_that_a_shell_reports_behind_a_crash_follows_from_it_and_one_above_does_not(tmp_path: Path) -> None:
    crash = "a process crashed with SIGSEGV inside libnccl (addProxyOpIfNeeded)"
    lost = ["RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:7"]
    behind = titles(reported(tmp_path, CRASHED, OF_CRASH, *lost * 30, "Killed"))
    assert behind[0] == crash
    assert not [title for title in behind if "SIGKILL" in title]
    assert any("SIGKILL" in title for title in titles(reported(tmp_path, KILLED_SERVER, *lost, CRASHED, OF_CRASH)))
    # One that was killed for want of memory closes its connections, and the shell tells of it later.
    assert any("SIGKILL" in title for title in titles(reported(tmp_path, *lost, KILLED_SERVER)))


def test_a_socket_of_zeromq_that_its_own_process_closed_tells_no_cause(tmp_path: Path) -> None:
    closed = ["Traceback (most recent call last):", EVENT_LOOP, "zmq.error.ZMQError: Operation not supported"]
    (finding,) = reported(tmp_path, *closed).findings
    assert (finding.role, finding.severity) == ("consequence", "warning")
    raised = ["Traceback (most recent call last):", EVENT_LOOP, "RuntimeError: Error Internal"]
    assert titles(reported(tmp_path, *raised, *closed, *closed))[0] == "a process raised RuntimeError: Error Internal"
