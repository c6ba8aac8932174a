"""Processes that ended, and why, as the application, its launcher and the system report it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from ncclforensics.analyses.job.ends.crashes import LIBNCCL
from ncclforensics.analyses.job.ends.exit_rows import EXCEPTION, EXIT, HOST_MEMORY, KERNEL, NODE, NOT_STARTED, SIGNAL
from ncclforensics.analyses.job.ends.failure_events import AFTER, LOST
from ncclforensics.analyses.job.ends.spawned_processes import SPAWN, UNNAMED
from ncclforensics.analyses.job.text.program_failures import compares_ranks
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.failure_topics import OTHER_TOPIC, TOPICS
from ncclforensics.data.processes import (
    ABORT,
    BUS_ERROR,
    COMPARE_RANKS,
    CRASHES,
    ENDS_AT_A_LIMIT,
    HANG_UP,
    INTERRUPT,
    JOB_ENDS,
    KILL,
    LIMITS,
    READ_ALL,
    READ_BELOW,
    REQUESTED_ENDS,
    SIGNALS,
    THREADS_LEFT,
    second_hand_text,
    signal_name,
)
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.meanings import Kind as Meaning
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.ended_processes import (
    advice_of_exit,
    advice_of_launch,
    advised,
    crashes_in_init,
    exit_finding,
    first_exits,
    is_behind_kill,
    is_kernel_log_alone,
    kernel_log_crashes,
    not_behind_a_request,
    restarted,
    short_message,
    signals_before_steps,
    statements_before,
    unsettled_exits,
)

LATER = "later errors of other ranks may follow from it"
NODE_FAILURE = "node fail"  # Slurm's reasons NODE FAILURE and NODE_FAIL, in lower case
NODE_ADVICE = (
    "start again without it (--exclude=NAME); see why the scheduler lost it: scontrol show node NAME, sinfo -R, then "
    "the kernel's log and the BMC of that host"
)


def _is_on_all(exits: pl.DataFrame, rank: pl.DataFrame) -> bool:
    """Whether these are the ends of all ranks, of several: a text that names some shows that there are others."""
    ended = set(exits["rank"].drop_nulls())
    return len(ended) > 1 and ended == set(range(max(rank["rank"].drop_nulls(), default=0) + 1))


def _follows_another_fault(exits: pl.DataFrame, verdict: pl.DataFrame) -> bool:
    """Whether a job has another fault than these ends, or ranks that ended before: exit codes follow from both."""
    at_fault = set(verdict["culprits"].explode().drop_nulls())
    return (bool(at_fault) and at_fault.isdisjoint(exits["rank_id"])) or (
        ~verdict["verdict"].is_in([Kind.RANK_DIED, Kind.NO_HANG])
    ).any()


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("process_exit",), hang=True)
def app_exception(
    process_exit: pl.DataFrame,
    failure_event: pl.DataFrame,
    torch_error: pl.DataFrame,
    call_error: pl.DataFrame,
    rendezvous_lost: pl.DataFrame,
    elastic_failure: pl.DataFrame,
    torch_without_gpu: pl.DataFrame,
    gradient_error: pl.DataFrame,
    program_failure: pl.DataFrame,
    rank: pl.DataFrame,
    verdict: pl.DataFrame,
) -> Iterator[Finding]:
    """The application raised an exception, and ended with it as far as the logs show.

    Means: the cause is in the program, its data or its configuration; closed connections and time-outs of other ranks
    follow from it.
    Not when: the exception only passes on an NCCL error or the end of another process (these are left out, unless
    nothing else is known); another rule tells this exception; it was caught and the run continued. An exception
    without a rank counts if processes ended, or if its log ends soon after it; elsewhere it is a possibility
    (info), unless the job ended well.
    Do: read the traceback above the cited line.
    Sources: PyTorch's excepthook ([rank3]:); torch.distributed.elastic, errors.
    """
    own = process_exit
    own_failures = failure_event.filter(~pl.col("kind").is_in([AFTER, LOST]) & ~pl.col("at_exit"))
    for known in (torch_without_gpu, gradient_error):
        own = own.join(known, on=["source", "line"], how="anti", maintain_order="left")
    raised = first_exits(own, EXCEPTION).sort(pl.col("pos").min().over("name"), maintain_order=True)
    for (name,), rows in raised.group_by("name", maintain_order=True):
        where = f"in {rows['place'][0]}; " if rows["place"][0] else ""
        detail = where + ("all ranks that were read raised it" if _is_on_all(rows, rank) else LATER)
        certainty = "certain" if rows["rank"].is_not_null().all() else "likely"
        message = f": {short_message(rows['message'][0])}" if rows["message"][0] else ""
        finding = exit_finding(rows, rank, f"{{processes}} raised {name}{message}", detail, certainty)
        finding = advised(finding, rows, program_failure)
        if name == UNNAMED:  # what NCCL printed before says more of the cause
            finding.role = Role.CONSEQUENCE if own_failures.height else finding.role
            finding.remedy = READ_BELOW
        finding.role = Role.CONSEQUENCE if is_behind_kill(rows, process_exit) else finding.role
        yield finding
    unsettled = unsettled_exits(own, verdict, EXCEPTION)
    for (name, message, is_near_end), rows in unsettled.group_by("name", "message", "is_near_end", maintain_order=True):
        where = f"in {rows['place'][0]}; " if rows["place"][0] else ""
        title = f"{{processes}} raised {name}" + (f": {short_message(str(message))}" if message else "")
        if is_near_end:
            finding = exit_finding(rows, rank, title, f"{where}the program may have caught it", "likely")
            yield advised(finding, rows, program_failure)
        else:
            detail = f"{where}the log goes on after it: the program may have caught it"
            finding = exit_finding(rows, rank, title, detail, "possible")
            finding.severity, finding.role = Severity.INFO, Role.CONTEXT
            again = rows.filter(pl.col("printed") > 1, pl.col("last_line") > pl.col("line"))
            finding.evidence += [Line(*place) for place in again.select("source", "last_line").tail(1).iter_rows()]
            yield finding
    ends = process_exit.filter("is_first")
    is_raised_near_end = (pl.col("how") == EXCEPTION) & pl.col("is_near_end")
    passed_on = not_behind_a_request(process_exit).filter(is_raised_near_end).sort("source", "line")
    told_to_end = elastic_failure.filter(text_of("form").is_in(["terminated", "signal"]))
    others = (failure_event, torch_error, call_error, rendezvous_lost, told_to_end)
    if ends.is_empty() and not any(frame.height for frame in others) and (verdict["verdict"] != "no-hang").all():
        passed_on = passed_on.with_columns(compares=compares_ranks("message"))
        for (name, message, compares), rows in passed_on.group_by("name", "message", "compares", maintain_order=True):
            title = f"{{processes}} raised {name}" + (f": {short_message(str(message))}" if message else "")
            where = f"in {rows['place'][0]}; " if rows["place"][0] else ""
            follows = where + second_hand_text(str(name), is_of_ranks=bool(compares))
            finding = exit_finding(rows, rank, title, follows, "likely")
            finding.severity, finding.role = Severity.WARNING, Role.CONTEXT if compares else Role.CONSEQUENCE
            finding.remedy = COMPARE_RANKS if compares else READ_ALL
            yield finding


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("process_exit",), hang=True)
def app_process_died(
    process_exit: pl.DataFrame,
    program_failure: pl.DataFrame,
    rank: pl.DataFrame,
    milestone: pl.DataFrame,
    communicator_progress: pl.DataFrame,
    native_frame: pl.DataFrame,
    elastic_failure: pl.DataFrame,
    verdict: pl.DataFrame,
) -> Iterator[Finding]:
    """A process was killed, crashed or exited with an error, and was the first to end.

    Means: the others lost their connections to it, or wait for it; launchers then end them with SIGTERM, which is no
    cause. SIGKILL mostly comes from the kernel when memory runs out; SIGSEGV is a fault of a library or the program.
    Not when: its launcher told it to end (SIGTERM, SIGINT), a watchdog that had timed out aborted it, it passes on an
    NCCL error, or it crashed while NCCL created a communicator: these are left out. An exit code alone shows that the
    process ended first, not why. In a kernel log alone, a program that is hardly a rank's is a note.
    Do: on its host check dmesg -T (OOM killer, segfault, Xid), the core file, and the last lines it printed.
    Sources: srun(1), mpirun(1), torch.distributed.elastic; NCCL user guide, troubleshooting; nccl#795.
    """
    for (message,), rows in first_exits(process_exit, NOT_STARTED).group_by("message", maintain_order=True):
        title = f"{{processes}} did not start: {short_message(str(message))}"
        finding = exit_finding(rows, rank, title, f"reported by {rows['reporter'][0]}", "certain")
        finding.remedy = advice_of_launch(str(message))
        yield advised(finding, rows, program_failure)
    of_init = crashes_in_init(process_exit, milestone, communicator_progress, native_frame)
    ends = first_exits(process_exit, SIGNAL, EXIT, NODE).join(of_init, on=["source", "line"], how="anti")
    signal_number = pl.col("signal").fill_null(0)
    is_of_nccl = pl.col("where").str.contains(LIBNCCL, literal=True)
    is_other_crash = ~is_of_nccl & (signal_number != BUS_ERROR)
    if is_kernel_log_alone(rank, process_exit):
        yield from kernel_log_crashes(process_exit.filter(pl.col("how") == SIGNAL, is_other_crash))
        return
    has_unnamed_oom = not first_exits(process_exit, HOST_MEMORY).filter(pl.col("rank_id").is_null()).is_empty()
    ends = ends.filter(is_other_crash, ~(has_unnamed_oom & (signal_number == KILL)))
    yield from signals_before_steps(process_exit, rank, verdict)
    for (how, signal, code), rows in ends.group_by("how", "signal", "exit_code", maintain_order=True):
        reporters = ", ".join(sorted(set(rows["reporter"])))
        first = "the first end that was read" if rows.height == 1 else "the first ends that were read"
        if how == NODE:
            reported = f"reported by {reporters}, which ends all processes of the step then"
            finding = exit_finding(rows, rank, "a node of the job failed: {processes}", reported, "certain")
            finding.remedy = NODE_ADVICE
            yield finding
        elif how == EXIT:
            message = rows["message"][0]
            stated = statements_before(rows, program_failure)
            why = f"; printed before it: {short_message(stated['statement'][0])}" if stated.height else ""
            detail = f"{first}, reported by {reporters}{restarted(rows, elastic_failure)}{why}"
            title = f"{{processes}}: {message}" if message else f"{{processes}} ended with exit code {code}"
            finding = exit_finding(rows, rank, title, detail, "likely")
            finding.severity = Severity.WARNING
            finding.remedy = advice_of_exit(str(message), code, is_explained=bool(stated.height))
            if stated.height:
                topic = TOPICS.get(stated["topic"][0] or "", OTHER_TOPIC)
                finding.remedy = topic.remedy
                finding.evidence.append(Line(stated["source"][0], stated["line"][0]))
            elif not message and _follows_another_fault(rows, verdict):
                finding.role = Role.CONTEXT
            yield finding
        else:
            by = signal_name(signal) if isinstance(signal, int) else "a signal whose number is not shown"
            is_unexplained = signal == ABORT and not any(rows["message"])
            is_leaving = THREADS_LEFT in set(rows["message"])
            is_asked = signal in REQUESTED_ENDS
            limit = LIMITS.get(signal) if isinstance(signal, int) else None
            is_no_crash = is_unexplained or is_leaving or is_asked or limit
            verb = "was killed by" if signal == KILL else "ended by" if is_no_crash else "crashed with"
            places = set(rows["where"]) - {""}
            where = f" in {places.pop()}" if len(places) == 1 else ""
            ending = "all ranks that were read did" if _is_on_all(rows, rank) else first
            place = next((f"in {place}; " for place in rows["place"] if place), "")
            detail = f"{place}{ending}, reported by {reporters}{restarted(rows, elastic_failure)}"
            is_fault = signal in CRASHES or is_unexplained
            stated = statements_before(rows, program_failure).head(1 if is_fault else 0)
            if stated.height:
                detail += f"; printed before it: {short_message(stated['statement'][0])}"
            elif is_unexplained:
                detail += "; its lines before show whether an assertion or a time-out of PyTorch's watchdog did it"
            if is_leaving:
                by += ", mostly as it exited"
                detail += "; a thread of it still ran, as where a program exits without ending its process groups"
            finding = exit_finding(rows, rank, f"{{processes}} {verb} {by}{where}", detail, "certain")
            finding.severity = Severity.WARNING if is_leaving else finding.severity  # the reason stands before it
            finding.evidence += [Line(*place) for place in stated.select("source", "line").iter_rows()]
            if is_asked:
                finding.detail += "; its launcher did not send it"
                finding.remedy = "look for what sent it: a scheduler, a limit of the node, a health check, or a user"
            elif limit:
                finding.detail += f"; it reached {limit}"
                finding.remedy = (
                    "look at the limits of the process, with ulimit -a where it is started, and what used it up"
                )
            yield finding


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("process_exit",), hang=True)
def segfault_in_libnccl(process_exit: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A process crashed inside NCCL's library, according to the kernel or the stack that its crash handler printed.

    Means: a fault of NCCL or of a plugin, memory that the application overwrote, or an unlimited stack on systems with
    many NVLink domains (before 2.28).
    Not when: the line is of another day or of another program; only processes of this run count, all if the run lost a
    process, or, as a possibility, all of a kernel log that was given by itself; a bus error, which is one of memory
    that NCCL maps, mostly of a full /dev/shm.
    Do: try a newer release of NCCL, and without plugins where one is loaded (NCCL_NET_PLUGIN=none,
    NCCL_TUNER_PLUGIN=none); keep the core file; up to 2.27 try ulimit -s 8192.
    Sources: gpud, nccl component; NCCL user guide, troubleshooting/runtime (stack size).
    """
    is_in_nccl = pl.col("where").str.contains(LIBNCCL, literal=True)
    if is_kernel_log_alone(rank, process_exit):
        yield from kernel_log_crashes(process_exit.filter(is_in_nccl))
        return
    crashes = first_exits(process_exit, SIGNAL).filter(is_in_nccl, pl.col("signal").eq_missing(BUS_ERROR).not_())
    for (where, call), rows in crashes.group_by("where", "driver_call", maintain_order=True):
        signal = rows["signal"].drop_nulls().to_list()
        by = f" with {signal_name(signal[0])}" if signal else ""
        logger = "the kernel logged it" if KERNEL in set(rows["reporter"]) else "the stack below the line shows it"
        finding = exit_finding(rows, rank, f"{{processes}} crashed{by} inside {where}", logger, "likely")
        if call:
            of_memory = ", or try without what calls it (NCCL_CUMEM_HOST_ENABLE=0, NCCL_CUMEM_ENABLE=0)"
            finding.remedy = f"take another release of the driver{of_memory * str(call).startswith('cuMem')}"
        yield finding


@rule(Category.APPLICATION_ERROR, Severity.WARNING, of=("job_end",), hang=True)
def job_ended_by_scheduler(job_end: pl.DataFrame, process_exit: pl.DataFrame) -> Iterator[Finding]:
    """The scheduler ended the job, at its time limit, for another job, or as somebody asked.

    Means: later messages of ranks follow from that. A job that reaches its time limit need not have hung.
    Not when: the step was cancelled because one of its processes, or a node that a line names, had failed.
    Do: compare the time of the cancellation with that of the last step of the training: if steps were made until then,
    ask for more time; if not, it stood still: on the next run take the stacks of all ranks before the limit.
    Sources: sbatch(1), Slurm job state codes; LSF, bhist (termination reasons).
    """
    causes = job_end.drop_nulls("cause").sort("source", "line")
    for (cause,), rows in causes.group_by(text_of("cause"), maintain_order=True):
        reason = str(cause).partition(",")[0].lower().replace("_", " ")
        if reason.startswith(NODE_FAILURE) and NODE in set(process_exit["how"]):
            continue
        yield Finding(
            f"the scheduler ended the job: {reason}",
            "a node of the job failed" if reason.startswith(NODE_FAILURE) else "its processes were ended",
            "certain",
            hosts=sorted(rows["node"].cast(pl.String).drop_nulls().unique().to_list()),
            role=Role.CAUSE if reason.startswith(NODE_FAILURE) else Role.CONTEXT,
            severity=Severity.ERROR if reason.startswith(NODE_FAILURE) else Severity.WARNING,
            evidence=[Line(source, line) for source, line in rows.select("source", "line").head(2).iter_rows()],
        )
    at_a_limit = {*job_end.filter(text_of("form").is_in(ENDS_AT_A_LIMIT))["source"]}
    ended = job_end.filter(text_of("form").is_in(list(JOB_ENDS))).unique("form", keep="first", maintain_order=True)
    for form, source, line in ended.select("form", "source", "line").iter_rows():
        if form != "pbs_deleted" or source not in at_a_limit:
            title, evidence = f"the job was ended {JOB_ENDS[form]}", [Line(source, line)]
            yield Finding(title, "its processes were ended", "certain", role=Role.CONTEXT, evidence=evidence)


@rule(Category.APPLICATION_ERROR, Severity.INFO, of=("process_exit",), hang=True)
def app_told_to_end(
    process_exit: pl.DataFrame,
    failure_event: pl.DataFrame,
    work_timeout: pl.DataFrame,
    torch_error: pl.DataFrame,
    stated_line: pl.DataFrame,
    verdict: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """Processes were told to end, and no line shows that one had failed before.

    Means: a launcher that lost another process, a scheduler, Ray or a user sent it; who got it is no cause.
    Not when: another process failed, a call timed out, or something else explains the end: then it follows from that.
    Do: look for the first error in the output of all ranks and of the launcher, and in the scheduler's record.
    Sources: signal(7); absl/debugging/failure_signal_handler.cc; srun(1).
    """
    # A process that does not end at a request is killed.
    is_asked = pl.col("signal").fill_null(0).is_in(REQUESTED_ENDS)
    is_requested = (pl.col("how") == SIGNAL) & (is_asked | ~pl.col("is_first"))
    is_other = (pl.col("kind") != Meaning.CONDITION) & ~pl.col("frame").is_in(["exception", "crash", "process_end"])
    stated = stated_line.filter(is_other).join(process_exit, on=["source", "line"], how="anti")
    ends = not_behind_a_request(process_exit)
    others = (ends.filter(~is_requested), failure_event, work_timeout, torch_error, stated)
    if verdict.filter(pl.col("verdict") != Kind.UNDECIDABLE).height or any(frame.height for frame in others):
        return
    for (signal,), rows in ends.filter(is_asked | (pl.col("signal") == KILL)).group_by("signal", maintain_order=True):
        title = f"told to end by {signal_name(signal)}: {{processes}}"
        by = f"by {SPAWN}, as another process had failed" if (rows["reporter"] == SPAWN).all() else "from outside"
        yield replace(exit_finding(rows, rank, title, by, "certain"), role=Role.CONSEQUENCE)


SENDERS = {
    HANG_UP: "mostly its terminal or session was closed; nohup does not prevent that, for torchrun handles the signal",
    INTERRUPT: "mostly from a keyboard, or from the program that started it",
}
OTHER_SENDER = "from a scheduler, a user, or the program that started it; look there for the reason"
FORWARDED = ("SIGHUP", "SIGINT", "SIGQUIT")  # workers get these only if torchrun got them


@rule(Category.APPLICATION_ERROR, Severity.INFO, of=("elastic_failure",), hang=True)
def torchrun_told_to_end(
    elastic_failure: pl.DataFrame,
    process_exit: pl.DataFrame,
    failure_event: pl.DataFrame,
    work_timeout: pl.DataFrame,
    torch_error: pl.DataFrame,
    verdict: pl.DataFrame,
) -> Iterator[Finding]:
    """A signal from outside told torchrun to end, and it ended its workers.

    Means: the job did not fail by itself, as far as these logs show: what follows is its end. SIGHUP comes when the
    terminal or the ssh session closes; SIGTERM from a scheduler, from the program that started torchrun, or from a
    user; it need not have hung.
    Not when: a process or a call had failed before, or the job stood still: then what was left of it was ended; but for
    SIGHUP, a verdict on the job's ranks says that itself.
    Do: for SIGHUP use tmux, setsid or a batch job; else read the log of what started torchrun, for the same time.
    Sources: torch/distributed/elastic/multiprocessing/api.py (SignalException), agent/server/api.py; pytorch#67538.
    """
    form, name = text_of("form"), text_of("signal_name").str.split(".").list.last()
    is_requested = form.is_in(["terminated", "signal"]) | ((form == "closing") & name.is_in(FORWARDED))
    numbers = {name: number for number, name in SIGNALS.items()}
    number = pl.coalesce("signal", name.cast(pl.Int64, strict=False), name.replace_strict(numbers, default=None))
    requested = elastic_failure.filter(is_requested).with_columns(number=number).sort("source", "line")
    ended = process_exit.filter(pl.col("is_first") & pl.col("is_final"))
    has_failed = any(frame.height for frame in (ended, failure_event, work_timeout, torch_error))
    for (signal,), rows in requested.drop_nulls("number").group_by("number", maintain_order=True):
        assert isinstance(signal, int)
        if signal != HANG_UP and verdict.height:
            continue
        is_alone = signal == HANG_UP and not has_failed
        of_source = elastic_failure.join(rows.select("source").unique(), on="source", how="semi")
        is_of_failure = has_failed or of_source["form"].is_in(["restart", "summary"]).any()
        is_behind = pl.col("pos") > (rows["pos"].min() if is_of_failure else -1)  # other agents may print it before
        closed = of_source.filter((form == "closing") & ~name.is_in(FORWARDED).fill_null(value=False) & is_behind)
        yield Finding(
            f"torchrun was told to end by {signal_name(signal)}",
            SENDERS.get(signal, OTHER_SENDER),
            "certain",
            role=Role.CONSEQUENCE if has_failed else Role.CONTEXT,
            severity=Severity.WARNING if is_alone else Severity.INFO,
            evidence=[
                *(Line(*place) for place in rows.select("source", "line").head(2).iter_rows()),
                *(Line(*place) for place in closed.select("source", "line").head(1).iter_rows()),
            ],
        )
