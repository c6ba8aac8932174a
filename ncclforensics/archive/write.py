"""Save a run: its frames, the lines that findings cite, and a manifest of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from ncclforensics import __version__
from ncclforensics.archive import manifest, parquet
from ncclforensics.frames.registry import analyses
from ncclforensics.parsing.parser import COUNTS
from ncclforensics.report.build import Report

MOST_COMPUTED = 1_000_000  # rows; a larger computed frame is computed again when it is needed


def save(report: Report, path: Path) -> None:
    """Write everything that a later analysis needs instead of the files."""
    run = report.run
    parsed = [shape.frame for shape in run.dialect.with_all_formats.shapes]
    rows = {name: run[name].height for name in [*parsed, "speaker", "repeated_line", *analyses()]}
    rows = {name: height for name, height in rows.items() if name not in run.broken}
    kept: dict[str, Callable[[], pl.DataFrame]] = {
        name: partial(run.__getitem__, name)
        for name, height in rows.items()
        if height and (name not in analyses() or (height <= MOST_COMPUTED and not analyses()[name].is_step))
    }
    cited = [(source, line, text) for (source, _), (line, text) in report.quotes.items()]
    lines = pl.DataFrame(cited, schema=parquet.CITED_COLUMNS, orient="row").unique().sort("source", "line")
    contents = {
        "schema": manifest.SCHEMA,
        "tool": {"name": "ncclforensics", "version": __version__},
        "made_by": manifest.fingerprint(),
        "inputs": [_input(report, number) for number in range(len(run.inputs))],
        "frames": rows,
    }
    manifest.write(path, contents, {**kept, parquet.CITED: lambda: lines})


def _input(report: Report, number: int) -> dict[str, Any]:
    reading = report.run.inputs[number]
    counted = {row["source"]: row for row in report.run.tally.to_dicts()}.get(number, {})
    return {
        "path": reading.source.path,
        "kind": report.run.kinds.get(number, "application"),
        "bytes": reading.source.size,
        "sha256": report.hashes.get(number, ""),
        **{name: counted.get(name, 0) for name in COUNTS},
        "problems": reading.problems,
        "rank_hint": reading.source.rank_hint,
        "lines_read": reading.lines_read,
        "is_cut": reading.is_cut,
        "is_binary": reading.is_binary,
        "is_document": reading.is_document,
        "last_time": reading.last_time,
    }
