"""Read and check the frames of a saved run."""

from __future__ import annotations

import io
from collections.abc import Mapping

import polars as pl

from ncclforensics.archive import small_frames
from ncclforensics.archive.manifest import OversizeError, Saved, SavedError
from ncclforensics.archive.parquet_footer import read_footer
from ncclforensics.data.names import CERTAINTIES, VERDICTS

MOST_CELLS = 1 << 31  # rows times columns of all frames that are read; 20 million calls are a quarter of it
# What is plausible for a file of a certain size: a line's number alone takes 2 bytes a row, and a row has 40 columns.
CELLS_PER_BYTE, BYTES_PER_BYTE = 100, 100
SMALL_CELLS, SMALL_BYTES = 16 << 20, 64 << 20  # are read whatever the size of the file
# Columns of computed frames of which views know every value.
VOCABULARY = {
    ("verdict", "verdict"): VERDICTS,
    ("verdict", "certainty"): CERTAINTIES,
    ("job_diagnosis", "verdict"): VERDICTS,
    ("job_diagnosis", "certainty"): CERTAINTIES,
}
CITED = "cited"  # the frame with the texts of lines that findings cite
# `line` as in the frames; `in_file` as a reader of the file counts, which differs in an export and in a document.
CITED_COLUMNS = {"source": pl.Int32(), "line": pl.Int32(), "in_file": pl.Int32(), "text": pl.String()}
# Errors raised by reading damaged rows; Polars may panic.
_DAMAGE = (
    pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, EOFError, KeyError, TypeError,
    OverflowError, AttributeError,
)  # fmt: skip


def frame(saved: Saved, name: str, schema: Mapping[str, pl.DataType], *, is_converted: bool = True) -> pl.DataFrame:
    """The rows of a frame with the columns of `schema`; those that the saved run left out hold nulls.

    Without `is_converted`, these are left out here, too, and columns have the types with which they were saved. Raises
    SavedError.
    """
    try:
        found = _from_json(saved, name, schema) if name in saved.small_frames else _from_parquet(saved, name)
        columns = found.columns
        if is_converted:
            absent = [pl.lit(None, dtype).alias(column) for column, dtype in schema.items() if column not in columns]
            found = found.with_columns(absent).select(list(schema)).cast(pl.Schema(schema))
            if found.schema != pl.Schema(schema):  # Polars casts the fields of a record, not the record
                raise saved.damaged(name, TypeError("records instead of values"))
        elif found.select("source", "line").null_count().row(0) != (0, 0):
            raise SavedError(f"{saved.path}: is a damaged saved run: {name} has rows without a line")
        if "source" in columns and not found["source"].is_between(0, len(saved.inputs) - 1).all():
            raise SavedError(f"{saved.path}: is a damaged saved run: {name} names a file that is not there")
        for column in found.columns:
            if (name, column) in VOCABULARY:
                _check_vocabulary(saved, name, found[column])
    except _DAMAGE as error:
        raise saved.damaged(name, error) from error
    return found


def _from_parquet(saved: Saved, name: str) -> pl.DataFrame:
    data = saved.parquet(name)
    footer = read_footer(data)
    lazy = pl.scan_parquet(io.BytesIO(data))
    rows = max(lazy.select(pl.len()).collect().item(), footer.rows)
    saved.bytes_read += footer.uncompressed
    _check_size(saved, name, rows, len(lazy.collect_schema()), footer.uncompressed)
    return lazy.collect()


def _from_json(saved: Saved, name: str, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    if saved.small_rows is None:
        texts = _from_parquet(saved, small_frames.NAME).cast(pl.Schema(small_frames.COLUMNS))
        saved.small_rows = dict(texts.group_by("frame").agg("row").iter_rows())
    rows = saved.small_rows.get(name, [])
    _check_size(saved, name, len(rows), len(schema), sum(map(len, rows)))
    found = small_frames.unpack(rows, schema)
    return found.select(column for column in found if column.null_count() < found.height)


def _check_size(saved: Saved, name: str, rows: int, columns: int, size: int) -> None:
    """Raise OversizeError for a frame that takes more memory than is plausible for the size of the file."""
    saved.cells_read += rows * columns
    if (
        saved.cells_read > min(SMALL_CELLS + CELLS_PER_BYTE * saved.size, MOST_CELLS)
        or saved.bytes_read > SMALL_BYTES + BYTES_PER_BYTE * saved.size
    ):
        raise OversizeError(
            f"{saved.path}: is no saved run of this program: {name} would take {rows} rows and "
            f"{size} bytes, of {saved.size} bytes of the file"
        )


def _check_vocabulary(saved: Saved, name: str, values: pl.Series) -> None:
    known = VOCABULARY[name, values.name]
    unknown = [value for value in values.cast(pl.String).unique().sort() if value not in known]
    if unknown:
        raise SavedError(f"{saved.path}: is a damaged saved run: {name} holds an unknown {values.name}: {unknown[0]}")


def cited(saved: Saved) -> dict[tuple[int, int], tuple[int, str]]:
    """The lines that findings cite: source and line -> line of the file, and text. Raises SavedError."""
    if not saved.holds(CITED):
        return {}
    rows = frame(saved, CITED, CITED_COLUMNS).iter_rows()
    return {(source, line): (in_file or line, text or "") for source, line, in_file, text in rows}
