"""The calls of every rank, in order: which communicator, which place in its sequence, and whether all agree on it.

`opCount` is no call counter in most versions (formats: NCCL's collective lines, section 5.3), so places are counted:
from 0 at the communicator's Init START, or from the first call seen. Where only the two ends of a file were read, the
place of a call in the tail is its `opCount`, if in this communicator that number has counted every call so far.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.columns import OWNER
from ncclforensics.data.versions import releases
from ncclforensics.frames import analysis

POINT_TO_POINT = ["Send", "Recv", "PutSignal", "Signal", "WaitSignal"]
# From 2.27.3 opCount counts only what the network proxy does, and differs between ranks.
OPCOUNT_UNRELIABLE_FROM = (2, 27)

CALL = {
    "job": pl.Int32(),
    "actor": pl.Int32(),
    "key": pl.Categorical(),
    "place": pl.Int32(),  # rank in the communicator
    "nranks": pl.Int32(),
    "name": pl.Categorical(),
    "count": pl.Int64(),
    "datatype": pl.Int32(),
    "op": pl.Int32(),
    "root": pl.Int32(),  # the peer, for Send and Recv
    "ordinal": pl.Int32(),  # among all calls of this actor on this communicator; null where the gap hides it
    "nth": pl.Int32(),  # among its collectives only; null for Send and Recv
    "signature": pl.Int64(),
    "in_tail": pl.Boolean(),  # read in the window at the end of a file whose middle was not read
    "source": pl.Int32(),
    "line": pl.Int32(),
    "pos": pl.Int64(),
}

LAST_CALL = {
    "actor": pl.Int32(),
    "key": pl.Categorical(),
    "calls": pl.Int32(),  # collectives made on this communicator
    "nth": pl.Int32(),
    "pos": pl.Int64(),
}

DIVERGENCE = {
    "key": pl.Categorical(),
    "nth": pl.Int32(),  # the first place where the members of a communicator called different things
}

MATCH = {
    "key": pl.Categorical(),
    "sender": pl.Int32(),
    "receiver": pl.Int32(),
    "sends": pl.Int32(),
    "receives": pl.Int32(),
    "differs_at": pl.Int32(),  # first pair whose count or datatype differ
}


@analysis(CALL)
def call(
    operation: pl.DataFrame,
    replay: pl.DataFrame,
    journaled_call: pl.DataFrame,
    member: pl.DataFrame,
    process: pl.DataFrame,
    source: pl.DataFrame,
    version: pl.DataFrame,
) -> pl.DataFrame:
    """Every call with the rank that made it and its place in the sequence of its communicator."""
    calls = _of_members(_lines(operation, replay, journaled_call, process), member)
    collective = ~pl.col("name").is_in(pl.Series(POINT_TO_POINT, dtype=pl.Categorical()).implode())
    unread = source.filter(~pl.col("is_whole"))["source"]
    # One after another: side by side, what each needs for a while would stand in memory at the same time.
    calls = calls.with_columns(
        collective=collective, in_tail=pl.col("source").is_in(unread.implode()) & (pl.col("line") < 0)
    )
    calls = calls.with_columns(counted=pl.int_range(pl.len(), dtype=pl.Int32).over("seat"))
    calls = calls.with_columns(signature=_signature(calls))
    nth = pl.col("counted")
    if not calls["collective"].all():
        nth = (pl.col("collective").cum_sum() - 1).over("seat")
    if unread.is_empty() or not calls["in_tail"].any():
        return calls.with_columns(ordinal="counted", nth=pl.when("collective").then(nth))
    by_opcount = pl.col("in_tail").any().over("key") & _counts_calls(version)
    ordinal = pl.when(by_opcount).then("opcount").when(~pl.col("in_tail")).then("counted")
    nth = pl.when(by_opcount).then("opcount").when(~pl.col("in_tail")).then(nth)
    return calls.with_columns(ordinal=ordinal, nth=pl.when("collective").then(nth))


def _signature(calls: pl.DataFrame) -> pl.Series:
    """A number that is equal for calls of equal name and arguments; the peer of a message is none of them."""
    peer = pl.when("collective").then("root").otherwise(-1)
    return calls.select("name", "count", "datatype", "op", peer=peer).hash_rows().reinterpret(signed=True)


def _lines(
    operation: pl.DataFrame, replay: pl.DataFrame, journaled_call: pl.DataFrame, process: pl.DataFrame
) -> pl.DataFrame:
    """COLL lines, or CALL lines of processes that print no COLL line, or a journal; of two copies of a log, one."""
    columns = [*OWNER, "comm", "name", "count", "datatype", "op", "root", "opcount", "nranks", "source", "line", "pos"]
    told = operation.rename({"called": "name"}).select(columns)
    calls = told
    unnumbered = [rows for rows in (only_replayed(operation, replay), journaled_call) if rows.height]
    if unnumbered:  # millions of calls are not copied for the sake of no line
        without = {"opcount": pl.lit(None, dtype=pl.Int64), "nranks": pl.lit(None, dtype=pl.Int32)}
        others = [rows.rename({"called": "name"}).with_columns(**without).select(columns) for rows in unnumbered]
        calls = pl.concat([told, *others])
    several = process.filter(pl.col("sources").list.len() > 1).select(OWNER)
    if several.is_empty() or calls.is_empty():
        return calls
    line = [*OWNER, "comm", "name", "count", "datatype", "op", "root", "opcount"]
    files = (
        calls.join(several, on=OWNER)
        .group_by([*OWNER, "source"])
        .agg(calls=pl.len(), print=pl.struct(line).hash().sort_by("pos").implode())
    )
    copies = files.sort("source").filter(pl.struct(*OWNER, "print").is_first_distinct().not_())
    return calls.join(copies.select(*OWNER, "source"), on=[*OWNER, "source"], how="anti")


def only_replayed(operation: pl.DataFrame, replay: pl.DataFrame) -> pl.DataFrame:
    """CALL lines of processes that print no COLL line; of the others they say everything twice."""
    if replay.is_empty():
        return replay
    return replay.join(operation.select("host", "pid").unique(), on=OWNER, how="anti")


def _of_members(calls: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Each call with the incarnation of its pointer that was alive: the last one born before it (`seat`)."""
    owner = [*OWNER, "comm"]
    seats = member.sort("born_pos").with_row_index("seat")
    born = seats.select("seat", *owner, "born_pos")
    seat = calls.select(*owner, "pos").join_asof(
        born, left_on="pos", right_on="born_pos", by=owner, strategy="backward", check_sortedness=False
    )["seat"]
    # Columns are gathered, not joined: a join would copy every other column of what may be millions of calls.
    seated = calls.drop(owner).with_columns(seat)
    if seated["seat"].null_count():
        seated = seated.filter(pl.col("seat").is_not_null())
    place = {"job": "job", "actor": "actor", "key": "key", "place": "rank"}
    seated = seated.with_columns(**{name: seats[column].gather(seated["seat"]) for name, column in place.items()})
    if seated["nranks"].null_count():
        seated = seated.with_columns(pl.col("nranks").fill_null(seats["nranks"].gather(seated["seat"])))
    return seated


def _counts_calls(version: pl.DataFrame) -> pl.Expr:
    """Whether opCount is the number of the call, on all members: 0 at the first one seen, one more at each other."""
    versions = releases(version["version"])
    if not versions or versions[-1] >= OPCOUNT_UNRELIABLE_FROM:
        return pl.lit(False)
    from_head = pl.col("opcount").eq(pl.col("counted")) | pl.col("in_tail")
    step = (pl.col("opcount") - pl.col("counted")).n_unique().over("seat", "in_tail") == 1
    return (from_head & step & pl.col("collective")).fill_null(False).all().over("key")


@analysis(LAST_CALL, of=("call",))
def last_call(call: pl.DataFrame) -> pl.DataFrame:
    """The last collective of every rank on every communicator, and the last call of any kind (`pos`)."""
    return (
        call.group_by("actor", "key")
        .agg((pl.col("nth").max() + 1).fill_null(0).alias("calls"), pl.col("nth").max(), pl.col("pos").max())
        .sort("actor", "pos")
    )


@analysis(DIVERGENCE, of=("call",))
def divergence(call: pl.DataFrame) -> pl.DataFrame:
    """The first place in each communicator where its members differ in name, count, datatype, op or root."""
    at = pl.col("key").to_physical().cast(pl.Int64) * (1 << 32) + pl.col("nth")  # one number: twice as fast as two
    differing = (
        call.lazy()
        .group_by(at=at)
        .agg(lowest=pl.col("signature").min(), highest=pl.col("signature").max())
        .filter(pl.col("at").is_not_null() & (pl.col("lowest") != pl.col("highest")))
        .collect()
    )
    if differing.is_empty():
        return call.select("key", "nth").clear()
    return call.filter(at.is_in(differing["at"].implode())).group_by("key").agg(pl.col("nth").min()).sort("key")


@analysis(MATCH, of=("call",))
def match(call: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Sends and receives of every pair of ranks, matched in order; only pairs that do not come out even."""
    messages = call.filter(pl.col("name").is_in(pl.Series(["Send", "Recv"], dtype=pl.Categorical()).implode()))
    seats = member.select("key", peer="actor", root="rank").unique(["key", "root"])
    both = messages.join(seats, on=["key", "root"]).with_columns(is_send=pl.col("name") == "Send")
    both = both.with_columns(
        sender=pl.when("is_send").then("actor").otherwise("peer"),
        receiver=pl.when("is_send").then("peer").otherwise("actor"),
        argument=pl.struct("count", "datatype").hash(),
    )
    pair = ["key", "sender", "receiver"]
    both = both.with_columns(turn=pl.int_range(pl.len()).over(*pair, "is_send", order_by="pos"))
    differing = both.group_by([*pair, "turn"]).agg(pl.col("argument").n_unique()).filter(pl.col("argument") > 1)
    return (
        both.group_by(pair)
        .agg(sends=pl.col("is_send").sum().cast(pl.Int64), receives=(~pl.col("is_send")).sum().cast(pl.Int64))
        .join(differing.group_by(pair).agg(differs_at=pl.col("turn").min()), on=pair, how="left")
        .filter((pl.col("sends") != pl.col("receives")) | pl.col("differs_at").is_not_null())
        .sort(pair)
    )
