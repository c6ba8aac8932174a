"""What PyTorch says of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule


@rule(Category.TIMEOUT, Severity.ERROR, of=("work",), hang=True)
def torch_watchdog_timeout(work: pl.DataFrame) -> Iterator[Finding]:
    """PyTorch's watchdog gave up waiting for a collective.

    Means: on these ranks a work of the process group did not end in time; they are victims. The culprit is a rank whose
    counters are lower, or one that prints nothing.
    Not when: the lines are copies of one message (it comes up to four times), which are counted once; the time-out was
    set shorter than a checkpoint or the first step takes.
    Do: compare last enqueued and last completed work over ranks; set TORCH_NCCL_TRACE_BUFFER_SIZE for a flight record.
    Sources: ProcessGroupNCCL.cpp of torch 1.13 to 2.10.
    """
    for (guid,), rows in (
        work.filter(pl.col("sequence").is_not_null()).sort("rank", "guid").group_by("guid", maintain_order=True)
    ):
        ranks = sorted(rows["rank"].unique().to_list())
        works = sorted(rows["sequence"].drop_nulls().unique().to_list())
        group = f" of process group {guid}" if guid else ""
        yield Finding(
            title=f"the watchdogs of {ranks_text(ranks)} timed out at work {', '.join(map(str, works))}{group}",
            detail=_called(rows),
            certainty="certain",
            ranks=ranks,
            role=Role.CONSEQUENCE,
            evidence=[Line(source, line, "timed out") for source, line in rows.select("source", "line").head(4).rows()],
        )


def _called(rows: pl.DataFrame) -> str:
    names = sorted({name.strip("_") for name in rows["operation"].drop_nulls()})
    return f"what they waited for: {', '.join(names)}" if names else "no call is named"


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("fingerprint",), hang=True)
def torch_calls_differ(fingerprint: pl.DataFrame) -> Iterator[Finding]:
    """PyTorch compared the calls of the ranks before it made them, and they differ.

    Means: the ranks of a process group are not in the same call, or not with tensors of the same shape; without the
    comparison (TORCH_DISTRIBUTED_DEBUG=DETAIL) they would have hung, or computed nonsense.
    Not when: a rank of that number is meant: they are numbered in their process group, and a message cut behind its
    first sentence does not name them.
    Do: compare what each rank does before that call: a branch on data, on the rank, or on an error that was caught.
    Sources: ProcessGroupWrapper.cpp of torch 1.13 to 2.10.
    """
    if fingerprint.is_empty():
        return
    called: dict[int, str] = {}
    for row in fingerprint.filter(pl.col("mine").is_not_null()).to_dicts():
        called[row["mine"]] = _print(row["operation"], row["sequence"], row["shape"])
        called.setdefault(row["other"], _print(row["other_operation"], row["other_sequence"], row["other_shape"]))
    usual, often = Counter(called.values()).most_common(1)[0] if called else ("", 0)
    is_usual = 2 * often > len(called)  # where no call has a majority, nobody is the odd one
    odd = sorted(rank for rank, call in called.items() if call != usual or not is_usual)
    telling = fingerprint.sort(pl.col("mine").is_in(odd), descending=True, maintain_order=True)
    by_call = {call: ranks_text(rank for rank in called if called[rank] == call) for call in called.values()}
    differently = "different things" if called and not is_usual else "something else than the others"
    yield Finding(
        title=f"{ranks_text(odd) or 'ranks'} of a process group called {differently}",
        detail="; ".join(f"{ranks}: {call}" for call, ranks in by_call.items())
        or "the message is cut before their names",
        certainty="certain",
        ranks=odd,
        evidence=[Line(source, line) for source, line in telling.select("source", "line").head(2).rows()],
    )


def _print(operation: str, sequence: int | None, shape: str | None) -> str:
    """A call as PyTorch's fingerprint tells it."""
    parts = [operation, f"[{shape}]" if shape else "", "" if sequence is None else f"as number {sequence}"]
    return " ".join(part for part in parts if part)


@rule(Category.TIMEOUT, Severity.INFO, of=("work_status",), hang=True)
def torch_first_reporter(work_status: pl.DataFrame) -> Iterator[Finding]:
    """Ranks that merely pass on that another rank timed out.

    Means: the rank named was the first whose watchdog fired. That is a victim's clock: it waited longest, and need not
    be the culprit; the ranks that pass it on may have nothing outstanding.
    Not when: the rank speaks of its own time-out (`from this local rank`).
    Do: read the flight records of all ranks, or their last enqueued work, not only what these ranks print.
    Sources: ProcessGroupNCCL.cpp of torch 2.4 to 2.10; DeepSpeed#7533.
    """
    for (reporter,), rows in (
        work_status.filter(form="relayed").sort("source", "line").group_by("reporter", maintain_order=True)
    ):
        told = sorted(rows["global_rank"].drop_nulls().unique().to_list())
        yield Finding(
            title=f"rank {reporter} timed out first; {ranks_text(told) or 'others'} only passed it on",
            detail="the first to time out is a victim, not yet the culprit",
            certainty="certain",
            ranks=told,
            role=Role.CONTEXT,
            evidence=[Line(source, line) for source, line in rows.select("source", "line").head(4).rows()],
        )


@rule(Category.TIMEOUT, Severity.ERROR, of=("watchdog",), hang=True)
def torch_heartbeat_stuck(watchdog: pl.DataFrame) -> Iterator[Finding]:
    """A watchdog thread of PyTorch itself is stuck.

    Means: it waits inside a call of CUDA or NCCL, or for Python's interpreter lock that another thread holds. That is
    not a collective that timed out: what the GPU does is not known.
    Not when: the process was being taken down already.
    Do: native stack of that process (py-spy dump --native, gdb); TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC only gains time.
    Sources: ProcessGroupNCCL.cpp of torch 2.3 to 2.10; VLM-R1#257.
    """
    stuck = watchdog.filter(form="stuck").sort("source", "line")
    if not stuck.is_empty():
        ranks = sorted(stuck["global_rank"].drop_nulls().unique().to_list())
        yield Finding(
            title=f"the watchdog of {ranks_text(ranks) or 'a rank'} is stuck itself",
            detail=f"it made no progress for {stuck['seconds'].max()!r} seconds: CUDA, NCCL or Python's lock holds it",
            certainty="likely",
            ranks=ranks,
            evidence=[Line(source, line) for source, line in stuck.select("source", "line").head(4).rows()],
        )
