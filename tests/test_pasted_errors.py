"""Texts as users paste them: tracebacks that are cut, echoes around an error, engines that are well, and prose."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding
from ncclforensics.views.text_screen import screen

IMPORT = '  File "/srv/job/train.py", line 14, in <module>\n    from encoder import Encoder\n'
HEADING = "Traceback (most recent call last):\n"
UNCLOSED = '  File "/srv/job/encoder.py", line 88\n    def forward(self, x\n               ^\n'
NO_MODULE = "RuntimeError: Failed to import a.b because of the following error (look up to see its traceback):"
LINKER = "/opt/a/b/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"
WATCHDOG_STACK = """\
[2026-03-02 11:25:58 TP3] Pyspy dump for PID 306:
Thread 816 (idle): "Thread-10 (watchdog_thread)"
    select (selectors.py:415)
    watchdog_thread (scheduler.py:2257)
    run (threading.py:1012)

[2026-03-02 11:25:58 TP6] Pyspy dump for PID 309:
Process 309: sglang::scheduler_TP6
Python v3.12.12 (/usr/bin/python3.12)

Thread 309 (active): "MainThread"
    _apply (penaltylib/min_new_tokens.py:78)
    run_batch (scheduler.py:1700)
"""
VLLM = """\
(Worker_TP0 pid=42) INFO 03-02 11:00:26 [pynccl.py:103] vLLM is using nccl==2.27.3
(Worker_TP0 pid=42) WARNING 03-02 11:00:26 [custom_all_reduce.py:144] Custom allreduce is disabled because your \
platform lacks GPU P2P capability or P2P test failed. To silence this warning, specify disable_custom_all_reduce=True \
explicitly.
"""
SGLANG = """\
[2026-03-02 11:00:09 TP0] Init torch distributed begin.
[2026-03-02 11:00:09 TP1] Init torch distributed begin.
[2026-03-02 11:00:13 TP0] Init torch distributed ends. mem usage=0.30 GB
[2026-03-02 11:00:14 TP0] Load weight begin. avail mem=78.50 GB
"""


def reported(folder: Path, text: str) -> Report:
    (folder / "paste.txt").write_text(text, encoding="utf-8")
    return analyze([folder])


def of_rank(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def first_screen(report: Report, *, everything: bool = False) -> str:
    return " ".join(screen(report, width=200, height=60, everything=everything).split())


def raised_in(report: Report) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.rule == "app-exception"]
    return finding


@pytest.mark.parametrize(
    ("code", "error", "place"),
    [
        (HEADING + IMPORT + UNCLOSED, "SyntaxError: '(' was never closed", "in encoder.py:88"),
        ('  File "/srv/job/train.py", line 9\n    lr = 1\n', "IndentationError: unexpected indent", "in train.py:9"),
        (HEADING + IMPORT, "ImportError: no name", "in <module> (train.py:14)"),
    ],
)
def test_an_error_of_syntax_is_in_the_file_that_is_read(code: str, error: str, place: str, tmp_path: Path) -> None:
    finding = raised_in(reported(tmp_path, f"{code}{error}\n"))
    assert place in finding.detail
    assert (place != "in encoder.py:88") or "train.py" not in finding.detail


def test_a_rank_whose_traceback_is_cut_does_not_wait_for_another(tmp_path: Path) -> None:
    raised = of_rank(4, f"{HEADING}{IMPORT}ValueError: no table")
    report = reported(tmp_path, raised + of_rank(7, HEADING + IMPORT))
    assert [verdict.verdict for verdict in report.verdicts] == ["undecidable"]
    assert not any(verdict.culprits or verdict.victims for verdict in report.verdicts)
    assert "rank 4 raised ValueError: no table" in first_screen(report)
    (tmp_path / "others").mkdir()
    timeout = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000) "
    waits = f"[rank0]:[E ProcessGroupNCCL.cpp:754] [Rank 0] {timeout}ran for 600381 milliseconds before timing out.\n"
    with_victim = reported(tmp_path / "others", waits + raised + of_rank(7, HEADING + IMPORT))
    assert with_victim.verdicts[0].certainty != "certain"


def test_the_reason_of_a_failed_import_stands_in_the_title(tmp_path: Path) -> None:
    finding = raised_in(reported(tmp_path, f"{HEADING}{IMPORT}{NO_MODULE}\n{LINKER}\n"))
    assert "flash_attn_2_cuda.so: undefined symbol" in finding.title
    assert "library was built against" in finding.remedy


def test_a_thread_beside_the_main_one_shows_no_rank_that_waits(tmp_path: Path) -> None:
    report = reported(tmp_path, WATCHDOG_STACK)
    assert not any(verdict.culprits or verdict.suspects for verdict in report.verdicts)
    assert "_apply, min_new_tokens.py:78" in first_screen(report)


@pytest.mark.parametrize("starting", [VLLM, SGLANG])
def test_what_an_engine_says_before_it_is_ready_is_no_fault(starting: str, tmp_path: Path) -> None:
    ready = reported(tmp_path, starting + "INFO:     Application startup complete.\n")
    assert not [finding.title for finding in ready.findings if finding.severity != "info"]
    assert "the engine reports that it is ready" in first_screen(ready)
    assert reported(tmp_path, starting).findings  # as long as it is not


def test_the_echo_of_a_task_leaves_the_error_as_it_is(tmp_path: Path) -> None:
    error = "CUDA error: an illegal memory access was encountered"
    echo = "future: <Task finished name='Task-8' coro=<run() done, defined at /srv/serve.py:31> exception="
    text = f"ERROR:asyncio:Task exception was never retrieved\n{echo}RuntimeError('{error}')>\n"
    found = reported(tmp_path, f"{text}{HEADING}{IMPORT}RuntimeError: {error}\n").findings
    assert found[0].title.endswith(error)
    assert "in <module> (train.py:14)" in found[0].detail
    (tmp_path / "alone").mkdir()
    assert "a task of asyncio raised an exception" in first_screen(reported(tmp_path / "alone", text))


@pytest.mark.parametrize(
    "line", ["srun: error: gpu-a013: task 1: Terminated", "/srv/run.sh: line 12: 41887 Terminated   python train.py"]
)
def test_check_says_that_a_job_was_told_to_end(line: str, tmp_path: Path) -> None:
    shown = first_screen(reported(tmp_path, f"step 100 loss 2.31\n{line}\n"), everything=True)
    assert "The job was ended: told to end by SIGTERM" in shown


@pytest.mark.parametrize(
    "prose",
    [
        "We train on two nodes, and I am getting this error, which stops the job:",
        "The pod of rank 0 stops with the following error trace:",
        "One pod was deleted, so that all failed. The problem is that the others do not come back.",
    ],
)
def test_prose_above_an_error_is_not_taken_for_it(prose: str, tmp_path: Path) -> None:
    misuse = "*** The MPI_Barrier() function was called before MPI_INIT was invoked."
    report = reported(tmp_path, f"{prose}\n\n{misuse}\n*** Your MPI job will now abort.\n")
    assert [finding.title for finding in report.findings if finding.severity != "info"] == [
        "a function of MPI was called before MPI_Init or after MPI_Finalize, which ends the job"
    ]
    assert prose[:20] not in first_screen(report)


def test_colours_that_were_printed_as_letters_are_removed(tmp_path: Path) -> None:
    line = "gpu-a012:41887:42107 [3] NCCL INFO comm 0x17dc7d60 rank 3 nranks 4 cudaDev 3 busId 2a000 - Init COMPLETE"
    report = reported(
        tmp_path, f"ESC[36m(RayWorker pid=41887)ESC[0m {line}ESC[32m [repeated 2x across cluster]ESC[0m\n"
    )
    assert report.run["rank"]["rank"].to_list() == [3]


def test_an_error_in_a_launchers_handler_of_signals_follows(tmp_path: Path) -> None:
    handler = '  File "/opt/site-packages/deepspeed/launcher/runner.py", line 548, in sigkill_handler\n    kill(cmd)\n'
    finding = raised_in(reported(tmp_path, f"{HEADING}{handler}NameError: name 'cmd' is not defined\n"))
    assert finding.severity == "warning"
    assert "it follows from something else" in finding.detail


def test_a_call_in_a_box_whose_line_is_marked_is_one_of_a_traceback(tmp_path: Path) -> None:
    call = "[rank0]: │ /srv/job/model.py:1528 in _pre_forward                    │\n"
    (tmp_path / "other").mkdir()
    assert "raised" not in first_screen(reported(tmp_path / "other", call))
    marked = "[rank0]: │   1527 │   │   # once                                  │\n"
    marked += "[rank0]: │ ❱ 1528 │   │   if self.reducer._rebuild_buckets():     │\n"
    shown = first_screen(reported(tmp_path, call + marked))
    assert "rank 0 raised an exception in _pre_forward (model.py:1528), and no line that was read names it" in shown
    assert "_pre_forward (model.py:1528)" in shown


def test_the_end_of_an_engine_core_is_a_failure_and_names_it(tmp_path: Path) -> None:
    died = "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."
    echo = (
        "(Worker_TP0 pid=483) INFO 10-14 13:42:23 [multiproc_executor.py:546] Parent process exited, terminating worker"
    )
    report = reported(tmp_path, f"(APIServer pid=4797) ERROR 10-14 13:42:23 [core_client.py:564] {died}\n{echo}\n")
    assert [finding.title for finding in report.findings if finding.severity != "info"] == [
        "EngineCore_DP0: the engine core of vLLM ended"
    ]


def test_the_error_file_of_torchrun_ends_its_message(tmp_path: Path) -> None:
    opening = 'ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{\n  "message": {\n'
    text = f'{opening}    "message": "RuntimeError: the table is empty",\n    "extraInfo": {{\n'
    assert raised_in(reported(tmp_path, text)).title == "a process raised RuntimeError: the table is empty"


def test_ranks_that_all_got_an_error_from_init_do_not_wait_for_one(tmp_path: Path) -> None:
    refused = "[0] transport/p2p.cc:548 NCCL WARN failed to open CUDA IPC handle : 64 peer access is not supported"
    lines = [
        f"gpu-a012:2753:2762 {refused}",
        "gpu-a012:2753:2762 [0] NCCL INFO init.cc:568 -> 1",
        "gpu-a012:2753:2762 [0] NCCL INFO init.cc:642 -> 1",
        *(
            f"gpu-a012:{pid}:{pid + 9} [0] NCCL INFO comm 0x7f91{rank} rank {rank} nranks 2 cudaDev 0 nvmlDev 0 "
            "busId 1a000 commId 0x4ed8 - Init START"
            for rank, pid in enumerate((4974, 2753))
        ),
        f"gpu-a012:4974:4983 {refused}",
        "gpu-a012:4974:4983 [0] NCCL INFO init.cc:568 -> 1",
        "gpu-a012:4974:4983 [0] NCCL INFO init.cc:642 -> 1",
    ]
    (verdict,) = reported(tmp_path, "\n".join(lines) + "\n").verdicts
    assert (verdict.verdict, len(verdict.culprits), len(verdict.victims)) == ("init-failed", 2, 0)


def test_what_mpirun_says_in_a_box_is_no_message_that_no_rule_knows(tmp_path: Path) -> None:
    edge = "-" * 74
    what = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  Connection refused\n"
    ended = "mpirun noticed that process rank 1 with PID 29013 on node gpu-a012 exited on signal 6 (Aborted)."
    shown = first_screen(reported(tmp_path, f"{what}{edge}\n{ended}\n{edge}\n"))
    assert "that no rule knows" not in shown


def test_the_hint_below_a_cuda_error_tells_of_it_where_the_error_is_cut_off(tmp_path: Path) -> None:
    hint = "CUDA kernel errors might be asynchronously reported at some other API call."
    title = "a CUDA call of the program failed, and the line that says why was not read"
    assert title in first_screen(reported(tmp_path, f"[rank0]: {hint}\n"))
    (tmp_path / "whole").mkdir()
    whole = f"{HEADING}{IMPORT}RuntimeError: CUDA error: invalid argument\n{hint}\n"
    assert title not in first_screen(reported(tmp_path / "whole", whole))
