"""Communicators that were not created."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.hang.init import FAILED
from ncclforensics.data.names import ranks_text
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.verdict_finding import verdict_finding, verdicts_of


@rule(Category.INIT_FAILURE, Severity.ERROR, of=("verdict",), hang=True)
def boot_init_refused(
    verdict: pl.DataFrame, verdict_evidence: pl.DataFrame, rank: pl.DataFrame, failure_event: pl.DataFrame
) -> Iterator[Finding]:
    """NCCL refused to create a communicator and states the reason.

    Means: the arguments or the environment of the ranks contradict each other: one rank number used twice, different
    numbers of ranks, different versions of NCCL, one GPU used by two ranks, no usable network interface.
    Not when: the communicator was created later; the warning concerns an unexpected connection from another job.
    Do: correct what the cited warning names; compare RANK, WORLD_SIZE, CUDA_VISIBLE_DEVICES, NCCL versions of ranks.
    Sources: nccl: src/bootstrap.cc, src/init.cc; nccl#418, nccl#1176, nccl#1273.
    """
    jobs_with_shared_gpu = failure_event.filter(pl.col("form").is_in(["gpu_twice", "gpu_shared"]))["job"].unique()
    for row in verdicts_of(verdict, "init-failed"):
        finding = verdict_finding(row, verdict_evidence, rank, "init was refused: ")
        finding.title += row["reason"].removeprefix("init was refused; ")
        if row["reason"].startswith(FAILED):  # the fault has its own finding
            where = ranks_text(finding.ranks) or ", ".join(finding.hosts)
            finding.title = f"{FAILED} on {where}: {row['reason'].removeprefix(FAILED + ': ')}"
            finding.detail = "NCCL returned an error from init there; the warning before it gives the reason"
            finding.role = Role.CONSEQUENCE
        if row["job"] in jobs_with_shared_gpu:
            finding.category = Category.DUPLICATE_GPU
        yield finding


@rule(Category.MISSING_RANK, Severity.ERROR, of=("verdict",), hang=True)
def boot_rank_missing(verdict: pl.DataFrame, verdict_evidence: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Ranks that the others wait for in init have no log: they never joined.

    Means: their processes were not started, ended before NCCL's init, or cannot reach the others.
    Not when: their logs were not collected; another rank completed this init, so all ranks joined it.
    Do: check on their hosts whether the processes exist and what they print before NCCL; check the launcher's output.
    Sources: nccl#857, nccl#429, nccl#719.
    """
    for row in verdicts_of(verdict, "rank-missing"):
        has_culprits = bool(row["culprits"] or row["missing"])
        title = "{ranks} never joined init" if has_culprits else "ranks never joined init"
        yield verdict_finding(row, verdict_evidence, rank, title)


@rule(Category.HANG, Severity.ERROR, of=("verdict",), hang=True)
def boot_init_incomplete(
    verdict: pl.DataFrame, verdict_evidence: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Some ranks began to create a communicator and did not complete it.

    Means: creating a communicator is a collective call; a rank has not made it, or the network set-up does not
    complete.
    Not when: the log was copied while init was still running.
    Do: take the stack of the ranks that did not begin it; if all began it, check interface, firewall and plugin.
    Sources: nccl#857, nccl#429, nccl#634; NCCL user guide, usage/communicators.
    """
    for row in verdicts_of(verdict, "init-incomplete"):
        culprits = "{ranks} did not join a communicator's init that the others are in"
        yield verdict_finding(
            row,
            verdict_evidence,
            rank,
            culprits if row["culprits"] else "init of a communicator does not complete",
        )


@rule(Category.MISSING_RANK, Severity.INFO, of=("verdict",), hang=True)
def read_missing_log_is_evidence(verdict: pl.DataFrame) -> Iterator[Finding]:
    """The logs name ranks that have no log.

    Means: the analysis cannot judge ranks without a log; "all ranks agree" holds only for the ranks in these logs.
    Not when: these ranks never joined init, which is a separate finding.
    Do: collect the missing logs, too.
    Sources: pytorch fr_trace --allow-incomplete-ranks; nccl#719.
    """
    for row in verdict.to_dicts():
        without_log = sorted(set(row["absent"]) - set(row["missing"]))
        if without_log:
            absent = ranks_text(without_log)
            detail = "the largest communicator has more ranks than there are logs"
            yield Finding(f"no log of {absent}", detail, "certain", ranks=without_log, role=Role.CONTEXT)
