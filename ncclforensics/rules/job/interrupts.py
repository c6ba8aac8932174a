"""Where a program stood when somebody interrupted it: the traceback is a stack of that moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.analyses.job.ends.tracebacks import LONGEST, traced_frames, with_places
from ncclforensics.data.names import ranks_text
from ncclforensics.data.stack_classes import PLACES, place_of
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.step_order import of_last_run
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule


@rule(Category.APPLICATION_ERROR, Severity.INFO, of=("exception",), hang=True, role=Role.CONTEXT)
def app_interrupted(
    exception: pl.DataFrame,
    exception_chain: pl.DataFrame,
    traceback_frame: pl.DataFrame,
    traced_call: pl.DataFrame,
    ray_heading: pl.DataFrame,
    training_step: pl.DataFrame,
    source: pl.DataFrame,
) -> Iterator[Finding]:
    """A process was interrupted from the keyboard, and its traceback shows where it stood.

    Means: somebody ended a program that seemed to stand still. The innermost call of the traceback is where this
    process was at that moment; of a job, it is the process of one terminal, and the others may have stood elsewhere.
    Not when: the program was interrupted while it ran, as at the end of a test; steps were made behind it, by another
    process or a later run; its file goes on for hundreds of lines.
    Do: if it stood in a collective, look for the process that was not there; else look at what this call waits for.
    Take the stacks of all processes before the next interruption (py-spy dump).
    Sources: Python, KeyboardInterrupt; torch/utils/data/dataloader.py; pytorch#39570.
    """
    interrupts = of_last_run(exception, training_step, source)
    if interrupts.is_empty():
        return
    calls = traced_frames(traceback_frame, traced_call)
    (placed,) = with_places((interrupts,), exception, exception_chain, calls, ray_heading)
    known = placed.filter(pl.col("place").is_not_null()).sort("source", "line")
    for (place,), rows in known.group_by("place", maintain_order=True):
        ranks = sorted(rows["rank"].drop_nulls().unique().to_list())
        first = rows.row(0, named=True)
        kind = _kind(first, exception, calls)
        yield Finding(
            title=f"{ranks_text(ranks) or 'a process'} stood in {place} when it was interrupted",
            detail=f"{f'{kind}; ' * bool(kind)}other processes of the job may have stood elsewhere",
            certainty="certain",
            ranks=ranks,
            evidence=[Line(source, line) for source, line in rows.select("source", "line").head(2).iter_rows()],
        )


def _kind(interrupt: dict[str, Any], exception: pl.DataFrame, traced: pl.DataFrame) -> str:
    """Return what the process did, by the calls of its traceback; the innermost that says more than how it waits."""
    of_source = (pl.col("source") == interrupt["source"]) & (pl.col("pos") < interrupt["pos"])
    begun = exception.filter(of_source & (text_of("form") == "traceback"))["pos"].max()
    nearest = pl.col("pos") > (begun if isinstance(begun, int) else -1)
    calls = traced.filter(of_source & nearest).sort("pos", descending=True).head(LONGEST)
    frames = calls.select("function", "file").iter_rows()
    places = [place for function, file in frames if (place := place_of(PLACES, function, file))]
    return next((place.kind for place in places if not place.is_general), places[0].kind if places else "")
