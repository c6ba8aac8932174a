"""Lines of nccl-tests and rccl-tests: the run, and the row of its table, that each line belongs to.

Only the lines themselves show where a run begins. One file may hold several runs: one after the other, or interleaved
where the test was built without MPI and every process prints its own table. Other processes may tear a row into pieces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import polars as pl

from ncclforensics.data.busbw import HALVES, IN_PLACE, OUT_OF_PLACE
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

BENCHMARK_LINE = {
    "benchmark": pl.Int32(),
    "row": pl.Int32(),  # number of the table's row; several lines where the row was torn
    "half": pl.String(),  # out-of-place or in-place, where the line holds one of them
    "frame": pl.String(),  # the frame that holds the line
    "source": pl.Int32(),
    "line": pl.Int32(),
}


MOST_OPEN = 512  # runs whose output is mixed in one stream; of more, the oldest get no further lines


@dataclass(slots=True, eq=False)
class _Table:
    """A run whose footer has not been read yet."""

    number: int
    forms: set[str] = field(default_factory=set)  # of the lines read so far
    parameters: str = ""
    rank: int = -1  # of the last device
    rows: int = 0
    size: int = -1  # of the last row
    is_paired: bool = True  # rows have two halves
    missing_halves: tuple[str, ...] = ()  # of the last row
    has_failed: bool = False

    @property
    def is_before_table(self) -> bool:
        """No row, and no column heads yet."""
        return "words" not in self.forms and not self.rows

    @property
    def is_before_devices(self) -> bool:
        """Only settings so far."""
        return self.rank < 0 and self.is_before_table


class _Event(NamedTuple):
    """A line, with what assigns it to a run."""

    frame: str
    form: str
    source: int
    line: int
    launcher_rank: int | None
    launcher_node: str | None
    rank: int
    second: str | None
    size: int
    parameters: str


class _Stream:
    """Assign the lines that one process printed, or all lines of one file where lines have no launcher prefix."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._open: list[_Table] = []
        self._last: _Table | None = None

    def _start_table(self) -> _Table:
        self._open = [table for table in self._open if not table.has_failed]
        self._open = [*self._open[1 - MOST_OPEN :], _Table(next(self._numbers))]
        return self._open[-1]

    def assign(self, event: _Event) -> tuple[int | None, int | None, str | None]:
        """Return the numbers of run and row, and the half, that a line belongs to; the run is None if none is open."""
        frame, form = event.frame, event.form
        if frame == "test_setting":
            return self._assign_setting(event).number, None, None
        if frame == "test_device":
            return self._assign_device(event.rank).number, None, None
        if frame == "table_head":
            return self._assign_head(event).number, None, None
        if frame == "table_row":
            return self._assign_row(form, event.size)
        if frame == "row_rest":
            return self._assign_row_rest(form)
        if frame == "test_end":
            table = self._assign_end(form)
            return (table.number if table else None), None, None
        for table in self._open:
            table.has_failed = True
        newest = self._open[-1] if self._open else None
        return (newest.number if newest else None), None, None

    def _assign_setting(self, event: _Event) -> _Table:
        form = event.form
        candidates = [table for table in self._open if table.is_before_devices and form not in table.forms]
        table = candidates[0] if candidates else self._start_table()
        table.forms.add(form)
        if form == "parameters":
            table.parameters = event.parameters
            # Interleaved copies of one run have equal parameters; a run with different ones was started later.
            self._open = [other for other in self._open if other.parameters in ("", table.parameters)]
        return table

    def _assign_device(self, rank: int) -> _Table:
        candidates = [table for table in self._open if table.is_before_table]
        consecutive = [table for table in candidates if table.rank == rank - 1]
        table = consecutive[0] if consecutive else candidates[-1] if candidates and rank else self._start_table()
        table.rank = rank
        return table

    def _assign_head(self, event: _Event) -> _Table:
        form = event.form or "words"
        kind = form.split("_")[0]
        candidates = [table for table in self._open if kind not in table.forms and not table.rows]
        if kind == "units":
            candidates = [table for table in candidates if "words" in table.forms] or self._open[-1:]
        table = candidates[0] if candidates else self._start_table()
        table.forms |= {kind, form}
        if form == "words":
            table.is_paired = event.second is not None
        return table

    def _assign_row(self, form: str, size: int) -> tuple[int, int, str | None]:
        begun = [table for table in reversed(self._open) if "words" in table.forms] or self._open[::-1]
        smaller = [table for table in begun if table.size < size]
        # The row continues the table whose last size is nearest below its own; of equal ones the newest.
        table = max(smaller, key=lambda other: other.size) if smaller else begun[0] if begun else self._start_table()
        table.size = size
        table.rows += 1
        half = None
        match form:
            case "begun" | "cut" | "interrupted":
                table.missing_halves = HALVES if table.is_paired else HALVES[:1]
            case "half":
                half = IN_PLACE if "banner_in" in table.forms else OUT_OF_PLACE
                table.missing_halves = HALVES[1:] if table.is_paired else ()
            case _:
                table.missing_halves = ()
        return table.number, table.rows, half

    def _assign_row_rest(self, form: str) -> tuple[int | None, int | None, str | None]:
        table = next((table for table in reversed(self._open) if table.missing_halves), None)
        if table is None:
            return None, None, None
        half = table.missing_halves[0] if form == "half" else None
        table.missing_halves = table.missing_halves[1:] if form == "half" else ()
        return table.number, table.rows, half

    def _assign_end(self, form: str) -> _Table | None:
        if form in ("concluded", "error"):
            return self._last
        bounded = [table for table in self._open if "bounds" in table.forms]
        if form == "bounds":
            candidates = [table for table in reversed(self._open) if "bounds" not in table.forms]
            table = max(candidates, key=lambda other: other.rows) if candidates else self._start_table()
            table.forms.add(form)
            return table
        table = bounded[0] if bounded else self._open[-1] if self._open else self._start_table()
        self._open.remove(table)
        self._last = table
        return table


@analysis(BENCHMARK_LINE, of=("test_setting", "test_device", "table_head", "table_row", "test_end"))
def benchmark_line(
    test_setting: pl.DataFrame,
    test_device: pl.DataFrame,
    table_head: pl.DataFrame,
    table_row: pl.DataFrame,
    row_rest: pl.DataFrame,
    test_end: pl.DataFrame,
    test_failure: pl.DataFrame,
) -> pl.DataFrame:
    """One row per line of a run of nccl-tests: the run and the row of its table that it belongs to."""
    frames = {
        "test_setting": add_parameters(test_setting),
        "test_device": test_device.drop_nulls("rank"),  # numbers too large for their column are null
        "table_head": table_head,
        "table_row": table_row.drop_nulls("size"),
        "row_rest": row_rest,
        "test_end": test_end,
        "test_failure": test_failure.filter(text_of("form") != "unwinding"),
    }
    columns = ["source", "line", "pos", "launcher_rank", "launcher_node", "form"]
    optional = ["rank", "second", "size", "parameters"]
    events = pl.concat(
        [
            rows.select(*columns, *(name for name in optional if name in rows.columns)).with_columns(
                text_of("form"), frame=pl.lit(frame)
            )
            for frame, rows in frames.items()
        ],
        how="diagonal_relaxed",
    ).sort("pos", maintain_order=True)
    return pl.DataFrame(list(_assigned_lines(events)), schema=BENCHMARK_LINE, orient="row")


def add_parameters(test_setting: pl.DataFrame) -> pl.DataFrame:
    """Add `parameters`: the options of a run as one text."""
    names = [
        "nthread",
        "ngpus",
        "minbytes",
        "maxbytes",
        "step",
        "step_kind",
        "iters",
        "agg_iters",
        "validation",
        "graph",
    ]
    values = pl.concat_str([pl.col(name).cast(pl.String).fill_null("") for name in names], separator=" ")
    return test_setting.with_columns(parameters=pl.when(pl.col("nthread").is_not_null()).then(values))


def _assigned_lines(events: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
    numbers = iter(range(events.height))
    streams: dict[tuple[Any, ...], _Stream] = defaultdict(partial(_Stream, numbers))
    for event in map(_Event._make, events[:, _Event._fields].iter_rows()):
        if event.frame == "test_failure":  # may come from any rank of the run
            affected = [stream for (source, *_), stream in streams.items() if source == event.source]
        else:
            affected = [streams[event.source, event.launcher_rank, event.launcher_node]]
        for stream in affected:
            benchmark, row, half = stream.assign(event)
            if benchmark is not None:
                yield benchmark, row, half, event.frame, event.source, event.line
