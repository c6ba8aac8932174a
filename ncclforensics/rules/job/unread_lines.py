"""Lines that state an error and that no pattern knows, where nothing else was found."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

STATED = ["level", "words"]
MAX_STATEMENT = 200  # characters of a line in a title
MOST_FUNCTIONS = 2  # of a stack


@rule(Category.APPLICATION_ERROR, Severity.INFO, of=("unread_error",), hang=True, last=True)
def unread_error_line(unread_error: pl.DataFrame, verdict: pl.DataFrame) -> Iterator[Finding]:
    """Lines state an error, no pattern of this program knows them, and nothing else was found.

    Means: the line says what failed, in the words of the program that printed it; what follows from it for the job is
    not known here. A line with the level of an error is quoted before one with the words alone. Of the stack of a C++
    exception, the functions alone are known.
    Not when: the words stand in a sentence about something else; the job ended well; anything else was found, which
    leaves this out.
    Do: read the cited lines and those around them as they stand, the first in time before all others.
    Sources: the levels of Python's logging, of glog and of syslog; c10/util/Backtrace.cpp.
    """
    if (verdict["verdict"] == "no-hang").any():
        return
    of_form = text_of("form")
    stated = unread_error.filter(of_form.is_in(STATED)).sort(of_form == "words", "pos")
    stack = unread_error.filter(of_form == "stack").sort("pos")
    if not stated.is_empty():
        quoted = stated.select(pl.coalesce(text_of("stated_by_level"), text_of("stated_by_words"))).item(0, 0)
        text = str(quoted).strip()
        text = text if len(text) <= MAX_STATEMENT else text[:MAX_STATEMENT] + "…"
        title, rows = f"a line that no pattern knows states an error: {text}", stated
        more = f"; {count_of(stated.height - 1, 'more line')} like it" if stated.height > 1 else ""
        detail = f"what follows from it is not known here{more}"
    elif not stack.is_empty():
        functions = stack["stack_function"].cast(pl.String).unique(maintain_order=True)[:MOST_FUNCTIONS]
        title = f"the stack of a C++ exception stands here, and not what it says: it came through {functions[0]}"
        detail, rows = f"called from {', '.join(functions[1:])}" if len(functions) > 1 else "", stack
    else:
        return
    yield Finding(
        title=f"{_printer(rows)}{title}",
        detail=detail,
        certainty="certain",
        role=Role.CONTEXT,
        evidence=evidence_lines(rows)[:4],
    )


def _printer(rows: pl.DataFrame) -> str:
    """Name the process that a launcher's tag in front of the first line names, if one does."""
    first = rows.row(0, named=True)
    rank, pid, node = (first.get(f"launcher_{name}") for name in ("rank", "pid", "node"))
    process = f"rank {rank}" if rank is not None else f"process {pid}" if pid is not None else ""
    return " on ".join(filter(None, (process, node))) + ": " * bool(process or node)
