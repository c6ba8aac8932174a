"""Switches that are wired otherwise than their siblings: uplinks, spines, and the ratio of hosts to uplinks.

Each absent link is explained once, by the upper switch first: a spine that many leaves lack is one deviation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from ncclforensics.analyses.fabric.fabric_graph import Graph
from ncclforensics.data.fabric import (
    COMMON_PARENT,
    FAR_OVERSUBSCRIBED,
    FEW_ABSENT,
    FEW_HOSTS,
    GPU_NICS,
    GROUP_LEAST,
    IRREGULAR,
    MISSING,
    MISSING_LEAST,
    OTHER_DESIGN,
    OTHER_DESIGN_SHARE,
    OVERSUBSCRIBED,
    RATIO_PORTS,
    REGULAR_PARENTS,
    REGULAR_SWITCHES,
    SHORT_BELOW,
    SHORT_SPINE,
    SLOW_SHARE,
    UPLINKS_PER_LEVEL_LINK,
)
from ncclforensics.frames.columns import Row

MOST_GAPS = 64  # numbers that are named


def uplink_deviations(graph: Graph) -> Iterator[Row]:
    """Yield the deviations of all groups of siblings: rows of `fabric_deviation` without their map."""
    below = graph.hosts_below()
    single: list[tuple[str, int, int]] = []
    for level in range(1, graph.top):
        for members in graph.siblings(level):
            group = _comparable(graph, members, below)
            parents = _common_parents(graph, group)
            if parents:
                yield from _Group(graph, level, group, parents, single).deviations()
    if single:
        guid, missing, total = single[0]
        yield {
            "kind": "single-links", "guid": guid, "have": total - missing, "usual": total,
            "count": len(single), "absent": sum(lost for _, lost, _ in single), "evidence": [guid],
        }  # fmt: skip


def _comparable(graph: Graph, members: list[str], below: dict[str, int]) -> list[str]:
    """Leave out of a group what was never meant to be alike: chips of one director, small branches, other designs."""
    if len({graph.logical[guid] for guid in members}) < len(members):
        return []
    usual = sorted(below[guid] for guid in members)[len(members) // 2]
    group = [guid for guid in members if below[guid] >= FEW_HOSTS * usual]
    totals = {guid: graph.parents(guid).total() for guid in group}
    median = sorted(totals.values())[len(group) // 2] if group else 0
    classes: dict[tuple[int, int], list[str]] = defaultdict(list)
    for guid in group:
        classes[totals[guid], len(graph.parents(guid))].append(guid)
    other: set[str] = set()
    for (total, _), alike in classes.items():
        wired = {frozenset(graph.parents(guid).items()) for guid in alike}
        is_class = len(alike) >= GROUP_LEAST or (len(alike) == GROUP_LEAST - 1 and len(wired) < len(alike))
        if is_class and total <= OTHER_DESIGN * median and len(alike) <= OTHER_DESIGN_SHARE * len(group):
            other |= set(alike)
    return [guid for guid in group if guid not in other]


def _common_parents(graph: Graph, group: list[str]) -> list[str]:
    """The parents that nearly half of a group has, or more."""
    having = Counter(parent for guid in group for parent in graph.parents(guid))
    return [parent for parent, switches in having.items() if switches >= COMMON_PARENT * len(group)]


class _Group:
    """Siblings that should be alike, with their links to each common parent."""

    def __init__(
        self, graph: Graph, level: int, group: list[str], parents: list[str], single: list[tuple[str, int, int]]
    ) -> None:
        self.graph, self.level, self.group, self.parents, self.single = graph, level, group, parents, single
        self.links = {guid: dict.fromkeys(parents, 0) for guid in group}
        for guid in group:
            for parent, count in graph.parents(guid).items():
                if parent in self.links[guid]:
                    self.links[guid][parent] = count
        modes = {parent: Counter(self.links[guid][parent] for guid in group).most_common(1)[0] for parent in parents}
        self.usual = {parent: count for parent, (count, _) in modes.items()}
        regular = sum(switches >= REGULAR_SWITCHES * len(group) - 1e-9 for _, switches in modes.values())
        self.is_regular = len(group) >= GROUP_LEAST and regular >= REGULAR_PARENTS * len(parents)

    def deviations(self) -> Iterator[Row]:
        """Yield the deviations of this group, of parents first."""
        short = yield from self._short_parents()
        rest = [parent for parent in self.parents if parent not in short]
        total = sum(self.usual.values())
        missing = {guid: sum(self._lack(guid, parent) for parent in rest) for guid in self.group}
        more = {guid: any(self._lack(guid, parent) < 0 for parent in rest) for guid in self.group}
        is_comparable = self.is_regular and bool(rest)
        uneven = [guid for guid in self.group if self._is_uneven(guid) and (more[guid] or not is_comparable)]
        for guid in uneven:
            yield self._row("uneven-uplinks", guid, is_director=any(parent not in self.graph.nodes for parent in rest))
        if is_comparable:
            lacking = [guid for guid in self.group if guid not in uneven and missing[guid] > 0]
            for guid in lacking:
                alike = sum(2 * count >= missing[guid] for count in missing.values())
                is_fault = alike <= max(1, IRREGULAR * len(self.group))
                if is_fault and missing[guid] >= max(MISSING_LEAST, MISSING * total):
                    lost = [parent for parent in rest if self._lack(guid, parent) > 0]
                    yield self._row("uplinks-missing", guid, have=total - missing[guid], usual=total, others=lost)
                else:
                    self.single.append((guid, missing[guid], total))
        elif len(self.group) < GROUP_LEAST:
            yield from self._fewer_than_a_sibling(uneven)
        if self.level == 1 and len(self.group) >= GROUP_LEAST:
            yield from self._absent_parents()

    def _fewer_than_a_sibling(self, uneven: list[str]) -> Iterator[Row]:
        """Of two or three switches with as many hosts, those that lack uplinks on ports where another has them."""
        used = {guid: {end.port for end in self.graph.ends[guid]} for guid in self.group}
        most = max(self.group, key=lambda guid: sum(self.links[guid].values()))
        total, hosts = sum(self.links[most].values()), len(self.graph.host_ends(most))
        self.usual = self.links[most]
        for guid in self.group:
            lost = total - sum(self.links[guid].values())
            free = {end.port for end in self.graph.uplinks(most)} - used[guid]
            is_alike = abs(len(self.graph.host_ends(guid)) - hosts) <= FEW_HOSTS * hosts
            if guid not in uneven and lost >= max(MISSING_LEAST, MISSING * total) and len(free) >= lost and is_alike:
                others = [parent for parent in self.parents if self._lack(guid, parent) > 0]
                yield self._row("uplinks-missing", guid, have=total - lost, usual=total, others=others)

    def _lack(self, guid: str, parent: str) -> int:
        """How many links a switch lacks to a parent; negative if it has more than usual. Sums use only what lacks."""
        return self.usual[parent] - self.links[guid][parent]

    def _row(self, kind: str, guid: str, **fields: Any) -> Row:
        """A deviation of one switch, with a sibling that is as usual."""
        sibling = next((other for other in self.group if other != guid and not any(self._lacks(other))), None)
        sibling = sibling or next((other for other in self.group if other != guid and self._is_even(other)), None)
        return {
            "kind": kind, "guid": guid, "sibling": sibling, "count": len(self.group), "level": self.level,
            "parents": self.parents, "links": [self.links[guid][parent] for parent in self.parents],
            "sibling_links": [self.links[sibling][parent] for parent in self.parents] if sibling else [],
            "is_regular": self.is_regular, "evidence": [guid, *([sibling] if sibling else [])], **fields,
        }  # fmt: skip

    def _lacks(self, guid: str) -> Iterator[int]:
        return (self._lack(guid, parent) for parent in self.parents)

    def _short_parents(self) -> Any:
        """Yield the parents that several switches lack links to; return them."""
        short: set[str] = set()
        if len(self.group) < GROUP_LEAST or len(self.parents) < 2:
            return short
        have = {parent: sum(self.links[guid][parent] for guid in self.group) for parent in self.parents}
        better = sorted(have.values())[-((len(have) + 1) // 2)]
        for parent in self.parents:
            below = [guid for guid in self.group if self.links[guid][parent] < max(self.links[guid].values())]
            if have[parent] <= SHORT_SPINE * better and len(below) >= SHORT_BELOW:
                short.add(parent)
                example = next(iter(other for other in self.parents if have[other] >= better))
                yield {
                    "kind": "spine-short", "guid": parent, "sibling": example, "have": have[parent],
                    "usual": have[example], "count": len(self.group), "absent": len(below), "level": self.level + 1,
                    "others": below, "is_regular": self.is_regular,
                    "evidence": [self._chip(parent), self._chip(example), *below[:1]],
                }  # fmt: skip
        return short

    def _chip(self, logical: str) -> str:
        return next(guid for guid, system in self.graph.logical.items() if system == logical)

    def _spread(self, guid: str) -> int:
        """The difference between the most and the fewest links of a switch to one parent."""
        counts = self.links[guid].values()
        return max(counts) - min(counts)

    def _is_even(self, guid: str) -> bool:
        return self._spread(guid) <= 1

    def _is_uneven(self, guid: str) -> bool:
        """Whether a switch has most of its uplinks to few parents, while its siblings spread them."""
        counts = self.links[guid].values()
        most, least = max(counts), min(counts)
        single = max(1, FEW_ABSENT * (most - least))  # links that siblings may lack: every large fabric has some
        even = sum(self._spread(other) <= single for other in self.group)
        is_alone = 4 * even >= 3 * len(self.group) or (len(self.group) < GROUP_LEAST and 2 * even >= len(self.group))
        return is_alone and most - least >= max(2, sum(counts) / len(counts)) and most >= 2 * least

    def _absent_parents(self) -> Iterator[Row]:
        """Parents that no switch has: the same ports are free on all, and the names of the parents have a gap."""
        used = [{end.port for end in self.graph.uplinks(guid)} for guid in self.group]
        low, high = max(map(min, used)), min(map(max, used))
        free = [port for port in range(low, high) if not any(port in ports for ports in used)]
        nodes = self.graph.nodes
        named = [nodes[parent].name for parent in self.parents if parent in nodes and nodes[parent].name.number]
        stems = {name.stem for name in named}
        if not free or len(stems) != 1:
            return
        numbers = sorted(int(name.number) for name in named)
        gaps = [number for number in range(numbers[0], min(numbers[-1], numbers[0] + 10_000)) if number not in numbers]
        counts = Counter(count for guid in self.group for count in self.links[guid].values() if count)
        links = counts.most_common(1)[0][0]
        taken = {node.name.text for node in nodes.values() if node.kind != "host"}
        width = max(len(name.number) for name in named)
        missing = [f"{named[0].stem}{number:0{width}d}" for number in gaps[:MOST_GAPS]]
        if gaps and len(free) == links * len(gaps) and 4 * len(gaps) <= len(numbers) and not taken & set(missing):
            yield {
                "kind": "spine-absent", "guid": self.group[0], "count": len(self.group), "level": 2,
                "names": missing, "ports": [free[0], free[-1]], "evidence": self.group[:2],
            }  # fmt: skip


def ratio_deviations(graph: Graph, nics_of_host: int) -> Iterator[Row]:
    """Yield the ratio of hosts' bandwidth to uplinks' at the leaves, where it is beyond the usual designs."""
    found = leaf_ratio(graph)
    if found is None:
        return
    median, worst, hosts, uplinks, ports = found
    if median > OVERSUBSCRIBED and ports >= RATIO_PORTS:
        is_far = median >= FAR_OVERSUBSCRIBED and nics_of_host >= GPU_NICS
        yield {
            "kind": "oversubscribed", "guid": worst, "ratio": median, "have": uplinks, "usual": hosts,
            "is_regular": is_far, "level": 1, "evidence": [worst],
        }  # fmt: skip


def leaf_ratio(graph: Graph) -> tuple[float, str, int, int, int] | None:
    """Median over hosts' ports of the ratio of a leaf; the leaf with the worst, its ports; and all hosts' ports."""
    ratios: list[tuple[float, int, str, int]] = []
    for guid in graph.at(1):
        up = sum(end.rate or 0 for end in graph.uplinks(guid))
        hosts = graph.host_ends(guid)
        if up:
            ratios.append((sum(end.rate or 0 for end in hosts) / up, len(hosts), guid, len(graph.uplinks(guid))))
    if len(ratios) < 2:
        return None
    weighted = sorted(ratio for ratio, ports, _, _ in ratios for _ in range(ports))
    _, hosts_of_worst, worst, uplinks = max(ratios)
    return weighted[len(weighted) // 2], worst, hosts_of_worst, uplinks, len(weighted)


def level_links(graph: Graph) -> Iterator[Row]:
    """Yield the links between two switches of a level that few have: by design (dragonfly+, rings) all have some."""
    if graph.top < 2:
        return
    for level in range(1, graph.top + 1):
        switches = graph.at(level)
        across = [
            (guid, end)
            for guid in switches
            for end in graph.switch_ends(guid)
            if graph.level.get(end.peer) == level and graph.logical[end.peer] != graph.logical[guid]
        ]
        touched = Counter(guid for guid, _ in across)
        is_rare = len(switches) >= 3 and 2 * len(touched) <= len(switches) + 1
        has_uplinks = all(
            len(graph.uplinks(guid)) + count >= UPLINKS_PER_LEVEL_LINK * count for guid, count in touched.items()
        )
        for guid, end in across if is_rare and has_uplinks else ():
            if (guid, end.port) < (end.peer, end.peer_port):
                yield {
                    "kind": "level-link", "guid": guid, "sibling": end.peer, "level": level, "line": end.line,
                    "ports": [end.port, end.peer_port], "count": len(switches), "absent": len(touched),
                    "evidence": [guid],
                }  # fmt: skip


def slow_links(graph: Graph) -> Iterator[Row]:
    """Yield the links that are slower than nearly all between the same two levels; those beside a faster one left out.

    Links of which the same two switches have a faster one are compared with that one elsewhere.
    """
    for level in range(1, graph.top):
        links = [(guid, end) for guid in graph.at(level) for end in graph.uplinks(guid) if end.rate]
        if not links:
            continue
        usual, count = Counter(end.rate or 0.0 for _, end in links).most_common(1)[0]
        slow = [(guid, end) for guid, end in links if (end.rate or 0.0) < usual]
        if len(slow) > SLOW_SHARE * len(links):
            continue
        fastest: dict[tuple[str, str], float] = defaultdict(float)
        for guid, end in links:
            fastest[guid, end.peer] = max(fastest[guid, end.peer], end.rate or 0.0)
        for guid, end in slow:
            if fastest[guid, end.peer] == end.rate:
                yield {
                    "kind": "slow-link", "guid": guid, "sibling": end.peer, "level": level, "line": end.line,
                    "ports": [end.port, end.peer_port], "rate": end.rate, "usual_rate": usual, "count": count,
                    "names": [f"{end.width} {end.speed}".strip()], "evidence": [],
                }  # fmt: skip
