"""Read the lines in which another program quotes NCCL's last warning (ncclGetLastError), without NCCL's prefix.

PyTorch prints `Last error:` and the text of the warning on the next line. With a prefix put before it, the text goes
through the shapes of warnings.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.parsing.matching import Matched

PLACE = ["source", "line"]


def quoted_errors(matched: Sequence[Matched], unknown: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return the lines of `unknown` that follow an announcement of NCCL's last error, with a prefix of a warning."""
    quotation = dialect.quotation
    if quotation is None or unknown.is_empty():
        return unknown.clear()
    announcements = [
        rows.filter(pl.col("form") == quotation.form).select("source", line=pl.col("line") + 1)
        for part in matched
        for rows in part.frames.get(quotation.frame, [])
    ]
    if not announcements:
        return unknown.clear()
    quoted = unknown.join(pl.concat(announcements).unique(), on=PLACE, how="semi", maintain_order="left")
    text = pl.col("text").str.replace(f"^(?:{quotation.tag_regex})", "")
    is_text = pl.col("text").str.strip_chars(" ") != ""
    return quoted.with_columns(text=text).filter(is_text).with_columns(text=pl.lit(quotation.prefix) + pl.col("text"))
