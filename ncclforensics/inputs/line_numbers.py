"""Two numbers of a line: among the lines of text that a source holds, and in the file.

They differ only in a file of records, where one line may hold several lines of text, or a part of one. Frames hold the
first, so that they are in order; evidence cites the second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.inputs import lines


@dataclass(slots=True)
class LineNumbers:
    """The lines of text read from the beginning of one source and, in another window, from its end."""

    from_start: int = 0
    from_end: int = 0
    stretches: list[tuple[int, pl.Series]] = field(default_factory=list)  # first number, and numbers in the file

    def number(self, rows: pl.DataFrame, in_file: int) -> pl.DataFrame:
        """Number lines of text (`line`: the line of the file, negative from the end) as the next ones that were read.

        `in_file`: how many lines of the file they stand in.
        """
        height = lines.count(rows)
        is_from_end = in_file > 0 and height > 0 and int(rows["line"][0]) < 0
        first = -(self.from_end + height) if is_from_end else self.from_start + 1
        if is_from_end:
            self.from_end += height
        else:
            self.from_start += height
        if height == in_file and (height == 0 or int(rows["line"][0]) == first):
            return rows
        self.stretches.append((first, rows["line"]))
        if height > rows.height:  # blank lines, which no record holds
            return lines.shifted(rows, first - int(rows["line"][0]))
        return rows.with_columns(line=pl.int_range(first, first + height, dtype=pl.Int32(), eager=True))

    def count(self, first: int, height: int) -> bool:
        """Count lines of a file of which each is a line of text; False where they have other numbers in the text."""
        if first < 0 and first == -(self.from_end + height):
            self.from_end += height
        elif first == self.from_start + 1:
            self.from_start += height
        else:
            return False
        return True

    def in_file(self, wanted: Iterable[int]) -> dict[int, int]:
        """The number in the file of every line of text that is wanted; negative numbers count from the end."""
        return {line: self._in_file(line) for line in wanted}

    def _in_file(self, line: int) -> int:
        if not self.stretches:
            return line
        if line > self.from_start:  # read from the end before all lines were known
            line -= self.from_start + self.from_end + 1
        for first, numbers in self.stretches:
            if first <= line < first + numbers.len():
                return int(numbers[line - first])
        return line
