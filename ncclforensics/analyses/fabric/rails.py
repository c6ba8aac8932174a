"""Hosts that are cabled otherwise than their neighbours: crossed rails, wrong leaves, missing and slow adapters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ncclforensics.analyses.fabric.fabric_graph import Graph
from ncclforensics.data.fabric import ALIKE_HOSTS, EQUAL_NICS, GPU_NICS, OTHER_ORDER, RAIL_HOSTS, RAIL_SHARE
from ncclforensics.frames.columns import Row
from ncclforensics.grammar.values import parse_value

Order = tuple[str, int, int, int]


class Nic(NamedTuple):
    """A port of a host in the fabric."""

    device: str
    guid: str
    leaf: str
    rate: float | None
    device_number: str
    system: str
    line: int  # of its link, which shows the rate


@lru_cache(4096)
def device_order(device: str) -> Order | None:
    """Place of an adapter among those of its host, as far as its name shows it; HCA-1 and mlx5_0 are one.

    >>> device_order("HCA-3"), device_order("mlx5_2"), device_order("ibp75s0f1"), device_order("hsn0")
    (('', 0, 2, 0), ('', 0, 2, 0), ('placed', 0, 75, 1), None)
    """
    found = parse_value(device, "adapter_name")
    if found is None:
        return None
    if found["form"] == "placed":
        return "placed", found["domain"] or 0, found["bus"], found["function"] or 0
    return "", 0, (found["nth"] - 1 if found["form"] == "counted" else found["index"]), 0


def stem_of(host: str) -> str:
    """The name of a host without its digits: equal for hosts of one kind.

    >>> stem_of("dgx-03-08")
    'dgx--'
    """
    return "".join(letter for letter in host if not letter.isdigit())


def nics_of_hosts(graph: Graph, names: dict[str, tuple[str, str]]) -> dict[str, list[Nic]]:
    """The ports of each named host; `names`: host and device of a GUID."""
    hosts: dict[str, list[Nic]] = defaultdict(list)
    for guid, (host, device) in names.items():
        node = graph.nodes[guid]
        for end in graph.ends.get(guid, ()):
            if graph.nodes[end.peer].kind != "host":
                hosts[host].append(Nic(device, guid, end.peer, end.rate, node.device_number, node.system, end.line))
    return dict(hosts)


def rail_deviations(hosts: dict[str, list[Nic]]) -> Iterator[Row]:
    """Yield hosts whose adapters lead elsewhere than those of most hosts of their unit; rows of `fabric_deviation`."""
    yield from _slow_among_hosts(hosts)
    yield from _slow_in_hosts(hosts)
    on_rails = {host: nics for host, nics in hosts.items() if _is_on_rails(nics)}
    yield from _fewer_on_a_leaf({host: nics for host, nics in hosts.items() if host not in on_rails})
    units = _units(on_rails)
    most = Counter[int]()
    stems: dict[int, set[str]] = defaultdict(set)
    for unit in units:
        most[unit.usual] += len(unit.hosts)
        stems[unit.usual] |= {stem_of(host) for host in unit.hosts}
    full = most.most_common(1)[0][0] if most else 0
    for unit in units:
        if unit.rails is None:
            continue
        is_short = unit.usual < full and most[full] > len(unit.hosts)
        if is_short and unit.stem in stems[full]:
            short = sorted(host for host in unit.full if stem_of(host) == unit.stem)
            nics = [nic for host in short for nic in unit.hosts[host]]
            full_hosts = [other.hosts[host] for other in units if other.usual == full for host in other.full]
            common = set.intersection(*({nic.device for nic in of_host} for of_host in full_hosts))
            yield {
                "kind": "leaf-absent", "hosts": short, "have": unit.usual, "usual": full, "count": most[full],
                "devices": sorted(common - {nic.device for nic in nics}), "others": sorted({nic.leaf for nic in nics}),
                "evidence": [unit.hosts[host][0].guid for host in short[:2]],
            }  # fmt: skip
        yield from unit.deviations()


def _is_on_rails(nics: list[Nic]) -> bool:
    """Whether the ports are several adapters on several leaves; the ports of one card are no rails."""
    is_named_once = len({nic.device for nic in nics}) == len(nics)
    cards = Counter(nic.system for nic in nics if nic.system)
    is_of_cards = any(ports > 1 for ports in cards.values())
    return len(nics) >= 2 and is_named_once and not is_of_cards and len({nic.leaf for nic in nics}) >= 2


def _fewer_on_a_leaf(hosts: dict[str, list[Nic]]) -> Iterator[Row]:
    """Yield hosts with all ports on one leaf that have fewer than the other hosts of their kind."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for host, nics in hosts.items():
        if len({nic.leaf for nic in nics}) == 1:
            kinds[stem_of(host)].append(host)
    for alike in kinds.values():
        usual, count = Counter(len(hosts[host]) for host in alike).most_common(1)[0]
        fewer = [host for host in alike if usual / 2 <= len(hosts[host]) < usual]
        if usual < GPU_NICS or count < max(RAIL_HOSTS, RAIL_SHARE * len(alike)) or len(fewer) > OTHER_ORDER * count:
            continue
        model = next(host for host in alike if len(hosts[host]) == usual)
        for host in fewer:
            yield {
                "kind": "nic-missing", "hosts": [host], "devices": [], "others": [], "parents": [hosts[host][0].leaf],
                "sibling": model, "count": count, "have": len(hosts[host]), "usual": usual,
                "evidence": [hosts[host][0].guid, hosts[model][0].guid],
            }  # fmt: skip


def _slow_in_hosts(hosts: dict[str, list[Nic]]) -> Iterator[Row]:
    """Yield ports that are slower than all the others of the same model in their host."""
    for host, nics in hosts.items():
        model = Counter(nic.device_number for nic in nics).most_common(1)[0][0]
        alike = [nic for nic in nics if nic.device_number == model and nic.rate]
        if len(alike) < EQUAL_NICS:
            continue
        usual, count = Counter(nic.rate for nic in alike).most_common(1)[0]
        slow = [nic for nic in alike if nic.rate and usual and nic.rate < usual]
        if len(slow) == 1 and count == len(alike) - 1:
            yield _slow_nic(host, slow[0], usual, count)


def _slow_among_hosts(hosts: dict[str, list[Nic]]) -> Iterator[Row]:
    """Yield the port of a host that is slower than those of all other hosts of its kind at its leaf.

    Of hosts with several ports of a model, these are compared with one another.
    """
    kinds: dict[tuple[str, str, str], list[tuple[str, Nic]]] = defaultdict(list)
    for host, nics in hosts.items():
        models = Counter(nic.device_number for nic in nics)
        for nic in nics:
            if nic.rate and models[nic.device_number] < EQUAL_NICS:
                kinds[stem_of(host), nic.leaf, nic.device_number].append((host, nic))
    for alike in kinds.values():
        rates = Counter(nic.rate for _, nic in alike)
        slowest, *others = sorted(filter(None, rates))
        is_alone = rates[slowest] == 1 and all(rates[rate] > 1 for rate in others)
        if is_alone and len(alike) > ALIKE_HOSTS:
            host, nic = next(pair for pair in alike if pair[1].rate == slowest)
            sibling = next(name for name, other in alike if other.rate == others[0])
            yield _slow_nic(host, nic, others[0], len(alike) - 1, sibling)


def _slow_nic(host: str, nic: Nic, usual: float | None, count: int, sibling: str | None = None) -> Row:
    """A port that is slower than so many others: those of its host, or of others such as the sibling."""
    return {
        "kind": "slow-nic", "hosts": [host], "devices": [nic.device], "guid": nic.guid, "rate": nic.rate,
        "usual_rate": usual, "count": count, "others": [nic.leaf], "sibling": sibling, "line": nic.line,
        "evidence": [nic.guid],
    }  # fmt: skip


@dataclass
class _Unit:
    """Hosts that share most of their leaves."""

    hosts: dict[str, list[Nic]]

    def __post_init__(self) -> None:
        """Find the usual number of adapters, and which leaf each leads to in most hosts."""
        self.usual = Counter(len(nics) for nics in self.hosts.values()).most_common(1)[0][0]
        self.full = [host for host, nics in self.hosts.items() if len(nics) == self.usual]
        self.stem = Counter(stem_of(host) for host in self.full).most_common(1)[0][0]
        self.order = {host: {device_order(nic.device): nic.leaf for nic in nics} for host, nics in self.hosts.items()}
        self.wiring = Counter(frozenset(self.order[host].items()) for host in self.full)
        self.rails: dict[Order | None, str] | None = None
        best, alike = self.wiring.most_common(1)[0]
        is_known = len(self.full) >= RAIL_HOSTS and alike >= RAIL_SHARE * len(self.full)
        has_names = not any(None in devices for devices in self.order.values())
        if is_known and has_names and len({leaf for _, leaf in best}) == len(best):
            self.rails = dict(best)

    def deviations(self) -> Iterator[Row]:
        rails = self.rails or {}
        model = next(host for host in self.full if self.order[host] == rails)
        other_orders: set[frozenset[Any]] = set()
        for host, nics in self.hosts.items():
            devices = self.order[host]
            # Another kind of host (a manager, a login or storage node), or devices that cannot be compared.
            if devices == rails or stem_of(host) != self.stem:
                continue
            if len(nics) < self.usual:
                yield self._fewer(host, rails, model)
                continue
            if len(nics) > self.usual or set(devices) != set(rails):
                continue
            moved = [nic for nic in nics if rails[device_order(nic.device)] != nic.leaf]
            own = [rails[device_order(nic.device)] for nic in moved]
            wiring = frozenset(devices.items())
            alike = self.wiring[wiring]
            if alike >= RAIL_HOSTS and alike >= OTHER_ORDER * len(self.full):
                if wiring not in other_orders:
                    other_orders.add(wiring)
                    yield self._row("other-order", host, moved, own, model, count=alike)
            elif set(devices.values()) == set(rails.values()):
                yield self._row("crossed-rails", host, moved, own, model)
            else:
                yield self._row("wrong-leaf", host, moved, own, model)

    def _row(self, kind: str, host: str, moved: list[Nic], own: list[str], model: str, **fields: Any) -> Row:
        """A deviation of one host: its adapters, where they lead, and where those of the unit lead."""
        same = device_order(moved[0].device) if moved else None
        sibling = next((nic.guid for nic in self.hosts[model] if device_order(nic.device) == same), None)
        return {
            "kind": kind, "hosts": [host], "devices": [nic.device for nic in moved],
            "others": [nic.leaf for nic in moved], "parents": own, "sibling": model, "count": len(self.full),
            "have": len(self.hosts[host]), "usual": self.usual,
            "evidence": [*(nic.guid for nic in moved[:2]), *([sibling] if sibling else [])], **fields,
        }  # fmt: skip

    def _fewer(self, host: str, rails: dict[Order | None, str], model: str) -> Row:
        """A host with fewer adapters: after a loss the others are numbered anew, so that only their order counts."""
        devices = self.order[host]
        order = [devices[device] for device in sorted(devices, key=str)]
        present = [leaf for device, leaf in sorted(rails.items(), key=lambda rail: str(rail[0])) if leaf in order]
        lost = [leaf for leaf in rails.values() if leaf not in order]
        kind = "nic-missing" if order == present else "crossed-rails"
        row = self._row(kind, host, [], lost, model)
        at_lost = [nic.guid for nic in self.hosts[model] if nic.leaf in lost]
        return {**row, "evidence": [self.hosts[host][0].guid, *at_lost[:1]]}


def _units(hosts: dict[str, list[Nic]]) -> list[_Unit]:
    """Group hosts by the leaves they share: more than half, so that one stray cable joins no two units."""
    of_leaves: dict[frozenset[str], list[str]] = defaultdict(list)
    for host, nics in hosts.items():
        of_leaves[frozenset(nic.leaf for nic in nics)].append(host)
    units: dict[frozenset[str], list[str]] = {}
    for leaves in sorted(of_leaves, key=lambda leaves: (-len(of_leaves[leaves]), sorted(leaves))):
        home = leaves
        for core in units:
            shared = 2 * len(core & leaves)
            if len(core) >= len(leaves) and shared >= min(len(core), len(leaves)) + (len(core) == len(leaves)):
                home = core
                break
        units.setdefault(home, []).extend(of_leaves[leaves])
    return [_Unit({host: hosts[host] for host in members}) for members in units.values()]
