"""Maps of fabrics: simulated faults are named and nothing else is, in every form in which maps are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.data.busbw import limit_of
from ncclforensics.rules.benchmark.limits import bench_impossible
from ncclforensics.simulate import fabric_text
from ncclforensics.simulate.fabric import FabricFault, SimulatedFabric, simulated_fabric
from ncclforensics.simulate.fabric_text import write_fabric
from ncclforensics.views.printed_report import PrintedReport
from tests.rule_rows import findings_of

RULES = {
    FabricFault.UNEVEN_UPLINKS: "fabric-uneven-uplinks",
    FabricFault.UPLINKS_MISSING: "fabric-uplinks-missing",
    FabricFault.SPINE_SHORT: "fabric-spine-short",
    FabricFault.SPINE_ABSENT: "fabric-spine-absent",
    FabricFault.OVERSUBSCRIBED: "fabric-oversubscribed",
    FabricFault.LINK_WITHIN_LEVEL: "fabric-link-within-level",
    FabricFault.CROSSED_RAILS: "fabric-rails-crossed",
    FabricFault.WRONG_LEAF: "fabric-wrong-leaf",
    FabricFault.NIC_MISSING: "fabric-nic-missing",
    FabricFault.LEAF_ABSENT: "fabric-leaf-absent",
    FabricFault.SLOW_NIC: "fabric-slow-nic",
    FabricFault.SLOW_LINK: "fabric-slow-link",
    FabricFault.UNEVEN_SPINES: "fabric-uneven-spines",
    FabricFault.HOT_UPLINK: "fabric-hot-uplink",
    FabricFault.UNEVEN_LOAD: "fabric-uneven-load",
    FabricFault.UNEVEN_ROUTES: "fabric-uneven-routes",
    FabricFault.BAD_CABLE: "fabric-pairs-share-part",
    FabricFault.BAD_LEAF: "fabric-pairs-share-part",
    FabricFault.BAD_LINK: "fabric-pairs-share-part",
}
SOON_AFTER = fabric_text.BEFORE.replace(":00 UTC", ":10 UTC")
NOTES = {"fabric-links-absent"}  # of a link that now leads elsewhere


def judged(folder: Path) -> PrintedReport:
    categories = ["topology", "congestion", "link-degraded"]
    return analyze(folder, full=True, everything=True, select=categories)


@pytest.mark.parametrize("fault", list(FabricFault))
def test_a_simulated_fault_of_a_fabric_is_named_and_nothing_else(fault: FabricFault, tmp_path: Path) -> None:
    fabric = simulated_fabric(24, 4, fault, seed=7)
    write_fabric(fabric, fault, tmp_path)

    findings = judged(tmp_path).findings

    assert {finding.rule for finding in findings} - NOTES == {RULES[fault]} if fault in RULES else not findings
    said = " ".join(f"{finding.title} {finding.detail}" for finding in findings)
    named = fabric.truth.get("host") or fabric.truth.get("switch")
    assert fault is FabricFault.LEAF_ABSENT or str(named or "") in said


def test_single_links_that_siblings_lack_hide_no_leaf_with_uneven_uplinks(tmp_path: Path) -> None:
    fabric = simulated_fabric(96, 2, FabricFault.UNEVEN_UPLINKS, seed=7)
    uneven = fabric.truth["switch"]
    siblings = [leaf for leaf in fabric.leaves.values() if fabric.nodes[leaf].name != uneven]
    for leaf, spine in zip(siblings[:3], fabric.spines[1:], strict=False):
        for port in fabric.ports_to(leaf, [spine])[:2]:
            fabric.cut(leaf, port)
    write_fabric(fabric, FabricFault.UNEVEN_UPLINKS, tmp_path)

    named = [finding.title for finding in judged(tmp_path).findings if finding.rule not in NOTES]

    assert len(named) == 1
    assert named[0].startswith(str(uneven))


def test_routes_over_half_of_the_uplinks_are_seen_where_each_serves_few_hosts(tmp_path: Path) -> None:
    fabric = simulated_fabric(96, 2, FabricFault.NONE, seed=7)
    write_fabric(fabric, FabricFault.NONE, tmp_path)
    for spines in (fabric.spines, fabric.spines[:4]):
        text = "".join(f"{line}\n" for line in fabric_text._tables(fabric, spines))
        (tmp_path / "dump_lfts.txt").write_text(text, encoding="utf-8")

        titles = [finding.title for finding in judged(tmp_path).findings]

        is_half = len(spines) < len(fabric.spines)
        assert [title.partition(":")[0] for title in titles] == is_half * [
            "routes are not spread over the uplinks of 6 of 6 leaves"
        ]


def test_loads_beyond_the_rate_of_a_link_are_of_another_time_and_give_no_share(tmp_path: Path) -> None:
    fault = FabricFault.UNEVEN_SPINES
    write_fabric(simulated_fabric(24, 4, fault, seed=7), fault, tmp_path)
    after = tmp_path / "ibqueryerrors-after.txt"
    after.write_text(after.read_text(encoding="utf-8").replace(fabric_text.AFTER, SOON_AFTER), encoding="utf-8")

    (finding,) = judged(tmp_path).findings

    assert finding.rule == RULES[fault]
    assert finding.title.count("%") == 0
    assert "GB a link" in finding.title


def test_spines_that_carry_uneven_loads_are_told_once_and_not_by_each_full_link(tmp_path: Path) -> None:
    fault = FabricFault.UNEVEN_SPINES
    fabric = simulated_fabric(96, 4, fault, seed=7)
    leaf = fabric.leaves[0, 0]
    full = (leaf, fabric.ports_to(leaf, fabric.spines[:1])[0])
    load = fabric_text._load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fabric_text, "_load", lambda *of: (0.9, 0.3) if of[2] == full else load(*of))
        write_fabric(fabric, fault, tmp_path)

    assert [finding.rule for finding in judged(tmp_path).findings] == [RULES[fault]]


def test_a_hot_uplink_names_the_hosts_that_the_table_sends_through_it(tmp_path: Path) -> None:
    fabric = simulated_fabric(24, 2, FabricFault.HOT_UPLINK, seed=7)
    write_fabric(fabric, FabricFault.HOT_UPLINK, tmp_path)
    leaf, port = fabric.truth["switch"], fabric.truth["port"]
    _, _, table = (tmp_path / "dump_lfts.txt").read_text(encoding="utf-8").partition(f"({leaf_description(leaf)})")
    own = table.partition("valid lids")[0].splitlines()
    reached = {line.split("'")[1] for line in own if f" {port:03d} :" in line}

    (finding,) = judged(tmp_path).findings

    _, _, named = finding.detail.partition("sends through it to ")
    assert reached
    assert set(named.split(" and ")[0].split(", ")) <= reached


def leaf_description(leaf: object) -> str:
    return f"MF0;{leaf}:MQM9700/U1"


def test_a_map_without_tabs_and_with_labels_of_ibdiagnet_is_the_same_map(tmp_path: Path) -> None:
    fabric = simulated_fabric(24, 2, FabricFault.UPLINKS_MISSING, seed=7)
    write_fabric(fabric, FabricFault.UPLINKS_MISSING, tmp_path / "usual")
    text = (tmp_path / "usual" / "ibnetdiscover.txt").read_text(encoding="utf-8")
    copied = text.replace("\t", "").replace("\n", "\r\n")
    labelled = "".join(
        f"[{line[1:].split(']')[0]}]({line[1:].split(']')[0]}) {line.split(chr(9), 1)[1]}"
        if line.startswith("[") and "](" not in line[:6]
        else line
        for line in text.splitlines(keepends=True)
    )
    columns = ["kind", "name", "port", "peer_name", "peer_port", "rate_Gbps"]
    usual = judged(tmp_path / "usual").frames["fabric_link"].select(columns)

    for name, other in (("copied", copied), ("labelled", labelled)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "map.txt").write_text(other, encoding="utf-8", newline="")
        assert judged(tmp_path / name).frames["fabric_link"].select(columns).equals(usual), name


WIDTHS, SPEEDS = {"1x": 1, "2x": 16, "4x": 2}, {"NDR": 2048}  # codes of ibdiagnet


def write_tables(fabric: SimulatedFabric, path: Path) -> None:
    """Write nodes, ports and links as ibdiagnet does, with some of its columns."""
    nodes, ports, links = ["NodeDesc,NumPorts,NodeType,SystemImageGUID,NodeGUID,DeviceID"], [], []
    for node in fabric.nodes.values():
        guid, kind, device = f"0x{node.guid:016x}", 1 + node.is_switch, 0xD2F2 if node.is_switch else 0x1021
        nodes.append(f'"{node.description}",{node.ports},{kind},{guid},{guid},{device}')
    for (guid, port), (peer, peer_port, width, speed) in fabric.links.items():
        lid = fabric.nodes[guid].lid
        ports.append(f"0x{guid:016x},0x{guid:016x},{port},{lid},{WIDTHS[width]},{SPEEDS[speed]},5,4")
        if (guid, port) < (peer, peer_port):
            links.append(f"0x{guid:016x},{port},0x{peer:016x},{peer_port}")
    sections = {
        "NODES": nodes,
        "PORTS": ["NodeGuid,PortGuid,PortNum,LID,LinkWidthActv,LinkSpeedActv,PortPhyState,PortState", *ports],
        "LINKS": ["NodeGuid1,PortNum1,NodeGuid2,PortNum2", *links],
    }
    lines = [line for name, rows in sections.items() for line in (f"START_{name}", *rows, f"END_{name}", "", "")]
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize(
    "fault", [FabricFault.NONE, FabricFault.SPINE_SHORT, FabricFault.CROSSED_RAILS, FabricFault.SLOW_LINK]
)
def test_the_tables_of_ibdiagnet_are_the_same_map(fault: FabricFault, tmp_path: Path) -> None:
    fabric = simulated_fabric(24, 4, fault, seed=7)
    write_fabric(fabric, fault, tmp_path / "map")
    (tmp_path / "tables").mkdir()
    write_tables(fabric, tmp_path / "tables" / "ibdiagnet2.db_csv")

    of_map, of_tables = judged(tmp_path / "map"), judged(tmp_path / "tables")

    shown = [[(finding.rule, finding.title) for finding in report.findings] for report in (of_map, of_tables)]
    assert shown[0] == shown[1]
    sizes = [
        report.frames["fabric_map"].select("switches", "levels", "links", "is_whole").rows()
        for report in (of_map, of_tables)
    ]
    assert sizes[0] == sizes[1]


def test_damaged_tables_of_ibdiagnet_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    links = [
        "NodeGuid1,PortNum1,NodeGuid2,PortNum2",
        "0x12,1,0x13,2",
        "0x12,3,0x13",
        "0x12,4294967296,0x1,1",
        "0x14,1,,",
    ]
    ports = ["NodeGuid,PortNum,LID,LinkWidthActv", "0xzz,1,65535,7", "0x12,255,1,2", "0x12,1,,"]
    lines = ["START_LINKS", *links, "END_LINKS", "START_PORTS", *ports]
    (tmp_path / "ibdiagnet2.db_csv").write_text("\n".join(lines), encoding="utf-8")

    report = judged(tmp_path)

    assert report.defects == []
    ends = report.frames["fabric_end"].select("guid", "port", "peer_guid", "peer_port", "line").rows()
    one, other = "0x0000000000000012", "0x0000000000000013"
    assert sorted(ends) == [(one, 1, other, 2, 3), (other, 2, one, 1, 3)]


def test_limits_hold_for_what_machines_were_measured_to_reach() -> None:
    measured = [
        ("all_reduce", 8, 1, 450, True, None, 480.0),  # eight H100 with NVLS
        ("all_reduce", 16, 2, 450, True, 400.0, 487.0),  # p5, above the rate of its adapters
        ("all_reduce", 16, 2, 300, False, 50.0, 78.3),  # p4de
    ]
    for collective, ranks, domains, link, is_reduced, network, busbw in measured:
        limit = limit_of(collective, ranks, domains, link, is_reduced=is_reduced, network=network)
        assert limit is not None
        assert busbw <= limit


@pytest.mark.parametrize(
    ("gpu", "ranks", "hosts", "busbw", "count"),
    [
        ("NVIDIA GB200", 72, 18, 1_700.0, 0),  # one NVLink domain: adapters are no limit
        ("NVIDIA GB200", 72, 18, 8_360.0, 1),
        ("NVIDIA B300 SXM6 AC", 8, 1, 1_500.0, 0),
        ("NVIDIA B300 SXM6 AC", 8, 1, 1_700.0, 1),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 4, 1, 34.0, 0),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 4, 1, 70.0, 1),
        ("NVIDIA A10G", 4, 1, 22.0, 0),
        ("NVIDIA A10G", 4, 1, 36.0, 1),
        ("NVIDIA A100 80GB PCIe", 2, 1, 193.0, 0),  # with a bridge: azurehpc-health-checks
        ("NVIDIA A100 80GB PCIe", 4, 1, 25.0, 0),  # two bridged pairs
        ("NVIDIA A100 80GB PCIe", 8, 1, 193.0, 1),  # data of each pair passes two slots
        ("AMD Instinct MI300X", 4, 1, 144.0, 0),
        ("AMD Instinct MI300X", 4, 1, 300.0, 1),  # three links of seven
        ("AMD Instinct MI300X", 8, 1, 312.9, 0),
        ("a GPU of tomorrow", 8, 1, 8_360.0, 0),
    ],
)
def test_a_figure_is_refused_by_the_links_of_the_machine(
    gpu: str, ranks: int, hosts: int, busbw: float, count: int
) -> None:
    row = {
        "benchmark": 0, "collective": "all_reduce", "nranks": ranks, "listed_devices": ranks, "communicators": 1,
        "hosts": [f"tray{n}" for n in range(hosts)], "gpus": [gpu],
    }  # fmt: skip
    best = {"benchmark": 0, "size": 1 << 30, "busbw": busbw, "algbw": busbw, "source": 0, "line": 1}
    assert len(findings_of(bench_impossible, benchmark=[row], measurement=[best])) == count


def test_impossible_figure_is_beyond_the_limit() -> None:
    limit = limit_of("all_reduce", 8, 1, 450, is_reduced=True, network=None)
    assert limit is not None
    assert 780 < limit < 790
