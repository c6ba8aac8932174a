"""Stacks of ranks: the forms in which they come, whose they are, and when they name a rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.data.stack_classes import NATIVE, NO_RANK, PLACES
from ncclforensics.report.build import Report
from ncclforensics.report.chain import chain
from ncclforensics.report.next_steps import commands
from ncclforensics.report.redacted_run import redact
from ncclforensics.report.redaction import assign_pseudonyms
from tests.incidents import INCIDENTS

LOADER = INCIDENTS / "a-rank-waits-for-its-data-loader"
DUMPS = [(LOADER / f"pyspy.rank{rank}.log").read_text() for rank in range(3)]
IN_COLLECTIVE = ("all_reduce (torch/distributed/distributed_c10d.py:2506)", "train (train.py:88)")
IN_SYNCHRONIZE = ("synchronize (torch/cuda/streams.py:105)", "main (train.py:90)")
IN_LOCK = ("acquire (filelock/_api.py:200)", "load_index (data/dataset.py:212)")


def tagged(text: str, tag: str) -> str:
    return "".join(f"{tag}{line}\n" for line in text.splitlines())


def pyspy(pid: int, frames: tuple[str, ...], state: str = "idle") -> str:
    lines = "".join(f"    {frame}\n" for frame in (*frames, "<module> (train.py:99)"))
    process = f"Process {pid}: python train.py\nPython v3.11.7 (/usr/bin/python3)\n\n"
    return f'{process}Thread {pid} ({state}): "MainThread"\n{lines}'


def report_on(folder: Path, **files: str) -> Report:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return analyze([str(folder)])


def culprits(report: Report) -> list[int]:
    (row,) = report.verdicts
    assert row.verdict == "lagging-ranks", row.reason
    return report.numbers(row.culprits)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda rank, text: tagged(text, f"{rank}: "),
        lambda rank, text: f"=== rank {rank} ===\n{text}",
        lambda rank, text: f"==> stacks/pyspy.rank{rank}.txt <==\n{text}\n",
        lambda rank, text: f"=== Rank {rank}: http://node-0:5581{rank}/handler/pyspy_dump? ===\n{text}",
    ],
    ids=["srun", "heading", "tail", "debug server"],
)
def test_what_stands_around_a_dump_names_its_rank(wrap: Callable[[int, str], str], tmp_path: Path) -> None:
    report = report_on(tmp_path, all="".join(wrap(rank, text) for rank, text in enumerate(DUMPS)))

    assert culprits(report) == [1]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda host, text: tagged(text, f"{host}: "),
        lambda host, text: f"----------------\n{host}\n----------------\n{text}",
        lambda host, text: f"===== {host} =====\n{text}",
    ],
    ids=["pdsh", "dshbak", "kubectl"],
)
def test_processes_without_a_rank_are_named_by_host_and_pid(wrap: Callable[[str, str], str], tmp_path: Path) -> None:
    report = report_on(tmp_path, all="".join(wrap(f"node{rank:02d}", text) for rank, text in enumerate(DUMPS)))

    assert culprits(report) == []
    assert "process 2036 on node01 stands in read_next, train.py:29 (data loader)" in report.findings[0].title


def test_processes_of_one_file_are_kept_apart_and_share_the_frames_below_their_heads(tmp_path: Path) -> None:
    heads = "".join(f'Thread {pid} (active): "MainThread"\n' for pid in (4101, 4102, 4103))
    waiting = "    broadcast (torch/distributed/distributed_c10d.py:1191)\n    evaluate (train.py:83)\n"
    loading = (
        "    get (queue.py:179)\n    _try_get_data (torch/utils/data/dataloader.py:1011)\n    evaluate (train.py:83)\n"
    )
    report = report_on(tmp_path, dumps=f'{heads}{waiting}\nThread 4104 (idle): "MainThread"\n{loading}')
    (verdict,) = report.verdicts
    assert (verdict.verdict, verdict.certainty, len(verdict.victims)) == ("lagging-ranks", "likely", 3)
    assert "process 4104 stands in evaluate, train.py:83 (data loader)" in report.findings[0].title


def test_the_workers_of_a_data_loader_are_no_ranks() -> None:
    report = analyze([str(LOADER)])

    assert report.run["rank"].height == 3
    assert report.run["stack_process"]["is_helper"].sum() == 1


def test_json_of_py_spy_is_read_without_its_variables(tmp_path: Path) -> None:
    def thread(pid: int, *frames: tuple[str, str, int]) -> str:
        listed = [
            {"name": name, "filename": file, "line": line, "locals": [{"name": "token", "repr": "hf_secret"}]}
            for name, file, line in frames
        ]
        return json.dumps([{"pid": pid, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": pid,
                            "active": False, "owns_gil": False, "frames": listed}], indent=2)  # fmt: skip

    c10d = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    waiting = [("all_reduce", c10d, 2506), ("train", "/job/train.py", 88)]
    report = report_on(
        tmp_path,
        rank0=thread(10, *waiting),
        rank1=thread(11, ("load_index", "/job/data/dataset.py", 212)),
        rank2=thread(12, *waiting),
    )

    assert culprits(report) == [1]
    assert not any("secret" in str(report.run[name].rows()) for name in ("pyspy_frame", "stack_frame", "rank_stack"))


def test_threads_of_a_debugger_show_what_a_process_waits_for(tmp_path: Path) -> None:
    def gdb(pid: int, function: str) -> str:
        return (
            f'Thread 2 (Thread 0x7f40eeffd6c0 (LWP {pid + 1}) "pt_gloo_runloop"):\n'
            "#0  0x00007f41 in epoll_wait () from /lib/libc.so.6\n\n"
            f'Thread 1 (Thread 0x7f41154a3f16 (LWP {pid}) "python"):\n'
            "#0  0x00007f41 in __poll (fds=0x1) at poll.c:29\n"
            f"#1  0x00007f42 in {function} () from /opt/libtorch_cpu.so\n"
            f"#2  0x00007f43 in _start ()\n[Inferior 1 (process {pid}) detached]\n"
        )

    waiting = "c10d::Work::wait(std::chrono::duration<long>)"
    report = report_on(
        tmp_path, rank0=gdb(10, waiting), rank1=gdb(20, "c10d::TCPStore::doWait"), rank2=gdb(30, waiting)
    )

    assert culprits(report) == [1]
    assert "store or rendezvous" in report.findings[0].title


OTHERS = {
    "py-spy": 'Thread 901 (idle): "pin_memory"\n    wait (threading.py:355)\n    get (queue.py:171)\n',
    "gdb": (
        'Thread 9 (Thread 0x7f40eeffd6c0 (LWP 901) "python"):\n#0  0x00007f41 in __poll (fds=0x1) at poll.c:29\n'
        "#1  ncclProxyService (_args=0x5) at proxy.cc:1437\n#2  0x00007f43 in start_thread () from /lib/libc.so.6\n"
    ),
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_a_paste_without_the_main_thread_does_not_say_where_the_process_stands(text: str, tmp_path: Path) -> None:
    report = report_on(tmp_path, rank0=pyspy(10, IN_COLLECTIVE), rank1=pyspy(20, IN_COLLECTIVE), rank2=text)
    (tmp_path / "alone").mkdir()
    alone = report_on(tmp_path / "alone", rank0=text)

    assert report.verdicts[0].verdict == "undecidable"
    assert "beside the main one, whose stack is not shown" in alone.verdicts[0].reason


def test_functions_of_the_c_library_go_by_their_usual_names(tmp_path: Path) -> None:
    def gdb(pid: int, innermost: str) -> str:
        return (
            f'Thread 1 (Thread 0x7f512a041b80 (LWP {pid}) "python3"):\n#0  {innermost}\n'
            "#1  0x00007f5129898909 in _PyEval_EvalFrameDefault (tstate=<optimized out>) at Python/ceval.c:5376\n"
            f"[Inferior 1 (process {pid}) detached]\n"
        )

    reading = "__GI___libc_read (nbytes=1, buf=0x7f51297f3da0, fd=11) at ../sysdeps/unix/sysv/linux/read.c:26"
    waiting = "0x00007fbd4cd6984b in c10d::Work::wait(std::chrono::duration<long>) () from /opt/libtorch_cpu.so"
    report = report_on(tmp_path, rank0=gdb(10, waiting), rank1=gdb(20, reading), rank2=gdb(30, waiting))

    assert culprits(report) == [1]
    assert report.findings[0].title.startswith("rank 1 stands in read, and the others wait in a collective")


NOTES = "[New LWP 12]\n[Thread debugging using libthread_db enabled]\n0x00007f41 in read () from /lib64/libc.so.6\n"


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (NOTES, "[Inferior 1 (process {pid}) detached]\n"),  # gdb -p PID -batch -ex bt
        ("(gdb) attach {pid}\nAttaching to process {pid}\n(gdb) bt\n", "(gdb) quit\n"),
        ("", ""),  # pstack of a process with one thread
    ],
)
def test_a_stack_without_a_line_of_its_thread_is_read(before: str, behind: str, tmp_path: Path) -> None:
    def bt(pid: int, *functions: str) -> str:
        frames = "".join(f"#{depth}  0x00007f4{depth} in {text}\n" for depth, text in enumerate(functions))
        return f"{before}{frames}{behind}".replace("{pid}", str(pid))

    waiting = ("sched_yield () from /lib64/libc.so.6", "c10d::Work::wait() () from /opt/libtorch_cpu.so")
    reading = ("read () from /lib64/libc.so.6", "_start ()")
    report = report_on(tmp_path, rank0=bt(10, *waiting), rank1=bt(20, *reading), rank2=bt(30, *waiting))

    assert culprits(report) == [1]
    assert report.findings[0].title.startswith("rank 1 stands in read, and the others wait in a collective")


@pytest.mark.parametrize(
    ("state", "looks", "verdict"),
    [("active", 1, "undecidable"), ("active", 2, "lagging-ranks"), ("idle", 1, "lagging-ranks")],
)
def test_a_rank_that_computes_is_named_only_if_it_stays_there(
    state: str, looks: int, verdict: str, tmp_path: Path
) -> None:
    for look in range(looks):
        for rank in range(3):
            frames = ("step (model.py:12)",) if rank == 1 else IN_COLLECTIVE
            text = pyspy(10 + rank, frames, state if rank == 1 else "idle")
            (tmp_path / f"look{look}.rank{rank}.txt").write_text(text)

    assert [row.verdict for row in analyze([str(tmp_path)]).verdicts] == [verdict]


def test_equal_pids_in_the_folders_of_several_pods_are_several_processes(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"pod-{rank}").mkdir()
        (tmp_path / f"pod-{rank}" / "pyspy.txt").write_text(pyspy(7, IN_LOCK if rank == 1 else IN_COLLECTIVE))

    report = analyze([str(tmp_path)])

    assert culprits(report) == []
    assert "process 7 on pod-1 stands in load_index" in report.findings[0].title


def test_the_timer_of_faulthandler_shows_no_standstill(tmp_path: Path) -> None:
    """It prints when its time is over, whatever the program does: here a rank still imports its modules."""
    stacks = [
        f"Timeout (0:00:09)!\nThread 0x7f00{rank}0 (most recent call first):\n"
        + ("".join(f'  File "{file}", line 9 in {name}\n' for name, file in places))
        for rank, places in enumerate(
            [(("exec_module", "<frozen importlib._bootstrap_external>"), ("<module>", "train.py"))]
            + 3 * [(("all_reduce", "torch/distributed/distributed_c10d.py"), ("<module>", "train.py"))]
        )
    ]
    path = tmp_path / "job.log"
    path.write_text("".join(stacks))
    (row,) = analyze([str(path)]).verdicts
    assert (row.certainty, row.stall_evidence) == ("possible", ())


def test_a_server_without_requests_is_not_stuck(tmp_path: Path) -> None:
    polling = ("poll (zmq/sugar/poll.py:106)", "recv_requests (sglang/srt/managers/scheduler.py:1200)")
    for rank in range(3):
        frames = polling if rank == 0 else ("broadcast_pyobj (sglang/srt/utils/common.py:1300)",)
        (tmp_path / f"rank{rank}.txt").write_text(pyspy(10 + rank, frames))

    assert [row.verdict for row in analyze([str(tmp_path)]).verdicts] == ["undecidable"]


def test_ranks_that_moved_between_two_dumps_are_not_stuck(tmp_path: Path) -> None:
    for look, late in enumerate((1, 2)):
        for rank in range(3):
            frames = IN_LOCK if rank == late else IN_COLLECTIVE
            (tmp_path / f"look{look}.rank{rank}.txt").write_text(pyspy(10 + rank, frames))

    (row,) = analyze([str(tmp_path)]).verdicts
    assert (row.verdict, "moved on" in row.reason) == ("undecidable", True)


@pytest.mark.parametrize(
    ("frames", "certainty"),
    [
        (("step (train.py:48)",), "possible"),  # `work.wait()`, as well as `time.sleep()`
        (("clock_nanosleep (libc.so.6)", "time_sleep (libpython3.11.so.1.0)", "step (train.py:48)"), "likely"),
    ],
)
def test_own_code_without_native_frames_may_wait_for_a_call_of_before(
    frames: tuple[str, ...], certainty: str, tmp_path: Path
) -> None:
    (tmp_path / "stacks.txt").write_text(
        "".join(pyspy(10 + rank, frames if rank == 1 else IN_COLLECTIVE) + "\n" for rank in range(4))
    )

    report = analyze([str(tmp_path)])

    (row,) = report.verdicts
    assert (row.verdict, row.certainty) == ("lagging-ranks", certainty)
    native = [step.line for step in commands(report.run, row) if "--native" in step.line]
    assert native == (["py-spy dump --native --pid 11"] if certainty == "possible" else [])


@pytest.mark.parametrize(
    ("outside", "certainty", "word"),
    [(23904, "likely", "by the stacks"), (23892, "possible", "but the stacks show the others waiting for rank 0")],
)
def test_stacks_are_held_against_the_calls_in_the_logs(outside: int, certainty: str, word: str, tmp_path: Path) -> None:
    incident = INCIDENTS / "one-rank-stops-before-an-allreduce"
    pids = [*range(23892, 23894), 23894, *range(23896, 23909)]
    stacks = "".join(pyspy(pid, IN_LOCK if pid == outside else IN_COLLECTIVE) + "\n" for pid in pids)
    (tmp_path / "stacks.txt").write_text(stacks)

    report = analyze([str(incident / name.name) for name in incident.glob("*.log")] + [str(tmp_path)])

    (row,) = report.verdicts
    assert (report.numbers(row.culprits), row.certainty) == ([11], certainty)
    assert word in row.reason
    assert {link.kind for link in chain(report, row)} == {"nccl-log", "stacks"}


@pytest.mark.parametrize(
    ("frames", "certainty", "is_doubted"), [("IN_LOCK", "certain", False), ("IN_SYNCHRONIZE", "likely", True)]
)
def test_a_rank_that_waits_for_its_gpu_may_have_made_a_call_that_its_log_lacks(
    frames: str, certainty: str, is_doubted: bool, tmp_path: Path
) -> None:
    incident = INCIDENTS / "one-rank-stops-before-an-allreduce"
    pids = [*range(23892, 23894), 23894, *range(23896, 23909)]
    odd = {"IN_LOCK": IN_LOCK, "IN_SYNCHRONIZE": IN_SYNCHRONIZE}[frames]
    for look in (1, 2):
        stacks = "".join(pyspy(pid, odd if pid == 23904 else IN_COLLECTIVE) + "\n" for pid in pids)
        (tmp_path / f"stacks-{look}.txt").write_text(stacks)

    report = analyze([str(incident / name.name) for name in incident.glob("*.log")] + [str(tmp_path)])

    (row,) = report.verdicts
    assert (report.numbers(row.culprits), row.certainty) == ([11], certainty)
    assert ("waits for its GPU" in row.reason) is is_doubted


def test_paths_of_the_program_are_redacted(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text(pyspy(10, IN_COLLECTIVE))
    (tmp_path / "rank1.txt").write_text(pyspy(11, IN_LOCK))
    report = analyze([str(tmp_path)])

    redacted = redact(report, assign_pseudonyms(report.run))

    texts = [redacted.findings[0].title, *(line["text"] for line in redacted.evidence(redacted.findings[0]))]
    assert not any("dataset.py" in text or "train.py" in text for text in texts)
    assert any(":212" in text for text in texts)


def test_every_class_of_stacks_has_its_reason() -> None:
    places = [(place.path, place.functions, place.reason) for place in (*PLACES, *NO_RANK)]

    assert [path for path, _, reason in places if not reason] == []
    assert [name for name, _, reason in NATIVE if not reason] == []
    assert len({(path, functions) for path, functions, _ in places}) == len(places)


def test_frames_whose_arguments_are_wrapped_are_read(tmp_path: Path) -> None:
    frames = """(gdb) bt
#0  0x00007f1dfe612d47 in sched_yield () from target:/usr/lib64/libc.so.6
#1  0x00007f1d0b0ffbb2 in ncclEnqueueCheck (
    func=func@entry=0x7f1d0b117510, primName=primName@entry=0x7f1d0b14c8a1 "AllReduce",\x20
    comm=0x563036e90de0) at misc/enqueue.cu:205
#2  0x00007f1d0b117c3e in ncclAllReduce (sendbuff=<optimized out>, recvbuff=<optimized out>,\x20
    stream=0x563037008dd0) at collectives/all_reduce.cu:29
"""
    (verdict,) = report_on(tmp_path, stack=frames).verdicts
    assert "1 process stands in ncclAllReduce" in verdict.reason


LLDB = """(lldb) process attach --pid 41887
Process 41887 stopped
* thread #1, name = 'python', stop reason = signal SIGSTOP
    frame #0: 0x00007f41155a9bfd libc.so.6`sched_yield + 7
(lldb) bt all
* thread #1, name = 'python', stop reason = signal SIGSTOP
  * frame #0: 0x00007f41155a9bfd libc.so.6`sched_yield + 7
    frame #1: 0x00007f4104d12501 libcuda.so.1`___lldb_unnamed_symbol4711 + 85
    frame #2: 0x00007f4104d12600 libnccl.so.2`ncclGroupEnd() at group.cc:72:9
    frame #3: 0x000055f4a579c081 python`_start + 37
  thread #2, name = 'pt_autograd_0'
    frame #0: 0x00007f41155a9bfd libc.so.6`__futex_abstimed_wait_common + 200
"""  # synthetic


def test_a_session_of_lldb_shows_one_process_and_its_main_thread(tmp_path: Path) -> None:
    (row,) = report_on(tmp_path, lldb=LLDB).run["stack_process"].to_dicts()
    assert (row["pid"], row["kind"], row["function"]) == (41887, "collective", "ncclGroupEnd")


@pytest.mark.parametrize("head", ['Thread (idle): "MainThread"', '"MainThread" (idle)'])
def test_threads_without_a_number_belong_to_the_process_above_them(head: str, tmp_path: Path) -> None:
    texts = [pyspy(pid, IN_COLLECTIVE).replace(f'Thread {pid} (idle): "MainThread"', head) for pid in (11, 12)]
    report = report_on(tmp_path, both="".join(texts))
    assert sorted(report.run["stack_process"]["pid"]) == [11, 12]
    assert report.verdicts[0].verdict == "undecidable"


def test_files_of_several_threads_of_a_rank_are_no_several_moments(tmp_path: Path) -> None:
    proxy = "#0  __sched_yield\n#1  ncclProxyProgress(void*)\n"
    main = "#0  __sched_yield\n#1  groupLaunch(ncclAsyncJob*)\n#2  ncclEnqueueCheck(ncclInfo*)\n#3  pncclAllGather\n"
    waiting = "#0  <futex>\n#1  pthread_cond_wait\n#2  ncclProxyGetPostedOps(int*)\n#3  ncclProxyProgress(void*)\n"

    report = report_on(tmp_path, rank0_proxy=proxy, rank1_main=main, rank1_proxy=waiting)

    (answer,) = report.verdicts
    assert "do not show the main thread of rank 0" in answer.reason
    assert "rank 1 stands in pncclAllGather (collective)" in answer.reason
    assert "moved" not in answer.reason


@pytest.mark.parametrize(
    "frames",
    [
        ("cmdloop (cmd.py:126)", "interaction (pdb.py:435)", "dispatch_line (bdb.py:114)", "step (train.py:48)"),
        ("getpass (getpass.py:77)", "login (huggingface_hub/_login.py:297)", "step (train.py:48)"),
        ("input (wandb/util.py:1340)", "prompt_api_key (wandb/sdk/lib/apikey.py:122)", "step (train.py:48)"),
    ],
    ids=["debugger", "password", "wandb"],
)
def test_a_rank_at_a_prompt_waits_for_somebody(frames: tuple[str, ...], tmp_path: Path) -> None:
    report = report_on(
        tmp_path, rank0=pyspy(10, frames), rank1=pyspy(20, IN_COLLECTIVE), rank2=pyspy(30, IN_COLLECTIVE)
    )

    assert culprits(report) == [0]
    assert "step, train.py:48 (waits for somebody to type)" in report.findings[0].title


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (("?? () from {cuda}", "cuMemFree_v2 () from {cuda}", "cudaFree () from /opt/libnccl.so.2"), "cudaFree (GPU)"),
        (("__GI___pthread_timedjoin_ex (threadid=1) at x.c:89", "ncclCommAbort () from REMOVED"), "ncclCommAbort"),
    ],
)
def test_the_call_of_the_program_is_named_and_not_a_step_of_it(
    frames: tuple[str, ...], place: str, tmp_path: Path
) -> None:
    lines = [f"#{depth}  0x00007f97160683e{depth} in {frame}\n" for depth, frame in enumerate(frames)]
    report = report_on(tmp_path, stack="".join(lines).format(cuda="/usr/lib/libcuda.so.1"))
    assert f"stands in {place}" in report.verdicts[0].reason
