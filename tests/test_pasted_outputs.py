"""Outputs of tools and kernels as people paste them, in part and alone: what they show, and what stays silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Severity
from ncclforensics.views.text_screen import screen

# Text -> rule, severity and a part of the title of each finding; none: it is healthy.
SHOWN = {
    "nic-not-started": (
        """\
[   12.9] mlx5_core 0000:5e:00.0: firmware version: 22.41.1000
[   13.6] mlx5_core 0000:5e:00.0: mlx5_load_one failed with error code -110
[   13.7] mlx5_core: probe of 0000:5e:00.0 failed with error -110
""",
        [("kernel-driver-reports", "error", "could not start device 0000:5e:00.0: connection timed out (error -110)")],
    ),
    "another-driver-not-started": ("[   13.7] lpc_ich: probe of 0000:00:1f.0 failed with error -16\n", []),
    "nic-without-answer": (
        (
            "[  913.6] mlx5_core 0000:5e:00.0: wait_func:1137:(pid 4711): 2RST_QP(0x50a) timeout. "
            "Will cause a leak of a command resource\n"
        ),
        [("kernel-driver-reports", "error", "NIC 0000:5e:00.0 did not answer a command of its driver")],
    ),
    "gpu-not-started": (
        "[   12.9] NVRM: The NVIDIA probe routine failed for 1 device(s).\n",
        [("kernel-driver-reports", "warning", "the NVIDIA driver could not start a GPU")],
    ),
    "gpu-lost-and-so-not-started": (
        """\
[   12.8] NVRM: The NVIDIA GPU 0000:4c:00.0
[   12.8] NVRM: (PCI ID: 10de:2330) installed in this system has
[   12.8] NVRM: fallen off the bus and is not responding to commands.
[   12.9] NVRM: The NVIDIA probe routine failed for 1 device(s).
""",
        [("cuda-gpu-fault", "error", "it fell off the bus")],
    ),
    "module-plugged-in": ("[   11.1] mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged\n", []),
    "port-never-used": (
        "[   11.1] mlx5_core 0000:5e:00.1: Port module event: module 1, Cable unplugged\n",
        [("kernel-port-reports", "info", "cable unplugged")],
    ),
    "module-pulled-out": (
        """\
[   11.1] mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged
[ 4711.2] mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged
""",
        [("kernel-port-reports", "warning", "cable unplugged")],
    ),
    "carrier-flaps": (
        "".join(
            f"Mar  2 11:04:5{n} gpu-a012 systemd-networkd[81]: ib3: {'Gained' if n % 2 else 'Lost'} carrier\n"
            for n in range(6)
        ),
        [("kernel-port-reports", "warning", "the link of port ib3 on gpu-a012 went down 3 times")],
    ),
    "carrier-of-a-container": ("Mar  2 11:04:57 gpu-a012 systemd-networkd[81]: veth1f2a: Lost carrier\n", []),
    "no-file-handles": (
        "[ 4711.2] VFS: file-max limit 524288 reached\n",
        [("kernel-driver-reports", "error", "its limit of 524,288 is reached")],
    ),
    "amd-gpu-of-a-process": (
        """\
[ 4711.1] amdgpu 0000:c5:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=41, emitted seq=43
[ 4711.1] amdgpu 0000:c5:00.0: amdgpu:  Process python3 pid 41887 thread python3 pid 41890
""",
        [("kernel-driver-reports", "warning", "did not end in time: ring comp_1.0.0")],
    ),
    "amd-bus-error": (
        "[ 4711.1] amdgpu 0000:c5:00.0: {2}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!\n",
        [("kernel-driver-reports", "error", "AMD GPU 0000:c5:00.0 reported an uncorrected hardware error")],
    ),
    "journal-in-another-language": (
        "janv. 29 20:50:17 gpu-a012 kernel: NVRM: Xid (PCI:0000:5d:00): 79, pid=41887, GPU has fallen off the bus.\n",
        [("cuda-gpu-fault", "error", "GPU fault on gpu-a012: Xid 79")],
    ),
    "oom-of-another-program": (
        (
            "[ 4711.2] Memory cgroup out of memory: Killed process 912 (uwsgi) total-vm:3149468kB, anon-rss:164992kB, "
            "file-rss:52176kB, shmem-rss:92kB, UID:0 pgtables:1372kB oom_score_adj:986\n"
        ),
        [("oom-host", "info", "uwsgi killed")],
    ),
    "mcelog-corrected": (
        "MCE 0\nCPU 3 BANK 0\nCorrected error\nSTATUS 90000040000f0005 MCGSTATUS 0\n",
        [("kernel-memory-errors", "info", "1 corrected machine check")],
    ),
    "mcelog-uncorrected": (
        "MCE 0\nCPU 3 BANK 0\nUncorrected error\nSTATUS b0000040000f0005 MCGSTATUS 0\n",
        [("kernel-memory-errors", "error", "1 uncorrected machine check")],
    ),
    "retired-pages-used-up": (
        """\
GPU 00000000:1B:00.0
    Retired Pages
        Single Bit ECC                    : 21
        Double Bit ECC                    : 40
        Pending Page Blacklist            : No
""",
        [("gpu-memory-errors", "error", "GPU 1b:00.0 has memory errors")],
    ),
    "retired-pages-few": (
        (
            "    Retired Pages\n        Single Bit ECC            : 2\n        Double Bit ECC            : 0\n"
            "        Pending Page Blacklist    : No\n"
        ),
        [],
    ),
    "errors-of-two-bits": (
        """\
    ECC Errors
        Volatile
            Single Bit
                Total                     : 41
            Double Bit
                Total                     : 3
        Aggregate
            Double Bit
                Total                     : 3
""",
        [("gpu-memory-errors", "warning", "has memory errors")],
    ),
    "errors-of-two-bits-long-ago": (
        (
            "    ECC Errors\n        Volatile\n            Double Bit\n                Total           : 0\n"
            "        Aggregate\n            Double Bit\n                Total           : 3\n"
        ),
        [],
    ),
    "power-cap": (
        (
            "    Clocks Event Reasons\n        Idle : Not Active\n        SW Power Cap : Active\n"
            "        HW Slowdown : Not Active\n"
        ),
        [],
    ),
    "hardware-slowdown": (
        (
            "    Clocks Throttle Reasons\n        Idle                    : Not Active\n"
            "        HW Slowdown             : Active\n            HW Thermal Slowdown : Active\n"
        ),
        [("gpu-clocks-lowered", "warning", "HW Thermal")],
    ),
    "nvlinks-inactive": (
        (
            "GPU 6: NVIDIA H100 80GB HBM3 (UUID: GPU-2f1a6c3e-0b8d-4d2e-9a51-7c40a1b2c3d4)\n"
            "NVML: Unable to retrieve NVLink information as all links are inactive\n"
        ),
        [("nvlinks-inactive", "warning", "GPU 6: no NVLink is active")],
    ),
    "nvlinks-of-a-card": (
        (
            "GPU 0: NVIDIA A40 (UUID: GPU-2f1a6c3e-0b8d-4d2e-9a51-7c40a1b2c3d4)\n"
            "Unable to retrieve NVLink information as all links are inActive\n"
        ),
        [],
    ),
    "dcgm-4-fails": (
        """\
|-----  Deployment  --------+------------------------------------------------|
| software                  | Pass                                           |
|                           | GPU0: Pass                                     |
+-----  Hardware  ----------+------------------------------------------------+
| memory                    | Fail                                           |
|                           | GPU0: Pass                                     |
|                           | GPU1: Fail                                     |
| Warning: GPU1             | Detected 2 errors.                             |
""",
        [("dcgm-diagnostic-failed", "warning", "the test memory failed on GPU1")],
    ),
    "dcgm-part-of-a-table": (
        """\
| GPU Memory                | Pass - GPUs: 1, 2, 3                           |
|                           | Fail - GPU: 0                                  |
""",
        [("dcgm-diagnostic-failed", "warning", "the test GPU Memory failed on GPU: 0")],
    ),
    "dcgm-json": (
        (
            '{"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": ['
            '{"name": "memory", "results": ['
            '{"entity_group": "GPU", "entity_id": 0, "status": "Pass"}, {"entity_group": "GPU", "entity_id": 1, '
            '"status": "Fail", "warnings": [{"error_id": 83, "warning": "Detected 2 errors."}]}]}]}]}}\n'
        ),
        [("dcgm-diagnostic-failed", "warning", "the test memory failed on GPU1")],
    ),
    "dcgm-json-skips": (
        (
            '{"DCGM GPU Diagnostic": {"test_categories": [{"category": "Integration", "tests": ['
            '{"name": "PCIe", "results": '
            '[{"gpu_id": "0", "status": "Skip"}]}]}]}}\n'
        ),
        [],
    ),
    "dcgm-health-json": (
        (
            '{\n   "body" : {\n      "GPU" : {\n         "children" : {\n            "3" : {\n'
            '               "children" : {"Errors" : {"children" : {"Memory system" : {'
            '"overflow" : ["row remappings are", "pending"], "value" : "Failure"}}}}, "value" : "Failure"}}},\n'
            '      "Overall Health" : {"value" : "Failure"}\n   },\n   "header" : ["Health Monitor Report"]\n}\n'
        ),
        [("dcgm-health-watch", "warning", "failed: GPU 3: Memory: row remappings are pending")],
    ),
    "dcgm-health-json-is-well": (
        '{"body" : {"Overall Health" : {"value" : "Healthy"}}, "header" : ["Health Monitor Report"]}\n',
        [],
    ),
    "port-info-down": (
        "# Port info: Lid 12 port 7\nLinkState:.......................Down\nPhysLinkState:...................Polling\n",
        [],
    ),
    "virtual-function-down": (
        "CA 'mlx5_7'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: LinkUp\n\t\tRate: 200\n",
        [("ctr-port-down-with-link", "warning", "mlx5_7 port 1: down, although the physical link is up")],
    ),
    "all-ports-down": (
        "".join(
            f"CA 'mlx5_{n}'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Disabled\n\t\tRate: 10\n" for n in (0, 1)
        ),
        [("ctr-all-ports-down", "warning", "all 2 ports shown are down (Disabled)")],
    ),
    "one-port-of-two-down": (
        (
            "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 200\n"
            "CA 'mlx5_1'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Disabled\n\t\tRate: 10\n"
        ),
        [],
    ),
    "no-rdma-device": (
        "Failed to get IB devices list: Function not implemented\n",
        [("stated-failure", "warning", "no RDMA device can be seen")],
    ),
    "acs-alone": (
        (
            "                ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
            "                ACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"
        ),
        [("topo-acs-on", "info", "1 of 2 PCIe bridges and devices redirect peer traffic")],
    ),
    "acs-off": (
        "                ACSCtl: SrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n",
        [],
    ),
    "perftest-without-cuda": (
        "Perftest supports CUDA latency tests with read/send verbs only\n",
        [("stated-failure", "warning", "the test cannot do what was asked for")],
    ),
    "table-without-rows": (
        """\
# Using devices
#   Rank  0 uses device  0 [0x02] Tesla P100-PCIE-16GB
#   Rank  1 uses device  1 [0x03] Tesla P100-PCIE-16GB
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
""",
        [("bench-run-without-result", "info", "ends before its first result")],
    ),
    "ras-client-refused": (
        "Connecting to 127.0.0.1:28028: Connection refused\nFailed to connect to the NCCL RAS service!\n",
        [("stated-failure", "warning", "the RAS client got no report")],
    ),
}


def read(tmp_path: Path, text: str) -> Report:
    (tmp_path / "paste.txt").write_text(text)
    return analyze([str(tmp_path / "paste.txt")], everything=True)


@pytest.mark.parametrize(("text", "expected"), SHOWN.values(), ids=SHOWN)
def test_a_paste_says_what_it_shows(tmp_path: Path, text: str, expected: list[tuple[str, str, str]]) -> None:
    report = read(tmp_path, text)

    found = [finding for finding in report.findings if finding.severity is not Severity.INFO or expected]
    assert [(finding.rule, str(finding.severity)) for finding in found] == [
        (rule, level) for rule, level, _ in expected
    ]
    for finding, (_, _, words) in zip(found, expected, strict=True):
        assert words in finding.title
        assert finding.evidence


def test_a_time_out_of_an_amd_gpu_names_the_process(tmp_path: Path) -> None:
    (finding,) = read(tmp_path, SHOWN["amd-gpu-of-a-process"][0]).findings

    assert "it was work of python3 (pid 41887)" in finding.detail


def test_a_crash_on_purpose_is_called_so(tmp_path: Path) -> None:
    text = (
        "[ 201.6] sysrq: SysRq : Trigger a crash\n[ 201.7] BUG: unable to handle kernel NULL pointer dereference at 0\n"
    )

    (finding,) = read(tmp_path, text).findings
    assert "on purpose (SysRq)" in finding.detail


# Text -> test, bandwidth in GB/s and latency in us of the last row.
MEASURED = {
    "osu-bandwidth": (
        (
            "# OSU MPI-CUDA Bi-Directional Bandwidth Test v7.3\n# Size      Bandwidth (MB/s)\n"
            "1                       1.53\n4194304            24609.96\n"
        ),
        ("OSU MPI-CUDA Bi-Directional Bandwidth Test", 24.60996, None),
    ),
    "imb-bandwidth": (
        (
            "# Benchmarking PingPong \n       #bytes #repetitions      t[usec]   Mbytes/sec\n"
            "            0         1000         1.21         0.00\n"
            "      4194304           10       401.22     10453.80\n"
        ),
        ("IMB PingPong", 10.4538, None),
    ),
    "osu-latency": (
        (
            "# OSU MPI Allreduce Latency Test v7.3\n"
            "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
            "8                       2.17              1.98              2.41        1000\n"
        ),
        ("OSU MPI Allreduce Latency Test", None, 2.17),
    ),
    "ucx": (
        (
            "| Test:         tag match bandwidth                       |\n"
            "|    Stage     | # iterations | 50.0%ile | average | overall | average | overall | average | overall |\n"
            "Final:           1000      0.240  1675.942  1671.351    10000.00   10000.00         597         598\n"
        ),
        ("ucx_perftest tag match bandwidth", 10.48576, None),
    ),
    "copies": (
        (
            " Host to Device Bandwidth, 1 Device(s)\n PINNED Memory Transfers\n"
            "   Transfer Size (Bytes)\tBandwidth(GB/s)\n"
            "   32000000\t\t\t55.3\n"
        ),
        ("bandwidthTest, host to device", 55.3, None),
    ),
    "copies-of-many-sizes": (
        "bandwidthTest-D2D, Bandwidth = 2441.8 MB/s, Time = 0.00484 s, Size = 60000000 bytes, NumDevsUsed = 1\n",
        ("bandwidthTest, device to device", 2.4418, None),
    ),
    "perftest-of-another-head": (
        (
            "                    RDMA_Read BW Test\n"
            " #bytes     iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
            " 128        1000             310.13             1000.00               2.539960\n"
        ),
        ("RDMA_Read BW Test", 1.048576, None),
    ),
}


@pytest.mark.parametrize(("text", "expected"), MEASURED.values(), ids=MEASURED)
def test_a_measurement_keeps_its_unit(
    tmp_path: Path, text: str, expected: tuple[str, float | None, float | None]
) -> None:
    row = read(tmp_path, text).run["link_measurement"].row(-1, named=True)

    assert row["test"] == expected[0]
    assert row["bandwidth_GBps"] == pytest.approx(expected[1])
    assert row["latency_us"] == pytest.approx(expected[2])


def test_a_matrix_without_a_margin_is_read(tmp_path: Path) -> None:
    text = "memcpy SM CPU(row) -> GPU(column) bandwidth (GB/s)\n0         1\n0     35.19     35.25\n"

    pairs = read(tmp_path, text).run["gpu_pair"]
    assert pairs.select("test", "column", "value").rows() == [
        ("memcpy SM CPU -> GPU", 0, 35.19),
        ("memcpy SM CPU -> GPU", 1, 35.25),
    ]


@pytest.mark.parametrize(("wrong", "collective"), [("N/A", "sendrecv"), ("0", "all_reduce")])
def test_two_ranks_that_are_not_checked_in_place_send_and_receive(tmp_path: Path, wrong: str, collective: str) -> None:
    figures = "time   algbw   busbw #wrong"
    row = (
        "        4096          1024     float     sum      -1    30.74    0.13    0.13      0    30.69    0.13    0.13"
    )
    text = f"#       size         count      type   redop    root     {figures}     {figures}\n{row}    {wrong}\n"

    assert read(tmp_path, text).run["benchmark"]["collective"].to_list() == [collective]


def test_the_ports_of_a_link_are_read_with_their_rate(tmp_path: Path) -> None:
    fields = "LinkState:.......................Active\nPhysLinkState:...................LinkUp\n"
    fields += "LinkWidthActive:.................4X\nLinkSpeedActive:.................10.0 Gbps\n"
    fast = fields + "LinkSpeedExtActive:..............25.78125 Gbps\n"
    text = f"# Port info: Lid 2 port 9\n{fast}# Port info: Lid 2 DR path slid 65535; dlid 65535; 0,9 port 2\n{fields}"

    ports = read(tmp_path, text).run["port_state"]
    assert ports.select("lid", "port", "state", "rate_Gbps").rows() == [
        (2, 9, "active", 100.0),
        (None, 2, "active", 40.0),
    ]


@pytest.mark.parametrize("gap", [" ", "   "])
def test_an_interface_of_a_port_does_not_show_the_state_of_the_port(tmp_path: Path, gap: str) -> None:
    line = gap.join(("mlx5_3", "port", "1", "==>", "net1", "(Down)"))
    report = read(tmp_path, f"$ ibdev2netdev\n{line}\n")

    assert report.run["port_state"]["netdev"].to_list() == ["net1"]
    assert "PORTS" not in screen(report, width=100)


def test_lines_that_syslog_writes_to_terminals_are_read(tmp_path: Path) -> None:
    text = "Message from syslogd@gpu-a012 at Mar  2 11:04:57 ...\n"
    text += " kernel:[12345.678901] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:41887]\n"

    [finding] = [found for found in read(tmp_path, text).findings if "soft lockup" in found.title]
    assert "22 s" in finding.title
