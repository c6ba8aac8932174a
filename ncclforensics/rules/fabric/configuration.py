"""Settings of adapters that may cost bandwidth, judged without another host to compare with: notes."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import some_of
from ncclforensics.data.roce import LOSSES
from ncclforensics.data.verbs import RETRY_EXCEEDED
from ncclforensics.frames.columns import short_host, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding
from ncclforensics.rules.shared.port_counters import increased
from ncclforensics.rules.shared.port_text import nics_of, port_names

FEWEST_GPUS, FEWEST_PORTS = 4, 4  # of a host, to say that it uses few of its adapters
ROCE_MTU = 1024  # of RDMA, with an interface of 1500 bytes: the largest that fits
SHOWN = 4


def _used_by_roce(port_state: pl.DataFrame, net_devices: pl.DataFrame) -> pl.DataFrame:
    """The Ethernet ports that NCCL lists as RoCE; none without a log."""
    # One tool shows the interface of a port, another its MTU.
    ports = (
        port_state.drop_nulls("device")
        .group_by("host", "device", "port", maintain_order=True)
        .agg(
            pl.col("netdev", "link_layer", "mtu").drop_nulls().last(),
            pl.col("source", "line").sort_by(pl.col("mtu").is_not_null()).last(),
        )
    )
    ethernet = ports.filter(pl.col("link_layer") == "Ethernet")
    listed = net_devices.filter(text_of("devices").str.contains("/RoCE", literal=True)).select(
        _host=short_host("host"), _devices=text_of("devices")
    )
    used = ethernet.with_columns(_host=short_host("host")).join(listed.unique(), on="_host", maintain_order="left")
    is_listed = pl.col("_devices").str.contains(pl.format("]{}:", "device"), literal=True)
    return used.filter(is_listed).drop("_host", "_devices").unique(["host", "device", "port"], maintain_order=True)


@rule(Category.ENVIRONMENT, Severity.INFO, of=("pfc",))
def roce_without_flow_control(
    pfc: pl.DataFrame,
    port_state: pl.DataFrame,
    net_devices: pl.DataFrame,
    counter_increase: pl.DataFrame,
    completion_error: pl.DataFrame,
) -> Iterator[Finding]:
    """No priority of the adapters that NCCL uses over RoCE is lossless (PFC), on any host.

    Means: packets are dropped when buffers are full, and transfers wait for what is sent again. With losses in the
    counters, or transfers that got no answer, it is a warning.
    Not when: NCCL does not use the adapter; hosts differ, which is a finding of its own; the network is built to lose
    packets (adaptive retransmission, ECN alone, Spectrum-X), which the host does not show: hence a note.
    Do: ask whether the switches are set up to lose nothing; if so, mlnx_qos -i INTERFACE --pfc 0,0,0,1,0,0,0,0.
    Sources: NVIDIA RoCE configuration guide; Cumulus and SONiC documentation (lossless and lossy RoCE).
    """
    used = _used_by_roce(port_state, net_devices)
    last = pfc.unique(["source", "host", "netdev"], keep="last", maintain_order=True)
    if last.is_empty() or last["priorities"].list.len().max() != 0:
        return
    rows = last.filter(pl.col("netdev").is_in(used["netdev"].drop_nulls().implode()))
    if rows.is_empty():
        return
    lost = increased(counter_increase, dict.fromkeys(LOSSES, 1))
    failed = completion_error.filter((pl.col("status") == RETRY_EXCEEDED) & ~pl.col("at_exit"))
    has_losses = lost.height > 0 or failed.height > 0
    names = ", ".join(dict.fromkeys(rows["netdev"].drop_nulls()))
    finding = Finding(
        f"PFC is off on all priorities of {names}, which NCCL uses over RoCE",
        "packets were lost, or transfers got no answer" if has_losses else "networks that lose no packets need it",
        "likely" if has_losses else "possible",
        role=Role.CAUSE if has_losses else Role.CONTEXT,
        severity=Severity.WARNING if has_losses else Severity.INFO,
        hosts=sorted(rows["host"].drop_nulls().unique()),
        evidence=[*evidence_lines(rows)[:2], *evidence_lines(lost.select("source", "line"))[:1]],
    )
    yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("pfc",), role=Role.CONTEXT)
def roce_trusts_pcp(pfc: pl.DataFrame) -> Iterator[Finding]:
    """A lossless priority is chosen by the tag of a VLAN (trust pcp), and the interface has no VLAN.

    Means: packets without a tag have priority 0, so that NCCL's traffic is not in the lossless priority.
    Not when: priority 0 is lossless; the traffic goes over a VLAN (an interface such as ens1f0.100).
    Do: mlnx_qos -i INTERFACE --trust dscp, and NCCL_IB_TC so that a quarter of it, the DSCP, maps to that priority.
    Sources: NVIDIA RoCE configuration guide; NCCL documentation, NCCL_IB_TC.
    """
    is_tagged = pl.col("netdev").str.contains(".", literal=True).fill_null(value=True)
    has_priority = (pl.col("priorities").list.len() > 0) & ~pl.col("priorities").list.contains(0)
    rows = pfc.filter((pl.col("trust") == "pcp") & has_priority & ~is_tagged & pl.col("trust_line").is_not_null())
    if rows.is_empty():
        return
    priorities = ", ".join(map(str, rows["priorities"][0]))
    yield Finding(
        f"{rows['netdev'][0]} takes the priority of packets from VLAN tags (trust pcp), and has no VLAN",
        f"priority {priorities} is lossless, and packets without a tag are of priority 0",
        "possible",
        hosts=sorted(rows["host"].drop_nulls().unique()),
        evidence=[Line(source, line) for source, line in rows.select("source", "trust_line").head(SHOWN).iter_rows()],
    )


@rule(Category.ENVIRONMENT, Severity.INFO, of=("port_state",), role=Role.CONTEXT)
def roce_small_mtu(port_state: pl.DataFrame, net_devices: pl.DataFrame) -> Iterator[Finding]:
    """An adapter that NCCL uses over RoCE has an RDMA MTU of 1024.

    Means: the MTU of its interface is below 2,200 bytes, mostly 1500: each packet carries a quarter of what it could,
    which costs a few percent of the bandwidth.
    Not when: NCCL does not use the adapter; a cloud's overlay network allows no more.
    Do: set the MTU of the interface to 4200 or 9000 on all hosts and on the switches; RDMA then uses 4096.
    Sources: NVIDIA RoCE documentation (RDMA MTU by the MTU of the interface).
    """
    rows = _used_by_roce(port_state, net_devices).filter(pl.col("mtu") == ROCE_MTU)
    if rows.height:
        yield Finding(
            f"{port_names(rows)} uses an RDMA MTU of {ROCE_MTU}",
            "the MTU of its interface is below 2,200; one of 4,200 or more allows 4096",
            "certain",
            hosts=sorted(rows["host"].drop_nulls().unique()),
            nics=nics_of(rows.to_dicts()),
            evidence=evidence_lines(rows.select("source", "line")),
        )


@rule(Category.ENVIRONMENT, Severity.INFO, of=("port_state",), role=Role.CONTEXT)
def net_iwarp(port_state: pl.DataFrame) -> Iterator[Finding]:
    """An adapter runs iWARP, which NCCL does not use.

    Means: NCCL's network for InfiniBand and RoCE finds no device in it, so that data goes over sockets.
    Not when: the adapter is not meant for NCCL.
    Do: choose RoCE in the driver where the adapter can do both (irdma: roce_ena=1), or use another adapter.
    Sources: NCCL documentation (InfiniBand and RoCE); Linux, drivers/infiniband/hw/irdma.
    """
    rows = port_state.filter(pl.col("transport") == "iWARP").unique(["host", "device"], maintain_order=True)
    if rows.height:
        yield Finding(
            f"{port_names(rows)} runs iWARP, which NCCL does not use",
            "NCCL supports InfiniBand and RoCE",
            "certain",
            hosts=sorted(rows["host"].drop_nulls().unique()),
            evidence=evidence_lines(rows.select("source", "line")),
        )


@rule(Category.ENVIRONMENT, Severity.INFO, of=("device_firmware", "ibdiagnet_firmware"), role=Role.CONTEXT)
def nic_firmware_differs(device_firmware: pl.DataFrame, ibdiagnet_firmware: pl.DataFrame) -> Iterator[Finding]:
    """Adapters or switches of one model run different versions of their firmware.

    Means: behaviour may differ between them (retransmission, congestion control, speed of links); after an upgrade of
    a part of the hosts it is what differs.
    Not when: an upgrade is under way; the adapters are of other boards, which a name of the model alone may hide.
    Do: read the release notes between both versions; bring all adapters and switches of a model to one.
    Sources: ibdiagnet reports the same (`has FW version … while the latest FW version for the same Devid/PSID`);
    mstflint; infiniband-diags vendstat.
    """
    for (board, latest), rows in ibdiagnet_firmware.group_by("board", "latest", maintain_order=True):
        names = rows["device_name"].cast(pl.String).unique(maintain_order=True).to_list()
        yield Finding(
            f"firmware of board {board} differs: {some_of(names, SHOWN)} do not run {latest}",
            "as ibdiagnet reports",
            "certain",
            evidence=evidence_lines(rows.select("source", "line")),
        )
    reported = ibdiagnet_firmware["board"].cast(pl.String).implode()
    others = device_firmware.filter(~pl.col("board").is_in(reported))
    for (board,), rows in others.group_by("board", maintain_order=True):
        versions = rows.group_by("firmware").agg(pl.len()).sort("len", "firmware", descending=True)
        if versions.height < 2:
            continue
        usual = versions["firmware"][0]
        unusual = rows.filter(pl.col("firmware") != usual)
        shown = pl.concat([unusual.head(SHOWN - 1), rows.filter(pl.col("firmware") == usual).head(1)])
        names = [
            " ".join(filter(None, (host, device))) or guid
            for host, device, guid in unusual.select("host", "device", "guid").iter_rows()
        ]
        named = [name for name in names if name]
        yield Finding(
            f"firmware of {board} differs: {', '.join(versions['firmware'])}",
            f"{unusual.height} of {rows.height} do not run {usual}" + (f": {some_of(named, SHOWN)}" if named else ""),
            "possible",
            hosts=sorted(unusual["host"].drop_nulls().unique()),
            evidence=[Line(*at) for at in shown.select("source", "line").rows()],
        )


@rule(Category.ENVIRONMENT, Severity.INFO, of=("net_devices",))
def net_few_of_its_nics(
    net_devices: pl.DataFrame,
    chosen_network: pl.DataFrame,
    rank: pl.DataFrame,
    port_state: pl.DataFrame,
    setting: pl.DataFrame,
) -> Iterator[Finding]:
    """NCCL uses less than half of the active adapters of a kind that a host has.

    Means: the job has a part of the network that its hosts are built with. If NCCL_IB_HCA names a single device, it is
    a warning: such a setting is often left from a test of one rail.
    Not when: the host runs fewer than four ranks; the other ports are of another rate or link (storage, management);
    the ports of the host are not in these files.
    Do: unset NCCL_IB_HCA, or name all compute adapters (NCCL_IB_HCA==mlx5_0,…); compare `NET/IB : Using` with ibstat.
    Sources: NCCL documentation, NCCL_IB_HCA; nccl#652.
    """
    processes = chosen_network.filter("is_rdma", "spans_nodes").select("host", "pid").unique()
    listed = net_devices.filter(pl.col("form") == "ib").join(processes, on=["host", "pid"])
    devices = text_of("devices")
    used = listed.with_columns(
        _host=short_host("host"), _devices=devices,
        used=devices.str.count_matches("/IB", literal=True) + devices.str.count_matches("/RoCE", literal=True),
    )  # fmt: skip
    ranks = rank.group_by(_host=short_host("host")).agg(ranks=pl.len())
    used = used.join(ranks.filter(pl.col("ranks") >= FEWEST_GPUS), on="_host").filter(pl.col("used") > 0)
    ports = port_state.filter(
        (pl.col("state") == "active") & pl.col("device").is_not_null() & (pl.col("rate_Gbps") > 0)
    ).with_columns(_host=short_host("host"))
    ports = ports.unique(["_host", "device", "port"], keep="last", maintain_order=True)
    classes = ports.with_columns(ports=pl.len().over("_host", "link_layer", "rate_Gbps"))
    at = {"port_source": "source", "port_line": "line"}
    both = used.join(classes.select("_host", "device", "ports", "rate_Gbps", **at), on="_host")
    named = both.filter(pl.col("_devices").str.contains(pl.format("]{}:", "device"), literal=True))
    few = named.filter((pl.col("ports") >= FEWEST_PORTS) & (pl.col("used") * 2 < pl.col("ports")))
    few = few.unique(["host", "pid"], keep="first", maintain_order=True)
    if few.is_empty():
        return
    row = few.row(0, named=True)
    own = setting.filter((text_of("variable") == "NCCL_IB_HCA") & pl.col("value").is_not_null())
    is_single = (
        own.height > 0
        and not own.select(text_of("value").str.contains(",", literal=True).any()).item()
        and row["used"] == 1
    )
    finding = group_finding(
        few.select(listed.columns), rank,
        f"{{processes}} use {row['used']} of {row['ports']} active adapters of {row['rate_Gbps']:g} Gb/s",
        f"NCCL_IB_HCA is {own['value'][0]}" if own.height else "the others are of the same link and rate",
        "likely" if is_single else "possible",
    )  # fmt: skip
    of_setting = evidence_lines(own.select("source", "line"))[:1]
    finding.evidence = [*finding.evidence[:2], *of_setting, Line(row["port_source"], row["port_line"], "ports")]
    finding.role = Role.CAUSE if is_single else Role.CONTEXT
    finding.severity = Severity.WARNING if is_single else Severity.INFO
    yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("net_devices",))
def net_sharp_unused(
    net_devices: pl.DataFrame,
    chosen_network: pl.DataFrame,
    transport: pl.DataFrame,
    rank: pl.DataFrame,
    setting: pl.DataFrame,
) -> Iterator[Finding]:
    """The network can reduce in its switches (SHARP), and NCCL does not use it.

    Means: large all-reduces over several hosts may be faster with it. It is off unless NCCL_COLLNET_ENABLE=1.
    Not when: NCCL was asked to and could not, which is a finding of its own; one host; others may have reserved SHARP.
    Do: try NCCL_COLLNET_ENABLE=1 with NCCL_ALGO unset, and measure; it needs the SHARP plugin, and sharp_am.
    Sources: NCCL documentation, NCCL_COLLNET_ENABLE (default 0); NVIDIA SHARP documentation.
    """
    processes = chosen_network.filter("spans_nodes").select("host", "pid").unique()
    listed = net_devices.filter(text_of("devices").str.contains("/SHARP", literal=True))
    able = listed.join(processes, on=["host", "pid"])
    asked = environment_settings(setting).filter(pl.col("variable") == "NCCL_COLLNET_ENABLE")
    if able.is_empty() or (transport["medium"] == "COLLNET").any() or asked.height:
        return
    title = "the network of {processes} can reduce in its switches (SHARP), and this is off"
    yield group_finding(able, rank, title, "NCCL_COLLNET_ENABLE is 0 unless it is set", "certain", role=Role.CONTEXT)
