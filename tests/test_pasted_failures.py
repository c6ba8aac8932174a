"""Texts as users paste them: records in one line, boxes that wrap a call, tags of hosts, errors that go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.views.text_screen import screen

TIMED_OUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=8, NumelOut=8, "
    "Timeout(ms)=600000) ran for 600089 milliseconds before timing out."
)
CREATION = (
    "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, "
    "ray::TrainActor.__init__() (pid=236832, ip=10.1.2.3, actor_id=310c5f, repr=<actor.TrainActor object at 0x7ff1>)\n"
)
DRIVER = 'Traceback (most recent call last):\n  File "/srv/job/main.py", line 120, in <module>\n    ray.get(actor)\n'
TWICE = ((0, 1), (0, 3), (0, 2), (1, 2), (1, 1), (1, 3))  # task of srun, and the rank that it announces
ENTRY = """\
[{place}]:
  time      : 2026-03-02_11:04:57
  host      : gpu-a012
  rank      : {place} (local_rank: {place})
"""


def reported(folder: Path, text: str) -> Report:
    (folder / "paste.txt").write_text(text, encoding="utf-8")
    return analyze([folder])


def first_screen(report: Report) -> str:
    return " ".join(screen(report, width=300, height=60, everything=False).split())


def test_records_of_pytorch_in_one_line_are_read_each(tmp_path: Path) -> None:
    records = [
        f"(TrainActor pid={pid}) [rank{rank}]:[E416 13:21:26.967375581 ProcessGroupNCCL.cpp:616] [Rank {rank}] {text}"
        for rank, pid, text in (
            (1, 744, TIMED_OUT.format(seq=7, op="BROADCAST")),
            (0, 743, TIMED_OUT.format(seq=8, op="ALLREDUCE")),
        )
    ]
    work = reported(tmp_path, "It hangs: " + " ".join(records) + "\n").run["work"]
    assert work.select("rank", "sequence").sort("rank").rows() == [(0, 8), (1, 7)]


def test_one_record_behind_a_prefix_stays_in_its_line(tmp_path: Path) -> None:
    record = "[rank1]:[E416 13:21:26.967375581 ProcessGroupNCCL.cpp:616] [Rank 1] "
    text = f"2026-03-02T11:04:57.123456789Z stderr F {record}{TIMED_OUT.format(seq=7, op='BROADCAST')}\n"
    assert reported(tmp_path, text).run["work"].select("rank", "sequence").rows() == [(1, 7)]


def test_a_call_that_a_box_wraps_is_one_call(tmp_path: Path) -> None:
    text = """\
gpu003: │ /home/setup/.local/lib/python3.8/site-packages/accelerate/utils/other.py:81  │
gpu003: │ in wait_for_everyone                                                         │
gpu003: │                                                                              │
gpu003: │ ❱  81 │   │   torch.distributed.barrier()                                    │
gpu003: │                                                                              │
gpu003: │ /home/setup/some/folder/with/a/very/long/name/that/does/not/fit/into/one/lin │
gpu003: │ e/train.py:12 in main                                                        │
gpu003: │                                                                              │
gpu003: │ ❱  12 │   run()                                                              │
"""
    shown = first_screen(reported(tmp_path, text))
    assert "a process on gpu003 raised an exception" in shown
    assert "main (train.py:12)" in shown
    (tmp_path / "first").mkdir()
    first = "".join(text.splitlines(keepends=True)[:4])
    assert "wait_for_everyone (other.py:81)" in first_screen(reported(tmp_path / "first", first))


def test_the_tag_of_pdsh_is_the_host_of_an_error_and_another_word_is_none(tmp_path: Path) -> None:
    lines = (DRIVER + "ValueError: the table is empty\n").splitlines(keepends=True)
    tagged = {tag: "".join(f"{tag}: {line}" for line in lines) for tag in ("gpu003", "10.1.2.3", "worker")}
    for tag, text in tagged.items():
        (tmp_path / tag).mkdir()
        shown = first_screen(reported(tmp_path / tag, text))
        assert (f"a process on {tag} raised ValueError" in shown) == (tag != "worker")
        assert "raised ValueError: the table is empty" in shown


def test_an_actor_of_ray_that_fails_in_its_creation_is_named(tmp_path: Path) -> None:
    for name, text, title in (
        ("alone", CREATION, "process 236832: an actor of Ray failed while it was created"),
        ("cut", DRIVER + CREATION, "process 236832 on 10.1.2.3 (TrainActor.__init__) raised an exception"),
        (
            "whole",
            f'{DRIVER}{CREATION}  File "/srv/job/actor.py", line 3, in __init__\n    load()\nValueError: no table\n',
            "process 236832 (TrainActor.__init__) on 10.1.2.3 raised ValueError: no table",
        ),
    ):
        (tmp_path / name).mkdir()
        assert title in first_screen(reported(tmp_path / name, text))


def test_the_ranks_of_a_table_without_its_root_cause_are_named_with_their_host(tmp_path: Path) -> None:
    heading = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n/srv/job/train.py FAILED\nFailures:\n"
    )
    ends = [f"{ENTRY.format(place=place)}  exitcode  : 1 (pid: {4000 + place})\n" for place in (1, 2)]
    report = reported(tmp_path, heading + "".join(ends) + ENTRY.format(place=3))
    shown = first_screen(report)
    assert "because ranks 1, 2 on gpu-a012 and rank 3 failed; which of them failed first is not known" in shown
    assert "(pid: 4001)" in shown
    assert "stated-by-program" not in shown
    assert not report.verdicts[0].culprits


def test_a_communicator_that_returns_no_result_of_nccl_is_misused_and_one_that_keeps_an_error_is_not(
    tmp_path: Path,
) -> None:
    busy = "Attempt to use communicator before the previous operation returned ncclSuccess"
    for result, is_cause in ((512, True), (4, True), (6, False)):
        folder = tmp_path / str(result)
        folder.mkdir()
        text = (
            f"gpu-a012:41887:41887 [2] init.cc:303 NCCL WARN {busy}\n"
            f"gpu-a012:41887:41887 [2] NCCL INFO enqueue.cc:1605 -> {result}\n"
        )
        (finding,) = [found for found in reported(folder, text).findings if busy in found.title]
        assert (finding.role.value == "cause") is is_cause, result


def test_what_the_program_got_stands_beside_the_warning_before_it(tmp_path: Path) -> None:
    warning = "graph/topo.h:230 NCCL WARN Could not find NET with id 0\n"
    error = (
        "torch.distributed.DistBackendError: NCCL error in: /opt/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3376,"
        " internal error - please report this issue to the NCCL developers, NCCL version 2.25.1\n"
    )
    assert "the program then got an error of NCCL: internal error" in first_screen(reported(tmp_path, warning + error))
    (tmp_path / "above").mkdir()
    assert "the program then got" not in first_screen(reported(tmp_path / "above", error + warning))


def test_a_block_that_only_passes_an_error_on_is_not_its_place(tmp_path: Path) -> None:
    text = f"""\
{DRIVER}  File "/opt/vllm/engine/async_llm_engine.py", line 818, in run_engine_loop
    async with asyncio_timeout(ENGINE_ITERATION_TIMEOUT_S):
  File "/opt/vllm/engine/async_timeout.py", line 97, in __aexit__
    self._do_exit(exc_type)
asyncio.exceptions.TimeoutError
"""
    assert "In run_engine_loop (async_llm_engine.py:818)" in first_screen(reported(tmp_path, text))


def test_what_an_error_of_the_rendezvous_means_is_said(tmp_path: Path) -> None:
    opening = 'ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{\n  "message": {\n'
    for name, meaning in (
        ("RendezvousTimeoutError", "too few nodes joined torchrun's rendezvous in time"),
        ("RendezvousClosedError", "Torchrun's rendezvous was closed: the job had ended"),
    ):
        (tmp_path / name).mkdir()
        text = f'{opening}    "message": "{name}: ",\n    "extraInfo": {{\n'
        assert meaning in first_screen(reported(tmp_path / name, text))


def test_horovod_that_was_shut_down_points_at_another_rank(tmp_path: Path) -> None:
    text = (
        "2026-03-02 11:04:57.123456: W tensorflow/core/framework/op_kernel.cc:1318] OP_REQUIRES failed at "
        "mpi_ops.cc:422 : Aborted: Horovod has been shut down. This was caused by an exception on one of the ranks.\n"
    )
    report = reported(tmp_path, text)
    assert "Horovod was shut down, because a rank raised an exception or finished before" in first_screen(report)
    assert not any(finding.ranks for finding in report.findings)


def test_an_actor_whose_owner_ended_names_the_owner(tmp_path: Path) -> None:
    died = (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "\tclass_name: Runner\n\tpid: 159258\n\tip: 10.1.2.3\n"
    )
    owner = (
        "The actor is dead because its owner has died. Owner Id: 01000000 Owner Ip address: 10.1.2.4 Owner worker exit "
        "type: SYSTEM_ERROR Worker exit detail: Owner's node has crashed.\n"
    )
    title = "process 159258 on 10.1.2.3: an actor died because its owner at 10.1.2.4 did: Owner's node has crashed"
    assert title in first_screen(reported(tmp_path, died + owner))
    (tmp_path / "alone").mkdir()
    alone = first_screen(
        reported(tmp_path / "alone", f"{died}The actor is dead because its worker process has died.\n")
    )
    assert "process 159258 on 10.1.2.3: an actor died unexpectedly" in alone
    assert "Not judged" not in alone


def test_tasks_of_jax_that_did_not_register_are_no_prose(tmp_path: Path) -> None:
    text = "Stopping coordination service as cluster registration failed. This may be due to 1) some tasks crashed.\n"
    title = "processes of JAX waited in jax.distributed.initialize until its time-out"
    assert title in first_screen(reported(tmp_path, text))


def test_a_crash_under_mpi_names_its_task_and_a_function_of_c_plus_plus(tmp_path: Path) -> None:
    tag, process = "[1,3]<stderr>:", "[gpu-a012:587895]"
    frame = "mpi_lib.so(_ZN7horovod6common11NCCLContext10ErrorCheckENSt7__cxx1112basic_stringE+0x64)[0x7f7087664824]"
    text = (
        f"{tag}{process} *** Process received signal ***\n{tag}{process} Signal: Segmentation fault (11)\n"
        f"{tag}{process} [ 0] {tag}/lib/x86_64-linux-gnu/libc.so.6(+0x43090)[0x7f71421a3090]\n"
        f"{tag}{process} [ 1] {tag}/opt/horovod/{frame}\n"
    )
    shown = first_screen(reported(tmp_path, text))
    assert "process 587895 (task 3 of the launcher) on gpu-a012 crashed with SIGSEGV in" in shown
    assert "horovod::common::NCCLContext::ErrorCheck (mpi_lib.so)" in shown


def test_ranks_that_tasks_of_srun_announce_twice_are_told(tmp_path: Path) -> None:
    lines = [f"{task}: Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/8" for task, rank in TWICE]
    text = "The global ranks are wrong:\n\n" + "\n".join(lines) + "\n"
    assert "ranks 1-3 by two processes or more; no such line of ranks 0, 4-7 was read" in first_screen(
        reported(tmp_path, text)
    )


def test_an_object_that_lacks_an_attribute_as_it_is_shut_down_follows_from_an_earlier_error(tmp_path: Path) -> None:
    lacking = "AttributeError: 'Executor' object has no attribute 'workers'\n"
    for function, severity in (("shutdown", "warning"), ("load", "error")):
        (tmp_path / function).mkdir()
        text = f'{DRIVER}  File "/srv/job/executor.py", line 228, in {function}\n    self.workers\n{lacking}'
        (finding,) = [
            found for found in reported(tmp_path / function, text).findings if "AttributeError" in found.title
        ]
        assert finding.severity.value == severity


def test_an_error_that_follows_leads_where_the_verdict_only_cites_its_line(tmp_path: Path) -> None:
    text = (
        "sglang-0:100:1012 [1] NCCL INFO ncclCommInitRank comm 0x55c8b7ed9050 rank 1 nranks 16 cudaDev 1 nvmlDev 1 "
        "busId 3a000 commId 0x11e35ff62bc85e0d - Init COMPLETE\n"
        "[2026-03-02 11:04:57 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/srv/sglang/srt/model_executor/model_runner.py", line 417, in load_model\n    raise ValueError(\n'
        "ValueError: TP rank 1 could finish the model loading, but there are other ranks that did not finish loading.\n"
    )
    report = reported(tmp_path, text)
    assert "WARNING (likely) rank 1 on sglang-0 raised ValueError" in first_screen(report)
    assert not report.verdicts[0].culprits


def test_the_rank_that_lightning_announced_and_that_printed_no_error_is_the_suspect(tmp_path: Path) -> None:
    announced = "".join(f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/3\n" for rank in range(3))
    closed = "RuntimeError: [/src/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    text = announced + "".join(f"[rank{rank}]: {closed} [127.0.0.1]:345\n" for rank in (0, 1))
    assert "suspect rank 2" in first_screen(reported(tmp_path, text))


PINGED = "Ping failed, invalid value returned from server. Expected: 5732, Got: 1347703880\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (("[W1129 19:39:39.910945689 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host "
         f"10.0.0.1:29500 - retrying (try=0, timeout=10000ms, delay=437ms): {PINGED}"),
         ["another program than PyTorch's store answers at 10.0.0.1:29500"]),
        (f"torch.distributed.DistNetworkError: {PINGED}", ["another program than PyTorch's store", "MASTER_PORT"]),
        (('[rank0]: Traceback (most recent call last):\n[rank0]:   File "train.py", line 8, in main\n'
         "[rank0]: RuntimeError: unable to allocate shared memory(shm) for file </torch_4934_33>: No space left on "
         "device (28)\n"), ["df -h /dev/shm", "--shm-size"]),
    ],
)  # fmt: skip
def test_what_the_system_said_leads_to_what_is_to_be_done(text: str, words: list[str], tmp_path: Path) -> None:
    shown = " ".join(first_screen(reported(tmp_path, text)).split())
    assert all(word in shown for word in words)


OF_PBS = "Exec host:  gpu-a012/0\njob deleted\nJob deleted at request of root@login1\n"
OF_RAY = "ray.exceptions.RayTaskError(ActorDiedError): ray::TrainActor.fit() (pid=41887, ip=10.0.4.13, actor_id=8f3b)\n"
OF_LOADER = "RuntimeError: DataLoader worker (pid 41887) is killed by signal: {}\n"
OF_VLLM = "(EngineCore pid=41887) ERROR 04-14 13:47:07 [core.py:1108] "

OF_SPAWN = """\
-- Process 0 terminated with the following error:
E Traceback (most recent call last):
E   File "/mnt/job/utils.py", line 51, in launch
E     torch.distributed.init_process_group(
E   File "/opt/site-packages/torch/distributed/distributed_c10d.py", line 1710, in init_process_group
"""


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (OF_PBS, "WARNING (certain) the job was ended as its owner or an administrator asked for it (qdel)"),
        (f"{OF_PBS}job 4711 exceeded MEM usage hard limit (2528 > 1126)\n", "ERROR (likely) a process killed"),
        ("    lastState:\n      terminated:\n        exitCode: 137\n        reason: OOMKilled\n", "the memory of"),
        ('      "terminated": {\n         "exitCode": 139,\n      }\n', "a process crashed with SIGSEGV"),
        ("kubelet[49]: I1010 17:41:57.857758    49 manager.go:1126] Created an OOM event in container", "the memory"),
        (OF_RAY, "process 41887 on 10.0.4.13 (TrainActor.fit) raised ActorDiedError, of which only the heading"),
        (OF_RAY, "an actor that it called had died"),
        (OF_LOADER.format("Aborted."), "a library that was in use before the fork"),
        (OF_LOADER.format("Killed."), "dmesg -T (OOM killer)"),
        (f"{OF_VLLM}Exception: WorkerProc initializat", "follows from something else"),
        (
            ("RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at a.cpp:2\n"
             "terminate called without an active exception\n"),
            "ERROR (certain) GPU fault: uncorrectable ECC error encountered",
        ),
        (
            "Cuda error in file src/a.cu at line 406: invalid device function\nAborted (core dumped)\n",
            "ERROR (certain) CUDA error: invalid device function",
        ),
        (
            "GPUassert: an illegal memory access was encountered src/a.cu 102\n",
            "an illegal memory access was encountered",
        ),
        (
            "CUDA status Error: file: ./src/a.c : () : line: 309\nCUDA Error: uncorrectable ECC error encountered\n",
            "WARNING (certain) memory, or an NVLink of a GPU, had errors",
        ),
        (
            ("INFO 08-27 05:11:55 pynccl.py:63] vLLM is using nccl==2.20.5\n"
             "ERROR 08-27 05:12:18 worker_base.py:38] Error executing method init_device. This might cause deadlock in "
             "distributed execution.\n"),
            "WARNING (certain) a worker of vLLM raised an exception: init_device",
        ),
        (
            "gpu-a012:1791:1791 [0] bootstrap.cc:39 NCCL WARN NET/Socket : No usable listening interface found\n",
            "no network interface of this host is in the subnet of the address in NCCL_COMM_ID",
        ),
        (
            "mpirun noticed that process rank 1 with PID 0 on node a12 exited on signal 4 (Illegal instruction: 4).",
            "ERROR (certain) task 1 of mpirun, a12 crashed with SIGILL",
        ),
        (f"E {OF_SPAWN}", "init_process_group (distributed_c10d.py), called from launch (utils.py:51)"),
        (OF_SPAWN, "Read the last line of the traceback below the cited line"),
        (
            ("(RayWorkerVllm pid=5304) [E ProcessGroupNCCL.cpp:916] [Rank 7] NCCL watchdog thread terminated with "
             "exception: CUDA error: unknown error\n"),
            "CUDA error on rank 7 of its process group: unknown error",
        ),
        (
            ("[1605131501.458403] [gpu-a012:1972:0]  ucp_context.c:690  UCX  WARN  network device 'mlx5_3:1' is not "
             "available, please use one or more of: 'mlx5_0:1'(ib)\n"),
            "gpu-a012: UCX warns: network device 'mlx5_3:1' is not available",
        ),
        ("exit reason: TERM_MEMLIMIT: job killed after reaching LSF memory usage limit\n", "the memory of"),
        (
            "RuntimeError: [/w/third_party/gloo/gloo/transport/tcp/pair.cc:176] bind: Address already in use\n",
            "run ss -ltnp for the port",
        ),
        (
            "AbortedError (see above for traceback): Horovod has been shut down. This has been ca\nused by an exc\n",
            "Horovod was shut down, because a rank raised an exception or finished before the others",
        ),
        (
            ("WARNING: Open MPI accepted a TCP connection from what appears to be a\nanother Open MPI process but "
             "cannot find a corresponding process\nentry for that peer.\n\n  Local host: gpu-a012\n  PID:   41887\n"),
            "a process of MPI on gpu-a012 got a connection over TCP from an address that is none of its peers'",
        ),
        (
            ("gpu-a012: Welcome to bitsandbytes. For bug reports, please submit your error trace to: "
             "https://github.com/TimDettmers/bitsandbytes/issues\n"),
            "without a word of a failure",
        ),
    ],
)  # fmt: skip
def test_what_ended_a_process_stands_first(text: str, first: str, tmp_path: Path) -> None:
    assert first in first_screen(reported(tmp_path, text))


def test_a_process_whose_first_lines_were_cut_off_did_begin_its_init_or_not(tmp_path: Path) -> None:
    """A paste that begins in the middle does not show what its processes printed before."""
    text = """\
gpu-a012:4879:5139 [0] NCCL INFO NET : Using interface eth0:10.0.4.12<0>
gpu-a012:4879:5139 [0] NCCL INFO NET/Socket : 2 interfaces found
gpu-a012:4880:5140 [1] NCCL INFO comm 0x7f19bc4046d0 rank 3 nranks 4
gpu-a013:2494:2756 [1] NCCL INFO comm 0x7f2bd8406d50 rank 1 nranks 4
gpu-a013:2493:2753 [0] NCCL INFO comm 0x7f4ee83b6bc0 rank 0 nranks 4
gpu-a013:2493:2753 [0] NCCL INFO NET/Socket : 2 interfaces found
"""
    (verdict,) = reported(tmp_path, text).verdicts
    assert (verdict.verdict, verdict.culprits) == ("undecidable", ())


def test_the_error_of_jax_names_what_its_traceback_ends_with(tmp_path: Path) -> None:
    text = """\
  File "/opt/venv/lib/python3.11/site-packages/jax/_src/distributed.py", line 95, in initialize
    self.client.connect()
jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: c. Timed out task names:
/job:jax_worker/replica:0/task:3
"""
    assert "app-traceback-cut" not in {finding.rule for finding in reported(tmp_path, text).findings}


def test_the_number_in_the_label_of_skypilot_is_that_of_a_node(tmp_path: Path) -> None:
    """SkyPilot names its task of Ray `(worker1, rank=1, …)`, and all processes of the node print behind that."""
    label = "(worker1, rank=1, pid=22249, ip=10.31.0.9) "
    table = "".join(f"{label}{line}\n" for line in ENTRY.format(place=6).splitlines())
    text = f"train.py FAILED\n{label}{'-' * 60}\n{label}Failures:\n{table}{label}  exitcode  : 1 (pid: 22641)\n"
    assert "rank 6 on gpu-a012" in first_screen(reported(tmp_path, text))
    failed = "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.4.9<51577> failed : Connection refused"
    text = f"(head, rank=0, pid=5634) gpu-a012:72:49 [3] {failed}\n" * 2
    assert reported(tmp_path, text).run["rank"]["rank"].is_null().all()
