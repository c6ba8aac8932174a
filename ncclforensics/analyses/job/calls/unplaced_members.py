"""Find memberships of which it is unknown how many calls the rank made before the last lines of its log.

Lines were left out of the log, or it begins in the middle of the run: a call may have been among these lines, so that
the place of a later call in its sequence is known from below only, unless NCCL's counter or a long agreement with the
others shows the place.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.verdict.axioms import ENOUGH_ALIKE
from ncclforensics.data.versions import count_every_call, releases
from ncclforensics.frames.columns import OWNER
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.templated import opcount_of

UNPLACED_MEMBER = {
    "rank_id": pl.Int32(),
    "key": pl.Categorical(),
    "begins_together": pl.Boolean(),  # its log seems to begin with the first call, as those of most members do
}
FIRST_NUMBERS, FEWEST_NUMBERS = 6, 3  # of the collectives behind the missing lines, by NCCL's counter
FIRST_CALLS = 3


@analysis(UNPLACED_MEMBER, of=("call",))
def unplaced_member(
    omission: pl.DataFrame,
    process: pl.DataFrame,
    member: pl.DataFrame,
    rank: pl.DataFrame,
    call: pl.DataFrame,
    call_line: pl.DataFrame,
    call_counter: pl.DataFrame,
    call_gap: pl.DataFrame,
    counter_jump: pl.DataFrame,
    divergence: pl.DataFrame,
    version: pl.DataFrame,
) -> pl.DataFrame:
    """Memberships of which it is unknown how many calls the rank made before the last lines of its log.

    Lines were left out of it (before the communicator was created, they do not matter), as a line says or NCCL's
    counter shows, perhaps that of another communicator; or it begins later. There, it is also doubtful which
    communicator is meant where only the order of creation tells.
    """
    left_out = omission.group_by("source").agg(omitted_pos=pl.col("pos").max())
    sources = process.select(*OWNER, source="sources").explode("source").join(left_out, on="source")
    jumps = (
        rank.select("rank_id", *OWNER).join(counter_jump, on="rank_id").select(*OWNER, omitted_pos=pl.col("pos") - 1)
    )
    omissions = pl.concat([sources.select(*OWNER, "omitted_pos"), jumps])
    last_omission = omissions.group_by(OWNER).agg(pl.col("omitted_pos").max())
    members = member.with_row_index("member").join(last_omission, on=OWNER, how="left")
    members = members.with_columns(has_omission=pl.col("omitted_pos").is_not_null())
    begins_later = pl.col("line").is_null()
    is_doubtful = (pl.col("is_inferred") & begins_later.any().over(OWNER)).fill_null(False) & ~begins_later
    doubtful = members.filter(is_doubtful).select("rank_id", "key", begins_together=pl.lit(value=False))
    members = members.with_columns(
        pl.max_horizontal("omitted_pos", pl.when(begins_later).then(pl.col("created_pos") - 1))
    )
    members = members.filter((pl.col("omitted_pos") > pl.col("created_pos")) | begins_later)
    if members.is_empty():
        return doubtful
    of_keys = call.filter(pl.col("nth").is_not_null() & pl.col("key").is_in(members["key"].unique().implode()))
    collectives = of_keys.join(members.select("member", "omitted_pos"), on="member", how="left")
    collectives = collectives.with_columns(opcount_of(collectives, call_counter))
    later = collectives.filter(pl.col("omitted_pos").is_null() | (pl.col("pos") > pl.col("omitted_pos")))
    is_counter = count_every_call(releases(version["version"]))
    counted = _counted_through(collectives if is_counter else collectives.clear(), counter_jump, call_gap)
    placed = pl.concat(
        [_placed(later, divergence), later.filter(pl.col("member").is_in(counted.implode()))], how="diagonal"
    )
    unplaced = members.join(placed, on="member", how="anti")
    of_ranks = call.filter(pl.col("rank_id").is_in(unplaced["rank_id"].unique().implode()))
    unplaced = unplaced.join(_begin_together(of_ranks, call_line, call_counter), on="rank_id", how="left")
    is_begun = pl.col("line").is_null() & pl.col("has_omission").fill_null(True).not_()
    begins_together = pl.col("begins_together").fill_null(False) & is_begun
    unplaced = unplaced.select("rank_id", "key", begins_together)
    return pl.concat([doubtful, unplaced]).drop_nulls().unique(["rank_id", "key"], keep="first", maintain_order=True)


def _counted_through(collectives: pl.DataFrame, counter_jump: pl.DataFrame, call_gap: pl.DataFrame) -> pl.Series:
    """The members with lost lines whose places the counter shows: it runs from 0 without a jump, or was followed."""
    steps = pl.col("opcount").sort_by("pos")
    is_whole = (steps.first() == 0) & (steps.diff().drop_nulls() == 1).all() & pl.col("opcount").is_not_null().all()
    unbroken = collectives.group_by("member").agg(is_whole=is_whole).filter("is_whole")["member"]
    followed = call_gap.filter("is_lost")["member"]
    return pl.concat([unbroken, followed.filter(followed.is_in(counter_jump["member"].implode()))])


def _placed(later: pl.DataFrame, divergence: pl.DataFrame) -> pl.DataFrame:
    """The members whose calls behind the omission agree so long with the others', or are counted as theirs are.

    NCCL's counter (before 2.27) stands at the same number for the same call of every rank: if the first calls behind
    the omission have the numbers that most members give to calls of the same place, and all whose logs lack nothing,
    as many were left out before them as there.
    """
    place = ("key", "nth")
    is_usual = pl.len().over(*place, "opcount") * 2 > pl.len().over(place)
    is_agreed = pl.col("omitted_pos").is_not_null() | is_usual
    is_same = is_usual & is_agreed.all().over(place) & pl.col("opcount").is_not_null()
    diverging = divergence.select("key", differs_from="nth")
    later = later.with_columns(is_same=is_same).join(diverging, on="key", how="left")
    agreeing = (pl.col("nth") < pl.col("differs_from")).fill_null(True).sum()
    first = later.sort("nth").group_by("member", maintain_order=True)
    numbers = pl.col("opcount").head(FIRST_NUMBERS)
    is_counted = pl.col("is_same").head(FIRST_NUMBERS).all() & (numbers.n_unique() >= FEWEST_NUMBERS)
    return first.agg(is_placed=is_counted | (agreeing >= ENOUGH_ALIKE)).filter("is_placed")


def _begin_together(calls: pl.DataFrame, call_line: pl.DataFrame, call_counter: pl.DataFrame) -> pl.DataFrame:
    """Whether each rank's log begins with the calls that most begin with, and NCCL's counter with 0 everywhere."""
    calls = calls.with_columns(call_line["signature"].gather(calls["call_line"]), opcount_of(calls, call_counter))
    calls = calls.sort("pos")
    from_zero = calls.group_by("rank_id", "member", maintain_order=True).agg(pl.col("opcount").first() == 0)
    first = (
        calls.group_by("rank_id", maintain_order=True)
        .agg(pl.col("key").first(), calls=pl.col("signature").head(FIRST_CALLS), made=pl.len())
        .join(from_zero.group_by("rank_id").agg(is_from_zero=pl.col("opcount").all()), on="rank_id")
    )
    is_usual = pl.len().over("key", "calls") * 2 > pl.len().over("key")
    begins_together = is_usual & pl.col("is_from_zero") & (pl.col("made") >= FIRST_CALLS)
    return first.select("rank_id", begins_together=begins_together.fill_null(False))
