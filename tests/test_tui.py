"""The screens show what the command line says, at any size; what is broken is said and ends nothing."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import polars as pl
import pytest
from textual.binding import Binding
from textual.drivers import web_driver
from textual.pilot import Pilot
from textual.widgets import Input, Tree

from ncclforensics import analyze
from ncclforensics.analyses.slow.answer import SlowAnswer, SlowKind
from ncclforensics.cli import main
from ncclforensics.report.build import Report
from ncclforensics.report.redacted_run import redact_report
from ncclforensics.simulate.fabric import FabricFault, simulated_fabric
from ncclforensics.simulate.fabric_text import write_fabric
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Plan
from ncclforensics.simulate.slow import SlowFault, SlowPlan, generate_slow
from ncclforensics.tui import content, terminal
from ncclforensics.tui import log as log_page
from ncclforensics.tui.app import Forensics, Request
from ncclforensics.tui.call_table import CallTable
from ncclforensics.tui.connections import MatrixTable
from ncclforensics.tui.content.call_rows import CallRows, Stretch, stretches_of
from ncclforensics.tui.content.calls import Calls
from ncclforensics.tui.content.connections import Connections
from ncclforensics.tui.content.evidence import Citer
from ncclforensics.tui.content.incident import Incident as IncidentContent
from ncclforensics.tui.content.incident import change_of_verdict
from ncclforensics.tui.content.logs import LineFilter
from ncclforensics.tui.content.merged import Merger, Order
from ncclforensics.tui.content.ranks import RankRow, State, list_ranks
from ncclforensics.tui.content.slow import SlowJob
from ncclforensics.tui.drivers import MOST_COLUMNS, MOST_ROWS, Page
from ncclforensics.tui.incident import Incident
from ncclforensics.tui.log import Log
from ncclforensics.tui.log_lines import LogLines
from ncclforensics.tui.merged import MergedRows
from ncclforensics.tui.prompts import Help
from ncclforensics.tui.rank_table import RankTable
from ncclforensics.tui.ranks import RankGrid, Ranks
from ncclforensics.tui.screen import TITLES
from ncclforensics.tui.slow import HeatMap, Slow
from tests import browser, incidents
from tests.incidents import INCIDENTS, ROOT

LAGGING = "one-rank-stops-before-an-allreduce"
OTHER_ROOT = "another-broadcast-root"
TIMED = "one-rank-comes-late-to-every-step"
CYCLE = "communicators-in-opposite-order"
SCREENS = Path(__file__).parent / "screens"
SIZES = ((80, 24), (120, 40), (200, 60))
SOON = 60  # seconds until something in the background must have happened
Golden = Callable[[Path, str], None]
Walk = Callable[[Forensics, Pilot[None]], Awaitable[None]]


class LoadedApp(Forensics):
    """The program with facts that are known already."""

    def __init__(self, report: Report, *, is_whole: bool = True) -> None:
        super().__init__(Request(("run",)))
        self._known = content_of(report, is_whole=is_whole)

    def _begin(self) -> None:
        self._set_content(self._known)


@pytest.fixture(autouse=True)
def _in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the paths of the incident's report lead to its logs."""
    monkeypatch.chdir(INCIDENTS / LAGGING)


@cache
def of(name: str) -> Report:
    """A report of its own: screens read further lines of its logs, which they find only in the incident's folder."""
    return incidents.Incident(INCIDENTS / name).answer(everything=True).report


_CONTENT: dict[tuple[object, ...], tuple[Report, content.RunContent]] = {}  # by the id of a report, which is kept


def content_of(report: Report, *, is_whole: bool) -> content.RunContent:
    """The content of all screens, built once for each report."""
    key = id(report), is_whole, *content.BUILDERS.values()
    if key not in _CONTENT:
        _CONTENT[key] = report, content.build_content(report, is_whole=is_whole)
    return _CONTENT[key][1]


def walk(app: Forensics, steps: Walk, size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(app, pilot)

    asyncio.run(run())


def text_of(app: Forensics) -> str:
    """What stands on the screen, as a terminal without colours shows it."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(part.text for part in strip).rstrip() for strip in strips) + "\n"


def notices(app: Forensics) -> str:
    return "\n".join(notice.message for notice in app._notifications)


async def typed(app: Forensics, pilot: Pilot[None], text: str) -> None:
    """Answer the question that is asked."""
    await pilot.pause()
    app.screen.query_one(Input).value = text
    await pilot.press("enter")


async def until(pilot: Pilot[None], is_so: Callable[[], bool]) -> None:
    """Wait for something that happens in the background."""
    for _ in range(int(SOON / 0.02)):
        if is_so():
            await pilot.pause()
            return
        await pilot.pause(0.02)
    raise AssertionError("it never happened")


def lines(app: Forensics) -> LogLines:
    return app.screen.query_one(LogLines)


def is_ready(app: Forensics) -> Callable[[], bool]:
    """Whether the file of the log has been counted, and the line that was wanted is under the cursor."""

    def ready() -> bool:
        found = app.screen.query(LogLines)
        return (
            bool(found)
            and found.first().file is not None
            and found.first().file.is_complete
            and not app.page._requested_line
        )  # type: ignore[union-attr]

    return ready


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_every_screen_is_as_recorded(size: tuple[int, int], golden: Golden) -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        for number, name in enumerate(TITLES, 1):
            await pilot.press(str(number))
            await pilot.pause()
            if name == "log":
                await until(pilot, is_ready(app))
            if name == "merged":
                await until(pilot, lambda: app.screen.query_one(MergedRows).rows > 0)
            if name == "incident":
                await until(pilot, lambda: "Culprits" in text_of(app))
            golden(SCREENS / f"{size[0]}x{size[1]}" / f"{name}.txt", text_of(app))

    walk(LoadedApp(of(LAGGING)), steps, size)


def test_a_timer_finds_a_page_that_lost_some_of_its_widgets() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press(str(list(TITLES).index("log") + 1))
        await until(pilot, is_ready(app))
        page = app.screen
        assert isinstance(page, Log)
        await page.query_one(LogLines).remove()
        assert page.children

        page.unless_closed(page._follow_growth)()

    walk(LoadedApp(of(LAGGING)), steps, (80, 24))


def test_the_screens_show_the_verdict_of_the_command_line() -> None:
    """The verdict, the culprit and every finding, taken from the same report."""
    report = of(LAGGING)

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "Culprits" in text_of(app))
        shown = text_of(app)
        assert report.findings[0].title[:60] in shown
        assert "rank 11 on gpu-node-01, GPU 3" in shown
        titles = [str(node.label) for node in app.screen.query_one(Tree).root.children]
        for finding in report.findings:
            if finding.role == "cause":
                assert any(finding.title in title for title in titles)

    walk(LoadedApp(report), steps, (160, 48))


def test_enter_on_evidence_opens_the_log_at_that_line_and_back_returns() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press(*["down"] * 6, "enter")  # the commands come first
        await until(pilot, is_ready(app))
        assert isinstance(app.page, Log)
        assert lines(app).number == 61
        assert "nccl_rank9.log" in text_of(app)
        await pilot.press("less_than_sign")
        await until(pilot, lambda: isinstance(app.page, Incident))
        await until(pilot, lambda: app.page is not None and app.page.cursor_position() == (0, -2))
        await pilot.press("greater_than_sign")
        await until(pilot, is_ready(app))
        assert lines(app).number == 61

    walk(LoadedApp(of(LAGGING)), steps)


def test_the_cursor_starts_on_the_culprit_which_leads_to_its_last_call() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await pilot.pause()
        rank_row = app.screen.query_one(RankGrid).rank_row
        assert rank_row is not None
        assert (rank_row.rank, rank_row.state.name) == (11, "CULPRIT")
        await pilot.press("o")
        await until(pilot, lambda: bool(app.screen.query(CallTable)) and app.screen.query_one(CallTable).position == 12)
        sheet = app.screen.query_one(CallTable)
        assert sheet.columns[sheet.cursor_cell].title == "rank 11"
        await pilot.press("d")
        assert sheet.position == 13
        assert "no call here" in text_of(app)

    walk(LoadedApp(of(LAGGING)), steps)


@pytest.mark.parametrize("name", [LAGGING, OTHER_ROOT, CYCLE])
def test_the_victims_of_the_verdict_wait(name: str) -> None:
    report = of(name)
    waiting = {row.rank_id for row in list_ranks(report, Citer(report)) if row.state is State.WAITING}
    assert waiting == set(report.verdicts[0].victims)


def test_ranks_are_grouped_and_filtered() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("2", "f")
        await typed(app, pilot, "X")
        await pilot.pause()
        assert [rank_row.rank for rank_row in app.screen.query_one(RankGrid).rank_rows] == [11]
        await pilot.press("f")
        await typed(app, pilot, "0-3")
        await pilot.press("s")
        await pilot.pause()
        assert [rank_row.rank for rank_row in app.screen.query_one(RankGrid).rank_rows] == [0, 1, 2, 3]
        assert "by state" in text_of(app)

    walk(LoadedApp(of(LAGGING)), steps)


def test_the_table_of_ranks_sorts_and_filters() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("2", "v")
        await pilot.pause()
        table = app.screen.query_one(RankTable)
        assert [row.rank for row in table.rank_rows] == list(range(16))
        assert table.rank_row is not None
        assert table.rank_row.rank == 11  # the cursor stays where it was
        await pilot.press("s", "s", "s")
        assert table.rank_rows[0].rank == 11  # by state
        await pilot.press("s")
        assert [(row.rank, row.missing_calls) for row in table.rank_rows[:1]] == [(11, 3)]
        await pilot.press("S", "g")
        assert table.rank_rows[-1].rank == 11
        await pilot.press("f")
        await typed(app, pilot, "culprit")
        assert [row.rank for row in table.rank_rows] == [11]
        await pilot.press("f")
        await typed(app, pilot, "nowhere")
        await until(pilot, lambda: any("there are ranks 0-15" in each.message for each in app._notifications))
        assert len(table.rank_rows) == 16

    walk(LoadedApp(of(LAGGING)), steps)


def test_the_table_of_ranks_shows_when_each_made_its_last_call() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("2", "v")
        await pilot.pause()
        table = app.screen.query_one(RankTable)
        while table.columns[table.sorted_by].title != "last call at":
            await pilot.press("s")
        times = [row.last_time for row in table.rank_rows if row.last_time is not None]
        assert len(times) == 6
        assert times == sorted(times)
        assert f"{times[0]:%H:%M:%S}." in text_of(app)

    walk(LoadedApp(of(TIMED)), steps, (120, 24))


def test_a_difference_is_marked_where_it_is() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        await pilot.pause()
        sheet = app.screen.query_one(CallTable)
        assert sheet.communicator is not None
        assert sheet.position == sheet.communicator.differs_at
        cell = sheet.cell
        assert cell is not None
        assert cell.differs
        assert cell.text == "Broadcast 65536 float16 ≠root rank 4"

    walk(LoadedApp(of(OTHER_ROOT)), steps)


@pytest.mark.parametrize("width", [80, 120])
def test_the_arguments_of_calls_are_in_view_in_logs(width: int) -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("7")
        await until(pilot, is_ready(app))
        row = text_of(app).splitlines()[21]
        assert row.startswith(">60 … AllReduce: opCount c … count 1048576 datatype 9 op 0 root 0 … [nranks=4]")
        await pilot.press("8")
        await until(pilot, lambda: app.screen.query_one(MergedRows).rows > 0)
        assert ">rank 11 … AllReduce: opCount c … count 1048576 datatype 9 op 0" in text_of(app)
        await pilot.press("7", "z")
        assert ">60 gpu-node-01:23904:23904 [3] NCCL INFO AllReduce: opCount c" in text_of(app)

    walk(LoadedApp(of(LAGGING)), steps, (width, 24))


def test_the_log_opens_at_the_first_line_that_shows_a_finding_if_no_rank_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("7")
        await until(pilot, is_ready(app))
        assert "NCCL WARN" in lines(app).line_text(lines(app).cursor_row)

    name = "the-network-fails-for-all"
    assert not of(name).verdicts[0].culprits
    monkeypatch.chdir(INCIDENTS / name)
    walk(LoadedApp(of(name)), steps)


def test_screens_without_content_are_left_out_of_the_bar_and_say_so(tmp_path: Path) -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        assert text_of(app).splitlines()[0] == "[1 Incident] 6 Bench 7 Log 8 Merged"
        for key in "23459":
            await pilot.press(key)
            await pilot.pause()
            page = app.page
            assert page is not None
            shown = text_of(app).splitlines()
            assert f"[{key} " in shown[0]
            assert page.EMPTY.partition(";")[0] in " ".join(shown)
            assert "─" not in "".join(shown)

    write_fabric(simulated_fabric(24, 4, FabricFault.NONE, seed=0), FabricFault.NONE, tmp_path)
    walk(LoadedApp(analyze(tmp_path, everything=True)), steps)


def test_positions_before_the_first_difference_are_folded_until_they_are_opened() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("3")
        await pilot.pause()
        table = app.screen.query_one(CallTable)
        assert table.position == 13
        assert "0 to 7: 8 positions, all 4 ranks made the same calls" in text_of(app)
        await pilot.press("g", "enter")
        await pilot.pause()
        assert app.page is not None
        assert app.page.NAME == "operations"
        assert (table.fold, table.position, table.rows) == (None, 0, 16)
        assert "8 positions" not in text_of(app)
        await pilot.press("f")
        assert table.rows == 16
        await pilot.press("f")
        assert table.fold is not None
        await pilot.press("colon")
        await typed(app, pilot, "3")
        assert (table.fold, table.position) == (None, 3)

    walk(LoadedApp(of(LAGGING)), steps)


def test_changes_and_what_stands_beside_them_are_never_folded() -> None:
    rows = CallRows([Stretch(0, 99, 4, True), Stretch(100, 101, 4, False), Stretch(102, 199, 3, True)])

    shown = [(fold.first, fold.last) if (fold := rows.fold(row)) else rows.position(row) for row in range(rows.count)]

    assert shown == [(0, 94), *range(95, 107), (107, 194), *range(195, 200)]
    assert [rows.row(position) for position in (0, 94, 95, 106, 107, 194, 195, 199)] == [0, 0, 1, 12, 13, 13, 14, 18]


def test_positions_that_no_line_shows_are_told_from_equal_ones() -> None:
    key, calls = ["a"] * 8, {"ordinal": [0, 1, 2, 7] * 2, "nth": [0, 1, 2, 7] * 2}

    found = stretches_of(pl.DataFrame({"key": key, **calls}), pl.Series("signature", [1, 1, 1, 1, 1, 1, 2, 1]))

    assert found == {
        "a": [Stretch(0, 1, 2, True), Stretch(2, 2, 2, False), Stretch(3, 6, 0, True), Stretch(7, 7, 2, True)]
    }


def test_calls_have_a_time_axis_where_lines_have_times() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("3", "g")
        await pilot.pause()
        table = app.screen.query_one(CallTable)
        assert table.communicator is not None
        assert table.calls is not None
        times = [table.calls.time(table.communicator, position) for position in range(table.communicator.length)]
        assert None not in times
        assert times == sorted(times)
        assert text_of(app).splitlines()[2].startswith("position  time ")
        assert f"{times[0]:%H:%M:%S} " in text_of(app)

    walk(LoadedApp(of(TIMED)), steps)


def test_sends_without_collectives_are_shown_with_their_peers() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("3", "f", "g")
        await pilot.pause()
        cell = app.screen.query_one(CallTable).cell
        assert cell is not None
        assert (cell.text, cell.description) == ("Send 4096 float32 to rank 1", "Send #0 (4,096 x float32, to rank 1)")

    walk(LoadedApp(of("all-to-all-without-pxn")), steps)


def test_a_deadlock_cycle_is_shown_as_a_cycle() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("4")
        await pilot.pause()
        shown = text_of(app)
        assert "X rank 1 on gpu-node-00" in shown
        assert "↻ rank 1" in shown

    walk(LoadedApp(of(CYCLE)), steps)


def test_512_ranks_fit_on_80_by_24_and_1024_have_a_place_each(large: Report) -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await pilot.pause()
        grid = app.screen.query_one(RankGrid)
        assert len(grid.rank_rows) == 512
        assert grid.max_scroll_y == 0
        assert text_of(app).count("X") == 3  # two ranks, and the legend
        rank_rows = [replace(rank_row, host=f"{rank_row.host}-{twin}") for twin in "ab" for rank_row in grid.rank_rows]
        assert isinstance(app.page, Ranks)
        app.page.draw(rank_rows)
        await pilot.pause()
        assert len(grid.rank_rows) == 1024
        assert grid.max_scroll_y == 0

    walk(LoadedApp(large, is_whole=False), steps)


def test_benchmarks_are_drawn_as_on_the_command_line() -> None:
    report = of("one-host-below-the-expected-busbw")

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("6")
        await pilot.pause()
        assert "BENCHMARKS" in text_of(app)
        assert str(report.run["benchmark"]["collective"][0]) in text_of(app)

    walk(LoadedApp(report), steps)


def test_the_fabric_of_a_map_is_drawn_with_its_deviating_switches_marked(tmp_path: Path) -> None:
    fabric = simulated_fabric(24, 2, FabricFault.UPLINKS_MISSING, seed=7)
    write_fabric(fabric, FabricFault.UPLINKS_MISSING, tmp_path)

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("6")
        await pilot.pause()
        shown = text_of(app)
        assert "FABRIC" in shown
        drawn = {line.split()[0]: line for line in shown.splitlines() if line.split()[:1] in (["leaf"], ["spine"])}
        assert f"▲ {fabric.truth['switch']}" in drawn["leaf"]
        assert "■" in drawn["spine"]
        assert "▲" not in drawn["spine"]

    walk(LoadedApp(analyze([tmp_path], everything=True)), steps)


def test_late_ranks_and_the_step_since_which_they_are_late_are_shown() -> None:
    report = analyze([ROOT / "fixtures" / "slow" / "late-since"], everything=True)

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("9")
        await pilot.pause()
        shown = text_of(app)
        assert "SLOW-RANK (certain)  rank 1 on vm" in shown
        assert "▲ since step 25" in shown
        marks = {line[:6]: line[7:] for line in shown.splitlines() if line.startswith("rank ")}
        assert marks["rank 1"] == "·" * 19 + "█" * 20
        assert not any("█" in marks[f"rank {rank}"] for rank in (0, 2, 3))
        assert app.page is not None
        assert app.page.clipboard_text().startswith("step 25,")
        assert "rank 1 on vm works 0.0085" in app.page.clipboard_text()
        await pilot.press("left", "up")
        assert app.page.clipboard_text().startswith("step 24,")
        assert "rank 0 on vm works" in app.page.clipboard_text()

    walk(LoadedApp(report), steps)


def test_a_late_rank_of_4096_is_seen_and_found() -> None:
    ranks, since = 4096, 40
    late = pl.DataFrame({"rank": list(range(ranks)) * 100, "step": [step for step in range(100) for _ in range(ranks)]})
    is_late = (pl.col("rank") == 2777) & (pl.col("step") >= since)
    late = late.with_columns(length_us=pl.lit(2e5), late_us=pl.when(is_late).then(3e4).otherwise(0.0))
    hosts = {rank: f"gpu-{rank // 8:03}" for rank in range(ranks)}
    answer = SlowAnswer(SlowKind.RANK, "likely", "rank 2777 is late", ranks=(2777,), since_step=since)

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("9")
        await pilot.pause()
        assert isinstance(app.page, Slow)
        app.page.remove_class("empty")
        app.page.draw(SlowJob(answer, late, hosts, 2e5))
        await pilot.pause()
        grid = app.page.query_one(HeatMap)
        assert grid.max_scroll_y == 0
        (row,) = [line for line in text_of(app).splitlines() if line.startswith("ranks ") and "▓" in line]
        assert "ranks 2736-3191" in row
        assert "rank 2777 on gpu-347 works" in app.page.clipboard_text()
        await pilot.press("v")
        await pilot.pause()
        assert grid.rows == ranks
        assert "rank 2777 " in text_of(app)
        assert "rank 2777 on gpu-347 works" in app.page.clipboard_text()

    walk(LoadedApp(of(LAGGING)), steps)


def test_what_makes_a_job_slow_and_what_was_measured_stand_first(tmp_path: Path) -> None:
    generate_slow(SlowPlan(SlowFault.RANK, gpus_per_node=4, tp=2, rank=1), tmp_path)
    slow, *rest = cast(
        "IncidentContent", content.build_content(analyze(tmp_path, everything=True), is_whole=True).parts["incident"]
    ).nodes
    benchmark = of("a-healthy-benchmark")
    measured = cast("IncidentContent", content.build_content(benchmark, is_whole=True).parts["incident"]).nodes

    assert (slow.label, slow.severity) == ("SLOW-RANK", "warning")
    assert slow.evidence
    assert rest[0].label == "UNDECIDABLE"
    assert [node.label for node in measured] == ["NO-HANG", "MEASURED"]
    assert "such hosts reach 360 to 482 GB/s" in measured[1].title


def test_step_lines_show_since_when_steps_take_longer(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "\n".join(
            f" iteration {step:8}/    2000 | elapsed time per iteration (ms): {2000 + 400 * (step > 130)}.{step % 7} |"
            for step in range(1, 241)
        )
    )

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("9")
        await pilot.pause()
        shown = text_of(app)
        assert "SLOWED-DOWN" in shown
        assert "▲ since step 131" in shown

    walk(LoadedApp(analyze([log], everything=True)), steps)


def test_increased_counters_are_shown_with_their_findings() -> None:
    report = of("a-cable-goes-bad-under-a-job")

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("6")
        await pilot.pause()
        rows = text_of(app).partition("COUNTERS THAT GREW")[2].split("\n")
        grew = {tuple(row.split()[:6]) for row in rows if "symbol_error" in row or "xmit_wait" in row}
        assert grew == {
            ("error", "leaf-1", "port", "2", "symbol_error", "0"),
            ("leaf-1", "port", "1", "port_xmit_wait", "9,184", "9,991"),
        }

    walk(LoadedApp(report), steps, size=(120, 60))


def test_ranks_are_shown_with_their_nics_and_exits() -> None:
    nics = cast(
        "Connections",
        content.build_content(of("one-host-numbers-its-nics-otherwise"), is_whole=True).parts["connections"],
    )
    rank_rows = cast("list[RankRow]", content.build_content(of("a-rank-is-killed"), is_whole=True).parts["ranks"])

    assert nics.nics[0][:2] == ("rank 0 on h100-01", "mlx5_0:1/IB (GPUDirect)")
    assert [rank_row.rank for rank_row in rank_rows if rank_row.state is State.CULPRIT_DIED] == [12]


def test_outliers_among_connections_are_marked() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("5")
        await pilot.pause()
        table = app.screen.query_one(MatrixTable)
        assert table.pair is not None
        assert set(table.pair.transports) == {"NET/Socket"}
        await pilot.press("v", "v")
        assert "channel 0: 0 → 7" in text_of(app)

    walk(LoadedApp(of(LAGGING)), steps)


def test_help_names_every_key_of_the_screen() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("7", "question_mark")
        await pilot.pause()
        assert isinstance(app.screen, Help)
        shown = " ".join(text_of(app).replace("│", " ").split())
        for binding in (*Log.BINDINGS, *Forensics.BINDINGS):
            assert isinstance(binding, Binding)
            assert " ".join((binding.tooltip or binding.description).split()[:3]) in shown

    walk(LoadedApp(of(LAGGING)), steps, (120, 60))


def test_search_outside_the_log_finds_ranks_and_findings() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"rk 12 gpu")  # fuzzy
        await until(pilot, lambda: "rank 12 on gpu-node-01" in text_of(app))
        await pilot.press("enter")
        await until(
            pilot,
            lambda: isinstance(app.screen, Ranks) and app.page is not None and app.page.cursor_position() == (12,),
        )

    walk(LoadedApp(of(LAGGING)), steps)


def test_search_finds_hosts_and_rules() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"host gpu01")
        await until(pilot, lambda: "ranks 8-15" in text_of(app))
        await pilot.press("escape", "slash", *"netsockfall")
        await until(pilot, lambda: "rule net-socket-fallback" in " ".join(text_of(app).split()))

    walk(LoadedApp(of(LAGGING)), steps)


def test_an_export_writes_the_incident_or_a_finding_and_overwrites_nothing(tmp_path: Path) -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        down = "down"
        for choice, name in (
            ((), "whole.md"),
            ((down,), "one.json"),
            ((down,), "one.json"),
            ((down, down, down), "redacted.json"),
        ):
            await pilot.press("e", *choice, "enter")
            await typed(app, pilot, str(tmp_path / name))
            await until(pilot, lambda name=name: (tmp_path / name).exists() and bool(app._notifications))
        await until(pilot, lambda: any("File exists" in each.message for each in app._notifications))
        assert "never called AllReduce" in (tmp_path / "whole.md").read_text(encoding="utf-8")
        written = json.loads((tmp_path / "one.json").read_bytes())
        assert [finding["rule"] for finding in written["findings"]] == ["coll-lagging-ranks"]
        redacted = (tmp_path / "redacted.json").read_text(encoding="utf-8")
        assert "coll-lagging-ranks" in redacted
        assert "gpu-node-01" not in redacted

    walk(LoadedApp(of(LAGGING)), steps)


def test_a_command_a_line_and_the_screen_are_copied() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        for keys, copied in (
            (("down", "down", "y"), "py-spy dump --native --pid 23904"),
            (("j", "j", "j", "y"), "nccl_rank8.log:62: gpu-node-01"),
            (("Y",), "[1 Incident] 2 Ranks"),
        ):
            await pilot.press(*keys)
            assert app.clipboard.startswith(copied)
        notices = [each.message for each in app._notifications]
        assert "copied: py-spy dump --native --pid 23904" in notices
        assert "copied: this screen, 23 lines" in notices

    walk(LoadedApp(of(LAGGING)), steps)


def test_interrupt_quits_as_in_other_programs() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("7", "slash", "ctrl+c")  # also from a dialog
        assert app.return_code == 130

    walk(LoadedApp(of(LAGGING)), steps)


def test_first_and_last_are_reached_from_every_screen_with_lines() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        tree = app.screen.query_one(Tree)
        await pilot.press("G")
        assert tree.cursor_line == tree.last_line
        await pilot.press("g")
        assert tree.cursor_line == 0
        await pilot.press("7")
        await until(pilot, is_ready(app))
        assert "nccl_rank11.log" in text_of(app)  # that of the culprit
        assert lines(app).number == 60
        await pilot.press("g")
        assert lines(app).number == 1
        await pilot.press("G")
        assert lines(app).number == 60

    walk(LoadedApp(of(LAGGING)), steps)


@pytest.mark.parametrize("is_at_once", [False, True])  # found before its row has been drawn
def test_a_hit_beyond_the_right_edge_is_scrolled_into_view_and_back(is_at_once: bool) -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("7")
        await until(pilot, is_ready(app))
        if is_at_once:
            app.run_in_background = lambda work, done: done(work())  # type: ignore[method-assign]
        for text in ("[nranks=16] stream", "NCCL INFO Bootstrap"):
            await pilot.press("slash")
            await typed(app, pilot, text)
            await until(pilot, lambda text=text: text in text_of(app))

    walk(LoadedApp(of(LAGGING)), steps)


def test_a_redacted_run_shows_pseudonyms_on_every_screen() -> None:
    report, pseudonyms = redact_report(of(LAGGING), None)

    class Redacted(Forensics):
        def _begin(self) -> None:
            self._set_content(content.build_content(report, is_whole=True, pseudonyms=pseudonyms))

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        for number in range(1, len(TITLES) + 1):
            await pilot.press(str(number))
            await pilot.pause()
            if isinstance(app.page, Log):
                await until(pilot, is_ready(app))
            assert "gpu-node" not in text_of(app)
        await pilot.press("8")
        await pilot.press("z")
        await until(pilot, lambda: "host-02:" in text_of(app))  # once the logs are merged
        assert "gpu-node" not in text_of(app)

    walk(Redacted(Request(("run",), redact=True)), steps)


# Reading, and what may be wrong with it.


def test_reading_in_the_background_ends_with_the_verdict() -> None:
    """First by both ends of the files, then by every byte."""
    seen: list[bool] = []

    class Seen(Forensics):
        def _set_content(self, known: content.RunContent) -> None:
            seen.append(known.is_whole)
            super()._set_content(known)

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.content is not None and app.content.is_whole)
        assert "LAGGING-RANKS" in text_of(app)
        titles = [str(node.label) for node in app.screen.query_one(Tree).root.children]
        assert any(title.startswith("WARNING") for title in titles)  # which only all rules find

    walk(Seen(Request((str(INCIDENTS / LAGGING / "*.log"),))), steps)
    assert seen == [False, True]


def test_calls_of_a_communicator_that_only_sends_and_receives_are_shown(tmp_path: Path) -> None:
    """They have no position among the collectives, only their ordinal."""
    for log in (INCIDENTS / "a-recv-is-never-posted").glob("*.log"):
        lines = log.read_text(encoding="utf-8").splitlines()
        (tmp_path / log.name).write_text("\n".join(line for line in lines if "AllReduce: " not in line))

    calls = cast("Calls", content.build_content(analyze([str(tmp_path)]), is_whole=True).parts["operations"])
    (communicator,) = calls.communicators
    cells, differs = calls.row(communicator, 0, calls.single_columns(communicator))

    assert (communicator.position_column, differs) == ("ordinal", True)
    assert "Send" in cells[0].text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "UNDECIDABLE", id="empty"),
        pytest.param(bytes(range(256)) * 400, "binary data", id="foreign"),
        pytest.param(gzip.compress(b"node:1:2 [0] NCCL INFO a line\n" * 9000)[:-9], "is damaged", id="truncated"),
    ],
)
def test_unreadable_inputs_are_shown(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(content)

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: said in " ".join(text_of(app).split()))
        await pilot.press("2", "7")  # and no screen ends

    walk(Forensics(Request((str(path),))), steps)


def test_an_error_in_one_screen_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def dump_damage(report: Report, citer: object) -> object:
        raise ValueError("no such\x1b[2J thing")

    monkeypatch.setitem(content.BUILDERS, "ranks", dump_damage)

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await pilot.pause()
        assert "could not be built: ValueError: no such?[2J thing" in text_of(app)
        await pilot.press("slash", *"rank 1", "escape", "1")
        assert "LAGGING-RANKS" in text_of(app)

    walk(LoadedApp(of(LAGGING)), steps)


# The log.


def test_a_log_that_loses_its_widgets_before_its_timers_ends_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is the order in which Textual ends."""
    monkeypatch.setattr(log_page, "FOLLOW_INTERVAL", 0.001)

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("7")
        await until(pilot, is_ready(app))
        await app.page.remove_children()
        await pilot.pause(0.05)

    walk(LoadedApp(of(LAGGING)), steps)


def test_the_full_read_is_as_sure_as_the_quick_look(tmp_path: Path) -> None:
    """The quick look and the full read are equally sure."""
    plan = Plan(nodes=1, gpus_per_node=4, tp=2, version="2.27.7", layers=1, steps=1)
    generate(replace(plan, fault=Fault(FaultKind.LAGGING, (2,))), tmp_path)

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.content is not None and app.content.is_whole)
        assert text_of(app).count("(likely)") == 2

    walk(Forensics(Request((str(tmp_path),))), steps)


def test_a_verdict_that_changes_while_reading_goes_on_says_what_it_was_and_why() -> None:
    lagging, killed = of(LAGGING), of("a-rank-is-killed")

    change = change_of_verdict(lagging, killed)

    assert change.startswith(
        "the verdict was lagging-ranks (likely), rank 11 on gpu-node-01 never called AllReduce #13"
    )
    assert "and is rank-died" in change
    assert change_of_verdict(lagging, lagging) == ""


def test_files_are_read_again_and_escape_goes_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.content is not None and app.content.is_whole)
            assert "UNDECIDABLE" in text_of(app)
            for log in (INCIDENTS / LAGGING).glob("*.log"):
                (tmp_path / log.name).write_bytes(log.read_bytes())
            await pilot.press("2")
            await pilot.press("escape")
            assert isinstance(app.page, Incident)
            await pilot.press("R")
            await until(pilot, lambda: "rank 11 on gpu-node-01 never called" in text_of(app))
            assert "the verdict was" in notices(app)

    (tmp_path / "train.log").write_text("step 1\n")
    app = Forensics(Request((str(tmp_path),)))
    asyncio.run(run())


def test_a_picture_of_the_screen_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "Culprits" in text_of(app))
        await pilot.press("P")
        await pilot.pause()

    walk(LoadedApp(of(LAGGING)), steps)
    (picture,) = tmp_path.glob("*.svg")
    assert "LAGGING-RANKS" in picture.read_text(encoding="utf-8").replace("&#160;", " ")


def opened(path: Path, steps: Walk, size: tuple[int, int] = (80, 24)) -> None:
    """The log of a file that is no log of NCCL."""

    async def at_the_log(app: Forensics, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.content is not None)
        await pilot.press("7")
        await until(pilot, is_ready(app))
        await steps(app, pilot)

    app = Forensics(Request((str(path),), is_full_read_wanted=False))
    walk(app, at_the_log, size)


def test_no_escape_and_no_markup_of_a_log_reaches_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(
        b"\x1b]0;title\x07\x1b[2Ja\x1b[31mb \x9b31m \xc2\x9b2J\xff"
        b" [bold]x[/bold] [link=file:///]y \xe2\x80\xae z\r\n\x1b"
    )

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        shown = text_of(app)
        assert "[bold]x[/bold] [link=file:///]y" in shown
        assert all(character == "\n" or character.isprintable() for character in shown)

    opened(path, steps)


def test_any_line_is_shown_at_once_and_found_in_both_directions(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"".join(b"line %d of a log\n" % number for number in range(1, 200_001)))

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("end")
        assert "200000 line 200000 of a log" in text_of(app)
        await pilot.press("colon")
        await typed(app, pilot, "123456")
        await until(pilot, lambda: lines(app).number == 123_456)
        assert "line 123456 of a log" in text_of(app)
        await pilot.press("slash")
        await typed(app, pilot, "line 7 ")  # behind the end it goes on at the beginning
        await until(pilot, lambda: lines(app).number == 7)
        await pilot.press("slash")
        await typed(app, pilot, "re:line 1[0-9]{4}0 ")
        await until(pilot, lambda: lines(app).number == 100_000)
        await pilot.press("N")
        await until(pilot, lambda: lines(app).number == 199_990)

    opened(path, steps)


def test_the_lines_of_all_ranks_are_merged_by_position_of_their_calls() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("8")
        await until(pilot, lambda: app.screen.query_one(MergedRows).rows > 0)
        rows = app.screen.query_one(MergedRows)
        assert rows.lines is not None
        assert rows.rank_text(rows.cursor_row) == "rank 11"  # begins at the last call of the culprit
        row = rows.cursor_row
        assert [rows.rank_text(other) for other in range(row - 3, row)] == ["rank  8", "rank  9", "rank 10"]
        assert {rows.line_text(other).split("opCount ")[1][:1] for other in range(row - 3, row + 1)} == {"c"}
        for rank in (0, 11):
            positions = rows.lines.filter(pl.col("rank") == rank)["line"]
            assert positions.is_sorted()  # each rank keeps its own order
        await pilot.press("f")
        await typed(app, pilot, "rank:11 AllGather")
        await until(pilot, lambda: rows.rows == 6)
        await pilot.press("G", "enter")
        await until(pilot, is_ready(app))
        assert "nccl_rank11.log" in text_of(app)
        assert "AllGather" in lines(app).line_text(lines(app).cursor_row)

    walk(LoadedApp(of(LAGGING)), steps)


def test_lines_with_times_are_merged_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "one-rank-comes-late-to-every-step"
    report = of(name)
    monkeypatch.chdir(INCIDENTS / name)

    merged = cast("Merger", content.build_content(report, is_whole=True).parts["merged"]).merge()

    assert merged.has_times
    ordered = merged.ordered(Order.TIME, LineFilter())
    assert ordered["time"].drop_nulls().is_sorted()
    assert ordered["rank"].n_unique() > 2


def test_the_merged_lines_are_entered_at_a_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("8")
        await until(pilot, lambda: app.screen.query_one(MergedRows).rows > 0)
        rows = app.screen.query_one(MergedRows)
        await pilot.press("colon")
        await typed(app, pilot, "11:05:45")
        assert rows.lines is not None
        times = rows.lines["time"].dt.time()
        before, reached = times[rows.cursor_row - 1], times[rows.cursor_row]
        assert str(before) < "11:05:45" <= str(reached)
        await pilot.press("colon")
        await typed(app, pilot, "soon")
        assert "not a time of day" in notices(app)

    monkeypatch.chdir(INCIDENTS / TIMED)
    walk(LoadedApp(of(TIMED)), steps)


def test_a_filter_leaves_the_lines_of_a_rank_a_level_and_a_family() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("7")
        await until(pilot, is_ready(app))
        for words, count in (
            ("family:operation rank:11", 27),
            ("level:info AllGather", 6),
            ("AllGather !2097152", 5),
            ("host:gpu-node-00", 0),
        ):
            await pilot.press("f")
            await typed(app, pilot, words)
            await until(pilot, lambda: not cast("Log", app.page)._activity)
            if count:
                assert lines(app).rows == count, words
        assert lines(app).rows == 5  # one that leaves nothing is told, and not taken
        await pilot.press("f")
        await typed(app, pilot, "level:loud")
        await until(pilot, lambda: any("level:loud" in each.message for each in app._notifications))

    walk(LoadedApp(of(LAGGING)), steps)


def test_growing_files_are_followed_and_shrinking_or_deleted_ones_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("one\ntwo\n")

    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await pilot.press("F")
        with path.open("a") as file:
            file.write("three\nfour\n")
        await until(pilot, lambda: lines(app).number == 4)
        assert "four" in text_of(app)
        path.write_text("anew\n")
        await until(pilot, lambda: "was shortened" in text_of(app))
        assert lines(app).rows == 1
        path.unlink()
        await until(pilot, lambda: "is gone" in text_of(app))
        assert "anew" in text_of(app)

    opened(path, steps)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of screens served to browsers, with its token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ncclforensics", "tui", "--serve", "--port", str(port)]
    with subprocess.Popen([*command, str(INCIDENTS / LAGGING)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        address = server.stdout.readline().decode().split()[2]
        end = time.monotonic() + SOON
        while not is_open(port) and time.monotonic() < end:
            time.sleep(0.05)
        yield address
        server.terminate()


@pytest.mark.skipif(browser.CHROMIUM is None, reason="there is no Chromium on this machine")
def test_a_browser_shows_the_verdict(served: str) -> None:
    with browser.Browser() as tab:
        size = {"width": 1600, "height": 800, "deviceScaleFactor": 1, "mobile": False}  # also where letters are wide
        tab.call("Emulation.setDeviceMetricsOverride", **size)
        tab.call("Page.navigate", url=served)
        focused, end = "", time.monotonic() + SOON
        while focused != "xterm-helper-textarea" and time.monotonic() < end:
            time.sleep(0.1)
            focused = tab.value("document.activeElement.className")
        tab.call("Input.dispatchKeyEvent", type="keyDown", text="2", key="2", code="Digit2", windowsVirtualKeyCode=50)
        assert seen_in(tab, "[2 Ranks]")  # the key arrived without a click
        tab.call("Input.dispatchKeyEvent", type="keyDown", text="1", key="1", code="Digit1", windowsVirtualKeyCode=49)
        assert seen_in(tab, "rank 11 on gpu-node-01 never called")
        assert {url.split("/")[2] for url in tab.requests()} == {urlsplit(served).netloc}
        assert "Content Security Policy" not in str(tab.complaints())  # WebGL complains of the machine


@pytest.mark.parametrize(
    ("path", "host", "origin", "status"),
    [
        ("/ws?{token}", "{own}", "http://{own}", 101),
        ("/ws?{token}", "{own}", "http://elsewhere.example", 403),
        ("/ws?{token}", "elsewhere.example", "http://elsewhere.example", 403),
        ("/ws?token=guessed", "{own}", "http://{own}", 403),
        ("/ws", "{own}", "http://{own}", 403),
        ("/", "{own}", None, 403),
        ("/?{token}", "{own}", None, 200),
        ("/?{token}", "elsewhere.example", None, 403),
        ("/?{token}", "[::1", None, 403),
        ("/download/key", "{own}", None, 403),
        ("/static/js/textual.js", "{own}", None, 200),
    ],
)
def test_only_who_has_the_token_joins_and_no_other_page(
    path: str, host: str, origin: str | None, status: int, served: str
) -> None:
    own, token = urlsplit(served).netloc, urlsplit(served).query
    head = f"GET {path.format(token=token)} HTTP/1.1\r\nHost: {host.format(own=own)}\r\n"
    if origin is not None:
        head += f"Origin: {origin.format(own=own)}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    address, _, port = own.partition(":")

    with socket.create_connection((address, int(port)), timeout=SOON) as wire:
        wire.sendall(f"{head}\r\n".encode())
        answer = wire.recv(4096).decode()

    assert int(answer.split()[1]) == status
    if status == 200:
        assert "frame-ancestors 'none'" in answer


def test_a_page_gets_no_screen_of_millions_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20000000")
    monkeypatch.setenv("ROWS", "30")
    monkeypatch.setattr(web_driver, "InputReader", lambda: None)  # which needs a pipe
    sizes: list[Any] = []

    async def resize() -> None:
        page = Page(SimpleNamespace(post_message=lambda event: sizes.append(event.size)))
        sizes.append(page._size)
        for width, height in ((120, 40), (10**9, 10**9), (-1, "x")):
            page.on_meta("resize", {"width": width, "height": height})

    asyncio.run(resize())

    first, *sizes = sizes
    assert first == (MOST_COLUMNS, 30)
    assert sizes == [(120, 40), (MOST_COLUMNS, MOST_ROWS), (1, 24)]


def is_open(port: int) -> bool:
    with socket.socket() as wire:
        return wire.connect_ex(("127.0.0.1", port)) == 0


DRAG = (("mousePressed", 2, 4), ("mouseMoved", 300, 200), ("mouseMoved", 700, 500), ("mouseReleased", 700, 500))
SELECTED = """(() => {
  const copy = new ClipboardEvent("copy", {clipboardData: new DataTransfer(), bubbles: true});
  document.querySelector(".xterm")?.dispatchEvent(copy);
  return copy.clipboardData.getData("text/plain");
})()"""
SHIFT = 8  # what makes the mouse select, where the program listens to it


def seen_in(tab: browser.Browser, text: str) -> bool:
    """Whether a text comes to stand in the terminal of a page, selected and copied as a person would."""
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        for kind, x, y in DRAG:
            tab.call(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1, modifiers=SHIFT
            )
        if text in str(tab.value(SELECTED)):
            return True
        time.sleep(0.2)
    return False


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def test_without_textual_or_a_terminal_the_remedy_is_printed() -> None:
    absent = python("import sys; sys.modules['textual'] = None; from ncclforensics.cli import main; main(['tui', 'x'])")
    piped = python("from ncclforensics.cli import main; print(main(['tui', 'x']))")

    assert (
        absent.stderr == "ncclforensics: textual is not installed; `tui` needs it: pip install 'ncclforensics[tui]'\n"
    )
    assert piped.stderr.startswith("ncclforensics: `tui` needs a terminal")
    assert piped.stdout == "2\n"


def test_a_wrong_path_ends_before_the_screens_open(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "DRIVER", "any")  # as if there were a terminal
    for options in ([], ["--serve"]):
        assert main(["tui", *options, "/nowhere/job.log"]) == 2
        assert capfd.readouterr().err == "ncclforensics: /nowhere/job.log does not exist\n"


def test_heavy_imports_happen_after_the_first_paint() -> None:
    code = "import sys, ncclforensics.tui.terminal; print({'polars', 'lark', 'plotext', 'aiohttp'} & {*sys.modules})"

    assert python(code).stdout == "set()\n"


def test_lazily_connected_ranks_are_joined_by_their_devices() -> None:
    """From 2.22 on, the thread that connects has made no communicator."""
    joined = of("one-rank-calls-allgather-instead").run["rank_connection"]

    pairs = {(row["rank_id"], row["peer"]): row["transport"] for row in joined.to_dicts()}

    assert pairs == {(rank, (rank + 1) % 8): "P2P/CUMEM" for rank in range(8)}


def test_without_colours_nothing_is_dark_on_dark() -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        for number in range(1, len(TITLES) + 1):
            await pilot.press(str(number))
            await pilot.pause()
            styles = [part.style for strip in app.screen._compositor.render_strips() for part in strip]
            colours = {colour.name for style in styles if style for colour in (style.color, style.bgcolor) if colour}
            assert colours <= {"default"}

    walk(LoadedApp(of(LAGGING)), steps)  # NO_COLOR is set


def test_the_picture_in_the_readme_is_the_screen_as_it_is(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(app: Forensics, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "Culprits" in text_of(app))
        golden(SCREENS.parents[1] / "docs" / "tui.svg", app.export_screenshot(title="ncclforensics tui"))

    monkeypatch.delenv("NO_COLOR")
    walk(LoadedApp(of(LAGGING)), steps, (120, 36))


def test_the_documents_show_the_screen_as_it_is(golden: Golden) -> None:
    """The screen itself is compared by `test_every_screen_is_as_recorded`, which runs before."""
    shown = (SCREENS / "80x24" / "incident.txt").read_text(encoding="utf-8")
    document = SCREENS.parents[1] / "docs" / "tui.md"
    before, _, rest = document.read_text(encoding="utf-8").partition("<!-- screen: incident -->\n")
    _, _, after = rest.partition("<!-- end -->\n")

    golden(document, f"{before}<!-- screen: incident -->\n\n```text\n{shown}```\n\n<!-- end -->\n{after}")
