"""RCCL's trace of kernels: which ranks did not begin the kernel that others are in, and when that is not said."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from ncclforensics import analyze
from ncclforensics.analyses.job.calls.kernel_trace import kernel_progress
from ncclforensics.rules.finding import Finding
from tests.incidents import INCIDENTS

INCIDENT = INCIDENTS / "a-gpu-does-not-begin-a-kernel-of-rccl"
LAST_STEP = "] 000005 KL "


def logs() -> dict[str, list[str]]:
    return {path.name: path.read_text().splitlines() for path in sorted(INCIDENT.glob("*.log"))}


def findings(texts: dict[str, list[str]], folder: Path) -> list[Finding]:
    for name, lines in texts.items():
        (folder / name).write_text("\n".join([*lines, ""]))
    report = analyze([str(folder)])
    return [finding for finding in report.findings if finding.rule == "rccl-kernel-not-begun"]


def test_the_rank_that_did_not_begin_the_kernel_is_named(tmp_path: Path) -> None:
    (finding,) = findings(logs(), tmp_path)

    assert finding.ranks == [3]
    assert finding.title == "rank 3 on gpu-a012 did not begin the kernel that ranks 0-2 entered"
    assert finding.certainty == "possible"  # nothing else shows that the job hangs


@pytest.mark.parametrize("of", ["none", "all"])
def test_ranks_that_all_began_a_kernel_or_all_ended_it_are_not_told_apart(of: str, tmp_path: Path) -> None:
    texts = logs()
    begun = next(line for line in texts["gpu-a012.41880.log"] if LAST_STEP in line)
    for name, lines in texts.items():
        if of == "none":
            texts[name] = [line for line in lines if LAST_STEP not in line]
        elif not any(LAST_STEP in line for line in lines):
            lines.append(begun.replace("gpu-a012:41880:42100 [0]", "gpu-a012:41883:42103 [3]").replace("[00:", "[03:"))

    assert findings(texts, tmp_path) == []


def test_a_channel_whose_last_line_may_not_have_been_read_counts_for_nothing() -> None:
    run = analyze([str(INCIDENT)]).run
    steps, sources = run["kernel_step"], run["source"]
    of_last = pl.lit(steps.filter(rank=3)["source"][0])
    unread = sources.with_columns(is_closed=pl.col("source") != of_last)
    in_tail = steps.with_columns(line=pl.when(rank=3, channel=1).then(-pl.col("line")).otherwise("line"))

    assert set(kernel_progress(steps, sources)["rank"]) == {0, 1, 2, 3}
    assert set(kernel_progress(steps, unread)["rank"]) == {0, 1, 2}
    assert set(kernel_progress(in_tail, unread)["rank"]) == {0, 1, 2, 3}
