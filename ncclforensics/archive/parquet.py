"""Read and check the frames of a saved run."""

from __future__ import annotations

import io
from collections.abc import Mapping

import polars as pl

from ncclforensics.archive.manifest import Saved, SavedError

MOST_CELLS = 1 << 31  # rows times columns of one frame; 20 million calls are a quarter of it
CITED = "cited"  # the frame with the texts of lines that findings cite
CITED_COLUMNS = {"source": pl.Int32(), "line": pl.Int32(), "text": pl.String()}
# Errors raised by reading damaged Parquet; Polars may panic.
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, EOFError, KeyError)


def frame(saved: Saved, name: str, schema: Mapping[str, pl.DataType] | None = None) -> pl.DataFrame:
    """The rows of a frame; `schema`: the columns it must have. Raises SavedError."""
    data = io.BytesIO(saved.parquet(name))
    try:
        lazy = pl.scan_parquet(data)
        columns = lazy.collect_schema()
        rows = lazy.select(pl.len()).collect().item()
        if rows * len(columns) > MOST_CELLS:
            raise SavedError(f"is no saved run of this program: {rows} rows in {name}")
        found = lazy.collect()
        if schema is not None:
            found = found.select(list(schema)).cast(pl.Schema(schema))
        if "source" in columns and not found["source"].is_between(0, len(saved.inputs) - 1).all():
            raise SavedError(f"is a damaged saved run: {name} names a file that is not there")
    except _DAMAGE as error:
        raise saved.damaged(name, error) from error
    return found


def cited(saved: Saved) -> dict[tuple[int, int], str]:
    """The texts of the lines that findings cite. Raises SavedError."""
    return {(source, line): text or "" for source, line, text in frame(saved, CITED, CITED_COLUMNS).iter_rows()}
