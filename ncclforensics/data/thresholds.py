"""Thresholds of normal behaviour, each with its source; used where a run has no comparison of its own."""

# Channels of a communicator with eight GPUs on an NVSwitch node; fewer indicate a fault.
# Field guides on DGX H100: 16 and more normal, 4 bad; MLPerf logs: A100 24, H100 24 in one node and 16 over several,
# B200 16 to 32. Over sockets, with one GPU per node, or with GPUs on PCIe alone 2 to 4 are normal.
FEW_CHANNELS = 4
NORMAL_CHANNELS = 16
FULL_NODE = 8

# Ratio to the rate of sibling links below which a PCIe or network link is degraded, not only another model.
# nccl-tests#256; field guides (x8 in place of x16 halves the rate).
DEGRADED_LINK = 0.55

# A straggler: a rank is later than LATE_SECONDS in at least LATE_SHARE of its calls. Field guides: more than 1 s of
# waiting at a barrier means that peers are late; NCCL's own stamps have whole seconds by default.
LATE_SECONDS = 1.0
LATE_CALLS = 8  # minimum number of calls
LATE_SHARE = 0.6  # of the calls
# In a capture a rank has nothing to do between two calls: there a tenth of a second is long.
OWN_SECONDS = 0.1

# Seconds of init above which it is a warning, and of one phase above which it is a finding.
# NCCL user guide, logging (Init timings); thousands of ranks take tens of seconds to connect.
LONG_INIT = 60.0
LONG_PHASE = 10.0

# Number of nodes from which one channel per peer slows send and receive (nccl#1272).
MANY_NODES = 8
