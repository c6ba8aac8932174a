"""What is normal, each number with its source: judged within the run first, by these last."""

# Channels of a communicator with eight GPUs on a node that NVSwitch links, below which something is missing.
# Field guides on DGX H100: 16 and more normal, 4 bad; MLPerf logs: A100 24, H100 24 in one node and 16 over several,
# B200 16 to 32. Over sockets, with one GPU per node, or with GPUs on PCIe alone 2 to 4 are normal.
FEW_CHANNELS = 4
NORMAL_CHANNELS = 16
FULL_NODE = 8

# A PCIe or network link this much slower than those beside it is degraded, not merely another model.
# nccl-tests#256; field guides (x8 in place of x16 halves the rate).
DEGRADED_LINK = 0.55

# Seconds that a rank comes behind its peers, call after call. Field guides: more than 1 s of waiting at a barrier means
# that peers are late; NCCL's own stamps have whole seconds unless a format was set.
LATE_SECONDS = 1.0
LATE_CALLS = 8  # fewer prove no habit
LATE_SHARE = 0.6  # of the calls

# Seconds of init that an engineer would ask about, and how much longer than that of the others one rank's own phase is.
# nccl user guide, logging (Init timings); thousands of ranks take tens of seconds to meet.
LONG_INIT = 60.0
LONG_PHASE = 10.0

# Nodes from which on one channel per peer slows send and receive (nccl#1272).
MANY_NODES = 8
