"""A fabric as a graph: leaves, levels, logical switches and siblings."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ncclforensics.data.fabric import AGGREGATING_PORTS, AGGREGATION_DEVICE, MORE_HOSTS, SHARED_PARENTS, SPINE_LINKS
from ncclforensics.data.names import printable

AGGREGATION_WORDS = "Aggregation Node"


class Name(NamedTuple):
    """The name of a switch, and its two parts where it ends in a number."""

    text: str
    stem: str
    number: str  # with the zeros in front


@dataclass(slots=True)
class Node:
    """A switch, host port or router of a map."""

    guid: str
    description: str
    name: Name
    kind: str  # switch, host, router
    ports: int  # 0 if the map does not say
    device_number: str
    system: str
    line: int | None
    lid: int | None


class End(NamedTuple):
    """One end of a link, seen from a node: its port, and the node and port at the other end."""

    port: int
    peer: str
    peer_port: int
    rate: float | None  # Gb/s
    width: str
    speed: str
    line: int


@dataclass(slots=True)
class Graph:
    """One map: nodes by GUID, and for each node the ends of its links."""

    nodes: dict[str, Node]
    ends: dict[str, list[End]]
    aggregation: set[str] = field(init=False)
    level: dict[str, int] = field(init=False)  # of switches; those that no host reaches have none
    logical: dict[str, str] = field(init=False)  # of switches: the system that it is a chip of, or itself
    _to_hosts: dict[str, list[End]] = field(init=False)
    _to_switches: dict[str, list[End]] = field(init=False)
    _up: dict[str, list[End]] = field(init=False)
    _parents: dict[str, Counter[str]] = field(init=False)

    def __post_init__(self) -> None:
        """Find out what each node is, from the hosts upwards."""
        self.aggregation = {guid for guid, node in self.nodes.items() if self._is_aggregation(node)}
        switches = self.switches()
        chips = Counter(self.nodes[guid].system for guid in switches if self.nodes[guid].system)
        self.logical = {
            guid: self.nodes[guid].system if chips[self.nodes[guid].system] > 1 else guid for guid in switches
        }
        is_host = {guid: node.kind == "host" for guid, node in self.nodes.items()}
        own = {guid: self.ends.get(guid, []) for guid in switches}
        self._to_hosts = {
            guid: [end for end in ends if is_host[end.peer] and end.peer not in self.aggregation]
            for guid, ends in own.items()
        }
        self._to_switches = {
            guid: [end for end in ends if not is_host[end.peer] and end.peer != guid] for guid, ends in own.items()
        }
        self.level = self._levels(self._leaves(switches))
        level, logical = self.level, self.logical
        self._up = {
            guid: [
                end
                for end in ends
                if level.get(end.peer) == level.get(guid, -1) + 1 and logical[end.peer] != logical[guid]
            ]
            for guid, ends in self._to_switches.items()
        }
        self._parents = {guid: Counter(logical[end.peer] for end in ends) for guid, ends in self._up.items()}

    def _is_aggregation(self, node: Node) -> bool:
        """Whether this is SHARP's node inside a switch: by device, description, or the switch's own last port."""
        if node.kind != "host":
            return False
        if node.device_number == AGGREGATION_DEVICE or AGGREGATION_WORDS in node.description:
            return True
        for end in self.ends.get(node.guid, ()):
            switch = self.nodes[end.peer]
            is_last = switch.ports == end.peer_port and switch.ports in AGGREGATING_PORTS
            if is_last and node.system and node.system == switch.system:
                return True
        return False

    def switches(self) -> list[str]:
        """The GUIDs of all switches and routers, in the order of the map."""
        return [guid for guid, node in self.nodes.items() if node.kind != "host"]

    def host_ends(self, guid: str) -> list[End]:
        """The ends of a switch that lead to hosts, aggregation nodes left out."""
        return self._to_hosts[guid]

    def switch_ends(self, guid: str) -> list[End]:
        """The ends of a switch that lead to other switches."""
        return self._to_switches[guid]

    def uplinks(self, guid: str) -> list[End]:
        """The ends of a switch that lead one level up, to another logical switch."""
        return self._up[guid]

    def parents(self, guid: str) -> Counter[str]:
        """The logical switches one level up, with the number of links to each."""
        return self._parents[guid]

    def _leaves(self, switches: Iterable[str]) -> set[str]:
        """Switches with hosts, less spines that carry a few hosts of their own (managers, storage, logins)."""
        hosts = {guid: len(self.host_ends(guid)) for guid in switches}
        near = {guid: [end.peer for end in self.switch_ends(guid)] for guid in hosts}
        leaves = {guid for guid, ports in hosts.items() if ports}
        while True:
            spines = set()
            for guid in leaves:
                below = sorted(hosts[peer] for peer in near[guid] if peer in leaves)
                is_most = below and len(below) >= SPINE_LINKS * len(near[guid])
                if is_most and below[len(below) // 2] >= MORE_HOSTS * hosts[guid]:
                    spines.add(guid)
            if not spines:
                return leaves
            leaves -= spines

    def _levels(self, leaves: set[str]) -> dict[str, int]:
        """Level of each switch: its distance from the leaves, which are 1."""
        level = {guid: 1 for guid in self.switches() if guid in leaves}
        queue = deque(level)
        while queue:
            guid = queue.popleft()
            for end in self.switch_ends(guid):
                if end.peer not in level:
                    level[end.peer] = level[guid] + 1
                    queue.append(end.peer)
        return level

    @property
    def top(self) -> int:
        """The highest level; 0 in a map without hosts."""
        return max(self.level.values(), default=0)

    def at(self, level: int) -> list[str]:
        """The switches of a level, in the order of the map."""
        return [guid for guid in self.nodes if self.level.get(guid) == level]

    def siblings(self, level: int) -> list[list[str]]:
        """The switches of a level that have most of their parents in common, in groups; those without any left out."""
        of_parents: dict[frozenset[str], list[str]] = defaultdict(list)
        for guid in self.at(level):
            if parents := frozenset(self.parents(guid)):
                of_parents[parents].append(guid)
        sets = list(of_parents)
        group = list(range(len(sets)))

        def root(number: int) -> int:
            while group[number] != number:
                group[number] = number = group[group[number]]
            return number

        with_parent: dict[str, list[int]] = defaultdict(list)
        for number, parents in enumerate(sets):
            for parent in parents:
                with_parent[parent].append(number)
        for number, parents in enumerate(sets):
            shared = Counter(other for parent in parents for other in with_parent[parent] if other > number)
            for other, both in shared.items():
                if both >= SHARED_PARENTS * (len(parents) + len(sets[other]) - both):
                    group[root(other)] = root(number)
        groups: dict[int, list[str]] = defaultdict(list)
        for number, parents in enumerate(sets):
            groups[root(number)] += of_parents[parents]
        order = {guid: place for place, guid in enumerate(self.nodes)}
        return [sorted(members, key=order.__getitem__) for members in groups.values()]

    def hosts_below(self) -> dict[str, int]:
        """The number of host ports in the subtree of each switch; of those without a level none."""
        below: dict[str, int] = {}
        for level in range(1, self.top + 1):
            for guid in self.at(level):
                lower = {end.peer for end in self.switch_ends(guid) if self.level.get(end.peer) == level - 1}
                below[guid] = len(self.host_ends(guid)) + sum(below[peer] for peer in lower)
        return below


def switch_names(nodes: Iterable[Node], logical: Mapping[str, str]) -> dict[str, str]:
    """How reports call switches and logical switches: by their name, with the GUID where several share it."""
    switches = [node for node in nodes if node.kind != "host"]
    names = {node.guid: printable(node.name.text or node.guid) for node in switches}
    of_name: dict[str, set[str]] = defaultdict(set)
    for guid, name in names.items():
        of_name[name].add(logical[guid])
    chips = Counter(names.values())
    shown = {guid: name if chips[name] == 1 else f"{name} ({guid})" for guid, name in names.items()}
    for guid, name in names.items():
        if logical[guid] != guid:
            shown.setdefault(logical[guid], name if len(of_name[name]) == 1 else f"{name} ({logical[guid]})")
    return shown
