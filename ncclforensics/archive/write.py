"""Save a run: its frames, the lines that findings cite, and a manifest of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from ncclforensics import __version__
from ncclforensics.archive import manifest, parquet, small_frames
from ncclforensics.data.names import NO_KIND
from ncclforensics.frames.protocol import Frames
from ncclforensics.frames.registry import analyses
from ncclforensics.parsing.parser import COUNTS
from ncclforensics.report.build import Report
from ncclforensics.report.saved_tables import saved_tables
from ncclforensics.rules.finding import Line

MOST_COMPUTED = 1_000_000  # rows; a larger computed frame is computed again when it is needed
# Rows at both ends of each parsed frame of each input whose lines are kept as text: together with other saved runs,
# findings may cite lines that no finding cites here.
QUOTED_FIRST, QUOTED_LAST = 8, 64
STACKS = ("gdb", "pyspy", "faulthandler", "stackdumps")  # grammars whose lines may show values of variables: not quoted


def save(report: Report, path: Path, *, with_tables: bool = False, with_analyses: bool = True) -> None:
    """Write everything that a later analysis needs instead of the files; with tables for other programs, if wanted.

    Without analyses, only what was parsed is written, and nothing is computed.
    """
    run = report.run
    shapes = run.dialect.with_all_formats.shapes
    parsed = [shape.frame for shape in shapes]
    computed = analyses() if with_analyses else ()
    others = ("speaker", "voice", "repeated_line", "earlier_launch", "calls_between")
    rows = {name: run[name].height for name in [*parsed, *others, *computed]}
    rows = {name: height for name, height in rows.items() if height and name not in run.broken}
    unquoted = {"calls_between", *analyses(), *(shape.frame for shape in shapes if shape.grammar in STACKS)}
    report.cite(_quotable(run, [name for name in rows if name not in unquoted]))
    cited = [(source, line, in_file, text) for (source, line), (in_file, text) in report.quotes.items() if text]
    lines = pl.DataFrame(cited, schema=parquet.CITED_COLUMNS, orient="row").unique().sort("source", "line")
    kept: dict[str, Callable[[], pl.DataFrame]] = {
        name: partial(run.__getitem__, name)
        for name, height in rows.items()
        if name not in analyses() or (height <= MOST_COMPUTED and not analyses()[name].is_step)
    }
    kept[parquet.CITED] = lambda: lines
    small = small_frames.pack({name: kept[name]() for name in kept if rows.get(name, lines.height) <= small_frames.FEW})
    packed = sorted(small["frame"].unique())
    files = {name: partial(_without_nulls, made) for name, made in kept.items() if name not in packed}
    inputs = [_input(report, number) for number in range(len(run.inputs))]
    is_counted = any(entry["is_read_through"] for entry in inputs)
    contents = {
        "schema": manifest.SCHEMA if is_counted else manifest.SCHEMA_OF_EVERY_CALL,
        "tool": {"name": "ncclforensics", "version": __version__},
        "made_by": manifest.fingerprint() if with_analyses else "",  # whose computed frames are used as they are
        "inputs": inputs,
        "frames": rows,
        "small_frames": packed,
        "broken": sorted(run.broken),
    }
    tables = saved_tables(report) if with_tables else {}
    manifest.write(path, contents, {**files, small_frames.NAME: lambda: small}, tables)


def _quotable(run: Frames, parsed: Iterable[str]) -> Iterator[Line]:
    """The first and last lines of each of these frames in each input."""
    for name in parsed:
        of_source = run[name].select("source", "line").group_by("source", maintain_order=True)
        ends = pl.concat([of_source.head(QUOTED_FIRST), of_source.tail(QUOTED_LAST)])
        yield from (Line(source, line) for source, line in ends.unique().iter_rows())


def _without_nulls(made: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    """The frame without the columns that hold nothing; most frames have more of these than others."""
    rows = made()
    return rows.select(column for column in rows if column.null_count() < rows.height)


def _input(report: Report, number: int) -> dict[str, Any]:
    reading = report.run.inputs[number]
    counted = {row["source"]: row for row in report.run.tally.to_dicts()}.get(number, {})
    return {
        "path": reading.source.path,
        "kind": report.run.kinds.get(number, NO_KIND),
        "bytes": reading.source.size,
        "sha256": report.hashes.get(number, ""),
        **{name: counted.get(name, 0) for name in COUNTS},
        "problems": reading.problems,
        "rank_hint": reading.source.rank_hint,
        "lines_read": reading.lines_read,
        "is_cut": reading.is_cut,
        "is_read_through": reading.is_read_through,
        "outputs_dropped": reading.outputs_dropped,
        "is_binary": reading.is_binary,
        "is_document": reading.is_document,
        "last_time": reading.last_time,
        **(reading.source.state._asdict() if reading.source.state else {}),
    }
