"""NCCL's environment variables: which cap or slow down, which may differ by rank, which every rank reads."""

# They limit the number of channels (nccl: src/graph/connect.cc, src/init.cc).
CHANNEL_CAPS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS")

# Set to find or avoid a fault; they cost speed while they are set (nccl#631, nccl#2021, NCCL user guide).
# NCCL_IB_DISABLE is not listed: the rules on networks report its effect.
SLOWING = {
    "NCCL_P2P_DISABLE": "no direct access between GPUs",
    "NCCL_SHM_DISABLE": "no shared memory between processes of a host",
    "NCCL_CHECK_POINTERS": "every call checks its pointers",
}

# They may differ between hosts or ranks.
OWN_PER_RANK = {
    "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE",
    "NCCL_HOSTID",
    "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NCCL_COMM_ID", "NCCL_CONF_FILE", "NCCL_TOPO_FILE",
    "NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_DUMP_FILE_RANK", "NCCL_GRAPH_FILE", "NCCL_GRAPH_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE_RANK", "NCCL_PROXY_CPUSET", "NCCL_RAS_ADDR", "NCCL_MNNVL_CLIQUE_ID", "NCCL_MNNVL_UUID",
    "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_IBVERBS_LIB",
}  # fmt: skip

# Every rank reads these when it creates its first communicator, on any hardware, and prints those that are set.
READ_BY_ALL = {
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_CROSS_NIC",
    "NCCL_CUMEM_ENABLE", "NCCL_NTHREADS", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE",
}  # fmt: skip

# Variables of tuning guides (nccl#1454, nccl#846); the NCCL user guide discourages them in production.
TUNED = {
    "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_CROSS_NIC", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_PCI_RELAXED_ORDERING",
    "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_RETRY_CNT", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_TIMEOUT",
    "NCCL_LL_BUFFSIZE", "NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS",
    "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_NSOCKS_PERTHREAD",
    "NCCL_NTHREADS", "NCCL_P2P_LEVEL", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_PROTO", "NCCL_PXN_DISABLE",
    "NCCL_SOCKET_NTHREADS",
}  # fmt: skip
TOO_MANY = 5

BUFFER = 4 << 20  # bytes; NCCL_BUFFSIZE where it is not set (NCCL user guide)
