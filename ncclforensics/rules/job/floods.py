"""Processes that print one line without end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import polars as pl

from ncclforensics.data.names import at_least, count_of
from ncclforensics.frames.columns import OWNER
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding

LEAST, MANY = 1_000, 100_000  # equal lines of one process: from here on reported, and as a warning
SHOWN = 100  # characters of a message


@rule(Category.HANG, Severity.INFO, of=("repeated_line",), hang=True)
def line_repeated_without_end(
    flood: pl.DataFrame, repeated_line: pl.DataFrame, source: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A process prints the same line of NCCL thousands of times.

    Means: a thread of NCCL meets an error and tries again at once, without end: its transfers never complete, and it
    neither stops nor aborts. The first line is the news, the others only fill the disk. Equal lines between the first
    and the last were counted; other lines among them were read. Of many thousand lines that differ only in numbers
    (retries with a counter, the exits of thousands of tasks), the first and the last of each kind and process were
    examined: other findings may list fewer processes than the log names.
    Not when: the application repeats its own output, such as a progress bar; an error came back some hundred times.
    Do: read the lines of the named process before the first of these; take a stack of its threads (gdb -p PID -batch
    -ex 'thread apply all bt'), then end it before the disk is full.
    Sources: nccl: src/proxy.cc (ncclProxyProgress), src/misc/socket.cc (socketStartConnect: retries).
    """
    by_file = flood.group_by("source", *OWNER, maintain_order=True).agg(
        pl.col("line", "message").first(),
        pl.col("last_line").max(),
        pl.col("repeats", "rate", "share").sum(),
        messages=pl.len(),
    )
    by_process = by_file.group_by(OWNER, maintain_order=True).agg(
        pl.col("source", "line", "last_line", "message").first(),
        pl.col("repeats").sum(),
        pl.col("rate", "share", "messages").max(),
    )
    by_process = by_process.filter(pl.col("repeats") >= LEAST)
    for (message, messages), rows in by_process.group_by("message", "messages", maintain_order=True):
        repeats, rate = int(rows["repeats"].sum()), float(rows["rate"].sum())
        what = "one line" if messages == 1 else f"{messages} lines in turn"
        often = f"{at_least(repeats)} times" + (f", {at_least(int(rate))} a second" if rate >= 1 else "")
        part = f"{max(rows['share'].to_list()):.0%} of the lines"
        where = f"lines {rows['line'][0]:,} to {rows['last_line'][0]:,} of the file, {part} read of it"
        finding = group_finding(
            rows,
            rank,
            f"{{processes}} repeated {what} at least {often}: {str(message)[:SHOWN]}",
            where if rows.height == 1 else f"up to {part} read of a file",
            "certain",
            role=Role.CONTEXT,
            explains=False,
        )
        if repeats >= MANY:
            finding.severity = Severity.WARNING
        yield finding
    alike = repeated_line.filter(pl.col("message").is_null()).join(source.select("source", "path"), on="source")
    for (path,), rows in alike.group_by("path", maintain_order=True):
        first, last, name = min(rows["line"]), max(rows["last_line"]), PurePath(str(path)).name
        yield Finding(
            f"{count_of(sum(rows['repeats']), 'line')} of {name} differ from others only in numbers",
            f"counted between lines {first:,} and {last:,}; the first and the last of each kind were examined",
            "certain",
            role=Role.CONTEXT,
            explains=False,
            evidence=evidence_lines(rows.select("source", "line"))[:1],
        )
