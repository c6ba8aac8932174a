"""Select the few calls that a report shows: last calls, waiting calls, evidence and their neighbours; and times."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.calls.calls import describe_calls
from ncclforensics.data.torch_calls import NCCL_NAMES
from ncclforensics.frames.columns import LINE, ORIGIN, possible_positions, with_line
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.templated import of_template
from ncclforensics.frames.time_range import CLOCKS, time_of

NEIGHBOURS = 4  # neighbours on each side of the verdict's call
YEAR = 2000  # assumed for clocks without a year
LAST = "last call"

SHOWN_CALL = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),
    "key": pl.Categorical(),
    "name": pl.Categorical(),
    "count": pl.Int64(),
    "datatype": pl.Int32(),
    "op": pl.Int32(),
    "root": pl.Int32(),  # a number within the communicator
    "root_rank": pl.Int32(),  # the same as a rank of the job
    "ordinal": pl.Int32(),
    "signature": pl.Int64(),
    "is_last": pl.Boolean(),  # the last call of its rank on any communicator
    "is_beside": pl.Boolean(),  # on the verdict's communicator, near the verdict's call
    **ORIGIN,
}

TIMELINE = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),
    "what": pl.String(),  # last call, or the class of a failure line
    "time": pl.Datetime("us"),  # by the clock of the line's own host
    **LINE,
}


@analysis(SHOWN_CALL, of=("call", "recorded_call"))
def shown_call(
    call: pl.DataFrame,
    call_line: pl.DataFrame,
    member: pl.DataFrame,
    last_call: pl.DataFrame,
    verdict: pl.DataFrame,
    wait: pl.DataFrame,
    verdict_evidence: pl.DataFrame,
    recorded_call: pl.DataFrame,
    recorded_rank: pl.DataFrame,
    rank: pl.DataFrame,
) -> pl.DataFrame:
    """The calls that a report shows: the last of each rank, calls that ranks wait in, evidence and their neighbours."""
    last_calls = last_call.group_by("rank_id").agg(pl.col("pos").max(), is_last=pl.lit(True))
    cited = pl.concat([frame.select("source", "line") for frame in (wait, verdict_evidence)]).unique()
    divergence_points = verdict.filter(pl.col("ordinal").is_not_null()).select(
        pl.col("key").cast(pl.Categorical), at="ordinal"
    )
    first, last = divergence_points["at"].min(), divergence_points["at"].max()  # filter by range first: joins copy
    is_near = pl.col("ordinal").is_between(pl.lit(first) - NEIGHBOURS, pl.lit(last) + NEIGHBOURS)
    neighbours = call.filter(is_near & pl.col("key").is_in(divergence_points["key"].implode())).join(
        divergence_points, on="key"
    )
    neighbours = neighbours.filter((pl.col("ordinal") - pl.col("at")).abs() <= NEIGHBOURS)
    chosen = pl.concat(
        [
            call.filter(pl.col("pos").is_in(last_calls["pos"].implode())).join(
                last_calls, on=["rank_id", "pos"], how="semi"
            ),
            call.filter(pl.col("pos").is_in(possible_positions(cited).implode())),
            neighbours.select(call.columns),
        ]
    ).unique(["pos", "rank_id"])
    roots = rank.select(root_rank_id="rank_id", root_rank="rank")
    described = describe_calls(chosen, call_line, member).join(roots, on="root_rank_id", how="left")
    marked = described.join(last_calls, on=["rank_id", "pos"], how="left")
    is_neighbour = neighbours.select("pos", "rank_id", is_beside=pl.lit(True))
    marked = marked.join(is_neighbour, on=["pos", "rank_id"], how="left")
    marked = marked.with_columns(pl.col("is_last", "is_beside").fill_null(False)).sort("pos", "rank_id")
    if recorded_call.is_empty():
        return marked
    recorded = _recorded_last_calls(recorded_call, recorded_rank, rank).join(
        marked.filter("is_last"), on="rank_id", how="anti"
    )
    return pl.concat([marked.select(recorded.columns), recorded], how="vertical_relaxed") if recorded.height else marked


def _recorded_last_calls(recorded_call: pl.DataFrame, recorded_rank: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """The last call of each rank in its Flight Recorder dump, all of which stands on the first line, or in its log."""
    last = recorded_call.group_by("rank", maintain_order=True).last().join(
        recorded_rank.select("source", "is_log"), on="source", how="left", maintain_order="left"
    )  # fmt: skip
    known = (
        last.drop("source")
        .join(rank.select("job", "rank_id", "rank"), on="rank")
        .join(last.select("rank", "source"), on="rank")
    )
    name = pl.col("name").replace_strict(NCCL_NAMES, default=pl.col("name")).cast(pl.Categorical)
    columns = {"name": name, "count": pl.col("elements"), "root": pl.col("peer"), "is_last": True, "is_beside": False}
    rows = known.with_columns(
        **columns, line=pl.when("is_log").then("line").otherwise(1), key=pl.format("process group {}", "group")
    )
    absent = {column: pl.lit(None) for column in SHOWN_CALL if column not in rows.columns}
    return rows.with_columns(**absent).select([pl.col(column).cast(dtype) for column, dtype in SHOWN_CALL.items()])


@analysis(TIMELINE, of=("operation", "failure"))
def timeline(
    shown_call: pl.DataFrame,
    failure_event: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    failure: pl.DataFrame,
) -> pl.DataFrame:
    """Times of each rank's last call and of failure lines; no rows where lines have no times."""
    events = pl.concat(
        [
            shown_call.filter("is_last").select("job", "rank_id", "source", "line", what=pl.lit(LAST)),
            failure_event.select("job", "rank_id", "source", "line", what="kind"),
        ]
    )
    timed_lines = []
    last = call_occurrence.filter(pl.col("pos").is_in(shown_call.filter("is_last")["pos"].implode()))
    for frame in (with_line(last.with_columns(of_template(last, call_template, "stamp"))), failure):
        clocks = [name for name in CLOCKS if name in frame.columns]
        lines = frame.join(events.select("source", "line").unique(), on=["source", "line"], how="semi")
        times = [time_of(name, YEAR) for name in clocks]
        timed_lines.append(lines.select("source", "line", time=pl.coalesce(times)))
    line_times = pl.concat(timed_lines).filter(pl.col("time").is_not_null()).unique(["source", "line"])
    return events.join(line_times, on=["source", "line"]).sort("time", "rank_id", "line")
