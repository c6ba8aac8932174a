"""Point-to-point calls: the Send and Recv of every pair of ranks, matched in order."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.calls import describe_calls
from ncclforensics.frames.registry import analysis

MATCH = {
    "key": pl.Categorical(),
    "sender": pl.Int32(),
    "receiver": pl.Int32(),
    "sends": pl.Int32(),
    "receives": pl.Int32(),
    "differs_at": pl.Int32(),  # first pair whose count or datatype differ
}

_MESSAGES = pl.Series(["Send", "Recv"], dtype=pl.Categorical()).implode()
RUN_AHEAD = 1  # collectives that a host may have enqueued behind a message that never arrives


def _without_settled(messages: pl.DataFrame, made: pl.DataFrame, pair: list[str]) -> pl.DataFrame:
    """Messages without those of a stretch in which their numbers differ and behind which both ranks went on.

    A stretch lies between two collectives of the communicator (`after`: how many the rank had made before it). Where
    both ranks made more than RUN_AHEAD collectives afterwards (`made`: how many each made in all), the message was
    matched, and a line of it was lost.
    """
    stretch = [*pair, "after"]
    uneven = messages.group_by(stretch).agg(sends=pl.col("is_send").sum(), lines=pl.len())
    uneven = uneven.filter(pl.col("sends") * 2 != pl.col("lines"))
    for end in ("sender", "receiver"):
        uneven = uneven.join(made.rename({"rank_id": end, "made": f"made_{end}"}), on=["key", end], how="left")
    went_on = pl.min_horizontal("made_sender", "made_receiver") > pl.col("after") + RUN_AHEAD
    return messages.join(uneven.filter(went_on).select(stretch), on=stretch, how="anti")


@analysis(MATCH, of=("call",))
def match(call: pl.DataFrame, call_line: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Sends and receives of each pair of ranks, matched in order; only pairs with unmatched or differing messages."""
    is_message = call_line["name"].is_in(_MESSAGES).gather(call["call_line"])
    members = call.filter(is_message)["member"].unique()
    calls = call.filter(pl.col("member").is_in(members.implode())).with_columns(
        after=(pl.col("nth").forward_fill().over("member") + 1).fill_null(0)
    )
    made = calls.group_by("key", "rank_id").agg(made=pl.col("after").max())
    is_message = call_line["name"].is_in(_MESSAGES).gather(calls["call_line"])
    messages = describe_calls(calls.filter(is_message), call_line, member)
    memberships = member.select("key", peer="rank_id", root="rank").unique(["key", "root"])
    sources = messages.join(memberships, on=["key", "root"]).with_columns(is_send=pl.col("name") == "Send")
    sources = sources.with_columns(
        sender=pl.when("is_send").then("rank_id").otherwise("peer"),
        receiver=pl.when("is_send").then("peer").otherwise("rank_id"),
        argument=pl.struct("count", "datatype").hash(),
    )
    pair = ["key", "sender", "receiver"]
    sources = _without_settled(sources, made, pair)
    sources = sources.with_columns(turn=pl.int_range(pl.len()).over(*pair, "is_send", order_by="pos"))
    differing = sources.group_by([*pair, "turn"]).agg(pl.col("argument").n_unique()).filter(pl.col("argument") > 1)
    return (
        sources.group_by(pair)
        .agg(sends=pl.col("is_send").sum().cast(pl.Int64), receives=(~pl.col("is_send")).sum().cast(pl.Int64))
        .join(differing.group_by(pair).agg(differs_at=pl.col("turn").min()), on=pair, how="left")
        .filter((pl.col("sends") != pl.col("receives")) | pl.col("differs_at").is_not_null())
        .sort(pair)
    )
