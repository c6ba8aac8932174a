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


QUESTIONS = (
    Question(
        "who called what, and in which order",
        ("operation", "replay", "request", "work", "ras_state"),
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
    ),
    Question(
        "how far GPUs and NICs are from one another",
        ("topology_node", "topology_path"),
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH",
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
    ),
)
