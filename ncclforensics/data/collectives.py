"""Collectives as profilers and kernels name them: which of them wait for all ranks, their size and their bandwidth."""

from __future__ import annotations

from functools import lru_cache

# Parts of names, without case and underscores -> nccl-tests' name; the first that fits. `all_to_allv` and a kernel of
# several messages (`SendRecv`) may move other sizes on each rank.
_NAMES = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoallv", "alltoallv"),
    ("alltoall", "alltoall"),
    ("sendrecv", "sendrecv"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)
# No rank ends one of these before all have begun it, so that the rank that comes last waits least.
WAITS_FOR_ALL = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "barrier")
ALL_OF_OUTPUT = ("all_gather",)  # whose size is that of the output
# Bytes of an element, by the names of PyTorch's types in traces of NCCL and of the CPU.
ELEMENT_BYTES = {
    "Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Long": 8, "Int": 4, "Short": 2, "Byte": 1, "Char": 1,
    "Bool": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
    "float": 4, "double": 8, "long int": 8, "long": 8, "int": 4, "short": 2, "signed char": 1, "unsigned char": 1,
    "bool": 1, "c10::BFloat16": 2, "c10::Half": 2,
}  # fmt: skip

_LIBRARIES = ("nccl", "rccl", "msccl")  # in names of kernels that communicate, without case


def communicates(kernel: str) -> bool:
    """Whether a kernel of this name belongs to a library of collectives.

    >>> communicates("ncclDevKernel_SendRecv(ncclDevComm*)"), communicates("ampere_bf16_s16816gemm")
    (True, False)
    """
    lowered = kernel.lower()
    return any(library in lowered for library in _LIBRARIES)


@lru_cache(maxsize=4096)
def collective_named(name: str) -> str:
    """Return nccl-tests' name of a collective as a profiler or a kernel names it; empty for an unknown one.

    >>> collective_named("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> collective_named("_reduce_scatter_base"), collective_named("gloo:all_reduce"), collective_named("init")
    ('reduce_scatter', 'all_reduce', '')
    """
    plain = name.lower().replace("_", "")
    return next((known for part, known in _NAMES if part in plain), "")
