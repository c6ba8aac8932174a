"""Lines that show what happened to a log on its way: they were sorted, moved, delivered twice, lost, selected, or equal
ones removed.

NCCL prints the creation of a communicator in a fixed order (START, COMPLETE, then calls), its connections in the order
of their channels, no line about them twice in a row, and the calls of a thread in the order of their times. Where a log
shows otherwise, the same happened to lines of calls, of which no line shows it.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import OWNER, PROCESS, no_rows, text_of
from ncclforensics.frames.registry import analysis

SORTED, MOVED, DOUBLED, LOST, SELECTED, DISTINCT = "sorted", "moved", "doubled", "lost", "selected", "distinct"
LINE_FAULT = {
    **PROCESS,
    "kind": pl.String(),  # sorted, moved, doubled, lost, selected, distinct
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first that shows it
}
SORTED_NAMES = 3  # different names of calls, each in one block and in the order of the alphabet
SORTED_CALLS = 12  # of them, at least
MOST_COUNTED = 100_000  # calls whose counters are compared
FEWEST_JUMPS = 3  # of the counter; a stretch of lines that was cut out makes one
FEWEST_DISTINCT = 3  # different calls on a communicator whose counter stands still, and none of them twice
FEWEST_REPEATS = 3  # lines of an equal call on another, whose counter goes up
JUMPING = 0.2  # share of the calls behind which the counter jumps, where lines of some kinds were left out


@analysis(LINE_FAULT, of=("communicator", "call_template", "connection", "placement", "channel_count", "ring"))
def line_fault(
    communicator: pl.DataFrame,
    placement: pl.DataFrame,
    channel_count: pl.DataFrame,
    ring: pl.DataFrame,
    connection: pl.DataFrame,
    milestone: pl.DataFrame,
    call_template: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    source: pl.DataFrame,
    omission: pl.DataFrame,
) -> pl.DataFrame:
    """Processes with lines that show what happened to their log, one row for each kind and source."""
    inits = (communicator, placement, channel_count, ring, connection)
    faults = [no_rows(LINE_FAULT), *(_doubled(lines) for lines in inits if lines.height)]
    if communicator.height:
        faults += _creations(communicator, call_template, source, omission)
    if connection.height:
        faults.append(_moved(connection, milestone))
    if call_template.height:
        faults += [find(call_template, call_occurrence) for find in (_sorted_calls, _late, _selected, _distinct)]
    found = pl.concat(faults).drop_nulls()
    return found.sort("source", "line").unique([*OWNER, "kind", "source"], keep="first", maintain_order=True)


def _creations(
    communicator: pl.DataFrame, call_template: pl.DataFrame, source: pl.DataFrame, omission: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Communicators whose only COMPLETE stands before their only START, and those that lack one of these lines.

    A START behind which calls were made had its COMPLETE; a COMPLETE had its START if another communicator of this
    process before it has one. Where a line says that lines were left out in between, they were not lost.
    """
    events = communicator.select(*OWNER, "source", "line", "pos", "comm", "rank", "commid", phase=text_of("phase"))
    is_start = pl.col("phase") == "START"
    created = (
        events.drop_nulls(["comm", "commid", "phase"])
        .group_by(*OWNER, "source", "comm", "rank", "commid")
        .agg(
            starts=is_start.sum(),
            completes=pl.len() - is_start.sum(),
            started=pl.col("pos").filter(is_start).min(),
            completed=pl.col("pos").filter(~is_start).max(),
            line=pl.col("line").min(),
        )
        .with_columns(first=pl.col("started").min().over(*OWNER, "source"))
    )
    is_swapped = (pl.col("starts") == 1) & (pl.col("completes") == 1) & (pl.col("completed") < pl.col("started"))
    swapped = created.filter(is_swapped).select(*OWNER, pl.lit(SORTED).alias("kind"), "source", "line")
    called = call_template.group_by(*OWNER, "source", "comm").agg(called=pl.col("pos").max())
    is_read = pl.col("source").is_in(source.filter("is_closed")["source"].implode())
    left_out = omission.group_by("source").agg(gap=pl.col("pos").min(), last_gap=pl.col("pos").max())
    is_before_end = (pl.col("starts") == 0) & (pl.col("gap") < pl.col("completed"))
    is_left_out = (is_before_end | (pl.col("last_gap") > pl.col("started"))).fill_null(value=False)
    lacks_start = (pl.col("starts") == 0) & (pl.col("first") < pl.col("completed"))
    lacks_end = (pl.col("completes") == 0) & (pl.col("called") > pl.col("started"))
    created = created.join(called, on=[*OWNER, "source", "comm"], how="left")
    created = created.join(left_out, on="source", how="left").filter(~is_left_out)
    lost = created.filter(is_read & (lacks_start | lacks_end))
    return swapped, lost.select(*OWNER, pl.lit(LOST).alias("kind"), "source", "line")


def _sorted_calls(call_template: pl.DataFrame, call_occurrence: pl.DataFrame) -> pl.DataFrame:
    """Processes whose calls stand in blocks of one name each, in the order of the alphabet."""
    owner = [*OWNER, "source"]
    names = call_template.select(*owner, "line", "pos", name=text_of("called")).with_row_index("call_template")
    first = names.group_by(*owner, "name").agg(pl.col("pos").min()).sort("name")
    suspects = (
        first.group_by(owner)
        .agg(names=pl.len(), is_sorted=(pl.col("pos").diff() > 0).all())
        .filter("is_sorted", pl.col("names") >= SORTED_NAMES)
    )
    if suspects.is_empty():  # as in most logs, of which the calls need not be compared
        return pl.DataFrame(schema=LINE_FAULT)
    suspected = names.drop("pos").join(suspects, on=owner, how="semi")
    blocks = (
        call_occurrence.select("call_template", "pos")
        .join(suspected, on="call_template")
        .group_by(*owner, "name")
        .agg(pl.col("line").min(), first=pl.col("pos").min(), last=pl.col("pos").max(), calls=pl.len())
        .sort("name")
    )
    is_behind = (pl.col("first") > pl.col("last").shift()).fill_null(True)
    found = (
        blocks.group_by(owner, maintain_order=True)
        .agg(pl.col("line").min(), pl.col("calls").sum(), is_sorted=is_behind.all())
        .filter("is_sorted", pl.col("calls") >= SORTED_CALLS)
    )
    return found.select(*OWNER, pl.lit(SORTED).alias("kind"), "source", "line")


def _selected(call_template: pl.DataFrame, call_occurrence: pl.DataFrame) -> pl.DataFrame:
    """Processes whose counters of calls jump again and again: `grep` left out the calls of other kinds."""
    owner = [*OWNER, "source"]
    templates = call_template.select(*owner, "line", "comm").with_row_index("call_template")
    counted = call_occurrence.head(MOST_COUNTED).select("call_template", counter=pl.col("opcount").cast(pl.Int64))
    numbers = pl.col("counter").drop_nulls().unique().sort()
    by_communicator = (
        counted.join(templates, on="call_template")
        .group_by(*owner, "comm")
        .agg(pl.col("line").min(), calls=numbers.len(), jumps=(numbers.diff() > 1).sum())
    )
    by_process = by_communicator.group_by(owner).agg(pl.col("line").min(), pl.col("calls", "jumps").sum())
    found = by_process.filter(pl.col("jumps") >= FEWEST_JUMPS, pl.col("jumps") > JUMPING * pl.col("calls"))
    return found.select(*OWNER, pl.lit(SELECTED).alias("kind"), "source", "line")


def _distinct(call_template: pl.DataFrame, call_occurrence: pl.DataFrame) -> pl.DataFrame:
    """Processes of which no two lines of calls are equal, though calls were repeated and not all counters count.

    `sort -u` removes every call that a counter which stands still does not tell from an earlier one.
    """
    owner = [*OWNER, "source"]
    templates = call_template.select(*owner, "line", "comm").with_row_index("call_template")
    counted = call_occurrence.head(MOST_COUNTED).select("call_template", "opcount")
    equal = counted.group_by("call_template").agg(lines=pl.len(), counters=pl.col("opcount").n_unique())
    equal = equal.join(templates, on="call_template")
    is_distinct = (pl.col("lines") == pl.col("counters")).all().over(owner)
    stands_still = (pl.col("counters") == 1).all() & (pl.len() >= FEWEST_DISTINCT)
    distinct = equal.filter(is_distinct)
    if distinct.is_empty():
        return pl.DataFrame(schema=LINE_FAULT)
    counters = counted.join(distinct.select("call_template", *owner, "comm"), on="call_template")
    counters = counters.group_by(*owner, "comm").agg(numbers=pl.col("opcount").n_unique())
    by_communicator = distinct.group_by(*owner, "comm").agg(
        pl.col("line").min(), stands_still=stands_still, repeats=pl.col("lines").max()
    )
    by_communicator = by_communicator.join(counters, on=[*owner, "comm"])
    by_process = by_communicator.group_by(owner).agg(
        pl.col("line").min(),
        has_standing=(pl.col("stands_still") & (pl.col("numbers") == 1)).any(),
        is_repeated=(pl.col("repeats") >= FEWEST_REPEATS).any(),
    )
    found = by_process.filter("has_standing", "is_repeated")
    return found.select(*OWNER, pl.lit(DISTINCT).alias("kind"), "source", "line")


def _doubled(lines: pl.DataFrame) -> pl.DataFrame:
    """Lines of an init that are equal to the line just before them."""
    line, rest = pl.col("line"), pl.struct(pl.exclude("line", "pos"))
    found = lines.sort("source", "line").filter(line == line.shift() + 1, rest.eq_missing(rest.shift()))
    return found.select(*OWNER, pl.lit(DOUBLED).alias("kind"), "source", "line")


def _moved(connection: pl.DataFrame, milestone: pl.DataFrame) -> pl.DataFrame:
    """Connections of collectives in which two neighbouring channels stand the other way round: 0, 2, 1, 3.

    Those of the trees are made when all rings are connected: channels 0 and 2 of a pair may be of rings, 1 and 3 of
    trees (NCCL: src/init.cc, initTransportsRank).
    """
    same_pair = [*OWNER, "source", "form", "direction", "from", "to", "ended"]
    rows = connection.filter(pl.col("conn").fill_null(0) == 0)
    ends = milestone.filter(text_of("form").is_in(["rings", "trees"])).select(*OWNER, "source", "line", ended=1)
    rows = pl.concat([rows.with_columns(ended=0), ends], how="diagonal").sort("source", "line")
    rows = rows.with_columns(pl.col("ended").cum_sum().over(*OWNER, "source")).drop_nulls("channel")
    rows = rows.select(*same_pair, "line", "channel")
    channel = pl.col("channel").cast(pl.Int64)
    steps = {f"step{place}": channel.shift(-place - 1) - channel.shift(-place) for place in range(3)}
    rows = rows.with_columns(**{name: step.over(same_pair) for name, step in steps.items()})
    found = rows.filter((pl.col("step0") == 2) & (pl.col("step1") == -1) & (pl.col("step2") == 2))
    return found.select(*OWNER, pl.lit(MOVED).alias("kind"), "source", "line")


def _late(call_template: pl.DataFrame, call_occurrence: pl.DataFrame) -> pl.DataFrame:
    """Calls with an earlier time than the call before them and the one behind: a clock that was set does not return."""
    owner = [*OWNER, "source", "tid"]
    if _is_empty(call_template["stamp"]) and _is_empty(call_occurrence["launcher_time"]):
        return pl.DataFrame(schema=LINE_FAULT)
    templates = call_template.select(*owner, "line", "stamp").with_row_index("call_template")
    calls = call_occurrence.head(MOST_COUNTED).join(templates, on="call_template").sort("pos")
    found = []
    for clock in ("stamp", "launcher_time"):  # texts of one form, which sort like the times
        before, after = pl.col(clock).shift(), pl.col(clock).shift(-1)
        is_same_form = pl.all_horizontal(
            time.str.len_bytes() == pl.col(clock).str.len_bytes() for time in (before, after)
        )
        is_late = is_same_form & (pl.col(clock) < before) & (after >= before)
        found.append(calls.filter(is_late.over(owner)))
    return pl.concat(found).select(*OWNER, pl.lit(MOVED).alias("kind"), "source", "line")


def _is_empty(column: pl.Series) -> bool:
    return column.null_count() == column.len()
