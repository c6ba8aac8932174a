"""Pairs of hosts between which something was measured or failed: perftest, nccl-tests, capture, NCCL's transfers."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.benchmark.host_runs import SAME_TEST
from ncclforensics.frames.columns import no_rows, text_of
from ncclforensics.frames.registry import analysis

TESTED_PAIR = {
    "pair": pl.Int32(),
    "test": pl.String(),  # bandwidths of one test can be compared
    "host": pl.String(),
    "device": pl.String(),  # null where several may have been used
    "lid": pl.Int32(),  # perftest names the ends by their LIDs
    "peer_host": pl.String(),
    "peer_device": pl.String(),
    "peer_lid": pl.Int32(),
    "is_failed": pl.Boolean(),
    "bandwidth_GBps": pl.Float64(),  # null where it failed, and of NCCL's own transfers
    "source": pl.Int32(),
    "line": pl.Int32(),  # null of pairs that NCCL connected and that did not fail
}
FAILED_TEST = ("status", "completion", "incomplete", "refused")  # forms of `link_failure` that are of the path
NCCL_TEST = "NCCL"
NETWORK = "NET"  # how names of transports between hosts begin


def _link_tests(
    link_title: pl.DataFrame, link_test: pl.DataFrame, link_measurement: pl.DataFrame, link_failure: pl.DataFrame
) -> pl.DataFrame:
    """One row per run of perftest over InfiniBand that prints the LIDs of both ends."""
    titles = link_title.select("source", "pos", "line", title_pos="pos", verb=text_of("verb"), kind=text_of("form"))

    def of_title(rows: pl.DataFrame, key: str) -> pl.DataFrame:
        found = rows.sort(key).join_asof(titles.sort(key), on=key, by="source", suffix="_title", check_sortedness=False)
        return found.drop_nulls("title_pos")

    ends = of_title(link_test.filter(pl.col("lid").is_not_null()), "pos").with_columns(
        # `LID %#04x`: without 0x for RoCE, which has none
        number=text_of("lid").str.strip_prefix("0x").str.to_integer(base=16, strict=False).cast(pl.Int32)
    )
    is_local = text_of("form") == "local"
    runs = ends.group_by("title_pos").agg(
        pl.col("source", "line", "verb", "kind").first(),
        lid=pl.col("number").filter(is_local).first(),
        peer_lid=pl.col("number").filter(~is_local).first(),
    )
    best = of_title(link_measurement, "line").group_by("title_pos").agg(
        bandwidth_GBps=pl.col("bandwidth_GBps").sort_by("size").last(), size=pl.col("size").max()
    )  # fmt: skip
    failed = of_title(link_failure.filter(text_of("form").is_in(FAILED_TEST)), "pos")
    runs = runs.filter((pl.col("lid") > 0) & (pl.col("peer_lid") > 0))
    runs = runs.join(best, on="title_pos", how="left").with_columns(
        test=pl.format("{} {} {}", "verb", "kind", pl.col("size").fill_null(0)),
        is_failed=pl.col("title_pos").is_in(failed["title_pos"].implode()),
    )
    return runs.with_columns(bandwidth_GBps=pl.when(~pl.col("is_failed")).then("bandwidth_GBps"))


def _benchmarks(benchmark: pl.DataFrame, host_run: pl.DataFrame) -> pl.DataFrame:
    """One row per run of nccl-tests on two hosts."""
    hosts = {"host": pl.col("hosts").list.get(0), "peer_host": pl.col("hosts").list.get(1)}
    measured = host_run.filter((pl.col("host_count") == 2) & (pl.col("busbw") > 0)).select(
        "source", **hosts, line="best_line", bandwidth_GBps="busbw", is_failed=False,
        test=pl.concat_str(*(pl.col(name).cast(pl.String) for name in SAME_TEST), separator=" ", ignore_nulls=True),
    )  # fmt: skip
    failed = benchmark.filter(
        (pl.col("hosts").list.len() == 2) & (pl.col("has_failed") | pl.col("unfinished_size").is_not_null())
    )
    return pl.concat(
        [measured, failed.select("source", "line", **hosts, test="collective", is_failed=True)], how="diagonal_relaxed"
    )


def _captured(gpu_pair: pl.DataFrame, pair_host: pl.DataFrame) -> pl.DataFrame:
    """One row per pair of hosts in a matrix of `ncclforensics capture`, which measured all adapters at once."""
    cells = gpu_pair.filter((pl.col("ends") == "host") & (pl.col("kind") == "bandwidth") & (pl.col("value") > 0))
    names = pair_host.select("source", nth=pl.col("nth").cast(pl.Int32), name=text_of("host")).unique(["source", "nth"])
    pairs = cells.filter(pl.col("row") < pl.col("column"))
    for end, column in (("host", "row"), ("peer_host", "column")):
        pairs = pairs.join(names.rename({"name": end}), left_on=["source", column], right_on=["source", "nth"])
    return pairs.select(
        "source", "line", "host", "peer_host", "test", bandwidth_GBps="value", is_failed=pl.lit(value=False)
    )


def _transfers(unanswered_transfer: pl.DataFrame, rank_connection: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """One row per pair of hosts whose transfer got no answer, and per further pair that NCCL connected."""
    failed = unanswered_transfer.filter(~pl.col("is_consequence") & ~pl.col("is_survived")).select(
        "source", "line", "job", host=text_of("host"), device=pl.col("hca").str.split(":").list.first(),
        peer_host="peer_host", is_failed=True,
    )  # fmt: skip
    failed = failed.drop_nulls(["host", "peer_host"]).unique(
        ["host", "device", "peer_host"], keep="first", maintain_order=True
    )
    if failed.is_empty():
        return failed
    hosts = rank.select("rank_id", "source", name=text_of("host")).drop_nulls("name")
    between = rank_connection.filter(
        pl.col("transport").str.starts_with(NETWORK) & pl.col("job").is_in(failed["job"].implode())
    )
    linked = between.join(hosts.rename({"name": "host"}), on="rank_id").join(
        hosts.select(peer="rank_id", peer_host="name"), on="peer"
    )
    ends = failed.select("host", "peer_host")
    either = pl.concat([ends, ends.select(host="peer_host", peer_host="host")])
    others = linked.filter(pl.col("host") != pl.col("peer_host")).join(either, on=["host", "peer_host"], how="anti")
    others = others.unique(["host", "peer_host"], keep="first", maintain_order=True)
    return pl.concat(
        [failed, others.select("source", "host", "peer_host", is_failed=False)], how="diagonal_relaxed"
    ).with_columns(test=pl.lit(NCCL_TEST))


@analysis(TESTED_PAIR, of=("link_measurement", "link_failure", "benchmark", "gpu_pair", "unanswered_transfer"))
def tested_pair(
    link_title: pl.DataFrame,
    link_test: pl.DataFrame,
    link_measurement: pl.DataFrame,
    link_failure: pl.DataFrame,
    benchmark: pl.DataFrame,
    host_run: pl.DataFrame,
    gpu_pair: pl.DataFrame,
    pair_host: pl.DataFrame,
    unanswered_transfer: pl.DataFrame,
    rank_connection: pl.DataFrame,
    rank: pl.DataFrame,
) -> pl.DataFrame:
    """One row per pair of hosts that was tested: by perftest, by nccl-tests, by capture, or by a job that failed."""
    found = [
        _link_tests(link_title, link_test, link_measurement, link_failure),
        _benchmarks(benchmark, host_run),
        _captured(gpu_pair, pair_host),
        _transfers(unanswered_transfer, rank_connection, rank),
    ]
    known = [rows.select([name for name in TESTED_PAIR if name in rows.columns]) for rows in found if rows.height]
    rows = pl.concat([no_rows(TESTED_PAIR).drop("pair"), *known], how="diagonal_relaxed")
    return rows.sort("source", "line", maintain_order=True).with_row_index("pair")
