"""Judge what PyTorch and its launcher report: calls and models that differ, and ranks that failed by themselves.

A rank that lost a connection or was aborted after a time-out ends, too; an exit code of 1 alone does not tell these.
"""

from __future__ import annotations

from ncclforensics.analyses.job.ends.exit_rows import (
    EXIT,
    IN_TABLE,
    TORCHRUN,
    ProcessExit,
    ended_text,
    strongest_reports,
)
from ncclforensics.analyses.job.identity.rank_numbers import numbers_below
from ncclforensics.analyses.job.text.torch_text import (
    BARRIER,
    CLOSED,
    NO_STORE,
    STORE,
    TIMED_OUT,
    TorchError,
    compared_calls,
    differ_in_number_alone,
    differing_ranks,
    minority_of,
)
from ncclforensics.analyses.verdict.answer import Operation
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines.failures import first_ends_of_nodes, first_seen_by_torchrun
from ncclforensics.analyses.verdict.sources import watchdogs as pytorch
from ncclforensics.analyses.verdict.sources.torch_text import in_job, numbers_in_job, ranks_with_output, silent_ranks
from ncclforensics.analyses.verdict.vocabulary import How, Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.data.processes import ABORT
from ncclforensics.data.variables import COLLECT_OUTPUT
from ncclforensics.frames.columns import lines_behind


def find_compared_calls(job: Job) -> Explanation | None:
    """Find ranks whose call or model differs, as PyTorch's own comparison reports."""
    return _find_fingerprints(job) or _find_model_counts(job) or _find_model_shapes(job)


def _find_fingerprints(job: Job) -> Explanation | None:
    rows = job.pytorch["fingerprint"]
    if not rows:
        return None
    outliers = differing_ranks(rows)
    culprits = in_job(outliers, numbers_in_job(job, rows, "first_rank"))
    reason = "called another operation than the others, as PyTorch found when it compared the calls"
    if not culprits:
        reason = "PyTorch compared the calls of the ranks and found different ones"
    is_complete = len(compared_calls(rows)) >= len(job.rank_ids)
    is_certain = is_complete and not differ_in_number_alone(rows)
    diagnosis = job.explanation_by(Kind.MISMATCH, reason, culprits, *([] if is_certain else [Doubt.PARTLY_COMPARED]))
    diagnosis.how = How.COMPARED
    majority = next((row for row in rows if row["first_rank"] is not None and row["first_rank"] not in outliers), None)
    if majority:
        name = pytorch.OPERATION_NAMES.get(majority["operation"], majority["operation"].strip("_").title())
        diagnosis.call = Operation(name=name)
    by_rank = sorted(rows, key=lambda row: row["first_rank"] not in outliers)
    job.cite(diagnosis, minority=[row for row in by_rank if row["first_rank"] in outliers])
    return job.cite(diagnosis, majority=[row for row in by_rank if row["first_rank"] not in outliers][:2])


def _find_model_counts(job: Job) -> Explanation | None:
    """Find the ranks whose model has another number of parameters.

    A rank compares its number with those of all ranks in their order, and stops at the first that differs.
    """
    rows = [row for row in job.pytorch["model_difference"] if row["form"] == "counts"]
    stated = [(row["other_rank"], row["other_count"]) for row in rows]
    stated += [(row["group_rank"], row["count"]) for row in rows]
    stated = [(rank, count) for rank, count in stated if None not in (rank, count)]
    passed = [(rank, row["count"]) for row in rows for rank in numbers_below(row["other_rank"] or 0)]
    counts: dict[int, int] = dict(passed + stated)
    if not counts:
        return None
    outliers = minority_of(counts)
    is_complete = len(counts) >= len(job.rank_ids)
    ranks_of = {count: ranks_text(rank for rank in counts if counts[rank] == count) for count in counts.values()}
    numbers = "; ".join(f"{count} on {ranks}" for count, ranks in sorted(ranks_of.items()))
    reason = f"built a model with another number of parameters: {numbers}"
    if len(outliers) == len(counts) and not is_complete:
        outliers, reason = [], f"ranks built models with different numbers of parameters: {numbers}"
    culprits = in_job(outliers, numbers_in_job(job, rows, "group_rank"))
    diagnosis = job.explanation_by(Kind.MISMATCH, reason, culprits, *([] if is_complete else [Doubt.PARTLY_COMPARED]))
    diagnosis.how = How.COMPARED
    in_order = sorted(rows, key=lambda row: row["group_rank"] not in outliers)
    return job.cite(diagnosis, minority=in_order)


def _find_model_shapes(job: Job) -> Explanation | None:
    """Find the ranks whose parameters have other shapes: every rank compares its own with those of rank 0.

    Where all others differ from rank 0 in one way, it is the outlier. A rank without a message has the shapes of rank 0
    if its output was given. Where outputs are missing, more ranks may differ; so it is in another process group.
    """
    rows = [row for row in job.pytorch["model_difference"] if row["form"] == "shapes"]
    if not rows:
        return None
    numbers = numbers_in_job(job, rows, "group_rank")
    reporting = sorted({row["group_rank"] for row in rows if row["group_rank"] is not None})
    reference = rows[0]["other_rank"]
    shown_ranks = ranks_with_output(job) | set(reporting)
    others = set(numbers_below(max(shown_ranks, default=0) + 1)) - {reference}
    has_one_shape = len({row["shape"] for row in rows}) == 1
    outliers: list[int] = []
    if numbers is None and others <= shown_ranks:
        is_reference = len(reporting) == len(others) > 1 and has_one_shape
        outliers = [reference] if is_reference else reporting if len(reporting) * 2 <= len(others) else []
    reason = "built a model with parameters of other shapes than the others"
    if not outliers:
        names = ranks_text(in_job(reporting, numbers)) or "a rank"
        of_reference = f"rank {reference}" if numbers is None else f"rank {reference} of their process group"
        reason = f"the parameters of {names} have other shapes than those of {of_reference}"
    diagnosis = job.explanation_by(Kind.MISMATCH, reason, outliers, Doubt.PARTLY_COMPARED, how=How.COMPARED)
    return job.cite(diagnosis, minority=rows)


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


def were_started_again(job: Job, ended: list[int]) -> bool:
    """Whether these ranks ended in attempts after which torchrun started them again, and none failed."""
    exits = [job.first_ends[rank_id] for rank_id in ended if rank_id in job.first_ends]
    attempts = [_attempt(job, row.source, row.pos, is_by_torchrun=row.reporter == TORCHRUN) for row in exits]
    return bool(attempts) and all(_has_recovered(job, attempt) for attempt in attempts)


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
    all_failed = (are_named and len({*numbers, *cut}) > 1) or _all_print_alike(job, strongest)
    if _has_recovered(job, last):
        reason = (
            f"{ranks_text(numbers)} failed in attempt {last}; torchrun started the ranks again, and none failed then"
        )
        diagnosis = Explanation(Kind.NO_HANG, reason, [Doubt.OTHER_TEXT])
    elif (is_exit and not victims) or is_lone_abort or all_failed:
        end = "exit code 1" if is_exit else "SIGABRT, as after a time-out of the watchdog"
        # Without its root cause, torchrun's table tells of those that it saw end later.
        is_cut = all(row.reporter == TORCHRUN for row in strongest) and not first_ends_of_nodes(job)
        reason = f"{ranks_text(numbers)} failed{' first' * (not is_cut)} with {end}: victims end so, too"
        if all_failed and not is_lone_abort:
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


def _all_print_alike(job: Job, ended: list[ProcessExit]) -> bool:
    """Whether an error stands as often in the text as its agent had processes: those that ended, or that it closed."""
    closed = [row["source"] for row in job.pytorch["elastic_failure"] if row["form"] == "closing"]
    return any(row.printed >= len(ended) + closed.count(row.source) > 1 for row in ended)


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
