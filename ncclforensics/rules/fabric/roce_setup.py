"""RoCE settings that must be alike on all hosts: MTU, PFC, GIDs, traffic class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import printable
from ncclforensics.data.roce import LOSSES, NOTIFIED_LEAST
from ncclforensics.frames.columns import short_host, short_name, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.port_counters import counter_finding, increased
from ncclforensics.rules.shared.port_text import host_counters_text, nics_of, port_names

SHOWN = 4
Row = dict[str, object]


def _port_text(row: Row, *columns: str) -> str:
    """Return the host and the values of these columns, as in `node1 mlx5_0`."""
    return printable(" ".join(str(row[name]) for name in ("host", *columns) if row[name] is not None) or "a host")


def _minority(rows: list[Row], column: str) -> tuple[list[Row], Row, bool] | None:
    """Return the rows that differ from the commonest value, one row that has it, and whether no other is as common.

    None where all are alike. Which value is the commonest does not depend on the order of the rows.
    """
    counts = Counter(str(row[column]) for row in rows)
    if len(counts) < 2:
        return None
    usual = min(counts, key=lambda value: (-counts[value], value))
    is_majority = sum(count == counts[usual] for count in counts.values()) == 1
    reference = next(row for row in rows if str(row[column]) == usual)
    return [row for row in rows if str(row[column]) != usual], reference, is_majority


def _differing(rows: list[Row], column: str, label: str, device: str, certainty: str) -> Iterator[Finding]:
    """Report rows whose value in a column differs from the commonest; `device` is the column that names the port."""
    found = _minority(rows, column)
    if found is None:
        return
    minority, reference, is_majority = found
    shown = minority[:SHOWN] if is_majority else [reference, *minority[: SHOWN - 1]]
    names = ", ".join(dict.fromkeys(_port_text(row, device) for row in shown))
    yield Finding(
        f"{names}: {label} differs{' from that of other hosts' if is_majority else ''}",
        f"{label} {minority[0][column]}, and {reference[column]} on {_port_text(reference, device)}",
        certainty,
        hosts=sorted({str(row["host"]) for row in (minority if is_majority else rows) if row["host"]}),
        nics=nics_of(minority if is_majority else rows) if device == "device" else set(),
        evidence=[
            *(Line(int(str(row["source"])), int(str(row["line"])), "differs") for row in minority[:SHOWN]),
            Line(int(str(reference["source"])), int(str(reference["line"])), "others"),
        ],
    )


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("port_state", "interface"))
def roce_mtu_differs(port_state: pl.DataFrame, interface: pl.DataFrame, port_gid: pl.DataFrame) -> Iterator[Finding]:
    """Ports that communicate with each other have different MTUs.

    Means: connections use the smaller one, or large packets are lost on the path and transfers get no answer.
    Not when: the port is down, or belongs to another network; only one host is known; all hosts have the same.
    Do: set the same MTU on every interface of the RDMA network (RoCE 9000 on the interface, 4096 of RDMA), and on the
    switches; check it with ping -M do -s 8972.
    Sources: field guides (MTU unequal between ends); NCCL documentation, networking.
    """
    ports = port_state.filter(
        pl.col("mtu").is_not_null() & (pl.col("state") == "active") & (pl.col("link_layer") == "Ethernet")
    )
    for _, rows in ports.group_by("device", "port", maintain_order=True):
        last = rows.unique(["source", "host"], keep="last", maintain_order=True).to_dicts()
        yield from _differing(last, "mtu", "RDMA MTU", "device", "likely")
    used = pl.concat([port_state["netdev"], port_gid["netdev"]]).drop_nulls().unique().to_list()
    for _, rows in interface.filter(pl.col("netdev").is_in(used)).group_by("netdev", maintain_order=True):
        last = rows.unique(["source", "host"], keep="last", maintain_order=True).to_dicts()
        yield from _differing(last, "mtu", "interface MTU", "netdev", "likely")


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("pfc",))
def roce_flow_control_differs(pfc: pl.DataFrame) -> Iterator[Finding]:
    """Hosts differ in which priority is lossless (PFC), or in what determines the priority of a packet (trust).

    Means: traffic that is lossless on one host is dropped on another when its buffers are full. NCCL's traffic must be
    in the same lossless priority everywhere, on the switches as well.
    Not when: only one interface is known; all are alike; the interface that differs belongs to another network.
    Do: run mlnx_qos -i INTERFACE --trust dscp --pfc 0,0,0,1,0,0,0,0 on all hosts; check the switches.
    Sources: NVIDIA RoCE configuration guide; NCCL documentation, networking (NCCL_IB_TC).
    """
    last = pfc.unique(["source", "host", "netdev"], keep="last", maintain_order=True).sort("source", "line")
    settings = last.with_columns(
        priorities=pl.when(pl.col("priorities").list.len() == 0)
        .then(pl.lit("none"))
        .otherwise(pl.col("priorities").cast(pl.List(pl.String)).list.join(","))
    ).to_dicts()
    yield from _differing(settings, "priorities", "lossless priority", "netdev", "certain")
    trusted = [{**row, "line": row["trust_line"]} for row in settings if row["trust"] is not None]
    yield from _differing(trusted, "trust", "trust state", "netdev", "certain")


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("port_gid",))
def roce_gid_type(port_gid: pl.DataFrame, port_state: pl.DataFrame, net_devices: pl.DataFrame) -> Iterator[Finding]:
    """A RoCE port has no GID that the network can route.

    Means: without a GID of RoCE v2, or with link-local ones only, its traffic is not routed: the interface has no
    address. NCCL selects a wrong GID, or fails to connect.
    Not when: the port is InfiniBand, or down, or no log uses it and no other port of these dumps is set up.
    Do: give the interface an address (ip addr), and check with show_gids; leave NCCL_IB_GID_INDEX unset.
    Sources: NCCL documentation, networking; nccl#426, nccl#1131; rdma-core ibv_devinfo.
    """
    roce = port_gid.filter(pl.col("version").is_not_null().any().over("source", "host", "device", "port"))
    place = ["source", "host", "device", "port"]
    ports = roce.group_by(place, maintain_order=True).agg(
        has_v2=(pl.col("version") == 2).any(),
        has_address=((pl.col("version") == 2) & ~pl.col("is_link_local")).any(),
        line=pl.col("line").first(),
    )
    down = port_state.filter(pl.col("state") == "down").select("device", "host", "port")
    sound, poor = ports.filter("has_address"), ports.filter(~pl.col("has_address"))
    for place in (["device", "host", "port"], ["device", "host"]):  # not every tool names the port
        is_down = down if "port" in place else down.filter(pl.col("port").is_null())
        poor = poor.join(is_down, on=place, how="anti", nulls_equal=True, maintain_order="left")
    listed = net_devices.select(short_host("host"), text_of("devices")).drop_nulls().unique().rows()
    for row in poor.to_dicts():
        host = None if row["host"] is None else short_name(row["host"])
        in_use = any(f"]{row['device']}:{row['port']}/" in devices for name, devices in listed if host in (None, name))
        if not in_use and sound.is_empty():
            continue
        lacks = "only link-local GIDs" if row["has_v2"] else "no GID of RoCE v2"
        other = sound.row(0, named=True) if sound.height else None
        detail = "the log uses this port" if in_use else "other ports have one that is made from an address"
        yield Finding(
            f"{_port_text(row, 'device')}: {lacks}",
            f"{detail}; its interface has no routable address",
            "likely" if in_use else "possible",
            severity=Severity.WARNING if in_use else Severity.INFO,
            role=Role.CAUSE if in_use else Role.CONTEXT,
            hosts=[row["host"]] if row["host"] else [],
            nics=nics_of([row]),
            evidence=[
                Line(row["source"], row["line"]),
                *([Line(other["source"], other["line"], "another")] if other else []),
            ],
        )


@rule(Category.ENVIRONMENT, Severity.INFO, of=("counter_increase",))
def roce_no_traffic_class(
    counter_increase: pl.DataFrame, net_devices: pl.DataFrame, setting: pl.DataFrame
) -> Iterator[Finding]:
    """RoCE loses packets or is slowed down by congestion, and no traffic class is set for NCCL.

    Means: without NCCL_IB_TC its packets travel in the default class, in which packets may be dropped.
    Not when: the log shows no variables at all, or NCCL_IB_TC among them; the devices are InfiniBand; nothing is lost;
    the hosts set the class of all RDMA traffic themselves (cma_roce_tos, a default of the NIC).
    Do: set NCCL_IB_TC to the class of the lossless priority (often 106, DSCP 26), as your network team defines it.
    Sources: NCCL documentation, networking (NCCL_IB_TC).
    """
    uses_roce = net_devices["devices"].cast(pl.String).str.contains("/RoCE", literal=True).any()
    variables = setting.filter(pl.col("form") == "environment")
    affected = increased(counter_increase, {**LOSSES, "rp_cnp_handled": NOTIFIED_LEAST})
    is_set = (pl.col("variable") == "NCCL_IB_TC").any()
    if not uses_roce or variables.is_empty() or affected.is_empty() or setting.select(is_set).item():
        return
    detail = f"{host_counters_text(affected)}; the log shows which variables are set, and NCCL_IB_TC is not among them"
    title = f"no traffic class is set for RoCE, and {port_names(affected)} lose packets or are slowed down"
    yield counter_finding(affected, title, detail, certainty="possible", role=Role.CONTEXT)
