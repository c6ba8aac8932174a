"""Cited lines of sources: how a screen names them and finds them again."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ncclforensics.data.names import printable
from ncclforensics.report.build import Report


@dataclass(frozen=True, slots=True)
class CitedLine:
    """A line of a source. `line` counts from 1, or from the end (-1 is the last) in a file that was not read whole."""

    source: int
    line: int
    location: str  # file:line
    text: str = ""
    label: str = ""  # what the line shows: waiting, culprit, minority, …


class Citer:
    """Cite lines of a report; a file is named with its folders if two files have the same name."""

    def __init__(self, report: Report) -> None:
        self._report = report
        paths = [Path(reading.source.path) for reading in report.run.inputs]
        folders: dict[str, set[Path]] = defaultdict(set)
        for path in paths:
            folders[path.name].add(path.absolute().parent)
        self.names = [
            printable(
                os.path.relpath(path.absolute(), os.path.commonpath(folders[path.name]))
                if len(folders[path.name]) > 1
                else path.name
            )
            for path in paths
        ]

    def cite(self, source: int, line: int, label: str = "") -> CitedLine:
        """Cite a line of a frame; its text is known only if a finding cites it."""
        cited = self._report.cited(source, line)
        number = line if cited["line"] is None else cited["line"]
        line_text = str(number) if number > 0 else f"line {-number} from the end"
        return CitedLine(
            source, number, f"{self.names[source]}:{line_text}", printable(cited["text"].replace("\t", " ")), label
        )
