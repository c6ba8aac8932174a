"""Generate the profiler traces, step lines and metrics of a job that runs, with a chosen reason for being slow."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from ncclforensics.data.busbw import bus_factor

LAYERS = 4  # between which ranks of a tensor-parallel group wait for each other
COMPUTE_US = 40_000.0  # of a layer
JITTER = 0.004  # of it, as the standard deviation
GRADIENTS, ACTIVATIONS = 256 << 20, 256 << 20  # bytes of a call
GPU_LINK, NETWORK = 180e3, 45e3  # bytes a microsecond: busbw within a host, and between hosts
LATENCY_US = 12.0
CLOCKS_APART_US = 2_000.0  # by which the clocks of hosts differ
BEGAN_US = 1_772_449_497_000_000.0  # 2 March 2026, 11:04:57 UTC
FIRST_STEP = 5  # that the profiler traces
AHEAD_US, LATE_US = 1_000.0, 5.0  # by which a host launches a kernel before it runs: in time, and late
CLOCK, REPLAYS = 1980, 48_211  # MHz of a GPU; packets that a damaged link sent again
PERIOD = 10  # steps between two stalls
KERNELS = ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn", "flash_fwd_kernel", "fused_layer_norm")
EXPERTS_KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
CALL_KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
Event = dict[str, Any]


class SlowFault(StrEnum):
    """Why a job is slow."""

    NONE = "none"
    RANK = "rank"  # its GPU computes more slowly
    HOST = "host"  # all ranks of a host begin their kernels late
    GROUP = "group"  # all ranks of a tensor-parallel group compute more slowly
    LINK = "link"  # calls on one tensor-parallel group take longer to transfer
    PERIOD = "period"  # a rank stalls in every tenth step
    LAUNCH = "launch"  # all hosts launch their kernels late
    EXPERTS = "experts"  # ranks hold experts, whose tokens another rank has most of in each step


@dataclass(frozen=True, slots=True)
class SlowPlan:
    """What to generate. `by`: how much longer the slow part takes, as a share of its usual time."""

    fault: SlowFault
    nodes: int = 2
    gpus_per_node: int = 8
    tp: int = 4  # ranks of a tensor-parallel group, or of one that holds all experts
    steps: int = 30
    rank: int = 3  # that is slow, or whose host or group is
    by: float = 0.2
    since: int = 0  # the step, counted from the first that is traced
    ballast: int = 0  # further events of each rank and step, as real traces hold them
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a job that cannot be."""
        if self.size % self.tp:
            raise ValueError(f"{self.size} ranks do not divide into groups of {self.tp}")
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is none of {self.size}")

    @property
    def size(self) -> int:
        """The ranks of the job."""
        return self.nodes * self.gpus_per_node

    @property
    def slow_ranks(self) -> list[int]:
        """The ranks that are slow themselves."""
        first, count = {
            SlowFault.RANK: (self.rank, 1),
            SlowFault.PERIOD: (self.rank, 1),
            SlowFault.HOST: (self.rank // self.gpus_per_node * self.gpus_per_node, self.gpus_per_node),
            SlowFault.GROUP: (self.rank // self.tp * self.tp, self.tp),
        }.get(self.fault, (0, 0))
        return list(range(first, first + count))

    @property
    def inner(self) -> tuple[str, str]:
        """The description of the groups within the job, and their call."""
        return ("ep", "all_to_allv") if self.fault is SlowFault.EXPERTS else ("tp", "allreduce")

    def host(self, rank: int) -> str:
        """The name of the host of a rank."""
        return f"gpu-b{rank // self.gpus_per_node + 1:03d}"

    def group(self, rank: int) -> list[int]:
        """The tensor-parallel group of a rank."""
        first = rank // self.tp * self.tp
        return list(range(first, first + self.tp))


@dataclass(slots=True)
class _Clock:
    """How far each rank is, in microseconds since the beginning, and what its trace holds."""

    now: list[float]
    events: list[list[Event]] = field(default_factory=list)
    sequence: dict[tuple[int, ...], int] = field(default_factory=dict)


def generate_slow(plan: SlowPlan, folder: Path) -> dict[str, Any]:
    """Write a trace of every rank and the step lines of the last one into a folder, and return what is true of them."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(plan.seed)
    clock = _Clock([0.0] * plan.size, [[] for _ in range(plan.size)])
    ends = [_run_step(plan, clock, number, drawn) for number in range(plan.steps)]
    offsets = [drawn.uniform(-CLOCKS_APART_US, CLOCKS_APART_US) for _ in range(plan.nodes)]
    for rank in range(plan.size):
        path = folder / f"rank{rank}.pt.trace.json"
        path.write_text("".join(_document(plan, rank, clock.events[rank], offsets[rank // plan.gpus_per_node])))
    (folder / "train.log").write_text("".join(_step_lines(plan, ends)))
    return {
        "fault": str(plan.fault),
        "ranks": plan.slow_ranks,
        "by": plan.by if plan.fault is not SlowFault.NONE else 0.0,
        "since_step": FIRST_STEP + plan.since if plan.since else None,
        "world_size": plan.size,
    }


def write_metrics(plan: SlowPlan, folder: Path) -> None:
    """Write what DCGM's exporter shows of all GPUs: clocks, lower where kernels take longer, and replays of NVLink."""
    is_computing = plan.fault in (SlowFault.RANK, SlowFault.GROUP)
    linked = plan.group(plan.rank) if plan.fault is SlowFault.LINK else []
    clocks, replays = [], []
    for rank in range(plan.size):
        gpu = f'{{gpu="{rank % plan.gpus_per_node}",Hostname="{plan.host(rank)}"}}'
        clock = CLOCK / (1 + plan.by) if is_computing and rank in plan.slow_ranks else CLOCK
        clocks.append(f"DCGM_FI_DEV_SM_CLOCK{gpu} {clock:.0f}\n")
        replays.append(f"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{gpu} {REPLAYS if rank in linked else 0}\n")
    (folder / "metrics.prom").write_text("".join([*clocks, *replays]))


def _run_step(plan: SlowPlan, clock: _Clock, number: int, drawn: random.Random) -> float:
    """Let all ranks compute and call; return when the step ends, in microseconds since the beginning."""
    begun = list(clock.now)
    for layer in range(LAYERS):
        for rank in range(plan.size):
            _compute(plan, clock, rank, number, layer, drawn)
        for first in range(0, plan.size, plan.tp):
            members = plan.group(first)
            is_slow = plan.fault is SlowFault.LINK and plan.rank in members and number >= plan.since
            _call(clock, members, ACTIVATIONS, GPU_LINK / (1 + 10 * plan.by if is_slow else 1), "1", *plan.inner)
    network = NETWORK if plan.nodes > 1 else GPU_LINK
    _call(clock, range(plan.size), GRADIENTS, network, "0", "default_pg", "allreduce")
    for rank, events in enumerate(clock.events):
        name = f"ProfilerStep#{FIRST_STEP + number}"
        events.append(_event("user_annotation", name, begun[rank], clock.now[rank] - begun[rank], {}))
        step = (clock.now[rank] - begun[rank]) / max(plan.ballast, 1)
        events += [
            _event("cpu_op", "aten::add_", begun[rank] + step * n, 3.5, {"Ev Idx": n}) for n in range(plan.ballast)
        ]
    return max(clock.now)


def _compute(plan: SlowPlan, clock: _Clock, rank: int, number: int, layer: int, drawn: random.Random) -> None:
    usual = COMPUTE_US * (1 + drawn.gauss(0, JITTER))
    idle = 200.0
    if rank in plan.slow_ranks and number >= plan.since:
        match plan.fault:
            case SlowFault.RANK | SlowFault.GROUP:
                usual *= 1 + plan.by
            case SlowFault.HOST:
                idle += plan.by * COMPUTE_US
            case SlowFault.PERIOD if number % PERIOD == PERIOD - 1 and layer == 0:
                idle += 20 * plan.by * COMPUTE_US
    if plan.fault is SlowFault.EXPERTS and number >= plan.since:
        usual *= 1 + plan.by * drawn.expovariate(1)
    ahead = AHEAD_US
    if plan.fault is SlowFault.LAUNCH and number >= plan.since:
        idle, ahead = idle + plan.by * COMPUTE_US, LATE_US
    start = clock.now[rank] + idle
    for kernel, share in zip(KERNELS, (0.7, 0.2, 0.1), strict=True):
        clock.events[rank] += _launched(kernel, start, usual * share, {"stream": 7}, ahead, len(clock.events[rank]))
        start += usual * share
    clock.now[rank] = start


def _call(
    clock: _Clock, members: Sequence[int], size: int, rate: float, name: str, description: str, operation: str
) -> None:
    """Let these ranks make a call: it ends on all of them when the last has come and the data are there."""
    end = max(clock.now[rank] for rank in members) + LATENCY_US + bus_factor("all_reduce", len(members)) * size / rate
    key = tuple(members)
    clock.sequence[key] = sequence = clock.sequence.get(key, 0) + 1
    ranks = str(list(members)) if len(members) <= 30 else f"[{', '.join(map(str, members[:30]))}, ...]"
    known = {
        "Collective name": operation, "In msg nelems": size // 2, "Out msg nelems": size // 2, "dtype": "BFloat16",
        "Group size": len(members), "Process Group Name": f"{name}{members[0] if name != '0' else ''}",
        "Process Group Description": description, "Process Group Ranks": ranks, "Seq": sequence,
    }  # fmt: skip
    for rank in members:
        start, events = clock.now[rank], clock.events[rank]
        kernel = CALL_KERNEL if operation == "allreduce" else EXPERTS_KERNEL
        events += _launched(kernel, start, end - start, known, AHEAD_US, len(events))
        clock.now[rank] = end


def _launched(name: str, start: float, duration: float, known: Event, ahead: float, key: int) -> list[Event]:
    """The launch of a kernel, so long before it runs, and the kernel; `key` connects them."""
    of_both = {"correlation": key}
    launch = _event("cuda_runtime", "cudaLaunchKernel", start - ahead, 4.0, of_both)
    return [launch, _event("kernel", name, start, duration, {**known, **of_both})]


def _event(category: str, name: str, start: float, duration: float, known: Event) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": start, "dur": round(duration, 3),
        "args": known,
    }  # fmt: skip


def _document(plan: SlowPlan, rank: int, events: Sequence[Event], offset: float) -> Iterator[str]:
    """Yield a trace as Kineto writes it."""
    everyone, group = list(range(plan.size)), plan.group(rank)
    info = {
        "backend": "nccl", "rank": rank, "world_size": plan.size, "pg_count": 2,
        "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": plan.size, "ranks": everyone},
            {"pg_name": f"1{group[0]}", "pg_desc": plan.inner[0], "pg_size": plan.tp, "ranks": group},
        ],
        "nccl_version": "2.27.7",
    }  # fmt: skip
    yield '{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n'
    yield f'  "distributedInfo": {json.dumps(info)},\n  "host_name": "{plan.host(rank)}",\n'
    yield '  "displayTimeUnit": "ms",\n  "traceEvents": [\n'
    for number, event in enumerate(events):
        known = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event["args"].items())
        separator = "," if number + 1 < len(events) else ""
        yield (
            f'  {{\n    "ph": "X", "cat": "{event["cat"]}", "name": "{event["name"]}", "pid": 0, "tid": 7,\n'
            f'    "ts": {BEGAN_US + offset + event["ts"]:.3f}, "dur": {event["dur"]:.3f},\n'
            f'    "args": {{\n      {known}\n    }}\n  }}{separator}\n'
        )
    yield f'  ],\n  "traceName": "rank{rank}.pt.trace.json"\n}}\n'


def _step_lines(plan: SlowPlan, ends: Sequence[float]) -> Iterator[str]:
    """Yield the lines of Megatron-LM, with a mean of each step."""
    before = 0.0
    for number, end in enumerate(ends):
        moment = datetime.fromtimestamp((BEGAN_US + end) / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        yield (
            f" [{moment}] iteration {FIRST_STEP + number:8d}/ {FIRST_STEP + plan.steps:8d} | consumed samples: "
            f"{64 * (FIRST_STEP + number):12d} | elapsed time per iteration (ms): {(end - before) / 1000:.1f} | "
            f"learning rate: 1.000000E-04 | global batch size:    64 | lm loss: 2.500000E+00 |\n"
        )
        before = end
