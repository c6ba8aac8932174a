"""Number the calls behind those that were not kept: of long logs, calls between their ends are only counted."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.calls.lost_lines import lost_lines
from ncclforensics.frames.columns import OWNER, with_line
from ncclforensics.parsing.calls_between import POINT_TO_POINT

ATTRIBUTED = {
    "member": pl.UInt32(),  # row of `member`
    "called": pl.Categorical(),
    "root": pl.Int32(),
    "calls": pl.Int64(),
    "pos": pl.Int64(),
}
UNREAD = {"row": pl.UInt32(), "ordinal": pl.Int64(), "nth": pl.Int64(), "is_unknown": pl.Boolean()}


def numbered_after_unread(
    calls: pl.DataFrame, numbered: pl.DataFrame, is_parsed: pl.Series, unread: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    """Number the calls in tail windows by the calls counted before them, where NCCL's counter does not number them.

    `calls`: numbered as if the windows met. `numbered`: the same calls; what their counters do not number is null.
    `is_parsed`: whether all calls in the file of a call were parsed. `unread`: as `unread_before` gives it. Nothing is
    said of a communicator, and its calls are left out, if it is unknown how many of them were not kept.
    """
    numbered = numbered.hstack(_counted(calls, unread, is_parsed))
    numbered = numbered.with_columns(is_parsed=is_parsed)
    is_countable = pl.col("in_tail") & (pl.col("is_parsed") | _fits_counter())
    numbered = numbered.with_columns(
        pl.when(is_countable).then(pl.coalesce(name, f"counted_{name}")).otherwise(name).alias(name)
        for name in ("ordinal", "nth")
    )
    is_unknown = pl.col("in_tail") & pl.col("is_parsed") & pl.col("ordinal").is_null()
    numbered = numbered.filter(~is_unknown.any().over("key"))
    if not numbered["is_parsed"].any():
        return numbered
    numbered = _with_lost_lines(numbered, _ahead_by_counter(numbered))
    ends = numbered.filter(pl.col("in_tail") & pl.col("is_parsed") & pl.col("nth").is_not_null())
    return _with_lost_lines(numbered, lost_lines(ends, member).select("member", "lost"))


def _with_lost_lines(calls: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """The calls, with those in tail windows moved behind so many `lost` collectives of their `member`."""
    if lost.is_empty():
        return calls
    shifted = calls.join(lost, on="member", how="left", maintain_order="left")
    shift = pl.when("in_tail").then("lost").fill_null(0)
    return shifted.with_columns(pl.col("ordinal", "nth") + shift).drop("lost")


def _ahead_by_counter(calls: pl.DataFrame) -> pl.DataFrame:
    """How many lines of each `member` are lost between windows, by NCCL's counter, which no call raises by two."""
    tail = calls.filter(pl.col("in_tail") & pl.col("is_parsed") & pl.col("collective").all().over("key"))
    ahead = (pl.col("opcount") - pl.col("ordinal")).max().cast(pl.Int32)
    return tail.group_by("member").agg(lost=ahead).filter(pl.col("lost") > 0)


def attributed(calls_between: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """The calls between windows with the `member` that made them and a `pos`; the frame in the order of `pos`.

    The number of `calls` is null where a communicator of the same pointer was created among them.
    """
    if calls_between.is_empty():
        return pl.DataFrame(schema=ATTRIBUTED)
    owner = [*OWNER, "comm"]
    created = member.select(*owner, "created_pos").with_row_index("member").sort("created_pos")
    places = calls_between
    for pos, name in (("last_pos", "last_member"), ("pos", "member")):
        places = places.sort(pos).join_asof(
            created.rename({"member": name}), left_on=pos, right_on="created_pos", by=owner,
            strategy="backward", check_sortedness=False,
        ).drop("created_pos", strict=False)  # fmt: skip
    is_of_one = pl.col("last_member") == pl.col("member")
    calls = pl.when(is_of_one).then("calls").alias("calls")
    return places.drop_nulls("member").select("member", "called", "root", calls, "pos")


def unread_before(calls: pl.DataFrame, between: pl.DataFrame) -> pl.DataFrame:
    """How many calls were made, and not kept, before kept ones: of their communicators, and by their ranks.

    Columns: `row` of a call behind such calls, their number (`ordinal`) and that of the collectives among them (`nth`),
    and whether it is unknown. `between`: as `attributed` gives it.
    """
    if between.is_empty():
        return pl.DataFrame(schema=UNREAD)
    is_collective = ~pl.col("called").is_in(POINT_TO_POINT).fill_null(False)
    sums = between.group_by("member", "pos").agg(
        ordinal=pl.col("calls").sum(), nth=pl.col("calls").filter(is_collective).sum(),
        is_unknown=pl.col("calls").is_null().any(),
    )  # fmt: skip
    before = sums.sort("pos").select(
        "member", "pos", pl.col("ordinal", "nth").cum_sum().over("member"),
        is_unknown=pl.col("is_unknown").cum_max().over("member"),
    )  # fmt: skip
    rows = calls.select("member", "pos").with_row_index("row")
    rows = rows.filter(pl.col("member").is_in(before["member"].unique().implode())).sort("pos")
    rows = rows.join_asof(before, on="pos", by="member", strategy="backward", check_sortedness=False)
    return rows.drop_nulls("ordinal").select("row", "ordinal", "nth", "is_unknown")


def with_unread_ends(
    last_calls: pl.DataFrame, kept: pl.DataFrame, between: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    """The last calls of members with those that stand behind the last one kept: of a communicator not used at the end.

    `last_calls` by `member`; `kept`: how many collectives of a member are kept; `between`: as `attributed` gives it.
    """
    is_collective = ~pl.col("called").is_in(POINT_TO_POINT).fill_null(False)
    unread = between.group_by("member").agg(
        unread=pl.col("calls").filter(is_collective).sum(), unread_pos=pl.col("pos").max()
    )
    named = member.select("rank_id", "key", member=pl.int_range(pl.len(), dtype=pl.UInt32))
    unread = unread.join(named, on="member").filter(pl.col("key").is_in(last_calls["key"].unique().implode()))
    ends = last_calls.join(unread, on="member", how="full", coalesce=True).join(kept, on="member", how="left")
    made = (pl.col("kept").fill_null(0) + pl.col("unread").fill_null(0)).cast(pl.Int32)
    return ends.select(
        "member",
        pl.coalesce("rank_id", "rank_id_right").alias("rank_id"),
        pl.coalesce("key", "key_right").alias("key"),
        "nth",
        pl.max_horizontal("pos", "unread_pos").alias("pos"),
        pl.col("lines").fill_null(0),
        pl.max_horizontal("calls", made).alias("calls"),
    )


def _counted(calls: pl.DataFrame, unread: pl.DataFrame, is_parsed: pl.Series) -> pl.DataFrame:
    """Columns `counted_ordinal` and `counted_nth`: the numbers of calls with the unread ones before them counted.

    Null where that number is unknown. `is_parsed`: whether all calls in the file of a call were parsed.
    """
    is_known = is_parsed.scatter(unread["row"], ~unread["is_unknown"])
    none = pl.repeat(0, calls.height, dtype=pl.Int64, eager=True)
    return calls.select(
        pl.when(is_known)
        .then(pl.col(name) + none.scatter(unread["row"], unread[name]))
        .cast(pl.Int32)
        .alias(f"counted_{name}")
        for name in ("ordinal", "nth")
    )


def _fits_counter() -> pl.Expr:
    """Whether all calls of a communicator are collectives, and no counter is ahead of the number of its call.

    No call raises the counter by more than one: where it is ahead, lines are lost.
    """
    is_behind = (pl.col("opcount") <= pl.coalesce("counted_ordinal", "ordinal")).fill_null(True)
    return (pl.col("collective") & is_behind).all().over("key")


def first_kept(calls: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """The first collective that every member shows at the end of its log (`first`), of communicators (`key`).

    Only of communicators of which calls between windows were not kept, and of which no more can be read.
    """
    closed = source.filter(pl.col("is_closed") & ~pl.col("is_whole"))["source"]
    if closed.is_empty():
        return pl.DataFrame(schema={"key": pl.Categorical(), "first": pl.Int32()})
    tail = with_line(calls.filter(pl.col("in_tail") & pl.col("nth").is_not_null()))
    tail = tail.filter(pl.col("source").is_in(closed.implode()))
    return tail.group_by("key", "member").agg(pl.col("nth").min()).group_by("key").agg(first=pl.col("nth").max())


def without_unplaced(calls: pl.DataFrame, call_line: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """The calls but for those of communicators whose members differ where the ends of their logs begin to be compared.

    There a log lost more lines between its windows than can be told, so that its calls have other numbers.
    """
    first = first_kept(calls, source)
    if first.is_empty():
        return calls
    compared = calls.join(first, left_on=["key", "nth"], right_on=["key", "first"], how="semi")
    signed = compared.select("key", call_line["signature"].gather(compared["call_line"]))
    differing = signed.group_by("key").agg(pl.col("signature").n_unique()).filter(pl.col("signature") > 1)["key"]
    return calls.filter(~pl.col("key").is_in(differing.implode())) if differing.len() else calls
