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


def test_a_list_of_threads_shows_where_the_main_thread_stands(tmp_path: Path) -> None:
    first = shown(read(tmp_path, LISTED.format(main=IN_GROUP)))

    assert "1 process stands in ncclGroupEnd" in first


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

    assert "all ranks raised FileNotFoundError" in of_all
    assert "a process raised FileNotFoundError" in of_some


def test_a_worker_is_named_with_its_place_in_the_groups_of_the_engine(tmp_path: Path) -> None:
    for name in ("VllmWorker TP1", "Worker_TP1_EP1"):
        assert f"process 413 ({name}) raised ValueError" in shown(read(tmp_path, WORKER.format(name=name)))


def test_ucx_names_the_port_that_did_not_answer(tmp_path: Path) -> None:
    assert "node1 got no answer over InfiniBand from LID 703" in shown(read(tmp_path, GIVEN_UP))
