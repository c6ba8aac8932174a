"""Which reports of ended processes follow from others, and which concern the end of a process at all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import polars as pl

from ncclforensics.analyses.job.ends.crashes import SHELL, is_aborted_by
from ncclforensics.analyses.job.ends.exit_reports import NEAR, TRACEBACK_LINES, ExitReport, Owner
from ncclforensics.analyses.job.ends.exit_rows import EXCEPTION, EXIT, HOST_MEMORY, KERNEL, PYTHON_ERROR, RAISED
from ncclforensics.analyses.job.ends.exit_times import is_close_on_another_host, is_killed_by_launcher
from ncclforensics.analyses.job.ends.outlived_ends import is_named
from ncclforensics.data.processes import ABORT, CRASHES, KILL, REQUESTED_ENDS
from ncclforensics.frames.columns import Row
from ncclforensics.frames.step_order import LINES_OF_MESSAGE


def mark_final(reports: list[ExitReport], source: pl.DataFrame, lost: list[Row], *, has_errors: bool) -> None:
    """Set `final` on reports that may concern no end: exceptions, and kernel messages with a container's other pids.

    An exception is final if other processes ended, connections were closed right behind it (rows `lost`), or the log
    ends there, and not with another line if the program had outlived others of that place; a kernel message if it
    explains a known end. An end of no named process behind which steps were made need not be one of this training: only
    another end shows that it is. None is final that its file outlived.
    """
    for report in reports:
        report.final &= not (report.is_outlived or _may_be_of_another(report))
    blanks = dict(source.select("source", "blank_end").iter_rows())
    final_reports = [report for report in reports if report.final]
    has_final_kernel_report = any(report.reporter == KERNEL for report in final_reports)
    signals = {report.signal for report in final_reports if not report.follows}
    closed = _positions(lost, "source")
    # So it was where one process printed the same error again.
    outlived = {
        _place_of(report)
        for report in reports
        if report.is_outlived or (report.pid is not None and report.printed > 1)
        if report.how in RAISED and report.place
    }
    has_lost = any(not row["at_exit"] for row in lost)
    for report in reports:
        is_over = has_lost or (has_errors and not _may_be_of_another(report))
        if report.reporter == KERNEL:
            report.final |= report.signal in signals and not has_final_kernel_report
        elif not (report.final or report.is_outlived):
            farthest = blanks[report.row["source"]] if _place_of(report) in outlived else NEAR
            is_last = report.left <= farthest
            is_closed = _is_soon_before(closed[report.row["source"],], report.row["pos"])
            report.final = is_over or bool(final_reports) or is_last or is_closed
    # Where one of several processes ended with an error, those that print the same did.
    ended_by = {_error_of(report) for report in reports if report.how == EXCEPTION and report.final}
    for report in reports:
        report.final |= report.how == EXCEPTION and _error_of(report) in ended_by and bool(report.worker or report.pid)


def _may_be_of_another(report: ExitReport) -> bool:
    """Whether nothing tells which process ended, and steps were made behind it."""
    return report.went_on and not is_named(report)


def _error_of(report: ExitReport) -> tuple[str, str, str]:
    return report.name, report.message, report.place


def _place_of(report: ExitReport) -> tuple[int, str, str]:
    return report.row["source"], report.name, report.place


def _positions(rows: Iterable[Row], *key: str) -> dict[tuple[Any, ...], list[int]]:
    """The `pos` of rows in order, by the values of these columns."""
    positions: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in rows:
        insort(positions[tuple(row[name] for name in key)], row["pos"])
    return positions


def _is_soon_before(positions: list[int], pos: int) -> bool:
    """Whether one of these ordered positions is one of the next TRACEBACK_LINES."""
    place = bisect_right(positions, pos)
    return place < len(positions) and positions[place] - pos <= TRACEBACK_LINES


def _is_soon_behind(positions: list[int], pos: int) -> bool:
    """Whether one of these ordered positions is one of the TRACEBACK_LINES before."""
    place = bisect_left(positions, pos)
    return place > 0 and pos - positions[place - 1] <= TRACEBACK_LINES


def _name_by_exit(exceptions: list[ExitReport], reports: list[ExitReport], raising: set[int]) -> None:
    """Give the one exception without a process the one process that a launcher reports below it to end by an error.

    Not a rank that has an error of its own.
    """
    unnamed = [raised for raised in exceptions if not raised.follows]
    exits = [report for report in reports if report.how == EXIT and report.code == PYTHON_ERROR]
    if len(unnamed) != 1 or len(exits) != 1 or unnamed[0].row["source"] != exits[0].row["source"]:
        return
    raised, ended = unnamed[0], exits[0]
    if ended.rank in raising:
        return
    is_unnamed = (raised.rank, raised.pid, raised.owner) == (None, None, None) and not raised.row.get("is_of_thread")
    if is_unnamed and raised.row["pos"] < ended.row["pos"]:
        for name in ("rank", "child", "local_rank", "node", "pid", "owner", "reporter"):
            setattr(raised, name, getattr(ended, name))


def mark_consequences(
    reports: list[ExitReport],
    *,
    has_aborted: bool,
    has_errors: bool,
    failed_owners: set[Owner],
    victims: list[Row],
    raising: set[int],
    interrupts: list[Row],
    shut_down: list[Row],
) -> None:
    """Set `follows` on reports of ends that another end or error explains.

    `victims`: rows of `torch_error`; `raising`: ranks with a line of a traceback, whose error may be of any shape;
    `interrupts`: lines that show an interruption from the keyboard, which ends all processes of a terminal;
    `shut_down`: lines by which an engine kills its processes.
    """
    exceptions = [report for report in reports if report.how in RAISED]
    # A process exits with an error for a reason; a report of that reason is the cause.
    has_explanation = (
        has_errors
        or any(not report.follows for report in exceptions)
        or any(report.how == HOST_MEMORY and (report.reporter != KERNEL or report.is_placed) for report in reports)
    )
    _name_by_exit(exceptions, reports, raising)
    passing_on = {report.owner for report in exceptions} | failed_owners
    victim_ranks = {row["rank"] for row in victims if row["rank"] is not None}
    has_unnamed_victims = any(row["rank"] is None for row in victims)
    # The same rank raised an exception while it handled a lost connection: closely behind it.
    handled = _positions(victims, "rank", "source")
    interrupted = _positions(interrupts, "source")
    killed = _positions(shut_down, "source")
    raised_at = {(report.row["source"], report.last_line or report.row["line"]) for report in exceptions}
    crashed_at = [(report.row["source"], report.row["pos"]) for report in reports if report.signal in CRASHES]
    passing_on_ranks = {report.rank for report in exceptions} | victim_ranks | raising
    first = min((report for report in reports if report.time), key=lambda report: report.time, default=None)
    for report in reports:
        if report.reporter != KERNEL:
            report.follows |= _is_soon_behind(interrupted[report.row["source"],], report.row["pos"])
        if report.how == EXCEPTION and report.rank is not None:
            report.follows |= _is_soon_behind(handled[report.rank, report.row["source"]], report.row["pos"])
        if report.signal == KILL and report.reporter != KERNEL:
            report.follows |= _is_soon_behind(killed[report.row["source"],], report.row["pos"])
        if report.signal == KILL and report.reporter == SHELL and report.rank is None:
            # The kernel kills without a word; a program that ends all of its processes prints first what failed.
            source, end = report.row["source"], report.row["line"]
            report.follows |= any((source, line) in raised_at for line in range(end - LINES_OF_MESSAGE, end))
            report.follows |= any(of == source and pos < report.row["pos"] for of, pos in crashed_at)
        is_asked = report.signal in REQUESTED_ENDS and not report.is_unasked
        if is_asked or (first is not None and is_killed_by_launcher(report, first)):
            report.follows = True
        elif report.signal == ABORT:
            # A watchdog that timed out, an uncaught NCCL error, or a message of another size in gloo's thread, aborts.
            report.follows |= has_aborted or report.owner in failed_owners or report.rank in victim_ranks
            for raised in exceptions:
                if is_aborted_by(report, raised):
                    report.follows = True
                    if raised.pid is None:
                        raised.pid, raised.node, raised.owner = report.pid, report.node, report.owner
        elif report.signal in CRASHES:
            # A rank that raised an error ends with it, and crashed on its way out; launchers need not name it.
            report.follows |= report.rank in raising | {raised.rank for raised in exceptions} - {None}
            report.follows |= has_explanation and report.code is not None and not is_named(report)
        elif report.how == EXIT:
            is_close = first is not None and is_close_on_another_host(first, report)
            # Of several nodes, the earliest failure counts.
            is_later = first is not None and report.time > first.time and not is_close
            is_passing_on = (
                report.rank in passing_on_ranks
                if report.owner is None and report.rank is not None
                else report.owner in passing_on and (report.owner is not None or report.code is not None)
            )
            is_passing_on |= has_unnamed_victims and report.code == PYTHON_ERROR
            report.follows |= has_explanation or is_later or is_passing_on or (not report.owner and bool(failed_owners))
    unexplained = [report for report in reports if report.how == EXIT and not report.follows]
    for report in unexplained:
        report.is_by_clock = any(is_close_on_another_host(other, report) for other in unexplained)
