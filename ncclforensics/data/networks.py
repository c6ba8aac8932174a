"""Networks by the names that NCCL gives them (formats: plugins, section 1)."""

SOCKET = "Socket"

# They move data past the TCP of the kernel: verbs, HPC-X, Libfabric, Google, AMD. A suffix `_v8` changes nothing.
# FastSocket and an unknown name are left out: neither is called a fallback, and neither is asked for GPUDirect RDMA.
RDMA = ["IB", "IBext", "UCX", "UCX-RMA", "AWS Libfabric", "Libfabric", "OFI", "gIB", "AINIC", "RCCL-ANP", "ANP", "SPCX"]

# Libfabric providers that are TCP beneath.
TCP_PROVIDERS = ["tcp", "sockets", "tcp;ofi_rxm", "tcp;ofi_rxd", "net"]

# Interfaces of HPE Slingshot: it has no verbs, only Libfabric's provider cxi.
SLINGSHOT = "hsn"

# Up to this version NCCL looked for the older module's entry only (nccl#1676; release notes of 2.23.4).
PEERMEM_UNSEEN = (2, 22, 3)
# From this version on NCCL finds the GID index itself (NCCL user guide, environment variables).
GID_FOUND = (2, 21, 0)

# Exponent of the time-out of a queue pair by the first version that has it as default (release notes).
IB_TIMEOUTS = {(2, 0, 0): 14, (2, 14, 0): 18, (2, 23, 4): 20}
