"""Pairs of hosts without an answer over InfiniBand, and the rail that they share."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.transport.connections import join_communicator
from ncclforensics.data.verbs import RETRY_EXCEEDED
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding

FEWEST_PAIRS = 3  # fewer may differ in their hosts by chance


def _unanswered(completion_error: pl.DataFrame) -> pl.DataFrame:
    """Transfers without an answer with both hosts known; work requests flushed afterwards have another status."""
    return completion_error.filter(
        (pl.col("status") == RETRY_EXCEEDED) & ~pl.col("at_exit") & pl.col("peer_host").is_not_null()
    ).with_columns(local_host=text_of("host"))


@rule(Category.IB_ERROR, Severity.WARNING, of=("completion_error",), hang=True)
def cascade_edge_clustering(
    completion_error: pl.DataFrame, net_devices: pl.DataFrame, verdict: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Several pairs of hosts could not reach each other, and no host is part of all of them.

    Means: no single host is at fault. If all pairs failed on the same NIC of their hosts, the fault is in what these
    NICs share: a switch or plane of the rail. Otherwise it is in the fabric as a whole (routing, a spine, congestion).
    Not when: one host is part of every failed pair, which the finding on the time-outs reports; fewer than three pairs;
    the hosts have one NIC each, so that all pairs share it; a process died, and the others lost it.
    Do: look in the fabric's log for the switch or plane of this NIC of the hosts named; run ib_write_bw between two of
    them on this NIC, then on another.
    Sources: Aegis (NSDI 2025); lit-llama#380.
    """
    errors = _unanswered(completion_error)
    ends = [frozenset(pair) for pair in errors.select("local_host", "peer_host").unique().iter_rows()]
    pairs = {pair for pair in ends if len(pair) == 2 and None not in pair}
    died = not verdict.filter(pl.col("verdict") == "rank-died").is_empty()
    if len(pairs) < FEWEST_PAIRS or frozenset.intersection(*pairs) or died:
        return
    hosts = sorted(frozenset.union(*pairs))
    nics = sorted(errors["hca"].drop_nulls().unique().to_list())
    listed = net_devices.filter(pl.col("devices").is_not_null())["devices"].to_list()
    has_several = bool(listed) and all("[1]" in devices for devices in listed)
    if len(nics) == 1 and errors["hca"].null_count() == 0 and has_several:
        title = f"every transfer that failed between {len(hosts)} hosts used {nics[0]}: one rail"
        detail = f"{len(pairs)} pairs without a common host, and no failure of another NIC of these hosts was read"
        certainty = "likely"
    else:
        title = f"transfers between {len(hosts)} hosts failed, and no host is part of all failed pairs"
        detail = f"{len(pairs)} pairs of hosts" + (f", on {', '.join(nics[:4])}" if nics else "")
        detail += ": the fabric is more likely at fault than one of the hosts"
        certainty = "possible"
    finding = group_finding(errors, rank, title, detail, certainty)
    finding.hosts = hosts
    yield finding


CONNECTIONS = ["key", "channel", "conn", "from", "to"]


@rule(Category.IB_ERROR, Severity.WARNING, of=("completion_error",), hang=True)
def cross_nic_on_isolated_rails(
    completion_error: pl.DataFrame,
    connection: pl.DataFrame,
    communicator: pl.DataFrame,
    member: pl.DataFrame,
    setting: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """Only connections between NICs of different numbers got no answer.

    Means: the rails of this cluster are not connected with each other, which NCCL cannot detect: it assumes that every
    NIC reaches every other NIC, unless NCCL_CROSS_NIC=0 is set.
    Not when: a connection between NICs of the same number failed as well, or there is none to compare with; hosts
    number their NICs differently; NCCL_CROSS_NIC=0 is set.
    Do: set NCCL_CROSS_NIC=0 on all ranks and run again; to confirm, run ib_write_bw between the NICs of a failed pair.
    Sources: nccl#2193, nccl#1933; hint of NCCL 2.30.7.
    """
    errors = _unanswered(completion_error)
    disabled = environment_settings(setting).filter((pl.col("variable") == "NCCL_CROSS_NIC") & (pl.col("value") == "0"))
    printed = connection.filter((pl.col("form") == "net") & pl.col("netdev").is_not_null() & pl.col("proxy").is_null())
    if errors.is_empty() or printed.is_empty() or not disabled.is_empty():
        return
    assigned = join_communicator(
        printed.select(
            "source", "line", "pos", "host", "pid", "tid", "channel", "conn", "from", "to", "direction", "netdev"
        ),
        communicator,
        member,
    ).with_columns(pl.col("direction", "host").cast(pl.String))
    sends = assigned.filter(pl.col("direction") == "send").unique(CONNECTIONS, keep="first", maintain_order=True)
    receives = assigned.filter(pl.col("direction") == "receive").unique(CONNECTIONS, keep="first", maintain_order=True)
    links = sends.join(
        receives.select(*CONNECTIONS, other="host", other_nic="netdev", other_source="source", other_line="line"),
        on=CONNECTIONS,
    ).with_columns(is_cross_rail=pl.col("netdev") != pl.col("other_nic"))
    failed = _failed_links(links, errors)
    working = links.join(failed.select(CONNECTIONS), on=CONNECTIONS, how="anti").filter(~pl.col("is_cross_rail"))
    if failed.is_empty() or not failed["is_cross_rail"].all() or working.is_empty():
        return
    row = failed.row(0, named=True)
    finding = group_finding(
        errors, rank, "only connections between different rails got no answer",
        f"for example from NIC {row['netdev']} of {row['host']} to NIC {row['other_nic']} of {row['other']}; "
        "no failure between NICs of the same number was read", "likely",
    )  # fmt: skip
    finding.hosts = sorted({*failed["host"], *failed["other"]})
    finding.evidence = [
        *finding.evidence[:2], *evidence_lines(failed.head(1), "sending NIC"),
        *evidence_lines(failed.head(1).select(source="other_source", line="other_line"), "receiving NIC"),
    ]  # fmt: skip
    finding.role = Role.CAUSE
    yield finding


def _failed_links(links: pl.DataFrame, errors: pl.DataFrame) -> pl.DataFrame:
    """The connections of processes that report a failure with the peer's host: by the sender, else by the receiver."""
    reported = errors.select("pid", host="local_host", other="peer_host").unique()
    by_sender = links.join(reported, on=["host", "pid", "other"], how="semi")
    by_receiver = links.join(
        errors.select(other="local_host", host="peer_host").unique(),
        on=["host", "other"], how="semi",
    )  # fmt: skip
    return by_sender if not by_sender.is_empty() else by_receiver
