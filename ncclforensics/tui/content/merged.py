"""The content of the merged screen: the lines of all files in one order, by time or by position in the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from ncclforensics.analyses.job.calls.calls import describe_calls
from ncclforensics.errors import UsageError
from ncclforensics.frames.protocol import Frames
from ncclforensics.frames.time_range import as_time
from ncclforensics.inputs.logfile import LogFile
from ncclforensics.report.build import Report
from ncclforensics.tui.content.evidence import Citer
from ncclforensics.tui.content.logs import LineFilter

MOST_LINES = 1_000_000  # of all files; of each file its share, from its end
FEWEST_LINES = 100  # of each file
MOST_ROUNDS = 30  # of levelling; ranks that deadlock in a cycle have no common order
YEAR = 2000  # assumed for clocks without a year
BEFORE_CALLS = -1  # level of lines before the first call of their process
_PROCESS = ("source", "host", "pid")


class Order(StrEnum):
    """How the lines of different ranks are brought into one order."""

    TIME = "time, by each host's own clock"
    POSITION = "position in the program: ranks in the same collective stand together"


@dataclass(frozen=True, slots=True)
class MergedLog:
    """The lines of all files. Columns: source, line, text, host, rank, time, level (see `_levels`)."""

    lines: pl.DataFrame
    omitted_lines: int  # before the first line of a file that is shown

    @property
    def has_times(self) -> bool:
        """Whether any line has a time."""
        return self.lines["time"].null_count() < self.lines.height

    def ordered(self, order: Order, line_filter: LineFilter) -> pl.DataFrame:
        """Return the lines that pass a filter, in this order."""
        keys = ["time" if order is Order.TIME else "level", "rank", "source", "line"]
        return self.lines.filter(_condition(line_filter)).sort(keys, nulls_last=False)


class Merger:
    """Merges the lines of a report once they are asked for."""

    def __init__(self, report: Report, citer: Citer) -> None:
        self._report, self._names = report, citer.names

    def name(self, source: int) -> str:
        """Return the name of a source."""
        return self._names[source]

    def merge(self, is_active: Callable[[], bool] = lambda: True) -> MergedLog:
        """Read the ends of all files and bring their lines together with processes, times and levels."""
        run = self._report.run
        readable = [reading for reading in run.inputs if not reading.source.problem and not reading.is_document]
        share = max(FEWEST_LINES, MOST_LINES // max(1, len(readable)))
        parts, omitted = [pl.DataFrame(schema=_TEXTS)], 0
        for reading in readable:
            if not is_active():
                break
            file = LogFile(reading.source)
            file.grow(is_active)
            rows = file.last_lines(share)
            omitted += file.lines - rows.height
            parts.append(rows.select(pl.lit(reading.number, pl.Int32).alias("source"), "line", "text"))
            file.close()
        return MergedLog(_with_places(pl.concat(parts), run), omitted)


_TEXTS = {"source": pl.Int32(), "line": pl.Int32(), "text": pl.String()}


def build_merger(report: Report, citer: Citer) -> Merger:
    """Prepare merging, which is done when the screen is opened."""
    return Merger(report, citer)


def _with_places(lines: pl.DataFrame, run: Frames) -> pl.DataFrame:
    """Add process, rank, time and level. A line that no pattern recognised belongs to what was printed before it."""
    process = [pl.col(name).forward_fill().backward_fill().over("source") for name in ("host", "pid")]
    calls = _levels(run).select("source", "line", "level").unique(["source", "line"])
    ranks = run["rank"].group_by(_text("host"), "pid").agg(pl.col("rank").min())
    placed = lines.join(_parsed(run), on=["source", "line"], how="left", maintain_order="left")
    placed = placed.with_columns(process).join(calls, on=["source", "line"], how="left", maintain_order="left")
    placed = placed.with_columns(
        time=pl.col("time").forward_fill().over(_PROCESS),
        level=pl.col("level").forward_fill().cum_max().over(_PROCESS).fill_null(BEFORE_CALLS),
    )
    return placed.join(ranks, on=["host", "pid"], how="left", maintain_order="left")


def _text(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String)


def _parsed(run: Frames) -> pl.DataFrame:
    """Return the process and the time of every recognised line."""

    def rows() -> Iterator[pl.DataFrame]:
        for shape in run.dialect.with_all_formats.shapes:
            if not run.has(shape.frame):
                continue
            frame = run[shape.frame]
            if not {"host", "pid"} <= set(frame.columns):
                continue
            clocks = [_text(clock) for clock in ("stamp", "launcher_time") if clock in frame.columns]
            time = as_time(pl.coalesce(clocks), YEAR) if clocks else pl.lit(None, pl.Datetime("us"))
            yield frame.select("source", "line", host=_text("host"), pid="pid", time=time)

    schema = {"source": pl.Int32(), "line": pl.Int32(), "host": pl.String(), "pid": pl.Int32()}
    empty = pl.DataFrame(schema={**schema, "time": pl.Datetime("us")})
    return pl.concat([empty, *rows()]).unique(["source", "line"], keep="first")


def _levels(run: Frames) -> pl.DataFrame:
    """Return the calls with a level: higher than that of any earlier call of the rank, equal within a collective."""
    calls = describe_calls(run["call"], run["call_line"], run["member"])
    calls = calls.select("source", "line", "rank_id", "key", "nth", "pos").sort("rank_id", "pos")
    place = pl.int_range(pl.len(), dtype=pl.Int32).over("rank_id")
    calls = calls.with_columns(place=place, level=place)
    in_collective = pl.when(pl.col("nth").is_null()).then("level").otherwise(pl.col("level").max().over("key", "nth"))
    for _ in range(MOST_ROUNDS):
        raised = calls.with_columns(level=in_collective)
        later = (pl.col("level") - pl.col("place")).cum_max().over("rank_id") + pl.col("place")
        raised = raised.with_columns(level=later)
        if raised["level"].equals(calls["level"]):
            break
        calls = raised
    return calls


def _condition(line_filter: LineFilter) -> pl.Expr:
    """Return whether a line passes a filter. Raises UsageError for a condition that merged lines do not know."""
    if line_filter.family:
        raise UsageError("family: filters only on the log screen; here are rank:0-7 host:NAME level:warn and a text")
    passes = pl.lit(True)
    if line_filter.ranks:
        passes &= pl.col("rank").is_in(list(line_filter.ranks))
    if line_filter.host:
        passes &= pl.col("host") == line_filter.host
    return passes if line_filter.of_text is None else passes & line_filter.of_text
