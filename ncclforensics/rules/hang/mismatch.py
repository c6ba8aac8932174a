"""Ranks whose calls differ."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.verdict.vocabulary import How
from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import group_finding
from ncclforensics.rules.shared.verdict_finding import answers_on, claimed, verdict_finding


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("verdict",), hang=True, verdict="collective-mismatch")
def coll_order_mismatch(job_diagnosis: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The ranks of one communicator differ on the nth call: function, count, datatype, op or root.

    Means: the program made different collectives. The first difference is the finding; later ones follow from it.
    Not when: lost lines shifted the positions of calls (damaged lines, a log that begins in the middle).
    Do: compare both calls with the program: rank-dependent branches, uneven data, parameter lists of unequal length.
    Sources: nccl#147, nccl#296, pytorch#117883.
    """
    for answer in answers_on(job_diagnosis, "collective-mismatch"):
        if answer.how == How.COMPARED:  # by PyTorch, with a finding of its own
            continue
        culprits = len(answer.culprits) + len(answer.missing)
        others = " from the others" if answer.victims else ""
        title = f"{{ranks}} differ{'s' * (culprits == 1)}{others} at {{call}}"
        if not culprits:
            title = "ranks do not make the same call"
        elif not answer.operation.name:
            title = claimed(answer)
        yield verdict_finding(answer, rank, title)


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("failure",), hang=True)
def coll_mismatch_warned(failure: pl.DataFrame, verdict: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NCCL itself reports that the ranks do not make the same collective call.

    Means: the sizes or the kind of a call differ between ranks, or ranks make calls in different orders. NCCL names the
    rank around which it found that; the fault may be on that rank or on its neighbours.
    Not when: the calls are in the logs and show which rank differs; that is a finding of its own.
    Do: run again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL on all ranks, or with TORCH_DISTRIBUTED_DEBUG=DETAIL.
    Sources: nccl#296; nccl: src/init.cc and src/enqueue.cc (2.4 to 2.7).
    """
    if not verdict.filter(verdict="collective-mismatch").is_empty():
        return
    rows = failure.filter(text_of("form").str.starts_with("collective_mismatch"))
    if not rows.is_empty():
        around = sorted(rows["rank"].drop_nulls().unique().to_list())
        title = f"NCCL found a collective mismatch{f' around {ranks_text(around)}' if around else ''}"
        yield group_finding(rows, rank, title, "the rank that differs may also be a neighbour of it", "likely")
