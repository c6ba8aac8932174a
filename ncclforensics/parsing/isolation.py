"""Keep a defect of the program to the lines that show it: one line that breaks the parser costs only itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from ncclforensics.errors import Defect
from ncclforensics.inputs.lines import REPEATS
from ncclforensics.inputs.windows import InputReader
from ncclforensics.parsing.concurrency import DEFECTS, Result
from ncclforensics.parsing.parser import COUNTS, NO_HOSTS, NO_TALLY, SPEAKER, Parsed

MOST_SEARCHES = 64  # lines that are looked for one by one; a parser that fails on more of them fails on all


class Isolation:
    """Parses lines so that those that break the parser are left out, counted as damaged and named."""

    def __init__(self, inputs: list[InputReader], defects: list[Defect], add: Callable[[Parsed], None]) -> None:
        self._inputs, self._defects, self._add = inputs, defects, add

    def parse(self, work: Callable[[pl.DataFrame], Result], rows: pl.DataFrame) -> Iterator[Result]:
        """Yield `work(rows)`; where it fails, the work on each half, down to single lines that are left out."""
        try:
            result = work(rows)
        except DEFECTS as error:
            if rows.height < 2 or len(self._defects) >= MOST_SEARCHES:
                self._leave_out(rows, error)
                return
        else:
            yield result
            return
        middle = rows.height // 2
        yield from self.parse(work, rows.head(middle))
        yield from self.parse(work, rows.tail(-middle))

    def stop_reading(self, reader: InputReader, error: BaseException) -> None:
        """Name an input that cannot be read on because the program failed."""
        reader.is_whole = True  # asking for more of it is useless
        self._name(reader, "of which the rest is left out", error)

    def _leave_out(self, rows: pl.DataFrame, error: BaseException) -> None:
        lines_of_row = 1 + (rows[REPEATS].fill_null(0) if REPEATS in rows.columns else pl.lit(0, dtype=pl.Int64))
        rows = rows.with_columns(damaged=lines_of_row)
        counted = rows.group_by("source").agg(pl.col("damaged").sum(), pl.col("line").min())
        others = [pl.lit(0, dtype=pl.Int64).alias(name) for name in COUNTS if name != "damaged"]
        tally = counted.select("source", *others, "damaged").select(NO_TALLY.columns)
        self._add(Parsed({}, tally, NO_HOSTS, pl.DataFrame(schema=SPEAKER)))
        for source, lines, first in counted.select("source", "damaged", "line").iter_rows():
            number = f"line {first}" if first > 0 else f"line {-first} from the end"
            self._name(self._inputs[source], f"at {number}, {lines} lines are left out", error)

    def _name(self, reader: InputReader, where: str, error: BaseException) -> None:
        defect = Defect.of(f"{reader.source.path}, {where}", error, is_of_input=True)
        self._defects.append(defect)
        reader.problems.append(f"{where}: the program failed ({defect.error})")
