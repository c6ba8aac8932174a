"""Ends that the output of their file outlived: the program caught the error, or was started again.

What ended a job stands at the end of what it printed: behind it stand words of the process itself, of others that end
for it, and of launchers. Work that goes on further below is of a job that was not ended there.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping

import polars as pl

from ncclforensics.analyses.job.ends.crashes import SHELL
from ncclforensics.analyses.job.ends.exit_reports import ExitReport
from ncclforensics.analyses.job.ends.exit_rows import EXCEPTION, EXIT, GPU_ERROR, KERNEL, PYTHON_ERROR, RAISED
from ncclforensics.analyses.job.ends.tracebacks import MODULE
from ncclforensics.analyses.job.text.program_phases import moments_of_bars
from ncclforensics.frames.columns import count_behind, lines_behind, text_of, with_rows
from ncclforensics.frames.step_order import BUFFERED_LINES, LINES_OF_END, LINES_OF_MESSAGE, STEPS_OF_RUN, counted_step

LINES_OF_CHAIN = 3  # from the line of a chain of exceptions to the heading of the next one
ANSWERED = "answered"  # form of `engine_ready`: the engine answered a request

Left = dict[int, int]  # how many lines of each input stand behind the last one that shows something


def mark_outlived(
    reports: list[ExitReport],
    *,
    training_step: pl.DataFrame,
    progress_bar: pl.DataFrame,
    engine_ready: pl.DataFrame,
    failing: Iterable[pl.DataFrame],
    of_several: Iterable[pl.DataFrame],
    raising: set[int],
    uncaught: Mapping[tuple[int, int | None], list[int]],
    source: pl.DataFrame,
    voice: pl.DataFrame,
    test_outcome: pl.DataFrame,
    fence: pl.DataFrame,
) -> None:
    """Set `left`, `went_on` and `is_outlived` of reports.

    `failing`: lines that processes print as they fail, and launchers as they end them; `of_several`: lines that only
    a job of several processes prints, whose errors may stand far from each other; `raising`: ranks with a line of a
    traceback, whose error may be of any shape; `uncaught`: as `uncaught_of_ranks` returns.
    """
    lengths = source.select("source", "lines")
    lines = dict(lengths.iter_rows())
    relayed = _relayed_ends(voice, lengths)
    for report in reports:
        report.left = lines_behind(report.last_line or report.row["line"], lines[report.row["source"]])
        if report.row.get("launcher_pid") is None:
            report.left = max(report.left - relayed.get(report.row["source"], 0), 0)
    left_of = [report.left for report in reports]
    answers = engine_ready.filter(form=ANSWERED).select("source", "line")
    begun = _begun_bars(progress_bar, {report.row["source"] for report in reports if not is_named(report)})
    steps = training_step.sort("pos").select("source", "line", step=counted_step())
    made = _left(steps, lengths, 2)  # one may have been on its way on another rank
    worked = _least(made, _left(pl.concat([answers, begun]), lengths))
    numbered = steps.drop_nulls()
    counting = pl.concat([numbered.unique(["source", "step"], keep="last"), steps.filter(pl.col("step").is_null())])
    of_any = _left(counting, lengths, STEPS_OF_RUN)
    reached = pl.col("step").cum_max().shift().over("source")
    of_later = _left(numbered.filter((pl.col("step") > reached).fill_null(value=True)), lengths, STEPS_OF_RUN)
    several = {report.row["source"] for report in reports if is_named(report) and report.reporter != SHELL}
    several.update(*(rows["source"] for rows in of_several))
    cascades = _cascades(failing, lengths)
    explained = _explained(reports, raising) | set(test_outcome["source"])
    begun_anew = _begun_anew(training_step)
    errors: Left = {}
    for report, left in zip(reports, left_of, strict=True):
        if _is_by_itself(report) and report.row["source"] not in several:
            errors[report.row["source"]] = min(left, errors.get(report.row["source"], left))
    for report, left in zip(reports, left_of, strict=True):
        number = report.row["source"]
        report.went_on = worked.get(number, left) < left
        end = cascades.get((number, left), left)
        outlives = end - (of_later if is_named(report) else of_any).get(number, end) > BUFFERED_LINES
        if number not in several:  # one process printed all that stands there
            most = BUFFERED_LINES if report.reporter == SHELL else LINES_OF_END  # a script goes on behind its command
            outlives |= left - errors.get(number, left) > BUFFERED_LINES or left > most
        outlives |= bool(report.row.get("is_of_cell")) and left > LINES_OF_MESSAGE  # other cells ran before or after it
        is_of_main = not (is_named(report) or report.row.get("is_of_thread"))
        is_caught = report.how in RAISED and is_of_main and number in explained
        named = (number, report.row.get("launcher_process"))
        is_caught |= report.how in RAISED and begun_anew.get(named, -1) > report.row["pos"]
        # A process ends once: where PyTorch prints what ended a rank again further below, another launch ended there.
        ends = uncaught.get((number, report.rank), [])
        is_caught |= report.how in RAISED and 0 < bisect(ends, report.row["pos"]) < len(ends)
        is_caught |= report.how == EXCEPTION and bool(report.row.get("is_of_request"))
        # Ray runs the task again. A program goes on without its tracker.
        is_caught |= any(report.row.get(name) for name in ("is_retried", "is_of_tracker"))
        # A result was not asked for: no other process saw the error, unless it is one of CUDA, which others meet, too.
        is_caught |= report.how != GPU_ERROR and bool(report.row.get("is_unhandled"))
        report.is_outlived = (outlives and report.reporter != KERNEL) or is_caught
        report.went_on |= is_caught
    fences = dict(fence.sort("line").group_by("source").agg("line").iter_rows())
    for report in reports:  # what ended a program stands at the end of the block that a text quotes
        last, lines = report.last_line or report.row["line"], fences.get(report.row["source"], [])
        if (place := bisect(lines, last)) < len(lines):
            report.left = min(report.left, lines[place] - 1 - last)


def uncaught_of_ranks(
    exception: pl.DataFrame, exception_chain: pl.DataFrame, traceback_frame: pl.DataFrame
) -> dict[tuple[int, int | None], list[int]]:
    """The `pos` of the tracebacks of whole programs that PyTorch printed in each input of each rank, as it ended.

    Its hook tags what no code caught (torch/distributed: distributed_c10d.py, _distributed_excepthook). One below the
    line of a chain goes on with the one above it.
    """
    of_rank = ["source", "rank"]
    headings = exception.filter(form="traceback").select(*of_rank, "pos").drop_nulls()
    outermost = traceback_frame.filter(frame_function=MODULE).select(*of_rank, pl.col("pos") - 1)
    chained = [exception_chain.select(*of_rank, pl.col("pos") + lines) for lines in range(1, LINES_OF_CHAIN + 1)]
    own = headings.join(outermost, on=[*of_rank, "pos"], how="semi")
    own = own.join(pl.concat(chained), on=[*of_rank, "pos"], how="anti").sort("pos")
    return {(number, rank): ends for number, rank, ends in own.group_by(of_rank).agg("pos").iter_rows()}


def _explained(reports: list[ExitReport], raising: set[int]) -> set[int]:
    """The inputs in which each rank that a launcher saw end by an error printed one: any other error ended no rank."""
    exited: dict[int, set[int]] = {}
    for report in reports:
        if report.how == EXIT and report.code == PYTHON_ERROR and report.rank is not None:
            exited.setdefault(report.row["source"], set()).add(report.rank)
    return {number for number, ranks in exited.items() if ranks <= raising}


def _begun_anew(training_step: pl.DataFrame) -> dict[tuple[int, str | None], int]:
    """The `pos` at which the last process of an actor of Ray began to make steps, by its input and name."""
    made = training_step.drop_nulls(["launcher_process", "launcher_pid"])
    processes = made.group_by("source", text_of("launcher_process"), "launcher_pid").agg(
        pl.col("pos").min(), steps=pl.len()
    )
    last = processes.filter(pl.col("steps") >= STEPS_OF_RUN).group_by("source", "launcher_process")
    return {(number, name): pos for number, name, pos in last.agg(pl.col("pos").max()).iter_rows()}


def _cascades(failing: Iterable[pl.DataFrame], lengths: pl.DataFrame) -> dict[tuple[int, int], int]:
    """How many lines stand behind the last of failing lines without a gap, by the input and the lines behind each."""
    rows = pl.concat([rows.select("source", "line") for rows in with_rows(failing)]).join(lengths, on="source")
    rows = rows.select("source", left=count_behind()).unique().sort("source", "left")
    is_last = (pl.col("left").diff() > BUFFERED_LINES).fill_null(value=True).over("source")
    ends = rows.with_columns(end=pl.when(is_last).then("left").forward_fill().over("source"))
    return {(number, left): end for number, left, end in ends.iter_rows()}


def _relayed_ends(voice: pl.DataFrame, lengths: pl.DataFrame) -> Left:
    """How many lines stand behind the last one of the program itself, where it then only relays those of others.

    The driver of Ray puts the name and the pid of the process in front of these.
    """
    relayed, own = (
        _left(voice.filter(kind).with_row_index(), lengths) for kind in ("is_relayed", ~pl.col("is_relayed"))
    )
    return {
        number: own.get(number, LINES_OF_END) for number, left in relayed.items() if left < own.get(number, left + 1)
    }


def is_named(report: ExitReport) -> bool:
    """Whether something tells which process it was."""
    names = (report.owner, report.rank, report.child, report.local_rank, report.pid, report.worker or None)
    return any(name is not None for name in names)


def _left(rows: pl.DataFrame, lengths: pl.DataFrame, nth: int = 1) -> Left:
    """How many lines stand behind the last of these rows in each input, or the `nth` from the end."""
    if rows.is_empty():
        return {}
    left = rows.join(lengths, on="source").select("source", left=count_behind())
    found = left.group_by("source").agg(pl.col("left").sort().get(nth - 1, null_on_oob=True))
    return dict(found.drop_nulls().iter_rows())


def _least(some: Left, others: Left) -> Left:
    return {number: min(found[number] for found in (some, others) if number in found) for number in {*some, *others}}


def _begun_bars(progress_bar: pl.DataFrame, sources: set[int]) -> pl.DataFrame:
    """Where progress bars began that are longer or shorter than those above; one that was left is printed again."""
    bars = progress_bar.filter(pl.col("source").is_in(list(sources)))
    moments = moments_of_bars(bars).join(bars.select("pos", "line"), on="pos").sort("pos")
    return moments.filter(done=0).unique(["source", "of_all"], keep="first").select("source", "line")


def _is_by_itself(report: ExitReport) -> bool:
    """Whether it is an error that no other one brought about."""
    is_chained = report.row.get("is_caused") or report.row.get("is_handling")
    return report.how in RAISED and not (report.follows or is_chained)
