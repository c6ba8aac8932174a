"""Write what PyTorch's Flight Recorder dumps of a simulated job, one pickle for each rank.

After `FlightRecorder.hpp` and `ProcessGroupNCCL.cpp` of PyTorch 2.13 (dumps of version 2.10): all calls of a rank in
their order, what is complete of them, and the groups. Times of starts and stacks are not recorded by default, and so
are not here. A rank that died wrote no dump.
"""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

from ncclforensics.simulate.plan import Communicator, FaultKind, Plan
from ncclforensics.simulate.program import BFLOAT16, FLOAT32, INT64, Call, Job, step_calls

# Where the root of a broadcast differs, no dump shows it; a job that never began has no dumps.
SHOWN = (
    FaultKind.LAGGING, FaultKind.KILLED, FaultKind.EXTRA_CALL, FaultKind.SKIPPED_CALL, FaultKind.SWAPPED_ORDER,
    FaultKind.OTHER_COUNT, FaultKind.OTHER_DATATYPE, FaultKind.OTHER_KIND, FaultKind.RECV_NEVER_POSTED,
    FaultKind.NETWORK_LOST,
)  # fmt: skip
DATATYPES = {INT64: "Long", FLOAT32: "Float", BFLOAT16: "BFloat16"}
DESCRIPTIONS = {
    "world": "default_pg",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
}
NAMES = {
    "AllReduce": "all_reduce",
    "AllGather": "_all_gather_base",
    "ReduceScatter": "_reduce_scatter_base",
    "Broadcast": "broadcast",
}
PROTOCOL = 4  # that of all versions of Python since 3.8
STARTED_NS = 1_790_000_000_000_000_000
CALL_NS, LASTS_NS = 10_000_000, 400_000  # between calls, and what each takes
Json = dict[str, Any]


def write_dumps(plan: Plan, folder: Path) -> None:
    """Write the dumps of a plan into a folder."""
    job, groups = Job(plan), plan.communicators()
    is_killed = plan.fault is not None and plan.fault.kind is FaultKind.KILLED
    for rank in range(plan.ranks):
        if not (is_killed and plan.fault and rank in plan.fault.ranks):
            content = pickle.dumps(_dump(plan, job, groups, rank), protocol=PROTOCOL)
            (folder / f"nccl_trace_rank_{rank}").write_bytes(content)


def _dump(plan: Plan, job: Job, groups: list[Communicator], rank: int) -> Json:
    own = [group for group in groups if rank in group.members]
    ids = {group.name: str(groups.index(group)) for group in own}
    config = {
        ids[group.name]: {
            "name": ids[group.name],
            "desc": DESCRIPTIONS[group.family],
            "ranks": str(list(group.members)),
        }
        for group in own
    }
    entries = _entries(plan, job, own, ids, rank)
    status = {str(place): _status(entries, place) for place in range(len(own))}
    return {
        "version": "2.10", "comm_lib_version": plan.version, "pg_config": config, "pg_status": status,
        "entries": entries,
    }  # fmt: skip


def _entries(plan: Plan, job: Job, own: list[Communicator], ids: dict[str, str], rank: int) -> list[Json]:
    process = job.processes[rank]
    whole = step_calls(plan, rank) * plan.steps
    calls = [(call, True) for call in whole]
    calls += [(call, place in process.completed) for place, call in enumerate(process.issued)]
    numbers: Counter[tuple[str, str]] = Counter()
    entries = []
    for number, (call, is_complete) in enumerate(calls):
        place = next(place for place, group in enumerate(own) if group.name == call.communicator)
        kind = "p2p" if call.is_p2p else "collective"
        numbers[call.communicator, kind] += 1
        numbers[call.communicator, "op"] += 1
        created = STARTED_NS + number * CALL_NS + rank * 1000
        group = own[place]
        sizes = _sizes(call, len(group.members))
        datatype = [DATATYPES[call.datatype]]
        entries.append({
            "record_id": number, "pg_id": place,
            "process_group": (ids[group.name], DESCRIPTIONS[group.family]),
            "collective_seq_id": numbers[call.communicator, "collective"],
            "p2p_seq_id": numbers[call.communicator, "p2p"],
            "op_id": numbers[call.communicator, "op"],
            "profiling_name": f"nccl:{_name(call, group.members.index(rank))}",
            "time_created_ns": created,
            "input_sizes": [[sizes[0]]], "input_dtypes": datatype,
            "output_sizes": [[sizes[1]]], "output_dtypes": datatype,
            "state": "completed" if is_complete else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": created + LASTS_NS if is_complete else None,
            "retired": is_complete, "timeout_ms": 600_000, "is_p2p": call.is_p2p,
            "thread_id": str(140_000_000_000_000 + rank), "thread_name": "python3",
        })  # fmt: skip
    return entries


def _name(call: Call, place: int) -> str:
    """How PyTorch names a call; `place` is that of the rank in the group."""
    if call.is_p2p:
        return f"send {place}->{call.root}" if call.name == "Send" else f"recv {place}<-{call.root}"
    return NAMES[call.name]


def _sizes(call: Call, nranks: int) -> tuple[int, int]:
    """Elements of the tensors that go in and come out."""
    parts = {"AllGather": (1, nranks), "ReduceScatter": (nranks, 1)}.get(call.name, (1, 1))
    return parts[0] * call.count, parts[1] * call.count


def _status(entries: list[Json], place: int) -> Json:
    own = [entry for entry in entries if entry["pg_id"] == place and not entry["is_p2p"]]
    enqueued = max((entry["collective_seq_id"] for entry in own), default=-1)
    completed = max((entry["collective_seq_id"] for entry in own if entry["retired"]), default=-1)
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": -1,
        "last_completed_collective": completed,
    }
