"""Transfers and kernels that stood still when NCCL's profiler, its proxy or RCCL's trace was looked at."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.frames.columns import OWNER
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding

SHOWN = 3
# State of a step -> what the proxy waits for (NCCL, plugins/profiler/README.md).
WAITS_FOR = {
    "SendGpuWait": "its GPU to fill the buffer",
    "SendPeerWait": "the receiver to have room",
    "SendWait": "the network to send",
    "RecvWait": "data from the network",
    "RecvFlushWait": "the flush to its GPU",
    "RecvGpuWait": "its GPU to take the data",
}


@rule(Category.HANG, Severity.INFO, of=("transfer_in_flight",), hang=True, role=Role.CONTEXT)
def transfer_not_ended(transfer_in_flight: pl.DataFrame) -> Iterator[Finding]:
    """Transfers had not ended when the profiler wrote its trace, or the proxy was dumped.

    Means: the trace, or what NCCL_PROXY_DUMP_SIGNAL prints, shows on which channel, to or from which peer, and in which
    step data stood still. Where a proxy waits for its own GPU, the fault is there or at a rank before it in the ring;
    where it waits for the network, it is on the way to that peer.
    Not when: it was written while the job ran; each rank shows its own side only, and a rank that waits shows a
    transfer that has not ended just as the rank that it waits for.
    Do: compare the traces of both ends of the named channel: the first hop without data is behind the fault.
    Sources: NCCL, plugins/profiler/example/print_event.cc and plugins/profiler/README.md; src/proxy.cc, printProxyOp.
    """
    calls = ["comm_hash", "operation", "sequence"]
    for key, rows in transfer_in_flight.sort("source", "line").group_by(calls, maintain_order=True):
        number = "" if key[2] is None else f" #{key[2]}"
        ranks = sorted(rows["rank"].drop_nulls().unique().to_list())
        hops = _hops(rows)
        first = hops if hops.height else rows.unique("rank", keep="first", maintain_order=True)
        ways = hops.select("rank", "peer").unique(maintain_order=True).head(SHOWN)
        way = ", ".join(f"from rank {row['rank']} to rank {row['peer']}" for row in ways.to_dicts())
        of_communicator = "" if key[0] is None else f" of communicator {int(str(key[0])):#x}"
        where = ranks_text(ranks) if ranks else "a rank that the dump does not name"
        stood = f"data stood still on the way {way}: " if way else ""
        yield Finding(
            f"{stood}{count_of(rows.height, 'transfer')} of {key[1]}{number} had not ended on {where}{of_communicator}",
            "; ".join(_text(row) for row in first.head(SHOWN).to_dicts()),
            "possible" if key[0] is None and not hops.height else "likely",
            evidence=evidence_lines(first.select("source", "line").head(SHOWN)),
        )


@rule(Category.HANG, Severity.WARNING, of=("kernel_progress",), hang=True)
def rccl_kernel_not_begun(
    kernel_progress: pl.DataFrame, verdict: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks did not begin the kernel that others are in, by RCCL's trace of kernels.

    Means: the GPUs of the others wait in that kernel for the named ranks, on which every kernel had ended: what their
    GPU or their host does before that call does not end.
    Not when: the log was copied while the job ran, or lost its end; several communicators are of one size, which the
    trace does not tell apart.
    Do: take the stacks of the named ranks; on their hosts look at rocm-smi and dmesg -T.
    Sources: rccl: src/init.cc, ncclCommThreadMain; RCCL_KERNEL_COLL_TRACE_ENABLE.
    """
    is_over = (pl.col("verdict") == "no-hang") & (pl.col("certainty") != "possible")
    if not verdict.filter(is_over).is_empty():
        return
    is_hung = not verdict.is_empty() and not verdict["verdict"].is_in(["no-hang", "undecidable"]).any()
    for (nranks,), ranks in kernel_progress.group_by("nranks", maintain_order=True):
        running = ranks.filter(pl.col("channels") > 0).sort("opcount", "rank")
        if running.is_empty():
            continue
        idle = ranks.filter((pl.col("channels") == 0) & (pl.col("opcount") < pl.lit(running["opcount"].min())))
        if idle.is_empty():
            continue
        call = running.row(-1, named=True)
        name = f"opCount {call['opcount']:x}" + (f" ({call['function']})" if call["function"] else "")
        of = "" if nranks is None else f" of the communicator of {count_of(nranks, 'rank')}"
        numbers = rank.join(running, on=OWNER, how="semi")["rank"].drop_nulls().unique().sort()
        others = ranks_text(numbers) or count_of(running.height, "rank")
        finding = group_finding(
            idle, rank, f"{{processes}} did not begin the kernel that {others} entered",
            f"that is {name}{of}; where it was not begun, every kernel had ended, the last of opCount "
            f"{_last_ended(idle)}",
            "likely" if is_hung else "possible",
        )  # fmt: skip
        finding.evidence += evidence_lines(running.select("source", "line").head(1), "in the kernel")
        yield finding


def _last_ended(ranks: pl.DataFrame) -> str:
    return ", ".join(f"{opcount:x}" for opcount in sorted(set(ranks["opcount"])))


def _hops(rows: pl.DataFrame) -> pl.DataFrame:
    """The transfers that one rank has given to the network, and that the other has not got."""
    sent = rows.filter(pl.col("is_send") & (pl.col("state") == "SendWait"))
    awaited = rows.filter(~pl.col("is_send") & (pl.col("state") == "RecvWait"))
    return sent.join(awaited, left_on=["channel", "rank", "peer"], right_on=["channel", "peer", "rank"], how="semi")


def _text(row: dict[str, object]) -> str:
    direction = "to" if row["is_send"] else "from"
    name = "its rank" if row["rank"] is None else f"rank {row['rank']}"
    text = f"{name}: channel {row['channel']}, {direction} peer {row['peer']}"
    if row["state"] in WAITS_FOR:
        step = "" if row["step"] is None else f", step {row['step']} of {row['steps']}"
        text += f"{step} waits for {WAITS_FOR[str(row['state'])]}"
    return text + ("" if row["queue_pair"] is None else f", queue pair {row['queue_pair']}")
