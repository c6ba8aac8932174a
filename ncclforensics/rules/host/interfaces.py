"""Network interfaces of a host that have no carrier, or that counted errors."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

SHOWN = 4
VIRTUAL = ("lo", "docker", "virbr", "veth", "br-", "cali", "cni", "flannel", "tun", "dummy")


@rule(Category.LINK_ERROR, Severity.INFO, of=("ip_interface",), role=Role.CONTEXT)
def interface_states(ip_interface: pl.DataFrame, ip_detail: pl.DataFrame) -> Iterator[Finding]:
    """Network interfaces of a host are switched on without a carrier, or counted damaged packets.

    Means: nothing is plugged in there, or the other end is down. That a port is not used is normal; one that a job
    should use is a fault. Errors are counted since the boot; dropped packets are mostly ones without a receiver.
    Not when: the interface is virtual, or switched off.
    Do: compare with a host of the same kind; ethtool INTERFACE; for errors look whether they grow (ip -s link).
    Sources: ip-link(8); Linux, include/uapi/linux/if_link.h (rx_errors, rx_dropped).
    """
    real = ip_interface.sort("pos").with_columns(name=text_of("interface"), words=text_of("flags").str.split(","))
    real = real.filter(~pl.any_horizontal(pl.col("name").str.starts_with(prefix) for prefix in VIRTUAL))
    is_on = pl.col("words").list.contains("UP")
    has_carrier = pl.col("words").list.contains("LOWER_UP") | pl.col("words").list.contains("RUNNING")
    for (_,), rows in real.filter(is_on & ~has_carrier).group_by("source", maintain_order=True):
        names = rows["name"].unique(maintain_order=True).to_list()
        title = f"no carrier on {some_of(names, SHOWN)}: nothing is plugged in there, or the other end is down"
        detail = "which of them a job uses, these lines do not show"
        yield Finding(title, detail, "certain", evidence=evidence_lines(rows))
    owners = real.select("source", "pos", "name")
    counted = ip_detail.sort("pos").join_asof(owners, on="pos", by="source", check_sortedness=False)
    for (_, name), rows in (
        counted.filter(pl.col("bad") > 0).drop_nulls("name").group_by("source", "name", maintain_order=True)
    ):
        title = f"{name} counted {count_of(int(rows['bad'].sum()), 'damaged or lost packet')} since the boot"
        detail = "whether they still grow, a second look shows"
        yield Finding(title, detail, "certain", evidence=evidence_lines(rows))
