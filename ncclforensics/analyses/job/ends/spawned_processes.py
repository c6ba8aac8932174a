"""Ends of processes that torch.multiprocessing.spawn started, and the tracebacks that it repeats below its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter

import polars as pl

from ncclforensics.analyses.job.ends.exit_reports import TRACEBACK_LINES, ExitReport, exit_report
from ncclforensics.analyses.job.ends.exit_rows import EXCEPTION, SIGNAL, UNSHOWN
from ncclforensics.analyses.job.ends.tracebacks import place_of_calls
from ncclforensics.data.processes import SIGNAL_NUMBERS
from ncclforensics.frames.columns import Row, text_of

SPAWN = "torch.multiprocessing.spawn"
UNNAMED = "an exception"  # whose class no line shows
CHAINED_LINES = 5  # from an error to the traceback of the one that was raised while it was handled


def with_spawned_process(
    spawn_failure: pl.DataFrame, exception: pl.DataFrame, gpu_exception: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add to both frames `local_rank`: the number of the spawned process that raised the error, or null.

    It is read from the heading above its traceback, of which an error that was being handled is a part.
    """
    lines = [frame.select("source", "pos", form=text_of("form")) for frame in (exception, gpu_exception)]
    raised = spawn_failure.filter(form="raised").select("source", "pos", "local_rank")
    below = [
        {"source": source, "pos": pos, "local_rank": local_rank}
        for source, local_rank, pos in _errors_below(raised, pl.concat(lines))
    ]
    found = pl.DataFrame(below, schema=raised.schema).unique(["source", "pos"], keep="last")
    return (
        exception.join(found, on=["source", "pos"], how="left", maintain_order="left"),
        gpu_exception.join(found, on=["source", "pos"], how="left", maintain_order="left"),
    )


def _errors_below(raised: pl.DataFrame, lines: pl.DataFrame) -> Iterator[tuple[int, int, int]]:
    """Yield source, number of the process and `pos` of each error in the traceback below a heading."""
    of_source: dict[int, list[Row]] = defaultdict(list)
    for line in lines.sort("pos").to_dicts():
        of_source[line["source"]].append(line)
    for heading in raised.to_dicts():
        last, limit = heading["pos"], heading["pos"] + CHAINED_LINES
        for line in of_source[heading["source"]]:
            if line["pos"] <= last:
                continue
            if line["pos"] > limit:
                break
            last = line["pos"]
            limit = last + (TRACEBACK_LINES if line["form"] == "traceback" else CHAINED_LINES)
            if line["form"] != "traceback":
                yield heading["source"], heading["local_rank"], last


def spawn_reports(
    spawn_failure: pl.DataFrame,
    errors: Iterable[pl.DataFrame],
    calls: pl.DataFrame,
    *,
    passed_on: Iterable[pl.DataFrame],
) -> Iterator[ExitReport]:
    """Yield the process that failed first, and those that were ended for it.

    A traceback yields none here if its error has a line of its own: one of `errors`, with their `local_rank`, or one
    that passes on what another process did, of `passed_on`. If its error was cut, the last of `calls` says where.
    """
    named = [frame.filter(pl.col("local_rank").is_not_null()).select("source", "pos") for frame in errors]
    known = pl.concat([*named, *(frame.select("source", "pos") for frame in passed_on)]).rows()
    places = sorted(known, key=itemgetter(1))
    for row in spawn_failure.to_dicts():
        match row["form"]:
            case "raised" if not any(
                source == row["source"] and 0 < pos - row["pos"] <= TRACEBACK_LINES for source, pos in places
            ):
                place = place_of_calls(_calls_below(row, calls))
                yield ExitReport(EXCEPTION, row, "Python", local_rank=row["local_rank"], name=UNNAMED, place=place)
            case "signal" | "unknown_signal":
                number = row["signal"] or SIGNAL_NUMBERS.get(row["signal_name"])
                yield ExitReport(SIGNAL, row, SPAWN, local_rank=row["local_rank"], signal=number)
            case "exit_code":
                yield exit_report(row, SPAWN, row["exit_code"], local_rank=row["local_rank"])
            case "cut":
                yield exit_report(row, SPAWN, None, local_rank=row["local_rank"], message=UNSHOWN)
            case "closing" | "stuck":
                number = SIGNAL_NUMBERS.get(row["signal_name"])
                yield ExitReport(SIGNAL, row, SPAWN, pid=row["pid"], signal=number, follows=True)


def _calls_below(heading: Row, calls: pl.DataFrame) -> Iterator[tuple[str, str, int | None]]:
    """Yield the calls of the traceback below a heading, the innermost first."""
    is_below = pl.col("pos").is_between(heading["pos"] + 1, heading["pos"] + TRACEBACK_LINES)
    below = calls.filter(is_below, pl.col("source") == heading["source"]).sort("pos", descending=True)
    yield from below.select("function", "file", "number").iter_rows()
