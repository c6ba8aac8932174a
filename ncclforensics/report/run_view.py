"""A run as views show it: frames divided by job, numbers of ranks, names of communicators, and quoted lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from ncclforensics.frames.protocol import Frames
from ncclforensics.report.groups import Groups
from ncclforensics.report.selection import Selection
from ncclforensics.rules.finding import Line

Row = dict[str, Any]


@dataclass
class RunView:
    """A run and what is shown of it. `quotes`: the text of cited lines: (source, line) -> (true line, text)."""

    run: Frames
    quotes: dict[tuple[int, int], tuple[int, str]]
    selection: Selection

    def of_job(self, name: str, job: int) -> pl.DataFrame:
        """Return the rows of a frame that concern one job. A frame is divided once: there may be thousands of jobs."""
        if name not in self._divided:
            self._divided[name] = self.run[name].partition_by("job", as_dict=True)
        rows = self._divided[name].get((job,))
        return self.run[name].clear() if rows is None else rows

    @cached_property
    def _divided(self) -> dict[str, dict[tuple[object, ...], pl.DataFrame]]:
        return {}

    def cited(self, source: int, line: int) -> Row:
        """Return path, line and text of one line; the text is empty unless the line was cited."""
        reader = self.run.inputs[source]
        known = line if line > 0 else line + reader.lines_read + 1 if reader.is_read_through else None
        true_line, text = self.quotes.get((source, line), (known, ""))
        return {"path": self.run.inputs[source].source.path, "line": true_line, "text": text}

    def cite(self, lines: Iterable[Line]) -> None:
        """Read the text of further lines."""
        self.quotes |= self.run.quote({(line.source, line.line) for line in lines} - set(self.quotes))

    def numbers(self, rank_ids: Iterable[int]) -> list[int]:
        """Return the sorted rank numbers of these rank_ids, without unknown ones."""
        found = map(self.number_of_rank.get, rank_ids)
        return sorted({number for number in found if number is not None})

    @cached_property
    def number_of_rank(self) -> dict[int, int | None]:
        """Rank id -> the rank's number."""
        return dict(self.run["rank"].select("rank_id", "rank").iter_rows())

    @cached_property
    def groups(self) -> Groups:
        """Names of the communicators by their ranks."""
        return Groups(self.run)
