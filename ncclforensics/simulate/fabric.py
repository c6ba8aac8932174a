"""A fabric that was never built: units of hosts on rails below spines, with a chosen fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

UNIT_HOSTS = 32  # of a unit, as NVIDIA's SuperPODs have
LANE_RATES = {"NDR": 100.0, "HDR": 50.0}  # Gb/s
MODEL, SWITCH_DEVICE, SWITCH_PORTS = "MQM9700", 0xD2F2, 64
SPINES, LEAST_UNITS = 8, 3
FIRST_GUID, GUID_STEP = 0x946DAE0300000000, 8


class FabricFault(StrEnum):
    """What is wrong with the fabric."""

    NONE = "none"
    UNEVEN_UPLINKS = "uneven-uplinks"  # half of a leaf's uplinks are at one spine
    UPLINKS_MISSING = "uplinks-missing"  # a leaf lacks a half of its uplinks
    SPINE_SHORT = "spine-short"  # a spine lacks its links to every second leaf
    SPINE_ABSENT = "spine-absent"
    OVERSUBSCRIBED = "oversubscribed"  # a quarter of the spines
    LINK_WITHIN_LEVEL = "link-within-level"
    CROSSED_RAILS = "crossed-rails"
    WRONG_LEAF = "wrong-leaf"
    NIC_MISSING = "nic-missing"
    LEAF_ABSENT = "leaf-absent"
    SLOW_NIC = "slow-nic"
    SLOW_LINK = "slow-link"
    UNEVEN_SPINES = "uneven-spines"  # half of the spines carry a twentieth of the others' traffic
    HOT_UPLINK = "hot-uplink"
    UNEVEN_LOAD = "uneven-load"  # the uplinks of every leaf carry 2 to 90 % of their rate
    BAD_CABLE = "bad-cable"  # of a host's adapter: tests of pairs that use it fail
    BAD_LEAF = "bad-leaf"  # tests of pairs through it fail
    BAD_LINK = "bad-link"  # an uplink: tests whose route takes it fail
    UNEVEN_ROUTES = "uneven-routes"  # tables send all traffic through a quarter of the spines


@dataclass(slots=True)
class SimulatedNode:
    """A switch or the port of a host."""

    guid: int
    name: str
    description: str
    lid: int
    ports: int
    is_switch: bool


@dataclass(slots=True)
class SimulatedFabric:
    """Nodes, and for each end of a link the other end, its width and its speed."""

    nodes: dict[int, SimulatedNode] = field(default_factory=dict)
    links: dict[tuple[int, int], tuple[int, int, str, str]] = field(default_factory=dict)
    leaves: dict[tuple[int, int], int] = field(default_factory=dict)  # by unit and rail
    spines: list[int] = field(default_factory=list)
    nics: dict[tuple[int, int, int], int] = field(default_factory=dict)  # by unit, host and rail
    truth: dict[str, object] = field(default_factory=dict)

    def add(self, name: str, device: str = "") -> int:
        """Add a switch, or the port of a host where a device is given; return its GUID."""
        guid, lid = FIRST_GUID + GUID_STEP * (len(self.nodes) + 1), len(self.nodes) + 1
        description = f"{name} {device}" if device else f"MF0;{name}:{MODEL}/U1"
        ports = 1 if device else SWITCH_PORTS
        self.nodes[guid] = SimulatedNode(guid, f"{name} {device}".strip(), description, lid, ports, not device)
        return guid

    def connect(self, guid: int, peer: int, *, port: int = 0, peer_port: int = 0) -> None:
        """Connect two nodes, at their first free ports where none is given."""
        own, other = port or self.free_port(guid), peer_port or self.free_port(peer)
        self.links[guid, own] = (peer, other, "4x", "NDR")
        self.links[peer, other] = (guid, own, "4x", "NDR")

    def free_port(self, guid: int) -> int:
        """The first port without a link. Ports of hosts have one, and switches as many as the plan needs."""
        return next(port for port in count(1) if (guid, port) not in self.links)

    def cut(self, guid: int, port: int) -> tuple[int, int]:
        """Remove a link; return its other end."""
        peer, peer_port, _, _ = self.links.pop((guid, port))
        del self.links[peer, peer_port]
        return peer, peer_port

    def set_rate(self, guid: int, port: int, width: str, speed: str) -> None:
        """Give both ends of a link another width and speed."""
        peer, peer_port, _, _ = self.links[guid, port]
        self.links[guid, port] = (peer, peer_port, width, speed)
        self.links[peer, peer_port] = (guid, port, width, speed)

    def ports_to(self, guid: int, peers: list[int]) -> list[int]:
        """The ports of a node that lead to one of these."""
        return sorted(port for (own, port), link in self.links.items() if own == guid and link[0] in peers)

    def remove(self, guid: int) -> None:
        """Remove a node with its links."""
        for own, port in [end for end in self.links if end[0] == guid]:
            self.cut(own, port)
        del self.nodes[guid]

    def rate(self, end: tuple[int, int]) -> float:
        """The rate of a link in bytes per second."""
        _, _, width, speed = self.links[end]
        return int(width[0]) * LANE_RATES[speed] * 1e9 / 8


def simulated_fabric(hosts: int, nics: int, fault: FabricFault, seed: int) -> SimulatedFabric:
    """Build a fabric of at least three units with this fault; `truth` says what is wrong.

    Raises ValueError for fewer than 24 hosts, or a fault of rails for hosts with fewer than 3 adapters.
    """
    if hosts < LEAST_UNITS * SPINES:
        raise ValueError(f"a fabric has at least {LEAST_UNITS * SPINES} hosts")
    draw, fabric = random.Random(seed), SimulatedFabric()
    units = max(LEAST_UNITS, -(-hosts // UNIT_HOSTS))
    per_unit = -(-hosts // units)
    links = -(-per_unit // SPINES)  # of each leaf to each spine
    spines = SPINES // 4 if fault is FabricFault.OVERSUBSCRIBED else SPINES
    fabric.spines = [fabric.add(f"spine-{number + 1:02d}") for number in range(spines)]
    for unit in range(units):
        for rail in range(nics):
            leaf = fabric.add(f"leaf-u{unit + 1}-r{rail + 1}")
            fabric.leaves[unit, rail] = leaf
        for host in range(min(per_unit, hosts - unit * per_unit)):
            for rail in range(nics):
                nic = fabric.add(f"gpu-{unit + 1:02d}-{host + 1:02d}", f"mlx5_{rail}")
                fabric.nics[unit, host, rail] = nic
                fabric.connect(fabric.leaves[unit, rail], nic, port=host + 1)
        for rail in range(nics):
            for number, spine in enumerate(fabric.spines):
                for link in range(links):
                    fabric.connect(fabric.leaves[unit, rail], spine, port=per_unit + 1 + number * links + link)
    _FAULTS[fault](fabric, draw)
    fabric.truth = {"fault": str(fault), **fabric.truth}
    return fabric


def _a_leaf(fabric: SimulatedFabric, draw: random.Random) -> int:
    leaf = draw.choice(list(fabric.leaves.values()))
    fabric.truth["switch"] = fabric.nodes[leaf].name
    return leaf


def _a_spine(fabric: SimulatedFabric, draw: random.Random) -> int:
    spine = draw.choice(fabric.spines[1:-1])  # not the first or last, whose absence leaves no gap
    fabric.truth["switch"] = fabric.nodes[spine].name
    return spine


def _a_host(fabric: SimulatedFabric, draw: random.Random, least: int) -> list[tuple[int, int, int]]:
    unit, host, _ = draw.choice(list(fabric.nics))
    own = [key for key in fabric.nics if key[:2] == (unit, host)]
    if len(own) < least:
        raise ValueError(f"this fault needs hosts with at least {least} adapters")
    fabric.truth["host"] = fabric.nodes[fabric.nics[own[0]]].name.split(" ")[0]
    return own


def _uneven_uplinks(fabric: SimulatedFabric, draw: random.Random) -> None:
    leaf = _a_leaf(fabric, draw)
    to, *others = draw.sample(fabric.spines, SPINES)
    for port in fabric.ports_to(leaf, others[: SPINES // 2]):
        fabric.cut(leaf, port)
        fabric.connect(leaf, to, port=port)


def _uplinks_missing(fabric: SimulatedFabric, draw: random.Random) -> None:
    leaf = _a_leaf(fabric, draw)
    ports = fabric.ports_to(leaf, fabric.spines)
    for port in draw.sample(ports, len(ports) // 2):
        fabric.cut(leaf, port)


def _spine_short(fabric: SimulatedFabric, draw: random.Random) -> None:
    spine = _a_spine(fabric, draw)
    for leaf in list(fabric.leaves.values())[::2]:
        for port in fabric.ports_to(leaf, [spine]):
            fabric.cut(leaf, port)


def _spine_absent(fabric: SimulatedFabric, draw: random.Random) -> None:
    fabric.remove(_a_spine(fabric, draw))


def _link_within_level(fabric: SimulatedFabric, draw: random.Random) -> None:
    leaf = _a_leaf(fabric, draw)
    other = draw.choice([guid for guid in fabric.leaves.values() if guid != leaf])
    ends = [(guid, fabric.ports_to(guid, fabric.spines)[-1]) for guid in (leaf, other)]
    fabric.truth["other_switch"] = fabric.nodes[other].name  # at the other end
    for end in ends:
        fabric.cut(*end)
    fabric.connect(leaf, other, port=ends[0][1], peer_port=ends[1][1])


def _exchange(fabric: SimulatedFabric, nics: list[int], leaves: list[tuple[int, int]]) -> None:
    for nic in nics:
        fabric.cut(nic, 1)
    for nic, (leaf, port) in zip(nics, leaves, strict=True):
        fabric.connect(leaf, nic, port=port)


def _crossed_rails(fabric: SimulatedFabric, draw: random.Random) -> None:
    own = draw.sample(_a_host(fabric, draw, 2), 2)
    nics = [fabric.nics[key] for key in own]
    fabric.truth["devices"] = sorted(fabric.nodes[nic].name.split(" ")[1] for nic in nics)
    ends = [fabric.links[nic, 1][:2] for nic in nics]
    _exchange(fabric, nics, ends[::-1])


def _wrong_leaf(fabric: SimulatedFabric, draw: random.Random) -> None:
    key = draw.choice(_a_host(fabric, draw, 2))
    unit = next(unit for unit, _ in fabric.leaves if unit != key[0])
    leaf = fabric.leaves[unit, key[2]]
    fabric.truth["devices"] = [fabric.nodes[fabric.nics[key]].name.split(" ")[1]]
    _exchange(fabric, [fabric.nics[key]], [(leaf, fabric.free_port(leaf))])


def _nic_missing(fabric: SimulatedFabric, draw: random.Random) -> None:
    key = draw.choice(_a_host(fabric, draw, 3))
    fabric.remove(fabric.nics.pop(key))
    fabric.truth["switch"] = fabric.nodes[fabric.leaves[key[0], key[2]]].name


def _leaf_absent(fabric: SimulatedFabric, draw: random.Random) -> None:
    unit, _, rail = draw.choice(_a_host(fabric, draw, 3))
    leaf = fabric.leaves.pop((unit, rail))
    fabric.truth = {"switch": fabric.nodes[leaf].name, "unit": unit + 1}
    for key in [key for key in fabric.nics if key[0] == unit and key[2] == rail]:
        fabric.remove(fabric.nics.pop(key))
    fabric.remove(leaf)


def _slow_nic(fabric: SimulatedFabric, draw: random.Random) -> None:
    nic = fabric.nics[draw.choice(_a_host(fabric, draw, 3))]
    fabric.truth["devices"] = [fabric.nodes[nic].name.split(" ")[1]]
    fabric.set_rate(nic, 1, "2x", "NDR")


def _slow_link(fabric: SimulatedFabric, draw: random.Random) -> None:
    leaf = _a_leaf(fabric, draw)
    port = draw.choice(fabric.ports_to(leaf, fabric.spines))
    fabric.truth["port"] = port
    fabric.set_rate(leaf, port, "1x", "NDR")


def _an_uplink(fabric: SimulatedFabric, draw: random.Random) -> None:
    leaf = _a_leaf(fabric, draw)
    fabric.truth["port"] = draw.choice(fabric.ports_to(leaf, fabric.spines))


def _bad_cable(fabric: SimulatedFabric, draw: random.Random) -> None:
    nic = fabric.nics[draw.choice(_a_host(fabric, draw, 1))]
    leaf, fabric.truth["port"] = fabric.links[nic, 1][:2]
    fabric.truth["switch"], fabric.truth["devices"] = fabric.nodes[leaf].name, [fabric.nodes[nic].name.split(" ")[1]]


def _nothing(fabric: SimulatedFabric, draw: random.Random) -> None:
    """Leave the wiring as it is: the fault is one of the traffic, of routes, of the plan, or none."""


_FAULTS: dict[FabricFault, Callable[[SimulatedFabric, random.Random], object]] = {
    **dict.fromkeys(FabricFault, _nothing),
    FabricFault.UNEVEN_UPLINKS: _uneven_uplinks,
    FabricFault.UPLINKS_MISSING: _uplinks_missing,
    FabricFault.SPINE_SHORT: _spine_short,
    FabricFault.SPINE_ABSENT: _spine_absent,
    FabricFault.LINK_WITHIN_LEVEL: _link_within_level,
    FabricFault.CROSSED_RAILS: _crossed_rails,
    FabricFault.WRONG_LEAF: _wrong_leaf,
    FabricFault.NIC_MISSING: _nic_missing,
    FabricFault.LEAF_ABSENT: _leaf_absent,
    FabricFault.SLOW_NIC: _slow_nic,
    FabricFault.SLOW_LINK: _slow_link,
    FabricFault.HOT_UPLINK: _an_uplink,
    FabricFault.BAD_LINK: _an_uplink,
    FabricFault.BAD_CABLE: _bad_cable,
    FabricFault.BAD_LEAF: _a_leaf,
}
