"""The verdict on every job: what is wrong, who did it, which call did not come together, and the lines that say so.

The order of the questions is the order of causes: was init refused, did the ranks disagree on a call, did someone never
come to init, did a process die, who waits for whom, is there any other sign of a fault, and if not, could these logs
have shown one (design, the verdict; knowledge: collective mismatch and hang, root cause against cascade).
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from ncclforensics.analyses.hang import init, mismatch, pytorch, ras_evidence, waiting
from ncclforensics.analyses.hang.job import EVIDENCE_LINE, Case, Diagnosis, cases
from ncclforensics.frames.registry import analysis

VERDICT = {
    "job": pl.Int32(),
    "verdict": pl.String(),
    "certainty": pl.String(),
    "culprits": pl.List(pl.Int32()),  # actors
    "victims": pl.List(pl.Int32()),
    "missing": pl.List(pl.Int32()),  # rank numbers that are to blame and that no log shows
    "absent": pl.List(pl.Int32()),  # all rank numbers that no log shows
    "key": pl.String(),
    "ordinal": pl.Int32(),
    "name": pl.String(),
    "count": pl.Int64(),
    "datatype": pl.Int32(),
    "op": pl.Int32(),
    "root": pl.Int32(),
    "how": pl.String(),  # of a mismatch: skipped, extra, swapped, arguments, another
    "fields": pl.List(pl.String()),  # that differ
    "reason": pl.String(),
    "collect": pl.List(pl.String()),  # what would settle it
}


def _desynchronised(case: Case) -> Diagnosis | None:
    """What PyTorch says of the ranks' work; where NCCL's own lines prove the same, these, for they name the call."""
    told = pytorch.desynchronised(case)
    seen = waiting.waiting(case) if told else None
    return seen if told and seen and (seen.certainty, seen.culprits) == ("certain", told.culprits) else told


# The first of these to have an answer gives it.
QUESTIONS: tuple[Callable[[Case], Diagnosis | None], ...] = (
    init.refused,
    init.failed,
    mismatch.differing_calls,
    _desynchronised,
    waiting.ended_first,
    waiting.died,
    init.never_came,
    waiting.waiting,
    pytorch.timed_out,
    waiting.all_alike_in_trouble,
    ras_evidence.at_work,
    waiting.invisible,
    waiting.returned_an_error,
    waiting.partly_seen,
    waiting.nothing_wrong,
)


def _judgements(frames: dict[str, pl.DataFrame]) -> list[tuple[Case, Diagnosis]]:
    found = []
    for case in cases(frames):
        answers = (question(case) for question in QUESTIONS)
        found.append((case, ras_evidence.weighed(case, next(answer for answer in answers if answer is not None))))
    return found


@analysis({**VERDICT, "evidence_lines": pl.List(pl.Struct(EVIDENCE_LINE))})
def job_diagnosis(
    rank: pl.DataFrame,
    member: pl.DataFrame,
    process: pl.DataFrame,
    call: pl.DataFrame,
    call_line: pl.DataFrame,
    last_call: pl.DataFrame,
    divergence: pl.DataFrame,
    wait: pl.DataFrame,
    visibility: pl.DataFrame,
    failure_event: pl.DataFrame,
    process_exit: pl.DataFrame,
    milestone: pl.DataFrame,
    source: pl.DataFrame,
    version: pl.DataFrame,
    work: pl.DataFrame,
    desync: pl.DataFrame,
    ras_snapshot: pl.DataFrame,
    ras_state: pl.DataFrame,
    ras_member: pl.DataFrame,
) -> pl.DataFrame:
    """One row per job, with its exhibits."""
    rows = [
        {**answer.row(case.job), "absent": sorted({*case.absent, *answer.missing})}
        for case, answer in _judgements(locals())
    ]
    return pl.DataFrame(rows, schema={**VERDICT, "evidence_lines": pl.List(pl.Struct(EVIDENCE_LINE))})


@analysis(VERDICT)
def verdict(job_diagnosis: pl.DataFrame) -> pl.DataFrame:
    """One row per job."""
    return job_diagnosis


@analysis({"job": pl.Int32(), **EVIDENCE_LINE})
def verdict_evidence(job_diagnosis: pl.DataFrame) -> pl.DataFrame:
    """The lines that prove each verdict, most telling first."""
    return job_diagnosis.select("job", "evidence_lines").explode("evidence_lines").drop_nulls().unnest("evidence_lines")
