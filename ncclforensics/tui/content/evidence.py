"""Lines that prove something, as a screen names them and finds them again."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ncclforensics.data.names import printable
from ncclforensics.report.build import Report


@dataclass(frozen=True, slots=True)
class Cited:
    """A line of a source. `line` as frames number it: from the end of a file (-1 is the last) if not read whole."""

    source: int
    line: int
    place: str  # file:line
    text: str = ""
    what: str = ""


class Citer:
    """Names the sources of a report: the file, and the folders too, where two files have one name."""

    def __init__(self, report: Report) -> None:
        self._report = report
        paths = [Path(reading.source.path) for reading in report.run.readings]
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

    def cite(self, source: int, line: int, what: str = "") -> Cited:
        """A line of a frame; its text, if a finding cites it."""
        told = self._report.cited(source, line)
        number = line if told["line"] is None else told["line"]
        where = str(number) if number > 0 else f"line {-number} from the end"
        return Cited(source, number, f"{self.names[source]}:{where}", printable(told["text"].replace("\t", " ")), what)
