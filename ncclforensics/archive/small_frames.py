"""Frames of few rows, together in one Parquet file, a row as one JSON object without its nulls.

A Parquet file takes 5 KB for its columns alone: 50 files of a few rows each took twenty times the bytes of a log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import polars as pl

NAME = "small_frames"
COLUMNS = {"frame": pl.String(), "row": pl.String()}
FEW = 256  # rows; longer frames take fewer bytes as a file of their own


def pack(frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The rows of these frames (columns COLUMNS), without the frames that are long or that JSON cannot hold."""
    texts = {name: _as_json(rows) for name, rows in frames.items() if rows.height <= FEW}
    packed = [(name, text) for name, own in texts.items() for text in own]
    return pl.DataFrame(packed, schema=COLUMNS, orient="row")


def unpack(rows: Sequence[str], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The frame of these columns. A column whose values do not fit its type gets a type that they fit.

    Raises what orjson and Polars raise for values that no column can hold.
    """
    values: list[dict[str, Any]] = [orjson.loads(row) for row in rows]
    return pl.DataFrame([_column(name, [row.get(name) for row in values], dtype) for name, dtype in schema.items()])


def _column(name: str, values: list[Any], dtype: pl.DataType) -> pl.Series:
    try:
        return pl.Series(name, values, dtype=dtype, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):  # of another version of the program
        return pl.Series(name, values)


def _as_json(rows: pl.DataFrame) -> list[str]:
    """Every row as JSON; nothing where a value would not come back: a time, or a number that is not finite."""
    if any(dtype.is_temporal() for dtype in rows.dtypes):
        return []
    texts = [
        orjson.dumps({name: value for name, value in row.items() if value is not None}).decode()
        for row in rows.iter_rows(named=True)
    ]
    return texts if unpack(texts, rows.schema).equals(rows) else []
