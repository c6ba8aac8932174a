"""Capture: what is planned, what a rank is told, that nobody is left behind, and that drills are found."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.capture import environment, inventory, link_tables, measurements, request, result
from ncclforensics.capture.fault_injection import FaultKind, InjectedFault, parse_fault
from ncclforensics.capture.inventory import Gpu
from ncclforensics.capture.journal import Journal, host, plain
from ncclforensics.capture.launch import Child, _listen, _watch, end_all, launch
from ncclforensics.capture.launcher_rank import LauncherRank, detect_launcher_rank
from ncclforensics.capture.pair_schedule import rounds_of_pairs
from ncclforensics.capture.plan import COLLECTIVES, Plan, sizes
from ncclforensics.capture.request import CaptureRequest, build_plan
from ncclforensics.capture.scripts import Scheduler, job_script
from ncclforensics.cli import main
from ncclforensics.errors import UsageError
from ncclforensics.views.json_report import as_object

GPU = Gpu(0, 0, "GPU-0", "NVIDIA H100 80GB HBM3", 81559, 0, "570.1")
FAKE_SMI = """#!/bin/sh
case "$*" in
*query-gpu*) echo "0, GPU-0, NVIDIA H100 80GB HBM3, 81559, {used}, 570.1"
             echo "1, GPU-1, NVIDIA H100 80GB HBM3, 81559, 4, 570.1" ;;
*compute-apps*) echo "GPU-0, 77" | grep "{apps}" ;;
esac
"""
REQUEST = CaptureRequest(
    folder=None,
    backend="nccl",
    nproc=None,
    gpus=None,
    ranks_per_gpu=1,
    share=False,
    steps=30,
    profile=False,
    inject=(),
    collectives=None,
    algorithms=None,
    largest="1M",
    memory="1G",
    stall=30,
    limit=60,
    subsystems="INIT,COLL",
    program=None,
)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts programs in front of all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(name: str, text: str) -> Path:
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
        return folder / name

    return put


def two_gpus(tool: Callable[[str, str], Path], *, used: int = 4, apps: str = "nothing") -> None:
    tool("nvidia-smi", FAKE_SMI.format(used=used, apps=apps))


def plan(folder: Path, **other: Any) -> Plan:
    usual = Plan(
        folder=folder,
        backend="nccl",
        nranks=2,
        gpus=[GPU, replace(GPU, ordinal=1, uuid="GPU-1")],
        ranks_per_gpu=1,
        steps=30,
        profiled=0,
        faults=(),
        collectives=COLLECTIVES,
        sizes=sizes(8, 1 << 20),
        memory_bytes=1 << 30,
        stall_s=30,
        limit_s=60,
        subsystems="INIT,COLL",
        program=None,
        launcher_rank=None,
    )
    return replace(usual, **other)


# What is planned


def test_a_fault_is_parsed_back_from_its_own_text() -> None:
    for text in ("hang:3@20", "mismatch:0@2", "slow:2:1500", "crash:1@0", "absent:1", "socket", "no-gdr", "channels:2"):
        assert parse_fault(text, 4, 30).text == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hung:3@20", "unknown fault"),
        ("hang:3", "hang:RANK@STEP"),
        ("hang:-1@2", "hang:RANK@STEP"),
        ("hang:4@20", "ranks 0 to 3"),
        ("crash:3@30", "steps 0 to 29"),
        ("socket:1", "socket"),
    ],
)
def test_a_malformed_fault_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_fault(text, 4, 30)


def test_too_few_steps_to_name_a_late_rank_are_refused() -> None:
    with pytest.raises(UsageError, match="named after 9 steps"):
        parse_fault("slow:1:300", 4, 8)


def test_the_ranks_write_logs_and_dumps_into_the_folder(tmp_path: Path) -> None:
    reported = plan(tmp_path).variables(0)

    assert (reported["NCCL_DEBUG"], reported["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,COLL")
    written = [value for name, value in reported.items() if name.endswith(("_FILE", "TMPDIR"))]
    assert len(written) == 5
    assert all(Path(value).is_relative_to(tmp_path) for value in written)
    assert reported["NCCL_SOCKET_IFNAME"] == "lo"
    assert reported["MASTER_ADDR"] == "127.0.0.1"


def test_one_rank_dumps_the_topology_for_all(tmp_path: Path) -> None:
    assert "NCCL_TOPO_DUMP_FILE" in plan(tmp_path).variables(0)
    assert "NCCL_TOPO_DUMP_FILE" not in plan(tmp_path).variables(1)


def test_ranks_that_share_a_gpu_are_hosts_of_their_own_and_a_rehearsal(tmp_path: Path) -> None:
    shared = plan(tmp_path, nranks=4, ranks_per_gpu=2)

    assert len({shared.variables(rank)["NCCL_HOSTID"] for rank in range(4)}) == 4
    assert [gpu.ordinal for rank in range(4) if (gpu := shared.gpu_of(rank))] == [0, 0, 1, 1]
    assert shared.is_rehearsal
    assert "NCCL_HOSTID" not in plan(tmp_path).variables(0)
    assert not plan(tmp_path).is_rehearsal


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("socket", {"NCCL_NET": "Socket", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}),
        ("no-gdr", {"NCCL_NET_GDR_LEVEL": "LOC"}),
        ("channels:2", {"NCCL_MAX_NCHANNELS": "2"}),
    ],
)
def test_faults_inside_nccl_are_set_by_variables(tmp_path: Path, text: str, variables: dict[str, str]) -> None:
    reported = plan(tmp_path, faults=[parse_fault(text, 2, 30)]).variables(1)

    assert variables.items() <= reported.items()


def test_an_algorithm_is_measured_alone_in_a_folder_below(tmp_path: Path) -> None:
    ring = plan(tmp_path, faults=[parse_fault("hang:1@2", 2, 30)]).with_algorithm("Ring")

    assert ring.variables(0)["NCCL_ALGO"] == "Ring"
    assert ring.folder == tmp_path / "ring"
    assert {name for name, _ in ring.sweep} == {"all_reduce"}
    assert "NCCL_ALGO" not in plan(tmp_path).variables(0)


@pytest.mark.parametrize(("steps", "profiled"), [(30, 26), (10, 10)])
def test_the_last_steps_are_recorded_on_request(steps: int, profiled: int, tool: Callable[[str, str], Path]) -> None:
    two_gpus(tool)
    asked = replace(REQUEST, steps=steps, profile=True)

    planned = build_plan(asked, {}, "x")

    assert (planned.record()["profiled"], build_plan(REQUEST, {}, "x").record()["profiled"]) == (profiled, 0)
    assert f"the profiler records the last {profiled}" in "\n".join(planned.describe())
    assert "--profile" in asked.arguments()
    with pytest.raises(UsageError, match="--profile"):
        build_plan(replace(asked, program="all_reduce_perf"), {}, "x")


@pytest.mark.parametrize(("names", "backend"), [("Ring,Star", "nccl"), ("Ring", "gloo")])
def test_algorithms_that_nccl_cannot_be_told_are_refused(names: str, backend: str) -> None:
    with pytest.raises(UsageError, match="--algorithms"):
        request.algorithms(replace(REQUEST, algorithms=names, backend=backend))


def test_a_bandwidth_is_held_against_the_least_one_only_if_it_was_measured(tmp_path: Path) -> None:
    captured = result.CaptureResult(tmp_path, [], "", measured(2))

    assert captured.busbw_problem(80) == ""
    assert captured.busbw_problem(90) == "all_reduce reached 83.47 GB/s at most, below --min-busbw 90"
    assert "was not measured" in result.CaptureResult(tmp_path, [], "", []).busbw_problem(1)


def test_gloo_uses_the_loopback_and_no_variable_of_nccl(tmp_path: Path) -> None:
    reported = plan(tmp_path, backend="gloo", gpus=[]).variables(0)

    assert reported["GLOO_SOCKET_IFNAME"] == "lo"
    assert not [name for name in reported if name.startswith("NCCL_")]


def test_gloo_between_hosts_uses_the_interface_that_leads_to_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclforensics.capture.plan.interface_to", {"gpu03": "eth1"}.get)
    several = plan(tmp_path, backend="gloo", gpus=[], launcher_rank=LauncherRank("srun", 1, 2, 0, "7", "gpu03", 30007))

    assert several.variables(1)["GLOO_SOCKET_IFNAME"] == "eth1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert "GLOO_SOCKET_IFNAME" not in several.variables(1)
    assert inventory.interface_to("127.0.0.1") != "lo"


def test_a_rank_that_is_absent_is_not_started_and_nothing_is_measured(tmp_path: Path) -> None:
    without = plan(tmp_path, nranks=3, faults=[parse_fault("absent:1", 3, 30)])

    assert without.local_ranks == [(0, 0), (2, 2)]
    assert without.sweep == []
    assert plan(tmp_path).sweep[0] == ("all_reduce", 8)


def test_ranks_come_from_the_gpus(tool: Callable[[str, str], Path]) -> None:
    two_gpus(tool)

    assert build_plan(REQUEST, {}, "x").nranks == 2
    assert build_plan(replace(REQUEST, ranks_per_gpu=2), {}, "x").nranks == 4
    assert [gpu.uuid for gpu in build_plan(replace(REQUEST, ranks_per_gpu=2, gpus="1"), {}, "x").gpus] == ["GPU-1"]
    assert [gpu.uuid for gpu in build_plan(REQUEST, {"CUDA_VISIBLE_DEVICES": "1,0"}, "x").gpus] == ["GPU-1", "GPU-0"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"nproc": 4}, "--ranks-per-gpu 2"),
        ({"gpus": "0"}, "--ranks-per-gpu 2"),
        ({"gpus": "7"}, "no GPU 7"),
        ({"gpus": "1,1"}, "named twice"),
        ({"collectives": "all_reduce,gossip"}, "gossip"),
        ({"largest": "1G"}, "--memory"),
        ({"largest": "much"}, "not a size"),
        ({"backend": "gloo", "inject": ("socket",)}, "needs NCCL"),
        ({"program": "all_reduce_perf", "inject": ("hang:0@1",)}, "--nccl-tests"),
    ],
)
def test_an_impossible_request_is_refused_in_one_sentence(
    tool: Callable[[str, str], Path], changed: dict[str, Any], says: str
) -> None:
    two_gpus(tool)

    with pytest.raises(UsageError, match=says):
        build_plan(replace(REQUEST, **changed), {}, "x")


@pytest.mark.parametrize("busy", [{"used": 30_000}, {"apps": "77"}])
def test_a_gpu_in_use_is_refused_unless_allowed(tool: Callable[[str, str], Path], busy: dict[str, Any]) -> None:
    two_gpus(tool, **busy)

    with pytest.raises(UsageError, match=r"in use by others: GPU 0 .*--share"):
        build_plan(REQUEST, {}, "x")
    assert build_plan(replace(REQUEST, share=True), {}, "x").nranks == 2


def test_under_a_launcher_only_the_gpu_of_this_process_must_be_unused(tool: Callable[[str, str], Path]) -> None:
    two_gpus(tool, used=30_000)  # GPU 0: rank 0 is on it already
    launched = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    shared_folder = replace(REQUEST, folder=Path("x"))

    assert build_plan(shared_folder, launched, "x").local_ranks == [(1, 1)]
    with pytest.raises(UsageError, match="in use by others: GPU 0"):
        build_plan(shared_folder, {**launched, "RANK": "0", "LOCAL_RANK": "0"}, "x")


def test_the_host_is_named_as_nccl_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-a012.cluster.local")

    assert host() == "gpu-a012"


SLURM = {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "16", "SLURM_JOB_ID": "7"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        # A batch script of Slurm has SLURM_PROCID, too, without being a task of srun.
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "16"}, None),
        ({**SLURM, "SLURM_STEP_NODELIST": "gpu[03-04]"}, ("srun", 9, 16, 1, "gpu03")),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, ("mpirun", 1, 2, 1, "127.0.0.1")),
        ({**OPEN_MPI, "MASTER_ADDR": "gpu03"}, ("mpirun", 1, 2, 1, "gpu03")),
        (
            {"PALS_RANKID": "5", "PMI_SIZE": "8", "PALS_LOCAL_RANKID": "1", "PMI_RANK": "5", "MASTER_ADDR": "x1"},
            ("mpiexec of PALS", 5, 8, 1, "x1"),
        ),
        (
            {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "1"},
            ("flux run", 1, 2, 1, "127.0.0.1"),
        ),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"},
            ("torchrun", 3, 4, 1, "a"),
        ),
    ],
)
def test_rank_and_world_size_are_taken_from_the_launcher(environment: dict[str, str], found: Any) -> None:
    where = detect_launcher_rank(environment)

    assert (where and (where.launcher, where.rank, where.nranks, where.local, where.address)) == found


def test_ranks_of_several_hosts_must_know_where_rank_0_is() -> None:
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        detect_launcher_rank(OPEN_MPI)


def test_ranks_started_by_a_launcher_share_the_communicator_key(tmp_path: Path) -> None:
    ranks = [plan(tmp_path, launcher_rank=LauncherRank("srun", rank, 2, rank, "7", "gpu03", 30007)) for rank in (0, 1)]

    assert ranks[0].communicator_id == ranks[1].communicator_id != plan(tmp_path / "other").communicator_id
    assert [rank_plan.local_ranks for rank_plan in ranks] == [[(0, 0)], [(1, 1)]]
    assert "NCCL_SOCKET_IFNAME" not in ranks[1].variables(1)


@pytest.mark.parametrize("scheduler", [one for one in Scheduler if one is not Scheduler.KUBERNETES])
def test_a_job_script_is_one_that_the_shell_can_read(scheduler: Scheduler) -> None:
    text = job_script(scheduler, 4, 8, 600, replace(REQUEST, inject=("hang:3@20",)).arguments())

    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "ncclforensics capture --steps 30" in text
    assert "--inject hang:3@20" in text
    assert ("-np 32" in text) == (scheduler is Scheduler.MPIRUN)
    wanted = {
        Scheduler.SLURM: ["--exclusive", "--mem=0"],
        Scheduler.MPIRUN: ["LD_LIBRARY_PATH", "NCCL_"],
        Scheduler.PALS: ["scatter:excl", "-n 32 --ppn 8"],
        Scheduler.FLUX: ["--exclusive", "--ntasks 32"],
    }
    assert all(part in text for part in wanted[scheduler])


def test_a_job_script_passes_on_every_option_or_refuses_it(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["capture", "--print", "kubernetes", "--gpus", "2,3", "--share", "--repeat", "3", "--min-busbw", "300", "-v"]

    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert all(part in printed for part in ("--gpus 2,3", "--share", "--repeat 3", "--min-busbw 300", " -v "))
    assert "IPC_LOCK" in printed
    assert main([*argv, "--nproc", "4"]) == 2
    assert "--nproc, --ranks-per-gpu and -o do not apply to a job script" in capsys.readouterr().err


@pytest.mark.parametrize("scheduler", Scheduler)
def test_a_line_break_does_not_leave_the_argument_of_a_job_script(scheduler: Scheduler) -> None:
    with pytest.raises(UsageError, match="line break"):
        job_script(scheduler, 4, 8, 600, ["--env", "NCCL_ALGO=Ring\nkind: Secret"])


# What the command says


def test_without_a_gpu_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert main(["capture", "-o", str(tmp_path / "c")]) == 2
    assert "no GPU found (nvidia-smi not found); use --backend gloo" in capsys.readouterr().err


@pytest.mark.parametrize("found", [None, "2.1.2"])
def test_without_pytorch_the_command_that_installs_it_is_named(
    found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(_: str) -> str:
        if found is None:
            raise PackageNotFoundError
        return found

    monkeypatch.setattr("ncclforensics.capture.plan.version", version)

    assert main(["capture", "--backend", "gloo", "-o", str(tmp_path / "c")]) == 2
    assert "pip install 'ncclforensics[capture]'" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_dry_run_says_what_would_run_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["capture", "--backend", "gloo", "--inject", "hang:3@20", "--dry-run", "-o", str(tmp_path / "c")]

    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "4 ranks on CPUs, without NCCL" in said
    assert "hang:3@20" in said
    assert "Ends after 600 s at the latest" in said
    assert not (tmp_path / "c").exists()


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()

    with pytest.raises(UsageError, match="a new or empty folder"):
        result.prepare(plan(tmp_path))


def test_a_full_disk_is_reported_and_the_capture_is_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(result, "launch", full)

    with pytest.raises(UsageError, match="the disk is full; the capture is not complete"):
        result.capture(plan(tmp_path), lambda done, total, current: None)
    assert json.loads((tmp_path / "capture.json").read_bytes())["complete"] is False


def test_each_host_writes_its_counters_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = tmp_path / "sys" / "class" / "infiniband" / "mlx5_0" / "ports" / "1" / "counters"
    port.mkdir(parents=True)
    for moment, name, value in (
        ("before", "gpu-a011", 5), ("before", "gpu-a012", 5), ("after", "gpu-a011", 5), ("after", "gpu-a012", 905)
    ):  # fmt: skip
        (port / "symbol_error").write_text(f"{value}\n", encoding="ascii")
        monkeypatch.setattr(environment, "INFINIBAND", tmp_path / "sys" / "class" / "infiniband")
        monkeypatch.setattr("socket.gethostname", lambda name=name: name)
        environment.collect(tmp_path / "c" / moment, only_counters=True)

    (found,) = as_object(analyze([str(tmp_path / "c")], everything=True))["findings"]

    assert (found["rule"], found["hosts"]) == ("ctr-link-quality", ["gpu-a012"])
    others = LauncherRank("srun", 8, 16, 0, "7", "gpu03", 30007)
    assert plan(tmp_path, launcher_rank=others).is_first_of_host
    assert not plan(tmp_path, launcher_rank=replace(others, local=1)).is_first_of_host


def test_a_host_without_ipv4_meets_over_ipv6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listen = socket.create_server

    def without(*families: int) -> Callable[..., socket.socket]:
        def create_server(address: tuple[str, int], family: int) -> socket.socket:
            if family in families:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            return listen(address, family=family)

        return create_server

    monkeypatch.setattr("socket.create_server", without(socket.AF_INET, socket.AF_INET6))
    with pytest.raises(UsageError, match=r"neither 127\.0\.0\.1 nor ::1 can be used here"):
        launch(plan(tmp_path), tmp_path / "capture.json", lambda done, total, current: None)
    if socket.has_ipv6:
        monkeypatch.setattr("socket.create_server", without(socket.AF_INET))
        with _listen() as listening:
            assert listening.getsockname()[0] == "::1"


def test_nccl_tests_without_mpi_are_refused_in_a_job(tmp_path: Path, tool: Callable[[str, str], Path]) -> None:
    two_gpus(tool)
    launched = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    program = tmp_path / "all_reduce_perf"
    asked = replace(REQUEST, folder=tmp_path / "c", program=str(program))

    program.write_bytes(b"\x7fELF no such symbol")
    with pytest.raises(UsageError, match="built without MPI"):
        build_plan(asked, launched, "x")
    program.write_bytes(b"\x7fELF MPI_Init")
    assert build_plan(asked, launched, "x").local_ranks == [(1, 1)]


def test_stacks_are_taken_while_the_ranks_still_wait(tmp_path: Path, tool: Callable[[str, str], Path]) -> None:
    tool("py-spy", '#!/bin/sh\necho "Process $3: python"\n')
    waiting = plan(tmp_path, steps=5, stall_s=0.2, limit_s=0.6)
    (tmp_path / "measured.rank0.jsonl").write_text('{"torch": "2.13"}\n{"step": 0}\n', encoding="ascii")
    asleep = subprocess.Popen([tool("sleeper", SLEEPER)], start_new_session=True)

    _watch(waiting, [Child(0, asleep)], lambda *progress: None)
    end_all([Child(0, asleep)])

    stack = (tmp_path / "pyspy.rank0.txt").read_text(encoding="utf-8")
    assert stack == f"=== rank 0 on {host()} pid {asleep.pid} ===\nProcess {asleep.pid}: python\n"


@pytest.mark.parametrize("call", ['{"call":0}', ""])
def test_ranks_that_make_no_progress_are_ended_but_not_before_their_first_call(
    call: str, tmp_path: Path, tool: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclforensics.capture.launch.GRACE_PERIOD", 0.1)
    waiting = plan(tmp_path, stall_s=0.1, limit_s=1.0)
    (tmp_path / "measured.rank0.jsonl").write_text('{"torch": "2.13"}\n', encoding="ascii")
    (tmp_path / "journal.rank0.jsonl").write_text(call, encoding="ascii")
    asleep = subprocess.Popen([tool("sleeper", SLEEPER)], start_new_session=True)

    why = _watch(waiting, [child := Child(0, asleep)], lambda *progress: None)
    end_all([child])

    assert ("no rank made progress for" if call else "the time limit of 1 s was reached") in why
    assert child.ended == "stalled"


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("2.7.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}),
        ("2.11.0+cu130", {"TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"}),
    ],
)
def test_the_recorder_is_set_up_by_the_names_that_pytorch_does_not_warn_of(
    release: str, names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclforensics.capture.plan.version", lambda _: release)

    variables = plan(tmp_path).variables(0)

    assert {name for name in variables if "BUFFER_SIZE" in name or "TEMP_FILE" in name} == names


def test_progress_shows_what_runs_now(tmp_path: Path, tool: Callable[[str, str], Path]) -> None:
    running = plan(tmp_path, steps=2, collectives=["all_reduce"], sizes=[8, 1 << 20], limit_s=0.3)
    shown: list[tuple[int, int, str]] = []
    lines = [{"torch": "2.13"}, {"step": 0}, {"step": 1}, {"collective": "all_reduce", "size": 8}]
    (tmp_path / "measured.rank0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="ascii")
    asleep = subprocess.Popen([tool("sleeper", SLEEPER)], start_new_session=True)

    _watch(running, [Child(0, asleep)], lambda *progress: shown.append(progress))
    end_all([child := Child(0, asleep)])

    assert child.ended == "taken-down"
    assert shown[0] == (4, 11, "all_reduce of 1 MiB")
    assert running.stages[6:] == ["pairs of ranks"] + ["few and many messages"] * 3 + ["end"]


def test_the_plan_names_the_network_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    for name, value in (("state", "4: ACTIVE"), ("rate", "400 Gb/sec (4X NDR)"), ("link_layer", "InfiniBand")):
        (port / name).write_text(value, encoding="ascii")
    devices = inventory.networks(tmp_path)
    monkeypatch.setattr("ncclforensics.capture.plan.networks", lambda: devices)

    expected = "Network devices: mlx5_0 port 1: 4: ACTIVE, 400 Gb/sec (4X NDR), InfiniBand"
    assert expected in list(plan(tmp_path).describe())


def test_missing_external_programs_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    for name in ("PLUGIN_TOKEN", "NET_CREDS", "PROXY_AUTHORIZATION", "PLUGIN_PASS", "LICENSE_KEY", "TLS_SECRETS"):
        monkeypatch.setenv(f"NCCL_{name}", "hush")
    monkeypatch.setenv("NCCL_IB_PKEY", "3")
    monkeypatch.setenv("UNRELATED", "hush")

    absent = environment.collect(tmp_path / "before")

    assert absent["nvidia-smi-topo"] == "nvidia-smi not found"
    variables = (tmp_path / "before" / "variables.txt").read_text(encoding="utf-8")
    assert "NCCL_ALGO=Ring\nNCCL_IB_PKEY=3\n" in variables
    assert "hush" not in variables


# Nobody is left behind

SLEEPER = "#!/bin/sh\nexec sleep 60\n"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_time_limit_ends_all_processes(tmp_path: Path, tool: Callable[[str, str], Path]) -> None:
    asleep = plan(tmp_path, program=str(tool("all_reduce_perf", SLEEPER)), limit_s=0.5)
    began = time.monotonic()

    (child,), why = launch(asleep, tmp_path / "capture.json", lambda done, total, current: None)

    assert time.monotonic() - began < 10
    assert "time limit" in why
    assert child.ended == "taken-down"
    assert not alive(child.process.pid)
    (reported,) = (tmp_path / "launcher.jsonl").read_text(encoding="ascii").splitlines()
    assert '"ended":"taken-down"' in reported


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_a_capture_that_is_ended(
    how: signal.Signals, tmp_path: Path, tool: Callable[[str, str], Path]
) -> None:
    two_gpus(tool)
    sleeper = tool("all_reduce_perf", SLEEPER.replace("exec", f"echo $$ > {tmp_path}/pid; exec"))
    argv = ["capture", "--nccl-tests", str(sleeper), "-o", str(tmp_path / "c"), "-q"]
    code = (
        f"import signal; signal.signal(2, signal.default_int_handler); from ncclforensics.cli import main; main({argv})"
    )
    capture = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[1], stderr=subprocess.DEVNULL)
    waited = time.monotonic() + 20
    while not (tmp_path / "pid").exists() and time.monotonic() < waited:
        time.sleep(0.05)
    time.sleep(0.1)
    pid = int((tmp_path / "pid").read_text(encoding="ascii"))
    assert alive(pid)

    capture.send_signal(how)
    capture.wait(timeout=20)

    waited = time.monotonic() + 5
    while alive(pid) and time.monotonic() < waited:
        time.sleep(0.05)
    assert not alive(pid)


def test_a_program_of_nccl_tests_is_run_instrumented_and_its_table_is_read(
    tmp_path: Path, tool: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    two_gpus(tool)
    table = "\n".join(measurements.table(plan(tmp_path), "all_reduce", measured(2), DEVICES, complete=True))
    program = tool("all_reduce_perf", f"#!/bin/sh\necho $NCCL_DEBUG $*\ncat <<E\n{table}\nE\n")

    code = main(["capture", "--nccl-tests", str(program), "-o", str(tmp_path / "c"), "--format", "json", "-q"])

    assert code == 0
    (benchmark,) = json.loads(capsys.readouterr().out)["benchmarks"]
    assert (benchmark["collective"], benchmark["nranks"], benchmark["complete"]) == ("all_reduce", 2, True)
    first = (tmp_path / "c" / "nccl-tests.txt").read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("INFO -b 8 -e ")
    assert first.endswith("-g 2 -n 10 -w 3")
    record = json.loads((tmp_path / "c" / "capture.json").read_bytes())
    assert record["complete"]
    assert [rank["ended"] for rank in record["ranks"]] == ["finished"]


# What was measured

DEVICES = [
    {"rank": rank, "pid": 70 + rank, "host": "gpu-a012", "device": rank, "bus": "0000:5d:00", "name": "CPU"}
    for rank in range(2)
]


def measured(nranks: int) -> list[dict[str, Any]]:
    notes = {
        rank: [
            {
                "collective": "all_reduce", "size": 8 << 20, "count": 2 << 20, "wrong": 0, "mean_us": 100.0 + rank,
                "median_us": 99.0, "min_us": 90.0, "max_us": 120.0,
            }
        ]
        for rank in range(2)
    }  # fmt: skip
    return measurements.measurements(notes, nranks)


def test_bandwidth_is_computed_as_in_nccl_tests() -> None:
    (row,) = measured(2)

    assert row["mean_us"] == 100.5
    assert row["algbw_GBps"] == pytest.approx((8 << 20) / 100.5e3, abs=1e-3)
    assert row["busbw_GBps"] == row["algbw_GBps"]  # 2 (n - 1) / n is 1 for two
    assert row["ranks"]["1"] == {"median_us": 99.0, "min_us": 90.0, "max_us": 120.0, "wrong": 0}


def test_a_size_that_a_rank_did_not_reach_is_left_out() -> None:
    assert measured(3) == []


@pytest.mark.parametrize("complete", [True, False])
def test_a_written_table_is_read_back_and_a_truncated_one_is_incomplete(tmp_path: Path, complete: bool) -> None:
    lines = measurements.table(plan(tmp_path), "all_reduce", measured(2), DEVICES, complete=complete)
    (tmp_path / "all_reduce.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    (benchmark,) = as_object(analyze([str(tmp_path)], everything=True))["benchmarks"]

    assert (benchmark["collective"], benchmark["nranks"], benchmark["rows"]) == ("all_reduce", 2, 1)
    assert benchmark["max_busbw_GBps"] == pytest.approx(83.47)
    assert benchmark["complete"] is complete


def test_every_pair_is_tested_once_and_no_rank_twice_at_a_time() -> None:
    for hosts in (["a"] * 2, ["a"] * 7, ["a", "b"] * 4, ["a"] * 3 + ["b"] * 2 + ["c"], ["a", "b", "c"]):
        rounds = rounds_of_pairs(hosts)

        assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(len(hosts)), 2))
        assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds)


def test_the_rank_whose_pairs_are_slow_is_named_with_its_host(tmp_path: Path) -> None:
    hosts = ["gpu-a012"] * 8
    pairs = [
        {"ranks": [a, b], "latency_us": 9.0, "size": 1 << 28, "busbw_GBps": 105.0 if 5 in (a, b) else 350.0}
        for a, b in combinations(range(8), 2)
    ]
    lines = link_tables.pair_table(pairs, hosts, rehearsal=False)
    (tmp_path / "point-to-point.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    (found,) = [
        row for row in as_object(analyze([str(tmp_path)], everything=True))["findings"] if row["severity"] != "info"
    ]

    assert (found["ranks"], found["hosts"]) == ([5], ["gpu-a012"])
    assert "slowest 0-5 with 105.00 GB/s" in "".join(link_tables.pair_summary(pairs, hosts))


# Journals, as ranks write them

WORLD = {"comm": "0x1", "commid": "0x8f3bd2a4c1e07755", "nranks": 4, "device": None, "backend": "gloo"}


def write_journals(folder: Path, fault: InjectedFault | None, steps: int = 10, nranks: int = 4) -> None:
    world = {**WORLD, "nranks": nranks}
    for rank in range(nranks):
        if fault and fault.kind is FaultKind.ABSENT and fault.rank == rank:
            continue
        folder.mkdir(exist_ok=True)
        journal = Journal(folder / f"journal.rank{rank}.jsonl", host="gpu-a012", pid=70 + rank, rank=rank)
        journal.write(init="START", **world)
        if fault and fault.kind is FaultKind.ABSENT:
            journal.write(failed="Init", says="DistStoreError: Timed out after 30 seconds waiting for clients")
            continue
        journal.write(init="COMPLETE", **world)
        for step in range(steps):
            strikes = fault is not None and fault.rank == rank and fault.step == step
            if strikes and fault.kind in (FaultKind.HANG, FaultKind.CRASH):
                break
            name = "Broadcast" if strikes else "AllReduce"
            late = (fault.amount or 0) / 1000 if fault and fault.rank == rank else 0.0
            journal.write(time=f"2026-03-02 11:0{step // 6}:{step % 6 * 10 + late:09.6f}", **call(step, name))
            if fault and fault.step == step:
                journal.write(failed="AllReduce", says="RuntimeError: Timed out waiting 30000ms for recv operation")
                break
            journal.write(done=step, comm="0x1")
        else:
            journal.write(init="DESTROY", **world)


def call(ordinal: int, name: str) -> dict[str, Any]:
    return {"call": ordinal, "comm": "0x1", "name": name, "count": 1024, "datatype": 7, "op": 0, "root": 0}


def write_end(folder: Path, rank: int, how: str, code: int) -> None:
    Journal(folder / "launcher.jsonl").write(node="gpu-a012", process=70 + rank, rank=rank, ended=how, code=code)


def test_of_two_ranks_the_one_that_made_no_call_is_behind(tmp_path: Path) -> None:
    write_journals(tmp_path, parse_fault("hang:1@0", 2, 10), nranks=2)
    write_end(tmp_path, 0, "gave-up", 3)
    write_end(tmp_path, 1, "taken-down", -15)

    hang = as_object(analyze([str(tmp_path)]))["hang"]

    assert (hang["verdict"], hang["culprits"]) == ("lagging-ranks", [1])


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("hang:3@6", "lagging-ranks"),
        ("hang:3@0", "lagging-ranks"),
        ("mismatch:1@6", "collective-mismatch"),
        ("absent:2", "rank-missing"),
        ("crash:0@6", "rank-died"),
    ],
)
def test_journals_alone_show_the_injected_fault(tmp_path: Path, text: str, verdict: str) -> None:
    fault = parse_fault(text, 4, 10)
    write_journals(tmp_path, fault)
    for rank in range(4):
        if rank != fault.rank:
            write_end(tmp_path, rank, "gave-up", 3)
        elif fault.kind is not FaultKind.ABSENT:
            write_end(tmp_path, rank, *(("signal", -9) if fault.kind is FaultKind.CRASH else ("taken-down", -15)))

    reported = as_object(analyze([str(tmp_path)]))

    assert (reported["hang"]["verdict"], reported["hang"]["culprits"]) == (verdict, [fault.rank])
    assert {given["kind"] for given in reported["inputs"]} == {"capture-journal"}
    assert [row["category"] for row in reported["findings"] if row["severity"] == "info"] == ["incomplete-evidence"]


def test_an_interrupted_capture_is_no_hang(tmp_path: Path) -> None:
    write_journals(tmp_path, None)
    for rank in range(4):
        path = tmp_path / f"journal.rank{rank}.jsonl"
        lines = path.read_text(encoding="ascii").splitlines(keepends=True)
        path.write_text("".join(lines[: 7 if rank == 2 else 9]), encoding="ascii")
        write_end(tmp_path, rank, "taken-down", -15)

    hang = as_object(analyze([str(tmp_path)]))["hang"]

    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == ("lagging-ranks", [2], "possible")


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"complete": False}, "did not come to its end"),
        ({"complete": True, "ended_early": "the time limit of 8 s was reached"}, "ended early: the time limit of 8 s"),
        ({"complete": True, "ended_early": ""}, None),
    ],
)
def test_the_record_of_a_capture_shows_whether_it_is_complete(
    tmp_path: Path, record: dict[str, Any], problem: str | None
) -> None:
    write_journals(tmp_path, None)
    facts = {"tool": "ncclforensics capture", "host": "gpu-a012", "began": "x", "described": ["  NCCL_DEBUG=INFO"]}
    result.write_record(tmp_path / "capture.json", {**facts, **record})

    (given,) = [each for each in as_object(analyze([str(tmp_path)]))["inputs"] if "capture.json" in each["path"]]

    assert [problem in reported for reported in given["problems"]] == [True] * (problem is not None)
    assert given["lines"] == 0


def test_a_rank_that_comes_late_to_every_step_is_found_in_journals(tmp_path: Path) -> None:
    write_journals(tmp_path, parse_fault("slow:1:1500", 4, 10))

    found = as_object(analyze([str(tmp_path)], everything=True))["findings"]

    assert [row["ranks"] for row in found if row["category"] == "straggler"] == [[1]]


def test_the_journal_of_a_healthy_run_has_no_finding(tmp_path: Path) -> None:
    write_journals(tmp_path, None)

    reported = as_object(analyze([str(tmp_path)], everything=True))

    assert reported["run"]["world_size"] == 4
    assert [row["category"] for row in reported["findings"]] == ["incomplete-evidence"]


def test_a_failed_run_with_equal_calls_is_not_healthy(tmp_path: Path) -> None:
    for rank in range(4):
        journal = Journal(tmp_path / f"journal.rank{rank}.jsonl", host="gpu-a012", pid=70 + rank, rank=rank)
        journal.write(init="START", **WORLD)
        journal.write(init="COMPLETE", **WORLD)
        journal.write(**call(0, "AllReduce"))
        journal.write(failed="AllReduce", says="RuntimeError: Timed out waiting 30000ms for recv operation")
        write_end(tmp_path, rank, "gave-up", 3)

    assert as_object(analyze([str(tmp_path)]))["hang"]["verdict"] == "stuck-together"


BIRTH = (
    "ncclCommInitRankConfig comm 0x55d1 rank {rank} nranks 4 cudaDev {rank} nvmlDev {rank} busId 5d000 "
    "commId 0xfeed - Init {phase}"
)
CALL = (
    "AllReduce: opCount {step:x} sendbuff 0x7f recvbuff 0x7f count 1024 datatype 7 op 0 root 0 comm 0x55d1 "
    "[nranks=4] stream 0x56"
)


def nccl_log(rank: int, steps: int) -> Iterator[str]:
    head = f"gpu-a012:{70 + rank}:{70 + rank} [{rank}] NCCL INFO "
    yield from (head + BIRTH.format(rank=rank, phase=phase) for phase in ("START", "COMPLETE"))
    yield from (head + CALL.format(step=step) for step in range(steps))


@pytest.mark.parametrize("step", [0, 6])
def test_calls_in_both_journal_and_log_are_counted_once(tmp_path: Path, step: int) -> None:
    """With a fault before the first call, too: then one rank has no line of NCCL's on any call."""
    write_journals(tmp_path, parse_fault(f"hang:3@{step}", 4, 10))
    for rank in range(4):
        lines = nccl_log(rank, step if rank == 3 else step + 1)
        (tmp_path / f"nccl.{rank}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")

    reported = as_object(analyze([str(tmp_path)]))

    (world,) = reported["run"]["communicators"]
    assert (world["id"], world["operations"]) == ("0xfeed", {"min": step, "max": step + 1})
    assert (reported["hang"]["verdict"], reported["hang"]["culprits"]) == ("lagging-ranks", [3])
    assert not [row for row in reported["findings"] if row["rule"] == "read-journal-alone"]


WATCHDOG = (
    "[rank{rank}]:[E302 11:04:57.313306000 ProcessGroupNCCL.cpp:633] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=7, OpType={name}, NumelIn=1024, NumelOut=1024, Timeout(ms)=30000) ran for "
    "30013 milliseconds before timing out.\n"
    "[rank{rank}]:[E302 11:04:57.313506000 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  "
    "failure detected by watchdog at work sequence id: 7 PG status: last enqueued work: 7, last completed work: 6\n"
)
DUMP_SIGNAL = (
    "[rank{rank}]:[E302 11:04:58.313306000 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. "
    "Last enqueued NCCL work: 6, last completed NCCL work: 6.This is most likely caused by incorrect usages of "
    "collectives, e.g., wrong sizes used across ranks.\n"
)


def write_aborted(folder: Path, fault: InjectedFault) -> None:
    """A drill over NCCL: a call that does not come back raises nothing; its process is aborted, its journal stops."""
    write_journals(folder, fault)
    for rank in range(4):
        path = folder / f"journal.rank{rank}.jsonl"
        lines = path.read_text(encoding="ascii").replace('"gloo"', '"nccl"').splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"failed"' not in line), encoding="ascii")
        strikes = rank == fault.rank
        called = [*nccl_log(rank, 6 if strikes and fault.kind is not FaultKind.MISMATCH else 7)]
        if strikes and fault.kind is FaultKind.MISMATCH:
            called[-1] = called[-1].replace("AllReduce", "Broadcast")
        (folder / f"nccl.{rank}.log").write_text("\n".join(called) + "\n", encoding="utf-8")
        if not strikes or fault.kind is FaultKind.MISMATCH:
            reported = WATCHDOG.format(rank=rank, name="BROADCAST" if strikes else "ALLREDUCE")
            (folder / f"output.rank{rank}.txt").write_text(reported, encoding="utf-8")
            write_end(folder, rank, "signal", -6)
        else:
            write_end(folder, rank, *(("signal", -9) if fault.kind is FaultKind.CRASH else ("taken-down", -15)))


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("hang:3@6", "lagging-ranks"), ("mismatch:1@6", "collective-mismatch"), ("crash:0@6", "rank-died")],
)
def test_ranks_aborted_by_the_watchdog_are_victims(tmp_path: Path, text: str, verdict: str) -> None:
    fault = parse_fault(text, 4, 10)
    write_aborted(tmp_path, fault)

    hang = as_object(analyze([str(tmp_path)]))["hang"]

    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == (verdict, [fault.rank], "certain")


def test_pytorch_and_nccl_in_agreement_give_certainty_and_the_call(tmp_path: Path) -> None:
    write_aborted(tmp_path, parse_fault("hang:3@6", 4, 10))
    (tmp_path / "output.rank3.txt").write_text(DUMP_SIGNAL.format(rank=3), encoding="utf-8")

    hang = as_object(analyze([str(tmp_path)]))["hang"]

    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == ("lagging-ranks", [3], "certain")
    assert hang["operation"]["ordinal"] == 6


def test_stragglers_are_found_in_journals_where_the_log_has_no_times(tmp_path: Path) -> None:
    """They have them from 2.26 on."""
    write_journals(tmp_path, parse_fault("slow:1:1500", 4, 10))
    for rank in range(4):
        (tmp_path / f"nccl.{rank}.log").write_text("\n".join(nccl_log(rank, 10)) + "\n", encoding="utf-8")

    found = as_object(analyze([str(tmp_path)], everything=True))["findings"]

    assert [row["ranks"] for row in found if row["category"] == "straggler"] == [[1]]


def test_an_error_of_several_lines_is_one_line_of_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.rank0.jsonl", host="gpu-a012", pid=70, rank=0)

    journal.write(failed="AllReduce", says=plain(RuntimeError('a "quoted"\n\x1b[31m path C:\\x \u2028' + "x" * 1000)))

    (given,) = as_object(analyze([str(tmp_path)]))["inputs"]
    assert (given["lines"], given["recognised"]) == (1, 1)


def test_a_truncated_journal_is_read_up_to_the_cut(tmp_path: Path) -> None:
    write_journals(tmp_path, parse_fault("hang:3@6", 4, 10))
    path = tmp_path / "journal.rank0.jsonl"
    path.write_bytes(path.read_bytes()[:-40] + b'\x00\xff\n{"journal":1,"time":\n')

    reported = as_object(analyze([str(tmp_path)]))

    assert reported["hang"]["culprits"] == [3]


def test_numbers_beyond_their_column_are_ignored(tmp_path: Path) -> None:
    write_journals(tmp_path, parse_fault("crash:0@6", 4, 10))
    write_end(tmp_path, 0, "signal", -9)
    write_end(tmp_path, 10**12, "exit", 10**30)
    Journal(tmp_path / "journal.rank9.jsonl", host="gpu-a012", pid=10**12, rank=10**12).write(
        init="START", **{**WORLD, "nranks": 10**12}
    )

    reported = as_object(analyze([str(tmp_path)], everything=True))

    assert (reported["hang"]["verdict"], reported["hang"]["culprits"]) == ("rank-died", [0])


# With PyTorch


@pytest.mark.parametrize(("text", "code"), [("hang:2@3", 1), ("crash:1@2", 1)])
def test_the_fault_of_a_live_capture_is_found(
    text: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch", reason="the extra `capture` is not installed")
    argv = ["capture", "--backend", "gloo", "--nproc", "3", "--steps", "5", "--stall", "4", "--limit", "60"]

    assert main([*argv, "--inject", text, "-o", str(tmp_path / "c")]) == code
    assert f"Injected fault {text}" in (said := capsys.readouterr().err)
    assert "the analysis reports it" in said
    if hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        dumped = {path.name for path in (tmp_path / "c").glob("flight.rank*")}
        assert dumped == {f"flight.rank{rank}" for rank in range(3) if not text.startswith(f"crash:{rank}")}


def test_a_live_capture_measures_and_checks_every_collective(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra `capture` is not installed")
    argv = ["capture", "--backend", "gloo", "--nproc", "3", "--steps", "2", "--max-bytes", "2K", "--limit", "60", "-q"]

    assert main([*argv, "-o", str(tmp_path / "c")]) == 0
    record = json.loads((tmp_path / "c" / "capture.json").read_bytes())
    assert {row["collective"] for row in record["measured"]} == set(COLLECTIVES)
    assert sum(row["wrong"] for row in record["measured"]) == 0
    assert set(record["late_ms"]) == {"0", "1", "2"}
    assert [row["ranks"] for row in record["pairs"]] == [[0, 1], [0, 2], [1, 2]]
    assert [row["calls"] for row in record["message_sizes"]] == [1, 16, 64]
    kinds = {Path(row["path"]).name: row["kind"] for row in as_object(analyze([str(tmp_path / "c")]))["inputs"]}
    assert kinds["point-to-point.txt"] == "gpu-bandwidth"


def test_two_faults_of_one_kind_are_both_reported(tmp_path: Path) -> None:
    from ncclforensics.cli.capture import _fault_result

    for rank in range(4):
        fault = parse_fault(f"hang:{rank}@6", 4, 10) if rank > 1 else parse_fault("hang:3@6", 4, 10)
        write_journals(tmp_path / str(rank), fault)
    (tmp_path / "c").mkdir()
    for rank in range(4):
        name = f"journal.rank{rank}.jsonl"
        (tmp_path / str(rank) / name).rename(tmp_path / "c" / name)
    report = analyze([str(tmp_path / "c")])

    for text in ("hang:2@6", "hang:3@6"):
        assert _fault_result(parse_fault(text, 4, 10), report).endswith("the analysis reports it.")


def test_a_rank_that_is_300_ms_late_at_every_step_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the extra `capture` is not installed")
    argv = ["capture", "--backend", "gloo", "--nproc", "2", "--steps", "10", "--limit", "60"]

    assert main([*argv, "--inject", "slow:1:300", "-o", str(tmp_path / "c")]) == 1
    assert "expected straggler of rank 1; the analysis reports it" in capsys.readouterr().err


def test_a_rank_gives_its_gpu_to_the_process_group_after_all_ranks_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="the extra `capture` is not installed")
    from ncclforensics.capture import worker

    swapped = plan(tmp_path, gpus=[replace(GPU, ordinal=1), GPU])
    result.write_record(tmp_path / "capture.json", {"plan": swapped.record()})
    given: dict[str, Any] = {}
    monkeypatch.setattr(worker.dist, "init_process_group", lambda *_, **options: given.update(options))
    monkeypatch.setattr(worker.dist, "TCPStore", lambda *_, **__: worker.dist.HashStore())
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    rank = worker.Rank(tmp_path / "capture.json", 0, 0)
    rank._results.close()
    rank.timeout = worker.timedelta(seconds=0.1)

    with pytest.raises(RuntimeError, match=r"Timed out after 0 seconds .* 1/2 clients joined. Absent ranks: 1"):
        rank._join()
    assert not given
    rank.nranks = 1
    rank._join()
    assert given["device_id"] == torch.device("cuda", 1)


def test_the_checked_pattern_is_exact_beyond_the_whole_numbers_of_float32() -> None:
    torch = pytest.importorskip("torch", reason="the extra `capture` is not installed")
    from ncclforensics.capture.collectives import Communicator

    comm = Communicator(None, 0, 1, torch.device("cpu"))  # type: ignore[arg-type]
    offset = (1 << 24) + 3

    assert comm.pattern(9, 1, offset).tolist() == [float((offset + place) % 7 + 1) for place in range(9)]
    assert comm.pattern(offset + 9, 1)[offset:].tolist() == comm.pattern(9, 1, offset).tolist()
