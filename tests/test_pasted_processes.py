"""Processes in texts that are pasted into a chat: which of them are meant, and where each stands."""

from __future__ import annotations

from pathlib import Path

from tests.test_first_screens import read, shown

LISTED = """\
  Id   Target Id                                   Frame
* 1    Thread 0x7f40eeffd6c0 (LWP 19052) "python" {main}
  2    Thread 0x7f40e6ffd6c0 (LWP 19101) "python" 0x7f411551 in __GI___poll (fds=0x7f40, nfds=10) at poll.c:29
  3    Thread 0x7f40d6ffd6c0 (LWP 19102) "pt_nccl_watchdg" __futex_abstimed_wait_common64 (private=0,
"""
IN_GROUP = "0x7f4115 in ncclGroupEnd () from /usr/lib/libnccl.so.2"
LOCKED = """\
Thread 1 (Thread 0x7f40eeffd6c0 (LWP 19052)):
#0  0x00007f05daa8fe8b in __lll_lock_wait () from /lib/x86_64-linux-gnu/libpthread.so.0
#1  0x00007f05daa8fe8b in pthread_mutex_lock () from /lib/x86_64-linux-gnu/libpthread.so.0
#2  0x00007f0580bb3641 in ?? () from /usr/lib/x86_64-linux-gnu/{library}
#3  0x00007f04fc98d6e6 in ncclGroupEnd () from /usr/lib/x86_64-linux-gnu/libnccl.so.2
"""
CONTAINER = """\
Process 1: python -u train.py
Python v3.12.13 (/usr/local/bin/python3.12)

Thread 1 (idle): "MainThread"
    {place}
    <module> (train.py:99)
Thread {other} (idle): "fsspecIO"
    select (selectors.py:468)
"""
RAISED = """\
Traceback (most recent call last):
  File "/opt/train.py", line 20, in <module>
    cfg = json.load(open(path))
FileNotFoundError: [Errno 2] No such file or directory: '/data/cfg.json'
"""
ENDED = "".join(
    f"""\
[{rank}]:
  time      : 2026-07-02_10:00:07
  host      : node1
  rank      : {rank} (local_rank: {rank})
  exitcode  : 1 (pid: {411 + rank})
  error_file: <N/A>
"""
    for rank in range(3)
)
WORKER = """\
({name} pid=413) ERROR 07-02 10:00:05 [multiproc_executor.py:511] Traceback (most recent call last):
({name} pid=413) ERROR 07-02 10:00:05 [multiproc_executor.py:511]   File "/opt/vllm/runner.py", line 27, in run
({name} pid=413) ERROR 07-02 10:00:05 [multiproc_executor.py:511]     x = self.model(x)
({name} pid=413) ERROR 07-02 10:00:05 [multiproc_executor.py:511] ValueError: bad shape
"""
GIVEN_UP = """\
[node1:19546:0:19546] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)
[node1:19546:0:19546] ib_mlx5_log.c:139  DCI QP 0xa9f wqe[0]: SEND s-e [rqpn 0xa66 rlid 703] [inl len 18]
"""
RELAYED = (
    "[rank0]:[E804 23:05:54.817424543 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a "
    "dump "
    "signal due to a collective timeout from  rank 13 and we will try our best to dump the debug info. Last "
    "enqueued NCCL "
    "work: 1261, last completed NCCL work: 1259.This is most likely caused by incorrect usages of collectives\n"
)
BOUND = """\
{tag}  File "/opt/vllm/pynccl.py", line 99, in __init__
{tag}    self.comm = self.nccl.ncclCommInitRank(
{tag}  File "/opt/vllm/pynccl_wrapper.py", line 277, in ncclCommInitRank
{tag}    self.NCCL_CHECK(self._funcs["ncclCommInitRank"](comm))
{tag}  File "/opt/vllm/pynccl_wrapper.py", line 256, in NCCL_CHECK
{tag}    raise RuntimeError(f"NCCL error: {{error_str}}")
"""
TAG = "(RayWorkerWrapper pid=361) ERROR 04-25 05:15:31 [worker_base.py:620] "
STUCK = (
    "18:19:06.687 [rank2]:[F205 18:19:06.383067836 ProcessGroupNCCL.cpp:1614] [PG ID 17 PG GUID 137(DATA_PARALLEL) "
    "Rank 2] "
    "[PG ID 17 PG GUID 137(DATA_PARALLEL) Rank 2] Terminating the process after attempting to dump debug info, due to "
    "ProcessGroupNCCL watchdog hang.\n"
    "18:19:11.534 E0205 18:19:11.533000 4021 torch/distributed/elastic/multiprocessing/api.py:874] failed "
    "(exitcode: -6) "
    "local_rank: 1 (pid: 4087) of binary: /usr/bin/python\n"
)
WORKER_DIED = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the "
    "problem, check the logs for the dead worker. RayTask ID: ffff Worker ID: 5ed9 Node ID: 7578 Worker IP address: "
    "10.0.1.75 Worker port: 10230 Worker PID: 207 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly "
    "exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is "
    "killed by "
    "SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed "
    "unexpectedly "
    "due to SIGSEGV or other unexpected errors.\n"
)
IN_ONE_LINE = (
    "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out. Due to the asynchronous nature of "
    "CUDA "
    "kernels, subsequent GPU operations might run on corrupted/incomplete data. [E ProcessGroupNCCL.cpp:460] To "
    "avoid data "
    "inconsistency, we are taking the entire process down. terminate called after throwing an instance of "
    "'std::runtime_error' what(): NCCL error: remote process exited or there was a network error, NCCL version 2.14.3 "
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely. Last "
    "error: "
    "NET/IB : Got completion from peer 10.0.4.13<39138> with error 12, opcode 0, len 0, vendor err 129\n"
)
STARTS = "INFO 08-09 21:13:57 [parallel_state.py:1563] world_size=2 rank={0} local_rank={0} distributed_init_method=tcp://x\n"


def test_a_rank_that_relays_a_time_out_is_not_the_one_that_timed_out(tmp_path: Path) -> None:
    first = shown(read(tmp_path, RELAYED))

    assert "Rank 13 timed out" in first
    assert "first that of rank 13" in first


def test_the_call_of_nccl_that_a_binding_made_is_named(tmp_path: Path) -> None:
    whole = shown(read(tmp_path, BOUND.format(tag="") + "RuntimeError: NCCL error: unhandled system error\n"))
    cut = shown(read(tmp_path, BOUND.format(tag=TAG)))

    assert "ncclCommInitRank failed: unhandled system error" in whole
    assert "The last call that is shown: ncclCommInitRank (pynccl_wrapper.py:277)" in cut


def test_a_cut_traceback_below_a_warning_of_nccl_is_a_note(tmp_path: Path) -> None:
    warning = "node1:7:9 [3] proxy.cc:1107 NCCL WARN Socket recv failed while polling for opId=0x7f2a781e1460\n"
    warning += "node1:7:9 [3] NCCL INFO init.cc:915 -> 3\n"
    report = read(tmp_path, warning + BOUND.format(tag=""))

    assert report.findings[0].rule != "app-traceback-cut"


def test_a_process_that_ends_because_its_watchdog_hangs_is_named(tmp_path: Path) -> None:
    assert "the watchdog of rank 2 is stuck" in shown(read(tmp_path, STUCK))


def test_causes_that_ray_only_lists_are_not_the_cause(tmp_path: Path) -> None:
    wrapped = "\n".join(WORKER_DIED[start : start + 150] for start in range(0, len(WORKER_DIED), 150))
    for text in (WORKER_DIED, wrapped):
        first = shown(read(tmp_path, text))
        assert "process 207 on 10.0.1.75" in first
        assert "nvidia-smi" not in first


def test_a_last_error_behind_two_records_in_one_line_is_read(tmp_path: Path) -> None:
    assert "no answer over InfiniBand or RoCE from 10.0.4.13" in shown(read(tmp_path, IN_ONE_LINE))


def test_a_worker_of_vllm_that_began_its_start_is_open_until_nccl_is_loaded(tmp_path: Path) -> None:
    starts = STARTS.format(0) + STARTS.format(1)
    loaded = "INFO 08-09 21:13:58 [pynccl.py:70] vLLM is using nccl==2.26.2\n"

    assert "rank 0, rank 1 began the start of torch.distributed" in shown(read(tmp_path, starts))
    assert "began the start" not in shown(read(tmp_path, starts + loaded))


def test_the_far_end_of_a_transfer_over_efa_is_named(tmp_path: Path) -> None:
    line = (
        "node1:77:330 [0] process_err_completion:1562 NCCL WARN NET/OFI Request 0x7f12 completed with error. RC: 5. "
        "Error: "
        "Invalid receiver queue pair number (QPN) My EFA addr: fi_addr_efa://[fe80::12]:0:65 My host id: i-000a Peer "
        "EFA "
        "addr: fi_addr_efa://[fe80::13]:0:22 Peer host id: i-000b. Completed length: 0, Request: { dev: 2 }\n"
    )
    first = shown(read(tmp_path, line))

    assert (
        "It reports RC 5, Invalid receiver queue pair number (QPN); the other end of the transfer is on i-000b" in first
    )


def test_a_list_of_threads_shows_where_the_main_thread_stands(tmp_path: Path) -> None:
    first = shown(read(tmp_path, LISTED.format(main=IN_GROUP)))

    assert "process 19052 stands in ncclGroupEnd" in first


def test_a_list_of_threads_above_backtraces_is_no_second_look(tmp_path: Path) -> None:
    both = LISTED.format(main="0x7f41 in sched_yield () from /lib/libc.so.6") + LOCKED.format(library="libnccl.so.2")

    assert "stands in ncclGroupEnd" in shown(read(tmp_path, both))


def test_a_call_that_waits_for_a_lock_of_the_driver_is_told_from_one_that_waits_for_peers(tmp_path: Path) -> None:
    in_driver = shown(read(tmp_path, LOCKED.format(library="libcuda.so.1")))
    in_nccl = shown(read(tmp_path, LOCKED.format(library="libnccl.so.2")))

    assert "ncclGroupEnd (it waits for a lock of the CUDA driver" in in_driver
    assert "CUDA driver" not in in_nccl


def test_first_processes_of_two_containers_are_two(tmp_path: Path) -> None:
    lines = (
        CONTAINER.format(place="main (train.py:38)", other=1440),
        CONTAINER.format(place="load (d.py:9)", other=1441),
    )
    of_two = shown(read(tmp_path, "".join(lines)))
    of_one = shown(read(tmp_path, "".join(lines).replace("1441", "1440")))

    assert "main, train.py:38" in of_two
    assert "load, d.py:9" in of_two
    assert "main, train.py:38" not in of_one


def test_an_error_that_each_failed_rank_printed_is_of_all_of_them(tmp_path: Path) -> None:
    of_all = shown(read(tmp_path, RAISED * 3 + ENDED))
    of_some = shown(read(tmp_path, RAISED * 2 + ENDED))

    assert "ranks 0-2 on node1 raised FileNotFoundError" in of_all
    assert "a process raised FileNotFoundError" in of_some
    assert "Torchrun ended the job because ranks 0-2 on node1 failed" in of_some
    assert "py-spy" not in of_some


def test_a_worker_is_named_with_its_place_in_the_groups_of_the_engine(tmp_path: Path) -> None:
    for name in ("VllmWorker TP1", "Worker_TP1_EP1"):
        assert f"process 413 ({name}) raised ValueError" in shown(read(tmp_path, WORKER.format(name=name)))


def test_ucx_names_the_port_that_did_not_answer(tmp_path: Path) -> None:
    assert "node1 got no answer over InfiniBand from LID 703" in shown(read(tmp_path, GIVEN_UP))
