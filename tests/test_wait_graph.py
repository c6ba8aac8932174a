"""One edge of the wait graph leads to all ranks that did not make a call."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from tests.benchmarks.floods import flood, half_a_call_ahead


@pytest.mark.parametrize("ranks", [4, 64])
def test_ranks_that_wait_in_one_call_share_the_ranks_they_wait_for(tmp_path: Path, ranks: int) -> None:
    half_a_call_ahead(tmp_path / "job.log", ranks)

    report = analyze([str(tmp_path)], everything=False)

    lagging, waiting = list(range(0, ranks, 2)), list(range(1, ranks, 2))
    assert report.run["wait"]["waiter"].sort().to_list() == waiting
    assert report.run["wait"]["waits_for"].to_list() == [lagging] * len(waiting)
    verdict = report.verdicts[0]
    assert (verdict["verdict"], verdict["culprits"], verdict["victims"]) == ("lagging-ranks", lagging, waiting)
    assert [wait["for_ranks"] for wait in report.waits(0)] == [lagging] * len(waiting)
    assert len({id(wait["waits_for"]) for wait in report.waits(0)}) == 1


def test_the_error_in_the_middle_of_a_flood_decides_the_cause(tmp_path: Path) -> None:
    flood(tmp_path / "job.log", 400_000)

    report = analyze([str(tmp_path)], everything=False)

    assert report.verdicts[0]["culprits"] == [0]
    assert {"cuda-sticky-error", "line-repeated-without-end"} <= {finding.rule for finding in report.findings}
