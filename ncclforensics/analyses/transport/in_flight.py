"""Transfers that had not ended when a rank's network thread was looked at: channel, peer, and the last step.

The events of a call stand between its begin and its end; an event that had not ended has an end before its begin,
mostly at 0, or none where the file was cut (NCCL, plugins/profiler/example/print_event.cc). A process that gets the
signal NCCL_PROXY_DUMP_SIGNAL prints the operations of its proxy that are not done (NCCL, src/proxy.cc, printProxyOp).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.frames.columns import LINE, Row, frame_of_rows, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import find_values

TRANSFER_IN_FLIGHT = {
    "comm_hash": pl.String(),  # null in a dump of the proxy
    "rank": pl.Int32(),  # in the communicator
    "operation": pl.String(),
    "sequence": pl.Int64(),  # of a collective; in a dump of the proxy NCCL's counter
    "channel": pl.Int32(),
    "peer": pl.Int32(),
    "is_send": pl.Boolean(),
    "steps": pl.Int32(),  # of the transfer
    "step": pl.Int32(),  # the last one that began
    "state": pl.String(),  # of that step: SendGpuWait, SendPeerWait, SendWait, RecvWait, RecvFlushWait, RecvGpuWait
    "queue_pair": pl.Int64(),  # the last one used
    **LINE,
}
HEADING, PROXY = "heading", "network operation"
SENDING, RECEIVING = "send", "receive"
# State of a transfer in a dump of the proxy -> that of the profiler; D is done, and I not yet handed to the network.
PROXY_STATES = {
    SENDING: {"G": "SendGpuWait", "S": "SendWait"},
    RECEIVING: {"R": "RecvWait", "F": "RecvFlushWait", "G": "RecvGpuWait"},
}
CALLS, TRANSFERS = ("coll", "p2p"), ("ProgressSend", "ProgressRecv")


@dataclass(slots=True)
class _Call:
    """A call whose end was not read yet."""

    row: Row
    transfer: Row | None = None
    open_transfers: list[Row] = field(default_factory=list)


@analysis(TRANSFER_IN_FLIGHT, of=("profiler_event", "active_operation"))
def transfer_in_flight(
    profiler_event: pl.DataFrame,
    profiler_end: pl.DataFrame,
    active_operation: pl.DataFrame,
    rank: pl.DataFrame,
    member: pl.DataFrame,
) -> pl.DataFrame:
    """One row per transfer of a call that had not ended, as the rank's own trace or dump shows it."""
    begins = profiler_event.with_columns(kind=pl.col("form").cast(pl.String), is_end=False)
    events = pl.concat([begins, profiler_end.with_columns(is_end=True)], how="diagonal_relaxed")
    columns = pl.col("event", "kind", "comm_hash").cast(pl.String)
    rows: list[Row] = []
    for _, trace in events.with_columns(columns).sort("source", "line").group_by("source", maintain_order=True):
        rows += _of_trace(trace.to_dicts())
    rows += _of_proxies(active_operation, rank, member)
    return frame_of_rows(rows, TRANSFER_IN_FLIGHT)


def _of_proxies(active_operation: pl.DataFrame, rank: pl.DataFrame, member: pl.DataFrame) -> Iterator[Row]:
    """The transfers of the last dump in each input; peers are ranks of a communicator that the dump does not name."""
    single = rank.group_by("source").agg(pl.col("rank").unique()).filter(pl.col("rank").list.len() == 1)
    has_one_communicator = member["key"].n_unique() == 1
    ranks = {source: numbers[0] for source, numbers in single.iter_rows()} if has_one_communicator else {}
    operations = active_operation.with_columns(text_of("form"), text_of("state"), text_of("others")).sort(
        "source", "pos"
    )
    for (source,), lines in operations.group_by("source", maintain_order=True):
        dump: list[Row] = []
        for line in lines.to_dicts():
            dump = [] if line["form"] == HEADING else [*dump, line]
        for line in dump:
            others = find_values(pl.Series([line["others"] or ""]), "proxy_transfer").to_dicts()
            for transfer in (line, *others):
                state = PROXY_STATES.get(line["form"], {}).get(transfer["state"] or "")
                if state:
                    yield {
                        "rank": ranks.get(source), "operation": PROXY, "sequence": line["op_count"], "state": state,
                        "is_send": line["form"] == SENDING, "peer": transfer["peer"], "channel": transfer["channel"],
                        "source": source, "line": line["line"],
                    }  # fmt: skip


def _of_trace(events: list[Row]) -> list[Row]:
    found: list[Row] = []
    call: _Call | None = None
    for event in events:
        if event["is_end"]:
            if call and event["kind"] in ("COLL", "P2P"):
                found += call.open_transfers if event["time"] < call.row["time"] else []
                call = None
            elif call and call.transfer and event["event"] in TRANSFERS and event["time"] >= call.transfer["time"]:
                call.open_transfers.remove(call.transfer)
                call.transfer = None
        elif event["kind"] in CALLS:
            call = _Call(event)
        elif call and event["event"] in TRANSFERS:
            call.transfer = _transfer(call.row, event)
            call.open_transfers.append(call.transfer)
        elif call and call.transfer and event["kind"] == "step":
            call.transfer |= {"step": event["step"], "state": event["event"]}
        elif call and call.transfer and event["kind"] == "queue_pair":
            call.transfer["queue_pair"] = event["queue_pair"]
    return found + (call.open_transfers if call else [])


def _transfer(call: Row, event: Row) -> Row:
    of_call = {"comm_hash": call["comm_hash"], "rank": call["rank"], "operation": call["event"]}
    own = {name: event[name] for name in ("channel", "peer", "steps", "time", "source", "line")}
    is_send = event["event"] == "ProgressSend"
    return {**of_call, **own, "sequence": call["sequence"], "is_send": is_send, "step": None, "state": None} | {
        "queue_pair": None
    }
