"""What monitors of nodes report of GPUs: NVSentinel's events and conditions, and the device plugin of GKE."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.kernel_faults import UNKNOWN_XID, XIDS, Origin
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.values import find_values
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

SHOWN = 4
# health_event.proto; what the monitor wants done with the node or its part.
ACTIONS = {
    2: "reset the part",
    5: "ask the vendor",
    6: "run NVIDIA's field diagnostic",
    15: "reboot the node",
    24: "reboot the node",
    25: "replace the node",
    26: "run dcgmi's extended diagnostic (EUD)",
    39: "start the program again",
}
ENTITIES = {"PCI": "GPU {}", "GPU": "GPU {}", "NIC": "NIC {}", "NICPort": "NIC port {}", "NVSWITCH": "NVSwitch {}"}


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("health_event", "monitor_error", "host_service"))
def monitor_reports_fault(
    health_event: pl.DataFrame, monitor_error: pl.DataFrame, host_service: pl.DataFrame, kernel_event: pl.DataFrame
) -> Iterator[Finding]:
    """A monitor of a node passes on a fault of a GPU or of another part.

    Means: the monitor read it from the kernel's log or from DCGM; the number of an Xid has the meaning that NVIDIA
    gives it, whatever the monitor calls it: 13, 31, 43 and 45 come mostly from the program.
    Not when: the event says that the part is healthy again; the number is one that NVIDIA calls harmless.
    Do: dmesg -T | grep NVRM on the node, for the time and the process; what the monitor recommends.
    Sources: NVIDIA/NVSentinel, data-models/protobufs/health_event.proto; GKE, container-engine-accelerators;
    NVIDIA, catalogue of Xid errors.
    """
    events = health_event.filter(text_of("form").ne_missing("healthy")).sort("source", "line").with_row_index("row")
    columns = ["source", "line", "place", "node", "mentioned_xid", "action"]
    numbered = pl.DataFrame()
    if not events.is_empty():
        placed = _placed(events)
        numbered = placed.drop_nulls("mentioned_xid").select(columns)
        yield from _stated(placed.filter(pl.col("mentioned_xid").is_null()))
    stated = monitor_error.filter(text_of("form").ne_missing("unreachable")).sort("source", "line")
    codes = pl.format("ErrorCode:{}", text_of("subject"))
    coded = stated.select("source", "line", words=codes).drop_nulls("words")
    gpus = _first(find_values(coded["words"], "monitored_gpu"), "monitored_pci", "monitored_gpu")
    xids = find_values(coded["words"], "xid_mention")
    rows = xids.join(coded.with_row_index("text"), on="text").join(gpus, on="text", how="left", suffix="_gpu")
    named = rows.with_columns(place=pl.coalesce(pl.col("mentioned_pci").cast(pl.String), "place"), node=pl.lit(None))
    nodes = host_service.filter(form="critical").sort("source", "line").with_row_index("text")
    of_nodes = find_values(nodes["xids_of_node"], "node_xid").join(nodes, on="text")
    of_nodes = of_nodes.select("source", "line", mentioned_xid=pl.col("node_xid").cast(pl.String))
    of_lines = named.select(columns[:-1]).with_columns(pl.col("mentioned_xid").cast(pl.String))
    rows = pl.concat([numbered, of_lines, of_nodes], how="diagonal_relaxed")
    logged = kernel_event.filter(form="xid").group_by("xid").agg(is_over=(text_of("severity") == "Nonfatal").all())
    over = {str(number) for number in logged.filter("is_over")["xid"]}
    yield from _xids(rows.sort("source", "line"), over)


def _first(values: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Return the first of these columns that a text has a value of, as `place`."""
    place = pl.coalesce(pl.col(name).cast(pl.String) for name in columns)
    return values.select("text", place=place).unique("text", keep="first", maintain_order=True)


def _placed(events: pl.DataFrame) -> pl.DataFrame:
    """Return NVSentinel's events with the part that they are about, their node, and the number of their Xid."""
    entities = find_values(events["entities"], "health_entity").with_columns(kind=text_of("entity_type"))
    entities = entities.filter(pl.col("kind").is_in(list(ENTITIES))).sort("text", "kind", descending=[False, True])
    places = entities.select("text", "kind", value=text_of("entity_value")).unique("text", keep="first")
    rows = events.join(places, left_on="row", right_on="text", how="left", maintain_order="left")
    rows = rows.with_columns(place=pl.col("value"), node=text_of("event_node"))
    words = pl.coalesce(text_of("event_message"), pl.lit(""))
    code = text_of("codes").str.strip_chars('"')
    is_code = code.cast(pl.Int64, strict=False).is_not_null()
    words = pl.when(is_code).then(pl.format("Xid {}", code)).otherwise(words)
    xids = find_values(rows.select(words=words)["words"], "xid_mention").unique("text", keep="first")
    numbered = rows.join(xids.select("text", "mentioned_xid"), left_on="row", right_on="text", how="left")
    return numbered.with_columns(pl.col("mentioned_xid").cast(pl.String))


def _stated(other: pl.DataFrame) -> Iterator[Finding]:
    """Yield the findings on events without an Xid, by their own words."""
    for (node, check, kind, place), alike in other.group_by(
        "node", text_of("check"), "kind", "place", maintain_order=True
    ):
        row = alike.row(0, named=True)
        part = ENTITIES[str(kind)].format(place) if place else str(row["component"])
        title = f"a monitor reports of {part} on {node}: {row['event_message'] or row['codes'] or check}"
        detail = f"by its check {check}" + ", which calls it fatal" * (str(row["fatal"]) == "true")
        yield Finding(
            title, detail, "certain", hosts=[str(node)], remedy=_remedy(row["action"]), evidence=evidence_lines(alike)
        )


def _xids(rows: pl.DataFrame, over: set[str]) -> Iterator[Finding]:
    """Yield a finding for each Xid of a GPU; of those in `over` the kernel logs that the GPU goes on."""
    for (number, place, node), alike in rows.group_by("mentioned_xid", "place", "node", maintain_order=True):
        xid = XIDS.get(int(str(number)), UNKNOWN_XID)
        is_harmless = xid.origin is Origin.HARMLESS or str(number) in over
        action = alike["action"][0] if "action" in alike else None
        yield Finding(
            title=f"a monitor reports of {f'GPU {place}' if place else 'a GPU'}{f' on {node}' if node else ''}: "
            f"Xid {number}, {xid.meaning}",
            detail=f"such an Xid comes mostly from {xid.origin.value}",
            certainty="certain",
            severity=Severity.INFO if is_harmless else Severity.WARNING,
            role=Role.CONTEXT if is_harmless else Role.CAUSE,
            hosts=[str(node)] if node else [],
            remedy=f"dmesg -T | grep NVRM on the node, for the time and the process; {xid.remedy}"
            + (f"; the monitor asks to {ACTIONS[action]}" if action in ACTIONS else ""),
            evidence=evidence_lines(alike),
        )


def _remedy(action: object) -> str:
    look = "look at dmesg -T and dcgmi health -c on the node"
    return f"{ACTIONS[action]}, as the monitor recommends; {look}" if action in ACTIONS else look
