"""`analyze` in Python and notebooks: what it takes, how its report prints, and what its frames mean."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from ncclforensics import analyze
from tests.incidents import INCIDENTS

pytestmark = pytest.mark.usefixtures("shared_analyses")
LAGGING = INCIDENTS / "one-rank-stops-before-an-allreduce"


@pytest.mark.parametrize("paths", [LAGGING, str(LAGGING), [LAGGING], (str(LAGGING / "*.log"),)], ids=lambda one: "")
def test_paths_are_given_one_by_one_or_in_a_list(paths: str | Path) -> None:
    assert analyze(paths).verdicts[0].verdict == "lagging-ranks"


def test_a_report_prints_its_verdict() -> None:
    printed = str(analyze(LAGGING))

    assert "LAGGING-RANKS" in printed
    assert "rank 11 on gpu-node-01" in printed
    assert "\x1b" not in printed


def test_a_report_of_all_rules_prints_all_findings() -> None:
    assert "WHAT THESE LOGS CANNOT SHOW" in str(analyze(LAGGING, everything=True))


def test_a_notebook_shows_the_report_with_everything_escaped(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("n1:12:12 [0] NCCL INFO ncclCommInitRank\nn1:12:12 [0] a.cc:1 NCCL WARN <script>alert(1)</script>\n")
    shown = analyze(log, everything=True)._repr_html_()

    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "<script" not in shown


def test_frames_hold_names_in_place_of_internal_numbers() -> None:
    calls = analyze(LAGGING, full=True).frames["call"]
    last = calls.filter(pl.col("rank") == 11, pl.col("communicator").cast(pl.String).str.ends_with("/0.2"))
    last = last.sort("ordinal").tail(1)

    row = last.select("rank", "host", "name", "ordinal", "count", "datatype", "op", "line").to_dicts()
    assert row == [
        {
            "rank": 11, "host": "gpu-node-01", "name": "AllReduce", "ordinal": 12, "count": 1048576,
            "datatype": "bfloat16", "op": "sum", "line": 60,
        }
    ]  # fmt: skip
    assert last["path"].item().endswith("nccl_rank11.log")


def test_the_root_of_a_call_is_a_rank_of_the_world() -> None:
    calls = analyze(INCIDENTS / "another-broadcast-root", full=True).frames["call"].filter(ordinal=6)

    assert dict(calls.select("rank", "root_rank").iter_rows()) == {rank: 4 if rank == 4 else 3 for rank in range(8)}


def test_ranks_in_lists_are_numbers_of_the_world() -> None:
    verdict = analyze(LAGGING).frames["verdict"].row(0, named=True)

    assert verdict["culprits"] == [11]
    assert set(verdict["victims"]) == set(range(16)) - {11}


def test_every_frame_is_readable_and_free_of_internal_columns() -> None:
    frames = analyze(INCIDENTS / "a-cable-goes-bad-under-a-job", everything=True).frames

    internal = re.compile(r"(\w+_)?rank_id|pos|source|key")
    assert [(name, column) for name in frames for column in frames[name].columns if internal.fullmatch(column)] == []
    assert len(frames) == len(list(frames))


def test_an_unknown_frame_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        analyze(LAGGING).frames["no-such-frame"]
