"""What a report shows of the calls, small however many there are: the last, those around the verdict, and when."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.calls import described
from ncclforensics.frames.columns import places_of, with_line
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import CLOCKS, as_time
from ncclforensics.parsing.templates import CALL_TEMPLATE

BESIDE = 4  # calls on each side of the one that did not come together
YEAR = 2000  # stands for the year in clocks without one
LAST = "last call"

SHOWN_CALL = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),
    "key": pl.Categorical(),
    "name": pl.Categorical(),
    "count": pl.Int64(),
    "datatype": pl.Int32(),
    "op": pl.Int32(),
    "root": pl.Int32(),
    "ordinal": pl.Int32(),
    "signature": pl.Int64(),
    "is_last": pl.Boolean(),  # of its rank, whichever communicator it was on
    "is_beside": pl.Boolean(),  # on the verdict's communicator, near the call that did not come together
    "source": pl.Int32(),
    "line": pl.Int32(),
    "pos": pl.Int64(),
}

TIMELINE = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),
    "what": pl.String(),  # last call, or the class of a failure line
    "time": pl.Datetime("us"),  # by the clock of the line's own host
    "source": pl.Int32(),
    "line": pl.Int32(),
}


@analysis(SHOWN_CALL, of=("call",))
def shown_call(
    call: pl.DataFrame,
    call_line: pl.DataFrame,
    member: pl.DataFrame,
    last_call: pl.DataFrame,
    verdict: pl.DataFrame,
    wait: pl.DataFrame,
    verdict_evidence: pl.DataFrame,
) -> pl.DataFrame:
    """The calls that a report shows: the last of each rank, those waited in, those that prove, and their neighbours."""
    ends = last_call.group_by("rank_id").agg(pl.col("pos").max(), is_last=pl.lit(True))
    cited = pl.concat([frame.select("source", "line") for frame in (wait, verdict_evidence)]).unique()
    parting = verdict.filter(pl.col("ordinal").is_not_null()).select(pl.col("key").cast(pl.Categorical), at="ordinal")
    first, last = parting["at"].min(), parting["at"].max()  # few calls are left before anything is copied
    about = pl.col("ordinal").is_between(pl.lit(first) - BESIDE, pl.lit(last) + BESIDE)
    near = call.filter(about & pl.col("key").is_in(parting["key"].implode())).join(parting, on="key")
    near = near.filter((pl.col("ordinal") - pl.col("at")).abs() <= BESIDE)
    chosen = pl.concat(
        [
            call.filter(pl.col("pos").is_in(ends["pos"].implode())).join(ends, on=["rank_id", "pos"], how="semi"),
            call.filter(pl.col("pos").is_in(places_of(cited).implode())),
            near.select(call.columns),
        ]
    ).unique(["pos", "rank_id"])
    marked = described(chosen, call_line, member).join(ends, on=["rank_id", "pos"], how="left")
    beside = near.select("pos", "rank_id", is_beside=pl.lit(True))
    marked = marked.join(beside, on=["pos", "rank_id"], how="left")
    return marked.with_columns(pl.col("is_last", "is_beside").fill_null(False)).sort("pos", "rank_id")


@analysis(TIMELINE, of=("operation", "failure"))
def timeline(
    shown_call: pl.DataFrame,
    failure_event: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    failure: pl.DataFrame,
) -> pl.DataFrame:
    """When each rank made its last call, and when failures were printed; no rows where lines carry no times."""
    events = pl.concat(
        [
            shown_call.filter("is_last").select("job", "rank_id", "source", "line", what=pl.lit(LAST)),
            failure_event.select("job", "rank_id", "source", "line", what="kind"),
        ]
    )
    told = []
    last = call_occurrence.filter(pl.col("pos").is_in(shown_call.filter("is_last")["pos"].implode()))
    for frame in (with_line(last.with_columns(call_template["stamp"].gather(last[CALL_TEMPLATE]))), failure):
        clocks = [name for name in CLOCKS if name in frame.columns]
        lines = frame.join(events.select("source", "line").unique(), on=["source", "line"], how="semi")
        printed = [as_time(pl.col(name).cast(pl.String), YEAR) for name in clocks]
        told.append(lines.select("source", "line", time=pl.coalesce(printed)))
    times = pl.concat(told).filter(pl.col("time").is_not_null()).unique(["source", "line"])
    return events.join(times, on=["source", "line"]).sort("time", "rank_id", "line")
