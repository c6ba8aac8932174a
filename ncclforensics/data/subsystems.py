"""Which lines show that a subsystem of NCCL's log was on, and what nobody can tell without it (nccl: src/debug.cc)."""

from __future__ import annotations

from dataclasses import dataclass

# A frame shows that its subsystem was switched on; an absent frame shows nothing.
SHOWN_BY = {
    "INIT": ("communicator", "placement"),
    "BOOTSTRAP": ("bootstrap_timing",),
    "COLL": ("operation", "plan"),
    "CALL": ("replay", "request"),
    "NET": ("queue_pair",),
    "GRAPH": ("topology_node", "topology_path", "graph", "graph_channel"),
    "TUNING": ("algorithm_choice", "algorithm_estimate", "algorithm_allowed"),
    "ENV": ("setting",),
    "ALLOC": ("allocation",),
    "REG": ("registration",),
    "PROXY": ("proxy_call",),
    "NVLS": ("nvls_memory",),
    "RAS": ("ras_thread", "ras_peer", "ras_connection", "ras_timeout"),
}


@dataclass(frozen=True, slots=True)
class Question:
    """What a log answers only if certain lines are in it."""

    asks: str
    frames: tuple[str, ...]  # any of them answers it
    needs: str  # what to set so that they are printed
    also: tuple[str, ...] = ()  # come by the same switch, but only where there is something to say


QUESTIONS = (
    Question(
        "what NCCL itself warned of",
        ("communicator", "milestone", "connection", "operation", "setting", "failure", "warning", "plugin"),
        "NCCL_DEBUG=WARN, or INFO",
        ("usage", "unexpected_peer", "shared_memory", "google_net_note", "ib_incompatible", "p2p_failure"),
    ),
    Question(
        "who called what, and in which order",
        ("operation", "replay", "request", "work", "ras_state", "journal_call"),
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL",
    ),
    Question(
        "which ranks there are, and how they are connected",
        ("communicator", "connection"),
        "NCCL_DEBUG=INFO (NCCL_DEBUG_SUBSYS unset, or with INIT in it)",
    ),
    Question(
        "why this network and this plugin were chosen",
        ("net_devices", "plugin", "libfabric", "google_net"),
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET",
        ("failover", "ib_unusable", "collnet", "sharp"),
    ),
    Question(
        "how far GPUs and NICs are from one another",
        ("topology_node", "topology_path", "device_pair"),
        "NCCL_DEBUG_SUBSYS=INIT,GRAPH; nvidia-smi topo -m",
        ("affinity", "topology_detection", "topology_file", "machine_device", "gpu_link"),
    ),
    Question(
        "which algorithm and protocol each call used",
        ("algorithm_choice",),
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING",
    ),
    Question(
        "which variables were set",
        ("setting",),
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV",
        ("setting_status", "setting_refused"),
    ),
    Question(
        "which rank comes late, which group is slow",
        ("lag", "ended_operation", "ras_state"),
        "COLL, and NCCL_DEBUG_TIMESTAMP_LEVELS=ALL (2.26)",
    ),
    Question(
        "how long each phase of init took",
        ("init_timing", "bootstrap_timing"),
        "NCCL_DEBUG=INFO with NCCL 2.22 or later",
    ),
    Question(
        "what the kernel saw of GPUs, links, memory",
        ("hardware_event", "kernel_kill"),
        "dmesg -T of every node; the job's stdout, stderr",
        ("work_status", "watchdog", "fingerprint", "job_end", "speaker"),
    ),
    Question(
        "whether links lost or spoiled what they carried",
        ("counter", "port_state"),
        "before and after: ibqueryerrors, perfquery -x; ethtool -S",
        ("pfc", "switch_error", "link_quality"),
    ),
    Question(
        "what bandwidth these machines reach",
        ("table_row", "link_row", "pair_row"),
        "all_reduce_perf of nccl-tests; ib_write_bw; nvbandwidth",
        ("test_failure", "test_refusal", "link_failure", "test_device", "test_setting"),
    ),
)
