"""What XLA and JAX report of threads and tasks that did not come."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

JOINING = "RegisterTask"  # the call of the coordination service that returns when all processes made it
COMPARE_PROCESSES = (
    "look for processes that never started, and compare coordinator_address, num_processes and process_id of all in "
    "jax.distributed.initialize"
)


@rule(Category.TIMEOUT, Severity.ERROR, of=("xla_rendezvous",), hang=True, role=Role.CONSEQUENCE)
def xla_rendezvous_expired(xla_rendezvous: pl.DataFrame) -> Iterator[Finding]:
    """Threads of XLA waited for others until the process ended itself.

    Means: each thread drives a GPU; before a collective, or before a communicator is made, all of them meet. One did
    not come: it is stuck in another call, in the host program, or its process ended. Those that print this are victims.
    Not when: the line only says that a thread is waiting and may be stuck; it may go on.
    Do: take the stacks of all processes while they wait (gdb -batch -ex 'thread apply all bt'); look for the process
    that prints nothing.
    Sources: openxla/xla: xla/service/rendezvous.cc.
    """
    expired = xla_rendezvous.filter(form="expired").with_columns(waited_for=text_of("waited_for"))
    for (name,), rows in expired.sort("source", "line").group_by(
        pl.col("waited_for").str.split(";").list.first(), maintain_order=True
    ):
        row = rows.row(0, named=True)
        counts = (
            f"{row['joined']} of {row['expected_threads']} threads came" if row["joined"] else "not all threads came"
        )
        title = f"{counts} to the rendezvous of XLA: {name}"
        detail = f"the others waited for {row['seconds']} seconds, then the process ended itself"
        yield Finding(title, detail, "certain", evidence=evidence_lines(rows))


@rule(Category.TIMEOUT, Severity.WARNING, of=("xla_rendezvous",), hang=True, role=Role.CONSEQUENCE)
def xla_rendezvous_waits(xla_rendezvous: pl.DataFrame) -> Iterator[Finding]:
    """Threads of XLA wait for others, and no line shows that these came.

    Means: before a collective, or before a communicator is made, one thread per GPU comes to a rendezvous. Another
    process or thread has not come: it ended, is stuck, or its program does not make this call.
    Not when: XLA prints that the thread is unstuck, or the job is slow there, as in its first compilation.
    Do: check that every process runs the same program to the same call; take the stacks of the process that waits and
    of the one that prints nothing (gdb -batch -ex 'thread apply all bt').
    Sources: openxla/xla: xla/service/rendezvous.cc; jax#22740.
    """
    forms = text_of("form")
    if not xla_rendezvous.filter(forms.is_in(["expired", "released"])).is_empty():
        return
    waiting = xla_rendezvous.filter(forms.is_in(["waiting", "participant"])).sort("source", "line")
    if not waiting.is_empty():
        names = waiting["waited_for"].cast(pl.String).str.split(";").list.first().unique(maintain_order=True)
        title = f"threads of XLA wait at a rendezvous: {', '.join(names.head(2))}"
        detail = "not all threads had come then"
        absent = _device_not_read(waiting) if len(names) == 1 else []
        if absent:
            detail = f"no such line of device {absent[0]} was read, the only one of {waiting['expected_threads'][0]}"
        yield Finding(title, detail, "possible", evidence=evidence_lines(waiting))


def _device_not_read(waiting: pl.DataFrame) -> list[int]:
    """Return the only device of a process with all devices whose thread does not say that it waits, if others do."""
    row = waiting.row(0, named=True)
    came, number = set(waiting["came"].drop_nulls()), row["expected_threads"] or 0
    is_whole = str(row["devices"] or "").count(",") + 1 == number
    absent = sorted(set(range(number)) - came)
    return absent if is_whole and len(absent) == 1 and came else []


@rule(Category.PEER_LOST, Severity.ERROR, of=("jax_service",), hang=True, role=Role.CONSEQUENCE)
def jax_tasks_without_heartbeat(jax_service: pl.DataFrame) -> Iterator[Finding]:
    """Tasks of JAX sent no heartbeat to the coordination service, did not come to its barrier, or lost the service.

    Means: process 0 serves the others. It ends the job if a task is silent for longer than the time-out of heartbeats:
    the task ended, its host or network failed, or it is alive and could not send, because the interpreter or a CPU was
    held for too long. Tasks that do not reach the service end, too: process 0 ended, or the network to it failed.
    Not when: the task itself prints later lines: then it was alive, and the service was wrong about it. Where process 0
    comes to its orderly end first, the others print that they lost the service.
    Do: read the last lines of the named tasks, and dmesg -T on their hosts; where they were alive, raise
    heartbeat_timeout_seconds of jax.distributed.initialize, and look for what held the process (compilation, a
    checkpoint, too few CPUs).
    Sources: openxla/xla: xla/tsl/distributed_runtime/coordination/coordination_service.cc, pjrt/distributed/client.h;
    jax.distributed.initialize.
    """
    rows = jax_service.sort("source", "line")
    form = text_of("form")
    listed = rows.filter(pl.col("task").is_not_null() & (form != "barrier"))
    tasks = sorted(listed["task"].unique().to_list())
    endings, deadlines = rows.filter(form.is_in(["ending", "ending_lost"])), rows.filter(form="deadline")
    lost = rows.filter(form.is_in(["lost", "ending_lost"]))
    silent, barrier = rows.filter(form.is_in(["unhealthy", "silent"])), rows.filter(form="barrier")
    joining = rows.filter(text_of("service_call") == JOINING)
    unregistered = rows.filter(form="unregistered")
    ended = pl.concat([endings, deadlines])
    if not tasks and (not unregistered.is_empty() or (not joining.is_empty() and not ended.is_empty())):
        yield Finding(
            title="processes of JAX waited in jax.distributed.initialize until its time-out",
            detail="its coordination service, which process 0 runs, answers when all num_processes have come",
            certainty="certain",
            evidence=[*evidence_lines(unregistered), *evidence_lines(ended), *evidence_lines(joining)],
            remedy=COMPARE_PROCESSES,
        )
    elif tasks or not silent.is_empty() or not barrier.is_empty():
        yield _absent(tasks, listed, silent, barrier)
    elif not lost.is_empty():
        reason = next(iter(lost["service_reason"].drop_nulls()), "")
        yield Finding(
            title="a task of JAX lost the coordination service, which process 0 runs" + f": {reason}" * bool(reason),
            detail="process 0 ended, was preempted or restarted, or the network to its host failed",
            certainty="certain",
            severity=None if endings.height else Severity.WARNING,
            evidence=evidence_lines(lost),
            remedy="read the last lines of process 0, and dmesg -T on its host: what ended it is the cause; an "
            "orderly end of process 0 before the others brings these lines, too",
        )
    elif not endings.is_empty():
        title = "a process of JAX ended on an error that its coordination service reported"
        detail = "it may be its own or that of any other task: the coordinator's lines and those of the tasks say which"
        yield Finding(title, detail, "certain", evidence=evidence_lines(endings))


def _absent(tasks: list[int], listed: pl.DataFrame, silent: pl.DataFrame, barrier: pl.DataFrame) -> Finding:
    """Return the finding on tasks that sent no heartbeat, or did not come to a barrier.

    XLA lists them below a heading: by a path until 2025, then by a number alone, which has no shape of its own.
    """
    did = "did not come to a barrier in time" if silent.is_empty() else "stopped sending heartbeats"
    title = f"{ranks_text(tasks, 'task') or 'tasks'} of JAX {did}, as its coordination service reports"
    detail = "the service sees only that nothing came: the process may have ended, or be alive and held up"
    headings = barrier if silent.is_empty() else silent
    of_lists = headings.filter((text_of("form") == "unhealthy") | pl.col("task").is_not_null())
    below = [] if tasks else evidence_lines(of_lists.select("source", line=pl.col("line") + 1))
    if below:
        detail += "; their numbers stand below the lines that end in a colon"
    finding = Finding(title, detail, "likely", evidence=[*evidence_lines(headings), *evidence_lines(listed), *below])
    if silent.is_empty():
        finding.remedy = f"read the last lines of the named tasks; {COMPARE_PROCESSES}"
    return finding
