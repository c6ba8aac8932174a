"""Counters of ports in the output of host tools: their names and units; and codes of port states and speeds.

Sources: kernel Documentation/ABI/stable/sysfs-class-infiniband; IBTA PortCounters; node_exporter and procfs; mlx5
ethtool counters; DCGM field identifiers.
"""

from __future__ import annotations

from ncclforensics.data.counters import UNITS

# Tools that always report on the host where they run.
LOCAL_TOOLS = (
    "ethtool", "rdma", "ibstat", "ibstatus", "ibv_devinfo", "show_gids", "ibdev2netdev", "mlnx_qos", "mlxlink",
    "mstlink", "flint", "mstflint", "mlxfwmanager", "opainfo", "grep", "cat", "smartctl", "nvme", "show",
)  # fmt: skip

# Counters of Omni-Path as opainfo and opapmaquery print them, and the names of Linux. Data is in flits. A link replays
# what a lane damaged before anybody notices: `Local Link Integ Err` counts that, and no error of the link.
FLIT = 8  # bytes
REPLAYS = "link_replays"
OF_OMNI_PATH = {
    "Xmit Data": "port_xmit_data",
    "Rcv Data": "port_rcv_data",
    "Xmit Pkts": "port_xmit_packets",
    "Rcv Pkts": "port_rcv_packets",
    "MC Xmt Pkts": "multicast_xmit_packets",
    "MC Rcv Pkts": "multicast_rcv_packets",
    "Link Downed": "link_downed",
    "Link Error Recovery": "link_error_recovery",
    "Rcv Errors": "port_rcv_errors",
    "Exc. Buffer Overrun": "excessive_buffer_overrun_errors",
    "Local Link Integ Err": REPLAYS,
    "Rcv Rmt Phys Err": "port_rcv_remote_physical_errors",
    "Rcv Sw Relay Err": "port_rcv_switch_relay_errors",
    "Xmit Constraint": "port_xmit_constraint_errors",
    "Rcv Constraint": "port_rcv_constraint_errors",
    "Xmit Discards": "port_xmit_discards",
    "Xmit Wait": "port_xmit_wait",
    "Uncorrectable Errors": "unrecoverable_err",
}
# Below `counters` and `hw_counters` of hfi1 (Linux, drivers/infiniband/hw/hfi1/chip.c); others repeat `counters`.
OF_HFI1 = {
    "local_link_integrity_errors": REPLAYS,
    "RcTimeOut": "local_ack_timeout_err",
    "RcSeqNak": "packet_seq_err",
    "RnrNak": "rnr_nak_retry_err",
    "DcUnctblErr": "unrecoverable_err",
}

# Names of node_exporter, without `_total`, and the names of Linux. Its data counters are in bytes already.
EXPORTED = {
    "port_errors_received": "port_rcv_errors",
    "port_receive_remote_physical_errors": "port_rcv_remote_physical_errors",
    "port_receive_switch_relay_errors": "port_rcv_switch_relay_errors",
    "port_discards_transmitted": "port_xmit_discards",
    "port_discards_received": "port_rcv_discards",
    "port_constraint_errors_received": "port_rcv_constraint_errors",
    "port_constraint_errors_transmitted": "port_xmit_constraint_errors",
    "port_transmit_wait": "port_xmit_wait",
    "port_data_received_bytes": "port_rcv_data",
    "port_data_transmitted_bytes": "port_xmit_data",
    "port_packets_received": "port_rcv_packets",
    "port_packets_transmitted": "port_xmit_packets",
    "multicast_packets_received": "multicast_rcv_packets",
    "multicast_packets_transmitted": "multicast_xmit_packets",
    "unicast_packets_received": "unicast_rcv_packets",
    "unicast_packets_transmitted": "unicast_xmit_packets",
    "legacy_data_received_bytes": "legacy_port_rcv_data",
    "legacy_data_transmitted_bytes": "legacy_port_xmit_data",
    "duplicate_requests_packets": "duplicate_request",
    "implied_nak_seq_errors": "implied_nak_seq_err",
    "local_ack_timeout_errors": "local_ack_timeout_err",
    "out_of_buffer_drops": "out_of_buffer",
    "out_of_sequence_packets_received": "out_of_sequence",
    "packet_sequence_errors": "packet_seq_err",
    "rnr_nak_retry_packets_received": "rnr_nak_retry_err",
    "req_cqes_errors": "req_cqe_error",
    "req_cqes_flush_errors": "req_cqe_flush_error",
    "resp_cqes_errors": "resp_cqe_error",
    "resp_cqes_flush_errors": "resp_cqe_flush_error",
    "np_cnp_packets_sent": "np_cnp_sent",
    "np_ecn_marked_roce_packets_received": "np_ecn_marked_roce_packets",
    "rp_cnp_packets_handled": "rp_cnp_handled",
    "rp_cnp_ignored_packets_received": "rp_cnp_ignored",
    "rx_icrc_encapsulated_errors": "rx_icrc_encapsulated",
    "roce_adp_retransmits": "roce_adp_retrans",
    "roce_adp_retransmits_timeout": "roce_adp_retrans_to",
    "roce_slow_restart_used": "roce_slow_restart",
}

# Fields of DCGM on a GPU's NVLinks, PCIe link and memory, and the names of nvidia-smi for them.
OF_GPUS = {
    "DEV_NVLINK_CRC_FLIT_ERROR_COUNT": "nvlink_crc_flit_errors",
    "DEV_NVLINK_CRC_DATA_ERROR_COUNT": "nvlink_crc_data_errors",
    "DEV_NVLINK_REPLAY_ERROR_COUNT": "nvlink_replay_errors",
    "DEV_NVLINK_RECOVERY_ERROR_COUNT": "nvlink_recovery_errors",
    "DEV_NVLINK_ECC_DATA_ERROR_COUNT": "nvlink_ecc_errors",
    "DEV_PCIE_REPLAY_COUNTER": "pcie_replay",
    "DEV_ECC_SBE_VOL": "ecc_corrected_volatile",
    "DEV_ECC_DBE_VOL": "ecc_uncorrected_volatile",
    "DEV_ECC_SBE_AGG": "ecc_corrected_aggregate",
    "DEV_ECC_DBE_AGG": "ecc_uncorrected_aggregate",
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": "uncorrected_remapped_rows",
    "DEV_CORRECTABLE_REMAPPED_ROWS": "corrected_remapped_rows",
    "DEV_ROW_REMAP_FAILURE": "row_remap_failure",
}

# Counters of a NIC's driver for transfers that it gave up, and for faults of its own. Linux, drivers/infiniband:
# hw/mana/counters.c, sw/rxe/rxe_hw_counters.c, hw/bnxt_re/hw_counters.c, hw/efa.
DEVICE_ERRORS = (
    "general_hw_error",
    "total_fatal_error",
    "requester_retries_exceeded",
    "requester_rnr_nak_retries_exceeded",
    "requester_timeout",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "max_retry_exceeded",
    "unrecoverable_err",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "unresponsive_remote_events",
)

# Counters of an Ethernet port (ethtool -S) for what it lost: Linux, Documentation, mlx5 counters; and of other drivers
# for packets that found no buffer: drivers/net/ethernet, emulex/benet, intel/i40e and ixgbe, broadcom/bnx2.
PORT_ERRORS = (
    *("link_down_events_phy", "rx_discards_phy", "rx_crc_errors_phy", "rx_symbol_err_phy"),
    *("rx_drops_no_frags", "rx_drops_no_pbuf", "rx_drops_no_erx_descr", "rx_missed_errors", "rx_no_buffer_count"),
    *("rx_no_dma_resources", "rx_fw_discards", "rx_discards"),
    *(f"rx_prio{priority}_{lost}" for priority in range(8) for lost in ("discards", "cong_discard", "buf_discard")),
    "qdisc_dropped",
)

# Files among the counters that are settings: how long Linux caches what it read.
NO_COUNTERS = ("lifespan",)

# Codes of verbs, and the spelling of Linux.
SPEED_CODES = {1: "SDR", 2: "DDR", 4: "QDR", 8: "FDR10", 16: "FDR", 32: "EDR", 64: "HDR", 128: "NDR", 256: "XDR"}
# `Physical LinkUp` is mlxlink's word where nothing has activated the port.
STATES = {"down": "down", "init": "initializing", "initialize": "initializing", "physical linkup": "initializing",
          "armed": "armed", "active": "active", "active_defer": "active", "nop": None}  # fmt: skip
STATE_CODES = {1: "down", 2: "initializing", 3: "armed", 4: "active", 5: "active"}


def port_state_of(word: object) -> str | None:
    """Return the state of a port by the word of a tool; a word that is not known stays as it is, and None stays None.

    >>> port_state_of("ACTIVE"), port_state_of("Init"), port_state_of("Dormant")
    ('active', 'initializing', 'dormant')
    """
    lowered = None if word is None else str(word).lower()
    return STATES.get(lowered, lowered) if lowered else None


PHYSICAL_CODES = {1: "Sleep", 2: "Polling", 3: "Disabled", 4: "PortConfigurationTraining", 5: "LinkUp",
                  6: "LinkErrorRecovery", 7: "Phy Test"}  # fmt: skip
PHYSICAL = {"LINK_UP": "LinkUp", "LINKUP": "LinkUp", "POLLING": "Polling", "DISABLED": "Disabled", "SLEEP": "Sleep",
            "LINK_ERROR_RECOVER": "LinkErrorRecovery", "PHY_TEST": "Phy Test"}  # fmt: skip

_ERRORS = ("err", "discard", "drop", "bad_", "out_of_", "missed", "crc", "ecc_", "replay", "downed", "recovery",
           "overrun", "integrity", "icrc", "nak", "remap", "stall", "unplug")  # fmt: skip


def unit(name: str) -> str:
    """Return the unit of a counter, by its name.

    >>> unit("port_xmit_data"), unit("port_xmit_wait"), unit("rx_prio3_pause_duration"), unit("rx_prio3_pause")
    ('bytes', 'ticks', 'microseconds', 'packets')
    >>> unit("symbol_error"), unit("np_cnp_sent"), unit("roce_slow_restart"), unit("req_cqe_flush_error")
    ('errors', 'packets', 'events', 'errors')
    """
    if name in UNITS:
        return UNITS[name]
    if name.endswith(("_data", "_bytes", "_octets")) or "_bytes" in name:
        return "bytes"
    if name.endswith("_wait"):
        return "ticks"
    if name.endswith("_duration"):
        return "microseconds"
    if any(word in name for word in _ERRORS):
        return "errors"
    packet_words = ("packets", "pkts", "_pause", "_requests", "cnp", "ecn_marked", "frames", "multicast", "broadcast")
    return "packets" if any(word in name for word in packet_words) else "events"
