"""What really happened in a generated run, in the words of the contract."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from ncclforensics.simulate.plan import INIT_FAULTS, Communicator, Fault, FaultKind, Plan
from ncclforensics.simulate.program import Call, Job, State, step_calls

DATATYPES = {0: "int8", 4: "int64", 7: "float32", 9: "bfloat16"}
OPS = {0: "sum", 2: "max"}
ELEMENT_BYTES = {4: 8, 7: 4, 9: 2}

VERDICTS = {
    FaultKind.LAGGING: "lagging-ranks",
    FaultKind.KILLED: "rank-died",
    FaultKind.SWAPPED_ORDER: "cross-communicator-deadlock",
    FaultKind.RECV_NEVER_POSTED: "p2p-unmatched",
    FaultKind.RANK_MISSING: "rank-missing",
    FaultKind.SPLIT_MISSING: "init-incomplete",
    FaultKind.SHARED_GPU: "init-failed",
    FaultKind.INIT_STOPPED: "init-incomplete",
    FaultKind.NETWORK_LOST: "stuck-together",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A call as the log prints it; `op` is null where nothing is reduced."""

    communicator: str
    ordinal: int
    name: str
    count: int
    datatype: str
    op: str | None
    root: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The oldest incomplete call of a rank, and who has not made it."""

    rank: int
    communicator: str
    ordinal: int
    for_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Truth:
    """The record of one generated run.

    `verdict` and `culprits` are what happened; `visibility` says whether the lines can show it.
    `at_fault` are the ranks of the plan's fault: fewer than the culprits where no majority decides.
    """

    verdict: str
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    at_fault: tuple[int, ...]
    visibility: bool
    fault: str | None
    communicator: str | None
    operation: Operation | None
    world_size: int
    version: str
    steps: int
    communicators: dict[str, tuple[int, ...]]
    communicator_ids: dict[str, str | None]
    pointers: dict[str, dict[int, str]]
    hosts: dict[int, str]
    states: dict[int, str]
    last_calls: dict[int, Operation | None]
    calls: dict[int, dict[str, int]]  # per rank and communicator
    waits: tuple[Wait, ...]

    def as_json(self) -> dict[str, Any]:
        """The truth as JSON."""
        return asdict(self)


def printed_count(plan: Plan, call: Call) -> tuple[int, int]:
    """Count and datatype as the log prints them: old releases turn gathers into bytes."""
    if plan.release.gathers_in_bytes and call.name in ("AllGather", "Broadcast"):
        return call.count * ELEMENT_BYTES[call.datatype], 0
    return call.count, call.datatype


class Ledger:
    """Every rank's calls from the start of the job, counted where they are not kept."""

    def __init__(self, plan: Plan, steps: int, job: Job) -> None:
        self.plan, self.steps, self.job = plan, steps, job
        self.in_init = plan.fault is not None and plan.fault.kind in INIT_FAULTS
        self.by_name = {communicator.name: communicator for communicator in plan.communicators()}
        self.per_step = {
            rank: Counter(call.communicator for call in step_calls(plan, rank)) for rank in range(plan.ranks)
        }
        self._late: dict[tuple[str, int], tuple[int, ...]] = {}

    def issued(self, rank: int) -> list[Call]:
        """The calls after the whole steps."""
        return [] if self.in_init else self.job.processes[rank].issued

    def before(self, rank: int, name: str) -> int:
        """The calls of a rank on a communicator in the whole steps."""
        return 0 if self.in_init else self.steps * self.per_step[rank][name]

    def operation(self, rank: int, index: int) -> Operation:
        """The call at an index of `issued`; a negative one stands in the last whole step."""
        calls = self.issued(rank) if index >= 0 else step_calls(self.plan, rank)
        call = calls[index]
        on_it = sum(earlier.communicator == call.communicator for earlier in calls[:index])
        ordinal = self.before(rank, call.communicator) + on_it
        if index < 0:
            ordinal -= self.per_step[rank][call.communicator]
        count, datatype = printed_count(self.plan, call)
        reduces = call.name in ("AllReduce", "ReduceScatter")
        return Operation(
            call.communicator,
            ordinal,
            call.name,
            count,
            DATATYPES[datatype],
            OPS[call.op] if reduces else None,
            call.root,
        )

    def last_call(self, rank: int) -> Operation | None:
        """The last call of a rank, if it made one."""
        issued = self.issued(rank)
        if issued:
            return self.operation(rank, len(issued) - 1)
        return None if self.in_init or not self.steps else self.operation(rank, -1)

    def calls(self, rank: int) -> dict[str, int]:
        """How many calls a rank made on each communicator."""
        made = Counter({name: self.before(rank, name) for name in self.per_step[rank]})
        made.update(call.communicator for call in self.issued(rank))
        return dict(made)

    def position(self, rank: int, name: str, ordinal: int) -> int | None:
        """The index into `issued` of a call on a communicator, by its ordinal."""
        wanted = ordinal - self.before(rank, name)
        places = [i for i, call in enumerate(self.issued(rank)) if call.communicator == name]
        return places[wanted] if 0 <= wanted < len(places) else None

    def wait(self, rank: int) -> Wait | None:
        """What a rank waits for, if it does."""
        process = self.job.processes[rank]
        if self.in_init or not process.is_waiting:
            return None
        oldest = min(set(range(len(process.issued))) - process.completed)
        call, found = process.issued[oldest], self.operation(rank, oldest)
        members = self.by_name[call.communicator].members
        if call.is_p2p:
            late: tuple[int, ...] = (members[call.root],)
        else:
            late = self._without_call(call.communicator, found.ordinal)
        return Wait(rank, call.communicator, found.ordinal, late)

    def _without_call(self, name: str, ordinal: int) -> tuple[int, ...]:
        """The members that did not make a call; all that wait in it wait for the same ones."""
        if (name, ordinal) not in self._late:
            members = self.by_name[name].members
            late = tuple(member for member in members if self.position(member, name, ordinal) is None)
            self._late[name, ordinal] = late
        return self._late[name, ordinal]

    def divergence(self, communicator: Communicator) -> int | None:
        """The first ordinal at which members made different calls."""
        sequences = [
            [call for call in self.issued(rank) if call.communicator == communicator.name]
            for rank in communicator.members
        ]
        for offset in range(max(map(len, sequences))):
            made = {sequence[offset] for sequence in sequences if offset < len(sequence)}
            if len(made) > 1:
                return self.before(communicator.members[0], communicator.name) + offset
        return None


def _disputed(ledger: Ledger, fault: Fault, communicator: Communicator, waits: list[Wait]) -> Operation | None:
    """The call that did not come together, as the majority made it."""
    if fault.kind is FaultKind.SWAPPED_ORDER:
        return None
    ordinal = ledger.divergence(communicator)
    asker = None
    if ordinal is not None and fault.kind not in (FaultKind.LAGGING, FaultKind.RECV_NEVER_POSTED):
        others = (rank for rank in communicator.members if rank not in fault.ranks)
        asker = next((rank for rank in others if ledger.position(rank, communicator.name, ordinal) is not None), None)
    if asker is None or ordinal is None:  # where all members are at fault, others wait on another communicator
        blamed = [wait for wait in waits if set(wait.for_ranks) & set(fault.ranks)]
        blamed.sort(key=lambda wait: wait.communicator != communicator.name)
        if not blamed:
            return None
        asker, ordinal = blamed[0].rank, blamed[0].ordinal
        communicator = ledger.by_name[blamed[0].communicator]
    index = ledger.position(asker, communicator.name, ordinal)
    return None if index is None else ledger.operation(asker, index)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict that the logs should lead to."""

    verdict: str
    culprits: tuple[int, ...]
    communicator: str | None
    operation: Operation | None


def judge(plan: Plan, ledger: Ledger, waits: list[Wait]) -> Diagnosis:
    """Verdict, culprits and operation by the contract's rules."""
    fault = plan.fault
    if fault is None:
        return Diagnosis("no-hang", (), None, None)
    own = plan.communicators_of(fault.ranks[0])[fault.communicator]
    culprits = fault.ranks
    if fault.kind in INIT_FAULTS:
        name = own.name if fault.kind is FaultKind.SPLIT_MISSING else "world"
        return Diagnosis(VERDICTS[fault.kind], culprits, name, None)
    verdict = VERDICTS.get(fault.kind, "collective-mismatch")
    if verdict == "stuck-together":
        return Diagnosis(verdict, (), "world", ledger.last_call(0))
    others = set(own.members) - set(culprits)
    if verdict == "collective-mismatch" and 2 * len(others) <= len(own.members):
        culprits = own.members  # no majority: all that differ
    operation = _disputed(ledger, fault, own, waits)
    name = own.name if operation is None else operation.communicator
    return Diagnosis(verdict, culprits, name, operation)


def states(plan: Plan, job: Job) -> dict[int, str]:
    """How every rank ended."""
    fault = plan.fault
    if fault is None:
        return dict.fromkeys(range(plan.ranks), State.FINISHED.value)
    if fault.kind in INIT_FAULTS:
        gone = State.ABSENT if fault.kind is FaultKind.RANK_MISSING else State.STOPPED
        return {rank: (gone if rank in fault.ranks else State.WAITING).value for rank in range(plan.ranks)}
    return {rank: process.state.value for rank, process in job.processes.items()}
