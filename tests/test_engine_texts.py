"""What engines, Ray, Open MPI and the kernel say of a process, in texts that hold nothing of NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report

STALLED = "Watchdog timeout (self.watchdog_timeout=300)"
GIVEN_UP = "has been marked dead because the detector has missed too many heartbeats from it."
WATCHDOG = (
    "[rank3]:[E624 04:14:29.225547137 ProcessGroupNCCL.cpp:1896] [PG ID 1 PG GUID 1 Rank 3] Process group watchdog"
)
WAITS = "task:python3.11      state:{state} stack:    0 pid:15277 ppid: 15257 flags:0x00000002"


def reported(text: str, folder: Path) -> Report:
    (folder / "paste.txt").write_text(text + "\n", encoding="utf-8")
    return analyze([folder])


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (
            f"[2026-03-02 11:04:57 TP1] {STALLED}\n[2026-03-02 11:04:57 TP0] {STALLED}",
            "TP0, TP1: the watchdog of SGLang gave up: a scheduler made no step in time",
        ),
        (
            f"5/10 [28:51<28:26]2026-03-02 11:04:57 WARNING -- The node with node id: 8f and ip: 10.0.4.13 {GIVEN_UP}",
            "10.0.4.13: Ray gave up node 8f, from which no heartbeat came",
        ),
        (
            f'{{"label":"RAY_NODE_REMOVED","message":"The node with node id: 8f and address: 10.0.4.13 {GIVEN_UP}"}}',
            "10.0.4.13: Ray gave up node 8f, from which no heartbeat came",
        ),
        ("*** Process received signal ***\nSignal: Segmentation fault (11)", "a process crashed with SIGSEGV"),
        (
            f"[  +0.000049] {WAITS.format(state='D')}",
            "waited in the kernel and could not be interrupted: python3.11 (pid 15277)",
        ),
    ],
)
def test_a_line_alone_says_what_happened_and_where(text: str, title: str, tmp_path: Path) -> None:
    assert [finding.title for finding in reported(text, tmp_path).findings if title in finding.title]


RAISED = """Traceback (most recent call last):
  File "serve.py", line 12, in main
    message = socket.recv()
{end}"""


@pytest.mark.parametrize(
    ("end", "name"),
    [("zmq.error.Again: Resource temporarily unavailable", "Again: Resource"), ("_queue.Empty", "Empty")],
)
def test_an_exception_of_any_name_is_read_below_its_calls(end: str, name: str, tmp_path: Path) -> None:
    assert [
        finding for finding in reported(RAISED.format(end=end), tmp_path).findings if f"raised {name}" in finding.title
    ]


def test_ps_shows_a_process_that_cannot_be_interrupted(tmp_path: Path) -> None:
    row = "root         935  0.0  0.0  16488  4056 ?        {state}    May04   0:00 {command}"
    rows = [
        row.format(state=state, command=command) for state, command in (("Ss", "nvidia-smi"), ("D", "[kworker/0:0]"))
    ]
    assert {finding.rule for finding in reported("\n".join(rows), tmp_path).findings} <= {"read-unknown-formats"}

    (finding,) = reported(row.format(state="Dsl", command="nvidia-smi -q"), tmp_path).findings

    assert "935" in finding.title
    assert "state D" in finding.title


def test_lines_beside_these_say_nothing(tmp_path: Path) -> None:
    lines = [
        "[2026-03-02 11:04:57] server_args=ServerArgs(tp_size=8, watchdog_timeout=300, dist_timeout=None)",
        "(raylet) The node with node id: 8f and address: 10.0.4.13 has joined the cluster.",
        f"[  +0.000049] {WAITS.format(state='S')}",
        "Signal: 11 bars",
        "train.config.Again: the same settings as before",
    ]

    assert {finding.rule for finding in reported("\n".join(lines), tmp_path).findings} <= {"read-unknown-formats"}


def test_a_message_of_the_watchdog_that_is_cut_is_a_timeout(tmp_path: Path) -> None:
    report = reported(f"{WATCHDOG} thread terminated with exception: [Rank 3] Watchdog caught co", tmp_path)

    assert "the watchdog of rank 3 timed out in process group 1" in [finding.title for finding in report.findings]
    assert not [finding for finding in report.findings if "ended with an error" in finding.title]


def test_a_task_that_the_kernel_names_twice_is_told_once(tmp_path: Path) -> None:
    blocked = "[100.0] INFO: task python3.11:15277 blocked for more than 120 seconds."
    titles = [finding.title for finding in reported(f"{blocked}\n[100.1] {WAITS.format(state='D')}", tmp_path).findings]

    assert titles == ["a process was blocked in the kernel for more than 120 s: python3.11 (pid 15277)"]


def test_workers_that_wait_for_one_queue_are_counted(tmp_path: Path) -> None:
    line = "INFO 05-28 14:44:28 [shm_broadcast.py:681] No available shared memory broadcast block found in 60 seconds."
    text = f"(EngineCore_DP1 pid=1455) {line}\n(EngineCore_DP0 pid=1454) {line}"

    assert "2 lines of 2 processes" in [finding.detail for finding in reported(text, tmp_path).findings]


ELASTIC = "WARNING:torch.distributed.elastic"
SENDING = f"{ELASTIC}.multiprocessing.api:Sending process 165 closing signal SIGTERM"
REFUSED = "RuntimeError: The server socket has failed to listen on any local network address."


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (f"{REFUSED} The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
         "port 29500 of the store is taken by another process"),
        (f"{REFUSED} port: 80, useIpv6: 0, code: -13, name: EACCES, message: permission denied",
         "the store could not listen on its port"),
        ("RuntimeError: connect() timed out. Original timeout was 60000 ms.",
         "the store could not be reached within 60 s"),
        ("RuntimeError: connect() timed out. Original timeout was 99999999999999999999 ms.",
         "the store could not be reached in time"),
        (f"{ELASTIC}.agent.server.api:Received 15 death signal, shutting down workers\n{SENDING}",
         "torchrun was told to end by SIGTERM"),
    ],
)  # fmt: skip
def test_the_store_and_torchrun_say_what_ended_the_start(text: str, title: str, tmp_path: Path) -> None:
    titles = [finding.title for finding in reported(text, tmp_path).findings]

    assert title in titles
    assert not [other for other in titles if "one of them failed" in other]


WAITED = "Waiting in store based barrier to initialize process group for rank: 2, key: store_based_barrier_key:1 "
CALLS = 'Traceback (most recent call last):\n  File "train.py", line 80, in main\n    init()'


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (("No available shared memory broadcast block found in 60 second.\n"
         "Worker proc VllmWorker-1 died unexpectedly, shutting down executor."),
         "VllmWorker-1: a worker process of vLLM ended"),
        (("[W socket.cpp:401] [c10d] The server socket has failed to bind to 0.0.0.0:29500 (errno: 98 - Address "
         f"already in use).\n{CALLS}"),
         "a process could not serve PyTorch's store on its port: 0.0.0.0:29500 (errno: 98 - Address already in use)"),
        (f"[2026-03-02 11:04:57,123] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 41887\n{CALLS}",
         "a process raised an exception in main (train.py:80), and no line that was read names it"),
        ("    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    137",
         "a process was killed by SIGKILL"),
        (f"I0510 07:28:04.417845 1398 distributed_c10d.py:337] {WAITED}(world_size=8, worker_count=7, timeout=0:30:00)",
         "7 of 8 processes came to the store of the process group"),
    ],
)  # fmt: skip
def test_what_ended_stands_before_what_follows_from_it(text: str, title: str, tmp_path: Path) -> None:
    first = reported(text, tmp_path).findings[0]

    assert first.title == title


def test_a_count_at_the_store_says_nothing_where_the_output_goes_on(tmp_path: Path) -> None:
    text = f"INFO:torch.distributed.distributed_c10d:{WAITED}(world_size=8, worker_count=7, timeout=0:30:00)\nstep 1"

    assert not [finding for finding in reported(text, tmp_path).findings if "came to the store" in finding.title]


INTERRUPTED = """Traceback (most recent call last):
  File "train.py", line 80, in main
    for batch in loader:
  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 830, in _next_data
    self._shutdown_workers()
  File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 28, in poll
    pid, sts = os.waitpid(self.pid, flag)
KeyboardInterrupt"""


def test_an_interrupt_shows_where_the_program_stood(tmp_path: Path) -> None:
    report = reported(INTERRUPTED, tmp_path)
    (finding,) = (finding for finding in report.findings if finding.rule == "app-interrupted")

    assert finding.title == (
        "a process stood in poll (popen_fork.py:28), called from main (train.py:80) when it was interrupted"
    )
    assert finding.detail.startswith("data loader")
    assert [row.verdict for row in report.verdicts] == ["undecidable"]


def test_an_interrupt_without_calls_accuses_nothing(tmp_path: Path) -> None:
    assert [finding.title for finding in reported("KeyboardInterrupt", tmp_path).findings] == [
        "the program was interrupted"
    ]


def test_the_launcher_is_an_echo_of_the_error_above_it(tmp_path: Path) -> None:
    error = (
        "Failed, NCCL error allreducePlugin.cpp:295 'internal error - please report this issue to the NCCL developers'"
    )
    report = reported(f"{error}\nPrimary job  terminated normally, but 1 process returned", tmp_path)

    severity_of = {finding.rule: finding.severity for finding in report.findings}
    assert severity_of == {"read-nothing-of-nccl": "warning", "stated-failure": "warning"}


FLUSHED = "NET/IB : Got completion from peer 172.21.17.89<38536> with error 5, opcode 48, len 32710, vendor err 249"
STACK = "Exception raised from checkForNCCLErrorsInternal at ProcessGroupNCCL.cpp:1736 (most recent call first):"


def test_a_quoted_warning_ends_where_the_stack_begins(tmp_path: Path) -> None:
    text = f"ith exception: NCCL error: remote process exited, NCCL version 2.20.5  Last error:   {FLUSHED}    {STACK}"

    assert [finding for finding in reported(text, tmp_path).findings if "172.21.17.89" in finding.title]


def test_a_sleep_inside_an_init_is_an_init(tmp_path: Path) -> None:
    report = reported(
        "#0  0x00007f68194a8adf in clock_nanosleep () from /lib/x86_64-linux-gnu/libc.so.6\n"
        "#1  0x00007f67471be402 in pncclCommInitRankConfig () from /lib/x86_64-linux-gnu/libnccl.so.2",
        tmp_path,
    )

    assert "pncclCommInitRankConfig" in report.verdicts[0].reason


def test_what_a_server_passes_on_behind_a_request_to_end_is_no_failure(tmp_path: Path) -> None:
    asked = (
        "(EngineCore pid=397) INFO 03-02 11:04:57 [core.py:1] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
    )
    dead = "(APIServer pid=283) ERROR 03-02 11:04:57 [async_llm.py:704] "
    passed_on = (
        f'{dead}Traceback (most recent call last):\n{dead}  File "core_client.py", line 1061, in get_output_async\n'
        f"{dead}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) "
        "for the root cause.\n"
    )

    titles = [
        [finding.title for finding in reported(text, tmp_path).findings if finding.category == "application-error"]
        for text in (asked + passed_on, passed_on)
    ]

    assert titles[0] == ["told to end by SIGTERM: process 397 (EngineCore)"]
    assert "raised EngineDeadError" in titles[1][0]


REFUSED = """\
INFO:     Application startup complete.
ERROR 03-02 11:04:57 [serving_chat.py:203] Traceback (most recent call last):
ERROR 03-02 11:04:57 [serving_chat.py:203] ValueError: This model's maximum context length is 2048 tokens.
INFO:     10.0.4.12:40102 - "POST /v1/chat/completions HTTP/1.1" {}
"""


@pytest.mark.parametrize(("answer", "fails"), [("400 Bad Request", False), ("500 Internal Server Error", True)])
def test_an_error_that_the_server_answers_as_the_fault_of_a_request_is_none_of_its_own(
    answer: str, tmp_path: Path, *, fails: bool
) -> None:
    report = reported(REFUSED.format(answer), tmp_path)

    assert any("maximum context length" in finding.title for finding in report.findings) == fails


ANSWERS = 'INFO:     10.0.4.12:40102 - "POST /generate HTTP/1.1" 200 OK\n' * 60
FAILED = "Traceback (most recent call last):\nUnboundLocalError: local variable 'reply' referenced before assignment\n"


@pytest.mark.parametrize(
    ("text", "severity"),
    [(FAILED + ANSWERS, "info"), (ANSWERS + FAILED, "error"), (FAILED + ANSWERS + FAILED, "error")],
)
def test_an_error_behind_which_the_server_answers_did_not_end_it(text: str, severity: str, tmp_path: Path) -> None:
    (finding,) = (found for found in reported(text, tmp_path).findings if found.rule == "app-exception")

    assert finding.severity == severity


def test_a_signal_that_paddle_reports_came_from_outside(tmp_path: Path) -> None:
    report = reported("FatalError: `Termination signal` is detected by the operating system.", tmp_path)

    assert [finding.title for finding in report.findings] == ["told to end by SIGTERM: a process"]


def test_each_process_failed_where_the_error_stands_as_often_as_the_agent_had_processes(tmp_path: Path) -> None:
    error = "Traceback (most recent call last):\nImportError: cannot import name 'grid' from 'kernels'\n"
    agent = "Sending process {} closing signal SIGTERM\n"
    failed = "failed (exitcode: 1) local_rank: 0 (pid: 41887) of binary: /usr/bin/python\n"
    verdicts = []
    for count in (1, 3):
        text = error * count + agent.format(41888) + agent.format(41889) + failed + ROOT_CAUSE
        verdicts += [answer.verdict for answer in reported(text, tmp_path).verdicts]

    assert verdicts == ["rank-died", "undecidable"]


ROOT_CAUSE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-03-02_11:04:57
  host      : node-a
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 41887)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
