"""First screens on machines, counters and measurements: what is shown, and what of it is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics.report.summary import not_shown
from ncclforensics.views.text_screen import screen
from tests.test_first_screens import SIZES, read, shown

TYPES = """\
============================ ROCm System Management Interface ============================
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         XXXX
GPU1   XGMI         0            XGMI
GPU2   XXXX         XGMI         0
ERROR: GPU[2]   : Cannot read Link Type: Not supported on this machine
================================== End of ROCm SMI Log ===================================
"""
PATHS = "\tGPU0\tGPU1\tGPU2\tNIC0\nGPU0\t X \tNV18\t{0}\tPIX\nGPU1\tNV18\t X \tNV18\tPIX\nGPU2\t{0}\tNV18\t X \tPIX\n"
COUNTER = "/sys/class/infiniband/mlx5_{}/ports/1/counters/{}:{}\n"


def test_types_of_links_of_amd_gpus_are_shown_and_those_that_were_not_read_are_explained(tmp_path: Path) -> None:
    text = shown(read(tmp_path, TYPES))

    assert "(XXXX: rocm-smi could not read this link)" in text
    assert "GPU0 XGMI to GPU1; XXXX to GPU2" in text
    assert text.index("problem") < text.index("MACHINE")
    assert "rocm-smi of GPU 2: Cannot read Link Type" in text


@pytest.mark.parametrize(("path", "is_marked"), [("NV18", False), ("NV12", True)])
def test_the_mark_of_an_unusual_path_is_explained_where_it_stands(path: str, is_marked: bool, tmp_path: Path) -> None:
    text = shown(read(tmp_path, PATHS.format(path).expandtabs(8)))

    assert ("! differs from the others" in text) == is_marked
    assert "XXXX" not in text


def test_counters_of_unknown_age_are_named_with_the_worst_of_them(tmp_path: Path) -> None:
    ports = "".join(COUNTER.format(port, name, 3) for port in range(8) for name in ("symbol_error", "port_rcv_errors"))
    text = shown(read(tmp_path, ports + COUNTER.format(1, "link_downed", 255)))

    assert "mlx5_1 port 1: link_downed 255 (the counter's maximum) and others" in text
    assert "mlx5_0 port 1, mlx5_2 port 1 and 5 port_rcv_errors 3, symbol_error 3 more" in text


def test_each_of_several_measurements_names_its_file(tmp_path: Path) -> None:
    text = shown(read(tmp_path, *(SIZES.format(1 << 30, 1 << 28, rate) for rate in (100, 50))))

    assert "log0.txt: all_reduce on 2 ranks reaches" in text
    assert "GiB log1.txt" in text


def test_an_excerpt_without_prefixes_shows_transport_variables_and_its_end(tmp_path: Path) -> None:
    lines = ["NCCL_P2P_DISABLE=1", "Channel 00 : 1[1] -> 0[0] via SHM/direct/direct", "rank 0: test complete"]
    report = read(tmp_path, "\n".join([*lines, "rank 1: test complete"]))
    text = shown(report)

    assert "NO-HANG" in text
    assert "transports 1 SHM/direct/direct variables NCCL_P2P_DISABLE=1" in text
    assert not {"which variables were set", "what NCCL warned about"} & {
        question["question"] for question in not_shown(report.run)
    }


def test_a_cited_warning_is_not_said_to_be_absent(tmp_path: Path) -> None:
    report = read(tmp_path, "graph/xml.h: NCCL WARN Error : too many XML nodes (max 256)\n")

    assert "what NCCL warned about" not in {question["question"] for question in not_shown(report.run)}


def test_a_part_of_a_map_says_what_to_give_and_counts_switches_without_a_link(tmp_path: Path) -> None:
    rows = [
        "CA     1  1 0x0000000000000001 4x EDR - SW    10  1 0x0000000000000010 ( 'node-1 HCA-1' - 'leaf-1' )",
        "SW    10  1 0x0000000000000010 4x EDR - CA     1  1 0x0000000000000001 ( 'leaf-1' - 'node-1 HCA-1' )",
        "SW    10  2 0x0000000000000010 4x EDR - SW    20  1 0x0000000000000020 ( 'leaf-1' - 'spine-1' )",
        "SW    30  9 0x0000000000000030 4x SDR                                    'leaf-3'",
    ]
    text = " ".join(screen(read(tmp_path, "\n".join(rows)), width=100, everything=True).split())

    assert "2 switches, 1 more without a link (leaf-3)" in text
    assert "save the whole output of ibnetdiscover" in text
    assert "1 downlink " in text


def test_numa_nodes_and_what_small_messages_leave_open_are_shown(tmp_path: Path) -> None:
    lines = ["available: 2 nodes (0-1)", "node 0 cpus: 0 1 2 3 8 9", "node 0 size: 2048 MB", "node 1 cpus: 4 5"]
    text = shown(read(tmp_path, "\n".join(lines)))
    head = " RDMA_Read BW Test\n #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    of_link = shown(read(tmp_path, head + " 8          1000             0.16               0.15                 2.4\n"))

    assert "0 0-3, 8, 9 2 GiB" in text
    assert "what NCCL warned about" not in text
    assert "as small as those of RDMA_Read BW Test (up to 8 B) do not show" in of_link


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("cd /sys/class/infiniband/hfi1_0/ports/1/hw_counters\nPktDrop    134\nRcTimeOut    0\n", "PktDrop 134"),
        ("ops@gpu-a012:~$ kubectl describe pod trainer-0\nName:  trainer-0\nStatus:   Pending\n", "Status: Pending"),
    ],
)
def test_values_of_a_failure_in_unknown_outputs_are_quoted(text: str, quoted: str, tmp_path: Path) -> None:
    screen_text = shown(read(tmp_path, text))

    assert f"“{quoted}”" in screen_text
    assert text.splitlines()[0] in screen_text
    assert "without a word of a failure" not in screen_text


def test_the_host_of_the_prompt_is_named_for_a_finding_without_a_place(tmp_path: Path) -> None:
    text = (
        "[root@gpu-a012 ~]# ibstatus\nFatal error:  device '*': sys files not found (/sys/class/infiniband/*/ports)\n"
    )

    assert "below a prompt of gpu-a012" in shown(read(tmp_path, text))


def test_a_statement_is_quoted_once(tmp_path: Path) -> None:
    text = "Failed to open device\n" * 3 + "hca_id: mlx4_2\n\ttransport:\tInfiniBand (0)\n\tfw_ver:\t2.40.7000\n"

    assert shown(read(tmp_path, text)).count("Failed to open device") == 1


def test_interrupts_that_cannot_be_routed_are_no_failure_of_a_driver(tmp_path: Path) -> None:
    text = "[   98.162696] nvidia 0001:00:00.0: can't derive routing for PCI INT A\n"

    assert "derive routing" not in shown(read(tmp_path, text))
