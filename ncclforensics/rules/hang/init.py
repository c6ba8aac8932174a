"""Communicators that never came to be."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.hang.init import FAILED
from ncclforensics.data.names import ranks_text
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.verdict_finding import accuse, verdicts


@rule(Category.INIT_FAILURE, Severity.ERROR, of=("verdict",), hang=True)
def boot_init_refused(
    verdict: pl.DataFrame, verdict_evidence: pl.DataFrame, rank: pl.DataFrame, failure_event: pl.DataFrame
) -> Iterator[Finding]:
    """NCCL refused to make a communicator, and says why.

    Means: the arguments or the environment of the ranks contradict one another: one rank number used twice, different
    numbers of ranks, different versions of NCCL, one GPU used by two ranks, no usable network interface.
    Not when: the communicator came to be after all; the warning stems from a stranger's connection.
    Do: correct what the cited warning names; compare RANK, WORLD_SIZE, CUDA_VISIBLE_DEVICES, NCCL versions of ranks.
    Sources: nccl: src/bootstrap.cc, src/init.cc; nccl#418, nccl#1176, nccl#1273.
    """
    twice = failure_event.filter(pl.col("form").is_in(["gpu_twice", "gpu_shared"]))["job"].unique()
    for row in verdicts(verdict, "init-failed"):
        finding = accuse(row, verdict_evidence, rank, "init was refused: ")
        finding.title += row["reason"].removeprefix("init was refused; ")
        if row["reason"].startswith(FAILED):  # of a fault that has a finding of its own
            where = ranks_text(finding.ranks) or ", ".join(finding.hosts)
            finding.title = f"{FAILED} on {where}: {row['reason'].removeprefix(FAILED + ': ')}"
            finding.detail = "NCCL went back out of init there; the warning before that says why"
            finding.role = Role.CONSEQUENCE
        if row["job"] in twice:
            finding.category = Category.DUPLICATE_GPU
        yield finding


@rule(Category.MISSING_RANK, Severity.ERROR, of=("verdict",), hang=True)
def boot_rank_missing(verdict: pl.DataFrame, verdict_evidence: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Ranks that the others wait for in init are in no log: they never came.

    Means: their processes were not started, died before NCCL, or cannot reach the others.
    Not when: their logs were not collected; some rank's init came to its end, so they must have been there.
    Do: see on their hosts whether the processes exist and what they print before NCCL; check the launcher's output.
    Sources: nccl#857, nccl#429, nccl#719.
    """
    for row in verdicts(verdict, "rank-missing"):
        yield accuse(row, verdict_evidence, rank, "{who} never came to init")


@rule(Category.HANG, Severity.ERROR, of=("verdict",), hang=True)
def boot_init_incomplete(
    verdict: pl.DataFrame, verdict_evidence: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Some ranks began the creation of a communicator and did not come out of it.

    Means: creating a communicator is itself collective; it lacks a rank that is elsewhere, or stands in its network
    set-up.
    Not when: the log was copied while init was still running.
    Do: take the stack of the ranks that did not begin it; if all began it, check interface, firewall and plugin.
    Sources: nccl#857, nccl#429, nccl#634; NCCL user guide, usage/communicators.
    """
    for row in verdicts(verdict, "init-incomplete"):
        culprits = "{who} does not come to a communicator's init that the others are in"
        yield accuse(
            row,
            verdict_evidence,
            rank,
            culprits if row["culprits"] else "init of a communicator does not come to its end",
        )


@rule(Category.MISSING_RANK, Severity.INFO, of=("verdict",), hang=True)
def read_missing_log_is_evidence(verdict: pl.DataFrame) -> Iterator[Finding]:
    """The logs name more ranks than were given.

    Means: nothing can be said about the ranks whose logs are absent; "all agree" holds for those seen only.
    Not when: these ranks never came to init, which is a finding of its own.
    Do: collect the absent logs, too.
    Sources: pytorch fr_trace --allow-incomplete-ranks; nccl#719.
    """
    for row in verdict.to_dicts():
        unblamed = sorted(set(row["absent"]) - set(row["missing"]))
        if unblamed:
            absent = ranks_text(unblamed)
            detail = "the largest communicator has more ranks than logs were given"
            yield Finding(f"no log of {absent}", detail, "certain", ranks=unblamed, role=Role.CONTEXT)
