"""What the logs of torchcomms (ClogHook) of several ranks show, laid side by side."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

# Whose sizes may differ between ranks.
UNEVEN = ["all_to_all_v_single", "all_gather_v", "reduce_scatter_v", "all_to_all", "scatter", "gather", "gather_single"]


@rule(Category.LAGGING_RANK, Severity.ERROR, of=("clog_call",), hang=True)
def clog_rank_behind(clog_call: pl.DataFrame) -> Iterator[Finding]:
    """Ranks of a communicator of torchcomms did not enqueue a collective in which the others stand.

    Means: the log of a rank is written before each call and flushed at once; the named ranks made no further call on
    this communicator, and the others wait for them.
    Not when: the logs were copied at different moments of a running job; the calls are replayed by a CUDA graph, which
    these lines do not count; the ranks stand in a call of another communicator, which waits for others in turn.
    Do: take the stacks of the named ranks (py-spy dump --native); read what they printed last, and dmesg -T of their
    hosts.
    Sources: meta-pytorch/torchcomms: comms/torchcomms/hooks/clog/ClogHook.cpp, AI_TOOL_INSTRUCTIONS_V1.md.
    """
    for (comm,), calls in clog_call.group_by("comm", maintain_order=True):
        last = calls.sort("nth").group_by("rank").last().sort("rank")
        newest = max(last["nth"].to_list())
        lagging, leading = last.filter(pl.col("nth") < newest), last.filter(pl.col("nth") == newest)
        if lagging.is_empty() or lagging.height >= leading.height:
            continue
        stood = min(lagging["nth"].to_list())
        missed = calls.filter((pl.col("nth") == stood + 1) & pl.col("rank").is_in(leading["rank"].implode()))
        is_open = missed["has_ended"].is_not_null().all() and not missed["has_ended"].any()
        if missed["has_ended"].any():  # it came to its end without them: another count, or another communicator
            continue
        ranks = sorted(lagging["rank"].to_list())
        lacking = max(last["size"].to_list()) - last.height
        others = ranks_text(sorted(leading["rank"].to_list()))
        own = lagging.row(0, named=True)
        yield Finding(
            title=f"{ranks_text(ranks)} of communicator {comm} made no call {stood + 1}, and {others} did",
            detail=f"it is {missed['call'][0]}{', which has ended nowhere' * is_open}; the last call of"
            f" {ranks_text(ranks[:1])} is {own['call']} {own['nth']}"
            + (f"; the logs of {count_of(lacking, 'rank')} are not here" if lacking > 0 else ""),
            certainty="likely" if is_open and lacking <= 0 else "possible",
            role=Role.CAUSE,
            evidence=[
                *(Line(row["source"], row["line"], "lagging") for row in lagging.head(2).to_dicts()),
                *(Line(row["source"], row["line"], "the others") for row in missed.head(2).to_dicts()),
            ],
        )


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("clog_call",), hang=True)
def clog_calls_differ(clog_call: pl.DataFrame) -> Iterator[Finding]:
    """Ranks of a communicator of torchcomms made different collectives under one number.

    Means: all members of a communicator must make the same calls in the same order; from this call on they do not
    match, and wait for one another or compute wrong results.
    Not when: a log was started later than the others, so that its first calls are missing.
    Do: compare what each rank does before that call: a branch on data, on the rank, or on a caught error.
    Sources: meta-pytorch/torchcomms: comms/torchcomms/hooks/clog/ClogHook.cpp, AI_TOOL_INSTRUCTIONS_V1.md.
    """
    same = pl.when(pl.col("call").is_in(UNEVEN)).then(pl.lit("")).otherwise(pl.col("arguments").fill_null(""))
    shown = clog_call.with_columns(text=pl.col("call") + " " + same)
    differing = shown.group_by("comm", "nth").agg(pl.col("text").n_unique()).filter(pl.col("text") > 1)
    first = differing.group_by("comm").agg(pl.col("nth").min()).sort("comm")
    for comm, nth in first.iter_rows():
        rows = shown.filter((pl.col("comm") == comm) & (pl.col("nth") == nth)).sort("rank")
        parts = rows.group_by("text", maintain_order=True).agg("rank", "call", "source", "line").sort(
            pl.col("rank").list.len()
        ).to_dicts()  # fmt: skip
        own, others = parts[0], parts[-1]
        is_minority = len(own["rank"]) < len(others["rank"])
        yield Finding(
            title=f"{ranks_text(sorted(own['rank']))} of communicator {comm} called {own['call'][0]} as call {nth}, and"
            f" {ranks_text(sorted(others['rank']))} called {others['call'][0]}"
            + " with other arguments"
            * (own["call"][0] == others["call"][0]),
            detail=f"{own['text'].strip()}; the others: {others['text'].strip()}"[:400],
            certainty="certain" if is_minority else "likely",
            role=Role.CAUSE,
            evidence=[Line(part["source"][0], part["line"][0]) for part in (own, others)],
        )
