"""The ends at which jobs failed, the conditions of machines that concern a job, and which of these explain its failure.

Ends are ranks at fault, both ends of failed transfers, and ended processes without a rank. Where no rank is at fault,
all ranks that ended first or report an error are ends; where none does, all of the job.

A condition explains a failure only at an end that failed: it shares the process, the GPU, the NIC or the host of this
end, and it came while the job ran, before the failure. A time that is not known does not exclude it.
"""

from __future__ import annotations

from datetime import datetime

import polars as pl

from ncclforensics.analyses.job.ends.exit_times import CLOCKS_DIFFER
from ncclforensics.analyses.job.ends.failure_events import AFTER, NETWORK
from ncclforensics.analyses.job.ends.kernel_events import SOON_AFTER
from ncclforensics.analyses.transport.completions import hosts_of_addresses
from ncclforensics.frames.columns import MADE_UP, OWNER, Row, no_rows, short_host, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import NO_YEAR, elapsed, time_of

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
        "job", "rank_id", "rank", "pid", "gpu", host=short_host("name")
    )


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
    return absent.join(exits, on="rank").select("job", "pid", host=short_host("name"))


def _of_transfers(places: pl.DataFrame, completion_error: pl.DataFrame) -> list[pl.DataFrame]:
    """Return both ends of transfers that failed: the one that reports it with its NIC, and its peer."""
    failed = completion_error.filter(~pl.col("at_exit") & ~pl.col("is_survived") & pl.col("job").is_not_null())
    local = failed.select("job", "pid", device="hca", host=short_host("host")).unique()
    peers = failed.drop_nulls("peer_host").select("job", host=short_host("peer_host"), is_peer=pl.lit(value=True))
    return [places.drop("rank").join(local, on=["job", "host", "pid"]), peers.unique()]


def _of_exits(places: pl.DataFrame, verdict: pl.DataFrame, process_exit: pl.DataFrame) -> pl.DataFrame:
    """Return the processes that ended first; those of no known job belong to the only one."""
    job = verdict["job"][0] if verdict.height == 1 else None
    first = process_exit.filter(pl.col("is_first") & pl.col("is_final")).with_columns(
        job=pl.coalesce("job", pl.lit(job, pl.Int32)), name=pl.coalesce(text_of("host"), "node")
    )
    of_hosts = first.drop_nulls("job").select("job", "rank_id", "pid", host=short_host("name"))
    known = _of_ranks(places, of_hosts)
    return pl.concat([known, of_hosts.filter(pl.col("rank_id").is_null())], how="diagonal_relaxed")


JOB_PERIOD = {
    "job": pl.Int32(),
    "began": pl.Datetime("us"),  # its first communicator was created
    "called": pl.Datetime("us"),  # its last call
    "failed": pl.Datetime("us"),  # its first line of failure; without one, its last line
    "is_exact": pl.Boolean(),  # there is a line of failure
}
CONDITION_OF_JOB = {
    "job": pl.Int32(),
    "source": pl.Int32(),  # place of the condition
    "line": pl.Int32(),
    "kind": pl.String(),
    "host": pl.String(),  # of the condition, as in `condition`; null: not known
    "shared": pl.String(),  # what it shares with a rank of the job: pid, gpu, device, path or host; not-known
    "is_at_end": pl.Boolean(),  # with one at which the job failed
    "is_in_time": pl.Boolean(),  # it came while the job ran, before the failure; null: not known
}
CLOCKS = ("stamp", "launcher_time")
NOT_KNOWN = "not-known"
_KEYS = ("pid", "gpu", "device", "path", "host", NOT_KNOWN)  # the narrowest first


@analysis(JOB_PERIOD)
def job_period(
    rank: pl.DataFrame,
    communicator: pl.DataFrame,
    failure_event: pl.DataFrame,
    failure: pl.DataFrame,
    last_time: pl.DataFrame,
) -> pl.DataFrame:
    """One row per job: when it began, made its last call, and failed, as far as its lines have times."""
    jobs = rank.select("job", *OWNER).drop_nulls().unique()
    began = _with_times(communicator).join(jobs, on=OWNER).group_by("job").agg(began=pl.col("time").min())
    events = failure_event.filter(~pl.col("at_exit") & (pl.col("kind") != AFTER)).select("job", "source", "line")
    failed = _with_times(failure).join(events, on=["source", "line"]).group_by("job").agg(first=pl.col("time").min())
    last = last_time.group_by("job").agg(pl.col("called").max(), pl.col("ended").max())
    return (
        jobs.select("job")
        .unique()
        .join(began, on="job", how="left")
        .join(failed, on="job", how="left")
        .join(last, on="job", how="left")
        .select("job", "began", "called", failed=pl.coalesce("first", "ended"), is_exact=pl.col("first").is_not_null())
    )


def _with_times(rows: pl.DataFrame) -> pl.DataFrame:
    clocks = [time_of(name, NO_YEAR) for name in CLOCKS if name in rows.columns]
    return rows.with_columns(time=pl.coalesce(*clocks, pl.lit(None, pl.Datetime("us")))).drop_nulls("time")


@analysis(CONDITION_OF_JOB, of=("condition",))
def condition_of_job(
    condition: pl.DataFrame,
    failing_end: pl.DataFrame,
    rank: pl.DataFrame,
    job_period: pl.DataFrame,
    milestone: pl.DataFrame,
    net_devices: pl.DataFrame,
) -> pl.DataFrame:
    """One row per job and condition that concerns it: on a host of the job, or on a host that no line names."""
    ranks = located(rank, hosts_of_addresses(milestone, net_devices))
    places = ranks.with_columns(is_end=pl.lit(value=False), device=pl.lit(None, pl.String))
    ends = failing_end.with_columns(is_end=pl.lit(value=True))
    places = pl.concat([places, ends], how="diagonal_relaxed").filter(pl.col("job").is_not_null())
    periods = {row["job"]: row for row in job_period.to_dicts()}
    found = [no_rows(CONDITION_OF_JOB)]
    for (job,), of_job in places.group_by("job", maintain_order=True):
        rows = _concerning(condition, of_job)
        if rows.height:
            period = periods.get(job, {})
            rows = rows.with_columns(job=pl.lit(job, pl.Int32), is_in_time=_is_in_time(period))
            found.append(rows.select(list(CONDITION_OF_JOB)))
    return pl.concat(found)


def _concerning(condition: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return the conditions that may be on hosts of these places, with what they share, and whether with a failed end.

    A host that no line names, of the condition or of a place, is compared with none, and excludes nothing. A condition
    that names a process of the job concerns no other one.
    """
    by_host: dict[str | None, list[Row]] = {}
    for place in places.to_dicts():
        by_host.setdefault(place["host"], []).append(place)
    named = [host for host in by_host if host is not None and not _is_unnamed(host)]
    has_unnamed = len(named) < len(by_host)
    is_end: dict[tuple[str, object], bool] = {}  # of all places with this process or GPU
    for place in places.to_dicts():
        for key in ("pid", "gpu"):
            is_end[key, place[key]] = is_end.get((key, place[key]), False) or place["is_end"]
    rows = []
    for row in condition.to_dicts():
        host = named[0] if row["host"] is None and len(by_host) == len(named) == 1 else row["host"]
        if host in by_host:
            is_of_job = row["pid"] is not None and any(place["pid"] == row["pid"] for place in by_host[host])
            concerned = [place for place in by_host[host] if not is_of_job or place["pid"] in (row["pid"], None)]
            shared = [(_shared(row, place), place["is_end"]) for place in concerned]
        elif host is None or has_unnamed:
            keys = [key for key in ("pid", "gpu") if row[key] is not None and (key, row[key]) in is_end]
            shared = [(key, is_end[key, row[key]]) for key in keys[:1]] or [(NOT_KNOWN, False)]
        else:
            continue
        at_ends = [key for key, is_end in shared if is_end and key]
        known = [key for key, _ in shared if key]
        if known:
            best = min(at_ends or known, key=_KEYS.index)
            rows.append({**row, "host": host, "shared": best, "is_at_end": bool(at_ends)})
    return pl.DataFrame(rows, schema={**condition.schema, "shared": pl.String, "is_at_end": pl.Boolean})


def _is_unnamed(host: str) -> bool:
    """Whether this is no name that other tools print for the host: an address, or a substitute for a name."""
    return "." in host or ":" in host or host.startswith(MADE_UP)


def _shared(row: Row, place: Row) -> str | None:
    """Return the narrowest that a condition shares with a place on its host; None where it is another GPU or NIC.

    Processes in a container have other numbers for the kernel of the host.
    """
    if row["pid"] is not None and row["pid"] == place["pid"]:
        return "pid"
    for key in ("gpu", "device"):
        if row[key] is not None and place[key] is not None:
            return key if row[key] == place[key] else None
    return "path" if row["path"] else "host"


def _is_in_time(period: Row) -> pl.Expr:
    """Whether a condition came while a job ran, and before it failed."""
    began, called, failed = (period.get(name) for name in ("began", "called", "failed"))
    margin = CLOCKS_DIFFER if period.get("is_exact") else SOON_AFTER
    earliest = pl.coalesce("earliest", "moment")
    is_in = pl.lit(None, pl.Boolean)
    if isinstance(failed, datetime):
        is_in = elapsed(earliest, failed) <= margin
    if isinstance(began, datetime):
        is_in &= elapsed(pl.col("moment"), began) >= -CLOCKS_DIFFER
    if isinstance(called, datetime):  # a job that goes on calling for so long survived it
        is_in &= elapsed(pl.col("moment"), called) >= -SOON_AFTER
    has_none = not any(isinstance(time, datetime) for time in (began, called, failed))
    is_of_run = pl.col("is_in_run").fill_null(value=True)
    known = pl.col("is_in_run") if has_none else is_in
    return pl.when(~is_of_run).then(pl.lit(value=False)).otherwise(known)
