"""The files that tools would print of a simulated fabric: its map, two dumps of counters, and forwarding tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ncclforensics.simulate.fabric import SWITCH_DEVICE, FabricFault, SimulatedFabric, SimulatedNode

SECONDS, WORD, TICK = 60, 4, 8  # between the dumps; bytes of a counter of data, and of a tick of waiting
BEFORE, AFTER = "Mon Mar  2 11:10:00 UTC 2026", "Mon Mar  2 11:11:00 UTC 2026"
LOAD, LEAST_LOAD, MOST_LOAD, WAITING = 0.5, 0.025, 0.97, 0.3  # shares of a link's rate, and of the time with data
HOST_DEVICE = 0x1021
PAIR_STEPS = (1, 5, 9)  # hosts between the two of a tested pair
BASE = 9_000_000_000_000  # what was counted before the first dump


def write_fabric(fabric: SimulatedFabric, fault: FabricFault, folder: Path) -> None:
    """Write ibnetdiscover.txt, and what shows the fault: dumps of ibqueryerrors, dump_lfts.txt, tests of pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "ibnetdiscover.txt", _map(fabric))
    if fault in (FabricFault.UNEVEN_SPINES, FabricFault.HOT_UPLINK, FabricFault.UNEVEN_LOAD):
        for name, grown, taken in (("before", 0, BEFORE), ("after", 1, AFTER)):
            _write(folder / f"ibqueryerrors-{name}.txt", _counters(fabric, fault, grown, taken))
    if fault in (FabricFault.UNEVEN_ROUTES, FabricFault.HOT_UPLINK, FabricFault.BAD_LINK):
        is_uneven = fault is FabricFault.UNEVEN_ROUTES
        used = fabric.spines[: len(fabric.spines) // 4] if is_uneven else fabric.spines
        _write(folder / "dump_lfts.txt", _tables(fabric, used))
    if fault in (FabricFault.BAD_CABLE, FabricFault.BAD_LEAF, FabricFault.BAD_LINK):
        _write(folder / "ib_write_bw.txt", _pair_tests(fabric))


def _write(path: Path, lines: Iterator[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _key(node: SimulatedNode) -> str:
    return f"{'S' if node.is_switch else 'H'}-{node.guid:016x}"


def _map(fabric: SimulatedFabric) -> Iterator[str]:
    """The map as ibnetdiscover prints it."""
    first = next(node for node in fabric.nodes.values() if not node.is_switch)
    yield from ("#", "# Topology file: generated on Mon Mar  2 11:09:00 2026", "#")
    yield f"# Initiated from node {first.guid:016x} port {first.guid:016x}"
    for node in sorted(fabric.nodes.values(), key=lambda node: not node.is_switch):
        kind, device = ("switch", SWITCH_DEVICE) if node.is_switch else ("ca", HOST_DEVICE)
        yield from ("", "vendid=0x2c9", f"devid=0x{device:x}", f"sysimgguid=0x{node.guid:x}")
        yield f"{kind}guid=0x{node.guid:x}" + f"({node.guid:x})" * node.is_switch
        name = f'{"Switch" if node.is_switch else "Ca"}\t{node.ports} "{_key(node)}"\t\t# "{node.description}"'
        yield name + f" enhanced port 0 lid {node.lid} lmc 0" * node.is_switch
        for (_, port), (peer, peer_port, width, speed) in sorted(_ends(fabric, node.guid)):
            other = fabric.nodes[peer]
            rate = f'"{other.description}" lid {other.lid} {width}{speed}'
            if node.is_switch:
                of_port = "" if other.is_switch else f"({peer:x}) "
                yield f'[{port}]\t"{_key(other)}"[{peer_port}]{of_port}\t\t# {rate}'
            else:
                yield f'[{port}]({node.guid:x}) \t"{_key(other)}"[{peer_port}]\t\t# lid {node.lid} lmc 0 {rate}'


def _ends(fabric: SimulatedFabric, guid: int) -> list[tuple[tuple[int, int], tuple[int, int, str, str]]]:
    return [(end, link) for end, link in fabric.links.items() if end[0] == guid]


def _counters(fabric: SimulatedFabric, fault: FabricFault, grown: int, taken: str) -> Iterator[str]:
    """The counters of all ports of switches, as ibqueryerrors --data prints them."""
    yield from ("$ date", taken, "$ ibqueryerrors --data")
    for node in fabric.nodes.values():
        if not node.is_switch:
            continue
        yield f'Errors for 0x{node.guid:016x} "{node.description}"'
        for end, link in sorted(_ends(fabric, node.guid)):
            (load, waiting), (received, _) = _load(fabric, fault, end), _load(fabric, fault, link[:2])
            of_rate = fabric.rate(end) * SECONDS * grown
            wait = load * of_rate * waiting / (1 - waiting) / TICK
            sent, got = (round(share * of_rate / WORD) for share in (load, received))
            counts = {"PortXmitWait": round(wait), "PortXmitData": sent, "PortRcvData": got}
            shown = " ".join(f"[{name} == {BASE + value}]" for name, value in counts.items())
            yield f"   GUID 0x{node.guid:016x} port {end[1]}: {shown}"


def _load(fabric: SimulatedFabric, fault: FabricFault, end: tuple[int, int]) -> tuple[float, float]:
    """The share of its rate that an end sends, and the share of the time with data for which it waits."""
    ends = (end, fabric.links[end][:2])
    if fault is FabricFault.UNEVEN_SPINES:
        at = [fabric.spines.index(guid) for guid, _ in ends if guid in fabric.spines]
        if at:
            return (LOAD, WAITING) if at[0] < len(fabric.spines) // 2 else (LEAST_LOAD, 0.0)
    name, port = fabric.truth.get("switch"), fabric.truth.get("port")
    if fault is FabricFault.HOT_UPLINK and (fabric.nodes[end[0]].name, end[1]) == (name, port):
        return MOST_LOAD, WAITING
    leaves = list(fabric.leaves.values())
    if fault is FabricFault.UNEVEN_LOAD and end[0] in leaves and ends[1][0] in fabric.spines:
        # Each leaf prefers another quarter of the spines, so that these carry equal loads.
        place = (fabric.spines.index(ends[1][0]) + leaves.index(end[0])) % 4
        return (0.02, 0.3, 0.5, 0.9)[place], 0.01
    return LOAD / 2, 0.01


def _out_port(fabric: SimulatedFabric, switch: int, nic: int, used: list[int]) -> int:
    """The port by which a switch sends to the port of a host: down, or through one of these spines."""
    leaf, leaf_port = fabric.links[nic, 1][:2]
    if leaf == switch:
        return leaf_port
    ways = fabric.ports_to(switch, used) or fabric.ports_to(switch, [leaf])
    (place,) = (unit + host for (unit, host, _), guid in fabric.nics.items() if guid == nic)
    return ways[place % len(ways)]


def _tables(fabric: SimulatedFabric, used: list[int]) -> Iterator[str]:
    """The forwarding tables as dump_lfts prints them: every leaf sends through these spines."""
    hosts = sorted((node.lid, node) for node in fabric.nodes.values() if not node.is_switch)
    for switch in (node for node in fabric.nodes.values() if node.is_switch):
        named = f"Lid {switch.lid} guid 0x{switch.guid:016x} ({switch.description})"
        yield f"Unicast lids [0x0-0x{len(fabric.nodes):x}] of switch {named}:"
        yield from ("  Lid  Out   Destination", "       Port     Info ")
        for lid, node in hosts:
            port = _out_port(fabric, switch.guid, node.guid, used)
            yield f"0x{lid:04x} {port:03d} : (Channel Adapter portguid 0x{node.guid:016x}: '{node.description}')"
        yield f"{len(hosts)} valid lids dumped "


def _pair_tests(fabric: SimulatedFabric) -> Iterator[str]:
    """Tests of pairs of hosts on one rail, as ib_write_bw prints them; those through the faulty part fail."""
    nics = sorted(fabric.nics)
    for number, near in enumerate(nics):
        for step in PAIR_STEPS:
            far = nics[(number + step * len({rail for _, _, rail in nics})) % len(nics)]
            yield from _pair_test(fabric, fabric.nics[near], fabric.nics[far])


def _pair_test(fabric: SimulatedFabric, near: int, far: int) -> Iterator[str]:
    own, other = fabric.nodes[near], fabric.nodes[far]
    yield from ("-" * 60, "                    RDMA_Write BW Test")
    yield f" Dual-port       : OFF\t\tDevice         : {own.name.split(' ')[1]}"
    yield from (" Connection type : RC\t\tUsing SRQ      : OFF", " Link type       : IB")
    for side, node in (("local", own), ("remote", other)):
        yield f" {side} address: LID {node.lid:#04x} QPN 0x{node.lid + 64:04x} PSN 0x{node.guid % 0xFFFFFF:06x}"
    yield " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
    ends = [(near, 1), (far, 1), fabric.links[near, 1][:2], fabric.links[far, 1][:2]]
    for (leaf, _), nic in ((ends[2], far), (ends[3], near)):
        ends.append((leaf, _out_port(fabric, leaf, nic, fabric.spines)))
    at = fabric.truth.get("port")
    if any((fabric.nodes[guid].name, port if at else at) == (fabric.truth["switch"], at) for guid, port in ends):
        yield from (" Completion with error at client", " Failed status 12: wr_id 0 syndrom 0x81", " scnt=128, ccnt=0")
    else:
        yield " 65536      5000             0.00               391.20              0.746155"
