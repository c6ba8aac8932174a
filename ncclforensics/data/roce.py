"""Counters of RDMA traffic on the side of hosts: what they tell of, and how many are worth a word.

Each threshold has its source. FG: field guides on networks of GPU clusters; the others are named.
"""

from __future__ import annotations

# What a loss shows by; how many between two dumps are more than the odd one.
# NCCL documentation, networking; nccl#394 (a hang with 91 thousand local_ack_timeout_err, 6 million out_of_sequence).
# Between well-behaved hosts of a lossless network all of them are zero (FG).
LOSSES = {
    "local_ack_timeout_err": 10,
    "packet_seq_err": 100,
    "out_of_sequence": 100,
    "implied_nak_seq_err": 100,
    "roce_adp_retrans_to": 10,
    "rx_icrc_encapsulated": 1,
    "retrans_timeout_events": 100,  # of EFA
}
# Out of order is how packets arrive where they are spread over paths on purpose (adaptive routing): only with one of
# these is it a loss.
PROOFS = ("local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err", "roce_adp_retrans_to",
          "rx_icrc_encapsulated", "retrans_timeout_events")  # fmt: skip
# In a single dump, over nobody knows how long: as many as in nccl#394.
LOSSES_EVER = {"local_ack_timeout_err": 10_000, "packet_seq_err": 100_000}

NOT_READY = {"rnr_nak_retry_err": 100, "out_of_buffer": 100, "rx_out_of_buffer": 1000}
REFUSED = {
    "req_cqe_error": 1, "resp_cqe_error": 1, "req_remote_access_errors": 1, "resp_remote_access_errors": 1,
    "req_remote_invalid_request": 1, "resp_local_length_error": 1,
}  # fmt: skip

# Congestion notifications among the packets sent from which on they hold up the sender (NVIDIA practice, FG).
NOTIFIED_SHARE = 0.001
NOTIFIED_LEAST = 1000
SENT = ("port_xmit_packets", "tx_packets_phy", "tx_vport_rdma_unicast_packets")

# Frames that pause a port: a few are what they are for. Twelve thousand are one for each millisecond of twelve seconds.
PAUSES_LEAST = 10_000
PAUSED_SHARE = 0.05  # of the time between two dumps
STORMS = ("tx_pause_storm_warning_events", "tx_pause_storm_error_events", "device_stall_minor_watermark_cnt",
          "device_stall_critical_watermark_cnt")  # fmt: skip

DISCARDS_LEAST = 100  # infiniband-diags error_thresholds, PortXmitDiscards
STALLED = ("outbound_pci_stalled_wr_events", "outbound_pci_stalled_rd_events", "outbound_pci_buffer_overflow",
           "rx_buffer_passed_thres_phy", "dev_out_of_buffer")  # fmt: skip

# Equal ports carry within 20 % of each other (FG); what carries less than a twentieth is there for something else.
APART, IDLE = 0.2, 0.05
MUCH = 10**9  # bytes between two dumps, for their share to say anything
MUCH_EVER = 10**13  # bytes in a single dump

# mlxlink: errors per bit that correction left, and the minutes after which they may be judged (NVIDIA practice).
WORST_RATE, LEAST_MINUTES = 1e-12, 10

NVLINK_FATAL = ("nvlink_recovery_errors", "nvlink_link_recovery_failed_events")
# A replay repairs what was garbled; the links of a sound machine have none or a few (DCGM documentation, FG).
NVLINK_ERRORS = {
    "nvlink_replay_errors": 100, "nvlink_crc_errors": 100, "nvlink_crc_flit_errors": 100, "nvlink_crc_data_errors": 100,
    "nvlink_ecc_errors": 1, "nvlink_malformed_packet_errors": 1, "nvlink_buffer_overrun_errors": 1,
    "nvlink_rx_errors": 100, "nvlink_effective_errors": 100, "nvlink_link_recovery_successful_events": 10,
}  # fmt: skip
NVLINK_EVER = 1000  # in a single dump, on one link of many

WORDS = {
    "local_ack_timeout_err": "time-outs without an answer",
    "packet_seq_err": "gaps that the peer complained of",
    "out_of_sequence": "packets out of sequence",
    "implied_nak_seq_err": "read responses lost",
    "roce_adp_retrans_to": "retransmissions after a time-out",
    "rx_icrc_encapsulated": "packets corrupted on their way",
    "retrans_timeout_events": "retransmissions after a time-out",
    "rnr_nak_retry_err": "answers that the peer was not ready",
    "out_of_buffer": "packets for which nobody had posted a receive",
    "rx_out_of_buffer": "packets for which the host had no room",
    "req_cqe_error": "requests completed with an error",
    "resp_cqe_error": "responses completed with an error",
    "req_remote_access_errors": "accesses that the peer refused",
    "resp_remote_access_errors": "accesses of peers refused",
    "req_remote_invalid_request": "requests that the peer found invalid",
    "resp_local_length_error": "requests of the wrong length",
}
