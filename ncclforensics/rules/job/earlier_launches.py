"""Launches that ended before the one that is judged."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule


@rule(Category.APPLICATION_ERROR, Severity.INFO, of=("earlier_launch",), hang=True, role=Role.CONTEXT)
def app_launched_again(earlier_launch: pl.DataFrame) -> Iterator[Finding]:
    """A log holds an earlier launch of the program, which ended before the one that is judged.

    Means: a queue, a retry or a user started the program again, and its output was appended to the same file, or Ray
    Train its workers; or a folder keeps the output of each launch in a file of its own. What the earlier launch printed
    is no sign of what happened to the later one, and is left out.
    Not when: one launch goes on: its ranks and nodes share a log, and do not all end at once; attempts of torchrun's
    own, which it numbers. Files are of several launches only by times that are printed, an hour apart at least.
    Do: if the earlier launch is the one in question, cut the file above the cited line, or give its file alone, and ask
    again.
    Sources: sbatch(1) --requeue and --open-mode; torch/distributed/run.py; vllm/entrypoints/openai/api_server.py.
    """
    for row in earlier_launch.iter_rows(named=True):
        cited = {"failure_line": "its error", "end_line": "its end", "line": "the next launch"}
        if row["line"] is None:
            title = "the launch in this file had ended before that in another one began"
            judged = "what this one printed is not judged"
        else:
            again = f"the program was started again at line {row['line']}"
            title = f"{again}, after an earlier launch in the same file had ended"
            judged = "only what stands from that line on is judged"
        yield Finding(
            title,
            judged,
            "likely",
            evidence=[Line(row["source"], row[name], what) for name, what in cited.items() if row[name] is not None],
        )
