"""The lines of each NCCL version, as one process prints them."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ncclforensics.simulate.plan import Communicator, FaultKind, Plan
from ncclforensics.simulate.program import Call
from ncclforensics.simulate.truth import printed_count

BUS_IDS = ("1b000", "43000", "52000", "61000", "9d000", "c3000", "d1000", "df000")


def comm_id_of(plan: Plan, communicator: Communicator) -> str | None:
    """The commId; splits of one colour share theirs in 2.21, and print none later."""
    if communicator.split == 0:
        return f"{random.Random(f'commId {plan.seed}').getrandbits(64) | 1 << 63:x}"
    if plan.release.split_count is not None:
        return None
    return f"{random.Random(f'commId {plan.seed} {communicator.color}').getrandbits(64):x}"


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Where a rank stands on a communicator's ring and tree."""

    rank: int
    previous: int
    next: int
    local: tuple[int, ...]  # ranks of the communicator on this node
    nodes: int
    crosses_nodes: bool  # this rank itself has a connection to another node


def neighbours(plan: Plan, communicator: Communicator, world_rank: int) -> Neighbours:
    """Return where a rank of the world stands in a communicator."""
    members = communicator.members
    # The ranks of a communicator are in the order of the world's, and so are those of each node.
    rank, nranks = bisect_left(members, world_rank), len(members)
    previous, following = (rank - 1) % nranks, (rank + 1) % nranks
    node, gpus = plan.node(world_rank), plan.gpus_per_node
    local = range(bisect_left(members, node * gpus), bisect_left(members, (node + 1) * gpus))
    return Neighbours(
        rank,
        previous,
        following,
        tuple(local),
        _nodes(members, gpus),
        plan.node(members[previous]) != node or plan.node(members[following]) != node,
    )


@lru_cache(maxsize=1024)
def _nodes(members: tuple[int, ...], gpus_per_node: int) -> int:
    """The number of nodes of these ranks of the world."""
    return len({member // gpus_per_node for member in members})


class Process:
    """The process of one rank: its names and numbers, and every line it can print."""

    def __init__(self, plan: Plan, rank: int) -> None:
        draw = random.Random(f"process {plan.seed} {rank}")
        self.plan, self.rank, self.release = plan, rank, plan.release
        self.device = _device(plan, rank)
        self.bus_id = BUS_IDS[self.device % 8]
        self.host = host_name(plan, plan.node(rank))
        self.address = _address(plan, rank)
        self.pid = 20000 + 977 * plan.node(rank) % 9000 + 311 * (rank % plan.gpus_per_node) + draw.randrange(90)
        self.communicators = plan.communicators_of(rank)
        heap = 0x55D000000000 | draw.getrandbits(24) << 12
        splits = {communicator.name: communicator.split for communicator in self.communicators.values()}
        self.pointers = {name: f"0x{heap + 0x3A5B10 * (split + 1):x}" for name, split in splits.items()}
        self.streams = {name: f"0x{heap + 0x9000 + 0x150 * split:x}" for name, split in splits.items()}
        self.buffers = 0x7F0000000000 | draw.getrandbits(12) << 24
        joined = self.communicators.values()
        self.standing = {communicator.name: neighbours(plan, communicator, rank) for communicator in joined}

    def info(self, message: str, thread: int = 0) -> str:
        """The INFO line of a message, of the main thread or another one."""
        return f"{self.host}:{self.pid}:{self.pid + thread} [{self.device}] NCCL INFO {message}\n"

    def counts(self, name: str) -> bool:
        """Whether opCount moves with every call on a communicator."""
        return self.release.counts_every_call or self.standing[name].crosses_nodes

    def call(self, call: Call, place: int, op_count: str) -> str:
        """The COLL line of a call, the `place`-th of its step."""
        count, datatype = printed_count(self.plan, call)
        receive = f"0x{self.buffers + 0x200000 * (2 * place + 1):x}"
        send = f"0x{self.buffers + 0x400000 * place:x}"
        if call.is_p2p:
            send = "(nil)"
        elif call.name == "Broadcast":
            send = receive
        nranks = len(self._by_name(call.communicator).members)
        return self.info(
            f"{call.name}: opCount {op_count} sendbuff {send} recvbuff {receive} count {count} "
            f"datatype {datatype} op {call.op} root {call.root} "
            f"comm {self.pointers[call.communicator]} [nranks={nranks}] "
            f"stream {self.streams[call.communicator]}"
        )

    def _by_name(self, name: str) -> Communicator:
        return next(communicator for communicator in self.communicators.values() if communicator.name == name)

    def bootstrap(self) -> str:
        """From the first line to `Using network`."""
        before = {"2.21.5": _BEFORE_21, "2.27.7": _BEFORE_27, "2.30.7": _BEFORE_30}
        lines = before[self.release.version]
        if self.rank != 0 and self.release.version == "2.21.5":
            lines = [line for line in lines if not line.startswith("!")]
        return "".join(self._filled(line) for line in [*lines, *self._network()])

    def _filled(self, line: str) -> str:
        text = line.format(address=self.address, version=self.release.version)
        # In 2.21 the version goes to stdout without a prefix, on rank 0 only.
        return text.removeprefix("!") + "\n" if line.startswith("!") else self.info(text)

    def _network(self) -> list[str]:
        plugin = self.release.version != "2.21.5"
        if self.plan.network == "IB":
            devices = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(8))
            found = [f"NET/IB : Using {devices} [RO]; OOB eth0:{{address}}<0>"]
        else:
            missing = "Count not open libibverbs.so.1"
            old = "Failed to open libibverbs.so[.1]"
            found = [old if self.release.version != "2.30.7" else missing]
            found += ["NET/Socket : Using [0]eth0:{address}<0>"]
        if plugin:
            found += [f"Initialized NET plugin {self.plan.network}"]
        return found + self._chosen()

    def _chosen(self) -> list[str]:
        first = f"Assigned NET plugin {self.plan.network} to comm"
        if self.release.version == "2.21.5":
            first = "Using non-device net plugin version 0"
        return [first, f"Using network {self.plan.network}"]

    def identity(self, communicator: Communicator, end: str) -> str:
        """The Init START or Init COMPLETE line."""
        at, split = self.standing[communicator.name], communicator.split > 0
        text = (
            f"{'ncclCommSplit' if split else 'ncclCommInitRank'} "
            f"comm {self.pointers[communicator.name]} rank {at.rank} "
            f"nranks {len(communicator.members)} cudaDev {self.device} nvmlDev {self.device} "
            f"busId {self.bus_id}"
        )
        if split:
            text += f" parent {self.pointers['world']}"
            if self.release.split_count:
                text += f" {self.release.split_count} {communicator.split}"
            text += f" color {communicator.color} key {self.rank}"
        comm_id = comm_id_of(self.plan, communicator)
        if comm_id:
            text += f" commId 0x{comm_id} "
        elif end == "COMPLETE":
            text += " "
        if end == "START" and self.release.rank_on_start and not split:
            text = f"[Rank {at.rank}] {text}"
        return self.info(f"{text}- Init {end}", self._thread(communicator))

    def _thread(self, communicator: Communicator) -> int:
        return 60 + 37 * communicator.split if communicator.split else 0

    def before_start(self, communicator: Communicator) -> str:
        """What a split prints before its START; world has printed it in `bootstrap`."""
        if communicator.split == 0:
            return ""
        lines = self._chosen()
        if self.release.version == "2.21.5":
            at, members = self.standing[communicator.name], communicator.members
            lines.append(
                f"bootstrapSplit: comm {self.pointers[communicator.name]} "
                f"parent {self.pointers['world']} rank {at.rank} nranks {len(members)} "
                f"color {communicator.color} key {self.rank} prev {members[at.previous]} "
                f"next {members[at.next]} - DONE"
            )
        return "".join(self.info(line, self._thread(communicator)) for line in lines)

    def init(self, communicator: Communicator) -> str:
        """From Init START to Init COMPLETE."""
        old = self.release.version == "2.21.5"
        at, nranks = self.standing[communicator.name], len(communicator.members)
        body = [
            self._affinity(),
            f"NVLS multicast support is not available on dev {self.device}"
            + (" (NVLS_NCHANNELS 0)" if self.release.version == "2.27.7" else ""),
            (
                f"comm {self.pointers[communicator.name]} rank {at.rank} nRanks {nranks} "
                f"nNodes {at.nodes} localRanks {len(at.local)} "
                f"localRank {at.local.index(at.rank)} MNNVL 0"
            ),
            *self._rings(at, nranks),
            self._trees(at, nranks),
            f"P2P Chunksize set to {131072 if at.nodes > 1 else 524288}",
        ]
        if old:
            body += [*self.connections(communicator), "Connected all trees"]
        else:
            direct = "Check P2P Type isAllDirectP2p 1 directMode 0"
            body += [direct + " isAllCudaP2p 1" * (self.release.version == "2.30.7")]
        body += self._channels(at, nranks)
        if old and communicator.split == 0:
            body += ["TUNER/Plugin: Using internal tuner plugin."]
        thread = self._thread(communicator)
        return (
            self.identity(communicator, "START")
            + "".join(self.info(line, thread) for line in body)
            + self.identity(communicator, "COMPLETE")
        )

    def _affinity(self) -> str:
        if self.release.version == "2.30.7":
            return (
                f"ncclTopoGetCpuAffinity: Affinity for GPU {self.device} is 0-47. "
                "(GPU affinity = 0-47 ; CPU affinity = 0-95)."
            )
        cores = "ffff,ffffffff" if self.release.version == "2.21.5" else "0-47"
        return f"Setting affinity for GPU {self.device} to {cores}"

    def _rings(self, at: Neighbours, nranks: int) -> Iterable[str]:
        if at.rank:
            return []
        count = self.plan.channels
        if self.release.version == "2.21.5":
            order = "".join(f"{rank:4d}" for rank in range(min(nranks, 20)))
        else:
            width = len(str(nranks - 1))
            order = " ".join(f"{rank:{width}d}" for rank in range(nranks))
            order = order if len(order) < 128 else order[:124] + "..."
        return [f"Channel {channel:02d}/{count:02d} : {order}" for channel in range(count)]

    def _trees(self, at: Neighbours, nranks: int) -> str:
        """A chain inside the node; the first ranks of the nodes form a chain as well."""
        place = at.local.index(at.rank)
        below = at.local[place + 1] if place + 1 < len(at.local) else -1
        across = -1
        above = at.local[place - 1] if place else at.rank - 1
        if place == 0 and at.nodes > 1:
            across = at.local[-1] + 1 if at.local[-1] + 1 < nranks else -1
            above = max(at.rank - len(at.local), -1)
        link = f"{below}/{across}/-1->{at.rank}->{above}"
        return "Trees " + " ".join(f"[{channel}] {link}" for channel in range(self.plan.channels))

    def _channels(self, at: Neighbours, nranks: int) -> list[str]:
        count = self.plan.channels
        return [
            f"threadThresholds 8/8/64 | {8 * nranks}/8/64 | 512 | 512",
            (
                f"{count} coll channels, {count} collnet channels, 0 nvls channels, "
                f"{count} p2p channels, {2 if at.nodes > 1 else count} p2p channels per peer"
            ),
            *([] if self.release.version == "2.21.5" else ["CC Off, workFifoBytes 1048576"]),
        ]

    def connections(self, communicator: Communicator) -> list[str]:
        """The ring's connections, one per channel and direction."""
        at, members = self.standing[communicator.name], communicator.members

        def index(rank: int) -> str:
            return f"{rank}[{members[rank] % self.plan.gpus_per_node}]"

        net = f"NET/{self.plan.network}/0"
        if self.plan.network == "IB":
            net = f"NET/IB/{self.device}/GDRDMA"
        lines = []
        for channel in range(self.plan.channels):
            here = f"Channel {channel:02d}/0 : "
            if at.previous not in at.local:
                lines.append(f"{here}{index(at.previous)} -> {index(at.rank)} [receive] via {net}")
            link = f"{here}{index(at.rank)} -> {index(at.next)}"
            near = at.next in at.local
            lines.append(f"{link} via P2P/CUMEM" if near else f"{link} [send] via {net}")
        done = "Connected all rings"
        if self.release.connects_lazily:
            done += f", use ring PXN 0 GDR {int(self.plan.network == 'IB')}"
        return [*lines, done]

    def lazy_connections(self, communicator: Communicator) -> str:
        """What newer releases print at the first call instead of in init."""
        thread = 140 + communicator.split
        return "".join(self.info(line, thread) for line in self.connections(communicator))

    def destruction(self, word: str) -> str:
        """`Destroy COMPLETE` or `Abort COMPLETE` of every communicator, world last."""
        if not self.release.prints_destruction:
            return ""
        return "".join(
            self.info(
                f"comm {self.pointers[communicator.name]} rank {self.standing[communicator.name].rank} "
                f"nranks {len(communicator.members)} cudaDev {self.device} busId {self.bus_id} "
                f"- {word} COMPLETE"
            )
            for communicator in reversed(self.communicators.values())
        )

    def gpu_refused(self, sharing: Sequence[int]) -> str:
        """What a rank prints where these ranks share a GPU: old releases on these alone, newer ones on every rank."""
        lines = self.release.gpu_refused
        if "{other}" in lines[0] and self.rank not in sharing:
            return ""
        other = next(rank for rank in sharing if rank != self.rank)
        return self._warning(lines, 0, rank=self.rank, other=other, busid=self.bus_id)

    def transfers_failed(self) -> str:
        """What a rank prints whose transfers to the next rank of a ring, on another host, are not answered."""
        at = self.standing["world"]
        if at.next in at.local:
            return ""
        peer = f"{_address(self.plan, at.next)}<{40000 + at.next}>"
        return self._warning(self.release.transfer_failed, 29, peer=peer, nic=f"mlx5_{self.device}")

    def _warning(self, lines: Sequence[str], thread: int, **known: object) -> str:
        """A warning and the lines behind it, each from its place in the sources on."""
        time = "[2026-03-02 11:04:57] " if self.release.timestamped_warnings else ""
        here = f"{self.host}:{self.pid}:{self.pid + thread} [{self.device}] "
        warning, *others = (here + line.format(**known) + "\n" for line in lines)
        return f"\n{time}{warning}" + "".join(others)

    def peer_closed(self, peers: Sequence[int]) -> str:
        """What the death of a peer leaves on a rank connected to it over the network."""
        warning = "NCCL WARN socketProgress: Connection closed by remote peer {peer}"
        returned = (f"NCCL INFO {place} -> 6" for place in self.release.returned)
        lines = (f"{self.release.closed_by_peer} {warning}", *returned)
        return "".join(
            self._warning(lines, 29, peer=f"{host_name(self.plan, self.plan.node(peer))}<{40000 + peer}>")
            for peer in peers
            for _ in range(4)  # the progress thread tries again and again
        )


def _address(plan: Plan, rank: int) -> str:
    return f"10.0.{plan.node(rank) // 200}.{plan.node(rank) % 200 + 10}"


def _device(plan: Plan, rank: int) -> int:
    """The number of a rank's GPU on its host."""
    fault = plan.fault
    is_shared = fault is not None and fault.kind is FaultKind.SHARED_GPU and rank in fault.ranks
    return (min(fault.ranks) if fault is not None and is_shared else rank) % plan.gpus_per_node


def host_name(plan: Plan, node: int) -> str:
    """The name of a host."""
    return f"gpu-{random.Random(plan.seed).choice('abcdef')}{node:03d}"


_BEFORE_21 = [
    "cudaDriverVersion 12040",
    "Bootstrap : Using eth0:{address}<0>",
    "!NCCL version {version}+cuda12.4",
    "NET/Plugin: No plugin found (libnccl-net.so)",
    (
        "NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: "
        "No such file or directory : when loading libnccl-net.so"
    ),
    "NET/Plugin: Using internal network plugin.",
]
_BEFORE_27 = [
    "Bootstrap: Using eth0:{address}<0>",
    "cudaDriverVersion 12040",
    "NCCL version {version}+cuda12.4",
    "NET/Plugin: Could not find: libnccl-net.so. ",
]
_BEFORE_30 = [
    "ENV/Plugin: Could not find: libnccl-env.so",
    "Bootstrap: Using eth0:{address}<0>",
    "cudaDriverVersion 12040",
    "NCCL version {version}+cuda12.4",
    "NCCL git version master unknown",
    "NET/Plugin: Could not find: libnccl-net.so",
]
