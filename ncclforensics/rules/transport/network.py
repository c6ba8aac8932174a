"""Networks of a job: TCP sockets instead of RDMA, and ranks with different networks."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.transport.local_interfaces import LOOPBACK
from ncclforensics.analyses.transport.networks import CHOSEN, LIBRARY, NO_DEVICE, PLUGIN, PRESENT, UNOPENED, UNTRIED
from ncclforensics.data.names import some_of
from ncclforensics.data.networks import SLINGSHOT, SOCKET
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines, first_value, group_finding

REASON_TEXTS = {
    CHOSEN: "{variable} requests it",
    PRESENT: "NCCL found InfiniBand devices and does not use them",
    UNOPENED: "NCCL could not open the InfiniBand devices: the container may lack access to /dev/infiniband",
    PLUGIN: "the network plugin failed first; later attempts of NCCL do not matter",
    LIBRARY: "libibverbs could not be loaded: the image lacks the libraries of rdma-core, or the machine has no RDMA",
    NO_DEVICE: "NCCL found no active RDMA device",
    UNTRIED: "NCCL did not try InfiniBand, as with NCCL_IB_DISABLE=1 or NCCL_NET=Socket (the subsystem ENV shows it)",
    "": "the log does not show why: it lacks the lines of NCCL's init",
}
SHOWN = 4
SEVERITY = {CHOSEN: Severity.INFO, UNTRIED: Severity.INFO, PRESENT: Severity.ERROR, UNOPENED: Severity.ERROR}


@rule(Category.SOCKET_FALLBACK, Severity.WARNING, of=("chosen_network",))
def net_socket_fallback(
    chosen_network: pl.DataFrame, net_devices: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Data between nodes goes over TCP sockets.

    Means: no RDMA device was usable, no plugin took over, and NCCL fell back to sockets, often ten times slower. Error:
    RDMA devices exist and are not used; info: a variable requests sockets.
    Not when: all ranks are on one host or in one NVLink domain, which needs no network; a plugin carries the data
    (Libfabric on EFA or Slingshot, gIB, FasTrak, TCPX, FastSocket); the machines have no RDMA NIC: then sockets are the
    best choice.
    Do: in the container check /dev/infiniband, ibv_devinfo (PORT_ACTIVE) and ldconfig -p | grep ibverbs; print
    NCCL_IB_HCA, NCCL_IB_DISABLE and NCCL_NET; on EFA, Slingshot or Google's A3 install and load the plugin.
    Sources: nccl#952, nccl#766, oneflow#9115; formats: plugins, section 1.
    """
    slow = chosen_network.filter(
        (pl.col("network") == SOCKET) & pl.col("spans_nodes") & pl.col("is_network_unneeded").not_()
    )
    if slow.is_empty():
        return
    slow = slow.join(_mixed(chosen_network).select("job").unique(), on="job", how="anti", nulls_equal=True)
    slow = slow.join(_carried_otherwise(chosen_network), on="job", how="anti", nulls_equal=True)
    slingshot = net_devices.filter(text_of("devices").str.contains(f"]{SLINGSHOT}", literal=True))
    for (_, reason, variable), rows in slow.sort("source", "line").group_by(
        "job", pl.col("reason").fill_null(""), "variable", maintain_order=True
    ):
        text = REASON_TEXTS[str(reason)].format(variable=variable)
        if reason == NO_DEVICE and variable:
            text += f", and {variable} may exclude it"
        if reason in (NO_DEVICE, LIBRARY) and rows.join(slingshot, on=OWNER, how="semi").height:
            text += "; the interfaces are Slingshot, which needs the Libfabric plugin (aws-ofi-nccl)"
        finding = group_finding(
            rows,
            rank,
            "{processes}: data between nodes goes over TCP sockets",
            text,
            "certain" if rows["carries_data"][0] else "likely",
        )
        finding.severity = SEVERITY.get(str(reason), Severity.WARNING)
        if reason in (CHOSEN, UNTRIED):
            finding.role = Role.CONTEXT
        elif reason == PLUGIN:
            finding.role = Role.CONSEQUENCE
        finding.evidence = [*_reason_lines(rows), *finding.evidence][:4]
        yield finding


def _reason_lines(rows: pl.DataFrame) -> list[Line]:
    known = rows.filter(pl.col("reason_line").is_not_null() & (pl.col("reason") != UNTRIED))
    return evidence_lines(known.select(*OWNER, source="reason_source", line="reason_line"), "why")[:2]


def _carried_otherwise(chosen_network: pl.DataFrame) -> pl.DataFrame:
    """Jobs whose processes also use a faster network for another communicator."""
    return chosen_network.filter((pl.col("network") != SOCKET) & pl.col("carries_data")).select("job").unique()


def _mixed(chosen_network: pl.DataFrame) -> pl.DataFrame:
    """The processes with a single network, of jobs in which these networks differ."""
    single = chosen_network.filter(pl.len().over(OWNER) == 1).filter("spans_nodes")
    return single.filter(pl.col("family").n_unique().over("job") > 1)


@rule(Category.SOCKET_FALLBACK, Severity.ERROR, of=("network_mismatch",), hang=True)
def net_mixed_across_ranks(chosen_network: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """The ranks of one job use different networks.

    Means: each process selects its network itself. Ranks with different networks cannot connect: the set-up hangs or
    fails. Check the smaller group: it lacks a device, a library or the plugin that the others have.
    Not when: a process has several communicators with configured networks (netName).
    Do: find why that group lacks the network of the others; set NCCL_NET=IB, or the plugin's name, on all ranks so that
    such a start fails at once.
    Sources: nccl#234; formats: plugins, section 1.
    """
    for _, rows in _mixed(chosen_network).sort(text_of("host"), "pid").group_by("job", maintain_order=True):
        sizes = rows.group_by("family").agg(pl.len()).sort("family")
        least = sizes.filter(pl.col("len") == sizes["len"].min())["family"].to_list()
        smaller = SOCKET if SOCKET in least else least[0]
        minority, others = rows.filter(pl.col("family") == smaller), rows.filter(pl.col("family") != smaller)
        names = " or ".join(others["network"].unique().sort().to_list())
        reason = first_value(minority["reason"])
        text = REASON_TEXTS.get(str(reason), "").format(variable=first_value(minority["variable"]))
        finding = group_finding(
            minority,
            rank,
            f"{{processes}} use the network {minority['network'][0]}, the other ranks {names}",
            f"{text or 'each process selects its network itself'}; the two groups cannot connect",
            "certain",
        )
        finding.evidence = [*_reason_lines(minority), *finding.evidence[:2], *evidence_lines(others)[:2]]
        if SOCKET not in rows["family"].to_list():
            finding.category = Category.NET_PLUGIN
        yield finding


@rule(Category.SOCKET_FALLBACK, Severity.WARNING, of=("net_devices",), hang=True)
def net_local_interface(unused_interface: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """NCCL uses network interfaces for its connections that other hosts may not reach.

    Means: the interface joins containers of one host (docker, veth, a bridge), or its address is link-local (fe80::,
    169.254.0.0/16), which routers do not forward: connections between hosts fail, or wait in vain. NCCL uses all
    interfaces that it lists.
    Not when: all ranks are on one host; calls were made over it; two hosts are joined by a cable, with link-local
    addresses on purpose.
    Do: set NCCL_SOCKET_IFNAME to the interface that connects the hosts, or exclude these (^lo,docker,veth,br-).
    Sources: NCCL user guide, NCCL_SOCKET_IFNAME; RFC 3927; RFC 4291.
    """
    is_on_several = rank["host"].n_unique() > 1
    is_loopback = (pl.col("interface") == LOOPBACK).alias("is_loopback")
    by_kind = unused_interface.group_by(is_loopback, "is_bridge", "use", maintain_order=True)
    for (of_itself, is_of_host, use), rows in by_kind:
        names = some_of(sorted(rows["interface"].unique()), SHOWN)
        why = "an interface of " + ("containers of one host" if is_of_host else "link-local addresses")
        detail = "only this host reaches it" if is_of_host else "routers do not forward them: only its link reaches it"
        title = f"{{processes}}: NCCL uses {names}, {'the loopback interface' if of_itself else why}, for {use}"
        finding = group_finding(rows, rank, title, detail, "likely")
        finding.role = Role.CONTEXT
        finding.severity = Severity.WARNING if is_on_several else Severity.INFO
        yield finding
