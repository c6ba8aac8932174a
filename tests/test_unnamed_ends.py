"""Excerpts in which the line that says where a failure lies is padded, left out, or stands among others' lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.views.text_screen import screen

REMOTE = "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1201, remote process exited"


def reported(folder: Path, *lines: str) -> Report:
    (folder / "paste.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return analyze([folder])


def first_screen(report: Report) -> str:
    return " ".join(screen(report, width=300, height=60, everything=False).split())


def test_a_warning_with_a_blank_behind_it_is_read_among_lines_of_ranks(tmp_path: Path) -> None:
    warning = "misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Invalid argument "
    report = reported(tmp_path, warning, "[rank3]:     next(self.gen)")
    assert report.run["failure"].select("form", "reason").rows() == [("verbs_call", "Invalid argument")]


def test_init_that_lost_its_peer_names_the_peer(tmp_path: Path) -> None:
    text = first_screen(
        reported(
            tmp_path,
            "gpu-a012:41887:42390 [3] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer "
            "10.10.1.3<36138>",
            "gpu-a012:41887:42390 [3] NCCL INFO bootstrap.cc:701 -> 6",
            "gpu-a012:41887:42390 [3] NCCL INFO init.cc:1402 -> 6",
        )
    )
    assert "The process at 10.10.1.3<36138> closed the connection first, or the network to it failed" in text
    assert "Read the output of the processes at 10.10.1.3<36138> from before that time" in text


def test_a_traceback_without_a_rank_is_not_of_the_rank_that_prints_its_own_with_it(tmp_path: Path) -> None:
    lines = [
        '  File "/srv/train.py", line 12, in step',
        "    loss = model(x)",
        "ValueError: bad shape",
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/srv/train.py", line 20, in step',
        f"[rank3]: {REMOTE}",
    ]
    ends = reported(tmp_path, *lines).run["process_exit"]
    assert ends.filter(message="bad shape")["rank"].to_list() == [None]


def test_lines_that_ray_left_out_are_counted_where_time_outs_are_missed(tmp_path: Path) -> None:
    ended = (
        "(WorkerDict pid=23943, ip=10.0.4.13) [rank3]:[E429 12:07:50.216898418 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG "
        "GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=8, NumelOut=8, "
        "Timeout(ms)=600000) ran for 600081 milliseconds before timing out. [repeated 3x across cluster]"
    )
    text = first_screen(reported(tmp_path, ended))
    assert "rank 3 is process 23943 on 10.0.4.13" in text
    assert "no time-out of ranks 0-2 was read, but the launcher left out 3 lines like these" in text


def test_all_engine_cores_are_named_whose_tracebacks_stand_among_one_another(tmp_path: Path) -> None:
    head = "(EngineCore_{core} pid=20{core}) ERROR 04-17 23:05:06 [core.py:390] "
    lines = [
        head.format(core=3) + "EngineCore hit an exception: Traceback (most recent call last):",
        head.format(core=2) + '  File "/srv/vllm/device_communicators/pynccl.py", line 101, in __init__',
        head.format(core=3) + '  File "/srv/vllm/v1/engine/core.py", line 376, in run_engine_core',
        head.format(core=5) + '  File "/srv/vllm/executor/uniproc_executor.py", line 56, in collective_rpc',
    ]
    found = next(f for f in reported(tmp_path, *lines).findings if f.rule == "app-traceback-cut")
    assert found.title.startswith("process 205 (EngineCore_5) raised an exception in collective_rpc (uniproc_executor")
    assert found.title.endswith("; so did process 202 (EngineCore_2), process 203 (EngineCore_3)")
    assert "process 202 (EngineCore_2) in __init__ (pynccl.py:101)" in found.detail


def test_an_error_of_the_abort_of_a_communicator_follows_from_another(tmp_path: Path) -> None:
    text = first_screen(
        reported(
            tmp_path,
            "  what():  NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:181, unhandled cuda error, NCCL "
            "version 21.0.3",
            "Exception raised from ncclCommAbort at ../torch/csrc/distributed/c10d/NCCLUtils.hpp:181 (most recent "
            "call first):",
        )
    )
    assert "when the communicator was aborted, so that it follows from an earlier error of the process" in text


def test_a_crash_of_the_kernel_names_function_module_and_process(tmp_path: Path) -> None:
    text = first_screen(
        reported(
            tmp_path,
            "Apr 28 10:17:39 gpu-a012 kernel: BUG: kernel NULL pointer dereference, address: 0000000000000030",
            "Apr 28 10:17:39 gpu-a012 kernel: CPU: 0 UID: 1000 PID: 28651 Comm: python3 Tainted: G           O",
            "Apr 28 10:17:39 gpu-a012 kernel: RIP: 0010:nvidia_vma_access+0x1b/0x350 [nvidia]",
        )
    )
    assert "in nvidia_vma_access of nvidia; of python3 (pid 28651)" in text


def test_a_crash_in_the_library_that_holds_the_handler_of_ucx_is_placed_there(tmp_path: Path) -> None:
    report = reported(
        tmp_path,
        "[gpu-a012:174213] *** Process received signal ***",
        "[gpu-a012:174213] Signal: Segmentation fault (11)",
        "[gpu-a012:174213] [ 0] /lib64/libpthread.so.0(+0xf5d0)[0x7f5f96e515d0]",
        "[gpu-a012:174213] [ 1] /opt/ucx/lib/libucs.so.0(ucs_mpool_cleanup+0x2f)[0x7f5f8d1e667f]",
        "[gpu-a012:174213] [ 2] /opt/ucx/lib/ucx/libuct_xpmem.so.0(+0x26e3)[0x7f5f87bf86e3]",
    )
    assert "crashed with SIGSEGV in ucs_mpool_cleanup (libucs.so.0)" in first_screen(report)


def test_a_barrier_of_the_store_whose_last_line_is_cut_still_repeats(tmp_path: Path) -> None:
    wait = (
        "INFO:root:Waiting in store based barrier to initialize process group for rank: {}, key: key:1 (world_size=4, "
    )
    lines = [wait.format(rank) + "worker_count=3, timeout=0:30:00)" for rank in (0, 1, 3)]
    found = next(f for f in reported(tmp_path, *lines, wait.format(0) + "w").findings if "waits" in f.rule or f.ranks)
    assert (found.title, found.certainty) == (
        "3 of 4 processes came to the store of the process group: rank 2 did not",
        "likely",
    )


def test_a_worker_that_the_driver_of_ray_reports_dead_has_host_and_pid(tmp_path: Path) -> None:
    died = (
        "2023-11-30 10:19:23,769 WARNING worker.py:2074 -- A worker died or was killed while executing a task by an "
        "unexpected system error. To troubleshoot the problem, check the logs for the dead worker. RayTask ID: ffff "
        "Worker ID: 0e4b Node ID: 9c6f Worker IP address: [10.0.4.13](http://10.0.4.13/) Worker port: 34011 Worker "
        "PID: 41887 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection "
        "error code 2. End of file."
    )
    ends = reported(tmp_path, died).run["process_exit"]
    assert ends.select("host", "pid").rows() == [("10.0.4.13", 41887)]


def test_a_traceback_without_its_error_is_told_with_its_place(tmp_path: Path) -> None:
    lines = [
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/home/ray/test.py", line 43, in <module>',
        '[rank0]:     assert value == world_size, f"Expe',
    ]
    found = next(f for f in reported(tmp_path, *lines).findings if f.rule == "app-traceback-cut")
    assert found.title == "rank 0 raised an exception in <module> (test.py:43), and no line that was read names it"


def test_retries_among_which_the_log_ends_name_process_and_peer(tmp_path: Path) -> None:
    retry = (
        "gpu-a012:5971:6015 [4] NCCL INFO socketPollConnect: connect to 10.0.4.13<52333> returned Connection refused, "
        "retrying ({}/34) after sleep for 1800 msec"
    )
    text = first_screen(reported(tmp_path, *(retry.format(attempt) for attempt in (19, 20, 21))))
    assert "gpu-a012 tried again to connect to 10.0.4.13<52333>: Connection refused" in text
    assert "attempt 21 of 34; these logs end there" in text.lower()
    early = first_screen(reported(tmp_path, *(retry.format(attempt) for attempt in (2, 3))))
    assert "tried again to connect" not in early


def test_records_with_a_place_of_tmux_between_them_are_read_each(tmp_path: Path) -> None:
    record = (
        "[rank{0}]:[E ProcessGroupNCCL.cpp:523] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL("
        "SeqNum=1, OpType=BROADCAST, Timeout(ms)=600000) ran for 600487 milliseconds before timing out."
    )
    work = reported(tmp_path, f"`{record.format(1)} [409/1693]{record.format(2)}").run["work"]
    assert work["rank"].sort().to_list() == [1, 2]


def test_an_agent_of_jax_in_an_error_waited_to_register(tmp_path: Path) -> None:
    text = first_screen(
        reported(
            tmp_path,
            "Additional GRPC error information from remote target unknown_target_for_coordination_leader while calling "
            "/tensorflow.CoordinationService/RegisterTask:",
            "2024-04-12 23:39:41.656900: E external/xla/xla/pjrt/distributed/client.cc:96] Coordination service agent "
            "in error status: DEADLINE_EXCEEDED: Deadline Exceeded",
        )
    )
    assert "waited in jax.distributed.initialize until its time-out" in text


def test_what_ended_before_later_steps_is_no_end_of_this_training(tmp_path: Path) -> None:
    steps = [f"step {number} loss 2.5" for number in range(1, 4)]
    stack = ["Traceback (most recent call last):", '  File "train.py", line 8, in <module>', "    loss.backward()"]

    killed, goes_on = (reported(tmp_path, *steps, "Killed", *later) for later in ([], steps))
    interrupted, again = (reported(tmp_path, *stack, "KeyboardInterrupt", *later) for later in ([], steps))

    assert [report.run["process_exit"]["is_final"].to_list() for report in (killed, goes_on)] == [[True], [False]]
    assert {finding.severity for finding in goes_on.findings} == {"info"}
    assert [report.run["stack_dump"].height for report in (interrupted, again)] == [1, 0]


LEFT = "resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown"
TRACKER = [
    f"/usr/lib/python3.12/multiprocessing/resource_tracker.py:279: UserWarning: {LEFT}",
    "  warnings.warn('resource_tracker: There appear to be %d '",
]
LOADING = "[2026-03-02 11:05:23] Load weight begin. avail mem=97.74 GB"
UNEXPLAINED = "app-ended-unexplained"


def test_a_program_that_python_cleaned_up_behind_has_ended_and_nobody_is_asked_for_its_stacks(tmp_path: Path) -> None:
    report = reported(tmp_path, LOADING, *TRACKER)
    assert [(f.rule, f.certainty, [line.line for line in f.evidence]) for f in report.findings] == [
        (UNEXPLAINED, "certain", [2, 3])
    ]
    assert "py-spy" not in first_screen(report)
    assert "py-spy" in first_screen(reported(tmp_path, LOADING))


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*TRACKER, "srun: error: gpu-a012: task 3: Killed"], id="a launcher tells how"),
        pytest.param(["ValueError: tokenizer file not found", *TRACKER], id="an exception tells why"),
        pytest.param([*TRACKER, *[f"step {n}: loss 2.{n}, 0.41 s" for n in range(9)]], id="steps stand behind it"),
        pytest.param([*TRACKER, *[f"line {n} of another program" for n in range(900)]], id="its file goes on"),
    ],
)
def test_an_end_that_is_explained_or_of_an_earlier_program_is_not_told(tmp_path: Path, lines: list[str]) -> None:
    assert UNEXPLAINED not in {finding.rule for finding in reported(tmp_path, LOADING, *lines).findings}
