"""Judge what PyTorch found when it compared the calls or the models of ranks."""

from __future__ import annotations

from ncclforensics.analyses.job.identity.rank_numbers import numbers_below
from ncclforensics.analyses.job.text.torch_text import (
    compared_calls,
    differ_in_number_alone,
    differing_ranks,
    minority_of,
)
from ncclforensics.analyses.verdict.answer import Operation
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.sources import watchdogs as pytorch
from ncclforensics.analyses.verdict.sources.torch_text import (
    in_job,
    numbers_in_job,
    ranks_with_output,
)
from ncclforensics.analyses.verdict.vocabulary import How, Kind
from ncclforensics.data.names import ranks_text


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
