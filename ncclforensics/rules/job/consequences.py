"""Findings that follow from a cause with a finding of its own."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.failure_events import AFTER, CONNECTION_FORMS, LOST
from ncclforensics.data.names import some_of
from ncclforensics.frames.columns import count_behind, text_of
from ncclforensics.frames.step_order import LINES_OF_END, without_steps_behind
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import error_finding, evidence_lines, group_finding
from ncclforensics.rules.shared.verdict_finding import answers_on, verdict_finding


@rule(Category.PEER_LOST, Severity.ERROR, of=("verdict",), hang=True, verdict="rank-died")
def remote_closed_follow_the_pointer(
    job_diagnosis: pl.DataFrame, rank: pl.DataFrame, process_exit: pl.DataFrame
) -> Iterator[Finding]:
    """A process ended before the run was over; the other ranks report lost connections.

    Means: a rank whose log ends abruptly, without an error of its own, was killed or crashed. `Connection closed by
    remote peer`, aborts and returned error codes on the other ranks follow from that.
    Not when: the connections were closed after the ranks began to destroy or abort their communicators.
    Do: on the culprit's host look for the OOM killer, Xid and segfaults (dmesg -T), and at the launcher's exit codes.
    Sources: nccl#1232, nccl#795, LlamaFactory#6849.
    """
    for answer in answers_on(job_diagnosis, "rank-died"):
        finding = verdict_finding(answer, rank, "{ranks} ended before the run was over")
        if not process_exit.filter(pl.col("is_first") & pl.col("rank_id").is_in(answer.culprits)).is_empty():
            finding.role = Role.CONSEQUENCE  # of the cause of its end, which has its own finding
        yield finding


@rule(Category.PEER_LOST, Severity.ERROR, of=("test_failure", "call_error", "watchdog"), hang=True)
def remote_error_returned(
    test_failure: pl.DataFrame,
    call_error: pl.DataFrame,
    watchdog: pl.DataFrame,
    failure_event: pl.DataFrame,
    completion_error: pl.DataFrame,
    process_exit: pl.DataFrame,
    rank: pl.DataFrame,
    test_device: pl.DataFrame,
) -> Iterator[Finding]:
    """NCCL returned that a remote process exited or that the network failed; no log shows which.

    Means: the process that prints this is a victim. The other end or the network failed before; without NCCL's
    warnings the logs do not show which, or how.
    Not when: lines of NCCL or of a launcher report a fault: that fault is the cause.
    Do: run again with at least NCCL_DEBUG=WARN; check the peers' hosts (dmesg -T, ibstat, exit codes).
    Sources: nccl: src/init.cc (ncclGetErrorString); nccl-tests, common.cu; ProcessGroupNCCL.cpp, nccl2.
    """
    causes = failure_event.filter(pl.col("kind") != AFTER)
    named = completion_error.filter(~pl.col("at_exit"))  # flushed requests: such a line names the peer
    if causes.height or named.height or process_exit.filter(pl.col("is_first") & pl.col("is_final")).height:
        return
    remote_error = pl.lit("remote process exited or there was a network error")
    tests = test_failure.filter(text_of("result").str.contains(remote_error, literal=True))
    is_remote = text_of("error_text").str.contains(remote_error, literal=True).fill_null(False)
    calls = call_error.filter(is_remote | (pl.col("form") == "remote").fill_null(False))
    errors = pl.coalesce(text_of("error"), text_of("error_text")).fill_null("")
    watched = watchdog.filter(errors.str.contains(remote_error, literal=True))
    no_host = pl.lit(None, pl.Categorical())
    rows = pl.concat(
        [
            tests.select("source", "line", host="node", rank=pl.lit(None, pl.Int32)),
            calls.select("source", "line", host=no_host, rank="global_rank"),
            watched.select("source", "line", host=no_host, rank="global_rank"),
        ],
        how="vertical_relaxed",
    )
    if not rows.is_empty():
        hosts, reporting = (
            set(test_device["host"].cast(pl.String).drop_nulls()),
            set(tests["node"].cast(pl.String).drop_nulls()),
        )
        other = (
            f"the other host of the test is {min(hosts - reporting)}" if len(hosts) == len(reporting) + 1 == 2 else ""
        )
        finding = error_finding(
            rows,
            rank,
            "{processes} lost a peer, or the network failed",
            other,
            "certain",
        )
        finding.role = Role.CONSEQUENCE
        yield finding


MOST_PEERS = 3  # in a title


@rule(Category.PEER_LOST, Severity.WARNING, of=("failure",), hang=True)
def connection_to_peer_lost(
    failure: pl.DataFrame,
    failure_event: pl.DataFrame,
    nccl_warning: pl.DataFrame,
    process_exit: pl.DataFrame,
    verdict: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """A rank lost a connection to another process, and no log shows why.

    Means: the process at the named address ended, or the network to it failed; those that print this are victims. A
    name of the same host is that of a local process, mostly a thread of NCCL that had failed before.
    Not when: a line shows a fault that explains it, or a process that ended first; the process was ending its
    communicators; it went on. Before 2.27 a program that is no rank, such as a port scanner, ends an init so, too.
    Do: read the output of the processes on the named hosts from before that time; dmesg -T and the exit codes there.
    Sources: nccl: src/misc/socket.cc (socketProgressOpt) of 2.4 to 2.32; nccl#795, nccl#1612, nccl#2076.
    """
    of_lines = ["source", "line"]
    is_open = not (verdict["culprits"].list.len() > 0).any() and not verdict["verdict"].is_in(["no-hang"]).any()
    of_another_kind = failure_event.filter(pl.col("kind").is_in([LOST, AFTER]).not_())
    of_another_warning = nccl_warning.filter((pl.col("chain").list.len() > 0) & ~pl.col("is_consequence"))
    ended = process_exit.filter(pl.col("is_first") & pl.col("is_final"))
    if not is_open or of_another_kind.height or of_another_warning.height or ended.height:
        return
    lost = failure_event.filter(~pl.col("at_exit")).select(of_lines)
    rows = failure.filter(text_of("form").is_in(CONNECTION_FORMS)).join(lost, on=of_lines, how="semi")
    if rows.is_empty():
        return
    peers = rows["peer"].cast(pl.String).drop_nulls().unique(maintain_order=True).to_list()
    to_peers = f" to {', '.join(peers[:MOST_PEERS])}" if peers else ""
    detail = "the process there ended, or the network failed"
    title = f"{{processes}} lost a connection{to_peers}"
    finding = group_finding(rows, rank, title, detail, "certain", role=Role.CONSEQUENCE)
    finding.about = [Line(source, line) for source, line in rows.select(of_lines).iter_rows()]
    yield finding


ABSENT_LIBRARY = "Unable to load NCCL library"  # of XLA
INSTALL_LIBRARY = (
    "install NCCL in the environment of the program (pip: nvidia-nccl-cu12, or a package of the system), or name its "
    "folder in LD_LIBRARY_PATH; ldconfig -p | grep nccl shows what the loader finds"
)
# What NCCL calls its results -> the category that the result alone shows.
RESULT_CATEGORIES = {
    "unhandled cuda error": Category.CUDA_ERROR,
    "invalid argument": Category.APPLICATION_ERROR,
    "invalid usage": Category.APPLICATION_ERROR,
}


@rule(Category.CUDA_ERROR, Severity.ERROR, of=("returned_error",), hang=True)
def error_returned_to_application(
    returned_error: pl.DataFrame,
    nccl_warning: pl.DataFrame,
    failure_event: pl.DataFrame,
    process_exit: pl.DataFrame,
    watchdog: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """NCCL returned a CUDA error, or refused the arguments of a call, and no line of NCCL says why.

    Means: the exception of the application only repeats NCCL's result. A CUDA error may come from an earlier kernel or
    from a lack of memory; invalid usage comes from the program: one GPU used twice, or calls that differ.
    Not when: NCCL's own warnings or errors are in the logs, which have findings of their own; the result is a system
    error or an internal one, which alone shows nothing.
    Do: run again with NCCL_DEBUG=WARN at least, on all ranks; the first warning is the reason.
    Sources: nccl: src/init.cc (ncclGetErrorString); ProcessGroupNCCL.cpp; vLLM, pynccl_wrapper.py.
    """
    if nccl_warning.height or failure_event.height:
        return
    failed = returned_error.filter(pl.col("result").is_in(list(RESULT_CATEGORIES)))
    for (call, result), rows in failed.sort("source", "line").group_by("call", "result", maintain_order=True):
        title = f"{call or 'NCCL'} returned to {{processes}}: {result}"
        detail = "the exception repeats it; NCCL's warning, which would give the reason, was not read"
        aborting = watchdog.filter(form="at_abort").join(rows, on="source", how="semi")
        if aborting.height:
            detail = (
                "it came when the communicator was aborted, so that it follows from an earlier error of the process"
            )
        finding = error_finding(rows, rank, title, detail, "certain")
        finding.evidence += evidence_lines(aborting)[:1]
        finding.category = RESULT_CATEGORIES[str(result)]
        finding.role = Role.CONSEQUENCE
        _name_hosts_of_ends(finding, process_exit)
        yield finding


@rule(Category.INIT_FAILURE, Severity.ERROR, of=("returned_error",), hang=True)
def init_call_failed(
    returned_error: pl.DataFrame,
    nccl_warning: pl.DataFrame,
    failure: pl.DataFrame,
    process_exit: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """A framework reports that NCCL could not create a communicator, and no line of NCCL says why.

    Means: the message of XLA, Horovod or another framework only repeats NCCL's result. A system error is mostly the
    network interface, /dev/shm or a limit; `Unable to load NCCL library` means that libnccl.so.2 was not found.
    Not when: NCCL's own warnings or errors are in the logs, which have findings of their own.
    Do: run again with NCCL_DEBUG=WARN at least, on all ranks; where the library is not found, check LD_LIBRARY_PATH.
    Sources: openxla/xla: xla/service/gpu/nccl_utils.cc; horovod#1651, LWM#44.
    """
    creating = returned_error.filter(pl.col("call").str.contains_any(["CommInit", "GetUniqueId"]))
    results = creating["result"].drop_nulls().unique()
    # XLA quotes as NCCL's last warning what it says itself, where the library is absent.
    repeats = [pl.col("text").str.starts_with(result) for result in results]
    is_repeat = pl.any_horizontal(pl.lit(value=False), *repeats).fill_null(False)
    if nccl_warning.filter(~is_repeat).height or failure.height:
        return
    for (call, result), rows in creating.sort("source", "line").group_by("call", "result", maintain_order=True):
        if str(result).startswith(tuple(RESULT_CATEGORIES)):
            continue  # with a finding of its own
        title = f"{{processes}}: {call} failed: {result}"
        finding = error_finding(
            rows, rank, title, "NCCL's own warning, which would give the reason, was not read", "certain"
        )
        finding.role = Role.CONSEQUENCE
        if str(result).startswith(ABSENT_LIBRARY):
            finding.detail, finding.remedy = "the loader did not find libnccl.so.2", INSTALL_LIBRARY
            finding.role = Role.CAUSE
        _name_hosts_of_ends(finding, process_exit)
        yield finding


@rule(
    Category.APPLICATION_ERROR, Severity.INFO, of=("abandoned_object",), hang=True, role=Role.CONSEQUENCE,
    last=True, of_failures=True,
)  # fmt: skip
def app_ended_unexplained(
    abandoned_object: pl.DataFrame,
    process_exit: pl.DataFrame,
    server_stopped: pl.DataFrame,
    training_step: pl.DataFrame,
    source: pl.DataFrame,
) -> Iterator[Finding]:
    """A program of Python has ended with all processes that it had started, and no line that was read says why.

    Means: Python's resource tracker, a process of its own, names objects such as semaphores that they left behind. It
    does so once the last of them has ended: whatever the program was in, it does not stand there any more. Programs
    that were killed leave such objects, and so do some that end by themselves.
    Not when: another line tells how a process ended; a server was asked to stop; steps were made behind the line, or
    its file goes on for hundreds of lines: another program runs then. Of several ranks in one file, others may run.
    Do: look for the exit code that its launcher, its container or its scheduler reports, and on its host for a process
    that the kernel killed (dmesg -T).
    Sources: Python, Lib/multiprocessing/resource_tracker.py (main).
    """
    if process_exit.height or server_stopped.height:
        return
    placed = without_steps_behind(abandoned_object, training_step).join(source.select("source", "lines"), on="source")
    for _, rows in placed.filter(count_behind() <= LINES_OF_END).group_by("source", maintain_order=True):
        yield Finding(
            "a program of Python ended with the processes that it had started, and no line that was read says why",
            "its resource tracker printed the cited line, which it does once all of them have ended",
            "certain",
            evidence=evidence_lines(rows.tail(2)),
        )


def _name_hosts_of_ends(finding: Finding, process_exit: pl.DataFrame) -> None:
    """Add where launchers saw processes end, to a finding on lines that name neither a rank nor a host."""
    hosts = sorted(process_exit["node"].drop_nulls().unique().to_list())
    if not finding.ranks and not finding.hosts and hosts:
        finding.hosts = hosts
        finding.detail += f"; processes ended on {some_of(hosts, MOST_PEERS)}"
