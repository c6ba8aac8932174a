"""Dumps of machines: matrices in every layout, NCCL's XML, lspci, lsmod; broken ones yield what they hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics import analyze
from ncclforensics.analyses.host.dump_assembly import TOO_LARGE
from ncclforensics.report.build import Report
from ncclforensics.views.json_report import as_object
from ncclforensics.views.text_report import text as as_text
from tests.budget import examples
from tests.incidents import INCIDENTS

Json = dict[str, Any]
Pair = tuple[str, str]

# Two GPUs and two NICs to a socket.
GPUS = ("GPU0", "GPU1", "GPU2", "GPU3")
NICS = ("NIC0", "NIC1")
WAYS: dict[Pair, str] = {
    ("GPU0", "GPU1"): "NV12",
    ("GPU0", "GPU2"): "SYS",
    ("GPU0", "GPU3"): "SYS",
    ("GPU1", "GPU2"): "SYS",
    ("GPU1", "GPU3"): "SYS",
    ("GPU2", "GPU3"): "NV12",
    ("GPU0", "NIC0"): "PXB",
    ("GPU0", "NIC1"): "SYS",
    ("GPU1", "NIC0"): "NODE",
    ("GPU1", "NIC1"): "SYS",
    ("GPU2", "NIC0"): "SYS",
    ("GPU2", "NIC1"): "PXB",
    ("GPU3", "NIC0"): "SYS",
    ("GPU3", "NIC1"): "NODE",
    ("NIC0", "NIC1"): "SYS",
}
BOTH: dict[Pair, str] = WAYS | {(b, a): way for (a, b), way in WAYS.items()}
CPUS = {"GPU0": "0-31,64-95", "GPU1": "0-31,64-95", "GPU2": "32-63,96-127", "GPU3": "32-63,96-127"}
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
HEADS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


def rows(devices: tuple[str, ...] = (*GPUS, *NICS), own: str = " X ", *, more: bool = True) -> list[list[str]]:
    """The matrix as cells: the line of columns, and a line for each device."""
    lines = [["", *devices, *(HEADS if more else ())]]
    for one in devices:
        tail = [CPUS[one], str(GPUS.index(one) // 2), "", "N/A"] if one in CPUS else ["", "", ""]
        lines.append([one, *(own if one == other else BOTH[one, other] for other in devices), *(tail if more else [])])
    return lines


def tabs(lines: list[list[str]]) -> str:
    """As nvidia-smi prints it: tabs between the cells, the line of columns underlined."""
    head = "\t\x1b[4m" + "\t".join(lines[0][1:]) + "\x1b[0m"
    return "\n".join([head, *("\t".join(line) for line in lines[1:])]) + "\n"


def blanks(lines: list[list[str]]) -> str:
    """As a terminal shows it, copied."""
    return "".join("".join(f"{cell:7} " for cell in line).rstrip() + "\n" for line in lines)


def collapsed(lines: list[list[str]]) -> str:
    """Through a tool that squeezes blanks."""
    return "".join(" ".join(" ".join(line).split()) + "\n" for line in lines)


def windows(lines: list[list[str]]) -> str:
    return blanks(lines).replace("\n", "\r\n")


def tagged(lines: list[list[str]]) -> str:
    """As pdsh collects it."""
    return "".join(f"gpu-a012: {line}\n" for line in tabs(lines).splitlines())


def prompted(lines: list[list[str]]) -> str:
    return "ops@gpu-a012:~$ nvidia-smi topo -m\n" + tabs(lines)


LAYOUTS = (tabs, blanks, collapsed, windows, tagged, prompted)
NAMED = ("GPU0", "GPU1", "GPU2", "GPU3", "mlx5_0", "mlx5_1")


def reported(tmp_path: Path, *dumps: str, everything: bool = True) -> Report:
    for number, dump in enumerate(dumps):
        (tmp_path / f"dump{number}").write_bytes(dump.encode())
    return analyze([str(tmp_path)], everything=everything)


def pairs(report: Report, table: str = "path") -> dict[Pair, str]:
    frame = report.run["device_pair"].filter(pl.col("table") == table)
    return {(a, b): way for a, b, way in frame.select("device", "other", "path").iter_rows()}


def problems(report: Report) -> list[str]:
    return [problem for each in report.run.inputs for problem in report.problems(each.number)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("more", [True, False], ids=["with CPUs", "without"])
def test_a_matrix_is_the_same_in_every_layout(
    layout: Callable[[list[list[str]]], str], more: bool, tmp_path: Path
) -> None:
    report = reported(tmp_path, layout(rows(more=more)))

    assert pairs(report) == BOTH
    assert [(row["gpus"], row["nics"]) for row in as_object(report)["topology"]] == [(4, 2)]
    assert problems(report) == []
    if more:
        devices = report.run["machine_device"]
        assert dict(devices.filter(kind="gpu").select("device", "cpus").iter_rows()) == CPUS
        assert devices.filter(kind="gpu")["numa"].to_list() == ["0", "0", "1", "1"]


def test_nics_have_the_names_of_the_legend(tmp_path: Path) -> None:
    report = reported(tmp_path, tabs(rows()) + LEGEND)

    assert report.run["machine_device"].filter(kind="nic")["name"].to_list() == ["mlx5_0", "mlx5_1"]
    assert as_object(report)["inputs"][0]["unrecognised"] == 0


def test_old_drivers_name_nics_in_the_columns(tmp_path: Path) -> None:
    lines = [[cell.replace("NIC", "mlx5_") for cell in line] for line in rows()]
    report = reported(tmp_path, tabs(lines))

    assert pairs(report)["GPU2", "mlx5_1"] == "PXB"
    assert as_object(report)["topology"][0]["nics"] == 2


def test_a_single_gpu_has_no_pairs(tmp_path: Path) -> None:
    report = reported(
        tmp_path, "\t\x1b[4mGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \t0-15\t0\t\tN/A\n"
    )

    assert pairs(report) == {}
    assert as_object(report)["topology"] == [{"path": str(tmp_path / "dump0"), "gpus": 1, "nics": 0}]


def test_peer_access_belongs_to_the_matrix_of_the_same_machine(tmp_path: Path) -> None:
    access = "\tGPU0\tGPU1\tGPU2\tGPU3\n" + "".join(
        f" {one}\t" + "\t".join("X" if one == other else "CNS" if "GPU3" in (one, other) else "OK" for other in GPUS)
        + "\n" for one in GPUS
    )  # fmt: skip
    report = reported(tmp_path, tabs(rows()) + "$ nvidia-smi topo -p2p w\n" + access)

    assert len(as_object(report)["topology"]) == 1
    assert pairs(report) == BOTH
    assert pairs(report, "p2p w")["GPU3", "GPU0"] == "CNS"
    assert pairs(report, "p2p w")["GPU0", "GPU1"] == "OK"


@pytest.mark.parametrize(("what", "told_of"), [("r", ["p2p"]), ("w", ["p2p"]), ("p", []), ("a", [])])
def test_only_reading_and_writing_must_be_allowed_over_nvlink(what: str, told_of: list[str], tmp_path: Path) -> None:
    refused = "\tGPU0\tGPU1\n GPU0\tX\tNS\n GPU1\tNS\tX\n"
    report = reported(tmp_path, tabs(rows(GPUS[:2])) + f"$ nvidia-smi topo -p2p {what}\n" + refused)

    assert [finding.category for finding in report.findings] == told_of


def test_a_second_matrix_is_a_second_dump(tmp_path: Path) -> None:
    report = reported(tmp_path, tabs(rows()) + LEGEND + tabs(rows(GPUS)))

    assert [(row["gpus"], row["nics"]) for row in as_object(report)["topology"]] == [(4, 2), (4, 0)]


def rocm(title: str, own: str, other: str) -> str:
    lines = [f"================================ {title} ================================"]
    lines += ["       " + "".join(name.ljust(13) for name in GPUS)]
    for one in GPUS:
        lines += [one.ljust(7) + "".join((own if one == name else other).ljust(13) for name in GPUS)]
    return "\n".join(lines) + "\n\n"


def test_the_tables_of_rocm_smi_are_one_dump(tmp_path: Path) -> None:
    text = (
        "============================ ROCm System Management Interface ============================\n"
        + rocm("Weight between two GPUs", "0", "15")
        + rocm("Hops between two GPUs", "0", "1")
        + rocm("Link Type between two GPUs", "0", "XGMI")
        + "======================================= Numa Nodes =======================================\n"
        + "".join(f"GPU[{n}]\t\t: (Topology) Numa Node: {n // 2}\n" for n in range(4))
        + "================================== End of ROCm SMI Log ===================================\n"
    )
    report = reported(tmp_path, text)

    assert [(row["gpus"], row["nics"]) for row in as_object(report)["topology"]] == [(4, None)]
    assert set(pairs(report, "type").values()) == {"XGMI"}
    assert set(pairs(report, "weight").values()) == {"15"}
    assert problems(report) == []


def test_a_log_with_a_matrix_in_it_stays_a_log(tmp_path: Path) -> None:
    folder = INCIDENTS / "shared-memory-beside-nvlink"
    log = (folder / "h100-01.rank0.log").read_text()
    report = reported(tmp_path, tabs(rows()) + log)

    assert as_object(report)["inputs"][0]["kind"] == "nccl-log"
    assert pairs(report) == BOTH


# Broken matrices.


def test_without_the_columns_the_rows_tell_them(tmp_path: Path) -> None:
    report = reported(tmp_path, "\n".join(tabs(rows()).split("\n")[1:]))

    assert pairs(report) == BOTH
    assert problems(report) == ["matrix at line 1: the line that names the columns is missing"]


def test_a_missing_row_is_named(tmp_path: Path) -> None:
    lines = rows()
    report = reported(tmp_path, tabs(lines[:3] + lines[4:]))

    assert pairs(report) == {pair: way for pair, way in BOTH.items() if pair[0] != "GPU2"}
    assert problems(report) == ["matrix at line 1: rows are missing: GPU2"]


def test_misplaced_cells_are_ignored(tmp_path: Path) -> None:
    lines = rows()
    del lines[3][1]  # of GPU2: all its cells move to the left
    report = reported(tmp_path, tabs(lines))

    assert pairs(report) == {pair: way for pair, way in BOTH.items() if pair[0] != "GPU2"}
    assert problems(report) == ["matrix at line 4: the cells of GPU2 do not stand below their columns"]


def test_a_row_that_is_cut_keeps_its_first_cells(tmp_path: Path) -> None:
    lines = rows(more=False)
    lines[2] = lines[2][:5]
    report = reported(tmp_path, tabs(lines))

    assert pairs(report) == {pair: way for pair, way in BOTH.items() if pair not in {("GPU1", nic) for nic in NICS}}
    assert problems(report) == ["matrix at line 3: GPU1 has 4 of 6 cells"]


# NCCL's XML.


def xml() -> str:
    """Two GPUs, each with a NIC on its own PCIe switch, on two sockets; NVLinks lead to an NVSwitch."""
    lines = ['<system version="1">']
    for n in range(2):
        bus = f"0000:{n + 1}"
        lines += [
            f'  <cpu numaid="{n}" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">',
            f'    <pci busid="{bus}0:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">',
            f'      <pci busid="{bus}1:00.0" class="0x030200" device="0x2330" link_speed="32 GT/s" link_width="16">',
            f'        <gpu dev="{n}" sm="90" rank="{n}" gdr="1">',
            '          <nvlink target="0000:05:00.0" count="18" tclass="0x068000"/>',
            "        </gpu>",
            "      </pci>",
            f'      <pci busid="{bus}2:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">',
            "        <nic>",
            f'          <net name="mlx5_{n}" dev="{n}" speed="400000" port="1" latency="0.0" guid="0x{n}" gdr="1"/>',
            "        </nic>",
            "      </pci>",
            "    </pci>",
            "  </cpu>",
        ]
    return "\n".join([*lines, "</system>"]) + "\n"


XML_PAIRS = {
    ("GPU0", "GPU1"): "NV18",
    ("GPU1", "GPU0"): "NV18",
    ("GPU0", "mlx5_0"): "PIX",
    ("GPU0", "mlx5_1"): "SYS",
    ("GPU1", "mlx5_0"): "SYS",
    ("GPU1", "mlx5_1"): "PIX",
}


@pytest.mark.parametrize(
    "write",
    [
        lambda text: text,
        lambda text: "".join(line.strip() for line in text.splitlines()),
        lambda text: "".join(line.strip() for line in text.splitlines()) + "\n",
        lambda text: text.replace("    ", "\t"),
        lambda text: '<?xml version="1.0"?>\n' + text,
        lambda text: "<!--\nA machine of some kind.\n<gpu dev=\"7\"/>\n-->\n" + text,
        lambda text: text.replace("</gpu>", "</gpu> <!-- a GPU -->"),
    ],
    ids=["pretty", "minified", "minified, ended", "tabs", "prologue", "comment", "comments"],
)  # fmt: skip
def test_nccls_xml_is_the_same_however_it_is_written(write: Callable[[str], str], tmp_path: Path) -> None:
    report = reported(tmp_path, write(xml()))

    assert pairs(report) == XML_PAIRS
    assert as_object(report)["inputs"][0]["kind"] == "topology"
    assert [(row["gpus"], row["nics"]) for row in as_object(report)["topology"]] == [(2, 2)]
    assert problems(report) == []


def test_a_file_for_a_kind_of_machine_names_devices_by_their_class_only(tmp_path: Path) -> None:
    bare = "\n".join(
        line.replace(".0 GT/s PCIe", " GT/s") for line in xml().splitlines() if "<pci" in line or "<cpu" in line
    )
    closed = bare.replace('">', '"/>').replace('modelid="143"/>', 'modelid="143">')
    report = reported(tmp_path, '<system version="1">\n' + closed + "\n</system>\n")

    assert [(row["gpus"], row["nics"]) for row in as_object(report)["topology"]] == [(2, 2)]


def test_graphs_name_the_gpus_and_no_nics(tmp_path: Path) -> None:
    channel = "".join(f'<gpu dev="{n}"/>' for n in range(4))
    graph = f'<graph id="0" pattern="4" nchannels="2"><channel>{channel}</channel><channel>{channel}</channel></graph>'
    report = reported(tmp_path, f'<graphs version="1">{graph}</graphs>\n')

    assert [(row["gpus"], row["nics"]) for row in as_object(report)["topology"]] == [(4, None)]


BOMB = """<?xml version="1.0"?>
<!DOCTYPE system [
  <!ENTITY a "aaaaaaaaaa">
  <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
  <!ENTITY f SYSTEM "file:///etc/hostname">
]>
"""


def test_entities_in_xml_are_reported_and_not_expanded(tmp_path: Path) -> None:
    stranger = xml().replace('name="mlx5_1"', 'name="&b;"').replace('guid="0x0"', 'guid="&f;"')
    report = reported(tmp_path, BOMB + stranger)

    shown = as_text(report, everything=True)
    assert "aaaaaaaaaa" not in shown
    assert pairs(report) == {pair: way for pair, way in XML_PAIRS.items() if pair[0][:3] == pair[1][:3]}
    assert problems(report) == [
        "XML at line 2: declares entities, which are not expanded",
        "XML at line 17: refers to an entity, which is not expanded",
    ]


def test_truncated_xml_gives_the_elements_before_the_cut(tmp_path: Path) -> None:
    report = reported(tmp_path, xml()[: xml().index("mlx5_1") + 3])

    assert pairs(report)["GPU0", "GPU1"] == "NV18"
    assert problems(report) == ["XML at line 1: ends inside <nic>"]


@pytest.mark.parametrize(("gpus", "is_machine"), [(72, True), (300, False)])
def test_xml_of_more_gpus_than_a_machine_has_gives_no_paths(gpus: int, is_machine: bool, tmp_path: Path) -> None:
    devices = [
        f'<pci busid="{n:04x}:1b:00.0" class="0x030200"><gpu dev="{n}" sm="90" rank="{n}"/></pci>' for n in range(gpus)
    ]
    report = reported(tmp_path, f'<system version="1"><cpu numaid="0">\n{"".join(devices)}\n</cpu></system>\n')

    assert len(pairs(report)) == (gpus * (gpus - 1) if is_machine else 0)
    assert problems(report) == ([] if is_machine else [f"XML at line 1: {TOO_LARGE}"])


def test_xml_that_is_nested_deeply_is_read_in_part(tmp_path: Path) -> None:
    nested = "".join(f'<pci busid="{number:x}">\n' for number in range(5000))
    report = reported(tmp_path, xml().replace("</system>", nested))

    assert pairs(report)["GPU0", "GPU1"] == "NV18"
    assert any("elements nested more than 100 deep are left out" in problem for problem in problems(report))


def test_links_that_two_ends_count_differently_are_an_oddity(tmp_path: Path) -> None:
    switch = 'target="0000:05:00.0" count="18" tclass="0x068000"'
    text = xml().replace(switch, 'target="0000:21:00.0" count="1" tclass="0x030200"', 1)
    text = text.replace(switch, 'target="0000:11:00.0" count="12" tclass="0x030200"')
    report = reported(tmp_path, text)

    (finding,) = report.findings
    assert (finding.rule, finding.detail) == ("nvlink-count-differs", "NV1 from GPU0, NV12 from GPU1")
    assert [line["text"][:8] for line in report.evidence(finding)] == ["<nvlink ", "<nvlink "]


# Whose machine it is.


@pytest.mark.parametrize(
    ("text", "host"),
    [
        (prompted(rows()), "gpu-a012"),
        (tagged(rows()), "gpu-a012"),
        ("[root@gpu-a012 ~]# nvidia-smi topo -m\n" + tabs(rows()), "gpu-a012"),
        ("$ nvidia-smi topo -m\n" + tabs(rows()), None),
        (tabs(rows()), None),
    ],
)
def test_a_host_is_known_from_a_prompt_or_a_tag_and_never_from_a_file(
    text: str, host: str | None, tmp_path: Path
) -> None:
    (tmp_path / "gpu-a012.topo.txt").write_text(text)
    report = analyze([str(tmp_path)], everything=True)

    assert report.run["dump"]["host"].to_list() == [host]


def test_a_dump_without_a_host_says_nothing_about_a_job(tmp_path: Path) -> None:
    folder = INCIDENTS / "shared-memory-beside-nvlink"
    for file in folder.glob("*.log"):
        text = file.read_text().replace("ops@h100-01:~$ ", "$ ")
        (tmp_path / file.name).write_text(text)
    report = analyze([str(tmp_path)], everything=True)

    assert report.run["dump"].height == 1
    assert [finding.rule for finding in report.findings if finding.category == "p2p"] == []


# What lies on the bus, and in the kernel.


def test_lspci_names_gpus_nics_and_their_links(tmp_path: Path) -> None:
    text = (
        "10:00.0 PCI bridge [0604]: Broadcom / LSI PEX890xx [1000:c030] (rev b0)\n"
        "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
        "11:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n"
        "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)\n"
        "12:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 [ConnectX-7] [15b3:1021]\n"
        "13:00.0 VGA compatible controller [0300]: ASPEED Technology, Inc. ASPEED Graphics Family [1a03:2000]\n"
        "14:00.0 Bridge [0680]: NVIDIA Corporation Device [10de:22a3] (rev a1)\n"
    )
    report = reported(tmp_path, text)
    devices = report.run["machine_device"]

    assert devices.select("kind", "device").rows() == [
        ("bridge", "10:00.0"), ("gpu", "11:00.0"), ("nic", "12:00.0"), ("switch", "14:00.0"),
    ]  # fmt: skip
    assert devices.filter(kind="gpu").select("speed", "width", "speed_can", "width_can").row(0) == (2.5, 8, 32.0, 16)
    assert devices.filter(kind="bridge")["is_redirecting"].to_list() == [True]


def test_the_link_of_a_device_of_another_kind_is_not_that_of_the_nic_above(tmp_path: Path) -> None:
    text = ""
    for place in ("1b:00.0", "1b:00.1", "9d:00.0", "9d:00.1"):
        text += f"{place} Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]\n"
        text += "\t\tLnkSta:\tSpeed 16GT/s (ok), Width x16 (ok)\n"
    text += "9e:00.0 Serial Attached SCSI controller: Broadcom / LSI PCIe Switch management endpoint (rev b0)\n"
    text += "\t\tLnkSta:\tSpeed 32GT/s (ok), Width x16 (ok)\n"
    report = reported(tmp_path, text)

    assert report.run["machine_device"]["speed"].unique().to_list() == [16.0]
    assert report.findings == []


@pytest.mark.parametrize(("alike", "severity"), [(1, "info"), (3, "warning")])
def test_one_narrow_link_of_two_is_no_fault_yet(alike: int, severity: str, tmp_path: Path) -> None:
    text = ""
    for place in range(alike + 1):
        text += f"{place + 1}0:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 80GB] [10de:20b5]\n"
        text += f"\t\tLnkSta:\tSpeed 16GT/s, Width x{16 if place else 8}\n"
    report = reported(tmp_path, text)

    assert [(finding.rule, finding.severity) for finding in report.findings] == [("topo-narrow-pcie", severity)]


def test_the_tree_of_lspci_does_not_count_gpus(tmp_path: Path) -> None:
    text = "-+-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4\n"
    text += " |           +-01.1-[c1]----00.0  NVIDIA Corporation AD102GL [RTX 6000 Ada Generation]\n"

    assert as_object(reported(tmp_path, text))["topology"][0]["gpus"] is None


def test_lsmod_is_complete_only_with_its_header(tmp_path: Path) -> None:
    head = "Module                  Size  Used by\next4                  737280  2\n"
    few = "ops@node-a:~$ lsmod | grep nv\nnvidia              56713216  212 nvidia_uvm\n"
    report = reported(tmp_path, few, head + "nvidia_peermem         16384  0\n")

    assert report.run["loaded_module"].select("host", "module", "is_listing").rows() == [
        ("node-a", "nvidia", False), (None, "nvidia_peermem", True),
    ]  # fmt: skip


def test_nvlinks_are_counted(tmp_path: Path) -> None:
    text = ""
    for gpu in range(2):
        text += f"GPU {gpu}: NVIDIA A100-SXM4-80GB (UUID: GPU-2f1a6c3e-0b8d-4d2e-9a51-7c40a1b2c3d{gpu})\n"
        text += "".join(f"\t Link {n}: {'25 GB/s' if n or gpu else '<inactive>'}\n" for n in range(12))
        text += "".join(f"\t Link {n}: CRC Errors: {gpu}\n" for n in range(12))
    report = reported(tmp_path, text)

    assert report.run["gpu_link"].select("device", "links", "down", "errors").rows() == [
        ("GPU0", 11, 1, 0), ("GPU1", 12, 0, 12),
    ]  # fmt: skip
    assert [finding.rule for finding in report.findings] == ["nvlink-count-differs"]


def test_the_table_marks_outliers() -> None:
    folder = INCIDENTS / "nvlinks-of-one-gpu-are-down"
    shown = as_text(analyze([str(folder / "gpu-a012.topology.log")], everything=True), everything=True)

    assert "MACHINE gpu-a012" in shown
    assert "GPU5  NV12 !" in shown
    assert "GPU0  NV18; NV12 ! to GPU5  PXB mlx5_0" in shown


# Whatever becomes of a dump.


@cache
def dumps() -> list[str]:
    files = [INCIDENTS / "a-gpu-on-eight-lanes" / "gpu-a013.lspci.log"]
    whole = [tabs(rows()) + LEGEND, xml(), BOMB + xml(), rocm("Link Type between two GPUs", "0", "XGMI")]
    return [*whole, *(file.read_text() for file in files)]


@given(data=st.data())
@examples(5, with_fixtures=True)
def test_a_mangled_dump_raises_no_error(data: st.DataObject, tmp_path: Path) -> None:
    text = data.draw(st.sampled_from(dumps()))
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, max(len(text) - 1, 0)))
        stop = start + data.draw(st.integers(0, 40))
        put = data.draw(
            st.sampled_from(["", "\n", " ", "\t", "<", ">", '"', "&x;", "-->", "GPU3 X", text[start:stop] * 2])
        )
        text = text[:start] + put + text[stop:]
    (tmp_path / "dump").write_text(text)

    report = analyze([str(tmp_path / "dump")], everything=True)

    given_ = as_object(report)["inputs"][0]
    assert given_["lines"] == text.count("\n") + (bool(text) and not text.endswith("\n"))
    assert as_text(report, everything=True)
