"""Which sources are read, and in which order: copies are left out, the parts of a rotated log follow one another.

`pos` orders the lines of a process by the number of their source. So the parts of one log must be numbered from the
oldest to the newest, whatever their names are; and none of them may be read in windows, for the gap that windows leave
would lie in the middle of the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from ncclforensics.frames.time_range import CLOCKS, NO_YEAR, december_first, elapsed, time_of
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.inputs import lines
from ncclforensics.inputs.copies import beginning, find_copies
from ncclforensics.inputs.rotation import age, stem
from ncclforensics.inputs.sources import Source
from ncclforensics.inputs.windows import InputReader
from ncclforensics.parsing.detect_formats import detect_formats
from ncclforensics.parsing.launcher_prefixes import strip_prefixes
from ncclforensics.parsing.parser import parse

JUDGED = 400  # lines of the beginning and of the end of a part by which it is placed
SAMPLED = 24  # lines of a beginning that show its processes
MANY_PROCESSES = ""  # stands for all the processes of a log in which many print
CROWDED = 8  # processes in a beginning; where so many print into one log, not all of them show there
FIRST_STEPS = ("bootstrap", "driver")  # forms of `milestone` that a process prints before its first START
Process = tuple[str, int]


@dataclass(slots=True)
class _Part:
    """What the beginning and the end of a source tell of its place among the parts of a log."""

    source: Source
    processes: set[Process] = field(default_factory=set)
    begun: set[Process] = field(default_factory=set)  # processes whose start it shows
    counters: dict[tuple[str, int, str], int] = field(default_factory=dict)  # first opCount by process and communicator
    time: datetime | None = None  # the first


def arrange(sources: Sequence[Source], dialect: Dialect) -> list[Source]:
    """The sources in the order in which their lines are counted; copies have a problem that says of what.

    Sources that are inputs of a saved run must not be among them.
    """
    if len(sources) < 2:
        return list(sources)

    def has_identity(data: bytes) -> bool:
        return bool(pl.Series([data.decode("utf-8", "replace")]).str.contains(dialect.prefix_regex).any())

    copies = find_copies(sources, has_identity)
    arranged = [
        source._replace(problem=copies[place].problem(sources[copies[place].original])) if place in copies else source
        for place, source in enumerate(sources)
    ]
    similar: dict[str, list[int]] = defaultdict(list)
    for place, source in enumerate(arranged):
        if not source.problem:
            similar[stem(source.path)].append(place)
    candidates = [place for places in similar.values() if len(places) > 1 for place in places]
    processes = _processes({place: arranged[place] for place in candidates}, dialect) if candidates else {}
    for places in similar.values():
        for log in _logs({place: processes.get(place, set()) for place in places}):
            _put_in_order(arranged, log, dialect)
    return arranged


def _processes(sources: dict[int, Source], dialect: Dialect) -> dict[int, set[str]]:
    """Host and pid of some lines in the beginning of each source."""
    marker = dialect.prefix_marker.encode()
    found: list[tuple[int, str]] = []
    for place, source in sources.items():
        marked = [line for line in beginning(source).split(b"\n") if marker in line]
        step = max(len(marked) // SAMPLED, 1)
        found += [(place, line.decode("utf-8", "replace")) for line in marked[::step]]
    rows = pl.DataFrame(found, schema={"place": pl.Int64(), "text": pl.String()}, orient="row")
    owner = pl.col("text").str.extract(f"({dialect.prefix_regex})").str.split(":").list.head(2).list.join(":")
    named = rows.select("place", owner=owner).drop_nulls().unique()
    return {place: set(owners) for place, owners in named.group_by("place").agg("owner").iter_rows()}


def _logs(processes: dict[int, set[str]]) -> list[list[int]]:
    """The places of sources with similar names, grouped by the log that they are parts of; logs of one part left out.

    Parts of one log show the same processes. Where a log has many, two beginnings may show different ones.
    """
    leader = {place: place for place in processes}

    def root(place: int) -> int:
        while leader[place] != place:
            place = leader[place]
        return place

    first: dict[str, int] = {}
    for place, own in processes.items():
        for process in {*own, MANY_PROCESSES} if len(own) >= CROWDED else own:
            leader[root(place)] = root(first.setdefault(process, place))
    logs: dict[int, list[int]] = defaultdict(list)
    for place in processes:
        logs[root(place)].append(place)
    return [log for log in logs.values() if len(log) > 1]


def _put_in_order(sources: list[Source], places: list[int], dialect: Dialect) -> None:
    """Put the parts of one rotated log behind one another, oldest first, into the places that they have together."""
    parts = sorted((_part(sources[place], dialect) for place in places), key=lambda part: age(part.source.path))
    older = {id(part): sum(_comes_before(other, part) for other in parts) for part in parts}
    parts.sort(key=lambda part: older[id(part)])
    for place, part in zip(sorted(places), parts, strict=True):
        sources[place] = part.source._replace(is_part=True)


def _comes_before(part: _Part, other: _Part) -> bool:
    """Whether the lines of one part were printed before those of another, by what both show."""
    votes = 0
    for key in part.counters.keys() & other.counters.keys():
        votes += (part.counters[key] < other.counters[key]) - (part.counters[key] > other.counters[key])
    if not votes:
        votes = len((part.begun - other.begun) & other.processes) - len((other.begun - part.begun) & part.processes)
    if not votes and part.time is not None and other.time is not None:
        apart = pl.select(elapsed(pl.lit(other.time), part.time)).item()
        votes = (apart > timedelta()) - (apart < timedelta())
    return votes > 0


def _part(source: Source, dialect: Dialect) -> _Part:
    reader = InputReader(source, 0)
    sample = {0: reader.text_of(reader.sample())}
    rows = strip_prefixes(lines.texts(sample), dialect, detect_formats(sample, dialect)[0].prefixes)
    rows = rows.with_columns(line=pl.int_range(1, pl.len() + 1, dtype=pl.Int32), damaged=False, cut=False)
    if rows.height > 2 * JUDGED:
        rows = pl.concat([rows.head(JUDGED), rows.tail(JUDGED)])
    frames = parse(rows, dialect).frames
    part = _Part(source)
    for pieces in frames.values():
        for piece in pieces:
            _look_at(part, piece)
    for piece in frames.get(dialect.candidates[0].shape.frame, []):
        _count(part, piece, dialect.counter)
    for piece in frames.get("communicator", []):
        if {"host", "pid", "phase"} <= set(piece.columns):
            started = piece.filter(pl.col("phase").cast(pl.String) == "START")
            part.begun |= set(started.select(pl.col("host").cast(pl.String), "pid").iter_rows())
    for piece in frames.get("milestone", []):
        if {"host", "pid"} <= set(piece.columns):
            first = piece.filter(pl.col("form").cast(pl.String).is_in(FIRST_STEPS))
            part.begun |= set(first.select(pl.col("host").cast(pl.String), "pid").iter_rows())
    return part


def _look_at(part: _Part, piece: pl.DataFrame) -> None:
    """Note the processes and the first time of some rows."""
    if {"host", "pid"} <= set(piece.columns):
        owners: list[Any] = list(piece.select(pl.col("host").cast(pl.String), "pid").drop_nulls().unique().iter_rows())
        part.processes |= set(owners)
    for clock in CLOCKS:
        if clock in piece.columns:
            printed = time_of(clock, NO_YEAR)
            times = piece.select(december_first(printed)).to_series().drop_nulls()
            first = times.min()
            if isinstance(first, datetime) and (part.time is None or first < part.time):
                part.time = first


def _count(part: _Part, calls: pl.DataFrame, counter: str) -> None:
    """Note the first count of every communicator of every process."""
    if not {"host", "pid", "comm", counter} <= set(calls.columns):
        return
    first = calls.sort("line").group_by(pl.col("host", "comm").cast(pl.String), "pid").agg(pl.col(counter).first())
    for host, comm, pid, count in first.iter_rows():
        if count is not None:
            key = (host, pid, comm)
            part.counters[key] = min(count, part.counters.get(key, count))
