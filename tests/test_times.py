"""Times as programs print them, most of them without a year."""

from __future__ import annotations

from datetime import datetime, timedelta

import polars as pl
import pytest

from ncclforensics.analyses.job.ends.kernel_events import of_these_days, run_days
from ncclforensics.frames.time_range import NO_YEAR, as_time, december_first, elapsed, in_last_year


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("101 00:50:00.100000000", datetime(2026, 1, 1, 0, 50, 0, 100000)),  # PyTorch in January, not October
        ("121 00:50:00.5", datetime(2026, 1, 21, 0, 50, 0, 500000)),
        ("131 00:50:00.0", datetime(2026, 1, 31, 0, 50)),
        ("1001 00:50:00.0", datetime(2026, 10, 1, 0, 50)),
        ("0101 00:50:00.0", datetime(2026, 1, 1, 0, 50)),
        ("Jan  1 00:50:00", datetime(2026, 1, 1, 0, 50)),
        ("2025-12-31 23:50:00", datetime(2025, 12, 31, 23, 50)),
        ("2025-12-31T23:50:00.000000Z", datetime(2025, 12, 31, 23, 50)),
        ("2025-12-31T23:50:00,034512+00:00", datetime(2025, 12, 31, 23, 50)),  # dmesg --time-format iso
        ("Wed 2025-12-31 23:50:00 UTC", datetime(2025, 12, 31, 23, 50)),  # journalctl -o short-full
        ("Jan  1 00:50:00.500000", datetime(2026, 1, 1, 0, 50, 0, 500000)),  # journalctl -o short-precise
        ("Jan 1 00:50", datetime(2026, 1, 1, 0, 50)),  # dmesg -e
        ("Jan31 00:50", datetime(2026, 1, 31, 0, 50)),
    ],
)
def test_times_are_read_as_programs_print_them(text: str, expected: datetime) -> None:
    assert pl.select(as_time(pl.lit(text), 2026)).item() == expected


@pytest.mark.parametrize(
    ("time", "since", "minutes"),
    [
        (datetime(NO_YEAR, 1, 1, 0, 10), datetime(2025, 12, 31, 23, 50), 20),
        (datetime(NO_YEAR, 12, 31, 23, 50), datetime(2026, 1, 1, 0, 10), -20),
        (datetime(NO_YEAR, 1, 1, 0, 10), datetime(NO_YEAR, 12, 31, 23, 50), 20),
        (datetime(2025, 12, 31, 23, 50), datetime(2026, 1, 1, 0, 10), -20),
        (datetime(2024, 12, 31, 23, 50), datetime(2026, 1, 1, 0, 10), -20 - 365 * 24 * 60),
    ],
)
def test_new_year_lies_between_times_that_carry_no_year(time: datetime, since: datetime, minutes: int) -> None:
    assert pl.select(elapsed(pl.lit(time), since)).item() == timedelta(minutes=minutes)


def test_a_time_without_a_year_is_not_in_the_future() -> None:
    tomorrow = datetime.now() + timedelta(days=3)
    time = tomorrow.replace(year=NO_YEAR, microsecond=0)

    assert pl.select(in_last_year(pl.lit(time))).item() < datetime.now()


def test_december_is_before_january_in_one_run() -> None:
    times = pl.Series([datetime(NO_YEAR, 1, 1, 0, 10), datetime(NO_YEAR, 12, 31, 23, 50)])

    ordered = pl.DataFrame({"time": times}).select(december_first(pl.col("time")))["time"]

    assert ordered[0] - ordered[1] == timedelta(minutes=20)


@pytest.mark.parametrize(
    ("run", "logged", "is_of_run"),
    [
        (["2027-01-01T00:20:00Z"], "Dec 31 23:50:00", True),
        (["2026-12-31T23:50:00Z", "2027-01-01T00:20:00Z"], "Jul  1 00:00:00", False),
        (["2026-12-31T23:50:00Z"], "Jan  1 00:20:00", True),
        (["2026-12-31T23:50:00Z"], "Jan  3 00:20:00", False),
        (["2026-03-02T11:00:00Z"], "Mar  1 12:00:00", True),
        (["2026-03-02T11:00:00Z"], "Feb 27 12:00:00", False),
    ],
)
def test_events_of_the_kernel_are_of_the_days_of_the_run(run: list[str], logged: str, is_of_run: bool) -> None:
    nothing = pl.DataFrame()
    source = pl.DataFrame({"source": range(len(run)), "last_time": run})
    kernel = pl.DataFrame(
        {"source": [9], "logged": [logged], "launcher_time": [None], "node": [None], "launcher_node": [None]}
    )
    job_end = pl.DataFrame({"time": []}, schema={"time": pl.String})

    days = run_days(kernel, kernel, kernel, source, *[nothing] * 6, job_end)

    assert of_these_days(kernel, days, pl.DataFrame()).height == is_of_run
