"""What drivers and tools of GPUs, NICs and switches print, pasted alone: what it shows, and what stays silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Severity
from ncclforensics.views.text_screen import screen

NVLINK_LIST = "".join(
    f"GPU {gpu}: {{model}} (UUID: GPU-2f1a6c3e-0b8d-4d2e-9a51-7c40a1b2c3d{gpu})\n"
    + "".join(f"\t Link {link}: {'25.781 GB/s' if link >= down else '<inactive>'}\n" for link in range(6))
    for gpu, down in enumerate((0, 2, 1))
)
RATES = "61,115,381  286.58 KB/s      0.00%"
SWITCH_HEAD = (
    "  IFACE STATE  RX_OK  RX_BPS  RX_UTIL  RX_ERR  RX_DRP  RX_OVR  TX_OK  TX_BPS  TX_UTIL  TX_ERR  TX_DRP  TX_OVR\n"
)
SWITCH_ROW = f"  Ethernet{{port}}   U  {RATES}  0  0  0  {RATES}  0  {{lost}}  0\n"
LINK_TEST = """\
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_0
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      403504           0.00               42.31                0.080701
"""
FIRMWARE = """\
[   61.1] {{1}}[Hardware Error]: event severity: {severity}
[   61.1] {{1}}[Hardware Error]:  Error 0, type: {severity}
[   61.1] {{1}}[Hardware Error]:  fru_text: D2
[   61.1] {{1}}[Hardware Error]:   section_type: memory error
[   61.1] {{1}}[Hardware Error]:   DIMM location: not present. DMI handle: 0x0000
"""
# Text -> rule, severity and a part of the title of each finding; none: it is healthy.
PORT_INFO = """CA/RT PortInfo:
# Port info: Lid 4 port 1
LinkState:.......................{state}
PhysLinkState:...................{physical}
LinkWidthEnabled:................1X or 4X or 2X
LinkWidthActive:.................{width}
LinkSpeedActive:.................10.0 Gbps
LinkSpeedExtActive:..............53.125 Gbps
"""
ROCM = (
    '{{"card0": {{"GPU use (%)": "100", "XGMI Error count": "{errors}"}}, "card1": {{"GPU use (%)": "100"}}, '
    '"system": {{"Driver version": "6.7.0"}}}}\n'
)
UCC = "[1772448297.628067] [gpu-a012:41887:0]   tl_ucp_ep.c:54  TL_UCP {level} {message}\n"
SAMPLES = 'nvidia_smi_{name}{{uuid="c8f1d2aa"}} {first}\nnvidia_smi_{name}{{uuid="c8f1d2aa"}} {last}\n'
TUNER_HEAD = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"
TUNER = TUNER_HEAD + "\nallreduce,0,65536,{name},ll,2,1,-1\n"
PFC = """=== leaf-4 2026-03-02 {time} ===
  Port Rx    PFC0    PFC1    PFC2         PFC3    PFC4    PFC5    PFC6    PFC7
---------  ------  ------  ------  -----------  ------  ------  ------  ------
Ethernet0       0       0       0  {frames}       0       0       0     N/A
"""
HFI1 = """=== gpu-a012 2026-03-02 {time} ===
/sys/class/infiniband/hfi1_0/hw_counters/DcTxReplay:{count}
/sys/class/infiniband/hfi1_0/ports/1/hw_counters/RcTimeOut:{count}
/sys/class/infiniband/hfi1_0/ports/1/hw_counters/SwLinkDown,32:0
"""
NO_ACCESS = "Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed."
SHOWN = {
    "efa-gave-up-reads": (
        "rdma_read_wr_err :411\nretrans_timeout_events :0\ntx_bytes :71211\n",
        [("ctr-need-delta", "info", "1 port has counted errors, at an unknown time")],
    ),
    "hfi1-got-no-answers": (
        "".join(HFI1.format(time=time, count=count) for time, count in (("10:00:00", 0), ("11:00:00", 4000))),
        [("ctr-roce-loss", "warning", "RDMA packets were lost at gpu-a012 hfi1_0 port 1")],
    ),
    "hfi1-got-answers": (
        "".join(HFI1.format(time=time, count=0) for time in ("10:00:00", "11:00:00")),
        [],
    ),
    "efa-gave-up-nothing": ("rdma_read_wr_err :0\nretrans_timeout_events :0\ntx_bytes :71211\n", []),
    "a-link-of-one-lane": (
        PORT_INFO.format(state="Active", physical="LinkUp", width="1X"),
        [("ctr-rate-downshift", "warning", "the link of LID 4 port 1 runs at 1X HDR and supports 4X HDR")],
    ),
    "a-link-of-a-split-port": (PORT_INFO.format(state="Active", physical="LinkUp", width="2X"), []),
    "a-port-that-was-switched-off": (
        PORT_INFO.format(state="Down", physical="Disabled", width="4X"),
        [("ctr-all-ports-down", "warning", "LID 4 port 1 is down (Disabled)")],
    ),
    "ucc-has-no-connection": (
        UCC.format(level="ERROR", message="ucp returned connect error: Destination is unreachable"),
        [("ucx-failed", "error", "process 41887 on gpu-a012: UCC failed: ucp returned connect error")],
    ),
    "ucc-takes-another-algorithm": (
        UCC.format(level="ERROR", message="asymmetric src/dst memory types are not supported yet"),
        [("ucx-failed", "info", "UCC failed: asymmetric src/dst memory types are not supported yet")],
    ),
    "ucc-debugs": (UCC.format(level="DEBUG", message="failed to find a team"), []),
    "rocm-smi-counts-errors-of-links": (
        ROCM.format(errors=2),
        [("amd-gpu-conditions", "warning", "AMD GPU 0: links to other GPUs (XGMI) counted errors")],
    ),
    "amd-smi-counts-errors-on-one-line": (
        '[{"gpu": 0, "ecc": {"total_uncorrectable_count": 0}}, {"gpu": 3, "ecc": {"total_uncorrectable_count": 3}}]\n',
        [("amd-memory-errors", "warning", "AMD GPU 3: 3 memory errors that could not be corrected")],
    ),
    "amd-smi-lists-a-page-that-stays": (
        "GPU: 3\n    RETIRED: No bad pages found.\n    UN_RES:\n        STATUS: UNRESERVABLE\n",
        [("amd-memory-errors", "warning", "AMD GPU 3: 1 page of bad memory that cannot be taken out of use")],
    ),
    "amd-smi-lists-no-page": ("GPU: 3\n    RETIRED: No bad pages found.\n    PENDING: No bad pages found.\n", []),
    "switch-ports-are-paused-by-the-host-behind": (
        PFC.format(time="10:00:00", frames="1,200") + PFC.format(time="11:00:00", frames="3,400,444"),
        [("switch-pfc-frames", "warning", "the most: leaf-4 Ethernet0 received 3,399,244 in priority 3")],
    ),
    "switch-ports-were-paused-on-another-day": (
        PFC.format(time="10:00:00", frames="1,200") + PFC.format(time="11:00:00", frames="1,200"),
        [],
    ),
    "rocm-smi-counts-none": (ROCM.format(errors=0), []),
    "clocks-were-lowered-and-are-not-now": (
        SAMPLES.format(name="clocks_event_reasons_hw_thermal_slowdown", first=1, last=0),
        [],
    ),
    "a-gpu-registers-with-the-fabric": (SAMPLES.format(name="fabric_state", first=2, last=3), []),
    "a-gpu-does-not-register-with-the-fabric": (
        SAMPLES.format(name="fabric_state", first=2, last=2),
        [("gpu-metric-faults", "warning", "GPU-c8f1d2aa: not registered with the fabric of NVLink")],
    ),
    "a-tuner-does-not-know-an-algorithm": (
        TUNER.format(name="Ring"),
        [
            (
                "tuner-table-unused",
                "warning",
                "the table of a tuner plugin has rows with names that the plugin does not know",
            )
        ],
    ),
    "a-tuner-knows-its-table": (TUNER.format(name="nvls_tree"), []),
    "ps-shows-a-process-that-waits-in-the-kernel": (
        "    PID STAT WCHAN                          COMMAND\n  41887 Dl   folio_wait_bit_common          python3\n",
        [("process-states", "warning", "process 41887: waits in the kernel, and cannot be interrupted (state D)")],
    ),
    "ps-shows-a-process-that-sleeps": (
        "    PID STAT WCHAN                          COMMAND\n  41887 Sl   futex_wait_queue               python3\n",
        [],
    ),
    "ps-shows-a-process-that-ended": (
        "alice      41888   41801  0 10:01 ?        00:31:02 [python3] <defunct>\n",
        [("process-states", "warning", "process 41888: ended, and its parent has not noticed")],
    ),
    "ethtool-picks-without-an-interface": (
        "     rx_discards_phy: 1201\n     link_down_events_phy: 2\n",
        [("ctr-need-delta", "info", "1 port has counted errors, at an unknown time")],
    ),
    "vllm-tests-access-between-gpus": (
        f"WARNING 03-02 11:04:57 [custom_all_reduce.py:137] {NO_ACCESS}\n",
        [("stated-failure", "warning", "vLLM or SGLang goes without its own all-reduce")],
    ),
    "gpu-wants-a-reset": (
        (
            "Mar  2 11:04:57 gpu-a012 kernel: NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: Reset required "
            "[NV_ERR_RESET_REQUIRED] (0x00000062) returned from _send(pGpu) @ gpu_user_shared_data.c:151\n"
        ),
        [
            (
                "kernel-driver-reports",
                "warning",
                "the NVIDIA driver on gpu-a012 refuses work for a GPU until it is reset",
            )
        ],
    ),
    "lost-gpu-says-it-once": (
        """\
NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.
NVRM: _threadNodeCheckTimeout: API_GPU_ATTACHED_SANITY_CHECK failed!
NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from x @ y:1
""",
        [("cuda-gpu-fault", "error", "Xid 79")],
    ),
    "call-of-the-driver-that-failed": (
        (
            "[ 12.9] NVRM: nvCheckOkFailedNoLog: Check failed: Requested object not found [NV_ERR_OBJECT_NOT_FOUND] "
            "(0x00000057) returned from x(pGpu) @ y.c:12\n"
        ),
        [("kernel-driver-statements", "info", "Requested object not found")],
    ),
    "nvlink-error-of-a-named-process": (
        (
            "[ 12.9] NVRM: Xid (PCI:0019:01:00): 145, pid=876766, name=ray::Trainer, RLW_RXPIPE Nonfatal XC0 i0 "
            "Link 12 (0x040980c2 0x00000008)\n"
        ),
        [("kernel-xid", "info", "GPU 0019:01:00.0: Xid 145, NVLink error (it goes on)")],
    ),
    "soft-lockup-of-a-kernel-thread": (
        "[ 12.9] watchdog: BUG: soft lockup - CPU#41 stuck for 22s! [kworker/41:1H:258]\n",
        [("kernel-driver-reports", "warning", "was stuck in the kernel for 22 s (soft lockup, kworker/41)")],
    ),
    "amd-power-controller": (
        "[442366.4] amdgpu:\n                 failed to send message 200 ret is 0\n",
        [("kernel-driver-reports", "warning", "the power controller (SMU) of an AMD GPU")],
    ),
    "nic-does-not-send": (
        "[ 12.9] mlx5_core 0000:c1:00.0 ens1np0: TX timeout detected\n",
        [("kernel-port-reports", "warning", "ens1np0: the NIC did not send what it was given")],
    ),
    "slot-gives-little-power": (
        "[ 12.9] mlx5_core 0000:5e:00.0: Detected insufficient power on the PCIe slot (27W).\n",
        [("kernel-driver-reports", "info", "the PCIe slot of NIC 0000:5e:00.0 says that it gives 27 W")],
    ),
    "inforom-corrupted": (
        "WARNING: infoROM is corrupted at gpu 0008:00:00.0\n",
        [("stated-failure", "warning", "the InfoROM of a GPU is corrupted")],
    ),
    "shared-memory-of-a-container": (
        "shm              64M     0   64M   0% /dev/shm\n",
        [("file-system-full", "info", "/dev/shm has the default size of containers, 64 MB")],
    ),
    "space-is-left": ("/dev/sda1      ext4  1922728752 1822728752         0  99% /\n", []),
    "images-are-full": ("/dev/loop3       64M   64M     0 100% /snap/core20/1974\n", []),
    "no-inode-is-left": (
        "Filesystem  Inodes  IUsed  IFree IUse% Mounted on\n/dev/mapper/vg_a-root\n     6275072 6275072   0  100% /\n",
        [("file-system-full", "warning", "the file system / has no inode left")],
    ),
    "limits-of-a-process": (
        """\
Max open files            100                  524288               files
Max locked memory         unlimited            unlimited            bytes
""",
        [("low-limits", "warning", "a process may open 100 files")],
    ),
    "a-limit-that-is-a-huge-number": ("max locked memory       (kbytes, -l) 9007199254740993000\n", []),
    "limits-that-are-high": ("open files      (-n) 1024\nmax locked memory       (kbytes, -l) 65536000\n", []),
    "rate-that-falls": (
        LINK_TEST + " 65536      403504           0.00               25.92                0.080701\n",
        [("bench-link-rate-varies", "info", "the rate of mlx5_0 changes between 3.2 GB/s and 5.3 GB/s in one test")],
    ),
    "rate-that-stays": (LINK_TEST + " 65536      403504           0.00               40.02        0.080701\n", []),
    "steps-of-a-tool": ("ibwarn: [168988] umad_init: umad_init\nibwarn: [168988] umad_get_ca: ca_name mlx4_0\n", []),
    "gpu-outside-the-fabric": (
        "    Fabric\n        State                             : In Progress\n        Status       : N/A\n",
        [("gpu-not-in-fabric", "warning", "not registered with the fabric of NVLink")],
    ),
    "gpu-with-fewer-links-to-the-fabric": (
        (
            "\t\t<fabric>\n\t\t\t<state>Completed</state>\n\t\t\t<status>Success</status>\n\t\t\t<health>\n"
            "\t\t\t\t<summary>Limited Capacity</summary>\n\t\t\t\t<bandwidth>Full</bandwidth>\n"
        ),
        [("gpu-fabric-unhealthy", "warning", "its connection to the fabric of NVLink is not healthy")],
    ),
    "gpu-with-all-links-to-the-fabric": (
        (
            "\t\t<fabric>\n\t\t\t<state>Completed</state>\n\t\t\t<status>Success</status>\n\t\t\t<health>\n"
            "\t\t\t\t<summary>Healthy</summary>\n\t\t\t\t<bandwidth>Full</bandwidth>\n"
            "\t\t\t\t<incorrect_configuration>None</incorrect_configuration>\n"
        ),
        [],
    ),
    "gpu-in-the-fabric": (
        "    Fabric\n        State                             : Completed\n        Status       : Success\n",
        [],
    ),
    "most-gpus-of-a-board-lack-links": (
        NVLINK_LIST.format(model="Tesla V100-SXM2-32GB"),
        [("nvlink-count-differs", "warning", "GPU1, GPU2: NVLinks are down")],
    ),
    "switch-ports-lose-packets": (
        SWITCH_HEAD + SWITCH_ROW.format(port=0, lost="9,268,210") + SWITCH_ROW.format(port=4, lost="0"),
        [
            (
                "switch-interface-losses",
                "info",
                "1 of 2 switch ports lost packets; the most: Ethernet0: 9,268,210 packets",
            )
        ],
    ),
    "switch-ports-lose-none": (SWITCH_HEAD + SWITCH_ROW.format(port=0, lost="0"), []),
    "most-cards-without-a-bridge": (NVLINK_LIST.format(model="NVIDIA A100-PCIE-40GB"), []),
    "memory-error-told-by-firmware": (
        FIRMWARE.format(severity="recoverable"),
        [("kernel-memory-errors", "warning", "1 recoverable hardware error: memory error of D2")],
    ),
    "corrected-memory-error": (
        FIRMWARE.format(severity="corrected"),
        [("kernel-memory-errors", "info", "1 corrected hardware error: memory error of D2")],
    ),
    "module-of-another-kernel": (
        (
            "[   71.2] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client\n"
            "[   71.2] nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)\n"
        ),
        [("stated-failure", "warning", "built against another version of a function than the kernel has: nvidia_pee")],
    ),
    "attribute-that-may-be-absent": (
        "node1:77:310 [0] NCCL INFO Attribute coll of node net not found\n",
        [("read-subsystem-gap", "info", "these logs do not show")],
    ),
    "links-of-one-gpu": (
        (
            "GPU 3: Tesla V100-SXM2-32GB (UUID: ...)\n         Link 0: 25.781 GB/s\n         Link 1: <inactive>\n"
            "         Link 2: 25.781 GB/s\n"
        ),
        [("nvlinks-inactive", "warning", "GPU 3: 1 of 3 NVLinks are not active")],
    ),
    "xid-in-a-label": (
        'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",Hostname="gpu-a012",window_size_in_ms="300000",xid="79"} 1\n',
        [("gpu-metric-faults", "warning", "GPU0: Xid 79")],
    ),
    "evicted-pod": (
        '60m  Warning  Evicted  pod/train-3  Usage of EmptyDir volume "dshm" exceeds the limit "8Gi".\n',
        [("stated-failure", "warning", 'evicted a pod, and with it its ranks: train-3: "dshm" exceeds the limit')],
    ),
}


def read(tmp_path: Path, text: str) -> Report:
    (tmp_path / "paste.txt").write_text(text)
    return analyze([str(tmp_path / "paste.txt")], everything=True)


@pytest.mark.parametrize(("text", "expected"), SHOWN.values(), ids=SHOWN)
def test_a_paste_says_what_it_shows(tmp_path: Path, text: str, expected: list[tuple[str, str, str]]) -> None:
    findings = [finding for finding in read(tmp_path, text).findings if finding.rule != "read-nothing-of-nccl"]

    assert [(finding.rule, str(finding.severity)) for finding in findings] == [found[:2] for found in expected]
    for finding, (_, severity, title) in zip(findings, expected, strict=True):
        assert title in finding.title
        assert Severity(severity) is finding.severity


def test_a_port_of_a_map_without_a_peer_is_not_called_linked(tmp_path: Path) -> None:
    text = "SW  2052 35 0x506b4b03005c2740 4x EDR - CA  1432  1 0x506b4b0300cc02a6 ( 'leaf-4' - 'gpu-a012 HCA-1' )\n"
    text += "SW  2052 37 0x506b4b03005c2740 4x SDR                                    'leaf-4'\n"
    shown = screen(read(tmp_path, f"$ ibnetdiscover -p\n{text}"), width=120, everything=True)

    assert "1 linked at 100 Gb/s, 1 with no port at the other end" in shown
    assert "with no port at the other end: leaf-4 port 37" in shown


def test_a_heading_in_prose_names_no_interface(tmp_path: Path) -> None:
    statistics = "NIC statistics:\n     link_down_events_phy: 3\n"
    report = read(tmp_path, f"# ethtool -S output\n{statistics}")

    assert report.run["host_counter"]["device"].drop_nulls().to_list() == []
    named = read(tmp_path, f"# ethtool -S storage\n{statistics}")
    assert set(named.run["host_counter"]["device"]) == {"storage"}


def test_counters_of_all_ports_of_a_node_are_called_so(tmp_path: Path) -> None:
    text = 'Errors for 0x1070fd0300370ea2 "leaf-4"\n   GUID 0x1070fd0300370ea2 port ALL: [LinkDownedCounter == 25]\n'

    assert "leaf-4 all ports" in screen(read(tmp_path, text), width=120, everything=True)


def test_statistics_below_the_driver_of_an_interface_are_of_its_device(tmp_path: Path) -> None:
    def block(bus: str, lost: int) -> str:
        return f"driver: mlx5_core\n{bus}NIC statistics:\n     rx_discards_phy: {lost}\n"

    text = block("bus-info: 0000:5e:00.0\n", 40) + block("bus-info: 0000:5e:00.1\n", 12) + block("", 13)

    counted = read(tmp_path, text).run["host_counter"].select("device", "value").rows()
    assert counted == [("0000:5e:00.0", 40), ("0000:5e:00.1", 12), (None, 13)]


def test_a_device_that_could_not_be_opened_is_told_beside_those_that_are_listed(tmp_path: Path) -> None:
    device = "hca_id:\tmlx5_1\n\tphys_port_cnt:\t1\n\t\tport:\t1\n\t\t\tstate:\tPORT_ACTIVE (4)\n"

    report = read(tmp_path, f"Failed to open device\n{device}")
    assert [(finding.severity, finding.title) for finding in report.findings] == [
        (
            Severity.WARNING,
            "ibv_devinfo could not open an RDMA device, which it does not name, so that NCCL cannot use that one",
        )
    ]
    assert read(tmp_path, device).findings == []


def test_the_host_of_a_prompt_is_that_of_the_port_that_ibstat_was_asked_for(tmp_path: Path) -> None:
    port = "CA 'mlx5_7'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tLink layer: InfiniBand\n"

    (finding,) = read(tmp_path, f"root@gpu-a012:~# ibstat mlx5_7\n{port}").findings
    assert finding.hosts == ["gpu-a012"]


@pytest.mark.parametrize(
    "text",
    [
        "$ cd /sys/class/infiniband/mlx5_1/ports/1/counters; grep . *\nlink_downed:255\nsymbol_error:0\n",
        (
            "gpu-a012:/sys/class/infiniband/mlx5_1/ports/1/counters$ head *\n"
            "==> link_downed <==\n255\n\n==> symbol_error <==\n0\n"
        ),
        "/sys/class/infiniband/mlx5_1/ports/1/counters\n=== ./link_downed ===\n255\n\n=== ./symbol_error ===\n0\n",
    ],
)
def test_counters_named_without_their_folder_are_of_the_folder_above(tmp_path: Path, text: str) -> None:
    counted = read(tmp_path, text).run["host_counter"].select("device", "port", "name", "value").rows()

    assert counted == [("mlx5_1", 1, "link_downed", 255), ("mlx5_1", 1, "symbol_error", 0)]
