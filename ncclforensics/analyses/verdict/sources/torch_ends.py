"""Judge jobs by the launcher's reports of their ends: which ranks failed by themselves, in the last attempt.

A rank that lost a connection or was aborted after a time-out ends, too; an exit code of 1 alone does not tell these.
"""

from __future__ import annotations

from ncclforensics.analyses.job.ends.exit_reports import EXIT
from ncclforensics.analyses.job.ends.process_exits import ProcessExit, ended_text, strongest_reports
from ncclforensics.analyses.job.ends.torchrun_reports import IN_TABLE, TORCHRUN
from ncclforensics.analyses.job.text.torch_text import BARRIER, CLOSED, NO_STORE, STORE, TIMED_OUT, TorchError
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines.first_exit import first_seen_by_torchrun
from ncclforensics.analyses.verdict.sources.torch_text import silent_ranks
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.data.processes import ABORT
from ncclforensics.data.variables import COLLECT_OUTPUT
from ncclforensics.frames.columns import lines_behind

GIVEN_UP = ("summary", "root_cause", *IN_TABLE)  # lines of the table that torchrun prints at its end


def _attempt(job: Job, source: int, pos: int, *, is_by_torchrun: bool = False) -> int:
    """Return the attempt of an elastic launch that a line belongs to: from its folder, or by torchrun's failures."""
    attempts = {place.source: place.attempt for place in job.torch_sources}
    if (attempt := attempts.get(source)) is not None:
        return attempt
    earlier = [row["form"] for row in job.pytorch["elastic_failure"] if row["source"] == source and row["pos"] < pos]
    is_of_failed = is_by_torchrun or not set(GIVEN_UP).isdisjoint(earlier)  # which torchrun repeats in its table
    return max(earlier.count("failed") - is_of_failed, 0)


def _has_recovered(job: Job, attempt: int) -> bool:
    """Whether torchrun started the ranks again after this attempt, and neither they nor torchrun report an error."""
    rows = job.pytorch["elastic_failure"]
    failures = [row for row in rows if row["form"] == "failed"]
    later_errors = [row for row in job.torch_errors if _attempt(job, row.source, row.pos) > attempt]
    if later_errors or any(row["form"] in GIVEN_UP for row in rows):
        return False
    if any((place.attempt or 0) > attempt for place in job.torch_sources):
        return True
    if len(failures) != attempt + 1:
        return False
    last = max(failures, key=lambda row: row["pos"])
    tracebacks = {place.source: place.last_traceback for place in job.torch_sources}
    if (tracebacks.get(last["source"]) or -1) > last["pos"]:
        return False  # torchrun ends with one
    return lines_behind(last["line"], job.run.sources[last["source"]]["lines"]) > 1


def find_failed_ranks(job: Job) -> Explanation | None:
    """Find the ranks that failed by themselves, in the last attempt in which any did."""
    attempts = {
        row: _attempt(job, row.source, row.pos, is_by_torchrun=row.reporter == TORCHRUN)
        for row in job.all_exits
        if row.is_first and row.is_final and row.rank is not None
    }
    if not attempts:
        return None
    last = max(attempts.values())
    exits = strongest_reports(row for row, attempt in attempts.items() if attempt == last)
    strongest = [row for row in exits if row.how != EXIT] or exits
    if strongest[0].how == EXIT and any(row.kind in (TIMED_OUT, BARRIER, STORE, NO_STORE) for row in job.torch_errors):
        return None  # the others timed out, and an exit code alone does not tell a time-out from a cause
    numbers = sorted({row.rank for row in strongest if row.rank is not None})
    is_exit = all(row.how == EXIT and row.exit_code == 1 for row in strongest)
    is_abort = all(row.signal == ABORT and not row.message for row in strongest)
    losses = [row for row in job.torch_errors if row.kind == CLOSED and row.rank not in numbers]
    victims = _victims_with_traceback(job, strongest, losses) if is_exit else []
    cut = {place.cut_rank for place in job.torch_sources if place.cut_rank is not None}.difference(numbers)
    is_lone_abort, are_named = is_abort and not losses, job.rank_id_of.keys() <= {*numbers, *cut}
    if _has_recovered(job, last):
        reason = (
            f"{ranks_text(numbers)} failed in attempt {last}; torchrun started the ranks again, and none failed then"
        )
        diagnosis = Explanation(Kind.NO_HANG, reason, [Doubt.OTHER_TEXT])
    elif (is_exit and not victims) or is_lone_abort or (are_named and len({*numbers, *cut}) > 1):
        end = "exit code 1" if is_exit else "SIGABRT, as after a time-out of the watchdog"
        reason = f"{ranks_text(numbers)} failed first with {end}: victims end so, too"
        if are_named and len({*numbers, *cut}) > 1 and not is_lone_abort:
            reason = "each rank of which this text was read failed by itself, so that none of these waits for another"
        reason += first_seen_by_torchrun(job, len(numbers) - 1)
        output = COLLECT_OUTPUT * (is_exit or is_lone_abort)
        diagnosis = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN], collect=output)
    else:
        is_sure = len(numbers) == 1 and strongest[0].how != EXIT
        diagnosis = job.explanation_by(
            Kind.RANK_DIED, ended_text(strongest[0]), numbers, *([] if is_sure else [Doubt.SEVERAL_ENDED])
        )
        if are_named:
            diagnosis.doubt(Doubt.ALL_ENDED)
        if cut:
            diagnosis.doubt(Doubt.SEVERAL_ENDED, f"{ranks_text(cut)} raised, too, and the text ends there")
        if victims:
            diagnosis.remarks.append(f"a lost connection ends a rank with a traceback, as it did {ranks_text(victims)}")
        if is_abort:
            diagnosis.doubt(Doubt.ABORTED_FOR_ANOTHER, "no line that was read says why it aborted")
        if before := [attempt for row, attempt in attempts.items() if attempt < last and row.rank in numbers]:
            diagnosis.remarks.append(f"attempt {max(before)} had ended so, too, and the ranks were started again")
    return job.cite(diagnosis, culprit=strongest, failure=losses[:3])


def _victims_with_traceback(job: Job, ended: list[ProcessExit], losses: list[TorchError]) -> list[int]:
    """Return the ranks that a lost connection ended in the output in which one rank failed without any error.

    None where the end of another rank was not read: it may have ended in silence before, with exit code 0.
    """
    numbers, places = {row.rank for row in ended}, {row.source for row in ended}
    with_error = {row.rank for row in job.torch_errors}
    reported = [row.rank for row in job.all_exits] + [row["rank"] for row in job.pytorch["elastic_failure"]]
    if len(numbers) > 1 or numbers & with_error or silent_ranks(job, with_error.union(reported)):
        return []
    return sorted({row.rank for row in losses if row.rank is not None and row.source in places})
