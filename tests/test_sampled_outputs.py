"""What a loop collected again and again is thinned out: what rises is still seen to rise, what differs is kept."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from ncclforensics import analyze
from ncclforensics.archive.write import save
from ncclforensics.formats import dialect
from ncclforensics.frames.open_run import open_run
from ncclforensics.frames.run import Run
from ncclforensics.grammar import grammar_file
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.parsing.sampled_outputs import MOST_ENDS
from ncclforensics.report.build import build_report
from ncclforensics.views.text_coverage import coverage

ALL = ReadPolicy(full=True, chunk=4096)
FEW = ALL._replace(samples=400)
HEAD = "# Port extended counters: Lid {lid} port 1 (CapMask: 0x5A00 CapMask2: 0x0000002)"
LINE = "{name}:{dots}{count}"
PORTS, DUMPS = 4, 300


def counters(lid: int, dump: int, errors: int) -> list[str]:
    named = {"PortXmitData": 1000 * dump, "SymbolErrorCounter": errors}
    lines = [LINE.format(name=name, dots="." * (32 - len(name) - 1), count=count) for name, count in named.items()]
    return [HEAD.format(lid=lid), *lines]


def minute(dump: int) -> str:
    return f"2026-11-22 {dump // 60:02}:{dump % 60:02}:00"


def looped(*extra: str, at: int = 0) -> list[str]:
    """The lines of DUMPS dumps, one a minute; symbol errors of LID 3 rise in each from the hundredth on."""
    lines: list[str] = []
    for dump in range(DUMPS):
        lines.append(minute(dump))
        for lid in range(1, PORTS + 1):
            lines += counters(lid, dump, 3 * max(dump - 99, 0) if lid == 3 else 0)
        lines += extra if dump == at else ()
    return lines


def run_of(folder: Path, lines: list[str], policy: ReadPolicy) -> Run:
    path = folder / "node-a.log"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return open_run(find([str(path)]), policy)


def test_an_error_that_rises_in_the_middle_is_found_with_its_count_and_between_which_times(tmp_path: Path) -> None:
    run = run_of(tmp_path, looped(), FEW)

    assert run["counter_line"].height <= FEW.samples // 2
    increase = run["counter_increase"].filter(lid=3, name="symbol_error").row(0, named=True)
    assert (increase["value"], increase["increase"], increase["is_lower_bound"]) == (600, 600, False)
    assert increase["last_unchanged"] < pl.select(pl.datetime(2026, 11, 22, 1, 40)).item() <= increase["first_increase"]
    assert (increase["first_increase"] - increase["last_unchanged"]).total_seconds() < DUMPS * 60 / 4
    others = run["counter_increase"].filter((pl.col("name") == "symbol_error") & (pl.col("lid") != 3))
    assert others["increase"].to_list() == [0, 0, 0]
    assert run.tally.row(0, named=True)["recognised"] == DUMPS * (1 + PORTS * 3)
    assert run.inputs[0].outputs_dropped == DUMPS * PORTS - run["counter_head"].height > 0


def test_each_counter_keeps_its_port_and_its_time(tmp_path: Path) -> None:
    kept, whole = (run_of(tmp_path, looped(), policy)["counter"] for policy in (FEW, ALL))

    assert 0 < kept.height < whole.height
    assert kept.join(whole, on=whole.columns, nulls_equal=True, how="anti").is_empty()


def test_a_port_that_was_dumped_once_is_kept(tmp_path: Path) -> None:
    run = run_of(tmp_path, looped(*counters(77, 0, 5), at=150), FEW)

    assert run["counter"].filter(lid=77, name="symbol_error")["value"].to_list() == [5]


def test_hosts_that_a_heading_names_are_told_apart(tmp_path: Path) -> None:
    lines = [
        line
        for host in range(200)
        for line in (
            f"=== gpu-a{host:03} ===",
            "NIC statistics:",
            *[f"     rx_prio{n}_pause: {host}" for n in range(4)],
        )
    ]

    run = run_of(tmp_path, lines, FEW)

    assert run["nic_counter"].height == 800
    assert run.inputs[0].outputs_dropped == 0


def test_of_rows_that_name_no_gpu_stretches_are_kept_that_hold_all(tmp_path: Path) -> None:
    head = "timestamp, index, utilization.gpu [%], power.draw [W]"
    rows = [
        f"2026/11/22 10:{second // 60:02}:{second % 60:02}.123, {gpu}, {100 if gpu else 0} %, 118.31 W"
        for second in range(1000)
        for gpu in range(8)
    ]

    run = run_of(tmp_path, [head, *rows], FEW)

    assert 0 < run["use_readings"].height < 8000
    begins = run["use_readings"].with_row_index().filter(pl.col("line").diff() > 1)["index"]
    assert begins.len() >= 2
    assert {begin % MOST_ENDS for begin in begins} == {0}
    by_gpu = run["gpu_use"].group_by("gpu").agg(pl.len())
    assert sorted(by_gpu["gpu"]) == list("01234567")
    assert by_gpu["len"].n_unique() == 1


def test_what_is_left_out_is_said_and_a_saved_run_says_it_too(tmp_path: Path) -> None:
    report = build_report(run_of(tmp_path, looped(), FEW))
    saved = str(tmp_path / "node-a.ncclf")
    save(report, Path(saved))

    first_lines = [coverage(shown).plain for shown in (report, analyze(saved))]

    assert first_lines[0] == first_lines[1]
    dropped = f"{report.run.inputs[0].outputs_dropped:,} outputs"
    assert f"{dropped} between others of the same port or GPU left out" in first_lines[0]


def test_every_grammar_that_says_where_outputs_begin_names_rules_and_columns_that_it_has() -> None:
    sampled = {name for name in grammar_file.names() if grammar_file.load(name).sampled}

    assert {"portcounters", "ethernet", "sysfs", "metrics", "gpuuse", "ras"} <= sampled
    assert dialect().with_all_formats.above_outputs
