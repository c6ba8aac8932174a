"""Number the calls of every rank on every communicator, match sends and receives, and find where members diverge.

`opCount` is no call counter in most versions (formats: NCCL's collective lines, section 5.3), so calls are numbered
here: from 0 at the communicator's Init START, or from the first call in the logs. If only the two ends of a file were
read, the number of a call in the tail is its `opCount`, provided that it has counted every call on this communicator;
else the calls between the windows are counted, where their lines are all that names the communicator there.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.calls.call_alignment import corrected
from ncclforensics.analyses.job.calls.repeated_lines import without_repeated
from ncclforensics.analyses.job.calls.teardown_barriers import without_teardown_barriers
from ncclforensics.analyses.job.calls.unread_calls import (
    attributed,
    numbered_after_unread,
    unread_before,
    with_unread_ends,
    without_unplaced,
)
from ncclforensics.data.names import ELEMENT_BYTES
from ncclforensics.data.versions import Version, count_every_call, releases
from ncclforensics.frames.columns import OWNER, PROCESS, with_line
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.templated import SLICE_ROWS
from ncclforensics.parsing.calls_between import POINT_TO_POINT
from ncclforensics.parsing.templates import distinct_rows

ARGUMENTS = ("count", "datatype", "op", "root")
_PRINTED_IN_BYTES = pl.Series(["AllGather", "Broadcast"], dtype=pl.Categorical()).implode()
PRINTS_ELEMENTS_FROM = (2, 22)
USER_OP = 5  # numbers from here on are of reductions that the process made itself (ncclRedOpCreatePreMulSum)

CALL_LINE = {
    **PROCESS,
    "comm": pl.Categorical(),
    "name": pl.Categorical(),
    "count": pl.Int64(),
    "datatype": pl.Int32(),
    "op": pl.Int32(),
    "root": pl.Int32(),  # the peer, for Send and Recv
    "nranks": pl.Int32(),
    "collective": pl.Boolean(),
    "signature": pl.Int64(),  # equal for calls of equal name and arguments; the peer of a message is ignored
    "source": pl.Int32(),
    "pos": pl.Int64(),  # of the first such line
}

CALL = {
    "rank_id": pl.Int32(),
    "key": pl.Categorical(),
    "member": pl.UInt32(),  # row of `member`: rank and communicator
    "call_line": pl.UInt32(),  # row of `call_line`: name and arguments
    "ordinal": pl.Int32(),  # among all calls of this rank on this communicator; null if unread lines hide it
    "nth": pl.Int32(),  # among its collectives only; null for Send and Recv
    "in_tail": pl.Boolean(),  # in the tail window of a file that was not read whole
    "pos": pl.Int64(),
}

LAST_CALL = {
    "rank_id": pl.Int32(),
    "key": pl.Categorical(),
    "calls": pl.Int32(),  # collectives made on this communicator
    "lines": pl.Int64(),  # call lines that were read, of any kind
    "nth": pl.Int32(),
    "pos": pl.Int64(),
}

DIVERGENCE = {
    "key": pl.Categorical(),
    "nth": pl.Int32(),  # the first collective in which members of the communicator differ
}


@analysis(CALL_LINE, of=("call_template", "replay", "journal_only_call"))
def call_line(
    call_template: pl.DataFrame, replay: pl.DataFrame, journal_only_call: pl.DataFrame, version: pl.DataFrame
) -> pl.DataFrame:
    """The distinct calls: of COLL lines, of CALL lines of processes without COLL lines, and of journals."""
    columns = [*OWNER, "comm", "name", *ARGUMENTS, "nranks", "source", "pos"]
    others = [lines for lines, _ in _other_calls(call_template, replay, journal_only_call)]
    without_nranks = [rows.with_columns(nranks=pl.lit(None, dtype=pl.Int32)) for rows in others]
    lines = pl.concat([rows.rename({"called": "name"}).select(columns) for rows in (call_template, *without_nranks)])
    lines = lines.with_columns(collective=pl.col("name").is_in(POINT_TO_POINT).not_())
    return lines.with_columns(signature=_signatures(lines, releases(version["version"])))


def _signatures(lines: pl.DataFrame, versions: list[Version]) -> pl.Series:
    """Numbers that are equal for calls that fit together (formats: NCCL's collective lines, sections 5.1 and 5.4).

    The number of a user-made reduction is local to its process. Up to 2.21 AllGather and Broadcast are printed in
    bytes: in a job of several releases their size in bytes is compared.
    """
    count, datatype = pl.col("count"), pl.col("datatype")
    if versions and versions[0] < PRINTS_ELEMENTS_FROM <= versions[-1]:
        is_in_bytes = pl.col("name").is_in(_PRINTED_IN_BYTES)
        size = datatype.replace_strict(dict(enumerate(ELEMENT_BYTES)), default=1, return_dtype=pl.Int64)
        count = pl.when(is_in_bytes).then(count * size).otherwise(count)
        datatype = pl.when(is_in_bytes).then(0).otherwise(datatype)
    op = pl.when(pl.col("op").fill_null(USER_OP) >= USER_OP).then(USER_OP).otherwise("op")
    peer = pl.when("collective").then("root").otherwise(-1)
    return lines.select("name", count, datatype, op=op, peer=peer).hash_rows().reinterpret(signed=True)


def _other_calls(
    call_template: pl.DataFrame, replay: pl.DataFrame, journal_only_call: pl.DataFrame
) -> list[tuple[pl.DataFrame, pl.DataFrame]]:
    """Calls that are not COLL lines: the distinct lines, and of every call its `pos` and the number of its line."""
    shared = [*OWNER, "comm", "called", *ARGUMENTS, "source"]
    others = []
    for rows in (replay_only_calls(call_template, replay), journal_only_call):
        if rows.height:
            lines, line = distinct_rows(rows.select(*shared, "pos"), shared)
            others.append((lines, rows.select("pos", call_line=line)))
    return others


@analysis(CALL, of=("call_line",), is_step=True)
def logged_call(
    call_line: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    replay: pl.DataFrame,
    journal_only_call: pl.DataFrame,
    member: pl.DataFrame,
    process: pl.DataFrame,
    source: pl.DataFrame,
    version: pl.DataFrame,
    calls_between: pl.DataFrame,
) -> pl.DataFrame:
    """Every call with its rank and its number on its communicator, counted as the logs show it."""
    occurrences = [call_occurrence.select("pos", "opcount", call_line="call_template")]
    offset = call_template.height
    for lines, others in _other_calls(call_template, replay, journal_only_call):
        line_number = pl.col("call_line") + pl.lit(offset, dtype=pl.UInt32)
        occurrences.append(others.select("pos", opcount=pl.lit(None, dtype=pl.Int64), call_line=line_number))
        offset += lines.height
    calls = _without_copies(pl.concat(occurrences) if len(occurrences) > 1 else occurrences[0], call_line, process)
    membership = _member_of_calls(calls, call_line, member)
    if membership.null_count():
        calls, membership = calls.filter(membership.is_not_null()), membership.drop_nulls()
    partly_read = source.filter(~pl.col("is_whole"))["source"].implode()
    # One expression after another: evaluated in parallel, their temporary columns would be in memory together.
    calls = calls.with_columns(
        member=membership, key=member["key"].gather(membership), rank_id=member["rank_id"].gather(membership)
    )
    ordinals = _count_within(membership, member.height)
    collective = call_line["collective"].gather(calls["call_line"])
    nths = ordinals
    if not collective.all():
        rows = collective.arg_true()
        none = pl.repeat(None, calls.height, dtype=pl.Int32, eager=True)
        nths = none.scatter(rows, _count_within(membership.gather(rows), member.height))
    calls = calls.with_columns(ordinal=ordinals, nth=nths, in_tail=pl.lit(value=False))
    if partly_read[0].is_empty():
        return calls
    line = with_line(calls.select("pos"))
    in_tail = line.select(pl.col("source").is_in(partly_read) & (pl.col("line") < 0)).to_series()
    unread = unread_before(calls, attributed(calls_between, member))
    calls = calls.with_columns(collective=collective, in_tail=in_tail.scatter(unread["row"], True))
    use_opcount = pl.col("in_tail").any().over("key") & _opcount_counts_calls(version)
    ordinal = pl.when(use_opcount).then("opcount").when(~pl.col("in_tail")).then("ordinal")
    nth_by_position = pl.when(use_opcount).then("opcount").when(~pl.col("in_tail")).then("nth")
    numbered = calls.with_columns(ordinal=ordinal, nth=pl.when("collective").then(nth_by_position))
    closed = source.filter(pl.col("is_closed") & ~pl.col("is_whole"))["source"].implode()
    if unread.is_empty() and closed[0].is_empty():
        return numbered
    is_parsed = line.select(pl.col("source").is_in(closed)).to_series()
    return numbered_after_unread(calls, numbered, is_parsed, unread, member)


def _count_within(membership: pl.Series, memberships: int) -> pl.Series:
    """Number the rows of each membership from 0; in slices, which takes a sixth of the memory."""
    before = pl.repeat(0, memberships, dtype=pl.Int32, eager=True)
    ordinals = []
    for part in membership.to_frame("membership").iter_slices(SLICE_ROWS):
        place = part.select(pl.int_range(pl.len(), dtype=pl.Int32).over("membership")).to_series()
        ordinals.append(place + before.gather(part["membership"]))
        last = part.with_columns(place=ordinals[-1]).group_by("membership").agg(pl.col("place").max() + 1)
        before.scatter(last["membership"], last["place"])
    return pl.concat(ordinals, rechunk=True) if ordinals else membership.cast(pl.Int32)


def describe_calls(calls: pl.DataFrame, call_line: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """Join a few calls with their name and arguments, their source and line, and their rank and job.

    `root` is a number within the communicator, `root_rank_id` the rank that it means, where that one is known.
    """
    line_columns = call_line.select("name", *ARGUMENTS, "signature", stated="nranks")[calls["call_line"]]
    member_columns = member.select("job", "nranks", place="rank")[calls["member"]]
    members = member.filter(pl.col("key").is_in(calls["key"].unique().implode()))
    roots = members.select("key", root="rank", root_rank_id="rank_id").unique(["key", "root"])
    return (
        with_line(calls.hstack(line_columns).hstack(member_columns))
        .with_columns(nranks=pl.coalesce("stated", "nranks"))
        .join(roots, on=["key", "root"], how="left", maintain_order="left")
    )


def _without_copies(calls: pl.DataFrame, call_line: pl.DataFrame, process: pl.DataFrame) -> pl.DataFrame:
    """Remove the calls of second copies of a log."""
    in_several_files = process.filter(pl.col("sources").list.len() > 1).select(OWNER)
    if in_several_files.is_empty() or calls.is_empty():
        return calls
    columns = [name for name in CALL_LINE if name not in ("nranks", "collective", "signature", "source", "pos")]
    lines = call_line.with_columns(line=call_line.select(columns).hash_rows()).with_row_index("call_line")
    lines = lines.join(in_several_files, on=OWNER, how="semi")
    occurrences = calls.join(lines.select("call_line", *OWNER, "source", "line"), on="call_line")
    files = occurrences.group_by([*OWNER, "source"]).agg(
        print=pl.struct("line", "opcount").hash().sort_by("pos").implode()
    )
    copied_files = files.sort("source").filter(pl.struct(*OWNER, "print").is_first_distinct().not_())
    copied_lines = lines.join(copied_files, on=[*OWNER, "source"], how="semi")["call_line"]
    return calls.filter(pl.col("call_line").is_in(copied_lines.implode()).not_())


def replay_only_calls(call_template: pl.DataFrame, replay: pl.DataFrame) -> pl.DataFrame:
    """Return the CALL lines of processes without COLL lines; for other processes they repeat the COLL lines."""
    if replay.is_empty():
        return replay
    return replay.join(call_template.select("host", "pid").unique(), on=OWNER, how="anti")


def _member_of_calls(calls: pl.DataFrame, call_line: pl.DataFrame, member: pl.DataFrame) -> pl.Series:
    """Return the row of `member` of each call: the last communicator of its pointer that was created before it."""
    owner = [*OWNER, "comm"]
    memberships = member.select(*owner, "created_pos").with_row_index("membership").sort("created_pos")
    first_member = memberships.group_by(owner).agg(pl.col("membership", "created_pos").first(), is_again=pl.len() > 1)
    member_of_line = call_line.select(*owner, "pos").join(first_member, on=owner, how="left", maintain_order="left")
    membership = member_of_line["membership"].gather(calls["call_line"])
    is_ambiguous = (member_of_line["is_again"] | (member_of_line["pos"] < member_of_line["created_pos"])).fill_null(
        value=False
    )
    if not is_ambiguous.any():
        return membership
    rows = is_ambiguous.gather(calls["call_line"]).arg_true()
    open_calls = member_of_line.select(owner)[calls["call_line"].gather(rows)].with_columns(calls["pos"].gather(rows))
    current_member = open_calls.join_asof(
        memberships.select("membership", *owner, "created_pos"),
        left_on="pos", right_on="created_pos", by=owner, strategy="backward", check_sortedness=False,
    )["membership"]  # fmt: skip
    return membership.scatter(rows, current_member)


def _opcount_counts_calls(version: pl.DataFrame) -> pl.Expr:
    """Whether opCount numbers the calls of all members: 0 at the first call, one more at each later call."""
    versions = releases(version["version"])
    if not count_every_call(versions):
        return pl.lit(False)
    from_head = pl.col("opcount").eq(pl.col("ordinal")) | pl.col("in_tail")
    step = (pl.col("opcount") - pl.col("ordinal")).n_unique().over("member", "in_tail") == 1
    return (from_head & step & pl.col("collective")).fill_null(False).all().over("key")


@analysis(CALL, of=("logged_call",))
def call(
    logged_call: pl.DataFrame,
    repeated_call: pl.DataFrame,
    call_gap: pl.DataFrame,
    call_line: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """Every call with its rank and its place on its communicator, without repeated lines, and lost lines counted."""
    calls = corrected(without_repeated(logged_call, repeated_call), call_gap)
    return without_unplaced(calls, call_line, source)


@analysis(LAST_CALL, of=("logged_call",), is_step=True)
def logged_end(logged_call: pl.DataFrame, calls_between: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """The last collective of every rank on every communicator as the logs show it; columns as in `last_call`."""
    return _last_calls(logged_call, calls_between, member)


@analysis({"key": pl.Categorical()}, of=("logged_end",), is_step=True)
def uneven_key(logged_end: pl.DataFrame) -> pl.DataFrame:
    """Communicators whose members show unequal numbers of collectives."""
    ends = logged_end.group_by("key").agg(is_even=pl.col("calls").min() == pl.col("calls").max())
    return ends.filter(~pl.col("is_even")).select("key")


@analysis({"key": pl.Categorical()}, of=("logged_end",), is_step=True)
def uneven_lines(logged_end: pl.DataFrame) -> pl.DataFrame:
    """Communicators whose members show unequal numbers of calls, messages counted."""
    ends = logged_end.group_by("key").agg(is_even=pl.col("lines").min() == pl.col("lines").max())
    return ends.filter(~pl.col("is_even")).select("key")


@analysis(LAST_CALL, of=("call",))
def last_call(
    call: pl.DataFrame,
    logged_end: pl.DataFrame,
    repeated_call: pl.DataFrame,
    call_gap: pl.DataFrame,
    calls_between: pl.DataFrame,
    member: pl.DataFrame,
) -> pl.DataFrame:
    """The last collective of every rank on every communicator, and the last call of any kind (`pos`)."""
    is_as_logged = _are_as_logged(call, logged_end, call_gap, repeated_call)
    return logged_end if is_as_logged else _last_calls(call, calls_between, member)


def _are_as_logged(
    call: pl.DataFrame, logged_end: pl.DataFrame, call_gap: pl.DataFrame, repeated_call: pl.DataFrame
) -> bool:
    """Whether no call was moved or left out."""
    return call_gap.is_empty() and repeated_call.is_empty() and call.height == logged_end["lines"].sum()


def _last_calls(calls: pl.DataFrame, calls_between: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    # Group by a single integer column first: keys of several columns would be copied.
    last_calls = calls.group_by("member").agg(
        pl.col("rank_id", "key").first(), pl.col("nth", "pos").max(),
        lines=pl.len().cast(pl.Int64), calls=(pl.col("nth").max() + 1).fill_null(0),
    )  # fmt: skip
    if calls_between.height:
        kept = calls.group_by("member").agg(kept=pl.col("nth").count())
        last_calls = with_unread_ends(last_calls, kept, attributed(calls_between, member), member)
    return (
        last_calls.group_by("rank_id", "key")
        .agg(pl.col("lines").sum(), pl.col("nth", "pos", "calls").max())
        .sort("rank_id", "pos")
    )


@analysis(DIVERGENCE, of=("logged_call",), is_step=True)
def logged_divergence(
    logged_call: pl.DataFrame, call_line: pl.DataFrame, logged_end: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    """The first place in each communicator where its members differ, as the logs show it; columns as `divergence`."""
    return _differences(logged_call, call_line, logged_end, member)


@analysis(DIVERGENCE, of=("call",))
def divergence(
    call: pl.DataFrame,
    call_line: pl.DataFrame,
    last_call: pl.DataFrame,
    member: pl.DataFrame,
    logged_divergence: pl.DataFrame,
    logged_end: pl.DataFrame,
    repeated_call: pl.DataFrame,
    call_gap: pl.DataFrame,
    process_exit: pl.DataFrame,
) -> pl.DataFrame:
    """The first collective of each communicator in which its members differ in name, count, datatype, op or root."""
    is_as_logged = _are_as_logged(call, logged_end, call_gap, repeated_call)
    differences = logged_divergence if is_as_logged else _differences(call, call_line, last_call, member)
    return without_teardown_barriers(differences, call, call_line, last_call, process_exit)


def _differences(
    calls: pl.DataFrame, call_line: pl.DataFrame, last_calls: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    candidates = _possibly_differing(calls, call_line, last_calls, member)
    differing = (
        candidates.select("key", "nth", call_line["signature"].gather(candidates["call_line"]))
        .group_by("key", "nth")
        .agg(is_equal=pl.col("signature").min() == pl.col("signature").max())
        .filter(~pl.col("is_equal"))
    )
    return differing.group_by("key").agg(pl.col("nth").min()).sort("key")


def _possibly_differing(
    call: pl.DataFrame, call_line: pl.DataFrame, last_call: pl.DataFrame, member: pl.DataFrame
) -> pl.DataFrame:
    """Return the collectives that may differ from the other members' at the same number.

    Comparing call by call is slow. Up to the last collective that all members have made, the calls of most
    communicators have the same checksum on each member and need no comparison. Its weights are those of a hash: with
    weights that grow by a step, calls that changed places and others that did so in the other direction cancel out.
    """
    common = last_call.group_by("key").agg(common=pl.col("calls").min())
    reached = member.select("key").join(common, on="key", how="left", maintain_order="left")["common"]
    sums = []
    for part in call.iter_slices(SLICE_ROWS):
        signature, last = call_line["signature"].gather(part["call_line"]), reached.gather(part["member"])
        weight = pl.col("nth").hash().reinterpret(signed=True)
        check = pl.when(pl.col("nth") < last).then(signature * weight)
        sums.append(part.select("member", check=check).group_by("member").agg(pl.col("check").sum()))
    total = pl.concat(sums).group_by("member").agg(pl.col("check").sum())
    total = total.with_columns(member["key"].gather(total["member"]))
    odd = total.filter(pl.col("check").n_unique().over("key") > 1)["key"].unique().implode()
    candidates = [
        part.filter(pl.col("nth").ge(reached.gather(part["member"])) | (pl.col("key").is_in(odd) & pl.col("nth").ge(0)))
        for part in call.iter_slices(SLICE_ROWS)
    ]
    return pl.concat(candidates)
