"""Keep the rows of frames that were printed in a time range, by the most exact time that their lines carry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from functools import cache, partial

import polars as pl

from ncclforensics.errors import UsageError

# Columns that hold a time as it was printed, the most exact first. Time zones are ignored.
CLOCKS = ("stamp", "moment", "launcher_time")
FORMATS = (
    "%Y-%m-%d %H:%M:%S%.f",  # NCCL from 2.26 on, with or without a fraction
    "%a %b %e %H:%M:%S %Y",  # Open MPI, dmesg -T
    "%a %b %e %H:%M:%S %Z %Y",  # date, whose zone is left out, too
)
# With a zone, which is left out: containers and journals, dmesg --time-format iso; journalctl -o short-full
WITH_ZONE = ("%Y-%m-%dT%H:%M:%S", len("2026-03-02T11:04:57")), ("%a %Y-%m-%d %H:%M:%S", len("Mon 2026-03-02 11:04:57"))
# Without a year: journals and syslog, dmesg -e, PyTorch
OF_JOURNALS, OF_DMESG, OF_PYTORCH = "%b %e %H:%M:%S%.f", "%b%e %H:%M", "%m%d %H:%M:%S%.f"
NO_YEAR = 2000  # assumed for times without a year; as a leap year it has every day
HALF_YEAR, YEAR = timedelta(days=183), timedelta(days=366)

Instant = datetime | time


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From `since` to `until`, both included; a time without a date applies to every day."""

    since: Instant | None = None
    until: Instant | None = None
    _kept: list[int] = field(default_factory=list, compare=False)  # rows in the range, of each frame
    _printed: list[datetime] = field(default_factory=list, compare=False)  # the first and the last time of each

    def filter(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep the rows printed in the range; a row without a time stays."""
        clocks = [name for name in CLOCKS if name in rows.columns and rows[name].null_count() < rows.height]
        if not clocks:
            return rows
        printed = pl.coalesce([time_of(name, self._year) for name in clocks])
        within = pl.lit(True)
        for limit, side in ((self.since, pl.Expr.ge), (self.until, pl.Expr.le)):
            if limit is not None:
                within &= side(printed.dt.time() if isinstance(limit, time) else printed, limit)
        times = rows.select(printed=printed, within=within)
        first, last = times["printed"].min(), times["printed"].max()
        if isinstance(first, datetime) and isinstance(last, datetime):
            self._printed.extend((first, last))
            self._kept.append(int(times["within"].sum()))
        return rows.filter(within | printed.is_null())

    def problem(self) -> str | None:
        """Say why the range leaves the logs as they are, or leaves nothing of them that has a time."""
        if not self._printed:
            return "--since, --until: no line of these logs has a time, and lines without a time are kept"
        first, last = min(self._printed), max(self._printed)
        return (
            None
            if any(self._kept)
            else f"--since, --until: the logs do not show this time; they show {first} to {last}"
        )

    @property
    def _year(self) -> int:
        days = (limit for limit in (self.since, self.until) if isinstance(limit, datetime))
        return next(days, datetime.now()).year


def as_time(text: pl.Expr, year: int) -> pl.Expr:
    """Parse a time in any of the known formats; null where it is none. `year` completes times without a year."""
    return text.map_batches(partial(_times, year=year), return_dtype=pl.Datetime("us"), is_elementwise=True)


def _times(texts: pl.Series, year: int) -> pl.Series:
    """Parse texts by the first format, and by the others where that leaves some: mostly it leaves none."""
    if texts.null_count() == len(texts):
        return pl.Series(texts.name, [None], dtype=pl.Datetime("us")).new_from_index(0, len(texts))
    printed = texts.to_frame("text")
    for times in _stages(year):
        read = printed.select(times).to_series()
        if read.null_count() == texts.null_count():
            break
    return read.rename(texts.name)


@cache
def _stages(year: int) -> tuple[pl.Expr, pl.Expr]:
    """The times in a column `text`: by the first format, and by any."""

    def read(printed: pl.Expr, form: str) -> pl.Expr:
        return of_this_era(printed.str.strptime(pl.Datetime("us"), form, strict=False))

    text = pl.col("text")
    # PyTorch omits the leading zero of the month; unpadded, 101 would be read as the first of October.
    padded = pl.when(text.str.find(" ", literal=True) == len("813")).then("0" + text).otherwise(text)
    of_any_format = pl.coalesce(
        *(read(text, form) for form in FORMATS),
        *(read(text.str.head(length), form) for form, length in WITH_ZONE),
        *(
            read(pl.lit(f"{year} ") + printed, f"%Y {form}")
            for printed, form in ((text, OF_JOURNALS), (text, OF_DMESG), (padded, OF_PYTORCH))
        ),
    )
    return read(text, FORMATS[0]), of_any_format


@cache
def time_of(column: str, year: int) -> pl.Expr:
    """Parse the times in a column of texts as `as_time` does."""
    return as_time(pl.col(column).cast(pl.String), year)


def as_utc(text: pl.Expr) -> pl.Expr:
    """Parse a time that is printed with its zone, into UTC; null where none is."""
    return of_this_era(text.str.strptime(pl.Datetime("us", "UTC"), "%+", strict=False).dt.replace_time_zone(None))


def of_this_era(time: pl.Expr) -> pl.Expr:
    """Null where the year of a time is damaged: Python knows the years 1 to 9999, and a time may be moved by one."""
    return pl.when(time.dt.year().is_between(2, 9998)).then(time)


def elapsed(time: pl.Expr, since: datetime) -> pl.Expr:
    """Return how long after a time others are; of a time of NO_YEAR, at most half a year before or after it."""
    in_year = time.dt.replace(year=NO_YEAR) - since.replace(year=NO_YEAR)
    shift = pl.when(in_year > HALF_YEAR).then(-YEAR).when(in_year < -HALF_YEAR).then(YEAR).otherwise(timedelta())
    has_no_year = (time.dt.year() == NO_YEAR) | (since.year == NO_YEAR)
    return pl.when(has_no_year).then(in_year + shift).otherwise(time - since)


def december_first(time: pl.Expr) -> pl.Expr:
    """Put times of NO_YEAR that are more than half a year after the first of them into the year before.

    A run goes on over New Year rather than for so long.
    """
    is_before = (time.dt.year() == NO_YEAR) & (time - time.min() > HALF_YEAR)
    return pl.when(is_before).then(time - YEAR).otherwise(time)


def in_last_year(time: pl.Expr) -> pl.Expr:
    """Put times of NO_YEAR into the last year, up to today."""
    today = datetime.now()
    this_year = time.dt.offset_by(f"{today.year - NO_YEAR}y")
    before = pl.when(this_year > today + timedelta(days=1)).then(this_year.dt.offset_by("-1y")).otherwise(this_year)
    return pl.when(time.dt.year() == NO_YEAR).then(before).otherwise(time)


def parse_date(text: str | None, option: str) -> datetime | None:
    """Parse a time with its date, given to a command line option. Raises UsageError."""
    instant = parse_time(text, option)
    if isinstance(instant, time):
        raise UsageError(f"{option} {text}: needs a date, such as 2026-03-02T11:04:57")
    return instant


def parse_time(text: str | None, option: str) -> Instant | None:
    """Parse the time given to a command line option. Raises UsageError."""
    if text is None:
        return None
    kinds: tuple[Callable[[str], Instant], ...] = (datetime.fromisoformat, time.fromisoformat)
    for parse in kinds:
        try:
            instant = parse(text)
        except ValueError:
            continue
        return instant.replace(tzinfo=None)
    raise UsageError(f"{option} {text}: not a time such as 2026-03-02T11:04:57 or 11:04:57")
