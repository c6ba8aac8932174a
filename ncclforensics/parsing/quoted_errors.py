"""Read lines without NCCL's prefix: its last warning, as other programs quote it, and messages in excerpts.

PyTorch prints `Last error:` and the text of the warning on the next line; in excerpts the text often stands right
behind the exception. With a prefix put before it, the text goes through the shapes of warnings.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.parsing.matching import Matched, match

PLACE = ["source", "line"]
RANK = "launcher_rank"
FENCE = " `~=-*#>"  # of a block in Markdown, where the text itself was left out


def quoted_errors(matched: Sequence[Matched], unknown: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return the lines of `unknown` that follow an announcement of NCCL's last error, with a prefix of a warning."""
    quotation = dialect.quotation
    if quotation is None or unknown.is_empty():
        return unknown.clear()
    heads = [rows for part in matched for rows in part.frames.get(quotation.frame, [])]
    if not heads:
        return unknown.clear()
    announcements = pl.concat([rows.select("form", "source", line=pl.col("line") + 1) for rows in heads]).unique()
    # The rank of the tag is that of the process, as one that a launcher prints.
    rank = pl.col("text").str.extract(f"^({quotation.tag_regex})").str.extract("([0-9]+)").cast(pl.Int32)
    labelled = pl.coalesce(rank, *(name for name in [RANK] if name in unknown.columns))
    text = pl.col("text").str.replace(f"^(?:{quotation.tag_regex})", "").str.replace(f"(?:{quotation.end_regex})$", "")
    text = text.str.strip_chars_end(" ")
    lines = unknown.with_columns(labelled.alias(RANK), text=text)
    is_text = (pl.col("text").str.strip_chars(FENCE) != "") & ~pl.col("text").str.contains(quotation.time_regex)
    # Of a traceback, which another process printed in between: a warning begins without blanks.
    lines = lines.filter(~pl.col("text").str.starts_with("  "))
    # An export may put the time of a message on a line of its own.
    after_time = lines.filter(~is_text).join(announcements, on=PLACE).select("form", "source", pl.col("line") + 1)
    announcements = pl.concat([announcements, after_time]).unique()
    quoted = lines.filter(is_text).join(announcements, on=PLACE, how="inner", maintain_order="left")
    quoted = quoted.with_columns(text=pl.lit(quotation.prefix) + pl.col("text"))
    # Where the announcement itself was left out, the text must be that of a known warning.
    is_announced = quoted["form"] == quotation.form
    others = quoted.filter(~is_announced).drop("form")
    general = [shape.frame for shape in dialect.shapes if shape.priority < 0]
    found = match(others, dialect).frames
    unshaped = [rows.select(PLACE) for name in general for rows in found.get(name, [])]
    known = others.join(pl.concat(unshaped), on=PLACE, how="anti") if unshaped else others
    return pl.concat([quoted.filter(is_announced).drop("form"), known])


def messages_alone(unknown: pl.DataFrame, dialect: Dialect, hosts: pl.DataFrame) -> pl.DataFrame:
    """Return messages of NCCL and its plugins that lost their prefix, with one put before them.

    Only in sources in which no line names a process (`hosts`: columns `source`, `host`): elsewhere such a line is torn.
    """
    if not dialect.alone_regex or unknown.is_empty():
        return unknown.clear()
    is_message = unknown["text"].str.contains(f"^ *(?:{dialect.alone_regex})")
    rows = unknown.filter(is_message).join(hosts, on="source", how="anti", maintain_order="left")
    if rows.is_empty():
        return rows
    rows = rows.with_columns(text=pl.lit(dialect.alone_prefix) + pl.col("text").str.strip_chars_start(" "))
    shaped = match(rows, dialect).known.filter(~pl.col("is_unrecognised"))
    return rows.join(shaped, on=PLACE, how="semi", maintain_order="left")
