"""Find messages of NCCL and PyTorch inside other text: titles, sentences about them, records of another logger.

People quote the line that matters, and frameworks put it into errors of their own. A message counts only if it matches
a shape, as a line of its own would.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ncclforensics.grammar.dialect import Dialect, MessageInside
from ncclforensics.parsing.matching import Matched, match
from ncclforensics.parsing.shortened_lines import read_shortened

PLACE = ["source", "line"]
MAX_LINES = 2_000  # lines with such a message that are read


def messages_inside(
    rows: pl.DataFrame, unknown: pl.DataFrame, matched: Sequence[Matched], dialect: Dialect
) -> pl.DataFrame:
    """Return the messages that stand inside lines of `unknown` and inside exceptions, as lines of their own.

    `rows`: all lines; `unknown`: those that match no shape; `matched`: what was found in them. What an error of NCCL's
    calls quotes is NCCL's last warning, so that its text may be any.
    """
    lines = pl.concat([unknown, _lines_of(dialect.raised, rows, matched).select(unknown.columns)])
    parts = [part for message in dialect.messages_inside for part in _texts_inside(lines, message, dialect)]
    found = pl.concat(parts) if parts else lines.clear()
    shaped = found.join(_unshaped(found, dialect), on=[*PLACE, "text"], how="anti", maintain_order="left")
    quotes = [message for message in dialect.messages_inside if message.is_quoted]
    is_quote = pl.any_horizontal(pl.col("text").str.contains(message.start_regex) for message in quotes)
    if dialect.quotation is None or not quotes or (quoting := rows.filter(is_quote)).is_empty():
        return shaped
    inside = match(shaped.join(quoting, on=PLACE, how="semi"), dialect)
    errors = _lines_of(dialect.quotation.frame, quoting, [*matched, inside]).select(unknown.columns)
    announced = [part for message in quotes for part in _texts_inside(errors, message, dialect)]
    return pl.concat([shaped, *announced]).unique([*PLACE, "text"], maintain_order=True)


def texts_behind_bars(rows: pl.DataFrame, matched: Sequence[Matched], dialect: Dialect) -> pl.DataFrame:
    """Return what stands right behind progress bars, as lines of their own; `rows`: all lines."""
    if (bars := _lines_of(dialect.bar, rows, matched)).is_empty():
        return bars
    text = pl.col("text").str.extract(f"^(?:{dialect.bar_end_regex})(.+)$")
    return _one_record_each(bars.with_columns(text=text).drop_nulls("text"), dialect)


def _one_record_each(lines: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return lines of which some hold several records of another logger, as a line for each."""
    texts = pl.col("text").str.replace_all(f" +({dialect.record_regex})", "\n${1}").str.split("\n")
    return lines.with_columns(text=texts).explode("text").filter(pl.col("text") != "")


def _lines_of(frame: str, rows: pl.DataFrame, matched: Sequence[Matched]) -> pl.DataFrame:
    """Return the lines that a frame was read from."""
    places = [part.select(PLACE) for found in matched for part in found.frames.get(frame, [])]
    return rows.join(pl.concat(places).unique(), on=PLACE, how="semi") if places else rows.clear()


def _texts_inside(lines: pl.DataFrame, message: MessageInside, dialect: Dialect) -> list[pl.DataFrame]:
    """Return the messages of one kind inside of lines, as lines of their own."""
    # To make the search ready takes longer than a search in a few lines.
    if lines.is_empty() or (holding := lines.filter(pl.col("text").str.contains(message.start_regex))).is_empty():
        return []
    group = f"(?:{message.start_regex})(.*)$" if message.is_quoted else f"((?:{message.start_regex}).*)$"
    text = pl.col("text").str.extract(group).str.replace(f"(?:{message.end_regex})$", "").str.strip_chars(" ")
    split = _one_record_each(holding.head(MAX_LINES).with_columns(text=text), dialect)
    return [split.with_columns(text=pl.lit(message.prefix) + pl.col("text"))]


def _unshaped(found: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return the messages that only shapes for lines of any text match (columns PLACE, `text`)."""
    general = {shape.frame for shape in dialect.shapes if shape.priority < 0}
    numbered = found.with_columns(line=pl.int_range(pl.len(), dtype=pl.Int32))  # one line may hold several
    frames = read_shortened(match(numbered, dialect).frames, dialect)
    shaped = [rows.select("line") for name, part in frames.items() if name not in general for rows in part]
    is_shaped = numbered["line"].is_in(pl.concat(shaped)["line"].implode()) if shaped else pl.lit(value=False)
    return found.filter(pl.lit(is_shaped).not_() if shaped else pl.lit(value=True)).select(*PLACE, "text")
