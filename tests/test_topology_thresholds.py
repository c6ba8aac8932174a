"""Links of hosts: from which share on one is degraded, and what excuses it, with an example on either side of each."""

from __future__ import annotations

from typing import Any

import pytest

from ncclforensics.rules.host import topology
from tests.rule_rows import Row, Rule, findings_of

OWNER = {"host": "gpu-a", "pid": 100}
RANKS = [{"job": 0, "rank_id": 0, "rank": 0, **OWNER}]


def links(kind: str, *rates: float, device: str | None = None) -> list[Row]:
    """Links of one kind, one on each host, of the same device or of devices of their own."""
    return [
        {"host": f"gpu-{n}", "pid": 1, "kind": kind, "device": device or str(n), "rate": r} for n, r in enumerate(rates)
    ]


def titles(rule: Rule, **frames: list[Row]) -> list[str]:
    return [finding.title for finding in findings_of(rule, rank=RANKS, **frames)]


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ((100.0, 100.0, 55.0), ["GPU 2 on gpu-2: a PCIe link far slower than its siblings"]),
        ((100.0, 100.0, 55.1), []),
        ((100.0, 50.0), ["GPU 1 on gpu-1: a PCIe link far slower than its siblings"]),
        ((100.0, 50.0, 50.0), []),
        ((50.0,), []),
        ((100.0, 100.0, 0.0), []),
    ],
)
def test_a_pcie_link_is_slow_at_little_more_than_half_of_the_best(rates: tuple[float, ...], slow: list[str]) -> None:
    assert titles(topology.topo_narrow_pcie, link=links("gpu", *rates)) == slow
    assert titles(topology.topo_narrow_pcie, link=links("nvswitch", *rates)) == []


def test_nics_are_compared_with_those_of_their_name() -> None:
    alike = links("nic", 100.0, 100.0, 50.0, device="mlx5_0")

    assert titles(topology.topo_narrow_pcie, link=alike) == [
        "NIC mlx5_0 on gpu-2: a PCIe link far slower than its siblings"
    ]
    assert titles(topology.topo_narrow_pcie, link=links("nic", 100.0, 100.0, 50.0)) == []
    assert titles(topology.topo_narrow_pcie, link=links("nic", 100.0, 100.0, 0.0, device="mlx5_0")) == []


@pytest.mark.parametrize(("rate", "found"), [(425.0, 1), (450.0, 0), (0.0, 0)])
def test_a_gpu_has_fewer_nvlinks_than_the_others(rate: float, found: int) -> None:
    assert len(titles(topology.nvlink_count_differs, link=links("nvswitch", 450.0, 450.0, rate))) == found
    assert titles(topology.nvlink_count_differs, link=links("gpu", 450.0, 450.0, rate)) == []


@pytest.mark.parametrize(
    ("old", "new", "form", "found"),
    [
        (400_000, 200_000, "speed", ["port mlx5_0 fell from 400000 to 200000 Mb/s on rank 0 on gpu-a"]),
        (200_000, 200_000, "speed", []),
        (200_000, 400_000, "speed", []),
        (400_000, 200_000, "other", []),
    ],
)
def test_the_rate_of_a_port_fell(old: int, new: int, form: str, found: list[str]) -> None:
    row = {**OWNER, "form": form, "device": "mlx5_0", "port": 1, "old_speed": old, "speed": new}

    assert titles(topology.topo_nic_speed_low, port_change=[row]) == found


def variable(name: str, value: str) -> list[Row]:
    return [{**OWNER, "form": "environment", "variable": name, "value": value}]


@pytest.mark.parametrize(
    ("setting", "is_off"),
    [
        ([], False),
        (variable("NCCL_P2P_DISABLE", "1"), True),
        (variable("NCCL_P2P_DISABLE", "0"), False),
        (variable("NCCL_P2P_LEVEL", "LOC"), True),
        (variable("NCCL_P2P_LEVEL", "0"), True),
        (variable("NCCL_P2P_LEVEL", "NVL"), False),
        (variable("NCCL_SHM_DISABLE", "1"), False),
    ],
)
def test_shared_memory_in_place_of_nvlink_has_one_cause(setting: list[Row], *, is_off: bool) -> None:
    frames: dict[str, Any] = {
        "transport": [{"host": "gpu-a", "medium": "SHM", "transport": "via SHM", "connections": 2}],
        "gpu_interconnect": [{**OWNER, "interconnect": "NVLink"}],
        "setting": setting,
    }
    title = "GPUs on NVLink use shared memory on gpu-a"

    assert titles(topology.shm_in_place_of_nvlink, **frames) == [title] * is_off
    assert titles(topology.p2p_nvlink_pair_on_shm_or_net, **frames) == [title] * (not is_off)


@pytest.mark.parametrize(("nodes", "found"), [(1, 1), (2, 0)])
def test_the_network_is_no_detour_between_hosts(nodes: int, found: int) -> None:
    frames: dict[str, Any] = {
        "transport": [{"host": "gpu-a", "medium": "NET", "transport": "via NET", "connections": 2}],
        "gpu_interconnect": [{**OWNER, "interconnect": "NVLink"}],
        "communicator_placement": [{"job": 0, "key": "0x1", "nranks": 8, "nodes": nodes}],
    }

    assert len(titles(topology.p2p_nvlink_pair_on_shm_or_net, **frames)) == found


@pytest.mark.parametrize(
    ("detection", "loaded", "found"),
    [
        ({"form": "no_parent"}, None, 1),
        ({"form": "no_parent"}, "gpu-a", 0),
        ({"form": "no_parent"}, "gpu-b", 1),
        ({"form": "unreadable", "file": "max_link_speed"}, None, 1),
        ({"form": "unreadable", "file": "max_link_width"}, "gpu-a", 0),
        ({"form": "unreadable", "file": "class"}, None, 0),
        ({"form": "other", "file": "max_link_speed"}, None, 0),
    ],
)
def test_the_topology_is_not_visible_where_no_file_describes_it(detection: Row, loaded: str | None, found: int) -> None:
    files = [{"host": loaded, "pid": 1, "form": "file", "path": "/topo.xml"}] if loaded else []

    assert len(
        titles(topology.topo_sys_not_visible, topology_detection=[{**OWNER, **detection}], topology_file=files)
    ) == (found)


@pytest.mark.parametrize(
    ("word", "loaded", "found"),
    [("nvswitch2", "file", 1), ("", "file", 0), (None, "file", 0), ("nvswitch2", "other", 0)],
)
def test_an_unknown_word_counts_where_a_topology_file_is_set(word: str | None, loaded: str, found: int) -> None:
    rows = [{**OWNER, "form": "unknown_word", "value": word}, {**OWNER, "form": loaded}]

    assert len(titles(topology.topo_file_bad, topology_file=rows)) == found


def fabric(
    *uuids: str | None, nnodes: int = 2, used: int = 0, setting: list[Row] | None = None, form: str = "fabric"
) -> int:
    """How often it is said that hosts with these fabrics do not use multi-node NVLink."""
    owners = [{"host": f"gpu-{n}", "pid": 1} for n in range(len(uuids))]
    found = titles(
        topology.mnnvl_unused,
        placement=[{**owner, "nnodes": nnodes, "mnnvl": used} for owner in owners],
        mnnvl=[{**owner, "form": form, "uuid": uuid} for owner, uuid in zip(owners, uuids, strict=True)],
        setting=setting or [],
    )
    return len(found)


def test_multi_node_nvlink_is_unused_between_hosts_of_one_fabric() -> None:
    assert fabric("ab.cd", "ab.cd") == 1
    assert fabric("ab.cd") == 0
    assert fabric("ab.cd", "ef.cd") == 0
    assert fabric("0.0", "0.0") == 0
    assert fabric(None, None) == 0
    assert fabric("ab.cd", "ab.cd", nnodes=1) == 0
    assert fabric("ab.cd", "ab.cd", used=1) == 0
    assert fabric("ab.cd", "ab.cd", form="other") == 0
    assert fabric("ab.cd", "ab.cd", setting=variable("NCCL_MNNVL_ENABLE", "0")) == 0
    assert fabric("ab.cd", "ab.cd", setting=variable("NCCL_MNNVL_ENABLE", "1")) == 1
    assert fabric("ab.cd", "ab.cd", setting=variable("NCCL_NVLS_ENABLE", "0")) == 1


def hung(**changes: list[Row]) -> int:
    """How often peer access over PCIe is suspected, where a job of one host hangs at its second call."""
    frames: dict[str, Any] = {
        "verdict": [{"job": 0, "verdict": "stuck-together", "ordinal": 1}],
        "transport": [{"host": "gpu-a", "medium": "P2P", "transport": "via P2P/IPC"}],
        "graph": [{**OWNER, "pattern": 4, "type_intra": "PHB"}],
        "rank": RANKS,
    }
    return len(findings_of(topology.p2p_hang_acs_iommu, **frames | changes))


def test_peer_access_over_pcie_is_suspected_only_of_a_first_call() -> None:
    p2p: Row = {"host": "gpu-a", "medium": "P2P", "transport": "via P2P/IPC"}

    assert hung() == 1
    assert hung(verdict=[{"job": 0, "verdict": "stuck-together", "ordinal": 2}]) == 0
    assert hung(verdict=[{"job": 0, "verdict": "lagging-ranks", "ordinal": 1}]) == 0
    assert hung(verdict=[{"job": 0, "verdict": "stuck-together", "ordinal": None}]) == 0
    unnumbered = [{"job": 0, "verdict": "stuck-together", "ordinal": None}]
    assert hung(verdict=unnumbered, work=[{"rank": 0, "sequence": 2}]) == 1
    assert hung(verdict=unnumbered, work=[{"rank": 0, "sequence": 3}]) == 0
    assert hung(transport=[]) == 0
    assert hung(transport=[p2p, {**p2p, "medium": "NET"}]) == 0
    assert hung(graph=[{**OWNER, "pattern": 1, "type_intra": "PHB"}]) == 0
    assert hung(graph=[{**OWNER, "pattern": 4, "type_intra": "NVL"}]) == 0
    assert hung(gpu_interconnect=[{**OWNER, "interconnect": "NVLink"}]) == 0
    assert hung(rank=[*RANKS, {"job": 0, "rank_id": 1, "rank": 1, "host": "gpu-b", "pid": 1}]) == 0
