"""InfiniBand verbs: statuses, events and errors and their meaning (rdma-core v64)."""

RETRY_EXCEEDED = 12
FLUSHED = 5
LOCAL_PROTECTION = 4

# completion status -> name, meaning, where to look (here, peer, between, before)
STATUS = {
    1: ("local length error", "a message did not fit the posted buffer", "here"),
    2: ("local QP operation error", "the NIC refused a work request", "here"),
    4: ("local protection error", "the NIC cannot access the local memory of the request", "here"),
    5: ("work request flushed", "the queue pair had failed before", "before"),
    6: ("memory window error", "a memory window could not be bound", "here"),
    7: ("bad response", "the response did not match the request", "here"),
    8: ("local access error", "a write of the peer did not fit the local memory", "here"),
    9: ("remote invalid request", "the peer refused the request: size, rights or versions differ", "peer"),
    10: ("remote access error", "the peer's memory key is no longer valid: freed, restarted, or broken access", "peer"),
    11: ("remote operation error", "the peer failed to process the request: GPU or PCIe there", "peer"),
    12: ("transport retry counter exceeded", "no answer after all retries", "between"),
    13: ("receiver-not-ready retry exceeded", "the peer posts no receives: it hangs or is slow", "peer"),
    19: ("fatal error", "the device failed: firmware or PCIe", "here"),
    21: ("general error", "the device failed and reports no reason", "here"),
}

# The names of the statuses above in libibverbs, as NCCL prints them from 2.28 on.
STATUS_NAMES = {
    "IBV_WC_LOC_LEN_ERR": 1,
    "IBV_WC_LOC_QP_OP_ERR": 2,
    "IBV_WC_LOC_PROT_ERR": 4,
    "IBV_WC_WR_FLUSH_ERR": 5,
    "IBV_WC_MW_BIND_ERR": 6,
    "IBV_WC_BAD_RESP_ERR": 7,
    "IBV_WC_LOC_ACCESS_ERR": 8,
    "IBV_WC_REM_INV_REQ_ERR": 9,
    "IBV_WC_REM_ACCESS_ERR": 10,
    "IBV_WC_REM_OP_ERR": 11,
    "IBV_WC_RETRY_EXC_ERR": 12,
    "IBV_WC_RNR_RETRY_EXC_ERR": 13,
    "IBV_WC_FATAL_ERR": 19,
    "IBV_WC_GENERAL_ERR": 21,
}

# Why a device of mlx5 ended a request, as NCCL prints it (`vendor err 129`; elsewhere 0x81) -> the status that it comes
# with, and its meaning. Only the first is written down by the vendor; devices of others count by numbers of their own.
SYNDROMES = {
    129: (12, "the request was sent, and no answer came"),
    130: (13, "the peer posted no receive in time"),
    136: (10, "the peer refused its memory key or address"),
    137: (11, "the peer could not carry out the request"),
    138: (9, "the peer calls the request invalid"),
    249: (5, "the queue pair had failed before"),
    244: (5, "the queue pair was reset"),
    245: (5, "the queue pair was reset"),
    81: (4, "the key of the local memory is not valid"),
    82: (4, "the request is longer than the local memory of its key"),
    83: (4, "the key does not allow this access to the local memory"),
    104: (2, "the form of the request is wrong"),
    50: (1, "the message did not fit the buffer"),
}

# Events by the beginning of their text.
PORT_DOWN = ["port error"]
DEVICE_DEAD = ["local catastrophic error"]
GIDS_CHANGED = ["GID table change"]
DOWN = [*PORT_DOWN, *DEVICE_DEAD]  # the events with consequences; all others are harmless

# A queue pair that fails within the first calls has never worked; later, something broke.
EARLY_CALLS = 8

NO_MEMORY = ["Cannot allocate memory"]
BAD_ADDRESS = ["Bad address", "Operation not supported", "Protocol not supported", "Unknown error 524"]

# Error texts (errno) of ibv_modify_qp.
INVALID = ["Invalid argument", "No data available"]
TIMED_OUT = ["Connection timed out"]
NO_DEVICE = "No such device"
UNREACHABLE = ["Network is unreachable", NO_DEVICE, "No route to host"]
MODIFY_QP = "ibv_modify_qp"

GID_CHANGED = 18  # event number that NCCL 2.23 to 2.27 prints without a name

# rdma_get_cm_event(3); the error is an errno, or the reason of the reject.
CM_EVENTS = {
    "ADDR_ERROR": "no RDMA device has a way to that address",
    "ROUTE_ERROR": "no route to that address was found",
    "CONNECT_ERROR": "the connection was not made",
    "UNREACHABLE": "the other end does not answer",
    "REJECTED": "the other end refused: no test listens there, or it has no room for the connection",
}
