"""Write what `ncclras -f json` prints of a simulated job: two reports, a minute apart.

After `client_support.cc` of NCCL 2.30. RAS counts the collectives that each rank launched, by their kind, on every
communicator, and knows the processes that it no longer reaches.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from ncclforensics.simulate.log_lines import Process
from ncclforensics.simulate.plan import Communicator, FaultKind, Plan
from ncclforensics.simulate.program import Job, step_calls

# What changes the number of collectives of a kind; all else leaves the counts as they are.
SHOWN = (
    FaultKind.LAGGING, FaultKind.KILLED, FaultKind.EXTRA_CALL, FaultKind.SKIPPED_CALL, FaultKind.OTHER_KIND,
)  # fmt: skip
COUNTED = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
TIMES = ("2026-03-02 11:04:57", "2026-03-02 11:05:57")
RUNNING = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
DEAD = {"unresponsive": True, "considered_dead": True}
Json = dict[str, Any]


def write_reports(plan: Plan, folder: Path) -> None:
    """Write both reports of a plan into a folder."""
    dead = plan.fault.ranks if plan.fault and plan.fault.kind is FaultKind.KILLED else ()
    job = Job(plan)
    communicators = [_communicator(plan, job, group, dead) for group in plan.communicators()]
    for number, time in enumerate(TIMES, 1):
        report = {
            "nccl_version": plan.version, "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
            "timestamp": time, "communicators_count": len(communicators), "communicators": communicators,
            "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
        }  # fmt: skip
        (folder / f"ras-{number}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _communicator(plan: Plan, job: Job, group: Communicator, dead: tuple[int, ...]) -> Json:
    ranks = [_member(plan, job, group, place) for place, rank in enumerate(group.members) if rank not in dead]
    missing = [
        {**_place(plan, group, place), "status": DEAD} for place, rank in enumerate(group.members) if rank in dead
    ]
    identity = f"0x{random.Random(f'ras {plan.seed} {group.name}').getrandbits(64):x}"
    return {
        "hash": identity, "secondary_hash": f"{identity}:{identity}", "size": len(group.members),
        "ranks_count": len(ranks), "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": missing,
    }  # fmt: skip


def _member(plan: Plan, job: Job, group: Communicator, place: int) -> Json:
    rank = group.members[place]
    calls = step_calls(plan, rank) * plan.steps + job.processes[rank].issued
    counts = Counter(call.name for call in calls if call.communicator == group.name)
    return {
        **_place(plan, group, place), "status": RUNNING,
        "collective_counts": {name: counts[name] for name in COUNTED},
    }  # fmt: skip


def _place(plan: Plan, group: Communicator, place: int) -> Json:
    rank = group.members[place]
    device = rank % plan.gpus_per_node
    return {
        "rank": place, "host": f"10.0.4.{12 + plan.node(rank)}", "pid": Process(plan, rank).pid,
        "cuda_dev": device, "nvml_dev": device,
    }  # fmt: skip
