"""Ends of processes and stacks as launchers, crash handlers and debuggers print them, in texts of any kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze

UCX_STACK = (
    "==== backtrace (tid:  41887) ====\n"
    " 0  /opt/ucx/lib/libucs.so.0(ucs_handle_error+0x2cc) [0x4000f1ce278c]\n"
    " 1  linux-vdso.so.1(__kernel_rt_sigreturn+0) [0x400038ac07f0]\n"
    " 2  /opt/torch/lib/libtorch_cpu.so(+0x452b904) [0x40003edab904]\n"
    " 3  /opt/torch/lib/libtorch_cpu.so(zip_writer_add+0x3c8) [0x40003ed9e308]\n"
)
CAUGHT = "Caught signal 11 (Segmentation fault: address not mapped to object at address 0x18)\n"


def _titles(tmp_path: Path, text: str) -> dict[str, list[str]]:
    (tmp_path / "job.log").write_text(text)
    found: dict[str, list[str]] = {}
    for finding in analyze([tmp_path]).findings:
        found.setdefault(finding.rule, []).append(finding.title)
    return found


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (f"[gpu-a012:41887:0:41887] {CAUGHT}{UCX_STACK}",
         "process 41887 on gpu-a012 crashed with SIGSEGV in zip_writer_add (libtorch_cpu.so)"),
        (f"[gpu-a012:936  :0:936] {CAUGHT}", "process 936 on gpu-a012 crashed with SIGSEGV"),
        ((f"[gpu-a012:936  :0:936] {CAUGHT}==== backtrace (tid:    936) ====\n"
         " 0 0x0000000000043090 killpg()  ???:0\n 1 0x0000000000044400 group_is_dyn()  /build/mpi/dpm.c:1267\n"),
         "process 936 on gpu-a012 crashed with SIGSEGV in group_is_dyn (dpm.c)"),
        (("[gpu-a012:41887] Signal: Aborted (6)\n"
         "[gpu-a012:41887] [ 0] /lib64/libc.so.6(gsignal+0x37)[0x7f2b533921f7]\n"
         "[gpu-a012:41887] [ 1] /lib64/libcuda.so.1(+0x1e3835)[0x7f2b3efbf835]\n"),
         "process 41887 on gpu-a012 ended by SIGABRT in libcuda.so.1"),
    ],
)  # fmt: skip
def test_a_crash_names_where_the_stack_below_it_shows_it(text: str, title: str, tmp_path: Path) -> None:
    assert _titles(tmp_path, text)["app-process-died"] == [title]


def test_a_stack_below_two_crashes_belongs_to_neither(tmp_path: Path) -> None:
    found = _titles(tmp_path, f"[gpu-a012:936 :0:936] {CAUGHT}[gpu-a012:935 :0:935] {CAUGHT}{UCX_STACK}")

    assert found["app-process-died"] == ["2 processes on gpu-a012 crashed with SIGSEGV"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("(raylet) A worker died or was killed while executing a task by an unexpected system error. To trouble\n",
         "a worker died unexpectedly"),
        ("2026-03-02 11:04:57,123\tWARNING worker.py:1072 -- A worker died or was killed while executing task ffff.\n",
         "a worker died unexpectedly"),
        (("(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot "
         "the problem, check the logs for the dead worker. RayTask ID: ffff Worker ID: 1c5b Node ID: 8f3b Worker IP "
         "address: 10.0.4.13 Worker port: 10007 Worker PID: 41887 Worker exit\n"),
         "process 41887 on 10.0.4.13: a worker died unexpectedly"),
        (("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
         "\tclass_name: Trainer\n\tpid: 41887\n\tname: a\n\tip: [10.0.4.13](http://10.0.4.13/)\n"
         "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
         "Worker unexpectedly exits with a connection error code 2. End of file.\n"),
         ("process 41887 on 10.0.4.13: an actor died unexpectedly: Worker unexpectedly exits with a connection error "
         "code 2. End of file")),
    ],
)  # fmt: skip
def test_what_ray_says_of_a_dead_worker_is_taken_as_far_as_it_goes(text: str, title: str, tmp_path: Path) -> None:
    assert _titles(tmp_path, text)["app-process-died"] == [title]


def test_a_traceback_of_ray_that_was_cut_names_the_process_of_its_task(tmp_path: Path) -> None:
    found = _titles(
        tmp_path,
        "(Actor pid=21921, ip=10.0.4.13) Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): "
        "ray::Wrapper.run() (pid=22065, ip=10.0.4.14, actor_id=35de) [repeated 7x across cluster]\n"
        '(Actor pid=21921, ip=10.0.4.13)   File "/mnt/wrap.py", line 23, in init_group [repeated 7x across cluster]\n'
        "(Actor pid=21921, ip=10.0.4.13)     init_collective_gr\n",
    )

    (title,) = found["app-traceback-cut"]
    assert title.startswith("process 22065 on 10.0.4.14 (Wrapper.run) raised an exception")


def test_ranks_of_a_table_that_names_not_all_are_not_all_ranks(tmp_path: Path) -> None:
    entry = (
        "[{0}]:\n  time      : 2026-03-02_11:04:57\n  host      : gpu-a012\n  rank      : {0} (local_rank: {0})\n"
        "  exitcode  : -6 (pid: 4188{0})\n  error_file: <N/A>\n"
        "  traceback : Signal 6 (SIGABRT) received by PID 4188{0}\n"
    )
    (tmp_path / "job.log").write_text(f"train.py FAILED\nFailures:\n{entry.format(1)}{entry.format(3)}Root Cause\n")
    report = analyze([tmp_path])

    (finding,) = [finding for finding in report.findings if finding.rule == "app-process-died"]
    assert finding.title == "ranks 1, 3 on gpu-a012 ended by SIGABRT"
    assert "every rank did" not in finding.detail
    assert "every rank in this text" not in str([verdict.reason for verdict in report.verdicts])


def test_the_advice_on_a_refused_credential_is_about_clocks_and_keys(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "srun: error: Task launch for StepId=4711.0 failed on node gpu-a012: Job credential expired\n"
    )
    (finding,) = [finding for finding in analyze([tmp_path]).findings if finding.rule == "app-process-died"]

    assert finding.title == "a process on gpu-a012 did not start: Job credential expired"
    assert "compare the clocks of the hosts" in str(finding.remedy)


@pytest.mark.parametrize(
    ("status", "title"),
    [
        ("CrashLoopBackOff", "the container of a pod ends again and again"),
        ("Init:CrashLoopBackOff", "the container of a pod ends again and again"),
        ("ImagePullBackOff", "the image of a pod could not be fetched"),
        ("Error", "the container of a pod ended with an error"),
    ],
)
def test_pods_that_do_not_run_are_named_from_their_list(status: str, title: str, tmp_path: Path) -> None:
    (stated,) = _titles(
        tmp_path,
        "NAME           READY   STATUS    RESTARTS   AGE\n"
        f"train-3        0/1     {status}   8 (2m ago)   21m\ntrain-4        1/1     Running   0   21m\n",
    )["stated-failure"]

    assert stated.startswith(title)
    assert stated.endswith(": train-3")


@pytest.mark.parametrize(
    ("reason", "title"),
    [
        ("CrashLoopBackOff", "the container of a pod ends again and again"),
        ("ErrImagePull", "the image of a pod could not be fetched"),
        ("UnexpectedAdmissionError", "a node refused a pod"),
        ("Completed", None),
    ],
)
def test_the_reason_in_the_description_of_a_pod_is_no_exception(reason: str, title: str | None, tmp_path: Path) -> None:
    titles = _titles(tmp_path, f"    State:          Waiting\n      Reason:       {reason}\n")

    assert [stated.startswith(title) for stated in titles.get("stated-failure", []) if title] == [True] * bool(title)
    assert "app-exception" not in titles


def test_the_call_in_the_box_of_a_rich_traceback_is_the_place_of_its_error(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "╭──── Traceback (most recent call last) ────╮\n"
        "│ /mnt/job/train.py:257 in get_batch        │\n"
        "│ ❱ 257 │   data = next(batches)             │\n"
        "╰───────────────────────────────────────────╯\n"
        "StopIteration\n"
    )
    (finding,) = [found for found in analyze([tmp_path]).findings if found.rule == "app-exception"]

    assert finding.place == "get_batch (train.py:257)"


def test_a_traceback_behind_the_prefix_of_pytorchs_logger_is_read(tmp_path: Path) -> None:
    lines = (
        "failed (exitcode: 1) local_rank: 1 (pid: 41887) of fn: train (start_method: fork)",
        "Traceback (most recent call last):",
        '  File "/mnt/job/train.py", line 70, in train',
        "    batch = next(batches)",
        "StopIteration",
    )
    prefix = "E0302 11:04:57.162000 4711 torch/distributed/elastic/multiprocessing/api.py:732] "

    assert any(
        "StopIteration" in title
        for title in _titles(tmp_path, "".join(f"{prefix}{line}\n" for line in lines))["app-exception"]
    )


def test_the_number_of_a_thread_beside_the_main_one_is_no_process(tmp_path: Path) -> None:
    """gdb counts the main thread as the first; the list was cut before it."""
    (tmp_path / "job.log").write_text(
        "Thread 3 (Thread 0x7fd0a1ffd700 (LWP 103)):\n"
        "#0  0x00007fd31dfd7474 in read () from /lib64/libpthread.so.0\n"
        "#1  0x00007fd24ceb415f in ?? () from /lib64/libpmix.so.2\n"
        "#2  0x00007fd0b0d861ca in start_thread () from /lib64/libpthread.so.0\n"
    )
    (row,) = analyze([tmp_path]).run["stack_process"].to_dicts()

    assert (row["pid"], row["function"]) == (None, "libpmix")


@pytest.mark.parametrize(
    "line",
    [
        "Call to ibv_query_ece failed with error Operation not supported errno 95",
        "Call to mlx5dv_get_data_direct_sysfs_path failed with error No such device errno 19",
        "nvmlDeviceGetNvLinkState() failed: Invalid Argument",
        "XML Parse : Ignoring extra attributes (max 16)",
    ],
)
def test_what_nccl_tried_and_does_without_is_no_failure(line: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(f"gpu-a012:41887:42107 [3] NCCL INFO {line}\n")

    assert [finding.title for finding in analyze([tmp_path]).findings if finding.role == "cause"] == []


def test_a_changed_gid_is_named_beside_the_transfers_that_it_breaks(tmp_path: Path) -> None:
    prefix = "gpu-a012:41887:42107 [3] transport/net_ib.cc"
    found = _titles(
        tmp_path,
        f"{prefix}:73 NCCL WARN NET/IB : Got async event : GID table change\n"
        f"{prefix}:816 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 32633, vendor err 129\n",
    )

    assert found["roce-gid-changed"] == ["gpu-a012: the GID table of a RoCE port changed"]


def test_the_reason_of_an_abort_that_was_cut_still_is_a_time_out(tmp_path: Path) -> None:
    found = _titles(
        tmp_path,
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [Rank 3] Watchdog caught col\n",
    )

    assert found["torch-watchdog-timeout"] == ["the watchdog of rank 3 timed out"]


def test_lines_without_a_process_are_no_process_that_others_wait_for(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
        "[1] NCCL INFO comm 0x7f12 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2a000 - Init START\n"
    )
    report = analyze([tmp_path])

    assert not any("unnamed" in str(verdict) for verdict in report.verdicts)
    assert [verdict.verdict for verdict in report.verdicts] == ["undecidable"]


@pytest.mark.parametrize(
    "line",
    [
        "The node with client ID 8f3b has been marked dead because the monitor has missed too many heartbeats from it.",
        (
            "The node with node id: 8f3b and address: <address> and node name: <address> has been marked dead because "
            "the detector has missed too many heartbeats from it. This can happen when a raylet crashes unexpectedly"
        ),
    ],
)
def test_a_node_that_ray_gave_up_is_named_where_its_address_is_not(line: str, tmp_path: Path) -> None:
    assert _titles(tmp_path, f"It should have killed all workers, but it was hanging for 8 hours:\n{line}\n") == {
        "app-process-died": ["Ray gave up node 8f3b, from which no heartbeat came"]
    }


OF_NODE = "Workers crashed due to other reasons at node (ID: e5d9, IP: 10.0.4.13) over the last time period."


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (f"(raylet) node_manager.cc:3: 3 Workers (tasks / actors) killed due to memory pressure (OOM), 0 {OF_NODE}\n",
         "a process on 10.0.4.13 killed: the memory of the host, the container or the job ran out"),
        (f"(raylet) node_manager.cc:3: 0 Workers (tasks / actors) killed due to memory pressure (OOM), 2 {OF_NODE}\n",
         "a process on 10.0.4.13: a worker died unexpectedly"),
        (("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node "
         "(IP: 10.0.4.13, ID: e5d9) where the task (task ID: 4353, name=f, pid=41887, memory used=1.2GB) was running "
         "was 27.71GB / 28.80GB (0.962273), which exceeds the memory usage threshold of 0.95.\n"),
         "process 41887 on 10.0.4.13 killed: the memory of the host, the container or the job ran out"),
        (("ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory. Memory on "
         "the node (IP: 10.0.4.13, ID: 0662) was 27.71GB used / 28.80GB limit (0.962273)\nSelected to kill: (Task: "
         "name=load, pid=41887, actual memory used=1.25GB)\n"),
         "process 41887 on 10.0.4.13 killed: the memory of the host, the container or the job ran out"),
    ],
)  # fmt: skip
def test_what_rays_monitor_of_memory_killed_is_told_with_its_node(text: str, title: str, tmp_path: Path) -> None:
    (tmp_path / "driver.log").write_text(text)
    assert analyze([tmp_path]).findings[0].title == title


def test_what_rays_job_says_of_its_command_is_its_end(tmp_path: Path) -> None:
    failed = "Status message: Job entrypoint command failed with exit code 3, last available logs:"
    (tmp_path / "job.log").write_text(f"Job 'raysubmit_4711' failed\n{failed}\n")
    assert analyze([tmp_path]).findings[0].title == "a process ended with exit code 3"
