"""What a report shows, and the time range that is judged."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from ncclforensics import analyze, cli
from ncclforensics.errors import UsageError
from ncclforensics.frames.time_range import TimeRange, parse_time
from ncclforensics.report.selection import Selection, parse_ranks
from tests.incidents import INCIDENTS

pytestmark = pytest.mark.usefixtures("shared_analyses")
LAGGING = str(INCIDENTS / "one-rank-stops-before-an-allreduce" / "*.log")
TIMED_OUT = str(INCIDENTS / "a-benchmark-times-out")
WITH_TIMES = str(INCIDENTS / "kernels-need-more-shared-memory-than-the-gpu-has")


def test_a_selection_does_not_change_the_verdict() -> None:
    (culprit,) = analyze([LAGGING]).verdicts[0].culprits
    other = analyze([LAGGING], selection=Selection(ranks=frozenset({0})))

    assert other.verdicts[0].culprits == (culprit,)


def test_only_the_selected_ranks_are_shown() -> None:
    whole = analyze([LAGGING])
    some = analyze([LAGGING], selection=Selection(ranks=frozenset({0, 1})))

    assert {call.rank for call in some.job(0).last_calls} == {0, 1} < {call.rank for call in whole.job(0).last_calls}


def test_a_finding_about_other_hosts_is_not_shown() -> None:
    whole = analyze([TIMED_OUT], everything=True)
    elsewhere = analyze([TIMED_OUT], everything=True, selection=Selection(host="other"))
    (finding,) = [each for each in whole.findings if each.rule == "bench-timed-out"]

    assert finding.hosts
    assert finding.rule not in {each.rule for each in elsewhere.findings}
    assert finding.rule in {each.rule for each in elsewhere.not_selected}


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--ranks", "99"], ["--host", "other"], ["--comm", "0x1"], ["--ranks", "0"]])
def test_a_selection_changes_neither_the_verdict_nor_the_exit_code(options: list[str], tmp_path: Path) -> None:
    answers = []
    for selected in ([], options):
        output = tmp_path / f"{len(selected)}.json"
        code = cli.main(["check", LAGGING, "-q", "--format", "json", "-o", str(output), *selected])
        answers.append((code, json.loads(output.read_text())["hang"]["culprits"]))

    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--ranks", "99"], "--ranks: the logs do not show rank 99; they show ranks 0-15"),
        (["--host", "other"], "they show gpu-node-00, gpu-node-01"),
        (["--comm", "0x1"], "the logs do not show communicator 0x1; they show 0x"),
        (["--ranks", "0,99"], ""),
        (["--host", "gpu-node-00"], ""),
    ],
)
def test_an_option_that_selects_nothing_says_what_there_is(
    options: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["hang", LAGGING, *options])

    said = capsys.readouterr().err
    assert shown in said
    assert bool(said) == bool(shown)


@pytest.mark.parametrize("text", ["", "a", "3-", "-3", "1,,2", "1.5", "0-99999999999", "7-0", "9" * 5000])
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("logs", "said"),
    [
        (LAGGING, "no line of these logs has a time"),
        (WITH_TIMES, "the logs do not show this time; they show 2026-"),
    ],
)
def test_a_time_range_that_selects_nothing_says_what_there_is(
    logs: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["hang", logs, "--since", "2031-01-01T00:00:00"])
    assert f"--since, --until: {said}" in capsys.readouterr().err
    cli.main(["hang", WITH_TIMES, "--since", "2001-01-01T00:00:00"])
    assert "--since" not in capsys.readouterr().err


def test_a_malformed_time_is_refused() -> None:
    with pytest.raises(UsageError, match="--since yesterday"):
        parse_time("yesterday", "--since")
