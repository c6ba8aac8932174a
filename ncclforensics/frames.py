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
from ncclforensics.parse import COUNTS, Language, Parsed, parse, sift
from ncclforensics.reading import Reading
from ncclforensics.sources import Source

FEW = 10_000  # rows; smaller pieces are put together before anything is computed on them
THREADS = 2  # readers at work at once; Polars uses its own threads inside each
Analysis = Callable[..., pl.DataFrame]
Progress = Callable[[int], None]  # told how many bytes have been parsed since the last time

# `pos` orders the lines of one process, over all the files that hold them and both windows of each.
ORIGIN = {"source": pl.Int32(), "line": pl.Int32(), "pos": pl.Int64()}
SOURCE_BITS = 40

SOURCE_COLUMNS = {
    "source": pl.Int32(),
    "path": pl.String(),
    "is_whole": pl.Boolean(),  # every line was read
    "is_cut": pl.Boolean(),  # the last line has no end
    "hint": pl.Int32(),  # the rank that its name suggests
    "damaged": pl.Int64(),  # lines
    "lines": pl.Int64(),  # read
    "problem": pl.String(),
}


_NO_TALLY = pl.DataFrame(schema={"source": pl.Int32(), **dict.fromkeys(COUNTS, pl.Int64())})


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
        self._hosts: list[pl.DataFrame] = []
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

        def worker() -> list[pl.DataFrame]:
            small: list[pl.DataFrame] = []  # of readings that are too short to be worth a call of their own
            waiting: list[pl.DataFrame] = []  # rare lines of readings that have come to their end
            while True:
                with lock:
                    reading = next(queue, None)
                if reading is None or _size(small) >= CHUNK:
                    waiting += [self._sift(pl.concat(small), lock)] if small else []
                    small = []
                if reading is None:
                    return waiting
                rare: list[pl.DataFrame] = []
                for rows in work(reading):
                    if _size([rows]) < CHUNK // 4:
                        small.append(rows)
                        continue
                    rare.append(self._sift(rows, lock))
                    if _size(rare) >= CHUNK:
                        self._parse(rare, lock)
                        rare = []
                waiting += rare
                if _size(waiting) >= CHUNK:
                    self._parse(waiting, lock)
                    waiting = []

        with ThreadPoolExecutor(THREADS) as pool:
            workers = [pool.submit(worker) for _ in range(min(THREADS, len(readings)))]
            waiting = [rows for done in workers for rows in done.result()]
        if waiting:
            self._parse(waiting, lock)

    def _parse(self, batch: list[pl.DataFrame], lock: Lock) -> None:
        with lock:
            hosts = pl.concat(self._hosts) if self._hosts else None
        self._keep(parse(pl.concat(batch), self.language, hosts), lock)

    def _sift(self, rows: pl.DataFrame, lock: Lock) -> pl.DataFrame:
        parsed, rest = sift(rows, self.language)
        self._keep(parsed, lock)
        with lock:
            self._progress(_size([rows]))
        return rest

    def _keep(self, parsed: Parsed, lock: Lock) -> None:
        with lock:
            self._tallies.append(parsed.tally)
            self._hosts.append(parsed.hosts)
            for name, pieces in parsed.frames.items():
                self._parsed.setdefault(name, []).extend(pieces)

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
            return computed.select(list(_ANALYSES[name].columns)).cast(pl.Schema(_ANALYSES[name].columns))
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
        after = {r.number: r.lines_read + 1 if r.is_whole else 0 for r in self.readings}
        parsed = self._parsed.get(shape.frame, [])
        small = [rows for rows in parsed if rows.height < FEW]
        pieces: list[pl.DataFrame] = []
        for rows in [*([pl.concat(small, how="diagonal")] if small else []), *(r for r in parsed if r.height >= FEW)]:
            several = rows["source"].n_unique() > 1
            for part in rows.partition_by("source") if several else [rows]:
                number = int(part["source"][0])
                is_from_end = pl.col("line") < 0
                line = pl.when(is_from_end).then(pl.col("line") + after[number]).otherwise("line").cast(pl.Int32)
                behind_head = pl.when(is_from_end).then(1 << (SOURCE_BITS - 1)).otherwise(0)
                base = order[number] << SOURCE_BITS
                pieces.append(part.with_columns(line=line, pos=line.cast(pl.Int64) + behind_head + base))
        pieces.sort(key=lambda rows: rows["pos"][0])
        if all(after.values()):  # nothing more will be read: the frame takes the place of its pieces
            self._parsed.pop(shape.frame, None)
        del parsed, small
        whole = pl.concat([pl.DataFrame(schema=schema), *pieces], how="diagonal").select(list(schema))
        return whole if whole["pos"].is_sorted() else whole.sort("pos", maintain_order=True)

    def _reading_order(self) -> list[int]:
        """Sources by name, numbers in names counted as numbers: `rank2` before `rank10`, `log.1` before `log.2`."""
        return sorted(range(len(self.readings)), key=lambda n: _natural(self.readings[n].source.path))


def _joined(pieces: list[pl.DataFrame], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """One frame of many, column by column, so that never more than one column stands in memory twice."""
    columns = []
    for name, dtype in schema.items():
        parts = [
            rows.drop_in_place(name).cast(dtype)
            if name in rows.columns
            else pl.Series(name, [None], dtype=dtype).new_from_index(0, rows.height)
            for rows in pieces
        ]
        columns.append(pl.concat([pl.Series(name, [], dtype=dtype), *parts], rechunk=True))
    return pl.DataFrame(columns)


def _size(batch: list[pl.DataFrame]) -> int:
    """Bytes of text, ends of lines included."""
    return sum(int(rows["text"].str.len_bytes().sum()) + rows.height for rows in batch)


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
