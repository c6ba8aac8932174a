"""What to generate: the plan of a run, its fault, and who is a member of which communicator."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from ncclforensics.simulate.handling import Handling


class FaultKind(StrEnum):
    """What goes wrong."""

    LAGGING = "lagging"  # stops before a call and makes none after it
    KILLED = "killed"  # the process dies before a call; the others notice
    EXTRA_CALL = "extra-call"
    SKIPPED_CALL = "skipped-call"
    SWAPPED_ORDER = "swapped-order"  # world before the other communicator; needs `blocking`
    OTHER_COUNT = "other-count"
    OTHER_DATATYPE = "other-datatype"
    OTHER_ROOT = "other-root"
    OTHER_KIND = "other-kind"
    RECV_NEVER_POSTED = "recv-never-posted"
    RANK_MISSING = "rank-missing"  # the process never starts, so it has no log
    SPLIT_MISSING = "split-missing"  # never calls ncclCommSplit; the others wait in it
    SHARED_GPU = "shared-gpu"  # uses the GPU of another rank, and NCCL refuses to make the communicator
    INIT_STOPPED = "init-stopped"  # stops in the init of world, in which the others wait
    NETWORK_LOST = "network-lost"  # no transfer between hosts is answered in a call of all ranks; no rank is at fault


INIT_FAULTS = frozenset({FaultKind.RANK_MISSING, FaultKind.SPLIT_MISSING, FaultKind.SHARED_GPU, FaultKind.INIT_STOPPED})
OF_WORLD = (FaultKind.SHARED_GPU, FaultKind.INIT_STOPPED, FaultKind.NETWORK_LOST)


class Layout(StrEnum):
    """How the lines are divided among files."""

    FILE_PER_RANK = "file-per-rank"  # nccl_rank<N>.log
    MERGED = "merged"  # job.log


class Finish(StrEnum):
    """How the logs end."""

    CLEAN = "clean"  # every communicator destroyed
    KILLED = "killed"  # the logs simply stop
    ABORTED = "aborted"  # waiting ranks abort their communicators, as after a time-out


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong in the first step after the plan's whole steps."""

    kind: FaultKind
    ranks: tuple[int, ...]
    communicator: str = "world"  # family: world, tp, pp or dp
    index: int | None = None  # position among the step's calls on it; None: drawn by the seed


@dataclass(frozen=True, slots=True)
class Release:
    """How one NCCL version prints what others print differently."""

    version: str
    split_count: str | None  # the word before the count of splits; None: splits print a commId
    rank_on_start: bool
    connects_lazily: bool
    gathers_in_bytes: bool
    counts_every_call: bool  # opCount moves without network work
    prints_destruction: bool  # Destroy and Abort lines in the default subsystems
    start_before_bootstrap: bool
    closed_by_peer: str  # what stands before `NCCL WARN socketProgress: …`, after the prefix
    timestamped_warnings: bool
    returned: tuple[str, ...]  # where an error is handed upwards, after the warning
    transfer_failed: tuple[str, ...]  # what a sender prints whose transfer over InfiniBand is not answered
    gpu_refused: tuple[str, ...]  # what a rank prints in whose communicator two ranks use one GPU


RELEASES = {
    "2.21.5": Release(
        version="2.21.5",
        split_count=None,
        rank_on_start=False,
        connects_lazily=False,
        gathers_in_bytes=True,
        counts_every_call=True,
        prints_destruction=True,
        start_before_bootstrap=False,
        closed_by_peer="misc/socket.cc:50",
        timestamped_warnings=False,
        returned=("misc/socket.cc:752", "proxy.cc:698"),
        transfer_failed=(
            (
                "transport/net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer {peer} with status=12 "
                "opcode=0 len=0 vendor err 129 (Send)"
            ),
            "NCCL INFO transport/net.cc:1137 -> 6",
            "NCCL INFO proxy.cc:698 -> 6",
        ),
        gpu_refused=(
            "init.cc:943 NCCL WARN Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {busid}",
            "NCCL INFO init.cc:1548 -> 5",
            "NCCL INFO group.cc:64 -> 5 [Async thread]",
        ),
    ),
    "2.27.7": Release(
        version="2.27.7",
        split_count="splitCount",
        rank_on_start=False,
        connects_lazily=True,
        gathers_in_bytes=False,
        counts_every_call=False,
        prints_destruction=True,
        start_before_bootstrap=True,
        closed_by_peer="misc/socket.cc:71",
        timestamped_warnings=True,
        returned=("misc/socket.cc:841", "transport/net.cc:1394"),
        transfer_failed=(
            (
                "transport/net_ib.cc:2458 NCCL WARN NET/IB: Got completion from peer {peer} with status=12 "
                "opcode=0 len=0 vendor err 129 (Send) hca {nic}"
            ),
            "NCCL INFO transport/net.cc:1227 -> 6",
        ),
        gpu_refused=(
            "init.cc:737 NCCL WARN Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {busid}",
            "NCCL INFO init.cc:1449 -> 5",
            "NCCL INFO init.cc:1832 -> 5",
            "NCCL INFO init.cc:1858 -> 5",
        ),
    ),
    "2.30.7": Release(
        version="2.30.7",
        split_count="childCount",
        rank_on_start=True,
        connects_lazily=True,
        gathers_in_bytes=False,
        counts_every_call=False,
        prints_destruction=False,
        start_before_bootstrap=True,
        closed_by_peer="misc/socket.cc:58 (socketProgress)",
        timestamped_warnings=True,
        returned=("misc/socket.cc:752 (ncclSocketProgress)",),
        transfer_failed=(
            (
                "transport/net_ib/p2p.cc:688 (ncclIbLogCompletionWithError) NCCL WARN NET/IB: Got completion from peer "
                "{peer} with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=129  hca {nic}"
            ),
            "NCCL INFO transport/net.cc:1436 (sendProxyProgress) -> 6",
        ),
        gpu_refused=(
            (
                "init.cc:1057 (initTransportsRank) NCCL WARN Multiple Ranks are using the same GPU/Partition. Set "
                "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."
            ),
            "NCCL INFO init.cc:1921 (ncclCommInitRankFunc) -> 5",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator of the job, and its members."""

    name: str  # world, tp0, dp3, pp1
    family: str
    members: tuple[int, ...]  # world ranks, in the order of their ranks in it
    color: int
    split: int  # 0 for world, then 1, 2, … in the order of the splits


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: one process per rank, world split into TP, PP and DP communicators.

    >>> Plan(nodes=4, tp=4, pp=2).dp
    4
    """

    nodes: int = 2
    gpus_per_node: int = 8
    tp: int = 4
    pp: int = 1
    version: str = "2.21.5"
    layers: int = 4
    steps: int = 4  # whole steps; a fault happens in the one after them
    bytes_per_rank: int | None = None  # stands above `steps`
    seed: int = 0
    layout: Layout = Layout.FILE_PER_RANK
    blocking: bool = False  # every call is waited for, not only the end of the step
    finish: Finish = Finish.CLEAN
    fault: Fault | None = None
    network: str = "IB"  # or Socket
    channels: int = 16
    handling: tuple[Handling, ...] = ()

    def __post_init__(self) -> None:
        if self.version not in RELEASES:
            raise ValueError(f"version {self.version!r} is none of {', '.join(RELEASES)}")
        if self.ranks % (self.tp * self.pp):
            raise ValueError(f"{self.ranks} ranks do not divide into tp {self.tp} x pp {self.pp}")
        if self.fault is not None:
            self._check_fault(self.fault)

    def _check_fault(self, fault: Fault) -> None:
        if not fault.ranks or not set(fault.ranks) < set(range(self.ranks)):
            raise ValueError(f"fault ranks {fault.ranks} must be some of 0..{self.ranks - 1}")
        families = {communicator.family for communicator in self.communicators()}
        if fault.communicator not in families:
            raise ValueError(f"communicator {fault.communicator!r} is none of {sorted(families)}")
        if fault.kind is FaultKind.SHARED_GPU and (len(fault.ranks) < 2 or len(set(map(self.node, fault.ranks))) > 1):
            raise ValueError("shared-gpu needs several ranks of one host, such as 0,1")
        if fault.kind is FaultKind.NETWORK_LOST and (self.network != "IB" or self.nodes < 2):
            raise ValueError("network-lost needs several hosts and the network IB")
        if fault.kind in OF_WORLD and fault.communicator != "world":
            raise ValueError(f"{fault.kind} concerns the communicator world")
        needs_split = fault.kind in (FaultKind.SWAPPED_ORDER, FaultKind.SPLIT_MISSING)
        if needs_split and fault.communicator == "world":
            raise ValueError(f"{fault.kind} needs a communicator other than world")
        # Communicators have streams of their own: without waiting, another order is harmless.
        if fault.kind is FaultKind.SWAPPED_ORDER and not self.blocking:
            raise ValueError("swapped-order deadlocks only where each call is waited for")

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.gpus_per_node

    @property
    def without_log(self) -> tuple[int, ...]:
        """The ranks that leave no log, or whose log is lost."""
        absent = self.fault.ranks if self.fault and self.fault.kind is FaultKind.RANK_MISSING else ()
        lost = (self.fault.ranks[0] if self.fault else 0,) if Handling.LOG_LOST in self.handling else ()
        return (*absent, *lost)

    @property
    def dp(self) -> int:
        """The number of ranks that hold copies of the same part of the model."""
        return self.ranks // (self.tp * self.pp)

    @property
    def release(self) -> Release:
        """How the version of NCCL prints."""
        return RELEASES[self.version]

    def node(self, rank: int) -> int:
        """The number of the host of a rank."""
        return rank // self.gpus_per_node

    def stage(self, rank: int) -> int:
        """The pipeline stage of a rank: TP varies fastest, then DP, then PP."""
        return rank // (self.tp * self.dp)

    def communicators(self) -> list[Communicator]:
        """World, then its splits in the order in which every rank calls them."""
        return list(_communicators(self.ranks, self.tp, self.pp))

    def communicators_of(self, rank: int) -> dict[str, Communicator]:
        """A rank's communicators by family, in the order of their creation."""
        return dict(_by_rank(self.ranks, self.tp, self.pp)[rank])


@lru_cache(maxsize=4)
def _communicators(ranks: int, tp: int, pp: int) -> tuple[Communicator, ...]:
    dp = ranks // (tp * pp)
    grid = {
        "tp": [[tp * row + t for t in range(tp)] for row in range(dp * pp)],
        "pp": [[c + tp * dp * p for p in range(pp)] for c in range(tp * dp)],
        "dp": [[t + tp * (d + dp * p) for d in range(dp)] for p in range(pp) for t in range(tp)],
    }
    found = [Communicator("world", "world", tuple(range(ranks)), 0, 0)]
    split = 0
    for family, groups in grid.items():
        if len(groups[0]) > 1:
            split += 1
            found += [
                Communicator(f"{family}{color}", family, tuple(members), color, split)
                for color, members in enumerate(groups)
            ]
    return tuple(found)


@lru_cache(maxsize=4)
def _by_rank(ranks: int, tp: int, pp: int) -> list[dict[str, Communicator]]:
    """Of each rank its communicators by family."""
    joined: list[dict[str, Communicator]] = [{} for _ in range(ranks)]
    for communicator in _communicators(ranks, tp, pp):
        for rank in communicator.members:
            joined[rank][communicator.family] = communicator
    return joined
