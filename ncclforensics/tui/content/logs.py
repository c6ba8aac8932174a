"""The files of the run, and which of their lines are of a rank, of a host, or of a family of shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.errors import UsageError
from ncclforensics.inputs.sources import Source
from ncclforensics.report.build import Report
from ncclforensics.report.selection import ranks as ranks_of
from ncclforensics.tui.content.evidence import Citer

LEVELS = ("WARN", "INFO", "ATTN", "TRACE", "CALL", "ABORT")  # as NCCL writes them, behind its name


@dataclass(frozen=True, slots=True)
class Log:
    """One file."""

    number: int
    name: str
    source: Source
    speakers: str  # the ranks that speak in it
    problems: list[str]


def logs(report: Report, citer: Citer) -> list[Log]:
    """All files, in the order of their names."""
    rank = report.run["rank"].select("host", "pid", "rank")
    placed = report.run["process"].explode("sources").join(rank, on=["host", "pid"])
    numbers = dict(placed.group_by("sources").agg(pl.col("rank").drop_nulls()).iter_rows())
    return [
        Log(
            reading.number, citer.names[reading.number], reading.source,
            ranks_text(numbers.get(reading.number, [])), report.problems(reading.number),
        )
        for reading in report.run.readings
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter on lines, as the user types it: `rank:0-7 host:NAME level:warn family:init words to be found`."""

    ranks: frozenset[int] = frozenset()
    host: str = ""
    level: str = ""
    family: str = ""
    text: str = ""

    @property
    def asks_frames(self) -> bool:
        """Whether only what was parsed tells which lines are meant."""
        return bool(self.ranks or self.host or self.family)


def wanted(typed: str, families: list[str]) -> Wanted:
    """Raises UsageError where a word is not understood.

    >>> wanted("rank:3 level:warn timed out", [])
    Wanted(ranks=frozenset({3}), host='', level='WARN', family='', text='timed out')
    """
    known: dict[str, str] = {}
    words = []
    for word in typed.split():
        name, colon, value = word.partition(":")
        if colon and value and name in ("rank", "ranks", "host", "level", "family"):
            known[name.removesuffix("s")] = value
        else:
            words.append(word)
    level = known.get("level", "").upper()
    if level and level not in LEVELS:
        raise UsageError(f"level:{known['level']}: no level; there are {', '.join(LEVELS).lower()}")
    family = known.get("family", "")
    if family and family not in families:
        raise UsageError(f"family:{family}: no family of lines; there are {', '.join(families)}")
    ranks = ranks_of(known["rank"]) if "rank" in known else frozenset()
    return Wanted(ranks, known.get("host", ""), level, family, " ".join(words))


def families(report: Report) -> list[str]:
    """The grammars of which the run holds lines."""
    run = report.run
    return sorted({shape.grammar for shape in run.dialect.with_all_formats.shapes if run.has(shape.frame)})


def parsed_lines(report: Report, source: int, filter_: Wanted) -> pl.Series:
    """The lines of one source that were parsed and are wanted; negative: counted from the end."""
    run = report.run
    owners = run["rank"].filter(pl.col("rank").is_in(list(filter_.ranks)))
    drives = run["rank"].group_by("host", "pid").agg(ranks=pl.len())
    owners = owners.join(drives, on=["host", "pid"], how="left").select(
        "host", "pid", dev=pl.when(pl.col("ranks") > 1).then("cudadev")
    )

    def found() -> Iterator[pl.DataFrame]:
        for shape in run.dialect.with_all_formats.shapes:
            if (filter_.family and shape.grammar != filter_.family) or not run.has(shape.frame):
                continue
            frame = run[shape.frame]
            rows = frame.filter(pl.col("source") == source)
            if filter_.host:
                rows = rows.filter(pl.col("host") == filter_.host) if "host" in frame.columns else rows.clear()
            if filter_.ranks:
                rows = _of(rows, owners)
            yield rows.select("line")

    return pl.concat([pl.DataFrame(schema={"line": pl.Int32()}), *found()])["line"].unique().sort()


def _of(rows: pl.DataFrame, owners: pl.DataFrame) -> pl.DataFrame:
    """The lines of these processes; where one drives several ranks, those of the device."""
    if not {"host", "pid"} <= set(rows.columns):
        return rows.clear()
    if "dev" not in rows.columns:
        return rows.join(owners, on=["host", "pid"], how="semi")
    both = rows.select("line", "host", "pid", own="dev").join(owners, on=["host", "pid"])
    return both.filter(pl.col("dev").is_null() | (pl.col("dev") == pl.col("own")))
