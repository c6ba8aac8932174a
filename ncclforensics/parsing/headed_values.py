"""Put the values of files together with their paths, which `find`, `head`, `tail` and loops print above them."""

from __future__ import annotations

import polars as pl

from ncclforensics.grammar import grammar_file

MIN_VALUES = 2  # paths with a value below show that an input is printed so


def have_values_below_paths(texts: pl.DataFrame) -> list[int]:
    """The inputs (columns `source`, `text`) with paths on lines of their own, the value of each file on the next."""
    if not _is_path(texts["text"]).any():  # as in nearly all
        return []
    is_of_one_input = pl.col("source") == pl.col("source").shift(1)
    values = texts.filter(_is_value(texts["text"]) & is_of_one_input).group_by("source").len()
    return values.filter(pl.col("len") >= MIN_VALUES)["source"].to_list()


def join_values_to_paths(rows: pl.DataFrame) -> pl.DataFrame:
    """Write the path above each value in front of it, as grep does: `path:value`; paths stay lines of their own."""
    path = rows["text"].str.replace(f"^{_part('_path_opening')}", "").str.replace(f"{_part('_path_end')}$", "")
    joined = pl.when(_is_value(rows["text"])).then(path.shift(1) + ":" + rows["text"]).otherwise(rows["text"])
    return rows.with_columns(joined.alias("text"))


def _is_value(texts: pl.Series) -> pl.Series:
    """Whether a line is the value below a path."""
    is_path = _is_path(texts)
    return is_path.shift(1, fill_value=False) & ~is_path & (texts.str.strip_chars() != "")


def _is_path(texts: pl.Series) -> pl.Series:
    return texts.str.contains(f"^(?:{_part('_path_alone')})$")


def _part(rule: str) -> str:
    return grammar_file.load("copied").part_regex(rule)
