"""The counters of InfiniBand ports: their names in every tool, their units, and the largest value they hold.

Names and widths: InfiniBand Architecture Specification, PortCounters and PortCountersExtended; rdma-core libibmad
(perfquery, ibqueryerrors, older names included), drivers/infiniband/core/sysfs.c (Linux), ibdiagnet2.pm.
"""

from __future__ import annotations

from typing import NamedTuple


class PortCounter(NamedTuple):
    """One counter of a port."""

    name: str  # below `counters` in Linux's sysfs
    unit: str
    bits: int  # width in PortCounters, where a counter stays at its largest value; the extended ones have 64
    aliases: tuple[str, ...]  # names in other tools


WORD = 4  # bytes: data is counted in words
LINK_DOWNED, LINK_RETRAINED = "link_downed", "link_error_recovery"
PORT_COUNTERS = (
    PortCounter("symbol_error", "errors", 16, ("SymbolErrorCounter", "SymbolErrors", "symbol_error_counter")),
    PortCounter(
        "link_error_recovery",
        "events",
        8,
        ("LinkErrorRecoveryCounter", "LinkRecovers", "LinkErrorRecovery", "link_error_recovery_counter"),
    ),
    PortCounter(
        "link_downed", "events", 8, ("LinkDownedCounter", "LinkDowned", "link_down_counter", "link_downed_counter")
    ),
    PortCounter("port_rcv_errors", "errors", 16, ("PortRcvErrors", "RcvErrors")),
    PortCounter(
        "port_rcv_remote_physical_errors",
        "errors",
        16,
        ("PortRcvRemotePhysicalErrors", "RcvRemotePhysErrors", "RcvRemotePhysical"),
    ),
    PortCounter(
        "port_rcv_switch_relay_errors",
        "errors",
        16,
        ("PortRcvSwitchRelayErrors", "RcvSwRelayErrors", "RcvSwitchRelay"),
    ),
    PortCounter("port_xmit_discards", "packets", 16, ("PortXmitDiscards", "XmtDiscards", "port_xmit_discard")),
    PortCounter("port_xmit_constraint_errors", "errors", 8, ("PortXmitConstraintErrors", "XmtConstraintErrors")),
    PortCounter("port_rcv_constraint_errors", "errors", 8, ("PortRcvConstraintErrors", "RcvConstraintErrors")),
    PortCounter("local_link_integrity_errors", "errors", 4, ("LocalLinkIntegrityErrors", "LinkIntegrityErrors")),
    PortCounter(
        "excessive_buffer_overrun_errors",
        "errors",
        4,
        ("ExcessiveBufferOverrunErrors", "ExcBufOverrunErrors", "excessive_buffer_errors"),
    ),
    PortCounter("QP1_dropped", "packets", 16, ("QP1Dropped", "qp1_dropped")),
    PortCounter("VL15_dropped", "packets", 16, ("VL15Dropped", "vl15_dropped")),
    PortCounter("port_xmit_data", "bytes", 32, ("PortXmitData", "XmtData", "XmtBytes")),
    PortCounter("port_rcv_data", "bytes", 32, ("PortRcvData", "RcvData", "RcvBytes")),
    PortCounter("port_xmit_packets", "packets", 32, ("PortXmitPkts", "XmtPkts", "port_xmit_pkts")),
    PortCounter("port_rcv_packets", "packets", 32, ("PortRcvPkts", "RcvPkts", "port_rcv_pkts")),
    PortCounter("port_xmit_wait", "ticks", 32, ("PortXmitWait", "XmtWait")),
    PortCounter("unicast_xmit_packets", "packets", 64, ("PortUnicastXmitPkts", "port_unicast_xmit_pkts")),
    PortCounter("unicast_rcv_packets", "packets", 64, ("PortUnicastRcvPkts", "port_unicast_rcv_pkts")),
    PortCounter("multicast_xmit_packets", "packets", 64, ("PortMulticastXmitPkts", "port_multicast_xmit_pkts")),
    PortCounter("multicast_rcv_packets", "packets", 64, ("PortMulticastRcvPkts", "port_multicast_rcv_pkts")),
)
CANONICAL = {alias: counter.name for counter in PORT_COUNTERS for alias in (counter.name, *counter.aliases)}
UNITS = {counter.name: counter.unit for counter in PORT_COUNTERS}
MOST = {counter.name: (1 << counter.bits) - 1 for counter in PORT_COUNTERS if counter.bits < 64}
NO_COUNTERS = ("PortSelect", "CounterSelect", "CounterSelect2")

# ibqueryerrors --details prints the reasons of discards under the names of receive errors, and the other way round: its
# source exchanges the two tables of names (rdma-core v64).
DETAILS = {
    "PortLocalPhysicalErrors": "PortInactiveDiscards",
    "PortMalformedPktErrors": "PortNeighborMTUDiscards",
    "PortBufferOverrunErrors": "PortSwLifetimeLimitDiscards",
    "PortDLIDMappingErrors": "PortSwHOQLifetimeLimitDiscards",
}

# Gb/s of one lane by speed, as `rate` counts it; and the speed for the signalling rate that iblinkinfo prints.
LANES = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0,
    "XDR": 200.0,
}  # fmt: skip
SIGNALLED = {
    "2.5": "SDR", "5.0": "DDR", "10.0": "QDR", "14.0625": "FDR", "25.78125": "EDR", "53.125": "HDR", "106.25": "NDR",
    "212.5": "XDR",
}  # fmt: skip

# Codes in ibdiagnet2.db_csv (ibutils, ibdm/Fabric.h) and of the attribute PortInfo.
LINK_WIDTH_CODES = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
LINK_SPEED_CODES = {
    1: "SDR", 2: "DDR", 4: "QDR", 1 << 8: "FDR", 2 << 8: "EDR", 4 << 8: "HDR", 8 << 8: "NDR", 1 << 16: "FDR10",
    1 << 24: "XDR",
}  # fmt: skip
PORT_STATE_CODES = {1: "down", 2: "init", 3: "armed", 4: "active"}
PHYSICAL_STATE_CODES = {
    1: "Sleep", 2: "Polling", 3: "Disabled", 4: "PortConfigurationTraining", 5: "LinkUp", 6: "LinkErrorRecovery",
}  # fmt: skip

# Prefixes of the second word in node descriptions of the form `host device`.
ADAPTERS = ("mlx", "HCA-", "hfi1", "qib", "ibp", "roce", "rdma", "irdma", "bnxt", "cxgb", "hns", "efa")

# Words in file names that show which dump is the earlier one.
BEFORE = ("before", "baseline", "pre", "start", "begin", "first", "old", "t0")
AFTER = ("after", "post", "end", "later", "last", "second", "new", "t1")

# The least increase that shows a fault of the link: the defaults that infiniband-diags suggests in error_thresholds,
# and 1 for what a job notices at once, a link that went down or was trained again.
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
WAIT_RATIO, WAIT_LEAST, PEERS_LEAST = 10, 1_000_000, 4
# A total of unknown age proves a fault only if it is large, of two kinds, and on few of the ports in the dump.
LONG_AGO = 1000
WHAT = {
    "link_downed": "the link went down",
    "link_error_recovery": "the link was trained again",
    "symbol_error": "symbol errors",
    "port_rcv_errors": "packets received in error",
    "local_link_integrity_errors": "local link integrity errors",
    "excessive_buffer_overrun_errors": "buffer overruns",
    "port_rcv_remote_physical_errors": "packets already marked as bad on arrival",
    "port_xmit_discards": "outgoing packets dropped",
    "port_xmit_wait": "ticks of waiting for credits",
}
