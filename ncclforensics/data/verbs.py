"""InfiniBand verbs: what the statuses, events and errors mean (rdma-core v64; knowledge: ib-error-codes)."""

RETRY_EXCEEDED = 12
FLUSHED = 5
LOCAL_PROTECTION = 4

# status of a completion -> its name, what it means, where to look
STATUS = {
    1: ("local length error", "a message did not fit the buffer that was posted for it", "here"),
    2: ("local QP operation error", "the NIC refused a work request", "here"),
    4: ("local protection error", "the NIC may not, or cannot, read the memory it was given", "here"),
    5: ("work request flushed", "the queue pair had failed before", "before"),
    6: ("memory window error", "a memory window could not be bound", "here"),
    7: ("bad response", "the answer was not one to this request", "here"),
    8: ("local access error", "the peer's write did not fit this side's memory", "here"),
    9: ("remote invalid request", "the peer refused the request: size, rights or versions differ", "peer"),
    10: ("remote access error", "the peer's memory key is no longer valid: freed, restarted, or broken access", "peer"),
    11: ("remote operation error", "the peer failed to do its part: GPU or PCIe there", "peer"),
    12: ("transport retry counter exceeded", "no answer after all retries", "between"),
    13: ("receiver-not-ready retry exceeded", "the peer posts no receives: it hangs or is slow", "peer"),
    19: ("fatal error", "the device failed: firmware or PCIe", "here"),
    21: ("general error", "the device failed for a reason it does not tell", "here"),
}

# Events by the beginning of their text. A port that went down, and a device that died, are causes.
PORT_DOWN = ["port error"]
DEVICE_DEAD = ["local catastrophic error"]
DOWN = [*PORT_DOWN, *DEVICE_DEAD]  # the events that mean something; the others do no harm

# A queue pair whose first few calls fail has never worked; the same line later is something that broke.
EARLY_CALLS = 8

NO_MEMORY = ["Cannot allocate memory"]
BAD_ADDRESS = ["Bad address", "Operation not supported", "Protocol not supported", "Unknown error 524"]

# ibv_modify_qp: what errno says of the path between two ports.
INVALID = ["Invalid argument", "No data available"]
TIMED_OUT = ["Connection timed out"]
UNREACHABLE = ["Network is unreachable", "No such device", "No route to host"]
MODIFY_QP = "ibv_modify_qp"

GID_CHANGED = 18  # an event that NCCL 2.23 to 2.27 does not know by name
