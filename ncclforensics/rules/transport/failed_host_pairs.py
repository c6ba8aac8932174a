"""Who could not reach whom: what the failed pairs of a job have in common."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.transport.connections import join_communicator
from ncclforensics.data.verbs import RETRY_EXCEEDED
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.rules.shared.grouping import shown, together

PAIRS = 3  # fewer that share nothing may be chance


def _unanswered(completion_error: pl.DataFrame) -> pl.DataFrame:
    """Transfers without an answer whose both ends are known; what is flushed afterwards has another status."""
    return completion_error.filter(
        (pl.col("status") == RETRY_EXCEEDED) & ~pl.col("at_exit") & pl.col("peer_host").is_not_null()
    ).with_columns(here=text_of("host"))


@rule(Category.IB_ERROR, Severity.WARNING, of=("completion_error",), hang=True)
def cascade_edge_clustering(
    completion_error: pl.DataFrame, net_devices: pl.DataFrame, verdict: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Several pairs of hosts could not reach each other, and no host has a part in all of them.

    Means: the hosts are not at fault one by one. If all failed on the same NIC of their hosts, it is what those NICs
    share: a rail's switch or plane. If they share nothing, it is the fabric as a whole (routing, a spine, congestion).
    Not when: one host has a part in every failed pair, which the finding on the time-outs says; fewer than three pairs;
    the hosts use one NIC each, so that they cannot but share it; a process died, and the others lost it.
    Do: ask the fabric's log for the switch or plane that serves this NIC of the hosts named; ib_write_bw between two of
    them on this NIC, then on another.
    Sources: Aegis (NSDI 2025); lit-llama#380.
    """
    errors = _unanswered(completion_error)
    ends = [frozenset(pair) for pair in errors.select("here", "peer_host").unique().iter_rows()]
    pairs = {pair for pair in ends if len(pair) == 2}
    died = not verdict.filter(pl.col("verdict") == "rank-died").is_empty()
    if len(pairs) < PAIRS or frozenset.intersection(*pairs) or died:
        return
    hosts = sorted(frozenset.union(*pairs))
    nics = sorted(errors["hca"].drop_nulls().unique().to_list())
    listed = net_devices.filter(pl.col("devices").is_not_null())["devices"].to_list()
    has_several = bool(listed) and all("[1]" in devices for devices in listed)
    if len(nics) == 1 and errors["hca"].null_count() == 0 and has_several:
        title = f"every transfer that failed between {len(hosts)} hosts used {nics[0]}: one rail"
        detail = f"{len(pairs)} pairs of hosts share no host, and the other NICs of these hosts did not fail"
        certainty = "likely"
    else:
        title = f"transfers between {len(hosts)} hosts failed, and the failed pairs share no host"
        detail = f"{len(pairs)} pairs of hosts" + (f", on {', '.join(nics[:4])}" if nics else "")
        detail += ": more likely the fabric than any one of them"
        certainty = "possible"
    finding = together(errors, rank, title, detail, certainty)
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
    """Only connections that lead from one NIC number to another got no answer.

    Means: the rails of this cluster are not connected with one another, which NCCL cannot find out: it assumes that any
    NIC reaches any other, unless NCCL_CROSS_NIC=0 forbids it.
    Not when: a connection between NICs of the same number failed as well, or there is none to compare with; hosts
    number their NICs differently; NCCL_CROSS_NIC=0 is set.
    Do: set NCCL_CROSS_NIC=0 on all ranks and run again; to confirm, ib_write_bw between the two NICs of a failed pair.
    Sources: nccl#2193, nccl#1933; hint of NCCL 2.30.7.
    """
    errors = _unanswered(completion_error)
    forbidden = environment_settings(setting).filter(
        (pl.col("variable") == "NCCL_CROSS_NIC") & (pl.col("value") == "0")
    )
    told = connection.filter((pl.col("form") == "net") & pl.col("netdev").is_not_null() & pl.col("proxy").is_null())
    if errors.is_empty() or told.is_empty() or not forbidden.is_empty():
        return
    placed = join_communicator(
        told.select(
            "source", "line", "pos", "host", "pid", "tid", "channel", "conn", "from", "to", "direction", "netdev"
        ),
        communicator,
        member,
    ).with_columns(pl.col("direction", "host").cast(pl.String))
    sends = placed.filter(pl.col("direction") == "send").unique(CONNECTIONS, keep="first", maintain_order=True)
    receives = placed.filter(pl.col("direction") == "receive").unique(CONNECTIONS, keep="first", maintain_order=True)
    links = sends.join(
        receives.select(*CONNECTIONS, other="host", other_nic="netdev", other_source="source", other_line="line"),
        on=CONNECTIONS,
    ).with_columns(crosses=pl.col("netdev") != pl.col("other_nic"))
    failed = _failed_links(links, errors)
    fine = links.join(failed.select(CONNECTIONS), on=CONNECTIONS, how="anti").filter(~pl.col("crosses"))
    if failed.is_empty() or not failed["crosses"].all() or fine.is_empty():
        return
    row = failed.row(0, named=True)
    finding = together(
        errors, rank, "only connections from one rail to another got no answer",
        f"such as from NIC {row['netdev']} of {row['host']} to NIC {row['other_nic']} of {row['other']}; connections "
        "between NICs of the same number did not fail", "likely",
    )  # fmt: skip
    finding.hosts = sorted({*failed["host"], *failed["other"]})
    finding.evidence = [
        *finding.evidence[:2], *shown(failed.head(1), "sends by this NIC"),
        *shown(failed.head(1).select(source="other_source", line="other_line"), "receives by that one"),
    ]  # fmt: skip
    finding.role = Role.CAUSE
    yield finding


def _failed_links(links: pl.DataFrame, errors: pl.DataFrame) -> pl.DataFrame:
    """The connections between the processes of which one reports a failure with the host of the other."""
    reported = errors.select("pid", host="here", other="peer_host").unique()
    by_sender = links.join(reported, on=["host", "pid", "other"], how="semi")
    by_receiver = links.join(
        errors.select(other="here", host="peer_host").unique(),
        on=["host", "other"], how="semi",
    )  # fmt: skip
    return by_sender if not by_sender.is_empty() else by_receiver
