"""The calls of a training step, what a fault makes of them, and how far every rank gets."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ncclforensics.simulate.plan import INIT_FAULTS, Communicator, Fault, FaultKind, Plan

INT64, FLOAT32, BFLOAT16 = 4, 7, 9
SUM, MAX = 0, 2

# After a fault every rank waits within a step or two; with more steps it would have no effect.
STEPS_AFTER_FAULT = 4


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the application makes it; the root of Send and Recv is the peer."""

    communicator: str
    name: str
    count: int
    datatype: int
    op: int = SUM
    root: int = 0

    @property
    def is_p2p(self) -> bool:
        """Whether it is a message between two ranks."""
        return self.name in ("Send", "Recv")


class Mark(StrEnum):
    """What a program holds besides calls."""

    SYNCHRONISE = "synchronise"
    STOP = "stop"


class State(StrEnum):
    """How a rank ended."""

    FINISHED = "finished"
    WAITING = "waiting"
    STOPPED = "stopped"
    ABSENT = "absent"


def step_calls(plan: Plan, rank: int) -> list[Call]:
    """One training step of one rank, in program order."""
    own = plan.communicators_of(rank)
    world = own["world"].name
    batch = own["tp"].name if "tp" in own else world
    stage, last_stage = plan.stage(rank), plan.pp - 1
    forward, backward = [Call(batch, "Broadcast", 8194, INT64)], list[Call]()
    if stage > 0:
        forward.append(Call(own["pp"].name, "Recv", 2097152, BFLOAT16, root=stage - 1))
        backward.append(Call(own["pp"].name, "Send", 2097152, BFLOAT16, root=stage - 1))
    if stage < last_stage:
        backward.insert(0, Call(own["pp"].name, "Recv", 2097152, BFLOAT16, root=stage + 1))
    if "tp" in own:
        for _ in range(plan.layers):
            forward += _layer(own["tp"].name)
    if stage < last_stage:
        forward.append(Call(own["pp"].name, "Send", 2097152, BFLOAT16, root=stage + 1))
    if "dp" in own:
        backward.append(Call(own["dp"].name, "ReduceScatter", 4194304, FLOAT32))
        backward.append(Call(own["dp"].name, "AllGather", 4194304, BFLOAT16))
    backward.append(Call(world, "AllReduce", 1, FLOAT32, op=MAX))
    return forward + backward


def _layer(tp: str) -> list[Call]:
    # Neighbours always differ, so that a shifted sequence shows at the call where it shifts.
    return [
        Call(tp, "AllReduce", 1048576, BFLOAT16),
        Call(tp, "AllReduce", 1179648, BFLOAT16),
        Call(tp, "AllGather", 262144, BFLOAT16),
        Call(tp, "ReduceScatter", 262144, BFLOAT16),
    ]


_SUITABLE: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.OTHER_DATATYPE: ("AllReduce", "ReduceScatter"),
    FaultKind.OTHER_ROOT: ("Broadcast",),
    FaultKind.RECV_NEVER_POSTED: ("Recv",),
    FaultKind.LAGGING: ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send", "Recv"),
    FaultKind.KILLED: ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send", "Recv"),
}
_COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast")


def fault_position(plan: Plan, fault: Fault, rank: int) -> int:
    """Where in the step of a rank the fault strikes: an index into `step_calls`."""
    calls = step_calls(plan, rank)
    name = plan.communicators_of(rank)[fault.communicator].name
    on_it = [place for place, call in enumerate(calls) if call.communicator == name]
    suitable = [place for place in on_it if calls[place].name in _SUITABLE.get(fault.kind, _COLLECTIVES)]
    if fault.kind is FaultKind.SKIPPED_CALL and len(on_it) == 1:
        raise ValueError(f"skipping the only call of a step on {name} shifts nothing")
    if fault.index is not None:
        if not -len(on_it) <= fault.index < len(on_it) or on_it[fault.index] not in suitable:
            raise ValueError(f"{fault.kind}: no suitable call at {fault.index} on {name}")
        return on_it[fault.index]
    if not suitable:
        raise ValueError(f"{fault.kind}: rank {rank} makes no suitable call on {name}")
    # One draw for all ranks: the same seed must mean the same call on communicator culprit.
    return suitable[int(random.Random(f"fault {plan.seed}").random() * len(suitable))]


def _other_kind(call: Call) -> Call:
    return replace(call, name="AllGather" if call.name == "AllReduce" else "AllReduce", op=SUM)


def _left_out(_call: Call, _nranks: int) -> list[Call]:
    return []


_CHANGES: dict[FaultKind, Callable[[Call, int], list[Call]]] = {
    FaultKind.EXTRA_CALL: lambda call, _: [
        Call(call.communicator, "AllReduce", 524309, FLOAT32),
        call,
    ],
    FaultKind.SKIPPED_CALL: _left_out,
    FaultKind.RECV_NEVER_POSTED: _left_out,
    FaultKind.OTHER_COUNT: lambda call, _: [replace(call, count=call.count + 8192)],
    FaultKind.OTHER_DATATYPE: lambda call, _: [
        replace(call, datatype=FLOAT32 if call.datatype == BFLOAT16 else BFLOAT16)
    ],
    FaultKind.OTHER_ROOT: lambda call, nranks: [replace(call, root=(call.root + 1) % nranks)],
    FaultKind.OTHER_KIND: lambda call, _: [_other_kind(call)],
}


def faulty_step(plan: Plan, fault: Fault, rank: int) -> list[Call | Mark]:
    """The step of a culprit, in which the fault happens."""
    calls = step_calls(plan, rank)
    own = plan.communicators_of(rank)[fault.communicator]
    if fault.kind is FaultKind.SWAPPED_ORDER:
        place = max(at for at, call in enumerate(calls) if call.communicator == own.name)
        return [*calls[:place], calls[-1], *calls[place:-1]]
    place = fault_position(plan, fault, rank)
    if fault.kind in (FaultKind.LAGGING, FaultKind.KILLED):
        return [*calls[:place], Mark.STOP]
    changed = _CHANGES[fault.kind](calls[place], len(own.members))
    return [*calls[:place], *changed, *calls[place + 1 :]]


def program(plan: Plan, rank: int) -> Iterator[Call | Mark]:
    """What a rank does from the step of the fault on."""
    fault = plan.fault
    if fault is None or fault.kind in INIT_FAULTS:
        return
    first: list[Call | Mark] = list(step_calls(plan, rank))
    if rank in fault.ranks and fault.kind is not FaultKind.NETWORK_LOST:
        first = faulty_step(plan, fault, rank)
    yield from first
    yield Mark.SYNCHRONISE
    for _ in range(STEPS_AFTER_FAULT):
        yield from step_calls(plan, rank)
        yield Mark.SYNCHRONISE


@dataclass(slots=True)
class Progress:
    """One rank while it runs: what it issued, and which of that is not complete."""

    todo: Iterator[Call | Mark]
    issued: list[Call] = field(default_factory=list)
    completed: set[int] = field(default_factory=set)  # indices into `issued`
    state: State = State.WAITING
    postponed: Call | Mark | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a call of the rank is not complete."""
        return len(self.completed) < len(self.issued)


class Job:
    """All ranks of a plan, run until no rank can issue another call.

    A call completes when every member has issued the matching call, in order on that communicator.
    Send and Recv complete in pairs.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.processes = {rank: Progress(program(plan, rank)) for rank in range(plan.ranks)}
        self._communicators = {communicator.name: communicator for communicator in plan.communicators()}
        # Per communicator and rank: indices of calls issued and not complete, in order.
        self._queues = {
            name: {rank: deque[int]() for rank in communicator.members}
            for name, communicator in self._communicators.items()
        }
        self._open = dict.fromkeys(self._communicators, 0)  # how many ranks have a call that is not complete
        self._ready = deque(self.processes)
        while self._ready:
            self._advance(self._ready.popleft())

    def head(self, name: str, rank: int) -> Call | None:
        """The oldest incomplete call of a rank on a communicator."""
        queue = self._queues[name][rank]
        return self.processes[rank].issued[queue[0]] if queue else None

    def _advance(self, rank: int) -> None:
        process = self.processes[rank]
        while process.state is State.WAITING:
            item = process.postponed or next(process.todo, None)
            process.postponed = None
            if item is Mark.STOP:
                process.state = State.STOPPED
            elif process.is_waiting and (item is Mark.SYNCHRONISE or self.plan.blocking):
                process.postponed = item
                return
            elif item is None:
                process.state = State.FINISHED
            elif isinstance(item, Call):
                queue = self._queues[item.communicator][rank]
                self._open[item.communicator] += not queue
                queue.append(len(process.issued))
                process.issued.append(item)
                communicator = self._communicators[item.communicator]
                if item.is_p2p or self._open[item.communicator] == len(communicator.members):
                    self._settle(communicator)

    def _settle(self, communicator: Communicator) -> None:
        while matched := self._matched(communicator):
            for rank in matched:
                queue = self._queues[communicator.name][rank]
                self.processes[rank].completed.add(queue.popleft())
                self._open[communicator.name] -= not queue
            self._ready.extend(matched)

    def _matched(self, communicator: Communicator) -> list[int]:
        members = communicator.members
        heads = [self.head(communicator.name, rank) for rank in members]
        first = heads[0]
        is_lost = self.plan.fault is not None and self.plan.fault.kind is FaultKind.NETWORK_LOST
        if is_lost and communicator.name == "world":
            return []
        if first is not None and not first.is_p2p and all(head == first for head in heads):
            return list(members)
        for rank, head in enumerate(heads):
            if head is not None and head.name == "Send":
                answer = heads[head.root]
                if answer == replace(head, name="Recv", root=rank):
                    return [members[rank], members[head.root]]
        return []
