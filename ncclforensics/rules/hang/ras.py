"""What RAS says of a running job, beside the verdict."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.hang.ras_evidence import ranks_differing_in_counts, ranks_differing_in_status
from ncclforensics.analyses.hang.ras_reports import process_place
from ncclforensics.data.names import ranks_text
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

SHOWN = 4


@rule(Category.PEER_LOST, Severity.WARNING, of=("ras_state",), hang=True)
def ras_incomplete_dead(ras_state: pl.DataFrame, ras_member: pl.DataFrame) -> Iterator[Finding]:
    """RAS gets no answer from processes of the job.

    Means: the RAS thread of such a process does not answer, although it does so even while the process hangs in a
    call. It was stopped, crashed, or is cut off; after 60 seconds it is considered dead, for good.
    Not when: the process had come to its end before the others; the interface that RAS uses is not that of the data.
    Do: on the node named see whether the process is there (ps, dmesg -T); repeat ncclras -v a minute later.
    Sources: NCCL documentation troubleshooting/ras.rst; nccl: src/ras/peers.cc.
    """
    memberships = {process_place(row): row["rank"] for row in ras_member.to_dicts() if row["process"] is not None}
    lost = ras_state.filter(pl.col("state_kind").is_in(["dead", "missing"]))
    for (name,), rows in lost.group_by("communicator", maintain_order=True):
        if name is None and lost["communicator"].drop_nulls().len():
            continue  # the communicators say which ranks these processes were
        told = rows.unique(["rank", "node", "process", "gpu"], keep="first", maintain_order=True).to_dicts()
        places = sorted({f"process {row['process']} on {row['node']}" for row in told if row["process"] is not None})
        numbers = [row["rank"] for row in told if row["rank"] is not None]
        who = ranks_text(numbers) or ", ".join(places[:SHOWN]) or f"{sum(row['ranks'] for row in told)} of them"
        yield Finding(
            title=f"RAS gets no answer from {who}" + (f" of communicator {name}" if name else ""),
            detail=", ".join(places[:SHOWN]) or "the report does not name the processes",
            certainty="certain",
            ranks=sorted({number for row in told if (number := memberships.get(process_place(row))) is not None}),
            hosts=sorted({row["node"] for row in told if row["node"]}),
            communicator=name,
            role=Role.CONTEXT,
            evidence=[Line(row["source"], row["line"], row["state_kind"]) for row in told[:SHOWN]],
        )


@rule(Category.LAGGING_RANK, Severity.INFO, of=("ras_state",), hang=True)
def ras_mismatch_transient(
    ras_state: pl.DataFrame, ras_snapshot: pl.DataFrame, verdict: pl.DataFrame
) -> Iterator[Finding]:
    """In a RAS report the ranks of a communicator differ in status or in the calls that they have launched.

    Means: a running job looks like that: reports are taken while ranks go on, and communicators are made and destroyed.
    What differs in the same way minutes later stands still.
    Not when: the verdict names the ranks that are behind, or a process that is gone: then it follows from that.
    Do: repeat ncclras -v some minutes later and give both reports; ranks whose counts do not grow are the ones.
    Sources: NCCL documentation troubleshooting/ras.rst; ray#64928.
    """
    if ras_snapshot.is_empty() or not verdict["verdict"].is_in(["no-hang", "undecidable"]).all():
        return
    latest = ras_state.filter(pl.col("report") == ras_snapshot["report"].max()).to_dicts()
    for name, rows in {**ranks_differing_in_counts(latest), **ranks_differing_in_status(latest)}.items():
        differing = sorted({row["status"] or f"{row['launched']} {row['operation']}" for row in rows})
        yield Finding(
            title=f"the ranks of communicator {name} differ in the RAS report",
            detail=f"{', '.join(differing[:SHOWN])}: of a running job this says nothing, unless it stays so",
            certainty="possible",
            communicator=name,
            role=Role.CONTEXT,
            evidence=[Line(row["source"], row["line"], "differs") for row in rows[:SHOWN]],
        )
