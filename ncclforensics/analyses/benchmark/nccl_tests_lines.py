"""Lines of nccl-tests and rccl-tests: the run, and the row of its table, that each line belongs to.

Only the lines themselves show where a run begins. One file may hold several runs: one after the other, or interleaved
where the test was built without MPI and every process prints its own table. Other processes may tear a row into pieces.

A test that is repeated prints the same lines again but for what it measured. So the lines are cut after the last line
of each run, and of pieces that are the same one is assigned line by line.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import polars as pl

from ncclforensics.data.busbw import HALVES, IN_PLACE, OUT_OF_PLACE
from ncclforensics.frames.columns import LINE, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.parsing.templates import distinct_rows

BENCHMARK_LINE = {
    "benchmark": pl.Int32(),
    "row": pl.Int32(),  # number of the table's row; several lines where the row was torn
    "half": pl.Categorical(),  # out-of-place or in-place, where the line holds one of them
    "frame": pl.Categorical(),  # the frame that holds the line
    **LINE,
}


STREAM = ["source", "launcher_rank", "launcher_node"]
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
    """What assigns a line to a run."""

    frame: str
    form: str
    rank: int
    second: str | None
    size: int
    parameters: str


_Assigned = tuple[
    int | None, int | None, str | None
]  # the number of a run in its stream, the row of its table, the half


class _Stream:
    """Assign the lines that one process printed, or all lines of one file where lines have no launcher prefix."""

    def __init__(self) -> None:
        self.count = 0  # of runs begun so far
        self.last: int | None = None  # the run that ended last
        self._open: list[_Table] = []

    @property
    def is_idle(self) -> bool:
        """Whether no run is open."""
        return not self._open

    def _start_table(self) -> _Table:
        self._open = [table for table in self._open if not table.has_failed]
        self._open = [*self._open[1 - MOST_OPEN :], _Table(self.count)]
        self.count += 1
        return self._open[-1]

    def assign(self, event: _Event) -> _Assigned:
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
            return self._assign_end(form), None, None
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

    def _assign_end(self, form: str) -> int | None:
        if form in ("concluded", "error"):
            return self.last
        bounded = [table for table in self._open if "bounds" in table.forms]
        if form == "bounds":
            candidates = [table for table in reversed(self._open) if "bounds" not in table.forms]
            table = max(candidates, key=lambda other: other.rows) if candidates else self._start_table()
            table.forms.add(form)
            return table.number
        table = bounded[0] if bounded else self._open[-1] if self._open else self._start_table()
        self._open.remove(table)
        self.last = table.number
        return table.number


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
    found = [_kinds(rows, frame) for frame, rows in frames.items()]
    before = [0, *accumulate(kinds.height for kinds, _ in found)]
    kinds = pl.concat([kinds for kinds, _ in found], how="diagonal_relaxed").select(_Event._fields)
    lines = pl.concat([rows.with_columns(pl.col("kind") + nth) for (_, rows), nth in zip(found, before, strict=False)])
    lines = _assigned(_in_pieces(_with_streams(lines.sort("pos", maintain_order=True), kinds), kinds), kinds)
    lines = _sorted(lines.drop("piece", "place").drop_nulls("table"), "number", "stream")
    _, benchmark = distinct_rows(lines, ["stream", "table"])
    return lines.with_columns(benchmark=benchmark, frame=kinds["frame"][lines["kind"]])


def _kinds(rows: pl.DataFrame, frame: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Lines that nothing tells apart for `_Stream.assign`, one of each kind; and of all lines the kind."""
    names = [name for name in _Event._fields if name in rows.columns]
    kinds, kind = distinct_rows(
        rows.select(names).with_columns(text_of("form"), frame=pl.lit(frame, dtype=BENCHMARK_LINE["frame"])), names
    )
    return kinds, rows.select(*STREAM, "line", "pos", kind=kind)


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


def _with_streams(lines: pl.DataFrame, kinds: pl.DataFrame) -> pl.DataFrame:
    """Lines in the order of their streams (`stream`, `number`); a failure may be of any run of its file."""
    lines = lines.with_row_index("number")
    is_failure = (kinds["frame"] == "test_failure")[lines["kind"]]
    failures, lines = lines.filter(is_failure), lines.filter(~is_failure) if is_failure.any() else lines
    _, stream = distinct_rows(lines, STREAM)
    lines = lines.with_columns(stream=stream)
    begun = lines.group_by("source", "stream").agg(begun=pl.col("number").first())
    failures = failures.join(begun, on="source").filter(pl.col("number") > pl.col("begun")).select(lines.columns)
    return _sorted(pl.concat([lines, failures]).drop(STREAM[1:], "pos"), "stream", "number")


def _sorted(lines: pl.DataFrame, first: str, second: str) -> pl.DataFrame:
    """Lines sorted by these columns; most often they are, in one stream: then by the first one, and so by both."""
    return lines if lines[first].is_sorted() and lines["number"].is_sorted() else lines.sort(first, second)


def _in_pieces(lines: pl.DataFrame, kinds: pl.DataFrame) -> pl.DataFrame:
    """Add `piece`, which ends with the end of a run, and `place`, the number of a line in its piece."""
    is_end, index = (kinds["frame"] == "test_end")[lines["kind"]], pl.int_range(pl.len(), dtype=pl.UInt32)
    begins = (lines["stream"] != lines["stream"].shift()).fill_null(value=True) | (~is_end & is_end.shift())
    lines = lines.with_columns(piece=begins.cum_sum() - 1)
    return lines.with_columns(place=index - begins.arg_true()[lines["piece"]])


def _assigned(lines: pl.DataFrame, kinds: pl.DataFrame) -> pl.DataFrame:
    """Add to lines in pieces `table`, the number of their run in its stream, `row` and `half`."""
    events = [*map(_Event._make, kinds.iter_rows())]
    key = lines[:, ["kind", "place"]].hash_rows().alias("key")
    in_pieces = lines[:, ["piece", "stream"]].hstack([key]).set_sorted("piece").group_by("piece", maintain_order=True)
    pieces = in_pieces.agg(pl.col("stream").first(), pl.len(), pl.col("key").sum())
    streams: dict[int, _Stream] = defaultdict(_Stream)
    known: dict[tuple[int | None, ...], tuple[int, int, int | None]] = {}
    assigned: list[_Assigned] = []
    starts, counts, start = [], [], 0
    for stream, length, key in pieces.select("stream", "len", "key").iter_rows():
        state = streams[stream]
        counts.append(count := state.count)
        same = (key, length, None if state.last is None else count - state.last)
        if state.is_idle and same in known:
            first, begun, since = known[same]
            state.count += begun
            state.last = None if since is None else state.count - since
        else:
            first, was_idle = len(assigned), state.is_idle
            for kind in lines["kind"].slice(start, length):
                table, row, half = state.assign(events[kind])
                assigned.append((None if table is None else table - count, row, half))
            if was_idle and state.is_idle:
                known[same] = first, state.count - count, None if state.last is None else state.count - state.last
        starts.append(first)
        start += length
    columns = {"table": pl.Int32(), "row": BENCHMARK_LINE["row"], "half": BENCHMARK_LINE["half"]}
    found = pl.DataFrame(assigned, schema=columns, orient="row")
    of_piece = pl.DataFrame({"first": starts, "count": counts}, schema=dict.fromkeys(("first", "count"), pl.Int32()))
    of_line = of_piece[lines["piece"]]
    return lines.hstack(found[of_line["first"] + lines["place"]]).with_columns(pl.col("table") + of_line["count"])
