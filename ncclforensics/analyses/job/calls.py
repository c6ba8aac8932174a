"""The calls of every rank, in order: which communicator, which place in its sequence, and whether all agree on it.

`opCount` is no call counter in most versions (formats: NCCL's collective lines, section 5.3), so places are counted:
from 0 at the communicator's Init START, or from the first call seen. Where only the two ends of a file were read, the
place of a call in the tail is its `opCount`, if in this communicator that number has counted every call so far.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.data.versions import releases
from ncclforensics.frames.columns import OWNER, with_line
from ncclforensics.frames.registry import analysis
from ncclforensics.parsing.templates import CALL_TEMPLATE, Repetition, folded

SLICE = 1 << 19  # calls that are looked at at once
ARGUMENTS = ("count", "datatype", "op", "root")
_MESSAGES = pl.Series(["Send", "Recv"], dtype=pl.Categorical()).implode()
_POINT_TO_POINT = pl.Series(["Send", "Recv", "PutSignal", "Signal", "WaitSignal"], dtype=pl.Categorical()).implode()
# From 2.27.3 opCount counts only what the network proxy does, and differs between ranks.
OPCOUNT_UNRELIABLE_FROM = (2, 27)

CALL_LINE = {
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "comm": pl.Categorical(),
    "name": pl.Categorical(),
    "count": pl.Int64(),
    "datatype": pl.Int32(),
    "op": pl.Int32(),
    "root": pl.Int32(),  # the peer, for Send and Recv
    "nranks": pl.Int32(),
    "collective": pl.Boolean(),
    "signature": pl.Int64(),  # equal for calls of equal name and arguments; the peer of a message is none of them
    "source": pl.Int32(),
    "pos": pl.Int64(),  # of the first line that says so
}

CALL = {
    "rank_id": pl.Int32(),
    "key": pl.Categorical(),
    "member": pl.UInt32(),  # both of them: a row of `member`
    "call_line": pl.UInt32(),  # what the line says: a row of `call_line`
    "ordinal": pl.Int32(),  # among all calls of this actor on this communicator; null where the gap hides it
    "nth": pl.Int32(),  # among its collectives only; null for Send and Recv
    "in_tail": pl.Boolean(),  # read in the window at the end of a file whose middle was not read
    "pos": pl.Int64(),
}

LAST_CALL = {
    "rank_id": pl.Int32(),
    "key": pl.Categorical(),
    "calls": pl.Int32(),  # collectives made on this communicator
    "lines": pl.Int64(),  # calls of any kind that were read
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


@analysis(CALL_LINE)
def call_line(call_template: pl.DataFrame, replay: pl.DataFrame, journal_only_call: pl.DataFrame) -> pl.DataFrame:
    """What lines say of calls, each once: COLL lines, CALL lines of processes that print no COLL line, a journal."""
    columns = [*OWNER, "comm", "name", *ARGUMENTS, "nranks", "source", "pos"]
    others = [each.said for each in _unnumbered(call_template, replay, journal_only_call)]
    told = [call_template, *(rows.with_columns(nranks=pl.lit(None, dtype=pl.Int32)) for rows in others)]
    lines = pl.concat([rows.rename({"called": "name"}).select(columns) for rows in told])
    lines = lines.with_columns(collective=pl.col("name").is_in(_POINT_TO_POINT).not_())
    peer = pl.when("collective").then("root").otherwise(-1)
    signature = lines.select("name", "count", "datatype", "op", peer=peer).hash_rows().reinterpret(signed=True)
    return lines.with_columns(signature=signature)


def _unnumbered(call_template: pl.DataFrame, replay: pl.DataFrame, journal_only_call: pl.DataFrame) -> list[Repetition]:
    """What tells of calls beside COLL lines."""
    both = [only_replayed(call_template, replay), journal_only_call]
    shared = [*OWNER, "comm", "called", *ARGUMENTS, "source", "line", "pos"]
    return [folded(rows.select(shared), ["line", "pos"]) for rows in both if rows.height]


@analysis(CALL)
def call(
    call_line: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    replay: pl.DataFrame,
    journal_only_call: pl.DataFrame,
    member: pl.DataFrame,
    process: pl.DataFrame,
    source: pl.DataFrame,
    version: pl.DataFrame,
) -> pl.DataFrame:
    """Every call with the rank that made it and its place in the sequence of its communicator."""
    made = [call_occurrence.select("pos", "opcount", call_line=CALL_TEMPLATE)]
    start = call_template.height
    for each in _unnumbered(call_template, replay, journal_only_call):
        number = pl.col(CALL_TEMPLATE) + pl.lit(start, dtype=pl.UInt32)
        made.append(each.lines.select("pos", opcount=pl.lit(None, dtype=pl.Int64), call_line=number))
        start += each.said.height
    calls = _once(pl.concat(made) if len(made) > 1 else made[0], call_line, process)
    membership = _seats(calls, call_line, member)
    if membership.null_count():
        calls, membership = calls.filter(membership.is_not_null()), membership.drop_nulls()
    unread = source.filter(~pl.col("is_whole"))["source"].implode()
    # One after another: side by side, what each needs for a while would stand in memory at the same time.
    calls = calls.with_columns(
        member=membership, key=member["key"].gather(membership), rank_id=member["rank_id"].gather(membership)
    )
    counted = _counted(membership, member.height)
    collective = call_line["collective"].gather(calls["call_line"])
    nth = counted
    if not collective.all():
        rows = collective.arg_true()
        none = pl.repeat(None, calls.height, dtype=pl.Int32, eager=True)
        nth = none.scatter(rows, _counted(membership.gather(rows), member.height))
    calls = calls.with_columns(ordinal=counted, nth=nth, in_tail=pl.lit(value=False))
    if unread[0].is_empty():
        return calls
    line = with_line(calls.select("pos"))
    in_tail = line.select(pl.col("source").is_in(unread) & (pl.col("line") < 0)).to_series()
    calls = calls.with_columns(collective=collective, in_tail=in_tail)
    by_opcount = pl.col("in_tail").any().over("key") & _counts_calls(version)
    ordinal = pl.when(by_opcount).then("opcount").when(~pl.col("in_tail")).then("ordinal")
    by_place = pl.when(by_opcount).then("opcount").when(~pl.col("in_tail")).then("nth")
    return calls.with_columns(ordinal=ordinal, nth=pl.when("collective").then(by_place))


def _counted(membership: pl.Series, memberships: int) -> pl.Series:
    """How many of the same seat stood before each; a part at a time, for all at once takes six times the memory."""
    before = pl.repeat(0, memberships, dtype=pl.Int32, eager=True)
    counted = []
    for part in membership.to_frame("membership").iter_slices(SLICE):
        place = part.select(pl.int_range(pl.len(), dtype=pl.Int32).over("membership")).to_series()
        counted.append(place + before.gather(part["membership"]))
        last = part.with_columns(place=counted[-1]).group_by("membership").agg(pl.col("place").max() + 1)
        before.scatter(last["membership"], last["place"])
    return pl.concat(counted, rechunk=True) if counted else membership.cast(pl.Int32)


def described(calls: pl.DataFrame, call_line: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """A few calls with all that is known of them: what the line says, where it stands, and whose it is."""
    said = call_line.select("name", *ARGUMENTS, "signature", stated="nranks")[calls["call_line"]]
    whose = member.select("job", "nranks", place="rank")[calls["member"]]
    return with_line(calls.hstack(said).hstack(whose)).with_columns(nranks=pl.coalesce("stated", "nranks"))


def _once(calls: pl.DataFrame, call_line: pl.DataFrame, process: pl.DataFrame) -> pl.DataFrame:
    """The calls, without those of a second copy of a log."""
    several = process.filter(pl.col("sources").list.len() > 1).select(OWNER)
    if several.is_empty() or calls.is_empty():
        return calls
    told = [name for name in CALL_LINE if name not in ("nranks", "collective", "signature", "source", "pos")]
    lines = call_line.with_columns(line=call_line.select(told).hash_rows()).with_row_index("call_line")
    lines = lines.join(several, on=OWNER, how="semi")
    made = calls.join(lines.select("call_line", *OWNER, "source", "line"), on="call_line")
    files = made.group_by([*OWNER, "source"]).agg(print=pl.struct("line", "opcount").hash().sort_by("pos").implode())
    copies = files.sort("source").filter(pl.struct(*OWNER, "print").is_first_distinct().not_())
    copied = lines.join(copies, on=[*OWNER, "source"], how="semi")["call_line"]
    return calls.filter(pl.col("call_line").is_in(copied.implode()).not_())


def only_replayed(call_template: pl.DataFrame, replay: pl.DataFrame) -> pl.DataFrame:
    """CALL lines of processes that print no COLL line; of the others they say everything twice."""
    if replay.is_empty():
        return replay
    return replay.join(call_template.select("host", "pid").unique(), on=OWNER, how="anti")


def _seats(calls: pl.DataFrame, call_line: pl.DataFrame, member: pl.DataFrame) -> pl.Series:
    """Of each call the row of `member`: the incarnation of its pointer that was alive, the last one born before it."""
    owner = [*OWNER, "comm"]
    memberships = member.with_row_index("membership").sort("created_pos")
    first = memberships.group_by(owner).agg(pl.col("membership", "created_pos").first(), is_again=pl.len() > 1)
    of_line = call_line.select(*owner, "pos").join(first, on=owner, how="left", maintain_order="left")
    membership = of_line["membership"].gather(calls["call_line"])
    is_open = (of_line["is_again"] | (of_line["pos"] < of_line["created_pos"])).fill_null(value=False)
    if not is_open.any():
        return membership
    rows = is_open.gather(calls["call_line"]).arg_true()
    asked = of_line.select(owner)[calls["call_line"].gather(rows)].with_columns(calls["pos"].gather(rows))
    alive = asked.join_asof(
        memberships.select("membership", *owner, "created_pos"),
        left_on="pos", right_on="created_pos", by=owner, strategy="backward", check_sortedness=False,
    )["membership"]  # fmt: skip
    return membership.scatter(rows, alive)


def _counts_calls(version: pl.DataFrame) -> pl.Expr:
    """Whether opCount is the number of the call, on all members: 0 at the first one seen, one more at each other."""
    versions = releases(version["version"])
    if not versions or versions[-1] >= OPCOUNT_UNRELIABLE_FROM:
        return pl.lit(False)
    from_head = pl.col("opcount").eq(pl.col("ordinal")) | pl.col("in_tail")
    step = (pl.col("opcount") - pl.col("ordinal")).n_unique().over("member", "in_tail") == 1
    return (from_head & step & pl.col("collective")).fill_null(False).all().over("key")


@analysis(LAST_CALL, of=("call",))
def last_call(call: pl.DataFrame) -> pl.DataFrame:
    """The last collective of every rank on every communicator, and the last call of any kind (`pos`)."""
    # By one column of numbers first, for keys of several columns are copied to be compared.
    ends = call.group_by("member").agg(
        pl.col("rank_id", "key").first(), pl.col("nth", "pos").max(), lines=pl.len().cast(pl.Int64)
    )
    return (
        ends.group_by("rank_id", "key")
        .agg(pl.col("lines").sum(), pl.col("nth", "pos").max(), calls=(pl.col("nth").max() + 1).fill_null(0))
        .sort("rank_id", "pos")
    )


@analysis(DIVERGENCE, of=("call",))
def divergence(
    call: pl.DataFrame, call_line: pl.DataFrame, last_call: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    """The first place in each communicator where its members differ in name, count, datatype, op or root."""
    doubted = _doubted(call, call_line, last_call, member)
    differing = (
        doubted.select("key", "nth", call_line["signature"].gather(doubted["call_line"]))
        .group_by("key", "nth")
        .agg(is_one=pl.col("signature").min() == pl.col("signature").max())
        .filter(~pl.col("is_one"))
    )
    return differing.group_by("key").agg(pl.col("nth").min()).sort("key")


def _doubted(
    call: pl.DataFrame, call_line: pl.DataFrame, last_call: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    """The collectives that may differ from what other members made at the same place.

    To compare place by place takes long. Up to the last place that all members have come to, the calls of most
    communicators have the same checksum for each member, and then there is nothing to compare.
    """
    common = last_call.group_by("key").agg(common=pl.col("calls").min())
    reached = member.select("key").join(common, on="key", how="left", maintain_order="left")["common"]
    sums = []
    for part in call.iter_slices(SLICE):
        signature, last = call_line["signature"].gather(part["call_line"]), reached.gather(part["member"])
        check = pl.when(pl.col("nth") < last).then(signature * (2 * pl.col("nth").cast(pl.Int64) + 1))
        sums.append(part.select("member", check=check).group_by("member").agg(pl.col("check").sum()))
    total = pl.concat(sums).group_by("member").agg(pl.col("check").sum())
    total = total.with_columns(member["key"].gather(total["member"]))
    odd = total.filter(pl.col("check").n_unique().over("key") > 1)["key"].unique().implode()
    doubted = [
        part.filter(pl.col("nth").ge(reached.gather(part["member"])) | (pl.col("key").is_in(odd) & pl.col("nth").ge(0)))
        for part in call.iter_slices(SLICE)
    ]
    return pl.concat(doubted)


@analysis(MATCH, of=("call",))
def match(call: pl.DataFrame, call_line: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Sends and receives of every pair of ranks, matched in order; only pairs that do not come out even."""
    is_message = call_line["name"].is_in(_MESSAGES).gather(call["call_line"])
    messages = described(call.filter(is_message), call_line, member)
    memberships = member.select("key", peer="rank_id", root="rank").unique(["key", "root"])
    both = messages.join(memberships, on=["key", "root"]).with_columns(is_send=pl.col("name") == "Send")
    both = both.with_columns(
        sender=pl.when("is_send").then("rank_id").otherwise("peer"),
        receiver=pl.when("is_send").then("peer").otherwise("rank_id"),
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
