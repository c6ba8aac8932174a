"""Exceptions and crashes whose lines name no rank: where they happened, in which process, and what repeats them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.rules.finding import Finding, Severity

TRACEBACK = """\
Traceback (most recent call last):
  File "/app/train.py", line 88, in <module>
    main()
  File "/app/data.py", line 41, in load
    return torch.load(path)
  File "/usr/lib/python3.12/site-packages/torch/serialization.py", line 771, in load
    raise
"""
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"
BEHIND = "shutting down\n\nworkers: 0\n\nbye\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
SECOND_HAND = "RuntimeError: Engine core initialization failed. See root cause above.\n"


def findings_of(folder: Path, text: str) -> dict[str, Finding]:
    (folder / "job.log").write_text(text)
    return {finding.title: finding for finding in analyze([str(folder)]).findings}


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("KeyError: 'layers.7'", "a process raised KeyError: 'layers.7'"),
        ("AssertionError", "a process raised AssertionError"),
        ("OSError: [Errno 28] No space left on device", "a process raised OSError: [Errno 28] No space left on device"),
        ("Exception: no batch is left", "a process raised Exception: no batch is left"),
        ("subprocess.TimeoutExpired: 'make' timed out", "a process raised TimeoutExpired: 'make' timed out"),
    ],
)
def test_an_exception_is_told_with_its_place_though_lines_follow(line: str, title: str, tmp_path: Path) -> None:
    found = findings_of(tmp_path, f"step 3\n{TRACEBACK}{line}\n{BEHIND}")
    assert found[title].severity is Severity.ERROR
    assert "in load (serialization.py:771), called from load (data.py:41)" in found[title].detail


@pytest.mark.parametrize(
    "line",
    [
        "KeyErrorKeyError: : 'layers.7''layers.7'",
        "KeyErrorKeyErrorKeyError: : : 'layers.7''layers.7''layers.7'",
        "torch.nntorch.nn..KeyErrorKeyError: : 'layers.7''layers.7'",
    ],
)
def test_an_error_that_processes_print_at_the_same_moment_is_read(line: str, tmp_path: Path) -> None:
    found = findings_of(tmp_path, f"step 3\n{TRACEBACK}{line}\n{BEHIND}")
    assert found["a process raised KeyError: 'layers.7'"].severity is Severity.ERROR


@pytest.mark.parametrize("site", ["CUDA error at a.cu:7", "CUDA error in a.cu:7", "CUDA error a.cu:7"])
def test_an_error_that_a_macro_of_the_program_prints_is_one_of_cuda(site: str, tmp_path: Path) -> None:
    found = findings_of(tmp_path, f"[Rank 3] {site}: named symbol not found (500)\n")[
        "CUDA error on rank 3: named symbol not found"
    ]
    assert "built for other GPUs" in found.remedy


def test_an_exception_in_the_middle_of_a_long_log_may_have_been_caught(tmp_path: Path) -> None:
    steps = "".join(f"step {number}\n" for number in range(300))
    found = findings_of(tmp_path, f"{TRACEBACK}KeyError: 'layers.7'\n{steps}")
    assert found["a process raised KeyError: 'layers.7'"].severity is Severity.INFO


def test_the_exception_that_another_was_raised_from_is_the_cause(tmp_path: Path) -> None:
    found = findings_of(tmp_path, f"{TRACEBACK}KeyError: 'x'\n{CAUSE}{TRACEBACK}RuntimeError: no model\n{BEHIND}")
    assert [title for title in found if "raised" in title] == ["a process raised KeyError: 'x'"]


def test_an_exception_that_repeats_another_one_is_told_only_where_nothing_else_is(tmp_path: Path) -> None:
    for name, text in (("alone", ""), ("both", f"{TRACEBACK}KeyError: 'x'\n")):
        (tmp_path / name).mkdir()
        found = findings_of(tmp_path / name, f"{text}{TRACEBACK}{SECOND_HAND}{BEHIND}")
        assert any("Engine core" in title for title in found) == (name == "alone")


@pytest.mark.parametrize(
    ("innermost", "blamed"), [("/app/data.py", {1}), ("/usr/lib/python3.12/multiprocessing/connection.py", set())]
)
def test_a_connection_that_the_program_s_own_code_lost_ends_its_rank(
    innermost: str, blamed: set[int], tmp_path: Path
) -> None:
    """A library that loses a pipe mostly lost the process at its other end, which failed before."""
    raised = [
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 88, in <module>',
        f'  File "{innermost}", line 379, in _recv',
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ]
    lost = (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]"
    )
    lines = [f"[rank1]: {line}" for line in raised] + [f"[rank{rank}]: {lost}" for rank in (0, 2)]
    (tmp_path / "job.log").write_text("\n".join([*lines, ""]))
    report = analyze(str(tmp_path))
    assert {*report.numbers(report.verdicts[0].culprits)} == blamed


@pytest.mark.parametrize(
    ("front", "process"),
    [
        ("(Worker_TP1 pid=3102) ERROR 02-11 10:00:09 [multiproc_executor.py:559] ", "process 3102 (Worker_TP1)"),
        ("(Actor pid=3102, ip=10.8.0.21) ", "process 3102 (Actor) on 10.8.0.21"),
        ("(VllmWorker rank=3 pid=3102) ERROR 02-11 10:00:09 [worker.py:55] ", "process 3102 (VllmWorker rank=3)"),
    ],
)
def test_the_tag_of_an_engine_names_the_process(front: str, process: str, tmp_path: Path) -> None:
    text = "".join(f"{front}{line}\n" for line in f"{TRACEBACK}ValueError: no batch".splitlines())
    assert f"{process} raised ValueError: no batch" in findings_of(tmp_path, text + BEHIND)


def test_headings_of_sglang_and_of_ray_name_the_worker(tmp_path: Path) -> None:
    heading = "[2026-03-02 11:04:57 TP3] Scheduler hit an exception: "
    found = findings_of(tmp_path, f"{heading}{TRACEBACK}ValueError: no batch\n{BEHIND}")
    assert "TP3 raised ValueError: no batch" in found
    ray = "ray.exceptions.RayTaskError(ValueError): ray::Actor.step() (pid=3102, ip=10.8.0.21, actor_id=7)\n"
    calls = TRACEBACK.partition("\n")[2]
    found = findings_of(tmp_path, f"{ray}{calls}ValueError: no batch\n{BEHIND}")
    assert "process 3102 (Actor.step) on 10.8.0.21 raised ValueError: no batch" in found


BY_ABSEIL = """\
*** SIGSEGV received at time=1772449497 on cpu 19 ***
PC: @     0x7f2a44005014  (unknown)  ncclProxyPost()
"""
BY_UCX = """\
Caught signal 11 (Segmentation fault: address not mapped to object at address 0x3)
 0 0x0000000000042520 __sigaction()  ???:0
 1 0x0000000000049b8a ncclProxyPost<ncclProxyOp>()  /build/nccl/src/proxy.cc:180
 2 0x000000000004f5bd groupLaunch()  /build/nccl/src/group.cc:129
"""
BY_JAVA = """\
#  SIGSEGV (0xb) at pc=0x00007f2a44000000, pid=41887, tid=42107
# C  [libnccl.so.2+0x4b5a]  ncclProxyPost+0x5c
"""
BY_OPEN_MPI = """\
[gpu-a012:41887] *** Process received signal ***
[gpu-a012:41887] Signal: Segmentation fault (11)
[gpu-a012:41887] [ 0] /lib/libpthread.so.0(+0x11390)[0x7f732e9c3390]
[gpu-a012:41887] [ 1] /usr/lib/libnccl.so.2(ncclProxyPost+0x5c)[0x7f2a44005014]
"""


@pytest.mark.parametrize("crash", [BY_ABSEIL, BY_UCX, BY_JAVA, BY_OPEN_MPI])
def test_a_crash_is_told_with_the_innermost_function_of_nccl(crash: str, tmp_path: Path) -> None:
    (title,) = [title for title in findings_of(tmp_path, f"step 3\n{crash}{BEHIND}") if "crashed" in title]
    assert title.endswith("crashed with SIGSEGV inside libnccl (ncclProxyPost)")


def test_a_crash_outside_of_nccl_does_not_blame_it(tmp_path: Path) -> None:
    text = "Caught signal 11 (Segmentation fault: invalid permissions)\n 0 0x0000000000042520 forward()  ???:0\n"
    (title,) = [title for title in findings_of(tmp_path, text) if "crashed" in title]
    assert title == "a process crashed with SIGSEGV in forward"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("operation not permitted when stream is capturing", "CUDA graph"),
        ("no kernel image is available for execution on the device", "architectures"),
        ("invalid argument", "named call"),
    ],
)
def test_the_advice_on_an_error_of_cuda_is_that_of_its_kind(error: str, advice: str, tmp_path: Path) -> None:
    found = findings_of(tmp_path, f"{TRACEBACK}RuntimeError: CUDA error: {error}\n{BEHIND}")
    remedy = found[f"CUDA error: {error}"].remedy
    assert advice in remedy
    assert "NCCL_P2P_DISABLE" not in remedy


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("OSError: [Errno 28] No space left on device: '/ckpt/model.pt'", "df -h"),
        ("OSError: [Errno 24] Too many open files: '/dev/shm/torch_41'", "ulimit -n"),
        ("RuntimeError: can't start new thread", "ulimit -u"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "pids.max"),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", "OOM killer"),
        ("ValueError: no batch is left", "read the traceback"),
    ],
)
def test_the_advice_on_an_exception_is_about_what_the_system_refused(error: str, advice: str, tmp_path: Path) -> None:
    found = findings_of(tmp_path, f"{TRACEBACK}{error}\n{BEHIND}")
    (finding,) = [finding for title, finding in found.items() if "raised" in title]
    assert advice in finding.remedy


@pytest.mark.parametrize("error", ["KeyError: 'caption'", OUT_OF_MEMORY])
def test_the_error_of_a_worker_comes_before_the_one_that_passes_it_on(error: str, tmp_path: Path) -> None:
    name = error.partition(":")[0].rpartition(".")[2]
    passed_on = f"{TRACEBACK}{name}: Caught {name} in DataLoader worker process 0.\nOriginal {TRACEBACK}"
    found = findings_of(tmp_path, f"{passed_on}{error}\n{BEHIND}")
    assert not any("Caught" in title for title in found)
    assert any("worker process 0" in finding.detail for finding in found.values()) or "memory" in error
    assert any(error in title or title == "out of GPU memory" for title in found)


def test_an_uncaught_error_of_cuda_in_a_thread_of_c_is_read(tmp_path: Path) -> None:
    text = "terminate called after throwing an instance of 'c10::CUDAError'\n  what():  CUDA error: {}\nframe #0: x\n"
    assert "GPU fault: uncorrectable ECC error encountered" in findings_of(
        tmp_path, text.format("uncorrectable ECC error encountered") + BEHIND
    )
    assert "CUDA error: an illegal memory access was encountered" in findings_of(
        tmp_path, text.format("an illegal memory access was encountered") + BEHIND
    )


def test_memory_that_ran_out_after_a_fault_of_the_gpu_follows_from_it(tmp_path: Path) -> None:
    warning = "gpu-a012:41887:42107 [0] enqueue.cc:44 NCCL WARN Cuda failure '{}'\n"
    texts = [warning.format(error) for error in ("uncorrectable ECC error encountered", "out of memory")]
    found = findings_of(tmp_path, "".join(texts))
    assert [finding.role.value for title, finding in found.items() if "no memory" in title] == ["consequence"]


@pytest.mark.parametrize(("steps", "severity"), [(1, Severity.ERROR), (3, Severity.INFO)])
def test_an_exception_behind_which_steps_are_made_may_have_been_caught(
    steps: int, severity: Severity, tmp_path: Path
) -> None:
    behind = "".join(f"step {number} | loss 2.1\n" for number in range(steps))
    found = findings_of(tmp_path, f"{TRACEBACK}KeyError: 'layers.7'\n{behind}")
    assert found["a process raised KeyError: 'layers.7'"].severity is severity


def test_code_in_a_traceback_states_no_failure(tmp_path: Path) -> None:
    call = '  File "/app/data.py", line 9, in read\n    raise OSError(104, "Connection reset by peer")\n'
    assert not any("Connection reset" in title for title in findings_of(tmp_path, f"{call}step 3\nstep 4\n"))


@pytest.mark.parametrize(
    ("ranks", "blamed"),
    [
        (range(2), {"rank 1 raised OSError: [Errno 28] No space left on device"}),
        (range(4, 6), {"rank 1 of its process group raised OSError: [Errno 28] No space left on device"}),
        (range(1, 2), {"rank 1 of its process group raised OSError: [Errno 28] No space left on device"}),
    ],
)
def test_a_checkpoint_names_ranks_of_its_process_group(ranks: range, blamed: set[str], tmp_path: Path) -> None:
    text = "".join(
        f"[rank{rank}]: {line}\n"
        for rank in ranks
        for line in (
            *TRACEBACK.splitlines(),
            "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([1])",
            "Traceback (most recent call last): (RANK 1)",
            *TRACEBACK.splitlines()[1:],
            "OSError: [Errno 28] No space left on device",
        )
    )
    found = findings_of(tmp_path, text)
    errors = {title for title, finding in found.items() if finding.severity is Severity.ERROR}
    assert {title for title in errors if "raised" in title} == blamed


def test_an_exception_that_wraps_another_one_tells_its_reason(tmp_path: Path) -> None:
    wrapper = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"

    found = findings_of(tmp_path, f"{TRACEBACK}{wrapper}RuntimeError: not all inputs to the pattern were found\n")

    reason = "RuntimeError: not all inputs to the pattern were found"
    assert [title for title in found if "raised" in title] == [
        f"a process raised BackendCompilerFailed: backend='inductor' raised: {reason}"
    ]


@pytest.mark.parametrize(
    ("announced", "reason"),
    [
        ("ValueError: no kernel can run this layer. Reasons:", "the GPU is older than what Marlin needs"),
        ("grpc.aio.AioRpcError: <AioRpcError of RPC that terminated with:", "status = StatusCode.DEADLINE_EXCEEDED"),
    ],
)
def test_a_message_that_announces_a_reason_is_told_with_the_next_line(
    announced: str, reason: str, tmp_path: Path
) -> None:
    found = findings_of(tmp_path, f"{TRACEBACK}{announced}\n\t{reason}\n")

    assert [title for title in found if "raised" in title] == [
        f"a process raised {announced.rpartition('grpc.aio.')[2]} {reason}"
    ]


def test_a_traceback_that_is_cut_off_behind_an_ignored_exception_is_told(tmp_path: Path) -> None:
    cut = TRACEBACK.rpartition("    raise")[0]
    ignored = f"Exception ignored in: <function Loader.__del__ at 0x7f3a>\n{cut}AttributeError: no 'comm'\n"

    found = findings_of(tmp_path, f"{ignored}{cut}")

    assert [title for title in found if "no line that was read names it" in title]


def test_memory_that_ran_out_is_that_of_the_gpu_though_no_amount_is_told(tmp_path: Path) -> None:
    found = findings_of(tmp_path, f"{TRACEBACK}RuntimeError: CUDA out of memory\n")

    assert found["out of GPU memory"].detail.startswith("reported by PyTorch's allocator")


@pytest.mark.parametrize("tag", ["", "[rank6]:", "[rank6]: ", "[default6]:"])
@pytest.mark.parametrize("heading", ["in: <function Loader.__del__ at 0x7f3a>", "while calling deallocator <Loader>:"])
def test_an_exception_that_python_ignored_ended_no_process(heading: str, tag: str, tmp_path: Path) -> None:
    error = f"{TRACEBACK}RuntimeError: cannot join thread at interpreter shutdown\n"
    tagged = [tag + line for line in f"{error}".splitlines()]

    raised = findings_of(tmp_path, "\n".join(["step 3", *tagged, ""]))
    ignored = findings_of(tmp_path, "\n".join(["step 3", f"{tag}Exception ignored {heading}", *tagged, ""]))

    assert {finding.severity for finding in raised.values()} == {Severity.ERROR}
    assert [title for title in ignored if "cannot join" in title] == []


def test_an_exception_behind_one_that_python_ignored_is_told(tmp_path: Path) -> None:
    ignored = "Exception ignored in: <function Loader.__del__ at 0x7f3a>\nAttributeError: 'NoneType' has no 'close'\n"

    found = findings_of(tmp_path, f"{ignored}{TRACEBACK}KeyError: 'layers.7'\n")

    assert list(found) == ["a process raised KeyError: 'layers.7'"]


def test_a_class_that_is_only_called_error_is_named_with_its_module(tmp_path: Path) -> None:
    text = (
        'Traceback (most recent call last):\n  File "/srv/job/train.py", line 7, in <module>\n    main()\n'
        "binascii.Error: Incorrect padding\n"
    )

    assert "a process raised binascii.Error: Incorrect padding" in findings_of(tmp_path, text)
