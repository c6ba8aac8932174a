"""The content of the log screen: the files of the run, and the filter on their lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.errors import UsageError
from ncclforensics.inputs.sources import Source
from ncclforensics.report.build import Report
from ncclforensics.report.selection import parse_ranks
from ncclforensics.tui.content.evidence import Citer

LEVELS = ("WARN", "INFO", "ATTN", "TRACE", "CALL", "ABORT")  # as NCCL prints them after its name


@dataclass(frozen=True, slots=True)
class Log:
    """One file."""

    number: int
    name: str
    source: Source
    rank_text: str  # the ranks whose lines it holds
    problems: list[str]


def list_logs(report: Report, citer: Citer) -> list[Log]:
    """List all files of the run with their ranks and problems."""
    rank = report.run["rank"].select("host", "pid", "rank")
    placed = report.run["process"].explode("sources").join(rank, on=["host", "pid"])
    numbers = dict(placed.group_by("sources").agg(pl.col("rank").drop_nulls()).iter_rows())
    return [
        Log(
            reading.number, citer.names[reading.number], reading.source,
            ranks_text(numbers.get(reading.number, [])), report.problems(reading.number),
        )
        for reading in report.run.inputs
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LineFilter:
    """A filter on lines. The user types `rank:0-7 host:NAME level:warn family:init TEXT !TEXT`."""

    ranks: frozenset[int] = frozenset()
    host: str = ""
    level: str = ""
    family: str = ""
    text: str = ""
    without: tuple[str, ...] = ()  # texts that lines do not contain

    @property
    def needs_frames(self) -> bool:
        """Whether the filter needs parsed frames: the text of a line does not name its rank, host or family."""
        return bool(self.ranks or self.host or self.family)

    @property
    def of_text(self) -> pl.Expr | None:
        """The condition on the text of a line, if there is one."""
        column = pl.col("text")
        wanted = filter(None, (f"NCCL {self.level} " if self.level else "", self.text))
        conditions = [column.str.contains(text, literal=True) for text in wanted]
        conditions += [~column.str.contains(text, literal=True) for text in self.without]
        return pl.all_horizontal(conditions) if conditions else None


def parse_filter(typed: str, families: list[str]) -> LineFilter:
    """Parse a filter. Raises UsageError for an unknown level or family, or a malformed list of ranks.

    >>> parse_filter("rank:3 level:warn timed out !proxy", [])
    LineFilter(ranks=frozenset({3}), host='', level='WARN', family='', text='timed out', without=('proxy',))
    """
    conditions: dict[str, str] = {}
    words, without = [], []
    for word in typed.split():
        name, colon, value = word.partition(":")
        if colon and value and name in ("rank", "ranks", "host", "level", "family"):
            conditions[name.removesuffix("s")] = value
        elif word.startswith("!") and word != "!":
            without.append(word[1:])
        else:
            words.append(word)
    level = conditions.get("level", "").upper()
    if level and level not in LEVELS:
        raise UsageError(f"level:{conditions['level']}: unknown level; the levels are {', '.join(LEVELS).lower()}")
    family = conditions.get("family", "")
    if family and family not in families:
        raise UsageError(f"family:{family}: unknown family; the families are {', '.join(families)}")
    ranks = parse_ranks(conditions["rank"]) if "rank" in conditions else frozenset()
    return LineFilter(ranks, conditions.get("host", ""), level, family, " ".join(words), tuple(without))


def families(report: Report) -> list[str]:
    """Return the names of the grammars that recognised lines of this run."""
    run = report.run
    return sorted({shape.grammar for shape in run.dialect.with_all_formats.shapes if run.has(shape.frame)})


def parsed_lines(report: Report, source: int, line_filter: LineFilter) -> pl.Series:
    """Return the parsed lines of a source that pass the filter; negative numbers count from the end."""
    run = report.run
    owners = run["rank"].filter(pl.col("rank").is_in(list(line_filter.ranks)))
    rank_counts = run["rank"].group_by("host", "pid").agg(ranks=pl.len())
    owners = owners.join(rank_counts, on=["host", "pid"], how="left").select(
        "host", "pid", dev=pl.when(pl.col("ranks") > 1).then("cudadev")
    )

    def matching_rows() -> Iterator[pl.DataFrame]:
        for shape in run.dialect.with_all_formats.shapes:
            if (line_filter.family and shape.grammar != line_filter.family) or not run.has(shape.frame):
                continue
            frame = run[shape.frame]
            rows = frame.filter(pl.col("source") == source)
            if line_filter.host:
                rows = rows.filter(pl.col("host") == line_filter.host) if "host" in frame.columns else rows.clear()
            if line_filter.ranks:
                rows = _rows_of_ranks(rows, owners)
            yield rows.select("line")

    return pl.concat([pl.DataFrame(schema={"line": pl.Int32()}), *matching_rows()])["line"].unique().sort()


def _rows_of_ranks(rows: pl.DataFrame, owners: pl.DataFrame) -> pl.DataFrame:
    """Keep the rows of these processes; for a process with several ranks, the rows of the device."""
    if not {"host", "pid"} <= set(rows.columns):
        return rows.clear()
    if "dev" not in rows.columns:
        return rows.join(owners, on=["host", "pid"], how="semi")
    joined = rows.select("line", "host", "pid", line_dev="dev").join(owners, on=["host", "pid"])
    return joined.filter(pl.col("dev").is_null() | (pl.col("dev") == pl.col("line_dev")))
