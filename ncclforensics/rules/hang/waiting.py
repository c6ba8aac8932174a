"""Ranks that wait for lagging ranks, for each other, or all in the same call."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.analyses.verdict.lines.stall import WEAK
from ncclforensics.analyses.verdict.vocabulary import Basis, Detail, How, Sign
from ncclforensics.data.names import ranks_text
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.verdict_finding import answers_on, claimed, ranks_with_output, verdict_finding

AFTER_STACKS = "find out what the cited line of the culprit waits for; take the stacks again to see whether it moved"


@rule(Category.LAGGING_RANK, Severity.ERROR, of=("verdict",), hang=True, verdict="lagging-ranks")
def coll_lagging_ranks(job_diagnosis: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Some ranks did not make the call that the others are in, and wait for no other rank.

    Means: the ranks that did not make the call are the culprits; the ranks in it are victims. The culprits are stuck
    outside NCCL (data loader, exception, checkpoint, a GPU kernel that never ends) or have ended. Flight Recorder
    dumps also show ranks that made the call and did not complete it, while others did: a GPU stopped inside it; and
    ranks whose GPU did not begin it: it stopped before.
    Not when: the log was copied from a running job; a rank's file ends inside a line (its last calls may be lost); one
    stack of a running job was taken, for a slow rank is behind the others, too.
    Do: on the culprit's host take the stack of the process (py-spy dump --pid, gdb -p) before restarting anything.
    Sources: nccl#1911, DeepSpark#132, NCCL documentation troubleshooting/ras.rst.
    """
    for answer in answers_on(job_diagnosis, "lagging-ranks"):
        title = "{ranks} never called {call}"
        if answer.basis == Basis.STACKS:
            call = answer.operation.text if answer.operation.name else "a collective"
            title = f"{claimed(answer)}, and the others wait in {call}"
        elif answer.how == How.UNFINISHED:  # the Flight Recorder shows that it made the call
            title = "{ranks} did not complete {call}, which others completed"
        elif answer.how == How.NOT_BEGUN:
            title = "the GPU of {ranks} did not begin {call}, which those of the others did"
        elif answer.how == How.LATE:
            title = "{ranks} called {call} only when the others had given up"
        elif _may_be_running(answer):
            title = "{ranks} had not called {call} where the logs end"
        finding = verdict_finding(answer, rank, title)
        finding.remedy = AFTER_STACKS if answer.basis == Basis.STACKS else ""
        yield finding


@rule(Category.HANG, Severity.ERROR, of=("verdict",), hang=True, verdict="p2p-unmatched")
def p2p_unmatched_send_recv(job_diagnosis: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A Send has no matching Recv on the other rank, or the reverse.

    Means: sends and receives of each pair of ranks are matched in order; one of them was never posted.
    Not when: the other rank's log does not show calls, or ends inside a line.
    Do: take the stack of the rank that did not post it; group Send and Recv that depend on each other.
    Sources: nccl#783, FlagScale#1256; NCCL user guide, point-to-point communication.
    """
    for answer in answers_on(job_diagnosis, "p2p-unmatched"):
        is_open = answer.operation.root is not None and answer.operation.root_rank is None
        where = f" (its number on {answer.key})" if is_open else ""
        posted, end = ("had not posted", " where the logs end") if _may_be_running(answer) else ("did not post", "")
        title = f"{{ranks}} {posted} the call that matches {{call}}{where}{end}"
        yield verdict_finding(answer, rank, title)


@rule(Category.HANG, Severity.ERROR, of=("verdict",), hang=True, verdict="cross-communicator-deadlock")
def coll_cross_comm_order(job_diagnosis: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Ranks use two communicators in different orders and wait for each other.

    Means: each side is in a call that the other makes only after its own; neither call can complete.
    Not when: the calls run on streams that do not wait for each other: then they do not block each other.
    Do: use the communicators in the same order on all ranks; NCCL_LAUNCH_ORDER_IMPLICIT=1 (2.26 and later) may help.
    Sources: nccl#195, nccl#208, nccl#522, nccl#574, nccl#783; NCCL user guide, usage/communicators.
    """
    for answer in answers_on(job_diagnosis, "cross-communicator-deadlock"):
        where = " at {call}" if answer.operation.name else " in their init"
        where = "" if answer.basis == Basis.DUMPS else where  # these show that each rank waits in a call of its own
        yield verdict_finding(answer, rank, "{ranks} made calls in another order than the others: deadlock" + where)


@rule(Category.HANG, Severity.ERROR, of=("verdict",), hang=True, verdict="stuck-together")
def coll_all_ranks_same_op_stuck(job_diagnosis: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Every rank made the same calls, but failures show that the last call did not complete.

    Means: the order of calls is correct: the transport failed, or a GPU stopped.
    Not when: the failures belong to the end of the run (aborts and closed connections at exit).
    Do: read the first network or CUDA warning; check link counters, Xid messages in dmesg and nvidia-smi on its host.
    Sources: nccl#1730, nccl#1063, rccl#2191.
    """
    for answer in answers_on(job_diagnosis, "stuck-together"):
        ranks = "all reporting ranks" if answer.certainty == "possible" else "all ranks"
        title = f"{ranks} are in the same call, {{call}}, and it does not complete"
        if answer.basis == Basis.DUMPS:  # the ranks of other process groups wait elsewhere
            title = "all ranks of one call, {call}, are in it, and it does not complete"
        elif answer.basis == Basis.COUNTERS or answer.detail == Detail.LEFT_BY_SOME:
            title = "{call} does not complete on some of the ranks"
        if not answer.operation.name:
            title = "communication failed, and no rank makes progress"
        yield verdict_finding(answer, rank, title)


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("verdict",), hang=True, verdict="undecidable")
def read_subsystem_gap(
    job_diagnosis: pl.DataFrame,
    rank: pl.DataFrame,
    source: pl.DataFrame,
    last_word: pl.DataFrame,
    benchmark: pl.DataFrame,
) -> Iterator[Finding]:
    """These logs do not show whether and why the job hangs.

    Means: the deciding lines are missing: calls need the subsystem COLL, and every rank's log is needed.
    Not when: a rule names a culprit; the logs are only of completed runs of nccl-tests.
    Do: set NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL NCCL_DEBUG_FILE=/path/%h.%p.log on all ranks and run again.
    Sources: nccl: src/debug.cc of each tag; NCCL documentation troubleshooting/logging.rst; nccl#857.
    """
    if benchmark.height and benchmark["is_complete"].all():
        return
    for answer in answers_on(job_diagnosis, "undecidable"):
        kind = "Flight Recorder dumps" if answer.basis == Basis.DUMPS else "log"
        title = "these logs do not show whether the job hangs"
        if set(answer.suspects) & ranks_with_output(answer, rank, source, last_word):
            title = f"these logs do not show which rank stopped first; suspect {ranks_text(answer.suspects)}"
        elif answer.suspects:
            title = f"not decidable without the {kind} of {ranks_text(answer.suspects)}"
        elif not WEAK.issuperset(answer.stall_evidence) or Sign.STATED in answer.stall_evidence:
            title = "these logs do not show which rank stopped first"
        finding = verdict_finding(answer, rank, title)
        finding.role = Role.CONTEXT
        finding.remedy = "; ".join(answer.collect)
        yield finding


def _may_be_running(answer: Answer) -> bool:
    """Whether nothing shows that the job stood still, and it may as well go on."""
    return answer.rests_on_stall and answer.certainty == "possible"
