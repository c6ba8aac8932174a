"""Networks by the names that NCCL prints (formats: plugins, section 1), and limits by NCCL version."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address, IPv4Network

SOCKET = "Socket"
DOCKER_BRIDGE = IPv4Network("172.17.0.0/16")  # that of Docker's default network, which no other host reaches
INFINIBAND, ROCE = "InfiniBand", "RoCE"  # the kinds of links of the network IB
NVLINK = "NVLink"  # the link layer of ports of GPUs, which belong to no network

# Networks that bypass the kernel's TCP stack: verbs, HPC-X, Libfabric, Google, AMD; also with a suffix such as `_v8`.
# FastSocket and unknown names are not listed: they are no fallback, and they are not expected to use GPUDirect RDMA.
RDMA = ["IB", "IBext", "UCX", "UCX-RMA", "AWS Libfabric", "Libfabric", "OFI", "gIB", "AINIC", "RCCL-ANP", "ANP", "SPCX"]

# Libfabric providers that run over TCP.
TCP_PROVIDERS = ["tcp", "sockets", "tcp;ofi_rxm", "tcp;ofi_rxd", "net"]

# Libfabric's provider of AWS's adapter.
EFA = "efa"
# Its error numbers for a peer that does not answer (libfabric: prov/efa/src/efa_errno.h).
EFA_ERRORS = {
    13: "unresponsive remote, which answered before",
    15: "unreachable remote",
    4124: "unresponsive receiver, connection previously established",
    4126: "unresponsive receiver: reachable by the EFA device, but the handshake failed",
}

# Interface prefix of HPE Slingshot, which has no verbs, only Libfabric's provider cxi.
SLINGSHOT = "hsn"

# Up to this version NCCL detects only nv_peer_mem, not nvidia_peermem (nccl#1676; release notes of 2.23.4).
PEERMEM_UNSEEN = (2, 22, 3)
# From this version on NCCL selects the GID index itself (NCCL user guide, environment variables).
GID_FOUND = (2, 21, 0)

# First NCCL version -> its default of NCCL_IB_TIMEOUT, an exponent (release notes).
IB_TIMEOUTS = {(2, 0, 0): 14, (2, 14, 0): 18, (2, 23, 4): 20}

# GPUs in the largest host (NVIDIA HGX-2): more ranks in one ring are on several hosts. AMD's partitions of a GPU (CPX)
# are ranks of their own, so that this says nothing of RCCL.
MOST_GPUS = 16
# How the Libfabric plugin says what it calls to set up a device: an address vector, a completion queue, a domain.
SET_UP = ("Couldn't open", "Couldn't allocate endpoint", "Couldn't bind", "Couldn't enable")


def is_of_docker(address: str) -> bool:
    """Whether an address is of Docker's default network.

    >>> is_of_docker("172.17.0.2"), is_of_docker("10.0.4.12"), is_of_docker("gpu-a012")
    (True, False, False)
    """
    try:
        return IPv4Address(address) in DOCKER_BRIDGE
    except AddressValueError:
        return False
