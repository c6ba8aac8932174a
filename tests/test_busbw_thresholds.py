"""What a benchmark is compared with, and from which share on it is slow: an example on either side of each."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ncclforensics.analyses.benchmark.host_network import host_network
from ncclforensics.rules.benchmark import busbw, limits, link_tests, named_nics, sweeps
from ncclforensics.rules.finding import Finding
from tests.rule_rows import NOTHING, Row, findings_of

H100 = "NVIDIA H100 80GB HBM3"  # 8 of them reach 360 GB/s over rings, or the site's own figure
MIB, GIB = 1 << 20, 1 << 30


def run(*hosts: str, **fields: Any) -> Row:
    """An all_reduce on 8 GPUs of each host, all of them listed."""
    size = 8 * len(hosts)
    row = {
        "benchmark": 0, "collective": "all_reduce", "nranks": size, "listed_devices": size, "communicators": 1,
        "hosts": [*hosts], "gpus": [H100], "is_complete": True, "wrong": 0.0,
    }  # fmt: skip
    return row | fields


def measured(busbw: float, size: int = GIB, half: str = "out-of-place", **fields: Any) -> Row:
    return {
        "benchmark": 0, "row": size // MIB, "half": half, "size": size, "type": "float", "redop": "sum", "root": -1,
        "occurrence": 1, "algbw": busbw / 2, "busbw": busbw, "source": 0, "line": size // MIB + 1,
    } | fields  # fmt: skip


def expected(row: Row, *rows: Row, **frames: list[Row]) -> list[Finding]:
    return findings_of(busbw.bench_expected_table, benchmark=[row], measurement=[*rows], **frames)


def short(findings: list[Finding]) -> list[tuple[str | None, str]]:
    return [(finding.severity, finding.certainty) for finding in findings]


NOTE, WARNING = ("info", "possible"), ("warning", "likely")


@pytest.mark.parametrize(
    ("gigabytes", "found"), [(306.0, []), (305.9, [NOTE]), (252.0, [NOTE]), (251.9, [WARNING]), (40.0, [WARNING])]
)
def test_a_host_is_slow_below_the_share_of_its_kind(gigabytes: float, found: list[tuple[str, str]]) -> None:
    assert short(expected(run("gpu-a"), measured(gigabytes))) == found


@pytest.mark.parametrize(
    ("row", "size"),
    [
        (run("gpu-a"), 256 * MIB - 1),
        (run("gpu-a", collective="alltoall"), GIB),
        (run("gpu-a", communicators=2), GIB),
        (run("gpu-a", listed_devices=7), GIB),
        (run("gpu-a", gpus=["NVIDIA L4"]), GIB),
        (run("gpu-a", gpus=[H100, "NVIDIA H200"]), GIB),
        (run("gpu-a", nranks=3, listed_devices=3), GIB),
        (run("gpu-a", nranks=4, listed_devices=4, gpus=["NVIDIA A100-SXM4-80GB"]), GIB),
    ],
)
def test_a_host_of_an_unknown_kind_or_a_small_size_is_not_judged(row: Row, size: int) -> None:
    assert expected(row, measured(40.0, size)) == []


@pytest.mark.parametrize(
    ("gpu", "gpus", "gigabytes", "found"),
    [
        ("NVIDIA H200", 4, 363.0, []),  # measured: stas00/ml-engineering
        ("NVIDIA H200", 4, 150.0, [WARNING]),
        ("AMD Instinct MI300X", 2, 47.7, []),  # one link of seven
        ("AMD Instinct MI300X", 2, 20.0, [WARNING]),
        ("AMD Instinct MI300X", 8, 47.7, [WARNING]),
        ("AMD Instinct MI300X", 4, 47.7, []),  # RCCL may use a part of their links
        ("AMD Instinct MI300X", 4, 30.0, [WARNING]),  # less than one link
        ("NVIDIA GH200 120GB", 4, 338.8, []),
        ("NVIDIA A100 80GB PCIe", 2, 193.0, []),  # accepted: azurehpc-health-checks
        ("NVIDIA A100 80GB PCIe", 2, 20.0, [NOTE]),  # no bridge may connect them
        ("NVIDIA A100 80GB PCIe", 8, 20.0, []),
        ("NVIDIA H100 NVL", 2, 40.0, [NOTE]),
    ],
)
def test_a_part_of_a_host_is_judged_by_what_such_a_part_reaches(
    gpu: str, gpus: int, gigabytes: float, found: list[tuple[str, str]]
) -> None:
    row = run("gpu-a", nranks=gpus, listed_devices=gpus, gpus=[gpu])
    assert short(expected(row, measured(gigabytes))) == found


def test_the_best_large_size_counts() -> None:
    (finding,) = expected(run("gpu-a"), measured(10.0, 256 * MIB), measured(100.0), measured(90.0, 2 * GIB))

    assert finding.title.startswith("all_reduce on 8 NVIDIA H100 80GB HBM3: 100.0 GB/s at 1 GiB, 28% of")
    assert expected(run("gpu-a"), measured(float("inf")), measured(100.0)) == expected(run("gpu-a"), measured(100.0))


@pytest.mark.parametrize(("site", "found"), [({"gpus": 8}, []), ({"gpus": None}, []), ({"gpus": 4}, [WARNING])])
def test_the_site_says_what_its_hosts_reach(site: Row, found: list[tuple[str, str]]) -> None:
    assert short(expected(run("gpu-a"), measured(100.0), expected_machine=[site | {"busbw": 110.0}])) == found


RACK = tuple(f"tray{n}" for n in range(18))


@pytest.mark.parametrize(
    ("fields", "gigabytes", "found"),
    [
        ({}, 846.0, []),  # measured: CoreWeave
        ({}, 405.0, [NOTE]),  # what it reaches over its adapters
        ({"nranks": 68, "listed_devices": 68}, 405.0, []),
        ({"collective": "all_gather"}, 405.0, []),
        ({"gpus": ["NVIDIA B200"]}, 405.0, []),
    ],
)
def test_a_rack_whose_gpus_share_nvlink_is_compared_with_such_a_rack(
    fields: Row, gigabytes: float, found: list[tuple[str, str]]
) -> None:
    row = run(*RACK, **{"nranks": 72, "listed_devices": 72, "gpus": ["NVIDIA GB200"], **fields})
    assert short(expected(row, measured(gigabytes))) == found


def nics(host: str, count: int = 8, rate: float = 50.0) -> list[Row]:
    return [{"host": host, "pid": 1, "kind": "net", "device": f"mlx5_{n}", "rate": rate} for n in range(count)]


def known(links: list[Row]) -> list[Row]:
    """What is known of the adapters of each host from NCCL's lines on its links."""
    link = pl.DataFrame(links, {**NOTHING["link"].schema}) if links else NOTHING["link"]
    frames = {name: NOTHING[name] for name in ("port_state", "net_devices", "libfabric", "google_net")}
    return host_network(link, **frames).to_dicts()


def by_plugin(**fields: Any) -> list[Row]:
    """What is known of the adapters of both hosts from the lines of a network plugin."""
    schema = NOTHING["libfabric"].schema
    rows = [{"host": host, "source": 0, "line": 1, **fields} for host in HOSTS]
    frames = {name: NOTHING[name] for name in ("link", "port_state", "net_devices", "google_net")}
    return host_network(libfabric=pl.DataFrame(rows, schema=schema), **frames).to_dicts()


@pytest.mark.parametrize(
    ("fields", "gpus", "gigabytes", "found"),
    [
        ({"platform": "p5.48xlarge"}, 8, 269.9, [NOTE]),
        ({"platform": "p5.48xlarge"}, 8, 443.0, []),  # measured: awsome-distributed-training
        ({"platform": "p5.48xlarge"}, 4, 40.0, []),  # a part of the machine has a part of its adapters
        ({"platform": "P4d"}, 8, 24.0, [WARNING]),
        ({"platform": "a machine of tomorrow"}, 8, 24.0, []),
        ({"provider": "cxi", "nics": 4}, 4, 91.5, []),  # measured: CSCS Alps
        ({"provider": "cxi", "nics": 4}, 4, 49.9, [WARNING]),
        ({"provider": "efa", "nics": 4}, 4, 5.0, []),
    ],
)
def test_machines_that_a_plugin_names_are_judged_by_their_adapters(
    fields: Row, gpus: int, gigabytes: float, found: list[tuple[str, str]]
) -> None:
    row = run(*HOSTS, nranks=2 * gpus, listed_devices=2 * gpus)
    assert short(expected(row, measured(gigabytes), host_network=by_plugin(**fields))) == found


@pytest.mark.parametrize(
    ("gigabytes", "found"),
    [
        (71.0, []),  # all_gather of two hosts: Google, cluster-toolkit
        (83.3, []),  # all_reduce of two hosts, a public run
        (23.7, [NOTE]),  # the same hosts over sockets
    ],
)
@pytest.mark.parametrize("links", [[], ["gpu-a", "gpu-b"]])
def test_tcpx_is_judged_by_what_it_reaches(gigabytes: float, found: list[tuple[str, str]], links: list[str]) -> None:
    rows = [{"host": host, "form": "starting", "net": "GPUDirectTCPX", "source": 0, "line": 1} for host in HOSTS]
    stated = [row for host in links for row in nics(host, count=4, rate=25.0)]  # NCCL's own lines on the adapters
    network = host_network(
        link=pl.DataFrame(stated, {**NOTHING["link"].schema}) if stated else NOTHING["link"],
        google_net=pl.DataFrame(rows, schema=NOTHING["google_net"].schema),
        **{name: NOTHING[name] for name in ("port_state", "net_devices", "libfabric")},
    )
    assert network["rate"].to_list() == [100.0, 100.0]
    assert short(expected(run(*HOSTS), measured(gigabytes), host_network=network.to_dicts())) == found


def test_half_a_thousand_hosts_reach_less_without_a_fault() -> None:
    many = [f"gpu-{n}" for n in range(512)]
    for hosts, found in ((many, []), (many[1:], [NOTE])):
        network = [{"host": host, "nics": 8, "rate": 400.0, "by": "ports"} for host in hosts]
        assert short(expected(run(*hosts, gpus=["NVIDIA L4"]), measured(272.0), host_network=network)) == found


HOSTS = ("gpu-a", "gpu-b")
NICS = nics("gpu-a") + nics("gpu-b")  # 400 GB/s; the GPUs of a host among themselves reach 360


@pytest.mark.parametrize(
    ("gigabytes", "found"), [(270.0, []), (269.9, [NOTE]), (180.0, [NOTE]), (179.9, [WARNING]), (40.0, [WARNING])]
)
def test_hosts_are_slow_below_the_share_of_their_nics(gigabytes: float, found: list[tuple[str, str]]) -> None:
    assert short(expected(run(*HOSTS), measured(gigabytes), host_network=known(NICS))) == found


@pytest.mark.parametrize(
    ("row", "links", "size"),
    [
        (run(*HOSTS), NICS, GIB - 1),
        (run(*HOSTS), [], GIB),
        (run(*HOSTS), [{**row, "kind": "pci"} for row in NICS], GIB),
        (run(*HOSTS), nics("gpu-a") + nics("gpu-b", 7), GIB),
        (run(*HOSTS), nics("gpu-a", 9) + nics("gpu-b", 9), GIB),
        (run(*HOSTS, nranks=15, listed_devices=15), NICS, GIB),
        (run(*HOSTS, listed_devices=8), NICS, GIB),
    ],
)
def test_hosts_of_which_the_nics_are_not_known_alike_are_not_judged(row: Row, links: list[Row], size: int) -> None:
    assert expected(row, measured(40.0, size), host_network=known(links)) == []


def test_nics_of_other_hosts_do_not_count() -> None:
    assert expected(run(*HOSTS), measured(270.0), host_network=known(NICS + nics("gpu-c", 1))) == []


def test_the_slower_of_gpus_and_nics_is_the_measure_where_both_are_known() -> None:
    row = run(*HOSTS, gpus=["NVIDIA L4"])
    few = nics("gpu-a", 4) + nics("gpu-b", 4)

    (finding,) = expected(run(*HOSTS), measured(100.0), host_network=known(few))
    assert finding.title.endswith("50% of what the NICs of a host carry")
    (finding,) = expected(run(*HOSTS), measured(90.0), host_network=known(NICS))
    assert finding.title.endswith("25% of what the GPUs of a host reach among themselves")
    assert short(expected(row, measured(299.9), host_network=known(NICS))) == [NOTE]
    assert expected(row, measured(300.0), host_network=known(NICS)) == []


@pytest.mark.parametrize(
    ("transport", "role", "text"),
    [
        ([], "cause", None),
        ([{"transport": "NET/Socket", "is_gdr": False}], "consequence", "data goes over sockets"),
        ([{"transport": "NET/IB", "is_gdr": False}], "consequence", "no connection uses GPUDirect RDMA"),
        ([{"transport": "NET/IB", "is_gdr": True}], "cause", None),
        (
            [{"transport": "NET/IB", "is_gdr": True}, {"transport": "NET/Socket"}],
            "consequence",
            "data goes over sockets",
        ),
        ([{"transport": "NET/Socket", "medium": "SHM"}], "cause", None),
        ([{"transport": "NET/Socket", "host": "gpu-c"}], "cause", None),
    ],
)
def test_sockets_and_host_memory_explain_slow_hosts(transport: list[Row], role: str, text: str | None) -> None:
    rows = [{"host": "gpu-a", "medium": "NET", "is_gdr": False, **row} for row in transport]

    (finding,) = expected(run(*HOSTS), measured(40.0), host_network=known(NICS), transport=rows)

    assert finding.role == role
    assert finding.detail.endswith(text or "its GPUs 360 among themselves")
    assert len(finding.evidence) == (2 if text else 1)


def not_judged(row: Row, *rows: Row, **frames: list[Row]) -> list[str]:
    findings = findings_of(busbw.bench_not_judged, benchmark=[row], measurement=[*rows], **frames)
    return [finding.detail for finding in findings]


UNKNOWN = "the program does not know what to expect: "
NOT_IN_TABLE, NO_RATES = (
    UNKNOWN + "this machine is not in its table",
    UNKNOWN + "the rates of the NICs are not in these files",
)


@pytest.mark.parametrize(
    ("row", "size", "links", "found"),
    [
        (run("gpu-a", gpus=["NVIDIA L4"]), 256 * MIB, [], [NOT_IN_TABLE]),
        (run("gpu-a", gpus=["NVIDIA L4"]), 256 * MIB - 1, [], []),
        (run("gpu-a"), 256 * MIB, [], []),
        (run(*HOSTS), GIB, [], [NO_RATES]),
        (run(*HOSTS), GIB - 1, [], []),
        (run(*HOSTS), GIB, nics("gpu-a", 1), []),
        (run(*HOSTS), GIB, nics("gpu-c"), [NO_RATES]),
        (run(*HOSTS), GIB, [{**row, "kind": "pci"} for row in NICS], [NO_RATES]),
        (run("gpu-a", gpus=["NVIDIA L4"], wrong=1.0), GIB, [], []),
        (run("gpu-a", gpus=["NVIDIA L4"], wrong=None), GIB, [], [NOT_IN_TABLE]),
        (run("gpu-a", gpus=["NVIDIA L4"], is_complete=False), GIB, [], []),
    ],
)
def test_a_large_size_without_a_figure_is_said_not_to_be_judged(
    row: Row, size: int, links: list[Row], found: list[str]
) -> None:
    assert not_judged(row, measured(40.0, size), host_network=known(links)) == found


def dips(*rows: Row) -> list[str]:
    findings = findings_of(busbw.bench_dip_at_one_size, benchmark=[run("gpu-a")], measurement=[*rows])
    return [finding.title.partition(" is slow at ")[2] for finding in findings]


@pytest.mark.parametrize(
    ("below", "size", "at", "above", "found"),
    [
        (100.0, MIB, 59.9, 100.0, ["1 MiB"]),
        (100.0, MIB, 60.0, 100.0, []),
        (100.0, MIB, 59.9, 99.0, []),
        (99.0, MIB, 59.9, 100.0, []),
        (100.0, MIB // 2, 59.9, 100.0, []),
    ],
)
def test_a_size_dips_below_both_of_its_neighbours(
    below: float, size: int, at: float, above: float, found: list[str]
) -> None:
    rows = [measured(below, size // 2), measured(at, size), measured(above, size * 2)]

    assert dips(*rows) == found
    assert dips(*rows[:2]) == dips(*rows[1:]) == []
    assert dips(*rows, *(row | {"half": "in-place", "busbw": 100.0} for row in rows)) == []
    assert dips(*rows, *(row | {"half": "in-place"} for row in rows)) == found


def curve(*rates: float) -> list[Row]:
    return [measured(rate, MIB << nth) for nth, rate in enumerate(rates)]


def test_up_to_three_slow_sizes_in_a_row_are_one_dip() -> None:
    assert dips(*curve(100, 40, 30, 50, 100)) == ["2 MiB, 4 MiB, 8 MiB"]
    assert dips(*curve(100, 40, 30, 30, 50, 100)) == []
    assert dips(*curve(100, 40, 100, 40, 100, 40, 100)) == ["2 MiB, 8 MiB, 32 MiB"]
    assert dips(*curve(100, 40, 70, 50, 100)) == ["2 MiB"]  # beside 70, 50 is none


@pytest.mark.parametrize(
    ("rates", "above"),
    [
        ((8.5, 6.9, 5.1, 3.6, 2.3, 1.0), "4 MiB"),  # a gradual collapse: half is reached at the fourth size
        ((8.5, 6.9, 5.1, 4.2), "4 MiB"),
        ((8.5, 6.9, 5.1, 4.3), None),  # not yet half
        ((8.5, 6.9, 7.0, 4.2), None),  # one size alone, and no steady fall
        ((8.5, 3.0, 3.1, 3.0), "1 MiB"),
        ((8.5, 3.0, 3.1), None),
        ((8.5, 3.0, 8.0, 3.0, 3.1, 3.0), "4 MiB"),
        ((8.5, 8.4, 0.8), "2 MiB"),  # a collapse: one size suffices
        ((8.5, 0.8, 8.4), None),
    ],
)
def test_a_test_drops_above_a_size(rates: tuple[float, ...], above: str | None) -> None:
    findings = findings_of(busbw.bench_drop_above_a_size, benchmark=[run("gpu-a")], measurement=curve(*rates))

    assert [finding.title.partition(" slower above ")[2] for finding in findings] == ([above] if above else [])


@pytest.mark.parametrize(
    ("gpu", "gigabytes", "found"),
    [
        (H100, 376.0, 0),
        (H100, 150.0, 0),  # boards of four: a third of the links
        (H100, 42.0, 1),
        ("NVIDIA H100 PCIe", 42.0, 0),
        ("Tesla V100-SXM2-32GB", 9.0, 0),  # not all pairs are linked
        ("AMD Instinct MI300X", 48.0, 0),
        ("AMD Instinct MI300X", 25.0, 1),
    ],
)
def test_pairs_that_all_carry_what_pcie_carries_are_named(gpu: str, gigabytes: float, found: int) -> None:
    frames = pairs(gpu, "Unidirectional P2P=Enabled", gigabytes)
    assert len(findings_of(link_tests.bench_pairs_below_links, **frames)) == found


def pairs(gpu: str, test: str, gigabytes: float, matrix: int = 0) -> dict[str, list[Row]]:
    """A matrix of four GPUs whose pairs all carry the same."""
    cells = [
        {
            "matrix": matrix, "ends": "GPU", "kind": "bandwidth", "has_peer_access": True, "test": test,
            "row": row, "column": column, "value": gigabytes,
        }
        for row in range(4)
        for column in range(4)
    ]  # fmt: skip
    return {"gpu_pair": cells, "pair_device": [{"device": nth, "gpu": gpu} for nth in range(4)]}


@pytest.mark.parametrize(
    ("test", "gigabytes", "found"),
    [
        ("Bidirectional P2P=Enabled", 104.0, 1),  # PCIe 5.0 in both directions
        ("device_to_device_bidirectional_memcpy_write_ce Total", 104.0, 1),
        ("Bidirectional P2P=Enabled", 740.0, 0),
        ("device_to_device_memcpy_read_ce", 104.0, 0),
        ("device_to_device_bidirectional_memcpy_read_ce", 104.0, 0),  # older versions: one direction, or both
    ],
)
def test_a_matrix_of_both_directions_counts_half(test: str, gigabytes: float, found: int) -> None:
    one_way, both_ways = pairs(H100, "Unidirectional P2P=Enabled", 42.0), pairs(H100, test, gigabytes, matrix=1)
    frames = {**one_way, "gpu_pair": one_way["gpu_pair"] + both_ways["gpu_pair"]}
    assert len(findings_of(link_tests.bench_pairs_below_links, **frames)) == found


@pytest.mark.parametrize(
    ("gpu", "test", "gigabytes", "found"),
    [
        (H100, "Unidirectional P2P=Enabled", 376.0, []),
        (H100, "Unidirectional P2P=Enabled", 740.0, ["450 GB/s that the links of one carry one way"]),
        (H100, "Bidirectional P2P=Enabled", 740.0, []),
        (H100, "Bidirectional P2P=Enabled", 1200.0, ["900 GB/s that the links of one carry both ways"]),
        (H100, "device_to_device_bidirectional_memcpy_read_sm", 740.0, []),
        ("NVIDIA L40S", "Bidirectional P2P=Enabled", 52.0, []),
        ("NVIDIA L40S", "Unidirectional P2P=Enabled", 52.0, ["32 GB/s that the links of one carry one way"]),
        ("a GPU of tomorrow", "Unidirectional P2P=Enabled", 9000.0, []),
    ],
)
def test_pairs_are_refused_beyond_the_links_of_a_gpu(gpu: str, test: str, gigabytes: float, found: list[str]) -> None:
    titles = [finding.title for finding in findings_of(limits.bench_impossible, **pairs(gpu, test, gigabytes))]
    assert [title.partition("more than the ")[2] for title in titles] == found


def sweep(*slow: tuple[str, str]) -> list[Finding]:
    """Tests of pairs of eight hosts, in two rounds."""
    rounds = ("ab", "cd", "ef", "gh", "ac", "bd", "eg", "fh")
    runs = [
        {
            "benchmark": nth, "collective": "all_reduce", "models": H100, "type": "float", "largest": GIB,
            "ranks_per_host": 8.0, "hosts": [*pair], "host_count": 2, "best_line": nth,
            "busbw": 10.0 if tuple(pair) in slow else 40.0,
        }
        for nth, pair in enumerate(rounds)
    ]  # fmt: skip
    return findings_of(sweeps.bench_find_slow_node, host_run=runs)


def test_a_sweep_names_the_host_or_the_pairs_that_are_slow() -> None:
    (of_host,), (of_pairs,) = sweep(("a", "b"), ("a", "c")), sweep(("a", "b"), ("e", "g"))

    assert (of_host.hosts, of_host.certainty) == (["a"], "likely")
    assert (of_pairs.hosts, of_pairs.certainty) == (["a", "b", "e", "g"], "possible")
    assert "a and b 10.0 GB/s, e and g 10.0 GB/s" in of_pairs.title
    assert sweep() == []


NAMED = {"source": 0, "line": 1, "variable": "NCCL_IB_HCA", "value": ",".join(f"mlx5_{n}:1" for n in range(8))}


@pytest.mark.parametrize(
    ("rate", "named", "gpu", "found"),
    [
        (99.9, NAMED, H100, 1),
        (100.0, NAMED, H100, 0),
        (99.9, NAMED | {"value": "mlx5_0,mlx5_1"}, H100, 0),  # fewer NICs than GPUs
        (99.9, NAMED | {"value": "^mlx5_0"}, H100, 0),
        (99.9, NAMED | {"variable": "NCCL_NET"}, H100, 0),
        (99.9, NAMED, "Tesla V100-SXM2-32GB", 0),
    ],
)
def test_a_test_that_fills_only_slow_nics_is_slow_for_the_nics_it_names(
    rate: float, named: Row, gpu: str, found: int
) -> None:
    row, known = run(*HOSTS, gpus=[gpu], source=0, line=1), {"host": HOSTS[0], "nics": 8, "rate": 400.0, "by": "nccl"}
    frames = {"benchmark": [row], "measurement": [measured(rate)], "exported_variable": [named]}

    assert len(findings_of(named_nics.bench_slow_for_its_nics, **frames)) == found
    assert findings_of(named_nics.bench_slow_for_its_nics, **frames, host_network=[known]) == []


@pytest.mark.parametrize(
    ("in_place", "found"),
    [
        ((69.9, 69.9), 1),
        ((70.0, 69.9), 0),
        ((69.9,), 0),
        ((143.0, 143.0), 1),
        ((69.9, 143.0), 0),
        ((100.0, 69.9), 0),
    ],
)
def test_the_halves_of_a_table_differ_at_all_large_sizes(in_place: tuple[float, ...], found: int) -> None:
    sizes = [256 * MIB << n for n in range(len(in_place))]
    rows = [measured(100.0, size) for size in sizes]
    rows += [measured(rate, size, "in-place") for rate, size in zip(in_place, sizes, strict=True)]
    small = [measured(100.0, MIB), measured(100.0, MIB, "in-place")]

    def findings(row: Row, rows: list[Row]) -> list[Finding]:
        return findings_of(busbw.bench_place_matters, benchmark=[row], measurement=rows)

    assert len(findings(run("gpu-a"), rows + small)) == found
    assert findings(run("gpu-a", collective="alltoall"), rows) == []
    assert findings(run("gpu-a"), rows[: len(sizes)]) == []
