"""Findings from RAS reports, besides the verdict."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.hang.ras_reports import process_place
from ncclforensics.analyses.verdict.sources.ras_evidence import ranks_differing
from ncclforensics.data.names import ranks_text
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

SHOWN = 4


@rule(Category.PEER_LOST, Severity.WARNING, of=("ras_state",), hang=True, role=Role.CONTEXT)
def ras_incomplete_dead(ras_state: pl.DataFrame, ras_member: pl.DataFrame) -> Iterator[Finding]:
    """RAS gets no answer from processes of the job.

    Means: the RAS thread of a process does not answer, although it answers even while the process hangs in a call. The
    process was stopped, crashed or is cut off; after 60 seconds RAS considers it dead, permanently.
    Not when: the process completed before the others; RAS uses another network interface than the data.
    Do: check on the named node whether the process exists (ps, dmesg -T); repeat ncclras -v a minute later.
    Sources: NCCL documentation troubleshooting/ras.rst; nccl: src/ras/peers.cc.
    """
    memberships = {process_place(row): row["rank"] for row in ras_member.to_dicts() if row["process"] is not None}
    unreachable = ras_state.filter(pl.col("state_kind").is_in(["dead", "missing"]))
    for (name,), rows in unreachable.group_by("communicator", maintain_order=True):
        if name is None and unreachable["communicator"].drop_nulls().len():
            continue  # the rows of the communicators name the ranks of these processes
        processes = rows.unique(["rank", "node", "process", "gpu"], keep="first", maintain_order=True).to_dicts()
        places = sorted(
            {f"process {row['process']} on {row['node']}" for row in processes if row["process"] is not None}
        )
        numbers = [row["rank"] for row in processes if row["rank"] is not None]
        names = ranks_text(numbers) or ", ".join(places[:SHOWN]) or f"{sum(row['ranks'] for row in processes)} of them"
        yield Finding(
            title=f"RAS gets no answer from {names}" + (f" of communicator {name}" if name else ""),
            detail=", ".join(places[:SHOWN]) or "the report does not name the processes",
            certainty="certain",
            ranks=sorted({number for row in processes if (number := memberships.get(process_place(row))) is not None}),
            hosts=sorted({row["node"] for row in processes if row["node"]}),
            communicator=name,
            evidence=[Line(row["source"], row["line"], row["state_kind"]) for row in processes[:SHOWN]],
        )


@rule(Category.INCOMPLETE_EVIDENCE, Severity.WARNING, of=("ras_snapshot",), hang=True, role=Role.CONTEXT)
def ras_report_contradicts_itself(ras_snapshot: pl.DataFrame) -> Iterator[Finding]:
    """A RAS report counts more ranks in a communicator than the communicator has.

    Means: the data that the processes sent, or that RAS put together, is corrupt; such lines are left out here, and
    the others may be wrong, too. A known defect of NCCL 2.27, fixed in 2.29.2.
    Not when: the lines of two reports were mixed.
    Do: take another report; update NCCL; rely on logs, stacks and Flight Recorder dumps.
    Sources: nccl#1762; nccl: src/ras/collectives.cc.
    """
    corrupt = ras_snapshot.drop_nulls("contradiction_line")
    for row in corrupt.head(1).iter_rows(named=True):
        yield Finding(
            title=f"the RAS report contradicts itself: more ranks ({row['contradiction_ranks']:,}) in a communicator of"
            f" {row['contradiction_size']:,}",
            detail="such lines are left out; it is a known defect of NCCL 2.27 that is fixed in 2.29.2",
            certainty="certain",
            evidence=[Line(row["source"], row["contradiction_line"])],
        )


@rule(Category.LAGGING_RANK, Severity.INFO, of=("ras_state",), hang=True, role=Role.CONTEXT)
def ras_mismatch_transient(
    ras_state: pl.DataFrame, ras_snapshot: pl.DataFrame, verdict: pl.DataFrame
) -> Iterator[Finding]:
    """In a RAS report the ranks of a communicator differ in status or in their launched calls.

    Means: this is normal in a running job: ranks make progress during a report, and create and destroy communicators.
    Ranks that differ in the same way minutes later make no progress.
    Not when: the verdict names the ranks that are behind, or an ended process: then it follows from that.
    Do: repeat ncclras -v some minutes later and give both reports; the culprits are ranks whose counts do not grow.
    Sources: NCCL documentation troubleshooting/ras.rst; ray#64928.
    """
    if ras_snapshot.is_empty() or not verdict["verdict"].is_in(["no-hang", "undecidable"]).all():
        return
    latest = ras_state.filter(pl.col("report") == ras_snapshot["report"].max()).to_dicts()
    for name, rows in (ranks_differing(latest, "launched") | ranks_differing(latest, "status")).items():
        differing = sorted({row["status"] or f"{row['launched']} {row['operation']}" for row in rows})
        yield Finding(
            title=f"the ranks of communicator {name} differ in the RAS report",
            detail=f"{', '.join(differing[:SHOWN])}: in a running job this is normal, unless it persists",
            certainty="possible",
            communicator=name,
            evidence=[Line(row["source"], row["line"], "differs") for row in rows[:SHOWN]],
        )
