"""Lines of kernels, subnet managers and schedulers, pasted alone: what they show, and which of them leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.rules.finding import Severity

BUS = "NVRM: Xid (PCI:0000:5d:00): 79, pid=41887, GPU has fallen off the bus.\n"
WENT_DOWN = "".join(
    f"[Mon Mar  2 {hour}:57 2026] {{driver}} NIC Link is {state}\n"
    for hour, state in zip(("11:04", "11:05", "12:04", "12:05", "13:04", "13:05"), ("Down", "Up") * 3, strict=True)
)
AT = "[Sun Mar  1 11:04:57 2026] "
CONCISE = """\
================================= Concise Info =================================
Device  Node  IDs              Temp        Power     Partitions          SCLK   MCLK    Fan  Perf  PwrCap  VRAM%  GPU%
0       2     0x74a1,   60024  50.0°C      157.0W    NPS1, SPX, 0        {}  900Mhz  0%   auto  750.0W  86%    100%
"""
PAIR = "gpu-a012:41887:42107 [2] NCCL INFO GPU Direct RDMA {} for GPU 2[2] / HCA {} (distance {})\n"
RECEIVED = "gpu-a012:41887:42107 [2] NCCL INFO Channel 00/0 : 0[0] -> 2[2] [receive] via {}\n"
SENT = "gpu-a012:41887:42107 [2] NCCL INFO Channel 00/0 : 2[2] -> 0[0] [send] via NET/IB/4\n"
# Text -> rule, severity and a part of the title of each finding, the one that leads first.
SHOWN = {
    "time-of-day-alone": (f"11:04:57  {BUS}", [("cuda-gpu-fault", "error", "Xid 79")]),
    "day-before-month": (f"04 Aug, 11:04:57 gpu-a012 kernel: {BUS}", [("cuda-gpu-fault", "error", "Xid 79")]),
    "month-of-another-language": (f"kvě 25 11:04:57 gpu-a012 kernel: {BUS}", [("cuda-gpu-fault", "error", "Xid 79")]),
    "nic-without-address": (
        WENT_DOWN.format(driver="e1000e: eth1"),
        [("kernel-port-reports", "warning", "port eth1 went down 3 times")],
    ),
    "nic-named-twice": (
        WENT_DOWN.format(driver="igb 0000:02:00.0 eno2: igb: eno2"),
        [("kernel-port-reports", "warning", "port eno2 went down 3 times")],
    ),
    "stack-of-a-process": (
        """\
[<0>] uvm_spin_loop+0xb2/0xe0 [nvidia_uvm]
[<0>] uvm_api_register_gpu+0x4c/0x70 [nvidia_uvm]
[<0>] do_syscall_64+0x5d/0x90
""",
        [
            (
                "kernel-driver-reports",
                "info",
                "stands in the kernel, in uvm_spin_loop: its stack goes through nvidia_uvm",
            )
        ],
    ),
    "stack-of-a-process-that-polls": ("[<0>] do_sys_poll+0x4e2/0x5d0\n[<0>] do_syscall_64+0x5d/0x90\n", []),
    "driver-name-once": (
        "[ 4711.1] amdgpu 0000:c5:00.0: ring sdma0 timeout, signaled seq=41, emitted seq=43\n",
        [("kernel-driver-reports", "warning", "did not end in time: ring sdma0")],
    ),
    "gpu-before-processor": (
        """\
[ 1200.2] NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTime 33ms, previousHeartbeat 22ms
[ 1230.1] watchdog: BUG: soft lockup - CPU#31 stuck for 22s! [python3:41887]
""",
        [
            ("kernel-driver-statements", "warning", "got no answer from it in time"),
            ("kernel-driver-reports", "warning", "soft lockup"),
        ],
    ),
    "bus-before-program": (
        """\
[ 1200.1] pcieport 0000:00:01.2: AER: Uncorrectable (Non-Fatal) error received from 0000:63:00.0
[ 1200.2] nvidia 0000:63:00.0: AER: can't recover (no error_detected callback)
[ 1201.1] NVRM: Xid (PCI:0000:63:00): 31, pid=41887, name=python3, Ch 00000010, intr 00000000. MMU Fault: FAULT_PDE
""",
        [
            ("kernel-pcie-errors", "warning", "nvidia 0000:63:00.0 could not be recovered"),
            ("kernel-xid", "warning", "Xid 31"),
        ],
    ),
    "kernel-warns": (
        "[ 4711.1] WARNING: CPU: 3 PID: 41887 at net/core/devlink.c:8047 devlink_alloc+0x37/0x1cc\n",
        [("kernel-driver-reports", "info", "did not expect, at net/core/devlink.c:8047")],
    ),
    "check-of-before-the-start": (
        "[    0.064265] mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 4: a600000000020408\n",
        [("kernel-memory-errors", "warning", "1 uncorrected machine check")],
    ),
    "port-left-the-fabric": (
        (
            "Mar 02 11:04:57 932843 [3DA006C0] 0x02 -> drop_mgr_remove_port: Removed port with "
            "GUID:0x0c42a10300605f5c LID range [11, 11] of node:gpu-a012 HCA-1\n"
        ),
        [("stated-failure", "warning", "gpu-a012 HCA-1")],
    ),
    "disk-of-gpfs": (
        "2026-03-02_11:04:57.123+0000: [E] Disk failure. Volume work. rc = 5, and physical volume nsd003.\n",
        [("stated-failure", "warning", "a disk of the file system GPFS failed")],
    ),
    "host-started-again": (
        "   Reason=Node unexpectedly rebooted [slurm@2026-03-02T11:04:57]\n",
        [("stated-failure", "warning", "a host rebooted without Slurm's doing")],
    ),
    "reason-of-a-drain": (
        "   Reason=Kill task failed [root@2026-03-02T11:04:57]\n",
        [("stated-failure", "warning", "out of use: Kill task failed")],
    ),
    "pod-without-node": (
        "Name:         train-0\nNamespace:    team\nConditions:\n  Type           Status\n  PodScheduled   False \n",
        [("stated-failure", "warning", "no node for a pod")],
    ),
    "pod-on-no-node": (
        "Name:         train-0\nNamespace:    team\nNode:         <none>\nStatus:       Pending\n",
        [("stated-failure", "warning", "no node for a pod")],
    ),
    "node-started-again": (
        """\
  Normal   NodeNotReady  9m  kubelet  Node gpu-a012 status is now: NodeNotReady
  Warning  InvalidDiskCapacity  9m  kubelet  invalid capacity 0 on image filesystem
  Warning  Rebooted  9m  kubelet  Node gpu-a012 has been rebooted, boot id: 2f1a6c3e
""",
        [
            ("stated-failure", "warning", "a node of Kubernetes was rebooted"),
            ("stated-failure", "warning", "said that the node is not ready"),
        ],
    ),
    "trace-of-the-oom-killer": (
        "[ 1778.614814]  dump_header+0x7b/0x1fd\n[ 1778.614818]  oom_kill_process+0x219/0x3e0\n",
        [("stated-failure", "warning", "memory ran out, and the kernel looked for a process")],
    ),
    "items-of-a-list": (
        "What we saw:\n\n1. `mlx5_core 0000:41:00.0 ens1f0: TX timeout detected`\n2. `everything else` worked\n",
        [("kernel-port-reports", "warning", "ens1f0: the NIC did not send")],
    ),
    "lines-below-an-item-of-a-list": (
        f"""\
2. A test fails:

   dmesg shows
    {AT}NVRM: rpcRmApiAlloc_GSP: GspRmAlloc failed: hClient=0xc1
    {AT}NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset [NV_ERR_RESET_REQUIRED] (0x00000062) returned from x @ y.c
""",
        [
            ("stated-failure", "warning", "the system processor (GSP) of a GPU"),
            ("kernel-driver-reports", "warning", "until it is reset (NV_ERR_RESET_REQUIRED)"),
        ],
    ),
    "message-quoted-in-a-sentence": (
        'I think "slurmstepd: error: execve(): /tmp/job/slurm_script: No such file or directory" is of GPU nodes.\n',
        [("stated-failure", "warning", "Slurm could not start the program of a task on a host: /tmp/job")],
    ),
    "process-in-state-d-of-linux-3": (
        """\
[ 1326.467155] qbuckets2       D ffffffffa047cde8     0  4037   3994 0x00000080
[ 1326.520166]  [<ffffffff81689b2f>] mutex_lock+0x1f/0x2f
[ 1326.525440]  [<ffffffffa0433948>] nfs4_discover_server_trunking+0x48/0x2e0 [nfsv4]
""",
        [("kernel-driver-reports", "warning", "could not be interrupted: qbuckets2 (pid 4037)")],
    ),
    "process-in-state-s": (
        "[ 1326.467155] qbuckets2       S ffffffffa047cde8     0  4037   3994 0x00000080\n",
        [],
    ),
    "eviction-of-another-clock": (
        "  Warning  Evicted    <invalid>  kubelet  The node had condition: [DiskPressure].\n",
        [("stated-failure", "warning", "Kubernetes evicted a pod")],
    ),
    "pod-on-a-full-disk": (
        "W0317 12:44:49.954002 2278 eviction.go:9] Failed to admit pod a_b - node has conditions: [DiskPressure]\n",
        [("stated-failure", "warning", "a node of Kubernetes reports a problem: DiskPressure")],
    ),
    "device-plugin-gone": (
        "Error: endpoint not found in cache for a registered resource: nvidia.com/gpu\n",
        [("stated-failure", "warning", "Kubernetes could not give a pod its GPUs, so that its ranks do not start")],
    ),
    "busy-at-a-low-clock": (
        CONCISE.format("59Mhz"),
        [("gpus-spin", "info", "GPU 0: busy at little power, and their clocks are at 59 MHz or less")],
    ),
    "busy-at-a-usual-clock": (
        CONCISE.format("2105Mhz"),
        [("gpus-spin", "info", "GPU 0: busy at little power, as kernels that wait for a peer are")],
    ),
    "story-of-a-failure": (
        f"{'The run went on. ' * 20}Task 162 logged CUDA_ERROR_CONTAINED: invalid access. {'We wait. ' * 20}\n",
        [
            ("stated-by-program", "warning", ": Task 162 logged CUDA_ERROR_CONTAINED: invalid access"),
            ("read-unknown-formats", "info", ""),
        ],
    ),
    "azure-pauses-a-machine": (
        '7 {"message":"new","Event":{"EventType":"Freeze","ResourceType":"VirtualMachine","Resources":["vm7"]}}\n',
        [("stated-failure", "warning", "restart or move a virtual machine: vm7")],
    ),
    "test-of-gdrcopy": (
        """\
ERR:  Error getting the gdrdrv driver version with ioctl error (errno=22). gdrdrv might be too old.
Assertion "!((g) == ((void*)0))" failed at sanity.cpp:181
""",
        [("stated-failure", "warning", "GDRCopy cannot use its driver")],
    ),
    "reason-behind-words": (
        "as of now, c015: Reason=Node unexpectedly rebooted [slurm@2026-03-01T11:04:57]\n",
        [("stated-failure", "warning", "a host rebooted without Slurm's doing")],
    ),
    "scheduler-of-kubernetes": (
        """\
I0302 11:04:57.450554 1 scheduler.go:352] "Unable to schedule pod; no fit; waiting" pod="team/train-4" \
err="0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
""",
        [("stated-failure", "warning", "4 Insufficient nvidia.com/gpu")],
    ),
    "received-without-gpudirect": (
        RECEIVED.format("NET/IB/4"),
        [("read-subsystem-gap", "info", ""), ("gdr-disabled-in-excerpt", "info", "no connection that was read uses")],
    ),
    "received-with-gpudirect": (RECEIVED.format("NET/IB/4/GDRDMA"), [("read-subsystem-gap", "info", "")]),
    "sent-without-gpudirect": (SENT, [("read-subsystem-gap", "info", "")]),
    "sent-without-gpudirect-in-all-rings": (
        f"{SENT}gpu-a012:41887:42107 [2] NCCL INFO Connected all rings, use ring PXN 0 GDR 0\n",
        [("read-subsystem-gap", "info", ""), ("gdr-disabled-in-excerpt", "info", "no connection that was read uses")],
    ),
    "gpu-and-nic-apart": (
        PAIR.format("Disabled", "0", "3 >= 2"),
        [("read-subsystem-gap", "info", ""), ("gdr-disabled-in-excerpt", "info", "GPU and NIC are too far apart")],
    ),
    "one-gpu-and-nic-apart": (
        PAIR.format("Disabled", "0", "3 >= 2") + PAIR.format("Enabled", "1", "1 < 2"),
        [("read-subsystem-gap", "info", "")],
    ),
}


@pytest.mark.parametrize(("text", "expected"), SHOWN.values(), ids=SHOWN)
def test_a_paste_says_what_it_shows(tmp_path: Path, text: str, expected: list[tuple[str, str, str]]) -> None:
    (tmp_path / "paste.txt").write_text(text)

    found = analyze([str(tmp_path / "paste.txt")], everything=True).findings

    assert [(finding.rule, str(finding.severity)) for finding in found] == [shown[:2] for shown in expected]
    assert all(words in finding.title for finding, (_, _, words) in zip(found, expected, strict=True))


@pytest.mark.parametrize(("rate", "expected"), [(4.0, ["all slow GPU pairs include GPU 4"]), (20.0, [])])
def test_a_gpu_that_reaches_no_other_one_is_told_and_not_one_behind_another_cpu(
    tmp_path: Path, rate: float, expected: list[str]
) -> None:
    gpus = range(5)
    cells = [[900.0 if a == b else rate if 4 in (a, b) else 50.0 for b in gpus] for a in gpus]
    rows = "".join(f"     {a} " + " ".join(f"{cell:6.2f}" for cell in cells[a]) + "\n" for a in gpus)
    heading = (
        "as I said. Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D     0      1      2      3      4\n"
    )
    (tmp_path / "matrix.txt").write_text(heading + rows)

    found = analyze([str(tmp_path / "matrix.txt")], everything=True).findings
    assert [finding.title.partition(":")[0] for finding in found] == expected


def test_a_test_of_a_link_that_falls_from_size_to_size_is_told(tmp_path: Path) -> None:
    rows = ((262144, 9511.5), (524288, 7860.7), (1048576, 5196.3), (2097152, 4323.2), (4194304, 4036.1))
    table = "".join(f"{size:<12}{rate:>18}\n" for size, rate in rows)
    (tmp_path / "osu.txt").write_text(f"# OSU MPI-CUDA Bandwidth Test v7.3\n# Size      Bandwidth (MB/s)\n{table}")

    (finding,) = analyze([str(tmp_path / "osu.txt")], everything=True).findings
    assert (finding.rule, finding.severity) == ("bench-link-drop-above-a-size", Severity.INFO)
    assert "falls from 9.5 GB/s at 256 KiB to 4.0 GB/s at 4 MiB" in finding.title
