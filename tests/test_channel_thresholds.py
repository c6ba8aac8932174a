"""Each condition under which channels are too few has an example on either side of it."""

from __future__ import annotations

from typing import Any

import pytest

from ncclforensics.rules.transport import channels
from tests.rule_rows import Row, findings_of

KEY = {"job": 0, "key": "0x1"}


def ranks(hosts: list[int]) -> tuple[list[Row], list[Row]]:
    """The ranks of one communicator on these hosts, as `rank` and as `member`."""
    owners = [
        {"job": 0, "rank_id": n, "rank": n, "host": f"gpu-{host}", "pid": 100 + n} for n, host in enumerate(hosts)
    ]
    return owners, [{**KEY, **owner, "nranks": len(hosts)} for owner in owners]


def capped(
    cap: str | int, *, opened: int | None = None, found: int | None = None, local: int = 8, switch: bool = False,
    nranks: int = 8, variable: str = "NCCL_MAX_NCHANNELS",
) -> list[tuple[str | None, str, str]]:  # fmt: skip
    """What is said of a variable: the severity, the certainty, and the detail."""
    owners, _ = ranks([0])
    owner = {"host": "gpu-0", "pid": 100}
    findings = findings_of(
        channels.chan_capped_by_env,
        setting=[{**owner, "variable": variable, "value": str(cap)}],
        channels=[{**KEY, "rank_id": 0, "coll": opened if opened is not None else int(cap)}],
        communicator_placement=[{**KEY, "nranks": nranks, "local": local, "nodes": 1}],
        graph_search=[{**KEY, **owner, "rank_id": 0, "channels": found}] if found else [],
        gpu_interconnect=[{**owner, "interconnect": "NVSwitch" if switch else "PCIe"}],
        rank=owners,
    )
    return [(finding.severity, finding.certainty, finding.detail) for finding in findings]


OPEN = "{} channels are opened; these logs do not show whether more are possible"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cap": 4, "found": 5}, (None, "certain", "NCCL's graph search found 5 channels, and 4 are opened")),
        ({"cap": 4, "found": 4}, ("info", "certain", OPEN.format(4))),
        ({"cap": 15, "switch": True}, (None, "likely", "15 channels are opened; 16 or more are normal")),
        ({"cap": 16, "switch": True}, ("info", "certain", OPEN.format(16))),
        ({"cap": 15, "switch": True, "local": 7}, ("info", "certain", OPEN.format(15))),
        ({"cap": 15}, ("info", "certain", OPEN.format(15))),
        ({"cap": 1}, (None, "likely", "1 channel is opened; 2 or more are normal")),
        ({"cap": 2, "nranks": 2}, ("info", "certain", OPEN.format(2))),
    ],
)
def test_a_variable_limits_the_channels_where_more_are_possible(given: Row, expected: tuple[Any, ...]) -> None:
    assert capped(**given) == [expected]


@pytest.mark.parametrize(
    "given", [{"cap": 4, "opened": 2}, {"cap": 0}, {"cap": -1}, {"cap": "many", "opened": 4}, {"cap": 4, "nranks": 1}]
)
def test_a_variable_that_limits_nothing_is_not_named(given: Row) -> None:
    assert capped(**given) == []


def fewer(
    *found: int | None, seen: int = 8, local: int = 8, nodes: int = 1, nranks: int | None = None,
    interconnect: str = "NVSwitch", network: str | None = None, setting: Row | None = None, site: Row | None = None,
) -> list[str]:  # fmt: skip
    """The titles on communicators of full nodes with these numbers of channels, one on each host."""
    size = local * nodes if nranks is None else nranks
    owners = [{"job": 0, "rank_id": n, "rank": n, "host": f"gpu-{n}", "pid": 100} for n in range(len(found))]
    findings = findings_of(
        channels.chan_undercount,
        communicator_placement=[
            {
                "job": 0, "key": f"0x{n}", "nranks": size, "ranks_seen": min(seen, size), "nodes": nodes,
                "local": local, "gpus": "0-7", "nth": 0, "coll": coll,
            }
            for n, coll in enumerate(found)
        ],
        member=[{**owner, "key": f"0x{n}", "nranks": size} for n, owner in enumerate(owners)],
        gpu_interconnect=[{"host": "gpu-0", "pid": 100, "interconnect": interconnect}],
        transport=[{"host": "gpu-0", "medium": "NET", "network": network}] if network else [],
        setting=[{"host": "gpu-0", "pid": 100, **setting}] if setting else [],
        expected_machine=[site] if site else [],
    )  # fmt: skip
    return [finding.title.partition(" has ")[2] for finding in findings]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((8, 16, 16), ["8 channels, 16 on similar communicators"]),
        ((8, 16), ["8 channels, 16 on similar communicators"]),
        ((8, 8, 16), []),
        ((16, 16), []),
        ((None, 16, 16), []),
    ],
)
def test_a_communicator_has_fewer_channels_than_at_least_half_of_those_like_it(
    found: tuple[int | None, ...], expected: list[str]
) -> None:
    assert fewer(*found) == expected


def test_communicators_of_which_ranks_are_not_seen_are_not_compared() -> None:
    assert fewer(8, 16, 16, seen=7) == []


@pytest.mark.parametrize(
    "setting", [{"variable": "NCCL_MAX_CTAS", "value": "8"}, {"variable": "config", "field": "Min CTAs", "value": "8"}]
)
def test_a_communicator_with_a_limit_is_not_compared(setting: Row) -> None:
    assert fewer(8, 16, 16, setting=setting) == []


NORMAL = "4 channels where 16 or more are normal"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [NORMAL]),
        ({"local": 7}, []),
        ({"nranks": 6}, []),
        ({"interconnect": "PCIe"}, []),
        ({"network": "Socket"}, [NORMAL]),
        ({"nodes": 2, "network": "IB"}, [NORMAL]),
        ({"nodes": 2, "network": "Socket"}, []),
        ({"nodes": 2}, []),
    ],
)
def test_four_channels_are_few_on_a_full_node_with_nvswitch(given: Row, expected: list[str]) -> None:
    assert fewer(4, **given) == expected
    assert fewer(5, **given) == []


@pytest.mark.parametrize(("nodes", "column"), [(1, "channels"), (2, "channels_between_hosts")])
def test_the_site_says_how_many_channels_are_normal(nodes: int, column: str) -> None:
    def titles(coll: int, site: Row) -> list[str]:
        return fewer(coll, nodes=nodes, network="IB", site=site)

    assert titles(11, {column: 12}) == ["11 channels where the site expects 12"]
    assert titles(12, {column: 12}) == []
    assert titles(4, {column: 4}) == []  # instead of what is normal elsewhere
    other = "channels_between_hosts" if column == "channels" else "channels"
    assert titles(11, {other: 12}) == []


def searched(*rates: tuple[int, float], hosts: list[int]) -> list[str]:
    """The titles on ranks whose graph search found these channels and rates."""
    owners, members = ranks(hosts)
    searches = [
        {**KEY, **owner, "pattern": 4, "channels": count, "bw_intra": rate, "bw_inter": rate}
        for owner, (count, rate) in zip(owners, rates, strict=True)
    ]
    given = [{name: value for name, value in row.items() if name != "rank"} for row in searches]
    findings = findings_of(channels.chan_differs_across_ranks, graph_search=given, member=members, rank=owners)
    return [finding.title for finding in findings]


SLOW = "NCCL's graph search found less bandwidth on rank {} on gpu-{} than on the other ranks"


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (((16, 20.0), (16, 20.0), (8, 20.0)), [SLOW.format(2, 2)]),
        (((16, 20.0), (16, 20.0), (16, 11.0)), [SLOW.format(2, 2)]),
        (((16, 20.0), (16, 20.0), (16, 11.1)), []),
        (((16, 20.0), (8, 20.0)), [SLOW.format(1, 1)]),
        (((16, 20.0), (8, 20.0), (8, 20.0)), []),
        (((16, 20.0), (16, 20.0)), []),
    ],
)
def test_the_graph_search_of_the_fewer_hosts_finds_little_more_than_half(
    rates: tuple[tuple[int, float], ...], expected: list[str]
) -> None:
    assert searched(*rates, hosts=[*range(len(rates))]) == expected


def test_hosts_with_different_numbers_of_ranks_are_not_compared() -> None:
    assert searched((16, 20.0), (16, 20.0), (8, 20.0), hosts=[0, 0, 1]) == []


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((8, 16, 16), ["rank 0 on gpu-0 opened 8 channels, the other ranks 16"]),
        ((16, 16, 8, 16), ["rank 2 on gpu-2 opened 8 channels, the other ranks 16"]),
        ((16, 16), []),
    ],
)
def test_the_ranks_that_open_another_number_of_channels_are_named(counts: tuple[int, ...], expected: list[str]) -> None:
    owners, members = ranks([*range(len(counts))])
    opened = [{**KEY, "rank_id": n, "coll": count} for n, count in enumerate(counts)]

    findings = findings_of(channels.chan_differs_across_ranks, channels=opened, member=members, rank=owners)

    assert [finding.title for finding in findings] == expected
    if findings:
        odd = min(counts)
        assert [counts[line.line - 1] for line in findings[0].evidence] == [odd, 16]


@pytest.mark.parametrize(
    ("nodes", "per_peer", "called", "expected"),
    [(8, 1, "Send", 1), (7, 1, "Send", 0), (8, 2, "Send", 0), (8, 1, "AllReduce", 0)],
)
def test_one_channel_for_a_peer_is_few_over_eight_nodes(nodes: int, per_peer: int, called: str, expected: int) -> None:
    findings = findings_of(
        channels.chan_alltoall_few_per_peer,
        channel_count=[{"host": "gpu-0", "pid": 100, "perpeer": per_peer}],
        call_template=[{"host": "gpu-0", "pid": 100, "called": called}],
        placement=[{"nnodes": nodes}],
    )

    assert len(findings) == expected
