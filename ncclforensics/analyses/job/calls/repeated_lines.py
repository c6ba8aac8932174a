"""Calls whose lines a log collector delivered twice, or in another order than the process printed them.

`opCount` never goes back on one communicator of one process (NCCL log lines, section 5.3). Where it does, and the lines
from there on are equal to earlier ones, the collector sent a block of lines again; the rank did not call again. Where
they are not equal, lines changed places.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from ncclforensics.analyses.job.calls.line_faults import DOUBLED
from ncclforensics.data.versions import count_every_call, releases
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.templated import SLICE_ROWS, opcount_of

REPEATED_CALL = {
    "pos": pl.Int64(),
    "moves_to": pl.Int64(),  # the position of the line in whose place it belongs; null: it was delivered twice
}

MOST_DOUBLED = 0.3  # of the lines of a rank
MOST_BLOCKS = 64  # of one rank
MOST_MOVED = 64  # lines by which a line is out of its place; more is another run of the same process
LONGEST_DISTANCE = 1 << 14  # lines of calls between a block and its copy


@analysis(REPEATED_CALL, of=("logged_divergence", "uneven_key", "uneven_lines"), is_step=True)
def repeated_call(
    logged_divergence: pl.DataFrame,
    uneven_key: pl.DataFrame,
    uneven_lines: pl.DataFrame,
    logged_call: pl.DataFrame,
    call_counter: pl.DataFrame,
    line_fault: pl.DataFrame,
    call_line: pl.DataFrame,
    version: pl.DataFrame,
) -> pl.DataFrame:
    """Calls whose line stands in the log twice, or in the wrong place; columns as in REPEATED_CALL.

    Only ranks of communicators whose members differ, or show unequal numbers of calls, are looked at.
    """
    keys = pl.concat([logged_divergence["key"], uneven_key["key"], uneven_lines["key"]]).unique().implode()
    rank_id = pl.col("rank_id")
    partly_read = logged_call.select(rank_id.filter("in_tail").unique()).to_series().implode()
    is_uneven = pl.col("key").is_in(keys) & ~rank_id.is_in(partly_read)
    rank_ids = logged_call.select(rank_id.filter(is_uneven).unique()).to_series()
    calls = logged_call.select("rank_id", "key", "member", "call_line", "pos", opcount_of(logged_call, call_counter))
    # Without a counter are lines that print none, and those whose counter is beyond 63 bits.
    is_compared = rank_id.is_in(rank_ids.implode()) & pl.col("opcount").is_not_null()
    has_copies = bool((line_fault["kind"] == DOUBLED).any())
    is_counter = count_every_call(releases(version["version"]))
    compared = calls.filter(is_compared) if has_copies or is_counter else calls.clear()
    doubled = _next_to_each_other(compared)
    if doubled.height and not has_copies:
        doubled = _of_single_ranks(doubled, compared, call_line)
    if doubled.height:
        calls = calls.join(doubled, on="pos", how="anti", maintain_order="left")
    back = _ranks_that_count_back(part.filter(is_compared) for part in calls.iter_slices(SLICE_ROWS))
    odd = calls.filter(is_compared & rank_id.is_in(back.implode())) if back.len() else calls.clear()
    rows = [row for calls_of_rank in odd.partition_by("rank_id") for row in _repeated_of(calls_of_rank)]
    return pl.concat([doubled, pl.DataFrame(rows, schema=REPEATED_CALL, orient="row")])


def _ranks_that_count_back(parts: Iterable[pl.DataFrame]) -> pl.Series:
    """The ranks with a communicator whose counter falls. `parts`: calls in their order, a few at a time."""
    opcount = pl.col("opcount")
    ends = [
        part.group_by("member").agg(
            pl.col("rank_id").first(), first=opcount.first(), last=opcount.last(), is_back=(opcount.diff() < 0).any()
        )
        for part in parts
    ]
    is_back = pl.col("is_back").any() | (pl.col("first") < pl.col("last").shift()).any()
    of_members = pl.concat(ends).group_by("member").agg(pl.col("rank_id").first(), is_back=is_back) if ends else None
    return pl.Series(dtype=pl.Int32) if of_members is None else of_members.filter("is_back")["rank_id"].unique()


def _next_to_each_other(calls: pl.DataFrame) -> pl.DataFrame:
    """Lines equal to the one just before them, of logs of which other lines show that some came twice.

    A program that makes equal calls again and again prints more of these than a collector delivers twice.
    """
    found = calls if calls["pos"].is_sorted() else calls.sort("pos")  # most often in order, and sorting copies them
    is_equal = pl.all_horizontal(pl.col(name).diff() == 0 for name in ("member", "call_line", "opcount"))
    found = found.with_columns(is_copy=(is_equal & (pl.col("pos").diff() == 1)).fill_null(False))
    found = found.filter("is_copy", pl.col("is_copy").mean().over("rank_id") < MOST_DOUBLED)
    return found.select("pos", moves_to=pl.lit(None, dtype=pl.Int64))


def _of_single_ranks(doubled: pl.DataFrame, calls: pl.DataFrame, call_line: pl.DataFrame) -> pl.DataFrame:
    """Of collectives that stand twice with one counter, those of which no other member has as many.

    A counter of every call stands still among the calls of one group, which all members make, and where a callback of
    the host advances it (CUDA graphs, CUDA_LAUNCH_BLOCKING): there other lines share it, too.
    """
    place = ["key", "opcount", "signature"]
    lines = calls.hstack(call_line.select("signature", "collective")[calls["call_line"]]).filter("collective")
    copies = lines.join(doubled.select("pos"), on="pos", how="semi")
    others = lines.join(doubled.select("pos"), on="pos", how="anti")
    counting = others.group_by("member").agg(is_counting=pl.col("opcount").is_unique().all()).filter("is_counting")
    copies = copies.join(counting, on="member", how="semi")
    counts = lines.join(copies.select(place).unique(), on=place, how="semi").group_by(*place, "rank_id").len()
    most = counts.filter(pl.col("len") == pl.col("len").max().over(place))
    single = most.filter(pl.len().over(place) == 1)
    return doubled.join(copies.join(single, on=[*place, "rank_id"], how="semi").select("pos"), on="pos", how="semi")


def _repeated_of(calls: pl.DataFrame) -> list[tuple[int, int | None]]:
    """The repeated and the moved lines of one rank."""
    lines = list(zip(calls["member"], calls["call_line"], calls["opcount"], calls["pos"], strict=True))
    copies: list[tuple[int, int | None]] = []
    while len(copies) < MOST_BLOCKS * LONGEST_DISTANCE and (block := _first_copy(lines)) is not None:
        start, length = block
        copies += [(pos, None) for *_, pos in lines[start : start + length]]
        del lines[start : start + length]
    return copies + _moved(lines)


Line = tuple[int, int, int, int]  # member, call line, opCount, pos


def _first_copy(lines: list[Line]) -> tuple[int, int] | None:
    """Start and length of the first block of lines that repeats earlier ones, with the counter set back; or None."""
    latest: dict[int, int] = {}  # member -> its highest counter
    place_of: dict[tuple[int, int, int], int] = {}  # member, call line, counter -> last place
    for place, (member, call_line, counter, _) in enumerate(lines):
        earlier = place_of.get((member, call_line, counter))
        if counter < latest.get(member, 0) and earlier is not None and place - earlier <= LONGEST_DISTANCE:
            return _extent(lines, place, place - earlier)
        latest[member] = max(counter, latest.get(member, 0))
        place_of[member, call_line, counter] = place
    return None


def _extent(lines: list[Line], place: int, distance: int) -> tuple[int, int]:
    """Start and length of the block around a place that repeats the lines `distance` before it."""
    start, stop = place, place + 1
    while start > distance and lines[start - 1][:3] == lines[start - 1 - distance][:3]:
        start -= 1
    while stop < len(lines) and lines[stop][:3] == lines[stop - distance][:3]:
        stop += 1
    return start, min(stop - start, distance)


def _moved(lines: list[Line]) -> list[tuple[int, int | None]]:
    """Lines that stand behind lines of a higher counter, and the position at which each belongs."""
    moved: list[tuple[int, int | None]] = []
    for member in {line[0] for line in lines}:
        found = [line for line in lines if line[0] == member]
        ordered = sorted(found, key=lambda line: line[2])  # stable: lines of equal counters keep their order
        places = {line[3]: place for place, line in enumerate(found)}
        if all(abs(places[line[3]] - place) < MOST_MOVED for place, line in enumerate(ordered)):
            pairs = zip(ordered, found, strict=True)
            moved += [(line[3], slot[3]) for line, slot in pairs if line[3] != slot[3]]
    return moved


def without_repeated(calls: pl.DataFrame, repeated: pl.DataFrame) -> pl.DataFrame:
    """The calls without repeated lines and in the order they were printed, counted anew on the members concerned."""
    if repeated.is_empty():
        return calls
    of_repeated = calls.join(repeated, on="pos", how="left", maintain_order="left")
    copies = repeated.filter(pl.col("moves_to").is_null())["pos"].implode()
    members = calls.filter(pl.col("pos").is_in(repeated["pos"].implode()))["member"].unique().implode()
    is_odd = pl.col("member").is_in(members)
    odd = of_repeated.filter(is_odd & ~pl.col("pos").is_in(copies))
    odd = odd.sort(pl.coalesce("moves_to", "pos")).drop("moves_to")
    number = pl.int_range(pl.len(), dtype=pl.Int32).over("member")
    odd = odd.with_columns(
        ordinal=number,
        nth=pl.when(pl.col("nth").is_not_null()).then(
            pl.col("nth").is_not_null().cum_sum().over("member").cast(pl.Int32) - 1
        ),
    )
    return pl.concat([calls.filter(~is_odd), odd]).sort("pos")
