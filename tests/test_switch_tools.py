"""Firmware as tools print it, and interfaces of switches by SNMP and SONiC: what is compared, and what stays silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Severity

FLINT = """\
# flint -d {device} q
Image type:            FS4
FW Version:            {version}
FW Release Date:       7.11.2024
Description:           UID                GuidsNumber
Base GUID:             {guid:24}4
PSID:                  MT_0000000838
Security Attributes:   secure-fw
"""
MANAGER = """\
Querying Mellanox devices firmware ...

Device #1:
----------

  Device Type:      ConnectX7
  PSID:             MT_0000000838
  PCI Device Name:  0000:5e:00.0
  Base GUID:        b8599f0300c31e12
  Versions:         Current        Available
     FW             {version}     28.45.1200
     PXE            3.7.0500       N/A

  Status:           Update required
"""
VENDSTAT = """\
# vendstat -N {lid}
hw_dev_rev:  0x00a0
hw_dev_id:   0xd2f0
fw_version:  27.2010.{sub}
fw_psid:     'MT_0000000063'
"""
IBSWINFO = """\
part number        | MQM8790-HS2F
PSID               | MT_0000000063
GUID               | 0xfc6a1c0300a01d40
firmware version   | 27.2010.0102
PSU0 status        | OK
"""
NODES_INFO = """\
START_NODES
NodeDesc,NumPorts,NodeType,NodeGUID
"MF0;leaf-4:MQM9700/U1",65,2,0xfc6a1c0300a01d40
"MF0;leaf-5:MQM9700/U1",65,2,0xfc6a1c0300a01d41
"gpu-a012 mlx5_0",1,1,0xb8599f0300c31d12
END_NODES
START_NODES_INFO
NodeGUID,FWInfo_PSID,FWInfo_Extended_Major,FWInfo_Extended_Minor,FWInfo_Extended_SubMinor
0xfc6a1c0300a01d40,MT_0000000063,0x0000001f,0x000007da,0x000007d6
0xfc6a1c0300a01d41,MT_0000000063,0x0000001f,0x000007d8,0x000007d6
0xb8599f0300c31d12,MT_0000000838,0x0000001c,0x00000027,0x000003ea
END_NODES_INFO
START_CABLE_INFO
NodeGuid,PortGuid,PortNum,Vendor,PN,Temperature
0xfc6a1c0300a01d40,0xfc6a1c0300a01d40,3,"Mellanox        ","MCP4Y10-N001    ","N/A"
END_CABLE_INFO
"""


def read(folder: Path, *texts: str) -> Report:
    names = ("before.txt", "after.txt")
    for name, text in zip(names, texts, strict=False):
        (folder / name).write_text(text)
    return analyze([str(folder)], everything=True)


def shown(report: Report) -> list[tuple[str, Severity, str, str]]:
    return [
        (found.rule, found.severity, found.title, found.detail)
        for found in report.findings
        if found.rule != "read-nothing-of-nccl"
    ]


def test_firmware_of_adapters_is_compared_by_board_over_tools(tmp_path: Path) -> None:
    own = [FLINT.format(device=f"mlx5_{nth}", version="28.39.1002", guid=f"b8599f0300c31d{nth:02}") for nth in (1, 2)]
    report = read(
        tmp_path,
        "===== gpu-a012 =====\n" + "".join(own) + "===== gpu-a013 =====\n" + MANAGER.format(version="28.35.2000"),
    )

    title, detail = (
        "firmware of MT_0000000838 differs: 28.39.1002, 28.35.2000",
        "1 of 3 do not run 28.39.1002: gpu-a013 0000:5e:00.0",
    )
    assert shown(report) == [("nic-firmware-differs", Severity.INFO, title, detail)]


def test_an_image_in_a_file_and_a_newer_one_in_an_archive_are_no_firmware_of_a_device(tmp_path: Path) -> None:
    image = FLINT.format(device="fw.bin", version="28.35.2000", guid="N/A")
    own = FLINT.format(device="mlx5_1", version="28.39.1002", guid="b8599f0300c31d01")

    assert shown(read(tmp_path, own + image + MANAGER.format(version="28.39.1002"))) == []


def test_the_same_adapter_in_two_tools_is_one(tmp_path: Path) -> None:
    before = FLINT.format(device="mlx5_1", version="28.35.2000", guid="b8599f0300c31d01")
    after = FLINT.format(device="mlx5_1", version="28.39.1002", guid="b8599f0300c31d01")

    assert shown(read(tmp_path, before + after)) == []


def test_adapters_of_two_hosts_are_two_whatever_their_guids(tmp_path: Path) -> None:
    own = [
        f"===== gpu-a01{nth} =====\n" + FLINT.format(device="mlx5_1", version=version, guid="b8599f0300c31d01")
        for nth, version in ((2, "28.35.2000"), (3, "28.39.1002"))
    ]

    ((rule, _, _, _),) = shown(read(tmp_path, "".join(own)))
    assert rule == "nic-firmware-differs"


def test_firmware_of_switches_is_compared_without_leading_zeros(tmp_path: Path) -> None:
    assert shown(read(tmp_path, VENDSTAT.format(lid=12, sub="102") + IBSWINFO)) == []
    others = VENDSTAT.format(lid=12, sub="102") + VENDSTAT.format(lid=14, sub="2006") + IBSWINFO
    ((rule, severity, _, detail),) = shown(read(tmp_path, others))
    assert (rule, severity) == ("nic-firmware-differs", Severity.INFO)
    assert detail == "1 of 3 do not run 27.2010.102: LID 14"


def test_the_tables_of_ibdiagnet_name_the_switch_with_other_firmware(tmp_path: Path) -> None:
    report = read(tmp_path, NODES_INFO)

    ((rule, _, title, detail),) = shown(report)
    assert (rule, title) == ("nic-firmware-differs", "firmware of MT_0000000063 differs: 31.2010.2006, 31.2008.2006")
    assert detail == "1 of 2 do not run 31.2010.2006: MF0;leaf-5:MQM9700/U1"
    assert report.run["line_fault"].is_empty()


def walk(seconds: int, *, by_name: bool = True, rate: int = 400_000, **growth: float) -> str:
    """A walk of eight interfaces of 400 Gb/s. `growth`: what the eighth counts a second, by object."""
    numbers = {"ifName": "31.1.1.1.1", "ifHighSpeed": "31.1.1.1.15", "ifHCOutOctets": "31.1.1.1.10",
               "ifInErrors": "2.2.1.14", "ifOutDiscards": "2.2.1.19"}  # fmt: skip
    root, quote = ("IF-MIB::", "") if by_name else ("iso.3.6.1.2.1.", '"')
    lines = ["SNMPv2-MIB::sysName.0 = STRING: leaf-4"] if by_name else ['iso.3.6.1.2.1.1.5.0 = STRING: "leaf-4"']
    lines += [f".1.3.6.1.2.1.1.3.0 = Timeticks: ({107351234 + seconds * 100}) 12 days, 10:11:52.34"]
    usual = {"ifHCOutOctets": 10e9, "ifInErrors": 0, "ifOutDiscards": 0}
    for port in range(1, 9):
        values: dict[str, str] = {
            "ifName": f"STRING: {quote}Ethernet{port * 8}{quote}",
            "ifHighSpeed": f"Gauge32: {rate}",
            **{
                name: f"Counter64: {10**12 + int(seconds * (growth.get(name, each) if port == 8 else each))}"
                for name, each in usual.items()
            },
        }
        lines += [f"{root}{name if by_name else numbers[name]}.{port} = {value}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def test_two_walks_of_a_switch_show_a_full_port_and_what_it_discards(tmp_path: Path) -> None:
    growth = {"ifHCOutOctets": 47e9, "ifOutDiscards": 926}
    for by_name in (True, False):
        report = read(tmp_path, walk(0, by_name=by_name, **growth), walk(10, by_name=by_name, **growth))

        assert sorted(row[:3] for row in shown(report)) == [
            ("switch-interface-full", Severity.INFO, "full ports of a switch: leaf-4 Ethernet64 sends 94% of the rate"),
            (
                "switch-interface-losses",
                Severity.INFO,
                "1 of 8 switch ports lost packets; the most: leaf-4 Ethernet64: 9,260 packets to send discarded",
            ),
        ]


def test_receive_errors_that_grow_are_a_warning_and_few_are_not(tmp_path: Path) -> None:
    ((_, severity, _, detail),) = shown(read(tmp_path, walk(0), walk(10, ifInErrors=1)))
    assert severity is Severity.WARNING
    assert detail == "they grew between two dumps; receive errors at leaf-4 Ethernet64: the cable or a module there"
    ((_, severity, _, _),) = shown(read(tmp_path, walk(0), walk(10, ifInErrors=0.9)))
    assert severity is Severity.INFO


def test_a_switch_under_even_load_and_one_of_unknown_rate_are_silent(tmp_path: Path) -> None:
    assert shown(read(tmp_path, walk(0, rate=88_000), walk(10, rate=88_000))) == []
    assert shown(read(tmp_path, walk(0, rate=0), walk(10, rate=0, ifHCOutOctets=47e9))) == []


def test_totals_of_one_walk_are_a_note(tmp_path: Path) -> None:
    ((rule, severity, _, detail),) = shown(
        read(tmp_path, walk(0).replace("ifOutDiscards.8 = Counter64: 1", "ifOutDiscards.8 = Counter64: 2"))
    )
    assert (rule, severity) == ("switch-interface-losses", Severity.INFO)
    assert "totals since they were cleared" in detail


OPAINFO = """\
[root@gpu-a012 ~]# opainfo
hfi1_0:1                           PortGID:0xfe80000000000000:00117501010957de
   PortState:     Active
   LinkSpeed      Act: 25Gb         En: 25Gb
   LinkWidth      Act: 4            En: 4
   LinkWidthDnGrd ActTx: {lanes}  Rx: 4   En: 3,4
   LID: 0x00000005-0x00000005       SM LID: 0x00000001 SL: 0
   Link Quality: {quality} (Good)
[root@gpu-a012 ~]# opafabricinfo
Number of Degraded Links: {links}         (HFI Links: {links}   ISLs: 0)
"""


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, []),
        ({"lanes": 3}, ["gpu-a012 hfi1_0 port 1 goes on with fewer lanes"]),
        ({"quality": 2}, ["the link of gpu-a012 hfi1_0 port 1 is of poor quality"]),
        ({"links": 1}, ["the fabric has 1 degraded link: 1 of hosts, 0 between switches"]),
    ],
)
def test_links_of_omni_path_are_named_by_their_lanes_and_quality(
    fields: dict[str, int], found: list[str], tmp_path: Path
) -> None:
    text = OPAINFO.format(**{"lanes": 4, "quality": 3, "links": 0, **fields})

    assert [title for _, _, title, _ in shown(read(tmp_path, text))] == found
