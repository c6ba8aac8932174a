"""What engines and frameworks above PyTorch and NCCL report of ranks that did not come."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.values import numbers_of_ranges
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

SHOWN = 8  # workers


@rule(Category.TIMEOUT, Severity.ERROR, of=("xla_rendezvous",), hang=True)
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
        yield Finding(
            title=f"{counts} to the rendezvous of XLA: {name}",
            detail=f"the others waited for {row['seconds']} seconds, then the process ended itself",
            certainty="certain",
            role=Role.CONSEQUENCE,
            evidence=evidence_lines(rows),
        )


@rule(Category.TIMEOUT, Severity.WARNING, of=("xla_rendezvous",), hang=True)
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
    waiting = xla_rendezvous.filter(forms == "waiting").sort("source", "line")
    if not waiting.is_empty():
        names = waiting["waited_for"].cast(pl.String).str.split(";").list.first().unique(maintain_order=True)
        yield Finding(
            title=f"threads of XLA wait at a rendezvous: {', '.join(names.head(2))}",
            detail="not all threads came, and no line shows that this changed",
            certainty="possible",
            role=Role.CONSEQUENCE,
            evidence=evidence_lines(waiting),
        )


@rule(Category.LAGGING_RANK, Severity.WARNING, of=("horovod_stall",), hang=True)
def horovod_waits_for_ranks(horovod_stall: pl.DataFrame, verdict: pl.DataFrame) -> Iterator[Finding]:
    """Horovod warns that some ranks did not submit tensors which the others submitted.

    Means: the named ranks are in other work, skipped an operation, gave a tensor another name, or have ended. The ranks
    that submitted it wait, and make no call of NCCL before all have come.
    Not when: the job went on afterwards: Horovod prints the warning again every 60 seconds, and nothing once the ranks
    have come; a first step, a checkpoint or an evaluation on one rank may take longer than that.
    Do: take the stack of the named ranks (py-spy dump); compare what they do before this tensor; broadcast the state
    from rank 0 on every rank, and build the same model with the same names on all.
    Sources: horovod/common/stall_inspector.cc of 0.19 to 0.28, operations.cc before; horovod#100, horovod#534.
    """
    if horovod_stall.is_empty() or (verdict["verdict"] == "no-hang").any():
        return
    rows = horovod_stall.sort("source", "line")
    lacking = rows.filter(pl.col("form").is_in(["lacking", "missing"]))
    submitted = rows.filter(form="ready")
    listed = [*lacking["missing_rank"].cast(pl.String), *lacking["missing_ranks"].cast(pl.String)]
    ranks = sorted({number for text in listed for number in numbers_of_ranges(text)})
    lines = lacking if ranks else submitted
    if lines.is_empty():
        return
    name = lines.select(pl.coalesce(text_of("tensor"), text_of("named_tensor"))).item(0, 0)
    times = rows["seconds"].drop_nulls().len()
    title = f"{ranks_text(ranks)} did not submit tensors that Horovod waits for"
    if not ranks:
        ready = ranks_text(numbers_of_ranges(submitted["ready_ranks"].cast(pl.String)[0]))
        title = f"only {ready} submitted a tensor that Horovod waits for"
    yield Finding(
        title=title,
        detail=f"the first named tensor is {name}; Horovod warned {count_of(max(times, 1), 'time')}",
        certainty="likely" if times > 1 else "possible",
        ranks=ranks,
        role=Role.CAUSE,
        evidence=evidence_lines(lines.select("source", "line")),
    )


@rule(Category.INIT_FAILURE, Severity.ERROR, of=("engine_start",), hang=True)
def engine_start_incomplete(engine_start: pl.DataFrame) -> Iterator[Finding]:
    """Some workers of an engine ended the start of torch.distributed, and others did not.

    Means: the start is a collective call, so workers that do not end it soon after the others are stuck in it or
    crashed; where no worker ended it, one of them, or a node, did not come.
    Not when: the log was copied while the engine was still starting; lines of the other workers are missing from it.
    Do: take the stacks of the named workers (py-spy dump --pid PID); compare --dist-init-addr, --nnodes and --node-rank
    of all nodes.
    Sources: sglang: python/sglang/srt/model_executor/model_runner.py (init_torch_distributed).
    """
    workers = engine_start.with_columns(worker=text_of("worker").fill_null(""))
    begun = workers.filter(form="begun").unique(["source", "worker"], maintain_order=True)
    ended = workers.filter(form="ended").unique(["source", "worker"], maintain_order=True)
    pending = begun.join(ended, on=["source", "worker"], how="anti").sort("source", "line")
    if pending.is_empty():
        return
    names = [name for name in pending["worker"] if name]
    named = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    yield Finding(
        title=f"{named or count_of(pending.height, 'worker')} began the start of torch.distributed and did not end it",
        detail=f"{count_of(ended.height, 'worker')} ended it" if ended.height else "no worker in these files ended it",
        certainty="likely" if ended.height else "possible",
        evidence=evidence_lines(pending),
    )
