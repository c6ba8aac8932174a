"""Put the values of files together with their paths, which `find`, `head`, `tail` and loops print above them."""

from __future__ import annotations

import polars as pl

from ncclforensics.grammar import grammar_file

MIN_VALUES = 2  # paths with a value below show that an input is printed so


def has_values_below_paths(texts: pl.Series) -> bool:
    """Whether paths stand on lines of their own, each with the value of its file on the next line."""
    return int(_values_below(texts)[1].sum()) >= MIN_VALUES


def join_values_to_paths(rows: pl.DataFrame) -> pl.DataFrame:
    """Write the path above each value in front of it, as grep does: `path:value`; paths stay lines of their own."""
    path, is_value = _values_below(rows["text"])
    joined = pl.when(is_value).then(path.shift(1) + ":" + rows["text"]).otherwise(rows["text"])
    return rows.with_columns(joined.alias("text"))


def _values_below(texts: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return the path on each line, null where none stands alone there, and whether a line is the value below one."""
    part = grammar_file.load("copied").part_regex
    is_path = texts.str.contains(f"^(?:{part('_path_alone')})$")
    path = texts.str.replace(f"^{part('_path_opening')}", "").str.replace(f"{part('_path_end')}$", "")
    is_value = is_path.shift(1, fill_value=False) & ~is_path & (texts.str.strip_chars() != "")
    return path, is_value
