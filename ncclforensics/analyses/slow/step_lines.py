"""What step lines say of a slow job: that it is slower, since which step and by how much; hardly ever who.

Steps of healthy jobs hardly move (`analyses/slow/change_points.py`), so that a lasting change is worth a line. Rates
of tokens or samples are compared where the lines have them: then a larger batch is no slower step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

import polars as pl

from ncclforensics.analyses.slow.answer import SlowKind
from ncclforensics.analyses.slow.change_points import MIN_RECORDS, RATIO
from ncclforensics.analyses.slow.explanations import Observation, Request, SlowExplanation
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.frames.columns import Row

FEWEST_STEPS = 20  # lines of a series, to call it even
DAY, YEAR = 86_400, 365 * 86_400  # a time within the first year after 1970 is one without a year
STALL_SHARE = 0.02  # of the time of all steps
MANY_STALLS = 5  # from here on, chance makes no period
OF_WORK = {"batch": "the batch size changed there", "sequence": "the length of sequences changed there"}
COLLECT = """traces of 20 steps of all ranks, while it is slow (torch.profiler, a file for each rank): \
step lines show that steps are slow, and not which rank makes them slow"""
COLLECT_STALLS = "traces of all ranks over two of the long steps: step lines do not show which rank stalls"
COLLECT_WORK = Request(
    "what a step holds (batch size, sequence length, stage of a curriculum) before and after that step"
)


def explanations_of_step_lines(
    job_step: pl.DataFrame, step_change: pl.DataFrame, step_stall: pl.DataFrame, own_time: pl.DataFrame
) -> list[SlowExplanation]:
    """Return what the step lines of all series suggest; nothing without step lines. `own_time`: of traces."""
    unexplained = step_change.filter(pl.col("explained_by").is_null() | (pl.col("explained_by") == "restart"))
    regular = step_stall.filter(pl.col("period").is_not_null() & (pl.col("share") >= STALL_SHARE))
    changed = pl.concat([unexplained["series"], regular["series"]]).unique().implode()
    even = job_step.filter(~pl.col("series").is_in(changed))
    return [*_changes(unexplained, own_time), *_stalls(regular), *_even(even, step_change)]


def _changes(step_change: pl.DataFrame, own_time: pl.DataFrame) -> Iterator[SlowExplanation]:
    for row in step_change.to_dicts():
        lost = 1 - 1 / row["ratio"]
        times = (f"{row['ratio']:.3g} times as long as before", f"{lost:.1%} of the speed".replace("%", " %"))
        if row["has_ended"]:
            claim = f"steps {row['since_step']:,} to {row['until_step']:,} took {times[0]}; later ones do not"
        else:
            claim = f"since step {row['since_step']:,} steps take {times[0]}"
        yield SlowExplanation(
            SlowKind.CHANGE,
            claim,
            tuple(_doubts(row)),
            details=tuple(_details(row, times[1])),
            since_step=row["since_step"],
            since=iso_time(row["time"]),
            step_seconds=row["seconds"],
            step_share=None if row["has_ended"] else lost,
            gpus=row["gpus"],
            collect=(
                Request(COLLECT, Observation.TRACES if _is_traced(row, own_time) else None),
                *((COLLECT_WORK,) if row["unit"] == "step" else ()),
            ),
            evidence=(
                (row["source"], row["line_before"]),
                (row["source"], row["line"]),
                (row["last_source"], row["last_line"]),
            ),
        )


def _is_traced(row: Row, own_time: pl.DataFrame) -> bool:
    """Whether traces hold a step that is slow since a change, by its number or its time."""
    is_numbered = pl.col("number") >= row["since_step"]
    is_later = pl.col("ended_us") / 1e6 >= (math.inf if row["time"] is None else row["time"])
    return not own_time.filter(is_numbered | is_later).is_empty()


def _doubts(row: Row) -> Iterator[Doubt]:
    if row["unit"] == "step":
        yield Doubt.WORK_CHANGED
    if min(row["records_before"], row["records"]) < MIN_RECORDS:
        yield Doubt.FEW_STEP_LINES
    if not row["is_sharp"]:
        yield Doubt.STEPS_DRIFT
    if row["explained_by"] == "restart":
        yield Doubt.RESTARTED


def _details(row: Row, lost: str) -> Iterator[str]:
    before, now = rate(row["pace_before"], row["unit"]), rate(row["pace"], row["unit"])
    yield f"{before} before, {now} since: {lost} are lost"
    hours = hours_lost(row)
    if hours is not None:
        yield f"{hours:,.1f} GPU-hours so far, on {row['gpus']:,} GPUs"
    yield f"judged by {row['records_before']:,} lines before and {row['records']:,} lines since"
    if row["explained_by"] == "restart":
        yield "the job began anew there: its hosts or its configuration may be others"
    elif row["unit"] != "step":
        yield f"the rate counts each {row['unit']}: a larger batch or longer sequences are not the reason"


def _stalls(step_stall: pl.DataFrame) -> Iterator[SlowExplanation]:
    for row in step_stall.to_dicts():
        event = row["explained_by"]
        share = f"{row['share']:.0%} of the time".replace("%", " %")
        yield SlowExplanation(
            SlowKind.STALLS,
            f"every {ordinal(row['period'])} step takes {row['ratio']:.2g} times as long: {share}",
            (Doubt.STALLS_BY_CHANCE,) if row["stalls"] < MANY_STALLS else (Doubt.WORK_DIFFERS,),
            details=(
                f"{row['stalls']} long steps from step {row['first_step']:,} to {row['last_step']:,}"
                + (f", each behind a line about a {event}" if event else ""),
                *(() if event else ("usual at a distance: garbage collection, a data loader, logging, a checkpoint",)),
            ),
            step_seconds=row["step_seconds"],
            step_share=row["share"],
            gpus=row["gpus"],
            cause=event,
            collect=(Request(COLLECT_STALLS, Observation.TRACES),),
            evidence=((row["source"], row["line"]), (row["last_source"], row["last_line"])),
        )


def _even(job_step: pl.DataFrame, step_change: pl.DataFrame) -> Iterator[SlowExplanation]:
    """Series whose steps are as long at the end as at the beginning: which may be too long, all of them."""
    pace, third = pl.col("pace"), pl.len() // 3
    first, last = pace.head(third), pace.tail(third)
    thirds = job_step.group_by("series", maintain_order=True).agg(
        pl.len().alias("lines"),
        ratio=last.median() / first.median(),
        spread=pl.max_horizontal(*((part / part.median() - 1).abs().median() for part in (first, last))),
        source=pl.col("source").last(),
        line=pl.col("line").last(),
    )
    thirds = thirds.filter(pl.col("lines") >= FEWEST_STEPS)
    is_explained = pl.col("series").is_in(step_change["series"].implode())
    unclear = thirds.filter((pl.col("ratio") >= RATIO) & ~is_explained)
    lines = thirds.join(unclear, on="series", how="anti")["lines"]
    for row in unclear.head(1).to_dicts():
        yield SlowExplanation(
            SlowKind.UNDECIDABLE,
            f"the last third of {row['lines']:,} steps takes {row['ratio']:.3g} times as long as the first, and half "
            f"of them lie farther than {row['spread']:.0%} from their median: no change beyond noise".replace(
                "%", " %"
            ),
            (Doubt.OPEN,),
            collect=(Request("the step lines of more steps: these do not tell a change from noise"),),
            evidence=((row["source"], row["line"]),),
        )
        return
    if lines.is_empty():
        return
    yield SlowExplanation(
        SlowKind.EVEN,
        f"steps take as long at the end as at the beginning ({lines.sum():,} step lines)",
        (Doubt.SLOW_FROM_THE_BEGINNING,),
        details=tuple(
            f"steps take {row['ratio']:.3g} times as long since step {row['since_step']:,}: {reason}"
            for row in step_change.to_dicts()
            if (reason := OF_WORK.get(row["explained_by"] or ""))
        ),
        collect=(Request(COLLECT, Observation.TRACES),),
    )


def hours_lost(row: Row) -> float | None:
    """GPU-hours that the slow steps of a change took longer than those before; None where no line tells the GPUs."""
    if row["gpus"] is None or row["seconds"] is None:
        return None
    return float(row["steps"] * row["seconds"] * (1 - 1 / row["ratio"]) * row["gpus"] / 3600)


def rate(pace: float, unit: str) -> str:
    """Return a pace as readers know it: seconds of a step, or a rate.

    >>> rate(1.25, "step"), rate(0.0004, "token of a GPU"), rate(0.02, "sample")
    ('1.25 s a step', '2,500 tokens/s of a GPU', '50 samples/s')
    """
    if unit == "step":
        return f"{pace:.3g} s a step"
    name, _, of_gpu = unit.partition(" ")
    amount = f"{1 / pace:,.0f}" if pace < 0.1 else f"{1 / pace:.3g}"
    return f"{amount} {name}s/s{' ' * bool(of_gpu)}{of_gpu}"


def ordinal(number: int) -> str:
    """Return a number as a position.

    >>> [ordinal(number) for number in (2, 3, 10, 11, 21)]
    ['2nd', '3rd', '10th', '11th', '21st']
    """
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number:,}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"


def iso_time(seconds: float | None) -> str | None:
    """Return seconds since 1970 of a logger's clock as ISO 8601 without a zone; None if the year is unknown."""
    if seconds is None or not YEAR <= seconds < 253402300800:
        return None
    return datetime.fromtimestamp(int(seconds), UTC).replace(tzinfo=None).isoformat()


def time_text(seconds: float | None) -> str | None:
    """Return seconds since 1970 as `iso_time`; of a clock or a progress bar without a year what these show.

    >>> time_text(1_772_449_497), time_text(27_410), time_text(5_223_897), time_text(None)
    ('2026-03-02T11:04:57', '07:36:50', '03-02T11:04:57', None)
    """
    if seconds is None or not 0 <= seconds < YEAR:
        return iso_time(seconds)
    shown = datetime.fromtimestamp(int(seconds), UTC)
    return f"{shown:%H:%M:%S}" if seconds < DAY else f"{shown:%m-%dT%H:%M:%S}"
