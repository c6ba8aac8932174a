"""Logs of two jobs in one folder: each has its answer, and neither that of the other."""

from __future__ import annotations

import pytest

from ncclforensics import analyze
from tests.incidents import INCIDENTS

HEALTHY = sorted(map(str, (INCIDENTS / "a-healthy-run").glob("*.log")))
IN_INIT = str(INCIDENTS / "an-excerpt-ends-in-the-bootstrap" / "job.log")
HUNG = sorted(map(str, (INCIDENTS / "one-rank-stops-before-an-allreduce").glob("*.log")))


@pytest.mark.parametrize(("logs", "verdict"), [(HEALTHY, "no-hang"), (HUNG, "lagging-ranks")], ids=["healthy", "hung"])
def test_processes_in_their_init_are_no_ranks_of_a_job_of_which_all_are_known(logs: list[str], verdict: str) -> None:
    report = analyze([*logs, IN_INIT])

    answers = {answer.verdict: answer for answer in report.verdicts}
    assert answers.keys() == {verdict, "undecidable"}
    ranks = report.run["rank"].filter(job=answers["undecidable"].job)
    assert {*ranks["host"]} == {"node-c"}


def test_processes_in_their_init_may_be_the_ranks_that_a_job_lacks() -> None:
    report = analyze([*HEALTHY[:-2], IN_INIT])

    assert [(answer.verdict, answer.certainty) for answer in report.verdicts] == [("no-hang", "likely")]
    assert report.verdicts[0].reason.endswith("of 2 processes more only the start of NCCL was read")
