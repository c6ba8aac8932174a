"""Write the logs of a job that never ran, with a known truth."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from ncclforensics.simulate.handling import Handling, handle_file, handled_lines
from ncclforensics.simulate.log_lines import Process, comm_id_of, neighbours
from ncclforensics.simulate.plan import (
    Fault,
    FaultKind,
    Finish,
    Layout,
    Plan,
)
from ncclforensics.simulate.program import Call, Job, State, step_calls
from ncclforensics.simulate.truth import Ledger, Truth, Wait, judge, states

__all__ = ["Fault", "FaultKind", "Finish", "Layout", "Plan", "Truth", "generate", "truth_of"]

# Steps written at once: large enough to amortise Python, small enough to stream.
STEPS_PER_CHUNK = 64


class Journal:
    """The log of one rank as a stream of chunks; chunk k of every rank is of the same phase."""

    def __init__(self, plan: Plan, steps: int, job: Job, rank: int) -> None:
        self.plan, self.steps, self.job, self.rank = plan, steps, job, rank
        self.process = Process(plan, rank)
        self.calls = step_calls(plan, rank)
        self._connected: set[str] = set()
        self._counts: Counter[str] = Counter()

    def chunks(self, steps_per_chunk: int) -> Iterator[bytes]:
        fault = self.plan.fault
        if fault is not None and fault.kind is FaultKind.RANK_MISSING:
            yield self._stuck_in_bootstrap()
            return
        if fault is not None and fault.kind in (FaultKind.SHARED_GPU, FaultKind.INIT_STOPPED):
            yield self._begun_init(fault).encode()
            return
        yield self._head().encode()
        if fault is not None and fault.kind is FaultKind.SPLIT_MISSING:
            return
        if self.steps:
            # The first step alone: newer releases connect in the middle of it.
            yield self._one_by_one(self.calls)
            yield from self._whole_steps(self.steps - 1, steps_per_chunk)
        yield self._one_by_one(self.job.processes[self.rank].issued)
        yield self._end().encode()

    def _stuck_in_bootstrap(self) -> bytes:
        fault, process = self.plan.fault, self.process
        if fault is None or self.rank in fault.ranks:
            return b""
        text = process.bootstrap()
        if self.plan.release.start_before_bootstrap:
            text += process.identity(process.communicators["world"], "START")
        return text.encode()

    def _begun_init(self, fault: Fault) -> str:
        process = self.process
        text = process.bootstrap() + process.identity(process.communicators["world"], "START")
        return text + (process.gpu_refused(fault.ranks) if fault.kind is FaultKind.SHARED_GPU else "")

    def _head(self) -> str:
        fault, process = self.plan.fault, self.process
        text = process.bootstrap()
        for family, communicator in process.communicators.items():
            if fault and fault.kind is FaultKind.SPLIT_MISSING and family == fault.communicator:
                break  # every rank waits for the split before it prints anything about it
            text += process.before_start(communicator) + process.init(communicator)
        return text

    def _one_by_one(self, calls: list[Call]) -> bytes:
        parts = []
        by_name = {communicator.name: communicator for communicator in self.process.communicators.values()}
        for index, call in enumerate(calls):
            name = call.communicator
            parts.append(self.process.call(call, self._place(call, index), f"{self._counts[name]:x}"))
            self._counts[name] += self.process.counts(name)
            if self.plan.release.connects_lazily and name not in self._connected:
                parts.append(self.process.lazy_connections(by_name[name]))
            self._connected.add(name)
        return "".join(parts).encode()

    def _place(self, call: Call, index: int) -> int:
        """Which of the step's buffers a call uses: that of the same call in a healthy step."""
        return self.calls.index(call) if call in self.calls else index % len(self.calls)

    def _whole_steps(self, steps: int, steps_per_chunk: int) -> Iterator[bytes]:
        """Whole steps from a template in which only opCount is open."""
        template, names = b"", []
        for index, call in enumerate(self.calls):
            moves = self.process.counts(call.communicator)
            count = "%x" if moves else f"{self._counts[call.communicator]:x}"
            template += self.process.call(call, self._place(call, index), count).encode()
            if moves:
                names.append(call.communicator)
        per_step = Counter(names)
        offsets = [(name, names[:place].count(name)) for place, name in enumerate(names)]
        for size in _chunk_sizes(steps, steps_per_chunk):
            values = [
                self._counts[name] + step * per_step[name] + offset for step in range(size) for name, offset in offsets
            ]
            yield template * size % tuple(values)
            for name, calls in per_step.items():
                self._counts[name] += size * calls

    def _end(self) -> str:
        plan, fault = self.plan, self.plan.fault
        if fault is None:
            return self.process.destruction("Destroy") if plan.finish is Finish.CLEAN else ""
        waits = self.job.processes[self.rank].state is State.WAITING
        if fault.kind is FaultKind.KILLED and waits:
            peers = network_peers(plan, self.rank, fault.ranks)
            return self.process.peer_closed(peers) + self.process.destruction("Abort")
        failed = self.process.transfers_failed() if fault.kind is FaultKind.NETWORK_LOST else ""
        if plan.finish is Finish.ABORTED and waits:
            return failed + self.process.destruction("Abort")
        return failed


def _chunk_sizes(steps: int, size: int) -> list[int]:
    return [size] * (steps // size) + ([steps % size] if steps % size else [])


def network_peers(plan: Plan, rank: int, others: tuple[int, ...]) -> list[int]:
    """Those of `others` to which a rank has a connection over the network."""
    found = set()
    for communicator in plan.communicators_of(rank).values():
        at = neighbours(plan, communicator, rank)
        for beside in (at.previous, at.next):
            member = communicator.members[beside]
            if member in others and plan.node(member) != plan.node(rank):
                found.add(member)
    return sorted(found)


def whole_steps(plan: Plan) -> int:
    """The steps of a plan: as given, or as many as fill `bytes_per_rank`."""
    if plan.bytes_per_rank is None:
        return plan.steps
    # Measured on rank 0 far into the run, where opCount has its usual width.
    healthy = replace(plan, bytes_per_rank=None, fault=None)
    head, body = (sum(map(len, Journal(healthy, steps, Job(healthy), 0).chunks(steps))) for steps in (1, 513))
    return max(1, int((plan.bytes_per_rank - head) / ((body - head) / 512)))


def truth_of(plan: Plan) -> Truth:
    """The truth of a plan, without writing a line."""
    steps = whole_steps(plan)
    return _truth(plan, steps, Job(plan))


def _truth(plan: Plan, steps: int, job: Job) -> Truth:
    ledger = Ledger(plan, steps, job)
    waits: list[Wait] = [wait for rank in range(plan.ranks) if (wait := ledger.wait(rank))]
    diagnosis, how = judge(plan, ledger, waits), states(plan, job)
    processes = {rank: Process(plan, rank) for rank in range(plan.ranks)}
    communicators = plan.communicators()
    return Truth(
        diagnosis.verdict,
        diagnosis.culprits,
        tuple(r for r in how if how[r] == State.WAITING and r not in diagnosis.culprits),
        plan.fault.ranks if plan.fault and diagnosis.culprits else (),
        _is_visible(plan),
        plan.fault.kind.value if plan.fault else None,
        diagnosis.communicator,
        diagnosis.operation,
        plan.ranks,
        plan.version,
        steps,
        {communicator.name: communicator.members for communicator in communicators},
        {communicator.name: comm_id_of(plan, communicator) for communicator in communicators},
        {
            communicator.name: {rank: processes[rank].pointers[communicator.name] for rank in communicator.members}
            for communicator in communicators
        },
        {rank: process.host for rank, process in processes.items()},
        how,
        {rank: ledger.last_call(rank) for rank in how},
        {rank: ledger.calls(rank) for rank in how},
        tuple(waits),
    )


def _is_visible(plan: Plan) -> bool:
    """Whether the lines of a run can show what happened to it."""
    fault = plan.fault
    if Handling.LOG_LOST in plan.handling or (Handling.LAST_LINES in plan.handling and plan.layout is Layout.MERGED):
        return False
    if fault is None:
        return True
    if fault.kind in (FaultKind.SPLIT_MISSING, FaultKind.INIT_STOPPED):
        return False
    if fault.kind is FaultKind.RANK_MISSING:
        return plan.release.start_before_bootstrap
    if fault.kind is FaultKind.KILLED:
        survivors = set(range(plan.ranks)) - set(fault.ranks)
        return any(network_peers(plan, rank, fault.ranks) for rank in survivors)
    return True


def generate(plan: Plan, folder: Path) -> Truth:
    """Write the logs of a plan into a folder and return what happened. Raises ValueError, OSError."""
    steps, job = whole_steps(plan), Job(plan)
    folder.mkdir(parents=True, exist_ok=True)
    journals = [Journal(plan, steps, job, rank) for rank in range(plan.ranks)]
    if plan.layout is Layout.MERGED:
        _write_merged(plan, journals, folder / "job.log")
    else:
        _write_per_rank(plan, journals, folder)
    return _truth(plan, steps, job)


def _write_per_rank(plan: Plan, journals: list[Journal], folder: Path) -> None:
    for rank, journal in enumerate(journals):
        if rank not in plan.without_log:
            path = folder / f"nccl_rank{rank}.log"
            with path.open("wb") as log:
                log.writelines(_lines(plan, journal, STEPS_PER_CHUNK))
            handle_file(path, plan.handling)


def _write_merged(plan: Plan, journals: list[Journal], path: Path) -> None:
    """All ranks in one file, interleaved within each phase and step as far as they may be."""
    draw = random.Random(f"merge {plan.seed}")
    present = [journal for journal in journals if journal.rank not in plan.without_log]
    with path.open("wb") as log:
        for phase in zip_longest(*(_lines(plan, journal, 1) for journal in present), fillvalue=b""):
            log.writelines(_interleaved([chunk.splitlines(True) for chunk in phase], draw))
    handle_file(path, plan.handling)


def _lines(plan: Plan, journal: Journal, steps_per_chunk: int) -> Iterator[bytes]:
    local = journal.rank % plan.gpus_per_node
    return handled_lines(journal.chunks(steps_per_chunk), plan.handling, journal.rank, local)


def _interleaved(logs: list[list[bytes]], draw: random.Random) -> Iterator[bytes]:
    """The lines of all logs, a few at a time, in one order that keeps the order of each."""
    turns = [rank for rank, lines in enumerate(logs) for _ in range(0, len(lines), 4)]
    draw.shuffle(turns)
    written = [0] * len(logs)
    for rank in turns:
        yield from logs[rank][written[rank] : written[rank] + 4]
        written[rank] += 4
