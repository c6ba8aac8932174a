"""Find messages of NCCL and PyTorch inside other text: titles, sentences about them, records of another logger.

People quote the line that matters, and frameworks put it into errors of their own. A message counts only if it matches
a shape, as a line of its own would.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.parsing.matching import Matched, match
from ncclforensics.parsing.shortened_lines import read_shortened

PLACE = ["source", "line"]
MAX_LINES = 2_000  # lines with such a message that are read


def messages_inside(
    rows: pl.DataFrame, unknown: pl.DataFrame, matched: Sequence[Matched], dialect: Dialect
) -> pl.DataFrame:
    """Return the messages that stand inside lines of `unknown` and inside exceptions, as lines of their own.

    `rows`: all lines; `unknown`: those that match no shape; `matched`: what was found in them.
    """
    raised = [part.select(PLACE) for found in matched for part in found.frames.get(dialect.raised, [])]
    exceptions = rows.join(pl.concat(raised).unique(), on=PLACE, how="semi") if raised else rows.clear()
    lines = pl.concat([unknown, exceptions.select(unknown.columns)])
    parts = []
    for message in dialect.messages_inside:
        holding = lines.filter(pl.col("text").str.contains(message.start_regex)).head(MAX_LINES)
        if holding.is_empty():
            continue
        group = f"(?:{message.start_regex})(.*)$" if message.is_quoted else f"((?:{message.start_regex}).*)$"
        text = pl.col("text").str.extract(group).str.replace(f"(?:{message.end_regex})$", "").str.strip_chars(" ")
        texts = text.str.replace_all(f" +({dialect.record_regex})", "\n${1}").str.split("\n")
        split = holding.with_columns(text=texts).explode("text")
        parts.append(split.with_columns(text=pl.lit(message.prefix) + pl.col("text")))
    found = pl.concat(parts) if parts else lines.clear()
    return found.join(_unshaped(found, dialect), on=[*PLACE, "text"], how="anti", maintain_order="left")


def _unshaped(found: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return the messages that only shapes for lines of any text match (columns PLACE, `text`)."""
    general = {shape.frame for shape in dialect.shapes if shape.priority < 0}
    numbered = found.with_columns(line=pl.int_range(pl.len(), dtype=pl.Int32))  # one line may hold several
    frames = read_shortened(match(numbered, dialect).frames, dialect)
    shaped = [rows.select("line") for name, part in frames.items() if name not in general for rows in part]
    is_shaped = numbered["line"].is_in(pl.concat(shaped)["line"].implode()) if shaped else pl.lit(value=False)
    return found.filter(pl.lit(is_shaped).not_() if shaped else pl.lit(value=True)).select(*PLACE, "text")
