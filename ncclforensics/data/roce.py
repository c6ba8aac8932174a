"""Host-side RDMA and NVLink counters: what they show, and from which value on they are reported.

Each threshold has its source. FG: field guides on networks of GPU clusters.
"""

from __future__ import annotations

from ncclforensics.data.host_counters import DEVICE_ERRORS

# Counters of packet loss -> increase between two dumps from which on it is reported.
# NCCL documentation, networking; nccl#394 (a hang with 91 thousand local_ack_timeout_err, 6 million out_of_sequence).
# Between healthy hosts of a lossless network all of them are zero (FG).
LOSSES = {
    "local_ack_timeout_err": 10,
    "packet_seq_err": 100,
    "out_of_sequence": 100,
    "implied_nak_seq_err": 100,
    "roce_adp_retrans_to": 10,
    "rx_icrc_encapsulated": 1,
    "retrans_timeout_events": 100,  # of EFA
}
# Adaptive routing delivers packets out of order by design: only together with one of these counters is it a loss.
PROOFS = ("local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err", "roce_adp_retrans_to",
          "rx_icrc_encapsulated", "retrans_timeout_events")  # fmt: skip
# In a single dump, over an unknown time: as many as in nccl#394.
LOSSES_EVER = {"local_ack_timeout_err": 10_000, "packet_seq_err": 100_000}

NOT_READY = {"rnr_nak_retry_err": 100, "out_of_buffer": 100, "rx_out_of_buffer": 1000}
# Ends of transfers, by the requester and the responder; and what drivers count of transfers that they gave up.
REFUSED = {
    **dict.fromkeys(DEVICE_ERRORS, 1),
    "req_cqe_error": 1, "resp_cqe_error": 1, "req_remote_access_errors": 1, "resp_remote_access_errors": 1,
    "req_remote_invalid_request": 1, "resp_local_length_error": 1,
}  # fmt: skip

# Share of congestion notifications among sent packets from which on they slow the sender (NVIDIA practice, FG).
NOTIFIED_SHARE = 0.001
NOTIFIED_LEAST = 1000
SENT = ("port_xmit_packets", "tx_packets_phy", "tx_vport_rdma_unicast_packets")

# Pause frames: a few are normal; ten thousand are one per millisecond for ten seconds.
PAUSES_LEAST = 10_000
# Their names by the driver: mlx5 and bnxt of a priority, then of the whole link (802.3x): mlx5, bnx2x, bnxt and be2net,
# Intel's (Linux, drivers/net/ethernet).
PAUSES = {
    way: (
        *(f"{way}_prio{priority}_pause" for priority in range(8)),
        *(f"{way}_pfc_ena_frames_pri{priority}" for priority in range(8)),
        *(f"{way}_{name}" for name in ("pause_ctrl_phy", "global_pause", "pause_frames", "pauseframes")),
        *(f"{way}_{name}" for name in ("priority_pause_frames", "priority_pauseframes", "flow_control_xoff")),
        f"link_xoff_{way}.nic", f"port.link_xoff_{way}",
    )
    for way in ("rx", "tx")
}  # fmt: skip
PAUSED_SHARE = 0.05  # of the time between two dumps
STORMS = ("tx_pause_storm_warning_events", "tx_pause_storm_error_events", "device_stall_minor_watermark_cnt",
          "device_stall_critical_watermark_cnt")  # fmt: skip

DISCARDS_LEAST = 100  # infiniband-diags error_thresholds, PortXmitDiscards
STALLED = ("outbound_pci_stalled_wr_events", "outbound_pci_stalled_rd_events", "outbound_pci_buffer_overflow",
           "rx_buffer_passed_thres_phy", "dev_out_of_buffer")  # fmt: skip

# Equal ports carry traffic within 20 % of each other (FG); a port below a twentieth has another purpose.
APART, IDLE = 0.2, 0.05
FARTHER = 2.5  # times what is usual among the hosts, for the ports of one to be apart
MUCH = 10**9  # bytes between two dumps from which on shares are compared
MUCH_EVER = 10**13  # bytes in a single dump

# mlxlink: bit error rate after correction, and the minutes after which it is valid (NVIDIA practice).
WORST_RATE, LEAST_MINUTES = 1e-12, 10

NVLINK_FATAL = ("nvlink_recovery_errors", "nvlink_link_recovery_failed_events")
# A replay repeats a damaged packet; the links of a healthy machine have none or a few (DCGM documentation, FG).
NVLINK_ERRORS = {
    "nvlink_replay_errors": 100, "nvlink_crc_errors": 100, "nvlink_crc_flit_errors": 100, "nvlink_crc_data_errors": 100,
    "nvlink_ecc_errors": 1, "nvlink_malformed_packet_errors": 1, "nvlink_buffer_overrun_errors": 1,
    "nvlink_rx_errors": 100, "nvlink_effective_errors": 100, "nvlink_link_recovery_successful_events": 10,
}  # fmt: skip
NVLINK_EVER = 1000  # in a single dump, on one link of many

COUNTER_TEXTS = {
    "local_ack_timeout_err": "time-outs without an answer",
    "packet_seq_err": "sequence errors that the peer reported",
    "out_of_sequence": "packets out of sequence",
    "implied_nak_seq_err": "read responses lost",
    "roce_adp_retrans_to": "retransmissions after a time-out",
    "rx_icrc_encapsulated": "packets corrupted in transit",
    "retrans_timeout_events": "retransmissions after a time-out",
    "rnr_nak_retry_err": "receiver-not-ready answers of the peer",
    "out_of_buffer": "packets without a posted receive",
    "rx_out_of_buffer": "packets without a free host buffer",
    "req_cqe_error": "requests completed with an error",
    "resp_cqe_error": "responses completed with an error",
    "req_remote_access_errors": "memory accesses that the peer refused",
    "resp_remote_access_errors": "memory accesses of peers refused",
    "req_remote_invalid_request": "requests that the peer rejected as invalid",
    "resp_local_length_error": "requests of the wrong length",
    "rdma_read_wr_err": "reads that failed",
    "rdma_write_wr_err": "writes that failed",
    "unresponsive_remote_events": "connections whose peer did not answer",
}
