"""Processes that ended, and why: what the application, its launcher and the system say."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.exit_reports import EXCEPTION, EXIT, HOST_MEMORY, NODE, SIGNAL
from ncclforensics.data.processes import BUS_ERROR, KILL, signal_name
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.ended_processes import exit_finding, first_exits

LONGEST = 160  # characters of a message


def short(message: str) -> str:
    """A message in one line of a report."""
    return message if len(message) <= LONGEST else message[:LONGEST] + "…"


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("process_exit",), hang=True)
def app_exception(process_exit: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The application ended by an exception of its own.

    Means: the cause is in the program, its data or its configuration; what the other ranks say about closed
    connections and time-outs follows from the end of this one.
    Not when: the exception only passes on an error of NCCL's or the end of another process (those are left out); it was
    caught and the run went on, which is why one without a rank in front counts only where processes did end.
    Do: read the traceback above the line cited, of the rank that is named.
    Sources: PyTorch's excepthook ([rank3]:); torch.distributed.elastic, errors.
    """
    for (name,), rows in first_exits(process_exit, EXCEPTION).group_by("name", maintain_order=True):
        everybody = rows["rank"].drop_nulls().n_unique() == rank["rank"].drop_nulls().n_unique() > 1
        detail = "every rank ended by it" if everybody else "it ended the program; what other ranks report follows"
        certainty = "certain" if rows["rank"].is_not_null().all() else "likely"
        yield exit_finding(rows, rank, f"{{who}} raised {name}: {short(rows['says'][0])}", detail, certainty)


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("process_exit",), hang=True)
def app_process_died(process_exit: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A process was killed, crashed or gave up, and its launcher says which was the first.

    Means: the others lost their connections to it, or wait for it; launchers end them with SIGTERM afterwards, which
    is no cause. SIGKILL is mostly the kernel's, for want of memory; SIGSEGV a fault of a library or of the program.
    Not when: the process was told to end (SIGTERM, SIGINT), was aborted by a watchdog that had timed out, or passes on
    an error of NCCL's: these are left out. A bare exit code says that it ended first, not why.
    Do: look on its host at dmesg -T (OOM killer, segfault, Xid), at the core file, and at what it printed last.
    Sources: srun(1), mpirun(1), torch.distributed.elastic; NCCL user guide, troubleshooting; nccl#795.
    """
    ends = first_exits(process_exit, SIGNAL, EXIT, NODE)
    for_memory = not first_exits(process_exit, HOST_MEMORY).filter(pl.col("rank_id").is_null()).is_empty()
    ends = ends.filter(
        ~pl.col("where").str.contains("libnccl", literal=True)
        & (pl.col("signal").fill_null(0) != BUS_ERROR)
        & ~(for_memory & (pl.col("signal").fill_null(0) == KILL))
    )
    for (how, signal, code), rows in ends.group_by("how", "signal", "exit_code", maintain_order=True):
        tellers = ", ".join(sorted(set(rows["reporter"])))
        if how == NODE:
            yield exit_finding(rows, rank, "{who} went away with a node that failed", f"{tellers} says so", "certain")
        elif how == EXIT:
            told = rows["says"][0] or f"ended with exit code {code}"
            detail = f"the first to end, as {tellers} tells it; nothing here says why"
            finding = exit_finding(rows, rank, f"{{who}}: {told}", detail, "likely")
            finding.severity = Severity.WARNING
            yield finding
        else:
            assert isinstance(signal, int)
            verb = "was killed by" if signal == KILL else "crashed with"
            where = rows["where"][0] and f" in {rows['where'][0]}"
            detail = f"the first to end, as {tellers} tells it"
            yield exit_finding(rows, rank, f"{{who}} {verb} {signal_name(signal)}{where}", detail, "certain")


@rule(Category.APPLICATION_ERROR, Severity.ERROR, of=("process_exit",), hang=True)
def segfault_in_libnccl(process_exit: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The kernel saw a process crash inside NCCL's library.

    Means: a fault of NCCL or of a plugin it loaded, memory that the application overwrote, or a stack without limit on
    systems with many NVLink domains (before 2.28).
    Not when: the line is of another day or of another program; only processes of this run are counted, or all where the
    run lost a process.
    Do: try without plugins (NCCL_NET_PLUGIN=none, NCCL_TUNER_PLUGIN=none) and with ulimit -s 8192; keep the core file.
    Sources: gpud, nccl component; NCCL user guide, troubleshooting/runtime (stack size).
    """
    crashed = first_exits(process_exit, SIGNAL).filter(pl.col("where").str.contains("libnccl", literal=True))
    for (where,), rows in crashed.group_by("where", maintain_order=True):
        yield exit_finding(
            rows, rank, f"{{who}} crashed inside {where}", "the kernel logged a segmentation fault", "likely"
        )


@rule(Category.APPLICATION_ERROR, Severity.INFO, of=("job_end",))
def job_ended_by_scheduler(job_end: pl.DataFrame) -> Iterator[Finding]:
    """The scheduler ended the job, at its time limit or for another job.

    Means: what ranks say after that is about being taken down. A job that reaches its time limit need not have hung.
    Not when: the step was cancelled because one of its processes had failed.
    Do: compare the time of the cancellation with that of the last step of the training; ask for more time.
    Sources: sbatch(1), Slurm job state codes.
    """
    said = job_end.filter(pl.col("cause").is_not_null()).sort("source", "line")
    for (cause,), rows in said.group_by(text_of("cause"), maintain_order=True):
        reason = str(cause).partition(",")[0].lower()
        yield Finding(
            f"the scheduler ended the job: {reason}",
            "its processes were told to end",
            "certain",
            hosts=sorted(rows["node"].cast(pl.String).drop_nulls().unique().to_list()),
            role=Role.CONTEXT,
            evidence=[Line(source, line) for source, line in rows.select("source", "line").head(2).iter_rows()],
        )
