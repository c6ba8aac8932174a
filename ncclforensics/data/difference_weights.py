"""Weights of the topics that two runs are compared by, and which topics may follow from which.

Weights only order the report. Topics that others follow from come first; among equals, those that cost most: sockets
instead of RDMA a factor of three to twenty, no GPUDirect 30 to 60 % (thresholds), half of the channels or of the NICs
about a half, another version mostly nothing.
"""

from __future__ import annotations

WEIGHT = {
    # Results.
    "verdict": 120,
    "stacks": 118,
    "bandwidth": 115,
    "links-measured": 110,
    "pairs-measured": 105,
    # Possible explanations.
    "findings": 100,
    "environment": 95,  # variables are the commonest cause of the topics below (nccl#1454, nccl#846)
    "exported-environment": 94,
    "shape": 90,  # with another number of ranks or nodes hardly anything else can be compared
    "network": 85,
    "nics": 80,
    "gpudirect": 75,
    "transports": 70,
    "machine": 65,
    "counters": 63,  # before ports: a bad link shows in its counters first
    "ports": 62,
    "cables": 61,
    "links": 60,
    "versions": 55,
    "placement": 50,
    "groups": 48,
    "search": 45,
    "channels": 40,
    "multicast": 35,
    "rings": 30,
    "algorithms": 25,
}

_NCCL_CHOICES = (
    "network", "nics", "gpudirect", "transports", "placement", "groups", "search", "channels", "multicast", "rings",
    "algorithms",
)  # fmt: skip
# What may follow from a topic (nccl: src/init.cc, in the order in which it decides).
FOLLOWS = {
    "shape": _NCCL_CHOICES,
    "network": ("nics", "gpudirect", "transports", "search", "channels", "rings", "algorithms"),
    "nics": ("search", "channels", "rings", "algorithms"),
    "gpudirect": ("transports", "search"),
    "machine": ("links", "gpudirect", "transports", "search", "channels", "multicast", "rings", "algorithms"),
    "links": ("transports", "search", "channels", "algorithms"),
    "versions": ("links", "transports", "search", "channels", "multicast", "rings", "algorithms"),
    "placement": ("transports", "search", "rings", "algorithms"),
    "transports": ("search", "channels", "algorithms"),
    "search": ("channels", "rings", "algorithms"),
    "channels": ("algorithms",),
    "multicast": ("channels", "algorithms"),
}

_NETWORK = ("network", *FOLLOWS["network"])
_CHANNELS = ("channels", "multicast", "algorithms")
# What may follow from a variable (NCCL user guide, environment variables).
FOLLOWS_VARIABLE = {
    "NCCL_NET": _NETWORK,
    "NCCL_NET_PLUGIN": _NETWORK,
    "NCCL_IB_DISABLE": _NETWORK,
    "NCCL_IB_HCA": ("nics", *FOLLOWS["nics"]),
    "NCCL_SOCKET_IFNAME": ("nics",),
    "NCCL_NETDEVS_POLICY": ("nics", *FOLLOWS["nics"]),
    "NCCL_IB_MERGE_NICS": ("nics", *FOLLOWS["nics"]),
    "NCCL_NET_GDR_LEVEL": ("gpudirect", *FOLLOWS["gpudirect"]),
    "NCCL_NET_GDR_READ": ("gpudirect", "transports"),
    "NCCL_DMABUF_ENABLE": ("gpudirect", "transports"),
    "NCCL_P2P_DISABLE": ("transports", "search", "channels", "multicast", "rings", "algorithms"),
    "NCCL_P2P_LEVEL": ("transports", "search", "channels", "rings", "algorithms"),
    "NCCL_P2P_DIRECT_DISABLE": ("transports",),
    "NCCL_SHM_DISABLE": ("transports", "algorithms"),
    "NCCL_CUMEM_ENABLE": ("transports",),
    "NCCL_NET_DISABLE_INTRA": ("transports",),
    "NCCL_PXN_DISABLE": ("transports",),
    "NCCL_MAX_NCHANNELS": _CHANNELS,
    "NCCL_MIN_NCHANNELS": _CHANNELS,
    "NCCL_MAX_NRINGS": _CHANNELS,
    "NCCL_MIN_NRINGS": _CHANNELS,
    "NCCL_MAX_CTAS": _CHANNELS,
    "NCCL_MIN_CTAS": _CHANNELS,
    "NCCL_MAX_P2P_NCHANNELS": ("channels",),
    "NCCL_MIN_P2P_NCHANNELS": ("channels",),
    "NCCL_NVLS_ENABLE": ("multicast", "channels", "algorithms"),
    "NCCL_NVLS_NCHANNELS": ("multicast", "channels"),
    "NCCL_COLLNET_ENABLE": ("multicast", "algorithms"),
    "NCCL_CROSS_NIC": ("search", "rings"),
    "NCCL_TOPO_FILE": ("links", "search", "channels", "rings", "algorithms"),
    "NCCL_GRAPH_FILE": ("search", "channels", "rings"),
    "NCCL_ALGO": ("search", "channels", "algorithms"),
    "NCCL_PROTO": ("algorithms",),
    "NCCL_NTHREADS": ("algorithms",),
    "NCCL_BUFFSIZE": ("algorithms",),
    "NCCL_TUNER_PLUGIN": ("algorithms",),
}

# Variables that control logging: they change no transfer.
LOGGING_VARIABLES = (
    "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_DEBUG_TIMESTAMP_LEVELS",
    "NCCL_WARN_ENABLE_DEBUG_INFO", "NCCL_SET_THREAD_NAME", "NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_DUMP_FILE_RANK",
    "NCCL_GRAPH_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE_RANK", "NCCL_PARAM_DUMP_ALL",
)  # fmt: skip
# Addresses and names that differ in every run.
RUN_VARIABLES = ("NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_RAS_ADDR", "NCCL_MNNVL_UUID", "NCCL_MNNVL_CLIQUE_ID")

# Shares of ranks or connections that differ by less are equal: runs keep the lines of different ranks.
SHARE = 0.10

# Equal work varies by less than a tenth (thresholds: step-time variance); latencies of small messages by less than two
# (thresholds: straggler, the slowest against the fastest).
NOISE = 0.10
NOISE_OF_LATENCY = 2.0
FEWEST_SIZES = 2  # adjacent; a single size counts only if it is the largest or differs a lot
