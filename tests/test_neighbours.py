"""What libraries beside NCCL and launchers say: DeepEP, NVSHMEM, UCX, Mooncake, NIXL, Ascend, PMIx, in texts alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from tests.incidents import INCIDENTS

BARRIER = "DeepEP timeout check failed: rank = {rank}, thread = {peer}, value = {value})"
UCX = "[1772448297.628067] [gpu-a012:41887:0]      ib_mlx5_dv.c:452  UCX  {level}   creating a queue failed on mlx5_1"
HCCL = (
    "[rank{rank}]:[E324 13:00:25.428029551 compiler_depend.ts:574] [Rank {rank}] Watchdog caught collective operation"
    " timeout: WorkHCCL(SeqNum=196, OpType=ALLREDUCE, Timeout(ms)=3600000) ran for 3600185 milliseconds before timing"
    " out."
)
GIVEN_UP = "[rank1]:[E324 13:00:25.428092542 compiler_depend.ts:628] Some HCCL operations have failed or timed out. So."
OF_NPU = "torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: HcclAllreduce, error code is 6"
EI0006 = "EI0006: [PID: 41887] 2025-04-08-18:07:20.444.436 Getting socket times out."
NVSHMEM = """/src/nvshmem/ibgda/ibgda.cpp:2234: NULL value Unable to create ah.
/src/nvshmem/host/transport.cpp:420: non-zero status: 7 connect EPS failed"""
LATE_STORE = (
    "[rank1]:[W623 15:37:01.824135523 socket.cpp:485] [c10d] waitForInput: socket SocketImpl(fd=100, addr=[a]:4, remote"
    "=[b]:20) timed out after 1800000ms"
)
EXCEEDED = "transport retry counter exceeded"
SLICE = (
    "E0325 09:33:41.551047  8274 worker_pool.cpp:294] Worker: Process failed for slice (opcode: 1, length: 65536,"
    " local_nic: mlx5_9, peer_nic: 10.0.4.13:15867@mlx5_9, dest_rkey: 24, retry_cnt: 0): " + EXCEEDED
)
COMPONENT = """A requested component was not found, or was unable to be opened.  This
means that this component is either not installed or is unable to be

Host:      gpu-a012
Framework: psec
Component: munge"""
UNHANDLED = (
    "(WorkerDict pid=41887) [2026-03-02 11:04:57,123 E 41887 41887] logging.cc:113: Unhandled exception: N5boostE."
    " what(): thread: Resource temporarily unavailable [system:11] [repeated 2x across cluster]"
)
MPIEXEC = """^C[mpiexec@gpu-a012] Sending Ctrl-C to processes as requested
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 41887 RUNNING AT gpu-a013
=   EXIT CODE: 2"""
ANALYZER = """Collective 39 at entry 38 errors
group info: 0:default_pg
collective: nccl:all_reduce
error msg: Culprit rank 22; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[1025]]' does not match \
found input sizes: '[[262144]]', Culprit rank 110; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected"""


def reported(text: str, folder: Path) -> Report:
    (folder / "paste.txt").write_text(text + "\n", encoding="utf-8")
    return analyze([folder])


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("DeepEP dispatch NVL receiver timeout, channel: 3, RDMA: 1, nvl: 6, src RDMA: 0, src nvl: 7, start: 0, end: 0",
         "DeepEP timed out (dispatch): GPU 6 of host 1 waited for GPU 7 of host 0"),
        ("DeepEP combine RDMA receiver timeout, channel: 3, RDMA: 1, nvl: 6, src RDMA: 0, tail: 44, waiting: 12",
         "DeepEP timed out (combine): GPU 6 of host 1 waited for host 0 of the group"),
        ("\n".join(BARRIER.format(rank=rank, peer=peer, value=(peer - 4) << 10) for rank in (6, 2) for peer in (4, 5)),
         "DeepEP timed out (barrier): ranks 2, 6 waited for rank 5, which did not come"),
        ("Warning: DeepEP timeout for combine receive, rank 6, local_expert_idx 3, src_rank 2",
         "DeepEP timed out (combine): rank 6 waited for rank 2"),
        (NVSHMEM,
         "NVSHMEM failed: Unable to create ah"),
        ("WARN: device erdma_0 is not enumerated as an mlx5 device. Skipping...",
         "NVSHMEM leaves out a network device: erdma_0"),
        ("/nvshmem/ncclsocket_socket.cpp:a:39: a: Call to recv from 10.0.0.12<38229> failed : Broken pipe",
         "NVSHMEM failed: a: Broken pipe; the connection to 10.0.0.12 failed: Broken pipe"),
        (LATE_STORE,
         "rank 1 waited in vain for an answer of the store at b:20 for 1,800 s"),
        ("NVRM: rm_init_adapter failed for device bearing minor number 3",
         "the NVIDIA driver could not initialise GPU /dev/nvidia3"),
        ("[ERROR] [launch.py:321:sigkill_handler] [...] exits with return code = -9",
         "a process was killed by SIGKILL"),
        ("/nvshmem/ibrc.cpp:init:1851: neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.",
         "NVSHMEM leaves out a transport between hosts"),
        (UCX.format(level="ERROR"), "process 41887 on gpu-a012: UCX failed: creating a queue failed on mlx5_1"),
        ("[gpu-a012:41887 :0:41887]    ud_iface.c:737  UCX Fatal: transport error: Endpoint timeout",
         "process 41887 on gpu-a012: UCX failed: transport error: Endpoint timeout"),
        ("[gpu-a012:41887:1:42107] ib_mlx5_log.c:171  Remote access on mlx5_0:1/IB (synd 0x13 vend 0x88 hw_synd 0/0)",
         "process 41887 on gpu-a012: UCX failed: Remote access on mlx5_0:1"),
        ("[gpu-a012:41887:0:41887] rc_verbs_iface.c:63   FATAL: send completion with error: local protection error",
         "process 41887 on gpu-a012: UCX failed: send completion with error: local protection error"),
        ("[1.5] [gpu-a012:41887 :0] rc_verbs_iface.c:47   UCX  ERROR Send completion with error: local QP error",
         "process 41887 on gpu-a012: UCX failed: Send completion with error: local QP error"),
        ("F0302 11:04:57.123456 41887 gpu_device.cc:174] Check failed: err == hipSuccess (98 vs. 0)",
         "a check in a library failed, which ends the process"),
        ('[rank14]: Traceback (most recent call last):\n[rank14]:   File "/job/main.py", line 100, in main',
         "rank 14 raised an exception in main (main.py:100), and no line that was read names it"),
        (SLICE, f"Mooncake reports an error: a transfer from mlx5_9 to 10.0.4.13:15867@mlx5_9 failed: {EXCEEDED}"),
        (f"[rank1]: RuntimeError: InnerRunOpApi:{OF_NPU}\n[rank1]: {EI0006}",
         "rank 1: HCCL reports EI0006: Getting socket times out"),
        (f"[rank1]: RuntimeError: InnerRunOpApi:{OF_NPU}", "rank 1: HcclAllreduce returned error 6"),
        (f"{HCCL.format(rank=1)}\n{HCCL.format(rank=0)}", "the watchdogs of ranks 0, 1 timed out at work 196"),
        (GIVEN_UP, "rank 1 gave up an operation of HCCL that failed or timed out"),
        (COMPONENT, "gpu-a012: MPI or PMIx could not open munge of the framework psec"),
        ("srun: error: task 3 launch failed: Unspecified error", "task 3 of srun did not start: Unspecified error"),
        (UNHANDLED, "process 41887 raised C++ exception: thread: Resource temporarily unavailable [system:11]"),
        (ANALYZER, "torchfrtrace shows that ranks 22, 110 called nccl:all_reduce with other arguments"),
        ("DEBUG 05-16 13:12:16 [core_client.py:425] Waiting for 1 core engine proc(s) to start: {0}",
         "vLLM waits for its engine core to start"),
    ],
)  # fmt: skip
def test_a_line_says_what_failed_and_where(text: str, title: str, tmp_path: Path) -> None:
    findings = reported(text, tmp_path).findings

    assert title in [finding.title for finding in findings]
    assert not [finding for finding in findings if "of NCCL" in finding.title]


@pytest.mark.parametrize("text", [UCX.format(level="ERROR"), "WARNING: ranks lack a tensor\nMissing ranks:\n0: [a]"])
def test_what_a_program_survived_that_came_to_its_end_is_no_failure(text: str, tmp_path: Path) -> None:
    assert not reported(f"{text}\nTraining completed successfully.", tmp_path).findings


def test_an_interruption_is_not_the_fault_of_the_process_that_it_ended(tmp_path: Path) -> None:
    assert not [finding for finding in reported(MPIEXEC, tmp_path).findings if finding.rule == "app-process-died"]

    without_interruption = reported(MPIEXEC.partition("\n")[2], tmp_path).findings

    assert [finding.rule for finding in without_interruption if "41887" in finding.title] == ["app-process-died"]


def test_an_error_of_ucx_is_one_of_a_device_where_a_transfer_failed(tmp_path: Path) -> None:
    transfer = (
        "[gpu-a012:41887:1:42107] ib_mlx5_log.c:171  Remote access on mlx5_0:1/IB (synd 0x13 vend 0x88 hw_synd 0/0)"
    )

    (of_memory,) = [one for one in reported(UCX.format(level="ERROR"), tmp_path).findings if one.rule == "ucx-failed"]
    (of_transfer,) = [one for one in reported(transfer, tmp_path).findings if one.rule == "ucx-failed"]

    assert (of_memory.category, of_transfer.category) == ("net-plugin", "ib-error")


def test_an_echo_of_ucx_stands_behind_its_cause(tmp_path: Path) -> None:
    echo = UCX.format(level="ERROR").replace("creating a queue failed on mlx5_1", "Connection reset by remote peer")
    titles = [finding.title for finding in reported(f"{echo}\n{UCX.format(level='ERROR')}", tmp_path).findings]

    assert [title for title in titles if "UCX" in title] == [
        "process 41887 on gpu-a012: UCX failed: creating a queue failed on mlx5_1"
    ]


def test_an_error_of_ucx_is_told_with_the_device_that_its_settings_name_in_vain(tmp_path: Path) -> None:
    warning = UCX.format(level="WARN ").replace("creating a queue failed on mlx5_1", "device 'a:1' is not available")
    (finding,) = reported(f"{warning}\n{UCX.format(level='ERROR')}", tmp_path).findings

    assert ("it warned: device 'a:1' is not available" in finding.detail, len(finding.evidence)) == (True, 2)


def test_lines_of_a_healthy_start_say_nothing(tmp_path: Path) -> None:
    lines = [
        UCX.format(level="WARN").replace(
            "creating a queue failed on mlx5_1", "transports 'gdr_copy' are not available"
        ),
        "I0818 03:34:37.833389  7238 rdma_context.cpp:491] Find best gid index: 3 on mlx5_4/",
        "DeepEP initialized with NCCL version: 2.30.4 (loaded library)",
        "Component: munge",
        "  Host: gpu-a012",
        "W0302 11:04:57.123456 41887 tcp_transport.cpp:136] the queue is longer than before",
    ]

    assert {finding.rule for finding in reported("\n".join(lines), tmp_path).findings} <= {"read-nothing-of-nccl"}


FLUSHED = "NET/IB: Got completion from peer 10.0.1.23<34696> with status=5 opcode=0 len=0 vendor err 249 (Recv) hca ib0"
ASYNC = """{warning}[rank4]:[E1229 16:47:25.333820755 ProcessGroupNCCL.cpp:541] [Rank 4] found async exception when \
checking for NCCL errors: NCCL error: remote process exited or there was a network error, NCCL version 2.22.3
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."""


def test_a_lost_peer_that_a_warning_names_is_not_called_unknown(tmp_path: Path) -> None:
    warning = f"gpu-a012:34610:36821 [4] ib_plugin.c:1673 NCCL WARN {FLUSHED}\n"
    named = reported(ASYNC.format(warning=warning), tmp_path).findings

    assert not [finding for finding in named if finding.rule == "remote-error-returned"]
    assert [finding for finding in named if "10.0.1.23" in finding.title]

    unnamed = reported(ASYNC.format(warning=""), tmp_path).findings

    assert [finding.ranks for finding in unnamed if finding.rule == "remote-error-returned"] == [[4]]


def test_a_listing_of_processes_names_the_rank(tmp_path: Path) -> None:
    logs = INCIDENTS / "one-rank-stops-before-an-allreduce"
    (tmp_path / "ps.txt").write_text("    PID STAT WCHAN            COMMAND\n  23904 Dl   folio_wait_bit   python3\n")
    report = analyze([logs, tmp_path / "ps.txt"])

    (found,) = [finding for finding in report.findings if finding.rule == "process-states"]
    assert (found.ranks, found.title.partition(":")[0]) == ([11], "rank 11")
    assert report.verdicts[0].verdict == "lagging-ranks"
