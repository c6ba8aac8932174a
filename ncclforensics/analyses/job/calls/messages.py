"""Point-to-point calls: the Send and Recv of every pair of ranks, matched in order."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.calls.calls import describe_calls
from ncclforensics.analyses.job.calls.lost_lines import FEW_CALLS, MOST_AHEAD
from ncclforensics.analyses.job.calls.unread_calls import attributed, first_kept
from ncclforensics.frames.columns import ORIGIN, no_rows
from ncclforensics.frames.registry import analysis
from ncclforensics.parsing.calls_between import MESSAGES

MATCH = {
    "key": pl.Categorical(),
    "sender": pl.Int32(),
    "receiver": pl.Int32(),
    "sends": pl.Int32(),
    "receives": pl.Int32(),
    "differs_at": pl.Int32(),  # first pair whose count or datatype differ
}

MESSAGE = {
    "key": pl.Categorical(),
    "job": pl.Int32(),
    "member": pl.UInt32(),  # row of `member`
    "rank_id": pl.Int32(),
    "peer": pl.Int32(),  # the rank_id of the other end; null if its rank is unknown
    "name": pl.Categorical(),  # Send or Recv
    "count": pl.Int64(),
    "datatype": pl.Int32(),
    "turn": pl.Int64(),  # its number among those of this kind and peer
    "after": pl.Int32(),  # collectives of its rank on this communicator before it; null where windows were read
    "before": pl.Int64(),  # messages of this kind and peer between windows before it, which are not among these rows
    **ORIGIN,
}

RUN_AHEAD = 1  # collectives that a host may have enqueued behind a message that never arrives


def _without_settled(messages: pl.DataFrame, made: pl.DataFrame, pair: list[str]) -> pl.DataFrame:
    """Messages without those of a stretch in which their numbers differ and behind which both ranks went on.

    A stretch lies between two collectives of the communicator (`after`: how many the rank had made before it). Where
    both ranks made more than RUN_AHEAD collectives afterwards (`made`: how many each made in all), the message was
    matched, and a line of it was lost. Of files of which windows were read, no stretch is known to be whole (`after` is
    null).
    """
    stretch = [*pair, "after"]
    uneven = messages.drop_nulls("after").group_by(stretch).agg(sends=pl.col("is_send").sum(), lines=pl.len())
    uneven = uneven.filter(pl.col("sends") * 2 != pl.col("lines"))
    for end in ("sender", "receiver"):
        uneven = uneven.join(made.rename({"rank_id": end, "made": f"made_{end}"}), on=["key", end], how="left")
    went_on = pl.min_horizontal("made_sender", "made_receiver") > pl.col("after") + RUN_AHEAD
    return messages.join(uneven.filter(went_on).select(stretch), on=stretch, how="anti")


@analysis(MESSAGE, of=("call",), is_step=True)
def message(
    call: pl.DataFrame, call_line: pl.DataFrame, member: pl.DataFrame, calls_between: pl.DataFrame
) -> pl.DataFrame:
    """Every Send and Recv, with its peer and what its rank called before it."""
    is_message = call_line["name"].is_in(MESSAGES).gather(call["call_line"])
    if not is_message.any():
        return no_rows(MESSAGE)
    members = call.filter(is_message)["member"].unique()
    calls = call.filter(pl.col("member").is_in(members.implode())).with_columns(
        after=(pl.col("nth").forward_fill().over("member") + 1).fill_null(0)
    )
    is_message = call_line["name"].is_in(MESSAGES).gather(calls["call_line"])
    after = pl.when(~pl.col("in_tail").any().over("key")).then("after").alias("after")
    messages = describe_calls(calls.with_columns(after).filter(is_message), call_line, member)
    peers = member.select("key", peer="rank_id", root="rank").unique(["key", "root"])
    messages = messages.join(peers, on=["key", "root"], how="left", maintain_order="left")
    messages = messages.with_columns(before=0)
    if calls_between.height:
        unread = messages_between(calls_between, member).rename({"calls": "unread"})
        before = pl.when("in_tail").then("unread").fill_null(0)
        messages = messages.join(unread, on=["key", "rank_id", "peer", "name"], how="left", maintain_order="left")
        messages = messages.with_columns(before=before)
    return messages.with_columns(turn=_turn()).select(list(MESSAGE))


def messages_between(calls_between: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """How many messages each rank exchanged with each peer between the windows of its log (`calls`)."""
    sent = attributed(calls_between, member).filter(pl.col("called").is_in(MESSAGES))
    sent = sent.hstack(member.select("key", "rank_id")[sent["member"]])
    peers = member.select("key", peer="rank_id", root="rank").unique(["key", "root"])
    counted = sent.join(peers, on=["key", "root"]).group_by("key", "rank_id", "peer", name="called")
    return counted.agg(pl.col("calls").sum())


@analysis(MATCH, of=("message",))
def match(
    message: pl.DataFrame,
    call: pl.DataFrame,
    last_call: pl.DataFrame,
    calls_between: pl.DataFrame,
    member: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """Sends and receives of each pair of ranks, matched in order; only pairs with unmatched or differing messages."""
    pair = ["key", "sender", "receiver"]
    made = last_call.select("key", "rank_id", made="calls")
    sources = _without_settled(_by_pair(message.drop_nulls("peer")), made, pair)
    sources = sources.with_columns(argument=pl.struct("count", "datatype").hash(), turn=_turn())
    differing = sources.group_by([*pair, "turn"]).agg(pl.col("argument").n_unique()).filter(pl.col("argument") > 1)
    columns = (*pair, "is_send", "calls")
    counted = sources.with_columns(calls=pl.lit(1, pl.Int64)).select(columns)
    if calls_between.height:
        of_keys = pl.col("key").is_in(message["key"].unique().implode())
        unread = _by_pair(messages_between(calls_between, member).filter(of_keys))
        counted = pl.concat([counted, unread.select(columns)])
    numbers = counted.group_by(pair).agg(
        sends=pl.col("calls").filter("is_send").sum(), receives=pl.col("calls").filter(~pl.col("is_send")).sum()
    )
    uneven = numbers.filter(pl.col("sends") != pl.col("receives")).select(pair)
    if uneven.height:
        recent = last_call.group_by("key").agg(first=(pl.col("calls").min() - FEW_CALLS).clip(0))
        first = first_kept(call, source) if calls_between.height else recent
        numbers = numbers.join(_even_at_end(uneven, message, call, member, first), on=pair, how="anti")
    return (
        numbers.join(differing.group_by(pair).agg(differs_at=pl.col("turn").min()), on=pair, how="left")
        .filter((pl.col("sends") != pl.col("receives")) | pl.col("differs_at").is_not_null())
        .sort(pair)
    )


def _even_at_end(
    pairs: pl.DataFrame, message: pl.DataFrame, call: pl.DataFrame, member: pl.DataFrame, first: pl.DataFrame
) -> pl.DataFrame:
    """Of pairs of ranks those that show as many sends as receives behind a collective which both made.

    It is the `first` one that is compared, on the largest communicator of both: then the line of a message was lost
    before it.
    """
    begins = call.join(first, left_on=["key", "nth"], right_on=["key", "first"], how="semi")
    begins = begins.join(member.select("key", "rank_id", "nranks"), on=["key", "rank_id"])
    of_sender = begins.select("nranks", shared="key", sender="rank_id", begin_sender="pos")
    of_receiver = begins.select(shared="key", receiver="rank_id", begin_receiver="pos")
    both = pairs.with_row_index("pair").join(of_sender, on="sender").join(of_receiver, on=["receiver", "shared"])
    both = both.sort("nranks", descending=True).unique("pair", keep="first", maintain_order=True)
    counts = []
    for end, peer, name in (("sender", "receiver", "Send"), ("receiver", "sender", "Recv")):
        own = message.filter(name=name).select("key", "rank_id", "peer", "pos")
        found = both.join(own, left_on=["key", end, peer], right_on=["key", "rank_id", "peer"], how="left")
        counts.append(found.group_by("pair").agg((pl.col("pos") > pl.col(f"begin_{end}")).sum().alias(name)))
    is_even = (pl.col("Send") == pl.col("Recv")) & (pl.col("Send") >= MOST_AHEAD)
    even = counts[0].join(counts[1], on="pair").filter(is_even)
    return both.join(even, on="pair", how="semi").select(pairs.columns)


def _turn() -> pl.Expr:
    """The number of a message among those of its kind that its rank exchanged with this peer."""
    return pl.int_range(pl.len()).over("key", "rank_id", "peer", "name", order_by="pos") + pl.col("before")


def _by_pair(messages: pl.DataFrame) -> pl.DataFrame:
    """Messages with the `sender` and the `receiver` of each, and whether the row is of the sender (`is_send`)."""
    is_send = pl.col("name") == "Send"
    return messages.with_columns(
        is_send=is_send,
        sender=pl.when(is_send).then("rank_id").otherwise("peer"),
        receiver=pl.when(is_send).then("peer").otherwise("rank_id"),
    )
