"""Processes that were started again under the same host and pid, in the same file: containers, where every pid is 1.

NCCL prints the driver's version, its interface and its own version once in a process. Where these lines stand again
behind communicators, and none of these communicators is used afterwards, another process printed them.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import MADE_UP, OWNER, PROCESS, text_of
from ncclforensics.frames.registry import analysis

RESTART = {
    **PROCESS,
    "source": pl.Int32(),
    "pos": pl.Int64(),  # of the first line of the last start
}
BANNERS = ("driver", "bootstrap")  # forms of milestones that a process prints once


@analysis(RESTART, of=("communicator",))
def restart(
    communicator: pl.DataFrame,
    milestone: pl.DataFrame,
    version: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
) -> pl.DataFrame:
    """The last start of every process, if all that created communicators were started again."""
    owner = [*OWNER, "source"]
    # Lines without their process may be of several that started once.
    is_named = ~text_of("host").str.starts_with(MADE_UP)
    created = communicator.filter(is_named).drop_nulls([*OWNER, "comm"]).select(*owner, "comm", "pos", "commid")
    first = created.group_by(owner).agg(created=pl.col("pos").min())
    banners = pl.concat(
        [milestone.filter(text_of("form").is_in(BANNERS)).select(*owner, "pos"), version.select(*owner, "pos")]
    )
    starts = banners.drop_nulls(OWNER).join(first, on=owner).filter(pl.col("pos") > pl.col("created"))
    if starts.is_empty():
        return pl.DataFrame(schema=RESTART)
    # Of several lines of one start the first counts: no communicator was created between them.
    last_before = starts.sort("pos").join_asof(
        created.sort("pos").select(*owner, "pos", before="pos"), on="pos", by=owner, check_sortedness=False
    )
    latest = last_before.group_by([*owner, "before"]).agg(pl.col("pos").min()).sort("pos")
    latest = latest.group_by(owner, maintain_order=True).agg(pl.col("pos").last())
    owners = created.select(owner).unique()
    if latest.height < owners.height:
        return pl.DataFrame(schema=RESTART)
    again = created.join(latest.rename({"pos": "start"}), on=owner)
    is_old = pl.col("pos") < pl.col("start")
    old = again.filter(is_old).join(again.filter(~is_old), on=[*owner, "comm"], how="anti")
    reused = again.filter(~is_old).join(again.filter(is_old), on=[*owner, "commid"], how="semi").drop_nulls("commid")
    lines = call_template.with_row_index("call_template").select("call_template", *owner, "comm")
    used = lines.join(old.select(*owner, "comm", "start").unique(), on=[*owner, "comm"])
    later = call_occurrence.select("call_template", "pos").join(used, on="call_template")
    if reused.height or later.filter(pl.col("pos") > pl.col("start")).height:
        return pl.DataFrame(schema=RESTART)
    return latest


def since_restart(rows: pl.DataFrame, restart: pl.DataFrame) -> pl.DataFrame:
    """The rows of processes (`host`, `pid`, `source`) that were printed since their last start."""
    if restart.is_empty():
        return rows
    starts = restart.rename({"pos": "start"})
    joined = rows.join(starts, on=[*OWNER, "source"], how="left", maintain_order="left")
    return joined.filter((pl.col("pos") >= pl.col("start")).fill_null(True)).drop("start")
