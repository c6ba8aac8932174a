"""The run: its named frames, computed on first use and remembered.

A frame is parsed (named after the rule of a grammar) or computed by the analysis of that name. Analyses and rules name
the frames they need as parameters; `Run.call` supplies them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

import polars as pl

from ncclforensics.formats import all_formats
from ncclforensics.grammar import Shape
from ncclforensics.lines import CHUNK
from ncclforensics.parse import COUNTS, Language, parse
from ncclforensics.reading import Reading
from ncclforensics.sources import Source

THREADS = 2  # readers at work at once; Polars uses its own threads inside each
Analysis = Callable[..., pl.DataFrame]
Progress = Callable[[int], None]  # told how many bytes have been parsed since the last time

# `pos` orders the lines of one process, over all the files that hold them and both windows of each.
ORIGIN = {"source": pl.Int64(), "line": pl.Int64(), "pos": pl.Int64()}
SOURCE_BITS = 40

SOURCE_COLUMNS = {
    "source": pl.Int64(),
    "path": pl.String(),
    "is_whole": pl.Boolean(),  # every line was read
    "is_cut": pl.Boolean(),  # the last line has no end
    "hint": pl.Int64(),  # the rank that its name suggests
    "damaged": pl.Int64(),  # lines
    "lines": pl.Int64(),  # read
    "problem": pl.String(),
}


_NO_TALLY = pl.DataFrame(schema={"source": pl.Int64(), **dict.fromkeys(COUNTS, pl.Int64())})


@dataclass(frozen=True, slots=True)
class Computed:
    """An analysis: the function, and the columns it promises."""

    function: Analysis
    columns: Mapping[str, pl.DataType]


_ANALYSES: dict[str, Computed] = {}


def analysis(columns: Mapping[str, pl.DataType]) -> Callable[[Analysis], Analysis]:
    """Declare a function to be the analysis of its own name; a second one of that name is refused."""

    def register(function: Analysis) -> Analysis:
        name = function.__name__
        if name in _ANALYSES:
            raise ValueError(f"two analyses are called {name}: {_ANALYSES[name].function.__module__}")
        _ANALYSES[name] = Computed(function, columns)
        return function

    return register


def analyses() -> Mapping[str, Computed]:
    """Every analysis that has been imported."""
    return _ANALYSES


class Run:
    """Everything that one set of sources holds."""

    def __init__(self, sources: Iterable[Source], *, whole: bool, progress: Progress = lambda _: None) -> None:
        (self.format,) = all_formats()
        self.language: Language = self.format.language()
        self.readings = [Reading(source, number) for number, source in enumerate(sources)]
        self._progress = progress
        self._parsed: dict[str, list[pl.DataFrame]] = {}
        self._tallies: list[pl.DataFrame] = []
        self._frames: dict[str, pl.DataFrame] = {}
        for reading in self.readings:
            if reading.source.problem:
                reading.problems.append(reading.source.problem)
        readable = [reading for reading in self.readings if not reading.problems]
        self._take(readable, lambda reading: reading.start(self.language, whole=whole))

    def read_on(self, wanted: pl.DataFrame) -> None:
        """Read more of the sources named in `wanted` (columns `source`, `reach`: head, tail or all)."""
        reach = {int(row["source"]): str(row["reach"]) for row in wanted.iter_rows(named=True)}

        def more(reading: Reading) -> Iterator[pl.DataFrame]:
            end = reach[reading.number]
            return reading.finish() if end == "all" else reading.widen(head=end == "head", tail=end == "tail")

        self._take([reading for reading in self.readings if reading.number in reach], more)
        self._frames.clear()

    def _take(self, readings: list[Reading], work: Callable[[Reading], Iterator[pl.DataFrame]]) -> None:
        """Parse what `work` yields of each reading, small files together, on THREADS threads.

        What is parsed together of one source depends on that source alone, never on how the threads ran.
        """
        queue, lock = iter(readings), Lock()

        def worker() -> None:
            batch: list[pl.DataFrame] = []
            size = 0
            while True:
                with lock:
                    reading = next(queue, None)
                if reading is None:
                    break
                own: list[pl.DataFrame] = []
                own_size = 0
                for rows in work(reading):
                    own.append(rows)
                    own_size += int(rows["text"].str.len_bytes().sum()) + rows.height
                    if own_size >= CHUNK:
                        self._parse(own, own_size, lock)
                        own, own_size = [], 0
                batch += own
                size += own_size
                if size >= CHUNK:
                    self._parse(batch, size, lock)
                    batch, size = [], 0
            self._parse(batch, size, lock)

        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(worker) for _ in range(min(THREADS, len(readings)))]:
                done.result()

    def _parse(self, batch: list[pl.DataFrame], size: int, lock: Lock) -> None:
        if not batch:
            return
        parsed = parse(pl.concat(batch), self.language)
        with lock:
            self._tallies.append(parsed.tally)
            for name, pieces in parsed.frames.items():
                self._parsed.setdefault(name, []).extend(pieces)
            self._progress(size)

    @property
    def tally(self) -> pl.DataFrame:
        """Lines of every source read so far, by kind: columns `source` and `parse.COUNTS`."""
        return pl.concat(self._tallies).group_by("source").sum() if self._tallies else _NO_TALLY

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._frames:
            self._frames[name] = self._made(name)
        return self._frames[name]

    def _made(self, name: str) -> pl.DataFrame:
        if name == "source":
            return self._sources()
        if name in _ANALYSES:
            computed: pl.DataFrame = self.call(_ANALYSES[name].function)
            return computed.select(list(_ANALYSES[name].columns))
        for shape in self.language.shapes:
            if shape.frame == name:
                return self._typed(shape)
        raise KeyError(name)

    def call(self, function: Callable[..., Any]) -> Any:
        """Call a function with the frames that its parameters name."""
        return function(**{name: self[name] for name in inspect.signature(function).parameters})

    def quote(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, str]]:
        """The true number and the text of lines, read a second time: (source, line) -> (line, text)."""
        found: dict[tuple[int, int], tuple[int, str]] = {}
        by_source: dict[int, list[int]] = {}
        for number, line in wanted:
            by_source.setdefault(number, []).append(line)
        for number, lines in by_source.items():
            for line, (true, text) in self.readings[number].quote(lines).items():
                found[number, line] = true, text
        return found

    def _sources(self) -> pl.DataFrame:
        damaged = dict(self.tally.select("source", "damaged").iter_rows())
        rows = [
            (
                r.number,
                r.source.path,
                r.is_whole or r.is_binary,
                r.is_cut,
                r.source.rank_hint,
                damaged.get(r.number, 0),
                r.lines_read,
                "; ".join(r.problems),
            )
            for r in self.readings
        ]
        return pl.DataFrame(rows, schema=SOURCE_COLUMNS, orient="row")

    def _typed(self, shape: Shape) -> pl.DataFrame:
        schema = {**ORIGIN, **shape.schema}
        order = {number: place for place, number in enumerate(self._reading_order())}
        # Lines counted from the end of a file get their true number once its windows have met.
        place = pl.DataFrame(
            [(r.number, order[r.number], r.lines_read + 1 if r.is_whole else 0) for r in self.readings],
            schema={"source": pl.Int64, "place": pl.Int64, "after": pl.Int64},
            orient="row",
        )
        true = pl.when(pl.col("line") < 0).then(pl.col("line") + pl.col("after")).otherwise("line")
        from_end = pl.when(pl.col("line") < 0).then(1 << (SOURCE_BITS - 1)).otherwise(0)
        rows = pl.concat([pl.DataFrame(schema=schema), *self._parsed.get(shape.frame, [])], how="diagonal")
        return (
            rows.join(place, on="source", how="left")
            .with_columns(line=true)
            .with_columns(pos=pl.col("line") + from_end + pl.col("place") * (1 << SOURCE_BITS))
            .select(list(schema))
            .sort("pos", maintain_order=True)  # several lines torn into one share their place
        )

    def _reading_order(self) -> list[int]:
        """Sources by name, numbers in names counted as numbers: `rank2` before `rank10`, `log.1` before `log.2`."""
        return sorted(range(len(self.readings)), key=lambda n: _natural(self.readings[n].source.path))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    parts, digits = [], ""
    for character in name + "\0":
        if character.isascii() and character.isdigit():
            digits += character
            continue
        if digits:
            parts.append((False, int(digits), ""))
            digits = ""
        parts.append((True, 0, character))
    return parts
