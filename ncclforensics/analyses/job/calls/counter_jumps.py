"""Places where NCCL's counter jumps in the log of one process, and others print the numbers in between: lines are lost.

The counter (`opCount`) belongs to one communicator, and the lines between two of its calls hold the calls on all
others: where it jumps, these may have been called as well, though their own counters show nothing (NCCL log lines,
section 5.3).
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.calls.unread_calls import attributed
from ncclforensics.frames.columns import with_line
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.templated import opcount_of

COUNTER_JUMP = {
    "rank_id": pl.Int32(),
    "member": pl.UInt32(),  # row of `member`: the communicator whose counter jumps
    "pos_before": pl.Int64(),  # of the last call before the missing lines, on any such communicator
    "pos": pl.Int64(),  # of the first call behind them
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the first call behind them on this communicator
}


@analysis(COUNTER_JUMP, of=("logged_divergence", "uneven_key", "uneven_lines"))
def counter_jump(
    logged_divergence: pl.DataFrame,
    uneven_key: pl.DataFrame,
    uneven_lines: pl.DataFrame,
    logged_call: pl.DataFrame,
    call_counter: pl.DataFrame,
    calls_between: pl.DataFrame,
    member: pl.DataFrame,
) -> pl.DataFrame:
    """Jumps of the counter that most other members of the communicator lack, one row for each.

    Only communicators whose members differ, or show unequal numbers of calls, are looked at. Where a file was read at
    its ends only, or calls were counted and not kept, the counter jumps over these; that is no such place.
    """
    keys = pl.concat([logged_divergence["key"], uneven_key["key"], uneven_lines["key"]]).unique().implode()
    calls = logged_call.with_columns(opcount_of(logged_call, call_counter))
    calls = calls.filter(pl.col("key").is_in(keys) & pl.col("opcount").is_not_null())
    counted = attributed(calls_between, member).select("member", counted_pos="pos").sort("counted_pos")
    window = ["member", "in_tail"]
    if counted.height:
        window.append("counted_pos")
        calls = calls.sort("pos").join_asof(
            counted, left_on="pos", right_on="counted_pos", by="member", coalesce=False, check_sortedness=False
        )
    opcount = pl.col("opcount")
    is_uneven = opcount.max() - opcount.min() >= opcount.n_unique()
    jumping = calls.group_by(window).agg(pl.col("key").first(), is_uneven=is_uneven).filter("is_uneven")
    if jumping.is_empty():
        return pl.DataFrame(schema=COUNTER_JUMP)
    compared = calls.filter(pl.col("key").is_in(jumping["key"].unique().implode()))
    numbers = compared.group_by("key", "rank_id", *window, "opcount").agg(
        pl.col("pos").min(), last_pos=pl.col("pos").max(), collectives=pl.col("nth").count()
    )
    members = numbers.group_by("key").agg(others=pl.col("member").n_unique() - 1)
    before = (
        pl.col("opcount", "last_pos", "collectives").shift().over(window, order_by="opcount").name.suffix("_before")
    )
    jumps = numbers.with_columns(before).filter(
        # NCCL raises the counter late in a captured graph, and prints the number before for all calls until then.
        opcount - pl.col("opcount_before") > pl.max_horizontal("collectives_before", 1)
    )
    jumps = jumps.rename({"last_pos_before": "pos_before"}).with_columns(missing=pl.col("opcount_before") + 1)
    printed = numbers.select("key", "member", missing="opcount").unique()
    shown = printed.group_by("key", "missing").agg(shows=pl.len())
    lost = jumps.join(shown, on=["key", "missing"]).join(members, on="key")
    lost = lost.join(printed, on=["member", "missing"], how="anti")
    lost = lost.filter(pl.col("shows") * 2 > pl.col("others")).filter(pl.col("pos_before") < pl.col("pos"))
    return _intersected(with_line(lost)).select(list(COUNTER_JUMP)).sort("rank_id", "pos", "member")


def _intersected(jumps: pl.DataFrame) -> pl.DataFrame:
    """Jumps whose `pos_before` and `pos` are the narrowest of all that enclose the same missing lines.

    The last `pos_before` in front of a jump's end belongs to a jump that overlaps it: its own begins no later.
    """
    begins = jumps.select("rank_id", narrow_before="pos_before").sort("narrow_before")
    ends = jumps.select("rank_id", narrow="pos").sort("narrow")
    jumps = jumps.sort("pos").join_asof(
        begins, left_on="pos", right_on="narrow_before", by="rank_id",
        strategy="backward", allow_exact_matches=False, check_sortedness=False,
    )  # fmt: skip
    jumps = jumps.sort("pos_before").join_asof(
        ends, left_on="pos_before", right_on="narrow", by="rank_id",
        strategy="forward", allow_exact_matches=False, check_sortedness=False,
    )  # fmt: skip
    return jumps.with_columns(pos_before="narrow_before", pos="narrow")
