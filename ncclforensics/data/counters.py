"""The counters of InfiniBand ports: their names in every tool, what they count, and where they stick.

Names and widths: InfiniBand Architecture Specification, PortCounters and PortCountersExtended; rdma-core libibmad
(perfquery, ibqueryerrors, older names included), drivers/infiniband/core/sysfs.c (Linux), ibdiagnet2.pm.
"""

from __future__ import annotations

from typing import NamedTuple


class Meaning(NamedTuple):
    """A counter as Linux calls it."""

    name: str
    unit: str
    bits: int  # in PortCounters, where it sticks at the most it can hold; the extended ones have 64
    words: tuple[str, ...]  # in other tools


WORD = 4  # bytes: data is counted in words
PORT_COUNTERS = (
    Meaning("symbol_error", "errors", 16, ("SymbolErrorCounter", "SymbolErrors", "symbol_error_counter")),
    Meaning(
        "link_error_recovery",
        "events",
        8,
        ("LinkErrorRecoveryCounter", "LinkRecovers", "LinkErrorRecovery", "link_error_recovery_counter"),
    ),
    Meaning(
        "link_downed", "events", 8, ("LinkDownedCounter", "LinkDowned", "link_down_counter", "link_downed_counter")
    ),
    Meaning("port_rcv_errors", "errors", 16, ("PortRcvErrors", "RcvErrors")),
    Meaning(
        "port_rcv_remote_physical_errors",
        "errors",
        16,
        ("PortRcvRemotePhysicalErrors", "RcvRemotePhysErrors", "RcvRemotePhysical"),
    ),
    Meaning(
        "port_rcv_switch_relay_errors",
        "errors",
        16,
        ("PortRcvSwitchRelayErrors", "RcvSwRelayErrors", "RcvSwitchRelay"),
    ),
    Meaning("port_xmit_discards", "packets", 16, ("PortXmitDiscards", "XmtDiscards", "port_xmit_discard")),
    Meaning("port_xmit_constraint_errors", "errors", 8, ("PortXmitConstraintErrors", "XmtConstraintErrors")),
    Meaning("port_rcv_constraint_errors", "errors", 8, ("PortRcvConstraintErrors", "RcvConstraintErrors")),
    Meaning("local_link_integrity_errors", "errors", 4, ("LocalLinkIntegrityErrors", "LinkIntegrityErrors")),
    Meaning(
        "excessive_buffer_overrun_errors",
        "errors",
        4,
        ("ExcessiveBufferOverrunErrors", "ExcBufOverrunErrors", "excessive_buffer_errors"),
    ),
    Meaning("QP1_dropped", "packets", 16, ("QP1Dropped", "qp1_dropped")),
    Meaning("VL15_dropped", "packets", 16, ("VL15Dropped", "vl15_dropped")),
    Meaning("port_xmit_data", "bytes", 32, ("PortXmitData", "XmtData", "XmtBytes")),
    Meaning("port_rcv_data", "bytes", 32, ("PortRcvData", "RcvData", "RcvBytes")),
    Meaning("port_xmit_packets", "packets", 32, ("PortXmitPkts", "XmtPkts", "port_xmit_pkts")),
    Meaning("port_rcv_packets", "packets", 32, ("PortRcvPkts", "RcvPkts", "port_rcv_pkts")),
    Meaning("port_xmit_wait", "ticks", 32, ("PortXmitWait", "XmtWait")),
    Meaning("unicast_xmit_packets", "packets", 64, ("PortUnicastXmitPkts", "port_unicast_xmit_pkts")),
    Meaning("unicast_rcv_packets", "packets", 64, ("PortUnicastRcvPkts", "port_unicast_rcv_pkts")),
    Meaning("multicast_xmit_packets", "packets", 64, ("PortMulticastXmitPkts", "port_multicast_xmit_pkts")),
    Meaning("multicast_rcv_packets", "packets", 64, ("PortMulticastRcvPkts", "port_multicast_rcv_pkts")),
)
CANONICAL = {word: meaning.name for meaning in PORT_COUNTERS for word in (meaning.name, *meaning.words)}
UNITS = {meaning.name: meaning.unit for meaning in PORT_COUNTERS}
MOST = {meaning.name: (1 << meaning.bits) - 1 for meaning in PORT_COUNTERS if meaning.bits < 64}
NO_COUNTERS = ("PortSelect", "CounterSelect", "CounterSelect2")

# ibqueryerrors --details prints what stands behind discards under the names of receive errors, and the other way round:
# the tables of names are exchanged in its source (rdma-core v64).
DETAILS = {
    "PortLocalPhysicalErrors": "PortInactiveDiscards",
    "PortMalformedPktErrors": "PortNeighborMTUDiscards",
    "PortBufferOverrunErrors": "PortSwLifetimeLimitDiscards",
    "PortDLIDMappingErrors": "PortSwHOQLifetimeLimitDiscards",
}

# Gb/s of a lane, as `rate` counts it, and what iblinkinfo prints for it.
LANES = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0,
    "XDR": 200.0,
}  # fmt: skip
SIGNALLED = {
    "2.5": "SDR", "5.0": "DDR", "10.0": "QDR", "14.0625": "FDR", "25.78125": "EDR", "53.125": "HDR", "106.25": "NDR",
    "212.5": "XDR",
}  # fmt: skip

# What the second word of a node's description begins with where the first one is the host.
ADAPTERS = ("mlx", "HCA-", "hfi1", "qib", "ibp", "roce", "rdma", "irdma", "bnxt", "cxgb", "hns", "efa")
AGGREGATION = "Mellanox Technologies Aggregation Node"  # of SHARP, inside a switch; no host

# Words in names of files that tell which dump is the earlier one.
BEFORE = ("before", "baseline", "pre", "start", "begin", "first", "old", "t0")
AFTER = ("after", "post", "end", "later", "last", "second", "new", "t1")

# From how much growth on a counter tells of a fault of the link. The defaults that infiniband-diags suggests in
# error_thresholds, but for what a job feels at once: a link that went down, or was trained again.
LINK_LIMITS = {
    "link_downed": 1,
    "link_error_recovery": 1,
    "symbol_error": 10,
    "port_rcv_errors": 10,
    "local_link_integrity_errors": 1,
    "excessive_buffer_overrun_errors": 1,
}
OFTEN = 10  # link_error_recovery: infiniband-diags error_thresholds
REMOTE_LIMIT = 100  # port_rcv_remote_physical_errors: infiniband-diags error_thresholds
DISCARD_LIMIT = 100  # port_xmit_discards: infiniband-diags error_thresholds
# Ticks of waiting have no unit in common: a port is compared with the others that carried traffic.
WAIT_RATIO, WAIT_LEAST, SIBLINGS = 10, 1_000_000, 4
# What grew since nobody knows when: only much, with a second sign, and on few ports of those that are told.
LONG_AGO = 1000
WHAT = {
    "link_downed": "the link went down",
    "link_error_recovery": "the link was trained again",
    "symbol_error": "symbol errors",
    "port_rcv_errors": "packets received in error",
    "local_link_integrity_errors": "local link integrity errors",
    "excessive_buffer_overrun_errors": "buffer overruns",
    "port_rcv_remote_physical_errors": "packets that were bad before they came",
    "port_xmit_discards": "packets dropped on the way out",
    "port_xmit_wait": "ticks of waiting for credits",
}
