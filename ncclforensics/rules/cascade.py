"""First causes, and what merely follows from them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules import Category, Finding, Role, Severity, rule
from ncclforensics.rules.accused import accuse, verdicts


@rule(Category.PEER_LOST, Severity.ERROR, hang=True)
def remote_closed_follow_the_pointer(
    verdict: pl.DataFrame, exhibit: pl.DataFrame, rank: pl.DataFrame, death: pl.DataFrame
) -> Iterator[Finding]:
    """A process went away in the middle of the run; the others report lost connections.

    Means: a rank whose log ends abruptly, without an error of its own, was killed or crashed. `Connection closed by
    remote peer`, aborts and returned error codes on the other ranks follow from that.
    Not when: the connections were closed after the ranks began to destroy or abort their communicators.
    Do: on the culprit's host look for the OOM killer, Xid and segfaults (dmesg -T), and at the launcher's exit codes.
    Sources: nccl#1232, nccl#795, LlamaFactory#6849.
    """
    for row in verdicts(verdict, "rank-died"):
        finding = accuse(row, exhibit, rank, "{who} went away in the middle of the run")
        if not death.filter(pl.col("is_first") & pl.col("actor").is_in(row["culprits"])).is_empty():
            finding.role = Role.CONSEQUENCE  # of what ended it, which is a finding of its own
        yield finding
