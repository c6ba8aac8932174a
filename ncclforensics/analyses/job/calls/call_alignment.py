"""Places of calls corrected for lines that a log lost: compare each member's sequence with that of most members.

A COLL line can be missing from a log although the rank made the call: torn by another process, dropped by a collector,
cut out by hand. The sequence of that rank then continues one place too early, and every later call looks different.
Where NCCL's `opCount` counts calls (2.3 to 2.7, 2.12 to 2.26; NCCL log lines, section 5.3) it shows which happened: it
jumps where a line was lost, and goes on by one where the rank left the call out.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, NamedTuple

import polars as pl

from ncclforensics.analyses.job.calls.lost_lines import lost_lines, recent_collectives
from ncclforensics.analyses.job.calls.member_sequences import Sequence, Shape, distinct_sequences, model_of, sequences
from ncclforensics.analyses.job.calls.repeated_lines import without_repeated
from ncclforensics.analyses.job.calls.unread_calls import first_kept
from ncclforensics.analyses.verdict.axioms import OFTEN_AHEAD
from ncclforensics.frames.columns import Category, Row, columns_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.templated import opcount_of

LARGEST_PLACE = (1 << 31) - 1  # a counter that jumps beyond it is damaged
MOST_MISSING = 8  # collectives in one gap; more is another program, not a lost line
MOST_STARTS = 200  # places tried as the beginning of a log that begins in the middle
MOST_GAPS = 64  # of one member
MOST_COPIES = 64  # collectives in one block that a collector delivered twice
ENOUGH = 2  # calls behind a gap that have to agree; one alone agrees by chance too often


class Gap(NamedTuple):
    """A place at which the log of a rank lacks collectives, or has some twice: a row of `call_gap`."""

    key: Category
    member: Annotated[int, pl.UInt32()]  # row of `member`
    rank_id: int
    nth: int  # place of the first missing collective, in the sequence of the majority
    missing: int  # collectives that stand in the majority's log and not here; negative: printed here twice
    later: int  # collectives behind the gap, all of which agree with the majority
    is_lost: bool | None  # the counter shows that lines were lost; null: they were lost, or the rank left them out


@analysis(Gap, of=("logged_divergence", "uneven_key"))
def call_gap(
    logged_divergence: pl.DataFrame,
    uneven_key: pl.DataFrame,
    logged_call: pl.DataFrame,
    repeated_call: pl.DataFrame,
    call_line: pl.DataFrame,
    call_counter: pl.DataFrame,
    member: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """Places where the log of one member lacks collectives that the others show, while it agrees with them afterwards.

    Columns as of Gap. Only communicators whose members differ or end at unequal places are looked at, and of
    these only those whose places are all known. Of logs of which only the ends are kept, these are compared.
    """
    keys = pl.concat([logged_divergence["key"], uneven_key["key"]]).unique()
    first = first_kept(logged_call, source)
    # There, places are taken from the counter.
    partly_read = logged_call.select(pl.col("key").filter("in_tail").unique()).to_series()
    partly_read = partly_read.filter(~partly_read.is_in(first["key"].implode()))
    keys = keys.filter(~keys.is_in(partly_read.implode()))
    if keys.is_empty():
        return pl.DataFrame(schema=columns_of(Gap))
    place = pl.int_range(pl.len()).over("rank_id", order_by="created_pos")
    shapes = member.select("key", "rank_id", "nranks", place=place, has_init=pl.col("line").is_not_null())
    shapes = shapes.with_row_index("member").join(first, on="key", how="left", maintain_order="left")
    # Members of equal communicators are compared: all begin where the last of them does.
    shapes = shapes.with_columns(pl.col("first").max().over("nranks", "place").fill_null(0))
    odd = shapes.filter(pl.col("key").is_in(keys.implode())).select("nranks", "place").unique()
    compared = shapes.join(odd, on=["nranks", "place"], how="semi").filter(~pl.col("key").is_in(partly_read.implode()))
    columns = ("member", "call_line", "pos", "ordinal", "nth", opcount_of(logged_call, call_counter))
    calls = without_repeated(logged_call.select(columns), repeated_call)
    first_of = dict(compared.select("key", "first").iter_rows())
    if first.height:
        calls = calls.filter((pl.col("nth") >= shapes["first"].gather(calls["member"])).fill_null(True))
        compared = compared.with_columns(pl.col("has_init") | (pl.col("first") > 0))
    of_key: dict[str, list[Sequence]] = defaultdict(list)
    for sequence in sequences(calls, call_line, compared.filter(pl.col("key").is_in(keys.implode()))):
        of_key[sequence.key].append(sequence)
    members: list[Sequence] | None = None  # of communicators of equal shape, too
    models: dict[frozenset[Shape], Sequence | None] = {}  # of all communicators of these shapes
    rows: list[Row] = []
    aligned: list[tuple[list[Sequence], Sequence]] = []
    for key in keys:
        own = of_key[key]
        if starts := _starts(own):
            rows += starts
            continue
        model = model_of(own)
        if model is None:
            shapes_of_key = frozenset(sequence.shape for sequence in own)
            if shapes_of_key not in models:
                members = sequences(calls, call_line, compared) if members is None else members
                models[shapes_of_key] = model_of([other for other in members if other.shape in shapes_of_key])
            model = models[shapes_of_key]
        if model is None:
            model = next((member for member in distinct_sequences(own).values() if _counts_from_zero(member)), None)
        if model is not None:
            aligned.append((own, model))
    gaps = [gap for own, model in aligned for gap in _all_gaps(own, model, OFTEN_AHEAD)]
    if any(gap["missing"] < 0 for gap in gaps):  # this collector delivers lines twice: fewer calls show it elsewhere
        gaps = [gap for own, model in aligned for gap in _all_gaps(own, model, ENOUGH)]
    rows += gaps
    # What is missing where the ends begin is missing before them. The rank called it, for it went on like the others.
    placed = [
        {**row, "nth": row["nth"] + start, "is_lost": row["is_lost"] or (True if start and not row["nth"] else None)}
        for row in rows
        for start in (first_of[row["key"]],)
    ]
    found = pl.DataFrame(placed, schema=columns_of(Gap))
    explained = pl.concat([found["key"], logged_divergence["key"]])
    lost = _lost_by_order(logged_call, member, keys.filter(~keys.is_in(explained.unique().implode())))
    return pl.concat([found, lost])


def _lost_by_order(calls: pl.DataFrame, member: pl.DataFrame, keys: pl.Series) -> pl.DataFrame:
    """Gaps on these communicators that only the calls of their ranks on others show; columns as of Gap."""
    is_of_keys = member["key"].is_in(keys.implode())
    is_compared = member["rank_id"].is_in(member["rank_id"].filter(is_of_keys).unique().implode())
    if not is_compared.all():
        calls = calls.filter(is_compared.gather(calls["member"]))
    lost = lost_lines(recent_collectives(calls, member), member).filter(pl.col("key").is_in(keys.implode()))
    later, place = pl.col("end") - pl.col("first") + 1, pl.col("first") + pl.col("lost")
    lost = lost.with_columns(nth=place, missing="lost", later=later, is_lost=pl.lit(True))
    return lost.select(pl.col(name).cast(dtype) for name, dtype in columns_of(Gap).items())


def corrected(calls: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """The calls without copies, `nth` and `ordinal` shifted behind every gap; the same frame if there is no gap."""
    if gaps.is_empty():
        return calls
    # A gap is given in the majority's numbering: minus all that is missing before it, it is the place in this log.
    before = gaps.sort("member", "nth", maintain_order=True)
    before = before.with_columns(shift=pl.col("missing").cum_sum().over("member"))
    place = pl.col("nth") - pl.col("shift") + pl.col("missing")
    steps = before.select("member", "shift", place=place, place_after=place - pl.col("missing").clip(upper_bound=0))
    of_members = pl.col("member").is_in(gaps["member"].implode())
    odd = calls.with_row_index("row").filter(of_members)
    collectives = odd.filter(pl.col("nth").is_not_null()).join_asof(
        steps.sort("place").with_columns(pl.col("place").cast(pl.Int32)),
        left_on="nth", right_on="place", by="member", strategy="backward", check_sortedness=False,
    )  # fmt: skip
    shift = odd.join(collectives.select("row", "shift"), on="row", how="left", maintain_order="left")
    shift = shift.with_columns(pl.col("shift").forward_fill().over("member").fill_null(0).cast(pl.Int32))
    zero = pl.repeat(0, calls.height, dtype=pl.Int32, eager=True)
    by_row = zero.scatter(shift["row"], shift["shift"])
    copies = collectives.filter(pl.col("nth") < pl.col("place_after"))["row"]
    corrected_calls = calls.with_columns(nth=pl.col("nth") + by_row, ordinal=pl.col("ordinal") + by_row)
    if copies.is_empty():
        return corrected_calls
    return corrected_calls.with_row_index("row").filter(~pl.col("row").is_in(copies.implode())).drop("row")


def _starts(members: list[Sequence]) -> list[Row]:
    """Gaps at the beginning of members whose logs begin in the middle; nothing where all begin at the same call.

    The counter tells where a log begins if it counts the calls of every member; else the calls themselves do: at which
    call of the majority's log another has to begin, to agree with it and to end nearest to it. Where a log cannot be
    placed, none is.
    """
    if all(member.has_init for member in members):
        return []
    distinct = distinct_sequences(members)
    if all(_counts(member, 0, member.height) for member in distinct.values()):
        offsets = [int(member.opcount[0]) for member in members]
    else:
        model = model_of(members)
        longest = max(members, key=lambda member: member.height) if model is None else model
        found = {content: _offset(member, longest) for content, member in distinct.items()}
        if None in found.values():
            return []
        offsets = [found[member.content] or 0 for member in members]
    if max(offsets) - min(offsets) > LARGEST_PLACE:
        return []
    return [
        {**member.identity, "nth": 0, "missing": offset - min(offsets), "later": member.height, "is_lost": True}
        for member, offset in zip(members, offsets, strict=True)
        if offset > min(offsets)
    ]


def _offset(member: Sequence, longest: Sequence) -> int | None:
    """At which place of another log this one begins (negative: before it), so that both agree where they overlap.

    Logs that agree in their first call begin together; None where no place has an overlap long enough to tell.
    """
    if _first_difference(member, longest) != 0:
        return 0
    after = longest.signature.eq(member.signature[0]).arg_true().to_list()
    before = [-place for place in member.signature.eq(longest.signature[0]).arg_true().to_list()]

    def overlap(offset: int) -> int:
        return min(member.height, longest.height - offset) - max(0, -offset)

    fitting = [
        offset
        for offset in {*after[-MOST_STARTS:], *before[-MOST_STARTS:]}
        if overlap(offset) * 2 >= min(member.height, longest.height)
        and _first_difference(member, longest, max(0, -offset), offset) is None
    ]
    return min(fitting, key=lambda offset: abs(offset + member.height - longest.height), default=None)


def _first_difference(calls: Sequence, other_calls: Sequence, start: int = 0, shift: int = 0) -> int | None:
    """The first position from `start` at which `calls` and `other_calls`, shifted by `shift`, differ; or None."""
    length = min(calls.height, other_calls.height - shift) - start
    if length <= 0:
        return None
    differs = calls.signature.slice(start, length) != other_calls.signature.slice(start + shift, length)
    return start + int(differs.arg_max() or 0) if differs.any() else None


def _all_gaps(members: list[Sequence], model: Sequence, most_ahead: int) -> list[Row]:
    """The gaps of all members; those of equal content are looked for once."""
    gaps = {content: _gaps_of(member, model, most_ahead) for content, member in distinct_sequences(members).items()}
    return [{**gap, **member.identity} for member in members for gap in gaps[member.content]]


def _gaps_of(member: Sequence, model: Sequence, most_ahead: int) -> list[Row]:
    found: list[Row] = []
    start = shift = 0
    is_lost: bool | None
    while len(found) < MOST_GAPS:
        place = _first_difference(member, model, start, shift)
        jump = _first_jump(member, model, start, shift)
        if place is None and jump is None:
            break
        if jump is not None and (place is None or jump[0] <= place):
            (place, missing), is_lost = jump, True
        else:
            assert place is not None
            missing = _missing(member, model, place, shift)
            copies = _copies(member, model, place, shift, most_ahead)
            if copies and (not missing or _is_nearer(member, model, shift, -copies, missing)):
                place, missing, is_lost = place, -copies, True
            elif missing:
                is_lost = _is_lost(member, model, place, shift, missing)
            else:
                break
        if is_lost is False:
            break  # this rank left the call out; from there on it runs another program
        found.append(
            {
                "nth": place + shift,
                "missing": missing,
                "later": member.height - place,
                "is_lost": is_lost,
            }
        )
        start, shift = place + max(0, -missing), shift + missing
    return found


def _missing(member: Sequence, model: Sequence, place: int, shift: int) -> int:
    """How many collectives of the model are left out at a place, so that all that follows agrees; 0 if no number does.

    Of a few calls at the end of a log, as many have to agree: fewer are found somewhere in any other log, and those
    behind the end of the model agree with nothing. What follows may lack further lines: the next gap has to lie ENOUGH
    calls behind this one.
    """
    for missing in range(1, MOST_MISSING + 1):
        if place + shift + missing > model.height - 1 and member.height - place > 0:
            return 0
        following = _first_difference(member, model, place, shift + missing)
        end = min(member.height, model.height - shift - missing)
        agreeing = (end if following is None else following) - place
        if (following is None and agreeing >= missing) or agreeing >= ENOUGH * 4:
            return missing
    return 0


def _copies(member: Sequence, model: Sequence, place: int, shift: int, most_ahead: int) -> int:
    """How many collectives from a place on repeat those just before them, counter included; 0 if none do.

    What follows has to agree with the model for more than `most_ahead` collectives.
    """
    for copies in range(1, min(MOST_COPIES, place) + 1):
        following = _first_difference(member, model, place + copies, shift - copies)
        agreeing = (member.height if following is None else following) - place - copies
        if agreeing <= most_ahead or place + copies + shift - copies > model.height:
            continue
        if _is_repeated(member, place, copies):
            return copies
    return 0


def _is_repeated(member: Sequence, place: int, length: int) -> bool:
    """Whether so many lines from a place on are equal to those just before them, counter included."""
    return place >= length and all(
        column.slice(place, length).equals(column.slice(place - length, length))
        for column in (member.signature, member.opcount)
    )


def _raises_counter(member: Sequence, place: int) -> bool:
    """Whether some call equal to the one at this place raised the counter of this member by one."""
    raised = member.opcount.diff().shift(-1) == 1
    return bool((raised & (member.signature == member.signature[place])).any())


def _is_nearer(member: Sequence, model: Sequence, shift: int, first: int, second: int) -> bool:
    """Whether a shift by `first` lets both logs end nearer to each other than one by `second`."""
    ahead = member.height + shift - model.height
    return abs(ahead + first) < abs(ahead + second)


def _counts(member: Sequence, start: int, stop: int) -> bool:
    """Whether the counter goes up by one at every collective of this stretch."""
    steps = member.opcount.slice(start, stop - start).diff().drop_nulls()
    return steps.len() > 0 and bool((steps == 1).all())


def _counts_from_zero(member: Sequence) -> bool:
    """Whether the counter of this log shows that no collective is missing: 0 at the first, one more at each other."""
    return bool(member.opcount[0] == 0 and _counts(member, 0, member.height))


def _is_lost(member: Sequence, model: Sequence, place: int, shift: int, missing: int) -> bool | None:
    """Whether the counter jumps at the gap as the model's does; None where it does not count calls there."""
    first = max(place - 1, 0)
    if not _counts(model, first + shift, place + shift + missing + 1):
        return None
    step = member.opcount[place] - (member.opcount[place - 1] if place else -1)
    return True if step == missing + 1 else False if step == 1 else None


def _first_jump(member: Sequence, model: Sequence, start: int, shift: int) -> tuple[int, int] | None:
    """The first place whose counter is ahead of the model's at the same place, and by how much; None if nowhere.

    Only where the counter counts every collective in the model and goes up by one elsewhere in this member. It is
    behind, and the number negative, where the lines repeat those just before them. Two equal lines in a row may be two
    calls that did not raise the counter (without work for the network, from 2.27; or it was raised late): they are a
    copy only if such calls raise it in this member, and both logs end nearer to each other without one of them.
    """
    length = min(member.height, model.height - shift) - start
    if length <= 0 or member.opcount.null_count() or model.opcount.null_count():
        return None
    if not _counts_from_zero(model):
        return None
    ahead = member.opcount.slice(start, length) - model.opcount.slice(start + shift, length)
    if not (ahead != 0).any():
        return None
    place = int((ahead != 0).arg_max() or 0)
    missing = int(ahead[place])
    if missing < 0 and _is_repeated(member, start + place, -missing):
        is_copy = missing < -1 or (
            _raises_counter(member, start + place) and _is_nearer(member, model, shift, missing, 0)
        )
        return (start + place, missing) if is_copy else None
    rest = member.opcount.slice(start + place).diff().drop_nulls()
    is_one_jump = 0 < missing <= LARGEST_PLACE - start - place - shift and bool((rest >= 1).all())
    return (start + place, missing) if is_one_jump else None
