"""Bound what is kept of lines that differ only in numbers: a retry and its counter, a report and its task.

Equal lines are collapsed before they are matched (`repeated_lines`); lines that count something differ, and each
becomes a row. Where a frame of events (`// repeated:` in its grammar) has more rows than the policy says, only the
first and the last of each kind are kept, and the others are counted. A kind is a process in a file and what else has
few values: the form, an error code, a message but for its numbers. So a line of another kind in the middle of a million
is kept.

What is kept depends on the lines alone, not on how they were divided: kinds only ever become coarser, and the first
rows of a coarse kind are among the first rows of the finer kinds in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from ncclforensics.parsing.repeated_lines import REPEATED

FEW_VALUES = 64  # a column with more values does not tell kinds apart, or only by its text without numbers
FEW_RANKS = 1 << 14  # the same of a column of ranks
FEW_PROCESSES = 1 << 17  # the same of processes; logs that name more are of no single job
FEW_TEXTS = 1024  # and if it has more texts without numbers than that, not at all
OWN = ("source", "launcher_rank", "form")  # always tell kinds apart
PROCESS = ("host", "pid")  # where a frame has both: the process that printed the line
NUMBER = "0x[0-9a-f]+|[0-9]+"
TEXT = (pl.String, pl.Categorical, pl.Enum)


@dataclass(slots=True)
class AlikeRows:
    """Bounds the rows of one frame of events. `most`: rows up to which all are kept; `kept`: at each end of a kind."""

    most: int
    kept: int
    dropped: pl.DataFrame | None = None  # columns REPEATED: a row for each process
    _added: int = 0  # rows, dropped ones included
    _waiting: int = 0  # rows that were added since the last time some were dropped
    _values: dict[str, set[object] | None] = field(default_factory=dict)  # column -> its values; None: too many
    _texts: dict[str, set[object] | None] = field(default_factory=dict)  # the same without numbers

    def count(self, rows: int) -> bool:
        """Note that so many rows were added, and return whether it is time to drop some."""
        self._added += rows
        self._waiting += rows
        return self._waiting > self.most

    @property
    def is_flooded(self) -> bool:
        """Whether rows were added, and there are more of them than are all kept."""
        return self._added > self.most and self._waiting > 0

    def bounded(self, pieces: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """The pieces (columns `source`, `line` and any others) without what is too much of them."""
        self._waiting = 0
        rows = pl.concat(pieces, how="diagonal_relaxed")
        kind = rows.select(*self._kind(rows)).hash_rows()
        in_order = pl.DataFrame({"kind": kind, "is_in_tail": rows["line"] < 0, "line": rows["line"]})
        in_order = in_order.with_row_index("row").sort("is_in_tail", "line", "row")  # the source is part of the kind
        place = pl.int_range(pl.len()).over("kind")
        inside = in_order.filter((place >= self.kept) & (place < pl.len().over("kind") - self.kept))["row"]
        if inside.is_empty():
            return [rows]
        is_kept = pl.repeat(True, rows.height, eager=True).scatter(inside, False)
        self._count(rows.filter(~is_kept))
        return [rows.filter(is_kept)]

    def _count(self, rows: pl.DataFrame) -> None:
        counted = rows.with_columns(pl.col("line").alias("last_line"), pl.lit(1).alias("repeats"))
        is_by_process = set(PROCESS) <= set(rows.columns) and self._values.get("process", set()) is not None
        absent = ("message", "time") if is_by_process else ("message", "time", *PROCESS)
        columns = [name for name in REPEATED if name in counted.columns and name not in absent]
        earlier = [] if self.dropped is None else [self.dropped]
        all_dropped = pl.concat(
            [pl.DataFrame(schema=REPEATED), *earlier, counted.select(columns)], how="diagonal_relaxed"
        )
        self.dropped = (
            all_dropped.group_by("source", "host", "pid")
            .agg(pl.col("line").min(), pl.col("last_line").max(), pl.col("repeats").sum())
            .with_columns(pl.lit(None, REPEATED[name]).alias(name) for name in ("message", "time"))
            .select(pl.col(name).cast(dtype) for name, dtype in REPEATED.items())
        )

    def _kind(self, rows: pl.DataFrame) -> list[pl.Series]:
        """The columns that tell kinds of rows apart."""
        columns = []
        is_of_process = set(PROCESS) <= set(rows.columns)
        if is_of_process and _are_few(self._values, rows.select(PROCESS).hash_rows().alias("process"), FEW_PROCESSES):
            columns += [rows[name] for name in PROCESS]
        for column in rows.get_columns():
            if column.name in OWN:
                columns.append(column)
            elif is_of_process and column.name in PROCESS:
                continue
            elif column.name != "line" and not column.dtype.is_nested():
                is_text = isinstance(column.dtype, TEXT)
                without_numbers = column.cast(pl.String).str.replace_all(NUMBER, "#") if is_text else None
                if without_numbers is not None and not _are_few(self._texts, without_numbers, FEW_TEXTS):
                    continue
                most = FEW_RANKS if column.name.endswith("rank") else FEW_VALUES
                if _are_few(self._values, column.cast(pl.String) if is_text else column, most):
                    columns.append(column)
                elif without_numbers is not None:
                    columns.append(without_numbers)
        return columns


def _are_few(known: dict[str, set[object] | None], column: pl.Series, most: int) -> bool:
    """Whether a column has few values, with those of all earlier rows; `known` is kept up to date."""
    values = known.setdefault(column.name, set())
    if values is None:
        return False
    if column.head(4 * most).n_unique() > most:
        known[column.name] = None
        return False
    values |= set(column.unique())
    if len(values) > most:
        known[column.name] = None
    return known[column.name] is not None
