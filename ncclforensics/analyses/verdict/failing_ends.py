"""The ends at which jobs failed: ranks at fault, both ends of failed transfers, and ended processes without a rank.

Where no rank is at fault, all ranks that ended first or report an error are ends; where none does, all of the job.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.ends.failure_events import AFTER, NETWORK
from ncclforensics.analyses.transport.completions import hosts_of_addresses
from ncclforensics.frames.columns import no_rows, short_host, text_of
from ncclforensics.frames.registry import analysis

FAILING_END = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),  # null: the lines show the host only
    "host": pl.String(),  # without its domain
    "pid": pl.Int32(),
    "gpu": pl.String(),  # PCI address
    "device": pl.String(),  # NIC over which the transfer failed
    "is_peer": pl.Boolean(),  # another host reports it: it got no answer from this one
}
WITHOUT_FAILURE = ("no-hang", "undecidable")


@analysis(FAILING_END)
def failing_end(
    verdict: pl.DataFrame,
    rank: pl.DataFrame,
    failure_event: pl.DataFrame,
    completion_error: pl.DataFrame,
    process_exit: pl.DataFrame,
    unexplained_failure: pl.DataFrame,
    milestone: pl.DataFrame,
    net_devices: pl.DataFrame,
) -> pl.DataFrame:
    """One row per end at which a job failed; none of a job that neither hangs nor reports an error."""
    if verdict.is_empty():
        return no_rows(FAILING_END)
    addresses = hosts_of_addresses(milestone, net_devices)
    places = located(rank, addresses)
    culprits = verdict.select("job", rank_id="culprits").explode("rank_id").drop_nulls()
    absent = verdict.select("job", rank="missing").explode("rank").drop_nulls()
    events = failure_event.filter(~pl.col("at_exit") & (pl.col("kind") != AFTER))
    of_network = events.filter(kind=NETWORK)
    process_exit = process_exit.join(unexplained_failure, on=["source", "line"], how="anti")  # of another fault
    at_fault = [_of_ranks(places, culprits), _of_absent(absent, process_exit)]
    transfers = [_of_ranks(places, of_network), _peers(places, of_network), *_of_transfers(places, completion_error)]
    exits = _of_exits(places, verdict, process_exit)
    ends = _concatenated([*at_fault, *transfers, exits.filter(pl.col("rank_id").is_null())])
    jobs_at_fault = _concatenated(at_fault).select("job").unique()
    of_others = _concatenated([exits.drop_nulls("rank_id"), _of_ranks(places, events), _peers(places, events)])
    ends = pl.concat([ends, of_others.join(jobs_at_fault, on="job", how="anti")])
    stuck = verdict.filter(~pl.col("verdict").is_in(WITHOUT_FAILURE)).select("job").join(ends, on="job", how="anti")
    return pl.concat([ends, _concatenated([places.join(stuck, on="job", how="semi")])]).unique(maintain_order=True)


def located(rank: pl.DataFrame, addresses: pl.DataFrame) -> pl.DataFrame:
    """Return `job`, `rank_id`, `rank`, host without its domain, `pid`, `gpu` of all ranks; an address becomes a host.

    `addresses`: rows of `hosts_of_addresses`.
    """
    named = rank.select("job", "rank_id", "rank", "pid", gpu=text_of("busid"), address=text_of("host"))
    known = addresses.select("address", pl.col("peer_host").alias("_host"))
    with_hosts = named.join(known, on="address", how="left", maintain_order="left")
    return with_hosts.with_columns(name=pl.coalesce("_host", "address")).select(
        "job", "rank_id", "rank", "pid", "gpu", host=without_domain("name")
    )


def without_domain(column: str) -> pl.Expr:
    """A host's name without its domain; an address as it is."""
    first = short_host(column)
    is_address = first.str.len_chars().gt(0) & first.str.to_integer(strict=False).is_not_null()
    return pl.when(is_address).then(text_of(column)).otherwise(first)


def _concatenated(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Return rows of all frames with the columns of FAILING_END; what a frame lacks is null."""
    rows = pl.concat([no_rows(FAILING_END), *frames], how="diagonal_relaxed").select(list(FAILING_END))
    return rows.with_columns(pl.col("is_peer").fill_null(value=False))


def _of_ranks(places: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    return places.join(named.select("job", "rank_id").drop_nulls(), on=["job", "rank_id"], how="semi")


def _peers(places: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks that lines of failure name."""
    named = events.select("job", rank_id="named_rank_id").drop_nulls()
    return _of_ranks(places, named).with_columns(is_peer=pl.lit(value=True))


def _of_absent(absent: pl.DataFrame, process_exit: pl.DataFrame) -> pl.DataFrame:
    """Return the hosts that reports of their ends name for ranks without a log."""
    exits = process_exit.select("rank", "pid", name=pl.coalesce(text_of("host"), "node")).drop_nulls(["rank", "name"])
    return absent.join(exits, on="rank").select("job", "pid", host=without_domain("name"))


def _of_transfers(places: pl.DataFrame, completion_error: pl.DataFrame) -> list[pl.DataFrame]:
    """Return both ends of transfers that failed: the one that reports it with its NIC, and its peer."""
    failed = completion_error.filter(~pl.col("at_exit") & ~pl.col("is_survived") & pl.col("job").is_not_null())
    local = failed.select("job", "pid", device="hca", host=without_domain("host")).unique()
    peers = failed.drop_nulls("peer_host").select("job", host=without_domain("peer_host"), is_peer=pl.lit(value=True))
    return [places.drop("rank").join(local, on=["job", "host", "pid"]), peers.unique()]


def _of_exits(places: pl.DataFrame, verdict: pl.DataFrame, process_exit: pl.DataFrame) -> pl.DataFrame:
    """Return the processes that ended first; those of no known job belong to the only one."""
    job = verdict["job"][0] if verdict.height == 1 else None
    first = process_exit.filter(pl.col("is_first") & pl.col("is_final")).with_columns(
        job=pl.coalesce("job", pl.lit(job, pl.Int32)), name=pl.coalesce(text_of("host"), "node")
    )
    of_hosts = first.drop_nulls("job").select("job", "rank_id", "pid", host=without_domain("name"))
    known = _of_ranks(places, of_hosts)
    return pl.concat([known, of_hosts.filter(pl.col("rank_id").is_null())], how="diagonal_relaxed")
