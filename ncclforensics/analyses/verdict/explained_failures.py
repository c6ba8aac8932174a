"""Which conditions of machines concern a job, and which of these explain its failure.

A condition explains a failure only at an end that failed: it shares the process, the GPU, the NIC or the host of this
end, and it came while the job ran, before the failure. A time that is not known does not exclude it.
"""

from __future__ import annotations

from datetime import datetime

import polars as pl

from ncclforensics.analyses.job.ends.exit_times import CLOCKS_DIFFER
from ncclforensics.analyses.job.ends.failure_events import AFTER
from ncclforensics.analyses.job.ends.kernel_events import SOON_AFTER
from ncclforensics.analyses.transport.completions import hosts_of_addresses
from ncclforensics.analyses.verdict.failing_ends import located
from ncclforensics.frames.columns import MADE_UP, OWNER, Row, no_rows
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import NO_YEAR, elapsed, time_of

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
