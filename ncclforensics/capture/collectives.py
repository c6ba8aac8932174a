"""The collectives of a capture: their buffers, the check of the result, and the entries in the journal."""

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
PERIOD = 7  # the pattern repeats after so few elements that sums stay exact in float32
COMM = "0x1"
WARM_TRIPS, TRIPS, TRANSFERS = 5, 30, 5  # of a pair of ranks
# PyTorch 2.13 renamed these functions and warns about the old names.
GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class CallFailedError(Exception):
    """A call failed, and the journal holds the error; the rank ends."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The measurement of one rank for one collective and size."""

    size: int  # bytes per rank: the larger of input and output
    count: int  # elements, as nccl-tests counts them
    microseconds: list[float]  # of each iteration
    wrong: int  # wrong elements

    def row(self, collective: str) -> dict[str, Any]:
        """Return the measurement as a JSON object."""
        spread = {"median": median(self.microseconds), "min": min(self.microseconds), "max": max(self.microseconds)}
        mean = sum(self.microseconds) / len(self.microseconds)
        return {
            "collective": collective, "size": self.size, "count": self.count, "wrong": self.wrong,
            "iterations": len(self.microseconds), "mean_us": round(mean, 3),
            **{f"{name}_us": round(value, 3) for name, value in spread.items()},
        }  # fmt: skip


class Communicator:
    """The communicator of all ranks; it writes every call to the journal before the call is made."""

    def __init__(self, journal: Journal, rank: int, nranks: int, device: torch.device) -> None:
        self.rank, self.nranks, self.device = rank, nranks, device
        self._journal = journal
        self._calls = 0

    def journal_call(self, name: str, count: int, root: int = 0) -> None:
        """Write the next call to the journal."""
        self._journal.write(call=self._calls, comm=COMM, name=name, count=count, datatype=FLOAT32, op=SUM, root=root)
        self._calls += 1

    @contextmanager
    def completing(self, name: str) -> Iterator[None]:
        """Journal the completion of the calls inside, or the failure. Raises CallFailedError if one fails."""
        try:
            yield
            self.synchronize()
        except RuntimeError as error:  # DistError and its children are RuntimeErrors
            self._journal.write(failed=name, says=plain(error))
            raise CallFailedError(str(error)) from error
        self._journal.write(done=max(self._calls - 1, 0), comm=COMM)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def floats(self, count: int) -> torch.Tensor:
        """Allocate a buffer of float32 elements."""
        return torch.empty(count, dtype=torch.float32, device=self.device)

    def pattern(self, count: int, first: float, offset: int = 0) -> torch.Tensor:
        """Return the input of a rank from its element `offset` on: `first` plus 0 to 6, repeated.

        It is not made of a range of floats: above 2^24 these are rounded.
        """
        period = torch.arange(offset, offset + PERIOD, device=self.device).remainder_(PERIOD)
        return period.to(torch.float32).add_(first).repeat(-(-count // PERIOD))[:count]


# Journals and runs a collective on (communicator, input, output).
Run = Callable[[Communicator, torch.Tensor, torch.Tensor], None]


def _all_reduce(comm: Communicator, sent: torch.Tensor, received: torch.Tensor) -> None:
    comm.journal_call("AllReduce", received.numel())
    dist.all_reduce(received)


def _all_gather(comm: Communicator, sent: torch.Tensor, received: torch.Tensor) -> None:
    comm.journal_call("AllGather", sent.numel())
    GATHER(received, sent)


def _reduce_scatter(comm: Communicator, sent: torch.Tensor, received: torch.Tensor) -> None:
    comm.journal_call("ReduceScatter", received.numel())
    SCATTER(received, sent)


def _broadcast(comm: Communicator, sent: torch.Tensor, received: torch.Tensor) -> None:
    comm.journal_call("Broadcast", received.numel())
    dist.broadcast(received, src=0)


def _all_to_all(comm: Communicator, sent: torch.Tensor, received: torch.Tensor) -> None:
    comm.journal_call("AlltoAll", received.numel() // comm.nranks)
    dist.all_to_all_single(received, sent)


def _send_recv(comm: Communicator, sent: torch.Tensor, received: torch.Tensor) -> None:
    to, source = (comm.rank + 1) % comm.nranks, (comm.rank - 1) % comm.nranks
    comm.journal_call("Send", sent.numel(), to)
    comm.journal_call("Recv", received.numel(), source)
    transfers = [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, received, source)]
    for work in dist.batch_isend_irecv(transfers):
        work.wait()


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective: its buffer sizes in shares (1, or n: one per rank), and the first element of each expected part."""

    run: Run
    sent: str  # "1", "n", or "" if it works in place
    received: str
    first: Callable[[int, int], list[float]]  # called with rank and number of ranks

    def buffers(self, comm: Communicator, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Allocate the input and output buffers; the larger one has `size` bytes."""
        share = max(size // BYTES // (comm.nranks if "n" in (self.sent, self.received) else 1), 1)
        length = {"1": share, "n": share * comm.nranks}
        received = comm.floats(length[self.received])
        sent = comm.pattern(length[self.sent], comm.rank + 1) if self.sent else received
        return sent, received

    def count_wrong(self, comm: Communicator, sent: torch.Tensor, received: torch.Tensor) -> int:
        """Run the collective once and count the wrong elements of the result."""
        if not self.sent:
            received.copy_(comm.pattern(received.numel(), comm.rank + 1))
        else:
            received.fill_(-1)
        self.run(comm, sent, received)
        comm.synchronize()
        firsts = self.first(comm.rank, comm.nranks)
        summands = comm.nranks if self.run in (_all_reduce, _reduce_scatter) else 1
        count = received.numel() // len(firsts)
        offset = comm.rank * count if self.sent == "n" else 0  # this rank's share of the inputs
        parts = zip(received.split(count), firsts, strict=True)
        expected = [(part, comm.pattern(count, 0, offset) * summands + first) for part, first in parts]
        return int(sum((part != correct).sum().item() for part, correct in expected))


def _total(_: int, n: int) -> list[float]:
    return [n * (n + 1) / 2]


def _all_ranks(_: int, n: int) -> list[float]:
    return [rank + 1.0 for rank in range(n)]


COLLECTIVES = {
    "all_reduce": Collective(_all_reduce, "", "1", _total),
    "all_gather": Collective(_all_gather, "1", "n", _all_ranks),
    "reduce_scatter": Collective(_reduce_scatter, "n", "1", _total),
    "broadcast": Collective(_broadcast, "", "1", lambda rank, n: [1.0]),
    "alltoall": Collective(_all_to_all, "n", "n", _all_ranks),
    "sendrecv": Collective(_send_recv, "1", "1", lambda rank, n: [(rank - 1) % n + 1.0]),
}


def measure(comm: Communicator, name: str, size: int, *, warmup: int, iterations: int) -> Timing:
    """Warm up, check one result, and time each iteration."""
    collective = COLLECTIVES[name]
    sent, received = collective.buffers(comm, size)
    with comm.completing(name):
        wrong = collective.count_wrong(comm, sent, received)
        for _ in range(warmup):
            collective.run(comm, sent, received)
        comm.synchronize()
        time_calls = _by_events if comm.device.type == "cuda" else _by_clock
        times = time_calls(comm, lambda: collective.run(comm, sent, received), iterations)
    larger = max(sent.numel(), received.numel())
    return Timing(larger * BYTES, larger, times, wrong)


def _by_clock(comm: Communicator, call: Callable[[], None], iterations: int) -> list[float]:
    times = []
    for _ in range(iterations):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e6)
    return times


def _by_events(comm: Communicator, call: Callable[[], None], iterations: int) -> list[float]:
    """Return the times on the device between an event before each call and one after it."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iterations)]
    for began, ended in events:
        began.record()
        call()
        ended.record()
    comm.synchronize()
    return [began.elapsed_time(ended) * 1e3 for began, ended in events]


def measure_pair(comm: Communicator, peer: int, size: int) -> tuple[float, float]:
    """Return the latency of eight bytes, and the time of sending and receiving `size` bytes at once, both in us.

    All messages are batched: unbatched ones make PyTorch create a communicator of two for every pair.
    """
    small = comm.pattern(2, 0)
    sent = comm.pattern(max(size // BYTES, 1), 0)
    received = comm.floats(sent.numel())
    is_first = comm.rank < peer

    def round_trip() -> None:
        for is_sender in (is_first, not is_first):
            _exchange(comm, peer, small if is_sender else None, None if is_sender else small)

    with comm.completing("Send"):
        trips = [_seconds(comm, round_trip) for _ in range(WARM_TRIPS + TRIPS)][WARM_TRIPS:]
        transfers = [_seconds(comm, lambda: _exchange(comm, peer, sent, received)) for _ in range(1 + TRANSFERS)][1:]
    return round(median(trips) * 1e6 / 2, 3), round(median(transfers) * 1e6, 3)


def _exchange(comm: Communicator, peer: int, sent: torch.Tensor | None, received: torch.Tensor | None) -> None:
    """Send to a rank and receive from it in one batch."""
    transfers = []
    if sent is not None:
        comm.journal_call("Send", sent.numel(), peer)
        transfers.append(dist.P2POp(dist.isend, sent, peer))
    if received is not None:
        comm.journal_call("Recv", received.numel(), peer)
        transfers.append(dist.P2POp(dist.irecv, received, peer))
    for work in dist.batch_isend_irecv(transfers):
        work.wait()


def time_calls_of(comm: Communicator, total: int, calls: int) -> float:
    """Return the microseconds in which AllReduce transfers `total` bytes in so many calls."""
    buffer = comm.floats(max(total // BYTES // calls, 1)).zero_()

    def transfer(number: int) -> None:
        for _ in range(number):
            _all_reduce(comm, buffer, buffer)

    with comm.completing("AllReduce"):
        transfer(1)
        comm.synchronize()
        return round(_seconds(comm, lambda: transfer(calls)) * 1e6, 3)


def _seconds(comm: Communicator, call: Callable[[], None]) -> float:
    """Return how long a call takes until the device is idle."""
    began = time.perf_counter()
    call()
    comm.synchronize()
    return time.perf_counter() - began
