"""Hosts and switches that deviate from few siblings, and those that do not."""

from __future__ import annotations

import pytest

from ncclforensics.analyses.fabric.fabric_graph import End, Graph, Name, Node
from ncclforensics.analyses.fabric.rails import Nic, rail_deviations
from ncclforensics.analyses.fabric.uplinks import uplink_deviations

SPINES = ("spine-1", "spine-2")


def hosts_of(rates: dict[str, float], nics: int = 1) -> dict[str, list[Nic]]:
    """Hosts with so many ports at one leaf, all of one rate."""
    return {
        host: [Nic(f"mlx5_{nth}", f"{host} {nth}", "leaf-1", rate, "101b", "", nth) for nth in range(nics)]
        for host, rate in rates.items()
    }


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ({"cn3": 50.0}, ["cn3"]),
        ({"cn3": 50.0, "cn5": 50.0}, []),  # split ports, or another kind
        ({"cn3": 50.0, "cn5": 100.0, "cn6": 100.0}, ["cn3"]),
        ({"cn3": 200.0, "login1": 50.0}, []),
    ],
)
def test_a_host_is_slow_beside_seven_of_its_kind_at_its_leaf(rates: dict[str, float], slow: list[str]) -> None:
    hosts = hosts_of({f"cn{number}": 200.0 for number in range(9)} | rates)

    assert [row["hosts"][0] for row in rail_deviations(hosts) if row["kind"] == "slow-nic"] == slow


@pytest.mark.parametrize(("nics", "fewer", "found"), [(8, 7, [(7, 8)]), (8, 2, []), (2, 1, [])])
def test_a_host_lacks_a_port_that_others_of_its_kind_have(nics: int, fewer: int, found: list[tuple[int, int]]) -> None:
    """With far fewer it is a host of another kind; and one of two ports is often left free."""
    hosts = hosts_of({f"nd{number}": 100.0 for number in range(9)}, nics)
    hosts["nd4"] = hosts["nd4"][:fewer]

    rows = [row for row in rail_deviations(hosts) if row["kind"] == "nic-missing"]

    assert [(row["have"], row["usual"]) for row in rows] == found


def two_leaves(lost: int, hosts_of_second: int = 16) -> Graph:
    """Two leaves with twenty uplinks, of which the second lacks some, and hosts on the ports below."""
    ends: dict[str, list[End]] = {}
    hosts: list[str] = []
    for leaf, below in (("leaf-1", 16), ("leaf-2", hosts_of_second)):
        links = [(port, f"{leaf} host {port}", 1) for port in range(1, below + 1)]
        hosts += [host for _, host, _ in links]
        uplinks = 20 - lost * (leaf == "leaf-2")
        links += [(21 + nth, SPINES[nth % 2], 1 + nth + 20 * (leaf == "leaf-2")) for nth in range(uplinks)]
        for port, peer, peer_port in links:
            ends.setdefault(leaf, []).append(End(port, peer, peer_port, 200.0, "4x", "HDR", 1))
            ends.setdefault(peer, []).append(End(peer_port, leaf, port, 200.0, "4x", "HDR", 1))
    kinds = {name: "host" if name in hosts else "switch" for name in ends}
    nodes = {
        name: Node(name, name, Name(name, name[:-1], name[-1]), kind, 41, "", "", 1, None)
        for name, kind in kinds.items()
    }
    return Graph(nodes, ends)


@pytest.mark.parametrize(
    ("lost", "hosts", "found"),
    [
        (7, 16, [("leaf-2", 13, 20)]),
        (1, 16, []),
        (10, 8, []),  # half of the hosts share half of the uplinks
    ],
)
def test_one_of_two_leaves_lacks_uplinks_where_the_other_has_them(
    lost: int, hosts: int, found: list[tuple[str, int, int]]
) -> None:
    rows = [row for row in uplink_deviations(two_leaves(lost, hosts)) if row["kind"] == "uplinks-missing"]

    assert [(row["guid"], row["have"], row["usual"]) for row in rows] == found
