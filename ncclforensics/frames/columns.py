"""Columns that many frames share, and expressions on them.

Compare Categorical columns as they are; cast them to text only to search or cut the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import polars as pl

# `pos` orders the lines of one process, over all its files and both windows of each: source, then line.
SOURCE_BITS = 40
TAIL_OFFSET = 1 << (SOURCE_BITS - 1)  # added for lines of the tail, numbered from the end of a file
Row = dict[str, Any]  # of a frame, by column
LINE = {"source": pl.Int32(), "line": pl.Int32()}
ORIGIN = {**LINE, "pos": pl.Int64()}
PROCESS = {"host": pl.Categorical(), "pid": pl.Int32()}
OWNER = ["host", "pid"]  # the process that printed a line
Owner = tuple[str, int | None]  # the same as values
PLACE = [*OWNER, "source", "line"]


Typed = TypeVar("Typed", bound=NamedTuple)


def typed_rows(rows: pl.DataFrame, of: type[Typed]) -> list[Typed]:
    """The rows of a frame as values of a class whose fields are columns of it."""
    return [of._make(values) for values in rows[:, of._fields].iter_rows()]


# Types of fields whose columns are not of the usual type of such values.
Category = Annotated[str, pl.Categorical()]
Large = Annotated[int, pl.Int64()]
_DTYPES = {bool: pl.Boolean(), int: pl.Int32(), float: pl.Float64(), datetime: pl.Datetime("us")}


@cache
def columns_of(of: type) -> dict[str, pl.DataType]:
    """The columns of a frame whose rows are values of a class, by the types of its fields.

    A value of another such class stands in columns of its own, and several in a list.
    """
    columns: dict[str, pl.DataType] = {}
    for name, hint in get_type_hints(of, include_extras=True).items():
        dtype = _dtype_of(hint)
        columns |= columns_of(hint) if isinstance(dtype, pl.Struct) else {name: dtype}
    return columns


def _dtype_of(hint: Any) -> pl.DataType:
    """The data type of a field: of `int | None` that of `int`."""
    if get_origin(hint) is Annotated:
        given: pl.DataType = hint.__metadata__[0]
        return given
    if args := get_args(hint):
        inner = _dtype_of(args[0])
        return pl.List(inner) if get_origin(hint) in (list, tuple) else inner
    if issubclass(hint, str | Enum):
        return pl.String()
    return _DTYPES[hint] if hint in _DTYPES else pl.Struct(columns_of(hint))


def no_rows(columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """A frame of these columns without rows: made once, for most frames of a run are empty."""
    return _no_rows(tuple(columns.items()))


@cache
def _no_rows(columns: tuple[tuple[str, pl.DataType], ...]) -> pl.DataFrame:
    # Polars makes an empty column of every type anew from a schema, which takes six times as long.
    return pl.DataFrame().hstack([_no_values(dtype).alias(name) for name, dtype in columns])


@cache
def _no_values(dtype: pl.DataType) -> pl.Series:
    return pl.Series(dtype=dtype)


def with_all_columns(rows: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The rows with these columns alone, in their types; a column of nulls takes the memory of one value."""
    known = dict(zip(rows.columns, rows.dtypes, strict=True))
    other = {name: dtype for name, dtype in columns.items() if known.get(name) != dtype}
    if other:
        rows = rows.with_columns(
            pl.col(name).cast(dtype) if name in known else _nulls(name, dtype) for name, dtype in other.items()
        )
    return rows[:, [*columns]]  # in a tenth of the time of `select`


def with_rows(frames: Iterable[pl.DataFrame]) -> list[pl.DataFrame]:
    """Return the frames that have rows, or the first one if none has: what is put together keeps its columns."""
    given = list(frames)
    return [frame for frame in given if not frame.is_empty()] or given[:1]


def names_with_values(rows: pl.DataFrame) -> list[str]:
    """The columns that are not all null; of a large frame, those that `with_all_columns` adds again are far smaller."""
    return [name for name, nulls in rows.null_count().row(0, named=True).items() if nulls < rows.height]


@cache
def _nulls(name: str, dtype: pl.DataType) -> pl.Expr:
    return pl.lit(None, dtype).alias(name)


def text_of(column: str) -> pl.Expr:
    """The text of a Categorical column: to search in it, to cut it, and to sort by it whatever the order of lines."""
    return pl.col(column).cast(pl.String)


def begins_with(column: str, *texts: str) -> pl.Expr:
    """Whether a Categorical column begins with one of these texts; null where it is null."""
    return pl.any_horizontal(text_of(column).str.starts_with(text) for text in texts)


def equal_before(key: pl.Series) -> pl.Series:
    """How many equal values stand before each; `int_range` over many values takes ten times as long.

    >>> equal_before(pl.Series(["a", "b", "a"])).to_list()
    [0, 0, 1]
    """
    return key.rank("ordinal") - key.rank("min")


def short_host(column: str) -> pl.Expr:
    """A host's name without its domain, of a column, as `short_name`; an address as it is."""
    first = text_of(column).str.split(".").list.first()
    is_address = first.str.len_chars().gt(0) & first.str.to_integer(strict=False).is_not_null()
    return pl.when(is_address).then(text_of(column)).otherwise(first)


def short_name(host: str) -> str:
    """Return the name of a host without its domain, as NCCL prints it; tools of the host may print all of it.

    >>> short_name("gpu-a012.example.org"), short_name("10.0.0.7")
    ('gpu-a012', '10.0.0.7')
    """
    first = host.partition(".")[0]
    return host if first.isdecimal() else first


def may_be_one_host(name: str | None, other: str | None) -> bool:
    """Whether two names, with or without a domain, may be of one host; one that is not printed fits all.

    >>> may_be_one_host("gpu-a012.example.org", "gpu-a012"), may_be_one_host("10.0.0.7", "10.0.0.8")
    (True, False)
    """
    return name is None or other is None or short_name(name) == short_name(other)


MADE_UP = "unnamed-"  # how names of hosts begin that no line shows


def printed_hosts(hosts: Iterable[str]) -> list[str]:
    """Leave out made-up hosts.

    >>> printed_hosts(["node1", "unnamed-2"])
    ['node1']
    """
    return [host for host in hosts if not host.startswith(MADE_UP)]


def printed_pid(pid: int | None) -> int | None:
    """Leave out the number that stands for a hidden process id.

    >>> printed_pid(41887), printed_pid(-1)
    (41887, None)
    """
    return None if pid is None or pid < 0 else pid


def possible_positions(lines: pl.DataFrame) -> pl.Series:
    """Every `pos` that lines (columns `source`, `line`) may have, in the head or the tail of a file."""
    at = lines.select(pos=pl.col("source").cast(pl.Int64) * (1 << SOURCE_BITS) + pl.col("line"))["pos"]
    return pl.concat([at, at + TAIL_OFFSET])


def frame_of_rows(rows: Iterable[Mapping[str, Any]], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return a frame of rows; what a row lacks, and a number that its column cannot hold, is null."""
    found = list(rows)
    return pl.DataFrame(
        [pl.Series(name, [row.get(name) for row in found], dtype, strict=False) for name, dtype in schema.items()]
    )


def lines_behind(line: int, lines: int) -> int:
    """Return how many of a file's lines follow one of them; the numbers of a tail count from the end.

    >>> lines_behind(7, 10), lines_behind(-1, 10)
    (3, 0)
    """
    return -line - 1 if line < 0 else lines - line


def count_behind() -> pl.Expr:
    """The same for rows with columns `line` and `lines`."""
    return pl.when(pl.col("line") < 0).then(-pl.col("line") - 1).otherwise(pl.col("lines") - pl.col("line"))


def place_of(pos: int) -> tuple[int, int]:
    """Return the source and the line that a `pos` stands for; lines of a tail are negative.

    >>> place_of((3 << SOURCE_BITS) + 7), place_of((3 << SOURCE_BITS) + TAIL_OFFSET - 2)
    ((3, 7), (3, -2))
    """
    source, line = divmod(pos, 1 << SOURCE_BITS)
    return source, line if line < TAIL_OFFSET >> 1 else line - TAIL_OFFSET


def source_of(pos: pl.Expr) -> pl.Expr:
    """The column `source` that `pos` stands for, also of calls that were counted and have no line."""
    return (pos // (1 << SOURCE_BITS)).cast(pl.Int32).alias("source")


def with_line(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the `source` and `line` that `pos` stands for."""
    line = pl.col("pos") % (1 << SOURCE_BITS)
    line = pl.when(line < TAIL_OFFSET >> 1).then(line).otherwise(line - TAIL_OFFSET)
    return rows.with_columns(source_of(pl.col("pos")), line=line.cast(pl.Int32))
