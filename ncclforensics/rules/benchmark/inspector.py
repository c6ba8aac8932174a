"""Bandwidth per communicator, as the NCCL Inspector plugin measured it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import polars as pl

from ncclforensics.data.thresholds import DEGRADED_LINK
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

CALLS = 5  # per communicator; fewer are not reliable
GROUPS = 3  # with two, it is unknown which of them is normal


@rule(Category.STRAGGLER, Severity.WARNING, of=("ended_operation",))
def one_slow_group(ended_operation: pl.DataFrame) -> Iterator[Finding]:
    """One of several groups of ranks is far slower than the others in the same collective of the same size.

    Means: a host, a NIC or a GPU of that group is slower; a host that all slow groups share is the likely cause.
    Not when: the groups differ in size or in the number of their nodes; fewer than three groups are measured. Waiting
    for a late rank does not count: of each call the shortest time that any rank measured is used.
    Do: compare the hosts named with those of the other groups: nvidia-smi -q -d PERFORMANCE,CLOCK, ibstat, nvidia-smi
    topo -m; run nccl-tests on that group alone.
    Sources: nccl#820; NCCL Inspector.
    """
    measured = ended_operation.filter((pl.col("form") == "collective") & (pl.col("busbw") > 0)).with_columns(
        pl.col("operation", "commhash", "node").cast(pl.String)
    )
    measured = measured.drop_nulls(["operation", "commhash", "bytes", "nranks"])
    alike = ["operation", "bytes", "nranks", "nnodes"]
    calls = measured.group_by(*alike, "commhash", "sequence").agg(pl.col("busbw").max())
    groups = (
        calls.group_by(*alike, "commhash")
        .agg(pl.col("busbw").median(), calls=pl.len())
        .filter(pl.col("calls") >= CALLS)
        .sort("busbw", "commhash")
    )
    reported: set[str] = set()
    for key, same in groups.sort(*alike, "busbw", descending=True).group_by(alike, maintain_order=True):
        usual = median(same["busbw"].to_list())
        slow = same.filter(pl.col("busbw") <= DEGRADED_LINK * usual)
        if same.height < GROUPS or slow.is_empty() or slow.height * 2 >= same.height:
            continue
        new = slow.filter(~pl.col("commhash").is_in(list(reported)))
        if new.is_empty():
            continue
        reported.update(new["commhash"])
        rows = measured.join(new.select("commhash"), on="commhash", how="semi")
        lines = rows.filter((pl.col("operation") == key[0]) & (pl.col("bytes") == key[1])).sort("source", "line")
        others = measured.join(same.join(slow, on="commhash", how="anti").select("commhash"), on="commhash", how="semi")
        others = others.filter((pl.col("operation") == key[0]) & (pl.col("bytes") == key[1])).sort("source", "line")
        hosts = _common_hosts(rows)
        plural = "a group" if new.height == 1 else f"{new.height} groups"
        yield Finding(
            f"{key[0]} of {key[1]} bytes is slow in {plural} of {key[2]} ranks"
            + (f", on {', '.join(hosts[:4])}" if hosts else ""),
            f"{min(new['busbw'].to_list()):.0f} GB/s of bus bandwidth where the median of {same.height} such groups is "
            f"{usual:.0f}",
            "likely",
            hosts=hosts,
            communicator=new["commhash"][0],
            evidence=[
                *evidence_lines(lines.head(1).select("source", "line"), "slow"),
                *evidence_lines(others.head(1).select("source", "line"), "another group"),
            ],
        )


def _common_hosts(rows: pl.DataFrame) -> list[str]:
    """List the hosts that all of these groups share; all hosts of the groups if they share none."""
    hosts = [set(group["node"].drop_nulls()) for _, group in rows.group_by("commhash")]
    common = set.intersection(*hosts)
    return sorted(common or set.union(*hosts))
