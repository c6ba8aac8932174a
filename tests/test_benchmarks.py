"""Tables of nccl-tests: every layout gives the numbers that stand in it, torn and cut ones what they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.analyses.benchmark import nccl_tests_lines
from ncclforensics.report.build import Report
from ncclforensics.views.json_report import as_object
from ncclforensics.views.text_benchmarks import reached
from ncclforensics.views.text_screen import screen

Row = dict[str, Any]
Read = Callable[..., Report]

BANNER = "#                                                              out-of-place                       in-place"
WORDS = "#   size   count   type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
TABLE = (BANNER, WORDS, UNITS)
BEGUN, LEFT, RIGHT = (  # as they are printed, one after the other
    "     8388608       2097152     float     sum      -1",
    "   199.05   42.14   79.02      0",
    "   199.70   42.01   78.76      0",
)
ROW = BEGUN + LEFT + RIGHT
FOOT = ("# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 78.89 ")


def parameters(least: int = 8388608, most: int = 8388608) -> str:
    return (
        f"# nThread 1 nGpus 1 minBytes {least} maxBytes {most} step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0"
    )


def devices(*hosts: str) -> list[str]:
    return [
        f"#  Rank {rank:2} Group  0 Pid {41880 + rank:6} on {host:>10} device {rank} [0000:{27 + rank:x}:00] "
        "NVIDIA H100 80GB HBM3"
        for rank, host in enumerate(hosts)
    ]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def make(*lines: str, end: str = "\n") -> Report:
        file = tmp_path / "out.txt"
        file.write_text("\n".join(lines) + end)
        return analyze([str(file)], everything=True)

    return make


def measured(report: Report) -> list[Row]:
    return report.run["measurement"].to_dicts()


def only(report: Report) -> Row:
    (row,) = report.run["benchmark"].to_dicts()
    return row


def figures(report: Report, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in measured(report)]


def rules(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}


# Layouts.


def test_a_row_has_two_halves(read: Read) -> None:
    report = read(*TABLE, ROW, *FOOT)

    assert figures(report, "half", "size", "time_us", "algbw", "busbw", "wrong") == [
        ("out-of-place", 8388608, 199.05, 42.14, 79.02, 0),
        ("in-place", 8388608, 199.70, 42.01, 78.76, 0),
    ]
    assert only(report)["average"] == 78.89
    assert only(report)["is_complete"]


@pytest.mark.parametrize(
    ("row", "redop", "root"),
    [
        ("  1024  256  float  sum  31.70  0.03  0.06  1e-07  30.70  0.03  0.06  N/A", "sum", None),
        ("  1024  256  float  sum  2  31.70  0.03  0.06  1e-07  30.70  0.03  0.06  N/A", "sum", 2),
        ("  1024  256  float  2  31.70  0.03  0.06  1e-07  30.70  0.03  0.06  N/A", None, 2),
        ("  1024  256  float  31.70  0.03  0.06  1e-07  30.70  0.03  0.06  N/A", None, None),
    ],
    ids=["all_reduce", "reduce", "broadcast", "all_gather"],
)
def test_how_many_numbers_there_are_tells_an_old_tables_columns(
    read: Read, row: str, redop: str | None, root: int | None
) -> None:
    head = "#  size  count  type  time  algbw  busbw  error  time  algbw  busbw  error"

    first = measured(read(BANNER, head, UNITS, row))[0]

    assert (first["redop"], first["root"], first["time_us"], first["busbw"]) == (redop, root, 31.7, 0.06)
    assert (first["wrong"], first["deviation"]) == (None, 1e-07)


def test_without_a_unit_the_first_version_means_milliseconds(read: Read) -> None:
    head = "#      bytes     N    type      op     time  algbw  busbw      res     time  algbw  busbw      res"

    report = read(head, "  33554432  8388608  float  sum  0.381  88.07  154.12  1e-06  0.382  87.84  153.72  1e-06")

    assert [us for (us,) in figures(report, "time_us")] == [381.0, 382.0]


def test_large_numbers_are_read_in_any_form(read: Read) -> None:
    report = read(
        *TABLE,
        "  17179869184  4294967296  float  sum  -1  1.2e+07  1234.5  12345  1.04858e+06  123456  1e+05  inf  N/A",
    )

    assert figures(report, "time_us", "algbw", "busbw", "wrong") == [
        (1.2e7, 1234.5, 12345, 1048580),
        (123456, 1e5, float("inf"), None),
    ]
    assert as_object(report)["benchmarks"][0]["wrong"] == 1048580


def test_a_time_after_a_row_and_columns_per_iteration_are_ignored(read: Read) -> None:
    per_iteration = (
        "  8388608  2097152  float  sum  -1  199.05  42.14  79.02  0  197.10  204.61  203.90  0.82"
        "  199.70  42.01  78.76  0  198.02  203.11  202.40  0.61  2026-03-02 11:04:57"
    )

    report = read(*TABLE, ROW + " 2026-03-02 11:04:57", per_iteration)

    assert figures(report, "time_us", "occurrence") == [(199.05, 1), (199.70, 1), (199.05, 2), (199.70, 2)]


def test_hypercube_prints_no_operation(read: Read) -> None:
    report = read(*TABLE, "  1024  256  float           -1  31.70  0.03  0.03  0  30.70  0.03  0.03  0")

    assert figures(report, "redop", "root") == [(None, -1), (None, -1)]


def test_a_row_with_one_half_has_the_half_that_the_banner_names(read: Read) -> None:
    half = "     8388608       2097152     float     sum      -1   199.05   42.14   79.02      0"
    head = "#       size         count      type   redop    root     time   algbw   busbw #wrong"

    report = read("#                           in-place", head, UNITS, half, *FOOT)

    assert figures(report, "half", "busbw") == [("in-place", 79.02)]


def test_device_lines_of_rccl_tests_with_collapsed_blanks_are_read(read: Read) -> None:
    report = read(
        parameters(),
        "rccl-tests: Version develop:1a2b3c4",
        "# Using devices",
        "# Rank 0 Pid 4711 on node1 device 0 [0000:05:00.0] AMD Instinct MI300X",
        "# Rank 1 Pid 4711 on node1 device 1 [0000:26:00.0] AMD Instinct MI300X",
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
        "8388608 2097152 float sum -1 199.05 42.14 42.14 0 199.70 42.01 42.01 0",
        "# Avg bus bandwidth : 42.075",
    )

    assert (only(report)["tool"], only(report)["nranks"], only(report)["average"]) == ("rccl-tests", 2, 42.075)


# Which collective, and on how many ranks.


@pytest.mark.parametrize(
    ("count", "algbw", "busbw", "redop", "in_place", "collective", "nranks"),
    [
        (4294967296, 259.78, 487.09, "sum", 0, "all_reduce", 16),
        (536870912, 259.78, 227.31, "sum", 0, "reduce_scatter", 8),
        (536870912, 259.78, 227.31, "none", 0, "all_gather", 8),
        (536870912, 259.78, 227.31, "none", "N/A", "alltoall", 8),
        (4294967296, 259.78, 227.31, "none", 0, None, 8),
        (4294967296, 259.78, 227.31, "sum", 0, None, 8),  # counts and busbw contradict each other
        (4294967296, 0.52, 0.97, "sum", 0, "all_reduce", None),
        # Of many ranks busbw is all but algbw; the counts tell whether each rank sends to one other, or to all.
        (1988411, 1.21, 1.21, "none", "N/A", "alltoall", 2160),
        (4294967296, 1.21, 1.21, "none", "N/A", "sendrecv", None),
        (4294967296, 259.78, 0.0, "sum", 0, None, None),  # a single rank
    ],
)
def test_the_collective_is_inferred_from_the_counts_and_the_ratio_of_busbw_to_algbw(
    read: Read, count: int, algbw: float, busbw: float, redop: str, in_place: object, collective: str | None,
    nranks: int | None
) -> None:  # fmt: skip
    size = count * 4 * 2160 if count == 1988411 else 17179869184
    measured_halves = f"66132  {algbw}  {busbw}  0  66132  {algbw}  {busbw}  {in_place}"
    report = read(*TABLE, f"  {size}  {count}  float  {redop}  -1  {measured_halves}")

    assert (only(report)["collective"], only(report)["nranks"]) == (collective, nranks)


def test_a_command_line_tells_the_collective(read: Read) -> None:
    report = read("+ srun -n 2 ./build/all_gather_perf_mpi -b 8M", parameters(), *devices("a", "b"), *TABLE, ROW)

    assert only(report)["collective"] == "all_gather"


# Torn and tagged.


def test_a_torn_row_is_reassembled(read: Read) -> None:
    log = "gpu-a013:41888:42107 [3] NCCL INFO Connected all rings"

    report = read(*TABLE, BEGUN + log, log, LEFT + RIGHT, *FOOT)

    assert figures(report, "time_us", "busbw", "line") == [(199.05, 79.02, 4), (199.70, 78.76, 4)]
    assert report.run["milestone"].height == 2


def test_a_row_torn_twice_is_reassembled(read: Read) -> None:
    log = "gpu-a013:41888:42107 [3] NCCL INFO Connected all rings"

    report = read(log, *TABLE, BEGUN + log, LEFT + log, RIGHT, *FOOT)

    assert figures(report, "half", "time_us") == [("out-of-place", 199.05), ("in-place", 199.70)]
    assert only(report)["rows"] == 1


def test_tags_of_mpi_may_stand_inside_a_row(read: Read) -> None:
    tag = "[1,0]<stdout>:"

    report = read(*(tag + line for line in TABLE), tag + BEGUN + tag + LEFT + tag + RIGHT)

    assert [us for (us,) in figures(report, "time_us")] == [199.05, 199.70]


def test_a_table_may_begin_deep_in_a_log(read: Read) -> None:
    log = ["gpu-a013:41888:42107 [3] NCCL INFO some text that no grammar knows"] * 2000

    report = read(*log, *TABLE, ROW, *FOOT, *log)

    assert only(report)["rows"] == 1


# Several runs.


def test_consecutive_runs_are_distinguished(read: Read) -> None:
    one = [parameters(), *devices("a", "b"), *TABLE, ROW, *FOOT]

    report = read(*one, *one)

    assert [row["rows"] for row in report.run["benchmark"].to_dicts()] == [1, 1]
    assert "bench-not-mpi" not in rules(report)


def test_copies_side_by_side_are_a_test_without_mpi(read: Read) -> None:
    double = ROW.replace("8388608 ", "16777216", 1)
    head = [parameters(8388608, 16777216), "# Using devices"]
    both = [line for line in (*TABLE, ROW, double) for _ in range(2)]

    report = read(*head, *head, *devices("a"), *devices("b"), *both, *FOOT, *FOOT)

    assert [(row["rows"], row["nranks"]) for row in report.run["benchmark"].to_dicts()] == [(2, 1), (2, 1)]
    assert "bench-not-mpi" in rules(report)


@pytest.mark.parametrize(("busbw", "expected"), [("0.00", True), ("41.08", False)])
def test_a_test_of_one_rank_measures_no_link(busbw: str, expected: bool, read: Read) -> None:
    row = f"  134217728  33554432  float  sum  -1  631.9  212.41  {busbw}  0  0.51  2630.30  0.00  0"

    report = read(*TABLE, row)

    assert ("bench-not-mpi" in rules(report)) is expected


@pytest.mark.parametrize(
    ("host", "bus", "gpu", "expected"),
    [
        ("a", "0000:1b:00", "NVIDIA H100", True),
        ("b", "0000:1b:00", "NVIDIA H100", False),
        ("a", "0000:1b:00", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", False),
        ("a", "0x01", "NVIDIA GH200 120GB", False),  # their domains differ, which older versions do not print
    ],
)
def test_ranks_on_one_gpu_measure_no_link(host: str, bus: str, gpu: str, expected: bool, read: Read) -> None:
    listed = [
        f"#  Rank  {rank} Group  0 Pid  4188{rank} on          {name} device  0 [{bus}] {gpu}"
        for rank, name in enumerate(("a", host))
    ]

    report = read(parameters(), *listed, *TABLE, ROW, *FOOT)

    assert ("bench-shared-gpu" in rules(report)) is expected


@pytest.mark.parametrize("front", ["[0] ", "gpu-a012: "])
def test_rows_behind_the_tag_of_a_launcher_are_read(front: str, read: Read) -> None:
    report = read(*(front + line for line in (ROW, ROW)))

    assert only(report)["rows"] == 2


# Cut off.


def test_the_unfinished_size_follows_the_last_row(read: Read) -> None:
    report = read(parameters(8388608, 1 << 30), *devices("a", "b"), *TABLE, ROW)

    assert only(report)["unfinished_size"] == 16777216
    assert not only(report)["is_complete"]
    finding = next(finding for finding in report.findings if finding.rule == "bench-run-cut-off")
    assert "ends before 16 MiB" in finding.title


def test_a_partial_row_names_the_unfinished_size(read: Read) -> None:
    begun = "    33554432       8388608     float     sum      -1gpu-a012: Test timeout (60s) common.cu:640"

    report = read(parameters(8388608, 1 << 30), *devices("a", "b"), *TABLE, ROW, begun, "b: Test timeout (60s) x.cu:1")

    assert (only(report)["unfinished_size"], only(report)["rows"]) == (33554432, 1)
    assert "bench-timed-out" in rules(report)


@pytest.mark.parametrize("length", [20, 55, 70, 95])
def test_a_cut_row_holds_only_the_values_printed(read: Read, length: int) -> None:
    report = read(
        parameters(8388608, 1 << 30),
        *devices("a", "b"),
        *TABLE,
        ROW,
        ROW[:length].replace("8388608", "16777216", 1),
        end="",
    )

    assert {size for (size,) in figures(report, "size")} == {8388608}


# Judgement.


def host_of_eight(busbw: float, size: int = 8 << 30, gpu: str = "NVIDIA H100 80GB HBM3") -> list[str]:
    algbw = busbw / 1.75
    row = f"  {size}  {size // 4}  float  sum  -1  {size / algbw / 1e3:.1f}  {algbw:.2f}  {busbw:.2f}  0"
    return [
        "# Collective test starting: all_reduce_perf",
        parameters(size, size),
        *(line.replace("NVIDIA H100 80GB HBM3", gpu) for line in devices(*["a"] * 8)),
        *TABLE,
        row + row[row.index("-1") + 2 :],
        *FOOT,
    ]


@pytest.mark.parametrize("busbw", [480, 365, 320])
def test_a_host_with_the_expected_busbw_has_no_finding(read: Read, busbw: float) -> None:
    assert not rules(read(*host_of_eight(busbw)))


def test_a_finding_on_busbw_shows_the_expected_value_and_the_share(read: Read) -> None:
    (finding,) = read(*host_of_eight(180)).findings

    assert (finding.severity, finding.certainty) == ("warning", "likely")
    assert "180.0 GB/s at 8 GiB, 50%" in finding.title
    assert "2 (8 - 1) / 8" in finding.detail


def test_sizes_that_are_too_small_are_not_held_against_what_hosts_reach(read: Read) -> None:
    small, large = (
        reached(read(*host_of_eight(406.3, size=size)).run["benchmark"].row(0, named=True))
        for size in (32 << 20, 8 << 30)
    )

    assert small.endswith("from 256 MiB on, which was not measured")
    assert "not measured" not in large


def test_many_runs_of_one_test_of_one_size_each_are_one_row_with_the_largest_size(read: Read) -> None:
    sizes = [1 << bits for bits in range(12, 34)]
    runs = [line for size in sizes for line in host_of_eight(320, size=size, gpu="NVIDIA H800")]

    shown = screen(read(*runs), width=100, everything=True)

    assert shown.count("all_reduce on 8 ranks reaches 320.0 GB/s at 8 GiB") == 1
    assert "at 4 KiB" not in shown
    assert f"1 {len(sizes)} 320.0 GB/s 8 GiB" in " ".join(shown.split())


def test_small_sizes_and_unknown_machines_have_no_finding_on_busbw(read: Read) -> None:
    assert not rules(read(*host_of_eight(40, size=1 << 20)))
    assert rules(read(*host_of_eight(40, gpu="NVIDIA H20"))) == {"bench-not-judged"}


def test_sockets_explain_a_low_busbw_between_hosts(read: Read) -> None:
    size, busbw = 8 << 30, 3.1
    row = f"  {size}  {size // 4}  float  sum  -1  5196000  1.65  {busbw}  0  5196000  1.65  {busbw}  0"
    log = "gpu-a012:41880:42107 [0] NCCL INFO "

    report = read(
        "# Collective test starting: all_reduce_perf",
        parameters(size, size),
        *devices(*["gpu-a012"] * 8, *["gpu-a013"] * 8),
        f"{log}NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
        f"{log}NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=400000 context=0x5581 pciPath=/sys/x ar=1",
        f"{log}Channel 00/0 : 7[7] -> 8[0] [receive] via NET/Socket/0",
        *TABLE,
        row,
        *FOOT,
    )

    (finding,) = [one for one in report.findings if one.rule == "bench-expected-table"]
    assert finding.role == "consequence"
    assert "sockets" in finding.detail


def test_a_long_sweep_is_read_whole(read: Read) -> None:
    rows = [ROW.replace("8388608", str(8388608 + step), 1) for step in range(0, 40000, 4)]

    report = read(parameters(8388608, 1 << 30), *devices("a", "b"), *TABLE, *rows, *FOOT)

    assert only(report)["rows"] == len(rows)


# Other tools.


@pytest.mark.parametrize(("unit", "rate"), [("Gb/sec", 12.5), ("MB/sec", 0.1048576), ("MiB/sec", 0.1048576)])
def test_the_header_of_perftest_gives_the_unit(read: Read, unit: str, rate: float) -> None:
    report = read(
        "                    RDMA_Write BW Test",
        " Dual-port       : OFF\t\tDevice         : mlx5_0",
        f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]",
        " 65536      5000             0.00               100.00 \t\t     0.747900",
    )

    (row,) = report.run["link_measurement"].to_dicts()
    assert (row["test"], row["device"], row["size"]) == ("RDMA_Write BW Test", "mlx5_0", 65536)
    assert row["bandwidth_GBps"] == pytest.approx(rate)
    assert as_object(report)["benchmarks"][0]["rows"] == 1


def test_the_matrices_of_p2p_bandwidth_say_whether_peers_were_used(read: Read) -> None:
    report = read(
        "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]",
        "P2P Connectivity Matrix",
        "     D\\D     0     1",
        "     0\t     1     1",
        "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)",
        "   D\\D     0      1 ",
        "     0 2495.32  39.80 ",
        "     1  39.77 2499.10 ",
        "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)",
        "   D\\D     0      1 ",
        "     0 2495.32 392.80 ",
    )

    apart = [row for row in report.run["gpu_pair"].to_dicts() if row["row"] != row["column"]]
    assert [(row["has_peer_access"], row["row"], row["column"], row["value"]) for row in apart] == [
        (False, 0, 1, 39.80),
        (False, 1, 0, 39.77),
        (True, 0, 1, 392.80),
    ]


def test_numbers_too_large_for_their_column_are_ignored(read: Read) -> None:
    large = "9" * 30

    report = read(
        *devices("a"), devices("a")[0].replace("Rank  0", f"Rank {large}"), *TABLE, ROW.replace("8388608", large, 1)
    )

    assert only(report)["nranks"] == 1


def repeated_and_mixed() -> list[str]:
    """The same test again and again; one that is cut off, two that are interleaved, an end without a beginning."""
    one = [parameters(), *devices("a", "b"), *TABLE, ROW, *FOOT, "# Collective test concluded: all_reduce_perf"]
    other = [parameters(most=16777216), *devices("c"), *TABLE, ROW, ROW.replace("8388608", "16777216", 1), *FOOT]
    interleaved = [line for pair in zip(one, one, strict=True) for line in pair]
    failure = "gpu-a012: Test NCCL failure common.cu:958 'unhandled cuda error'"
    return [
        *one * 3, "# error: unhandled system error", *other, *one, *other[:-2], *one * 2, *interleaved, *one,
        *one[:6], failure, *one * 2, *other * 2, one[-1],
    ]  # fmt: skip


def test_tests_that_repeat_are_assigned_as_if_each_line_was_looked_at(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = read(*repeated_and_mixed()).run["benchmark_line"]
    monkeypatch.setattr(nccl_tests_lines._Stream, "is_idle", property(lambda _: False))

    assert lines.equals(read(*repeated_and_mixed()).run["benchmark_line"])
    assert lines["benchmark"].n_unique() > 10


def test_a_test_that_repeats_is_looked_at_once(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    assign = nccl_tests_lines._Stream.assign
    monkeypatch.setattr(nccl_tests_lines._Stream, "assign", lambda *given: (seen.append(given), assign(*given))[1])
    one = [parameters(), *devices("a", "b"), *TABLE, ROW, *FOOT]

    report = read(*one * 50)

    assert report.run["benchmark"].height == 50
    assert len(seen) <= 2 * len(one)  # of the first no run ended before


# JSON.


def as_json(*, sizes: int = 2) -> str:
    half = '{"time":199.05,"alg_bw":42.14,"bus_bw":79.02,"nwrong":0}'
    results = ",".join(
        f'{{"size":{8388608 << n},"count":{2097152 << n},"type":"float","redop":"sum","root":"    -1",'
        f'"out_of_place":{half},"in_place":{half.replace("0}", "null}")},"actual_iterations":20}}'
        for n in range(sizes)
    )
    device = '{"rank":%d,"group":0,"pid":41880,"hostname":"gpu-a012","device":%d,"device_info":"NVIDIA H200"}'
    return (
        '{"version":1,"start_time":"2026-03-02 11:04:57","args":[".\\/build\\/all_reduce_perf","-J","o.json"],'
        '"env":["TOKEN=secret"],"nccl_version":22807,"config":{"nthreads":1,"ngpus":1,"minimum_bytes":8388608,'
        '"maximum_bytes":16777216,"step_factor":2,"warmup_iters":5,"iterations":20,"aggregated_iterations":1,'
        f'"validation":1,"graph":0,"devices":[{device % (0, 0)},{device % (1, 1)}]}},"results":[{results}],'
        '"out_of_bounds":{"count":0,"okay":"true"},"average_bus_bandwidith":{"bandwidith":79.02,"okay":"unchecked"}}'
    )


def test_json_fills_the_same_frames(read: Read) -> None:
    report = read(as_json())

    assert figures(report, "half", "size", "busbw", "wrong") == [
        ("out-of-place", 8388608, 79.02, 0),
        ("in-place", 8388608, 79.02, None),
        ("out-of-place", 16777216, 79.02, 0),
        ("in-place", 16777216, 79.02, None),
    ]
    row = only(report)
    assert (row["collective"], row["nranks"], row["average"], row["is_complete"]) == ("all_reduce", 2, 79.02, True)
    (given,) = as_object(report)["inputs"]
    assert given["kind"] == "nccl-tests"
    assert given["lines"] == given["recognised"] == len(report.run["benchmark_line"])
    assert "secret" not in str(as_object(report))


def test_truncated_json_gives_the_records_before_the_cut(read: Read) -> None:
    whole = as_json()
    cut = whole.index('"in_place"', whole.index("16777216", whole.index("results"))) + 30

    report = read(whole[:cut], end="")

    assert [size for (size,) in figures(report, "size")] == [8388608, 8388608, 16777216]
    assert not only(report)["is_complete"]
    assert as_object(report)["inputs"][0]["problems"] == ["is JSON that was cut off"]


def test_infinity_in_json_is_accepted(read: Read) -> None:
    report = read(as_json(sizes=1).replace('"bus_bw":79.02', '"bus_bw":inf'))

    assert only(report)["rows"] == 1


def test_evidence_in_json_is_its_one_line(read: Read) -> None:
    report = read(as_json(sizes=1).replace('"nwrong":0}', '"nwrong":12}'))

    (finding,) = [one for one in as_object(report)["findings"] if one["rule"] == "bench-wrong-results"]
    assert {line["line"] for line in finding["evidence"]} == {1}
    assert finding["evidence"][0]["text"].startswith('{"version":1')
    assert "secret" not in str(finding)


@pytest.mark.parametrize(
    "parts",
    [
        '"config":{"devices":7},"results":{"a":[1',
        '"config":[],"args":5,"results":[1,"x",{"size":"a","out_of_place":[]}]}',
        '"config":{"devices":[{"pid":99999999999999999999}]},"out_of_bounds":1,"average_bus_bandwidth":"x"}',
    ],
)
def test_json_of_an_unknown_structure_is_ignored(read: Read, parts: str) -> None:
    assert not measured(read('{"version":1,"start_time":"x",' + parts))


# --- nvbandwidth and perftest: their JSON, and heads of all kinds ---


def nvbandwidth_json(status: str = "Passed") -> str:
    tests = [
        ("host_to_device_memcpy_ce", "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", [["55.1", "55.3"]]),
        (
            "device_to_device_memcpy_read_ce",
            "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
            [["N/A", "392.80"], ["394.01", "N/A"]],
        ),
        ("host_device_latency_sm", "memory latency SM CPU(row) <-> GPU(column) (ns)", [["582.7", "574.6"]]),
    ]
    cases = [
        {"name": name, "status": status, "bandwidth_description": reported, "bandwidth_matrix": matrix}
        for name, reported, matrix in tests
    ]
    whole = {"CUDA Runtime Version": 12080, "GPU Device list": ["0: NVIDIA H100 (1b:00): (node)"], "testcases": cases}
    return json.dumps({"nvbandwidth": whole}, indent=1)


def pairs(report: Report) -> list[Row]:
    return report.run["gpu_pair"].select("test", "kind", "row", "column", "value").to_dicts()


def test_json_of_nvbandwidth_fills_the_same_frames_as_its_text(read: Read) -> None:
    report = read(nvbandwidth_json())

    assert pairs(report) == [
        {"test": name, "kind": kind, "row": row, "column": column, "value": pytest.approx(value)}
        for name, kind, row, column, value in (
            ("host_to_device_memcpy_ce", "bandwidth", None, 0, 55.1),
            ("host_to_device_memcpy_ce", "bandwidth", None, 1, 55.3),
            ("device_to_device_memcpy_read_ce", "bandwidth", 0, 1, 392.8),
            ("device_to_device_memcpy_read_ce", "bandwidth", 1, 0, 394.01),
            ("host_device_latency_sm", "latency", None, 0, 0.5827),
            ("host_device_latency_sm", "latency", None, 1, 0.5746),
        )
    ]
    assert as_object(report)["inputs"][0]["kind"] == "gpu-bandwidth"


def test_truncated_or_failed_json_of_nvbandwidth_is_reported(read: Read) -> None:
    whole = nvbandwidth_json()
    cut = read(whole[: whole.index("394.01")])
    failed = read(nvbandwidth_json("Error"))

    assert [row["value"] for row in pairs(cut)] == [55.1, 55.3, 392.8]
    assert as_object(cut)["inputs"][0]["problems"] == ["is JSON that was cut off"]
    assert as_object(failed)["inputs"][0]["problems"][0] == "test host_to_device_memcpy_ce ended as Error"


@pytest.mark.parametrize(
    "text", ['{"nvbandwidth": 7}', '{"nvbandwidth": {"testcases": [3, {"bandwidth_matrix": [[]]}]}}']
)
def test_json_of_nvbandwidth_of_an_unknown_structure_is_ignored(read: Read, text: str) -> None:
    assert pairs(read(text)) == []


def test_rows_below_an_unknown_header_do_not_join_the_previous_matrix(read: Read) -> None:
    report = read(
        "Running device_to_device_memcpy_read_ce.", "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
        "           0         1", " 0       N/A    394.25", " 1    394.11       N/A", "",
        "Running something_new.", "a head of another release", "           0         1", " 0      1.25      1.35",
    )  # fmt: skip

    assert [row["value"] for row in pairs(report)] == [394.25, 394.11]


def perftest_json(results: str, more: str = "") -> str:
    info = f'"test": "RDMA_Write_BW_Test",\n"Dual_port": "OFF",\n"Device": "mlx5_0",\n{more}"Link_type": "IB"'
    return f'{{\n"test_info": {{\n{info}\n}},\n"results": {{\n{results}\n}}\n}}\n'


@pytest.mark.parametrize(
    ("average", "rate", "bandwidth"),
    [
        (388.92, 0.741805, 48.615),  # Gb/sec
        (46362.81, 0.741805, 48.615),  # MiB/sec: the unit is told by the rate of messages alone
        (388.92, 0.0, None),  # and not at all without it
    ],
)
def test_json_of_perftest_is_read_in_the_unit_that_agrees(
    read: Read, average: float, rate: float, bandwidth: float | None
) -> None:
    report = read(
        perftest_json(f'"MsgSize": 65536,\n"n_iterations": 5000,\n"BW_average": {average},\n"MsgRate": {rate}')
    )
    (row,) = report.run["link_measurement"].to_dicts()

    assert (row["test"], row["device"], row["size"], row["of_gpu"]) == ("RDMA_Write BW Test", "mlx5_0", 65536, False)
    assert row["bandwidth_GBps"] == (bandwidth and pytest.approx(bandwidth, rel=1e-3))
    unknown = ["does not tell the unit of its bandwidth"] * (bandwidth is None)
    assert as_object(report)["inputs"][0]["problems"] == unknown


def test_json_of_perftest_gives_latency_and_gpu_memory(read: Read) -> None:
    latency = '"MsgSize": 2,\n"n_iterations": 1000,\n"t_min": 1.57,\n"t_max": 9.65,\n"t_typical": 1.84'
    (row,) = read(perftest_json(latency, '"cuda_device": 0,\n')).run["link_measurement"].to_dicts()

    assert (row["latency_us"], row["bandwidth_GBps"], row["of_gpu"]) == (1.84, None, True)


def test_json_of_perftest_without_results_is_reported(read: Read) -> None:
    assert as_object(read('{"test_info": {"test": "Send_BW_Test"}}'))["inputs"][0]["problems"] == ["holds no results"]
