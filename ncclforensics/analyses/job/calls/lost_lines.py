"""Lines of collectives that a log lost, found by the calls on another communicator.

A program that makes the same call again and again shows no difference where a line is lost: its rank only seems to
have made one call less, which is what a rank that hangs looks like. But its calls on other communicators go on in step:
ranks that run one program make the same call on one communicator behind the same call on another one.
"""

from __future__ import annotations

import polars as pl

FEW_CALLS = 16  # collectives at the end that are compared
# Collectives that a host enqueues behind one that does not return, with those on other communicators in between.
MOST_AHEAD = 4
RECENT = 4096  # collectives at the end of a communicator that are looked at
COMPARED = 2  # communicators of each rank that are compared with another one, the largest

LOST_LINES = {
    "key": pl.Categorical(),
    "member": pl.UInt32(),  # row of `member`
    "rank_id": pl.Int32(),
    "first": pl.Int32(),  # collective of the member, in its own numbering, before which lines are lost
    "end": pl.Int32(),  # its last one
    "lost": pl.Int32(),  # lines
}


def recent_collectives(calls: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """The last collectives of communicators, RECENT of those that all members made; none before unread ones."""
    of_member = calls.group_by("member").agg(pl.col("key").first(), end=pl.col("nth").max()).drop_nulls("end")
    recent = of_member.with_columns(start=pl.col("end").min().over("key") - RECENT)
    start = pl.repeat(0, member.height, dtype=pl.Int32, eager=True).scatter(recent["member"], recent["start"])
    recent_calls = calls.filter((pl.col("nth") >= start.gather(calls["member"])).fill_null(False))
    return recent_calls.filter(pl.col("in_tail") | ~pl.col("in_tail").any().over("member"))


def lost_lines(calls: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Members whose log lost lines of collectives; columns LOST_LINES.

    `calls`: collectives (`key`, `member`, `rank_id`, `nth`, `pos`), of which the last ones are enough. Only members
    that made as many calls as the others if these lines are counted: threads that call in another order on each rank
    only seem to lose a line, and one that hangs made fewer calls. Members whose log begins in the middle are left out:
    their calls have other numbers.
    """
    calls = calls.filter(member["line"].is_not_null().gather(calls["member"]))
    ends = calls.group_by("member").agg(
        pl.col("key", "rank_id").first(),
        end=pl.col("nth").max(), start=pl.col("nth").min(), start_pos=pl.col("pos").min(),
    )  # fmt: skip
    ends = ends.with_columns(
        most=pl.col("end").max().over("key"),
        shown=pl.col("start").max().over("key") + 1,  # from here on, all members show what they called before
        size=member["nranks"].gather(ends["member"]),
    )
    uneven = ends.filter(pl.col("end").min().over("key") < pl.col("most"))
    if uneven.is_empty():
        return pl.DataFrame(schema=LOST_LINES)
    others = ends.sort("size", "key", descending=[True, False]).select("rank_id", other="key")
    pairs = uneven.join(others, on="rank_id", maintain_order="left_right").filter(pl.col("key") != pl.col("other"))
    pairs = pairs.group_by("member", maintain_order=True).head(COMPARED)
    begins = pairs.join(_begins(calls, pairs), on=["member", "other"])
    # Where a member shows no call before, the first one behind may not be its first.
    begins = begins.filter((pl.col("start_pos") < pl.col("begin")) | (pl.col("start") == 0))
    begins = begins.select("member", "other", "begin")
    of_keys = calls.filter(pl.col("key").is_in(uneven["key"].unique().implode())).select("member", "nth", "pos")
    later = of_keys.join(begins, on="member").filter(pl.col("pos") > pl.col("begin"))
    first = later.group_by("member", "other").agg(first=pl.col("nth").min())
    compared = pairs.join(first, on=["member", "other"], maintain_order="left")
    compared = compared.with_columns(lost=pl.col("first").max().over("key", "other") - pl.col("first"))
    is_lost = (pl.col("lost") > 0) & (pl.col("end") + pl.col("lost") == pl.col("most"))
    went_on = pl.col("end") - pl.col("first") >= MOST_AHEAD
    return compared.filter(is_lost & went_on).unique("member", keep="first").select(list(LOST_LINES))


def _begins(calls: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Where the comparison of a `member` with an `other` communicator begins: the `pos` of its call there (`begin`).

    That is the same call for all members: the last one that a member with most calls made before its FEW_CALLS last.
    """
    ahead = pairs.filter(pl.col("end") == pl.col("most"))
    ahead = ahead.with_columns(nth=pl.max_horizontal(pl.col("end") - FEW_CALLS, "shown"))
    at = calls.select("member", "nth", "pos")
    ahead = ahead.join(at, on=["member", "nth"]).select("key", "rank_id", "other", "pos").sort("pos")
    of_others = calls.select("rank_id", "nth", "pos", other="key").sort("pos")
    before = ahead.join_asof(of_others, on="pos", by=["rank_id", "other"], strategy="backward", check_sortedness=False)
    agreed = before.drop_nulls("nth").group_by("key", "other").agg(pl.col("nth").min())
    wanted = pairs.select("key", "member", "rank_id", "other").join(agreed, on=["key", "other"])
    found = wanted.join(of_others.rename({"pos": "begin"}), on=["rank_id", "other", "nth"])
    return found.select("member", "other", "begin")
