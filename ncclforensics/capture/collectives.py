"""The collectives that are exercised: each with its buffers, a check of its result, and its entry in the journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from ncclforensics.capture.journal import Journal, plain

FLOAT32, SUM = 7, 0  # ncclDataType_t, ncclRedOp_t
BYTES = 4  # of a float
PERIOD = 7  # elements after which the pattern repeats: results stay exact in 32 bits
COMM = "0x1"
# Renamed in 2.13, which warns of the old names.
GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class CallError(Exception):
    """A call came back with an error, which stands in the journal: this rank ends because of it."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What one rank measured of one collective at one size."""

    size: int  # bytes per rank, the larger of what it sends and receives
    count: int  # elements, as nccl-tests counts them
    microseconds: list[float]  # of each iteration
    wrong: int  # elements

    def row(self, collective: str) -> dict[str, Any]:
        """As it is written down."""
        spread = {"median": median(self.microseconds), "min": min(self.microseconds), "max": max(self.microseconds)}
        mean = sum(self.microseconds) / len(self.microseconds)
        return {
            "collective": collective, "size": self.size, "count": self.count, "wrong": self.wrong,
            "iterations": len(self.microseconds), "mean_us": round(mean, 3),
            **{f"{name}_us": round(value, 3) for name, value in spread.items()},
        }  # fmt: skip


class Communicator:
    """The world, whose every call is written down before it is made."""

    def __init__(self, journal: Journal, rank: int, nranks: int, device: torch.device) -> None:
        self.rank, self.nranks, self.device = rank, nranks, device
        self._journal = journal
        self._calls = 0

    def tell(self, name: str, count: int, root: int = 0) -> None:
        """Write down the call that comes next."""
        self._journal.write(call=self._calls, comm=COMM, name=name, count=count, datatype=FLOAT32, op=SUM, root=root)
        self._calls += 1

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """An error of what is called in here ends this rank, and the journal says which it was."""
        try:
            yield
            self.settle()
        except RuntimeError as error:  # DistError and its children are RuntimeErrors
            self._journal.write(failed=name, says=plain(error))
            raise CallError(str(error)) from error
        self._journal.write(done=max(self._calls - 1, 0), comm=COMM)

    def settle(self) -> None:
        """Wait until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def floats(self, count: int) -> torch.Tensor:
        """A buffer."""
        return torch.empty(count, dtype=torch.float32, device=self.device)

    def pattern(self, count: int, first: float) -> torch.Tensor:
        """What a rank contributes: it differs from element to element."""
        return torch.arange(count, dtype=torch.float32, device=self.device).remainder_(PERIOD).add_(first)


# What a collective does with its buffers: it tells of its calls and makes them.
Move = Callable[[Communicator, torch.Tensor, torch.Tensor], None]


def _all_reduce(comm: Communicator, given: torch.Tensor, got: torch.Tensor) -> None:
    comm.tell("AllReduce", got.numel())
    dist.all_reduce(got)


def _all_gather(comm: Communicator, given: torch.Tensor, got: torch.Tensor) -> None:
    comm.tell("AllGather", given.numel())
    GATHER(got, given)


def _reduce_scatter(comm: Communicator, given: torch.Tensor, got: torch.Tensor) -> None:
    comm.tell("ReduceScatter", got.numel())
    SCATTER(got, given)


def _broadcast(comm: Communicator, given: torch.Tensor, got: torch.Tensor) -> None:
    comm.tell("Broadcast", got.numel())
    dist.broadcast(got, src=0)


def _all_to_all(comm: Communicator, given: torch.Tensor, got: torch.Tensor) -> None:
    comm.tell("AlltoAll", got.numel() // comm.nranks)
    dist.all_to_all_single(got, given)


def _send_recv(comm: Communicator, given: torch.Tensor, got: torch.Tensor) -> None:
    to, source = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    comm.tell("Send", given.numel(), to)
    comm.tell("Recv", got.numel(), source)
    moves = [dist.P2POp(dist.isend, given, to), dist.P2POp(dist.irecv, got, source)]
    for work in dist.batch_isend_irecv(moves):
        work.wait()


@dataclass(frozen=True, slots=True)
class Collective:
    """How large its buffers are (1, or one per rank: n), and what must come out: `first` of each part of the result."""

    move: Move
    given: str  # "1", "n", or "" where it works in place
    got: str
    first: Callable[[int, int], list[float]]  # of rank and number of ranks

    def buffers(self, comm: Communicator, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What goes in and what comes out, of `size` bytes for the larger of both."""
        share = max(size // BYTES // (comm.nranks if "n" in (self.given, self.got) else 1), 1)
        length = {"1": share, "n": share * comm.nranks}
        got = comm.floats(length[self.got])
        given = comm.pattern(length[self.given], comm.rank + 1) if self.given else got
        return given, got

    def wrong(self, comm: Communicator, given: torch.Tensor, got: torch.Tensor) -> int:
        """Elements that came out wrong, of one call."""
        if not self.given:
            got.copy_(comm.pattern(got.numel(), comm.rank + 1))
        else:
            got.fill_(-1)
        self.move(comm, given, got)
        comm.settle()
        firsts = self.first(comm.rank, comm.nranks)
        summed = comm.nranks if self.move in (_all_reduce, _reduce_scatter) else 1
        count = got.numel() // len(firsts)
        offset = comm.rank * count if self.given == "n" else 0  # its share of what everybody gives
        parts = zip(got.split(count), firsts, strict=True)
        wanted = [(part, (comm.pattern(offset + count, 0)[offset:]) * summed + first) for part, first in parts]
        return int(sum((part != right).sum().item() for part, right in wanted))


def _total(_: int, n: int) -> list[float]:
    return [n * (n + 1) / 2]


def _everyone(_: int, n: int) -> list[float]:
    return [rank + 1.0 for rank in range(n)]


COLLECTIVES = {
    "all_reduce": Collective(_all_reduce, "", "1", _total),
    "all_gather": Collective(_all_gather, "1", "n", _everyone),
    "reduce_scatter": Collective(_reduce_scatter, "n", "1", _total),
    "broadcast": Collective(_broadcast, "", "1", lambda rank, n: [1.0]),
    "alltoall": Collective(_all_to_all, "n", "n", _everyone),
    "sendrecv": Collective(_send_recv, "1", "1", lambda rank, n: [(rank - 1) % n + 1.0]),
}


def measure(comm: Communicator, name: str, size: int, *, warmup: int, iterations: int) -> Timing:
    """Warm up, check one result, and time each iteration."""
    one = COLLECTIVES[name]
    given, got = one.buffers(comm, size)
    with comm.calling(name):
        wrong = one.wrong(comm, given, got)
        for _ in range(warmup):
            one.move(comm, given, got)
        comm.settle()
        timed = _by_events if comm.device.type == "cuda" else _by_clock
        times = timed(comm, lambda: one.move(comm, given, got), iterations)
    larger = max(given.numel(), got.numel())
    return Timing(larger * BYTES, larger, times, wrong)


def _by_clock(comm: Communicator, move: Callable[[], None], iterations: int) -> list[float]:
    times = []
    for _ in range(iterations):
        began = time.perf_counter()
        move()
        times.append((time.perf_counter() - began) * 1e6)
    return times


def _by_events(comm: Communicator, move: Callable[[], None], iterations: int) -> list[float]:
    """The time on the device between what stands before a call and what stands behind it."""
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iterations)]
    for began, ended in marks:
        began.record()
        move()
        ended.record()
    comm.settle()
    return [began.elapsed_time(ended) * 1e3 for began, ended in marks]


def round_trips(comm: Communicator, peer: int, trips: int) -> float | None:
    """Half of a round trip of eight bytes between rank 0 and another, in microseconds; None for all others."""
    if comm.rank not in (0, peer):
        return None
    other = peer if comm.rank == 0 else 0
    message = comm.pattern(2, 0)
    order = (("Send", dist.send), ("Recv", dist.recv))
    times = []
    with comm.calling("Send"):
        for _ in range(trips):
            began = time.perf_counter()
            for name, move in order if comm.rank == 0 else order[::-1]:
                comm.tell(name, message.numel(), other)
                move(message, other)
            comm.settle()
            times.append((time.perf_counter() - began) * 1e6 / 2)
    return round(median(times), 3)


def pieces(comm: Communicator, size: int, parts: int) -> tuple[float, float]:
    """Microseconds of one large AllReduce, and of the same bytes in many small ones."""
    whole = comm.pattern(max(size // BYTES, parts), 0)
    times = []
    with comm.calling("AllReduce"):
        for _ in range(2):  # the first warms up
            for tensors in ([whole], list(whole.chunk(parts))):
                comm.settle()
                began = time.perf_counter()
                for tensor in tensors:
                    _all_reduce(comm, tensor, tensor)
                comm.settle()
                times.append(round((time.perf_counter() - began) * 1e6, 3))
    return times[-2], times[-1]
