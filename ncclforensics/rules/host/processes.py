"""Processes in a listing of ps that cannot be interrupted, that a signal stopped, or that ended."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.frames.columns import short_host, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

SHOWN = 4
STATES = {  # by the form of the line
    "ended": "ended, and its parent has not noticed",
    "stopped": "is stopped by a signal, and does nothing until it gets SIGCONT (state T)",
    "": "waits in the kernel, and cannot be interrupted (state D)",
}


@rule(Category.APPLICATION_ERROR, Severity.WARNING, of=("process_listed", "process_waiting"), hang=True)
def process_states(
    process_listed: pl.DataFrame, process_waiting: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A process waits in the kernel, is stopped by a signal, or ended while its parent has not noticed (ps).

    Means: state D: a driver, the network or a file system has to answer first; not even SIGKILL ends the process
    before. State T: SIGSTOP, a terminal (Ctrl-Z) or a debugger stopped it, and ranks that call it wait. `<defunct>`:
    the process is over, and its parent, and the ranks that call it, may still wait for it.
    Not when: the process sleeps or runs; ps shows one moment, and a short wait for a disk looks alike: call it again.
    Do: read /proc/PID/stack and dmesg -T for what does not answer; let a stopped one go on with kill -CONT PID; of an
    ended process read its last lines of output, and dmesg -T for a kill.
    Sources: ps(1), process state codes; Linux, fs/proc/array.c.
    """
    of_ranks = rank.filter(pl.col("pid").is_unique()).select("pid", "rank", rank_host=short_host("host"))
    listed = pl.concat([process_listed, process_waiting], how="diagonal_relaxed").sort("source", "line")
    rows = listed.join(of_ranks, on="pid", how="left", maintain_order="left")
    host = short_host("launcher_node")
    is_other = (host != pl.col("rank_host")).fill_null(value=False)
    rows = rows.with_columns(rank=pl.when(~is_other).then("rank"), state=text_of("form"))
    for (state,), alike in rows.group_by("state", maintain_order=True):
        ranks = alike["rank"].drop_nulls().unique().sort().to_list()
        others = alike.filter(pl.col("rank").is_null())["pid"].to_list()
        names = [ranks_text(ranks)] * bool(ranks) + [f"process {pid}" for pid in others]
        places = alike["waits_in"].cast(pl.String).drop_nulls().unique(maintain_order=True).to_list()
        yield Finding(
            title=f"{some_of(names, SHOWN)}: {STATES[str(state or '')]}",
            detail=f"in {some_of(places, SHOWN)}; ps shows one moment" if places else "ps shows one moment",
            certainty="certain",
            ranks=ranks,
            hosts=sorted(alike["launcher_node"].cast(pl.String).drop_nulls().unique()),
            role=Role.CONTEXT,
            evidence=evidence_lines(alike.select("source", "line")),
        )
