"""Ranks whose calls differ."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.torch_text import COMPARED
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.verdict_finding import verdict_finding, verdicts_of


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("verdict",), hang=True)
def coll_order_mismatch(verdict: pl.DataFrame, verdict_evidence: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The ranks of one communicator differ on the nth call: function, count, datatype, op or root.

    Means: the program made different collectives. The first difference is the finding; later ones follow from it.
    Not when: lost lines shifted the positions of calls (damaged lines, a log that begins in the middle).
    Do: compare both calls with the program: rank-dependent branches, uneven data, parameter lists of unequal length.
    Sources: nccl#147, nccl#296, pytorch#117883.
    """
    for row in verdicts_of(verdict, "collective-mismatch"):
        if row["how"] == COMPARED:  # by PyTorch, with a finding of its own
            continue
        has_culprits = bool(row["culprits"] or row["missing"])
        title = "{ranks} differs from the others at {call}" if has_culprits else "ranks do not make the same call"
        finding = verdict_finding(row, verdict_evidence, rank, title)
        verb = "differ" if len(finding.ranks) > 1 else "differs"
        finding.title = finding.title.replace("differs", verb, 1)
        if row["how"] in ("arguments", "another"):
            finding.detail += f"; differing: {', '.join(row['fields'])}"
        yield finding
