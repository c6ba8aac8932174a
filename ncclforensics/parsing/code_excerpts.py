"""Find the lines of a program's text that tracebacks show below their calls: what they hold was not printed as such.

`raise RuntimeError("CUDA error: …")` names an error that the program may raise there, not one that came about.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.inputs.lines import cleaned
from ncclforensics.parsing.matching import Matched

PLACE = ["source", "line"]
DEEPER = "  "  # than the line of the call, behind the tag of a launcher
RAISES = "raise "  # begins a line of code also where a copy lost the indentation
SHAFT, HEAD = "-", "> "  # of the arrow of a notebook at the line that was running
MOST_LINES = 16  # of a statement: Python 3.13 prints all of them, and notebooks some around it


def without_code(
    rows: pl.DataFrame, matched: Sequence[Matched], dialect: Dialect
) -> tuple[list[Matched], pl.DataFrame]:
    """Take what was read of lines of code out of `matched`, whose lines count as unknown; return their places, too."""
    code = _code_lines(rows, matched, dialect)
    if code.is_empty():
        return list(matched), code
    return [_without(rows, found, code) for found in matched], code


def _code_lines(rows: pl.DataFrame, matched: Sequence[Matched], dialect: Dialect) -> pl.DataFrame:
    """The lines below a call (columns PLACE) that are indented deeper than it is, or raise an exception."""
    pieces = [
        piece.select(PLACE) for found in matched for name in dialect.calls for piece in found.frames.get(name, [])
    ]
    if not pieces:
        return rows.select(PLACE).clear()
    places = pl.concat(pieces).unique()
    start = pl.col("text").str.splitn(dialect.call_mark, 2).struct.field("field_0")
    is_marked = pl.col("text").str.contains(dialect.call_mark, literal=True)
    calls = cleaned(rows.join(places, on=PLACE, how="semi")).select(
        *PLACE,
        start=pl.when(is_marked).then(start).otherwise(pl.lit("")),  # notebooks print their calls without tags
    )
    found = [rows.select(PLACE).clear()]
    for distance in range(1, MOST_LINES + 1):
        below = rows.join(calls.with_columns(pl.col("line") + distance), on=PLACE).join(places, on=PLACE, how="anti")
        below = cleaned(below)
        text, start = pl.col("text"), pl.col("start")
        is_running = text.str.starts_with(SHAFT) & text.str.strip_chars_start(SHAFT).str.starts_with(HEAD)
        is_code = text.str.starts_with(start + DEEPER) | text.str.starts_with(start + RAISES) | is_running
        below = below.filter(is_code)
        if below.is_empty():
            break
        found.append(below.select(PLACE))
        calls = below.select("source", pl.col("line") - distance, "start")
    return pl.concat(found).unique()


def _without(rows: pl.DataFrame, matched: Matched, code: pl.DataFrame) -> Matched:
    known = matched.known.join(code, on=PLACE, how="anti", maintain_order="left")
    if known.height == matched.known.height:
        return matched
    frames = {
        name: [piece.join(code, on=PLACE, how="anti", maintain_order="left") for piece in pieces]
        for name, pieces in matched.frames.items()
    }
    read = matched.known.select(PLACE).join(code, on=PLACE, how="semi")
    unknown = rows.join(read, on=PLACE, how="semi", maintain_order="left").select(matched.unknown.columns)
    return Matched(frames, known, pl.concat([matched.unknown, unknown]))
