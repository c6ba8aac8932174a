"""One edge of the wait graph leads to all ranks that did not make a call."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.analyses.hang.wait_graph import FEW_AWAITED, MOST_INITS
from tests.benchmarks.floods import flood, half_a_call_ahead


def inits_of_their_own(path: Path, ranks: int) -> None:
    """A job of which every rank begins an init that no other one joins."""
    line = (
        "n{0}:{1}:1 [0] NCCL INFO ncclCommInitRank comm 0x{2:x} rank {0} nranks {3} cudaDev 0 busId 1a commId 0x{4:x}"
    )
    complete = [line.format(rank, 1000 + rank, 16 + rank, ranks, 119) + " - Init COMPLETE" for rank in range(ranks)]
    begun = [
        line.format(rank, 1000 + rank, 99_999 + rank, ranks, 4096 + rank) + " - Init START" for rank in range(ranks)
    ]
    path.write_text("".join(f"{line}\n" for line in [*complete, *begun]), encoding="utf-8")


@pytest.mark.parametrize(("ranks", "most"), [(MOST_INITS, MOST_INITS - 1), (3 * MOST_INITS, FEW_AWAITED + 1)])
def test_every_rank_in_an_init_of_its_own_waits_for_others(tmp_path: Path, ranks: int, most: int) -> None:
    inits_of_their_own(tmp_path / "job.log", ranks)

    wait = analyze([str(tmp_path)]).run["wait"]

    assert wait["waiter"].sort().to_list() == list(range(ranks))
    lengths = wait.sort("pos")["waits_for"].list.len().to_list()
    assert lengths[:MOST_INITS] == [ranks - 1] * MOST_INITS
    assert all(0 < length <= most for length in lengths[MOST_INITS:])


def test_a_rank_that_all_own_inits_lack_is_the_one_that_lags(tmp_path: Path) -> None:
    ranks = 3 * MOST_INITS
    inits_of_their_own(tmp_path / "job.log", ranks)
    lines = (tmp_path / "job.log").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "job.log").write_text("".join(lines[:-1]), encoding="utf-8")

    report = analyze([str(tmp_path)])

    assert all(ranks - 1 in waits_for for waits_for in report.run["wait"]["waits_for"])
    assert report.verdicts[0].culprits == (ranks - 1,)


@pytest.mark.parametrize("ranks", [4, 64])
def test_ranks_that_wait_in_one_call_share_the_ranks_they_wait_for(tmp_path: Path, ranks: int) -> None:
    half_a_call_ahead(tmp_path / "job.log", ranks)

    report = analyze([str(tmp_path)], everything=False)

    lagging, waiting = list(range(0, ranks, 2)), list(range(1, ranks, 2))
    assert report.run["wait"]["waiter"].sort().to_list() == waiting
    assert report.run["wait"]["waits_for"].to_list() == [lagging] * len(waiting)
    verdict = report.verdicts[0]
    assert (verdict.verdict, [*verdict.culprits], [*verdict.victims]) == ("lagging-ranks", lagging, waiting)
    assert [wait.for_ranks for wait in report.job(0).waits] == [lagging] * len(waiting)
    assert len({id(wait.waits_for) for wait in report.job(0).waits}) == 1


def test_the_error_in_the_middle_of_a_flood_decides_the_cause(tmp_path: Path) -> None:
    flood(tmp_path / "job.log", 400_000)

    report = analyze([str(tmp_path)], everything=False)

    assert report.verdicts[0].culprits == (0,)
    assert {"cuda-sticky-error", "line-repeated-without-end"} <= {finding.rule for finding in report.findings}
