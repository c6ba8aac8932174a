"""Runs of nccl-tests and rccl-tests: which line belongs to which, and what was measured.

A run is told by its lines alone. Several may stand in one file: one after the other, or in one another where the test
was built without MPI and every process prints a table of its own. Rows that other processes' lines have torn apart are
put together again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Any

import polars as pl

from ncclforensics.data.busbw import DOUBLED, SHRUNK
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

OUT, IN = "out-of-place", "in-place"
HALVES = (OUT, IN)
FIGURES = ("time", "algbw", "busbw", "wrong")
MAGIC = ("version", "rccl", "compiled", "start", "json", "parameters", "devices")

BENCHMARK_LINE = {
    "benchmark": pl.Int32(),
    "row": pl.Int32(),  # of its table; several lines are one row where it was torn
    "half": pl.String(),  # which half a line with one half holds
    "frame": pl.String(),  # the frame that holds the line
    "source": pl.Int32(),
    "line": pl.Int32(),
}
MEASUREMENT = {
    "benchmark": pl.Int32(),
    "row": pl.Int32(),
    "half": pl.String(),  # out-of-place or in-place
    "size": pl.Int64(),  # bytes per rank, the larger of what it sends and receives
    "type": pl.Categorical(),
    "redop": pl.Categorical(),  # null where there is none
    "root": pl.Int64(),  # -1: the collective has none
    "occurrence": pl.Int32(),  # of this size, type, operation and root, where the sweep was repeated
    "time_us": pl.Float64(),  # time of one operation, in microseconds
    "algbw": pl.Float64(),  # GB/s
    "busbw": pl.Float64(),  # GB/s
    "wrong": pl.Float64(),  # elements; null where nothing was checked
    "deviation": pl.Float64(),  # the largest, where the version counts none (up to 2.12)
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the first piece
}
BENCHMARK = {
    "benchmark": pl.Int32(),
    "tool": pl.String(),
    "collective": pl.String(),  # as the program is called, without _perf; null where neither it nor the table tells
    "version": pl.String(),  # of nccl-tests, from 2.17.4 on
    "headers": pl.Int32(),  # NCCL's version code at compile time
    "library": pl.Int32(),  # and at run time
    "nranks": pl.Int64(),  # of the communicator, by the devices listed or by busbw / algbw
    "listed_devices": pl.Int64(),  # devices
    "communicators": pl.Int64(),  # communicators side by side
    "hosts": pl.List(pl.String()),
    "gpus": pl.List(pl.String()),  # models
    "parameters": pl.String(),  # the line that tells them, as it was read
    "min_bytes": pl.Int64(),
    "max_bytes": pl.Int64(),
    "step": pl.Int64(),
    "step_kind": pl.String(),  # factor or bytes
    "graph": pl.Int32(),
    "aggregated": pl.Int32(),  # operations that were launched together
    "is_checked": pl.Boolean(),  # some row has a count of wrong elements, or a deviation
    "rows": pl.Int64(),  # that hold a measurement
    "wrong": pl.Float64(),  # elements in all rows; null where nothing was checked
    "failed_checks": pl.Int64(),  # `Out of bounds values`
    "average": pl.Float64(),  # GB/s, as printed
    "is_below_minimum": pl.Boolean(),  # the average is below NCCL_TESTS_MIN_BW
    "is_complete": pl.Boolean(),  # the footer is there
    "max_busbw": pl.Float64(),  # GB/s, of both halves
    "max_size": pl.Int64(),  # the size it was measured at
    "last_size": pl.Int64(),  # of the last whole row
    "unfinished_size": pl.Int64(),  # the size whose measurement never came back, where the run was cut off
    "has_failed": pl.Boolean(),  # the test says that a call failed
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first
    "last_line": pl.Int32(),
}


@dataclass(slots=True)
class _Table:
    """A run whose footer has not been seen yet."""

    number: int
    seen: set[str] = field(default_factory=set)  # forms of lines
    parameters: str = ""
    rank: int = -1  # of the last device
    rows: int = 0
    size: int = -1  # of the last row
    is_paired: bool = True  # rows have two halves
    lacks: tuple[str, ...] = ()  # halves of the last row that are still to come
    failed: bool = False

    @property
    def is_opening(self) -> bool:
        return self.rank < 0 and "words" not in self.seen and not self.rows


class _Stream:
    """What one process prints, or what stands in one file where lines do not tell who printed them."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._open: list[_Table] = []
        self._last: _Table | None = None

    def _new(self) -> _Table:
        self._open = [table for table in self._open if not table.failed]
        self._open.append(_Table(next(self._numbers)))
        return self._open[-1]

    def take(self, event: dict[str, Any]) -> tuple[int | None, int | None, str | None]:
        """The run, the row and the half that a line belongs to."""
        frame, form = event["frame"], event["form"]
        if frame == "test_setting":
            return self._setting(event).number, None, None
        if frame == "test_device":
            return self._device(event["rank"]).number, None, None
        if frame == "table_head":
            return self._head(event).number, None, None
        if frame == "table_row":
            return self._row(form, event["size"])
        if frame == "row_rest":
            return self._rest(form)
        if frame == "test_end":
            table = self._end(form)
            return (table.number if table else None), None, None
        for table in self._open:
            table.failed = True
        newest = self._open[-1] if self._open else None
        return (newest.number if newest else None), None, None

    def _setting(self, event: dict[str, Any]) -> _Table:
        form = event["form"]
        opening = [one for one in self._open if one.is_opening and form not in one.seen]
        table = opening[0] if opening else self._new()
        table.seen.add(form)
        if form == "parameters":
            table.parameters = event["parameters"]
            # Copies of one run that stand in one another have the same ones; a run with others was started later.
            self._open = [one for one in self._open if one.parameters in ("", table.parameters)]
        return table

    def _device(self, rank: int) -> _Table:
        early = [one for one in self._open if "words" not in one.seen and not one.rows]
        following = [one for one in early if one.rank == rank - 1]
        table = following[0] if following else early[-1] if early and rank else self._new()
        table.rank = rank
        return table

    def _head(self, event: dict[str, Any]) -> _Table:
        form = event["form"] or "words"
        kind = form.split("_")[0]
        early = [one for one in self._open if kind not in one.seen and not one.rows]
        if kind == "units":
            early = [one for one in early if "words" in one.seen] or self._open[-1:]
        table = early[0] if early else self._new()
        table.seen |= {kind, form}
        if form == "words":
            table.is_paired = event["second"] is not None
        return table

    def _row(self, form: str, size: int) -> tuple[int, int, str | None]:
        begun = [one for one in reversed(self._open) if "words" in one.seen] or self._open[::-1]
        fitting = [one for one in begun if one.size < size]  # the one that has come nearest to it, and the newest
        table = max(fitting, key=lambda one: one.size) if fitting else begun[0] if begun else self._new()
        table.size = size
        table.rows += 1
        half = None
        match form:
            case "begun" | "cut" | "interrupted":
                table.lacks = HALVES if table.is_paired else HALVES[:1]
            case "half":
                half = IN if "banner_in" in table.seen else OUT
                table.lacks = HALVES[1:] if table.is_paired else ()
            case _:
                table.lacks = ()
        return table.number, table.rows, half

    def _rest(self, form: str) -> tuple[int | None, int | None, str | None]:
        table = next((one for one in reversed(self._open) if one.lacks), None)
        if table is None:
            return None, None, None
        half = table.lacks[0] if form == "half" else None
        table.lacks = table.lacks[1:] if form == "half" else ()
        return table.number, table.rows, half

    def _end(self, form: str) -> _Table | None:
        if form in ("concluded", "error"):
            return self._last
        judged = [one for one in self._open if "bounds" in one.seen]
        if form == "bounds":
            full = [one for one in reversed(self._open) if one not in judged]
            table = max(full, key=lambda one: one.rows) if full else self._new()
            table.seen.add(form)
            return table
        table = judged[0] if judged else self._open[-1] if self._open else self._new()
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
    """Every line of a run of nccl-tests, and the run that it belongs to."""
    told = {
        "test_setting": _with_parameters(test_setting),
        "test_device": test_device.drop_nulls("rank"),  # numbers too large for their column are null
        "table_head": table_head,
        "table_row": table_row.drop_nulls("size"),
        "row_rest": row_rest,
        "test_end": test_end,
        "test_failure": test_failure.filter(text_of("form") != "unwinding"),
    }
    wanted = ["source", "line", "pos", "launcher_rank", "launcher_node", "form"]
    more = ["rank", "second", "size", "parameters"]
    events = pl.concat(
        [
            rows.select(*wanted, *(name for name in more if name in rows.columns)).with_columns(
                text_of("form"), frame=pl.lit(frame)
            )
            for frame, rows in told.items()
        ],
        how="diagonal_relaxed",
    ).sort("pos", maintain_order=True)
    return pl.DataFrame(list(_assigned(events)), schema=BENCHMARK_LINE, orient="row")


def _with_parameters(test_setting: pl.DataFrame) -> pl.DataFrame:
    """What a run was asked for as one text, in `parameters`."""
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


def _assigned(events: pl.DataFrame) -> Iterator[tuple[Any, ...]]:
    numbers = iter(range(events.height))
    streams: dict[tuple[Any, ...], _Stream] = {}
    for event in events.iter_rows(named=True):
        place = event["source"], event["line"]
        if event["frame"] == "test_failure":  # of any rank of the run
            ours = [stream for (source, *_), stream in streams.items() if source == event["source"]]
        else:
            key = event["source"], event["launcher_rank"], event["launcher_node"]
            ours = [streams.setdefault(key, _Stream(numbers))]
        for stream in ours:
            benchmark, row, half = stream.take(event)
            if benchmark is not None:
                yield benchmark, row, half, event["frame"], *place


@analysis(MEASUREMENT, of=("table_row",))
def measurement(
    table_row: pl.DataFrame, row_rest: pl.DataFrame, table_head: pl.DataFrame, benchmark_line: pl.DataFrame
) -> pl.DataFrame:
    """What was measured: a row per size and half. Rows that were torn apart are whole again."""
    at = ["source", "line"]
    lines = benchmark_line.filter(pl.col("frame").is_in(["table_row", "row_rest"]))
    membership = ["benchmark", "row"]
    heads = table_head.join(benchmark_line.filter(pl.col("frame") == "table_head"), on=at).group_by("benchmark")
    units = heads.agg(
        unit=text_of("unit").drop_nulls().first(),
        is_early=pl.col("sized_early").is_not_null().any(),
        checked=text_of("checked").drop_nulls().first(),
    )
    rows = table_row.join(lines.filter(pl.col("frame") == "table_row"), on=at)
    begun = rows.select(*membership, *at, "size", "type", "redop", "root").unique(
        membership, keep="first", maintain_order=True
    )
    pieces = pl.concat(
        [rows, row_rest.join(lines.filter(pl.col("frame") == "row_rest"), on=at)], how="diagonal_relaxed"
    )
    left = pieces.filter(pl.col("busbw").is_not_null() | pl.col("wrong").is_not_null()).select(
        *membership, *FIGURES, half=pl.coalesce("half", pl.lit(OUT))
    )
    right = pieces.filter(pl.col("in_busbw").is_not_null() | pl.col("in_wrong").is_not_null()).select(
        *membership, *(pl.col(f"in_{name}").alias(name) for name in FIGURES), half=pl.lit(IN)
    )
    checked = text_of("wrong").cast(pl.Float64, strict=False)
    in_ms = (pl.col("unit") == "ms") | (pl.col("unit").is_null() & pl.col("is_early"))
    return (
        pl.concat([left, right], how="vertical_relaxed")
        .join(begun, on=membership)
        .join(units, on="benchmark", how="left")
        .with_columns(
            time_us=pl.when(in_ms.fill_null(False)).then(1000 * pl.col("time")).otherwise("time"),
            wrong=pl.when(pl.col("checked") == "#wrong").then(checked),
            deviation=pl.when(pl.col("checked") != "#wrong").then(checked),
        )
        .sort(*membership, pl.col("half") == IN)
        .with_columns(
            occurrence=pl.int_range(1, pl.len() + 1).over("benchmark", "half", "type", "redop", "root", "size")
        )
    )


@analysis(BENCHMARK, of=("test_setting", "test_device", "table_head", "table_row", "test_end"))
def benchmark(
    benchmark_line: pl.DataFrame,
    measurement: pl.DataFrame,
    test_setting: pl.DataFrame,
    test_command: pl.DataFrame,
    test_device: pl.DataFrame,
    test_note: pl.DataFrame,
    table_row: pl.DataFrame,
    test_end: pl.DataFrame,
) -> pl.DataFrame:
    """Runs of nccl-tests and rccl-tests, each with its table as a whole."""
    at = ["source", "line"]
    ours = benchmark_line.group_by("benchmark", maintain_order=True).agg(
        pl.col("source").first(),
        pl.col("line").first(),
        pl.col("line").last().alias("last_line"),
        has_failed=(pl.col("frame") == "test_failure").any(),
    )
    parts = {
        "test_setting": _with_parameters(test_setting),
        "test_device": test_device,
        "test_end": test_end,
        "table_row": table_row,
    }
    told = {
        frame: rows.join(benchmark_line.filter(pl.col("frame") == frame), on=at, how="inner", maintain_order="left")
        for frame, rows in parts.items()
    }
    settings = (
        told["test_setting"]
        .group_by("benchmark")
        .agg(
            pl.col("version", "headers", "library", "step", "step_kind", "graph", "parameters").drop_nulls().first(),
            *(pl.col(name).drop_nulls().first().alias(alias) for name, alias in _SETTINGS.items()),
            named=text_of("collective").drop_nulls().first(),
            is_amd=(text_of("form") == "rccl").any(),
        )
    )
    devices = (
        told["test_device"]
        .group_by("benchmark")
        .agg(
            text_of("host").unique().sort().alias("hosts"),
            pl.col("gpu").unique().sort().alias("gpus"),
            listed_devices=pl.len().cast(pl.Int64),
            communicators=pl.col("group").n_unique().cast(pl.Int64),
            last_rank=pl.col("rank").max().cast(pl.Int64),
        )
    )
    outcome = text_of("outcome")
    form = text_of("form")
    ends = (
        told["test_end"]
        .group_by("benchmark")
        .agg(
            failed_checks=pl.col("failed").drop_nulls().first(),
            average=pl.col("average").drop_nulls().first(),
            is_below_minimum=((form == "average") & (outcome == "FAILED")).any(),
            is_complete=(form == "average").any(),
            concluded=text_of("collective").drop_nulls().first(),
        )
    )
    best = measurement.filter(pl.col("busbw").is_finite()).sort("busbw", descending=True, maintain_order=True)
    peaks = best.group_by("benchmark", maintain_order=True).agg(
        max_busbw=pl.col("busbw").first(), max_size=pl.col("size").first()
    )
    tables = measurement.group_by("benchmark").agg(
        rows=pl.col("row").n_unique().cast(pl.Int64),
        wrong=pl.when(pl.col("wrong").is_not_null().any()).then(pl.col("wrong").sum()),
        is_checked=(pl.col("wrong").is_not_null() | pl.col("deviation").is_not_null()).any(),
        last_size=pl.col("size").last(),
        last_row=pl.col("row").max(),
        is_half=pl.col("half").filter(pl.col("row") == pl.col("row").max()).n_unique() == 1,
        is_paired=(pl.col("half") == IN).any() & (pl.col("half") == OUT).any(),
    )
    begun = (
        told["table_row"]
        .group_by("benchmark")
        .agg(begun_row=pl.col("row").max(), begun_size=pl.col("size").sort_by("row").last())
    )
    whole = ours
    for more in (settings, devices, ends, peaks, tables, begun):
        whole = whole.join(more, on="benchmark", how="left", maintain_order="left")
    commands = test_command.select("source", "line", typed=text_of("collective")).sort("source", "line")
    reduced = test_note.filter(pl.col("maxbytes").is_not_null()).select("source", "line", "maxbytes")
    rows = [_completed(row, measurement, commands, reduced) for row in whole.to_dicts()]
    return pl.DataFrame(rows, schema=BENCHMARK, orient="row").sort("source", "line")


_SETTINGS = {"minbytes": "min_bytes", "maxbytes": "max_bytes", "agg_iters": "aggregated"}


def _completed(
    row: dict[str, Any], measurement: pl.DataFrame, commands: pl.DataFrame, reduced: pl.DataFrame
) -> dict[str, Any]:
    """With what several lines tell only together."""
    ours = measurement.filter(pl.col("benchmark") == row["benchmark"])
    typed = commands.filter((pl.col("source") == row["source"]) & (pl.col("line") < row["line"]))["typed"]
    family = row["named"] or row["concluded"] or (typed[-1] if typed.len() else None)
    share = _shares(ours)
    row["collective"] = family or _by_table(ours, share)
    row["nranks"] = _nranks(row, share)
    row["tool"] = "rccl-tests" if row["is_amd"] else "nccl-tests"
    row["rows"] = row["rows"] or 0
    row["is_complete"] = bool(row["is_complete"])
    row["is_below_minimum"], row["is_checked"] = bool(row["is_below_minimum"]), bool(row["is_checked"])
    within = (pl.col("source") == row["source"]) & pl.col("line").is_between(row["line"], row["last_line"])
    if (less := reduced.filter(within)).height:
        row["max_bytes"] = less["maxbytes"][0]
    row["unfinished_size"] = None if row["is_complete"] else _unfinished(row)
    return {name: row[name] for name in BENCHMARK}


def _shares(ours: pl.DataFrame) -> tuple[float, float] | None:
    """Between what busbw / algbw lies, by how both are rounded."""
    told = ours.filter((pl.col("busbw") >= 1) & pl.col("algbw").is_finite() & pl.col("busbw").is_finite())
    if told.is_empty():
        return None
    low = (pl.col("busbw") - _rounding("busbw")) / (pl.col("algbw") + _rounding("algbw"))
    high = (pl.col("busbw") + _rounding("busbw")) / (pl.col("algbw") - _rounding("algbw"))
    least, most = told.select(low.max().alias("low"), high.min().alias("high")).row(0)
    return (least, most) if least <= most else None


def _rounding(name: str) -> pl.Expr:
    """How far a bandwidth may be from what is printed: two decimals, fewer of large ones from 2.17.3 on."""
    return pl.when(pl.col(name) < 1000).then(0.0051).when(pl.col(name) < 1e4).then(0.051).otherwise(0.51)


def _nranks(row: dict[str, Any], share: tuple[float, float] | None) -> int | None:
    """By the highest rank that is listed, or by the one number that explains the table."""
    if row["last_rank"] is not None and (row["communicators"] or 1) == 1:
        return int(row["last_rank"]) + 1
    if row["last_rank"] is not None or share is None:
        return None
    if row["collective"] in DOUBLED:
        low, high = (2 / (2 - min(value, 1.9999)) for value in share)
    elif row["collective"] in SHRUNK or share[1] < 1:
        low, high = (1 / (1 - min(value, 0.9999)) for value in share)
    else:
        return None
    return ceil(low) if ceil(low) == floor(high) else None


def _by_table(ours: pl.DataFrame, share: tuple[float, float] | None) -> str | None:
    """The collective that a table must be of, whose columns and arithmetic fit no other."""
    if share is None:
        return None
    reduces = ours["redop"].drop_nulls().cast(pl.String).ne("none").any()
    rooted = bool((ours["root"] >= 0).any())
    halves = {half: rows["wrong"].null_count() < rows.height for (half,), rows in ours.group_by("half")}
    is_alone = halves.get(OUT, False) and not halves.get(IN, True)  # checked out of place only
    if reduces and not rooted:
        return "all_reduce" if share[1] >= 1 else "reduce_scatter"
    if rooted and share[0] <= 1 <= share[1]:
        return "reduce" if reduces else "broadcast"
    if not reduces and not rooted and is_alone:
        return "sendrecv" if share[0] <= 1 <= share[1] else "alltoall" if share[1] < 1 else None
    return None


def _unfinished(row: dict[str, Any]) -> int | None:
    """The size that was being measured when the table ended."""
    if row["begun_row"] is not None and row["begun_row"] > (row["last_row"] or 0):
        return int(row["begun_size"])
    if row["rows"] and row["is_half"] and row["is_paired"]:
        return int(row["last_size"])
    if row["max_bytes"] is None or not row["step"]:
        return None
    if not row["rows"]:
        return None
    following = row["last_size"] * row["step"] if row["step_kind"] == "factor" else row["last_size"] + row["step"]
    return int(following) if row["last_size"] < following <= row["max_bytes"] else None
