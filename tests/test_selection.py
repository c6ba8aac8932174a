"""What a report shows, and the time range that is judged."""

from __future__ import annotations

import polars as pl
import pytest

from ncclforensics import analyze
from ncclforensics.errors import UsageError
from ncclforensics.frames.time_range import TimeRange, parse_time
from ncclforensics.report.selection import Selection, parse_ranks
from tests.incidents import INCIDENTS

LAGGING = str(INCIDENTS / "one-rank-stops-before-an-allreduce" / "*.log")


def test_a_selection_does_not_change_the_verdict() -> None:
    (culprit,) = analyze([LAGGING]).verdicts[0]["culprits"]
    other = analyze([LAGGING], selection=Selection(ranks=frozenset({0})))

    assert other.verdicts[0]["culprits"] == [culprit]


def test_only_the_selected_ranks_are_shown() -> None:
    whole = analyze([LAGGING])
    some = analyze([LAGGING], selection=Selection(ranks=frozenset({0, 1})))

    assert {call["rank"] for call in some.last_calls(0)} == {0, 1} < {call["rank"] for call in whole.last_calls(0)}


def test_a_finding_about_other_ranks_is_not_shown() -> None:
    (finding,) = [each for each in analyze([LAGGING]).findings if each.severity == "error"]
    elsewhere = Selection(ranks=frozenset(range(99, 101)))

    assert analyze([LAGGING], selection=Selection(ranks=frozenset(finding.ranks))).findings[0].rule == finding.rule
    assert analyze([LAGGING], selection=elsewhere).findings == []


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "1,,2", "1.5"])
def test_a_malformed_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ranks"):
        parse_ranks(text)


PRINTED = {
    "nccl": ("stamp", ["2026-03-02 11:04:57", "2026-03-02 11:04:59.5"]),
    "nccl with a fraction": ("stamp", ["2026-03-02 11:04:57.034", "2026-03-02 11:05:00.000"]),
    "container": ("launcher_time", ["2026-03-02T11:04:57.123456789Z", "2026-03-02T11:04:59+01:00"]),
    "open mpi": ("launcher_time", ["Mon Mar  2 11:04:57 2026", "Mon Mar  2 11:04:59 2026"]),
    "journal": ("launcher_time", ["Mar  2 11:04:57", "Mar  2 11:04:59"]),
    "pytorch": ("moment", ["302 11:04:57.948355712", "302 11:04:59.000000001"]),
}


@pytest.mark.parametrize(("clock", "times"), PRINTED.values(), ids=PRINTED)
@pytest.mark.parametrize("day", ["2026-03-02T", ""])
def test_a_time_range_keeps_what_was_printed_in_it(clock: str, times: list[str], day: str) -> None:
    rows = pl.DataFrame({clock: [*times, None, "at noon"]})
    before, after = TimeRange(until=parse_time(f"{day}11:04:58", "")), TimeRange(since=parse_time(f"{day}11:04:58", ""))

    assert before.filter(rows)[clock].to_list() == [times[0], None, "at noon"]
    assert after.filter(rows)[clock].to_list() == [times[1], None, "at noon"]


def test_a_malformed_time_is_refused() -> None:
    with pytest.raises(UsageError, match="--since yesterday"):
        parse_time("yesterday", "--since")
