"""Traces are read by processes of their own: the same is found, and nothing is lost if a process ends."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from ncclforensics import analyze
from ncclforensics.formats import TraceReader
from ncclforensics.inputs import sources
from ncclforensics.parsing import load, trace_readers
from ncclforensics.parsing.trace_readers import read_trace, traces_read
from tests.incidents import ROOT

TRACES = ROOT / "fixtures" / "slow" / "late-since"
FOUND = TraceReader("kineto")


def folder_with_damage(folder: Path) -> list[str]:
    """Traces of four ranks: of rank 1 a damaged one, of rank 2 one that was cut off."""
    for path in sorted(TRACES.glob("rank*.pt.trace.json.gz")):
        text = gzip.decompress(path.read_bytes())
        if "rank2" in path.name:
            text = text[: len(text) // 2]
        packed = gzip.compress(text)
        (folder / path.name).write_bytes(packed[: len(packed) // 2] if "rank1" in path.name else packed)
    return [str(folder)]


def test_processes_read_the_same_and_leave_out_what_is_damaged(tmp_path: Path) -> None:
    found = sources.find(folder_with_damage(tmp_path))
    with traces_read([(source, FOUND) for source in found], 2) as read:
        records = list(read)

    assert [entry is None for entry in records] == [False, True, False, False]
    for source, entry in zip(found, records, strict=True):
        if entry is not None:
            here = read_trace(source, FOUND)
            assert entry.problems == here.problems
            assert {name: rows.to_dicts() for name, rows in entry.frames.items()} == {
                name: rows.to_dicts() for name, rows in here.frames.items()
            }


@pytest.mark.parametrize("command", [trace_readers.COMMAND, ("-c", "")], ids=["running", "ended"])
def test_damage_is_reported_and_all_other_traces_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    paths = folder_with_damage(tmp_path)
    here = analyze(paths, full=True)
    monkeypatch.setattr(load, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(load, "read_trace", None if "serve" in command[-1] else read_trace)
    monkeypatch.setattr(trace_readers, "COMMAND", command)
    monkeypatch.setattr(pl, "thread_pool_size", lambda: 2)
    apart = analyze(paths, full=True)

    assert [problem for _, problem in apart.input_problems()] == [problem for _, problem in here.input_problems()]
    assert apart.run["profiled_call"].equals(here.run["profiled_call"])
