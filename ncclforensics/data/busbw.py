"""How nccl-tests reckons its bandwidths, and what they come to on known machines."""

from __future__ import annotations

from dataclasses import dataclass

# busbw / algbw by collective, of n ranks (nccl-tests, doc/PERFORMANCE.md and src/*.cu at 2.19.6; unchanged since 2.9).
DOUBLED = ("all_reduce", "all_reduce_bias")  # 2 (n - 1) / n
SHRUNK = ("all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter")  # (n - 1) / n; all others: 1


@dataclass(frozen=True, slots=True)
class Machine:
    """What the GPUs of one host reach among themselves, all of them together, in GB/s of bus bandwidth."""

    models: tuple[str, ...]  # as nccl-tests prints them
    gpus: int  # of a host
    wire: float  # one way, of one GPU's links
    ring: tuple[float, float]  # measured: all_reduce, all_gather, reduce_scatter over rings
    offloaded: tuple[float, float] | None  # all_reduce where the switch reduces (NVLS)
    source: str


_GUIDE = "stas00/ml-engineering, network"
_AZURE = "azurehpc-health-checks"
# Models with slower links (H800, A800, H20) and those on PCIe cards (H100 PCIe, H200 NVL) are not among them.
_V100 = ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB")
_A100 = ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "A100-SXM-80GB")
MACHINES = (
    Machine(_V100, 8, 150, (110, 135), None, f"{_AZURE}, ND40rs v2: at least 110"),
    Machine(_A100, 8, 300, (228, 237), None, f"{_GUIDE}: 234.9; {_AZURE}: at least 228"),
    Machine(("NVIDIA H100 80GB HBM3",), 8, 450, (360, 370), (460, 482), f"{_GUIDE}: 367, 480; {_AZURE}: at least 460"),
    Machine(("NVIDIA H200",), 8, 450, (360, 370), (460, 482), f"{_GUIDE}: 367 and 480; {_AZURE}: at least 431"),
    Machine(("NVIDIA B200",), 8, 900, (673, 683), (838, 846), f"{_GUIDE}: 682 and 838"),
    Machine(("AMD Instinct MI300X",), 8, 448, (304, 317), None, "AMD, MI300X system validation: at least 304"),
)


def machine_of(gpu: str, gpus: int) -> Machine | None:
    """The kind of host that has so many GPUs of that model, where it is known."""
    return next((one for one in MACHINES if gpu in one.models and one.gpus == gpus), None)


# What reaches the ring's figure. Only all_reduce gains by a switch that reduces.
AS_ON_A_RING = ("all_reduce", "all_gather", "reduce_scatter")

# Bytes from which a figure tells of bandwidth: below, latency decides (formats: interconnects, section 3).
LARGE, LARGE_OVER_NETWORK = 256 << 20, 1 << 30

# Share of what is expected: below WATCH worth a look, below BAD something is wrong (thresholds; interconnects, 3).
WATCH, BAD = 0.85, 0.70
WATCH_OVER_NETWORK, BAD_OVER_NETWORK = 0.75, 0.50

DIP = 0.6  # of the smaller neighbour; an algorithm or protocol that was chosen too early or too late costs as much
DIP_FROM = 1 << 20  # bytes
PLACE = 0.7  # of the faster half, at every large size
SLOW_OF_A_SWEEP = 0.7  # of what the better runs of the same kind reach
TREE_GAIN = 1.15  # of two hosts over more; a tree's gain is up to 2 (n - 1) / n, and noise a tenth (nccl-tests#169)
ADDED_UP = 0.7  # of the sum of the NICs by themselves, each of which gives its rate alone (nccl#652)

# From GPU memory against host memory, at sizes where the rate counts (thresholds: within 5 to 10 % is normal, GPUDirect
# off or a far NIC costs 20 to 60 %).
GPU_MEMORY_WATCH, GPU_MEMORY_BAD = 0.9, 0.8
LARGE_MESSAGE = 64 << 10  # bytes

# Pairs of GPUs of one host: a matrix is even where so many cells are within so much of the median.
EVEN_SHARE, EVEN_WITHIN = 0.75, 0.10
SLOW_PAIR = 0.7  # of the median
FEWEST_PAIRS = 6  # cells
