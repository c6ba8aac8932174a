"""How nccl-tests computes bus bandwidth, what known machines reach, and thresholds of benchmark rules."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

# busbw / algbw by collective, of n ranks (nccl-tests, doc/PERFORMANCE.md and src/*.cu at 2.19.6; unchanged since 2.9).
DOUBLED = ("all_reduce", "all_reduce_bias")  # 2 (n - 1) / n
SHRUNK = ("all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter")  # (n - 1) / n; all others: 1


def bus_factor(collective: str, ranks: int) -> float:
    """Return what the algorithm's bandwidth is multiplied with to have that of the busiest link, as in nccl-tests.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if collective in DOUBLED:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in SHRUNK else 1.0


# Bytes of one element, by the names of nccl-tests of any version.
ELEMENT_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2", "fp8", "bf8"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "int", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}


# The two halves of a table of nccl-tests: separate buffers for input and output, or one for both.
OUT_OF_PLACE, IN_PLACE = "out-of-place", "in-place"
HALVES = (OUT_OF_PLACE, IN_PLACE)


class Machine(NamedTuple):
    """The bus bandwidth that all GPUs of one host reach among themselves, in GB/s."""

    models: tuple[str, ...]  # as nccl-tests prints them
    gpus: int  # per host
    link: float | None  # of all links of one GPU, in one direction
    ring: tuple[float, float]  # measured: all_reduce, all_gather, reduce_scatter over rings
    offloaded: tuple[float, float] | None  # all_reduce where the switch reduces (NVLS)
    source: str
    least: int | None = None  # so many GPUs of a host reach `ring` as well; None: only all of them


_GUIDE = "stas00/ml-engineering, network"
_AZURE = "azurehpc-health-checks"
# Models with slower links (H800, A800, H20) and those on PCIe cards (H100 PCIe, H200 NVL) are not among them.
_V100 = ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB")
_A100 = ("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "A100-SXM-80GB")
_H100 = ("NVIDIA H100 80GB HBM3",)
_MI300X = "AMD Instinct MI300X"
MESH = {_MI300X: 64.0}  # one link to each other GPU of the host
MACHINES = (
    Machine(_V100, 8, 150, (110, 135), None, f"{_AZURE}, ND40rs v2: at least 110"),
    Machine(_A100, 8, 300, (228, 237), None, f"{_GUIDE}: 234.9; {_AZURE}: at least 228"),
    # 4 to 7 GPUs of an H200 host: 363 to 460. Boards of four without a switch: as GH200.
    Machine(_H100, 8, 450, (360, 370), (460, 482), f"{_GUIDE}: 367, 480; {_AZURE}: at least 460", 4),
    Machine(("NVIDIA H200",), 8, 450, (360, 370), (460, 482), f"{_GUIDE}: 367 and 480; {_AZURE}: at least 431", 4),
    Machine(("NVIDIA B200",), 8, 900, (673, 683), (838, 846), f"{_GUIDE}: 682 and 838"),
    Machine((_MI300X,), 8, 448, (304, 317), None, "AMD, MI300X system validation: at least 304"),
    # Two of eight use one of seven links: 64 GB/s, of which 48 can be used. Of three to seven no figure is published,
    # and RCCL opens fewer channels than eight have (ROCm/rccl#1270): they reach at least what two do.
    Machine((_MI300X,), 7, 64, (46, 48), None, f"{_GUIDE}: two reach 47.7 over one link; more have more", 2),
    Machine(("NVIDIA GH200 120GB",), 4, 450, (330, 339), None, "CSCS Alps: 338.8"),
    Machine(("NVIDIA A100 80GB PCIe",), 2, 300, (193, 208), None, f"{_AZURE}, NC A100 v4 with two: at least 193"),
    Machine(("NVIDIA H100 NVL",), 2, 300, (205, 210), None, f"{_AZURE}, NC H100 v5: 208"),
)


class Rack(NamedTuple):
    """Hosts whose GPUs are connected by NVLink, as far as they are in one domain; GB/s."""

    gpus: int  # of a domain
    link: float  # of all links of one GPU, in one direction
    reduced: tuple[float, float]  # measured or accepted: all_reduce on all of them, the switches reduce
    source: str


RACKS = {
    "NVIDIA GB200": Rack(72, 900, (840, 846), "CoreWeave, nccl-tests: 846"),
    "NVIDIA GB300": Rack(72, 900, (800, 937), "Azure/ai-infrastructure: 937, at least 800"),
}
# GPUs of which it is not known what all of a host reach: GB/s of the links of one, one way, and whether its switch
# reduces. Those without NVLink have their slot: PCIe 5.0 and 4.0.
_PCIE_5 = (
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "NVIDIA GeForce RTX 5090",
)
_PCIE_4 = (
    *("NVIDIA L4", "NVIDIA L40", "NVIDIA L40S", "NVIDIA L20", "NVIDIA A10", "NVIDIA A10G"),
    *("NVIDIA GeForce RTX 4090", "NVIDIA RTX 6000 Ada Generation"),
)
_PCIE_3 = ("Tesla T4", "Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB", "Tesla P100-PCIE-16GB")
_SLOT = {3: 15.75, 4: 31.5, 5: 63.0}  # GB/s of sixteen lanes, one way
LINKS = {
    "NVIDIA B300 SXM6 AC": (900.0, True),
    **dict.fromkeys(_PCIE_5, (_SLOT[5], False)),
    **dict.fromkeys(_PCIE_4, (_SLOT[4], False)),
    **dict.fromkeys(_PCIE_3, (_SLOT[3], False)),
}


class Bridged(NamedTuple):
    """PCIe cards that NVLink bridges may connect in groups; GB/s, one way (NVIDIA's data sheets count both ways)."""

    gpus: int  # of the largest group
    link: float  # of the bridges of one GPU
    slot: float


BRIDGED = {
    **dict.fromkeys(("A100-PCIE-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"), Bridged(2, 300.0, _SLOT[4])),
    **dict.fromkeys(("NVIDIA H100 PCIe", "NVIDIA H100 NVL"), Bridged(2, 300.0, _SLOT[5])),
    "NVIDIA H200 NVL": Bridged(4, 450.0, _SLOT[5]),
    "NVIDIA A30": Bridged(2, 100.0, _SLOT[4]),
    **dict.fromkeys(("NVIDIA A40", "NVIDIA RTX A6000", "NVIDIA GeForce RTX 3090"), Bridged(2, 56.25, _SLOT[4])),
}


@cache
def machine_of(gpu: str, gpus: int) -> Machine | None:
    """Return the kind of host of which `gpus` GPUs of the model `gpu` take part; None if it is not known.

    >>> machine_of("NVIDIA H200", 4).offloaded, machine_of("NVIDIA B200", 4)
    (None, None)
    """
    known = [machine for machine in MACHINES if gpu in machine.models]
    complete = next((machine for machine in known if machine.gpus == gpus), None)
    part = next((machine for machine in known if machine.least and machine.least <= gpus < machine.gpus), None)
    return complete or (part and part._replace(gpus=gpus, offloaded=None))


# Share of a GPU's links that any pair of a host has to itself: on boards of four a third, of eight MI300X a seventh;
# all of them behind NVSwitches. In hosts with V100 some pairs have none.
PAIR_SHARE = {**dict.fromkeys((*_A100, *_H100, "NVIDIA H200", "NVIDIA B200"), 1 / 3), _MI300X: 1 / 7}
PAIR_BAD = 0.5  # of that; PCIe carries less


LIMIT_MARGIN = 1.07  # figures above a limit by less are of rounding, or of a clock


@cache
def link_of(gpu: str, gpus: int | None = None) -> tuple[float, bool] | None:
    """Return GB/s of all links of a GPU one way, and whether its switch reduces (NVLS); None for unknown models.

    `gpus`: of its host, as far as they take part; where every pair has a link of its own, the others are not used.

    >>> link_of("NVIDIA H100 80GB HBM3"), link_of("a GPU of tomorrow")
    ((450, True), None)
    """
    if gpu in RACKS:
        return RACKS[gpu].link, True
    if gpu in BRIDGED:
        return BRIDGED[gpu].link, False
    if gpu in MESH and gpus and gpus > 1:
        return MESH[gpu] * (min(gpus, 8) - 1), False
    known = next((machine for machine in MACHINES if gpu in machine.models and machine.link), None)
    return (known.link, known.offloaded is not None) if known and known.link else LINKS.get(gpu)


def domains_of(gpu: str, ranks: int, hosts: int) -> int:
    """The fewest groups of GPUs that NVLink connects, with so many ranks: a host each, a rack, or bridged cards.

    >>> domains_of("NVIDIA H100 80GB HBM3", 16, 2)
    2
    >>> domains_of("NVIDIA GB200", 72, 18), domains_of("NVIDIA GB200", 80, 20)
    (1, 2)
    """
    group = RACKS.get(gpu) or (BRIDGED.get(gpu) if hosts == 1 else None)
    return -(-ranks // group.gpus) if group else hosts


def limit_of(
    collective: str, ranks: int, domains: int, link: float, *, is_reduced: bool, network: float | None
) -> float | None:
    """The bus bandwidth in GB/s that no run exceeds: by the links of a GPU, and over hosts by their adapters.

    `domains`: groups of GPUs that are connected by NVLink or xGMI, of equal size; `network`: of one domain, one way.
    With S bytes a rank, a domain sends and receives at least 2 S (R - 1) / R in an all-reduce, or S where switches
    reduce, and half of the former in a gather or scatter; `busbw` is S / time times the factor of nccl-tests.
    """
    own, share = ranks // domains, (ranks - 1) / ranks
    if domains == 1:
        return link * (2 * share if is_reduced and collective in DOUBLED else 1)
    if own < 1 or network is None:
        return None
    inside = 2 * link if is_reduced else link * own / max(1, own - 1)
    exchange = network * domains / (domains - 1)
    if collective in DOUBLED:
        return min(max(2 * network, exchange), inside) * share
    if collective in ("all_gather", "reduce_scatter"):
        return min(link, exchange * share)
    if collective in ("alltoall", "alltoallv"):
        return exchange / own * share
    return min(link, network) if collective in ("broadcast", "reduce", "sendrecv") else None


# Collectives that reach the figure of `ring`. Only all_reduce is faster where the switch reduces.
AS_ON_A_RING = ("all_reduce", "all_gather", "reduce_scatter")

# Bytes from which on bandwidth decides; below, latency does (formats: interconnects, section 3).
LARGE, LARGE_OVER_NETWORK = 256 << 20, 1 << 30

# Share of the expected bandwidth: a note below WATCH, a warning below BAD (thresholds; interconnects, 3).
WATCH, BAD = 0.85, 0.70
WATCH_OVER_NETWORK, BAD_OVER_NETWORK = 0.75, 0.50

DIP = 0.6  # of the smaller neighbour; an algorithm or protocol chosen at the wrong size costs that much
LONGEST_DIP = 3  # sizes in a row
DIP_FROM = 1 << 20  # bytes
DROP = 0.5  # of the best size, at all larger ones; busbw grows with the size until a link is full, and stays there
DROPPED_SIZES = 3  # the largest ones; fewer where each size is slower than the one before
COLLAPSE = 0.1  # of the best size; one size suffices, for no change of algorithm or protocol costs that much
MODEST_NIC = 12.5  # GB/s: 100 Gbit/s
PLACE = 0.7  # of the faster half of the table, at every large size
SLOW_RUN = 0.7  # of what the better runs of the same test reach
TREE_GAIN = 1.15  # of two hosts over more hosts; a tree gains up to 2 (n - 1) / n, noise is a tenth (nccl-tests#169)
MANY_HOSTS = 512  # from so many on, measured: 0.68 of what the NICs of a host carry (CSCS Alps)
FEWEST_NICS = 4  # equal ports of a host that are taken for its network, where no log says which NCCL uses
COMBINED_NICS = 0.7  # of the sum of what the NICs reach one at a time (nccl#652)

# Bandwidth from GPU memory as a share of that from host memory, for large messages (thresholds: within 5 to 10 % is
# normal; without GPUDirect, or with a distant NIC, it is 20 to 60 % less).
GPU_MEMORY_WATCH, GPU_MEMORY_BAD = 0.9, 0.8
LARGE_MESSAGE = 64 << 10  # bytes
STEADY = 0.8  # of the highest rate: repeated rows of one test lie above it on an idle link

# GPU pairs of one host: a matrix is even if this share of its cells is within this distance of the median.
EVEN_SHARE, EVEN_WITHIN = 0.75, 0.10
PEER_ACCESS_GAIN = 0.8  # of what pairs reach without peer access; below it the path itself is the fault
SLOW_PAIR = 0.7  # of the median
LONE_GPU = 0.25  # of that: through the CPUs of a host pairs reach more
FEWEST_PAIRS = 6  # cells
