"""List the communicators whose calls between the windows are to be counted, and what is read to verify such numbers.

From 2.27 on `opCount` does not number the calls of a communicator (NCCL log lines, section 5.3). Where the windows of
its members then show the same calls at the same numbers, nothing else is read. A log that lost lines has too few calls
between its windows, and its rank seems to be behind: the logs of ranks that would be named are read whole, and that of
a rank that would not.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.verdict.axioms import RUN_AHEAD
from ncclforensics.frames.columns import OWNER, no_rows, with_line
from ncclforensics.frames.registry import analysis

POINTERS = {"source": pl.Int32(), "host": pl.Categorical(), "pid": pl.Int32(), "comm": pl.Categorical()}
READ = {"source": pl.Int32(), "reach": pl.String()}  # reach: head, tail or all
MOST_VERIFIED = 16  # ranks; where more are named, these stand for the others
LINES_A_CALL = 4  # at most, in a log of calls; where there are more, other output would be read without end
WITNESSES = 2  # of each communicator


@analysis(POINTERS, is_step=True)
def uncounted_communicator(
    source: pl.DataFrame,
    logged_call: pl.DataFrame,
    call_line: pl.DataFrame,
    member: pl.DataFrame,
    process: pl.DataFrame,
    calls_between: pl.DataFrame,
) -> pl.DataFrame:
    """The communicators of processes with calls of unknown number in the tail window of a file.

    Not of processes that share a file or have several, or use a pointer twice; nor where the number of some call cannot
    be known by counting, and the file is read anyway: of messages, and on communicators whose beginning is not shown.
    """
    unknown = with_line(logged_call.filter(pl.col("in_tail") & pl.col("ordinal").is_null()))
    unknown = unknown.join(source.filter("is_closed"), on="source", how="anti")
    unknown = unknown.join(calls_between, on="source", how="anti")
    if unknown.is_empty():
        return pl.DataFrame(schema=POINTERS)
    is_collective = call_line["collective"].gather(logged_call["call_line"])
    with_messages = logged_call.filter(~is_collective)["key"].unique()
    begun_earlier = member.filter(pl.col("line").is_null())["key"].unique()
    is_uncountable = pl.col("key").is_in(pl.concat([with_messages, begun_earlier]).unique().implode())
    files = process.select(*OWNER, source="sources").explode("source").filter(pl.len().over(OWNER) == 1)
    files = files.filter(pl.len().over("source") == 1).join(unknown.select("source").unique(), on="source", how="semi")
    files = files.join(unknown.filter(is_uncountable).select("source"), on="source", how="anti")
    pointers = member.join(files, on=[*OWNER, "source"], how="semi").select(*POINTERS)
    used_twice = pointers.filter(pointers.is_duplicated()).select("source")
    return pointers.join(used_twice, on="source", how="anti").sort("source", maintain_order=True)


@analysis({"source": pl.Int32()}, of=("calls_between",), is_step=True)
def unexplained_difference(
    calls_between: pl.DataFrame, call: pl.DataFrame, divergence: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    """The files of communicators whose members differ by counted numbers: a line may be lost, or a call left out.

    Their first calls show which. Of two members none is in the majority: others of the same size decide, which their
    ranks created at the same place (`call_gap`).
    """
    tail = with_line(call.filter("in_tail")).join(calls_between.select("source").unique(), on="source", how="semi")
    keys = tail.select("key").unique().join(divergence, on="key", how="semi")
    if keys.is_empty():
        return tail.select("source").clear()
    place = pl.int_range(pl.len()).over("rank_id", order_by="created_pos")
    shapes = member.select("key", "nranks", place=place).unique(maintain_order=True)
    pairs = shapes.filter(nranks=2).join(keys, on="key", how="semi")
    others = shapes.join(pairs, on=["nranks", "place"], how="semi").join(keys, on="key", how="anti")
    compared = pl.concat([keys, others.group_by("place").head(WITNESSES).select("key")])
    return tail.join(compared, on="key", how="semi").select("source").unique()


@analysis(READ, is_step=True)
def read_to_verify(
    calls_between: pl.DataFrame,
    source: pl.DataFrame,
    process: pl.DataFrame,
    rank: pl.DataFrame,
    verdict: pl.DataFrame,
    last_call: pl.DataFrame,
    call: pl.DataFrame,
) -> pl.DataFrame:
    """What is read before ranks are named: enough of the last calls of each, and files of which calls were counted."""
    counted = _counted_files(calls_between, source, verdict, last_call, call)
    return counted if counted.height else _longer_tails(source, process, rank, verdict, call)


def _longer_tails(
    source: pl.DataFrame, process: pl.DataFrame, rank: pl.DataFrame, verdict: pl.DataFrame, call: pl.DataFrame
) -> pl.DataFrame:
    """The files whose tails show few calls of a rank that is named: many ranks that print into one log share a window.

    A difference between calls may lie as far behind the last ones as a host enqueues.
    """
    if source["is_closed"].all():
        return no_rows(READ)
    named = verdict["culprits"].explode().drop_nulls().unique().sort().head(MOST_VERIFIED)
    if named.is_empty():
        return no_rows(READ)
    shown = call.filter(pl.col("in_tail") & pl.col("rank_id").is_in(named.implode())).group_by("rank_id").len()
    enough = shown.filter(pl.col("len") >= RUN_AHEAD)["rank_id"]
    few = rank.filter(pl.col("rank_id").is_in(named.implode()) & ~pl.col("rank_id").is_in(enough.implode()))
    of_processes = process.select(*OWNER, source="sources").explode("source")
    files = of_processes.join(few, on=OWNER, how="semi").select("source").unique()
    crowd = of_processes.group_by("source").agg(processes=pl.len())
    files = files.join(crowd, on="source").join(source.filter(~pl.col("is_closed")), on="source")
    files = files.filter(pl.col("lines") < LINES_A_CALL * RUN_AHEAD * pl.col("processes"))
    return files.select("source", reach=pl.lit("tail")).sort("source")


def _counted_files(
    calls_between: pl.DataFrame,
    source: pl.DataFrame,
    verdict: pl.DataFrame,
    last_call: pl.DataFrame,
    call: pl.DataFrame,
) -> pl.DataFrame:
    """The files of the ranks that are named by counted numbers of calls, and of ranks that made more.

    Where none is named, the numbers may be what speaks against it: the files of ranks that made another number of
    calls than most members.
    """
    if calls_between.is_empty():
        return no_rows(READ)
    counted = calls_between.select("source").unique().join(source.filter("is_closed"), on="source", how="anti")
    if counted.is_empty():
        return no_rows(READ)
    named = verdict["culprits"].explode().drop_nulls().unique()
    keys = verdict["key"].drop_nulls().cast(pl.Categorical).unique()
    if named.is_empty():
        most_common = pl.col("calls").mode().max().over("key")
        odd = last_call.filter(pl.col("calls") != most_common)
        named, keys = odd["rank_id"].unique(), odd["key"].unique()
    members = last_call.filter(pl.col("key").is_in(keys.implode()) & ~pl.col("rank_id").is_in(named.implode()))
    witnesses = members.sort("calls", "rank_id", descending=[True, False]).group_by("key").head(WITNESSES)
    rank_ids = pl.concat([named.sort().head(MOST_VERIFIED), witnesses["rank_id"]]) if named.len() else named
    files = with_line(call.filter("in_tail")).filter(pl.col("rank_id").is_in(rank_ids.implode()))
    return files.join(counted, on="source", how="semi").select("source", reach=pl.lit("all")).unique().sort("source")
