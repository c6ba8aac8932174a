"""Tests of TCP between two hosts: iperf3 and iperf."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

TCP_TEST = {
    "table": pl.Int32(),  # number of the test, over all files
    "peer": pl.String(),
    "bandwidth_GBps": pl.Float64(),  # of the summary, or the mean of the intervals; 1 GB is 1e9 bytes
    "size_sent": pl.Float64(),  # bytes, by the summary of the sender
    "sent_again": pl.Int64(),  # segments, by the same line; null of UDP
    "intervals": pl.Int64(),
    "still": pl.Int64(),  # intervals in which nothing was moved
    "still_since": pl.Float64(),  # second of the test from which on nothing was moved until its end; null if it was
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the summary, or the last interval
    "first_still_line": pl.Int32(),
}
BYTES = {"Bytes": 1.0, "KBytes": 2.0**10, "MBytes": 2.0**20, "GBytes": 2.0**30, "TBytes": 2.0**40}
BITS = {"bits": 1.0, "Kbits": 1e3, "Mbits": 1e6, "Gbits": 1e9, "Tbits": 1e12}  # iperf3, src/units.c
OMITTED = "(omitted)"
OF_TEST = ["source", "test"]


@analysis(TCP_TEST, of=("tcp_interval",))
def tcp_test(tcp_peer: pl.DataFrame, tcp_interval: pl.DataFrame) -> pl.DataFrame:
    """One row per test; those of several streams by their sum, where it is printed."""
    peers = tcp_peer.select("source", "line", "pos", peer=text_of("peer_host"), is_peer=pl.lit(value=True))
    rows = tcp_interval.with_columns(
        is_peer=pl.lit(value=False),
        side=text_of("side").fill_null(""),
        stream=text_of("tcp_stream"),
        moved=pl.col("transferred") * text_of("transfer_unit").replace_strict(BYTES, return_dtype=pl.Float64),
        rate=pl.col("tcp_rate") * text_of("rate_unit").replace_strict(BITS, return_dtype=pl.Float64) / 8e9,
    )
    events = pl.concat([peers, rows], how="diagonal_relaxed").sort("source", "pos")
    begins = pl.col("is_peer") & ~pl.col("is_peer").shift(1, fill_value=False).over("source")
    events = events.with_columns(test=begins.cum_sum().over("source"))
    measured = events.filter(~pl.col("is_peer") & (pl.col("side") != OMITTED))
    has_sum = (pl.col("stream") == "SUM").any().over(OF_TEST)
    measured = measured.filter(~has_sum | (pl.col("stream") == "SUM"))
    is_summary = pl.col("side").is_in(["sender", "receiver"])
    summaries = measured.filter(is_summary).group_by(OF_TEST, maintain_order=True).agg(
        summary=pl.col("rate").last(),
        summary_line=pl.col("line").last(),
        size_sent=pl.col("moved").filter(pl.col("side") == "sender").sum(),
        sent_again=pl.col("sent_again").filter(pl.col("side") == "sender").sum(),
    )  # fmt: skip
    moments = measured.filter(~is_summary).group_by(*OF_TEST, "begins", maintain_order=True).agg(
        pl.col("rate").sum(), pl.col("line").last()
    )  # fmt: skip
    moved_last = pl.col("begins").filter(pl.col("rate") > 0).max().fill_null(-1.0)
    series = moments.group_by(OF_TEST, maintain_order=True).agg(
        mean=pl.col("rate").mean(),
        last_line=pl.col("line").last(),
        intervals=pl.len(),
        still=(pl.col("rate") == 0).sum(),
        still_since=pl.col("begins").filter(pl.col("begins") > moved_last).min(),
        first_still_line=pl.col("line").filter(pl.col("rate") == 0).first(),
    )
    named = events.group_by(OF_TEST, maintain_order=True).agg(pl.col("peer").drop_nulls().first())
    tests = named.join(series, on=OF_TEST, how="left").join(summaries, on=OF_TEST, how="left")
    found = tests.filter(pl.col("intervals").is_not_null() | pl.col("summary").is_not_null()).with_row_index("table")
    return found.with_columns(
        bandwidth_GBps=pl.coalesce("summary", "mean"), line=pl.coalesce("summary_line", "last_line")
    ).select(pl.col(name).cast(dtype) for name, dtype in TCP_TEST.items())
