"""Tests of TCP between two hosts that stood still, or sent much again."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import bandwidth_text
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

STILL = 3  # intervals without data, from which on a test stood still
SEGMENT = 1448  # bytes of data in a segment at an MTU of 1500: of larger ones there are fewer
LOSSY = 0.001  # share of segments sent again


@rule(Category.CONGESTION, Severity.WARNING, of=("tcp_test",))
def bench_tcp_test_stood_still(tcp_test: pl.DataFrame) -> Iterator[Finding]:
    """A test of the network between two hosts moved no data for some of its intervals.

    Means: packets of full size do not arrive, because an MTU on the way is smaller than at both ends, or a firewall,
    or the window that was asked for, stopped the flow; or the other end stood still.
    Not when: fewer than three intervals were empty, as at the end of a short test.
    Do: run ping -M do -s 8972 HOST (1472 at an MTU of 1500); ip -s link on both hosts; nstat -az TcpRetransSegs;
    the same test without -w, and with -M 1400.
    Sources: iperf3, src/iperf_locale.c and iperf_api.c; iperf#955, #970.
    """
    for row in tcp_test.filter(pl.col("still") >= STILL).to_dicts():
        since = row["still_since"]
        yield Finding(
            f"iperf moved no data to {row['peer'] or 'another host'} in {row['still']} of {row['intervals']} intervals",
            "in between" if since is None else f"from second {since:g} on, until its end",
            "certain",
            evidence=[Line(row["source"], row["first_still_line"], "the first"), Line(row["source"], row["line"], "")],
        )


@rule(Category.CONGESTION, Severity.INFO, of=("tcp_test",), role=Role.CONTEXT)
def bench_tcp_sent_again(tcp_test: pl.DataFrame) -> Iterator[Finding]:
    """A test of TCP between two hosts had to send many segments again.

    Means: packets were lost or came late: a queue of a switch or a host is full, or a link is faulty. NCCL over
    sockets slows down in the same way; RoCE on the same path loses packets, too, where it has no lossless class.
    Not when: fewer than one segment in a thousand, which TCP does to find the rate of the path.
    Do: compare ethtool -S of both ends (discards, out of buffer, errors) and the queues of the switch before and after
    a test.
    Sources: iperf3, src/iperf_locale.c (Retr).
    """
    share = pl.col("sent_again") * SEGMENT / pl.col("size_sent")
    for row in tcp_test.with_columns(share=share).filter(pl.col("share") >= LOSSY).to_dicts():
        yield Finding(
            f"a test of TCP to {row['peer'] or 'another host'} sent {row['sent_again']:,} segments again",
            f"{row['share']:.1%} or more of all, at {bandwidth_text(row['bandwidth_GBps'])}",
            "certain",
            evidence=[Line(row["source"], row["line"], "")],
        )
